"""Files that mark a store: as in use, `lock` and `abort` (spec store 1), and as not restored yet."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from trioha.errors import StoreError
from trioha.net.border import is_shortage
from trioha.store.mapped_file import DISK_FULL
from trioha.store.syncing import sync_directory, sync_whole

LOCK_TEXT = b"lock"
RESTORE_MARKER = "trioha-restore.json"
"""In the commit log's folder while `trioha restore` writes the store. RocketMQ does not start with it."""
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """Names the time since the machine's kernel started; empty where the system has no such name.

    While it is the same, what any process has written is there, synced or not.
    """
    try:
        return _BOOT_ID.read_text("ascii").strip()
    except (OSError, ValueError):
        return ""


class StoreLock:
    """RocketMQ's lock: an exclusive fcntl lock on the first byte of `lock`, held until `release`.

    A commit log in the folder of another store (storePathCommitLog) is locked with that store's file, too:
    a copy of a broker's file with another storePathRootDir names the log of the broker that runs.
    """

    def __init__(self, root: Path, *, commit_log: Path | None = None) -> None:
        self.path = root / "lock"
        self._other = None if commit_log is None or commit_log.parent == root else commit_log.parent / "lock"
        self._fds: list[int] = []

    def acquire(self) -> None:
        """Take the lock. Raises StoreError if another process has it, a RocketMQ broker included."""
        try:
            self._lock(self.path, "storePathRootDir")
            if self._other is not None and self._other.exists():
                self._lock(self._other, "storePathCommitLog")
        except BaseException:
            self.release()
            raise

    def _lock(self, path: Path, key: str) -> None:
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise StoreError(f"cannot be opened: {error.strerror}", path=path) from error
        self._fds.append(fd)
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        except OSError as error:
            raise StoreError(
                "the store is locked by another process",
                path=path,
                hint=f"stop the broker or node that uses it, or give this one another {key}",
            ) from error
        try:
            os.pwrite(fd, LOCK_TEXT, 0)
        except OSError as error:
            raise StoreError(f"cannot be written: {error.strerror}", path=path) from error

    def release(self) -> None:
        """Release the lock, if it is held."""
        while self._fds:
            os.close(self._fds.pop())


class AbortFile:
    """`abort` exists while a process uses the store, and afterwards if it ended without closing it.

    | line | content |
    |---|---|
    | 1 | process id, as RocketMQ 5.3 writes it |
    | 2 | `boot_id` of the machine; missing where that is not known, and in RocketMQ's file |
    """

    def __init__(self, root: Path) -> None:
        self.path = root / "abort"

    @property
    def exists(self) -> bool:
        """Whether the last user ended without closing the store (asked before `create`)."""
        return self.path.exists()

    @property
    def lost_power(self) -> bool:
        """Whether what the last user wrote and did not sync may be lost (asked before `create`).

        That is so if it ended without closing the store and the machine has, or may have, started since.
        """
        try:
            lines = self.path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return False
        current = boot_id()
        return not current or lines[1:2] != [current.encode()]

    def create(self, *, names_boot: bool = True) -> None:
        """Mark the store as in use. Without `names_boot` the next start counts as one after a power loss.

        File and name are on disk when this returns: no later write to the store can survive a power cut
        that loses the mark. Blocks. Raises OSError.
        """
        fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            boot = boot_id() if names_boot else ""
            content = "\n".join(filter(None, (str(os.getpid()), boot))).encode()
            try:
                os.pwrite(fd, content, 0)
                os.ftruncate(fd, len(content))
            except OSError as error:
                # The file's existence is the mark, and a full disk must not prevent an opening.
                if error.errno not in DISK_FULL:
                    raise
            sync_whole(fd)
        finally:
            os.close(fd)
        sync_directory(self.path.parent)

    def remove(self) -> None:
        """Mark the store as cleanly closed, after all else is on disk. Blocks. Raises OSError."""
        self.path.unlink(missing_ok=True)
        try:
            sync_directory(self.path.parent)
        except OSError as error:
            # If a power cut restores the mark, the next start only takes longer.
            if not is_shortage(error):
                raise
