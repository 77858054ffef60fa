"""Invariants: each with a planted fault, sessions without violations, and sessions cut anywhere."""

import random
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sessions.big_session import write_big_session
from tests.sessions.sessions import Event, MasterModel, as_array, slave_events, write_session
from trioha.recording.events import CloseReason, Direction, HaState, Kind, PutStatus
from trioha.recording.reader import open_session
from trioha_sessions.invariants import INVARIANTS, SessionSettings, check, check_session, combine, results_of
from trioha_sessions.records import read_records

MS = 1_000_000
SETTINGS = {"slaveTimeout": 3000, "syncFlushTimeout": 5000, "haHousekeepingInterval": 20_000}
MASTER = SessionSettings(False, SETTINGS)
SLAVE = SessionSettings(True, SETTINGS)


@pytest.fixture(scope="module")
def lender(tmp_path_factory):
    """A session that provides the record type."""
    return write_session(tmp_path_factory.mktemp("invariants") / "session", [Event(0, Kind.PUT)])


def records_of(lender, events):
    records = as_array(lender, events).copy()
    records["seq"] = np.arange(len(records))
    return records


def verdicts_of(records, settings, cuts=()):
    """All results of records that were checked in parts."""
    borders = [0, *sorted(cuts), len(records)]
    parts = [check(records[a:b], settings, is_first=a == 0) for a, b in pairwise(borders)]
    return [
        (result.invariant.name, result.applies, result.checked, result.count, result.violations)
        for result in results_of(combine(parts))
    ]


def broken(records, settings):
    """Seq, connection and sentence of each violation, by invariant."""
    return {
        result.invariant.name: [(one.seq, one.conn, one.sentence) for one in result.violations]
        for result in results_of(check(records, settings, is_first=True))
        if result.count
    }


def served():
    """A connection and a put that waits for it, without violations."""
    return [
        Event(0, Kind.STATE, conn=1, offset=-1, aux=100, flags=HaState.HANDSHAKE),
        Event(1 * MS, Kind.REQUESTED, conn=1, offset=100, aux=100),
        Event(1 * MS, Kind.STATE, conn=1, offset=-1, aux=100, flags=HaState.TRANSFER),
        Event(1 * MS, Kind.ACK, conn=1, offset=100, aux=100),
        Event(2 * MS, Kind.PUT, offset=300, size=200, aux=1),
        Event(2 * MS, Kind.WAIT_BEGIN, offset=300, aux=1, size=2),
        Event(2 * MS, Kind.TRANSFER, conn=1, offset=100, aux=300, size=200),
        Event(3 * MS, Kind.ACK, conn=1, offset=300, aux=300),
        Event(3 * MS, Kind.WAIT_END, offset=300, aux=1, size=1000, flags=PutStatus.PUT_OK),
        Event(4 * MS, Kind.FLUSHED, offset=300),
    ]


