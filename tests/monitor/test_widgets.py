"""The pure parts of the widgets: bars, columns, lines."""

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st
from rich.style import Style

from tests.monitor.scenes import NOW_MS, busy_view, controlled_view, lag_series, replica
from trioha.replica_verdict import Verdict
from trioha.severity import Severity
from trioha_monitor.panes.log import log_columns, log_facts, probe_parts
from trioha_monitor.panes.pane import node_columns
from trioha_monitor.panes.replicas import ha_status_text, replica_columns
from trioha_monitor.panes.slave import ladder_of
from trioha_monitor.rendering import ByteUnits, Palette, RenderContext
from trioha_monitor.series import Bucket, SeriesRecorder
from trioha_monitor.texts import NOTHING
from trioha_monitor.view import ArchiveView, ClusterView, ProbeCount
from trioha_monitor.widgets.columns import GAP, Column, fit, shorten
from trioha_monitor.widgets.graph import (
    ColumnCache,
    area,
    bar,
    full_scale,
    lag_curve,
    round_above,
    runs,
    sparkline,
)
from trioha_monitor.widgets.top_bar import short_summary, summary

GOOD, WARN, BAD = Style(color="green"), Style(color="yellow"), Style(color="red")
PALETTE = Palette(
    text=Style(), strong=Style(bold=True), muted=Style(dim=True), faint=Style(dim=True), accent=Style(),
    reverse=Style(reverse=True), good=GOOD, notice=Style(), warn=WARN, bad=BAD, good_body=GOOD,
    notice_body=Style(), warn_body=WARN, bad_body=BAD,
)  # fmt: skip
LOOK = RenderContext(PALETTE, end_ms=NOW_MS)


def plain(line):
    return "".join(text for text, _ in line)


def good(value):
    return Bucket(value)


def test_a_sparkline_is_scaled_to_its_worst_and_any_lag_is_higher_than_none():
    line = sparkline([None, good(0), good(1), good(500), good(1000)], PALETTE, least=1)
    assert plain(line) == " ▁▂▅█"


def test_a_little_lag_does_not_fill_a_sparkline():
    assert plain(sparkline([good(1000), good(262_144)], PALETTE)) == "▂█"
    assert plain(sparkline([good(1000)], PALETTE)) == "▂"


def test_a_sparkline_takes_the_colour_of_the_severity():
    line = sparkline([good(5), Bucket(5, Severity.WARNING), Bucket(0, Severity.CRITICAL)], PALETTE)
    assert [style for _, style in line] == [GOOD, WARN, BAD]


def test_a_graph_fills_each_column_to_its_share():
    lines = area([None, good(0), good(512), good(1024)], PALETTE, height=2, top=1024, grid=(0,))
    assert [plain(tuple(line)) for line in lines] == ["┈┈┈█", " ▁██"]


@given(st.floats(min_value=0, max_value=2**62))
def test_the_full_scale_holds_the_worst_and_is_not_far_above(worst):
    for units in (ByteUnits.BINARY, ByteUnits.DECIMAL):
        top = full_scale(worst, units=units)
        assert worst <= top
        assert top == 1024 or top <= 2.5 * worst + 2


@given(st.floats(min_value=0.001, max_value=1e12))
def test_a_rounded_top_is_near_and_above(worst):
    assert worst <= round_above(worst) <= 2.5 * worst + 0.01


@given(
    lags=st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 1000)), min_size=1, max_size=60),
    width=st.integers(5, 80),
    span_ms=st.sampled_from([5_000, 30_000, 120_000]),
)
def test_cached_columns_equal_computed_ones(lags, width, span_ms):
    recorder, cache, now_ms = SeriesRecorder(500, 300), ColumnCache(), 1_000_000
    for pause_ms, lag in lags:
        now_ms += pause_ms
        recorder.add(lag, Severity.GOOD, at_ms=now_ms)
        series = recorder.freeze()
        kept = cache.columns(series, width, end_ms=now_ms, span_ms=span_ms)
        assert kept == series.columns(width, end_ms=now_ms, span_ms=span_ms)


