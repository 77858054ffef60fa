"""A store directory as one process holds it: lock, abort, checkpoint and commit log (spec store 1, 5.1)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import structlog
from attrs import evolve, frozen

from trioha.errors import StoreError
from trioha.store.checkpoint import Checkpoint
from trioha.store.commit_log import CommitLog
from trioha.store.lock import AbortFile, StoreLock
from trioha.store.record import Host
from trioha.store.recovery import Recovered, open_commit_log

log = structlog.get_logger(__name__)


@frozen
class StoreSettings:
    """Where a store is and what its files look like."""

    root: Path
    commit_log_directory: Path
    file_bytes: int
    """mappedFileSizeCommitLog."""
    message_bytes_max: int
    """maxMessageSize: longest body."""
    store_host: Host
    """Broker address that every record names."""


class MessageStore:
    """A locked, recovered store. Make it with `open`, end it with `close`; both block on the disk."""

    def __init__(
        self,
        settings: StoreSettings,
        *,
        lock: StoreLock,
        abort: AbortFile,
        checkpoint: Checkpoint,
        commit_log: CommitLog,
        recovered: Recovered,
        opened_clean: bool,
    ) -> None:
        self.settings = settings
        self.commit_log = commit_log
        self.recovered = recovered
        self._lock = lock
        self._abort = abort
        self._checkpoint = checkpoint
        self._opened_at_offset = commit_log.max_offset
        self._opened_clean = opened_clean
        self._has_failed = False

    @classmethod
    def open(
        cls, settings: StoreSettings, *, on_progress: Callable[[int, int], None] | None = None
    ) -> MessageStore:
        """Lock the store (made if missing), find the log's end, and mark the store as in use.

        Raises StoreError, with the lock given back, if it is in use or cannot be opened.
        """
        try:
            settings.root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"cannot be made: {error.strerror}", path=settings.root) from error
        lock = StoreLock(settings.root)
        lock.acquire()
        try:
            abort = AbortFile(settings.root)
            clean_exit = not abort.exists
            checkpoint = Checkpoint.load(settings.root / "checkpoint")
            commit_log, recovered = open_commit_log(
                settings.commit_log_directory,
                file_bytes=settings.file_bytes,
                message_bytes_max=settings.message_bytes_max,
                store_host=settings.store_host,
                clean_exit=clean_exit,
                checkpoint=checkpoint,
                on_progress=on_progress,
            )
            store = cls(
                settings,
                lock=lock,
                abort=abort,
                checkpoint=checkpoint,
                commit_log=commit_log,
                recovered=recovered,
                opened_clean=clean_exit,
            )
            # A store that was left in need of recovery stays so until it is closed whole.
            abort.create()
        except OSError as error:
            lock.release()
            raise StoreError(f"cannot be opened: {error.strerror}", path=settings.root) from error
        except BaseException:
            lock.release()
            raise
        return store

    def sync(self, start_offset: int, end_offset: int, *, store_timestamp_ms: int) -> None:
        """Put log bytes on disk and note it in the checkpoint. Blocks: for a worker thread. Raises OSError.

        `store_timestamp_ms` is that of the last record before `end_offset`.
        """
        self.commit_log.sync(start_offset, end_offset)
        checkpoint = evolve(self._checkpoint, physic_msg_timestamp_ms=store_timestamp_ms)
        # One write a second is as often as the broker does it; recovery takes 3 s of slack.
        if store_timestamp_ms - self._checkpoint.physic_msg_timestamp_ms >= 1000:
            checkpoint.save(self._checkpoint_path)
            self._checkpoint = checkpoint

    def mark_failed(self) -> None:
        """The disk has failed a sync: nothing may call this store clean any more, whatever the disk says."""
        self._has_failed = True

    @property
    def _checkpoint_path(self) -> Path:
        return self.settings.root / "checkpoint"

    def close(self) -> None:
        """Put everything on disk, mark the store as cleanly closed and give it up.

        Where a broker left consume queues, which are not extended here yet, `abort` stays after an append
        or an unclean stop: the broker that opens the store next then rebuilds them (spec store 5.1, 5.4).
        Raises StoreError if the disk refuses: the store then stays marked as in need of recovery.
        """
        log_ = self.commit_log
        if self._has_failed:
            # A sync that succeeds after one that failed says nothing about the pages that were lost.
            log_.close()
            self._lock.release()
            return
        try:
            log_.sync(log_.flushed.offset, log_.max_offset)
            log_.flushed.advance(log_.max_offset)
            evolve(self._checkpoint, physic_msg_timestamp_ms=log_.last_store_timestamp_ms).save(
                self._checkpoint_path
            )
            touched = log_.max_offset != self._opened_at_offset or not self._opened_clean
            queues_behind = touched and any((self.settings.root / "consumequeue").glob("*/*/*"))
            log_.close()
            if not queues_behind:
                self._abort.remove()
        except OSError as error:
            raise StoreError(f"cannot be closed: {error.strerror}", path=self.settings.root) from error
        finally:
            self._lock.release()
