"""Syncs: all calls of fsync, and the descriptors that they use.

`fsync` reaches the disk on Linux. On macOS it reaches the drive's cache only; F_FULLFSYNC empties that, too.
File systems that refuse F_FULLFSYNC (network and foreign ones) get `fsync`.

A sync runs in a worker thread. Meanwhile the writing thread may close the file, move it or delete it. So the
two share a descriptor: it is closed when both have released it, and a sync cannot use a descriptor that was
closed, or one that was opened again for another file. It does not open a new one either, which the system
could refuse: a process short of descriptors does not mean a failing disk.

`fsync` says nothing before it is done, and a slow disk may take long for a gigabyte. So before a sync of many
bytes Linux is asked to write them piece by piece (`write_pieces`): each piece that is written is progress.

A sync also takes a processor, for many pages all over an index in one go, and where the threads of a node and
its clients need that processor, their messages wait (docs/where-time-goes.md#end-to-end). So a sync for which
nobody waits is paced: the thread has small pieces written, and rests after each (`pace`).
"""

from __future__ import annotations

import errno
import fcntl
import os
import sys
import time
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Final

from trioha.net.error_boundary import is_shortage

PIECE_BYTES: Final = 16 * 1024 * 1024
"""Spans of a file that are longer are written in pieces of this length, before the sync."""
RESTS: Final = 3
"""After each piece of work a paced thread rests three times as long as that took: it takes a quarter of a
processor."""
_PACED_BYTES: Final = 128 * 1024
"""Of one call of a paced thread."""
_WORK_S_MIN: Final = 0.0001
"""So long it works before it rests."""
_REST_S_MAX: Final = 0.005
_RESTS_S_MAX: Final = 1.0
"""One rest, and all rests of a file: a node that stops waits for its threads."""
_WRITE: Final = 2
"""SYNC_FILE_RANGE_WRITE."""
_WRITE_AND_WAIT: Final = 1 | 2 | 4
"""SYNC_FILE_RANGE_WAIT_BEFORE, _WRITE and _WAIT_AFTER."""
_NO_PIECES: Final = frozenset((errno.EINVAL, errno.ESPIPE, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM))
"""EPERM and ENOSYS are what filters of system calls answer."""
_REFUSES_FULL_SYNC: Final = frozenset((errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOTTY))


def sync_data(fd: int) -> None:
    """Put a file's bytes on disk, and of its metadata what reading them needs. Blocks. Raises OSError."""
    if not _sync_fully(fd):
        getattr(os, "fdatasync", os.fsync)(fd)


def sync_whole(fd: int) -> None:
    """Put a file or directory on disk, with all of its metadata. Blocks. Raises OSError."""
    if not _sync_fully(fd):
        os.fsync(fd)


def sync_directory(directory: Path) -> None:
    """Put a directory's entries on disk: a file that was made or renamed in it then survives a power cut.

    Blocks. Raises OSError, also for want of a descriptor.
    """
    fd = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        sync_whole(fd)
    finally:
        os.close(fd)


def write_pieces(fd: int, start: int, end: int, on_step: Callable[[], None]) -> None:
    """Have bytes `[start, end)` of a file written to disk piece by piece; `on_step` is called after each.

    A sync has to follow: this promises nothing. Where the system cannot do it, nothing happens. Blocks.
    Raises OSError, as a sync does: the kernel reports a failed write once.
    """
    write = _sync_file_range()
    if write is None:
        return
    for at in range(start, end, PIECE_BYTES):
        error = write(fd, at, min(PIECE_BYTES, end - at), _WRITE_AND_WAIT)
        if error in _NO_PIECES:
            return
        if error:
            raise OSError(error, os.strerror(error))
        on_step()


def pace(fd: int, start: int, end: int) -> None:
    """Have bytes `[start, end)` of a file written, slowly, so that the sync that follows finds little to do.

    Does nothing where the system cannot do it. Blocks: the thread rests 1 s in all at most. Raises OSError.
    """
    write = _sync_file_range()
    if write is None:
        return
    rested_s = 0.0
    worked_s = time.thread_time()
    while (at := _next_data(fd, start)) < end:
        start = min(at + _PACED_BYTES, end)
        error = write(fd, at, start - at, _WRITE)
        if error in _NO_PIECES:
            return
        if error:
            raise OSError(error, os.strerror(error))
        work_s = time.thread_time() - worked_s
        if work_s >= _WORK_S_MIN and rested_s < _RESTS_S_MAX:
            rest_s = min(RESTS * work_s, _REST_S_MAX)
            time.sleep(rest_s)
            rested_s += rest_s
            worked_s = time.thread_time()


def _next_data(fd: int, offset: int) -> int:
    """Where the file has bytes at or after `offset`; a sparse file (an index) is holes for the most part.

    `sys.maxsize` if there are none. Raises OSError.
    """
    try:
        return os.lseek(fd, offset, os.SEEK_DATA)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return sys.maxsize
        if error.errno != errno.EINVAL:
            raise
        # A file system without holes.
        return offset


