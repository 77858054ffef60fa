"""Restores: what is in the new store, where it ends, and how it goes on after every kind of interruption."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.archive.building import (
    Entry,
    Moment,
    Put,
    build,
    build_from,
    entries_of,
    files_of,
    log_data,
    made_log,
    put_object,
    replace_generation,
)
from tests.archive.damaging import damage_object, flip
from tests.store.support import VECTORS, expected, open_store
from trioha.archive import restore as module
from trioha.archive.errors import ArchiveError, MissingObjectError
from trioha.archive.layout import Generation
from trioha.archive.objects import ObjectFolder
from trioha.archive.reader import ArchiveReader
from trioha.archive.restore import Restore, Restored, Target
from trioha.errors import StoreError
from trioha.metadata.clamped_offsets import clamp_offsets
from trioha.store.checkpoint import Checkpoint
from trioha.store.lock import RESTORE_MARKER

FILE_BYTES = 1000
LATEST = Target()


@pytest.fixture(autouse=True)
def no_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of restores would wait for the disk. That each sync is called is seen by `FailingSystem`."""
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, lambda _fd: None)


def restored(url: str, into: Path, target: Target = LATEST, **options: Any) -> Restored:
    return Restore(ArchiveReader.open(url), into, clamp=clamp_offsets).run(target, **options)


def log_of(store: Path) -> dict[int, bytes]:
    return {int(path.name): path.read_bytes() for path in sorted((store / "commitlog").glob("[0-9]*"))}


def prefix(entries: list[Entry], end_offset: int, *, file_bytes: int = FILE_BYTES) -> dict[int, bytes]:
    """Log files with the entries that end at or before an offset."""
    return files_of([one for one in entries if one.end_offset <= end_offset], file_bytes=file_bytes)


SMALL = made_log(
    [Put(body=b"x" * (17 * number % 200), store_ms=1_000_000 + number) for number in range(24)],
    file_bytes=FILE_BYTES,
    filler=0x5A,
)
"""24 records and the blanks of three full files."""


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file://{tmp_path}/archive"


# -- where a restored log ends ------------------------------------------------------------------------------


def test_a_log_is_cut_at_each_border_of_its_records_and_beside_it(tmp_path: Path, url: str) -> None:
    build_from(
        url,
        SMALL,
        file_bytes=FILE_BYTES,
        object_bytes=400,
        codec=lambda number: "zstd" if number % 2 else "none",
        page_objects=3,
    )
    for number, entry in enumerate(SMALL):
        for at in (entry.end_offset - 1, entry.end_offset, entry.end_offset + 1):
            if at < SMALL[0].end_offset or at > SMALL[-1].end_offset:
                continue
            into = tmp_path / f"{number}-{at}"
            result = restored(url, into, Target(to_offset=at))
            assert log_of(into) == prefix(SMALL, at)
            borders = [one.end_offset for one in SMALL if one.end_offset <= at]
            assert result.plan.end_offset == borders[-1]


sizes = st.lists(st.integers(0, 600), min_size=1, max_size=30)


@settings(max_examples=40)
@given(
    bodies=sizes,
    object_bytes=st.integers(100, 3000),
    codecs=st.lists(st.sampled_from(["none", "zstd"]), min_size=1, max_size=4),
    page_objects=st.one_of(st.none(), st.integers(1, 4)),
    first_file=st.integers(0, 3),
    data=st.data(),
)
def test_a_restored_log_is_the_prefix_of_the_archived_one(  # noqa: PLR0917 (hypothesis passes names)
    bodies: list[int],
    object_bytes: int,
    codecs: list[Any],
    page_objects: int | None,
    first_file: int,
    data: st.DataObject,
) -> None:
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


TIMES = [10, 20, 20, 30, 30, 25, 30, 40, 35, 41]
"""A clock that was set back twice, and records of one millisecond."""


@pytest.mark.parametrize(
    ("to_ms", "records"),
    [(9, 0), (10, 1), (19, 1), (20, 3), (29, 3), (30, 7), (39, 7), (40, 9), (41, 10), (99, 10)],
)
@pytest.mark.parametrize("object_bytes", [100, 300, 10_000])
def test_a_time_ends_the_log_before_the_first_record_that_was_stored_later(
    tmp_path: Path, url: str, to_ms: int, records: int, object_bytes: int
) -> None:
    entries = made_log([Put(store_ms=time) for time in TIMES], file_bytes=10_000)
    build_from(url, entries, file_bytes=10_000, object_bytes=object_bytes, page_objects=2)
    into = tmp_path / "store"
    if not records:
        with pytest.raises(ArchiveError, match="no record was stored by 9 ms"):
            restored(url, into, Target(to_ms=to_ms))
        assert not into.exists()
        return
    result = restored(url, into, Target(to_ms=to_ms))
    assert log_of(into) == files_of(entries[:records], file_bytes=10_000)
    assert result.last_store_ms == TIMES[records - 1]
    assert Checkpoint.load(into / "checkpoint") == Checkpoint(physic_msg_timestamp_ms=TIMES[records - 1])


