"""One file of a log: mapped while it is written to, and read by calls afterwards."""

from __future__ import annotations

import errno
import mmap
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Final

from trioha.errors import StoreError
from trioha.net.descriptors import descriptor_limit, lowest_free_descriptor
from trioha.net.error_boundary import is_shortage
from trioha.store.mapping import end_map, map_file
from trioha.store.syncing import SharedDescriptor, sync_data, sync_whole

FILE_NAME_DIGITS = 20

_ZERO_CHUNK = bytes(1 << 20)
_NOT_MAPPED: Final = memoryview(b"")

_NO_NAMELESS_FILES = frozenset((errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOSYS))
"""Errors of a system, or a file system, without O_TMPFILE."""
DISK_FULL = frozenset((errno.ENOSPC, errno.EDQUOT))

DESCRIPTORS_LEFT_FREE: Final = 8
"""With fewer free descriptors a log makes no new file. Files that are not on disk hold one each, and a slow
disk may leave many of them; queues, index and checkpoint need a few at any time."""


MADV_RANDOM: Final[int | None] = getattr(mmap, "MADV_RANDOM", None)
"""Advice to the kernel about a map; None where the system has none of the kind."""


def file_name(start_offset: int) -> str:
    """Name of the file whose first byte has this offset: 20 decimal digits (docs/protocol/store.md#files)."""
    return f"{start_offset:0{FILE_NAME_DIGITS}d}"


