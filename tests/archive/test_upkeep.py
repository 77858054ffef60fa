"""Merging, pages, thinned metadata, retention and sweeping, in virtual time."""

import os
import signal
import subprocess
import sys
from itertools import pairwise
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st
from obstore.store import MemoryStore

from tests.archive.support import START_MS, Log, archived, archiver_of, in_memory, reader_of
from trioha.archive.crc import combined_crc32
from trioha.archive.errors import ArchiveError
from trioha.archive.layout import LogObject, MetadataObject
from trioha.archive.merging import due_merges, groups_of, thinned
from trioha.archive.objects import ObjectFolder
from trioha.archive.reader import Selection


@pytest.fixture
def folder():
    return in_memory()


@pytest.fixture
def log(tmp_path):
    return Log(tmp_path / "store")


def log_object(first, end):
    return LogObject(
        key=f"log/{first}-{end}",
        first_offset=first,
        end_offset=end,
        records=1,
        min_store_ms=0,
        max_store_ms=0,
        topics=(),
        crc32=0,
        codec="none",
        object_bytes=end - first,
    )


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=600))
def test_merges_leave_few_objects_and_send_each_byte_a_few_times(sizes):
    objects = []
    offset = sent = 0
    for size in sizes:
        end = min(offset + size, offset - offset % 100_000 + 100_000)
        objects.append(log_object(offset, end))
        offset = end
        groups = groups_of(objects, bytes_max=60_000, file_bytes=100_000)
        for run in due_merges(groups, merge_objects=16):
            at = objects.index(run[0])
            assert objects[at : at + len(run)] == list(run)
            assert run[-1].end_offset - run[0].first_offset <= 60_000
            assert run[0].first_offset // 100_000 == (run[-1].end_offset - 1) // 100_000
            objects[at : at + len(run)] = [log_object(run[0].first_offset, run[-1].end_offset)]
            sent += run[-1].end_offset - run[0].first_offset
    assert objects[0].first_offset == 0
    assert all(a.end_offset == b.first_offset for a, b in pairwise(objects))
    # Of a file that has ended at most two objects, and of the last one a few tens.
    assert len(objects) <= 2 * (offset // 100_000) + 50
    assert sent <= 6 * offset


@given(st.binary(), st.binary(max_size=3000))
def test_crcs_of_parts_give_that_of_the_whole(first, second):
    assert combined_crc32(crc32(first), crc32(second), second_bytes=len(second)) == crc32(first + second)


def test_small_objects_become_few_and_are_deleted_ten_minutes_later(folder, log):
    archiver = archiver_of(folder, log, merge_objects=4)
    dropped = set()
    deleted = 0
    for _ in range(30):
        before = {one.key for one in folder.list("log")}
        log.append(2)
        log.clock.sleep(10)
        step = archiver.step()
        now = {one.key for one in folder.list("log")}
        dropped |= now - {one.key for one in reader_of(folder).generation().objects}
        assert before <= now
        assert archived(folder) == (0, log.data())
        assert len(reader_of(folder).generation().objects) <= 12
    assert dropped
    log.clock.sleep(600)
    deleted += archiver.step().deleted
    assert deleted == len(dropped)
    assert not dropped & {one.key for one in folder.list("log")}
    assert archived(folder) == (0, log.data())
    assert step.merged >= 0


def test_a_file_that_has_ended_is_one_object(folder, log):
    archiver = archiver_of(folder, log)
    while log.end_offset < 3 * log.file_bytes:
        log.append(4)
        archiver.step()
    spans = [(one.first_offset, one.end_offset) for one in reader_of(folder).generation().objects]
    assert spans[:3] == [(0, 4096), (4096, 8192), (8192, 12288)]
    assert archived(folder) == (0, log.data())


def test_pages_have_the_objects_that_are_merged_no_more(folder, log):
    archiver = archiver_of(folder, log, page_objects=2)
    while log.end_offset < 7 * log.file_bytes:
        log.append(9)
        archiver.step()
    reader = reader_of(folder)
    generation = reader.generation()
    assert [(page.first_offset, page.end_offset, page.objects) for page in generation.pages] == [
        (8192 * number, 8192 * number + 8192, 2) for number in range(3)
    ]
    assert generation.objects[0].first_offset == 6 * log.file_bytes
    assert archived(folder) == (0, log.data())
    # A selection reads the pages that it needs.
    found = list(reader.objects(generation, Selection(first_offset=20_000, end_offset=20_001)))
    assert [(one.first_offset, one.end_offset) for one in found] == [(16384, 20480)]


@pytest.mark.full
def test_of_metadata_older_than_an_hour_one_a_minute_stays(folder, log):
    archiver = archiver_of(folder, log)
    taken = []
    for number in range(300):
        log.append()
        log.config(consumerOffset=f'{{"n":{number}}}')
        log.clock.sleep(15)
        taken.append(log.clock.wall_ms())
        archiver.step()
    reader = reader_of(folder)
    kept = sorted(one.taken_ms for one in reader.metadata(reader.generation()))
    hour_ago_ms = log.clock.wall_ms() - 3_600_000
    recent = [one for one in taken if one > hour_ago_ms + 60_000]
    assert [one for one in kept if one > hour_ago_ms + 60_000] == recent
    last_minute = hour_ago_ms // 60_000 - 1
    minutes = [one // 60_000 for one in kept if one // 60_000 < last_minute]
    assert minutes == sorted({one // 60_000 for one in taken if one // 60_000 < last_minute})
    assert len(minutes) > 10


def test_config_files_are_archived_when_they_change(folder, log):
    archiver = archiver_of(folder, log)
    times_ms = []
    for text in ('{"a":1}', '{"a":1}', '{"a":2}'):
        log.append()
        log.clock.sleep(10)
        log.config(consumerOffset=text)
        times_ms.append(log.clock.wall_ms())
        archiver.step()
    reader = reader_of(folder)
    found = [reader.metadata_files(one) for one in reader.metadata(reader.generation())]
    assert [one.files for one in found] == [
        {"consumerOffset.json": '{"a":2}'},
        {"consumerOffset.json": '{"a":1}'},
    ]
    assert [one.taken_ms for one in found] == [times_ms[2], times_ms[0]]
    assert found[0].offset == log.end_offset


def test_the_newest_of_each_minute_stays():
    metadata = [
        MetadataObject(key=f"metadata/{ms}", taken_ms=ms, offset=0, bytes=0)
        for ms in (0, 30_000, 59_999, 60_000, 3_700_000)
    ]
    kept, dropped = thinned(metadata, now_ms=4_000_000)
    assert [one.taken_ms for one in kept] == [59_999, 60_000, 3_700_000]
    assert [one.taken_ms for one in dropped] == [0, 30_000]


@pytest.mark.parametrize("page_objects", [2, pytest.param(64, marks=pytest.mark.full)])
def test_a_restore_to_any_time_of_the_window_stays_possible(folder, log, page_objects):
    archiver = archiver_of(folder, log, keep_s=600.0, page_objects=page_objects, retention_s=0.0)
    ends = []
    for number in range(100):
        log.append(3)
        log.config(consumerOffset=f'{{"n":{number}}}')
        log.clock.sleep(20)
        ends.append((log.clock.wall_ms(), log.end_offset))
        archiver.step()
        from_ms = log.clock.wall_ms() - 600_000
        reader = reader_of(folder)
        generation = reader.generation()
        assert generation.first_offset % log.file_bytes == 0
        first, data = archived(folder)
        assert data == log.bytes_of(first, log.end_offset)
        # Everything written within the window is there, and the metadata of the time before it.
        older = [end for ms, end in ends if ms < from_ms]
        assert first <= (older[-1] if older else 0)
        taken = sorted(one.taken_ms for one in reader.metadata(generation))
        assert taken == sorted(set(taken))
        # (An archiver's own moment is a little later than the test's.)
        assert taken[0] <= max(from_ms, ends[0][0]) + 20_000
    assert generation.first_offset > 3 * log.file_bytes
    assert len(taken) < 60
    log.clock.sleep(1200)
    archiver.step()
    log.clock.sleep(1200)
    archiver.step()
    reader = reader_of(folder)
    generation = reader.generation()
    known = {one.key for one in reader.objects(generation)} | {page.key for page in generation.pages}
    assert {one.key for kind in ("log", "pages") for one in folder.list(kind)} == known
    metadata = {one.key for one in reader.metadata(generation)}
    assert {one.key for one in folder.list("metadata")} == metadata
    # An idle broker's newest file stays.
    assert generation.objects
    assert archived(folder)[1] == log.bytes_of(generation.first_offset, log.end_offset)


def test_a_generation_goes_when_the_next_one_began_before_the_window(folder, log, tmp_path):
    fork = log.fork(tmp_path / "fork")
    options = {"keep_s": 600.0, "retention_s": 0.0, "merge_objects": 3}
    log.append(100)
    archiver_of(folder, log, **options).step()
    shared = log.end_offset
    fork.append(80)
    fork.clock.sleep(10)
    fork.append(10, body=b"other")
    archiver = archiver_of(folder, fork, take_over=True, **options)
    archiver.step()
    assert len(reader_of(folder).head.generations) == 2
    assert shared
    for _ in range(80):
        fork.clock.sleep(20)
        fork.append(1)
        archiver.step()
    (generation,) = reader_of(folder).head.generations
    first, data = archived(folder)
    assert data == fork.bytes_of(first, fork.end_offset)
    for _ in range(2):
        fork.clock.sleep(700)
        archiver.step()
    keys = {one.key for one in folder.list("log")}
    assert keys == {one.key for one in reader_of(folder).objects(reader_of(folder).generation())}
    assert generation.id.startswith("0002-")


def test_objects_without_a_head_are_swept_when_they_are_a_day_old(tmp_path, log):
    folder = ObjectFolder.open(f"file://{tmp_path}/archive", create=True)
    archiver = archiver_of(folder, log)
    log.append(10)
    log.config(topics='{"a":1}')
    archiver.step()
    for name in ("log/0001-x/old", "log/0001-x/young", "metadata/0001-x/old", "pages/0001-x/old"):
        folder.put(name, b"")
    now_s = START_MS / 1000 + log.clock.now_s
    for path in (tmp_path / "archive").rglob("*"):
        if path.is_file():
            age_s = 1000.0 if path.name == "young" else 90_000.0
            os.utime(path, (now_s - age_s, now_s - age_s))
    log.clock.sleep(500)
    assert archiver.step().deleted == 0
    log.clock.sleep(200)
    assert archiver.step().deleted == 3
    assert (tmp_path / "archive/log/0001-x/young").exists()
    assert archived(folder) == (0, log.data())
    reader = reader_of(folder)
    assert [reader.metadata_files(one).files for one in reader.metadata(reader.generation())]


def test_what_a_killed_writer_left_unfinished_in_a_folder_is_deleted_when_it_is_a_day_old(tmp_path, log):
    url = f"file://{tmp_path}/archive"
    folder = ObjectFolder.open(url, create=True)
    archiver = archiver_of(folder, log)
    log.append(10)
    archiver.step()
    for name in ("old", "young"):
        killed_while_it_puts(url, f"log/0001-x/{name}")
    found = {path.name: path for path in (tmp_path / "archive/log/0001-x").iterdir()}
    assert set(found) == {"old#1", "young#1"}, "what obstore calls a file that is not whole"
    now_s = START_MS / 1000 + log.clock.now_s
    for name, age_s in (("old#1", 90_000.0), ("young#1", 1000.0)):
        os.utime(found[name], (now_s - age_s, now_s - age_s))
    log.clock.sleep(700)
    archiver.step()
    assert [path.name for path in (tmp_path / "archive/log/0001-x").iterdir()] == ["young#1"]
    assert archived(folder) == (0, log.data())


def killed_while_it_puts(url, key):
    """A process that is killed in the middle of an object."""
    program = (
        "import os, signal, sys\n"
        "from trioha.archive.objects import ObjectFolder\n"
        "def pieces():\n"
        "    for _ in range(16):\n"
        "        yield bytes(1 << 20)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "ObjectFolder.open(sys.argv[1]).put(sys.argv[2], pieces())\n"
    )
    done = subprocess.run([sys.executable, "-c", program, url, key], check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL


def test_an_object_that_is_found_again_is_on_disk_before_a_head_names_it(tmp_path, log, monkeypatch):
    folder = ObjectFolder.open(f"file://{tmp_path}/archive", create=True)
    log.append(10)
    archiver = archiver_of(folder, log)
    archiver.step()
    log.append(10)
    with monkeypatch.context() as patch:
        # Killed after the object has its name, before it is on disk.
        patch.setattr(ObjectFolder, "sync", killed)
        with pytest.raises(KilledError):
            archiver.step()
    steps = []
    sync = ObjectFolder.sync

    def noted(self, key):
        sync(self, key)
        steps.append(key.split("/", maxsplit=1)[0])

    monkeypatch.setattr(ObjectFolder, "sync", noted)
    again = archiver_of(folder, log)
    steps.clear()
    step = again.step()
    assert (step.objects, step.stored_bytes) == (1, 0), "it was found"
    assert steps == ["log", "heads"]
    assert archived(folder) == (0, log.data())


class KilledError(Exception):
    """Stands for SIGKILL."""


def killed(*_):
    """Ends a step in the middle."""
    raise KilledError


@pytest.mark.full
@given(data=st.data())
def test_random_logs_cuts_and_restarts_leave_the_log_in_the_archive(tmp_path_factory, data):
    folder, log = in_memory(), Log(tmp_path_factory.mktemp("log") / "store")
    options = {
        "object_bytes_max": data.draw(st.sampled_from([500, 2000, 1 << 20])),
        "step_bytes_max": data.draw(st.sampled_from([1, 1000, 1 << 20])),
        "merge_objects": data.draw(st.integers(2, 5)),
        "page_objects": data.draw(st.integers(1, 4)),
        "delete_after_s": data.draw(st.sampled_from([0.0, 50.0])),
    }
    archiver = archiver_of(folder, log, **options)
    for _ in range(data.draw(st.integers(1, 6))):
        match data.draw(st.sampled_from(["append", "append", "append", "cut", "restart", "delete"])):
            case "append":
                log.append(data.draw(st.integers(1, 30)), body=data.draw(st.binary(max_size=200)))
            case "cut":
                ends = (
                    [one.end_offset for one in reader_of(folder).generation().objects]
                    if log.end_offset
                    else []
                )
                ends = [end for end in ends if log.first_offset < end < log.end_offset]
                if ends:
                    log.cut(data.draw(st.sampled_from(ends)))
                    log.clock.sleep(1)
                    archiver = archiver_of(folder, log, **options)
            case "restart":
                archiver = archiver_of(folder, log, **options)
            case "delete":
                if log.end_offset - log.first_offset > log.file_bytes:
                    log.delete_first_file()
        log.clock.sleep(data.draw(st.integers(0, 40)))
        while archiver.step().is_more_waiting:
            pass
        first, found = archived(folder)
        assert first <= log.first_offset
        assert found[log.first_offset - first :] == log.data()
    reader = reader_of(folder)
    for generation in reader.head.generations:
        assert list(reader.objects(generation)) or generation.end_offset == generation.first_offset


class WriteOnlyFolder(ObjectFolder):
    """An object storage whose credentials may not delete."""

    refused = 0
    is_refusing = True

    def delete(self, keys):
        if keys and self.is_refusing:
            self.refused += len(keys)
            raise ArchiveError("access is denied: 403 Forbidden", url=self.url, key=keys[0])
        super().delete(keys)


def test_an_archiver_that_may_not_delete_goes_on_and_says_so_once(log):
    folder = WriteOnlyFolder(MemoryStore(), "memory:///archive")
    remarks = []
    archiver = archiver_of(folder, log, notify=remarks.append, merge_objects=4, orphan_s=3600, sweep_s=600)
    for _ in range(200):
        log.append(2)
        log.clock.sleep(10)
        assert archiver.step().deleted == 0
    assert archived(folder) == (0, log.data())
    (remark,) = remarks
    assert remark == (
        "nothing is deleted in the archive, which goes on: memory:///archive/heads/"
        f"{1:020d}.json.zst: access is denied: 403 Forbidden"
    )
    # After the first refusal one object is tried at a time, whatever has piled up.
    assert folder.refused < 300
    # With other credentials all of it goes, the objects that were not deleted in time included.
    folder.is_refusing = False
    # Objects in memory are as old as they are: today.
    log.clock.now_s += 10 * 365 * 86_400
    for _ in range(30):
        log.append()
        log.clock.sleep(600)
        archiver.step()
    assert archived(folder) == (0, log.data())
    assert len(list(folder.list("heads"))) <= 30
    reader = reader_of(folder)
    known = {one.key for one in reader.objects(reader.generation())}
    assert len({one.key for one in folder.list("log")} - known) < 20


YEARS_MS = 10 * 365 * 86_400_000


@pytest.fixture
def kept(folder, log):
    """An archive of a log of 40 steps, 20 s each, whose writer has ended, and where the log begins then."""
    archiver = archiver_of(folder, log, keep_s=3600.0, retention_s=0.0)
    for _ in range(40):
        log.append(3)
        log.clock.sleep(20)
        archiver.step()
    return reader_of(folder).generation().first_offset


def later(folder, log, *, ahead_ms=0, notes=None, trust_clock=False):
    """A step of the next archiver, by a clock that is wrong by so much; where the archive begins then."""
    log.clock.ahead_ms = ahead_ms
    archiver = archiver_of(
        folder, log, keep_s=60.0, retention_s=0.0, renew_s=0.001, trust_clock=trust_clock,
        notify=(lambda _text: None) if notes is None else notes.append,
    )  # fmt: skip
    log.clock.sleep(1)
    archiver.step()
    log.clock.ahead_ms = 0
    return reader_of(folder).generation().first_offset


@pytest.mark.parametrize("ahead_ms", [YEARS_MS, -YEARS_MS])
def test_a_wrong_clock_deletes_nothing_of_an_archive_and_misleads_no_later_archiver(
    folder, log, kept, ahead_ms
):
    before = reader_of(folder).head.writer.renewed_ms
    for _ in range(3):
        notes = []
        assert later(folder, log, ahead_ms=ahead_ms, notes=notes) == kept == 0
        assert sum("nothing is deleted by age; check the clock" in note for note in notes) == 1
        assert abs(reader_of(folder).head.writer.renewed_ms - before) < 60_000
    # The clock is right again: the window is what it says.
    assert later(folder, log, ahead_ms=0) > 0
    assert archived(folder)[1] == log.bytes_of(archived(folder)[0], log.end_offset)


def test_an_archiver_after_a_long_pause_waits_for_an_operator(folder, log, kept):
    log.clock.sleep(30 * 86_400)
    assert later(folder, log, ahead_ms=0) == kept
    assert later(folder, log, ahead_ms=0, trust_clock=True) > kept
    notes = []
    later(folder, log, ahead_ms=0, notes=notes)
    assert notes == []


def test_an_archiver_deletes_no_more_than_the_head_before_it_bears_out(folder, log, kept):
    # A day is not enough for a doubt; by the clock alone all but the newest file would be too old.
    first = later(folder, log, ahead_ms=86_400_000)
    assert kept < first
    from_ms = log.clock.wall_ms() - 62_000
    reader = reader_of(folder)
    assert next(reader.objects(reader.generation())).min_store_ms < from_ms
    assert any(one.max_store_ms < from_ms for one in reader.objects(reader.generation()))


def test_records_of_a_wrong_clock_neither_stop_retention_nor_let_newer_ones_go(folder, log):
    archiver = archiver_of(folder, log, keep_s=600.0, retention_s=0.0)
    ends = []
    for number in range(100):
        log.clock.ahead_ms = {10: YEARS_MS, 80: -YEARS_MS}.get(number, 0)
        log.append(3)
        log.clock.ahead_ms = 0
        ends.append((log.clock.wall_ms(), log.end_offset))
        log.clock.sleep(20)
        archiver.step()
        first, data = archived(folder)
        assert data == log.bytes_of(first, log.end_offset)
        older = [end for ms, end in ends if ms < log.clock.wall_ms() - 600_000]
        assert first <= (older[-1] if older else 0)
    # What is older than the window has gone, but for an object or two.
    assert first > older[-1] - 3 * log.file_bytes


def test_a_generation_stays_until_its_own_records_are_old_whenever_the_next_one_began(folder, log, tmp_path):
    fork = log.fork(tmp_path / "fork")
    options = {"keep_s": 600.0, "retention_s": 0.0}
    log.append(100)
    archiver_of(folder, log, **options).step()
    fork.append(80)
    fork.clock.sleep(10)
    fork.append(10, body=b"other")
    fork.clock.ahead_ms = -3 * 86_400_000
    archiver = archiver_of(folder, fork, take_over=True, **options)
    archiver.step()
    fork.clock.ahead_ms = 0
    archiver.step()
    assert len(reader_of(folder).head.generations) == 2
    fork.clock.sleep(700)
    fork.append(1)
    archiver.step()
    assert len(reader_of(folder).head.generations) == 1