def test_columns_that_did_not_change_are_the_same_object_and_time_may_go_back():
    series, cache = lag_series("peak"), ColumnCache()
    first = cache.columns(series, 40, end_ms=NOW_MS, span_ms=120_000)
    assert cache.columns(series, 40, end_ms=NOW_MS + 1, span_ms=120_000) is first
    back = cache.columns(series, 40, end_ms=NOW_MS - 60_000, span_ms=120_000)
    assert back == series.columns(40, end_ms=NOW_MS - 60_000, span_ms=120_000)


def test_columns_are_computed_again_for_another_revision():
    known, cache = lag_series("peak"), ColumnCache()
    sparse = evolve(known, finished=tuple(None for _ in known.finished))
    before = cache.columns(sparse, 40, end_ms=NOW_MS, span_ms=120_000)
    assert before[5] is None
    after = cache.columns(evolve(known, revision=1), 40, end_ms=NOW_MS + 100, span_ms=120_000)
    assert after == known.columns(40, end_ms=NOW_MS + 100, span_ms=120_000)


def test_runs_merge_parts_of_one_style():
    assert runs([("a", GOOD), ("b", GOOD), ("c", BAD)]) == (("ab", GOOD), ("c", BAD))
    assert runs([]) == ()


def test_a_bar_shows_anything_above_0_and_never_exceeds_its_width():
    assert bar(0.0, 4) == "    "
    assert bar(0.0001, 4) == "▏   "
    assert bar(0.5, 4) == "██  "
    assert bar(7.0, 4) == "████"


COLUMNS = (
    Column[None]("a", "a", "", None),
    Column[None]("b", "b", "", None, rank=1),
    Column[None]("c", "c", "", None, rank=2),
    Column[None]("d", "d", "", None, flexible_min=4),
)


def test_columns_of_the_highest_rank_are_dropped_first():
    content = {"a": 5, "b": 5, "c": 5, "d": 1}
    assert fit(COLUMNS, content, width=30) == {"a": 5, "b": 5, "c": 5, "d": 9}
    assert fit(COLUMNS, content, width=24) == {"a": 5, "b": 5, "d": 10}
    assert fit(COLUMNS, content, width=17) == {"a": 5, "d": 10}


def test_columns_of_rank_0_shrink_and_are_not_dropped():
    assert fit(COLUMNS, {"a": 20, "b": 5, "c": 5, "d": 1}, width=16) == {"a": 10, "d": 4}


@given(
    content=st.tuples(*[st.integers(min_value=1, max_value=40)] * 4),
    width=st.integers(min_value=8, max_value=200),
)
def test_columns_never_exceed_the_width(content, width):
    widths = fit(COLUMNS, dict(zip("abcd", content, strict=True)), width=width)
    assert {"a", "d"} <= set(widths)
    assert sum(widths.values()) + GAP * (len(widths) - 1) <= width


def test_a_line_that_is_too_long_ends_in_an_ellipsis():
    assert plain(shorten((("abc", GOOD), ("defg", BAD)), 5)) == "abcd…"
    assert plain(shorten((("日本語", GOOD),), 4)) == "日… "
    assert shorten((("abc", GOOD),), 0) == ()


def test_every_column_writes_every_row_in_every_unit():
    view = busy_view()
    for units in ByteUnits:
        context = RenderContext(PALETTE, units, end_ms=NOW_MS)
        for node in view.nodes:
            for node_column in (*node_columns(), *log_columns()):
                assert isinstance(node_column.write(node, context, 10), tuple)
        for row in view.replicas:
            for column in replica_columns(lambda *_: ()):
                assert isinstance(column.write(row, context, 10), tuple)


def test_bytes_are_written_in_the_unit_that_was_chosen():
    assert [RenderContext(PALETTE, units).size(1_234_567) for units in ByteUnits] == [
        "1.18 MiB",
        "1.23 MB",
        "1,234,567 B",
    ]
    assert RenderContext(PALETTE).size(None) == NOTHING
    assert RenderContext(PALETTE, ByteUnits.DECIMAL).rate(-999_600) == "-1.00 MB/s"


