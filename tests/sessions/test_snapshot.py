"""A snapshot at any record is the keyframes there; its connection states are those of the aggregate."""

import random
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sessions.sessions import Event, MasterModel, as_array, pack, slave_events, write_session
from trioha.recording.events import CloseReason, HaState, Kind
from trioha.recording.keyframes import KeyframeBuilder
from trioha_sessions.aggregate import aggregate
from trioha_sessions.figures import connection_result
from trioha_sessions.snapshot import Snapshot, connection_state, keyframes_to_events
from trioha_sessions.time_series import TimeGrid

GRID = TimeGrid.over(0, 10_000, steps=10)


@pytest.fixture(scope="module")
def empty_session(tmp_path_factory):
    return write_session(tmp_path_factory.mktemp("snapshot") / "session", [Event(0, Kind.PUT)])


def numbered(session, events):
    array = as_array(session, events).copy()
    array["seq"] = np.arange(len(array))
    return array


def plain(records):
    names = ("kind", "flags", "conn", "offset", "aux", "size")
    return [tuple(int(record[name]) for name in names) for record in records]


@given(seed=st.integers(0, 2**32), steps=st.integers(1, 200), cuts=st.integers(0, 8))
def test_snapshot_after_parts_is_that_of_the_whole(empty_session, seed, steps, cuts):
    array = numbered(empty_session, MasterModel(seed).run(steps))
    lot = random.Random(seed)
    borders = [0, *sorted(lot.randrange(len(array) + 1) for _ in range(cuts)), len(array)]
    snapshot, ended = Snapshot.nowhere(array.dtype), []
    for begin, end in pairwise(borders):
        snapshot, more = snapshot.after(array[begin:end])
        ended += more
    whole, whole_ended = Snapshot.nowhere(array.dtype).after(array)
    assert snapshot.records.tobytes() == whole.records.tobytes()
    assert snapshot.log_end_offset == whole.log_end_offset
    assert [(one.conn, one.seq, one.records.tobytes()) for one in ended] == [
        (one.conn, one.seq, one.records.tobytes()) for one in whole_ended
    ]


@given(seed=st.integers(0, 2**32), steps=st.integers(1, 200))
def test_snapshot_is_what_keyframes_would_repeat_there(empty_session, seed, steps):
    events = MasterModel(seed).run(steps)
    array = numbered(empty_session, events)
    snapshot, _ = Snapshot.nowhere(array.dtype).after(array)
    builder = KeyframeBuilder()
    builder.add(memoryview(pack(events)))
    keyframes = np.frombuffer(bytes(builder.keyframes(7)), array.dtype)
    assert sorted(plain(snapshot.records)) == sorted(plain(keyframes_to_events(keyframes)))
    again = Snapshot.at_keyframes(keyframes)
    assert plain(again.records) == plain(snapshot.records)


@given(seed=st.integers(0, 2**32), steps=st.integers(1, 200))
def test_connection_state_of_a_snapshot_is_that_of_the_aggregate(empty_session, seed, steps):
    array = numbered(empty_session, MasterModel(seed).run(steps))
    snapshot, ended = Snapshot.nowhere(array.dtype).after(array)
    whole = aggregate(array, is_slave=False, grid=GRID)
    found = dict(snapshot.connections()) | {one.conn: one.records for one in ended}
    assert set(found) == set(whole.connections)
    for conn, records in found.items():
        state = connection_state(records, is_slave=False)
        result = connection_result(conn, whole.connections[conn], GRID)
        for name in ("request_offset", "sent_offset", "ack_offset", "max_offset", "closed_ts_ns"):
            assert (None if getattr(state, name) < 0 else getattr(state, name)) == getattr(result, name), name
        if conn not in {one.conn for one in ended}:
            assert HaState(state.state).name == result.state
    assert snapshot.log_end_offset == whole.node.max_offset
    assert snapshot.of_node(Kind.PUT) == (None if whole.node.put_offset < 0 else whole.node.put_offset)


def test_a_slave_without_its_master_keeps_its_log_end_and_close_reason(empty_session):
    events = slave_events()
    array = numbered(empty_session, events)
    snapshot, (ended,) = Snapshot.nowhere(array.dtype).after(array[:12])
    assert list(snapshot.connections()) == []
    assert snapshot.log_end_offset == 1300
    state = connection_state(ended.records, is_slave=True)
    assert (ended.conn, ended.seq, state.close_reason, state.closed_ts_ns) == (1, 8, CloseReason.EOF, 90)
    assert (state.received_offset, state.reported_offset, state.last_received_ts_ns) == (1300, 1300, 70)
    snapshot, _ = snapshot.after(array[12:])
    ((conn, records),) = snapshot.connections()
    state = connection_state(records, is_slave=True)
    assert (conn, state.received_offset, state.reported_offset, state.max_offset) == (2, 1500, 1300, 1500)
