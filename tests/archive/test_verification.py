"""Checks of archives: every kind of damage is found, and named by its object."""

import shutil
from itertools import product
from random import Random

import pytest
from attrs import evolve

from tests.archive.building import Moment, Put, build_from, made_log, merge_file, replace_generation
from tests.archive.damaging import damage, damage_object, flip
from tests.levels import by_level
from trioha.archive.comparison import compare_with_archive
from trioha.archive.errors import ArchiveError
from trioha.archive.heads import create_head
from trioha.archive.layout import RecordedSegment, RecordedSession
from trioha.archive.log_bytes import read_log_object
from trioha.archive.objects import ObjectFolder
from trioha.archive.reader import ArchiveReader
from trioha.archive.restore import Restore
from trioha.archive.restore_plan import Target
from trioha.archive.verification import Verification, verify_archive
from trioha.metadata.clamped_offsets import clamp_offsets
from trioha.store.read_only_commit_log import ReadOnlyCommitLog

FILE_BYTES = 1000
SMALL = made_log(
    [
        Put(body=b"x" * (17 * number % 200), store_ms=1_000_000 + number, topic=f"T{number % 3}")
        for number in range(24)
    ],
    file_bytes=FILE_BYTES,
)
MOMENTS = [
    Moment(taken_ms=1000, offset=SMALL[2].end_offset, files={"topics.json": "{}"}),
    Moment(taken_ms=2000, offset=SMALL[-1].end_offset, files={"topics.json": '{"a":1}'}),
]


def verified(url, **options):
    return verify_archive(ArchiveReader.open(url), **options)


@pytest.fixture
def url(tmp_path):
    """An archive with pages, both codecs, metadata in pages and in the head."""
    url = f"file://{tmp_path}/archive"
    build_from(
        url,
        SMALL,
        file_bytes=FILE_BYTES,
        object_bytes=400,
        codec=lambda number: "zstd" if number % 2 else "none",
        page_objects=4,
        metadata=MOMENTS,
    )
    return url


def objects_of(url):
    reader = ArchiveReader.open(url)
    return list(reader.objects(reader.generation()))


@pytest.mark.parametrize("quick", [False, True])
def test_an_archive_without_damage_has_no_problems(url, quick):
    objects = objects_of(url)
    found = verified(url, quick=quick)
    assert found == Verification(
        head=1,
        generations=1,
        objects=len(objects),
        records=24,
        log_bytes=SMALL[-1].end_offset,
        object_bytes=sum(one.object_bytes for one in objects),
        metadata=2,
        segments=0,
        unreferenced=0,
        unreferenced_bytes=0,
        problems=(),
        problem_count=0,
    )


def test_a_damaged_object_is_named_and_the_others_are_checked(tmp_path, url):
    changes = (
        ("bit", flip(60), False),
        ("last bit", flip(-1), False),
        ("shorter", lambda data: data.pop(), True),
        ("longer", lambda data: data.append(0), True),
        ("empty", lambda data: data.clear(), True),
    )
    shutil.copytree(tmp_path / "archive", tmp_path / "good")
    for (name, change, quick), number in product(changes, (4, 5)):
        keys = [damage_object(url, number, change), damage_object(url, 8, flip(50))]
        found = verified(url)
        assert [problem.split(": ")[0] for problem in found.problems] == keys, name
        assert found.objects == len(objects_of(url)) - 2
        quickly = [problem.split(": ")[0] for problem in verified(url, quick=True).problems]
        assert quickly == keys[: int(quick)], name
        for key in keys:
            shutil.copy(tmp_path / "good" / key, tmp_path / "archive" / key)


@pytest.mark.parametrize("quick", [False, True])
def test_missing_objects_are_named(url, quick):
    reader = ArchiveReader.open(url)
    lost = [objects_of(url)[1].key, objects_of(url)[-1].key, reader.generation().metadata[0].key]
    reader.folder.delete(lost)
    assert verified(url, quick=quick).problems == tuple(f"{key}: there is no such object" for key in lost)