@pytest.mark.parametrize("at", [0, 1, SMALL[0].end_offset - 1])
def test_an_offset_before_the_first_record_is_refused(tmp_path: Path, url: str, at: int) -> None:
    build_from(url, SMALL, file_bytes=FILE_BYTES)
    with pytest.raises(ArchiveError, match=f"no record ends at or before offset {at}"):
        restored(url, tmp_path / "store", Target(to_offset=at))


def test_an_offset_beyond_the_archive_is_refused(tmp_path: Path, url: str) -> None:
    build_from(url, SMALL, file_bytes=FILE_BYTES)
    end = SMALL[-1].end_offset
    with pytest.raises(ArchiveError, match=f"ends at offset {end}, before {end + 1}; --latest restores"):
        restored(url, tmp_path / "store", Target(to_offset=end + 1))


def test_a_log_file_of_which_the_start_is_not_archived_any_more_is_left_out(tmp_path: Path, url: str) -> None:
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


def test_the_newest_generation_is_restored_unless_another_is_named(tmp_path: Path, url: str) -> None:
    other = made_log([Put(body=b"other")], file_bytes=FILE_BYTES)
    build_from(url, SMALL, file_bytes=FILE_BYTES)
    build_from(url, other, file_bytes=FILE_BYTES, generation="0002-00000001")
    restored(url, tmp_path / "new")
    assert log_of(tmp_path / "new") == files_of(other, file_bytes=FILE_BYTES)
    restored(url, tmp_path / "old", generation="0001")
    assert log_of(tmp_path / "old") == files_of(SMALL, file_bytes=FILE_BYTES)


# -- stores that open ---------------------------------------------------------------------------------------

RECORDED = ("store-4.9.7", "store-5.3.3", "store-5.3.3-propcrc-lmq")


def config_of(name: str) -> dict[str, str]:
    folder = VECTORS / name / "store" / "config"
    return {path.name: path.read_text() for path in folder.glob("*.json")}


@pytest.mark.parametrize("name", RECORDED)
@pytest.mark.parametrize("build_queues", [False, True])
def test_a_restored_store_of_rocketmq_has_its_queues(
    tmp_path: Path, url: str, name: str, build_queues: bool
) -> None:
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


def test_no_node_opens_a_store_before_its_restore_has_ended(tmp_path: Path, url: str) -> None:
    build_from(url, SMALL, file_bytes=FILE_BYTES)
    into = tmp_path / "store"
    restored(url, into)
    (into / "commitlog" / RESTORE_MARKER).write_text("{}")
    with pytest.raises(StoreError, match="a restore into this store has not ended"):
        open_store(into, file_bytes=FILE_BYTES)


# -- config files -------------------------------------------------------------------------------------------

MOMENTS = [
    Moment(taken_ms=1_000_003, offset=SMALL[3].end_offset, files={"topics.json": "3"}),
    Moment(taken_ms=1_000_009, offset=SMALL[9].end_offset, files={"topics.json": "9"}),
    Moment(taken_ms=1_000_015, offset=SMALL[15].end_offset, files={"topics.json": "15"}),
]


@pytest.mark.parametrize(
    ("target", "topics", "is_later"),
    [
        (LATEST, "15", False),
        (Target(to_offset=SMALL[9].end_offset), "9", False),
        (Target(to_offset=SMALL[9].end_offset - 1), "3", False),
        (Target(to_offset=SMALL[2].end_offset), "3", True),
        (Target(to_ms=1_000_014), "9", False),
        (Target(to_ms=1_000_002), "3", True),
    ],
)
@pytest.mark.parametrize("page_objects", [None, 2])
def test_config_files_are_the_newest_ones_that_are_not_beyond_the_log(  # noqa: PLR0917 (pytest, too)
    tmp_path: Path, url: str, target: Target, topics: str, is_later: bool, page_objects: int | None
) -> None:
    build_from(
        url,
        SMALL,
        file_bytes=FILE_BYTES,
        object_bytes=400,
        metadata=MOMENTS,
        page_objects=page_objects,
    )
    result = restored(url, tmp_path / "store", target)
    assert (tmp_path / "store/config/topics.json").read_text() == topics
    assert result.is_metadata_later is is_later


