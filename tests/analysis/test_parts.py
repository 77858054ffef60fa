"""Parts of a replay: what a task is sent and what it passes on do not grow with the session."""

from pathlib import Path

import pytest

from tests.analysis.replays import document, master_events, replay_here, replayed
from tests.levels import by_level
from tests.sessions.sessions import Event, MasterModel, write_session
from trioha.recording.events import CloseReason, HaState, Kind
from trioha.recording.reader import Segment
from trioha_analysis.arrow_values import to_arrow
from trioha_analysis.parts import BEFORE_RECORDS, Run, aggregate_run, join_connection, join_node, runs_of
from trioha_analysis.replay_plan import plan_replay
from trioha_sessions import aggregate, progress
from trioha_sessions.invariants import copies, preceding_events
from trioha_sessions.time_series import TimeGrid

FOLDER = Path("/sessions/20260101T000000.000Z-broker-a-0")
GRID = TimeGrid(0, 1, 1)


def segments_of(count, records):
    return [
        Segment(FOLDER / "events" / f"{number * records:020d}.seg", number * records, 0, 32, records)
        for number in range(count)
    ]


def in_a_tree(path, *, range_records):
    """A replay whose parts join two by two."""
    plan = plan_replay([path], range_records=range_records)
    (grid,) = plan.grids
    parts = [aggregate_run(run) for run in plan.runs()]
    while len(parts) > 1:
        joined = []
        for some in (parts[first : first + 2] for first in range(0, len(parts), 2)):
            found = {}
            for _, connections in some:
                for conn, part in connections.items():
                    found[conn] = join_connection([found[conn], part], grid) if conn in found else part
            joined.append((join_node([node for node, _ in some]), found))
        parts = joined
    ((node, connections),) = parts
    return replayed(plan, {0: node}, {(0, conn): part for conn, part in connections.items()})


@pytest.mark.parametrize("segment_records", [2_000_000, 100_000])
def test_what_a_task_is_sent_does_not_grow_with_the_session(segment_records):
    def longest(segments):
        found = runs_of(0, FOLDER, segments_of(segments, segment_records), GRID, run_ranges=8)
        return max(to_arrow([run], Run).nbytes for run in found)

    assert longest(1000) == pytest.approx(longest(30), rel=0.01)


def test_a_run_names_the_segments_that_its_waits_may_have_begun_in():
    runs = list(runs_of(0, FOLDER, segments_of(40, 100_000), GRID))
    assert [run.ordinal for run in runs] == list(range(40))
    for run in runs:
        index = run.ordinal
        before = [segment.base_seq // 100_000 for segment in run.segments[:-1]]
        assert before == list(range(max(0, index - BEFORE_RECORDS[-1] // 100_000), index))
        assert run.pieces == ((len(before), 0, 100_000),)


def test_ranges_of_many_segments_are_planned_in_their_order():
    runs = list(runs_of(3, FOLDER, segments_of(3, 250), GRID, range_records=100, run_ranges=4))
    found = [
        (run.segments[index].base_seq + first, count) for run in runs for index, first, count in run.pieces
    ]
    assert found == [
        (base_seq + first, count)
        for base_seq in (0, 250, 500)
        for first, count in ((0, 100), (100, 100), (200, 50))
    ]
    assert [len(run.pieces) for run in runs] == [4, 4, 1]
    assert [run.is_first for run in runs] == [True, False, False]


def test_parts_joined_in_a_tree_have_the_result_of_one_after_the_other(tmp_path):
    path = write_session(tmp_path / "session", MasterModel(11).run(700), segment_records=150)
    expected = document(replay_here(path))
    for range_records in (70, 31):
        assert document(in_a_tree(path, range_records=range_records)) == expected


def never_acked(frames):
    """A connection that is sent frames and acknowledges none of them after its request."""
    return [
        Event(0, Kind.STATE, conn=1, offset=-1, aux=0, flags=HaState.HANDSHAKE),
        Event(1, Kind.REQUESTED, conn=1, offset=0, aux=0),
        Event(2, Kind.ACK, conn=1, offset=0, aux=0),
        *(
            Event(10 + number, Kind.TRANSFER, conn=1, offset=number * 8, aux=number * 8 + 8, size=8)
            for number in range(frames)
        ),
    ]


@pytest.mark.parametrize("range_records", [10, 60, 1000])
def test_frames_that_nobody_acknowledges_are_counted_and_not_all_kept(tmp_path, monkeypatch, range_records):
    monkeypatch.setattr(progress, "KEPT_MAX", 20)
    monkeypatch.setattr(aggregate, "KEPT_MAX", 20)
    path = write_session(tmp_path / "session", never_acked(200))
    plan = plan_replay([path], range_records=range_records)
    parts = [aggregate_run(run)[1][1] for run in plan.runs()]
    joined = parts[0]
    for part in parts[1:]:
        joined = join_connection([joined, part], plan.grids[0])
    assert all(len(part.head) <= 20 for part in [*parts, joined])
    assert len(joined.progress.in_flight_ts_ns) <= 20
    (connection,) = document(replay_here(path, range_records=range_records))["connections"]
    assert connection["unacknowledgedFrames"] == 200


def test_a_late_ack_covers_frames_that_are_not_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(progress, "KEPT_MAX", 20)
    ack = Event(1000, Kind.ACK, conn=1, offset=1600, aux=1600)
    path = write_session(tmp_path / "session", [*never_acked(200), ack])
    (connection,) = document(replay_here(path, range_records=50))["connections"]
    assert connection["unacknowledgedFrames"] == 0
    assert connection["ackLatencyMs"]["max"] == pytest.approx((1000 - 190) / 1e6, rel=0.01)


@pytest.mark.sized
def test_what_rules_do_not_keep_is_not_checked_and_no_violation(tmp_path, monkeypatch):
    def violations(result):
        return {(row["invariant"], row["seq"]) for row in document(result)["violations"]}

    for seed in range(11, 11 + by_level(1, 2, 50)):
        path = write_session(tmp_path / str(seed), MasterModel(seed).run(700), segment_records=150)
        true = violations(replay_here(path))
        assert true, "the model makes violations"
        with monkeypatch.context() as patch:
            patch.setattr(preceding_events, "KEPT_MAX", 1)
            patch.setattr(copies, "CELLS_MAX", 1)
            patch.setattr(copies, "OPEN_MAX", 1)
            for range_records in (15, 60):
                assert violations(in_a_tree(path, range_records=range_records)) <= true, seed


def test_violations_within_a_part_are_found_whatever_rules_keep(tmp_path, monkeypatch):
    back = Event(50_000_000, Kind.ACK, conn=2, offset=1999, aux=2000)
    closed = Event(51_000_000, Kind.CLOSED, conn=2, offset=2000, aux=2000, flags=CloseReason.EOF)
    path = write_session(tmp_path / "session", [*master_events(), back, closed])
    monkeypatch.setattr(preceding_events, "KEPT_MAX", 1)
    monkeypatch.setattr(copies, "CELLS_MAX", 1)
    found = {row["invariant"] for row in document(in_a_tree(path, range_records=1000))["violations"]}
    assert "acks-go-forward" in found