class MappedFile:
    """A file of fixed length: bytes `[start_offset, start_offset + size)` of a log.

    A file that is written to, or has bytes that are not on disk, keeps a descriptor and a map (`hold`);
    `release` ends both. All others are read by calls (`read`): where the disk does not give a byte, a call
    raises an error, but a load from a map ends the process. So a log of any length has two or three mapped
    files.

    Slices of `view` stay usable after `release`: the mapping ends with the last of them, so a connection can
    still send from a closed file.

    The kernel does not read the map ahead (`hold`). With read-ahead, a store into a page that was not touched
    before makes it allocate and clear megabytes around the page, in folios of many pages, and on ext4 each
    first store into one of these pages takes a time that grows with the folio
    (docs/where-time-goes.md#what-all-paths-share).
    """

    __slots__ = ("_descriptor", "end_offset", "path", "size", "start_offset", "view")

    def __init__(self, path: Path, *, size: int, start_offset: int) -> None:
        self.path = path
        self.size = size
        self.start_offset = start_offset
        self.end_offset = start_offset + size
        """Offset of the first byte after this file."""
        self.view = _NOT_MAPPED
        """The whole file, while it is mapped; empty at other times."""
        self._descriptor: SharedDescriptor | None = None

    def __repr__(self) -> str:
        return f"<MappedFile {self.path.name}, {self.size} bytes>"

    @property
    def is_held(self) -> bool:
        """Whether the file has a descriptor and a map."""
        return self._descriptor is not None

    def check_length(self) -> None:
        """Raise StoreError if the file on disk is not there, or has another length."""
        try:
            found = self.path.stat().st_size
        except OSError as error:
            raise self.cannot_be_opened(error) from error
        if found != self.size:
            raise StoreError(
                f"has {found} bytes, the configuration says {self.size}",
                path=self.path,
                hint="mappedFileSizeCommitLog must be what the store was made with",
            )

    def cannot_be_opened(self, error: OSError) -> StoreError:
        """The error of a file that the system does not open."""
        return StoreError(f"cannot be opened: {error.strerror}", path=self.path, hint=hint_at(error))

    @classmethod
    def create(cls, directory: Path, *, start_offset: int, size: int) -> MappedFile:
        """Make the file that starts at `start_offset`, zero filled, with its space on disk reserved.

        Without reserved space, a store into the map would end the process when the disk is full. The file
        gets its name when it has its length, on disk: a `kill -9` or a power cut in between would leave one
        of another length, and neither this nor RocketMQ loads a store with such a file. An existing file of
        that name is opened: a worker thread and the log may both make the next file. Raises StoreError
        without space, or with fewer than DESCRIPTORS_LEFT_FREE descriptors.
        """
        path = directory / file_name(start_offset)
        fd = folder = -1
        try:
            folder = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
            # The kernel gives the lowest free number: if that is one of the last, fewer than these are free.
            free = lowest_free_descriptor(folder)
            if free is not None and free >= descriptor_limit() - DESCRIPTORS_LEFT_FREE:
                raise StoreError(
                    f"the last {DESCRIPTORS_LEFT_FREE} file descriptors are kept for other files",
                    path=path,
                    hint="full files need theirs until they are on disk: raise the limit (ulimit -n)",
                )
            if not path.exists():
                with suppress(FileExistsError):
                    fd = create_atomically(path, lambda fd: _reserve_on_disk(fd, size))
            # Also for a file that exists: its creator may have failed to do it.
            sync_whole(folder)
            file = cls(path, size=size, start_offset=start_offset)
            if fd < 0:
                file.check_length()
                file.hold()
            else:
                opened, fd = fd, -1
                file._map(opened)
        except OSError as error:
            raise StoreError(
                f"no {size} bytes could be reserved: {error.strerror}", path=path, hint=hint_at(error)
            ) from error
        else:
            return file
        finally:
            for opened in (fd, folder):
                if opened >= 0:
                    os.close(opened)

    def hold(self) -> None:
        """Keep a descriptor and a map from now on, for writes. Raises StoreError if the system has none."""
        if self._descriptor is not None:
            return
        try:
            self._map(os.open(self.path, os.O_RDWR | os.O_CLOEXEC))
        except OSError as error:
            raise self.cannot_be_opened(error) from error

    def _map(self, fd: int) -> None:
        """Map the file. Owns `fd` from now on. Raises OSError."""
        try:
            self.view = map_file(fd, self.size, self.path, first_offset=self.start_offset)
        except BaseException:
            os.close(fd)
            raise
        self._descriptor = SharedDescriptor(fd)
        mapping = self.view.obj
        if MADV_RANDOM is not None and isinstance(mapping, mmap.mmap):
            # A system that refuses it is slower.
            with suppress(OSError):
                mapping.madvise(MADV_RANDOM)

    def is_in_place(self) -> bool:
        """Whether the path names this file; not if it names none or another one, or cannot be looked at.

        For a file that has a descriptor.
        """
        assert self._descriptor is not None, "the path alone does not show which file was mapped"
        try:
            return os.path.samestat(os.fstat(self._descriptor.fd), self.path.stat())
        except OSError:
            # A file that is needed is made, or opened, again.
            return False

    def release(self) -> None:
        """End descriptor and map: all bytes are on disk, and no more will be written."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            descriptor.release()
        view, self.view = self.view, _NOT_MAPPED
        if view is not _NOT_MAPPED:
            end_map(view)

    def share(self) -> SharedDescriptor:
        """The file's descriptor for another user, which has to release it, also after the file is closed.

        Raises StoreError if the file has none, and the system neither.
        """
        if self._descriptor is not None:
            return self._descriptor.share()
        try:
            return SharedDescriptor(os.open(self.path, os.O_RDWR | os.O_CLOEXEC))
        except OSError as error:
            raise self.cannot_be_opened(error) from error

    def read(self, start: int, end: int, *, fd: int | None = None) -> memoryview:
        """Bytes `[start, end)` of the file, in memory of their own, by a call that can fail.

        `fd` is a descriptor of the file, for a caller that keeps one. Raises StoreError with the place of the
        first byte that the disk does not give, whether its sector is bad or the file ends before it.
        """
        at = start
        try:
            with nullcontext(fd) if fd is not None else self._opened() as opened:
                data = os.pread(opened, end - start, start)
                while (at := start + len(data)) < end:
                    # From here on there may be nothing, or an error.
                    more = os.pread(opened, end - at, at)
                    if not more:
                        break
                    data += more
        except OSError as error:
            raise self._unreadable(at, f"cannot be read: {error.strerror}") from error
        if at < end:
            raise self._unreadable(at, f"ends here, it had {self.size} bytes")
        return memoryview(data)

    def _unreadable(self, at: int, reason: str) -> StoreError:
        return StoreError(
            reason,
            path=self.path,
            offset=self.start_offset + at,
            hint="check the disk; a replica or an archive may have what is lost here",
        )

    def write(self, at: int, *chunks: memoryview) -> None:
        """Write `chunks`, one after the other, at index `at` by the system call.

        From some KiB on it is cheaper than storing into the map, where the first touch of a page makes
        the kernel read and clear many around it. `view` shows the bytes at once. Raises StoreError if the
        disk refuses them; an unknown part may be written then.
        """
        self.hold()
        assert self._descriptor is not None
        try:
            _write_all(self._descriptor.fd, at, [chunk for chunk in chunks if chunk])
        except OSError as error:
            raise StoreError(f"cannot be written at {at}: {error.strerror}", path=self.path) from error

    def sync(self) -> None:
        """Put all of the file's dirty pages on disk. Blocks: call it in a worker thread. Raises OSError."""
        with self._opened() as fd:
            sync_data(fd)

    @contextmanager
    def _opened(self) -> Iterator[int]:
        """The file's descriptor, or a temporary one. Raises OSError."""
        if self._descriptor is not None:
            yield self._descriptor.fd
            return
        fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        try:
            yield fd
        finally:
            os.close(fd)

    def used_bytes(self, start: int = 0) -> int:
        """Index after the last byte from `start` on that is not zero; `start` if there is none.

        Reserved space that was never written is not read, if the file system reports it; the rest is read
        from the end, a MiB at a time. Raises OSError, and StoreError for bytes that cannot be read.
        """
        with self._opened() as fd:
            end = _written_end(fd, self.size)
            while end > start:
                chunk_start = max(start, end - len(_ZERO_CHUNK))
                # Bytes are compared at memory speed, views item by item.
                chunk = bytes(self.read(chunk_start, end, fd=fd))
                if chunk != _ZERO_CHUNK[: end - chunk_start]:
                    return chunk_start + len(chunk.rstrip(b"\0"))
                end = chunk_start
        return start

    def clear_from(self, at: int) -> int:
        """Make all bytes from index `at` on zero; returns how many may not have been before. `sync` follows.

        The file's length and its space on disk stay. Raises OSError and StoreError.
        """
        end = self.used_bytes(at)
        with self._opened() as fd:
            for start in range(at, end, len(_ZERO_CHUNK)):
                _write_all(fd, start, [memoryview(_ZERO_CHUNK)[: end - start]])
        return end - at

    def close(self) -> None:
        """The same as `release`, for a file that is not used any more."""
        self.release()

    def remove(self) -> None:
        """Delete the file and close it. Raises StoreError if it cannot be deleted, with nothing changed."""
        try:
            self.path.unlink(missing_ok=True)
        except OSError as error:
            raise StoreError(f"cannot be deleted: {error.strerror}", path=self.path) from error
        self.close()


