"""The files of a commit log: of one length, contiguous, each but the last one full.

See docs/protocol/store.md#files.

Space on disk is reserved for a file when it is made, so that a full disk is an error at that moment and not
the end of the process later. A worker thread can preallocate the next file (`store.allocate`).

Files with bytes that are not on disk are mapped and keep a descriptor, and so does the last one. The others
are read by calls, which can fail: an error names file and offset, and ends only what needed the bytes.
"""

from __future__ import annotations

from pathlib import Path
from threading import Lock
from typing import Final

import structlog

from trioha.errors import StoreError
from trioha.store import compiled_records, system
from trioha.store.file_cache import FileCache
from trioha.store.mapped_file import FILE_NAME_DIGITS, MappedFile
from trioha.store.read_faults import ReadFaults
from trioha.store.syncing import SyncWork, sync_data, sync_directory
from trioha.watermark import Watermark

log = structlog.get_logger(__name__)

NO_BYTES: Final = memoryview(b"")
MAPPED_BYTES: Final = 16 << 20
"""So far before the log's end bytes are read from the map, and further where they are not on disk yet: slaves
that follow, dispatch, and consumers in step need these only. They have just been written, so they are in
memory."""
READ_FILES_MAX: Final = 2
"""Descriptors of files that are only read."""