def test_every_verdict_has_a_glyph_a_word_and_a_colour_of_its_own():
    parts = [LOOK.verdict(verdict) for verdict in Verdict]
    assert len({text.split()[0] for text, _ in parts}) == len(Verdict)
    assert [text.partition(" ")[2] for text, _ in parts] == [verdict.value for verdict in Verdict]
    assert dict(zip(Verdict, (style for _, style in parts), strict=True))[Verdict.GAP] is BAD


def test_the_summary_has_the_worst_first():
    view = busy_view()
    words = [word for word in plain(summary(view, LOOK)).split("  ") if word]
    assert words == [
        "✗ 1 down", "◐ 1 late", "■ 1 stalled", "✗ 1 silent", "▼ 1 gap", "≠ 1 diverged", "▲ 1 fall behind",
        "△ 1 not in sync", "◐ 1 stale",
    ]  # fmt: skip
    assert plain(short_summary(view, LOOK)) == "✗ 5 bad ▲ 4 warn "
    assert plain(summary(controlled_view(), LOOK)) == "▲ 1 without controller"
    assert plain(short_summary(controlled_view(), LOOK)) == "▲ 1 warn "
    assert plain(summary(ClusterView(NOW_MS), LOOK)) == "◌ connecting"


def test_probes_of_many_hosts_are_one_line():
    probes = tuple(ProbeCount(f"10.0.0.{n}", "EOF", 1000 - n) for n in range(20))
    node = evolve(busy_view().nodes[0], probes=probes, waiting_probes=2)
    line = plain(probe_parts(node, LOOK, width=60))
    assert line == "19,810  10.0.0.0 EOF 1,000 · 19 more  2 open"
    assert plain(probe_parts(node, LOOK, width=90)) == (
        "19,810  10.0.0.0 EOF 1,000 · 10.0.0.1 EOF 999 · 10.0.0.2 EOF 998 · 17 more  2 open"
    )
    assert plain(probe_parts(evolve(node, probes=probes[:1], waiting_probes=0), LOOK, width=60)) == (
        "1,000  10.0.0.0 EOF 1,000"
    )
    facts = [plain(line) for line in log_facts(node, busy_view(), LOOK, width=71)]
    assert [line for line in facts if line.startswith("Probes")] == [f"Probes     {line}"]
    note = next(column for column in node_columns() if column.key == "note")
    assert plain(note.write(node, LOOK, 80)) == (
        "6 slaves (1 observes), 4 in sync, 19,810 probes ▲ 1 warning"
    )


@pytest.mark.parametrize(
    ("changes", "lines"),
    [
        (
            {"state": "running", "archived_offset": 900, "lag_bytes": 2048, "lag_s": 7.0},
            ["Archived   900  -2.00 KiB  7s old", "Archive    s3://b/a  0001-5f"],
        ),
        (
            {"state": "running", "archived_offset": 900, "lag_bytes": 0, "lag_s": 0.0},
            ["Archived   900  level", "Archive    s3://b/a  0001-5f"],
        ),
        (
            {"state": "starting"},
            [f"Archived   {NOTHING}", "Archive    s3://b/a  0001-5f", "           starting"],
        ),
        (
            {"state": "waiting", "error": "denied", "files_deleted_unarchived": 1_200},
            [
                *(f"Archived   {NOTHING}", "Archive    s3://b/a  0001-5f", "           ▲ waiting denied"),
                "           ✗ 1,200 files deleted before they were archived",
            ],
        ),
        (
            {"state": "fenced", "error": "by b"},
            [f"Archived   {NOTHING}", "Archive    s3://b/a  0001-5f", "           ✗ fenced by b"],
        ),
    ],
)
def test_the_facts_of_a_log_say_how_far_it_is_archived(changes, lines):
    node = busy_view().nodes[0]
    archive = ArchiveView(**{"url": "s3://b/a", "generation": "0001-5f", **changes})
    facts = [
        plain(line)
        for line in log_facts(
            evolve(node, log=evolve(node.log, archive=archive)), busy_view(), LOOK, width=71
        )
    ]
    first = next(number for number, line in enumerate(facts) if line.startswith("Archived"))
    assert facts[first : first + len(lines)] == lines
    assert facts[first + len(lines)].startswith("Disk")


