"""Which bytes a start may cut at a log's end, which not, and how much of the log it checks."""

import os

import pytest

from tests.store.dispatching import RECORDED_INDEX
from tests.store.support import FILE_BYTES, HOST, message, open_log, open_store
from trioha.errors import StoreError
from trioha.store.checkpoint import Checkpoint
from trioha.store.file_cache import FileCache
from trioha.store.index_file import IndexFile
from trioha.store.mapped_file import MappedFile, _written_end
from trioha.store.record import Record, encode_record
from trioha.store.record_layout import BLANK, BLANK_BYTES, MAGIC_BLANK, MAGIC_V1, MAGIC_V2

V2_TOPIC = "%RETRY%" + "g" * 150


def damage(log, physical_offset):
    """Make the record at that offset unreadable."""
    file = log.files[physical_offset // FILE_BYTES]
    at = physical_offset % FILE_BYTES
    file.view[at : at + 8] = b"\xff" * 8


def refuses(tmp_path, at, following):
    """A start after a clean stop names the damage and the record after it, and changes nothing."""
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(StoreError, match=f"valid ones follow at {following}") as raised:
        open_log(tmp_path, clean_exit=True)
    assert raised.value.offset == at
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_valid_v2_record_after_damage_is_found(tmp_path):
    log, _ = open_log(tmp_path)
    first, second = log.append(message(b"x" * 100)), log.append(message(b"y" * 100, topic=V2_TOPIC))
    assert int.from_bytes(log.files[0].view[second.physical_offset + 4 :][:4], "big") == MAGIC_V2
    damage(log, first.physical_offset)
    refuses(tmp_path, first.physical_offset, second.physical_offset)


def test_the_nearest_valid_record_of_either_version_is_named(tmp_path):
    log, _ = open_log(tmp_path)
    results = [log.append(message(b"x" * 100, topic=topic)) for topic in ("A", V2_TOPIC, "A", "A")]
    damage(log, results[0].physical_offset)
    refuses(tmp_path, results[0].physical_offset, results[1].physical_offset)


def record_image(physical_offset, store_timestamp_ms):
    return encode_record(
        Record(
            magic=MAGIC_V1, body_crc=0, queue_id=0, flag=0, queue_offset=0, physical_offset=physical_offset,
            sys_flag=0, born_timestamp_ms=0, born_host=HOST, store_timestamp_ms=store_timestamp_ms,
            store_host=HOST, reconsume_times=0, prepared_transaction_offset=0, body=b"", topic="T",
            properties_raw=b"",
        )
    )  # fmt: skip


def test_a_record_inside_a_message_body_does_not_count_as_a_record_after_damage(tmp_path):
    log, _ = open_log(tmp_path)
    kept = log.append(message(b"x" * 100))
    # It names another offset: for instance a message that carries a log.
    image = record_image(7, kept.store_timestamp_ms + 10)
    last = log.append(message(b"z" * 50 + image + b"z" * 50))
    damage(log, last.physical_offset)
    again, recovered = open_log(tmp_path, clean_exit=True)
    assert again.max_offset == last.physical_offset == kept.end_offset
    assert recovered.cut_bytes > 0


def test_damage_in_the_last_record_of_a_full_file_is_found_before_another_file(tmp_path):
    log, _ = open_log(tmp_path)
    results = [log.append(message(b"x" * 3000)) for _ in range(30)]
    last = max(result.physical_offset for result in results if result.physical_offset < FILE_BYTES)
    first_of_next = min(result.physical_offset for result in results if result.physical_offset >= FILE_BYTES)
    damage(log, last)
    with pytest.raises(StoreError, match=f"valid ones follow at {first_of_next}") as raised:
        open_log(tmp_path, clean_exit=False, checkpoint=flushed_all(log))
    assert raised.value.offset == last


def flushed_all(log):
    # So little ahead that the slack makes the start check every file.
    return Checkpoint(physic_msg_timestamp_ms=log.last_store_timestamp_ms + 1)


def test_damage_in_a_blanks_header_is_found_before_another_file(tmp_path):
    log, _ = open_log(tmp_path)
    results = [log.append(message(b"x" * 3000)) for _ in range(30)]
    blank_at = max(result.end_offset for result in results if result.end_offset <= FILE_BYTES)
    assert BLANK.unpack_from(log.files[0].view, blank_at) == (FILE_BYTES - blank_at, MAGIC_BLANK)
    log.files[0].view[blank_at : blank_at + BLANK_BYTES] = bytes(BLANK_BYTES)
    with pytest.raises(StoreError, match=f"valid ones follow at {FILE_BYTES}") as raised:
        open_log(tmp_path, clean_exit=False, checkpoint=flushed_all(log))
    assert raised.value.offset == blank_at


@pytest.mark.parametrize("clean_exit", [True, False])
def test_a_last_file_of_zeros_is_removed_and_the_log_ends_before_it(tmp_path, clean_exit):
    log, _ = open_log(tmp_path)
    while log.max_offset < FILE_BYTES:
        log.append(message(b"x" * 3000))
    log.files[1].view[:] = bytes(FILE_BYTES)
    again, recovered = open_log(tmp_path, clean_exit=clean_exit)
    assert (again.max_offset, recovered.cut_bytes) == (FILE_BYTES, 0)
    assert len(list(tmp_path.iterdir())) == 1


def test_damage_in_the_only_record_leaves_an_empty_log(tmp_path):
    log, _ = open_log(tmp_path)
    log.append(message(b"x"))
    damage(log, 0)
    again, recovered = open_log(tmp_path, clean_exit=True)
    assert again.max_offset == 0
    assert recovered.cut_bytes > 0
    assert not any(again.files[0].view)


def test_holes_are_not_read(tmp_path, monkeypatch):
    log, _ = open_log(tmp_path)
    for _ in range(10):
        log.append(message(b"x" * 3000))
    file = log.files[0]
    # How much of the file is a hole depends on the read-ahead.
    with file._opened() as fd:
        assert log.max_offset <= _written_end(fd, file.size) <= file.size
    read = []
    monkeypatch.setattr("trioha.store.mapped_file._written_end", lambda _fd, _size: 40_000)
    monkeypatch.setattr(
        "trioha.store.mapped_file.bytes", lambda view: read.append(len(view)) or bytes(view), raising=False
    )
    # The record's last two bytes say that it has no properties.
    assert file.used_bytes() == log.max_offset - 2
    assert file.used_bytes(log.max_offset) == log.max_offset
    assert file.used_bytes(50_000) == 50_000
    assert read == [40_000, 40_000 - log.max_offset]


def test_used_bytes_of_a_file_end_after_its_last_byte_that_is_not_zero(tmp_path):
    path = tmp_path / f"{0:020d}"
    path.write_bytes(bytes(5000) + b"\x01" + bytes((3 << 20) - 5001))
    file = MappedFile(path, size=3 << 20, start_offset=0)
    assert file.used_bytes() == file.used_bytes(5000) == 5001
    assert file.used_bytes(5001) == 5001
    assert file.used_bytes(2 << 20) == 2 << 20
    file.hold()
    file.view[-1] = 1
    assert file.used_bytes(5001) == 3 << 20
    file.close()


# -- what a start checks -------------------------------------------------------------------------------------


def stored(tmp_path, count=19):
    store = open_store(tmp_path)
    results = [store.commit_log.append(message(b"x" * 3000, queue_id=number % 4)) for number in range(count)]
    assert results[-1].end_offset < FILE_BYTES
    store.close()
    return results


def test_after_a_clean_stop_only_the_logs_end_is_checked(tmp_path, monkeypatch):
    monkeypatch.setattr("trioha.store.opening.CHECKED_BYTES", 10_000)
    results = stored(tmp_path)
    store = open_store(tmp_path)
    assert store.commit_log.max_offset == results[-1].end_offset
    assert store.recovered.records == 10_000 // results[0].size
    assert store.commit_log.last_store_timestamp_ms == results[-1].store_timestamp_ms
    (tmp_path / "abort").touch()
    store.abort.mark_failed()
    store.close()
    again = open_store(tmp_path)
    assert again.recovered.records == len(results)
    again.close()


def test_a_queue_entry_without_its_record_is_not_used_at_a_start(tmp_path, monkeypatch):
    monkeypatch.setattr("trioha.store.opening.CHECKED_BYTES", 4_000)
    results = stored(tmp_path)
    for queue in (tmp_path / "consumequeue/Orders").iterdir():
        path = queue / f"{0:020d}"
        data = bytearray(path.read_bytes())
        for entry in range(0, len(data), 20):
            if any(data[entry : entry + 20]):
                data[entry + 7] ^= 1
        path.write_bytes(data)
    store = open_store(tmp_path)
    assert store.commit_log.max_offset == results[-1].end_offset
    assert store.recovered.records == len(results)
    store.close()


def test_damage_after_the_checked_part_is_cut_or_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("trioha.store.opening.CHECKED_BYTES", 10_000)
    results = stored(tmp_path)
    path = tmp_path / "commitlog" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[results[-1].physical_offset + 100] ^= 1
    path.write_bytes(data)
    store = open_store(tmp_path)
    assert store.commit_log.max_offset == results[-1].physical_offset
    store.close()
    data[results[-3].physical_offset + 100] ^= 1
    data[results[-1].physical_offset + 100] ^= 1
    path.write_bytes(data)
    with pytest.raises(StoreError, match=f"valid ones follow at {results[-2].physical_offset}"):
        open_store(tmp_path)


@pytest.mark.parametrize("module", ["file_cache", "index_file"])
def test_a_file_has_its_length_before_it_has_its_name(tmp_path, monkeypatch, module):
    """RocketMQ 4.9 loads no store with a file of another length: a kill in between must not leave one."""
    truncate, named = os.ftruncate, []

    def look_and_truncate(fd, size):
        named.append([path.name for path in tmp_path.iterdir()])
        truncate(fd, size)

    monkeypatch.setattr(f"trioha.store.{module}.os.ftruncate", look_and_truncate)
    path = tmp_path / "20260101000000000"
    if module == "file_cache":
        cache = FileCache()
        cache.create(path, size=400)
        cache.close()
    else:
        IndexFile.create(path, RECORDED_INDEX).close()
    assert named == [[]]
    assert path.stat().st_size == (400 if module == "file_cache" else RECORDED_INDEX.file_bytes)


@pytest.mark.parametrize("is_zero", [True, False])
def test_a_preallocated_file_after_a_gap_is_removed_unless_it_has_bytes(tmp_path, is_zero):
    """The process ended after the log was cut before the file that was just being made."""
    log, _ = open_log(tmp_path)
    end = log.append(message()).end_offset
    late = MappedFile.create(tmp_path, start_offset=2 * FILE_BYTES, size=FILE_BYTES)
    late.view[100] = 0 if is_zero else 1
    late.close()
    if is_zero:
        assert open_log(tmp_path)[0].max_offset == end
        assert len(list(tmp_path.iterdir())) == 1
    else:
        with pytest.raises(StoreError, match="a file of the log is missing"):
            open_log(tmp_path)
        assert len(list(tmp_path.iterdir())) == 2
