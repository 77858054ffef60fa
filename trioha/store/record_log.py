"""Records in files of one size: bytes `[min_offset, max_offset)`, read and appended as they are.

See docs/protocol/store.md#files, docs/protocol/store.md#records.

Theory of operation. The log is synchronous and has a single writer, the trio thread; it needs no locks and
never awaits. Appends move `appended`, flushes move `flushed`; all other parts of the node wait for these
watermarks. A record's first eight bytes (length and magic) are written after all others, so a process that is
killed in the middle of an append leaves no bytes that could be mistaken for a record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from trioha.errors import StoreError
from trioha.store import compiled_records
from trioha.store.callbacks import Callbacks
from trioha.store.log_files import NO_BYTES, LogFiles
from trioha.store.mapped_file import MappedFile
from trioha.store.read_faults import ReadFaults
from trioha.store.record_layout import BLANK, BLANK_BYTES, MAGIC_BLANK
from trioha.store.record_starts import RecordStarts
from trioha.store.syncing import SyncWork

_COMMIT_BYTES: Final = BLANK.size
"""Of totalSize and magic: what makes a record of the bytes after them."""
PWRITE_BYTES_MIN: Final = 6 * 1024
"""From here on the system call is cheaper than storing into the map (docs/where-time-goes.md#a-send)."""


class RecordLog:
    """The records in one directory."""

    def __init__(self, directory: Path, *, file_bytes: int, files: list[MappedFile] | None = None) -> None:
        self.file_bytes = file_bytes
        self._files = LogFiles(directory, file_bytes=file_bytes, files=files or [])
        self.last_store_timestamp_ms = 0
        """storeTimestamp of the newest record, 0 for an empty log."""
        self._on_restart: Callbacks[[]] = Callbacks()
        self._on_cut: Callbacks[[int]] = Callbacks()
        self.before_restart: Callbacks[[]] = Callbacks()
        """Called before the log begins anew, to delete its queues and index. They are deleted first: after a
        kill in between they can be built again, but old ones could not be distinguished from those of the
        new log."""
        self._refused: tuple[MappedFile, int, int] | None = None
        """File, index and number of bytes that the disk has refused, and may hold in part."""
        self.starts = RecordStarts(self._files)
        self.appended = self._files.appended
        """End of the log: everything before it is whole records. Moved by appends only."""
        self.flushed = self._files.flushed
        """Everything before it is on disk. Moved by the flush task; never beyond `appended`."""

    def on_restart(self, callback: Callable[[], None]) -> None:
        """Call `callback` whenever the log begins anew, before any byte of the new log is there.

        For parts that hold offsets of the old log and do not wait for a watermark: a wait ends by itself. A
        bound method is called as long as others keep its object.
        """
        self._on_restart.add(callback)

    def on_cut(self, callback: Callable[[int], None]) -> None:
        """Call `callback` with the log's new end before each cut, as `on_restart`'s."""
        self._on_cut.add(callback)

    # -- where the log is ------------------------------------------------------------------------------

    @property
    def directory(self) -> Path:
        """Where the files are."""
        return self._files.directory

    @property
    def min_offset(self) -> int:
        """Offset of the first byte that is there."""
        return self._files.start_offset

    @property
    def max_offset(self) -> int:
        """Offset of the first free byte."""
        return self.appended.offset

    @property
    def is_empty(self) -> bool:
        """Whether the log holds no byte."""
        return self.max_offset == self.min_offset

    @property
    def files(self) -> tuple[MappedFile, ...]:
        """The log's files, oldest first."""
        return tuple(self._files.files)

    @property
    def read_faults(self) -> ReadFaults:
        """Bytes that the disk did not give."""
        return self._files.read_faults

    @property
    def next_file_offset(self) -> int:
        """Where the file after the last one starts."""
        return self._files.end_offset

    def read(self, offset: int, limit_bytes: int) -> memoryview:
        """Up to `limit_bytes` from `offset` on, never across a file's end.

        Without copying near the log's end, from where the file is mapped; what was synced long ago is read by
        a call, into memory of its own. Empty if `offset` is the log's end or outside of the log. Raises
        StoreError if the disk does not give the bytes.
        """
        return self._files.part(offset, limit_bytes)

    def common_records(self, entries: bytes, bytes_max: int) -> tuple[int, memoryview] | None:
        """The records that entries of a consume queue name: their number, and all of them in one view.

        They are checked but for their bodies, and taken while they have at most `bytes_max` bytes in all.
        None unless all are common, in the file of the first one and not longer, and the disk gives them.
        """
        data = self._files.joined(entries, bytes_max)
        records = compiled_records.count_records(data, entries)
        return (records, memoryview(data)) if records else None

    # -- appending -----------------------------------------------------------------------------------------

    def _room_for(self, size: int) -> tuple[MappedFile, int]:
        """File and index where `size` bytes of records go; a file they do not fit is ended.

        At least eight bytes always end a full file (docs/protocol/store.md#ends-of-files). Raises StoreError
        if no file can be made, with nothing changed, or if the disk does not clear what it has refused.
        """
        file = self._last_file()
        at = self.appended.offset - file.start_offset
        left = file.size - at
        if at == 0 or size + BLANK_BYTES <= left:
            return file, at
        following = self._files.add(file.end_offset)
        BLANK.pack_into(file.view, at, left, MAGIC_BLANK)
        # Whatever becomes of the record: the next one goes where the files end.
        self.appended.advance(file.end_offset)
        return following, 0

    def _append(
        self,
        file: MappedFile,
        at: int,
        first: memoryview,
        rest: memoryview = NO_BYTES,
        *,
        starts: Iterable[int],
    ) -> None:
        """Append whole records at index `at` of the last file: `first`, then `rest`. They begin at `starts`.

        Raises StoreError if the disk refuses them; the log is as it was then.
        """
        size = len(first) + len(rest)
        view = file.view
        if size < PWRITE_BYTES_MIN:
            view[at + len(first) : at + size] = rest
            view[at + _COMMIT_BYTES : at + len(first)] = first[_COMMIT_BYTES:]
        else:
            self._write(file, at + _COMMIT_BYTES, first[_COMMIT_BYTES:], rest)
            view = file.view
        view[at : at + _COMMIT_BYTES] = first[:_COMMIT_BYTES]
        self.starts.note_all(starts)
        self.appended.advance(file.start_offset + at + size)

    def append_records(
        self, data: memoryview, *, first: memoryview = NO_BYTES, last_store_timestamp_ms: int
    ) -> None:
        """Append a master's whole, checked records as they are, those in `first` before those in `data`.

        For a replica; `first` is a record that it put together from several frames. The records must not
        cross a file's end. Raises StoreError if a file is needed and cannot be made, or the disk refuses the
        bytes; the log is as it was then.
        """
        max_offset = self.appended.offset
        file = self._last_file()
        at = max_offset - file.start_offset
        size = len(first) + len(data)
        assert size <= file.size - at, f"{size} bytes at {max_offset} cross the end of {file.path.name}"
        if not first:
            first, data = data, NO_BYTES
        self._append(file, at, first, data, starts=(max_offset,))
        self.last_store_timestamp_ms = last_store_timestamp_ms

    def _write(self, file: MappedFile, at: int, *chunks: memoryview) -> None:
        """Write `chunks` beyond the log's end by the system call.

        Raises StoreError if the disk refuses them; what it has written of them is cleared before anything
        else is appended.
        """
        try:
            file.write(at, *chunks)
        except StoreError:
            self._refused = file, at, sum(map(len, chunks))
            raise

    def _clear_refused(self) -> None:
        """Clear what the disk may have written of bytes that it refused. Raises StoreError if it refuses.

        Another record in the place of the first one would bring back those after it.
        """
        assert self._refused is not None
        file, at, size = self._refused
        file.write(at, memoryview(bytes(size)))
        self._refused = None

    def write_filler(self, offset: int, data: memoryview) -> None:
        """Write bytes that follow a blank's header; `append_blank` writes that when they are all there."""
        max_offset = self.appended.offset
        file = self._last_file()
        assert max_offset + BLANK_BYTES <= offset <= offset + len(data) <= file.end_offset
        self._write(file, offset - file.start_offset, data)

    def append_blank(self, header: bytes) -> None:
        """End the current file with a blank, whose filler is there already."""
        file = self._last_file()
        at = self.appended.offset - file.start_offset
        file.view[at : at + BLANK_BYTES] = header
        self.appended.advance(file.end_offset)

    def _last_file(self) -> MappedFile:
        """The file for the next byte, made if needed. Raises StoreError, also while the disk does not clear
        what it has refused."""
        if self._refused is not None:
            self._clear_refused()
        max_offset = self.appended.offset
        return self._files.last_with(max_offset) or self._files.add(max_offset)

    # -- files ---------------------------------------------------------------------------------------------

    def preallocate(self, file: MappedFile) -> None:
        """Keep a preallocated file, as `LogFiles.preallocate`."""
        self._files.preallocate(file)

    @property
    def has_preallocated(self) -> bool:
        """Whether the next file is there already."""
        return self._files.preallocated is not None

    def delete_first_file(self) -> None:
        """Delete the oldest file, which must not be the last: the log begins after it then.

        Slices of it that are being sent stay valid. Raises StoreError if it cannot be deleted, with nothing
        changed.
        """
        self._files.delete_first()

    def start_at(self, offset: int) -> None:
        """Let an empty log begin at `offset`, a file start: a replica begins where its master does.

        Raises StoreError if a file that was made for it cannot be deleted; it begins where it did then.
        """
        assert self.is_empty, "only an empty log can begin elsewhere"
        assert offset % self.file_bytes == 0, (
            f"{offset} is not the start of a file of {self.file_bytes} bytes"
        )
        self._files.restart_at(offset)
        self._refused = None
        self.starts.clear()
        for mark in (self.appended, self.flushed):
            # Waits end even where the mark stays or moves forward: they were for offsets of another log.
            mark.rewind(min(offset, mark.offset))
            mark.advance(offset)
        self._on_restart()

    def cut(self, offset: int, *, last_store_timestamp_ms: int) -> None:
        """Let the log end at `offset`, the start of a record before its end: on disk when this returns.

        `last_store_timestamp_ms` is `starts.store_timestamp_before(offset)`. `flushed` must be at `offset` at
        least: all of the log is on disk afterwards. `store.cutting` also cuts what is built from the log.
        Blocks. Raises StoreError and OSError with a part of it done: the log must not be used any more.
        """
        assert self.flushed.offset >= offset, f"{self.flushed.offset} is flushed, the cut is at {offset}"
        # The rest of an unfinished record would follow other bytes: connections end before any byte changes.
        self._on_cut(offset)
        self.starts.cut(offset)
        self.last_store_timestamp_ms = last_store_timestamp_ms
        # `flushed` is never beyond `appended`; waits end also for offsets that stay.
        self.flushed.rewind(offset)
        self.appended.rewind(offset)
        self._files.cut(offset)
        # The rest of the last file was cleared.
        self._refused = None

    def archive(self, directory: Path) -> None:
        """Move all files to `directory`, which must not exist, and go on with an empty log.

        Raises OSError if the files cannot be moved, StoreError if what was built from them cannot be deleted;
        the log is then as it was, and what was built from it is built again.
        """
        try:
            self.before_restart()
            self._files.discard_preallocated()
            self._files.archive(directory)
        except (OSError, StoreError):
            # Dispatch has to begin anew although the log stays: it waits for these marks.
            for mark in (self.appended, self.flushed):
                mark.rewind(mark.offset)
            raise
        self._files.close_all()
        self.last_store_timestamp_ms = 0
        for mark in (self.appended, self.flushed):
            mark.rewind(self.min_offset)
        self.start_at(0)

    def sync_work(self, start_offset: int, end_offset: int) -> SyncWork:
        """What a worker thread runs to put bytes `[start_offset, end_offset)` on disk.

        It needs no new descriptor for bytes that are not flushed: their files have theirs.
        """
        return self._files.sync_work(start_offset, end_offset)

    def hold_last_file(self) -> None:
        """Keep a descriptor for the file that is written to. Raises StoreError if there is none."""
        self._files.hold_last()

    def close(self) -> None:
        """Close all files, and delete the preallocated one. Flush first; no sync may be running."""
        self._files.close()
