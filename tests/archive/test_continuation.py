"""A store that goes on, a store with another history, and what their generations share."""

from itertools import product

import pytest

from tests.archive.failing import FailingFolder
from tests.archive.support import Log, archived, archiver_of, in_memory, reader_of
from trioha.archive.errors import ArchiveError, DamagedSourceError
from trioha.archive.log_bytes import read_log_object
from trioha.archive.source import LogSource


@pytest.fixture
def folder():
    return in_memory()


@pytest.fixture
def log(tmp_path):
    return Log(tmp_path / "store")


def reasons(folder):
    return [one.reason for one in reader_of(folder).head.generations]


def test_a_store_that_lost_its_tail_shares_the_objects_before_it(folder, log):
    archiver = archiver_of(folder, log)
    ends = []
    for _ in range(5):
        log.append(7)
        archiver.step()
        ends.append(log.end_offset)
    before = log.data()
    log.cut(ends[2])
    counting = FailingFolder(folder)
    step = archiver_of(counting, log).step()
    assert step.began == f"the log ends at offset {ends[2]}, before the archived end {ends[4]}"
    assert archived(folder) == (0, log.data())
    log.append(20, body=b"other")
    archiver_of(counting, log).step()
    assert archived(folder) == (0, log.data())
    assert archived(folder, "0001") == (0, before)
    first, second = reader_of(folder).head.generations
    assert second.objects[:3] == first.objects[:3]
    assert not {one.key for one in first.objects} & set(counting.put_keys)


@pytest.mark.parametrize("records", [10, 80])
def test_pages_are_shared_as_far_as_the_logs_are_equal(folder, log, tmp_path, records):
    log.append(records)
    shared = log.end_offset
    fork = log.fork(tmp_path / "fork")
    log.append(150 - records)
    log.config(topics='{"a":1}')
    small = {"object_bytes_max": 1024, "page_objects": 3}
    archiver_of(folder, log, **small).step()
    counting = FailingFolder(folder)
    fork.clock.sleep(1)
    fork.append(30)
    step = archiver_of(counting, fork, take_over=True, **small).step()
    assert step.began is not None
    assert archived(folder) == (0, fork.data())
    assert archived(folder, "0001") == (0, log.data())
    before, after = reader_of(folder).head.generations
    assert len(before.pages) > 3
    whole_pages = [page for page in before.pages if page.end_offset <= shared]
    assert list(after.pages[: len(whole_pages)]) == whole_pages
    sent = sum(one.log_bytes for one in reader_of(folder).objects(after) if one.key in counting.put_keys)
    # The object in which they differ is sent, too.
    assert sent <= fork.end_offset - shared + 1024


def test_a_cut_is_found_while_the_archiver_runs(folder, log):
    archiver = archiver_of(folder, log)
    log.append(5)
    archiver.step()
    end = log.end_offset
    log.append(5)
    archiver.step()
    log.cut(end)
    assert archiver.step().began is None
    log.clock.sleep(31)
    step = archiver.step()
    assert step.began is not None
    assert archived(folder) == (0, log.data())


def test_a_cut_log_that_has_grown_beyond_the_archived_end_with_equal_sizes_is_another_history(tmp_path):
    """Clients send the same messages again: the archived end is the start of a record in both logs."""
    for records, kept, is_settled in product((1, 2, 10), (0, 5, 8, 9), (False, True)):
        folder, log = in_memory(), Log(tmp_path / f"{records}-{kept}-{is_settled}")
        archiver = archiver_of(folder, log)
        ends = [0]
        for number in range(10):
            log.append()
            ends.append(log.end_offset)
            if (number + 1) % records == 0:
                archiver.step()
        if is_settled:
            archiver.step()
        before = log.data()
        log.cut(ends[kept])
        log.clock.sleep(1)
        log.append(20 - kept)
        step = archiver.step()
        assert archived(folder) == (0, log.data()), (records, kept, is_settled)
        if step.began is not None:
            assert archived(folder, "0001") == (0, before)
        # Only the last record differs: as if the broker had still been writing it.
        assert (step.began is None) == (kept == 9 and not is_settled), (records, kept, is_settled)


@pytest.mark.parametrize("is_settled", [False, True])
def test_a_cut_log_with_a_record_across_the_newest_objects_start_is_another_history(folder, log, is_settled):
    archiver = archiver_of(folder, log)
    for _ in range(3):
        log.append(3)
        archiver.step()
    if is_settled:
        archiver.step()
    before = log.data()
    log.cut(0)
    log.append(10, body=b"longer than before")
    assert archiver.step().began == "the log differs from offset 3 on"
    assert archived(folder) == (0, log.data())
    assert archived(folder, "0001") == (0, before)


def test_a_store_that_was_damaged_before_its_last_archived_record_continues(folder, log):
    archiver = archiver_of(folder, log)
    log.append(3)
    before = log.data()
    archiver.step()
    # In the first record's body.
    log.write(90, b"X")
    log.append(3)
    assert archiver.step().began is None
    assert archived(folder) == (0, before + log.data()[len(before) :])


