"""Names of topics: those with a meaning of their own, and those that consume queues can be made for."""

from __future__ import annotations

from typing import Final

SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
"""Delayed messages wait in it."""
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
