"""The commit log of a store in use, as the archiver reads it."""

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.archive.support import Log
from tests.compiled_code import WAYS, compiled_code
from tests.store.support import STORES, VECTORS
from trioha.archive.config_files import read_config_files
from trioha.archive.errors import ArchiveError, DamagedSourceError
from trioha.archive.source import LOOK_AHEAD_BYTES, LogSource
from trioha.store.read_only_commit_log import ReadOnlyCommitLog
from trioha.store.record import Record
from trioha.store.record_layout import BLANK, MAGIC_BLANK


@pytest.fixture
def log(tmp_path):
    return Log(tmp_path / "store")


def source_of(log):
    source = LogSource(log.store, sleep=log.clock.sleep)
    source.refresh()
    return source


def parts_of(source, *, bytes_max=1 << 30):
    parts = []
    offset = source.first_offset
    while (part := source.next_part(offset, bytes_max=bytes_max)) is not None:
        parts.append(part)
        offset = part.end_offset
    return parts


@pytest.mark.parametrize("is_compiled", WAYS)
@pytest.mark.parametrize("name", [f"{STORES[0]}/store", *(f"{name}/crash-store" for name in STORES[:2])])
def test_stores_of_rocketmq_are_read_to_their_end(name, is_compiled):
    with compiled_code(is_compiled=is_compiled):
        read_to_the_end(VECTORS / name)


def read_to_the_end(store):
    source = LogSource(store, sleep=lambda _: None)
    source.refresh()
    log = ReadOnlyCommitLog.open(store)
    checks = [log.check_file(start) for start in log.file_starts()]
    parts = parts_of(source)
    assert parts[-1].end_offset == max(check.end_offset for check in checks if check.records)
    assert sum(part.records for part in parts) == sum(check.records for check in checks)
    for part in parts:
        data = b"".join(source.pieces(part.first_offset, part.end_offset))
        assert zlib.crc32(data) == part.crc32 == source.crc32(part.first_offset, part.end_offset)
        records = [one for one in log.records(part.first_offset) if one.physical_offset < part.end_offset]
        found = [one for one in records if isinstance(one, Record)]
        assert part.topics == tuple(sorted({one.topic for one in found}))
        assert part.min_store_ms == min(one.store_timestamp_ms for one in found)
        assert part.max_store_ms == max(one.store_timestamp_ms for one in found)


@given(data=st.data())
def test_parts_are_whole_records_of_at_most_the_wanted_size(tmp_path_factory, data):
    log = Log(tmp_path_factory.mktemp("log") / "store")
    sizes = data.draw(st.lists(st.integers(0, 1500), max_size=40))
    ends = []
    for size in sizes:
        log.append(body=bytes(size), topic=data.draw(st.sampled_from(["a", "b", "lange Straße"])))
        ends.append(log.end_offset)
    bytes_max = data.draw(st.integers(1, 5000))
    parts = parts_of(source_of(log), bytes_max=bytes_max)
    assert [part.first_offset for part in parts] == [0, *(part.end_offset for part in parts)][: len(parts)]
    assert (parts[-1].end_offset if parts else 0) == log.end_offset
    assert sum(part.records for part in parts) == len(sizes)
    boundaries = {*ends, *range(0, log.end_offset + 1, log.file_bytes)}
    for part in parts:
        assert part.end_offset in boundaries
        inside = [end for end in boundaries if part.first_offset < end < part.end_offset]
        assert part.log_bytes <= bytes_max or not inside
        assert part.crc32 == zlib.crc32(log.bytes_of(part.first_offset, part.end_offset))
        assert part.first_offset // log.file_bytes == (part.end_offset - 1) // log.file_bytes


@given(data=st.data())
def test_a_record_cut_anywhere_is_the_present_end(tmp_path_factory, data):
    log = Log(tmp_path_factory.mktemp("log") / "store")
    log.append(3)
    end = log.end_offset
    record = log.record(end, body=b"x" * 300)
    # Without its last 4 bytes: they are a topic of one letter and no properties, which no CRC covers.
    written = data.draw(st.integers(0, len(record) - 4))
    log.write(end, record[:written])
    source = source_of(log)
    assert parts_of(source)[-1].end_offset == end
    log.write(end, record)
    assert parts_of(source)[-1].end_offset == end + len(record)