def test_the_ladder_shows_how_far_each_stage_is_behind():
    row = replica(1, Verdict.OK, flushed_offset=None, sent_offset=196_994_567)
    lines = [plain(line) for line in ladder_of(row, LOOK, width=60)]
    assert [line.split()[:2] for line in lines] == [
        ["appended", "196,994,567"], ["sent", "196,994,567"], ["acked", "196,933,333"], ["received", NOTHING],
        ["flushed", NOTHING], ["dispatched", NOTHING],
    ]  # fmt: skip
    assert "level" in lines[1]
    assert "-59.8 KiB" in lines[2]


def test_figures_of_two_moments_are_not_compared():
    # The slave answered after the master: the end of its log is beyond the master's.
    row = replica(
        1,
        Verdict.OK,
        master_offset=1000,
        sent_offset=1000,
        ack_offset=1000,
        age_s=0.31,
        slave_max_offset=9000,
        flushed_offset=8500,
        dispatched_offset=9000,
        slave_age_s=12.0,
    )
    lines = ladder_of(row, LOOK, width=60)
    assert [plain(line).split()[2:5] for line in lines] == [
        ["at", "the", "master,"], ["level"], ["level"], ["at", "the", "slave,"], ["-500", "B", "█" * 30],
        ["level"],
    ]  # fmt: skip
    assert (plain(lines[0]), plain(lines[3])) == (
        "appended   1,000   at the master, 0.3 s ago",
        "received   9,000   at the slave, 12.0 s ago",
    )
    assert not [text for line in lines for text, style in line if style == LOOK.palette.bad]
    again = ladder_of(row, LOOK, width=60, is_live=False)
    assert plain(again[0]) == "appended   1,000   at the master"


def test_a_graph_of_lag_has_the_masters_limits_and_the_replicas_events():
    view = busy_view()
    in_bytes = lag_curve(view.replicas[0], view, LOOK, in_seconds=False)
    in_seconds = lag_curve(view.replicas[0], view, LOOK, in_seconds=True)
    assert [limit.label for limit in in_bytes.limits] == ["haMaxGapNotInSync 256 MiB"]
    assert [limit.value for limit in in_seconds.limits] == [3.0, 20.0]
    # A change of its role, and that it connected.
    assert [mark.is_role_change for mark in in_bytes.marks] == [True, False]


def test_the_copied_text_is_what_mqadmin_prints():
    view = busy_view()
    text = ha_status_text(view, view.replicas[:3] + view.replicas[5:6])
    assert text == (
        "\n#MasterAddr\t127.0.0.1:10911\n#MasterCommitLogMaxOffset\t196994567\n"
        "#SlaveNum\t3\n#InSyncSlaveNum\t4\n"
        "#SlaveAddr                        #SlaveAckOffset             #Diff #TransferSpeed(KB/s)"
        "          #Status #TransferFromWhere\n"
        "127.0.0.1:43111                   196933333                   61234             0.12"
        "               OK        196994567\n"
        "127.0.0.1:43112                   191871111                 5123456             0.12"
        "               OK        196994567\n"
        "127.0.0.1:43113                   0                       294912000             0.12"
        "      Fall Behind        196994567\n"
    )
    assert ha_status_text(view, view.replicas[7:8]).splitlines()[:5] == [
        "", "#MasterAddr\t10.0.0.9:10911", "#MasterCommitLogMaxOffset\t-",
        "#SlaveNum\t1", "#InSyncSlaveNum\t-",
    ]  # fmt: skip