def test_an_archive_without_config_files_is_restored_without_them(tmp_path: Path, url: str) -> None:
    build_from(url, SMALL, file_bytes=FILE_BYTES)
    result = restored(url, tmp_path / "store")
    assert result.metadata is None
    assert list((tmp_path / "store/config").iterdir()) == []


def test_offsets_are_clamped_to_the_queues_that_the_log_has(tmp_path: Path, url: str) -> None:
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


def test_offsets_that_cannot_be_read_stay_and_are_named(tmp_path: Path, url: str) -> None:
    moment = Moment(
        taken_ms=5, offset=1, files={"consumerOffset.json": '{"offsetTable":[', "delayOffset.json": ""}
    )
    build_from(url, SMALL, file_bytes=FILE_BYTES, metadata=[moment])
    result = restored(url, tmp_path / "store")
    assert list(result.unreadable) == ["consumerOffset.json"]
    assert (tmp_path / "store/config/consumerOffset.json").read_text() == '{"offsetTable":['


@pytest.mark.parametrize("name", ["../evil", "/etc/x", ".bashrc", "a/b", ""])
def test_a_config_file_with_a_path_for_a_name_is_refused(tmp_path: Path, url: str, name: str) -> None:
    moment = Moment(taken_ms=5, offset=1, files={name: "x"})
    build_from(url, SMALL, file_bytes=FILE_BYTES, metadata=[moment])
    with pytest.raises(ArchiveError, match="cannot be a config file"):
        restored(url, tmp_path / "store")


# -- damage -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["none", "zstd"])
@pytest.mark.parametrize(
    "change",
    [flip(3), flip(20), flip(60), flip(-1), lambda data: data.pop(), lambda data: data.clear()],
    ids=["size", "header", "middle", "last", "shorter", "empty"],
)
def test_a_damaged_object_ends_a_restore_which_goes_on_when_it_is_mended(
    tmp_path: Path, url: str, codec: Any, change: Callable[[bytearray], object]
) -> None:
    build_from(url, SMALL, file_bytes=FILE_BYTES, object_bytes=400, codec=codec)
    good = tmp_path / "good"
    shutil.copytree(tmp_path / "archive", good)
    key = damage_object(url, 4, change)
    into = tmp_path / "store"
    with pytest.raises(ArchiveError) as caught:
        restored(url, into)
    assert caught.value.key == key
    (tmp_path / "archive" / key).write_bytes((good / key).read_bytes())
    result = restored(url, into)
    assert result.files_kept == 1
    assert log_of(into) == files_of(SMALL, file_bytes=FILE_BYTES)


def test_a_missing_object_is_named(tmp_path: Path, url: str) -> None:
    build_from(url, SMALL, file_bytes=FILE_BYTES, object_bytes=400)
    reader = ArchiveReader.open(url)
    lost = list(reader.objects(reader.generation()))[5]
    reader.folder.delete([lost.key])
    with pytest.raises(MissingObjectError, match=lost.key):
        restored(url, tmp_path / "store")


def rewritten(entries: list[Entry], number: int, change: Callable[[bytearray], object]) -> list[Entry]:
    """A log with one changed entry: what an archiver that does not check would archive."""
    data = bytearray(entries[number].data)
    change(data)
    return [*entries[:number], evolve(entries[number], data=bytes(data)), *entries[number + 1 :]]


@pytest.mark.parametrize(
    ("at", "reason"),
    [
        (90, "the body's CRC is not the stored"),
        (5, "magic 0x.* is not a record's"),
        (35, "the record says that it stands at"),
        (0, "the record has .* are left of its object"),
    ],
)
def test_a_bad_record_in_a_whole_object_is_named_with_its_offset(
    tmp_path: Path, url: str, at: int, reason: str
) -> None:
    build_from(url, rewritten(SMALL, 4, flip(at)), file_bytes=FILE_BYTES, object_bytes=400)
    with pytest.raises(ArchiveError, match=f"bad record at offset {SMALL[4].offset}: {reason}"):
        restored(url, tmp_path / "store")


def test_a_hole_is_refused(tmp_path: Path, url: str) -> None:
    build_from(url, SMALL, file_bytes=FILE_BYTES, object_bytes=400)
    replace_generation(url, lambda one: evolve(one, objects=(*one.objects[:2], *one.objects[3:])))
    with pytest.raises(ArchiveError, match="the object before it ends at"):
        restored(url, tmp_path / "store")


