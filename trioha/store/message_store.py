"""A store directory in use by this process: commit log, consume queues, index, checkpoint (spec store 1, 5).

Theory of operation. The log is the truth; consume queues and index are built from it by the dispatcher and
can always be built again. `open` finds the log's end, cuts the queues to it, and finds the offset where
dispatch has to continue. A master dispatches to the log's end before it accepts puts, since the queues hold
the next queue offsets. `checkpoint` holds the store time up to which log, queues and index were on disk. The
file `abort` exists while a process uses the store; if a start finds it, only the checkpoint counts.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import structlog
from attrs import Factory, evolve, frozen

from trioha.errors import StoreError
from trioha.net.border import is_shortage
from trioha.store.checkpoint import Checkpoint, CheckpointFile
from trioha.store.commit_log import CommitLog
from trioha.store.consume_queues import ConsumeQueues, ConsumeQueueSettings
from trioha.store.dispatch import Dispatcher, start_position
from trioha.store.dispatch_settings import DispatchSettings
from trioha.store.index_file import IndexShape
from trioha.store.index_service import IndexService
from trioha.store.lock import RESTORE_MARKER, AbortFile, StoreLock
from trioha.store.mapped_file import DISK_FULL
from trioha.store.queue_manifest import load_queue_manifest, save_queue_manifest
from trioha.store.reads import MessageReader
from trioha.store.record import Host
from trioha.store.recovery import CHECKED_BYTES, Recovered, open_commit_log
from trioha.store.syncing import SyncWork
from trioha.store.topic_types import batch_topics

log = structlog.get_logger(__name__)

CLOSE_DISPATCH_S = 5.0
"""A close dispatches for so long; the next start does the rest (`abort` stays)."""
_CHECKPOINT_SPACING_MS = 1000
_DISPATCH_RECORDS = 4096


@frozen
class StoreSettings:
    """Where a store is, and the sizes of its files."""

    root: Path
    commit_log_directory: Path
    file_bytes: int
    """mappedFileSizeCommitLog."""
    message_bytes_max: int
    """maxMessageSize: longest body."""
    store_host: Host
    """Broker address that every record names."""
    queues: ConsumeQueueSettings = Factory(ConsumeQueueSettings)
    index: IndexShape = Factory(IndexShape)
    dispatch: DispatchSettings = Factory(DispatchSettings)


def _unknown() -> int:
    return 0


class MessageStore:
    """A locked, recovered store. Make it with `open`, end it with `close`; both block on the disk."""

    def __init__(
        self,
        settings: StoreSettings,
        *,
        lock: StoreLock,
        abort: AbortFile,
        checkpoint: Checkpoint,
        checkpoint_file: CheckpointFile,
        commit_log: CommitLog,
        recovered: Recovered,
        queues: ConsumeQueues,
        index: IndexService,
        dispatcher: Dispatcher,
    ) -> None:
        self.settings = settings
        self.commit_log = commit_log
        self.recovered = recovered
        self.queues = queues
        self.index = index
        self.dispatcher = dispatcher
        self.reads = MessageReader(commit_log, queues, index)
        self._lock = lock
        self._abort = abort
        self._checkpoint = checkpoint
        self._checkpoint_file = checkpoint_file
        self._checkpoint_lock = threading.Lock()
        self._has_failed = False
        self._listed_queues: frozenset[tuple[str, int]] = frozenset()
        self._listed_deletions: int | None = None
        """`queues.deletions` when `_listed_queues` were all queues with entries; None if that is not known.

        They still are if nothing was written or deleted since."""
        self._queue_sync: tuple[SyncWork, SyncWork] | None = None
        """Work of the last `queue_sync_work`, queues and index; it may not have run to its end."""
        self.confirm_offset: Callable[[], int] = _unknown
        """The confirm offset for the checkpoint, 0 if none is known. Called in worker threads."""
        commit_log.before_restart = self._forget_derived

    @property
    def last_confirm_offset(self) -> int:
        """The confirm offset of the last checkpoint, 0 if none was known."""
        return self._checkpoint.confirm_physical_offset

    @classmethod
    def open(
        cls,
        settings: StoreSettings,
        *,
        on_progress: Callable[[str, int, int], None] | None = None,
        is_restoring: bool = False,
    ) -> MessageStore:
        """Lock the store (made if missing), find the log's end, and mark the store as in use.

        `on_progress(what, done, total)` gets the number of log files checked, then of the bytes dispatched,
        several times a second. An exception of it ends the opening: the lock is released, and the store stays
        marked as in need of recovery if anything in it was changed. Raises StoreError, with the lock
        released, if the store is in use or cannot be opened, or if a restore into it was interrupted
        (`is_restoring` says that the caller is that restore).
        """
        if not is_restoring and (settings.commit_log_directory / RESTORE_MARKER).exists():
            raise StoreError(
                "a restore into this store has not ended: its log is not whole",
                path=settings.root,
                hint="run the same trioha restore again",
            )
        try:
            settings.root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"cannot be made: {error.strerror}", path=settings.root) from error
        lock = StoreLock(settings.root)
        lock.acquire()
        try:
            with ExitStack() as opened:
                progress = on_progress or (lambda _what, _done, _total: None)
                store = cls._open_locked(settings, lock, progress, opened)
                opened.pop_all()
        except OSError as error:
            lock.release()
            raise StoreError(f"cannot be opened: {error.strerror}", path=settings.root) from error
        except BaseException:
            lock.release()
            raise
        return store

    @classmethod
    def _open_locked(
        cls,
        settings: StoreSettings,
        lock: StoreLock,
        on_progress: Callable[[str, int, int], None],
        opened: ExitStack,
    ) -> MessageStore:
        """Open all parts; `opened` closes them if a later one fails."""
        root = settings.root
        abort = AbortFile(root)
        clean_exit = not abort.exists
        checkpoint = Checkpoint.load(root / "checkpoint")
        queues = ConsumeQueues(root, settings.queues, is_batch_topic=batch_topics(root).__contains__)
        opened.callback(queues.close)
        queues.recover(lambda done, total: on_progress("opening consume queues", done, total))
        listed = load_queue_manifest(root)
        lost = {name for name in listed if (queue := queues.find(*name)) is None or not queue.max_offset}
        index, index_from = IndexService.open(
            root, settings.index, safe_until_ms=None if clean_exit else checkpoint.index_msg_timestamp_ms
        )
        opened.callback(index.close)
        checkpoint_file = CheckpointFile(root / "checkpoint")
        opened.callback(checkpoint_file.close)
        commit_log, recovered = open_commit_log(
            settings.commit_log_directory,
            file_bytes=settings.file_bytes,
            message_bytes_max=settings.message_bytes_max,
            store_host=settings.store_host,
            clean_exit=clean_exit,
            checkpoint=checkpoint,
            record_near_end=queues.record_near_end(CHECKED_BYTES) if clean_exit else None,
            on_progress=lambda done, total: on_progress("checking the commit log, files", done, total),
        )
        opened.callback(commit_log.close)
        commit_log.queues_max = settings.queues.queues_max
        # From here on queues and index are changed: a process that ends before it closes the store leaves it
        # in need of recovery.
        abort.create()
        if commit_log.is_empty:
            queues.destroy()
            index.destroy()
            index_from = None
        else:
            queues.truncate_dirty(commit_log.max_offset)
            cut_from = index.cut(commit_log.max_offset)
            index_from = min((at for at in (index_from, cut_from) if at is not None), default=None)
            queues.correct_min_offsets(commit_log.min_offset)
            if lost:
                log.warning(
                    "consume queues are gone, all are compared with the log", queues=sorted(lost)[:10]
                )
                index_from = commit_log.min_offset
        position = start_position(
            commit_log, queues, clean_exit=clean_exit, checkpoint=checkpoint, redispatch_from=index_from
        )
        store = cls(
            settings,
            lock=lock,
            abort=abort,
            checkpoint=checkpoint,
            checkpoint_file=checkpoint_file,
            commit_log=commit_log,
            recovered=recovered,
            queues=queues,
            index=index,
            dispatcher=Dispatcher(commit_log, queues, index, position=position, settings=settings.dispatch),
        )
        store._listed_queues = listed
        if not settings.dispatch.is_slave:
            commit_log.puts_blocked = True
            try:
                store._dispatch_to_end(on_progress=on_progress)
            except StoreError as error:
                log.error("puts are refused until the queues are complete", reason=str(error))
            store.enable_puts()
        return store

    # -- queues and index ---------------------------------------------------------------------------------

    def _dispatch_to_end(
        self, *, on_progress: Callable[[str, int, int], None], limit_s: float | None = None
    ) -> None:
        """Dispatch to the log's end, for `limit_s` at most. Blocks. Raises StoreError."""
        deadline_s = None if limit_s is None else time.monotonic() + limit_s
        dispatcher, end_offset = self.dispatcher, self.commit_log.max_offset
        start_offset = dispatcher.position
        while dispatcher.dispatch(end_offset, records_max=_DISPATCH_RECORDS):
            on_progress(
                "building queues and index, bytes",
                dispatcher.position - start_offset,
                end_offset - start_offset,
            )
            if deadline_s is not None and time.monotonic() > deadline_s:
                return

    def enable_puts(self) -> None:
        """Accept puts, if they were blocked and the queues are at the log's end now and can be read."""
        log_ = self.commit_log
        if log_.puts_blocked and self.dispatcher.position >= log_.max_offset:
            try:
                self.queues.correct_min_offsets(log_.min_offset)
            except StoreError as error:
                log.error("puts are refused until the queues can be read", reason=str(error))
                return
            log_.queue_offsets = self.queues.queue_offsets()
            log_.puts_blocked = False

    def _forget_derived(self) -> None:
        """Delete queues and index: the log is about to begin anew.

        Raises StoreError if not all can be deleted; the deleted ones are built again then.
        """
        self.dispatcher.rewind(0)
        self.queues.destroy()
        self.index.destroy()

    def head_deleted(self) -> Iterator[None]:
        """Delete, step by step, files of queues and index with only records before the log's start.

        A step is one queue, at most some 100 us, so that other tasks can run in between; meanwhile the log
        may grow, lose more files or begin anew. A queue whose files cannot be deleted is passed over;
        StoreError is raised after all the others: call again later.
        """
        refused: StoreError | None = None
        for queue in self.queues:
            try:
                # If the log began anew meanwhile, the queue is empty and not in use.
                queue.delete_before(self.commit_log.min_offset)
            except StoreError as error:
                refused = error
            yield
        self.index.delete_before(self.commit_log.min_offset)
        if refused is not None:
            raise refused

    # -- disk ---------------------------------------------------------------------------------------------

    def sync_work(self, start_offset: int, end_offset: int, *, store_timestamp_ms: int) -> Callable[[], None]:
        """A function for a worker thread that puts log bytes on disk and updates the checkpoint.

        `store_timestamp_ms` is that of the last record before `end_offset`. The function blocks and raises
        OSError. It opens nothing, so any error means that the disk has failed.
        """
        files = self.commit_log.sync_work(start_offset, end_offset)

        def sync() -> None:
            files.run()
            # One write a second, as in the broker; recovery allows for 3 s.
            if store_timestamp_ms - self._checkpoint.physic_msg_timestamp_ms >= _CHECKPOINT_SPACING_MS:
                self._save_checkpoint(physic_msg_timestamp_ms=store_timestamp_ms)

        return sync

    def queue_sync_work(self) -> Callable[[], None] | None:
        """The same for queues and index; None if nothing was written since the last call.

        There may be more queue files than descriptors. Files that cannot be opened stay for the next call,
        and the checkpoint is not updated before they are on disk; likewise if the function never ran.
        """
        self._reclaim_unsynced()
        logics_ms = self.dispatcher.last_store_timestamp_ms
        full_until_ms = self.index.full_until_ms
        index = self.index.sync_work()
        queues = self.queues.sync_work()
        deletions = self.queues.deletions
        has_writes = bool(queues.left or index.left)
        if not has_writes and self._listed_deletions == deletions:
            return None
        names = frozenset(name for name, max_offset in self.queues.queue_offsets().items() if max_offset)
        if not has_writes and names == self._listed_queues:
            self._listed_deletions = deletions
            return None
        self._queue_sync = queues, index

        def sync() -> None:
            queues.run()
            index.run()
            if left := len(queues.left) + len(index.left):
                log.warning("out of file descriptors: files of queues are synced later", files=left)
                return
            if names != self._listed_queues:
                self._save_queue_manifest(names, deletions=deletions)
            self._save_checkpoint(
                logics_msg_timestamp_ms=max(logics_ms, self._checkpoint.logics_msg_timestamp_ms),
                index_msg_timestamp_ms=max(full_until_ms, self._checkpoint.index_msg_timestamp_ms),
            )

        return sync

    def _reclaim_unsynced(self) -> bool:
        """Add files that the last `queue_sync_work` did not sync to the next one; whether there are any."""
        if self._queue_sync is None:
            return False
        queues, index = self._queue_sync
        self._queue_sync = None
        self.queues.give_back(queues)
        self.index.give_back(index)
        return bool(queues.left or index.left)

    def _save_checkpoint(self, **changes: int) -> None:
        """Blocks; called by worker threads. Raises OSError, but not for a full disk.

        An older checkpoint is still true: the next start only checks more records.
        """
        with self._checkpoint_lock:
            self._checkpoint = evolve(
                self._checkpoint, confirm_physical_offset=self.confirm_offset(), **changes
            )
            try:
                self._checkpoint_file.save(self._checkpoint)
            except OSError as error:
                if error.errno not in DISK_FULL:
                    raise
                log.warning(
                    "checkpoint cannot be written",
                    path=str(self._checkpoint_file.path),
                    reason=error.strerror,
                )

    def _save_queue_manifest(self, names: frozenset[tuple[str, int]], *, deletions: int) -> None:
        """Blocks; called by worker threads. Raises OSError, but not for want of space or descriptors.

        The next sync tries again then.
        """
        try:
            save_queue_manifest(self.settings.root, names)
        except OSError as error:
            if error.errno not in DISK_FULL and not is_shortage(error):
                raise
            self._listed_deletions = None
            log.warning("list of queues cannot be written", reason=error.strerror)
        else:
            self._listed_queues = names
            self._listed_deletions = deletions

    def mark_failed(self) -> None:
        """Never mark this store as cleanly closed: the disk has failed a sync."""
        self._has_failed = True

    def close(self) -> None:
        """Put everything on disk, mark the store as cleanly closed, close all files and release the lock.

        `abort` stays, as in the broker, if queues and index are not at the log's end (dispatch waits at a bad
        record, is refused by the disk, or takes longer than `CLOSE_DISPATCH_S`), or if there are no
        descriptors to sync them with. Raises StoreError if the disk refuses: the store then stays marked as
        in need of recovery.
        """
        log_ = self.commit_log
        try:
            if self._has_failed:
                # A sync that succeeds after one that failed does not bring back the pages that were lost.
                return
            dispatched = self._dispatch_at_close()
            self.sync_work(log_.flushed.offset, log_.max_offset, store_timestamp_ms=0)()
            log_.flushed.advance(log_.max_offset)
            if (sync_queues := self.queue_sync_work()) is not None:
                sync_queues()
            synced = not self._reclaim_unsynced()
            self._save_checkpoint(
                physic_msg_timestamp_ms=max(
                    log_.last_store_timestamp_ms, self._checkpoint.physic_msg_timestamp_ms
                )
            )
            if dispatched and synced:
                self._abort.remove()
        except OSError as error:
            raise StoreError(f"cannot be closed: {error.strerror}", path=self.settings.root) from error
        finally:
            self.release()

    def release(self) -> None:
        """Close all files and release the lock without a sync.

        The store stays marked as in need of recovery, as after a killed process.
        """
        self.commit_log.close()
        for work in self._queue_sync or ():
            work.close()
        self.queues.close()
        self.index.close()
        self._checkpoint_file.close()
        self._lock.release()

    def _dispatch_at_close(self) -> bool:
        """Whether queues and index are at the log's end."""
        try:
            self._dispatch_to_end(on_progress=lambda _what, _done, _total: None, limit_s=CLOSE_DISPATCH_S)
        except StoreError as error:
            log.warning("queues cannot be completed, the next start will", reason=str(error))
            return False
        return self.dispatcher.position >= self.commit_log.max_offset
