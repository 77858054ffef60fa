"""Dispatch: from the log's records to consume queues and index ("reput" in RocketMQ).

See docs/protocol/store.md#dispatch.

Theory of operation. `position` walks through the log, record by record; everything before it is in the
queues, and in the index unless that is behind. `dispatch` takes a stretch of the log, collects its records'
entries (`store.record_entries`), and then writes each queue once and the index once; only then `dispatched`
moves. If a queue cannot be written, every queue goes back to the end of its last write, which needs no disk
access and cannot fail, and the same stretch can be dispatched again: queues drop entries that they have, the
index drops keys of records that it has. If only the index cannot be written, dispatch goes on without it
(`store.index_backlog`). Bodies are not read.
"""

from __future__ import annotations

from collections.abc import Sequence

import structlog
import trio

from trioha.errors import StoreError
from trioha.log_limit import LogLimit
from trioha.store.callbacks import Callbacks
from trioha.store.commit_log import CommitLog
from trioha.store.consume_queues import ConsumeQueues, Queue
from trioha.store.dispatch_settings import DispatchFault, DispatchSettings
from trioha.store.index_backlog import IndexBacklog
from trioha.store.index_service import IndexService
from trioha.store.record_entries import AT_END, EntryCollector, Stop
from trioha.store.record_layout import (
    BLANK_BYTES,
    claimed_bytes,
    faulty_record_bytes,
    find_fault,
    starts_blank,
)
from trioha.store.time_steps import TimeStep, TimeSteps
from trioha.unwritten import Unwritten
from trioha.watermark import Watermark

log = structlog.get_logger(__name__)

BATCH_RECORDS = 512
"""Records between two writes to queues and index, while puts go on: a write of so many takes half a
millisecond."""
_READ_BYTES = 256 * 1024
"""Of the log, at a time, or one record."""
_STEP_REPORT_INTERVAL_S = 60.0
"""Between two log lines about store times that go back."""


