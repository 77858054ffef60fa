"""A store directory in use by this process: commit log, consume queues, index, checkpoint.

See docs/protocol/store.md#files, docs/protocol/store.md#start.

Theory of operation. The log is the truth; consume queues and index are built from it by the dispatcher and
can always be built again. `open` finds the log's end, cuts the queues to it, and finds the offset where
dispatch has to continue. A master dispatches to the log's end before it accepts puts, since the queues hold
the next queue offsets. `checkpoint` holds the store time, and the offset, up to which log, queues and index
were on disk. The file `abort` exists while a process uses the store; if a start finds it, only the checkpoint
counts.

In controller mode a start after a power loss notes the log's last epoch (`store.doubtful_epoch`): the
machine's boot id, in `abort`, tells a power loss from a killed process, which loses nothing that it wrote.

`cut` ends the log at an earlier record, with all that was built from it: a slave that has bytes which its
master does not have follows it only then. After a crash at any moment the store opens uncut or cut, never a
mix (`store.cut_marker`).

| what | module |
|---|---|
| opening | `opening` |
| dispatch: one stretch, its tasks, all of it | `dispatch`, `dispatch_service`, `dispatch_to_end` |
| whether puts are accepted | `put_admission` |
| cuts, and a log that begins anew | `cutting`, `cut_marker` |
| syncs, and what they claim | `store_syncs`, `checkpoints` |
| an index that lacks keys, or may have lost some | `index_backlog`, `index_rebuild` |
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial

from attrs import evolve

from trioha.errors import StoreError
from trioha.store.checkpoint import Checkpoint
from trioha.store.cutting import Cutter
from trioha.store.dispatch_to_end import OnProgress, dispatch_at_close
from trioha.store.opening import StoreParts, open_parts
from trioha.store.reads import MessageReader
from trioha.store.store_settings import StoreSettings
from trioha.unwritten import Unwritten
from trioha.watermark import Watermark


def _no_progress(_what: str, _done: int, _total: int) -> None:
    """For work that nobody watches."""


class MessageStore:
    """A locked, recovered store. Make it with `open`, end it with `close`; both block on the disk."""

    def __init__(self, parts: StoreParts) -> None:
        self.settings = parts.settings
        self.commit_log = parts.commit_log
        self.recovered = parts.recovered
        self.queues = parts.queues
        self.index = parts.index
        self.dispatcher = parts.dispatcher
        self.epochs = parts.epochs
        """Which master wrote which bytes of the log, in controller mode; None in every other."""
        self.completed_cut = parts.completed_cut
        """The cut that `open` has completed, until it is recorded; None if there was none."""
        self.doubtful_epoch = parts.doubtful_epoch
        """The last epoch whose end the log may have lost in a power loss; -1 for none."""
        self.unwritten = parts.unwritten
        """What of this store cannot be written, or of the node that uses it, although it goes on."""
        self.reads = MessageReader(parts.commit_log, parts.queues, parts.index, parts.dispatcher.time_steps)
        self._lock = parts.lock
        self._abort = parts.abort
        self._checkpoints = parts.checkpoints
        self._syncs = parts.syncs
        self._index_rebuild = parts.index_rebuild
        self._puts = parts.puts
        self._cutter = Cutter(
            parts.settings.root,
            commit_log=parts.commit_log,
            queues=parts.queues,
            index=parts.index,
            dispatcher=parts.dispatcher,
            epochs=parts.epochs,
            checkpoints=parts.checkpoints,
            syncs=parts.syncs,
            puts=parts.puts,
            on_failure=self.mark_failed,
        )
        self.on_cut = self._cutter.on_cut
        """Called after each cut, when the queues are cut, too."""
        self._has_failed = False
        # Not a bound method, which would be forgotten with this object: the log may be in use for longer.
        parts.commit_log.before_restart.add(partial(Cutter.forget_derived, self._cutter))

    @classmethod
    def open(
        cls,
        settings: StoreSettings,
        *,
        on_progress: OnProgress = _no_progress,
        is_restoring: bool = False,
        unwritten: Unwritten | None = None,
    ) -> MessageStore:
        """Lock the store (made if missing), find the log's end, and mark the store as in use.

        `on_progress(what, done, total)` gets the number of log files checked, then of the bytes dispatched,
        several times a second. An exception of it ends the opening: the lock is released, and the store stays
        marked as in need of recovery if anything in it was changed. Raises StoreError, with the lock
        released, if the store is in use or cannot be opened, or if a restore into it was interrupted
        (`is_restoring` says that the caller is that restore). `unwritten` gets what cannot be written.
        """
        return cls(
            open_parts(
                settings,
                on_progress=on_progress,
                is_restoring=is_restoring,
                unwritten=unwritten or Unwritten(),
            )
        )

    # -- the role -----------------------------------------------------------------------------------------

    def take_role(self, *, is_slave: bool, on_progress: OnProgress = _no_progress) -> None:
        """Go on as the store of a slave or of a master, whose parts are attached afterwards.

        That of a master dispatches to the log's end, as `open` does: until it is there, puts are refused.
        Blocks. An exception of `on_progress` ends it; what is left to do, the dispatch task does.
        """
        dispatch = evolve(self.settings.dispatch, is_slave=is_slave)
        self.settings = evolve(self.settings, dispatch=dispatch)
        self.dispatcher.configure(dispatch)
        if is_slave:
            self.commit_log.puts_blocked = False
        else:
            self._puts.prepare(on_progress)

    def enable_puts(self) -> None:
        """Accept puts, if they were blocked and the queues are at the log's end now and can be read."""
        self._puts.enable()

    @contextmanager
    def attachments(self) -> Iterator[None]:
        """Detach at the end of the block what parts of a node have attached to this store since its start.

        A node that changes its role builds these parts anew. The confirm offset stays what it is then. Parts
        that wait for restarts and cuts of the log are detached by themselves (`Callbacks`).
        """
        with self.dispatcher.on_written.scope():
            try:
                yield
            finally:
                confirm_offset = self.confirm_offset()
                self.follow_confirm_offset(lambda: confirm_offset)

    # -- what is confirmed --------------------------------------------------------------------------------

    def confirm_offset(self) -> int:
        """The confirm offset, 0 if none is known; for a moment after a cut it may be beyond the log's end.

        In controller mode that of the last checkpoint until there is a role.
        """
        return self._checkpoints.confirm_offset()

    def follow_confirm_offset(self, source: Callable[[], int]) -> None:
        """Have `confirm_offset`, and the checkpoint, say what `source` gives in the store's thread."""
        self._checkpoints.follow_confirm_offset(source)

    @property
    def last_confirm_offset(self) -> int:
        """The confirm offset of the last checkpoint, 0 if none was known."""
        return self.checkpoint.confirm_physical_offset

    def limit_dispatch(self, limit: Watermark | None) -> None:
        """Build queues and index only up to the records that end at or before `limit`, wherever it moves.

        In controller mode that is the confirm offset: consumers do not see what a new master may not have.
        What is built already stays. None for the log's end.
        """
        self.dispatcher.limit_to(limit)

    # -- cut ----------------------------------------------------------------------------------------------

    def cut(self, offset: int) -> None:
        """End the log at `offset`, the start of a record or the log's end, and all that was built from it.

        As `cut_steps`, all of it in this thread. Blocks.
        """
        for step in self.cut_steps(offset):
            step()

    def cut_steps(self, offset: int) -> Iterator[Callable[[], None]]:
        """End the log at `offset`, the start of a record or the log's end, and all that was built from it.

        Everything is cut when the first step is there, or when the iterator ends. Steps only put it on disk:
        each blocks for as long as the disk takes for all queues, and may run in a worker thread; ask for the
        next one in trio's thread, when it has ended, and store nothing before the iterator has. Its end means
        that all is on disk: log, queues, index, checkpoint and epochs. After a crash at any moment the next
        opening finds the store uncut, or cut. Waits for offsets end with REWOUND, connections of this log's
        slaves end, and puts are refused until the queues are at the log's end (`enable_puts`). The index may
        begin before the end: dispatch completes it.

        The iterator blocks for a few syncs itself, so that nothing can be stored meanwhile. It has to be
        exhausted. It raises StoreError with nothing changed if no record starts at `offset`. After any other
        StoreError the node has to end: the next opening completes the cut. Any exception of the cut, of a
        step or of a callback is such a StoreError: if the node went on, that opening would also cut what was
        stored since. A step raises nothing.
        """
        return self._cutter.steps(offset)

    # -- deletion of old log files ------------------------------------------------------------------------

    def head_deleted(self) -> Iterator[None]:
        """Delete, step by step, files of queues and index with only records before the log's start.

        A step is one queue, so that other tasks can run in between; meanwhile the log may grow, lose more
        files or begin anew. A queue whose files cannot be deleted is passed over; StoreError is raised after
        all the others: call again later.
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

    def truncate_epochs(self) -> None:
        """Drop the epochs of deleted log files, on disk. Blocks: for a worker thread. Raises StoreError."""
        if self.epochs is not None:
            self.epochs.truncate_prefix(self.commit_log.min_offset)

    # -- disk ---------------------------------------------------------------------------------------------

    @property
    def checkpoint(self) -> Checkpoint:
        """The checkpoint as it is on disk."""
        return self._checkpoints.current

    def sync_work(
        self,
        start_offset: int,
        end_offset: int,
        *,
        store_timestamp_ms: int,
        on_step: Callable[[], None] = lambda: None,
        paced: bool = False,
    ) -> Callable[[], None]:
        """A function for a worker thread that puts log bytes on disk and updates the checkpoint.

        `store_timestamp_ms` is that of the last record before `end_offset`, 0 to claim nothing. `on_step` is
        called in that thread while the disk makes progress, and `paced` says that nobody waits for it
        (`SyncWork.run`). The function blocks and raises OSError. It opens nothing, so any error means that
        the disk has failed.
        """
        return self._syncs.log_sync(
            start_offset, end_offset, store_timestamp_ms=store_timestamp_ms, on_step=on_step, paced=paced
        )

    def queue_sync_work(self, *, paced: bool = False) -> Callable[[], None] | None:
        """The same for queues and index; None if nothing was written, and no more of the log was put on disk,
        since the last call.

        There may be more queue files than descriptors. Files that cannot be opened stay for the next call,
        and the checkpoint is not updated before they are on disk; likewise if the function never ran.
        """
        return self._syncs.queue_sync(paced=paced)

    def index_is_doubtful(self) -> bool:
        """Whether a sync of the index has failed: some of it may be lost, so it has to be built again.

        It gets no keys from then on; what is not known to be on disk counts as lacking.
        """
        return self._index_rebuild.is_doubtful()

    def drop_doubtful_index(self) -> Iterator[Callable[[], None]]:
        """Delete the files of the index that are not known to be on disk: they are built again from the log.

        The steps of the iterator are for a worker thread (`IndexRebuild.drop_steps`).
        """
        return self._index_rebuild.drop_steps()

    def check_lock(self) -> None:
        """Whether this process is still the only one that may use the store (`StoreLock.check`). Blocks.

        Raises StoreError if it is not.
        """
        self._lock.check()

    def mark_failed(self) -> None:
        """Never mark this store as cleanly closed: the disk has failed a sync."""
        self._has_failed = True

    # -- end ----------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Put everything on disk, mark the store as cleanly closed, close all files and release the lock.

        `abort` stays, as in the broker, if queues are not at the log's end (dispatch waits at a bad
        record, is refused by the disk, or takes longer than `CLOSE_DISPATCH_S`), if there are no descriptors
        to sync them and the index with, or if a sync of the index failed. Raises StoreError if the disk
        refuses: the store then stays marked as in need of recovery.
        """
        log, checkpoints = self.commit_log, self._checkpoints
        try:
            if self._has_failed:
                # A sync that succeeds after one that failed does not bring back the pages that were lost.
                self._expect_losses()
                return
            dispatched = dispatch_at_close(self.dispatcher, log)
            self.sync_work(log.flushed.offset, log.max_offset, store_timestamp_ms=0)()
            log.flushed.advance(log.max_offset)
            if (sync_queues := self.queue_sync_work()) is not None:
                sync_queues()
            is_doubtful = self.index_is_doubtful()
            synced = not self._syncs.reclaim() and not is_doubtful
            claimed_ms = checkpoints.claimed_ms(log.last_store_timestamp_ms)
            checkpoints.save(
                checkpoints.cuts,
                physic_msg_timestamp_ms=claimed_ms or self.checkpoint.physic_msg_timestamp_ms,
            )
            if dispatched and synced:
                self._abort.remove()
        except OSError as error:
            self._expect_losses()
            raise StoreError(f"cannot be closed: {error.strerror}", path=self.settings.root) from error
        finally:
            self.release()

    def _expect_losses(self) -> None:
        """Have the next start count as one after a power loss, as far as a disk that failed allows."""
        with suppress(OSError):
            self._abort.create(names_boot=False)

    def release(self) -> None:
        """Close all files and release the lock without a sync.

        The store stays marked as in need of recovery, as after a killed process.
        """
        self.commit_log.close()
        self._syncs.close()
        self.queues.close()
        self.index.close()
        self._checkpoints.close()
        self._lock.release()