PLANTED = [
    ("nothing-dropped", Event(5 * MS, Kind.DROPPED, aux=7), None, "7 events were dropped"),
    ("clock-goes-forward", Event(3 * MS, Kind.DISPATCHED, offset=300), None, "back by 1000000 ns"),
    ("ack-within-sent", Event(5 * MS, Kind.ACK, conn=1, offset=301, aux=301), 1, "ack 301, sent was 300"),
    ("ack-within-sent", Event(5 * MS, Kind.ACK, conn=2, offset=300, aux=300), 2, "ack 300, nothing was sent"),
    ("acks-go-forward", Event(5 * MS, Kind.ACK, conn=1, offset=299, aux=300), 1, "ack 299 after 300"),
    (
        "transfers-contiguous",
        Event(5 * MS, Kind.TRANSFER, conn=1, offset=310, aux=400, size=10),
        1,
        "a frame begins at 310, sent was 300",
    ),
    (
        "transfer-within-log",
        Event(5 * MS, Kind.TRANSFER, conn=1, offset=300, aux=310, size=11),
        1,
        "a frame ends at 311, the master's log at 310",
    ),
    ("puts-do-not-overlap", Event(5 * MS, Kind.PUT, offset=310, size=11), None, "stored at 299"),
    ("flushed-goes-forward", Event(5 * MS, Kind.FLUSHED, offset=299), None, "flushed 299 after 300"),
    (
        "timeout-after-its-time",
        Event(5 * MS, Kind.WAIT_END, offset=300, aux=9, size=2_999_998, flags=PutStatus.FLUSH_SLAVE_TIMEOUT),
        None,
        "after 2999.998 ms, slaveTimeout is 3000 ms",
    ),
    (
        "timeout-after-its-time",
        Event(5 * MS, Kind.WAIT_END, offset=300, aux=9, size=4_000_000, flags=PutStatus.FLUSH_DISK_TIMEOUT),
        None,
        "syncFlushTimeout is 5000 ms",
    ),
    (
        "wait-ends-in-time",
        Event(5 * MS, Kind.WAIT_END, offset=300, aux=9, size=6_000_001, flags=PutStatus.FLUSH_SLAVE_TIMEOUT),
        None,
        "request 9 waited 6.000 s, the limit is 5000 ms",
    ),
    (
        "one-end-per-wait",
        Event(5 * MS, Kind.WAIT_END, offset=300, aux=1, size=1000, flags=PutStatus.PUT_OK),
        None,
        "had ended already",
    ),
    (
        "one-end-per-wait",
        Event(5 * MS, Kind.WAIT_END, offset=300, aux=8, size=1000, flags=PutStatus.PUT_OK),
        None,
        "request 8 ended, but had not begun",
    ),
    (
        "housekeeping-not-early",
        Event(20_001 * MS, Kind.CLOSED, conn=1, offset=300, aux=300, flags=CloseReason.HOUSEKEEPING),
        1,
        "closed for silence 19.998 s after the last word",
    ),
    (
        "housekeeping-not-late",
        Event(21_004 * MS, Kind.CLOSED, conn=1, offset=300, aux=300, flags=CloseReason.HOUSEKEEPING),
        1,
        "nothing was heard for 21.001 s",
    ),
]


@pytest.mark.parametrize(("name", "event", "conn", "sentence"), PLANTED)
def test_planted_fault_is_found_with_its_sentence(lender, name, event, conn, sentence):
    records = records_of(lender, [*served(), event])
    assert broken(records[:-1], MASTER) == {}
    found = broken(records, MASTER)
    ((seq, its_conn, text),) = found.pop(name)
    assert (seq, its_conn) == (10, conn)
    assert sentence in text
    # A wait or a record that was never begun breaks its own invariant too.
    assert set(found) <= {"one-end-per-wait"}


def test_ack_beyond_the_log_is_found(lender):
    events = [
        *served(),
        Event(5 * MS, Kind.TRANSFER, conn=1, offset=300, aux=310, size=10),
        Event(6 * MS, Kind.ACK, conn=1, offset=310, aux=309),
    ]
    assert broken(records_of(lender, events), MASTER) == {
        "ack-within-log": [(11, 1, "ack 310, the master's log ends at 309")]
    }


def test_wait_that_ends_for_another_offset_is_found(lender):
    events = [
        *served(),
        Event(5 * MS, Kind.WAIT_BEGIN, offset=300, aux=2, size=2),
        Event(5 * MS, Kind.WAIT_END, offset=299, aux=2, size=0, flags=PutStatus.PUT_OK),
    ]
    assert broken(records_of(lender, events), MASTER) == {
        "one-end-per-wait": [(11, None, "the wait of request 2 for 300 ended for 299")]
    }


def test_connection_closed_for_a_full_socket_is_not_closed_for_silence(lender):
    """The slave reports, but its socket was full for the whole interval."""
    closed = Event(9 * MS, Kind.CLOSED, conn=1, offset=300, aux=500, flags=CloseReason.HOUSEKEEPING)
    assert broken(records_of(lender, [*served(), closed]), MASTER) == {}


def test_record_on_an_ended_connection_is_found(lender):
    closed = Event(5 * MS, Kind.CLOSED, conn=1, offset=300, aux=300, flags=CloseReason.EOF)
    shut = Event(5 * MS, Kind.STATE, conn=1, offset=300, aux=300, flags=HaState.SHUTDOWN)
    beat = Event(6 * MS, Kind.HEARTBEAT, conn=1, offset=300, aux=300, flags=Direction.RECEIVED)
    assert broken(records_of(lender, [*served(), closed, shut]), MASTER) == {}
    assert broken(records_of(lender, [*served(), closed, shut, beat]), MASTER) == {
        "nothing-after-the-end": [(12, 1, "HEARTBEAT at 300 on a connection that has ended")]
    }


