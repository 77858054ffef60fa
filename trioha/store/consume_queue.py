"""One topic-queue's consume queue: where each of its messages stands in the log (spec store 3.1).

| offset | type | field |
|---|---|---|
| 0 | i64 | physicalOffset |
| 8 | i32 | totalSize of the record |
| 12 | i64 | tagsCode |

Entry `k` is at byte `20 * k`, so the queue offset is the entry's number. A queue whose first messages are
gone (or that a replica began late) starts in the file that the first known one belongs to; entries before
it are pre-blanks (offset 0, size 0x7FFFFFFF), which `min_offset` hides.

Theory of operation. The queue is derived from the log and can always be rebuilt. The dispatcher calls `put`
(or does the same inline) for each record, then `flush` once per batch; only then do readers see the
entries. An entry that comes again is dropped, so dispatching a stretch of the log twice does no harm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from struct import Struct

import structlog
from attrs import frozen

from trioha.store.fixed_entry_files import FileCache, FixedEntryFiles

log = structlog.get_logger(__name__)

ENTRY_BYTES = 20
DEFAULT_FILE_BYTES = 300_000 * ENTRY_BYTES
BLANK_SIZE = 0x7FFFFFFF
"""Size of a pre-blank entry: no message."""

_ENTRY = Struct(">qiq")
_PRE_BLANK = _ENTRY.pack(0, BLANK_SIZE, 0)
_BLANKS_TOGETHER = 256
_PRE_BLANKS = _PRE_BLANK * _BLANKS_TOGETHER
_QUEUE_OFFSET_MAX = ((1 << 63) - 1) // ENTRY_BYTES
"""Behind it no entry has a place in a file."""
_RECOVERY_FILES = 3
_RECOVERY_CHUNK_ENTRIES = 3277
"""Entries read at once when the end is looked for: 64 KiB, so that a small queue costs one small read."""


@frozen
class Entry:
    """One entry of a consume queue."""

    queue_offset: int
    physical_offset: int
    size: int
    """Bytes of the record; `BLANK_SIZE` if there is none."""
    tags_code: int
    messages: int = 1
    """How many messages the record holds; more than 1 only in a batch consume queue."""

    @property
    def is_blank(self) -> bool:
        """Whether this entry only keeps the numbering: there is no message."""
        return self.size == BLANK_SIZE


def rounded_file_bytes(file_bytes: int) -> int:
    """mappedFileSizeConsumeQueue as it is used: rounded up to whole entries (spec store 1)."""
    return -(-file_bytes // ENTRY_BYTES) * ENTRY_BYTES


def leading_valid(data: bytes, entry_bytes: int) -> int:
    """How many entries at the front of `data` are valid: offset at least 0, size above 0 (spec store 3.1).

    Looks at one byte column after the other, so that a file of 300,000 entries takes milliseconds.
    """
    count = len(data) // entry_bytes
    if not count:
        return 0
    data = data[: count * entry_bytes]
    columns = [int.from_bytes(data[at::entry_bytes], "big") for at in (8, 9, 10, 11)]
    sizes = (columns[0] | columns[1] | columns[2] | columns[3]).to_bytes(count, "big")
    zero_at = sizes.find(0)
    if zero_at >= 0:
        count = zero_at
    signs = (int.from_bytes(data[0::entry_bytes], "big") | columns[0]).to_bytes(len(sizes), "big")
    if not signs.isascii():
        count = min(count, next(index for index, sign in enumerate(signs) if sign >= 0x80))
    return count


def _blanks(count: int) -> list[bytes]:
    """`count` pre-blanks; however many, they take little memory until they are written."""
    return [_PRE_BLANKS] * (count // _BLANKS_TOGETHER) + [_PRE_BLANK * (count % _BLANKS_TOGETHER)]


class ConsumeQueue:
    """The queue of one topic and queue id."""

    __slots__ = (
        "_begins_at",
        "_files",
        "_first_physical_offset",
        "_flushed_physical_offset",
        "_min_offset",
        "gaps",
        "max_physical_offset",
        "next_offset",
        "pending",
        "queue_id",
        "topic",
    )

    def __init__(
        self, directory: Path, *, topic: str, queue_id: int, file_bytes: int, cache: FileCache
    ) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self._files = FixedEntryFiles(
            directory, entry_bytes=ENTRY_BYTES, file_bytes=rounded_file_bytes(file_bytes), cache=cache
        )
        self._min_offset = 0
        self._begins_at: int | None = None
        """Queue offset of the first entry of an empty queue, once `flush` has written it; None for 0."""
        self._flushed_physical_offset = -1
        """`max_physical_offset` as of the last `flush`."""
        self._first_physical_offset = -1
        """Where the record of the entry at `min_offset` is; -1 if that is not known."""
        self.next_offset = 0
        """Queue offset that the next entry will have: `max_offset` plus what is pending."""
        self.pending: list[bytes] = []
        """Encoded entries that the next `flush` writes. Moved by the dispatcher only."""
        self.max_physical_offset = -1
        """End of the last record that was put here: anything up to it is a repeat. -1 if nothing was."""
        self.gaps = 0
        """How often an entry came whose predecessors never did."""

    def __repr__(self) -> str:
        return f"<ConsumeQueue {self.topic}@{self.queue_id} [{self.min_offset}, {self.max_offset})>"

    @property
    def min_offset(self) -> int:
        """First queue offset that has its message in the log; equals `max_offset` if none has."""
        return self._min_offset

    @property
    def max_offset(self) -> int:
        """Queue offset behind the last entry that readers can see."""
        return self._files.end // ENTRY_BYTES

    # -- writing ---------------------------------------------------------------------------------------

    def put(self, *, physical_offset: int, size: int, tags_code: int, queue_offset: int) -> bool:
        """Note one message; False if it is here already (spec store 3.1). Readers see it after `flush`."""
        if physical_offset + size <= self.max_physical_offset or queue_offset < 0:
            return False
        if queue_offset != self.next_offset:
            if queue_offset < self.next_offset:
                return False
            if self._files.is_empty and not self.pending and queue_offset <= _QUEUE_OFFSET_MAX:
                self._begin_at(queue_offset)
            else:
                self._bridge(queue_offset)
        self.pending.append(_ENTRY.pack(physical_offset, size, tags_code))
        self.next_offset += 1
        self.max_physical_offset = physical_offset + size
        return True

    def _begin_at(self, queue_offset: int) -> None:
        """Begin an empty queue in the file that `queue_offset` belongs to, pre-blanks before it."""
        self.pending += _blanks(queue_offset % (self._files.file_bytes // ENTRY_BYTES))
        self._begins_at = self.next_offset = queue_offset

    def _bridge(self, queue_offset: int) -> None:
        """Some entries before this one never came: the queue was damaged, or the record's number is wrong.

        The broker appends at the end whatever the number is, and every later message is then found under a
        wrong offset. Up to a file's worth is filled here with blanks, which readers pass over; beyond that
        the number itself is not believed.
        """
        missing = queue_offset - self.next_offset
        self.gaps += 1
        log.warning(
            "consume queue has a gap",
            topic=self.topic,
            queue=self.queue_id,
            expected=self.next_offset,
            found=queue_offset,
        )
        if missing <= self._files.file_bytes // ENTRY_BYTES:
            self.pending += _blanks(missing)
            self.next_offset = queue_offset

    def flush(self) -> None:
        """Write what is pending: one call for all of it.

        Raises StoreError if the disk refuses: `discard` then, or call again when there is space.
        """
        if self.pending:
            begin = self._begins_at
            if begin is None:
                self._files.append(self.pending)
            else:
                position = begin * ENTRY_BYTES
                self._files.append(self.pending, start=position - position % self._files.file_bytes)
                self._min_offset = begin
                self._begins_at = None
            # The dispatcher leaves this to the flush, for all entries at once.
            physical_offset, size, _ = _ENTRY.unpack(self.pending[-1][-ENTRY_BYTES:])
            self.max_physical_offset = self._flushed_physical_offset = physical_offset + size
            self.pending.clear()

    def discard(self) -> None:
        """Forget what is pending: the queue is as its last `flush` left it. Asks the disk nothing."""
        self.pending.clear()
        self._begins_at = None
        self.next_offset = self.max_offset
        self.max_physical_offset = self._flushed_physical_offset

    # -- reading ---------------------------------------------------------------------------------------

    def entries(self, queue_offset: int, count: int) -> Iterator[Entry]:
        """Up to `count` entries from `queue_offset` on, blanks included. Raises StoreError."""
        first = max(queue_offset, self._min_offset)
        data = self._files.read(first * ENTRY_BYTES, count * ENTRY_BYTES)
        for index, (physical_offset, size, code) in enumerate(_ENTRY.iter_unpack(data)):
            yield Entry(first + index, physical_offset, size, code)

    def entry(self, queue_offset: int) -> Entry | None:
        """The entry of one message; None if it is not there."""
        if not self._min_offset <= queue_offset < self.max_offset:
            return None
        return next(self.entries(queue_offset, 1), None)

    def roll(self, queue_offset: int) -> int:
        """First queue offset of the next file."""
        per_file = self._files.file_bytes // ENTRY_BYTES
        return queue_offset - queue_offset % per_file + per_file

    # -- starting --------------------------------------------------------------------------------------

    def recover(self) -> None:
        """Open the files and find the end: the first invalid entry of the last three (spec store 5.3).

        Anything behind it is zeroed or deleted. Raises StoreError for files that cannot be used.
        """
        files = self._files
        files.load(size_key="mappedFileSizeConsumeQueue")
        files.cut(valid_end(files, _RECOVERY_CHUNK_ENTRIES))
        # Blanks at the end are what a power cut left of a gap that was being filled.
        if files.end > files.start and self._read_one(files.end - ENTRY_BYTES).is_blank:
            files.cut(self._end_of_real_entries())
        self._find_max_physical_offset()
        self.discard()
        self._min_offset = files.start // ENTRY_BYTES
        self._first_physical_offset = -1

    def _end_of_real_entries(self) -> int:
        """Byte behind the last entry that is no blank."""
        files = self._files
        position = files.end
        while position > files.start:
            chunk_start = max(files.start, position - _RECOVERY_CHUNK_ENTRIES * ENTRY_BYTES)
            data = files.read(chunk_start, position - chunk_start)
            for at in range(len(data) - ENTRY_BYTES, -1, -ENTRY_BYTES):
                if data[at : at + ENTRY_BYTES] != _PRE_BLANK:
                    return chunk_start + at + ENTRY_BYTES
            position = chunk_start
        return files.start

    def _read_one(self, position: int) -> Entry:
        data = self._files.read(position, ENTRY_BYTES)
        return Entry(position // ENTRY_BYTES, *_ENTRY.unpack(data))

    def _find_max_physical_offset(self) -> None:
        # Known to be nothing while the disk is asked, and if it does not answer.
        self._flushed_physical_offset = -1
        if not self._files.is_empty:
            last = self._read_one(self._files.end - ENTRY_BYTES)
            self._flushed_physical_offset = last.physical_offset + last.size

    def truncate_dirty(self, physical_offset: int) -> None:
        """Drop every entry whose record starts at or behind `physical_offset` (spec store 5.4).

        Raises StoreError if the disk refuses.
        """
        files = self._files
        first, last = files.start // ENTRY_BYTES, files.end // ENTRY_BYTES
        if last > first and self._read_one(files.end - ENTRY_BYTES).physical_offset >= physical_offset:
            kept = self._first_at_or_after(physical_offset, low=first)
            files.cut(max(files.start, kept * ENTRY_BYTES))
            if files.end > files.start:
                files.cut(self._end_of_real_entries())
        self._find_max_physical_offset()
        self.discard()
        self._first_physical_offset = -1
        self._min_offset = max(files.start // ENTRY_BYTES, min(self._min_offset, self.next_offset))

    def record_from(self, physical_offset: int) -> int | None:
        """Physical offset of the queue's first record at or behind this one; None if there is none.

        Raises StoreError.
        """
        found = self.entry(self._first_at_or_after(physical_offset, low=self._min_offset))
        return None if found is None else found.physical_offset

    def _first_at_or_after(self, physical_offset: int, *, low: int) -> int:
        """First queue offset from `low` on with a record at or behind `physical_offset`; else max_offset."""
        found = self._find_from(physical_offset, low=low)
        return self.max_offset if found is None else found.queue_offset

    def _find_from(self, physical_offset: int, *, low: int) -> Entry | None:
        """The first entry from `low` on whose record is at or behind `physical_offset`; None if none is.

        Blanks have no offset of their own: a probe that hits one goes on to the next real entry.
        """
        high = self.max_offset
        while low < high:
            middle = (low + high) // 2
            found = self._real_entry(middle, high)
            if found is None or found.physical_offset >= physical_offset:
                # Nothing but blanks from the middle on says as little as an entry that is far enough.
                high = middle
            else:
                low = found.queue_offset + 1
        return self._real_entry(low, self.max_offset)

    def _real_entry(self, queue_offset: int, end_offset: int) -> Entry | None:
        """The first entry in `[queue_offset, end_offset)` that is no blank."""
        files = self._files
        while queue_offset < end_offset:
            count = min(end_offset - queue_offset, _RECOVERY_CHUNK_ENTRIES)
            # Nearly always the first one is real: do not read a chunk for it.
            for size in (1, count):
                data = files.read(queue_offset * ENTRY_BYTES, size * ENTRY_BYTES)
                for index, (physical_offset, length, code) in enumerate(_ENTRY.iter_unpack(data)):
                    if length != BLANK_SIZE:
                        return Entry(queue_offset + index, physical_offset, length, code)
            queue_offset += count
        return None

    # -- losing the log's head ---------------------------------------------------------------------------

    def correct_min_offset(self, log_min_offset: int) -> None:
        """Move `min_offset` to the first entry that the log still holds, `max_offset` if none (spec 5.5)."""
        if self._first_physical_offset >= log_min_offset:
            return
        # Known to be nothing while the disk is asked, and if it does not answer.
        self._first_physical_offset = -1
        first = self._find_from(log_min_offset, low=self._min_offset)
        self._min_offset = self.max_offset if first is None else first.queue_offset
        self._first_physical_offset = -1 if first is None else first.physical_offset

    def delete_before(self, log_min_offset: int) -> int:
        """Delete files whose last record the log has no more, never the last file (spec store 5.8).

        Returns how many. `min_offset` is corrected. Raises StoreError if the disk refuses.
        """
        self.correct_min_offset(log_min_offset)
        files = self._files
        deleted = 0
        while files.has_several and files.start + files.file_bytes <= self._min_offset * ENTRY_BYTES:
            files.drop_first_file()
            deleted += 1
        return deleted

    def destroy(self) -> None:
        """Delete the queue's files. Raises StoreError; the queue has lost its later entries then, or all."""
        # Where the last entry's record ends is not known any more; its number keeps it from coming twice.
        self._flushed_physical_offset = -1
        try:
            self._files.destroy()
        finally:
            self.discard()
            self._first_physical_offset = -1
            self._min_offset = min(self._min_offset, self.next_offset)


def valid_end(
    files: FixedEntryFiles, chunk_entries: int, leading: Callable[[bytes, int], int] = leading_valid
) -> int:
    """Byte behind the last valid entry, looked for in the last three files (spec store 5.3)."""
    starts = files.file_starts()
    if not starts:
        return files.end
    position = starts[max(0, len(starts) - _RECOVERY_FILES)]
    while position < files.end:
        data = files.read(position, chunk_entries * files.entry_bytes)
        valid = leading(data, files.entry_bytes)
        position += valid * files.entry_bytes
        if valid * files.entry_bytes < len(data):
            break
    return position
