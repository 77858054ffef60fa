"""Links as work for tasks: the same as those of whole sessions, from the starts of connections."""

import pytest

from tests.analysis.replays import (
    BACK_NS,
    THERE_NS,
    document,
    replay_here,
    write_reconnecting_slaves,
)
from trioha_analysis import link_work as module
from trioha_analysis import ranges
from trioha_analysis.arrow_values import from_arrow, to_arrow
from trioha_analysis.link_work import (
    Compared,
    ConnectionStarts,
    LinkWork,
    compare,
    frames_of,
    link_work,
    links_of,
)
from trioha_analysis.state_at import open_readers
from trioha_sessions.clocks import links


def work_of(result):
    return list(
        link_work(one for index, replay in enumerate(result.sessions) for one in frames_of(index, replay))
    )


@pytest.mark.parametrize("range_records", [15, 1000])
def test_links_of_tasks_are_those_of_whole_sessions(tmp_path, range_records):
    write_reconnecting_slaves(tmp_path, slaves=2, turns=4, frames=6)
    result = replay_here(tmp_path, range_records=range_records)
    # As tasks get them, and give them back.
    work = [from_arrow(one, LinkWork) for one in to_arrow(work_of(result), LinkWork)]
    starts = ConnectionStarts()
    there = [found for one in work for found in compare(one, starts)]
    found = links_of([from_arrow(one, Compared) for one in to_arrow(there, Compared)])
    assert len(found) == 8
    assert document(result, found) == document(result, links(open_readers([tmp_path])))


def test_only_the_starts_of_connections_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "READ_RECORDS_MAX", 50)
    monkeypatch.setattr(module, "CANDIDATES_MAX", 2)
    write_reconnecting_slaves(tmp_path, slaves=2, turns=12, frames=10)
    work = work_of(replay_here(tmp_path))
    assert len(work) == 24
    assert all(len(one.slaves) <= 2 for one in work)
    read = []
    read_segment = ranges.read_segment

    def counted(session, segment, *, first, count):
        read.append(count)
        return read_segment(session, segment, first=first, count=count)

    monkeypatch.setattr(ranges, "read_segment", counted)
    starts = ConnectionStarts()
    found = links_of(found for one in work for found in compare(one, starts))
    assert len(found) == 24
    assert {link.clock_error_ns for link in found} <= {(THERE_NS + BACK_NS) // 2}
    # Each connection once, or so often as it was forgotten meanwhile.
    ends = {end for one in work for end in (one.master, *one.slaves)}
    assert sum(read) <= 50 * len(ends)
