"""Popped messages of a RocketMQ 5 master, read from its log: which of them nobody has acknowledged.

Theory of operation (docs/protocol/pop.md#revive-topic, docs/protocol/pop.md#revival). A pop moves the group's
offset past its messages and puts a check point (tag `ck`) that lists them; each acknowledgement puts a record
(`ack`, or `bAck` for several) that names the check point and the offsets. Both are timers: they come first to
`rmq_sys_wheel_timer`, and when they are due as copies, with TIMER_DEQUEUE_MS, to
`rmq_sys_REVIVE_LOG_<cluster>`. Records that are due at once come there directly. The master reads check
points there, gives again what nobody acknowledged, and commits the queue offset of the last check point that
it is done with.

Given the records in log order, so:

- the first record of a check point counts, and the first of each acknowledgement: a copy says nothing new,
  and would bring back a check point that was acknowledged meanwhile;
- but of a check point, a copy says where the revive topic has it: one at or before the committed offset is
  done.

Bodies are compact JSON:

| key | long name | check point | acknowledgement |
|---|---|---|---|
| t, c, q | topic, cid / consumerGroup, queueId | of what was popped | those of its check point |
| so, pt | startOffset, popTime | where the pop began to read, when (ms) | those of its check point |
| bn | brokerName | of the broker | the same |
| it | invisibleTime | ms until it is given again | |
| n, d | num, queueOffsetDiff | messages, and their offsets less `so`; without `d` one after the other | |
| bm | bitMap | bit i: message i was acknowledged before this record | |
| ao, aol | ackOffset | | the offset, or the offsets of a `bAck` (`ao` is -1) |
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from struct import Struct
from typing import Final

from attrs import frozen

from trioha.broker.timer_records import DELIVERED, REAL_TOPIC
from trioha.errors import RemoteProtocolError
from trioha.numbers import NATURAL32, NATURAL64, Range, parse_int
from trioha.remoting.fastjson import JsonLimits, parse_json
from trioha.store.record import Record
from trioha.store.topics import REVIVE_TOPIC_PREFIX, TIMER_TOPIC

CHECK_POINT, ACK, BATCH_ACK = "ck", "ack", "bAck"
REVIVE_GROUP: Final = "CID_RMQ_SYS_REVIVE_GROUP"
"""Its offset in a queue of the revive topic is that of the last check point that the master is done with."""
MESSAGES_MAX: Final = 32
"""Of one check point."""
_MESSAGES: Final = Range(0, MESSAGES_MAX)
_BITS: Final = Range(-(2**31), 2**32 - 1)
_LIMITS: Final = JsonLimits(containers_max=16, dialect_chars_max=4096)
_LONG_NAMES: Final = {
    "t": ("topic",),
    "c": ("cid", "consumerGroup"),
    "q": ("queueId",),
    "so": ("startOffset",),
    "pt": ("popTime",),
    "bn": ("brokerName",),
    "it": ("invisibleTime",),
    "n": ("num",),
    "d": ("queueOffsetDiff",),
    "bm": ("bitMap",),
    "ao": ("ackOffset",),
    "aol": ("ackOffsetList",),
}
_INVISIBLE: Final = Struct(">q")
_DIFFERENCE: Final = Struct(">i")

Queue = tuple[str, str, int, str]
"""Topic, group, queue id and broker name of a check point."""


@frozen
class PendingCheckPoint:
    """Messages of one pop that nobody has acknowledged."""

    topic: str
    """A retry topic for messages that were given again."""
    group: str
    queue_id: int
    broker_name: str
    start_offset: int
    """Where the pop began to read."""
    pop_ms: int
    """When, ms since 1970."""
    invisible_ms: int
    """How long after it they are to be given again."""
    offsets: tuple[int, ...]
    """Queue offsets of the messages, ascending."""


class PendingPops:
    """What is pending after the records that were added, packed: a log may have millions of check points."""

    def __init__(self, revived: Mapping[tuple[str, int], int] | None = None) -> None:
        """`revived`: by topic and queue id, the committed offsets of `REVIVE_GROUP`."""
        self._revived = revived or {}
        self._queues: dict[Queue, dict[int, bytes]] = {}
        """By the pop's time and start offset: its invisible time, and what is left of its differences."""
        self.unreadable = 0
        """Records that are neither a check point nor an acknowledgement in this format."""

    def add(self, record: Record, properties: Mapping[str, str]) -> None:
        """The next record, of which `is_pop_record` holds, and its properties."""
        is_copy = DELIVERED in properties
        tag = properties.get("TAGS")
        if is_copy and (tag != CHECK_POINT or record.topic == TIMER_TOPIC):
            return
        try:
            fields = _Fields(record.body)
            queue, pop = fields.queue(), fields.pop()
            if tag == CHECK_POINT:
                entry = _INVISIBLE.pack(fields.number("it")) + fields.differences()
                if self._is_revived(record):
                    self._drop(queue, pop)
                elif not is_copy and len(entry) > _INVISIBLE.size:
                    self._queues.setdefault(queue, {})[pop] = entry
            elif tag in {ACK, BATCH_ACK}:
                self._acknowledge(queue, pop, fields.acknowledged())
            else:
                self.unreadable += 1
        except (RemoteProtocolError, ValueError):
            self.unreadable += 1

    def _is_revived(self, record: Record) -> bool:
        last = self._revived.get((record.topic, record.queue_id))
        return last is not None and record.queue_offset <= last

    def _acknowledge(self, queue: Queue, pop: int, offsets: Iterable[int]) -> None:
        entry = self._queues.get(queue, {}).get(pop)
        if entry is None:
            return
        gone = {offset - _start_offset(pop) for offset in offsets}
        head, rest = entry[: _INVISIBLE.size], entry[_INVISIBLE.size :]
        left = b"".join(_DIFFERENCE.pack(one) for (one,) in _DIFFERENCE.iter_unpack(rest) if one not in gone)
        if left:
            self._queues[queue][pop] = head + left
        else:
            self._drop(queue, pop)

    def _drop(self, queue: Queue, pop: int) -> None:
        pops = self._queues.get(queue)
        if pops is not None and pops.pop(pop, None) is not None and not pops:
            del self._queues[queue]

    def __iter__(self) -> Iterator[PendingCheckPoint]:
        for (topic, group, queue_id, broker_name), pops in self._queues.items():
            for pop, entry in pops.items():
                start_offset = _start_offset(pop)
                rest = _DIFFERENCE.iter_unpack(entry[_INVISIBLE.size :])
                yield PendingCheckPoint(
                    topic=topic,
                    group=group,
                    queue_id=queue_id,
                    broker_name=broker_name,
                    start_offset=start_offset,
                    pop_ms=pop >> 64,
                    invisible_ms=_INVISIBLE.unpack_from(entry)[0],
                    offsets=tuple(start_offset + difference for (difference,) in rest),
                )


