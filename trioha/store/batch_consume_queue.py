"""Consume queue of a topic whose records may hold many messages each (5.x, `queue.type=BatchCQ`, spec store
3.2).

| offset | type | field |
|---|---|---|
| 0 | i64 | physicalOffset |
| 8 | i32 | totalSize of the record |
| 12 | i64 | tagsCode |
| 20 | i64 | storeTimestamp |
| 28 | i64 | msgBaseOffset: queue offset of the record's first message |
| 36 | i16 | batchSize: messages in the record |
| 38 | i32 | compactedOffset, -1 |
| 42 | i32 | reserved, 0 |

Message `x` is in the entry with `base <= x < base + batchSize`, found by binary search. Files are named by
their bytes from 0 on, whatever the first message's number is.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from struct import Struct

from trioha.errors import StoreError
from trioha.store.consume_queue import Entry, leading_valid, valid_end
from trioha.store.fixed_entry_files import FileCache, FixedEntryFiles

ENTRY_BYTES = 46
DEFAULT_FILE_BYTES = 300_000 * ENTRY_BYTES
BATCH_SIZE_MAX = 32767

_ENTRY = Struct(">qiqqqhii")
_BASE = Struct(">28xqh8x")
_RECOVERY_CHUNK_ENTRIES = 1424


class BatchConsumeQueue:
    """The batch queue of one topic and queue id. Same theory of operation as `ConsumeQueue`."""

    __slots__ = (
        "_begins_at",
        "_files",
        "_flushed_physical_offset",
        "_max_offset",
        "_min_offset",
        "max_physical_offset",
        "pending",
        "queue_id",
        "topic",
    )

    def __init__(
        self, directory: Path, *, topic: str, queue_id: int, file_bytes: int, cache: FileCache
    ) -> None:
        """Raises StoreError if the file length is no multiple of an entry's: the broker could not use it."""
        if file_bytes % ENTRY_BYTES:
            raise StoreError(
                f"files of {file_bytes} bytes hold no whole number of entries",
                path=directory,
                hint=f"mapperFileSizeBatchConsumeQueue must be a multiple of {ENTRY_BYTES}",
            )
        self.topic = topic
        self.queue_id = queue_id
        self._files = FixedEntryFiles(directory, entry_bytes=ENTRY_BYTES, file_bytes=file_bytes, cache=cache)
        self._min_offset = 0
        self._max_offset = 0
        self._begins_at = 0
        """Queue offset of the first message that is pending in an empty queue."""
        self._flushed_physical_offset = -1
        """`max_physical_offset` as of the last `flush`."""
        self.pending: list[bytes] = []
        """Encoded entries that the next `flush` writes."""
        self.max_physical_offset = -1
        """End of the last record that was put here, -1 if none was."""

    def __repr__(self) -> str:
        return f"<BatchConsumeQueue {self.topic}@{self.queue_id} [{self.min_offset}, {self.max_offset})>"

    @property
    def min_offset(self) -> int:
        """Queue offset of the first message whose record the log still holds."""
        return self._min_offset

    @property
    def max_offset(self) -> int:
        """Queue offset behind the last message that readers can see."""
        return self._max_offset

    @property
    def next_offset(self) -> int:
        """Queue offset that the next message has."""
        return (
            _BASE.unpack(self.pending[-1])[0] + _BASE.unpack(self.pending[-1])[1]
            if self.pending
            else (self._max_offset)
        )

    def put(
        self,
        *,
        physical_offset: int,
        size: int,
        tags_code: int,
        store_timestamp_ms: int,
        base_offset: int,
        messages: int,
    ) -> bool:
        """Note one record with `messages` messages; False if it is here already or cannot be one."""
        if (
            physical_offset + size <= self.max_physical_offset
            or base_offset < 0
            or not 0 < messages <= BATCH_SIZE_MAX
        ):
            return False
        if not self.pending:
            self._begins_at = base_offset
        self.pending.append(
            _ENTRY.pack(physical_offset, size, tags_code, store_timestamp_ms, base_offset, messages, -1, 0)
        )
        self.max_physical_offset = physical_offset + size
        return True

    def flush(self) -> None:
        """Write what is pending. Raises StoreError if the disk refuses: `discard` then."""
        if self.pending:
            was_empty = self._files.is_empty
            self._files.append(self.pending)
            if was_empty:
                self._min_offset = self._begins_at
            self._max_offset = self.next_offset
            self._flushed_physical_offset = self.max_physical_offset
            self.pending.clear()

    def discard(self) -> None:
        """Forget what is pending: the queue is as its last `flush` left it. Asks the disk nothing."""
        self.pending.clear()
        self.max_physical_offset = self._flushed_physical_offset

    # -- reading ---------------------------------------------------------------------------------------

    def entries(self, queue_offset: int, count: int) -> Iterator[Entry]:
        """Up to `count` entries, from the one that holds message `queue_offset` on. Raises StoreError."""
        position = self._position_of(max(queue_offset, self._min_offset))
        data = self._files.read(position, count * ENTRY_BYTES)
        for physical_offset, size, code, _, base, messages, _, _ in _ENTRY.iter_unpack(data):
            yield Entry(base, physical_offset, size, code, messages)

    def entry(self, queue_offset: int) -> Entry | None:
        """The entry that holds one message; None if none does."""
        if not self._min_offset <= queue_offset < self._max_offset:
            return None
        found = next(self.entries(queue_offset, 1), None)
        if found is None or not found.queue_offset <= queue_offset < found.queue_offset + found.messages:
            return None
        return found

    def roll(self, queue_offset: int) -> int:
        """First queue offset in the next file, `max_offset` if there is none."""
        position = self._position_of(queue_offset)
        position += self._files.file_bytes - position % self._files.file_bytes
        return self._read_one(position).queue_offset if position < self._files.end else self._max_offset

    def _position_of(self, queue_offset: int) -> int:
        """Byte of the last entry that begins at or before message `queue_offset`."""
        files = self._files
        low, high = files.start // ENTRY_BYTES, files.end // ENTRY_BYTES
        while high - low > 1:
            middle = (low + high) // 2
            if self._read_one(middle * ENTRY_BYTES).queue_offset <= queue_offset:
                low = middle
            else:
                high = middle
        return low * ENTRY_BYTES

    def _read_one(self, position: int) -> Entry:
        physical_offset, size, code, _, base, messages, _, _ = _ENTRY.unpack(
            self._files.read(position, ENTRY_BYTES)
        )
        return Entry(base, physical_offset, size, code, messages)

    # -- starting --------------------------------------------------------------------------------------

    def recover(self) -> None:
        """Open the files and find the end: the first invalid entry of the last three (spec store 5.3).

        Raises StoreError for files that cannot be used.
        """
        files = self._files
        files.load(size_key="mapperFileSizeBatchConsumeQueue")
        files.cut(valid_end(files, _RECOVERY_CHUNK_ENTRIES, _leading_valid))
        self._find_ends()
        self._min_offset = self._read_one(files.start).queue_offset if files.end > files.start else 0

    def _find_ends(self) -> None:
        """Forget what is pending, and learn from the files where the queue ends. Raises StoreError."""
        self._flushed_physical_offset = -1
        self.discard()
        files = self._files
        if files.is_empty:
            self._max_offset = self._min_offset = 0
            return
        last = self._read_one(files.end - ENTRY_BYTES)
        self._max_offset = last.queue_offset + last.messages
        self._min_offset = min(self._min_offset, self._max_offset)
        self.max_physical_offset = self._flushed_physical_offset = last.physical_offset + last.size

    def _first_at_or_after(self, physical_offset: int) -> int:
        """Byte of the first entry whose record is at or behind `physical_offset`, the end if none is."""
        files = self._files
        low, high = files.start // ENTRY_BYTES, files.end // ENTRY_BYTES
        while low < high:
            middle = (low + high) // 2
            if self._read_one(middle * ENTRY_BYTES).physical_offset >= physical_offset:
                high = middle
            else:
                low = middle + 1
        return low * ENTRY_BYTES

    def truncate_dirty(self, physical_offset: int) -> None:
        """Drop every entry whose record starts at or behind `physical_offset` (spec store 5.4)."""
        self._files.cut(self._first_at_or_after(physical_offset))
        self._find_ends()

    # -- losing the log's head ---------------------------------------------------------------------------

    def correct_min_offset(self, log_min_offset: int) -> None:
        """Move `min_offset` to the first message that the log holds, `max_offset` if none (spec 5.5)."""
        position = self._first_at_or_after(log_min_offset)
        held = position < self._files.end
        self._min_offset = self._read_one(position).queue_offset if held else self._max_offset

    def delete_before(self, log_min_offset: int) -> int:
        """Delete files whose last record the log has no more, never the last file; returns how many."""
        self.correct_min_offset(log_min_offset)
        files = self._files
        first = self._first_at_or_after(log_min_offset)
        deleted = 0
        while files.has_several and files.start + files.file_bytes <= first:
            files.drop_first_file()
            deleted += 1
        return deleted

    def destroy(self) -> None:
        """Delete the queue's files. Raises StoreError; the queue has lost its later entries then, or all."""
        try:
            self._files.destroy()
        finally:
            self._find_ends()


def _leading_valid(data: bytes, entry_bytes: int) -> int:
    """How many leading entries are valid: also base at least 0 and batchSize above 0 (spec store 3.2)."""
    count = leading_valid(data, entry_bytes)
    for index, (base, messages) in enumerate(_BASE.iter_unpack(data[: count * entry_bytes])):
        if base < 0 or messages <= 0:
            return index
    return count
