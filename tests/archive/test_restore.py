"""Restores: what is in the new store, where it ends, and how it goes on after every kind of interruption."""

import errno
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from tests.archive.building import (
    Moment,
    Put,
    build,
    build_from,
    entries_of,
    files_of,
    log_data,
    made_log,
    merge_file,
    put_object,
    replace_generation,
)
from tests.archive.damaging import damage_object, flip
from tests.levels import by_level
from tests.store.support import VECTORS, expected, open_store
from trioha.archive import restore as module
from trioha.archive.errors import ArchiveError, MissingObjectError
from trioha.archive.objects import ObjectFolder
from trioha.archive.reader import ArchiveReader
from trioha.archive.restore import Restore
from trioha.archive.restore_plan import Target
from trioha.errors import StoreError
from trioha.metadata.clamped_offsets import clamp_offsets
from trioha.store.checkpoint import Checkpoint
from trioha.store.lock import RESTORE_MARKER

FILE_BYTES = 1000
LATEST = Target()


@pytest.fixture(autouse=True)
def no_syncs(monkeypatch):
    """Hundreds of restores would wait for the disk. That each sync is called is seen by `FailingSystem`."""
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, lambda _fd: None)


def restored(url, into, target=LATEST, **options):
    return Restore(ArchiveReader.open(url), into, clamp=clamp_offsets).run(target, **options)


def log_of(store):
    return {int(path.name): path.read_bytes() for path in sorted((store / "commitlog").glob("[0-9]*"))}


def prefix(entries, end_offset, *, file_bytes=FILE_BYTES):
    """Log files with the entries that end at or before an offset."""
    return files_of([one for one in entries if one.end_offset <= end_offset], file_bytes=file_bytes)


SMALL = made_log(
    [Put(body=b"x" * (17 * number % 200), store_ms=1_000_000 + number) for number in range(24)],
    file_bytes=FILE_BYTES,
    filler=0x5A,
)
"""24 records and the blanks of three full files."""


@pytest.fixture
def url(tmp_path):
    return f"file://{tmp_path}/archive"


# -- where a restored log ends ------------------------------------------------------------------------------


sizes = st.lists(st.integers(0, 600), min_size=1, max_size=30)


@pytest.mark.full
@given(
    bodies=sizes,
    object_bytes=st.integers(100, 3000),
    codecs=st.lists(st.sampled_from(["none", "zstd"]), min_size=1, max_size=4),
    page_objects=st.one_of(st.none(), st.integers(1, 4)),
    first_file=st.integers(0, 3),
    data=st.data(),
)
def test_a_restored_log_is_the_prefix_of_the_archived_one(  # noqa: PLR0917 (hypothesis passes names)
    bodies, object_bytes, codecs, page_objects, first_file, data
):
    entries = made_log(
        [Put(body=bytes([number % 256]) * size) for number, size in enumerate(bodies)],
        file_bytes=FILE_BYTES,
        first_offset=first_file * FILE_BYTES,
        filler=0xEE,
    )
    end_offset = data.draw(st.integers(entries[0].end_offset, entries[-1].end_offset))
    with tempfile.TemporaryDirectory() as folder:
        url = f"file://{folder}/archive"
        build_from(
            url,
            entries,
            file_bytes=FILE_BYTES,
            object_bytes=object_bytes,
            codec=lambda number: codecs[number % len(codecs)],
            page_objects=page_objects,
        )
        restored(url, Path(folder) / "store", Target(to_offset=end_offset))
        assert log_of(Path(folder) / "store") == prefix(entries, end_offset)


