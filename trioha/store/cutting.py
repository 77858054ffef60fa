"""Ending a store at an earlier record, or emptying it: the log, and all that was built from it.

Theory of operation. Once the mark of a cut is on disk (`store.cut_marker`) the store counts as cut, and an
opening completes what a crash has interrupted. So nothing may be stored before the mark is gone again, and
after an error the node has to end: had it gone on, that opening would also cut what was stored since.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import structlog

from trioha.errors import StoreError
from trioha.store.callbacks import Callbacks
from trioha.store.checkpoints import Checkpoints
from trioha.store.commit_log import CommitLog
from trioha.store.consume_queues import ConsumeQueues
from trioha.store.cut_marker import BegunCut, remove_cut, save_cut
from trioha.store.dispatch import Dispatcher
from trioha.store.dispatch_start import logics_time_ms
from trioha.store.epochs import EpochLog, EpochTable
from trioha.store.index_service import IndexService
from trioha.store.lock import AbortFile
from trioha.store.put_admission import PutAdmission
from trioha.store.steps import Step, reason_of
from trioha.store.store_syncs import StoreSyncs
from trioha.store.syncing import sync_directory

log = structlog.get_logger(__name__)


class Cutter:
    """Cuts one store."""

    def __init__(
        self,
        root: Path,
        *,
        abort: AbortFile,
        commit_log: CommitLog,
        queues: ConsumeQueues,
        index: IndexService,
        dispatcher: Dispatcher,
        epochs: EpochLog | None,
        checkpoints: Checkpoints,
        syncs: StoreSyncs,
        puts: PutAdmission,
    ) -> None:
        self._root = root
        self._abort = abort
        self._log = commit_log
        self._queues = queues
        self._index = index
        self._dispatcher = dispatcher
        self._epochs = epochs
        self._checkpoints = checkpoints
        self._syncs = syncs
        self._puts = puts
        self.on_cut: Callbacks[[]] = Callbacks()
        """Called after each cut, when the queues are cut, too."""
        # Not a bound method, which would be forgotten with this object: the log may be in use for longer.
        commit_log.before_restart.add(partial(Cutter._forget_derived, self))

    def steps(self, offset: int) -> Iterator[Callable[[], None]]:
        """End the log at `offset`, the start of a record or the log's end, and all that was built from it.

        Everything is cut when the first step is there, or when the iterator ends. Steps only put it on disk:
        each blocks for as long as the disk takes for all queues, and may run in a worker thread; ask for the
        next one in trio's thread, when it has ended, and store nothing before the iterator has. Its end means
        that all is on disk: log, queues, index, checkpoint and epochs. After a crash at any moment the next
        opening finds the store uncut, or cut. Waits for offsets end with REWOUND, connections of this log's
        slaves end, and puts are refused until the queues are at the log's end (`PutAdmission.enable`). The
        index may begin before the end: dispatch completes it.

        The iterator blocks for a few syncs itself, so that nothing can be stored meanwhile. It has to be
        exhausted. It raises StoreError with nothing changed if no record starts at `offset`. After any other
        StoreError the node has to end: the next opening completes the cut. Any exception of the cut, of a
        step or of a callback is such a StoreError: if the node went on, that opening would also cut what was
        stored since. A step raises nothing.
        """
        log_ = self._log
        if log_.starts.first_from(offset) != offset:
            raise StoreError(
                "the log cannot be cut here: no record starts at this offset",
                path=log_.directory,
                offset=offset,
                hint=f"the log is [{log_.min_offset}, {log_.max_offset}); if it differs from its master's "
                "inside a record, remove the store, and the node copies its master's",
            )
        if offset == log_.max_offset:
            if self._epochs is not None:
                self._epochs.truncate_suffix(offset)
            return
        last_store_timestamp_ms = log_.starts.store_timestamp_before(offset)
        try:
            yield from self._steps(offset, last_store_timestamp_ms)
        except Exception as error:
            self._abort.mark_failed()
            reason = error.reason if isinstance(error, StoreError) else reason_of(error)
            raise StoreError(
                f"the cut cannot be completed: {reason}",
                path=error.path if isinstance(error, StoreError) else log_.directory,
                offset=offset,
                hint="check disk and log, then start again: the start completes the cut",
            ) from error

    def _steps(self, offset: int, last_store_timestamp_ms: int) -> Iterator[Callable[[], None]]:
        log_ = self._log
        cut_bytes = log_.max_offset - offset
        self._checkpoints.begin_cut()
        if log_.flushed.offset < offset:
            log_.sync_work(log_.flushed.offset, offset).run()
            log_.flushed.advance(offset)
        epochs = EpochTable() if self._epochs is None else self._epochs.table
        save_cut(log_.directory, BegunCut.of(offset, log_.max_offset, epochs))
        log_.cut(offset, last_store_timestamp_ms=last_store_timestamp_ms)
        self._cut_derived()
        with closing(self._syncs.cut_syncs()) as syncs:
            for sync in syncs:
                yield (step := Step(sync))
                if step.error is not None:
                    raise step.error
        self._checkpoints.end_cut()
        remove_cut(log_.directory)
        log.warning("commit log cut", end_offset=offset, bytes=cut_bytes)
        self.on_cut()
        self._puts.enable()

    def _cut_derived(self) -> None:
        """Cut queues, index, epochs and checkpoint to the log's end. Raises StoreError and OSError."""
        log_ = self._log
        end_offset = log_.max_offset
        if log_.is_empty:
            # As an opening does it.
            self._queues.destroy()
            sync_directory(self._root)
        else:
            self._queues.truncate_dirty(end_offset)
        index_cut = self._index.plan_cut(0 if log_.is_empty else end_offset)
        position = min(end_offset, self._dispatcher.position)
        if index_cut.redispatch_from is not None:
            position = max(min(position, index_cut.redispatch_from), log_.min_offset)
        if self._epochs is not None:
            self._epochs.truncate_suffix(end_offset)
        logics_ms = logics_time_ms(log_, position)
        self._dispatcher.cut(end_offset, redispatch_from=position, last_store_timestamp_ms=logics_ms)
        self._syncs.list_queues_left()
        logics_offset = min(position, self._checkpoints.current.logics_physical_offset)
        self._checkpoints.lower_to_end(logics_offset, logics_ms, index_cut)
        self._index.cut(index_cut)

    def _forget_derived(self) -> None:
        """Delete queues, index and epochs, and reset the checkpoint: the log is about to begin anew.

        The checkpoint is first: with the times of the old log, a start after a power cut would count records
        of the new log as synced. Syncs that are running do not change it any more.

        Raises StoreError, and OSError for the checkpoint, if not all can be deleted; the deleted ones are
        built again then. Without epochs nothing is known of a log, so it is compared with its master's or
        copied anew.
        """
        self._checkpoints.reset()
        if self._epochs is not None:
            self._epochs.clear()
        self._dispatcher.cut(0, redispatch_from=None, last_store_timestamp_ms=0)
        self._queues.destroy()
        self._index.destroy()
