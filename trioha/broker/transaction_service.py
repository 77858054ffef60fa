"""The transactions of a master: half messages, decisions, checks and op records.

See docs/protocol/remoting.md#transactions.

Theory of operation. What is open is in the log, see `TransactionTable`; this service keeps the table in step
with it and acts by it:

```
restore        after the start: op records and half messages from the kept position on
+- follow      each half message that dispatch has put into its queue becomes an open transaction
+- check       a round each transactionCheckInterval, if a transaction is due: asks its producer, or gives up
+- write ops   op records that could not be written at once, or are gathered
+- position    keeps it as offsets of CID_RMQ_SYS_TRANS, when the log up to it is on disk and at slaves
```

`follow` waits for dispatch, `check` for the round of the earliest check, the others until there is work: an
idle service does not run. A decision waits until `follow` has passed its half message, and is carried out
then by `follow`: it need not have a connection any more. No put waits for disk and slaves, since producers
send decisions one-way: one that a crash takes is made again after a check.

A check puts the half message anew and sends its new offsets to one producer of the group, in turn. Half
messages whose producer asked for a long immunity are put anew when the topic has grown far beyond them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Final

import structlog
import trio
from attrs import define, field, frozen

from trioha.broker.clients import ClientRegistry
from trioha.broker.half_messages import (
    QUEUE_ID,
    TRANSACTION_GROUP,
    HalfMessage,
    half_message,
    op_body,
    op_message,
    op_offsets,
)
from trioha.broker.puts import PutResult, PutService
from trioha.broker.transaction_restore import TransactionRestore
from trioha.broker.transaction_table import CheckSchedule, OpenTransaction, Position, TransactionTable
from trioha.errors import StoreError
from trioha.metadata.metadata_store import MetadataStore
from trioha.metadata.table import TableFull, wall_clock_ms
from trioha.metadata.topics import TopicConfig
from trioha.remoting.codec import encode
from trioha.remoting.codes import RequestCode, ResponseCode
from trioha.remoting.command import BadRequestError, request
from trioha.remoting.end_transaction import CheckTransactionState
from trioha.store.message_store import MessageStore
from trioha.store.messages import AppendResult, Message
from trioha.store.put_status import PutStatus
from trioha.store.reads import ReadLimits
from trioha.store.record import Record, RecordError, decode_record
from trioha.store.time_steps import leads
from trioha.store.topics import GIVEN_UP_TOPIC, HALF_TOPIC, OP_TOPIC
from trioha.watermark import Watermark

log = structlog.get_logger(__name__)

DECISION_WAIT_S: Final = 10.0
"""How long a decision waits for its half message, which dispatch has not reached yet."""
RETRY_S: Final = 1.0
"""After a read or a put that the disk refused."""
POSITION_INTERVAL_S: Final = 1.0
"""Between two positions that are kept."""
CHECKS_PER_TURN: Final = 32
"""So many half messages are checked before other tasks run."""
MOVED_BEYOND: Final = 100_000
"""A half message that waits, and is so far before the end of its topic, is put anew."""
_LIMITS: Final = ReadLimits(messages_max=64, bytes_max=1024 * 1024)
_NEVER_STORED: Final = frozenset((PutStatus.MESSAGE_ILLEGAL, PutStatus.PROPERTIES_SIZE_EXCEEDED))


@frozen
class TransactionSettings:
    """How transactions are handled."""

    broker_name: str = "broker"
    broker_ip: str = "127.0.0.1"
    """brokerIP1, for remarks."""
    timeout_ms: int = 6000
    """transactionTimeOut."""
    check_interval_s: float = 30.0
    """transactionCheckInterval."""
    check_max: int = 15
    """transactionCheckMax."""
    is_rejecting: bool = False
    """rejectTransactionMessage."""
    op_interval_s: float = 0.0
    """transactionOpBatchInterval; 0 for an op record of 4.9 for each decision."""
    op_bytes_max: int = 4096
    """transactionOpMsgMaxSize."""
    open_max: int = 100_000
    """trioha.openTransactionsMax."""
    reserved_ms: int = 72 * 3_600_000
    """fileReservedTime: an older half message is given up, since its record may be deleted."""


@define(eq=False)
class LateDecision:
    """A decision that came before its half message was in the table. It is carried out, also if nobody waits
    for its answer any more."""

    followed_offset: int
    """The half message is in the table when `TransactionService.followed` is there."""
    _decide: Callable[[bool], None]
    """Called with whether it is there; may raise."""
    ended: trio.Event = field(factory=trio.Event)
    error: Exception | None = None
    """What `decide` has raised, once it has ended."""

    async def run(self, followed: Watermark) -> None:
        """Wait for the half message, for `DECISION_WAIT_S` at most, and decide."""
        is_in_table = False
        with trio.move_on_after(DECISION_WAIT_S):
            is_in_table = await followed.reached(self.followed_offset)
        try:
            self._decide(is_in_table)
        except BadRequestError as error:
            self.error = error
        except Exception as error:
            # The connection reports it, too, unless it has ended.
            log.error("a decision failed", exc_info=error)
            self.error = error
        self.ended.set()


class TransactionService:
    """Keeps and checks the open transactions of a master."""

    def __init__(
        self,
        store: MessageStore,
        metadata: MetadataStore,
        clients: ClientRegistry,
        puts: PutService,
        *,
        settings: TransactionSettings | None = None,
        held_offset: Callable[[], int] | None = None,
        now_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        """`held_offset`: the end of what each slave has that may become master, by default the log's end.

        `now_ms`: the wall clock, which producers' times of birth are compared with.
        """
        self._store = store
        self._metadata = metadata
        self._clients = clients
        self._puts = puts
        self.settings = settings or TransactionSettings()
        self._held_offset = held_offset or (lambda: store.commit_log.max_offset)
        self._now_ms = now_ms
        self.push: Callable[[int, bytes], bool] = lambda _connection, _frame: False
        """Sends a frame to a connection; False if it has ended. Set by the owner of the server."""
        self._stored = Watermark(store.reads.max_offset(HALF_TOPIC, QUEUE_ID))
        """Half messages that readers can see, as queue offset."""
        self._stored_at_start = self._stored.offset
        self.followed = Watermark()
        """Half messages before it are in the table, if they are open; 0 until the table is restored."""
        self._late_decisions, self._to_decide = trio.open_memory_channel[LateDecision](math.inf)
        self._table = TransactionTable(Position(0, 0))
        self._own: set[int] = set()
        """Queue offsets of copies that this service has put and `_follow` has not read."""
        self._schedule = CheckSchedule(start_s=0.0, interval_s=self.settings.check_interval_s)
        self._round_s = -math.inf
        """When the next round of checks is; infinite if there is nothing to check."""
        self._is_earlier = trio.Event()
        self._has_ops = trio.Event()
        self._op_bytes = 0
        """Of the body that the pending op records will make."""
        self._has_moved = trio.Event()
        self._turns = count()

    @property
    def open_transactions(self) -> int:
        """Transactions that are open, or whose op record is pending."""
        return len(self._table)

    def stored(self, queue_end: int) -> None:
        """Dispatch has put half messages up to this queue offset into their queue."""
        self._stored.advance(queue_end)

    # -- sends -------------------------------------------------------------------------------------------

    def prepare(self, message: Message) -> Message:
        """The half message of a send that begins a transaction. Raises BadRequestError."""
        settings = self.settings
        if settings.is_rejecting:
            raise BadRequestError(
                f"the broker[{settings.broker_ip}] sending transaction message is forbidden",
                code=ResponseCode.NO_PERMISSION,
            )
        followed = max(self.followed.offset, self._stored_at_start)
        ahead = self._store.commit_log.queue_offsets.get((HALF_TOPIC, QUEUE_ID), 0) - followed
        if len(self._table) + ahead >= settings.open_max:
            raise BadRequestError(
                f"{len(self._table) + ahead} transactions are open, trioha.openTransactionsMax",
                code=ResponseCode.SYSTEM_BUSY,
            )
        try:
            return half_message(message)
        except ValueError as error:
            raise BadRequestError(str(error), code=ResponseCode.MESSAGE_ILLEGAL) from None

    # -- decisions ---------------------------------------------------------------------------------------

    def catch_up(self) -> None:
        """Have half messages that were stored just now dispatched at once, so that they can be decided."""
        self._store.dispatcher.catch_up()

    def decide_later(self, decision: LateDecision) -> None:
        """Carry out a decision when `followed` passes its half message, or after `DECISION_WAIT_S`."""
        self._late_decisions.send_nowait(decision)

    async def _decide_late(self) -> None:
        async with trio.open_nursery() as nursery:
            async for decision in self._to_decide:
                nursery.start_soon(decision.run, self.followed)

    def half_message_at(self, physical_offset: int) -> HalfMessage | None:
        """The half message that the log has there; None if it has none. Raises StoreError."""
        return HalfMessage.of(self._store.reads.record_at(physical_offset))

    def find(self, queue_offset: int, identity: int | None) -> OpenTransaction | None:
        """The open transaction that has this copy of a half message, with this `HalfMessage.identity`."""
        return self._table.find(queue_offset, identity)

    def commit(self, transaction: OpenTransaction) -> AppendResult:
        """Give the message to consumers. If it cannot be stored, the transaction stays open.

        Raises StoreError if the half message cannot be read; it stays open then, too.
        """
        half = self.half_message_at(transaction.physical_offset)
        if half is None:
            return AppendResult(PutStatus.MESSAGE_ILLEGAL, reason="the half message cannot be read")
        appended = self._put(half.committed())
        if appended.status is PutStatus.PUT_OK:
            self._end(transaction)
        return appended

    def roll_back(self, transaction: OpenTransaction) -> None:
        """Drop the message."""
        self._end(transaction)

    def _end(self, transaction: OpenTransaction) -> None:
        self._table.end(transaction)
        self._op_bytes += len(str(transaction.queue_offset)) + 1
        if self.settings.op_interval_s == 0 or self._op_bytes >= self.settings.op_bytes_max:
            self._write_pending_ops()
        if self._table.pending_count:
            self._has_ops.set()
        self._has_moved.set()

    def _put(self, message: Message) -> AppendResult:
        result = self._puts.put(message)
        assert isinstance(result, PutResult), "a put that waits for nothing has its result"
        return result.append if result.status is PutStatus.PUT_OK else _refused(result)

    # -- op records --------------------------------------------------------------------------------------

    def _write_pending_ops(self) -> None:
        """Write op records for all decisions; those that the log refuses stay pending."""
        is_gathering = self.settings.op_interval_s > 0
        pending = self._table.pending_ops
        written = 0
        while written < len(pending):
            batch = self._batch(pending, written) if is_gathering else pending[written : written + 1]
            body = op_body(batch) if is_gathering else str(batch[0]).encode()
            appended = self._put(
                op_message(body, now_ms=self._now_ms(), host=self._store.commit_log.store_host)
            )
            if appended.status is not PutStatus.PUT_OK:
                break
            self._table.op_written(appended.queue_offset, batch)
            written += len(batch)
        self._op_bytes = len(op_body(pending[written:]))

    def _batch(self, pending: tuple[int, ...], start: int) -> tuple[int, ...]:
        """Half offsets of one record, from index `start` on."""
        size_bytes = 0
        for index in range(start, len(pending)):
            size_bytes += len(str(pending[index])) + 1
            if size_bytes >= self.settings.op_bytes_max:
                return pending[start : index + 1]
        return pending[start:]

    async def _write_ops(self) -> None:
        while True:
            await self._has_ops.wait()
            await trio.sleep(self.settings.op_interval_s or RETRY_S)
            self._write_pending_ops()
            self._has_moved.set()
            if not self._table.pending_count:
                self._has_ops = trio.Event()

    # -- the table and the log ---------------------------------------------------------------------------

    async def run(self) -> None:
        """Restore what is open, then check and write until cancelled; pending op records are written then."""
        self._schedule = CheckSchedule(start_s=trio.current_time(), interval_s=self.settings.check_interval_s)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._decide_late)
            await self._restore_in_the_end()
            try:
                async with trio.open_nursery() as services:
                    services.start_soon(self._follow)
                    services.start_soon(self._check_often)
                    services.start_soon(self._write_ops)
                    services.start_soon(self._keep_positions)
            finally:
                self._write_pending_ops()

    async def _restore_in_the_end(self) -> None:
        """`_restore`, again and again while the disk refuses to be read."""
        while True:
            try:
                return await self._restore()
            except StoreError as error:
                log.error("open transactions cannot be read, again later", reason=str(error))
                await trio.sleep(RETRY_S)

    async def _restore(self) -> None:
        """Build the table from the log. Raises StoreError."""
        commit_log, reads = self._store.commit_log, self._store.reads
        await self._store.dispatcher.dispatched.reached(commit_log.max_offset)
        half_end = reads.max_offset(HALF_TOPIC, QUEUE_ID)
        op_end = reads.max_offset(OP_TOPIC, QUEUE_ID)
        position = self._kept_position(half_end, op_end)
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
                restore.half_message(found, check_at_s=self._check_at(found))

        await self._read(OP_TOPIC, position.op_offset, op_end, op_record)
        await self._read(HALF_TOPIC, position.half_offset, half_end, half)
        self._table = restore.finish()
        if len(self._table):
            log.info("transactions are open", transactions=len(self._table))
        self.followed.advance(half_end)
        self._stored.advance(half_end)
        self._has_moved.set()

    def _kept_position(self, half_end: int, op_end: int) -> Position:
        """Where to begin to read.

        The kept position may be ahead of this log: a crash took the log's end, or a slave had copied offsets
        of its master sooner than messages. So a time is read again in which every half message without an
        immunity of its own was put anew.
        """
        reads, offsets = self._store.reads, self._metadata.consumer_offsets
        low = Position(reads.min_offset(HALF_TOPIC, QUEUE_ID), reads.min_offset(OP_TOPIC, QUEUE_ID))
        half_offset = offsets.find(TRANSACTION_GROUP, HALF_TOPIC, QUEUE_ID)
        op_offset = offsets.find(TRANSACTION_GROUP, OP_TOPIC, QUEUE_ID)
        if half_offset is None or op_offset is None or half_offset > half_end or op_offset > op_end:
            return low
        settings = self.settings
        back_ms = settings.timeout_ms + int(2000 * settings.check_interval_s)
        log_ = self._store.commit_log
        last_ms = reads.store_timestamp(HALF_TOPIC, QUEUE_ID, half_end - 1)
        # A record that leads the clock says nothing of when the last ones were stored.
        known_ms = [ms for ms in (log_.last_store_timestamp_ms, last_ms) if not leads(ms, log_.now_ms())]
        since_ms = max(known_ms, default=0) - back_ms
        half_offset = min(half_offset, reads.offset_by_time(HALF_TOPIC, QUEUE_ID, since_ms))
        op_offset = min(op_offset, reads.offset_by_time(OP_TOPIC, QUEUE_ID, since_ms))
        return Position(max(low.half_offset, half_offset), max(low.op_offset, op_offset))

    async def _read(
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

    async def _follow(self) -> None:
        while True:
            await self._stored.reached(self.followed.offset + 1)
            try:
                await self._read(
                    HALF_TOPIC, self.followed.offset, self._stored.offset, self._add, self._passed
                )
            except StoreError as error:
                log.error("half messages cannot be read, again later", reason=str(error))
                await trio.sleep(RETRY_S)

    def _add(self, view: memoryview) -> None:
        half = HalfMessage.of(view)
        if half is None:
            return
        if half.queue_offset in self._own:
            self._own.remove(half.queue_offset)
            return
        transaction = OpenTransaction.of(
            half.queue_offset,
            half.record.physical_offset,
            check_at_s=self._check_at(half),
            identity=half.identity,
        )
        self._table.add(transaction)
        self._note_check(transaction.check_at_s)

    def _passed(self, queue_offset: int) -> None:
        self._table.note_read(queue_offset)
        self.followed.advance(queue_offset)
        self._has_moved.set()

    async def _keep_positions(self) -> None:
        commit_log, offsets = self._store.commit_log, self._metadata.consumer_offsets
        while True:
            await self._has_moved.wait()
            self._has_moved = trio.Event()
            await trio.sleep(POSITION_INTERVAL_S)
            position = self._table.position
            end_offset = commit_log.max_offset
            if not await commit_log.flushed.reached(end_offset):
                continue
            # A slave copies it. One that lacks the decisions before it would drop what they committed.
            while self._held_offset() < end_offset:  # noqa: ASYNC110 - replicas have no common event
                await trio.sleep(POSITION_INTERVAL_S)
            try:
                offsets.commit(TRANSACTION_GROUP, HALF_TOPIC, QUEUE_ID, position.half_offset)
                offsets.commit(TRANSACTION_GROUP, OP_TOPIC, QUEUE_ID, position.op_offset)
            except TableFull as full:
                log.warning("the position of transactions is not kept", reason=str(full))

    # -- checks ------------------------------------------------------------------------------------------

    def _check_at(self, half: HalfMessage) -> float:
        """When a half message may be checked, on trio's clock."""
        if half.check_times:
            return trio.current_time()
        settings = self.settings
        immunity_ms = min(half.immunity_ms(default_ms=settings.timeout_ms), settings.reserved_ms)
        return trio.current_time() + max(0, immunity_ms - half.age_ms(self._now_ms())) / 1000

    def _note_check(self, check_at_s: float) -> None:
        if self._schedule.round_at(check_at_s) < self._round_s:
            self._is_earlier.set()

    async def _check_often(self) -> None:
        while True:
            due_s = self._table.next_check_s
            self._round_s = math.inf if due_s is None else self._schedule.round_at(due_s)
            self._is_earlier = trio.Event()
            with trio.move_on_at(self._round_s):
                await self._is_earlier.wait()
                continue
            await self._check_round(trio.current_time())

    async def _check_round(self, now_s: float) -> None:
        """Check all transactions that are due."""
        following_s = self._schedule.round_after(now_s)
        unasked: Counter[str] = Counter()
        checked = 0
        while (due := self._table.next_due(now_s + 2 * self._schedule.tolerance_s)) is not None:
            self._check(due, unasked, following_s=following_s)
            checked += 1
            if checked % CHECKS_PER_TURN == 0:
                await trio.lowlevel.checkpoint()
        self._move_oldest()
        self._has_moved.set()
        if unasked:
            log.warning(
                "no producer of these groups is connected to decide on transactions",
                transactions=unasked.total(),
                groups=[name for name, _ in unasked.most_common(5)],
            )

    def _check(self, transaction: OpenTransaction, unasked: Counter[str], *, following_s: float) -> None:
        """Ask the transaction's producer, or give it up; `unasked` counts groups without a producer."""
        try:
            half = self.half_message_at(transaction.physical_offset)
        except StoreError:
            # Reported by the log. The disk may give it later.
            self._table.postpone(transaction, check_at_s=following_s)
            return
        if half is None:
            log.error("half message cannot be read", offset=transaction.physical_offset)
            self._table.forget(transaction)
            return
        settings = self.settings
        if half.check_times >= settings.check_max or half.age_ms(self._now_ms()) > settings.reserved_ms:
            self._give_up(transaction, half, following_s=following_s)
            return
        appended = self._put_anew(half.checked_again)
        if appended.status in _NEVER_STORED:
            self._give_up(transaction, half, following_s=following_s)
            return
        if appended.status is not PutStatus.PUT_OK:
            self._table.postpone(transaction, check_at_s=following_s)
            return
        self._table.renew(
            transaction, appended.queue_offset, appended.physical_offset, check_at_s=following_s
        )
        renewed = self.half_message_at(appended.physical_offset)
        if renewed is None or not self._ask_producer(renewed, appended.message_id):
            unasked[half.producer_group] += 1

    def _put_anew(self, copy: Callable[[], Message]) -> AppendResult:
        """Put a copy into the half topic."""
        try:
            message = copy()
        except ValueError as error:
            return AppendResult(PutStatus.MESSAGE_ILLEGAL, reason=str(error))
        appended = self._put(message)
        if appended.status is PutStatus.PUT_OK:
            self._own.add(appended.queue_offset)
        return appended

    def _ask_producer(self, half: HalfMessage, message_id: str) -> bool:
        """Send CHECK_TRANSACTION_STATE to a producer of the group, in turn; False if there is none."""
        producers = list(self._clients.producers.get(half.producer_group, {}))
        if not producers:
            return False
        header = CheckTransactionState(
            half.real_topic,
            self.settings.broker_name,
            half.queue_offset,
            half.record.physical_offset,
            message_id,
            half.unique_key,
        )
        try:
            body = half.with_real_topic()
        except RecordError as error:
            log.error("half message cannot be shown to its producer", reason=str(error))
            return True
        frame = encode(
            request(
                RequestCode.CHECK_TRANSACTION_STATE,
                ext_fields=header.to_ext_fields(),
                body=body,
                oneway=True,
            )
        )
        first = next(self._turns) % len(producers)
        return any(self.push(connection, frame) for connection in producers[first:] + producers[:first])

    def _give_up(self, transaction: OpenTransaction, half: HalfMessage, *, following_s: float) -> None:
        """Put the message into the topic of transactions without a decision."""
        topics = self._metadata.topics
        if topics.find(GIVEN_UP_TOPIC) is None:
            try:
                topics.put(TopicConfig(GIVEN_UP_TOPIC, 1, 1))
            except TableFull as full:
                log.warning("topic cannot be made", topic=GIVEN_UP_TOPIC, reason=str(full))
        appended = self._put(half.given_up())
        if appended.status is not PutStatus.PUT_OK and appended.status not in _NEVER_STORED:
            self._table.postpone(transaction, check_at_s=following_s)
            return
        log.error(
            "a transaction got no decision, its message was moved",
            topic=GIVEN_UP_TOPIC,
            group=half.producer_group,
            unique_key=half.unique_key,
            checks=half.check_times,
            status=appended.status.name,
        )
        self._end(transaction)

    def _move_oldest(self) -> None:
        """Put half messages anew that wait far before the end of their topic."""
        while (
            oldest := self._table.oldest
        ) is not None and self.followed.offset - oldest.queue_offset > MOVED_BEYOND:
            try:
                half = self.half_message_at(oldest.physical_offset)
            except StoreError:
                # Reported by the log. It stays where it is.
                return
            if half is None:
                log.error("half message cannot be read", offset=oldest.physical_offset)
                self._table.forget(oldest)
                continue
            appended = self._put_anew(partial(half.moved, first_offset=oldest.first_offset))
            if appended.status is not PutStatus.PUT_OK:
                return
            self._table.renew(
                oldest,
                appended.queue_offset,
                appended.physical_offset,
                check_at_s=oldest.check_at_s,
            )


def _refused(result: PutResult) -> AppendResult:
    """The append of a put with another status than PUT_OK."""
    if result.append.status is PutStatus.PUT_OK:
        return AppendResult(result.status)
    return result.append
