"""Consumer offsets of a slave that becomes master, against the queues that it has.

A slave copies offsets in periods of their own, beside the log. If messages were lost with the old master,
which groups had consumed there, their offsets are beyond the ends of the queues here. The next messages get
the same queue offsets, and a group that goes on at the copied one would never see them. (RocketMQ's do not.)
So such an offset becomes the end of its queue. A consumer that lives on has its own one in memory, and is
sent back by the answer to its next pull, unless the queue has grown past that by then.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from trioha.broker.half_messages import TRANSACTION_GROUP
from trioha.metadata.offsets import ConsumerOffsets
from trioha.store.topics import LMQ_PREFIX

log = structlog.get_logger(__name__)

Offsets = dict[tuple[str, str, int], int]
"""Ends of queues by group, topic and queue id."""


def offsets_beyond(offsets: ConsumerOffsets, queue_end: Callable[[str, int], int]) -> Offsets:
    """The offsets beyond the ends of their queues, with these ends; `queue_end` is 0 for no queue.

    Not those of light queues (`%LMQ%...`), which may not be built here, nor those of transactions, whose
    service reads all of its queues then.
    """
    found = {}
    for key, queues in offsets.items():
        topic, _, group = key.partition("@")
        if topic.startswith(LMQ_PREFIX) or group == TRANSACTION_GROUP:
            continue
        for queue_id, offset in queues.items():
            if offset > 0 and offset > (end := queue_end(topic, queue_id)):
                found[group, topic, queue_id] = end
    return found


def set_back(offsets: ConsumerOffsets, beyond: Offsets) -> None:
    """Set these offsets to the ends of their queues."""
    for (group, topic, queue_id), end in beyond.items():
        log.warning(
            "a consumer offset is beyond its queue, whose last messages were lost with the old master",
            group=group,
            topic=topic,
            queue_id=queue_id,
            offset=offsets.find(group, topic, queue_id),
            queue_end=end,
        )
        offsets.commit(group, topic, queue_id, end)
