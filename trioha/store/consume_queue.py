"""One topic-queue's consume queue: where each of its messages stands in the log.

See docs/protocol/store.md#entry.

| offset | type | field |
|---|---|---|
| 0 | i64 | physicalOffset |
| 8 | i32 | totalSize of the record |
| 12 | i64 | tagsCode |

Entry `k` is at byte `20 * k`, so the queue offset is the entry's number. A queue whose first messages are
gone (or that a replica began late) starts in the file that the first known one belongs to; the entries before
it in that file are pre-blanks (offset 0, size 0x7FFFFFFF), which `min_offset` hides.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from struct import Struct

import structlog

from trioha.store.entry_queue import BLANK_SIZE, Entry, EntryQueue, OnRestart
from trioha.store.file_cache import FileCache

log = structlog.get_logger(__name__)

ENTRY_BYTES = 20
DEFAULT_FILE_BYTES = 300_000 * ENTRY_BYTES

_ENTRY = Struct(">qiq")
_PRE_BLANK = _ENTRY.pack(0, BLANK_SIZE, 0)
_BLANKS_TOGETHER = 256
_PRE_BLANKS = _PRE_BLANK * _BLANKS_TOGETHER
_QUEUE_OFFSET_MAX = ((1 << 63) - 1) // ENTRY_BYTES
"""Beyond it no entry has a place in a file."""


def rounded_file_bytes(file_bytes: int) -> int:
    """mappedFileSizeConsumeQueue as it is used: rounded up to whole entries.

    See docs/protocol/store.md#files.
    """
    return -(-file_bytes // ENTRY_BYTES) * ENTRY_BYTES


def _blanks(count: int) -> list[bytes]:
    """`count` pre-blanks, in little memory for any number."""
    return [_PRE_BLANKS] * (count // _BLANKS_TOGETHER) + [_PRE_BLANK * (count % _BLANKS_TOGETHER)]


def fields_of(raw: bytes) -> Iterator[tuple[int, int, int]]:
    """Physical offset, size and tags code of each entry."""
    return _ENTRY.iter_unpack(raw)


class ConsumeQueue(EntryQueue):
    """The queue of one topic and queue id."""

    __slots__ = ()

    entry_bytes = ENTRY_BYTES
    size_key = "mappedFileSizeConsumeQueue"

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
        super().__init__(
            directory,
            topic=topic,
            queue_id=queue_id,
            file_bytes=rounded_file_bytes(file_bytes),
            cache=cache,
            on_restart=on_restart,
        )

    @property
    def max_offset(self) -> int:
        """Queue offset after the last entry that readers can see."""
        return self._files.end // ENTRY_BYTES

    def put(self, *, physical_offset: int, size: int, tags_code: int, queue_offset: int) -> bool:
        """Note one message; False if it is here already. Readers see it after `flush`.

        See docs/protocol/store.md#entry.

        Raises StoreError if an earlier queue of the name cannot be deleted.
        """
        if physical_offset + size <= self.max_physical_offset or queue_offset < 0:
            return False
        if queue_offset == 0 < self.next_offset:
            self._start_again()
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
        blanks = queue_offset % (self._files.file_bytes // ENTRY_BYTES)
        self.pending += _blanks(blanks)
        self._begin_position = (queue_offset - blanks) * ENTRY_BYTES
        self._begins_at = self.next_offset = queue_offset

    def _bridge(self, queue_offset: int) -> None:
        """Fill the gap before an entry with blanks: the queue was damaged, or the record's number is wrong.

        The broker appends the entry at the end, and every later message is then found under a wrong offset.
        Blanks, which readers pass over, fill a gap of up to a file's length. A larger number counts as wrong,
        and the entry is appended at the end.
        """
        missing = queue_offset - self.next_offset
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

    def raw(self, queue_offset: int, count: int) -> bytes:
        """`count` entries at most as they are on disk, with blanks. Raises StoreError."""
        number = max(queue_offset, self._min_offset)
        return self._files.read_on(number * ENTRY_BYTES, count * ENTRY_BYTES)

    def _decode(self, data: bytes, number: int) -> Iterator[Entry]:
        for queue_offset, (physical_offset, size, code) in enumerate(_ENTRY.iter_unpack(data), number):
            yield Entry(queue_offset, physical_offset, size, code)

    def _number_of(self, queue_offset: int) -> int:
        return queue_offset
