"""The pure parts of the widgets: bars, columns, rows."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from rich.style import Style

from tests.monitor.builders import MASTER, SLAVE, connection, example_snapshot, master, slave
from trioha.remoting.status import BrokerStatus
from trioha_monitor.history import Bucket, Grade
from trioha_monitor.model import ClusterModel, Sample, Snapshot
from trioha_monitor.themes import Palette
from trioha_monitor.widgets.bars import area, full_scale, sparkline
from trioha_monitor.widgets.row_table import GAP, Column, fit
from trioha_monitor.widgets.rows import CONNECTION_COLUMNS, NODE_COLUMNS, connection_rows, node_rows, verdict

GOOD, WARN, BAD = Style(color="green"), Style(color="yellow"), Style(color="red")
PALETTE = Palette(
    text=Style(), strong=Style(bold=True), muted=Style(dim=True), faint=Style(dim=True), accent=Style(),
    good=GOOD, warn=WARN, bad=BAD, good_body=GOOD, warn_body=WARN, bad_body=BAD,
)  # fmt: skip


def good(lag_bytes: int) -> Bucket:
    return Bucket(lag_bytes, Grade.GOOD)


def snapshot_of(status: BrokerStatus) -> Snapshot:
    model = ClusterModel([status.address], interval_s=0.2)
    model.observe(Sample(status.address, at_s=1.0, status=status))
    return model.snapshot(1.0)


def note_of(status: BrokerStatus) -> str:
    cell = node_rows(snapshot_of(status), PALETTE)[0].cells["note"]
    assert not callable(cell)
    return cell.plain


def test_a_sparkline_is_scaled_to_its_worst_and_any_lag_is_higher_than_none() -> None:
    line = sparkline([None, good(0), good(1), good(500), good(1000)], PALETTE)
    assert line.plain == " ▁▂▅█"


def test_a_sparkline_takes_the_colour_of_the_grade() -> None:
    line = sparkline([good(5), Bucket(5, Grade.BEHIND), Bucket(0, Grade.LOST)], PALETTE)
    assert [span.style for span in line.spans] == [GOOD, WARN, BAD]


def test_a_graph_fills_each_column_to_its_share() -> None:
    lines = area([None, good(0), good(512), good(1024)], PALETTE, height=2, top_bytes=1024)
    assert ["".join(glyph for glyph, _ in line) for line in lines] == ["┈┈┈█", " ▁██"]


@given(st.integers(min_value=0, max_value=2**63 - 1))
def test_the_full_scale_holds_the_worst_and_is_not_twice_as_much(worst: int) -> None:
    top = full_scale(worst)
    assert worst <= top
    assert top == 1024 or top < 2 * worst
    assert top % 2 == 0


COLUMNS = (
    Column("a", "a", ""),
    Column("b", "b", "", rank=1),
    Column("c", "c", "", rank=2),
    Column("d", "d", "", flexible_min=4),
)


def test_columns_of_the_highest_rank_give_way_first() -> None:
    content = {"a": 5, "b": 5, "c": 5, "d": 1}
    assert fit(COLUMNS, content, width=30) == {"a": 5, "b": 5, "c": 5, "d": 9}
    assert fit(COLUMNS, content, width=24) == {"a": 5, "b": 5, "d": 10}
    assert fit(COLUMNS, content, width=17) == {"a": 5, "d": 10}


def test_what_must_be_shown_shrinks_rather_than_leaving() -> None:
    assert fit(COLUMNS, {"a": 20, "b": 5, "c": 5, "d": 1}, width=16) == {"a": 10, "d": 4}


@given(
    content=st.tuples(*[st.integers(min_value=1, max_value=40)] * 4),
    width=st.integers(min_value=8, max_value=200),
)
def test_columns_never_take_more_than_there_is(content: tuple[int, ...], width: int) -> None:
    widths = fit(COLUMNS, dict(zip("abcd", content, strict=True)), width=width)
    assert {"a", "d"} <= set(widths)
    assert sum(widths.values()) + GAP * (len(widths) - 1) <= width


def test_every_row_has_a_cell_for_every_column() -> None:
    snapshot = example_snapshot()
    for row in node_rows(snapshot, PALETTE):
        assert list(row.cells) == [column.key for column in NODE_COLUMNS]
    for row in connection_rows(snapshot.connections, PALETTE, end_s=snapshot.at_s, span_s=120.0):
        assert list(row.cells) == [column.key for column in CONNECTION_COLUMNS]


def test_a_master_says_how_many_slaves_are_in_sync() -> None:
    one = connection("10.0.0.2:1", sent=1, ack=1, lag=0)
    two = connection("10.0.0.2:2", sent=1, ack=0, lag=1, in_sync=False)
    assert note_of(master(1)) == "0 slaves"
    assert note_of(master(1, one)) == "1 slave, 1 in sync"
    assert note_of(master(1, one, two)) == "2 slaves, 1 in sync"


def test_a_slave_says_its_master_and_its_ack() -> None:
    assert note_of(slave(5000, reported=4096)) == "← 127.0.0.1:10912 ack 4,096"


def test_a_broker_that_tells_nothing_of_its_slaves_is_not_said_to_have_none() -> None:
    old = BrokerStatus(
        address=MASTER, source="runtime-info", role="MASTER", version="V4_9_7", min_offset=0, max_offset=10,
        cluster_name=None, broker_name=None, broker_id=None, flushed_offset=None, ha_address=None,
        in_sync_slaves=None,
    )  # fmt: skip
    assert note_of(old) == "this version does not tell"


def test_the_verdict_names_what_is_wrong() -> None:
    assert verdict(example_snapshot(), PALETTE).plain == "● 2 up   ✗ 1 down   ✗ 1 lost"
    assert verdict(ClusterModel([SLAVE], interval_s=0.2).snapshot(0.0), PALETTE).plain == "◌ connecting"


def test_the_verdict_is_all_in_sync_only_if_it_is() -> None:
    synced = connection("10.0.0.2:1", sent=1, ack=1, lag=0)
    behind = connection("10.0.0.2:1", sent=1, ack=0, lag=1, in_sync=False)
    assert verdict(snapshot_of(master(1, synced)), PALETTE).plain == "● 1 up   ✓ all in sync"
    assert verdict(snapshot_of(master(1, behind)), PALETTE).plain == "● 1 up   ▲ 1 behind"
    assert verdict(snapshot_of(master(1)), PALETTE).plain == "● 1 up"