def test_an_object_of_two_log_files_is_refused(tmp_path: Path, url: str) -> None:
    build_from(url, SMALL, file_bytes=FILE_BYTES)
    one = put_object(ObjectFolder.open(url), SMALL)
    replace_generation(url, lambda generation: evolve(generation, objects=(one,)))
    with pytest.raises(ArchiveError, match="reaches beyond the end of its log file, offset 1000"):
        restored(url, tmp_path / "store")


def test_a_blank_that_does_not_reach_its_files_end_is_refused(tmp_path: Path, url: str) -> None:
    build_from(url, SMALL, file_bytes=FILE_BYTES)
    replace_generation(url, lambda generation: evolve(generation, file_bytes=4 * FILE_BYTES))
    with pytest.raises(ArchiveError, match=r"a blank of \d+ bytes that does not end with its file"):
        restored(url, tmp_path / "store")


def test_statistics_that_hide_a_later_record_are_found(tmp_path: Path, url: str) -> None:
    entries = made_log([Put(store_ms=time) for time in (10, 50, 20)], file_bytes=FILE_BYTES)
    build_from(url, entries, file_bytes=FILE_BYTES, object_bytes=100)

    def lie(generation: Generation) -> Generation:
        first, second, third = generation.objects
        return evolve(generation, objects=(first, evolve(second, max_store_ms=10), third))

    replace_generation(url, lie)
    with pytest.raises(ArchiveError, match="has a record stored at 50 ms"):
        restored(url, tmp_path / "store", Target(to_ms=30))


def test_objects_that_were_merged_meanwhile_are_read_from_the_newer_head(tmp_path: Path, url: str) -> None:
    build_from(url, SMALL, file_bytes=FILE_BYTES, object_bytes=200)
    reader = ArchiveReader.open(url)
    inside = [one for one in SMALL if FILE_BYTES <= one.offset < 2 * FILE_BYTES]
    merged = put_object(reader.folder, inside)

    def merge(generation: Generation) -> Generation:
        before = [one for one in generation.objects if one.end_offset <= merged.first_offset]
        after = [one for one in generation.objects if one.first_offset >= merged.end_offset]
        return evolve(generation, objects=(*before, merged, *after))

    replace_generation(url, merge)
    replaced = [
        one
        for one in reader.generation().objects
        if merged.first_offset <= one.first_offset < merged.end_offset
    ]
    assert len(replaced) > 2
    reader.folder.delete([one.key for one in replaced[1:]])
    into = tmp_path / "store"
    Restore(reader, into, clamp=clamp_offsets).run(LATEST)
    assert log_of(into) == files_of(SMALL, file_bytes=FILE_BYTES)


# -- folders ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["file", "commitlog/00000000000000000000", "config/topics.json"])
def test_a_folder_that_is_not_empty_is_refused(tmp_path: Path, url: str, name: str) -> None:
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


def interrupted(url: str, into: Path, target: Target = LATEST) -> None:
    """A restore that ends after its first log file."""

    def stop(_what: str, done: int, _total: int) -> None:
        if done > FILE_BYTES:
            raise Stopped

    with pytest.raises(Stopped):
        restored(url, into, target, on_progress=stop)


@pytest.mark.parametrize("other", ["target", "generation", "archive"])
def test_another_restore_does_not_go_on_with_an_interrupted_one(tmp_path: Path, url: str, other: str) -> None:
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


def test_a_restore_of_all_goes_on_to_the_end_that_it_had_when_it_began(tmp_path: Path, url: str) -> None:
    older = [one for one in SMALL if one.end_offset <= 2500]
    build_from(url, older, file_bytes=FILE_BYTES, object_bytes=300)
    into = tmp_path / "store"
    interrupted(url, into)
    added = [one for one in SMALL if one.offset >= older[-1].end_offset and one.offset < 3000]
    more = put_object(ObjectFolder.open(url), added)
    replace_generation(url, lambda one: evolve(one, objects=(*one.objects, more)))
    restored(url, into)
    assert log_of(into) == files_of(older, file_bytes=FILE_BYTES)


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"format":"trioha-restore","version":2}', "nonsense"])
def test_a_marker_that_cannot_be_read_is_refused(tmp_path: Path, url: str, text: str) -> None:
    build_from(url, SMALL, file_bytes=FILE_BYTES)
    into = tmp_path / "store"
    interrupted(url, into)
    (into / "commitlog" / RESTORE_MARKER).write_text(text)
    with pytest.raises(StoreError, match="is not the marker of a restore"):
        restored(url, into)