class Dispatcher:
    """Builds a store's queues and index from its log. Single-threaded, as the store is."""

    def __init__(
        self,
        commit_log: CommitLog,
        queues: ConsumeQueues,
        index: IndexService | None,
        *,
        position: int,
        index_lacks_from: int | None = None,
        settings: DispatchSettings | None = None,
        time_steps: TimeSteps | None = None,
        unwritten: Unwritten | None = None,
    ) -> None:
        """`position` is where to start, see `dispatch_start.start_position`; the log's first byte at least.
        `time_steps` are those before it.

        The index lacks records from `index_lacks_from` on that queues have; None if it lacks none.
        """
        self._log = commit_log
        self.time_steps = TimeSteps() if time_steps is None else time_steps
        """Where the store times of the log go back, as far as it is dispatched."""
        self._step_line = LogLimit(_STEP_REPORT_INTERVAL_S)
        self._queues = queues
        self._index = index
        self.settings = settings or DispatchSettings()
        """Which queues and keys are built, and what is checked. Changed by `configure`."""
        self.backlog: IndexBacklog | None = None
        """Where the index is behind; None without an index."""
        if index is not None:
            self.backlog = IndexBacklog(
                commit_log,
                index,
                stretch=self._stretch,
                lacks_from=index_lacks_from,
                unwritten=unwritten or Unwritten(),
            )
        self._collector = self._new_collector()
        self.dispatched = Watermark(max(position, commit_log.min_offset))
        """Everything before it is in queues, and in the index up to `index_lacks_from`. Moved by `dispatch`,
        and back by `rewind`."""
        self._know_latest_time()
        self.queues_written = 0
        """Queues that the last call of `dispatch` wrote last."""
        self.on_written: Callbacks[[Sequence[Queue]]] = Callbacks()
        """Called with the queues that were written, when `dispatched` has moved; must not raise."""
        self._source = commit_log.flushed if self.settings.sync_flush else commit_log.appended
        self._limit: Watermark | None = None
        self._wait = trio.CancelScope()
        """The last wait for something to dispatch."""
        self._queued_offset = queues.max_physical_offset
        """End of the last record that was in the queues when dispatch went back, or began. Queues keep what
        they have, and a clean stop vouches for queues and index together: no limit may keep the index
        shorter."""
        self.last_store_timestamp_ms = 0
        """storeTimestamp of the last record dispatched, 0 before the first: the checkpoint's
        logicsMsgTimestamp, once the queues are on disk."""
        self.passed = 0
        """Records that were passed since the start, bad ones included."""
        self.is_blocked = False
        """Whether the disk has refused the last `proceed`."""
        self.faults = 0
        """Records that could not be dispatched since the start."""
        self.last_fault: DispatchFault | None = None
        self.stuck_at = -1
        """Offset of the bad record that a slave waits at, -1 if there is none."""

    def _new_collector(self) -> EntryCollector:
        is_indexed = self.settings.message_index_enable and self.index_lacks_from is None
        return EntryCollector(self._queues, self._index if is_indexed else None, self.settings)

    def configure(self, settings: DispatchSettings) -> None:
        """Dispatch by other settings from now on."""
        self.settings = settings
        if self.backlog is not None and not settings.message_index_enable:
            self.backlog.drop()
        self._renew_collector()

    def _renew_collector(self) -> None:
        """Collect by the present settings, with or without the index."""
        latest_ms = self._collector.latest_ms
        self._collector = self._new_collector()
        self._collector.latest_ms = latest_ms

    def _know_latest_time(self) -> None:
        """The next record's store time is compared with that of the log's end, if it is the next one.

        Elsewhere a step back at the very next record was found when that was dispatched before.
        """
        is_at_end = self.position == self._log.max_offset
        self._collector.latest_ms = self._log.last_store_timestamp_ms if is_at_end else 0

    @property
    def index_lacks_from(self) -> int | None:
        """Offset of the first dispatched record whose keys the index may lack; None if it lacks none."""
        return None if self.backlog is None else self.backlog.lacks_from

    def complete_index(self, *, records_max: int = BATCH_RECORDS) -> bool:
        """Add keys of about `records_max` records at most that the index lacks.

        Returns whether there is more to do now: neither is it complete, nor does the disk refuse.
        """
        if self.backlog is None or self.backlog.lacks_from is None:
            return False
        has_moved = self.backlog.complete(self.position, self.settings, records_max=records_max)
        if self.index_lacks_from is None:
            self._renew_collector()
            return False
        return has_moved

    def doubt_index(self, start: int, reason: str) -> None:
        """A sync of the index failed: the files that begin at `start` are not known to be on disk."""
        assert self.backlog is not None, "there is no index to be doubted"
        self.backlog.is_doubtful = True
        self.backlog.fail(start, reason)
        self._renew_collector()

    @property
    def position(self) -> int:
        """Offset of the next record to dispatch."""
        return self.dispatched.offset

    def rewind(self, position: int) -> None:
        """Go back to `position`, a record's start: the log was cut there, or queues are built again."""
        self.forget_queues()
        self.dispatched.move_to(position)
        self._know_latest_time()

    def cut(self, offset: int, *, redispatch_from: int | None, last_store_timestamp_ms: int) -> None:
        """The log and its queues were cut at `offset`, and the index from `redispatch_from` on.

        `last_store_timestamp_ms` is the `logics_time_ms` of where dispatch goes on. Waits for `dispatched`
        end.
        """
        self.forget_queues()
        self.last_store_timestamp_ms = min(self.last_store_timestamp_ms, last_store_timestamp_ms)
        self.stuck_at = -1
        position = min(offset, self.position)
        self._queued_offset = min(offset, max(self._queued_offset, self.position))
        if redispatch_from is not None:
            position = min(position, redispatch_from)
        if self.backlog is not None:
            self.backlog.cut(position)
            self._renew_collector()
        self.dispatched.rewind(position)
        self.time_steps.keep(0, offset)
        self._know_latest_time()
        # It may wait for the limit to move beyond where the log ended.
        self._wait.cancel()

    @property
    def limit(self) -> Watermark | None:
        """Records that end after it are not dispatched yet, unless queues have them; None for no limit."""
        return self._limit

    def limit_to(self, limit: Watermark | None) -> None:
        """Dispatch only records that end at or before `limit`, wherever it moves; None for the log's end."""
        self._limit = limit
        self._wait.cancel()

    @property
    def until_offset(self) -> int:
        """End of what may be dispatched now."""
        source, limit = self._source, self._limit
        return source.offset if limit is None else min(limit.offset, source.offset)

    async def more(self) -> bool:
        """Wait until the mark that holds dispatch up moves beyond both its offset and the dispatcher's.

        That is the end of the log, of what is on disk, or the limit. False if that changed first: the log was
        cut, or has another limit.
        """
        source, limit = self._source, self._limit
        lower = source if limit is None or limit.offset >= source.offset else limit
        with trio.CancelScope() as self._wait:
            return await lower.reached(max(lower.offset, self.position) + 1)
        return False

    def forget_queues(self) -> None:
        """Look queues up again: call it when topics were deleted or have become batch topics."""
        self._collector.forget_queues()

    def dispatch(self, until_offset: int, *, records_max: int = BATCH_RECORDS) -> int:
        """Dispatch records that end at or before `until_offset`, about `records_max` at most, in one write
        for each file of the log.

        Returns how many were passed, bad ones included; 0 if there is nothing more to do now. Raises
        StoreError if the disk refuses a read, or a write of a queue: the position stays, so call again when
        it does not.
        """
        passed = 0
        until_offset = min(until_offset, self._log.max_offset)
        if self._limit is not None:
            until_offset = min(until_offset, max(self._limit.offset, self._queued_offset))
        while passed < records_max and (start := self.dispatched.offset) < until_offset:
            collector = self._collector
            try:
                position, records, last_time_ms = self._collect(start, until_offset, records_max - passed)
                written = collector.write_queues()
                is_indexed = self._write_index(start)
            except BaseException:
                collector.discard()
                raise
            if records:
                self.last_store_timestamp_ms = last_time_ms
            faults, steps = collector.finish()
            for fault in faults:
                self._log_fault(fault)
            for step in steps:
                self._note_step(step)
            if not is_indexed:
                self._renew_collector()
            passed += records
            self.passed += records
            if position == start:
                break
            if position > self.stuck_at:
                self.stuck_at = -1
            self.dispatched.advance(position)
            self.queues_written = len(written)
            self.on_written(written)
        return passed

    def proceed(self, *, records_max: int = BATCH_RECORDS) -> int:
        """Dispatch what may be dispatched now; 0 if that is nothing, or the disk refuses, which is logged."""
        try:
            passed = self.dispatch(self.until_offset, records_max=records_max)
        except StoreError as error:
            if not self.is_blocked:
                self.is_blocked = True
                log.error("queues stand still", reason=str(error))
            return 0
        if self.is_blocked:
            self.is_blocked = False
            log.info("queues go on", position=self.position)
        return passed

    def catch_up(self) -> None:
        """Dispatch at once what would be gathered: what a client has stored, it finds.

        Called before queues or index are read for a client that may have stored something just now.
        """
        if self.stuck_at < 0 and not self.is_blocked and self.until_offset > self.position:
            self.proceed()

    def _write_index(self, start: int) -> bool:
        """Write the keys of the stretch that begins at `start`; False if the disk refuses."""
        try:
            self._collector.write_index()
        except StoreError as error:
            assert self.backlog is not None, "there is no index to be written"
            self.backlog.fail(start, str(error))
            return False
        return True

    def _collect(self, position: int, until_offset: int, records_max: int) -> tuple[int, int, int]:
        """Collect up to `records_max` records.

        Returns the position after them, how many they were, and the last one's store time, ms.
        """
        min_offset = self._log.min_offset
        if position < min_offset:
            log.warning("dispatch goes on at the log's new start", position=position, start=min_offset)
            return min_offset, 0, 0
        view = self._stretch(position, until_offset)
        after, records, stop, last_time_ms = self._collector.collect(view, position, records_max=records_max)
        if stop is AT_END:
            return after, records, last_time_ms
        if stop is Stop.AT_BLANK:
            return self._next_file(after), records, last_time_ms
        if after > position and len(view) >= _READ_BYTES:
            # More may follow than was read: the next stretch begins with what stopped this one.
            return after, records, last_time_ms
        stopped_at = after
        after = self._after_fault(view[stopped_at - position :], stopped_at, until_offset)
        return after, records + (after != stopped_at), last_time_ms

    def _stretch(self, position: int, until_offset: int) -> memoryview:
        """Bytes of the log from a record on. Raises StoreError."""
        size = until_offset - position
        view = self._log.read(position, min(size, _READ_BYTES))
        claimed = claimed_bytes(view, 0, len(view))
        if len(view) == _READ_BYTES < claimed + BLANK_BYTES and not starts_blank(view, 0, len(view)):
            view = self._log.read(position, min(size, claimed + BLANK_BYTES))
        return view

    def _next_file(self, position: int) -> int:
        return position - position % self._log.file_bytes + self._log.file_bytes

    def _after_fault(self, view: memoryview, offset: int, until_offset: int) -> int:
        """Where to go on after a record that is not whole and valid; `offset` itself to wait.

        See docs/protocol/store.md#dispatch.

        `view` starts at the record. A record that is whole but wrong inside is passed by its size. Where the
        size cannot be right, a master passes the rest of the file; a slave stays, and checks again with the
        next call.
        """
        left = len(view)
        size = claimed_bytes(view, 0, left)
        if offset + max(size, BLANK_BYTES) > until_offset and until_offset < self._log.max_offset:
            # The rest of the record may be there, but must not be dispatched yet.
            return offset
        fault = find_fault(view, 0, left, offset, check_crc=False)
        assert fault is not None
        whole_bytes = faulty_record_bytes(view, fault)
        waits = self.settings.is_slave and whole_bytes is None
        if not waits or self.stuck_at != offset:
            self._collector.note_fault(offset, fault.reason)
        if waits:
            self.stuck_at = offset
            return offset
        if whole_bytes is not None:
            return offset + whole_bytes
        return min(self._next_file(offset), self._log.max_offset)

    def _note_step(self, step: TimeStep) -> None:
        if not self.time_steps.add(step):
            return
        if self._step_line.count():
            log.warning(
                "store times go back: a clock was set back, or was wrong before",
                offset=step.offset,
                back_ms=step.from_ms - step.to_ms,
                steps=self.time_steps.noted,
            )

    def _log_fault(self, fault: DispatchFault) -> None:
        """Count and log a bad record that was passed. A stretch that fails is logged when it succeeds."""
        self.faults += 1
        self.last_fault = fault
        log.error("record cannot be dispatched", offset=fault.physical_offset, reason=fault.reason)
