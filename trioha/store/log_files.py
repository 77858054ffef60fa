"""The files of a commit log (spec store 1): of one length, contiguous, each but the last one full.

Space on disk is reserved for a file when it is made, so that a full disk is an error at that moment and not
the end of the process later. A worker thread can preallocate the next file (`store.allocate`).

Files with bytes that are not on disk keep a descriptor, and so does the last one; the others need none.
"""

from __future__ import annotations

from pathlib import Path

import structlog

from trioha.errors import StoreError
from trioha.store.mapped_file import FILE_NAME_DIGITS, MappedFile
from trioha.store.syncing import SyncWork, sync_data, sync_directory

log = structlog.get_logger(__name__)


class LogFiles:
    """The files in one directory."""

    def __init__(self, directory: Path, *, file_bytes: int, files: list[MappedFile]) -> None:
        self.directory = directory
        self.file_bytes = file_bytes
        self.files = files
        """Oldest first."""
        self.start_offset = files[0].start_offset if files else 0
        """First byte of the first file, also if that is still to be made."""
        self.preallocated: MappedFile | None = None
        """The next file, if it was made ahead of need."""
        self.unsynced: list[SyncWork] = []
        """Syncs that have not run yet."""
        self._with_descriptor: list[MappedFile] = []

    @property
    def end_offset(self) -> int:
        """Where the next file starts."""
        return self.files[-1].end_offset if self.files else self.start_offset

    def file_of(self, offset: int) -> MappedFile:
        """The file that holds the byte at `offset`, which must be in one."""
        return self.files[(offset - self.start_offset) // self.file_bytes]

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
        file.expect_appends(0)
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
            self.files.pop()
        last = self.files[-1]
        last.clear_from(offset - last.start_offset)
        last.sync()
        sync_directory(self.directory)
        for file in self._with_descriptor:
            if file is not last:
                # Closed with its file, or all of it is on disk.
                file.release()
        self.hold_last(offset)

    def restart_at(self, offset: int) -> None:
        """Delete all files; the next one starts at `offset`. Raises StoreError if one cannot be deleted."""
        self.discard_preallocated()
        while self.files:
            self.files[-1].remove()
            self.files.pop()
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

    def sync_work(self, start_offset: int, end_offset: int, *, flushed_offset: int) -> SyncWork:
        """What a worker thread runs to put bytes `[start_offset, end_offset)` on disk.

        It needs no new descriptor for bytes at or after `flushed_offset`: their files have theirs.
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
                # What was synced before this, so that a reader of evicted bytes does not wait for each page.
                file.expect_reads(min(flushed_offset, file.end_offset) - file.start_offset)
        self._release_flushed(flushed_offset)
        return work

    def _release_flushed(self, flushed_offset: int) -> None:
        """Close the descriptors of files that are full and on disk: they get no more writes or syncs."""
        last = self.files[-1] if self.files else None
        needed = []
        for file in self._with_descriptor:
            if file is last or file.end_offset > flushed_offset:
                needed.append(file)
            else:
                file.release()
                file.expect_reads(file.size)
        self._with_descriptor = needed

    def hold_last(self, end_offset: int) -> None:
        """Keep a descriptor for the file that is written to, from `end_offset` on.

        Raises StoreError if there is none.
        """
        if self.files:
            self.files[-1].hold()
            self.files[-1].expect_appends(end_offset - self.files[-1].start_offset)
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


def _log_paths(directory: Path) -> list[Path]:
    """The files of a log, oldest first; other names are left alone, and so are folders (spec store 1)."""
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
    """Map a log's files, oldest first; raises StoreError for one of another length or a missing one between.

    An empty last file is one that was being made when the process ended: it is removed, and so is one of
    zeros after a gap.
    """
    if not directory.exists():
        return []
    paths = _log_paths(directory)
    while paths and paths[-1].stat().st_size == 0:
        paths.pop().unlink()
    files: list[MappedFile] = []
    try:
        for path in paths:
            file = MappedFile.open(path, size=size)
            file.release()
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
    except StoreError:
        for file in files:
            file.close()
        raise
    return files
