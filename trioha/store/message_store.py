"""A store directory in use by this process: commit log, consume queues, index, checkpoint.

See docs/protocol/store.md#files, docs/protocol/store.md#start.

Theory of operation. The log is the truth; consume queues and index are built from it by the dispatcher and
can always be built again. `open_store` finds the log's end, cuts the queues to it, and finds the offset where
dispatch has to continue. A master dispatches to the log's end before it accepts puts, since the queues hold
the next queue offsets. The checkpoint holds the store time, and the offset, up to which log, queues and index
were on disk. The file `abort` exists while a process uses the store; if a start finds it, only the checkpoint
counts.

In controller mode a start after a power loss notes the log's last epoch (`store.doubtful_epoch`): the
machine's boot id, in `abort`, tells a power loss from a killed process, which loses nothing that it wrote.

A cut ends the log at an earlier record, with all that was built from it: a slave that has bytes which its
master does not have follows it only then. After a crash at any moment the store opens uncut or cut, never a
mix (`store.cut_marker`).

| what | module |
|---|---|
| opening | `opening.open_store` |
| dispatch: one stretch, its tasks, all of it | `dispatch`, `dispatch_service`, `dispatch_to_end` |
| whether puts are accepted | `put_admission` |
| cuts, and a log that begins anew | `cutting`, `cut_marker` |
| syncs, and what they claim | `store_syncs`, `checkpoints` |
| an index that lacks keys, or may have lost some | `index_backlog`, `index_rebuild` |
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from attrs import define, evolve

from trioha.errors import StoreError
from trioha.store.checkpoints import Checkpoints
from trioha.store.commit_log import CommitLog
from trioha.store.consume_queues import ConsumeQueues
from trioha.store.cut_marker import BegunCut
from trioha.store.cutting import Cutter
from trioha.store.dispatch import Dispatcher
from trioha.store.dispatch_to_end import OnProgress, dispatch_at_close, no_progress
from trioha.store.epochs import EpochLog
from trioha.store.index_rebuild import IndexRebuild
from trioha.store.index_service import IndexService
from trioha.store.lock import AbortFile, StoreLock
from trioha.store.put_admission import PutAdmission
from trioha.store.reads import MessageReader
from trioha.store.recovery import Recovered
from trioha.store.store_settings import StoreSettings
from trioha.store.store_syncs import StoreSyncs
from trioha.unwritten import Unwritten


@define(eq=False, kw_only=True)
class MessageStore:
    """A locked, recovered store: its parts, and what concerns several of them.

    `opening.open_store` makes it; end it with `close`, which blocks on the disk.
    """

    settings: StoreSettings
    commit_log: CommitLog
    queues: ConsumeQueues
    index: IndexService
    dispatcher: Dispatcher
    reads: MessageReader
    """Messages for clients."""
    puts: PutAdmission
    """Whether puts are accepted."""
    syncs: StoreSyncs
    """What was written since the last sync, for a worker thread to put on disk."""
    checkpoints: Checkpoints
    """What was on disk, and the confirm offset."""
    cutter: Cutter
    """Ends the log at an earlier record, and all that was built from it."""
    index_rebuild: IndexRebuild
    """The index after a failed sync."""
    epochs: EpochLog | None
    """Which master wrote which bytes of the log, in controller mode; None in every other."""
    lock: StoreLock
    abort: AbortFile
    recovered: Recovered
    completed_cut: BegunCut | None
    """The cut that the opening has completed, until it is recorded; None if there was none."""
    doubtful_epoch: int
    """The last epoch whose end the log may have lost in a power loss; -1 for none."""
    unwritten: Unwritten
    """What of this store cannot be written, or of the node that uses it, although it goes on."""

    # -- the role -----------------------------------------------------------------------------------------

    def take_role(self, *, is_slave: bool, on_progress: OnProgress = no_progress) -> None:
        """Go on as the store of a slave or of a master, whose parts are attached afterwards.

        That of a master dispatches to the log's end, as an opening does: until it is there, puts are refused.
        Blocks. An exception of `on_progress` ends it; what is left to do, the dispatch task does.
        """
        dispatch = evolve(self.settings.dispatch, is_slave=is_slave)
        self.settings = evolve(self.settings, dispatch=dispatch)
        self.dispatcher.configure(dispatch)
        if is_slave:
            self.commit_log.puts_blocked = False
        else:
            self.puts.prepare(on_progress)

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
                confirm_offset = self.checkpoints.confirm_offset()
                self.checkpoints.follow_confirm_offset(lambda: confirm_offset)

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

    # -- end ----------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Put everything on disk, mark the store as cleanly closed, close all files and release the lock.

        `abort` stays, as in the broker, if queues are not at the log's end (dispatch waits at a bad
        record, is refused by the disk, or takes longer than `CLOSE_DISPATCH_S`), if there are no descriptors
        to sync them and the index with, or if a sync of the index failed. Raises StoreError if the disk
        refuses: the store then stays marked as in need of recovery.
        """
        log, checkpoints = self.commit_log, self.checkpoints
        try:
            if self.abort.has_failed:
                # A sync that succeeds after one that failed does not bring back the pages that were lost.
                self._expect_losses()
                return
            dispatched = dispatch_at_close(self.dispatcher, log)
            self.syncs.log_sync(log.flushed.offset, log.max_offset, store_timestamp_ms=0)()
            log.flushed.advance(log.max_offset)
            if (sync_queues := self.syncs.queue_sync()) is not None:
                sync_queues()
            is_doubtful = self.index_rebuild.is_doubtful()
            synced = not self.syncs.reclaim() and not is_doubtful
            claimed_ms = checkpoints.claimed_ms(log.last_store_timestamp_ms)
            checkpoints.save(
                checkpoints.cuts,
                physic_msg_timestamp_ms=claimed_ms or checkpoints.current.physic_msg_timestamp_ms,
            )
            if dispatched and synced:
                self.abort.remove()
        except OSError as error:
            self._expect_losses()
            raise StoreError(f"cannot be closed: {error.strerror}", path=self.settings.root) from error
        finally:
            self.release()

    def _expect_losses(self) -> None:
        """Have the next start count as one after a power loss, as far as a disk that failed allows."""
        with suppress(OSError):
            self.abort.create(names_boot=False)

    def release(self) -> None:
        """Close all files and release the lock without a sync.

        The store stays marked as in need of recovery, as after a killed process.
        """
        self.commit_log.close()
        self.syncs.close()
        self.queues.close()
        self.index.close()
        self.checkpoints.close()
        self.lock.release()
