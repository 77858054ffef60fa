"""Timer messages: how a message waits for any time of delivery, and how it is delivered.

See docs/protocol/timer.md#from-a-send-to-a-waiting-record, docs/protocol/timer.md#delivery.

| property of a send | due |
|---|---|
| `TIMER_DELAY_SEC`, `TIMER_DELAY_MS` | so long after the put |
| `TIMER_DELIVER_MS` | then, ms since 1970 |

A message that is due later waits in `rmq_sys_wheel_timer` for its slot, `TIMER_OUT_MS`: the last multiple of
timerPrecisionMs before its due time. It is delivered after the slot, never before its due time. The delivered
record has all properties of the waiting one, and `TIMER_DEQUEUE_MS`: by that every replica knows from its log
alone which timers are done.
"""

from __future__ import annotations

import random
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Mapping
from typing import Final

from attrs import evolve, frozen

from trioha.broker.timer_records import (
    DELIVERED,
    REAL_QUEUE_ID,
    REAL_TOPIC,
    RECALLED_KEY,
    ROLL_TIMES,
    SLOT,
    UNIQUE_KEY,
    real_queue,
)
from trioha.numbers import I64, NATURAL32, NATURAL64, parse_int
from trioha.remoting.codes import ResponseCode
from trioha.remoting.command import BadRequestError
from trioha.store.message_properties import encode_properties, parse_properties
from trioha.store.messages import Message
from trioha.store.record import Record
from trioha.store.topics import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC

DELAY_S: Final = "TIMER_DELAY_SEC"
DELAY_MS: Final = "TIMER_DELAY_MS"
DELIVER_MS: Final = "TIMER_DELIVER_MS"
ENQUEUED: Final = "TIMER_ENQUEUE_MS"
SENT: Final = frozenset((DELAY_S, DELAY_MS, DELIVER_MS))
"""What clients ask for a time with."""
NOT_DELIVERABLE: Final = frozenset((SCHEDULE_TOPIC, HALF_TOPIC, TIMER_TOPIC))
"""Real topics to which nothing is delivered."""
HANDLE_VERSION: Final = "v1"
_DELIVERED_MARK: Final = DELIVERED.encode() + b"\x01"
PRECISIONS_MS: Final = (1000, 500, 200, 100)
"""What timerPrecisionMs is lowered to."""


@frozen
class TimerSettings:
    """How timer messages are handled."""

    is_enabled: bool
    """timerWheelEnable: timers are taken and delivered."""
    precision_ms: int
    """timerPrecisionMs, lowered to one of `PRECISIONS_MS`: the length of a slot."""
    delay_ms_max: int
    """timerMaxDelaySec: a later time is refused."""
    roll_window_ms: int
    """timerRollWindowSlot: the record of a timer further ahead is put anew before it gets old."""
    per_slot_max: int
    """timerCongestNumEachSlot: with more in a slot, timers for it are refused by chance; with twice as many,
    always."""
    recall_enabled: bool
    """recallMessageEnable."""


def precision_ms(asked_ms: int) -> int:
    """The length of slots that a broker uses for timerPrecisionMs."""
    return next((length for length in PRECISIONS_MS if asked_ms >= length), PRECISIONS_MS[-1])


class TimerMessages:
    """Makes the records in which messages wait."""

    def __init__(
        self,
        settings: TimerSettings,
        *,
        now_ms: Callable[[], int],
        waiting: Callable[[int], int],
        broker_name: str,
    ) -> None:
        """`now_ms`: the wall clock, ms since 1970. `waiting`: how many timers wait for a slot."""
        self.settings = settings
        self.now_ms = now_ms
        self._waiting = waiting
        self.broker_name = broker_name

    def stored(self, message: Message, properties: Mapping[str, str]) -> Message:
        """`message`, which has these properties, as it is stored: in the timer topic, if it is due later.

        Raises BadRequestError for a time that is no number or too far ahead, for a slot with too many
        timers, and without timerWheelEnable.
        """
        due_text = next((name for name in (DELAY_S, DELAY_MS, DELIVER_MS) if name in properties), None)
        if due_text is None or SLOT in properties:
            return message
        self._refuse_disabled()
        now_ms = self.now_ms()
        try:
            number = parse_int(properties[due_text], I64)
        except ValueError:
            raise self._illegal() from None
        due_ms = {DELAY_S: now_ms + 1000 * number, DELAY_MS: now_ms + number, DELIVER_MS: number}[due_text]
        if due_ms <= now_ms and RECALLED_KEY in properties:
            raise self._illegal()
        slot_ms = self.slot_for(due_ms, now_ms=now_ms)
        return message if slot_ms is None else waiting_message(message, properties, slot_ms)

    def slot_for(self, due_ms: int, *, now_ms: int) -> int | None:
        """The slot for which a message waits that is due then; None if it is due at once.

        Raises BadRequestError as `stored`.
        """
        self._refuse_disabled()
        if due_ms - now_ms > self.settings.delay_ms_max:
            raise self._illegal()
        if due_ms <= now_ms:
            return None
        slot_ms = self.slot_of(due_ms)
        self._refuse_crowd(slot_ms)
        return slot_ms

    def slot_of(self, due_ms: int) -> int:
        """The slot after which a message is due."""
        precision = self.settings.precision_ms
        return (due_ms - 1) // precision * precision

    def _refuse_disabled(self) -> None:
        if not self.settings.is_enabled:
            raise BadRequestError("accurate timer message is not enabled, timerWheelEnable is false")

    def _illegal(self) -> BadRequestError:
        return BadRequestError(
            "timer message illegal, the delay time should not be bigger than the max delay "
            f"{self.settings.delay_ms_max}ms; or if set del msg, the delay time should be bigger than the "
            "current time",
            code=ResponseCode.MESSAGE_ILLEGAL,
        )

    def _refuse_crowd(self, slot_ms: int) -> None:
        limit = self.settings.per_slot_max
        number = self._waiting(slot_ms)
        if number <= limit or (number < 2 * limit and random.randrange(limit) >= number - limit):
            return
        raise BadRequestError(
            f"timer message is under flow control, max num limit is {2 * limit} or the current value is "
            f"greater than {limit} and less than {2 * limit}, trigger random flow control"
        )

    def handle(self, waiting: Message) -> str | None:
        """What the timer of a waiting message is recalled with; None for a message without UNIQ_KEY."""
        properties = parse_properties(waiting.properties)
        if UNIQUE_KEY not in properties:
            return None
        handle = RecallHandle(
            properties[REAL_TOPIC], self.broker_name, int(properties[SLOT]) + 1, properties[UNIQUE_KEY]
        )
        return handle.encode()


