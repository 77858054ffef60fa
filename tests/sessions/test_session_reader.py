"""The session reader: the state at a position is that of all events before it, for any earlier questions."""

import random
import shutil

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.sessions.sessions import Event, MasterModel, slave_events, write_session
from trioha.recording.events import CloseReason, Kind, PutStatus
from trioha.recording.layout import HEADER_BYTES
from trioha.recording.reader import open_session
from trioha_sessions.batch_stats import Counts, marks_of
from trioha_sessions.records import read_records
from trioha_sessions.session_reader import SessionReader
from trioha_sessions.snapshot import Snapshot, connection_state


def reader_of(path, chunk_records=8):
    return SessionReader(open_session(path), chunk_records=chunk_records)


def plain(records, *names):
    names = names or ("ts_ns", "kind", "flags", "conn", "offset", "aux", "size")
    return [tuple(int(record[name]) for name in names) for record in records]


def without_keyframes(array):
    return array[array["kind"] != Kind.KEYFRAME]


@given(seed=st.integers(0, 2**32), scanned=st.booleans())
def test_state_at_any_position_is_that_of_all_events_before_it(tmp_path_factory, seed, *, scanned):
    lot = random.Random(seed)
    events = MasterModel(seed).run(150)
    folder = tmp_path_factory.mktemp("sessions")
    path = write_session(folder / "s", events, segment_records=lot.choice((40, 70, 1000)))
    array = read_records(open_session(path)).array
    reader = reader_of(path)
    chunks = [chunk.records for chunk in reader.scan()] if scanned else []
    if scanned:
        assert np.concatenate(chunks).tobytes() == array.tobytes()
    positions = [lot.randrange(len(array) + 1) for _ in range(8)]
    for position in positions:
        before = without_keyframes(array[:position])
        whole, ended = Snapshot.nowhere(array.dtype).after(before)
        snapshot = reader.snapshot_at(position)
        found = reader.with_own_times(snapshot, position)
        kinds = ("kind", "flags", "conn", "offset", "aux", "size")
        assert plain(found.records, *kinds) == plain(whole.records, *kinds)
        assert snapshot.log_end_offset == whole.log_end_offset
        if position <= 70:
            assert plain(found.records) == plain(whole.records)
        assert [(one.conn, one.seq) for one in reader.ended_between(0, position)] == [
            (one.conn, one.seq) for one in ended
        ]
        last = reader.record_before(position)
        assert (None if last is None else last.tobytes()) == (
            array[position - 1].tobytes() if position else None
        )
        following = reader.record_from(position)
        assert (None if following is None else following.tobytes()) == (
            array[position].tobytes() if position < len(array) else None
        )
        counts = reader.counts_at(position)
        if scanned:
            puts = before[before["kind"] == Kind.PUT]
            waits = before[before["kind"] == Kind.WAIT_END]["flags"]
            assert counts == Counts(
                len(puts),
                int(puts["size"].sum()),
                int((before["kind"] == Kind.WAIT_BEGIN).sum()),
                tuple(np.bincount(waits, minlength=256).tolist()),
            )
        elif counts is not None:
            assert counts == reader.counts_between(0, position)


@given(seed=st.integers(0, 2**32))
def test_time_at_which_the_log_passed_an_offset_is_found(tmp_path_factory, seed):
    lot = random.Random(seed)
    path = write_session(
        tmp_path_factory.mktemp("sessions") / "s",
        MasterModel(seed).run(150),
        segment_records=lot.choice((40, 70)),
    )
    array = read_records(open_session(path)).array
    reader = reader_of(path)
    with_log_end = array[np.isin(array["kind"], (1, 10, 11, 12, 13, 14, 15, 16))]
    own = np.where(with_log_end["kind"] == Kind.PUT, with_log_end["offset"], with_log_end["aux"])
    for _ in range(20):
        position = lot.randrange(len(array) + 1)
        offset = lot.randrange(-1, int(own.max(initial=10)) + 10)
        beyond = with_log_end["ts_ns"][(own > offset) & (with_log_end["seq"] < position)]
        assert reader.max_passed_ns(offset, position) == (int(beyond[0]) if len(beyond) else None)