def test_another_log_is_found_where_a_file_begins(folder, log, tmp_path):
    archiver = archiver_of(folder, log)
    log.append(100)
    boundary = log.end_offset - log.end_offset % log.file_bytes
    log.path(boundary).write_bytes(bytes(log.file_bytes))
    archiver.step()
    assert reader_of(folder).generation().end_offset == boundary
    other = Log(tmp_path / "other", clock=log.clock)
    other.append(100, body=b"abcd")
    assert other.end_offset > boundary
    for path in (other.store / "commitlog").iterdir():
        (log.store / "commitlog" / path.name).write_bytes(path.read_bytes())
    assert archiver.step().began is not None
    assert archived(folder) == (0, other.data())


def test_a_gap_begins_a_new_generation_and_is_named(folder, log):
    archiver = archiver_of(folder, log)
    log.append(10)
    archiver.step()
    end = log.end_offset
    log.append(100)
    log.delete_first_file()
    step = archiver.step()
    gap = log.file_bytes - end
    assert step.began == f"a gap: the log begins at offset 4096, {gap} bytes after the archived end {end}"
    assert archived(folder) == (4096, log.data())


def test_a_store_that_begins_at_the_archived_end_goes_on(folder, log):
    archiver = archiver_of(folder, log)
    log.append(60)
    boundary = log.end_offset - log.end_offset % log.file_bytes
    second = log.path(boundary).read_bytes()
    log.path(boundary).write_bytes(bytes(log.file_bytes))
    archiver.step()
    before = log.bytes_of(0, boundary)
    log.delete_first_file()
    log.path(boundary).write_bytes(second)
    archiver_of(folder, log).step()
    assert reasons(folder) == ["first archive"]
    assert archived(folder) == (0, before + log.bytes_of(boundary, log.end_offset))


def test_files_of_another_size_begin_a_new_generation(folder, log, tmp_path):
    log.append(10)
    archiver_of(folder, log).step()
    other = Log(tmp_path / "other", file_bytes=8192, clock=log.clock)
    other.append(10)
    step = archiver_of(folder, other, take_over=True).step()
    assert step.began == "the log has files of 8192 bytes, before it had 4096"


def test_a_generation_is_not_begun_twice_when_its_head_fails(folder, log):
    log.append(10)
    archiver_of(folder, log).step()
    before = log.data()
    log.cut(0)
    log.append(3, body=b"x")
    for at in range(3, 20):
        failing = FailingFolder(folder, at=at)
        try:
            archiver = archiver_of(failing, log)
        except ArchiveError:
            archiver = archiver_of(failing, log)
        try:
            archiver.step()
        except ArchiveError:
            archiver.step()
    assert len(reasons(folder)) == 2
    assert archived(folder, "0001") == (0, before)
    assert archived(folder) == (0, log.data())


def test_damage_is_named_after_all_before_it_was_archived(folder, log):
    log.append(10)
    damaged = log.end_offset
    log.append(10)
    log.write(damaged + 90, b"!")
    archiver = archiver_of(folder, log)
    with pytest.raises(
        DamagedSourceError, match=f"no valid record at offset {damaged}: the body's CRC"
    ) as caught:
        archiver.step()
    assert caught.value.offset == damaged
    assert not caught.value.is_transient
    assert archived(folder) == (0, log.bytes_of(0, damaged))
    restarted = archiver_of(folder, log)
    with pytest.raises(DamagedSourceError):
        restarted.step()
    log.write(damaged + 90, b"d")
    restarted.step()
    assert archived(folder) == (0, log.data())


def test_merged_objects_come_from_the_archive_once_the_store_has_dropped_them(folder, log, monkeypatch):
    archiver = archiver_of(folder, log, merge_objects=1000)
    while log.end_offset < log.file_bytes:
        log.append(5)
        if log.end_offset < log.file_bytes:
            archiver.step()
    before = log.bytes_of(0, log.file_bytes)
    # The blank, which ends the file, makes the group complete: the store has no such file any more.
    objects = reader_of(folder).generation().objects
    assert len(objects) > 5
    monkeypatch.setattr(LogSource, "has", lambda *_: False)
    step = archiver.step()
    assert step.merged == len(objects) + 1
    assert archived(folder)[1][: log.file_bytes] == before
    merged = reader_of(folder).generation().objects[0]
    assert b"".join(read_log_object(folder, merged)) == before


def test_a_flipped_bit_in_the_store_does_not_reach_merged_objects(folder, log):
    archiver = archiver_of(folder, log, merge_objects=4)
    log.append(3)
    archiver.step()
    before = log.data()
    # In a property's place: no CRC of RocketMQ's covers it.
    log.write(93, b"X")
    for _ in range(6):
        log.append(3)
        archiver.step()
    first, data = archived(folder)
    assert first == 0
    assert data[: len(before)] == before
    assert reasons(folder) == ["first archive"]


@pytest.mark.parametrize("records", [1, 5])
def test_a_record_that_was_archived_before_its_end_was_written_is_archived_again(folder, log, records):
    archiver = archiver_of(folder, log)
    log.append(records)
    # The topic's letter, which no CRC covers: the broker writes it after the archiver's second look.
    topic_at = log.end_offset - 3
    log.write(topic_at, b"\0")
    archiver.step()
    log.write(topic_at, b"T")
    log.append(2)
    assert archiver.step().began is None
    assert archived(folder) == (0, log.data())
    archiver.step()
    log.clock.sleep(700)
    archiver.step()
    log.clock.sleep(700)
    assert archiver.step().deleted == 0
    assert {one.key for one in folder.list("log")} == {
        one.key for one in reader_of(folder).generation().objects
    }
    assert reasons(folder) == ["first archive"]
