"""One file of a log, mapped whole."""

from __future__ import annotations

import errno
import mmap
import os
import tempfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import cast

from trioha.errors import StoreError

FILE_NAME_DIGITS = 20

_ZERO_CHUNK = bytes(1 << 20)

_fdatasync = getattr(os, "fdatasync", os.fsync)


def file_name(start_offset: int) -> str:
    """Name of the file whose first byte has this offset: 20 decimal digits (spec store 1)."""
    return f"{start_offset:0{FILE_NAME_DIGITS}d}"


class MappedFile:
    """A file of fixed length, mapped into memory: bytes `[start_offset, start_offset + size)` of a log.

    `view` is the whole file. Slices of it stay usable after `close`: the mapping goes when the last of them
    does, so a connection that still sends from a closed file reads what it read before.
    """

    __slots__ = ("_fd", "path", "size", "start_offset", "view")

    def __init__(self, path: Path, *, fd: int, size: int, start_offset: int) -> None:
        self.path = path
        self.size = size
        self.start_offset = start_offset
        self._fd = fd
        self.view = memoryview(mmap.mmap(fd, size))

    def __repr__(self) -> str:
        return f"<MappedFile {self.path.name}, {self.size} bytes>"

    @property
    def end_offset(self) -> int:
        """Offset of the first byte behind this file."""
        return self.start_offset + self.size

    @classmethod
    def open(cls, path: Path, *, size: int) -> MappedFile:
        """Map an existing file of exactly `size` bytes; raises StoreError for one of another length."""
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise StoreError(f"cannot be opened: {error.strerror}", path=path) from error
        try:
            found = os.fstat(fd).st_size
            if found != size:
                raise StoreError(
                    f"has {found} bytes, the configuration says {size}",
                    path=path,
                    hint="mappedFileSizeCommitLog must be what the store was made with",
                )
            return cls(path, fd=fd, size=size, start_offset=int(path.name))
        except BaseException:
            os.close(fd)
            raise

    @classmethod
    def create(cls, directory: Path, *, start_offset: int, size: int) -> MappedFile:
        """Make the file that starts at `start_offset`, zero filled, with its space on disk reserved.

        Reserved space is what keeps a full disk an error that can be answered: a store into a sparse map
        would end the process. The file gets its name when it is whole: RocketMQ does not load a store with a
        file of another length, as a `kill -9` in the middle would leave one. An existing file of that name is
        taken as it is, which lets a worker thread prepare a file that the log may meanwhile make itself.
        Raises StoreError if there is no space.
        """
        path = directory / file_name(start_offset)
        try:
            if not path.exists():
                os.close(make_whole(path, lambda fd: _reserve(fd, size)))
                sync_directory(directory)
        except FileExistsError:
            return cls.open(path, size=size)
        except OSError as error:
            raise StoreError(
                f"no {size} bytes could be reserved: {error.strerror}", path=path, hint="free disk space"
            ) from error
        return cls.open(path, size=size)

    def write(self, at: int, *pieces: memoryview) -> None:
        """Write `pieces`, one behind the other, at index `at` by the system call.

        From about 16 KiB on it is cheaper than storing into the map, where the first touch of a page makes
        the kernel read and clear many around it. `view` shows it at once. Raises StoreError if the disk
        refuses it; an unknown part may be written then.
        """
        left = [piece for piece in pieces if piece]
        while left:
            try:
                written = os.pwritev(self._fd, left, at)
            except OSError as error:
                raise StoreError(f"cannot be written at {at}: {error.strerror}", path=self.path) from error
            at += written
            while left and written >= len(left[0]):
                written -= len(left.pop(0))
            if written:
                left[0] = left[0][written:]

    def sync(self) -> None:
        """Put all of the file's dirty pages on disk. Blocks: call it in a worker thread. Raises OSError."""
        _fdatasync(self._fd)

    def used_bytes(self, start: int = 0) -> int:
        """Index behind the last byte from `start` on that is not zero; `start` if there is none.

        Space that was reserved and never written is passed without reading it, where the file system can
        tell; the rest is read from the end, a MiB at a time. Raises OSError.
        """
        end = _written_end(self._fd, self.size)
        while end > start:
            piece = max(start, end - len(_ZERO_CHUNK))
            # Bytes compare at memory speed, views one item at a time.
            chunk = bytes(self.view[piece:end])
            if chunk != _ZERO_CHUNK[: end - piece]:
                return piece + len(chunk.rstrip(b"\0"))
            end = piece
        return start

    def duplicate(self) -> int:
        """A descriptor of its own for the file, which outlives `close`; the caller closes it."""
        return os.dup(self._fd)

    def close(self) -> None:
        """Give up the descriptor and `view`; the mapping ends with them, or with the last slice of it."""
        if self._fd < 0:
            return
        os.close(self._fd)
        self._fd = -1
        view, self.view = self.view, memoryview(b"")
        mapping = cast("mmap.mmap", view.obj)
        view.release()
        # The mapping has a descriptor of its own. References to it, from the frames of a traceback for
        # instance, would keep that, and the space of a deleted file, until the next garbage collection.
        with suppress(BufferError):
            # Refused while slices exist: the last of them ends it.
            mapping.close()

    def remove(self) -> None:
        """Close and delete the file."""
        self.close()
        self.path.unlink(missing_ok=True)