@given(seed=st.integers(0, 2**32))
def test_position_at_a_time_is_after_its_last_record(tmp_path_factory, seed):
    lot = random.Random(seed)
    events = MasterModel(seed).run(100)
    path = write_session(tmp_path_factory.mktemp("sessions") / "s", events, segment_records=45)
    array = read_records(open_session(path)).array
    reader = reader_of(path)
    assert reader.last_ts_ns == (int(array["ts_ns"][-1]) if len(array) else reader.first_ts_ns)
    for _ in range(20):
        ts_ns = lot.randrange(-10, reader.last_ts_ns + 1000)
        if len(array) and lot.random() < 0.5:
            ts_ns = int(lot.choice(array["ts_ns"]))
        assert reader.position_at(ts_ns) == int((array["ts_ns"] <= ts_ns).sum())


def test_log_end_that_no_keyframe_names_comes_from_the_segment_before(tmp_path):
    events = [*slave_events()[:12], *(Event(200 + n, Kind.LINK, flags=0) for n in range(20))]
    path = write_session(tmp_path / "s", events, role="SLAVE", segment_records=12)
    reader = reader_of(path)
    assert len(reader.segments) > 2
    assert reader.snapshot_at(reader.end_seq).log_end_offset == 1300


def test_keyframes_have_the_times_of_the_events_they_repeat(tmp_path):
    events = [
        Event(10, Kind.ACK, conn=1, offset=5, aux=9),
        Event(20, Kind.ACK, conn=2, offset=5, aux=9),
        *(Event(30 + n, Kind.PUT, offset=10 + n, size=1) for n in range(20)),
    ]
    path = write_session(tmp_path / "s", events, segment_records=11)
    reader = reader_of(path)
    assert len(reader.segments) == 3
    snapshot = reader.with_own_times(reader.snapshot_at(reader.end_seq), reader.end_seq)
    assert {
        conn: connection_state(records, is_slave=False).last_received_ts_ns
        for conn, records in snapshot.connections()
    } == {1: 10, 2: 20}


@given(seed=st.integers(0, 2**32))
def test_records_of_up_to_two_segments_before_have_their_own_times_with_and_without_an_index(
    tmp_path_factory, seed
):
    lot = random.Random(seed)
    events = MasterModel(seed).run(150)
    path = write_session(
        tmp_path_factory.mktemp("sessions") / "s", events, segment_records=lot.choice((30, 50))
    )
    array = read_records(open_session(path)).array
    indexed = reader_of(path)
    for _ in indexed.scan():
        pass
    searching = reader_of(path)
    for _ in range(8):
        position = lot.randrange(len(array) + 1)
        found = indexed.with_own_times(indexed.snapshot_at(position), position).records
        searched = searching.with_own_times(searching.snapshot_at(position), position).records
        assert searched.tobytes() == found.tobytes()
        whole, _ended = Snapshot.nowhere(array.dtype).after(without_keyframes(array[:position]))
        bases = [segment.base_seq for segment in indexed.segments if segment.base_seq < position]
        is_near = whole.records["seq"] >= (bases[-3] if len(bases) > 2 else 0)
        assert plain(found[is_near]) == plain(whole.records[is_near])


def test_failed_waits_and_the_first_good_one_after_them_are_marks(tmp_path):
    ok, late = PutStatus.PUT_OK, PutStatus.FLUSH_SLAVE_TIMEOUT
    flags = [ok, ok, late, late, ok, ok, late]
    events = [Event(n, Kind.WAIT_END, aux=n, flags=status) for n, status in enumerate(flags)]
    events.insert(3, Event(2, Kind.CLOSED, conn=1))
    array = read_records(open_session(write_session(tmp_path / "s", events))).array
    assert plain(marks_of(array), "kind", "aux") == [(21, 2), (16, 0), (21, 3), (21, 4), (21, 6)]
    assert plain(marks_of(array[:2], was_failing=True), "aux") == [(0,)]


def test_keyframes_after_a_missing_segment_restore_the_state(tmp_path):
    events = MasterModel(3).run(300)
    path = write_session(tmp_path / "s", events, segment_records=60)
    array = read_records(open_session(path)).array
    segments = sorted((path / "events").iterdir())
    segments[1].unlink()
    reader = reader_of(path)
    assert ["missing" in one.reason for one in reader.damage] == [True]
    assert reader.damage[0].records == 60
    whole, _ = Snapshot.nowhere(array.dtype).after(without_keyframes(array))
    kinds = ("kind", "flags", "conn", "offset", "aux", "size")
    assert plain(reader.snapshot_at(len(array)).records, *kinds) == plain(whole.records, *kinds)
    assert plain(reader.snapshot_at(90).records, *kinds) == plain(reader.snapshot_at(60).records, *kinds)


