"""Entries of one length in files of one length: what consume queues are made of (spec store 1, 3).

Entries are written with `pwrite` and read with `pread`, not through a map: a queue's file is sparse (a broker
may have ten thousand queues of 6 MB each), and a full disk must be an error of a call, not the end of the
process. Writes come in batches, one call for all of a queue's entries in a batch.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from attrs import frozen

from trioha.errors import StoreError
from trioha.store.mapped_file import FILE_NAME_DIGITS, file_name, make_whole

OPEN_FILES_MAX = 256
"""File descriptors that all queues of a store share."""
_ZERO_CHECK_BYTES = 64 * 1024


@frozen
class SyncWork:
    """Files and folders with writes that are not on disk yet, taken at one moment by the writing thread."""

    paths: tuple[Path, ...]

    def run(self) -> None:
        """Put them on disk; one that has been deleted meanwhile is left out.

        Blocks: for a worker thread. Raises OSError; what a failed sync leaves is unknown, so nothing may be
        promised after it.
        """
        for path in self.paths:
            try:
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                continue
            try:
                os.fsync(fd)
            finally:
                os.close(fd)


class FileCache:
    """Open files by path, at most `open_files_max`; the one used longest ago is closed for the next.

    It also knows which files have been written since the last `take_dirty`.
    """

    def __init__(self, open_files_max: int = OPEN_FILES_MAX) -> None:
        assert open_files_max >= 1
        self._open_files_max = open_files_max
        self._fds: dict[Path, int] = {}
        self._dirty: dict[Path, None] = {}

    @property
    def open_files(self) -> int:
        """How many files are open now."""
        return len(self._fds)

    def fd(self, path: Path) -> int:
        """Descriptor of an existing file, good until the next call. Raises OSError."""
        fd = self._fds.pop(path, -1)
        if fd < 0:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            self._make_room()
        self._fds[path] = fd
        return fd

    def create(self, path: Path, *, size: int) -> int:
        """Make a sparse file of `size` zeros, and its folders. Raises OSError, leaving no file.

        FileExistsError if there is one already.
        """
        missing: list[Path] = []
        folder = path.parent
        while not folder.exists():
            missing.append(folder)
            folder = folder.parent
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = make_whole(path, lambda fd: os.ftruncate(fd, size))
        self._make_room()
        self._fds[path] = fd
        # A file is there after a power cut only if its folder's entry is.
        self._dirty |= dict.fromkeys((path, path.parent, *(made.parent for made in missing)))
        return fd

    def mark_dirty(self, path: Path) -> None:
        """`path` has writes that are not on disk."""
        self._dirty[path] = None

    def take_dirty(self) -> SyncWork:
        """All that was written since the last call."""
        work = SyncWork(tuple(self._dirty))
        self._dirty.clear()
        return work

    def forget(self, path: Path) -> None:
        """Close `path` and drop its dirt: it is being deleted."""
        fd = self._fds.pop(path, -1)
        if fd >= 0:
            os.close(fd)
        self._dirty.pop(path, None)

    def close(self) -> None:
        """Close all files."""
        for fd in self._fds.values():
            os.close(fd)
        self._fds.clear()

    def _make_room(self) -> None:
        while len(self._fds) >= self._open_files_max:
            os.close(self._fds.pop(next(iter(self._fds))))


class EntryFiles:
    """Bytes `[start, end)` of one queue in its folder, in files of `file_bytes` each.

    `start` is the first file's first byte, `end` the first free byte; both are multiples of `entry_bytes`.
    All calls raise StoreError, naming the file, if the disk refuses; the offsets are then what they were.
    """

    __slots__ = ("_cache", "_paths", "directory", "end", "entry_bytes", "file_bytes", "start")

    def __init__(self, directory: Path, *, entry_bytes: int, file_bytes: int, cache: FileCache) -> None:
        assert file_bytes % entry_bytes == 0, f"{file_bytes} bytes hold no whole number of {entry_bytes}"
        self.directory = directory
        self.entry_bytes = entry_bytes
        self.file_bytes = file_bytes
        self.start = 0
        self.end = 0
        self._paths: dict[int, Path] = {}
        self._cache = cache

    def load(self, *, size_key: str) -> None:
        """Find the files; every one counts as full until `cut`.

        Raises StoreError for a file of another length or a missing one; `size_key` is the setting to blame.
        An empty last file is one that was being made when the process ended: it is removed.
        """
        try:
            found = sorted(
                (entry.name, entry.stat().st_size)
                for entry in os.scandir(self.directory)
                if len(entry.name) == FILE_NAME_DIGITS and entry.name.isdecimal() and entry.is_file()
            )
            while found and found[-1][1] == 0:
                (self.directory / found.pop()[0]).unlink()
        except OSError as error:
            raise StoreError(f"cannot be read: {error.strerror}", path=self.directory) from error
        self._paths.clear()
        for name, size in found:
            path = self.directory / name
            start = int(name)
            if size != self.file_bytes:
                raise StoreError(
                    f"has {size} bytes, the configuration says {self.file_bytes}",
                    path=path,
                    hint=f"{size_key} must be what the store was made with",
                )
            expected = self.end if self._paths else start - start % self.file_bytes
            if start != expected:
                raise StoreError(
                    f"starts at {start}, expected was {expected}",
                    path=path,
                    hint="a file of the queue is missing; remove the queue's folder to have it rebuilt",
                )
            if not self._paths:
                self.start = start
            self._paths[start] = path
            self.end = start + self.file_bytes
        if not self._paths:
            self.start = self.end = 0

    def file_starts(self) -> tuple[int, ...]:
        """Start of each file, oldest first."""
        return tuple(self._paths)

    def restart(self, start: int) -> None:
        """Let an empty queue begin at `start`, a multiple of the file length."""
        assert self.end == self.start, "only an empty queue can begin elsewhere"
        assert start % self.file_bytes == 0
        self._remove(tuple(self._paths))
        self.start = self.end = start

    def append(self, data: bytes) -> None:
        """Write whole entries at the end. After an error nothing of them counts."""
        assert len(data) % self.entry_bytes == 0
        end = self.end
        done = 0
        while done < len(data):
            file_start = end - end % self.file_bytes
            at = end - file_start
            part = min(len(data) - done, self.file_bytes - at)
            piece = data if part == len(data) else data[done : done + part]
            path = self._paths.get(file_start)
            try:
                if path is None:
                    path = self.directory / file_name(file_start)
                    fd = self._cache.create(path, size=self.file_bytes)
                    self._paths[file_start] = path
                else:
                    fd = self._cache.fd(path)
                while piece:
                    wrote = os.pwrite(fd, piece, at)
                    at += wrote
                    piece = piece[wrote:]
            except OSError as error:
                raise StoreError(
                    f"cannot be written: {error.strerror}",
                    path=path or self.directory,
                    hint="free disk space; nothing is lost, queues are built from the log",
                ) from error
            self._cache.mark_dirty(path)
            end += part
            done += part
        self.end = end

    def read(self, position: int, size: int) -> bytes:
        """Bytes `[position, position + size)`, less where the queue begins later or ends before."""
        position = max(position, self.start)
        end = min(position + size, self.end)
        parts: list[bytes] = []
        while position < end:
            file_start = position - position % self.file_bytes
            want = min(end, file_start + self.file_bytes) - position
            path = self._paths[file_start]
            try:
                part = os.pread(self._cache.fd(path), want, position - file_start)
            except OSError as error:
                raise StoreError(f"cannot be read: {error.strerror}", path=path, offset=position) from error
            if len(part) != want:
                raise StoreError(
                    f"ends at byte {position - file_start + len(part)} of {self.file_bytes}",
                    path=path,
                    hint="the file was cut by someone else; remove the queue's folder to have it rebuilt",
                )
            parts.append(part)
            position += want
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def cut(self, end: int) -> None:
        """End the queue at `end`: later files are deleted, what follows in its file becomes zero."""
        assert self.start <= end <= self.end
        self._remove(tuple(start for start in self._paths if start >= end))
        file_start = end - end % self.file_bytes
        path = self._paths.get(file_start)
        if path is not None:
            try:
                # Zeros without writing them: stale entries behind the end must not come back at a next start.
                fd = self._cache.fd(path)
                if not _is_zero_from(fd, end - file_start):
                    os.ftruncate(fd, end - file_start)
                    os.ftruncate(fd, self.file_bytes)
                    self._cache.mark_dirty(path)
            except OSError as error:
                raise StoreError(f"cannot be cut: {error.strerror}", path=path, offset=end) from error
        self.end = end
        if not self._paths:
            # Nothing is left: the next entry may begin anywhere.
            self.start = self.end = 0

    def drop_first_file(self) -> None:
        """Delete the oldest file; never the last one."""
        assert len(self._paths) > 1, "the last file stays"
        self._remove((self.start,))
        self.start += self.file_bytes

    def destroy(self) -> None:
        """Delete all files and the folder if it is empty then."""
        self._remove(tuple(self._paths))
        self.start = self.end = 0
        try:
            self.directory.rmdir()
        except OSError:
            # Something else lies in it, or it was never made: not ours to remove.
            return

    def _remove(self, starts: tuple[int, ...]) -> None:
        # From the end on, so that an error leaves no hole.
        for start in reversed(starts):
            path = self._paths[start]
            self._cache.forget(path)
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise StoreError(f"cannot be deleted: {error.strerror}", path=path) from error
            del self._paths[start]


def _is_zero_from(fd: int, at: int) -> bool:
    """Whether a file holds nothing but zeros from `at` on; holes are passed without reading them."""
    size = os.fstat(fd).st_size
    while at < size:
        try:
            at = os.lseek(fd, at, os.SEEK_DATA)
            stop = os.lseek(fd, at, os.SEEK_HOLE)
        except OSError as error:
            if error.errno == errno.ENXIO:
                # No data up to the end.
                return True
            if error.errno != errno.EINVAL:
                raise
            # A file system that knows no holes.
            stop = size
        while at < stop:
            data = os.pread(fd, min(stop - at, _ZERO_CHECK_BYTES), at)
            if not data or data.count(0) != len(data):
                return False
            at += len(data)
    return True
