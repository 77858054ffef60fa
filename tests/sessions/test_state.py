"""The rules of a session's state: the same cases for single values and for arrays."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sessions.sessions import Event, MasterModel, as_array, write_session
from trioha.distribution import nearest_rank
from trioha.recording import state
from trioha.recording.events import CloseReason, Direction, HaState, Kind, PutStatus, code_name
from trioha.recording.state import UNKNOWN
from trioha_sessions import state_arrays
from trioha_sessions.aggregate import aggregate
from trioha_sessions.figures import node_result
from trioha_sessions.histogram import Histogram
from trioha_sessions.snapshot import Snapshot, connection_state
from trioha_sessions.time_series import TimeGrid


@pytest.fixture(scope="module")
def empty_session(tmp_path_factory):
    return write_session(tmp_path_factory.mktemp("state") / "session", [Event(0, Kind.PUT)])


def or_unknown(value):
    return UNKNOWN if value is None else value


class Scalars:
    """`trioha.recording.state`, record by record."""

    def reached(self, events, _):
        return [state.reached_offset(e.kind, offset=e.offset, size=e.size) for e in events]

    def ends_connection(self, events, _):
        return [state.ends_connection(e.kind, flags=e.flags) for e in events]

    def shows_request(self, events, _):
        return [state.shows_request(e.kind, flags=e.flags, offset=e.offset) for e in events]

    def lag_bytes(self, log_end, ack):
        return or_unknown(state.lag_bytes(state.known(log_end), state.known(ack)))

    def first_beyond(self, ends, offset):
        return state.first_beyond(ends, offset)

    def percentile(self, values, part):
        return nearest_rank(sorted(values), part)


class Arrays:
    """`trioha_sessions.state_arrays`, all records at a time."""

    def reached(self, _, records):
        return state_arrays.reached_offsets(records).tolist()

    def ends_connection(self, _, records):
        return state_arrays.ends_connection(records["kind"], records["flags"]).tolist()

    def shows_request(self, _, records):
        return state_arrays.shows_request(records).tolist()

    def lag_bytes(self, log_end, ack):
        return int(state_arrays.lag_bytes(np.array([log_end]), np.array([ack]))[0])

    def first_beyond(self, ends, offset):
        return int(state_arrays.first_beyond(np.array(ends, np.int64), np.array([offset]))[0])

    def percentile(self, values, part):
        found = Histogram.of(np.array(values)).percentile(part * 100)
        assert found is not None
        return found


Rules = Scalars | Arrays
both = pytest.mark.parametrize("rules", [Scalars(), Arrays()], ids=["scalars", "arrays"])


def test_log_end_is_named_by_puts_and_by_records_of_connections(empty_session):
    events = [
        Event(1, Kind.PUT, offset=100, aux=7),
        Event(2, Kind.FLUSHED, offset=100, aux=5),
        Event(3, Kind.ACK, conn=1, offset=90, aux=110),
        Event(4, Kind.STATE, offset=90, aux=120),
        Event(5, Kind.LINK, conn=1, aux=130),
        Event(6, Kind.RECEIVED, conn=2, offset=110, aux=140, size=30),
        Event(7, Kind.WAIT_END, offset=140, aux=9),
        Event(8, Kind.CLOSED, conn=1, offset=90, aux=150),
        Event(9, Kind.KEYFRAME, conn=1, offset=90, aux=160, flags=Kind.ACK),
    ]
    places, ends = state_arrays.log_ends(as_array(empty_session, events))
    assert places.tolist() == [0, 2, 5, 7]
    assert ends.tolist() == [100, 110, 140, 150]


@both
def test_a_frame_reaches_to_its_end(empty_session, rules):
    events = [Event(1, kind, conn=1, offset=10, size=5) for kind in (Kind.TRANSFER, Kind.RECEIVED, Kind.ACK)]
    assert rules.reached(events, as_array(empty_session, events)) == [15, 15, 10]


@both
def test_a_connection_ends_with_closed_or_in_a_state_without_one(empty_session, rules):
    events = [
        Event(1, Kind.CLOSED, conn=1),
        *(Event(2, Kind.STATE, conn=1, flags=one) for one in HaState),
        Event(3, Kind.ACK, conn=1, flags=HaState.SHUTDOWN),
    ]
    found = rules.ends_connection(events, as_array(empty_session, events))
    expected = [one in {HaState.READY, HaState.SHUTDOWN} for one in HaState]
    assert found == [True, *expected, False]


@both
def test_only_a_possible_request_and_what_follows_one_shows_a_request(empty_session, rules):
    far = state.REQUEST_OFFSET_END
    shown = [
        Event(1, Kind.REQUESTED, conn=1, offset=0),
        Event(1, Kind.TRANSFER, conn=1, offset=0),
        Event(1, Kind.ACK, conn=1, offset=0),
        Event(1, Kind.HEARTBEAT, conn=1, offset=0, flags=Direction.SENT),
        Event(1, Kind.HEARTBEAT, conn=1, offset=0, flags=Direction.RECEIVED),
        Event(1, Kind.RECEIVED, conn=1, offset=0),
        Event(1, Kind.REPORTED, conn=1, offset=0),
        Event(1, Kind.STATE, conn=1, offset=1, flags=HaState.HANDSHAKE),
        Event(1, Kind.STATE, conn=1, offset=-1, flags=HaState.TRANSFER),
        Event(1, Kind.CLOSED, conn=1, offset=1, flags=CloseReason.EOF),
    ]
    hidden = [
        Event(1, Kind.REQUESTED, conn=1, offset=-1),
        Event(1, Kind.REQUESTED, conn=1, offset=far),
        Event(1, Kind.HEARTBEAT, conn=1, offset=-1, flags=Direction.SENT),
        Event(1, Kind.STATE, conn=1, offset=0, flags=HaState.HANDSHAKE),
        Event(1, Kind.STATE, conn=1, offset=far, flags=HaState.HANDSHAKE),
        Event(1, Kind.CLOSED, conn=1, offset=0, flags=HaState.TRANSFER),
        Event(1, Kind.REFUSED, conn=1, offset=5),
        Event(1, Kind.LINK, conn=1, offset=5),
    ]
    found = rules.shows_request([*shown, *hidden], as_array(empty_session, [*shown, *hidden]))
    assert found == [True] * len(shown) + [False] * len(hidden)


@both
@pytest.mark.parametrize(
    ("log_end", "ack", "expected"),
    [(10, 4, 6), (10, 10, 0), (10, 11, 0), (10, UNKNOWN, UNKNOWN), (UNKNOWN, 4, UNKNOWN), (0, 0, 0)],
)
def test_lag_is_the_log_without_an_ack(rules, log_end, ack, expected):
    assert rules.lag_bytes(log_end, ack) == expected


def test_the_first_ack_at_or_beyond_an_offset_covers_it():
    acks, wanted = np.array([10, 20, 20, 30]), np.array([9, 10, 11, 20, 30, 31])
    assert state_arrays.first_covering(acks, wanted).tolist() == [0, 0, 1, 1, 3, 4]


@both
def test_the_byte_at_an_offset_is_stored_when_the_log_first_ends_beyond_it(rules):
    ends = [10, 20, 20, 30]
    assert [rules.first_beyond(ends, offset) for offset in (9, 10, 19, 20, 30)] == [0, 1, 1, 3, 4]


@both
@given(values=st.lists(st.integers(0, 2000), min_size=1), part=st.sampled_from((0.5, 0.9, 0.99, 1.0)))
def test_percentile_is_the_nearest_rank(rules, values, part):
    found = rules.percentile(values, part)
    share = sum(value <= found for value in values) / len(values)
    smaller = sum(value < found for value in values) / len(values)
    assert found in values
    assert smaller < part <= share


def test_an_ack_that_goes_back_uncovers_nothing():
    acks, times = np.array([10, 30, 20, 40]), np.array([1, 2, 3, 4])
    wanted = np.array([15, 25, 35, 45])
    assert state_arrays.first_covering(acks, wanted).tolist() == [1, 1, 3, 4]
    assert state_arrays.covered_at(times, acks, wanted, never=-9).tolist() == [2, 2, 4, -9]
    assert state_arrays.first_beyond(acks, np.array([10, 30])).tolist() == [1, 3]


@given(seed=st.integers(0, 2**32), steps=st.integers(1, 200))
def test_log_end_of_a_session_is_that_of_a_master_step_by_step(empty_session, seed, steps):
    model = MasterModel(seed)
    events = model.run(steps)
    records = as_array(empty_session, events).copy()
    records["seq"] = np.arange(len(records))
    ends = state_arrays.log_ends(records)[1]
    expected = model.max_offset if len(ends) else UNKNOWN
    assert state_arrays.last_log_end(records) == expected
    assert Snapshot.nowhere(records.dtype).after(records)[0].log_end_offset == expected
    whole = aggregate(records, is_slave=False, grid=TimeGrid.over(0, 10, steps=1))
    assert or_unknown(node_result(whole.node).max_offset) == expected
    first = next((e for e in events if e.kind == Kind.PUT or e.conn >= 0), None)
    before = UNKNOWN if first is None else first.aux if first.kind != Kind.PUT else first.offset - first.size
    assert state_arrays.log_end_before(records) == before


def test_log_end_is_found_beyond_many_records_that_do_not_name_it(empty_session):
    waits = [Event(2, Kind.WAIT_BEGIN, offset=9, aux=1, size=2)] * 10_000
    events = [Event(1, Kind.PUT, offset=50, size=8), *waits]
    assert state_arrays.last_log_end(as_array(empty_session, events)) == 50
    assert state_arrays.log_end_before(as_array(empty_session, events[::-1])) == 42


@given(seed=st.integers(0, 2**32), steps=st.integers(1, 200))
def test_a_connection_has_requested_if_one_of_its_records_shows_it(empty_session, seed, steps):
    events = MasterModel(seed).run(steps)
    cut = random.Random(seed).randrange(len(events) + 1)
    records = as_array(empty_session, events[:cut]).copy()
    records["seq"] = np.arange(len(records))
    snapshot, _ = Snapshot.nowhere(records.dtype).after(records)
    for _, own in snapshot.connections():
        found = connection_state(own, is_slave=False)
        assert found.has_requested == state_arrays.shows_request(own).any()
        acks = own[own["kind"] == Kind.ACK]
        expected = int(own["aux"].max() - acks["offset"][-1]) if len(acks) else None
        assert found.lag_bytes == expected


def test_a_code_that_is_new_here_is_shown_by_its_number():
    assert code_name(HaState, HaState.TRANSFER) == "TRANSFER"
    assert code_name(PutStatus, 250) == "250"
    assert code_name(CloseReason, UNKNOWN) == "-1"
