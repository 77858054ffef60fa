"""Popped messages, read from a log: which of them nobody has acknowledged, and where their groups were.

Theory of operation (docs/protocol/pop.md#revive-topic, docs/protocol/pop.md#revival). Check points and
acknowledgements (`trioha.broker.pop.records`) are timers: they come first to `rmq_sys_wheel_timer`, and when
they are due as copies, with TIMER_DEQUEUE_MS, to `rmq_sys_REVIVE_LOG_<cluster>`. Records that are due at once
come there directly. The master reads check points there, gives again what nobody acknowledged, and commits
the queue offset of the last check point that it is done with.

Given the records in log order, so:

- the first record of a check point counts, and the first of each acknowledgement: a copy says nothing new,
  and would bring back a check point that was acknowledged meanwhile;
- but of a check point, a copy says where the revive topic has it: one at or before the committed offset is
  done.

A check point also says that its group goes on after its messages. The offsets that a node has may be older
than its log: those of a file that was written before a crash, or copied from a master some seconds before its
end. `PendingPops.positions` are what the check points since then say.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from struct import Struct
from typing import Final

from attrs import frozen

from trioha.broker.pop.records import (
    ACK,
    BATCH_ACK,
    CHECK_POINT,
    CheckPoint,
    Pop,
    decode_acknowledgement,
    decode_check_point,
)
from trioha.broker.timer_records import DELIVERED, REAL_TOPIC
from trioha.errors import RemoteProtocolError
from trioha.store.record import Record
from trioha.store.topics import REVIVE_TOPIC_PREFIX, TIMER_TOPIC

UNKNOWN_AGE_MS: Final = 120_000
"""Where nothing says up to which record the offsets are complete, check points of so long before the last one
count: RocketMQ's brokers write their offsets each 5 s, and slaves copy them each 10."""
STEP_MS: Final = 10_000
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


GroupQueue = tuple[str, str, int]
"""Group, topic and queue id."""


class PendingPops:
    """What is pending after the records that were added, packed: a log may have millions of check points."""

    def __init__(
        self, revived: Mapping[tuple[str, int], int] | None = None, *, complete_to: int | None = None
    ) -> None:
        """`revived`: by topic and queue id, the committed offsets of `REVIVE_GROUP`. `complete_to`: where the
        log ended when all that was popped was in the groups' offsets; None if it is not known."""
        self._revived = revived or {}
        self._queues: dict[Queue, dict[int, bytes]] = {}
        """By the pop's time and start offset: its invisible time, and what is left of its differences."""
        self._complete_to = complete_to
        self._recent: dict[int, dict[GroupQueue, int]] = {}
        """By time of their records, in steps of `STEP_MS`, the ends of check points that count for
        `positions`."""
        self.unreadable = 0
        """Records that are neither a check point nor an acknowledgement in this format."""

    def add(self, record: Record, properties: Mapping[str, str]) -> None:
        """The next record, of which `is_pop_record` holds, and its properties."""
        is_copy = DELIVERED in properties
        tag = properties.get("TAGS")
        if is_copy and (tag != CHECK_POINT or record.topic == TIMER_TOPIC):
            return
        try:
            if tag == CHECK_POINT:
                self._add_check_point(record, decode_check_point(record.body), is_copy=is_copy)
            elif tag in {ACK, BATCH_ACK}:
                found = decode_acknowledgement(record.body)
                self._acknowledge(_queue(found.pop), _number(found.pop), found.offsets)
            else:
                self.unreadable += 1
        except (RemoteProtocolError, ValueError):
            self.unreadable += 1

    def _add_check_point(self, record: Record, found: CheckPoint, *, is_copy: bool) -> None:
        queue, pop = _queue(found.pop), _number(found.pop)
        start = found.pop.start_offset
        left = b"".join(_DIFFERENCE.pack(offset - start) for offset in sorted(found.left))
        if self._is_revived(record):
            self._drop(queue, pop)
        elif not is_copy and left:
            self._queues.setdefault(queue, {})[pop] = _INVISIBLE.pack(found.invisible_ms) + left
        if not is_copy and record.physical_offset >= (self._complete_to or 0):
            self._note_position(record.store_timestamp_ms, found)

    def _note_position(self, stored_ms: int, found: CheckPoint) -> None:
        step = stored_ms // STEP_MS
        if step not in self._recent:
            if self._complete_to is None:
                from_step = step - UNKNOWN_AGE_MS // STEP_MS
                self._recent = {one: ends for one, ends in self._recent.items() if one >= from_step}
            self._recent[step] = {}
        ends, queue = self._recent[step], (found.pop.group, found.pop.topic, found.pop.queue_id)
        ends[queue] = max(found.end_offset, ends.get(queue, 0))

    def positions(self) -> dict[GroupQueue, int]:
        """How far each group was at least, by the check points that its offsets may lack."""
        positions: dict[GroupQueue, int] = {}
        for ends in self._recent.values():
            for queue, end_offset in ends.items():
                positions[queue] = max(end_offset, positions.get(queue, 0))
        return positions

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


def _queue(pop: Pop) -> Queue:
    return pop.topic, pop.group, pop.queue_id, pop.broker_name


def _number(pop: Pop) -> int:
    """Which pop of the queue: its time, and where it began to read, in one number."""
    return pop.pop_ms << 64 | pop.start_offset


def _start_offset(pop: int) -> int:
    return pop & 0xFFFF_FFFF_FFFF_FFFF
