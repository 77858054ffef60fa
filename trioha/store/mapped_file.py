"""One file of a log, mapped whole."""

from __future__ import annotations

import errno
import mmap
import os
import secrets
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from trioha.errors import StoreError
from trioha.net.border import is_shortage
from trioha.net.descriptors import descriptor_limit, lowest_free_descriptor
from trioha.store.mapping import map_file
from trioha.store.syncing import SharedDescriptor, sync_data, sync_whole

FILE_NAME_DIGITS = 20

_ZERO_CHUNK = bytes(1 << 20)

_NO_NAMELESS_FILES = frozenset((errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOSYS))
"""Errors of a system, or a file system, without O_TMPFILE."""
DISK_FULL = frozenset((errno.ENOSPC, errno.EDQUOT))

DESCRIPTORS_LEFT_FREE: Final = 8
"""With fewer free descriptors a log makes no new file. Files that are not on disk hold one each, and a slow
disk may leave many of them; queues, index and checkpoint need a few at any time."""


# Advice to the kernel about a map, None where the system has none of the kind.
MADV_RANDOM: Final[int | None] = getattr(mmap, "MADV_RANDOM", None)
MADV_NORMAL: Final[int | None] = getattr(mmap, "MADV_NORMAL", None)
MADV_DONTNEED: Final[int | None] = getattr(mmap, "MADV_DONTNEED", None)
MADV_HUGEPAGE: Final[int | None] = getattr(mmap, "MADV_HUGEPAGE", None) if mmap.PAGESIZE == 4096 else None
"""With larger pages huge ones have 32 MiB and more, too much for each sync."""
MADV_NOHUGEPAGE: Final[int | None] = getattr(mmap, "MADV_NOHUGEPAGE", None)
MADV_POPULATE_WRITE: Final = 23 if sys.platform == "linux" else None
"""Python's mmap module has no name for it."""
HUGE_PAGE_BYTES: Final = 1 << 21
"""Of Linux, where small pages have 4 KiB."""
ADVISED_BYTES: Final = HUGE_PAGE_BYTES
"""Read-ahead follows the synced bytes in steps of this length, since each costs a system call; and advice
about a part of a huge page makes the kernel map it page by page."""


def file_name(start_offset: int) -> str:
    """Name of the file whose first byte has this offset: 20 decimal digits (spec store 1)."""
    return f"{start_offset:0{FILE_NAME_DIGITS}d}"