@pytest.mark.parametrize("object_bytes", [100, 300, 10_000])
def test_a_time_ends_the_log_before_the_first_record_that_was_stored_later(tmp_path, url, object_bytes):
    # A clock that was set back twice, and records of one millisecond.
    times = [10, 20, 20, 30, 30, 25, 30, 40, 35, 41]
    entries = made_log([Put(store_ms=time) for time in times], file_bytes=10_000)
    build_from(url, entries, file_bytes=10_000, object_bytes=object_bytes, page_objects=2)
    with pytest.raises(ArchiveError, match="no record was stored by 9 ms"):
        restored(url, tmp_path / "none", Target(to_ms=9))
    assert not (tmp_path / "none").exists()
    for to_ms, records in ((10, 1), (19, 1), (20, 3), (29, 3), (30, 7), (39, 7), (40, 9), (41, 10), (99, 10)):
        into = tmp_path / f"{to_ms}"
        result = restored(url, into, Target(to_ms=to_ms))
        assert log_of(into) == files_of(entries[:records], file_bytes=10_000)
        last_ms = times[records - 1]
        assert result.last_store_ms == last_ms
        assert Checkpoint.load(into / "checkpoint") == Checkpoint(physic_msg_timestamp_ms=last_ms)


def test_a_record_that_leads_the_clock_ends_no_log_that_is_restored_to_a_time(tmp_path, url):
    times = [10, 20, 2**62, 30, 2**63 - 1, 40]
    entries = made_log([Put(store_ms=time) for time in times], file_bytes=10_000)
    build_from(url, entries, file_bytes=10_000, object_bytes=100, page_objects=2)
    for to_ms, records in ((10, 1), (20, 3), (29, 3), (30, 5), (39, 5), (40, 6), (99, 6)):
        into = tmp_path / f"{to_ms}"
        restored(url, into, Target(to_ms=to_ms))
        assert log_of(into) == files_of(entries[:records], file_bytes=10_000)


def test_an_offset_that_the_archive_does_not_have_is_refused(tmp_path, url):
    build_from(url, SMALL, file_bytes=FILE_BYTES)
    for at in (0, 1, SMALL[0].end_offset - 1):
        with pytest.raises(ArchiveError, match=f"no record ends at or before offset {at}"):
            restored(url, tmp_path / "store", Target(to_offset=at))
    end = SMALL[-1].end_offset
    with pytest.raises(ArchiveError, match=f"ends at offset {end}, before {end + 1}; --latest restores"):
        restored(url, tmp_path / "store", Target(to_offset=end + 1))


def test_a_log_file_of_which_the_start_is_not_archived_any_more_is_left_out(tmp_path, url):
    kept = SMALL[3:]
    assert 0 < kept[0].offset < FILE_BYTES
    build_from(url, kept, file_bytes=FILE_BYTES, object_bytes=300)
    result = restored(url, tmp_path / "store")
    assert result.plan.first_offset == FILE_BYTES
    assert log_of(tmp_path / "store") == prefix(
        [one for one in SMALL if one.offset >= FILE_BYTES], SMALL[-1].end_offset
    )
    with pytest.raises(ArchiveError, match="has whole log files from offset 1000 on"):
        restored(url, tmp_path / "other", Target(to_offset=999))


def test_the_newest_generation_is_restored_unless_another_is_named(tmp_path, url):
    other = made_log([Put(body=b"other")], file_bytes=FILE_BYTES)
    build_from(url, SMALL, file_bytes=FILE_BYTES)
    build_from(url, other, file_bytes=FILE_BYTES, generation="0002-00000001")
    restored(url, tmp_path / "new")
    assert log_of(tmp_path / "new") == files_of(other, file_bytes=FILE_BYTES)
    restored(url, tmp_path / "old", generation="0001")
    assert log_of(tmp_path / "old") == files_of(SMALL, file_bytes=FILE_BYTES)


# -- stores that open ---------------------------------------------------------------------------------------

RECORDED = ("store-4.9.7", "store-5.3.3", "store-5.3.3-propcrc-lmq")


def config_of(name):
    folder = VECTORS / name / "store" / "config"
    return {path.name: path.read_text() for path in folder.glob("*.json")}


