"""Put bytes on disk: the one place that asks the kernel for it, and the descriptors that it is asked with.

`fsync` reaches the disk on Linux. On macOS it reaches the drive's cache only; F_FULLFSYNC empties that, too.
File systems that refuse F_FULLFSYNC (network and foreign ones) get `fsync`, which is all that they offer.

A sync runs in a worker thread and takes its time, in which the writing thread may close the file, move it or
delete it. So the two share a descriptor: it is closed when both have released it, and a sync can never meet a
descriptor that was closed, or one that was opened again for something else. Nor does it need a new one, which
the system could refuse: that a process is short of descriptors says nothing about its disk.
"""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from threading import Lock
from typing import Final

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
    """Put a directory's entries on disk: a file that was made or renamed in it outlives a power cut.

    Blocks. Raises OSError, also for want of a descriptor.
    """
    fd = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        sync_whole(fd)
    finally:
        os.close(fd)


def _sync_fully(fd: int) -> bool:
    """F_FULLFSYNC; False where the platform or the file system has none. Raises OSError."""
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
        """For one user, who has to `release` it."""
        self.fd = fd
        """The descriptor; -1 once it is closed."""
        self._users = 1
        self._lock = Lock()

    def share(self) -> SharedDescriptor:
        """The same descriptor for one user more, who has to `release` it."""
        with self._lock:
            assert self._users, "a closed descriptor cannot be shared"
            self._users += 1
        return self

    def release(self) -> None:
        """One user less."""
        with self._lock:
            assert self._users, "released more often than shared"
            self._users -= 1
            if self._users:
                return
            fd, self.fd = self.fd, -1
        os.close(fd)
