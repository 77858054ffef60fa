"""Recorded sessions in an archive: packed segments, with the session's documents."""

import json
import os

import pytest

from tests.archive.support import Log, archiver_of, in_memory, reader_of
from tests.sessions.sessions import WALL_NS, Event, write_session
from trioha.archive.archiver import Archiver
from trioha.archive.settings import ArchiveSettings
from trioha.recording.events import Kind
from trioha.recording.layout import CLOSED_NOTE
from trioha.recording.reader import open_session
from trioha_sessions.segments import read_segments
from trioha_sessions.session_reader import SessionReader

pytest.importorskip("pyarrow")


def events(count):
    return [Event(ts_ns=1_000_000_000 * number, kind=Kind.FLUSHED, offset=number) for number in range(count)]


def close(session):
    """Add the last fact of a node that ends in order."""
    with (session / "facts.jsonl").open("a") as file:
        file.write(json.dumps({"seq": 0, "type": "note", "text": CLOSED_NOTE}) + "\n")


def archiver_with(folder, log, recordings, *, notify=lambda _text: None, **settings):
    archiver = Archiver(
        folder,
        log.store,
        settings=ArchiveSettings(recordings_s=0, **settings),
        recordings=recordings,
        notify=notify,
        wall_ms=lambda: WALL_NS // 1_000_000 + round(log.clock.now_s * 1000),
        monotonic=log.clock.monotonic,
        sleep=log.clock.sleep,
    )
    archiver.begin()
    return archiver


def restored(folder, target):
    """The archived objects of the only session, as a session folder."""
    (session,) = reader_of(folder).head.recordings
    keys = [segment.key for segment in session.segments]
    keys += [f"recordings/{session.session}/{name}" for name in ("session.json", "facts.jsonl")]
    for key in keys:
        path = target / key.removeprefix("recordings/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(folder.get(key))
    return target / session.session


def test_segments_are_archived_when_they_are_complete(tmp_path):
    folder, log = in_memory(), Log(tmp_path / "store")
    session = write_session(tmp_path / "recordings" / "one", events(25), segment_records=10)
    archiver = archiver_with(folder, log, session.parent)
    assert archiver.step().recorded == 2
    (archived,) = reader_of(folder).head.recordings
    assert [(one.first_seq, one.records) for one in archived.segments] == [(0, 10), (10, 10)]
    assert (archived.segments[1].first_ns, archived.segments[1].last_ns) == (10**10, 18 * 10**9)
    assert not archived.closed
    close(session)
    assert archiver.step().recorded == 1
    (archived,) = reader_of(folder).head.recordings
    assert archived.closed
    assert archiver.step().recorded == 0
    copy = SessionReader.open(restored(folder, tmp_path / "copy"))
    original = SessionReader.open(session)
    # Later segments begin with a record that repeats the state.
    assert copy.records == original.records == 27
    mine, theirs = copy.records_between(0, 27), original.records_between(0, 27)
    assert all((mine[name] == theirs[name]).all() for name in mine.dtype.names or () if name != "check")


def test_the_last_segment_of_a_killed_session_follows_when_its_node_begins_another(tmp_path):
    folder, log = in_memory(), Log(tmp_path / "store")
    session = write_session(tmp_path / "recordings" / "one", events(5))
    archiver = archiver_with(folder, log, session.parent)
    assert archiver.step().recorded == 0
    second = write_session(tmp_path / "recordings" / "two", events(5))
    document = (second / "session.json").read_text()
    (second / "session.json").write_text(document.replace(str(WALL_NS), str(WALL_NS + 10**12)))
    assert archiver.step().recorded == 1
    assert [(one.session, one.closed) for one in reader_of(folder).head.recordings] == [("one", True)]


def test_a_damaged_segment_is_named_once_and_left_out(tmp_path):
    folder, log = in_memory(), Log(tmp_path / "store")
    session = write_session(tmp_path / "recordings" / "one", events(28), segment_records=10)
    close(session)
    damaged = read_segments(open_session(session)).segments[1].path
    data = bytearray(damaged.read_bytes())
    data[200] ^= 1
    damaged.write_bytes(data)
    remarks = []
    archiver = archiver_with(folder, log, session.parent, notify=remarks.append)
    assert archiver.step().recorded == 2
    assert archiver.step().recorded == 0
    assert [str(damaged) in remark for remark in remarks] == [True]


@pytest.mark.full
def test_old_segments_are_deleted_at_last_with_their_session(tmp_path):
    folder, log = in_memory(), Log(tmp_path / "store")
    session = write_session(tmp_path / "recordings" / "one", events(19), segment_records=10)
    close(session)
    archiver = archiver_with(folder, log, session.parent, keep_s=30.0, retention_s=0, delete_after_s=0)
    archiver.step()
    log.clock.sleep(45)
    archiver.step()
    (archived,) = reader_of(folder).head.recordings
    assert [one.first_seq for one in archived.segments] == [10]
    log.clock.sleep(45)
    archiver.step()
    log.clock.sleep(45)
    archiver.step()
    assert [one.key for one in folder.list("recordings")] == []
    # The files are still there. What has left the archive is not archived again, nor by the next archiver.
    archiver = archiver_with(folder, log, session.parent, keep_s=30.0, retention_s=0, delete_after_s=0)
    for _ in range(4):
        log.clock.sleep(5)
        assert archiver.step().recorded == 0
    # With the next head.
    log.clock.sleep(45)
    archiver.step()
    assert [one.key for one in folder.list("recordings")] == []
    assert reader_of(folder).head.recordings == ()


@pytest.mark.full
def test_old_segments_of_a_session_that_goes_on_stay_out_of_the_archive(tmp_path):
    folder, log = in_memory(), Log(tmp_path / "store")
    session = write_session(tmp_path / "recordings" / "one", events(49), segment_records=10)
    # The first segment was last written long before what is kept; the others' last writes tell nothing.
    first, *_ = sorted((session / "events").iterdir())
    os.utime(first, ns=(WALL_NS, WALL_NS))
    log.clock.sleep(35)
    archiver = archiver_with(folder, log, session.parent, keep_s=13.0, retention_s=0, delete_after_s=0)
    assert archiver.step().recorded == 3
    for _ in range(3):
        log.clock.sleep(1)
        assert archiver.step().recorded == 0
        (archived,) = reader_of(folder).head.recordings
        assert [one.first_seq for one in archived.segments] == [20, 30, 40]
    keys = {one.key for one in folder.list("recordings/one/events")}
    assert keys == {one.key for one in archived.segments}


@pytest.mark.full
def test_segments_that_no_head_refers_to_are_swept(tmp_path):
    """As an archiver leaves them that was killed before its head, and never came back to that session."""
    folder, log = in_memory(), Log(tmp_path / "store")
    session = write_session(tmp_path / "recordings" / "one", events(25), segment_records=10)
    archiver = archiver_with(folder, log, session.parent, delete_after_s=0, sweep_s=1, orphan_s=0.001)
    archiver.step()
    kept = {one.key for one in folder.list("recordings")}
    assert len(kept) == 4
    folder.put("recordings/gone/events/00000000000000000000.parquet", b"segment")
    log.append()
    log.clock.sleep(60)
    archiver.step()
    log.append()
    log.clock.now_s += 10 * 365 * 86_400
    archiver.step()
    assert {one.key for one in folder.list("recordings")} == kept


def test_without_a_folder_of_recordings_none_is_archived(tmp_path):
    folder, log = in_memory(), Log(tmp_path / "store")
    assert archiver_of(folder, log).step().recorded == 0
    assert archiver_with(folder, log, tmp_path / "none").step().recorded == 0
