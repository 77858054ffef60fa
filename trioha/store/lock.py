"""Files that mark a store: as in use, `lock` and `abort`, and as not restored yet.

See docs/protocol/store.md#files.

A lock holds for a file, not for its name: if `lock` is removed beside a running node, a second process can
lock a file of its own. Two rules prevent that a store has two users then. A start is refused if the process
that `abort` names runs and has the store's lock file open, removed or not. And a running node checks every
second that the file that it has locked still has its name (`trioha.node.lock_watch`).
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from trioha.errors import StoreError
from trioha.net.error_boundary import is_shortage
from trioha.numbers import NATURAL32, parse_int
from trioha.store.mapped_file import DISK_FULL
from trioha.store.syncing import sync_directory, sync_whole

LOCK_TEXT = b"lock"
RESTORE_MARKER = "trioha-restore.json"
"""In the commit log's folder while `trioha restore` writes the store. RocketMQ does not start with it."""
_NEVER_REMOVE = "another process may have opened the store; never remove a lock file"
_PROCESSES = Path("/proc")
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
        self._held: list[tuple[Path, int]] = []
        """Paths of locked files, and their descriptors."""

    def acquire(self) -> None:
        """Take the lock. Raises StoreError if another process has it, a RocketMQ broker included.

        Also if another process had it and still runs, but the file was removed or replaced since.
        """
        try:
            self._lock(self.path, "storePathRootDir")
            if self._other is not None and self._other.exists():
                self._lock(self._other, "storePathCommitLog")
            self.check()
        except BaseException:
            self.release()
            raise

    def _lock(self, path: Path, key: str) -> None:
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise StoreError(f"cannot be opened: {error.strerror}", path=path) from error
        self._held.append((path, fd))
        hint = f"stop the broker or node that uses it, or give this one another {key}"
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        except OSError as error:
            raise StoreError("the store is locked by another process", path=path, hint=hint) from error
        user = AbortFile(path.parent).running_user(path)
        if user is not None:
            raise StoreError(
                f"the store is used by process {user}, which has locked a file of this name that is gone",
                path=path,
                hint=hint,
            )
        try:
            os.pwrite(fd, LOCK_TEXT, 0)
        except OSError as error:
            raise StoreError(f"cannot be written: {error.strerror}", path=path) from error

    def check(self) -> None:
        """Whether the files with the names are still those that are locked. Blocks. Raises StoreError if not.

        Otherwise any process may lock the store, too. Nothing may be written to it any more then.
        """
        for path, fd in self._held:
            try:
                named = path.stat()
            except (FileNotFoundError, NotADirectoryError) as error:
                raise StoreError("the store's lock file is gone", path=path, hint=_NEVER_REMOVE) from error
            except OSError as error:
                raise StoreError(f"cannot be looked at: {error.strerror}", path=path) from error
            if not os.path.samestat(named, os.fstat(fd)):
                raise StoreError("the store's lock file was replaced", path=path, hint=_NEVER_REMOVE)

    def release(self) -> None:
        """Release the lock, if it is held."""
        while self._held:
            os.close(self._held.pop()[1])


class AbortFile:
    """`abort` exists while a process uses the store, and afterwards if it ended without closing it.

    | line | content |
    |---|---|
    | 1 | process id, as RocketMQ 5.3 writes it |
    | 2 | `boot_id` of the machine; missing where that is not known, and in RocketMQ's file |
    """

    def __init__(self, root: Path) -> None:
        self.path = root / "abort"
        self.has_failed = False
        """Whether the disk has failed a sync: the store is never marked as cleanly closed any more."""

    def mark_failed(self) -> None:
        """Note that the disk has failed a sync."""
        self.has_failed = True

    @property
    def exists(self) -> bool:
        """Whether the last user ended without closing the store (asked before `create`)."""
        return self.path.exists()

    @property
    def lost_power(self) -> bool:
        """Whether what the last user wrote and did not sync may be lost (asked before `create`).

        True if the last user ended without closing the store and the machine has, or may have, started since.
        """
        try:
            lines = self.path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return False
        current = boot_id()
        return not current or lines[1:2] != [current.encode()]

    def running_user(self, lock_path: Path) -> int | None:
        """The process named here, if it runs and has `lock_path` open, or had before the file lost that name.

        None for this process, and where that cannot be known: RocketMQ 4.9 writes no process id, systems
        without /proc do not say what a process has open, and Linux says so to the same user and to root only.
        """
        try:
            pid = parse_int(self.path.read_bytes().split(b"\n")[0].decode(), NATURAL32)
        except (OSError, ValueError):
            return None
        if pid == os.getpid():
            return None
        # What has been removed is listed with this word after its name.
        wanted = os.path.realpath(lock_path.parent) + f"/{lock_path.name}"
        names = {wanted, f"{wanted} (deleted)"}
        try:
            links = list((_PROCESSES / str(pid) / "fd").iterdir())
        except OSError:
            # It has ended, or is not ours to look at.
            return None
        return pid if any(_target(link) in names for link in links) else None

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


def _target(link: Path) -> str:
    """What an entry of /proc/PID/fd points to; empty for a file that was closed since they were listed."""
    try:
        return str(link.readlink())
    except OSError:
        return ""
