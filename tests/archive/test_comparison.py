"""Comparisons of stores with archives: every byte counts, also those that no checksum covers."""

from contextlib import contextmanager

import pytest
from attrs import evolve

from tests.archive.building import (
    Put,
    build,
    build_from,
    log_entries,
    made_log,
    merge_file,
    write_store,
)
from tests.archive.damaging import damage_object, flip
from tests.levels import by_level
from tests.store.support import STORES, VECTORS, copy_store
from trioha.archive.comparison import Comparison, compare_with_archive
from trioha.archive.reader import ArchiveReader
from trioha.store.read_only_commit_log import ReadOnlyCommitLog

FILE_BYTES = 1000
SMALL = made_log(
    [Put(body=b"x" * (17 * number % 200), properties=b"KEYS\x01k\x02TAGS\x01t\x02") for number in range(24)],
    file_bytes=FILE_BYTES,
    filler=0x11,
)
BLANK = next(entry for entry in SMALL if entry.is_blank)


@pytest.fixture
def url(tmp_path):
    return f"file://{tmp_path}/archive"


def compared(store, url, **options):
    return compare_with_archive(ReadOnlyCommitLog.open(store), ArchiveReader.open(url), **options)


def changed(entries, offset, *, bit=0):
    """The log with a flipped bit at an offset."""
    result = []
    for entry in entries:
        if entry.offset <= offset < entry.end_offset:
            data = bytearray(entry.data)
            data[offset - entry.offset] ^= 1 << bit
            result.append(evolve(entry, data=bytes(data)))
        else:
            result.append(entry)
    return result


def small(tmp_path, url, entries=SMALL, archived=SMALL):
    build_from(url, archived, file_bytes=FILE_BYTES, object_bytes=400, page_objects=3)
    return compared(write_store(tmp_path / "store", entries, file_bytes=FILE_BYTES), url)


def test_an_equal_store_has_no_differences(tmp_path, url):
    end = SMALL[-1].end_offset
    assert small(tmp_path, url) == Comparison(
        generation="0001-5f0c9a12",
        store_span=(0, end),
        archive_span=(0, end),
        compared=(0, end),
        records=24,
        differences=(),
        difference_count=0,
        only_store=(),
        only_store_records=0,
        only_store_fault="",
        only_archive=(),
    )


def test_a_difference_is_named_by_its_record_and_field(tmp_path, url):
    entries = made_log(
        [Put(body=b"x" * 50, queue_id=3, properties=b"KEYS\x01k\x02TAGS\x01tag\x02"[:14]) for _ in range(9)],
        file_bytes=FILE_BYTES,
    )
    build_from(url, entries, file_bytes=FILE_BYTES, object_bytes=400, page_objects=3)
    entry = entries[5]
    for at, field in (
        (0, "totalSize"),
        (4, "magic"),
        (8, "bodyCRC"),
        (12, "queueId"),
        (16, "flag"),
        (20, "queueOffset"),
        (28, "physicalOffset"),
        (36, "sysFlag"),
        (40, "bornTimestamp"),
        (48, "bornHost"),
        (56, "storeTimestamp"),
        (64, "storeHost"),
        (72, "reconsumeTimes"),
        (76, "preparedTransactionOffset"),
        (84, "bodyLength"),
        (88, "body"),
        (-23, "topicLength"),
        (-22, "topic"),
        (-17, "topic"),
        (-16, "propertiesLength"),
        (-14, "property KEYS"),
        (-9, "property KEYS"),
        (-8, "property KEYS"),
        (-7, "property TAGS"),
        (-1, "property TAGS"),
    ):
        offset = (entry.offset if at >= 0 else entry.end_offset) + at
        store = write_store(tmp_path / "store", changed(entries, offset), file_bytes=FILE_BYTES)
        found = compared(store, url)
        assert found.difference_count == 1
        (one,) = found.differences
        assert (one.offset, one.record_offset, one.bytes, one.field) == (offset, entry.offset, 1, field)
        assert (one.topic, one.queue_id) == ("Orders", 3)
        assert one.queue_offset is not None
        assert found.compared == (0, entries[-1].end_offset)


@pytest.mark.sized
def test_every_flipped_byte_of_a_store_is_found(tmp_path, url):
    """RocketMQ's own CRC is over the body."""
    entries = made_log([Put(body=b"body", properties=b"KEYS\x01k\x02") for _ in range(7)], file_bytes=400)
    assert entries[-1].end_offset > 800
    build_from(url, entries, file_bytes=400, object_bytes=200, codec="zstd")
    store = write_store(tmp_path / "store", entries, file_bytes=400)
    log, reader = ReadOnlyCommitLog.open(store), ArchiveReader.open(url)
    assert compare_with_archive(log, reader).difference_count == 0
    for at in range(0, entries[-1].end_offset, by_level(13, 3, 1)):
        with flipped(store, at, file_bytes=400, mask=1 << at * 5 % 8):
            found = compare_with_archive(log, reader)
        assert [one.offset for one in found.differences] == [at]
        assert not found.ends_early


@contextmanager
def flipped(store, offset, *, file_bytes, mask):
    """A store in which bits of one byte are flipped for as long as the block runs."""
    path = store / "commitlog" / f"{offset - offset % file_bytes:020d}"
    whole = path.read_bytes()
    data = bytearray(whole)
    data[offset % file_bytes] ^= mask
    path.write_bytes(data)
    yield
    path.write_bytes(whole)