class FileSync:
    """Files to put on disk in a worker thread, whatever becomes of them meanwhile: closed, moved, deleted."""

    def __init__(self, files: Iterable[MappedFile]) -> None:
        """Called by the owner of the files. Raises OSError if there are no descriptors left."""
        self._fds: list[int] = []
        try:
            for file in files:
                self._fds.append(file.duplicate())
        except OSError:
            self.close()
            raise

    def run(self) -> None:
        """Put all dirty pages on disk. Blocks. Raises OSError."""
        try:
            for fd in self._fds:
                _fdatasync(fd)
        finally:
            self.close()

    def close(self) -> None:
        """Give up the descriptors; `run` does so by itself."""
        while self._fds:
            os.close(self._fds.pop())


def _written_end(fd: int, size: int) -> int:
    """Index behind which a file of `size` bytes is one hole; `size` where the file system knows no holes."""
    end = 0
    try:
        while end < size:
            end = os.lseek(fd, os.lseek(fd, end, os.SEEK_DATA), os.SEEK_HOLE)
    except AttributeError:
        return size
    except OSError as error:
        if error.errno == errno.ENXIO:
            # Nothing but a hole is left.
            return end
        if error.errno != errno.EINVAL:
            raise
        return size
    return end


def make_whole(path: Path, prepare: Callable[[int], None]) -> int:
    """Make the file `path` in one step; returns its descriptor, for reading and writing.

    It gets its name when `prepare`, called with the descriptor, has given it its length: RocketMQ 4.9 loads
    no store with a file of another length, as a `kill -9` in the middle would leave one. Raises
    FileExistsError if it is there already, and other OSErrors.
    """
    directory = path.parent
    try:
        fd = os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o644)
    except (AttributeError, OSError):
        # No nameless files here: a name outside of the folder, since RocketMQ loads every file in it.
        fd, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=directory.parent)
    else:
        name = ""
    try:
        prepare(fd)
        if name:
            os.fchmod(fd, 0o644)
            os.link(name, path)
        else:
            # With a folder to be relative to, link follows the symbolic link that /proc has for the file.
            folder = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.link(f"/proc/self/fd/{fd}", path, src_dir_fd=folder, follow_symlinks=True)
            finally:
                os.close(folder)
    except BaseException:
        os.close(fd)
        raise
    finally:
        if name:
            Path(name).unlink()
    return fd


def _reserve(fd: int, size: int) -> None:
    if not hasattr(os, "posix_fallocate"):
        os.ftruncate(fd, size)
        return
    try:
        os.posix_fallocate(fd, 0, size)
    except OSError as error:
        if error.errno not in {errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS}:
            raise
        os.ftruncate(fd, size)


def sync_directory(directory: Path) -> None:
    """Put the directory's entries on disk, so that a file made or renamed in it outlives a crash."""
    fd = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