@pytest.mark.parametrize("name", RECORDED)
@pytest.mark.parametrize("build_queues", [False, True])
def test_a_restored_store_of_rocketmq_has_its_queues(tmp_path, url, name, build_queues):
    source = VECTORS / name / "store"
    first_offset, file_bytes, data = log_data(source)
    entries = list(entries_of(data, first_offset=first_offset, file_bytes=file_bytes))
    moment = Moment(taken_ms=5, offset=entries[-1].end_offset, files=config_of(name))
    build(url, source, object_bytes=9000, codec="zstd", metadata=[moment])
    into = tmp_path / "store"
    result = restored(url, into, build=build_queues)
    assert result.is_built is build_queues
    assert log_of(into) == files_of(entries, file_bytes=file_bytes)
    assert {path.name: path.read_text() for path in (into / "config").iterdir()} == config_of(name)
    assert result.clamped == 0
    assert (into / "consumequeue").is_dir() is build_queues
    assert not (into / "abort").exists()
    wanted = {
        queue: ends["maxOffset"] for queue, ends in expected(name)["queues"].items() if ends["maxOffset"]
    }
    if build_queues:
        listed = json.loads((into / "trioha-queues.json").read_text())
        assert {f"{topic}@{queue}" for topic, queues in listed.items() for queue in queues} == {
            queue for queue in wanted if not queue.startswith("%LMQ%")
        }
    else:
        ends = open_store(into).queues.queue_offsets()
        assert {f"{topic}@{queue}": end for (topic, queue), end in ends.items()} == wanted


def test_no_node_opens_a_store_before_its_restore_has_ended(tmp_path, url):
    build_from(url, SMALL, file_bytes=FILE_BYTES)
    into = tmp_path / "store"
    restored(url, into)
    (into / "commitlog" / RESTORE_MARKER).write_text("{}")
    with pytest.raises(StoreError, match="a restore into this store has not ended"):
        open_store(into, file_bytes=FILE_BYTES)


# -- config files -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page_objects", [None, 2])
def test_config_files_are_the_newest_ones_that_are_not_beyond_the_log(tmp_path, url, page_objects):
    moments = [
        Moment(
            taken_ms=1_000_000 + number, offset=SMALL[number].end_offset, files={"topics.json": f"{number}"}
        )
        for number in (3, 9, 15)
    ]
    options = {"object_bytes": 400, "metadata": moments, "page_objects": page_objects}
    build_from(url, SMALL, file_bytes=FILE_BYTES, **options)
    for number, (target, topics, is_later) in enumerate(
        (
            (LATEST, "15", False),
            (Target(to_offset=SMALL[9].end_offset), "9", False),
            (Target(to_offset=SMALL[9].end_offset - 1), "3", False),
            (Target(to_offset=SMALL[2].end_offset), "3", True),
            (Target(to_ms=1_000_014), "9", False),
            (Target(to_ms=1_000_002), "3", True),
        )
    ):
        result = restored(url, tmp_path / f"{number}", target)
        assert (tmp_path / f"{number}/config/topics.json").read_text() == topics, target
        assert result.is_metadata_later is is_later, target
    build_from(f"{url}2", SMALL, file_bytes=FILE_BYTES)
    assert restored(f"{url}2", tmp_path / "without").metadata is None
    assert list((tmp_path / "without/config").iterdir()) == []


