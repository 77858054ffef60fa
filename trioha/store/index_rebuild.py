"""The index after a failed sync: its doubtful files are deleted, and built again from the log.

Theory of operation. The index is optional, so a sync of it that fails ends nothing: the error is noted, and
the index gets no keys from then on (`IndexBacklog.is_doubtful`). What is not known to be on disk counts as
lacking: these are the files that a start after a crash builds again. Before they are deleted the checkpoint
is lowered, as there, since without files nothing else tells the next start where the index begins to lack
keys. Then the backlog is completed (`store.index_backlog`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from trioha.errors import StoreError
from trioha.store.checkpoints import Checkpoints
from trioha.store.commit_log import CommitLog
from trioha.store.dispatch import Dispatcher
from trioha.store.dispatch_start import logics_time_ms
from trioha.store.index_service import IndexCut, IndexService
from trioha.store.steps import Step, reason_of
from trioha.store.syncing import SyncWork
from trioha.unwritten import INDEX, Unwritten


class IndexRebuild:
    """Syncs a store's index, and rebuilds what a failed sync may have lost."""

    def __init__(
        self,
        index: IndexService,
        *,
        commit_log: CommitLog,
        dispatcher: Dispatcher,
        checkpoints: Checkpoints,
        unwritten: Unwritten,
    ) -> None:
        self._index = index
        self._log = commit_log
        self._dispatcher = dispatcher
        self._checkpoints = checkpoints
        self._unwritten = unwritten
        self._error: OSError | None = None
        """Why the last sync failed; None if it did not. Set by worker threads."""

    @property
    def has_failed(self) -> bool:
        """Whether a sync has failed, and the files that it may have lost are still there."""
        return self._error is not None

    def sync(self, work: SyncWork, *, paced: bool = False) -> None:
        """Put files of the index on disk, or note the error. Blocks; called by worker threads."""
        try:
            work.run(paced=paced)
        except OSError as error:
            self._error = error

    def is_doubtful(self) -> bool:
        """Whether files have to be built again; the index gets no keys from then on."""
        if self._error is None:
            return False
        dispatcher = self._dispatcher
        reason = f"{self._index.directory}: fsync failed: {self._error.strerror}"
        if dispatcher.backlog is None or not dispatcher.settings.message_index_enable:
            # Only its folder is synced, where files were deleted.
            self._error = None
            self._unwritten.fail(INDEX, reason, consequence="none is kept; its folder is synced again")
            return False
        if not dispatcher.backlog.is_doubtful:
            start = self._unsynced().redispatch_from
            lacks_from = dispatcher.position if start is None else max(start, self._log.min_offset)
            dispatcher.doubt_index(lacks_from, reason)
        return True

    def drop_steps(self) -> Iterator[Callable[[], None]]:
        """Delete the files that are not known to be on disk, when the checkpoint is lowered.

        A step of the iterator lowers it, in a worker thread, and raises nothing. What cannot be written or
        deleted leaves the index doubtful: call again later.
        """
        backlog, lacks_from = self._dispatcher.backlog, self._dispatcher.index_lacks_from
        assert backlog is not None, "an index that is doubtful is kept"
        assert lacks_from is not None, "an index that is doubtful lacks keys"
        checkpoints = self._checkpoints
        cuts, plan = checkpoints.cuts, self._unsynced()
        logics_ms = logics_time_ms(self._log, lacks_from)
        yield (step := Step(lambda: checkpoints.lower_for_index(cuts, lacks_from, logics_ms, plan)))
        if checkpoints.is_cut_since(cuts):
            return
        try:
            if step.error is not None:
                raise StoreError(reason_of(step.error), path=checkpoints.path)
            self._index.cut(self._unsynced())
        except StoreError as error:
            backlog.fail(lacks_from, str(error))
        else:
            self._error = None
            backlog.is_doubtful = False

    def _unsynced(self) -> IndexCut:
        """Files of the index that may not be on disk, by the rule of a start after a crash."""
        log = self._log
        return self._index.plan_cut(
            0 if log.is_empty else log.max_offset,
            safe_until_ms=self._checkpoints.current.index_msg_timestamp_ms,
        )
