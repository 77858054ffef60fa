"""Aggregate: figures of sessions with known answers; cutting a session changes nothing."""

import random
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sessions.sessions import Event, MasterModel, as_array, slave_events, write_session
from trioha.distribution import Distribution
from trioha.recording.events import CloseReason, HaState, Kind, PutStatus
from trioha.recording.reader import open_session
from trioha_sessions.aggregate import aggregate, combine
from trioha_sessions.figures import connection_result, node_result
from trioha_sessions.histogram import Histogram
from trioha_sessions.records import read_records, read_segment
from trioha_sessions.segments import read_segments
from trioha_sessions.snapshot import Snapshot
from trioha_sessions.time_series import TimeGrid

GRID = TimeGrid.over(0, 10_000, steps=100)


@pytest.fixture(scope="module")
def empty_session(tmp_path_factory):
    """A session that provides the record type."""
    return write_session(tmp_path_factory.mktemp("aggregate") / "session", [Event(0, Kind.PUT)])


def plain(histogram):
    return histogram.buckets.tolist(), histogram.weights.tolist(), histogram.max_value


def values_of(part):
    """A part as values that can be compared."""
    node = node_result(part.node)
    result = {
        "node": {
            **{
                name: getattr(node, name)
                for name in type(node).__slots__
                if name not in {"waits", "put_series", "__weakref__"}
            },
            "put_series": (node.put_series.steps.tolist(), node.put_series.values.tolist()),
            "waits": [
                (wait.status, wait.count, wait.waited_us, plain(wait.histogram)) for wait in node.waits
            ],
        }
    }
    for conn, connection in part.connections.items():
        figures = connection_result(conn, connection, part.grid)
        result[conn] = {
            **{
                name: getattr(figures, name)
                for name in type(figures).__slots__
                if name not in {"ack_latency_histogram", "series", "__weakref__"}
            },
            "latency": plain(figures.ack_latency_histogram),
            "lag": plain(connection.finished(part.grid).lag),
            "series": {
                name: (series.steps.tolist(), series.values.tolist())
                for name, series in figures.series.items()
            },
        }
    return result


def figures_of(session, events, conn, *, is_slave=False):
    part = aggregate(as_array(session, events), is_slave=is_slave, grid=GRID)
    return connection_result(conn, part.connections[conn], GRID)


def test_lag_and_latency_of_a_connection_are_those_counted_by_hand(empty_session):
    events = [
        Event(0, Kind.STATE, conn=1, offset=-1, aux=1000, flags=HaState.HANDSHAKE),
        Event(50, Kind.REQUESTED, conn=1, offset=600, aux=1000),
        Event(50, Kind.STATE, conn=1, offset=-1, aux=1000, flags=HaState.TRANSFER),
        Event(50, Kind.ACK, conn=1, offset=600, aux=1000),  # 400 behind
        Event(60, Kind.TRANSFER, conn=1, offset=600, aux=1000, size=250),
        Event(70, Kind.TRANSFER, conn=1, offset=850, aux=1100, size=250),  # 500 behind just before
        Event(100, Kind.ACK, conn=1, offset=850, aux=1100),  # 500 just before, 250 after
        Event(160, Kind.ACK, conn=1, offset=1100, aux=1100),  # 250 before, 0 after
        # Idle for 840 ns, then a put is sent at once: the time before it counts as no lag.
        Event(1000, Kind.TRANSFER, conn=1, offset=1100, aux=1700, size=600),
        Event(1040, Kind.ACK, conn=1, offset=1700, aux=1700),
        Event(1050, Kind.CLOSED, conn=1, offset=1700, aux=1700, flags=CloseReason.HOUSEKEEPING),
        Event(1050, Kind.STATE, conn=1, offset=1700, aux=1700, flags=HaState.SHUTDOWN),
    ]
    part = aggregate(as_array(empty_session, events), is_slave=False, grid=GRID)
    result = connection_result(1, part.connections[1], GRID)
    lag = part.connections[1].finished(GRID).lag
    # 400 in 50..60; 500 in 60..100; 250 in 100..160; 0 in 160..1000; 600 in 1000..1040; 0 in 1040..1050.
    # So of 0, 250, 400, 500 and 600 bytes:
    assert lag.weights.tolist() == [850, 60, 10, 40, 40]
    assert result.lag_bytes is not None
    assert (result.lag_bytes.p50, result.lag_bytes.p99, result.lag_bytes.largest) == (0, 600, 600)
    # The frames took 40, 90 and 40 ns.
    assert result.ack_latency_ns == Distribution(40, 90, 90, 3)
    assert (result.frames, result.body_bytes, result.acks) == (3, 1100, 4)
    assert (result.request_offset, result.sent_offset, result.ack_offset, result.max_offset) == (
        600,
        1700,
        1700,
        1700,
    )
    assert (result.received_offset, result.reported_offset) == (None, None)
    assert (result.state, result.close_reason, result.closed_ts_ns) == ("SHUTDOWN", "HOUSEKEEPING", 1050)
    assert result.unacknowledged_frames == 0