def test_offsets_are_clamped_to_the_queues_that_the_log_has(tmp_path, url):
    puts = [
        Put(topic="A"),
        Put(topic="A", queue_id=1),
        Put(topic="A"),
        Put(topic="A", sys_flag=0x4),
        Put(topic="SCHEDULE_TOPIC_XXXX", queue_id=2),
        Put(topic="B", queue_id=100, sys_flag=0x80, properties=b"INNER_NUM\x017\x02"),
        Put(topic="A"),
    ]
    entries = made_log(puts, file_bytes=10_000)
    files = {
        "consumerOffset.json": '{\n\t"offsetTable":{\n\t\t"A@g":{0:9,1:1\n\t\t},"B@g":{100:7,101:1\n\t\t},'
        '"gone@g":{0:5\n\t\t},"%LMQ%x@g":{0:5\n\t\t}\n\t}\n}',
        "delayOffset.json": '{\n\t"offsetTable":{1:1,3:1\n\t}\n}',
        "topics.json": "{}",
    }
    moment = Moment(taken_ms=5, offset=entries[-2].end_offset, files=files)
    build_from(url, entries, file_bytes=10_000, object_bytes=200, metadata=[moment])
    result = restored(url, tmp_path / "store", Target(to_offset=entries[-2].end_offset))
    assert result.clamped == 4
    config = tmp_path / "store/config"
    assert (config / "consumerOffset.json").read_text() == (
        '{\n\t"offsetTable":{\n\t\t"A@g":{0:2,1:1\n\t\t},\n\t\t"B@g":{100:7,101:0\n\t\t},'
        '\n\t\t"gone@g":{0:0\n\t\t},\n\t\t"%LMQ%x@g":{0:5\n\t\t}\n\t}\n}'
    )
    assert (config / "delayOffset.json").read_text() == '{\n\t"offsetTable":{1:0,3:1\n\t}\n}'


def test_offsets_that_cannot_be_read_stay_and_are_named(tmp_path, url):
    moment = Moment(
        taken_ms=5, offset=1, files={"consumerOffset.json": '{"offsetTable":[', "delayOffset.json": ""}
    )
    build_from(url, SMALL, file_bytes=FILE_BYTES, metadata=[moment])
    result = restored(url, tmp_path / "store")
    assert list(result.unreadable) == ["consumerOffset.json"]
    assert (tmp_path / "store/config/consumerOffset.json").read_text() == '{"offsetTable":['


def test_a_config_file_with_a_path_for_a_name_is_refused(tmp_path):
    for number, name in enumerate(("../evil", "/etc/x", ".bashrc", "a/b", "")):
        url = f"file://{tmp_path}/{number}"
        moment = Moment(taken_ms=5, offset=1, files={name: "x"})
        build_from(url, SMALL, file_bytes=FILE_BYTES, metadata=[moment])
        with pytest.raises(ArchiveError, match="cannot be a config file"):
            restored(url, tmp_path / f"store-{number}")


# -- damage -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_damaged_object_ends_a_restore_which_goes_on_when_it_is_mended(tmp_path, url, codec):
    build_from(url, SMALL, file_bytes=FILE_BYTES, object_bytes=400, codec=codec)
    shutil.copytree(tmp_path / "archive", tmp_path / "good")
    damages = {
        "size": flip(3),
        "header": flip(20),
        "middle": flip(60),
        "last": flip(-1),
        "shorter": lambda data: data.pop(),
        "empty": lambda data: data.clear(),
    }
    for name, change in damages.items():
        key = damage_object(url, 4, change)
        into = tmp_path / name
        with pytest.raises(ArchiveError) as caught:
            restored(url, into)
        assert caught.value.key == key, name
        (tmp_path / "archive" / key).write_bytes((tmp_path / "good" / key).read_bytes())
        assert restored(url, into).files_kept == 1
        assert log_of(into) == files_of(SMALL, file_bytes=FILE_BYTES), name


def rewritten(entries, number, change):
    """A log with one changed entry: what an archiver that does not check would archive."""
    data = bytearray(entries[number].data)
    change(data)
    return [*entries[:number], evolve(entries[number], data=bytes(data)), *entries[number + 1 :]]


