"""Puts check points and acknowledgements: as timer messages for the revive topic.

See docs/protocol/pop.md#revive-topic, `trioha.broker.timer_messages`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias, TypeVar

from trioha.broker.pop.records import Acknowledgement, CheckPoint
from trioha.broker.puts import PutAnswer, PutResult, PutService
from trioha.broker.timer_messages import DELIVER_MS, TimerMessages
from trioha.broker.timer_records import REAL_QUEUE_ID, REAL_TOPIC, SLOT, UNIQUE_KEY
from trioha.ha.group_commit import Commit
from trioha.remoting.codes import ResponseCode
from trioha.remoting.command import BadRequestError, RemotingCommand
from trioha.remoting.send_message import PUT_STATUS_CODES, PUT_STATUS_REMARKS, STORED_STATUSES
from trioha.store.message_properties import encode_properties
from trioha.store.messages import COLUMNS, AppendResult, EncodedSends, Message
from trioha.store.put_status import PutStatus
from trioha.store.record import Host
from trioha.store.topics import REVIVE_TOPIC_PREFIX, TIMER_TOPIC

PopRecord: TypeAlias = CheckPoint | Acknowledgement
Put: TypeAlias = PutResult | Commit | BadRequestError
"""What came of a put, or of several that are one `Commit`; why it was refused."""
T = TypeVar("T", RemotingCommand, bytes)


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

    def put(self, record: PopRecord, *, revive_queue_id: int) -> PutResult | Commit:
        """Append the record; a `Commit` if it waits for disk or slaves.

        Raises BadRequestError if it was not stored: the store refuses, or its time is too far ahead.
        """
        put = self._puts.put_and_wait(self._message(record, revive_queue_id))
        if isinstance(put, PutResult) and put.status not in STORED_STATUSES:
            raise refused(put.status, put.append.reason)
        return put

    def put_all(self, records: Sequence[tuple[PopRecord, int]]) -> list[Put]:
        """Append records, each with its queue of the revive topic: in one run where that is possible."""
        run = self._put_run(records) if len(records) > 1 else None
        if isinstance(run, Commit):
            return [run]
        if run is not None:
            return [PutResult(PutStatus.PUT_OK, run)] * len(records)
        puts: list[Put] = []
        for record, revive_queue_id in records:
            try:
                puts.append(self.put(record, revive_queue_id=revive_queue_id))
            except BadRequestError as error:
                puts.append(error)
        return puts

    def _put_run(self, records: Sequence[tuple[PopRecord, int]]) -> Commit | AppendResult | None:
        """As `PutService.put_run`: None, with nothing stored, where each has to be put by itself."""
        columns, properties, bodies = [], [], []
        body_end = properties_end = 0
        born_ms, host = self._timers.now_ms(), self._host()
        for record, revive_queue_id in records:
            try:
                message = self._message(record, revive_queue_id)
            except BadRequestError:
                return None
            if message.topic != TIMER_TOPIC or b"INNER_" in message.properties:
                return None
            body_at, body_end = body_end, body_end + len(message.body)
            properties_end += len(message.properties)
            columns.append(COLUMNS.pack(0, 0, 0, 0, born_ms, 0, body_at, body_end, properties_end))
            properties.append(message.properties)
            bodies.append(message.body)
        sends = EncodedSends(
            TIMER_TOPIC,
            b"".join(columns),
            b"".join(properties),
            len(columns),
            body_end,
            max(map(len, bodies)),
            max(map(len, properties)),
            [0],
            is_oneway=False,
        )
        return self._puts.put_run(sends, b"".join(bodies), born_host=host)

    def put_at_once(self, record: PopRecord, *, revive_queue_id: int) -> PutResult:
        """As `put`, without a wait."""
        return self._puts.put(self._message(record, revive_queue_id))

    def _message(self, record: PopRecord, revive_queue_id: int) -> Message:
        """The message that a record is: a timer, unless it is due now. Raises BadRequestError."""
        now_ms = self._timers.now_ms()
        slot_ms = self._timers.slot_for(record.deliver_ms, now_ms=now_ms)
        properties = {
            DELIVER_MS: str(record.deliver_ms),
            UNIQUE_KEY: record.unique_key,
            "TAGS": record.tag,
        }
        topic, queue_id = self.topic, revive_queue_id
        if slot_ms is not None:
            # In the order of RocketMQ's records.
            properties = {
                REAL_TOPIC: topic, **properties, SLOT: str(slot_ms), REAL_QUEUE_ID: str(revive_queue_id)
            }  # fmt: skip
            topic, queue_id = TIMER_TOPIC, 0
        try:
            return Message(
                topic,
                queue_id,
                record.body(),
                encode_properties(properties),
                born_timestamp_ms=now_ms,
                born_host=self._host(),
            )
        except ValueError as error:
            # A name that no property can hold.
            raise BadRequestError(str(error), code=ResponseCode.MESSAGE_ILLEGAL) from None

    def answer(
        self, puts: Sequence[Put], make: Callable[[list[PutStatus | BadRequestError]], T]
    ) -> T | PutAnswer[T]:
        """What `make` makes of the statuses of these puts, of each record one, once they are known."""
        commits = [put for put in puts if isinstance(put, Commit)]
        if not commits:
            return make(self._statuses(puts))
        # That of the last one is known last.
        return PutAnswer(commits[-1], lambda: make(self._statuses(puts)))

    def _statuses(self, puts: Sequence[Put]) -> list[PutStatus | BadRequestError]:
        statuses: list[PutStatus | BadRequestError] = []
        for put in puts:
            if isinstance(put, Commit):
                statuses += self._puts.end(put) or [PutStatus.PUT_OK] * put.appended.messages
            else:
                statuses.append(put.status if isinstance(put, PutResult) else put)
        return statuses


def refused(status: PutStatus, reason: str = "") -> BadRequestError:
    """The error with which a request is answered whose put was not stored, or is not where it should be."""
    return BadRequestError(
        reason or PUT_STATUS_REMARKS.get(status, status.name), code=PUT_STATUS_CODES[status]
    )