def test_statistics_that_lie_are_found(url):
    generation = ArchiveReader.open(url).generation()
    one = generation.objects[-1]
    for lie, problem in (
        ({"records": one.records + 1}, "its records are listed as"),
        ({"min_store_ms": one.min_store_ms - 1}, "its storeTimestamps are listed as"),
        ({"max_store_ms": one.max_store_ms + 1}, "its storeTimestamps are listed as"),
        ({"topics": ("T0",)}, "its topics are listed as ('T0',), it has"),
        ({"topics": None}, "its topics are listed as None, it has"),
        ({"crc32": one.crc32 ^ 1}, "has CRC"),
        ({"end_offset": one.end_offset + 1}, "bytes of the log"),
        ({"object_bytes": one.object_bytes + 1}, "are listed"),
        ({"codec": "zstd" if one.codec == "none" else "none"}, ""),
    ):
        objects = (*generation.objects[:-1], evolve(one, **lie))
        replace_generation(url, lambda _, objects=objects: evolve(generation, objects=objects))
        found = verified(url)
        assert found.problem_count == 1, lie
        assert found.problems[0].startswith(f"{one.key}: ")
        assert problem in found.problems[0]


def test_statistics_of_a_page_that_lie_are_found(url):
    generation = ArchiveReader.open(url).generation()
    first, page, *rest = generation.pages
    for lie in ({"records": page.records + 1}, {"topics": ("T0",)}, {"max_store_ms": 7}, {"object_bytes": 7}):
        pages = (first, evolve(page, **lie), *rest)
        replace_generation(url, lambda _, pages=pages: evolve(generation, pages=pages))
        problem = f"{page.key}: its objects do not add up to its statistics in the head"
        assert verified(url).problems == (problem,), lie
        assert verified(url, quick=True).problem_count == 1


@pytest.mark.parametrize("lost", [False, True])
def test_a_page_that_cannot_be_read_is_named_and_the_others_are_checked(url, lost):
    key = ArchiveReader.open(url).generation().pages[0].key
    if lost:
        ObjectFolder.open(url).delete([key])
    else:
        damage(url, key, flip(30))
    found = verified(url)
    assert [problem.split(": ")[0] for problem in found.problems] == [key]
    assert found.objects > 3


def test_a_hole_is_found(url):
    replace_generation(url, lambda one: evolve(one, pages=(one.pages[0], *one.pages[2:])))
    pages = ArchiveReader.open(url).generation().pages
    end = pages[0].end_offset
    assert verified(url).problems == (
        f"{pages[1].key}: begins at {pages[1].first_offset}, the object before it ends at {end}",
    )


def test_a_bad_record_in_a_whole_object_is_found_with_its_offset(url):
    changed = bytearray(SMALL[22].data)
    changed[90] ^= 1
    entries = [*SMALL[:22], evolve(SMALL[22], data=bytes(changed)), *SMALL[23:]]
    build_from(url, entries, file_bytes=FILE_BYTES, generation="0002-00000001")
    found = verified(url)
    assert found.problem_count == 1
    assert f"bad record at offset {SMALL[22].offset}: the body's CRC is not the stored" in found.problems[0]


def test_damaged_metadata_and_that_of_another_moment_are_found(url):
    generation = ArchiveReader.open(url).generation()
    first, *rest = generation.metadata
    replace_generation(url, lambda one: evolve(one, metadata=(evolve(first, taken_ms=7), *rest)))
    assert "was taken at 2000 ms" in verified(url).problems[0]
    replace_generation(url, lambda one: evolve(one, metadata=generation.metadata))
    for change in (flip(20), lambda data: data.clear()):
        damage(url, first.key, change)
        assert [problem.split(": ")[0] for problem in verified(url).problems] == [first.key]


def test_recordings_are_compared_with_their_sizes(url):
    reader = ArchiveReader.open(url)
    keys = [f"recordings/s/events/{number:020d}.parquet" for number in range(3)]
    for key in keys[:2]:
        reader.folder.put(key, b"four")
    segments = tuple(
        RecordedSegment(key=key, first_seq=0, records=1, first_ns=0, last_ns=0, bytes=4 + (key == keys[1]))
        for key in keys
    )
    reader.folder.put("recordings/s/facts.jsonl", b"")
    session = RecordedSession(session="s", segments=segments, closed=True)
    create_head(reader.folder, evolve(reader.head, number=2, recordings=(session,)))
    for quick in (False, True):
        found = verified(url, quick=quick)
        assert found.segments == 3
        assert found.problems == (
            f"{keys[1]}: has 4 bytes, 5 are listed",
            f"{keys[2]}: there is no such object",
            "recordings/s/session.json: there is no such object",
        )
        assert found.unreferenced == 0


