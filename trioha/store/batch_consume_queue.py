"""Consume queue of a topic whose records may hold many messages each (5.x, `queue.type=BatchCQ`).

See docs/protocol/store.md#batch-consume-queue.

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
their bytes from 0 on, also where the first message has another number.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from struct import Struct

from trioha.errors import StoreError
from trioha.store.entry_queue import Entry, EntryQueue, OnRestart
from trioha.store.file_cache import FileCache

ENTRY_BYTES = 46
DEFAULT_FILE_BYTES = 300_000 * ENTRY_BYTES
BATCH_SIZE_MAX = 32767

_ENTRY = Struct(">qiqqqhii")
_BASE = Struct(">28xqh8x")


class BatchConsumeQueue(EntryQueue):
    """The batch queue of one topic and queue id."""

    __slots__ = ("_max_offset",)

    entry_bytes = ENTRY_BYTES
    size_key = "mapperFileSizeBatchConsumeQueue"

    def __init__(
        self,
        directory: Path,
        *,
        topic: str,
        queue_id: int,
        file_bytes: int,
        cache: FileCache,
        on_restart: OnRestart = lambda _topic, _queue_id: None,
    ) -> None:
        """Raises StoreError for files that no whole number of entries fills: brokers could not use them."""
        if file_bytes % ENTRY_BYTES:
            raise StoreError(
                f"files of {file_bytes} bytes hold no whole number of entries",
                path=directory,
                hint=f"{self.size_key} must be a multiple of {ENTRY_BYTES}",
            )
        super().__init__(
            directory,
            topic=topic,
            queue_id=queue_id,
            file_bytes=file_bytes,
            cache=cache,
            on_restart=on_restart,
        )
        self._max_offset = 0

    @property
    def max_offset(self) -> int:
        """Queue offset after the last message that readers can see."""
        return self._max_offset

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
        """Note one record with `messages` messages; False if it is here already or cannot be one.

        Raises StoreError if an earlier queue of the name cannot be deleted.
        """
        if (
            physical_offset + size <= self.max_physical_offset
            or base_offset < 0
            or not 0 < messages <= BATCH_SIZE_MAX
        ):
            return False
        if base_offset == 0 < self.next_offset:
            self._start_again()
        if self._files.is_empty and not self.pending:
            self._begins_at = base_offset
        self.pending.append(
            _ENTRY.pack(physical_offset, size, tags_code, store_timestamp_ms, base_offset, messages, -1, 0)
        )
        self.next_offset = base_offset + messages
        self.max_physical_offset = physical_offset + size
        return True

    def flush(self) -> None:
        """As `EntryQueue.flush`."""
        super().flush()
        self._max_offset = self.next_offset

    def _decode(self, data: bytes, number: int) -> Iterator[Entry]:  # noqa: ARG002 - entries name their messages
        for physical_offset, size, code, _, base, messages, _, _ in _ENTRY.iter_unpack(data):
            yield Entry(base, physical_offset, size, code, messages)

    def _number_of(self, queue_offset: int) -> int:
        """Of the last entry that begins at or before message `queue_offset`, else of the first."""
        low, high = self._files.start // ENTRY_BYTES, self._files.end // ENTRY_BYTES
        while high - low > 1:
            middle = (low + high) // 2
            if self._entry_at(middle).queue_offset <= queue_offset:
                low = middle
            else:
                high = middle
        return low

    def _leading_valid(self, data: bytes) -> int:
        """How many leading entries are valid: also base at least 0 and batchSize above 0.

        See docs/protocol/store.md#batch-consume-queue.
        """
        count = super()._leading_valid(data)
        for index, (base, messages) in enumerate(_BASE.iter_unpack(data[: count * ENTRY_BYTES])):
            if base < 0 or messages <= 0:
                return index
        return count

    def _set_last(self, last: Entry | None) -> None:
        super()._set_last(last)
        self._max_offset = 0 if last is None else last.queue_offset + last.messages