def test_lag_of_a_silent_slave_includes_the_puts_until_its_next_event(empty_session):
    events = [
        Event(0, Kind.STATE, conn=1, offset=-1, aux=100, flags=HaState.HANDSHAKE),
        Event(0, Kind.ACK, conn=1, offset=100, aux=100),
        Event(0, Kind.TRANSFER, conn=1, offset=100, aux=110, size=10),
        # For 1000 ns nothing is received from it, while the log grows by 900 bytes.
        Event(1000, Kind.CLOSED, conn=1, offset=100, aux=1010, flags=CloseReason.HOUSEKEEPING),
    ]
    result = figures_of(empty_session, events, 1)
    assert result.lag_bytes is not None
    assert (result.lag_bytes.p50, result.lag_bytes.p99, result.lag_bytes.largest) == (910, 910, 910)
    assert result.ack_latency_ns is None
    assert result.unacknowledged_frames == 1
    assert result.ack_offset == 100
    assert result.sent_offset == 110


def test_slave_session_gives_received_and_reported_offsets_and_its_reconnect(empty_session):
    part = aggregate(as_array(empty_session, slave_events()), is_slave=True, grid=GRID)
    first, second = (connection_result(conn, part.connections[conn], GRID) for conn in (1, 2))
    assert (first.received_offset, first.reported_offset, first.max_offset) == (1300, 1300, 1300)
    assert (first.frames, first.body_bytes, first.acks) == (1, 300, 2)
    assert (first.heartbeats_sent, first.heartbeats_received) == (1, 1)
    assert (first.state, first.close_reason) == ("READY", "EOF")
    assert (second.received_offset, second.reported_offset, second.max_offset) == (1500, 1300, 1500)
    assert (second.state, second.close_reason, second.closed_ts_ns) == ("TRANSFER", None, None)
    assert (first.sent_offset, first.ack_offset, first.lag_bytes) == (None, None, None)
    assert node_result(part.node).connects == 2
    assert list(part.connections) == [1, 2]


def test_log_end_of_a_slave_that_replaced_its_log_is_that_of_the_new_one(empty_session):
    """The old log was longer. Cut anywhere, and as the snapshot has it."""
    events = [
        *slave_events()[:5],
        Event(55, Kind.FLUSHED, offset=1300),
        Event(56, Kind.DISPATCHED, offset=1300),
        *slave_events()[5:8],
        Event(90, Kind.CLOSED, conn=1, offset=1300, aux=1300, flags=CloseReason.DIVERGED),
        Event(91, Kind.STATE, conn=1, offset=1300, aux=1300, flags=HaState.READY),
        Event(100, Kind.STATE, conn=2, offset=0, aux=0, flags=HaState.TRANSFER),
        Event(110, Kind.REPORTED, conn=2, offset=0, aux=0),
        Event(120, Kind.RECEIVED, conn=2, offset=0, aux=700, size=700),
        Event(130, Kind.FLUSHED, offset=700),
        Event(131, Kind.DISPATCHED, offset=600),
    ]
    array = as_array(empty_session, events)
    for cut in range(len(array)):
        parts = [aggregate(part, is_slave=True, grid=GRID) for part in (array[:cut], array[cut:])]
        node = combine(parts).node
        assert (node.max_offset, node.flushed_offset, node.dispatched_offset) == (700, 700, 600), cut
        assert parts[0].node.max_offset == Snapshot.nowhere(array.dtype).after(array[:cut])[0].log_end_offset


def test_waits_are_counted_by_status_with_their_times(empty_session):
    ok, late = PutStatus.PUT_OK, PutStatus.FLUSH_SLAVE_TIMEOUT
    events = [Event(index, Kind.WAIT_BEGIN, aux=index, size=2) for index in range(102)]
    events += [Event(200 + us, Kind.WAIT_END, aux=us, size=us, flags=ok) for us in range(1, 101)]
    events += [Event(900, Kind.WAIT_END, aux=0, size=3_000_123, flags=late)]
    events += [Event(901, Kind.DROPPED, aux=17), Event(902, 99, offset=1)]
    node = node_result(aggregate(as_array(empty_session, events), is_slave=False, grid=GRID).node)
    assert [(wait.status, wait.count, wait.waited_us) for wait in node.waits] == [
        ("PUT_OK", 100, Distribution(50, 99, 100, 100)),
        ("FLUSH_SLAVE_TIMEOUT", 1, Distribution(3_000_123, 3_000_123, 3_000_123, 1)),
    ]
    assert node.waits_open == 1
    assert node.dropped == 17
    assert node.events == len(events)
    assert node.kinds[99] == 1


@given(seed=st.integers(0, 2**32), steps=st.integers(1, 150), cuts=st.integers(0, 8))
def test_parts_combined_are_the_aggregate_of_the_whole(empty_session, seed, steps, cuts):
    model = MasterModel(seed)
    events = model.run(steps)
    if not events:
        return
    array = as_array(empty_session, events)
    grid = TimeGrid.over(events[0].ts_ns, events[-1].ts_ns, steps=20)
    lot = random.Random(seed)
    borders = [0, *sorted(lot.randrange(len(array) + 1) for _ in range(cuts)), len(array)]
    parts = [aggregate(array[begin:end], is_slave=False, grid=grid) for begin, end in pairwise(borders)]
    whole = aggregate(array, is_slave=False, grid=grid)
    # Joined in any order of joining: neighbours are joined by lot.
    while len(parts) > 1:
        at = lot.randrange(len(parts) - 1)
        parts[at : at + 2] = [combine(parts[at : at + 2])]
    assert values_of(parts[0]) == values_of(whole)


