"""Ends of queues in a log that was restored, without building its consume queues."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from struct import Struct
from typing import Final

from trioha.archive.checked_log import Extent
from trioha.store.message_offsets import INNER_BATCH, QueueKey
from trioha.store.message_properties import parse_properties
from trioha.store.record_layout import (
    HOSTS_V6,
    MAGIC_V1,
    TRANSACTION_MASK,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
    topic_span,
)

_FIXED: Final = Struct(">iIxxxxi4xq8xi44xi").unpack_from
"""Of a record with IPv4 hosts: totalSize, magic, queueId, queueOffset, sysFlag, bodyLength."""
_BODY_AT: Final = 88


def note_queue_ends(extent: Extent, ends: dict[tuple[bytes, int], int]) -> None:
    """Raise `ends`, by topic and queue id, to what the records of `extent` need: the next queue offset.

    Prepared and rolled back messages are in no queue. Queues that a record enters beside its own
    (INNER_MULTI_DISPATCH) are left out: their offsets are in files of their own.
    """
    view = extent.data
    at, end = 0, 0 if extent.is_blank else len(view)
    while at < end:
        size, magic, queue_id, queue_offset, sys_flag, body_bytes = _FIXED(view, at)
        transaction = sys_flag & TRANSACTION_MASK
        if transaction not in {TRANSACTION_PREPARED, TRANSACTION_ROLLBACK}:
            if magic == MAGIC_V1 and not sys_flag & HOSTS_V6:
                topic_at = at + _BODY_AT + body_bytes + 1
                topic_end = topic_at + view[topic_at - 1]
            else:
                topic_at, topic_end = topic_span(view, at)
            messages = 1
            if sys_flag & INNER_BATCH:
                number = parse_properties(bytes(view[topic_end + 2 : at + size])).get("INNER_NUM", "1")
                messages = int(number) if number.isascii() and number.isdecimal() else 1
            key = (bytes(view[topic_at:topic_end]), queue_id)
            if ends.get(key, 0) < queue_offset + messages:
                ends[key] = queue_offset + messages
        at += size


def find_queue_ends(
    stretches: Iterator[tuple[tuple[str, ...] | None, Iterator[Extent]]], wanted: Collection[QueueKey]
) -> dict[QueueKey, int]:
    """The next queue offset of each queue that is wanted; 0 of those without records.

    `stretches` are consecutive ranges of the log, the last one first, each with the topics of its records
    (None if they are not known). They are used as far as needed.
    """
    left = {(topic.encode("utf-8", "replace"), queue_id): (topic, queue_id) for topic, queue_id in wanted}
    found: dict[QueueKey, int] = dict.fromkeys(wanted, 0)
    for topics, extents in stretches:
        if not left:
            break
        if topics is not None and {topic for topic, _ in left}.isdisjoint(one.encode() for one in topics):
            continue
        ends: dict[tuple[bytes, int], int] = {}
        for extent in extents:
            note_queue_ends(extent, ends)
        for key in left.keys() & ends.keys():
            found[left.pop(key)] = ends[key]
    return found
