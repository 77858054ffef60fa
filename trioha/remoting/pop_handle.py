"""What a consumer acknowledges a popped message with, and how a pop's answer names its messages.

See docs/protocol/pop.md#handles, docs/protocol/pop.md#answer-of-a-pop.

Texts of the answer; entries are joined by `;`, one for each queue that gave messages:

| field | entry |
|---|---|
| startOffsetInfo | `<source> <queueId> <offset where the pop began to read>` |
| msgOffsetInfo | `<source> <queueId> <offset>,<offset>...` |
| orderCountInfo | `<source> qo<queueId>%<offset> <times>` if above 0; `<source> <queueId> <fewest>` |

A handle (POP_CK) is `<start offset> <pop time> <invisible time> <revive queue> <source> <broker> <queueId>
<queue offset>`; clients append the offset of the record in the commit log.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from functools import lru_cache
from typing import Final

from attrs import evolve, frozen

from trioha.numbers import NATURAL32, NATURAL64, Range, parse_int
from trioha.store.message_properties import encode_properties, parse_properties
from trioha.store.record import Blank, Record, RecordError, decode_record, encode_record

HANDLE: Final = "POP_CK"
"""The property of a message with its handle."""
ORDERED_REVIVE_QUEUE: Final = 999
"""The revive queue in the handles of ordered pops, which have no check points."""
HANDLE_CHARS_MAX: Final = 1024
"""More than any handle has, with the longest names."""
HEADS_KEPT: Final = 256
"""Beginnings of handles that are kept as they were read, of at most `HANDLE_CHARS_MAX` each."""
_PARTS: Final = (8, 9)


class PopSource(StrEnum):
    """The kind of topic that a popped message was read from."""

    TOPIC = "0"
    RETRY_V1 = "1"
    RETRY_V2 = "2"


@frozen
class PopHandle:
    """What a popped message is acknowledged with."""

    start_offset: int
    """Where the pop began to read the queue: with the pop's time, which check point it is."""
    pop_ms: int
    """When, ms since 1970."""
    invisible_ms: int
    """How long after it the message is given again."""
    revive_queue_id: int
    """Queue of the revive topic, or `ORDERED_REVIVE_QUEUE`."""
    source: PopSource
    broker_name: str
    queue_id: int
    queue_offset: int

    @property
    def is_ordered(self) -> bool:
        """Whether an ordered pop gave the message."""
        return self.revive_queue_id == ORDERED_REVIVE_QUEUE

    def encode(self) -> str:
        """The text, without the offset in the commit log."""
        return (
            f"{self.start_offset} {self.pop_ms} {self.invisible_ms} {self.revive_queue_id} {self.source} "
            f"{self.broker_name} {self.queue_id} {self.queue_offset}"
        )

    @classmethod
    def decode(cls, text: str) -> PopHandle:
        """The handle that a text is. Raises ValueError, with what is wrong."""
        if len(text) > HANDLE_CHARS_MAX:
            raise ValueError(f"a handle of {len(text)} characters")
        parts = text.split(" ")
        if len(parts) not in _PARTS:
            raise ValueError(f"a handle of {len(parts)} parts, not 8 or 9")
        if len(parts) == 9:
            _part("commit log offset", parts[8], NATURAL64)
        return cls(*_head(tuple(parts[:7])), _part("queue offset", parts[7], NATURAL64))


@lru_cache(maxsize=HEADS_KEPT)
def _head(parts: tuple[str, ...]) -> tuple[int, int, int, int, PopSource, str, int]:
    """What the handles of all messages of a pop and queue have in common. Raises ValueError."""
    start, pop, invisible, revive, source, broker_name, queue_id = parts
    try:
        kind = PopSource(source)
    except ValueError:
        raise ValueError(f"a handle of source {source[:20]!r}, not 0, 1 or 2") from None
    return (
        _part("start offset", start, NATURAL64),
        _part("pop time", pop, NATURAL64),
        _part("invisible time", invisible, NATURAL64),
        _part("revive queue", revive, NATURAL32),
        kind,
        broker_name,
        _part("queue id", queue_id, NATURAL32),
    )


def _part(name: str, text: str, within: Range) -> int:
    try:
        return parse_int(text, within)
    except ValueError as error:
        raise ValueError(f"the {name} of a handle: {error}") from None


@frozen
class PoppedQueue:
    """What a pop took of one queue."""

    source: PopSource
    queue_id: int
    start_offset: int
    """Where it began to read."""
    offsets: tuple[int, ...]
    """Queue offsets of the messages, ascending."""
    times_given: tuple[int, ...] = ()
    """Of an ordered pop: how often each of them was given before."""


def start_offset_info(queues: Iterable[PoppedQueue]) -> str:
    """The text of startOffsetInfo."""
    return ";".join(f"{one.source} {one.queue_id} {one.start_offset}" for one in queues)


def message_offset_info(queues: Iterable[PoppedQueue]) -> str:
    """The text of msgOffsetInfo."""
    return ";".join(f"{one.source} {one.queue_id} {','.join(map(str, one.offsets))}" for one in queues)


def order_count_info(queues: Iterable[PoppedQueue]) -> str:
    """The text of orderCountInfo."""
    entries: list[str] = []
    for one in queues:
        given = zip(one.offsets, one.times_given, strict=True)
        entries += [f"{one.source} qo{one.queue_id}%{offset} {times}" for offset, times in given if times]
        entries.append(f"{one.source} {one.queue_id} {min(one.times_given, default=0)}")
    return ";".join(entries)


def as_popped(data: bytes | memoryview, topic: str, handle: PopHandle) -> bytes:
    """The record of a retry topic as a pop of `topic` answers it: of that topic, with its handle.

    All else is kept: queue id and both offsets are those in the retry topic, which the handle names by its
    source. A record without room for the handle is answered as it is stored; a client then finds its source
    by the record's topic. Raises RecordError for bytes that are not a record.
    """
    record = decode_record(data, check_crc=False)
    if isinstance(record, Blank):
        raise RecordError("the blank at a file's end is no message")
    popped = _popped(record, topic, handle)
    try:
        return encode_record(popped)
    except RecordError:
        return bytes(data)


def _popped(record: Record, topic: str, handle: PopHandle) -> Record:
    properties = parse_properties(record.properties_raw)
    properties[HANDLE] = handle.encode()
    return evolve(record, topic=topic, properties_raw=encode_properties(properties))