@pytest.mark.full
@pytest.mark.parametrize("name", STORES)
def test_flipped_bits_of_a_store_of_rocketmq_are_found(tmp_path, url, name):
    source = copy_store(name, tmp_path)
    build(url, VECTORS / name / "store", object_bytes=9000, codec="zstd")
    entries, file_bytes = log_entries(source)
    assert compared(source, url).difference_count == 0
    for entry in entries[::7]:
        size = len(entry.data)
        for index in {min(at, size - 1) for at in (0, 20, 40, 60, size // 2, size - 1)}:
            offset = entry.offset + index
            with flipped(source, offset, file_bytes=file_bytes, mask=0x20):
                found = compared(source, url)
            assert [(one.offset, one.record_offset) for one in found.differences] == [(offset, entry.offset)]


def test_differences_are_counted_by_records_and_blanks(tmp_path, url):
    entries = SMALL
    for number in (1, 2, 15):
        entries = changed(changed(entries, SMALL[number].offset + 70), SMALL[number].offset + 72)
    found = small(tmp_path, url, entries)
    assert [(one.record_offset, one.bytes) for one in found.differences] == [
        (SMALL[number].offset, 2) for number in (1, 2, 15)
    ]
    store = write_store(tmp_path / "store", changed(SMALL, BLANK.end_offset - 1), file_bytes=FILE_BYTES)
    (one,) = compared(store, url).differences
    assert (one.record_offset, one.field, one.topic) == (BLANK.offset, "blank", None)


# -- parts that only one has --------------------------------------------------------------------------------


def test_what_only_the_store_has_is_checked(tmp_path, url):
    found = small(tmp_path, url, SMALL, SMALL[:10])
    end = SMALL[9].end_offset
    assert found.compared == (0, end)
    assert found.only_store == ((end, SMALL[-1].end_offset),)
    assert found.only_store_records == sum(not one.is_blank for one in SMALL[10:])
    assert found.only_archive == ()
    assert not found.ends_early
    assert not found.only_store_fault
    damaged = changed(SMALL, SMALL[20].offset + 90)
    found = compared(write_store(tmp_path / "store", damaged, file_bytes=FILE_BYTES), url)
    assert found.only_store_fault.startswith("the body's CRC is not the stored")
    assert found.store_span == (0, SMALL[20].offset)


def test_a_store_that_ends_early_is_compared_to_its_end(tmp_path, url):
    build_from(url, SMALL, file_bytes=FILE_BYTES, object_bytes=400, page_objects=3)
    for kept in range(1, len(SMALL), 3):
        found = compared(write_store(tmp_path / str(kept), SMALL[:kept], file_bytes=FILE_BYTES), url)
        end = SMALL[kept - 1].end_offset
        assert (found.difference_count, found.store_span, found.compared) == (0, (0, end), (0, end))
        assert found.only_archive == ((end, SMALL[-1].end_offset),)
        assert found.ends_early


def test_parts_before_the_first_log_file_are_named(tmp_path, url):
    later = [one for one in SMALL if one.offset >= FILE_BYTES]
    found = small(tmp_path, url, later, SMALL[:-3])
    assert found.compared == (FILE_BYTES, SMALL[-4].end_offset)
    assert found.only_archive == ((0, FILE_BYTES),)
    assert found.only_store == ((SMALL[-4].end_offset, SMALL[-1].end_offset),)


def test_a_store_and_an_archive_without_common_offsets_are_not_equal(tmp_path, url):
    later = [one for one in SMALL if one.offset >= 2 * FILE_BYTES]
    earlier = [one for one in SMALL if one.offset < FILE_BYTES]
    found = small(tmp_path, url, later, earlier)
    assert found.compared is None
    assert found.only_archive == ((0, FILE_BYTES),)
    assert found.only_store == ((2 * FILE_BYTES, SMALL[-1].end_offset),)


# -- archives -----------------------------------------------------------------------------------------------


def test_a_damaged_object_is_named_and_the_others_are_compared(tmp_path, url):
    build_from(url, SMALL, file_bytes=FILE_BYTES, object_bytes=400)
    key = damage_object(url, 2, flip(60))
    store = write_store(tmp_path / "store", changed(SMALL, SMALL[20].offset + 70), file_bytes=FILE_BYTES)
    found = compared(store, url)
    assert [text.split(": ")[0] for text in found.damaged] == [key]
    assert [one.record_offset for one in found.differences] == [SMALL[20].offset]


def test_another_generation_can_be_compared(tmp_path, url):
    other = made_log([Put(body=b"other")], file_bytes=FILE_BYTES)
    build_from(url, SMALL, file_bytes=FILE_BYTES)
    build_from(url, other, file_bytes=FILE_BYTES, generation="0002-00000001")
    store = write_store(tmp_path / "store", SMALL, file_bytes=FILE_BYTES)
    assert compared(store, url).difference_count == 1
    assert compared(store, url, generation="0001").difference_count == 0


def test_objects_that_were_merged_meanwhile_are_compared_once(tmp_path, url):
    build_from(url, SMALL, file_bytes=FILE_BYTES, object_bytes=200)
    reader = ArchiveReader.open(url)
    merged = merge_file(url, SMALL, start=FILE_BYTES, file_bytes=FILE_BYTES)
    entries = changed(SMALL, merged.first_offset + 70)
    store = write_store(tmp_path / "store", entries, file_bytes=FILE_BYTES)
    found = compare_with_archive(ReadOnlyCommitLog.open(store), reader)
    assert [one.record_offset for one in found.differences] == [merged.first_offset]
    assert found.records == 24