def test_a_folder_in_use_is_refused(tmp_path: Path, url: str) -> None:
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
        assert holder.stdout is not None
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

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, *, fails_at: int, error: OSError | None = None
    ) -> None:
        self.calls = 0
        self.fails_at = fails_at
        self.error = error
        self._lock = threading.Lock()
        for name in SYSTEM_CALLS:
            monkeypatch.setattr(os, name, self._counted(name, getattr(os, name)))

    def _counted(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **options: Any) -> Any:
            with self._lock:
                self.calls += 1
                number = self.calls
            if self.error is None and number >= self.fails_at:
                raise Killed
            if number == self.fails_at:
                assert self.error is not None
                raise OSError(self.error.errno, os.strerror(self.error.errno or 0))
            return call(*arguments, **options)

        return counted


FILES = {"topics.json": "{}", "consumerOffset.json": '{"offsetTable":{"Orders@g":{0:3}}}'}


BEFORE_BUILD = 80
"""Calls before a build begins; some more, by the number of syncs."""


def tree_of(store: Path) -> dict[str, bytes]:
    """Everything but what a build puts into times and names of its own."""
    return {
        path.relative_to(store).as_posix(): path.read_bytes()
        for path in sorted(store.rglob("*"))
        if path.is_file() and path.parent.name != "index"
    }


@pytest.fixture
def archived(url: str) -> str:
    moment = Moment(taken_ms=5, offset=SMALL[8].end_offset, files=FILES)
    build_from(url, SMALL, file_bytes=FILE_BYTES, object_bytes=400, metadata=[moment])
    return url


@pytest.mark.parametrize("build_queues", [False, True])
def test_a_restore_that_was_killed_at_any_step_is_completed(
    tmp_path: Path, archived: str, build_queues: bool
) -> None:
    target = Target(to_offset=SMALL[20].end_offset)
    whole = tmp_path / "whole"
    with pytest.MonkeyPatch.context() as patch:
        system = FailingSystem(patch, fails_at=1 << 60)
        restored(archived, whole, target, build=build_queues)
    assert system.calls > 30
    # What comes before the build is the same in both.
    for step in range(BEFORE_BUILD if build_queues else 1, system.calls + 1):
        into = tmp_path / str(step)
        with pytest.MonkeyPatch.context() as patch:
            FailingSystem(patch, fails_at=step)
            with suppress(Killed):
                restored(archived, into, target, build=build_queues)
        if (into / "commitlog").is_dir():
            # What has a name is whole.
            for path in (into / "commitlog").glob("[0-9]*"):
                assert path.read_bytes() == (whole / "commitlog" / path.name).read_bytes()
        if is_complete(into):
            assert tree_of(into) == tree_of(whole)
            continue
        restored(archived, into, target, build=build_queues)
        assert tree_of(into) == tree_of(whole)


def is_complete(into: Path) -> bool:
    """Whether the marker is gone, which is the last thing that a restore does."""
    return (into / "checkpoint").exists() and not (into / "commitlog" / RESTORE_MARKER).exists()


def test_a_restore_that_the_disk_refuses_at_any_step_names_the_file_and_is_completed(
    tmp_path: Path, archived: str
) -> None:
    whole = tmp_path / "whole"
    with pytest.MonkeyPatch.context() as patch:
        system = FailingSystem(patch, fails_at=1 << 60)
        restored(archived, whole)
    refused = 0
    for step in range(1, system.calls + 1):
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
    assert refused > 20


def test_a_log_that_does_not_fit_on_the_disk_is_refused_before_it_is_written(
    tmp_path: Path, archived: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = module.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(module.shutil, "disk_usage", lambda path: usage._replace(free=2999))
    into = tmp_path / "store"
    with pytest.raises(StoreError, match=r"the log needs [\d,]+ bytes, the disk has 2,999 free"):
        restored(archived, into)
    monkeypatch.undo()
    restored(archived, into)


def test_the_marker_says_what_is_being_restored(tmp_path: Path, archived: str) -> None:
    into = tmp_path / "store"
    interrupted(archived, into, Target(to_ms=1_000_020))
    found = json.loads((into / "commitlog" / RESTORE_MARKER).read_text())
    assert found["url"] == archived
    assert found["generation"] == "0001-5f0c9a12"
    assert found["target"] == {"to_offset": None, "to_ms": 1_000_020}


def test_nothing_temporary_stays(tmp_path: Path, archived: str) -> None:
    into = tmp_path / "store"
    interrupted(archived, into)
    restored(archived, into, build=True)
    assert list(into.rglob("*.tmp")) == []
    assert [path.name for path in into.glob(".*")] == []
