"""The age of a slave's copy of its master's topics, groups and offsets."""

import pytest
from attrs import evolve

from tests.monitor.builders import MASTER, SLAVE, master
from tests.monitor.scenes import FIRST, NOW_MS, SECOND, busy_view
from tests.monitor.test_cluster import Play, quiet, watched
from tests.monitor.test_widgets import PALETTE, plain
from trioha.broker_status import MetadataStatus, TableCopyStatus
from trioha_monitor.metadata_copy import TABLES_MAX, view_metadata
from trioha_monitor.panes.replicas import metadata_cell
from trioha_monitor.panes.slave import facts_of
from trioha_monitor.rendering import RenderContext
from trioha_monitor.texts import NOTHING
from trioha_monitor.view import MetadataView

LOOK = RenderContext(PALETTE, end_ms=NOW_MS)


def test_the_oldest_table_counts_and_gets_older_after_the_answer():
    tables = {"topics": TableCopyStatus(age_ms=4000), "consumerOffsets": TableCopyStatus(age_ms=9000)}
    view = view_metadata(MetadataStatus(tables=tables, regressions_kept=2), answer_age_s=1.5)
    assert view == MetadataView(10.5, offsets_kept=2)


@pytest.mark.parametrize(
    "tables", [{}, {"topics": TableCopyStatus(age_ms=4000), "groups": TableCopyStatus()}]
)
def test_a_table_that_was_never_copied_has_no_age(tables):
    view = view_metadata(MetadataStatus(tables=tables), answer_age_s=0.0)
    assert view == MetadataView(None)


def test_a_slave_that_reports_no_copies_has_none():
    assert view_metadata(None, answer_age_s=0.0) is None


def test_a_table_that_cannot_be_copied_is_named():
    tables = {"groups": TableCopyStatus(age_ms=4000, failures=3, error="no answer\x1b[31m")}
    view = view_metadata(MetadataStatus(tables=tables), answer_age_s=0.0)
    (fault,) = view.faults
    assert fault.startswith("groups: no answer")
    assert "\x1b" not in fault


def test_what_is_read_of_an_impossible_answer_is_bounded():
    tables = {f"t{number}": TableCopyStatus(age_ms=-5, error="no") for number in range(1000)}
    view = view_metadata(MetadataStatus(tables=tables, regressions_kept=-1), answer_age_s=0.0)
    assert view == MetadataView(0.0, faults=tuple(f"t{number}: no" for number in range(TABLES_MAX)))


def test_a_watched_slaves_row_has_the_age_and_keeps_it_while_the_slave_is_silent():
    play = Play(MASTER, SLAVE)
    socket = "127.0.0.1:40001"
    copies = MetadataStatus(tables={"topics": TableCopyStatus(age_ms=2000)})
    told = evolve(watched(1000, local_address=socket), metadata=copies)
    play.tell(told, master(1000, quiet(socket, 1000)), for_s=0.2)
    assert play.row().metadata == MetadataView(2.0)
    play.tell(master(1000, quiet(socket, 1000)), for_s=0.5)
    assert play.row().metadata == MetadataView(2.5)


def test_the_age_is_in_the_table_of_replicas_and_with_the_slave():
    view = busy_view()
    cells = {
        replica.node: plain(metadata_cell(replica, LOOK))
        for replica in view.replicas
        if replica.node is not None
    }
    assert cells == {FIRST: "7s old", SECOND: "20m 10s old"}
    stuck = next(replica for replica in view.replicas if replica.node == SECOND)
    lines = [plain(line) for line in facts_of(stuck, view.node(SECOND), LOOK, width=76)]
    at = next(number for number, line in enumerate(lines) if line.startswith("Metadata"))
    assert lines[at] == "Metadata  20m 10s old  3 offsets of the master are before its own"
    assert lines[at + 1].strip() == "consumerOffsets: no answer from 10.0.0.1:10911 within 3 s"


def test_a_slave_that_is_not_watched_has_no_line_for_its_metadata():
    view = busy_view()
    unwatched = next(replica for replica in view.replicas if replica.node is None)
    lines = [plain(line) for line in facts_of(unwatched, None, LOOK, width=76)]
    assert not any(line.startswith("Metadata") for line in lines)
    assert plain(metadata_cell(unwatched, LOOK)) == NOTHING