def test_missing_record_is_found_and_makes_no_other_violation(lender):
    """Without the TRANSFER neither the ack nor the next frame has a reference."""
    events = [*served(), Event(5 * MS, Kind.TRANSFER, conn=1, offset=300, aux=310, size=10)]
    records = np.delete(records_of(lender, events), 6)
    assert broken(records, MASTER) == {"no-record-missing": [(7, 1, "record 7 comes after 5")]}


@pytest.mark.parametrize(
    ("event", "found"),
    [
        (Event(999, Kind.REPORTED, conn=2, offset=1501, aux=1500), "report-within-log"),
        (Event(999, Kind.REPORTED, conn=2, offset=1299, aux=1500), "reports-go-forward"),
        (Event(999, Kind.RECEIVED, conn=2, offset=1501, aux=1502, size=1), "received-contiguous"),
    ],
)
def test_planted_fault_of_a_slave_is_found(lender, event, found):
    assert broken(records_of(lender, slave_events()), SLAVE) == {}
    assert set(broken(records_of(lender, [*slave_events(), event]), SLAVE)) == {found}


# -- copies ------------------------------------------------------------------------------------------------


def copies(lender, *events, need=2):
    """Check a put at 300 that needs `need` acks, while connections 1 and 2 have sent everything to 300."""
    head = [
        Event(step, Kind.REQUESTED, conn=conn, offset=300, aux=300) for step, conn in enumerate((1, 2, 3))
    ]
    begin = Event(5, Kind.WAIT_BEGIN, offset=300, aux=1, size=need + 1)
    end = Event(90, Kind.WAIT_END, offset=300, aux=1, size=1, flags=PutStatus.PUT_OK)
    return broken(records_of(lender, [*head, begin, *events, end]), MASTER)


def ack(ts_ns, conn, offset=300):
    return Event(ts_ns, Kind.ACK, conn=conn, offset=offset, aux=300)


def closed(ts_ns, conn):
    return Event(ts_ns, Kind.CLOSED, conn=conn, offset=300, aux=300, flags=CloseReason.EOF)


def test_put_ok_without_its_copies_is_found(lender):
    for events in ((), (ack(10, 1),), (ack(10, 1), ack(20, 2, 299))):
        found = copies(lender, *events)
        assert list(found) == ["put-ok-has-copies"]
        ((_, _, sentence),) = found["put-ok-has-copies"]
        assert sentence == "PUT_OK of request 1 at 300, which needed 2 acks and did not have them"


def test_put_ok_with_its_copies_is_no_violation(lender):
    assert copies(lender, ack(10, 1), ack(20, 2)) == {}
    assert copies(lender, ack(10, 2), need=1) == {}
    assert copies(lender, need=0) == {}


def test_copies_count_at_one_moment_only(lender):
    """The ack of an ended connection does not count any more, except for a put that was released before."""
    assert copies(lender, ack(10, 1), ack(20, 2), closed(30, 1), closed(31, 2)) == {}
    assert list(copies(lender, ack(10, 1), closed(20, 1), ack(30, 2))) == ["put-ok-has-copies"]


# -- cuts --------------------------------------------------------------------------------------------------


def spoiled(lender, chance, steps):
    """A model's session with some records changed, dropped or missing."""
    events = MasterModel(chance.randrange(1 << 30)).run(steps)
    records = records_of(lender, [Event(0, Kind.LINK), *events])
    for _ in range(chance.randrange(6)):
        place = chance.randrange(len(records))
        change = chance.choice(("offset", "offset", "aux", "size", "ts_ns", "kind", "drop", "lose"))
        if change == "kind":
            records["kind"][place] = chance.choice((Kind.ACK, Kind.TRANSFER, Kind.CLOSED, Kind.WAIT_END))
        elif change == "drop":
            records["kind"][place], records["conn"][place] = Kind.DROPPED, -1
        elif change == "lose" and len(records) > 1:
            records = np.delete(records, place)
        elif change in {"offset", "aux", "size", "ts_ns"}:
            records[change][place] += chance.choice((-100, -1, 1, 100))
    return records


