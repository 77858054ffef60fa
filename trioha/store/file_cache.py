"""Cache of open queue files; it also collects the files with writes that are not on disk."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from trioha.net.error_boundary import is_shortage
from trioha.store.mapped_file import create_atomically
from trioha.store.syncing import SharedDescriptor, SyncWork

OPEN_FILES_MAX = 256
"""File descriptors that all queues of a store share."""
_CLOSED_AT_SHORTAGE = 8
"""Files that are closed after a sync that found no free descriptor."""


class FileCache:
    """Open files by path, at most `open_files_max`; the least recently used one is closed for the next.

    There are fewer when the system has no descriptor for one more.
    """

    def __init__(self, open_files_max: int = OPEN_FILES_MAX) -> None:
        assert open_files_max >= 1
        self._open_files_max = open_files_max
        self._opened: dict[Path, SharedDescriptor] = {}
        self._unsynced = SyncWork()

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
        # A file survives a power cut only if its folder's entry is on disk.
        self._unsynced.add(path)
        self._unsynced.add(path.parent)
        return fd

    def _make_folders(self, folder: Path) -> None:
        if folder.exists():
            return
        self._make_folders(folder.parent)
        folder.mkdir(exist_ok=True)
        # Also if the file cannot be made then: the next try finds the folder there.
        self._unsynced.add(folder)
        self._unsynced.add(folder.parent)

    def _with_room(self, open_: Callable[[], int]) -> int:
        """The result of `open_`, with as many other files closed as it needs. Raises OSError."""
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
        """Sync `path` with the next `sync_work`."""
        self._unsynced.add(path)

    def sync_work(self) -> SyncWork:
        """All writes since the last call."""
        work, self._unsynced = self._unsynced, SyncWork()
        work.share(self._opened)
        return work

    def give_back(self, work: SyncWork) -> None:
        """Sync what `work` has left with the next one, and close files so that it finds descriptors."""
        self._unsynced.prepend(work)
        for _ in range(min(_CLOSED_AT_SHORTAGE, len(self._opened)) if work.left else 0):
            self._close_oldest()

    def forget(self, path: Path) -> None:
        """Close `path` and do not sync it: it is being deleted."""
        descriptor = self._opened.pop(path, None)
        if descriptor is not None:
            descriptor.release()
        self._unsynced.forget(path)

    def close(self) -> None:
        """Close all files."""
        while self._opened:
            self._close_oldest()
