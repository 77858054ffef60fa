"""The end of a growing commit log, up to which a stream may read."""

from __future__ import annotations

from pathlib import Path

from trioha.errors import StoreError
from trioha.store.record_layout import check_record
from trioha_analysis.commitlog.files import RANGE_BYTES, LogFile, list_files, map_file, written_bytes
from trioha_analysis.commitlog.walk import Columns, LogBytes, find_record, walk


def end_of_log(store: Path, start: int, *, bytes_max: int | None = None) -> int:
    """Physical offset after the last whole record from `start` on; `start` if there is none.

    With `bytes_max` the start of the first record at least that far after `start`, if the log is that long.
    Raises StoreError if the bytes at `start` were deleted: messages would be lost silently.
    """
    files = list_files(store)
    if files and start < files[0].start_offset:
        raise StoreError(
            f"the log begins at {files[0].start_offset}: the messages before were deleted unread",
            path=store,
            offset=start,
            hint="begin anew with another checkpoint",
        )
    if bytes_max is not None:
        far = _first_record(files, start + bytes_max)
        if far is not None:
            return far
    # Skip to the last start of a record that is cheap to find, and walk from there.
    end = start
    for file in files:
        if file.end_offset > end:
            place = _first_record([file], max(end, file.start_offset))
            while place is not None:
                end = place
                place = _first_record([file], end + RANGE_BYTES)
    for file in files:
        if file.end_offset > end:
            end = _walk_to_end(file, end)
    return end


def _first_record(files: list[LogFile], offset: int) -> int | None:
    for file in files:
        if file.end_offset > offset:
            data = map_file(file)
            log = LogBytes(data, file.start_offset, True, written_bytes(file, data))
            at = find_record(log, max(0, offset - file.start_offset), len(data))
            if at is not None:
                return file.start_offset + at
    return None


def _walk_to_end(file: LogFile, offset: int) -> int:
    data = map_file(file)
    log = LogBytes(data, file.start_offset, True, written_bytes(file, data))
    for found in walk(log, max(0, offset - file.start_offset), len(data)):
        if isinstance(found, Columns):
            offset = file.start_offset + _end_of_good(found)
    return offset


def _end_of_good(rows: Columns) -> int:
    """Index after the last row that is completely written."""
    last = len(rows) - 1
    start, end = int(rows.start[last]), int(rows.end[last])
    view = rows.data.data
    # A broker copies a record into the file from front to end: the lengths may precede the rest.
    is_whole = check_record(view, start, end, -1) == end - start
    properties = rows.data[int(rows.properties_at[last]) : end]
    if is_whole and (not len(properties) or properties[-1] != 0):
        return end
    return start
