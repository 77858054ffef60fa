"""What a broker does to its store and its tables when it becomes master (see `trioha.node.role_changes`).

Epoch. In controller mode the epoch of the new master begins at the log's end.

Consumer offsets. A slave copies offsets in periods of their own, beside the log. If messages were lost with
the old master, which groups had consumed there, their offsets are beyond the ends of the queues here. The
next messages get the same queue offsets, and a group that goes on at the copied one would never see them.
(RocketMQ's do not.) So such an offset becomes the end of its queue. A consumer that lives on has its own one
in memory, and is sent back by the answer to its next pull, unless the queue has grown past that by then. What
the master has as its offset in a queue of popped messages is the last check point that it dealt with, not the
next one: that becomes the last one of the queue.

Topics. In controller mode the topics of the log that the copy of the master's table does not have are added
to the table: see `adopt_topics`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Mapping
from typing import Final

import structlog

from trioha.broker.half_messages import TRANSACTION_GROUP
from trioha.broker.pop.records import REVIVE_GROUP
from trioha.config.broker import BrokerConfig
from trioha.controller.role import Role
from trioha.errors import StoreError
from trioha.metadata.offsets import ConsumerOffsets
from trioha.metadata.table import TableFull
from trioha.metadata.topics import TopicConfig, TopicTable, is_topic_name
from trioha.node.controller_agent import known_confirm_offset
from trioha.store.message_store import MessageStore
from trioha.store.topics import LMQ_PREFIX
from trioha.watermark import Watermark

log = structlog.get_logger(__name__)

Offsets = dict[tuple[str, str, int], int | None]
"""Largest offsets that fit their queues, by group, topic and queue id; None where only none does."""
PRODUCER_QUEUE_NUMS: Final = 4
"""How many queues a producer asks for when it makes a topic: its default of defaultTopicQueueNums."""


def take_epoch(store: MessageStore, role: Role, config: BrokerConfig) -> None:
    """Begin the epoch of a new master at the log's end. Blocks.

    A master that was restarted within its epoch goes on with it. Raises StoreError for a log with a later
    epoch: it is of other controllers.
    """
    epochs = store.epochs
    assert epochs is not None, "a store of controller mode has epochs"
    if epochs.last_epoch > role.epoch:
        raise StoreError(
            f"the log has epoch {epochs.last_epoch}, the controllers are at epoch {role.epoch}",
            path=epochs.path,
            hint="restore the state of the controllers, or remove this store",
        )
    # An epoch may have been adopted before its first bytes came; those of its master never will.
    epochs.truncate_suffix(store.commit_log.max_offset + 1)
    if epochs.last_epoch < role.epoch:
        epochs.append(role.epoch, store.commit_log.max_offset)
    others = role.sync_state_set - {role.broker_id}
    is_limited = config.all_ack_in_sync_state_set and others
    store.dispatcher.limit_to(Watermark(known_confirm_offset(store)) if is_limited else None)


def offsets_beyond(offsets: ConsumerOffsets, queue_end: Callable[[str, int], int]) -> Offsets:
    """The offsets beyond the ends of their queues, with those that fit; `queue_end` is 0 for no queue.

    Not those of light queues (`%LMQ%...`), which may not be built here, nor those of transactions, whose
    service reads all of its queues then.
    """
    found: Offsets = {}
    for key, queues in offsets.items():
        topic, _, group = key.partition("@")
        if topic.startswith(LMQ_PREFIX) or group == TRANSACTION_GROUP:
            continue
        for queue_id, offset in queues.items():
            end = queue_end(topic, queue_id)
            fits = end - 1 if group == REVIVE_GROUP else end
            if offset > fits:
                found[group, topic, queue_id] = None if fits < 0 else fits
    return found


def set_back(offsets: ConsumerOffsets, beyond: Offsets) -> None:
    """Set these offsets to those that fit their queues."""
    for (group, topic, queue_id), fits in beyond.items():
        log.warning(
            "a consumer offset is beyond its queue, whose last messages were lost with the old master",
            group=group,
            topic=topic,
            queue_id=queue_id,
            offset=offsets.find(group, topic, queue_id),
            set_to=fits,
        )
        if fits is None:
            offsets.forget(group, topic, queue_id)
        else:
            offsets.commit(group, topic, queue_id, fits)


def stored_topics(store: MessageStore, *, known: Container[str], since_ms: int) -> dict[str, int]:
    """Topics with messages stored at or after `since_ms`, ms since 1970, and how many queues they have.

    Not those of `known`, nor light queues (`%LMQ%...`), which are no topics. Blocks.
    """
    found: dict[str, int] = {}
    for name, queue_id in store.queues.queue_offsets():
        if name in known or name.startswith(LMQ_PREFIX) or not is_topic_name(name):
            continue
        if _last_stored_ms(store, name, queue_id) >= since_ms:
            found[name] = max(found.get(name, 0), queue_id + 1)
    return found


def _last_stored_ms(store: MessageStore, topic: str, queue_id: int) -> float:
    """When the last message of a queue was stored; infinite if that cannot be read, -1 without any."""
    try:
        return store.reads.store_timestamp(topic, queue_id, store.reads.max_offset(topic, queue_id) - 1)
    except StoreError as error:
        log.warning("a queue cannot be read", topic=topic, queue_id=queue_id, reason=str(error))
        return math.inf


def adopt_topics(topics: TopicTable, stored: Mapping[str, int]) -> None:
    """Add the topics that a new master's log has and that its copy of the metadata does not have yet.

    A slave copies metadata in periods: a topic that its master made just before it died would be lost, and
    with it the messages that were acknowledged. It gets as many queues as the log shows, and no fewer than
    producers ask for: with more, messages would go to queues that the next master does not have if that is a
    RocketMQ broker, which makes the topic anew with the producer's number.

    `stored` are the topics with messages since the table's last change (its DataVersion has that time, of the
    master's clock, as records have), and their numbers of queues. A topic whose messages are all older was
    deleted then: its queues stay on a slave until retention.
    """
    for name, stored_queues in stored.items():
        if topics.find(name) is not None:
            continue
        queue_nums = max(stored_queues, min(PRODUCER_QUEUE_NUMS, topics.settings.default_queue_nums))
        try:
            topics.put(TopicConfig(name, read_queue_nums=queue_nums, write_queue_nums=queue_nums))
        except TableFull as full:
            log.error("topics of the log are missing", reason=str(full))
            return
        log.warning("a topic of the log was not copied from the old master", topic=name, queues=queue_nums)