def is_pop_record(record: Record, properties: Mapping[str, str]) -> bool:
    """Whether a record is of the revive topic, or waits for its time to come there."""
    topic = properties.get(REAL_TOPIC, "") if record.topic == TIMER_TOPIC else record.topic
    return topic.startswith(REVIVE_TOPIC_PREFIX)


class _Fields:
    """The body of a check point or acknowledgement.

    Its methods raise RemoteProtocolError, or ValueError for a number, if it has another shape.
    """

    def __init__(self, body: bytes) -> None:
        """Raises RemoteProtocolError for what is not JSON."""
        parsed = parse_json(body, limits=_LIMITS)
        if not isinstance(parsed, dict):
            raise RemoteProtocolError("not an object")
        self._members = parsed

    def _get(self, name: str) -> object:
        for each in (name, *_LONG_NAMES[name]):
            if (value := self._members.get(each)) is not None:
                return value
        return None

    def number(self, name: str, within: Range = NATURAL64) -> int:
        return parse_int(self._get(name), within)

    def _text(self, name: str) -> str:
        value = self._get(name)
        if value is None:
            return ""
        if not isinstance(value, str):
            raise RemoteProtocolError(f"{name} is not a text")
        return value

    def _numbers(self, name: str, within: Range) -> list[int] | None:
        value = self._get(name)
        if value is None:
            return None
        if not isinstance(value, list):
            raise RemoteProtocolError(f"{name} is not a list")
        return [parse_int(one, within) for one in value]

    def queue(self) -> Queue:
        return self._text("t"), self._text("c"), self.number("q", NATURAL32), self._text("bn")

    def pop(self) -> int:
        """Which pop of the queue: its time, and where it began to read, in one number."""
        return self.number("pt") << 64 | self.number("so")

    def differences(self) -> bytes:
        """Packed, ascending: offsets of the messages less the start, without those acknowledged before."""
        given = self._numbers("d", NATURAL32)
        if given is None:
            given = list(range(self.number("n", _MESSAGES)))
        if len(given) > MESSAGES_MAX:
            raise ValueError(f"{len(given)} messages")
        bits = 0 if self._get("bm") is None else self.number("bm", _BITS)
        left = sorted(one for index, one in enumerate(given) if not bits >> index & 1)
        return b"".join(map(_DIFFERENCE.pack, left))

    def acknowledged(self) -> list[int]:
        listed = self._numbers("aol", NATURAL64)
        return [self.number("ao")] if listed is None else listed


def _start_offset(pop: int) -> int:
    return pop & 0xFFFF_FFFF_FFFF_FFFF