def waiting_message(message: Message, properties: Mapping[str, str], slot_ms: int) -> Message:
    """`message` as it waits for a slot."""
    return evolve(
        message,
        topic=TIMER_TOPIC,
        queue_id=0,
        properties=encode_properties(
            {
                **properties,
                SLOT: str(slot_ms),
                REAL_TOPIC: message.topic,
                REAL_QUEUE_ID: str(message.queue_id),
            }
        ),
    )


def delivered(record: Record, *, now_ms: int, enqueued_ms: int) -> Message:
    """The message that a waiting record becomes. Raises ValueError if it names no queue."""
    properties = parse_properties(record.properties_raw)
    queue = real_queue(properties)
    if queue is None or not queue[0] or queue[0] in NOT_DELIVERABLE:
        raise ValueError(f"{REAL_TOPIC} is {properties.get(REAL_TOPIC)!r}")
    return _again(record, *queue, properties, now_ms=now_ms, enqueued_ms=enqueued_ms)


def rolled(record: Record, *, now_ms: int, enqueued_ms: int) -> Message:
    """The message that a waiting record far ahead of its slot is put anew as."""
    properties = parse_properties(record.properties_raw)
    try:
        times = parse_int(properties.get(ROLL_TIMES, "0"), NATURAL32)
    except ValueError:
        times = 0
    properties[ROLL_TIMES] = str(times + 1)
    return _again(record, record.topic, record.queue_id, properties, now_ms=now_ms, enqueued_ms=enqueued_ms)


def _again(
    record: Record, topic: str, queue_id: int, properties: dict[str, str], *, now_ms: int, enqueued_ms: int
) -> Message:
    times = {ENQUEUED: str(enqueued_ms), DELIVERED: str(now_ms)}
    return Message.again(
        record, topic=topic, queue_id=queue_id, properties=encode_properties(properties | times)
    )


def is_marked_delivered(data: bytes) -> bool:
    """Whether properties, or those of a batch, may have the one by which a timer counts as delivered."""
    return _DELIVERED_MARK in data


def without_delivery(properties: bytes) -> bytes:
    """The properties that a client may give a message: not that by which a timer counts as delivered.

    With it a client that knows a UNIQ_KEY would cancel the timer of another one. A RocketMQ broker stores it.
    """
    if not is_marked_delivered(properties):
        return properties
    return encode_properties(
        {name: value for name, value in parse_properties(properties).items() if name != DELIVERED}
    )


@frozen
class RecallHandle:
    """What a timer is recalled with: text that a send was answered with."""

    topic: str
    broker_name: str
    deliver_ms: int
    """In the millisecond after the timer's slot."""
    unique_key: str

    def encode(self) -> str:
        """The text."""
        plain = f"{HANDLE_VERSION} {self.topic} {self.broker_name} {self.deliver_ms} {self.unique_key}"
        return urlsafe_b64encode(plain.encode()).decode()

    @classmethod
    def decode(cls, text: str) -> RecallHandle:
        """The handle that a text is. Raises ValueError."""
        plain = urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode()
        version, topic, broker_name, deliver_ms, unique_key = plain.split(" ")
        if version != HANDLE_VERSION:
            raise ValueError(f"version {version!r}")
        return cls(topic, broker_name, parse_int(deliver_ms, NATURAL64), unique_key)
