"""Puts check points and acknowledgements: as timer messages for the revive topic.

See docs/protocol/pop.md#revive-topic, `trioha.broker.timer_messages`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from trioha.broker.pop.records import Acknowledgement, CheckPoint
from trioha.broker.puts import PutAnswer, PutResult, PutService
from trioha.broker.timer_messages import DELIVER_MS, TimerMessages
from trioha.broker.timer_records import REAL_TOPIC, UNIQUE_KEY
from trioha.ha.group_commit import Commit
from trioha.remoting.codes import ResponseCode
from trioha.remoting.command import BadRequestError, RemotingCommand
from trioha.remoting.send_message import PUT_STATUS_CODES, PUT_STATUS_REMARKS, STORED_STATUSES
from trioha.store.message_properties import encode_properties
from trioha.store.messages import Message
from trioha.store.put_status import PutStatus
from trioha.store.record import Host
from trioha.store.topics import REVIVE_TOPIC_PREFIX


class PopPuts:
    """Puts the records of pops."""

    def __init__(
        self, puts: PutService, timers: TimerMessages, *, cluster_name: str, host: Callable[[], Host]
    ) -> None:
        """`host` is the broker's own, which the records name as the one where they were born."""
        self._puts = puts
        self._timers = timers
        self.topic = REVIVE_TOPIC_PREFIX + cluster_name
        self._host = host

    def put(self, record: CheckPoint | Acknowledgement, *, revive_queue_id: int) -> PutResult | Commit:
        """Append the record; a `Commit` if it waits for disk or slaves.

        Raises BadRequestError if it was not stored: the store refuses, or its time is too far ahead.
        """
        put = self._puts.put_and_wait(self._message(record, revive_queue_id))
        if isinstance(put, PutResult) and put.status not in STORED_STATUSES:
            raise refused(put.status, put.append.reason)
        return put

    def put_at_once(self, record: CheckPoint | Acknowledgement, *, revive_queue_id: int) -> PutResult:
        """As `put`, without a wait."""
        return self._puts.put(self._message(record, revive_queue_id))

    def _message(self, record: CheckPoint | Acknowledgement, revive_queue_id: int) -> Message:
        """Raises BadRequestError."""
        try:
            return self._timer(record, revive_queue_id)
        except ValueError as error:
            # A name that no property can hold.
            raise BadRequestError(str(error), code=ResponseCode.MESSAGE_ILLEGAL) from None

    def _timer(self, record: CheckPoint | Acknowledgement, revive_queue_id: int) -> Message:
        properties = {
            DELIVER_MS: str(record.deliver_ms),
            UNIQUE_KEY: record.unique_key,
            "TAGS": record.tag,
        }
        message = Message(
            topic=self.topic,
            queue_id=revive_queue_id,
            body=record.body(),
            properties=encode_properties(properties),
            born_timestamp_ms=self._timers.now_ms(),
            born_host=self._host(),
        )
        # In the order of RocketMQ's records.
        return self._timers.stored(message, {REAL_TOPIC: self.topic, **properties})

    def answer(
        self, puts: Sequence[PutResult | Commit], make: Callable[[list[PutStatus]], RemotingCommand]
    ) -> RemotingCommand | PutAnswer[RemotingCommand]:
        """What `make` makes of the statuses of these puts, which `put` has returned, once they are known."""
        commits = [put for put in puts if not isinstance(put, PutResult)]
        if not commits:
            return make(self._statuses(puts))
        # That of the last one is known last.
        return PutAnswer(commits[-1], lambda: make(self._statuses(puts)))

    def _statuses(self, puts: Sequence[PutResult | Commit]) -> list[PutStatus]:
        return [put.status if isinstance(put, PutResult) else self._puts.result(put).status for put in puts]


def refused(status: PutStatus, reason: str = "") -> BadRequestError:
    """The error with which a request is answered whose put was not stored, or is not where it should be."""
    return BadRequestError(
        reason or PUT_STATUS_REMARKS.get(status, status.name), code=PUT_STATUS_CODES[status]
    )
