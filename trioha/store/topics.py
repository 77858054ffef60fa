"""Names of topics: those with a meaning of their own, and those that consume queues can be made for."""

from __future__ import annotations

from typing import Final

SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
"""Delayed messages wait in it."""
HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
"""Messages wait in it until their transaction ends."""
OP_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
"""Which transactions have ended."""
GIVEN_UP_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
"""Messages whose transaction never ended."""
TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
"""Messages with a time of their own wait in it, with RocketMQ 5."""
REVIVE_TOPIC_PREFIX: Final = "rmq_sys_REVIVE_LOG_"
"""The cluster's name follows: check points and acknowledgements of popped messages, with RocketMQ 5."""
HOLDING_TOPICS: Final = frozenset((SCHEDULE_TOPIC, HALF_TOPIC, GIVEN_UP_TOPIC, TIMER_TOPIC))
"""They hold messages that were sent to other topics: the property REAL_TOPIC names these."""
RETRY_TOPIC_PREFIX: Final = "%RETRY%"
LMQ_PREFIX: Final = "%LMQ%"
"""Light queues: names that are not topics, each with one queue."""
TOPIC_BYTES_MAX: Final = 255


def topic_fault(topic: str) -> str:
    """Why `topic` cannot name a folder; empty if it can."""
    if not topic or topic in {".", ".."} or "/" in topic or "\0" in topic:
        return f"topic {topic!r} cannot name a folder"
    try:
        data = topic.encode()
    except UnicodeEncodeError:
        return f"topic {topic!r} is not valid Unicode text"
    if len(data) > TOPIC_BYTES_MAX:
        return f"topic of {len(topic)} characters is longer than {TOPIC_BYTES_MAX} bytes"
    return ""