@given(seed=st.integers(0, 2**32), chunk_records=st.sampled_from((8, 30, 4096)))
def test_records_of_controller_mode_before_any_position_are_found(tmp_path_factory, seed, chunk_records):
    lot = random.Random(seed)
    kinds = (Kind.ROLE, Kind.EPOCH, Kind.SYNC_STATE_SET, Kind.CONFIRMED, Kind.LOG_CUT, Kind.CONTROLLER)
    events = [
        Event(event.ts_ns, lot.choice(kinds), offset=number) if lot.random() < 0.2 else event
        for number, event in enumerate(MasterModel(seed).run(200))
    ]
    path = write_session(tmp_path_factory.mktemp("reader") / "s", events, segment_records=50)
    every = read_records(open_session(path)).array
    wanted = every[np.isin(every["kind"], kinds)]
    reader = SessionReader(open_session(path), chunk_records=chunk_records)
    first_segment_end = reader.segments[0].records
    positions = [lot.randrange(reader.end_seq + 1) for _ in range(6)]
    for position in positions:
        found = reader.control_records(position)
        if position <= first_segment_end:
            assert found is not None
            assert found.tolist() == wanted[wanted["seq"] < position].tolist()
    unread = SessionReader(open_session(path), chunk_records=chunk_records)
    assert unread.control_records(unread.end_seq) is None
    for _ in unread.scan():
        pass
    for position in (*positions, unread.end_seq, 0):
        found = unread.control_records(position)
        assert found is not None
        assert found.tolist() == wanted[wanted["seq"] < position].tolist()


def test_damaged_records_are_left_out_and_reported_once(tmp_path):
    path = write_session(tmp_path / "s", MasterModel(5).run(100))
    (segment,) = (path / "events").iterdir()
    data = bytearray(segment.read_bytes())
    data[HEADER_BYTES + 20 * 48 + 3] ^= 0xFF
    segment.write_bytes(data)
    reader = reader_of(path)
    for _ in range(2):
        assert sum(len(chunk.records) for chunk in reader.scan()) == reader.records - 1
    (damage,) = reader.damage
    assert (damage.position, damage.records) == (HEADER_BYTES + 20 * 48, 1)


def test_a_growing_session_is_followed_without_its_torn_end(tmp_path):
    events = MasterModel(8).run(200)
    whole = write_session(tmp_path / "whole", events, segment_records=50)
    array = read_records(open_session(whole)).array
    grown = tmp_path / "grown"
    (grown / "events").mkdir(parents=True)
    shutil.copy(whole / "session.json", grown)
    (grown / "facts.jsonl").touch()
    reader = reader_of(grown)
    assert (reader.records, reader.end_seq, len(reader.snapshot_at(0).records)) == (0, 0, 0)
    for segment in sorted((whole / "events").iterdir()):
        data = segment.read_bytes()
        for size in range(HEADER_BYTES, len(data) + 1, 500):
            (grown / "events" / segment.name).write_bytes(data[:size])
            assert reader.refresh()
            end = reader.end_seq
            expected, _ = Snapshot.nowhere(array.dtype).after(without_keyframes(array[:end]))
            assert reader.snapshot_at(end).log_end_offset == expected.log_end_offset
            assert plain(reader.snapshot_at(end).records, "kind", "offset") == plain(
                expected.records, "kind", "offset"
            )
        (grown / "events" / segment.name).write_bytes(data)
    reader.refresh()
    assert not reader.refresh()
    assert np.concatenate([chunk.records for chunk in reader.scan()]).tobytes() == array.tobytes()
    assert reader.damage == ()


def test_a_segment_removed_while_it_is_read_is_damage(tmp_path):
    path = write_session(tmp_path / "s", MasterModel(3).run(300), segment_records=60)
    reader = reader_of(path)
    min((path / "events").iterdir()).unlink()
    assert len(reader.snapshot_at(30).records) == 0
    assert any("cannot be read" in one.reason for one in reader.damage)


def test_an_ended_connection_keeps_its_last_records(tmp_path):
    path = write_session(tmp_path / "s", slave_events(), role="SLAVE", segment_records=6)
    reader = reader_of(path)
    (ended,) = reader.ended_between(0, reader.end_seq)
    assert connection_state(ended.records, is_slave=True).close_reason == CloseReason.EOF
