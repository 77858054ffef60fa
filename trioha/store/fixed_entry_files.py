"""Entries of one length in files of one length: what consume queues are made of (spec store 1, 3).

Entries are written with `pwrite` and read with `pread`, not through a map: a queue's file is sparse (a broker
may have ten thousand queues of 6 MB each), and a full disk must be an error of a call, not the end of the
process. Writes come in batches, one call for all of a queue's entries in a batch.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from trioha.errors import StoreError
from trioha.net.border import is_shortage
from trioha.store.mapped_file import FILE_NAME_DIGITS, create_atomically, file_name, hint_at
from trioha.store.syncing import SharedDescriptor, sync_whole

OPEN_FILES_MAX = 256
"""File descriptors that all queues of a store share."""
_ZERO_CHECK_BYTES = 64 * 1024
_GIVEN_UP = 8
"""Files that are closed when a sync found no descriptor."""
_WRITE_BYTES = 256 * 1024
"""Written at once at most, where blanks make a batch long."""


class SyncWork:
    """Files and directories with writes that are not on disk yet, taken at one moment by the writing thread.

    Of files that are open it holds the descriptors, so they are synced whatever becomes of them; it gives
    them back as it runs, or by `close`. The others it opens, and leaves out what the system has no descriptor
    for: they are in `left` afterwards, for the next time.
    """

    def __init__(
        self, paths: Iterable[Path], *, opened: Mapping[Path, SharedDescriptor] | None = None
    ) -> None:
        """`opened` are descriptors, some of them of these paths; this shares those."""
        self._left: dict[Path, SharedDescriptor | None] = dict.fromkeys(paths)
        for path, descriptor in (opened or {}).items():
            if path in self._left:
                self._left[path] = descriptor.share()

    @property
    def left(self) -> tuple[Path, ...]:
        """What is not on disk yet: everything before `run`."""
        return tuple(self._left)

    def run(self) -> None:
        """Put them on disk; one that has been deleted meanwhile is left out.

        Blocks: for a worker thread. Raises OSError; what a failed sync leaves is unknown, so nothing may be
        promised after it.
        """
        for path, descriptor in tuple(self._left.items()):
            try:
                fd = descriptor.fd if descriptor is not None else os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                del self._left[path]
                continue
            except OSError as error:
                if is_shortage(error):
                    continue
                raise
            try:
                sync_whole(fd)
            finally:
                if descriptor is None:
                    os.close(fd)
            del self._left[path]
            if descriptor is not None:
                descriptor.release()

    def close(self) -> None:
        """Give back the descriptors of what is left, which it is no longer to sync."""
        for path, descriptor in self._left.items():
            if descriptor is not None:
                self._left[path] = None
                descriptor.release()


class FileCache:
    """Open files by path, at most `open_files_max`; the one used longest ago is closed for the next.

    Where the system has no descriptor for one more, there may be fewer. It also knows which files have been
    written since the last `take_dirty`.
    """

    def __init__(self, open_files_max: int = OPEN_FILES_MAX) -> None:
        assert open_files_max >= 1
        self._open_files_max = open_files_max
        self._opened: dict[Path, SharedDescriptor] = {}
        self._dirty: dict[Path, None] = {}

    @property
    def open_files(self) -> int:
        """How many files are open now."""
        return len(self._opened)

    def fd(self, path: Path) -> int:
        """Descriptor of an existing file, good until the next call. Raises OSError."""
        descriptor = self._opened.pop(path, None)
        if descriptor is None:
            descriptor = SharedDescriptor(self._with_room(lambda: os.open(path, os.O_RDWR | os.O_CLOEXEC)))
        self._opened[path] = descriptor
        return descriptor.fd

    def create(self, path: Path, *, size: int) -> int:
        """Make a sparse file of `size` zeros, and its folders. Raises OSError, leaving no file.

        FileExistsError if there is one already.
        """
        self._make_folders(path.parent)
        fd = self._with_room(lambda: create_atomically(path, lambda fd: os.ftruncate(fd, size)))
        self._opened[path] = SharedDescriptor(fd)
        # A file is there after a power cut only if its folder's entry is.
        self._dirty |= dict.fromkeys((path, path.parent))
        return fd

    def _make_folders(self, folder: Path) -> None:
        if folder.exists():
            return
        self._make_folders(folder.parent)
        folder.mkdir(exist_ok=True)
        # Also if the file cannot be made then: who makes it later finds the folder there.
        self._dirty |= dict.fromkeys((folder, folder.parent))

    def _with_room(self, open_: Callable[[], int]) -> int:
        """What `open_` gives, with other files closed as far as it takes. Raises OSError."""
        while len(self._opened) >= self._open_files_max:
            self._close_oldest()
        while True:
            try:
                return open_()
            except OSError as error:
                if not is_shortage(error) or not self._opened:
                    raise
                self._close_oldest()

    def _close_oldest(self) -> None:
        self._opened.pop(next(iter(self._opened))).release()

    def mark_dirty(self, path: Path) -> None:
        """`path` has writes that are not on disk."""
        self._dirty[path] = None

    def take_dirty(self) -> SyncWork:
        """All that was written since the last call."""
        work = SyncWork(self._dirty, opened=self._opened)
        self._dirty.clear()
        return work

    def give_back(self, work: SyncWork) -> None:
        """What `work` has left is to be synced with the next one, which is to find a descriptor for it."""
        work.close()
        self._dirty = dict.fromkeys(work.left) | self._dirty
        for _ in range(min(_GIVEN_UP, len(self._opened)) if work.left else 0):
            self._close_oldest()

    def forget(self, path: Path) -> None:
        """Close `path` and drop its dirt: it is being deleted."""
        descriptor = self._opened.pop(path, None)
        if descriptor is not None:
            descriptor.release()
        self._dirty.pop(path, None)

    def close(self) -> None:
        """Close all files."""
        while self._opened:
            self._close_oldest()


class FixedEntryFiles:
    """Bytes `[start, end)` of one queue in its folder, in files of `file_bytes` each.

    `start` is the first file's first byte, `end` the first free byte; both are multiples of `entry_bytes`.
    All calls raise StoreError, naming the file, if the disk refuses; the offsets are then what they were.
    """

    __slots__ = ("_cache", "_paths", "_spare", "directory", "end", "entry_bytes", "file_bytes", "start")

    def __init__(self, directory: Path, *, entry_bytes: int, file_bytes: int, cache: FileCache) -> None:
        assert file_bytes % entry_bytes == 0, f"{file_bytes} bytes hold no whole number of {entry_bytes}"
        self.directory = directory
        self.entry_bytes = entry_bytes
        self.file_bytes = file_bytes
        self.start = 0
        self.end = 0
        self._paths: dict[int, Path] = {}
        """Files of `[start, end)`, by their first byte, oldest first."""
        self._spare: dict[int, Path] | None = None
        """Files that were made by an `append` that failed later: nothing in them counts."""
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
        self._spare = None
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

    @property
    def has_several(self) -> bool:
        """Whether there is a file beside the last one."""
        return len(self._paths) > 1

    @property
    def is_empty(self) -> bool:
        """Whether there is no entry."""
        return self.start == self.end

    def append(self, pieces: Sequence[bytes], *, start: int | None = None) -> None:
        """Write whole entries at the end: `pieces`, one behind the other. After an error none of them counts.

        An empty queue may begin at `start`, a multiple of the file length, instead of where it is.
        """
        assert start is None or (self.is_empty and start % self.file_bytes == 0)
        end = self.end if start is None else start
        made: dict[int, Path] = {}
        path = self.directory
        try:
            if self._spare is not None:
                self._remove_spare()
            for data in _joined(pieces):
                assert len(data) % self.entry_bytes == 0
                done = 0
                while done < len(data):
                    file_start = end - end % self.file_bytes
                    at = end - file_start
                    part = min(len(data) - done, self.file_bytes - at)
                    piece = data if part == len(data) else data[done : done + part]
                    found = self._paths.get(file_start) or made.get(file_start)
                    if found is None:
                        path = self.directory / file_name(file_start)
                        fd = self._cache.create(path, size=self.file_bytes)
                        made[file_start] = path
                    else:
                        path = found
                        fd = self._cache.fd(path)
                    self._cache.mark_dirty(path)
                    while piece:
                        wrote = os.pwrite(fd, piece, at)
                        at += wrote
                        piece = piece[wrote:]
                    end += part
                    done += part
        except OSError as error:
            if made:
                self._spare = made
            raise StoreError(
                f"cannot be written: {error.strerror}",
                path=path,
                hint=f"{hint_at(error)}; nothing is lost, queues are built from the log",
            ) from error
        self._paths |= made
        self.end = end
        if start is not None:
            self.start = start

    def _remove_spare(self) -> None:
        """Delete what a failed `append` has made. Raises OSError."""
        assert self._spare is not None
        for start in reversed(tuple(self._spare)):
            self._cache.forget(self._spare[start])
            self._spare[start].unlink(missing_ok=True)
            del self._spare[start]
        self._spare = None

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
        self._remove_from(end)
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
        self._unlink(self.start)
        self.start += self.file_bytes

    def destroy(self) -> None:
        """Delete all files and the folder if it is empty then. What is left after an error is the front."""
        self._remove_from(0)
        self.start = self.end = 0
        try:
            if self._spare is not None:
                self._remove_spare()
        except OSError as error:
            raise StoreError(f"cannot be deleted: {error.strerror}", path=self.directory) from error
        try:
            self.directory.rmdir()
        except OSError:
            # Something else lies in it, or it was never made: not ours to remove.
            return

    def _remove_from(self, position: int) -> None:
        """Delete the files that begin at or behind `position`, from the end on: an error leaves no hole."""
        for start in reversed(tuple(self._paths)):
            if start < position:
                break
            self._unlink(start)
            self.end = min(self.end, start)

    def _unlink(self, start: int) -> None:
        path = self._paths[start]
        self._cache.forget(path)
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise StoreError(f"cannot be deleted: {error.strerror}", path=path) from error
        del self._paths[start]


def _joined(pieces: Sequence[bytes]) -> Iterator[bytes]:
    """The pieces in few, but not long ones: blanks before a queue's first entry may be millions of bytes."""
    if sum(map(len, pieces)) <= _WRITE_BYTES:
        yield pieces[0] if len(pieces) == 1 else b"".join(pieces)
        return
    gathered: list[bytes] = []
    size = 0
    for piece in pieces:
        gathered.append(piece)
        size += len(piece)
        if size >= _WRITE_BYTES:
            yield b"".join(gathered)
            gathered.clear()
            size = 0
    if gathered:
        yield b"".join(gathered)


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
