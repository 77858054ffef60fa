"""Queue offsets of a message, as far as the log writes them into its properties.

| property (docs/protocol/store.md#batches, docs/protocol/store.md#multi-dispatch) | given when | value |
|---|---|---|
| `INNER_BASE` | sysFlag says INNER_BATCH | queue offset of the first of the `INNER_NUM` messages |
| `INNER_MULTI_QUEUE_OFFSET` | `INNER_MULTI_DISPATCH` names queues | their next offsets, in that order |

A producer's own values of the two are dropped. The log's stand in front: readers of properties do not mind,
and the dispatcher finds `INNER_MULTI_DISPATCH` after a separator.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from attrs import frozen

from trioha.store.message_properties import encode_properties, parse_properties
from trioha.store.topics import LMQ_PREFIX, RETRY_TOPIC_PREFIX, SCHEDULE_TOPIC

INNER_BATCH = 0x80
"""Bit of sysFlag."""
_NOT_DISPATCHED_PREFIXES = (RETRY_TOPIC_PREFIX, "rmq_sys_")

QueueKey = tuple[str, int]
"""Topic and queue."""


@frozen
class MultiDispatch:
    """Which messages enter other queues beside their own."""

    enabled: bool = False
    """enableMultiDispatch or enableLmq: those whose INNER_MULTI_DISPATCH names some."""
    light_queues: bool = False
    """enableLmq: a name that starts with `%LMQ%` means its queue 0; others mean the message's queue id."""


@frozen
class MessageOffsets:
    """The queue offsets that the log assigns to a message."""

    properties: bytes
    """The message's properties with its offsets."""
    messages: int
    """Number of offsets of its own queue."""
    other_queues: tuple[QueueKey, ...]
    """Other queues, in each of which it gets one offset."""


def assign_offsets(
    properties: bytes,
    *,
    topic: str,
    queue_id: int,
    sys_flag: int,
    queue_offsets: Mapping[QueueKey, int],
    multi: MultiDispatch,
) -> MessageOffsets | None:
    """The message's offsets; None if it is illegal: INNER_NUM is not a number, or without INNER_BATCH."""
    parsed = parse_properties(properties)
    is_batch = bool(sys_flag & INNER_BATCH)
    messages = 1
    if "INNER_NUM" in parsed:
        number = parsed["INNER_NUM"]
        if not is_batch or not (number.isascii() and number.isdecimal()) or not 0 < int(number) < 2**31:
            return None
        messages = int(number)
    assigned = {}
    if is_batch:
        assigned["INNER_BASE"] = str(queue_offsets.get((topic, queue_id), 0))
    other_queues: list[QueueKey] = []
    if (
        multi.enabled
        and "INNER_MULTI_DISPATCH" in parsed
        and not topic.startswith(_NOT_DISPATCHED_PREFIXES)
        and topic != SCHEDULE_TOPIC
    ):
        next_offsets = []
        seen: Counter[QueueKey] = Counter()
        for name in parsed["INNER_MULTI_DISPATCH"].split(","):
            key = (name, 0 if multi.light_queues and name.startswith(LMQ_PREFIX) else queue_id)
            next_offsets.append(str(queue_offsets.get(key, 0) + seen[key]))
            seen[key] += 1
            other_queues.append(key)
        assigned["INNER_MULTI_QUEUE_OFFSET"] = ",".join(next_offsets)
    if not (assigned or multi.enabled):
        return MessageOffsets(properties, messages, ())
    kept = {
        name: value
        for name, value in parsed.items()
        if name not in {"INNER_BASE", "INNER_MULTI_QUEUE_OFFSET"}
    }
    return MessageOffsets(encode_properties(assigned | kept), messages, tuple(other_queues))
