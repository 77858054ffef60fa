"""Finds the records of a commit log file, a block at a time.

See docs/protocol/store.md#message-record, docs/protocol/store.md#ends-of-files.

A candidate is a position where a magic code is followed by the position's own physical offset and by lengths
that add up. NumPy finds and checks all candidates of a block at once. Consecutive candidates, each starting
at the end of the previous one, are the log; candidates inside a record (a body may contain a copy of a log)
are skipped, and bytes between two records that are neither record nor blank are damage.

Records are recognised without reading the log before them, so a file can be split. Each range gives the
records that start in it and the damage after them; damage before the first record of a range belongs to the
previous range, so any split gives the same rows.

Known limit: a body that contains a valid record with the offset at which it is stored, in a range that starts
inside that body. Its producer would have to predict that offset.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from trioha.store.record_layout import (
    BLANK,
    BLANK_BYTES,
    HOSTS_V6,
    IPV6_EXTRA_BYTES,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_BYTES_MIN,
    TOPIC_BYTES_MAX_V1,
    find_fault,
)
from trioha_analysis.commitlog.layout import (
    HEAD_V4,
    Bytes,
    Indexes,
    gather,
    gather_i16,
)

BLOCK_BYTES: Final = 4 << 20
"""Bytes searched at a time, which fit into a processor's cache."""
BLANK_LOOK_BYTES: Final = 16 << 20
"""Bytes before a file's end in which a blank is searched: it is never longer than a record."""
_MAGIC_BYTES: Final = MAGIC_V1.to_bytes(4, "big")
_BLANK_MAGIC_BYTES: Final = MAGIC_BLANK.to_bytes(4, "big")


@frozen(eq=False)
class Columns:
    """Whole records of one file in log order: positions of their parts, as indexes in `data` of shape
    (n,)."""

    data: Bytes
    """The whole file."""
    start: Indexes
    heads: NDArray[np.void]
    """`HEAD_V4` at each start: fields after a host are wrong where `host_flags` is not 0."""
    host_flags: NDArray[np.int32]
    body_at: Indexes
    body_bytes: Indexes
    topic_at: Indexes
    topic_bytes: Indexes
    properties_at: Indexes
    end: Indexes

    def __len__(self) -> int:
        return len(self.start)

    def take(self, which: NDArray[np.int64] | NDArray[np.bool_] | slice) -> Columns:
        """The rows of an index array, a mask or a slice."""
        return Columns(
            self.data,
            self.start[which],
            self.heads[which],
            self.host_flags[which],
            self.body_at[which],
            self.body_bytes[which],
            self.topic_at[which],
            self.topic_bytes[which],
            self.properties_at[which],
            self.end[which],
        )


@frozen
class Gap:
    """Bytes of a log that are neither record nor blank."""

    start_offset: int
    """Physical offset of the first."""
    size_bytes: int
    reason: str


@frozen(eq=False)
class LogBytes:
    """The bytes of a log file."""

    data: Bytes
    start_offset: int
    is_last: bool
    """Whether the log ends in it: bytes after the last record are then a torn end, not damage."""
    written_bytes: int
    """Index after which all bytes are zero."""


def walk(log: LogBytes, begin: int, end: int, *, block_bytes: int = BLOCK_BYTES) -> Iterator[Columns | Gap]:
    """The records that start at the indexes `[begin, end)` of a file, and the gaps after them.

    With `begin` 0 also a gap at the file's start. Bytes after a blank are filler.
    """
    data = log.data
    size = len(data)
    end = min(end, size)
    if begin >= end or (begin and _find_blank(log, max(0, size - BLANK_LOOK_BYTES), begin) is not None):
        return
    position = begin  # expected start of the next record
    searched = begin  # no record starts from `position` to here
    known = begin == 0  # whether a record must start at `position`
    while searched < log.written_bytes and (known or searched < end):
        if position >= end and searched == position and len(_candidates(log, position, position + 1)):
            return
        if known and searched == position and _is_blank_magic(data, position):
            return
        block_end = min(searched + block_bytes, end if searched < end else log.written_bytes)
        rows = _candidates(log, searched, block_end)
        chosen, gaps, chain_end = _chain(rows, position)
        if searched >= end:
            # Only the end of the gap is needed: records after it belong to the next range.
            gaps = gaps[:1]
        searched = block_end
        for gap_start, gap_end in gaps:
            blank = _find_blank(log, gap_start, gap_end)
            is_ours = known or gap_start > position
            if is_ours and (blank is None or blank > gap_start):
                yield _gap(log, gap_start, gap_end if blank is None else blank)
            if blank is not None:
                yield from _some(rows.take(chosen[rows.start[chosen] < gap_start]))
                return
        if len(chosen):
            if rows.start[0] >= end:
                return
            yield from _some(rows.take(chosen) if len(chosen) < len(rows) else rows)
            known = True
            position = searched = chain_end
    if known and position < size:
        blank = _find_blank(log, position, size)
        if blank is not None and blank > position:
            yield _gap(log, position, blank)
        elif blank is None and not log.is_last:
            yield _gap(log, position, size)


def find_record(log: LogBytes, begin: int, end: int) -> int | None:
    """Index of the first candidate in `[begin, end)` of a file."""
    for at in range(begin, min(end, len(log.data)), BLOCK_BYTES):
        rows = _candidates(log, at, min(at + BLOCK_BYTES, end))
        if len(rows):
            return int(rows.start[0])
    return None


def _some(rows: Columns) -> Iterator[Columns]:
    if len(rows):
        yield rows


