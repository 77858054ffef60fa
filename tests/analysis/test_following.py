"""The end of a growing log for a stream."""

import pytest

from tests.analysis.logs import expected_rows, read_all, record, write_files, write_log
from tests.levels import by_level
from tests.store.support import STORES, VECTORS
from trioha.errors import StoreError
from trioha_analysis.commitlog.files import cut_ranges, list_files
from trioha_analysis.commitlog.following import end_of_log

FILE_BYTES = 4096


@pytest.mark.parametrize("name", STORES)
def test_batches_of_any_size_give_a_recorded_store_once(name):
    store = VECTORS / name / "store"
    last = expected_rows(name)[-1]
    end = last["physical_offset"] + last["size_bytes"]
    assert end_of_log(store, 0) == end
    for bytes_max in (1000, 50_000):
        rows, at = [], 0
        while (to := end_of_log(store, at, bytes_max=bytes_max)) > at:
            ranges = cut_ranges(list_files(store), start=at, end=to)
            rows += read_all(store, ranges)[0]
            at = to
        assert rows == expected_rows(name)
        assert at == end


@pytest.mark.sized
def test_a_record_that_is_being_written_is_not_read_yet(tmp_path):
    offsets = write_log(tmp_path, [b"x" * 100] * 5, file_bytes=FILE_BYTES)
    file = tmp_path / "commitlog" / f"{0:020d}"
    data = file.read_bytes()
    size = offsets[1]
    for written in range(0, size, by_level(7, 1, 1)):
        file.write_bytes(data[: offsets[4] + written] + bytes(FILE_BYTES - offsets[4] - written))
        assert end_of_log(tmp_path, 0) == offsets[4], written
    file.write_bytes(data)
    assert end_of_log(tmp_path, 0) == end_of_log(tmp_path, offsets[4]) == offsets[4] + size


def test_a_record_is_not_read_before_its_body_is_written(tmp_path):
    whole = record(0, b"x" * 100)
    write_files(tmp_path, whole.replace(b"x" * 50, bytes(50), 1) + bytes(1000), file_bytes=FILE_BYTES)
    assert end_of_log(tmp_path, 0) == 0
    write_files(tmp_path, whole + bytes(1000), file_bytes=FILE_BYTES)
    assert end_of_log(tmp_path, 0) == len(whole)


def test_messages_deleted_before_they_were_read_are_an_error(tmp_path):
    write_log(tmp_path, [b"x" * 100] * 80, file_bytes=FILE_BYTES)
    (tmp_path / "commitlog" / f"{0:020d}").unlink()
    with pytest.raises(StoreError, match="deleted unread"):
        end_of_log(tmp_path, 100)
    assert end_of_log(tmp_path, FILE_BYTES) > 2 * FILE_BYTES


def test_an_empty_log_ends_at_the_start_offset(tmp_path):
    (tmp_path / "commitlog").mkdir()
    assert end_of_log(tmp_path, 0) == 0
    write_files(tmp_path, bytes(FILE_BYTES), file_bytes=FILE_BYTES)
    assert end_of_log(tmp_path, 0) == 0
    assert end_of_log(tmp_path, 0, bytes_max=10) == 0
