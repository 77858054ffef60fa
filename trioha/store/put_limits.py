"""Which messages the log refuses, and why (docs/protocol/store.md#limits)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from struct import Struct

from trioha.store.message_offsets import QueueKey
from trioha.store.message_properties import PROPERTIES_BYTES_MAX
from trioha.store.messages import AppendResult, Message
from trioha.store.put_status import PutStatus
from trioha.store.record_layout import BLANK_BYTES, TOPIC_BYTES_MAX_V1
from trioha.store.topics import RETRY_TOPIC_PREFIX, TOPIC_BYTES_MAX, topic_fault

MESSAGE_BYTES_MAX_DEFAULT = 4 << 20
"""maxMessageSize of a broker whose configuration does not say."""
RECORD_OVERHEAD_BYTES_MAX = 64 * 1024
"""A record may be this much longer than the longest body."""
_TOPIC_V1 = Struct(">b")
_TOPIC_V2 = Struct(">h")


@lru_cache(maxsize=4096)
def encoded_topic(topic: str) -> tuple[bytes, bool, bool]:
    """The topic with its length before it, whether that needs a V2 record, and whether it is legal."""
    if topic_fault(topic):
        return b"", False, False
    data = topic.encode()
    version_2 = len(data) > TOPIC_BYTES_MAX_V1
    if version_2 and not topic.startswith(RETRY_TOPIC_PREFIX):
        return data, version_2, False
    return (_TOPIC_V2 if version_2 else _TOPIC_V1).pack(len(data)) + data, version_2, True


def message_refusal(
    message: Message, *, properties_bytes: int, size: int, message_bytes_max: int, file_bytes: int
) -> AppendResult | None:
    """Which limit a message is beyond whose record would be `size` bytes; None if it is legal."""
    illegal = PutStatus.MESSAGE_ILLEGAL
    if len(message.body) > message_bytes_max:
        return AppendResult(
            illegal, reason=f"body of {len(message.body)} bytes, maxMessageSize is {message_bytes_max}"
        )
    if properties_bytes > PROPERTIES_BYTES_MAX:
        return AppendResult(
            PutStatus.PROPERTIES_SIZE_EXCEEDED,
            reason=f"properties of {properties_bytes} bytes, {PROPERTIES_BYTES_MAX} is the most",
        )
    if fault := _topic_fault(message.topic):
        return AppendResult(illegal, reason=fault)
    if size > message_bytes_max + RECORD_OVERHEAD_BYTES_MAX:
        return AppendResult(illegal, reason=f"record of {size} bytes is longer than maxMessageSize allows")
    if size + BLANK_BYTES > file_bytes:
        return AppendResult(
            illegal, reason=f"record of {size} bytes never fits a log file of {file_bytes} bytes"
        )
    return None


@lru_cache(maxsize=4096)
def _topic_fault(topic: str) -> str:
    """Why no record can have this topic; empty if one can."""
    topic_bytes = len(topic.encode("utf-8", "surrogatepass"))
    if not 1 <= topic_bytes <= TOPIC_BYTES_MAX:
        return f"topic has {topic_bytes} bytes, 1 to {TOPIC_BYTES_MAX} are legal"
    if topic_bytes > TOPIC_BYTES_MAX_V1 and not topic.startswith(RETRY_TOPIC_PREFIX):
        return f"topic of {topic_bytes} bytes, {TOPIC_BYTES_MAX_V1} is the most"
    return topic_fault(topic)


def queues_refusal(
    key: QueueKey,
    other_queues: tuple[QueueKey, ...],
    *,
    queue_offsets: Mapping[QueueKey, int],
    queues_max: int,
) -> AppendResult | None:
    """Why a message of the queue `key` cannot enter that one and those others; None if it can."""
    for topic, _ in other_queues:
        if fault := topic_fault(topic):
            return AppendResult(PutStatus.MESSAGE_ILLEGAL, reason=fault)
    new = {name for name in (key, *other_queues) if name not in queue_offsets}
    if not new or len(queue_offsets) + len(new) <= queues_max:
        return None
    return AppendResult(
        PutStatus.SERVICE_NOT_AVAILABLE,
        reason=f"{len(new)} queues more than the {queues_max} that trioha.queuesMax allows"
        if other_queues
        else f"no room for queue {key[1]} of {key[0]!r}: there are {len(queue_offsets)}, "
        f"trioha.queuesMax is {queues_max}",
    )