def test_a_bad_record_in_a_whole_object_is_named_with_its_offset(tmp_path):
    for at, reason in (
        (90, "the body's CRC is not the stored"),
        (5, "magic 0x.* is not a record's"),
        (35, "the record says that it stands at"),
        (0, "the record has .* are left of its object"),
    ):
        url = f"file://{tmp_path}/{at}"
        build_from(url, rewritten(SMALL, 4, flip(at)), file_bytes=FILE_BYTES, object_bytes=400)
        with pytest.raises(ArchiveError, match=f"bad record at offset {SMALL[4].offset}: {reason}"):
            restored(url, tmp_path / f"store-{at}")


def test_a_generation_that_lists_impossible_objects_is_refused(tmp_path, url):
    build_from(url, SMALL, file_bytes=FILE_BYTES, object_bytes=400)
    whole = put_object(ObjectFolder.open(url), SMALL)

    def without(generation, number):
        return (*generation.objects[:number], *generation.objects[number + 1 :])

    changes = {
        "the object before it ends at": lambda one: evolve(one, objects=without(one, 2)),
        "reaches beyond the end of its log file, offset 1000": lambda one: evolve(one, objects=(whole,)),
        r"a blank of \d+ bytes that does not end with its file": lambda one: evolve(one, file_bytes=4000),
    }
    generation = ArchiveReader.open(url).generation()
    for reason, change in changes.items():
        replace_generation(url, lambda _, change=change: change(generation))
        with pytest.raises(ArchiveError, match=reason):
            restored(url, tmp_path / "store" / reason[:3])
    lost = generation.objects[5]
    replace_generation(url, lambda _: generation)
    ObjectFolder.open(url).delete([lost.key])
    with pytest.raises(MissingObjectError, match=lost.key):
        restored(url, tmp_path / "other")


def test_statistics_that_hide_a_later_record_are_found(tmp_path, url):
    entries = made_log([Put(store_ms=time) for time in (10, 50, 20)], file_bytes=FILE_BYTES)
    build_from(url, entries, file_bytes=FILE_BYTES, object_bytes=100)

    def lie(generation):
        first, second, third = generation.objects
        return evolve(generation, objects=(first, evolve(second, max_store_ms=10), third))

    replace_generation(url, lie)
    with pytest.raises(ArchiveError, match="has a record stored at 50 ms"):
        restored(url, tmp_path / "store", Target(to_ms=30))


def test_objects_that_were_merged_meanwhile_are_read_from_the_newer_head(tmp_path, url):
    build_from(url, SMALL, file_bytes=FILE_BYTES, object_bytes=200)
    reader = ArchiveReader.open(url)
    merge_file(url, SMALL, start=FILE_BYTES, file_bytes=FILE_BYTES)
    into = tmp_path / "store"
    Restore(reader, into, clamp=clamp_offsets).run(LATEST)
    assert log_of(into) == files_of(SMALL, file_bytes=FILE_BYTES)


# -- folders ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["file", "commitlog/00000000000000000000", "config/topics.json"])
def test_a_folder_that_is_not_empty_is_refused(tmp_path, url, name):
    build_from(url, SMALL, file_bytes=FILE_BYTES)
    path = tmp_path / "store" / name
    path.parent.mkdir(parents=True)
    path.write_text("mine")
    with pytest.raises(StoreError, match="is not empty, and no restore into it was interrupted"):
        restored(url, tmp_path / "store")
    assert path.read_text() == "mine"
    assert sorted(one.name for one in (tmp_path / "store").iterdir()) == [Path(name).parts[0]]


class Stopped(BaseException):
    """Ends a restore in the middle."""


def interrupted(url, into, target=LATEST):
    """A restore that ends after its first log file."""

    def stop(_what, done, _total):
        if done > FILE_BYTES:
            raise Stopped

    with pytest.raises(Stopped):
        restored(url, into, target, on_progress=stop)


