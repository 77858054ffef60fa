"""Records that are dispatched one at a time make the same files as by the general way, byte for byte."""

import os
import shutil
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.compiled_code import IS_COMPILED, WAYS, compiled_code
from tests.descriptors import close_after_test, resources_closed
from tests.store.dispatching import parts_of
from tests.store.index_keys import column
from tests.store.support import open_log
from tests.store.test_compiled_records import COMMON, SHAPE, UNCOMMON, Wanted, fill, in_order, seen
from trioha.errors import StoreError
from trioha.store import record_entries
from trioha.store.consume_queue import ENTRY_BYTES
from trioha.store.dispatch_settings import DispatchSettings
from trioha.store.file_cache import FileCache
from trioha.store.fixed_entry_files import FixedEntryFiles
from trioha.store.index_file import IndexFile, IndexShape
from trioha.store.tags import java_hashes_with_prefix

MODES = [True, False] if IS_COMPILED else [False]


def general_way(run):
    """The result of `run` without the short ways of single entries and keys."""
    with (
        patch.object(FixedEntryFiles, "_append_one", lambda *_: False),
        patch.object(record_entries, "_SHORT_KEY_BYTES", -1),
    ):
        return run()


def assert_same_files(folder, found, *, shape):
    log, _ = open_log(folder / "log")
    fill(log, found)

    def build(records_max):
        shutil.rmtree(folder / "built", ignore_errors=True)
        parts = parts_of(log, folder / "built", batch={"Batched"}, settings=DispatchSettings(), shape=shape)
        positions = []
        while parts.dispatcher.dispatch(log.max_offset, records_max=records_max):
            positions.append(parts.dispatcher.position)
        # The last records come again, one by one, as after a stop.
        parts.dispatcher.rewind(positions[-3:][0])
        parts.dispatch_all(records_max=records_max)
        result = seen(parts, folder / "built")
        parts.close()
        return result

    for is_compiled in MODES:
        with compiled_code(is_compiled=is_compiled):
            lone = build(1)
            assert general_way(lambda: build(1)) == lone
    log.close()


@given(wanted=st.lists(COMMON | UNCOMMON, min_size=1, max_size=25), index_num=st.sampled_from([2, 5, 100]))
@resources_closed()
def test_lone_records_make_the_files_of_the_general_way(tmp_path_factory, wanted, index_num):
    shape = IndexShape(hash_slots=7, index_num=index_num)
    assert_same_files(tmp_path_factory.mktemp("lone"), in_order(wanted), shape=shape)


def test_records_with_one_key_each_fill_queue_files_and_index_files(tmp_path):
    wanted = [
        Wanted("Orders", 0, b"UNIQ_KEY\x017F00000100002A%020d" % number, 0, b"x", None, False, 1000 * number)
        for number in range(250)
    ]
    assert_same_files(tmp_path, in_order(wanted), shape=SHAPE)


@given(key=st.binary(max_size=60) | st.text(max_size=60).map(str.encode), prefix=st.integers(0, 0xFFFFFFFF))
def test_the_hash_of_a_single_key_is_that_of_many(key, prefix):
    many = java_hashes_with_prefix([prefix, prefix], [key, b"other"])
    assert record_entries._hash_after(prefix, key) == many[0]


@pytest.mark.parametrize("number", [0, 1, 2, 9, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF])
@pytest.mark.parametrize("begin_ms", [0, 1_700_000_000_000])
@pytest.mark.parametrize("is_compiled", WAYS)
def test_keys_one_by_one_give_the_bytes_of_the_column(number, begin_ms, tmp_path, is_compiled):
    keys = [
        (5, 100, 1_700_000_001_999),
        (0x7FFFFFFF, 200, -5),
        (5, 300, 1 << 62),
        (12, 400, 1_700_000_000_000),
    ]

    def written(path, columns):
        file = IndexFile.create(path, SHAPE, end_timestamp_ms=begin_ms, end_physical_offset=50)
        for slot in range(SHAPE.hash_slots):
            file._view[40 + 4 * slot : 44 + 4 * slot] = number.to_bytes(4, "big")
        with compiled_code(is_compiled=is_compiled):
            for one in columns:
                file.put(one, 0, len(one))
        file.close()
        state = (file.used_slots, file.index_count, file.begin_timestamp_ms, file.end_timestamp_ms)
        return path.read_bytes(), (*state, file.begin_physical_offset, file.end_physical_offset)

    alone = written(tmp_path / "20240101000000000", [column(*zip(key, strict=True)) for key in keys])
    assert alone == written(tmp_path / "20240101000000001", [column(*zip(*keys, strict=True))])


def queue_files(folder):
    """Files of three entries each, with one entry."""
    cache = FileCache(2)
    close_after_test(cache)
    files = FixedEntryFiles(
        folder / "queue", entry_bytes=ENTRY_BYTES, file_bytes=3 * ENTRY_BYTES, cache=cache
    )
    files.append([b"a" * ENTRY_BYTES])
    return files, cache


def test_an_entry_that_the_system_writes_in_parts_is_written_whole(tmp_path, monkeypatch):
    files, _ = queue_files(tmp_path)
    real, sizes = os.pwrite, []

    def short(fd, data, at):
        sizes.append(len(data))
        return real(fd, data[:7], at)

    with monkeypatch.context() as patched:
        patched.setattr("trioha.store.fixed_entry_files.os.pwrite", short)
        files.append([bytes(range(ENTRY_BYTES))])
    assert files.read(0, 99) == b"a" * ENTRY_BYTES + bytes(range(ENTRY_BYTES))
    # Once as a whole, then part by part from its start.
    assert sizes == [20, 20, 13, 6]


def test_an_entry_that_the_disk_refuses_does_not_count_and_can_be_written_again(tmp_path, monkeypatch):
    files, cache = queue_files(tmp_path)
    cache.sync_work().close()

    def refuse(_fd, _data, _at):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("trioha.store.fixed_entry_files.os.pwrite", refuse)
        with pytest.raises(StoreError, match="cannot be written: No space left on device") as raised:
            files.append([b"b" * ENTRY_BYTES])
    path = tmp_path / "queue" / f"{0:020d}"
    assert raised.value.path == str(path)
    assert files.end == ENTRY_BYTES
    files.append([b"c" * ENTRY_BYTES])
    assert files.read(0, 99) == b"a" * ENTRY_BYTES + b"c" * ENTRY_BYTES
    work = cache.sync_work()
    assert work.left == (path,)
    work.close()
