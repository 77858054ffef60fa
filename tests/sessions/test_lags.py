"""Lag at each event is that of the aggregate, wherever the records are cut."""

import random
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sessions.sessions import Event, MasterModel, as_array, write_session
from trioha.recording.events import Kind
from trioha_sessions.aggregate import aggregate
from trioha_sessions.figures import connection_result
from trioha_sessions.lags import lags
from trioha_sessions.snapshot import Snapshot
from trioha_sessions.time_series import TimeGrid, TimeSeries


@pytest.fixture(scope="module")
def empty_session(tmp_path_factory):
    return write_session(tmp_path_factory.mktemp("lags") / "session", [Event(0, Kind.PUT)])


@given(seed=st.integers(0, 2**32), steps=st.integers(1, 200), cuts=st.integers(0, 6))
def test_lags_in_parts_make_the_series_of_the_aggregate(empty_session, seed, steps, cuts):
    events = MasterModel(seed).run(steps)
    array = as_array(empty_session, events).copy()
    array["seq"] = np.arange(len(array))
    grid = TimeGrid.over(0, events[-1].ts_ns if events else 1, steps=30)
    whole = aggregate(array, is_slave=False, grid=grid)
    lot = random.Random(seed)
    borders = [0, *sorted(lot.randrange(len(array) + 1) for _ in range(cuts)), len(array)]
    snapshot = Snapshot.nowhere(array.dtype)
    parts = []
    for begin, end in pairwise(borders):
        parts.append(lags(array[begin:end], snapshot))
        snapshot, _ = snapshot.after(array[begin:end])
    for conn, part in whole.connections.items():
        expected = connection_result(conn, part, grid).series["lag"]
        own = [(one.ts_ns[one.conn == conn], one.worst[one.conn == conn]) for one in parts]
        found = TimeSeries.of(
            grid.step_of(np.concatenate([ts_ns for ts_ns, _ in own])),
            np.concatenate([worst for _, worst in own]),
        )
        assert (found.steps.tolist(), found.values.tolist()) == (
            expected.steps.tolist(),
            expected.values.tolist(),
        )


def test_connection_numbers_far_apart_have_their_own_lag(empty_session):
    far = 2**31 - 1
    events = [
        Event(1, Kind.ACK, conn=1, offset=10, aux=30),
        Event(2, Kind.ACK, conn=far, offset=25, aux=30),
        Event(3, Kind.ACK, conn=1, offset=30, aux=40),
        Event(4, Kind.CLOSED, conn=far, offset=25, aux=50),
    ]
    array = as_array(empty_session, events)
    found = lags(array, Snapshot.nowhere(array.dtype))
    assert list(zip(found.conn.tolist(), found.before.tolist(), found.after.tolist(), strict=True)) == [
        (1, -1, 20),
        (1, 30, 10),
        (far, -1, 5),
        (far, 25, 25),
    ]
    assert found.closed.tolist() == [False, False, False, True]
