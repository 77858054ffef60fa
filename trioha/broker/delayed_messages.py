"""Delayed messages: how they wait in the schedule topic under their real topic's name.

See docs/protocol/store.md#delayed-transactional-and-retried-messages.

| property | value |
|---|---|
| `DELAY` | the delay level, from 1; a level above the highest is stored as the highest |
| `REAL_TOPIC`, `REAL_QID` | topic and queue id where the message is delivered |

Queue `level - 1` of the schedule topic holds the messages of one level. The tags code of an entry there is
the time when its message is due. The delivered message is a copy with the same properties: all three stay
in it, as in RocketMQ's records.
"""

from __future__ import annotations

from typing import Final

from attrs import evolve

from trioha.broker.timer_messages import SENT, TimerMessages
from trioha.broker.timer_records import REAL_QUEUE_ID, REAL_TOPIC
from trioha.numbers import I64, NATURAL32, parse_int
from trioha.remoting.codes import ResponseCode
from trioha.remoting.command import BadRequestError
from trioha.store.message_properties import encode_properties, parse_properties
from trioha.store.messages import Message
from trioha.store.record import Record
from trioha.store.tags import DelayLevels
from trioha.store.topics import HALF_TOPIC, HOLDING_TOPICS, SCHEDULE_TOPIC

DELAY: Final = "DELAY"
_DELAY_BYTES: Final = b"DELAY\x01"
_TIMER_BYTES: Final = b"TIMER_"
NOT_DELIVERABLE: Final = frozenset((SCHEDULE_TOPIC, HALF_TOPIC))
"""Real topics to which nothing is delivered."""


def topic_sent_to(record: Record) -> str:
    """The topic that a record's message was sent to, also where it waits in another."""
    if record.topic not in HOLDING_TOPICS:
        return record.topic
    return parse_properties(record.properties_raw).get(REAL_TOPIC, record.topic)


def scheduled(message: Message, levels: DelayLevels, timers: TimerMessages) -> Message:
    """`message` as it is stored: in the schedule topic if it has a delay level, in the timer topic if it has
    a time of delivery, else unchanged. A level goes before times.

    Raises BadRequestError for a delay that is not a level, for a level where messageDelayLevel has none, and
    for a time that `timers` refuses.
    """
    raw = message.properties
    if _DELAY_BYTES not in raw and _TIMER_BYTES not in raw:
        return message
    properties = parse_properties(raw)
    level = delay_level(properties.get(DELAY, "0"))
    if level <= 0:
        return timers.stored(message, properties)
    level = min(level, levels.max_level)
    if level == 0:
        raise BadRequestError(
            "the message has a delay level, and this broker's messageDelayLevel has none",
            code=ResponseCode.MESSAGE_ILLEGAL,
        )
    properties = {name: value for name, value in properties.items() if name not in SENT}
    properties |= {DELAY: str(level), REAL_TOPIC: message.topic, REAL_QUEUE_ID: str(message.queue_id)}
    return evolve(message, topic=SCHEDULE_TOPIC, queue_id=level - 1, properties=encode_properties(properties))


def delay_level(text: str) -> int:
    """The delay level of a property. Raises BadRequestError for anything but a number."""
    try:
        return parse_int(text, I64)
    except ValueError as error:
        raise BadRequestError(
            f"property DELAY is not a level: {error}", code=ResponseCode.MESSAGE_ILLEGAL
        ) from None


def delivered(record: Record) -> Message:
    """The message that a record of the schedule topic becomes. Raises ValueError if it names no queue."""
    properties = parse_properties(record.properties_raw)
    topic = properties.get(REAL_TOPIC, "")
    if not topic or topic in NOT_DELIVERABLE:
        raise ValueError(f"{REAL_TOPIC} is {topic!r}")
    queue_id = parse_int(properties.get(REAL_QUEUE_ID, ""), NATURAL32)
    return Message.again(record, topic=topic, queue_id=queue_id, properties=record.properties_raw)