def _gap(log: LogBytes, start: int, end: int) -> Gap:
    if end - start >= BLANK_BYTES and not log.data[start : start + BLANK_BYTES].any():
        reason = "zeros where a record should start"
    else:
        view = log.data.data
        fault = find_fault(view, start, len(view), log.start_offset + start, check_crc=False)
        reason = fault.reason if fault else "a whole valid record"
    return Gap(log.start_offset + start, end - start, reason)


def _is_blank_magic(data: Bytes, at: int) -> bool:
    """Whether a blank starts at `at`; readers ignore its length (docs/protocol/store.md#ends-of-files)."""
    return len(data) - at >= BLANK_BYTES and BLANK.unpack_from(data.data, at)[1] == MAGIC_BLANK


def _find_blank(log: LogBytes, begin: int, end: int) -> int | None:
    """Index in `[begin, end)` of a blank that ends at the file's end."""
    size = len(log.data)
    end = min(end, log.written_bytes, size - BLANK_BYTES + 1)
    for block in range(begin, end, BLOCK_BYTES):
        places = _places(log.data, block, min(block + BLOCK_BYTES, end), _BLANK_MAGIC_BYTES)
        for at in places.tolist():
            if BLANK.unpack_from(log.data.data, at) == (size - at, MAGIC_BLANK):
                return int(at)
    return None


def _places(data: Bytes, begin: int, end: int, magic: bytes) -> Indexes:
    """Positions in `[begin, end)` where the first three bytes of `magic` follow a size.

    `data` has at least 7 bytes after `end`.
    """
    # The first byte of the magics is not ASCII: texts do not contain it.
    at = np.flatnonzero(data[begin + 4 : max(begin, end) + 4] == magic[0]).astype(np.int64) + begin
    found: Indexes = at[(data[at + 5] == magic[1]) & (data[at + 6] == magic[2])]
    return found


def _chain(rows: Columns, position: int) -> tuple[NDArray[np.int64], list[tuple[int, int]], int]:
    """The candidates that follow each other from `position` on: their indexes in `rows`, the gaps between
    them as pairs of start and end, and the end of the last one."""
    count = len(rows)
    if not count:
        return np.zeros(0, np.int64), [], position
    breaks = np.flatnonzero(rows.end[:-1] != rows.start[1:])
    if rows.start[0] == position and not len(breaks):
        return np.arange(count), [], int(rows.end[-1])
    runs: list[NDArray[np.int64]] = []
    gaps: list[tuple[int, int]] = []
    at = int(np.searchsorted(rows.start, position))
    while at < count:
        start = int(rows.start[at])
        if start > position:
            gaps.append((position, start))
        next_break = int(np.searchsorted(breaks, at))
        last = int(breaks[next_break]) if next_break < len(breaks) else count - 1
        runs.append(np.arange(at, last + 1))
        position = int(rows.end[last])
        at = max(last + 1, int(np.searchsorted(rows.start, position)))
    return np.concatenate(runs) if runs else np.zeros(0, np.int64), gaps, position


def _candidates(log: LogBytes, begin: int, end: int) -> Columns:
    """All candidates in `[begin, end)`, ascending."""
    data = log.data
    size = len(data)
    end = min(end, size - RECORD_BYTES_MIN + 1)
    start = _places(data, begin, end, _MAGIC_BYTES)
    heads = gather(data, start, HEAD_V4)
    magic = heads["magic"].astype(np.uint32)
    total = heads["total_size"].astype(np.int64)
    good = heads["physical_offset"] == start + log.start_offset
    good &= (magic == MAGIC_V1) | (magic == MAGIC_V2)
    good &= (total >= RECORD_BYTES_MIN) & (total <= size - start)
    if not good.all():
        start, heads, magic, total = start[good], heads[good], magic[good], total[good]
    host_flags = heads["sys_flag"].astype(np.int32) & HOSTS_V6
    body_bytes = heads["body_bytes"].astype(np.int64)
    body_at = start + HEAD_V4.itemsize
    if host_flags.any():
        extra = IPV6_EXTRA_BYTES * ((host_flags >> 4 & 1) + (host_flags >> 5 & 1))
        body_at = body_at + extra
        # A record that is too short for its hosts is rejected below; the clamp keeps this read inside `data`.
        four = np.minimum(body_at, size)[:, None] + np.arange(-4, 0)
        body_bytes = np.ascontiguousarray(data[four]).view(">i4").ravel().astype(np.int64)
    record_end = start + total
    length_bytes = 1 + (magic == MAGIC_V2)
    room = record_end - body_at - length_bytes - 2
    good = (body_bytes >= 0) & (body_bytes <= room)
    topic_length_at = np.where(good, body_at + body_bytes, start)
    topic_bytes = data[topic_length_at].astype(np.int64)
    long_topics = magic == MAGIC_V2
    if long_topics.any():
        topic_bytes = np.where(long_topics, gather_i16(data, topic_length_at), topic_bytes)
        good &= (topic_bytes >= 0) & (long_topics | (topic_bytes <= TOPIC_BYTES_MAX_V1))
    else:
        good &= topic_bytes <= TOPIC_BYTES_MAX_V1
    good &= body_bytes + topic_bytes <= room
    topic_at = topic_length_at + length_bytes
    properties_at = np.where(good, topic_at + topic_bytes + 2, start + 2)
    properties_bytes = gather_i16(data, properties_at - 2)
    good &= (properties_bytes >= 0) & (properties_at + properties_bytes == record_end)
    rows = Columns(
        data,
        start,
        heads,
        host_flags,
        body_at,
        body_bytes,
        topic_at,
        topic_bytes,
        properties_at,
        record_end,
    )
    return rows if good.all() else rows.take(good)