@cache
def _sync_file_range() -> Callable[[int, int, int, int], int] | None:
    """Linux's `sync_file_range(fd, offset, length, flags)`, which returns an errno or 0; None without one."""
    # A start does not load it.
    import ctypes  # noqa: PLC0415

    function = getattr(ctypes.CDLL(None, use_errno=True), "sync_file_range", None)
    if function is None:
        return None
    function.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)

    def write(fd: int, offset: int, length: int, flags: int) -> int:
        return 0 if function(fd, offset, length, flags) == 0 else ctypes.get_errno()

    return write


def _no_step() -> None:
    """For syncs that nobody watches."""


def _sync_fully(fd: int) -> bool:
    """F_FULLFSYNC; False if the platform or the file system has none. Raises OSError."""
    command = getattr(fcntl, "F_FULLFSYNC", None)
    if command is None:
        return False
    try:
        fcntl.fcntl(fd, command)
    except OSError as error:
        if error.errno not in _REFUSES_FULL_SYNC:
            raise
        return False
    return True


class SharedDescriptor:
    """A file descriptor with several users, in several threads: closed when the last one releases it."""

    __slots__ = ("_lock", "_users", "fd")

    def __init__(self, fd: int) -> None:
        """With one user, which has to `release` it."""
        self.fd = fd
        """The descriptor; -1 once it is closed."""
        self._users = 1
        self._lock = Lock()

    def share(self) -> SharedDescriptor:
        """The same descriptor for another user, which has to `release` it."""
        with self._lock:
            assert self._users, "a closed descriptor cannot be shared"
            self._users += 1
        return self

    def release(self) -> None:
        """Remove one user; the last one closes the descriptor."""
        with self._lock:
            assert self._users, "released more often than shared"
            self._users -= 1
            if self._users:
                return
            fd, self.fd = self.fd, -1
        os.close(fd)


class SyncWork:
    """Files and directories with writes that are not on disk yet.

    The writing thread collects them, and lends the descriptors of those that are open: they are synced also
    if they are closed, moved or deleted meanwhile. Then a worker thread calls `run`. It opens the others, and
    leaves out those that the system has no descriptor for: they are in `left` afterwards, for the next time.
    """

    def __init__(self, sync: Callable[[int], None] = sync_whole) -> None:
        """`sync` puts an open file on disk: `sync_whole` or `sync_data`."""
        self._sync = sync
        self._left: dict[Path, SharedDescriptor | None] = {}
        self._spans: dict[Path, tuple[int, int]] = {}
        """Start and end of the bytes that may not be on disk, where they are known."""

    @property
    def left(self) -> tuple[Path, ...]:
        """What is not on disk yet: everything before `run`."""
        return tuple(self._left)

    def add(
        self,
        path: Path,
        descriptor: SharedDescriptor | None = None,
        *,
        span: tuple[int, int] | None = None,
    ) -> None:
        """Also sync `path`; `descriptor` is a share of it, released when that is done.

        `span`: start and end of the bytes that may not be on disk, if these are known.
        """
        if descriptor is not None or path not in self._left:
            self._left[path] = descriptor
        if span is not None:
            self._spans[path] = span

    def forget(self, path: Path) -> None:
        """Do not sync `path`, for which no descriptor was lent: it is being deleted."""
        self._left.pop(path, None)

    def share(self, opened: Mapping[Path, SharedDescriptor]) -> None:
        """Lend those of the descriptors that are of these paths."""
        for path, descriptor in opened.items():
            if path in self._left:
                self._left[path] = descriptor.share()

    def prepend(self, earlier: SyncWork) -> None:
        """Sync first what `earlier` has left, without the descriptors that were lent to it."""
        earlier.close()
        self._left = dict.fromkeys(earlier._left) | self._left

    def run(self, on_step: Callable[[], None] = _no_step, *, paced: bool = False) -> None:
        """Put all of them on disk; a path that has been deleted meanwhile is left out.

        `on_step` is called after each file, and within long ones after each piece. `paced` says that nobody
        waits for it: the thread rests between small pieces.

        Blocks: for a worker thread. Raises OSError. A failed sync leaves an unknown state, so no later sync
        may promise anything.
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
                span = self._spans.pop(path, None)
                if span is not None and span[1] - span[0] > PIECE_BYTES:
                    # To the file's end: what is appended meanwhile would make the sync at the end a long one.
                    write_pieces(fd, span[0], os.fstat(fd).st_size, on_step)
                elif paced:
                    start, end = span or (0, os.fstat(fd).st_size)
                    pace(fd, start, end)
                self._sync(fd)
            finally:
                if descriptor is None:
                    os.close(fd)
            del self._left[path]
            if descriptor is not None:
                descriptor.release()
            on_step()

    def close(self) -> None:
        """Release the descriptors of what is left."""
        for path, descriptor in self._left.items():
            if descriptor is not None:
                self._left[path] = None
                descriptor.release()
