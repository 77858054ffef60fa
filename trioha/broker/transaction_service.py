"""The transactions of a master: half messages, decisions and op records.

See docs/protocol/remoting.md#transactions.

Theory of operation. What is open is in the log, see `TransactionTable`; this service keeps the table in step
with it and acts by it:

```
restore        after the start: op records and half messages from the kept position on
+- decide      decisions that came before their half message (`LateDecisions`)
+- follow      each half message that dispatch has put into its queue becomes an open transaction
+- check       asks producers about what is due, or gives up (`TransactionChecks`)
+- write ops   op records that could not be written at once, or are gathered
+- position    keeps it as offsets of CID_RMQ_SYS_TRANS, when the log up to it is on disk and at slaves
```

`follow` waits for dispatch, `check` for the round of the earliest check, the others until there is work: an
idle service does not run.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import structlog
import trio

from trioha.broker.clients import ClientRegistry
from trioha.broker.half_messages import QUEUE_ID, TRANSACTION_GROUP, HalfMessage, half_message, op_body
from trioha.broker.late_decisions import LateDecision, LateDecisions
from trioha.broker.puts import PutService
from trioha.broker.timer_messages import TimerMessages
from trioha.broker.transaction_checks import TransactionChecks
from trioha.broker.transaction_log import TransactionLog
from trioha.broker.transaction_settings import TransactionSettings
from trioha.broker.transaction_table import OpenTransaction, Position, TransactionTable
from trioha.errors import StoreError
from trioha.metadata.metadata_store import MetadataStore
from trioha.metadata.table import TableFull, wall_clock_ms
from trioha.remoting.codes import ResponseCode
from trioha.remoting.command import BadRequestError
from trioha.remoting.connections import Push
from trioha.store.message_properties import parse_properties
from trioha.store.message_store import MessageStore
from trioha.store.messages import AppendResult, Message
from trioha.store.put_status import PutStatus
from trioha.store.topics import HALF_TOPIC, OP_TOPIC
from trioha.watermark import Watermark

log = structlog.get_logger(__name__)

RETRY_S: Final = 1.0
"""After a read or a put that the disk refused."""
POSITION_INTERVAL_S: Final = 1.0
"""Between two positions that are kept."""


class TransactionService:
    """Keeps the open transactions of a master."""

    def __init__(
        self,
        store: MessageStore,
        metadata: MetadataStore,
        clients: ClientRegistry,
        puts: PutService,
        *,
        settings: TransactionSettings | None = None,
        timers: TimerMessages,
        push: Push,
        held_offset: Callable[[], int] | None = None,
        now_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        """`timers` are those of sends; `push` is that of `TransactionChecks`. `held_offset`: the end of what
        each slave has that may become master, by default the log's end.

        `now_ms`: the wall clock, which producers' times of birth are compared with.
        """
        self._store = store
        self._metadata = metadata
        self.settings = settings or TransactionSettings()
        self._held_offset = held_offset or (lambda: store.commit_log.max_offset)
        self._stored = Watermark(store.reads.max_offset(HALF_TOPIC, QUEUE_ID))
        """Half messages that readers can see, as queue offset."""
        self._stored_at_start = self._stored.offset
        self._timers = timers
        self.followed = Watermark()
        """Half messages before it are in the table, if they are open; 0 until the table is restored."""
        self._table = TransactionTable(Position(0, 0))
        self.log = TransactionLog(store, puts, now_ms=now_ms)
        self._late_decisions = LateDecisions(self.followed)
        self.checks = TransactionChecks(
            self.log,
            clients,
            metadata.topics,
            settings=self.settings,
            push=push,
            end=self._end,
            now_ms=now_ms,
        )
        self._has_ops = trio.Event()
        self._op_bytes = 0
        """Of the body that the pending op records will make."""
        self._has_moved = trio.Event()

    def configure(self, settings: TransactionSettings) -> None:
        """Handle further transactions so; rounds of checks keep their interval."""
        self.settings = self.checks.settings = settings

    def stored(self, queue_end: int) -> None:
        """Dispatch has put half messages up to this queue offset into their queue."""
        self._stored.advance(queue_end)

    # -- sends and decisions -----------------------------------------------------------------------------

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
            return half_message(message, self._timers)
        except ValueError as error:
            raise BadRequestError(str(error), code=ResponseCode.MESSAGE_ILLEGAL) from None

    def decide_later(self, queue_offset: int, decide: Callable[[], None]) -> LateDecision:
        """Call `decide` when the half message is in the table. Raises BadRequestError if another one waits.

        Half messages that were stored just now are dispatched at once.
        """
        late = self._late_decisions.add(queue_offset, decide)
        self._store.dispatcher.catch_up()
        return late

    def find(self, queue_offset: int, identity: int | None) -> OpenTransaction | None:
        """The open transaction that has this copy of a half message, with this `HalfMessage.identity`."""
        return self._table.find(queue_offset, identity)

    def commit(self, transaction: OpenTransaction) -> AppendResult:
        """Give the message to consumers. If it cannot be stored, the transaction stays open.

        A message with a time of delivery waits for it from now on. Raises StoreError if the half message
        cannot be read, BadRequestError if its timer is refused; it stays open then, too.
        """
        half = self.log.half_message_at(transaction.physical_offset)
        if half is None:
            return AppendResult(PutStatus.MESSAGE_ILLEGAL, reason="the half message cannot be read")
        message = half.committed()
        appended = self.log.put(self._timers.stored(message, parse_properties(message.properties)))
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

    # -- op records --------------------------------------------------------------------------------------

    def _write_pending_ops(self) -> None:
        """Write op records for all decisions; those that the log refuses stay pending."""
        is_gathering = self.settings.op_interval_s > 0
        pending = self._table.pending_ops
        written = 0
        while written < len(pending):
            batch = self._batch(pending, written) if is_gathering else pending[written : written + 1]
            appended = self.log.put_op(batch, is_gathering=is_gathering)
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
        start_s = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._late_decisions.run)
            await self._restore_in_the_end()
            self.checks.begin(self._table, start_s=start_s)
            try:
                async with trio.open_nursery() as services:
                    services.start_soon(self._follow)
                    services.start_soon(partial(self.checks.run, on_round=self._note_move))
                    services.start_soon(self._write_ops)
                    services.start_soon(self._keep_positions)
            finally:
                self._write_pending_ops()

    async def _restore_in_the_end(self) -> None:
        """Build the table from the log, again and again while the disk refuses to be read."""
        settings = self.settings
        while True:
            try:
                self._table = await self.log.restore(
                    self._metadata.consumer_offsets,
                    back_ms=settings.timeout_ms + int(2000 * settings.check_interval_s),
                    check_at=self.checks.check_at,
                )
                break
            except StoreError as error:
                log.error("open transactions cannot be read, again later", reason=str(error))
                await trio.sleep(RETRY_S)
        if len(self._table):
            log.info("transactions are open", transactions=len(self._table))
        self.followed.advance(self._table.half_end)
        self._stored.advance(self._table.half_end)
        self._has_moved.set()

    async def _follow(self) -> None:
        while True:
            await self._stored.reached(self.followed.offset + 1)
            try:
                await self.log.read(
                    HALF_TOPIC, self.followed.offset, self._stored.offset, self._add, self._passed
                )
            except StoreError as error:
                log.error("half messages cannot be read, again later", reason=str(error))
                await trio.sleep(RETRY_S)

    def _add(self, view: memoryview) -> None:
        half = HalfMessage.of(view)
        if half is None or self.log.is_own_copy(half.queue_offset):
            return
        transaction = OpenTransaction.of(
            half.queue_offset,
            half.record.physical_offset,
            check_at_s=self.checks.check_at(half),
            identity=half.identity,
        )
        self._table.add(transaction)
        self.checks.added(transaction)

    def _passed(self, queue_offset: int) -> None:
        self._table.note_read(queue_offset)
        self.followed.advance(queue_offset)
        self._has_moved.set()

    def _note_move(self) -> None:
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
