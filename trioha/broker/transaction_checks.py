"""Checks of open transactions: their producers are asked, or they are given up.

See docs/protocol/remoting.md#transactions.

A round each transactionCheckInterval, if a transaction is due. A check puts the half message anew and sends
its new offsets to one producer of the group, in turn. Half messages whose producer asked for a long immunity
are put anew when the topic has grown far beyond them.
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

from trioha.broker.clients import ClientRegistry
from trioha.broker.half_messages import HalfMessage
from trioha.broker.transaction_log import NEVER_STORED, TransactionLog
from trioha.broker.transaction_settings import TransactionSettings
from trioha.broker.transaction_table import CheckSchedule, OpenTransaction, TransactionTable
from trioha.errors import StoreError
from trioha.metadata.table import TableFull
from trioha.metadata.topics import TopicConfig, TopicTable
from trioha.remoting.codec import encode
from trioha.remoting.codes import RequestCode
from trioha.remoting.command import request
from trioha.remoting.connections import Push
from trioha.remoting.end_transaction import CheckTransactionState
from trioha.store.put_status import PutStatus
from trioha.store.record import RecordError
from trioha.store.topics import GIVEN_UP_TOPIC

log = structlog.get_logger(__name__)

CHECKS_PER_TURN: Final = 32
"""So many half messages are checked before other tasks run."""
MOVED_BEYOND: Final = 100_000
"""A half message that waits, and is so far before the end of its topic, is put anew."""


class TransactionChecks:
    """Checks the transactions of a table. `begin` it, then run it."""

    def __init__(
        self,
        transaction_log: TransactionLog,
        clients: ClientRegistry,
        topics: TopicTable,
        *,
        settings: TransactionSettings,
        push: Push,
        end: Callable[[OpenTransaction], None],
        now_ms: Callable[[], int],
    ) -> None:
        """`push` sends a frame to a producer. `end` is called for a transaction that is given up."""
        self._log = transaction_log
        self._clients = clients
        self._topics = topics
        self.settings = settings
        self._end = end
        self._push = push
        self._now_ms = now_ms
        self._table: TransactionTable
        self._schedule: CheckSchedule
        self._round_s = -math.inf
        """When the next round of checks is; infinite if there is nothing to check."""
        self._is_earlier = trio.Event()
        self._turns = count()

    def begin(self, table: TransactionTable, *, start_s: float) -> None:
        """Check the transactions of `table`, in rounds that are counted from `start_s` on trio's clock."""
        self._table = table
        self._schedule = CheckSchedule(start_s=start_s, interval_s=self.settings.check_interval_s)

    def check_at(self, half: HalfMessage) -> float:
        """When a half message may be checked, on trio's clock."""
        if half.check_times:
            return trio.current_time()
        settings = self.settings
        immunity_ms = min(half.immunity_ms(default_ms=settings.timeout_ms), settings.reserved_ms)
        return trio.current_time() + max(0, immunity_ms - half.age_ms(self._now_ms())) / 1000

    def added(self, transaction: OpenTransaction) -> None:
        """The table has another transaction."""
        if self._schedule.round_at(transaction.check_at_s) < self._round_s:
            self._is_earlier.set()

    async def run(self, *, on_round: Callable[[], None]) -> None:
        """Check what is due, in rounds, until cancelled; `on_round` is called after each."""
        while True:
            due_s = self._table.next_check_s
            self._round_s = math.inf if due_s is None else self._schedule.round_at(due_s)
            self._is_earlier = trio.Event()
            with trio.move_on_at(self._round_s):
                await self._is_earlier.wait()
                continue
            await self._check_round(trio.current_time())
            on_round()

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
        if unasked:
            log.warning(
                "no producer of these groups is connected to decide on transactions",
                transactions=unasked.total(),
                groups=[name for name, _ in unasked.most_common(5)],
            )

    def _check(self, transaction: OpenTransaction, unasked: Counter[str], *, following_s: float) -> None:
        """Ask the transaction's producer, or give it up; `unasked` counts groups without a producer."""
        try:
            half = self._half_of(transaction)
        except StoreError:
            # Reported by the log. The disk may give it later.
            self._table.postpone(transaction, check_at_s=following_s)
            return
        if half is None:
            return
        settings = self.settings
        if half.check_times >= settings.check_max or half.age_ms(self._now_ms()) > settings.reserved_ms:
            self._give_up(transaction, half, following_s=following_s)
            return
        appended = self._log.put_copy(half.checked_again)
        if appended.status in NEVER_STORED:
            self._give_up(transaction, half, following_s=following_s)
            return
        if appended.status is not PutStatus.PUT_OK:
            self._table.postpone(transaction, check_at_s=following_s)
            return
        self._table.renew(
            transaction, appended.queue_offset, appended.physical_offset, check_at_s=following_s
        )
        renewed = self._log.half_message_at(appended.physical_offset)
        if renewed is None or not self._ask_producer(renewed, appended.message_id):
            unasked[half.producer_group] += 1

    def _half_of(self, transaction: OpenTransaction) -> HalfMessage | None:
        """Its half message; None if the log has none, then the table forgets it. Raises StoreError."""
        half = self._log.half_message_at(transaction.physical_offset)
        if half is None:
            log.error("half message cannot be read", offset=transaction.physical_offset)
            self._table.forget(transaction)
        return half

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
        return any(self._push(connection, frame) for connection in producers[first:] + producers[:first])

    def _give_up(self, transaction: OpenTransaction, half: HalfMessage, *, following_s: float) -> None:
        """Put the message into the topic of transactions without a decision."""
        if self._topics.find(GIVEN_UP_TOPIC) is None:
            try:
                self._topics.put(TopicConfig(GIVEN_UP_TOPIC, 1, 1))
            except TableFull as full:
                log.warning("topic cannot be made", topic=GIVEN_UP_TOPIC, reason=str(full))
        appended = self._log.put(half.given_up())
        if appended.status is not PutStatus.PUT_OK and appended.status not in NEVER_STORED:
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
        table = self._table
        while (oldest := table.oldest) is not None and table.half_end - oldest.queue_offset > MOVED_BEYOND:
            try:
                half = self._half_of(oldest)
            except StoreError:
                # Reported by the log. It stays where it is.
                return
            if half is None:
                continue
            appended = self._log.put_copy(partial(half.moved, first_offset=oldest.first_offset))
            if appended.status is not PutStatus.PUT_OK:
                return
            table.renew(
                oldest,
                appended.queue_offset,
                appended.physical_offset,
                check_at_s=oldest.check_at_s,
            )
