"""What consume queues and batch consume queues share: one topic-queue's entries, in log order.

See docs/protocol/store.md#consume-queues.

Theory of operation. The queue is derived from the log and can always be rebuilt. The dispatcher calls `put`
of a subclass (or does the same inline) for each record, then `flush` once per batch; only then do readers see
the entries. An entry that comes again is dropped, so dispatching a stretch of the log twice does no harm.
A later record with number 0 is the first of a new queue of that name: the topic was deleted and created
again, here or at the master. Nothing else in the log says so; entries of the earlier queue are deleted.

Entries are numbered from the queue's first byte: entry `n` is at byte `n * entry_bytes`. Physical offsets
rise with the number, so a binary search finds the entry of an offset. Blanks only keep the numbering of a
consume queue: they have no record, and a search that meets one goes on to the next real entry.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from struct import Struct
from typing import ClassVar

import structlog
from attrs import frozen

from trioha.store.file_cache import FileCache
from trioha.store.fixed_entry_files import FixedEntryFiles

log = structlog.get_logger(__name__)

OnRestart = Callable[[str, int], None]
"""Receives topic and queue id."""
BLANK_SIZE = 0x7FFFFFFF
"""Size of a blank entry: no message."""

_RECORD = Struct(">qi").unpack_from
"""physicalOffset and totalSize, which both kinds of entries start with."""
_RECOVERY_FILES = 3
_CHUNK_BYTES = 64 * 1024
"""Read at once where many entries are needed: a small queue costs one small read."""


@frozen
class Entry:
    """One entry of a queue."""

    queue_offset: int
    """Of the record's first message."""
    physical_offset: int
    size: int
    """Bytes of the record; `BLANK_SIZE` if there is none."""
    tags_code: int
    messages: int = 1
    """How many messages the record holds; more than 1 only in a batch consume queue."""

    @property
    def is_blank(self) -> bool:
        """Whether this entry has no message and only keeps the numbering."""
        return self.size == BLANK_SIZE