@given(st.integers(0, 1 << 30), st.integers(1, 5))
def test_session_cut_anywhere_gives_the_verdicts_of_the_whole(lender, seed, cuts):
    chance = random.Random(seed)
    records = spoiled(lender, chance, chance.choice((5, 30, 200)))
    places = [chance.randrange(len(records) + 1) for _ in range(cuts)]
    assert verdicts_of(records, MASTER, places) == verdicts_of(records, MASTER)


@given(st.integers(0, 1 << 30))
def test_parts_can_be_joined_in_any_order(lender, seed):
    chance = random.Random(seed)
    records = spoiled(lender, chance, 100)
    a, b = sorted(chance.randrange(len(records) + 1) for _ in range(2))
    first, second, third = (
        check(records[:a], MASTER, is_first=True),
        check(records[a:b], MASTER),
        check(records[b:], MASTER),
    )
    left = combine([combine([first, second]), third])
    right = combine([first, combine([second, third])])
    assert [(v.checked, v.count, v.violations) for v in results_of(left)] == [
        (v.checked, v.count, v.violations) for v in results_of(right)
    ]


def test_keyframes_of_later_segments_do_not_change_verdicts(tmp_path):
    """A session in many segments is checked as the same one in one, apart from the records' numbers."""
    events = MasterModel(7).run(3000)
    counts = []
    for name, segment_records in (("one", 2_000_000), ("many", 100)):
        session = open_session(write_session(tmp_path / name, events, segment_records=segment_records))
        found = results_of(check(read_records(session).array, MASTER, is_first=True))
        counts.append(
            [
                (v.invariant.name, v.checked, v.count)
                for v in found
                if v.invariant.name not in {"no-record-missing", "clock-goes-forward"}
            ]
        )
    assert counts[0] == counts[1]


def test_session_without_its_first_segments_starts_with_keyframes(tmp_path):
    path = write_session(tmp_path / "session", MasterModel(7).run(3000), segment_records=500)
    for segment in sorted((path / "events").iterdir())[:2]:
        segment.unlink()
    records = read_records(open_session(path)).array
    found = {v.invariant.name for v in results_of(check(records, MASTER, is_first=True)) if v.count}
    # The model ends waits by lot.
    assert found - {"put-ok-has-copies"} == {"timeout-after-its-time"}


# -- registry ----------------------------------------------------------------------------------------------


def test_every_invariant_has_a_planted_fault():
    elsewhere = {
        *("no-record-missing", "ack-within-log", "nothing-after-the-end", "put-ok-has-copies"),
        *("report-within-log", "reports-go-forward", "received-contiguous"),
        # tests/sessions/test_group_invariants.py
        "put-ok-is-confirmed",
    }
    assert {name for name, *_ in PLANTED} | elsewhere == {invariant.name for invariant in INVARIANTS}


def test_invariant_whose_settings_are_missing_is_not_checked(lender):
    found = {
        v.invariant.name: v.applies
        for v in results_of(check(records_of(lender, served()), SessionSettings(False, {})))
    }
    assert not found["timeout-after-its-time"]
    assert not found["report-within-log"]
    assert found["ack-within-sent"]


def test_many_violations_are_counted_and_the_first_ones_kept(lender):
    events = [Event(at, Kind.DROPPED, aux=1) for at in range(3000)]
    (dropped,) = [v for v in results_of(check(records_of(lender, events), MASTER)) if v.count]
    assert (dropped.count, len(dropped.violations)) == (3000, 1000)
    assert dropped.violations[-1].seq == 999


def test_a_big_session_breaks_nothing_and_has_what_it_should(tmp_path):
    session = open_session(
        write_big_session(tmp_path / "session", events=1_300_000, hours=0.05, segment_records=400_000)
    )
    found = {result.invariant.name: result for result in check_session(session)}
    assert {name: result.violations for name, result in found.items() if result.count} == {}
    checked = {name: result.checked for name, result in found.items() if result.applies}
    # Of 118,181 puts one failed; its slave has connected anew.
    assert (checked["one-end-per-wait"], checked["put-ok-has-copies"]) == (118_181, 118_180)
    assert checked["ack-within-sent"] == 4 * 118_181 + 4 + 2