@given(seed=st.integers(0, 2**32), steps=st.integers(1, 200))
def test_aggregate_of_a_model_has_its_figures(empty_session, seed, steps):
    model = MasterModel(seed)
    events = model.run(steps)
    if not events:
        return
    part = aggregate(as_array(empty_session, events), is_slave=False, grid=GRID)
    assert set(part.connections) == {slave.conn for slave in model.slaves + model.closed}
    for slave in model.slaves + model.closed:
        result = connection_result(slave.conn, part.connections[slave.conn], GRID)
        assert result.sent_offset == slave.sent[0]
        assert result.ack_offset == slave.ack[0]
        assert result.unacknowledged_frames == len(slave.in_flight)
        assert result.ack_latency_histogram.total == len(slave.latencies_ns)
        if slave.latencies_ns:
            assert result.ack_latency_ns is not None
            assert result.ack_latency_ns.largest == max(slave.latencies_ns)
            # The percentile is that of the sorted times, at most 0.1 % above it.
            exact = sorted(slave.latencies_ns)[(len(slave.latencies_ns) + 1) // 2 - 1]
            assert exact <= result.ack_latency_ns.p50 <= exact * 1.001
        assert (result.closed_ts_ns is not None) == (slave in model.closed)


@given(values=st.lists(st.integers(0, 2**62), min_size=1), percent=st.floats(0.1, 100))
def test_percentile_is_at_most_a_thousandth_above_the_true_one(values, percent):
    histogram = Histogram.of(np.array(values, np.int64))
    place = int(np.searchsorted(np.arange(1, len(values) + 1), len(values) * (percent / 100)))
    exact = sorted(values)[place]
    found = histogram.percentile(percent)
    assert found is not None
    assert exact <= found <= exact + exact // 1024 + 1
    if exact < 2048:
        assert found == exact
    assert histogram.max_value == max(values)


@given(
    a=st.lists(st.integers(0, 2**50)), b=st.lists(st.integers(0, 2**50)), c=st.lists(st.integers(0, 2**50))
)
def test_histograms_add_up(a, b, c):
    parts = [Histogram.of(np.array(values, np.int64)) for values in (a, b, c)]
    whole = Histogram.of(np.array(a + b + c, np.int64))
    assert plain(parts[0] + parts[1] + parts[2]) == plain(whole)
    assert plain(parts[0] + (parts[1] + parts[2])) == plain(whole)


@given(seed=st.integers(0, 2**32))
def test_aggregate_from_a_later_segment_ends_in_the_same_state(tmp_path_factory, seed):
    model = MasterModel(seed)
    events = model.run(120)
    path = write_session(tmp_path_factory.mktemp("roll") / "s", events, segment_records=50)
    session = open_session(path)
    segments = read_segments(session).segments
    whole = aggregate(read_records(session).array, is_slave=False, grid=GRID)
    for index, segment in enumerate(segments[1:], start=1):
        parts = [
            aggregate(
                read_segment(session, later, first=0, count=later.records).array,
                is_slave=False,
                grid=GRID,
                is_first=number == 0,
            )
            for number, later in enumerate(segments[index:])
        ]
        late = combine(parts)
        # Every connection that was open when the segment began or came later is there, as it is in the whole.
        open_then = {
            conn
            for conn, part in whole.connections.items()
            if part.counters.closed_ts_ns < 0 or part.counters.closed_ts_ns > segment.base_ts_ns
        }
        assert open_then <= set(late.connections)
        for conn in open_then:
            early_result = connection_result(conn, whole.connections[conn], GRID)
            late_result = connection_result(conn, late.connections[conn], GRID)
            for name in (
                "state",
                "close_reason",
                "sent_offset",
                "ack_offset",
                "max_offset",
                "request_offset",
            ):
                assert getattr(late_result, name) == getattr(early_result, name), name
        assert late.node.put_offset == whole.node.put_offset
        assert late.node.max_offset == whole.node.max_offset


def test_keyframes_after_earlier_segments_change_nothing(tmp_path):
    events = MasterModel(7).run(400)
    plain_path = write_session(tmp_path / "plain", events)
    rolled_path = write_session(tmp_path / "rolled", events, segment_records=40)
    found = []
    for path in (plain_path, rolled_path):
        array = read_records(open_session(path)).array
        found.append(values_of(aggregate(array, is_slave=False, grid=GRID)))
    keyframes = found[1]["node"]["kinds"].pop(int(Kind.KEYFRAME))
    assert keyframes > 50
    found[1]["node"]["events"] -= keyframes
    for values in found:
        for name, figures in values.items():
            # KEYFRAMEs have seqs, too.
            assert name == "node" or figures.pop("first_seq") >= 0
    assert found[0] == found[1]
