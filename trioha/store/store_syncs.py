"""Syncs of a store: of the log, and of queues and index, each followed by the checkpoint.

A sync is made in the store's thread, which collects what was written since the last one and what may be
claimed when all of that is on disk. A worker thread runs it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import partial
from pathlib import Path

import structlog

from trioha.errors import StoreError
from trioha.store.checkpoints import Checkpoints
from trioha.store.commit_log import CommitLog
from trioha.store.consume_queues import ConsumeQueues
from trioha.store.dispatch import Dispatcher
from trioha.store.dispatch_start import logics_time_ms
from trioha.store.index_rebuild import IndexRebuild
from trioha.store.index_service import IndexService
from trioha.store.queue_manifest import QueueName, save_queue_manifest
from trioha.store.syncing import SyncWork
from trioha.store.time_steps import TimeStep, save_time_steps
from trioha.unwritten import QUEUE_LIST, TIME_STEPS, Unwritten

log = structlog.get_logger(__name__)

_SHORTAGES_MAX = 32
"""A cut closes files of queues so often, to find descriptors for its syncs."""


class StoreSyncs:
    """Makes the syncs of one store."""

    def __init__(
        self,
        root: Path,
        *,
        commit_log: CommitLog,
        queues: ConsumeQueues,
        index: IndexService,
        dispatcher: Dispatcher,
        checkpoints: Checkpoints,
        index_rebuild: IndexRebuild,
        listed_queues: frozenset[QueueName],
        unwritten: Unwritten,
    ) -> None:
        """`listed_queues` are those of the queue manifest."""
        self._root = root
        self._log = commit_log
        self._queues = queues
        self._index = index
        self._dispatcher = dispatcher
        self._checkpoints = checkpoints
        self._index_rebuild = index_rebuild
        self._unwritten = unwritten
        self._listed_queues = listed_queues
        self._listed_deletions: int | None = None
        """`queues.deletions` when `_listed_queues` were all queues with entries; None if that is not known.

        They still are if nothing was written or deleted since."""
        self._saved_steps = dispatcher.time_steps.changes
        """`changes` of the steps that are on disk."""
        self._last: tuple[SyncWork, SyncWork] | None = None
        """Work of the last `queue_sync`, queues and index; it may not have run to its end."""

    # -- the log -------------------------------------------------------------------------------------------

    def log_sync(
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
        checkpoints = self._checkpoints
        files = self._log.sync_work(start_offset, end_offset)
        cuts, claimed_ms = checkpoints.cuts, checkpoints.claimed_ms(store_timestamp_ms)
        checkpoints.note_confirm_offset()

        def sync() -> None:
            files.run(on_step, paced=paced)
            checkpoints.claim_log(cuts, claimed_ms)

        return sync

    # -- queues and index ----------------------------------------------------------------------------------

    def queue_sync(self, *, paced: bool = False) -> Callable[[], None] | None:
        """The same for queues and index; None if nothing was written, and no more of the log was put on disk,
        since the last call.

        There may be more queue files than descriptors. Files that cannot be opened stay for the next call,
        and the checkpoint is not updated before they are on disk; likewise if the function never ran.
        """
        self.reclaim()
        checkpoints, dispatcher = self._checkpoints, self._dispatcher
        logics_offset = self._logics_offset()
        lacks_from = dispatcher.index_lacks_from
        logics_ms = checkpoints.claimed_ms(
            dispatcher.last_store_timestamp_ms
            if lacks_from is None
            else logics_time_ms(self._log, lacks_from)
        )
        steps, step_changes = dispatcher.time_steps.all, dispatcher.time_steps.changes
        full_until_ms = self._index.full_until_ms
        index, queues = self._index.sync_work(), self._queues.sync_work()
        deletions = self._queues.deletions
        has_more = (
            bool(queues.left or index.left) or logics_offset > checkpoints.current.logics_physical_offset
        )
        if not has_more and self._listed_deletions == deletions:
            return None
        names = self._queues.names_with_entries()
        if not has_more and names == self._listed_queues:
            self._listed_deletions = deletions
            return None
        self._last = queues, index
        cuts = checkpoints.cuts
        checkpoints.note_confirm_offset()

        def sync() -> None:
            queues.run(paced=paced)
            if not self._index_rebuild.has_failed:
                self._index_rebuild.sync(index, paced=paced)
            if self._index_rebuild.has_failed:
                return
            if left := len(queues.left) + len(index.left):
                log.warning("out of file descriptors: files of queues are synced later", files=left)
                return
            if names != self._listed_queues:
                self._save_queue_manifest(cuts, names, deletions=deletions)
            if step_changes != self._saved_steps and not self._save_time_steps(steps, step_changes):
                return
            before = checkpoints.current
            offset = max(logics_offset, before.logics_physical_offset)
            checkpoints.save(
                cuts,
                logics_physical_offset=offset,
                logics_msg_timestamp_ms=(logics_ms or before.logics_msg_timestamp_ms) if offset else 0,
                index_msg_timestamp_ms=max(full_until_ms, before.index_msg_timestamp_ms),
            )

        return sync

    def _logics_offset(self) -> int:
        """The checkpoint's logicsPhysicalOffset when all that queues and index have now is on disk."""
        position, flushed_offset = self._dispatcher.position, self._log.flushed.offset
        if (lacks_from := self._dispatcher.index_lacks_from) is not None:
            position = min(position, lacks_from)
        return position if position <= flushed_offset else self._log.starts.known_before(flushed_offset)

    def reclaim(self) -> bool:
        """Add files that the last `queue_sync` did not sync to the next one; whether there are any."""
        if self._last is None:
            return False
        queues, index = self._last
        self._last = None
        self._queues.give_back(queues)
        self._index.give_back(index)
        return bool(queues.left or index.left)

    def close(self) -> None:
        """Close the files of a sync that did not run."""
        for work in self._last or ():
            work.close()

    def _save_time_steps(self, steps: Sequence[TimeStep], changes: int) -> bool:
        """Whether the steps are on disk now. Blocks; called by worker threads.

        If not, the checkpoint has to stay as it is: the next start finds the steps again.
        """
        try:
            save_time_steps(self._root, steps)
        except OSError as error:
            self._unwritten.fail(
                TIME_STEPS,
                f"{self._root}: {error.strerror}",
                consequence="the checkpoint stays as it is; a start after a crash checks more of the log",
            )
            return False
        self._unwritten.succeed(TIME_STEPS)
        self._saved_steps = changes
        return True

    def _save_queue_manifest(self, cuts: int, names: frozenset[QueueName], *, deletions: int) -> None:
        """Blocks; called by worker threads. If it cannot be written, the next sync tries again."""
        with self._checkpoints.unless_cut(cuts) as is_true:
            if not is_true:
                return
            try:
                save_queue_manifest(self._root, names)
            except OSError as error:
                self._listed_deletions = None
                self._unwritten.fail(
                    QUEUE_LIST,
                    f"{self._root}: {error.strerror}",
                    consequence="queues that are lost meanwhile are not noticed at a start",
                )
            else:
                self._unwritten.succeed(QUEUE_LIST)
                self._listed_queues = names
                self._listed_deletions = deletions

    # -- after a cut ---------------------------------------------------------------------------------------

    def list_queues_left(self) -> None:
        """Have the manifest name the queues that a cut has left; no sync changes it now.

        Blocks. Raises OSError.
        """
        names = self._queues.names_with_entries()
        if names != self._listed_queues:
            save_queue_manifest(self._root, names)
            self._listed_queues = names

    def cut_syncs(self) -> Generator[Callable[[], None], None, None]:
        """Calls that put queues and index on disk: no entry that was cut may come back when others have its
        place.

        Syncs that are running have their own files. Raises StoreError for want of descriptors.
        """
        for parts in (self._queues, self._index):
            for _ in range(_SHORTAGES_MAX):
                work = parts.sync_work()
                try:
                    yield work.run if parts is self._queues else partial(self._index_rebuild.sync, work)
                except BaseException:
                    work.close()
                    raise
                if not work.left:
                    break
                # Closes files, so that the next try finds descriptors.
                parts.give_back(work)
                if self._index_rebuild.has_failed:
                    # It is built again, also after a power cut.
                    break
            else:
                raise StoreError(
                    "no file descriptors for a sync",
                    path=self._root,
                    hint="raise the limit of open files (ulimit -n)",
                )