def hint_at(error: OSError) -> str:
    """What an operator can do about an error of making or opening a file."""
    if is_shortage(error):
        return "it is tried again; raise the limit of open files (ulimit -n) or of memory"
    return "free disk space" if error.errno in DISK_FULL else "check the disk and the permissions"


def _write_all(fd: int, at: int, left: list[memoryview]) -> None:
    """Write these bytes, one after the other, at index `at` of a file. Raises OSError."""
    while left:
        written = os.pwritev(fd, left, at)
        at += written
        while left and written >= len(left[0]):
            written -= len(left.pop(0))
        if written:
            left[0] = left[0][written:]


def _written_end(fd: int, size: int) -> int:
    """Index after which a file of `size` bytes is one hole; `size` on a file system without holes."""
    end = 0
    try:
        while end < size:
            end = os.lseek(fd, os.lseek(fd, end, os.SEEK_DATA), os.SEEK_HOLE)
    except AttributeError:
        return size
    except OSError as error:
        if error.errno == errno.ENXIO:
            # The rest is a hole.
            return end
        if error.errno != errno.EINVAL:
            raise
        return size
    return end


def create_atomically(path: Path, prepare: Callable[[int], None]) -> int:
    """Make the file `path` in one step; returns its descriptor, for reading and writing.

    The file gets its name after `prepare`, called with the descriptor, has set its length: a `kill -9` in
    between would leave a file of another length, and RocketMQ 4.9 does not load a store with such a file.
    Raises FileExistsError if the path exists, and other OSErrors.
    """
    directory = path.parent
    try:
        fd = os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o644)
    except (AttributeError, OSError) as error:
        if isinstance(error, OSError) and error.errno not in _NO_NAMELESS_FILES:
            raise
        # Without nameless files: a name outside of the folder, since RocketMQ loads every file in it.
        name = str(directory.parent / f".{path.name}-{secrets.token_hex(8)}")
        fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    else:
        name = ""
    try:
        prepare(fd)
        if name:
            os.link(name, path)
        else:
            # With a descriptor to be relative to, link follows the symbolic link that /proc has for the file;
            # the path is absolute, so any descriptor does.
            os.link(f"/proc/self/fd/{fd}", path, src_dir_fd=fd, follow_symlinks=True)
    except BaseException:
        os.close(fd)
        raise
    finally:
        if name:
            # RocketMQ does not load it, and the file itself is whole.
            with suppress(OSError):
                Path(name).unlink()
    return fd


def _reserve_on_disk(fd: int, size: int) -> None:
    """As `reserve`. Without a journal a name may be on disk before its file: that has then any length."""
    reserve(fd, size)
    sync_whole(fd)


def reserve(fd: int, size: int) -> None:
    """Give the file its length, with the space on disk where the file system can do that. Raises OSError."""
    if not hasattr(os, "posix_fallocate"):
        os.ftruncate(fd, size)
        return
    try:
        os.posix_fallocate(fd, 0, size)
    except OSError as error:
        if error.errno not in {errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS}:
            raise
        os.ftruncate(fd, size)
