"""What the log itself writes into properties: offsets of inner batches, and of further queues.

| property (spec store 2.7, 2.10) | given when | value |
|---|---|---|
| `INNER_BASE` | sysFlag says INNER_BATCH | queue offset of the first of the `INNER_NUM` messages |
| `INNER_MULTI_QUEUE_OFFSET` | `INNER_MULTI_DISPATCH` names queues | their next offsets, in that order |

Where they are given, a producer's own idea of them is dropped. They stand in front: readers of properties do
not mind, and the dispatcher finds `INNER_MULTI_DISPATCH` behind a separator.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from attrs import frozen

from trioha.store.message_properties import encode_properties, parse_properties
from trioha.store.tags import SCHEDULE_TOPIC

INNER_BATCH = 0x80
"""Bit of sysFlag."""
LMQ_PREFIX = "%LMQ%"
_NOT_DISPATCHED_PREFIXES = ("%RETRY%", "rmq_sys_")

QueueKey = tuple[str, int]
"""Topic and queue."""


@frozen
class MultiDispatch:
    """Which messages enter further queues."""

    enabled: bool = False
    """enableMultiDispatch or enableLmq: those whose INNER_MULTI_DISPATCH names some."""
    light_queues: bool = False
    """enableLmq: a name that starts with `%LMQ%` stands for its queue 0; others for the message's queue."""


@frozen
class Inner:
    """What the log gives to a message."""

    properties: bytes
    messages: int
    """How many queue offsets of its own queue it takes."""
    further: tuple[QueueKey, ...]
    """Further queues that it takes one offset of, each."""


def give_offsets(
    properties: bytes,
    *,
    topic: str,
    queue_id: int,
    sys_flag: int,
    queue_offsets: Mapping[QueueKey, int],
    multi: MultiDispatch,
) -> Inner | None:
    """The message's properties with its offsets; None if it is illegal: INNER_NUM is no number, or alone."""
    parsed = parse_properties(properties)
    is_batch = bool(sys_flag & INNER_BATCH)
    messages = 1
    if "INNER_NUM" in parsed:
        number = parsed["INNER_NUM"]
        if not is_batch or not (number.isascii() and number.isdecimal()) or not 0 < int(number) < 2**31:
            return None
        messages = int(number)
    given = {}
    if is_batch:
        given["INNER_BASE"] = str(queue_offsets.get((topic, queue_id), 0))
    further: list[QueueKey] = []
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
            further.append(key)
        given["INNER_MULTI_QUEUE_OFFSET"] = ",".join(next_offsets)
    if not (given or multi.enabled):
        return Inner(properties, messages, ())
    kept = {
        name: value
        for name, value in parsed.items()
        if name not in {"INNER_BASE", "INNER_MULTI_QUEUE_OFFSET"}
    }
    return Inner(encode_properties(given | kept), messages, tuple(further))