def test_objects_that_no_head_refers_to_are_counted(url):
    ObjectFolder.open(url).put("log/0001-5f0c9a12/orphan.log", b"123")
    found = verified(url)
    assert (found.unreferenced, found.unreferenced_bytes, found.problem_count) == (1, 3, 0)


def test_objects_of_two_generations_are_checked_once(url):
    reader = ArchiveReader.open(url)
    old = reader.generation()
    create_head(
        reader.folder,
        evolve(reader.head, number=2, generations=(old, evolve(old, id="0002-00000001", reason="x"))),
    )
    found = verified(url)
    assert found.generations == 2
    assert (found.objects, found.records) == (len(objects_of(url)), 24)
    key = damage_object(url, -1, flip(50))
    assert [problem.split(": ")[0] for problem in verified(url).problems] == [key]


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("gone", [0, -1])
def test_objects_that_are_merged_while_they_are_checked_are_no_problem_and_count_once(tmp_path, gone, quick):
    """The others are still there, and are read before the newer head is."""
    url = f"file://{tmp_path}/merged"
    build_from(url, SMALL, file_bytes=FILE_BYTES, object_bytes=200)
    reader = ArchiveReader.open(url)
    in_file = [one for one in reader.generation().objects if one.end_offset <= FILE_BYTES]
    assert len(in_file) > 1
    merged = merge_file(url, SMALL, start=0, file_bytes=FILE_BYTES)
    reader.folder.delete([in_file[gone].key])
    found = verify_archive(reader, quick=quick)
    assert (found.problems, found.head, found.records) == ((), 2, 24)
    assert (found.objects, found.log_bytes) == (len(objects_of(url)), SMALL[-1].end_offset)
    damage(url, merged.key, flip(50))
    assert [problem.split(": ")[0] for problem in verify_archive(reader).problems] == [merged.key]


def test_an_archive_without_a_readable_head_is_refused(url):
    damage(url, "heads/00000000000000000001.json.zst", flip(40))
    with pytest.raises(ArchiveError, match="not a head"):
        verified(url)


@pytest.mark.sized
def test_a_flipped_bit_anywhere_is_found_or_changes_nothing(url):
    """Some bits in the headers of zstd frames have no meaning."""
    before = content_of(url)
    folder = ObjectFolder.open(url)
    keys = [one.key for part in ("heads", "pages", "log", "metadata") for one in folder.list(part)]
    chosen = Random(7)
    silent = 0
    for key in sorted(keys) * by_level(1, 6, 60):
        data = folder.get(key)
        damage(url, key, flip(chosen.randrange(len(data)), bit=chosen.randrange(8)))
        try:
            problems = verified(url).problems
        except ArchiveError as error:
            problems = (str(error),)
        if problems:
            assert key in problems[0]
        else:
            silent += 1
            assert content_of(url) == before
        folder.put(key, data)
    assert silent < len(keys)


def test_archives_on_a_server_are_checked_and_restored(archive_url, tmp_path):
    build_from(archive_url, SMALL, file_bytes=FILE_BYTES, object_bytes=400, page_objects=4, metadata=MOMENTS)
    assert verified(archive_url).problems == ()
    into = tmp_path / "store"
    Restore(ArchiveReader.open(archive_url), into, clamp=clamp_offsets).run(Target())
    log = ReadOnlyCommitLog.open(into)
    assert compare_with_archive(log, ArchiveReader.open(archive_url)).compared == (0, SMALL[-1].end_offset)
    short = damage_object(archive_url, 2, lambda data: data.pop())
    reader = ArchiveReader.open(archive_url)
    lost = objects_of(archive_url)[5].key
    reader.folder.delete([lost])
    found = [problem.split(": ")[0] for problem in verified(archive_url).problems]
    assert found == [short, lost]
    assert [one.split(": ")[0] for one in compare_with_archive(log, reader).damaged] == found


def content_of(url):
    reader = ArchiveReader.open(url)
    generation = reader.generation()
    logs = [list(read_log_object(reader.folder, one)) for one in reader.objects(generation)]
    return [reader.head, logs, [reader.metadata_files(one) for one in reader.metadata(generation)]]
