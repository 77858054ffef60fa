"""Links as work for tasks: the same as those of whole sessions, from the starts of connections."""

import pytest

from tests.analysis.replays import BACK_NS, THERE_NS, replay_here, write_reconnecting_slaves
from trioha_analysis import link_work as module
from trioha_analysis.arrow_values import from_arrow, to_arrow
from trioha_analysis.document import document, link_row
from trioha_analysis.link_work import Compared, LinkWork, compare, link_work, links_of
from trioha_analysis.state_at import open_readers
from trioha_sessions.clocks import links


@pytest.mark.parametrize("range_records", [15, 1000])
def test_links_of_tasks_are_those_of_whole_sessions(tmp_path, range_records):
    write_reconnecting_slaves(tmp_path, slaves=2, turns=4, frames=6)
    result = replay_here(tmp_path, range_records=range_records)
    # As tasks get them, and give them back.
    work = [from_arrow(one, LinkWork) for one in to_arrow(list(link_work(result)), LinkWork)]
    there = [found for one in work for found in compare(one)]
    compared = [from_arrow(one, Compared) for one in to_arrow(there, Compared)]
    found = links_of(result.opened, compared)
    assert len(found) == 8
    expected = links(open_readers([tmp_path]))
    assert [link_row(link) for link in found] == [link_row(link) for link in expected]
    assert document(result, found) == document(result, expected)


def test_only_the_starts_of_connections_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "READ_RECORDS_MAX", 50)
    monkeypatch.setattr(module, "CANDIDATES_MAX", 2)
    write_reconnecting_slaves(tmp_path, slaves=2, turns=12, frames=10)
    result = replay_here(tmp_path)
    work = list(link_work(result))
    assert len(work) == 24
    for one in work:
        assert len(one.slaves) <= 2
        for start in (one.master, *one.slaves):
            # 40 records each: the one with the start, and two more.
            assert len(start.segments) <= 3
            assert start.segments[0].base_seq <= start.first_seq
    found = links_of(result.opened, [found for one in work for found in compare(one)])
    assert len(found) == 24
    assert {link.clock_error_ns for link in found} <= {(THERE_NS + BACK_NS) // 2}


def test_sessions_of_other_brokers_are_not_compared(tmp_path):
    write_reconnecting_slaves(tmp_path, slaves=1, turns=2, frames=3)
    for path in (tmp_path / "1-slave",):
        text = (path / "session.json").read_text()
        (path / "session.json").write_text(text.replace('"broker-a"', '"broker-b"'))
    assert list(link_work(replay_here(tmp_path))) == []