@pytest.mark.parametrize("other", ["target", "generation", "archive"])
def test_another_restore_does_not_go_on_with_an_interrupted_one(tmp_path, url, other):
    build_from(url, SMALL, file_bytes=FILE_BYTES)
    build_from(url, SMALL, file_bytes=FILE_BYTES, generation="0002-00000001")
    build_from(f"{url}2", SMALL, file_bytes=FILE_BYTES, generation="0002-00000001")
    into = tmp_path / "store"
    interrupted(url, into)
    before = log_of(into)
    target = Target(to_offset=SMALL[-1].end_offset) if other == "target" else LATEST
    generation = "0001" if other == "generation" else None
    with pytest.raises(StoreError, match=r"another restore into this folder was interrupted.*to its end"):
        restored(f"{url}2" if other == "archive" else url, into, target, generation=generation)
    assert log_of(into) == before
    assert restored(url, into).files_kept == 1


def test_a_restore_of_all_goes_on_to_the_end_that_it_had_when_it_began(tmp_path, url):
    older = [one for one in SMALL if one.end_offset <= 2500]
    build_from(url, older, file_bytes=FILE_BYTES, object_bytes=300)
    into = tmp_path / "store"
    interrupted(url, into)
    added = [one for one in SMALL if one.offset >= older[-1].end_offset and one.offset < 3000]
    more = put_object(ObjectFolder.open(url), added)
    replace_generation(url, lambda one: evolve(one, objects=(*one.objects, more)))
    restored(url, into)
    assert log_of(into) == files_of(older, file_bytes=FILE_BYTES)


def test_a_marker_says_what_is_being_restored_and_another_text_is_refused(tmp_path, url):
    build_from(url, SMALL, file_bytes=FILE_BYTES)
    into = tmp_path / "store"
    interrupted(url, into, Target(to_ms=1_000_020))
    marker = into / "commitlog" / RESTORE_MARKER
    found = json.loads(marker.read_text())
    assert (found["url"], found["generation"]) == (url, "0001-5f0c9a12")
    assert found["target"] == {"to_offset": None, "to_ms": 1_000_020}
    for text in ("", "{}", "[]", '{"format":"trioha-restore","version":2}', "nonsense"):
        marker.write_text(text)
        with pytest.raises(StoreError, match="is not the marker of a restore"):
            restored(url, into)


