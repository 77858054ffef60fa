"""Whole records of log objects, each of them checked as recovery checks records, its CRC included."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NoReturn

from attrs import frozen

from trioha.archive.layout import LogObject
from trioha.archive.log_bytes import damaged, read_log_object
from trioha.archive.objects import ObjectFolder
from trioha.store.record_layout import BLANK, FaultKind, claimed_bytes, scan_records
from trioha.store.record_statistics import RecordStatistics


@frozen(kw_only=True)
class Extent:
    """Consecutive bytes of the log: whole records, or some of a blank at a file's end."""

    offset: int
    """Of its first byte."""
    data: memoryview
    records: int
    """None in a blank."""
    last_store_ms: int
    """storeTimestamp of the last record; 0 in a blank."""
    is_blank: bool = False

    @property
    def end_offset(self) -> int:
        """Of the first byte after it."""
        return self.offset + len(self.data)


def checked_extents(
    folder: ObjectFolder,
    one: LogObject,
    *,
    file_bytes: int,
    pieces: Iterator[bytes] | None = None,
    statistics: RecordStatistics | None = None,
) -> Iterator[Extent]:
    """What a log object has, in order; `pieces` are those of the stored object, if the caller fetches them.

    With `statistics` all records are added to them, and extents have no numbers of their own.

    The last extent comes after size and CRC of the whole object were found right. Raises ArchiveError, with
    key and offset, also for an object that does not begin and end at borders of records of one log file.
    """

    def refuse(offset: int, reason: str) -> NoReturn:
        raise damaged(folder, one, f"bad record at offset {offset}: {reason}")

    file_end = one.first_offset - one.first_offset % file_bytes + file_bytes
    if one.end_offset > file_end:
        raise damaged(folder, one, f"reaches beyond the end of its log file, offset {file_end}")
    yield from whole_records(
        read_log_object(folder, one, pieces=pieces),
        first_offset=one.first_offset,
        end_offset=one.end_offset,
        file_bytes=file_bytes,
        refuse=refuse,
        statistics=statistics,
    )


def whole_records(
    pieces: Iterable[bytes],
    *,
    first_offset: int,
    end_offset: int,
    file_bytes: int,
    refuse: Callable[[int, str], NoReturn],
    statistics: RecordStatistics | None = None,
) -> Iterator[Extent]:
    """The records in bytes `[first_offset, end_offset)` of one log file.

    `refuse(offset, reason)` is called where no whole valid record is, and raises.
    """
    file_end = first_offset - first_offset % file_bytes + file_bytes
    offset = first_offset
    rest = b""
    in_blank = False
    for piece in pieces:
        if in_blank:
            yield Extent(offset=offset, data=memoryview(piece), records=0, last_store_ms=0, is_blank=True)
            offset += len(piece)
            continue
        whole = rest + piece if rest else piece
        data = memoryview(whole)
        if statistics is None:
            found = scan_records(data, 0, len(data), offset)
        else:
            found = statistics.pass_records(whole, at=0, shift=offset)
        if found.at:
            yield Extent(
                offset=offset,
                data=data[: found.at],
                records=found.records,
                last_store_ms=found.last_store_timestamp_ms,
            )
        offset += found.at
        rest = b""
        if found.blank:
            (blank_bytes, _) = BLANK.unpack_from(data, found.at)
            if offset + blank_bytes != file_end or end_offset != file_end:
                refuse(offset, f"a blank of {blank_bytes} bytes that does not end with its file")
            in_blank = True
            blank = data[found.at :]
            yield Extent(offset=offset, data=blank, records=0, last_store_ms=0, is_blank=True)
            offset += len(blank)
        elif found.fault is not None:
            if found.fault.kind is not FaultKind.TRUNCATED:
                refuse(offset, found.fault.reason)
            if claimed_bytes(data, found.at, len(data)) > end_offset - offset:
                refuse(offset, f"{found.fault.reason} of its object")
            rest = bytes(data[found.at :])
    if rest:
        refuse(offset, f"{len(rest)} bytes are left, fewer than a record has")
