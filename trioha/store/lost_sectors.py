"""Find records that a power loss has torn without a trace in lengths and CRC.

A power loss may keep some sectors of an append and lose others, which then read as zeros. The body's CRC and
the lengths show most losses. Topic and properties have no CRC, so after the part of the log that was surely
flushed a record counts as torn if a sector of them is all zeros. (Zeros are legal there: a producer may send
them.)
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import Final, Protocol

from trioha.store.mapped_file import MappedFile
from trioha.store.record_layout import (
    ScanEnd,
    claimed_bytes,
    scan_records,
    store_timestamp_ms,
    topic_span,
)

SECTOR_BYTES: Final = 512
"""The least that a disk writes or loses; a disk with larger sectors loses several of these."""


class IsFlushed(Protocol):
    """Whether the record at a physical offset was on disk; the one before it was stored at `before_ms`."""

    def __call__(self, offset: int, *, before_ms: int) -> bool: ...


_ZERO_SECTOR = bytes(SECTOR_BYTES)


def cut_at_lost_sector(
    file: MappedFile, at: int, end: ScanEnd, *, last_store_timestamp_ms: int, is_flushed: IsFlushed
) -> ScanEnd | None:
    """The scan of the records at index `at` up to its first record with a lost sector; None if there is none.

    `end` is that of the whole scan, with indexes from `at` on. `last_store_timestamp_ms` is that of the
    record before `at`. Raises StoreError.
    """
    # Whole sectors.
    first = at - at % SECTOR_BYTES
    at -= first
    stop = at + end.at
    view = file.read(first, min(first + stop + -stop % SECTOR_BYTES, file.size))
    starts: list[int] = []
    for sector in _zero_sectors(bytes(view)):
        if not starts:
            scan_records(
                view,
                at,
                stop,
                file.start_offset + first + at,
                check_crc=False,
                on_record=lambda record_at, _size: starts.append(record_at),
            )
        # A record cannot start in zeros: only the one that reaches into them can be torn.
        number = bisect_right(starts, sector) - 1
        if number < 0 or not _has_text_in(view, starts[number], sector):
            continue
        before_ms = store_timestamp_ms(view, starts[number - 1]) if number else last_store_timestamp_ms
        if not is_flushed(file.start_offset + first + starts[number], before_ms=before_ms):
            return ScanEnd(
                at=starts[number] - at,
                records=number,
                fault=None,
                blank=False,
                last_store_timestamp_ms=before_ms,
            )
    return None


def _zero_sectors(data: bytes) -> Iterator[int]:
    """Starts of the sectors that hold only zeros, in order; `data` begins with a sector."""
    at = 0
    # A log without zeros costs one search.
    while (found := data.find(_ZERO_SECTOR, at)) >= 0:
        sector = found + -found % SECTOR_BYTES
        if sector + SECTOR_BYTES > len(data):
            return
        if data[sector : sector + SECTOR_BYTES] == _ZERO_SECTOR:
            yield sector
        at = sector + SECTOR_BYTES


def _has_text_in(view: memoryview, at: int, sector: int) -> bool:
    """Whether topic or properties of the checked record at `at` have a byte in that sector."""
    topic_at, topic_end = topic_span(view, at)
    sector_end = sector + SECTOR_BYTES
    return any(
        start < end and start < sector_end and sector < end
        for start, end in ((topic_at, topic_end), (topic_end + 2, at + claimed_bytes(view, at, len(view))))
    )