def test_a_folder_in_use_is_refused(tmp_path, url):
    build_from(url, SMALL, file_bytes=FILE_BYTES)
    into = tmp_path / "store"
    script = (
        "import sys,fcntl; f=open(sys.argv[1],'r+b'); fcntl.lockf(f,fcntl.LOCK_EX,1,0);"
        "print('locked',flush=True); sys.stdin.read()"
    )
    interrupted(url, into)
    with subprocess.Popen(
        [sys.executable, "-c", script, into / "lock"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout.readline() == b"locked\n"
        with pytest.raises(StoreError, match="locked by another process"):
            restored(url, into)
        holder.communicate()
    restored(url, into)


# -- kills and full disks ------------------------------------------------------------------------------------


class Killed(BaseException):
    """Stands for the end of the process: no call of the system has an effect afterwards."""


SYSTEM_CALLS = (
    "open", "pwrite", "link", "unlink", "rename", "replace", "mkdir", "rmdir", "fsync", "fdatasync",
    "posix_fallocate",
)  # fmt: skip


class FailingSystem:
    """Counts calls that change files, and fails from the call with number `fails_at` on."""

    def __init__(self, monkeypatch, *, fails_at, error=None):
        self.calls = 0
        self.fails_at = fails_at
        self.error = error
        self._lock = threading.Lock()
        for name in SYSTEM_CALLS:
            monkeypatch.setattr(os, name, self._counted(name, getattr(os, name)))

    def _counted(self, name, call):
        def counted(*arguments, **options):
            with self._lock:
                self.calls += 1
                number = self.calls
            if self.error is None and number >= self.fails_at:
                raise Killed
            if number == self.fails_at:
                raise OSError(self.error.errno, os.strerror(self.error.errno or 0))
            return call(*arguments, **options)

        return counted


FILES = {"topics.json": "{}", "consumerOffset.json": '{"offsetTable":{"Orders@g":{0:3}}}'}


BEFORE_BUILD = 80
"""Calls before a build begins; some more, by the number of syncs."""


def tree_of(store):
    """Everything but what a build puts into times and names of its own."""
    return {
        path.relative_to(store).as_posix(): path.read_bytes()
        for path in sorted(store.rglob("*"))
        if path.is_file() and path.parent.name != "index"
    }


@pytest.fixture
def archived(url):
    moment = Moment(taken_ms=5, offset=SMALL[8].end_offset, files=FILES)
    build_from(url, SMALL, file_bytes=FILE_BYTES, object_bytes=400, metadata=[moment])
    return url


@pytest.mark.sized
@pytest.mark.parametrize("build_queues", [False, pytest.param(True, marks=pytest.mark.full)])
def test_a_restore_that_was_killed_at_any_step_is_completed(tmp_path, archived, build_queues):
    target = Target(to_offset=SMALL[20].end_offset)
    whole = tmp_path / "whole"
    with pytest.MonkeyPatch.context() as patch:
        system = FailingSystem(patch, fails_at=1 << 60)
        restored(archived, whole, target, build=build_queues)
    assert system.calls > 30
    # What comes before the build is the same in both.
    for step in range(BEFORE_BUILD if build_queues else 1, system.calls + 1, by_level(6, 3, 1)):
        into = tmp_path / str(step)
        with pytest.MonkeyPatch.context() as patch:
            FailingSystem(patch, fails_at=step)
            with suppress(Killed):
                restored(archived, into, target, build=build_queues)
        # What has a name is whole.
        for path in (into / "commitlog").glob("[0-9]*"):
            assert path.read_bytes() == (whole / "commitlog" / path.name).read_bytes()
        if not is_complete(into):
            restored(archived, into, target, build=build_queues)
        assert tree_of(into) == tree_of(whole)


def is_complete(into):
    """Whether the marker is gone, which is the last thing that a restore does."""
    return (into / "checkpoint").exists() and not (into / "commitlog" / RESTORE_MARKER).exists()


@pytest.mark.sized
def test_a_restore_that_the_disk_refuses_at_any_step_names_the_file_and_is_completed(tmp_path, archived):
    whole = tmp_path / "whole"
    with pytest.MonkeyPatch.context() as patch:
        system = FailingSystem(patch, fails_at=1 << 60)
        restored(archived, whole)
    refused = 0
    for step in range(2, system.calls + 1, by_level(6, 3, 1)):
        into = tmp_path / str(step)
        with pytest.MonkeyPatch.context() as patch:
            FailingSystem(patch, fails_at=step, error=OSError(errno.ENOSPC, ""))
            problem = ""
            try:
                restored(archived, into)
            except StoreError as error:
                problem = str(error)
        if problem:
            refused += 1
            assert str(into) in problem
            assert "No space left on device" in problem
        if not is_complete(into):
            restored(archived, into)
        assert tree_of(into) == tree_of(whole)
    assert refused > by_level(4, 8, 20)


def test_a_log_that_does_not_fit_on_the_disk_is_refused_before_it_is_written(tmp_path, archived, monkeypatch):
    usage = module.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(module.shutil, "disk_usage", lambda path: usage._replace(free=2999))
    into = tmp_path / "store"
    with pytest.raises(StoreError, match=r"the log needs [\d,]+ bytes, the disk has 2,999 free"):
        restored(archived, into)
    monkeypatch.undo()
    restored(archived, into)


def test_nothing_temporary_stays(tmp_path, archived):
    into = tmp_path / "store"
    interrupted(archived, into)
    restored(archived, into, build=True)
    assert list(into.rglob("*.tmp")) == []
    assert [path.name for path in into.glob(".*")] == []
