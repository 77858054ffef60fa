"""The tasks that keep queues and index at the log's end, and on disk.

See docs/protocol/store.md#dispatch, docs/protocol/store.md#appends-and-flushes.

Dispatch follows `appended`, with SYNC_FLUSH `flushed`: consumers do not see messages that are not on disk
yet, and in controller mode at most the confirm offset (`Dispatcher.limit_to`). It runs in short
slices, since it shares its thread with replication. A record that comes alone is dispatched at once; those of
the milliseconds after a dispatch are dispatched together, since alone a record costs much more. While
a consumer waits for messages they are first given a turn of the scheduler: if none comes after the first one,
that is dispatched, else they are gathered for a fraction of a millisecond. A slave that copies a long log
makes the slices shorter still: up to a megabyte is received between two of them; without traffic they follow
each other.

A disk that is full for queues stops dispatch until there is space again; the node goes on. One that is full
for the index alone stops nothing: the index is completed when it accepts it (`store.index_backlog`). A failed
sync of queues ends the node, as one of the log does; after one of the index its files are built again.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable

import structlog
import trio

from trioha.errors import StoreError
from trioha.net.threads import run_in_thread
from trioha.store.dispatch import BATCH_RECORDS
from trioha.store.message_store import MessageStore
from trioha.store.waiting_readers import WaitingReaders

log = structlog.get_logger(__name__)

GATHER_S = 0.005
"""Time between two dispatches while puts keep coming: records that come meanwhile are dispatched together
(docs/where-time-goes.md#end-to-end)."""
BUSY_GATHER_S = 0.02
"""The same after a dispatch of `BUSY_RECORDS` or more. A dispatch delays the put that comes meanwhile."""
BUSY_RECORDS = 16
AWAITED_GATHER_S = 0.0002
"""The same while consumers wait for messages."""
RECHECK_S = 1.0
"""Between two tries while a bad record or a full disk stops dispatch, or the index is behind."""
REBUILD_INTERVAL_S = 60.0
"""Between two times that files of the index are deleted after a failed sync. Meanwhile they are read."""
INDEX_RECORDS = 64
"""Records in a slice of what the index lacks: it shares the thread with all else."""
PROGRESS_INTERVAL_S = 0.05
OnDispatched = Callable[[int, int], None]
"""Receives the offset that is dispatched, and how many records were since the last call."""
SYNC_INTERVAL_S = 1.0
"""flushIntervalConsumeQueue: from one sync of queues and index to the next."""
SYNC_INTERVAL_MAX_S = 10.0
"""The same where syncs take long. A start after a crash dispatches again what was not synced."""
SYNC_SHARE = 200
"""The time to the next sync, in times of how long the last one took. Keys are all over the index, so a sync
of it writes thousands of pages, and messages that come meanwhile wait for the disk, too."""
QUIET_S = 0.01
"""A slave whose log has not grown for so long is not catching up."""
BESIDE_RECORDS = 64
"""Records in a slice on a slave that is catching up: replication goes first."""


class DispatchService:
    """Runs a store's dispatcher."""

    def __init__(
        self,
        store: MessageStore,
        *,
        readers: WaitingReaders | None = None,
        on_dispatched: OnDispatched = lambda _offset, _records: None,
        sync: Callable[[Callable[[], None]], Awaitable[None]] = run_in_thread,
    ) -> None:
        """`readers` are the consumers that wait. `on_dispatched` is called several times a second while
        dispatch moves, and soon after it reaches the log's end; `sync` runs a function that blocks, by
        default in a worker thread."""
        self._store = store
        self._readers = WaitingReaders() if readers is None else readers
        self._on_dispatched = on_dispatched
        self._reported_offset = store.dispatcher.position
        self._reported_s = -math.inf
        self._reported_records = store.dispatcher.passed
        self._unreported = trio.Event()
        """Set when dispatch waits with something to report."""
        self._sync = sync
        self._dispatched_s = -math.inf
        """When records were dispatched last."""
        self._gather_s = GATHER_S
        """Time from then to the next dispatch while no consumer waits."""

    async def run(self) -> None:
        """Dispatch and sync until cancelled. Raises StoreError when the disk fails a sync."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._dispatch)
            nursery.start_soon(self._report_soon)
            nursery.start_soon(self._sync_often)
            nursery.start_soon(self._complete_index)

    async def _dispatch(self) -> None:
        dispatcher = self._store.dispatcher
        commit_log = self._store.commit_log
        records_max = BATCH_RECORDS
        grown_s = -math.inf
        while True:
            until_offset = dispatcher.until_offset
            if until_offset <= dispatcher.position:
                self._store.puts.enable()
                if commit_log.puts_blocked and dispatcher.position >= commit_log.max_offset:
                    # The queues could not be read, and no put will wake this task to try again.
                    await trio.sleep(RECHECK_S)
                elif await self._more() and trio.current_time() < self._next_s():
                    await self._gather()
                continue
            end_offset, position = commit_log.max_offset, dispatcher.position
            passed = dispatcher.proceed(records_max=records_max)
            self._store.puts.enable()
            self._gather_s = BUSY_GATHER_S if passed >= BUSY_RECORDS else GATHER_S
            if passed == 0:
                if dispatcher.position == position:
                    if until_offset < end_offset and not dispatcher.is_blocked and dispatcher.stuck_at < 0:
                        # The next record is not whole before the limit.
                        await self._more()
                    else:
                        await trio.sleep(RECHECK_S)
                continue
            now_s = self._dispatched_s = trio.current_time()
            if now_s >= self._reported_s + PROGRESS_INTERVAL_S:
                self._report()
            if passed > 1 or dispatcher.position < until_offset:
                # After a lone record the wait for the next one gives other tasks their turn.
                await trio.lowlevel.checkpoint()
                now_s = trio.current_time()
                if commit_log.max_offset != end_offset:
                    grown_s = now_s
            is_catching_up = now_s < grown_s + QUIET_S and dispatcher.settings.is_slave
            records_max = BESIDE_RECORDS if is_catching_up else BATCH_RECORDS

    def _next_s(self) -> float:
        """Before this time of trio's clock records are gathered."""
        return self._dispatched_s + (AWAITED_GATHER_S if self._readers.count else self._gather_s)

    async def _gather(self) -> None:
        """Wait for more records; while a consumer waits, only if puts keep coming."""
        dispatcher, readers = self._store.dispatcher, self._readers
        awaited_s = self._dispatched_s + AWAITED_GATHER_S
        if readers.count:
            until_offset = dispatcher.until_offset
            # The rest of this turn, and a whole one.
            await trio.lowlevel.checkpoint()
            await trio.lowlevel.checkpoint()
            if dispatcher.until_offset != until_offset:
                await trio.sleep_until(awaited_s)
            return
        with trio.move_on_at(self._dispatched_s + self._gather_s) as gathering:
            await readers.begins()
            gathering.deadline = min(gathering.deadline, awaited_s)
            await trio.sleep_forever()

    async def _more(self) -> bool:
        """Wait until there may be more to dispatch; False if the log was cut or the limit changed before."""
        if self._store.dispatcher.position != self._reported_offset:
            self._unreported.set()
        return await self._store.dispatcher.more()

    async def _report_soon(self) -> None:
        """Report what dispatch has not reported when it waits, as soon as a report is due.

        A task of its own, since a deadline for each wait would be a fifth of the cost of a lone record.
        """
        while True:
            await self._unreported.wait()
            due_s = self._reported_s + PROGRESS_INTERVAL_S
            if trio.current_time() < due_s:
                # Dispatch may report meanwhile.
                await trio.sleep_until(due_s)
            else:
                self._unreported = trio.Event()
                self._report()

    def _report(self) -> None:
        position = self._store.dispatcher.position
        if position != self._reported_offset:
            self._reported_offset = position
            self._reported_s = trio.current_time()
            records, self._reported_records = self._reported_records, self._store.dispatcher.passed
            self._on_dispatched(position, self._reported_records - records)

    async def _complete_index(self) -> None:
        """Add to the index what it lacks, whenever the disk accepts it."""
        dispatcher = self._store.dispatcher
        backlog = dispatcher.backlog
        assert backlog is not None, "a store has an index"
        while True:
            await backlog.begun.wait()
            while dispatcher.complete_index(records_max=INDEX_RECORDS):
                await trio.lowlevel.checkpoint()
            if backlog.lacks_from is not None:
                await trio.sleep(RECHECK_S)

    async def _sync_often(self) -> None:
        due_s, rebuild_s = 0.0, -math.inf
        while True:
            await trio.sleep(SYNC_INTERVAL_S)
            self._report()
            if self._store.index_rebuild.is_doubtful() and trio.current_time() >= rebuild_s:
                rebuild_s = trio.current_time() + REBUILD_INTERVAL_S
                for step in self._store.index_rebuild.drop_steps():
                    await self._sync(step)
                # Something is built before the next sync, which may fail, too.
                continue
            if trio.current_time() < due_s:
                continue
            if (work := self._store.syncs.queue_sync(paced=True)) is None:
                continue
            started_s = trio.current_time()
            try:
                await self._sync(work)
            except OSError as error:
                self._store.abort.mark_failed()
                raise StoreError(
                    f"fsync failed: {error.strerror}",
                    path=self._store.settings.root,
                    hint="queues may be damaged; the next start builds them again from the log",
                ) from error
            # Report it now; the next round deletes what has to be built again.
            self._store.index_rebuild.is_doubtful()
            now_s = trio.current_time()
            due_s = now_s + min(SYNC_SHARE * (now_s - started_s), SYNC_INTERVAL_MAX_S)