def leading_valid(data: bytes, entry_bytes: int) -> int:
    """How many entries at the front of `data` are valid: offset at least 0, size above 0.

    See docs/protocol/store.md#entry.

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


class EntryQueue(ABC):
    """The queue of one topic and queue id. A subclass defines the entries' fields, and `put`."""

    __slots__ = (
        "_begin_position",
        "_begins_at",
        "_files",
        "_first_physical_offset",
        "_flushed_physical_offset",
        "_min_offset",
        "_on_restart",
        "max_physical_offset",
        "next_offset",
        "pending",
        "queue_id",
        "topic",
    )

    entry_bytes: ClassVar[int]
    size_key: ClassVar[str]
    """The config key of the files' length."""

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
        """`on_restart` is called when entries of an earlier queue of this name were deleted."""
        self.topic = topic
        self.queue_id = queue_id
        self._files = FixedEntryFiles(
            directory, entry_bytes=self.entry_bytes, file_bytes=file_bytes, cache=cache
        )
        self._min_offset = 0
        self._begins_at: int | None = None
        """Queue offset of the first message of an empty queue, to be written by `flush`; None for 0."""
        self._begin_position = 0
        """First byte of the file that such a queue begins with."""
        self._flushed_physical_offset = -1
        """`max_physical_offset` as of the last `flush`."""
        self._first_physical_offset = -1
        """Where the record of the entry at `min_offset` is; -1 if that is not known."""
        self.next_offset = 0
        """Queue offset that the next message will have: `max_offset` plus what is pending."""
        self._on_restart = on_restart
        self.pending: list[bytes] = []
        """Encoded entries that the next `flush` writes. Moved by the dispatcher only."""
        self.max_physical_offset = -1
        """End of the last record that was put here: a record that ends before it is a repeat. -1 for none."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.topic}@{self.queue_id} [{self.min_offset}, {self.max_offset})>"

    @property
    def min_offset(self) -> int:
        """First queue offset that has its message in the log; equals `max_offset` if none has."""
        return self._min_offset

    @property
    @abstractmethod
    def max_offset(self) -> int:
        """Queue offset after the last message that readers can see."""

    # -- what a subclass defines -------------------------------------------------------------------------

    @abstractmethod
    def _decode(self, data: bytes, number: int) -> Iterator[Entry]:
        """The entries in `data`, the first of which has that number."""

    @abstractmethod
    def _number_of(self, queue_offset: int) -> int:
        """Number of the entry that holds a message; of the last entry for one beyond the end."""

    def _leading_valid(self, data: bytes) -> int:
        return leading_valid(data, self.entry_bytes)

    def _set_last(self, last: Entry | None) -> None:
        """`last` is the last entry on disk now, None if there is none."""
        self._flushed_physical_offset = -1 if last is None else last.physical_offset + last.size

    # -- writing ---------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Write the pending entries: one call for all of them.

        Raises StoreError if the disk refuses: `discard` then, or call again when there is space.
        """
        pending = self.pending
        if pending:
            begin = self._begins_at
            if begin is None:
                self._files.append(pending)
            else:
                self._files.append(pending, start=self._begin_position)
                self._min_offset = begin
                self._begins_at = None
            # The dispatcher does not update this for each entry.
            last = pending[-1]
            physical_offset, size = _RECORD(last, len(last) - self.entry_bytes)
            self.max_physical_offset = self._flushed_physical_offset = physical_offset + size
            pending.clear()

    def discard(self) -> None:
        """Drop the pending entries: the queue is as its last `flush` left it. Needs no disk access."""
        self.pending.clear()
        self._begins_at = None
        self.next_offset = self.max_offset
        self.max_physical_offset = self._flushed_physical_offset

    def _start_again(self) -> None:
        """Delete the entries of an earlier queue of this name. Raises StoreError: `discard` then."""
        log.info(
            "consume queue starts again at 0",
            topic=self.topic,
            queue=self.queue_id,
            messages=self.next_offset,
        )
        self.destroy()
        self._on_restart(self.topic, self.queue_id)

    # -- reading ---------------------------------------------------------------------------------------

    def entries(self, queue_offset: int, count: int) -> Iterator[Entry]:
        """Up to `count` entries, blanks included, from that of the message `queue_offset` on.

        Raises StoreError.
        """
        number = self._number_of(max(queue_offset, self._min_offset))
        return self._decode(self._read(number, count), number)

    def entry(self, queue_offset: int) -> Entry | None:
        """The entry that holds one message; None if none does."""
        if not self._min_offset <= queue_offset < self.max_offset:
            return None
        found = next(self.entries(queue_offset, 1), None)
        if found is None or not found.queue_offset <= queue_offset < found.queue_offset + found.messages:
            return None
        return found

    def roll(self, queue_offset: int) -> int:
        """First queue offset of the next file, `max_offset` if there is none."""
        file_bytes = self._files.file_bytes
        position = self._number_of(queue_offset) * self.entry_bytes
        position += file_bytes - position % file_bytes
        if position >= self._files.end:
            return self.max_offset
        return self._entry_at(position // self.entry_bytes).queue_offset

    def record_from(self, physical_offset: int) -> int | None:
        """Physical offset of the queue's first record at or after this one; None if there is none.

        Raises StoreError.
        """
        found = self._find_from(physical_offset, low=self._number_of(self._min_offset))
        return None if found is None else found[1].physical_offset

    def end_before(self, physical_offset: int) -> int:
        """Queue offset after the last message whose record ends at or before this physical offset.

        Most queues have only such messages. Else it is a binary search, for which records are in the order of
        the queue. Raises StoreError.
        """
        if self._flushed_physical_offset <= physical_offset:
            return self.max_offset
        low = self._number_of(self._min_offset)
        found = self._find_from(physical_offset, low=low)
        number = self._files.end // self.entry_bytes if found is None else found[0]
        end_offset = self.max_offset if found is None else found[1].queue_offset
        if number > low:
            # The record before it may be the one that the physical offset is in.
            before = self._entry_at(number - 1)
            if before.physical_offset + before.size > physical_offset:
                end_offset = before.queue_offset
        return max(end_offset, self._min_offset)

    def _read(self, number: int, count: int) -> bytes:
        return self._files.read(number * self.entry_bytes, count * self.entry_bytes)

    def _entry_at(self, number: int) -> Entry:
        return next(self._decode(self._read(number, 1), number))

    def _last_entry(self) -> Entry | None:
        return None if self._files.is_empty else self._entry_at(self._files.end // self.entry_bytes - 1)

    def _find_from(self, physical_offset: int, *, low: int) -> tuple[int, Entry] | None:
        """First entry from number `low` on whose record is at or after `physical_offset`, and its number.

        None if there is none.
        """
        high = end = self._files.end // self.entry_bytes
        while low < high:
            middle = (low + high) // 2
            found = self._real_entry(middle, high)
            if found is None or found[1].physical_offset >= physical_offset:
                # The first entry is before the middle also if there are only blanks from the middle on.
                high = middle
            else:
                low = found[0] + 1
        return self._real_entry(low, end)

    def _real_entry(self, number: int, end: int) -> tuple[int, Entry] | None:
        """The first entry with a number in `[number, end)` that is not a blank."""
        while number < end:
            count = min(end - number, _CHUNK_BYTES // self.entry_bytes)
            # Nearly always the first one is real: do not read a chunk for it.
            for size in (1, count):
                for index, entry in enumerate(self._decode(self._read(number, size), number)):
                    if not entry.is_blank:
                        return number + index, entry
            number += count
        return None

    # -- start -----------------------------------------------------------------------------------------

    def recover(self, *, synced_offset: int | None = None) -> None:
        """Open the files and find the end: the first invalid entry of the last three.

        See docs/protocol/store.md#end-of-a-queue.

        `synced_offset`: entries of records before it are on disk, those of others may not be: a power cut may
        have left later ones alone. Then more files are looked at, as far back as such entries go. All bytes
        after the end are zeroed or deleted. Raises StoreError for files that cannot be used.
        """
        files = self._files
        files.load(size_key=self.size_key)
        files.cut(self._valid_end(synced_offset))
        # A power cut while a gap was being filled leaves blanks at the end.
        if (last := self._last_entry()) is not None and last.is_blank:
            files.cut(self._end_of_real_entries())
        self._find_ends()
        if not files.is_empty:
            self._min_offset = self._entry_at(files.start // self.entry_bytes).queue_offset

    def _valid_end(self, synced_offset: int | None) -> int:
        """Byte after the last valid entry, looked for as `recover` says."""
        files = self._files
        starts = files.file_starts()
        if not starts:
            return files.end
        number = max(0, len(starts) - _RECOVERY_FILES)
        if synced_offset is not None:
            while number > 0 and not self._is_before(starts[number], synced_offset):
                number -= 1
        position = starts[number]
        chunk_bytes = _CHUNK_BYTES // self.entry_bytes * self.entry_bytes
        while position < files.end:
            data = files.read(position, chunk_bytes)
            valid_bytes = self._leading_valid(data) * self.entry_bytes
            position += valid_bytes
            if valid_bytes < len(data):
                break
        return position

    def _is_before(self, position: int, physical_offset: int) -> bool:
        """Whether the entry at a byte is there, and is one of a record before `physical_offset`."""
        data = self._files.read(position, self.entry_bytes)
        offset, _size = _RECORD(data)
        return self._leading_valid(data) == 1 and offset < physical_offset

    def _end_of_real_entries(self) -> int:
        """Byte after the last entry that is not a blank."""
        first, number = self._files.start // self.entry_bytes, self._files.end // self.entry_bytes
        while number > first:
            chunk_first = max(first, number - _CHUNK_BYTES // self.entry_bytes)
            entries = list(self._decode(self._read(chunk_first, number - chunk_first), chunk_first))
            for index in range(len(entries) - 1, -1, -1):
                if not entries[index].is_blank:
                    return (chunk_first + index + 1) * self.entry_bytes
            number = chunk_first
        return self._files.start

    def _find_ends(self) -> None:
        """Drop the pending entries, and find out from the files where the queue ends. Raises StoreError."""
        # Unknown while the disk is read, and if that fails.
        self._flushed_physical_offset = self._first_physical_offset = -1
        self.discard()
        self._min_offset = min(self._min_offset, self.max_offset)
        last = self._last_entry()
        self._set_last(last)
        self.discard()
        self._min_offset = min(self._min_offset, self.max_offset)

    def truncate_dirty(self, physical_offset: int) -> None:
        """Drop every entry whose record starts at or after `physical_offset`.

        See docs/protocol/store.md#end-of-the-log.

        Raises StoreError if the disk refuses.
        """
        files = self._files
        last = self._last_entry()
        if last is not None and last.physical_offset >= physical_offset:
            found = self._find_from(physical_offset, low=files.start // self.entry_bytes)
            if found is not None:
                files.cut(found[0] * self.entry_bytes)
            if not files.is_empty:
                files.cut(self._end_of_real_entries())
        self._find_ends()

    def sync_from(self, physical_offset: int) -> None:
        """Have the next sync cover all entries of records at or after `physical_offset`. Raises StoreError.

        The process that wrote them may have been killed before it synced them, and dispatch passes over what
        is there.
        """
        files = self._files
        found = self._find_from(physical_offset, low=files.start // self.entry_bytes)
        if found is not None:
            files.sync_from(found[0] * self.entry_bytes)

    # -- deletion of old log files -------------------------------------------------------------------------

    def correct_min_offset(self, log_min_offset: int) -> None:
        """Move `min_offset` to the first message that the log still holds, `max_offset` if none (5.5)."""
        if self._first_physical_offset >= log_min_offset:
            return
        # Unknown while the disk is read, and if that fails.
        self._first_physical_offset = -1
        number = self._number_of(self._min_offset)
        # Nearly always the first one: a start reads once for each queue, not for each step of a search.
        found = self._real_entry(number, self._files.end // self.entry_bytes)
        if found is not None and found[1].physical_offset < log_min_offset:
            found = self._find_from(log_min_offset, low=found[0] + 1)
        if found is None:
            self._min_offset = self.max_offset
        else:
            self._min_offset = found[1].queue_offset
            self._first_physical_offset = found[1].physical_offset

    def delete_before(self, log_min_offset: int) -> int:
        """Delete files whose last record is no longer in the log, never the last file.

        See docs/protocol/store.md#deletion-of-files.

        Returns how many. `min_offset` is corrected. Raises StoreError if the disk refuses.
        """
        self.correct_min_offset(log_min_offset)
        files = self._files
        all_but_last = files.file_starts()[:-1]
        if not all_but_last:
            return 0
        first_position = self._number_of(self._min_offset) * self.entry_bytes
        deleted = 0
        for start in all_but_last:
            if start + files.file_bytes > first_position:
                break
            files.drop_first_file()
            deleted += 1
        return deleted

    def destroy(self) -> None:
        """Delete the queue's files. Raises StoreError; some or all of the later entries are deleted then."""
        try:
            self._files.destroy()
        finally:
            self._find_ends()
