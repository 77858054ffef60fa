"""Half messages and op records of one store: reads and puts of the two topics (see `transaction_service`).

No put waits for disk and slaves, since producers send decisions one-way: a decision that a crash takes is
made again after a check.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import structlog
import trio

from trioha.broker.half_messages import (
    QUEUE_ID,
    TRANSACTION_GROUP,
    HalfMessage,
    op_body,
    op_message,
    op_offsets,
)
from trioha.broker.puts import PutService
from trioha.broker.transaction_restore import TransactionRestore
from trioha.broker.transaction_table import Position, TransactionTable
from trioha.metadata.offsets import ConsumerOffsets
from trioha.store.message_store import MessageStore
from trioha.store.messages import AppendResult, Message
from trioha.store.put_status import PutStatus
from trioha.store.reads import ReadLimits
from trioha.store.record import Record, RecordError, decode_record
from trioha.store.time_steps import leads
from trioha.store.topics import HALF_TOPIC, OP_TOPIC

log = structlog.get_logger(__name__)

NEVER_STORED: Final = frozenset((PutStatus.MESSAGE_ILLEGAL, PutStatus.PROPERTIES_SIZE_EXCEEDED))
"""Statuses of puts that another attempt does not change."""
_LIMITS: Final = ReadLimits(messages_max=64, bytes_max=1024 * 1024)


class TransactionLog:
    """Reads and puts the records of transactions."""

    def __init__(self, store: MessageStore, puts: PutService, *, now_ms: Callable[[], int]) -> None:
        """`now_ms`: the wall clock, for the time of birth of op records."""
        self._store = store
        self._puts = puts
        self._now_ms = now_ms
        self._own_copies: set[int] = set()
        """Queue offsets of copies that `put_copy` has put and `is_own_copy` was not asked for."""

    def half_message_at(self, physical_offset: int) -> HalfMessage | None:
        """The half message that the log has there; None if it has none. Raises StoreError."""
        return HalfMessage.of(self._store.reads.record_at(physical_offset))

    def put(self, message: Message) -> AppendResult:
        """Append a message."""
        result = self._puts.put(message)
        if result.status is not PutStatus.PUT_OK and result.append.status is PutStatus.PUT_OK:
            return AppendResult(result.status)
        return result.append

    def put_copy(self, copy: Callable[[], Message]) -> AppendResult:
        """Put a copy of a half message into the half topic."""
        try:
            message = copy()
        except ValueError as error:
            return AppendResult(PutStatus.MESSAGE_ILLEGAL, reason=str(error))
        appended = self.put(message)
        if appended.status is PutStatus.PUT_OK:
            self._own_copies.add(appended.queue_offset)
        return appended

    def is_own_copy(self, queue_offset: int) -> bool:
        """Whether `put_copy` has put the half message there; once for each copy."""
        if queue_offset not in self._own_copies:
            return False
        self._own_copies.remove(queue_offset)
        return True

    def put_op(self, half_offsets: Sequence[int], *, is_gathering: bool) -> AppendResult:
        """Put an op record that names these half offsets: as 4.9 does one, or as 5.x gathers them."""
        body = op_body(half_offsets) if is_gathering else str(half_offsets[0]).encode()
        return self.put(op_message(body, now_ms=self._now_ms(), host=self._store.commit_log.store_host))

    async def restore(
        self, offsets: ConsumerOffsets, *, back_ms: int, check_at: Callable[[HalfMessage], float]
    ) -> TransactionTable:
        """The open transactions by the records that are dispatched, once all are that are stored now.

        `offsets` have the kept position; within `back_ms` before the last record every half message without
        an immunity of its own was put anew. `check_at` says when one may be checked. Raises StoreError.
        """
        await self._store.dispatcher.dispatched.reached(self._store.commit_log.max_offset)
        half_end = self._store.reads.max_offset(HALF_TOPIC, QUEUE_ID)
        op_end = self._store.reads.max_offset(OP_TOPIC, QUEUE_ID)
        position = self._kept_position(offsets, half_end, op_end, back_ms=back_ms)
        restore = TransactionRestore(position, half_end=half_end)

        def op_record(view: memoryview) -> None:
            try:
                record = decode_record(view, check_crc=False)
            except RecordError:
                return
            if isinstance(record, Record):
                restore.op_record(record.queue_offset, op_offsets(record.body))

        def half(view: memoryview) -> None:
            found = HalfMessage.of(view)
            if found is not None:
                restore.half_message(found, check_at_s=check_at(found))

        await self.read(OP_TOPIC, position.op_offset, op_end, op_record)
        await self.read(HALF_TOPIC, position.half_offset, half_end, half)
        return restore.finish()

    def _kept_position(
        self, offsets: ConsumerOffsets, half_end: int, op_end: int, *, back_ms: int
    ) -> Position:
        """Where to begin to read.

        The kept position may be ahead of this log: a crash took the log's end, or a slave had copied offsets
        of its master sooner than messages. So the records of the last `back_ms` are read in any case.
        """
        reads, commit_log = self._store.reads, self._store.commit_log
        low = Position(reads.min_offset(HALF_TOPIC, QUEUE_ID), reads.min_offset(OP_TOPIC, QUEUE_ID))
        half_offset = offsets.find(TRANSACTION_GROUP, HALF_TOPIC, QUEUE_ID)
        op_offset = offsets.find(TRANSACTION_GROUP, OP_TOPIC, QUEUE_ID)
        if half_offset is None or op_offset is None or half_offset > half_end or op_offset > op_end:
            return low
        last_ms = reads.store_timestamp(HALF_TOPIC, QUEUE_ID, half_end - 1)
        # A record that leads the clock says nothing of when the last ones were stored.
        times_ms = (commit_log.last_store_timestamp_ms, last_ms)
        since_ms = max((ms for ms in times_ms if not leads(ms, commit_log.now_ms())), default=0) - back_ms
        half_offset = min(half_offset, reads.offset_by_time(HALF_TOPIC, QUEUE_ID, since_ms))
        op_offset = min(op_offset, reads.offset_by_time(OP_TOPIC, QUEUE_ID, since_ms))
        return Position(max(low.half_offset, half_offset), max(low.op_offset, op_offset))

    async def read(
        self,
        topic: str,
        offset: int,
        end: int,
        consume: Callable[[memoryview], None],
        passed: Callable[[int], None] = lambda _offset: None,
    ) -> None:
        """Give each record in `[offset, end)` of a queue to `consume`, and how far that is to `passed`.

        Raises StoreError.
        """
        while offset < end:
            result = self._store.reads.get(topic, QUEUE_ID, offset, limits=_LIMITS)
            for queue_offset, view in zip(result.queue_offsets, result.records, strict=True):
                if queue_offset < end:
                    consume(view)
            following = min(result.next_begin_offset, end)
            if following <= offset:
                log.error("a queue cannot be read", topic=topic, offset=offset, status=result.status.value)
                following = end
            offset = following
            passed(offset)
            await trio.lowlevel.checkpoint()