class LogFiles:
    """The files in one directory."""

    def __init__(self, directory: Path, *, file_bytes: int, files: list[MappedFile]) -> None:
        self.directory = directory
        self.file_bytes = file_bytes
        self.files = files
        """Oldest first."""
        self.start_offset = files[0].start_offset if files else 0
        """First byte of the first file, also if that is still to be made."""
        self.appended = Watermark(self.start_offset)
        """End of the log."""
        self.flushed = Watermark(self.start_offset)
        """Everything before it is on disk."""
        self.preallocated: MappedFile | None = None
        """The next file, if it was made ahead of need."""
        self.unsynced: list[SyncWork] = []
        """Syncs that have not run yet."""
        self._with_descriptor: list[MappedFile] = []
        self._read_files = FileCache(READ_FILES_MAX)
        self._read_lock = Lock()
        """A node that becomes a master dispatches in a worker thread, while consumers read."""
        self.read_faults = ReadFaults()
        """Reads of files that are only read, and of old bytes of the others."""

    @property
    def end_offset(self) -> int:
        """Where the next file starts."""
        return self.files[-1].end_offset if self.files else self.start_offset

    def file_of(self, offset: int) -> MappedFile:
        """The file that holds the byte at `offset`, which must be in one."""
        return self.files[(offset - self.start_offset) // self.file_bytes]

    def part(self, offset: int, limit_bytes: int) -> memoryview:
        """As `RecordLog.read`."""
        end_offset = self.appended.offset
        if not self.start_offset <= offset < end_offset:
            return NO_BYTES
        file = self.file_of(offset)
        at = offset - file.start_offset
        end = min(at + limit_bytes, file.size, end_offset - file.start_offset)
        if self._is_in_map(file, offset):
            return file.view[at:end]
        return self.read(file, at, end)

    def _is_in_map(self, file: MappedFile, offset: int) -> bool:
        """Whether bytes of `file` from `offset` on are read from its map: no disk need give them."""
        is_recent = self.appended.offset - offset <= MAPPED_BYTES or offset >= self.flushed.offset
        return is_recent and file.is_held

    def read(self, file: MappedFile, start: int, end: int) -> memoryview:
        """Bytes `[start, end)` of one of the files, by a call. Raises StoreError, which is counted."""
        try:
            with self._read_lock:
                try:
                    fd = self._read_files.fd(file.path)
                except OSError as error:
                    raise file.cannot_be_opened(error) from error
                return file.read(start, end, fd=fd)
        except StoreError as error:
            # A file that was repaired meanwhile may be another one of that name.
            self._forget(file)
            self.read_faults.note(error)
            raise

    def joined(self, entries: bytes, bytes_max: int) -> bytes:
        """The bytes that entries of a consume queue name, see `find_spans`.

        Empty if they are not in one file, or the disk does not give them: `read` reports which.
        """
        offset = int.from_bytes(entries[:8], "big", signed=True)
        end_offset = self.appended.offset
        if not self.start_offset <= offset < end_offset:
            return b""
        file = self.file_of(offset)
        first = file.start_offset
        spans, size = compiled_records.find_spans(entries, bytes_max, first, min(file.end_offset, end_offset))
        if self._is_in_map(file, offset):
            view = file.view
            return b"".join([view[at : at + length] for at, length in spans])
        with self._read_lock:
            try:
                fd = self._read_files.fd(file.path)
            except OSError:
                return b""
            return system.read_spans(fd, spans, size) or b""

    def _forget(self, file: MappedFile) -> None:
        with self._read_lock:
            self._read_files.forget(file.path)

    def last_with(self, offset: int) -> MappedFile | None:
        """The last file if it holds `offset`, None if a new one is needed."""
        last = self.files[-1] if self.files else None
        return last if last is not None and offset < last.end_offset else None

    def add(self, start_offset: int) -> MappedFile:
        """The next file, made now if it was not preallocated. Raises StoreError, with nothing changed."""
        ahead = self.preallocated
        if ahead is not None and ahead.start_offset == start_offset:
            file, self.preallocated = ahead, None
        else:
            self.discard_preallocated()
            file = MappedFile.create(self.directory, start_offset=start_offset, size=self.file_bytes)
        self.files.append(file)
        self._with_descriptor.append(file)
        return file

    def preallocate(self, file: MappedFile) -> None:
        """Keep a file that was made ahead of need; one that came too late is closed: the log uses it already.

        So is one that was deleted meanwhile, or moved with its directory: nobody would find what is stored
        in it. Raises StoreError if one that is not needed cannot be deleted.
        """
        if not file.is_in_place():
            file.close()
        elif self.preallocated is None and file.start_offset == self.end_offset:
            self.preallocated = file
        elif any(known.start_offset == file.start_offset for known in self.files):
            file.close()
        else:
            try:
                file.remove()
            finally:
                file.close()

    def discard_preallocated(self) -> None:
        """Delete the preallocated file. Raises StoreError if it cannot be deleted."""
        if self.preallocated is not None:
            self.preallocated.remove()
            self.preallocated = None

    def delete_first(self) -> None:
        """Delete the oldest file, which must not be the last. Raises StoreError, with nothing changed."""
        assert len(self.files) > 1, "the last file is never deleted"
        self.files[0].remove()
        self._forget(self.files[0])
        del self.files[0]
        self.start_offset = self.files[0].start_offset

    def cut(self, offset: int) -> None:
        """Let the log end at `offset`, which is in it, on disk: later files are deleted, other bytes zeroed.

        The first file stays, also without a byte. All bytes before must be on disk. Blocks. Raises StoreError
        and OSError with a part of it done.
        """
        self.discard_preallocated()
        while len(self.files) > 1 and self.files[-1].start_offset >= offset:
            self.files[-1].remove()
            self._forget(self.files.pop())
        last = self.files[-1]
        last.clear_from(offset - last.start_offset)
        last.sync()
        sync_directory(self.directory)
        for file in self._with_descriptor:
            if file is not last:
                # Closed with its file, or all of it is on disk.
                file.release()
        self.hold_last()

    def restart_at(self, offset: int) -> None:
        """Delete all files; the next one starts at `offset`. Raises StoreError if one cannot be deleted."""
        self.discard_preallocated()
        while self.files:
            self.files[-1].remove()
            self._forget(self.files.pop())
        self._with_descriptor.clear()
        self.start_offset = offset

    def archive(self, directory: Path) -> None:
        """Rename the directory and make an empty one; raises OSError with the old one in its place.

        `close_all` has to follow.
        """
        self.directory.rename(directory)
        try:
            self.directory.mkdir()
            sync_directory(self.directory.parent)
        except OSError:
            if self.directory.exists():
                self.directory.rmdir()
            directory.rename(self.directory)
            raise

    def sync_work(self, start_offset: int, end_offset: int) -> SyncWork:
        """What a worker thread runs to put bytes `[start_offset, end_offset)` on disk.

        It needs no new descriptor for bytes that are not flushed: their files have theirs.
        """
        self.unsynced = [work for work in self.unsynced if work.left]
        work = SyncWork(sync_data)
        # Known to `close_all` from here on, also if a file has no descriptor to share.
        self.unsynced.append(work)
        for file in self.files:
            if file.start_offset < end_offset and start_offset < file.end_offset:
                span = (
                    max(start_offset - file.start_offset, 0),
                    min(end_offset - file.start_offset, file.size),
                )
                work.add(file.path, file.share(), span=span)
        self._release_flushed()
        return work

    def _release_flushed(self) -> None:
        """End the maps of files that are full and on disk: they get no more writes or syncs."""
        last = self.files[-1] if self.files else None
        needed = []
        for file in self._with_descriptor:
            if file is last or file.end_offset > self.flushed.offset:
                needed.append(file)
            else:
                file.release()
        self._with_descriptor = needed

    def hold_last(self) -> None:
        """Map the file that is written to. Raises StoreError if the system refuses."""
        if self.files:
            self.files[-1].hold()
            self._with_descriptor = [self.files[-1]]

    def close(self) -> None:
        """Delete the preallocated file and close all others. Flush first.

        No sync may be running; those that never ran are dropped.
        """
        for work in self.unsynced:
            work.close()
        self.unsynced.clear()
        ahead, self.preallocated = self.preallocated, None
        if ahead is not None:
            try:
                ahead.remove()
            except StoreError as error:
                # The next start finds it empty and removes it.
                log.warning("preallocated file stays", path=error.path, reason=error.reason)
                ahead.close()
        self._with_descriptor.clear()
        self.close_all()

    def close_all(self) -> None:
        """Close the log's files; syncs that have not run keep their descriptors."""
        for file in self.files:
            file.close()
        self.files.clear()
        with self._read_lock:
            self._read_files.close()


def _log_paths(directory: Path) -> list[Path]:
    """The files of a log, oldest first; other names are left alone, and so are folders.

    See docs/protocol/store.md#files.
    """
    return sorted(
        path
        for path in directory.iterdir()
        if len(path.name) == FILE_NAME_DIGITS and path.name.isdecimal() and path.is_file()
    )


def delete_files_from(directory: Path, offset: int) -> None:
    """Delete the files of a closed log that begin at or after `offset`, but not the first one, on disk.

    The last one first. Blocks. Raises OSError.
    """
    paths = _log_paths(directory)
    while len(paths) > 1 and int(paths[-1].name) >= offset:
        paths.pop().unlink()
    sync_directory(directory)


def list_files(directory: Path, *, size: int) -> list[MappedFile]:
    """A log's files, oldest first; raises StoreError for one of another length or a missing one between.

    A file before the last one that has become shorter than `size`, which others have, is damaged: what is in
    it can be read, and the rest is an error to its reader only. An empty last file is one that was being made
    when the process ended: it is removed, and so is one of zeros after a gap.
    """
    if not directory.exists():
        return []
    paths = _log_paths(directory)
    while paths and paths[-1].stat().st_size == 0:
        paths.pop().unlink()
    files: list[MappedFile] = []
    is_size_of_store = bool(paths) and paths[-1].stat().st_size == size
    for path in paths:
        file = MappedFile(path, size=size, start_offset=int(path.name))
        found = path.stat().st_size
        if is_size_of_store and found < size:
            log.error("a log file has lost its end", path=str(path), bytes=found, missing=size - found)
        else:
            file.check_length()
        files.append(file)
        expected = files[0].start_offset + (len(files) - 1) * size
        if file.start_offset != expected and path is paths[-1] and not file.used_bytes():
            # It was being preallocated when the log was cut before it, and the process ended.
            files.pop().remove()
            break
        if file.start_offset != expected:
            raise StoreError(
                f"starts at {file.start_offset}, the file before it ends at {expected}",
                path=path,
                hint="a file of the log is missing or mappedFileSizeCommitLog is not the store's",
            )
    return files