class MappedFile:
    """A file of fixed length, mapped into memory: bytes `[start_offset, start_offset + size)` of a log.

    `view` is the whole file. Slices of it stay usable after `close`: the mapping ends with the last of them,
    so a connection can still send from a closed file.

    A file that is written to, or has bytes that are not on disk, keeps a descriptor; `release` closes it.
    Reads need none. So a log of any length has two or three open files.

    Where a file will be appended to, the kernel does not read ahead (`expect_appends`). With read-ahead, a
    store into a page that was not touched before makes it allocate and clear megabytes around the page (2 ms
    where read_ahead_kb is 8192), in folios of many pages, and on ext4 each first store into one of these
    pages takes a time that grows with the folio: 22 us, instead of 4. Huge pages (`expect_many_appends`) are
    mapped as a whole, and so stored into for the first time as a whole.
    """

    __slots__ = ("_appends_at", "_descriptor", "_has_huge_pages", "path", "size", "start_offset", "view")

    def __init__(self, path: Path, *, fd: int, size: int, start_offset: int) -> None:
        """Owns `fd` from now on, unless it raises OSError."""
        self.path = path
        self.size = size
        self.start_offset = start_offset
        self.view = map_file(fd, size)
        self._descriptor: SharedDescriptor | None = SharedDescriptor(fd)
        self._appends_at = size
        """Index from which on the kernel does not read ahead."""
        self._has_huge_pages = False

    def __repr__(self) -> str:
        return f"<MappedFile {self.path.name}, {self.size} bytes>"

    @property
    def end_offset(self) -> int:
        """Offset of the first byte after this file."""
        return self.start_offset + self.size

    @classmethod
    def open(cls, path: Path, *, size: int) -> MappedFile:
        """Map an existing file of exactly `size` bytes; raises StoreError for one of another length."""
        fd = -1
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            found = os.fstat(fd).st_size
            if found != size:
                raise StoreError(
                    f"has {found} bytes, the configuration says {size}",
                    path=path,
                    hint="mappedFileSizeCommitLog must be what the store was made with",
                )
            return cls(path, fd=fd, size=size, start_offset=int(path.name))
        except BaseException as error:
            if fd >= 0:
                os.close(fd)
            if isinstance(error, OSError):
                raise StoreError(
                    f"cannot be opened: {error.strerror}", path=path, hint=hint_at(error)
                ) from error
            raise

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
            if fd < 0:
                return cls.open(path, size=size)
            file = cls(path, fd=fd, size=size, start_offset=start_offset)
            fd = -1
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
        """Keep a descriptor from now on, for writes. Raises StoreError if the system has none."""
        if self._descriptor is None:
            try:
                self._descriptor = SharedDescriptor(os.open(self.path, os.O_RDWR | os.O_CLOEXEC))
            except OSError as error:
                raise StoreError(
                    f"cannot be opened: {error.strerror}", path=self.path, hint=hint_at(error)
                ) from error

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
        """Close the descriptor: all bytes are on disk, and no more will be written."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            descriptor.release()

    def share(self) -> SharedDescriptor:
        """The file's descriptor for another user, which has to release it, also after the file is closed.

        Raises StoreError if the file had none, and the system has none.
        """
        self.hold()
        assert self._descriptor is not None
        return self._descriptor.share()

    def expect_appends(self, at: int) -> None:
        """Have the kernel read nothing ahead from index `at` on: these bytes will be written first."""
        self._appends_at = at
        self._advise(MADV_RANDOM, at, self.size)

    def expect_many_appends(self, start: int, end: int) -> None:
        """Have the kernel use huge pages, from now on, for the bytes from index `start` to `end` that fill
        whole ones and have no pages yet.

        To make them ready takes a fifth of the time of small ones, the first store after a sync a tenth, and
        a sync half. But a sync writes all of a page in which one byte was stored.
        """
        start += -start % HUGE_PAGE_BYTES
        if self._advise(MADV_HUGEPAGE, start, end - end % HUGE_PAGE_BYTES):
            self._has_huge_pages = True

    def expect_few_appends(self, start: int, end: int, *, fd: int) -> None:
        """Have the kernel use small pages again for the bytes from index `start` to `end`; the bytes stay.

        A page with a byte that is not on disk stays as it is. `fd` is the file's. Blocks: call it in a worker
        thread, while a slice of `view` exists. Raises OSError.
        """
        start -= start % HUGE_PAGE_BYTES
        self._advise(MADV_NOHUGEPAGE, start, end)
        # Without the map's pages the kernel can drop those of its cache. It reads them again as small ones.
        if self._advise(MADV_DONTNEED, start, end):
            os.posix_fadvise(fd, start, end - start, os.POSIX_FADV_DONTNEED)
            os.posix_fadvise(fd, start, end - start, os.POSIX_FADV_WILLNEED)

    def expect_reads(self, end: int) -> None:
        """Have the kernel read ahead again before index `end`: bytes there are on disk, and may be evicted.

        That happens for whole `ADVISED_BYTES`, and for the end of the file.
        """
        start = self._appends_at
        if end < self.size:
            end -= end % ADVISED_BYTES
        if end > start:
            self._appends_at = end
            self._advise(MADV_NORMAL, start, end)
            if self._has_huge_pages:
                # A reader of one record would wait for all of a huge page.
                self._advise(MADV_NOHUGEPAGE, start, end)

    def populate(self, start: int, end: int) -> bool:
        """Make the pages of the bytes from index `start` to `end` ready for stores; the bytes stay.

        Otherwise the first store into a page costs microseconds, on a virtual machine tens of them. Returns
        False, with nothing done, on a system that cannot do it (Linux before 5.14).
        """
        return self._advise(MADV_POPULATE_WRITE, start, end)

    def _advise(self, advice: int | None, start: int, end: int) -> bool:
        """Whether the kernel took the advice about the bytes from index `start` to `end`, in whole pages."""
        mapping = self.view.obj
        start -= start % mmap.PAGESIZE
        if advice is None or start >= end or not isinstance(mapping, mmap.mmap):
            return False
        try:
            mapping.madvise(advice, start, end - start)
        except OSError:
            # A system that refuses it is slower.
            return False
        return True

    def write(self, at: int, *chunks: memoryview) -> None:
        """Write `chunks`, one after the other, at index `at` by the system call.

        From some KiB on it is cheaper than storing into the map, where the first touch of a page makes
        the kernel read and clear many around it. `view` shows the bytes at once. Raises StoreError if the
        disk refuses them; an unknown part may be written then.
        """
        self.hold()
        assert self._descriptor is not None
        fd = self._descriptor.fd
        left = [chunk for chunk in chunks if chunk]
        while left:
            try:
                written = os.pwritev(fd, left, at)
            except OSError as error:
                raise StoreError(f"cannot be written at {at}: {error.strerror}", path=self.path) from error
            at += written
            while left and written >= len(left[0]):
                written -= len(left.pop(0))
            if written:
                left[0] = left[0][written:]

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
        from the end, a MiB at a time. Raises OSError.
        """
        with self._opened() as fd:
            end = _written_end(fd, self.size)
        while end > start:
            chunk_start = max(start, end - len(_ZERO_CHUNK))
            # Bytes are compared at memory speed, views item by item.
            chunk = bytes(self.view[chunk_start:end])
            if chunk != _ZERO_CHUNK[: end - chunk_start]:
                return chunk_start + len(chunk.rstrip(b"\0"))
            end = chunk_start
        return start

    def clear_from(self, at: int) -> int:
        """Make all bytes from index `at` on zero; returns how many may not have been before. `sync` follows.

        The file's length and its space on disk stay. Raises OSError.
        """
        end = self.used_bytes(at)
        for start in range(at, end, len(_ZERO_CHUNK)):
            stop = min(start + len(_ZERO_CHUNK), end)
            self.view[start:stop] = _ZERO_CHUNK[: stop - start]
        return end - at

    def close(self) -> None:
        """Close descriptor and `view`; the mapping ends with them, or with the last slice of it."""
        self.release()
        view, self.view = self.view, memoryview(b"")
        mapping = view.obj
        if isinstance(mapping, mmap.mmap):
            view.release()
            # References to the mapping, for instance from the frames of a traceback, would keep the space of
            # a deleted file until the next garbage collection.
            with suppress(BufferError):
                # Refused while slices exist: the last of them ends it.
                mapping.close()

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