def test_a_record_that_was_read_before_its_properties_is_read_again(log):
    log.append(2)
    source = source_of(log)
    part = source.next_part(0, bytes_max=1 << 20)
    # No CRC covers the topic's last letter; the broker writes it a moment later.
    log.write(log.end_offset - 3, b"X")
    assert source.crc32(0, part.end_offset) != part.crc32


def test_a_blank_is_whole_when_the_next_file_exists(log):
    log.append(3)
    end = log.end_offset
    left = log.file_bytes - end
    log.write(end, BLANK.pack(left, MAGIC_BLANK))
    source = source_of(log)
    assert parts_of(source)[-1].end_offset == end
    (log.store / "commitlog" / f"{log.file_bytes:020d}").write_bytes(bytes(log.file_bytes))
    source.refresh()
    assert parts_of(source)[-1].end_offset == log.file_bytes


@pytest.mark.parametrize("is_running", [True, False])
def test_an_unfinished_record_is_damage_only_where_no_broker_runs(log, is_running):
    log.append(2)
    end = log.end_offset
    log.write(end, log.record(end)[:50])
    if not is_running:
        (log.store / "abort").unlink()
        with pytest.raises(DamagedSourceError, match=f"no valid record at offset {end}"):
            parts_of(source_of(log))
    else:
        assert parts_of(source_of(log))[-1].end_offset == end


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (bytes(8), "zeros, and the log goes on after them"),
        (b"\0\0\0\x20", "the lengths inside|the record|magic 0x00000000"),
        (BLANK.pack(100, MAGIC_BLANK), "a blank that does not reach the end of its file"),
    ],
)
@pytest.mark.parametrize("follow", ["record", "file"])
def test_a_fault_is_damage_when_the_log_goes_on(log, fault, reason, follow):
    log.append(2)
    end = log.end_offset
    if follow == "record":
        log.append(3)
    else:
        log.append(100)
        zeros = bytes(log.file_bytes - end)
        log.write(end, zeros)
    log.write(end, fault)
    with pytest.raises(DamagedSourceError, match=reason) as caught:
        parts_of(source_of(log))
    assert caught.value.offset == end


def test_a_missing_file_within_the_log_is_damage(log):
    log.append(200)
    log.path(log.file_bytes).unlink()
    with pytest.raises(DamagedSourceError, match="the file after it, of offset 4096, is missing"):
        parts_of(source_of(log))


def test_a_file_that_vanishes_while_it_is_read_is_a_transient_error(log):
    log.append(100)
    source = source_of(log)
    log.delete_first_file()
    with pytest.raises(ArchiveError, match="is gone") as caught:
        source.next_part(0, bytes_max=1 << 20)
    assert caught.value.is_transient


def test_records_longer_than_what_is_read_at_a_time_are_whole(tmp_path):
    log = Log(tmp_path / "store", file_bytes=32 << 20)
    for size in (1000, LOOK_AHEAD_BYTES + 5, 10, 700_000):
        log.append(body=bytes(size))
    (part,) = parts_of(source_of(log))
    assert (part.end_offset, part.records) == (log.end_offset, 4)
    log.write(LOOK_AHEAD_BYTES, b"!")
    assert (log.file_bytes - log.end_offset) > LOOK_AHEAD_BYTES
    with pytest.raises(DamagedSourceError, match="the body's CRC is not"):
        parts_of(source_of(log))


def test_the_log_is_read_up_to_a_limit(log):
    log.append(3)
    limit = log.end_offset
    log.append(100)
    source = LogSource(log.store, limit=lambda: limit, sleep=log.clock.sleep)
    source.refresh()
    assert [part.end_offset for part in parts_of(source)] == [limit]


def test_a_store_without_a_log_has_no_offsets(tmp_path):
    source = LogSource(tmp_path / "none")
    source.refresh()
    assert source.first_offset is None
    assert source.estimated_end() == 0


def test_more_than_64_topics_are_not_listed(tmp_path):
    log = Log(tmp_path / "store", file_bytes=1 << 20)
    for number in range(65):
        log.append(topic=f"t{number}")
    (part,) = parts_of(source_of(log))
    assert part.topics is None


def test_no_archive_has_the_users_of_a_broker(tmp_path):
    folder = tmp_path / "config"
    folder.mkdir()
    for name in ("topics.json", "triohaAuth.json", "triohaAuth.json.bak"):
        (folder / name).write_text("{}")
    assert read_config_files(tmp_path, bytes_max=100) == {"topics.json": "{}"}
