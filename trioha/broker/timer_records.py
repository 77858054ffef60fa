"""Timers of a RocketMQ 5 master, read from records of its log: which of them are still to be delivered.

Theory of operation (docs/protocol/timer.md#delivery, docs/protocol/timer.md#recall). The log alone says what
is pending. Its records in log order:

| record | effect |
|---|---|
| in `rmq_sys_wheel_timer`, with TIMER_OUT_MS | waits for its slot |
| there, with TIMER_ROLL_TIMES | replaces the one that was put before: a timer far ahead is put anew |
| there, with TIMER_DEL_UNIQKEY | recalls the timers of that slot with this key, whichever comes first |
| in another topic, with TIMER_OUT_MS and TIMER_DEQUEUE_MS | a delivered copy: one of its key is done |

A key is UNIQ_KEY, slot and real topic; a record without UNIQ_KEY is known by its birth, queue and CRC, which
its copies keep. A client that sends a message again gives two timers the same key: they are counted, one for
one. A consumer's retry of a delivered copy is in another topic, so it is done with nothing.

A timer without a copy is done as well if a master's check point says so: the copy's topic was deleted, or the
put failed. As masters deliver slot by slot, the log must also have a copy of a later slot: the log of a slave
may end before what its master had done at the check point.

Check points and acknowledgements of popped messages are timers, too (`trioha.broker.pop_records`).
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from heapq import heappop, heappush
from operator import itemgetter
from struct import Struct
from typing import Final

from attrs import define, frozen

from trioha.metadata.documents import TimerCheckPoint
from trioha.numbers import NATURAL32, NATURAL64, parse_int
from trioha.store.record import Record
from trioha.store.topics import TIMER_TOPIC

SLOT: Final = "TIMER_OUT_MS"
ROLL_TIMES: Final = "TIMER_ROLL_TIMES"
DELIVERED: Final = "TIMER_DEQUEUE_MS"
RECALLED_KEY: Final = "TIMER_DEL_UNIQKEY"
REAL_TOPIC: Final = "REAL_TOPIC"
REAL_QUEUE_ID: Final = "REAL_QID"
UNIQUE_KEY: Final = "UNIQ_KEY"
_SLOT_MARK: Final = SLOT.encode() + b"\x01"
_ENTRY: Final = Struct(">qqqiqi?")
_QUEUE_OFFSET: Final = itemgetter(slice(8, 16))
"""Of an entry: big-endian, so that bytes are ordered as numbers."""
RECALLS_KEPT: Final = 10_000
"""With more recalls those are forgotten whose slots are over."""
_HOUR_MS: Final = 3_600_000
ROLLS_FROM_MS: Final = 47 * _HOUR_MS
"""A timer so far ahead of its record may be in an earlier slot, where it rolls: two days by default
(timerRollWindowSlot), less an hour for clocks that differ."""
ROLLS_AFTER_MS: Final = 23 * _HOUR_MS
"""A timer that rolls is there so long after its record at the earliest: half of the window, less an hour."""


@frozen
class PendingTimer:
    """A message that waits for its time."""

    slot_ms: int
    """The message is due after this moment, at most timerPrecisionMs (1 s) later; ms since 1970."""
    queue_offset: int
    """In the topic of timers."""
    physical_offset: int
    size: int
    """Bytes of its record."""
    stored_ms: int
    """When its record was stored, ms since 1970."""
    topic: str
    """Where it is delivered."""
    is_pop: bool = False
    """Whether it is a check point or an acknowledgement of popped messages."""

    def rolls_at(self, window_ms: float) -> int | None:
        """When its record is put anew, ms since 1970; None if it is delivered before.

        As in RocketMQ after a window, or after half of one if less than a third would be left then: the
        record is in the log's newest files at any time, which are not deleted by their age.
        """
        ahead_ms = self.slot_ms - self.stored_ms
        if ahead_ms <= window_ms:
            return None
        is_nearly_over = ahead_ms - window_ms < window_ms / 3
        return self.stored_ms + int(window_ms / 2 if is_nearly_over else window_ms)

    @property
    def wheel_ms(self) -> int:
        """The first slot where a RocketMQ broker may have it, to roll or be delivered; ms since 1970."""
        if self.slot_ms - self.stored_ms < ROLLS_FROM_MS:
            return self.slot_ms
        return self.stored_ms + ROLLS_AFTER_MS


@define
class TopicTimers:
    """Timers of one topic, those of pops included."""

    number: int
    """Of the topic, in entries."""
    count: int = 0
    """How many wait."""
    changed_ms: int = 0
    """When the last one came, or was done, ms since 1970."""


class PendingTimers:
    """What is pending after the records that were added, packed: a log may have millions of timers."""

    def __init__(
        self, check_points: Iterable[TimerCheckPoint] = (), *, roll_window_ms: float = math.inf
    ) -> None:
        """`check_points`: of masters that the log is from. A timer further ahead of its record than
        `roll_window_ms` comes first when it is to roll."""
        self._check_points = tuple(check_points)
        self._roll_window_ms = roll_window_ms
        self._delivered_ms = -1
        """The latest slot of a copy."""
        self._entries: dict[int, bytes] = {}
        """By key, the entries of all timers that have it, oldest first."""
        self._recalled: dict[int, int] = {}
        """Keys of recalls, and their slots: a timer that rolls may come after its recall."""
        self._keys: dict[int, array[int]] = {}
        """By the time when something is to be done with them, the keys of timers; some may be gone."""
        self._times: list[int] = []
        """The keys of `_keys`, a heap."""
        self._counts: Counter[int] = Counter()
        """Timers of messages by slot: all but those of pops."""
        self._topics: list[str] = []
        """By number; none is taken away."""
        self.by_topic: dict[str, TopicTimers] = {}
        """Of each topic that a timer was for."""
        self.next_offset = 0
        """In the timer topic, after the last record that was added."""
        self.newest: PendingTimer | None = None
        """The last record of the timer topic that was added, also if it does not wait."""
        self.changes = 0
        """How often something was added or taken away."""

    def add(self, record: Record, properties: Mapping[str, str], *, is_pop: bool = False) -> None:
        """The next record, and its properties. `is_pop`: it is one of popped messages."""
        try:
            slot_ms = parse_int(properties.get(SLOT), NATURAL64)
        except ValueError:
            # Not a timer, or the property of a client that no broker reads.
            return
        is_waiting = record.topic == TIMER_TOPIC
        topic = properties.get(REAL_TOPIC, "") if is_waiting else record.topic
        key, now_ms = _key(topic, _identity(record, properties), slot_ms), record.store_timestamp_ms
        if not is_waiting:
            if DELIVERED in properties:
                self._drop_oldest(key, now_ms)
                self._delivered_ms = max(self._delivered_ms, slot_ms)
            return
        timer = PendingTimer(
            slot_ms,
            record.queue_offset,
            record.physical_offset,
            record.total_size,
            now_ms,
            topic,
            is_pop,
        )
        self.next_offset = max(self.next_offset, record.queue_offset + 1)
        self.newest = timer
        self.changes += 1
        if (recalled := properties.get(RECALLED_KEY)) is not None:
            # With appendTopicForTimerDeleteKey the topic stands before the key.
            for identity in {recalled, recalled.removeprefix(topic)}:
                each = _key(topic, identity, slot_ms)
                self._recalled[each] = slot_ms
                while each in self._entries:
                    self._drop_oldest(each, now_ms)
        elif key not in self._recalled:
            if ROLL_TIMES in properties:
                self._drop_oldest(key, now_ms)
            self._count(timer, 1, now_ms)
            self._entries[key] = self._entries.get(key, b"") + self._packed(timer)
            self.look_at(key, timer.rolls_at(self._roll_window_ms) or slot_ms)

    def look_at(self, key: int, time_ms: int) -> None:
        """Something is to be done with the timers of a key at this time, too."""
        if time_ms not in self._keys:
            self._keys[time_ms] = array("Q")
            heappush(self._times, time_ms)
        self._keys[time_ms].append(key)

    def _count(self, timer: PendingTimer, number: int, now_ms: int) -> None:
        """Add `number`, which may be negative, to the timers that wait of a timer's topic and slot."""
        topic = self.by_topic.get(timer.topic)
        if topic is None:
            topic = self.by_topic[timer.topic] = TopicTimers(len(self._topics))
            self._topics.append(timer.topic)
        topic.count += number
        topic.changed_ms = now_ms
        if not timer.is_pop:
            self._counts[timer.slot_ms] += number
            if not self._counts[timer.slot_ms]:
                del self._counts[timer.slot_ms]

    def _packed(self, timer: PendingTimer) -> bytes:
        """As it is in an entry: its topic was counted before."""
        return _ENTRY.pack(
            timer.slot_ms,
            timer.queue_offset,
            timer.physical_offset,
            timer.size,
            timer.stored_ms,
            self.by_topic[timer.topic].number,
            timer.is_pop,
        )

    def _drop_oldest(self, key: int, now_ms: int) -> None:
        if entries := self._entries.get(key, b""):
            self._drop(key, next(_unpacked(entries, self._topics)), now_ms)

    def _drop(self, key: int, timer: PendingTimer, now_ms: int) -> None:
        """Take away a timer of a key."""
        if left := self._entries.pop(key).replace(self._packed(timer), b"", 1):
            self._entries[key] = left
        self.changes += 1
        self._count(timer, -1, now_ms)

    def settle(self) -> None:
        """Take away what the check points say is done: no more records of those masters follow."""
        for key, entries in list(self._entries.items()):
            for timer in _unpacked(entries, self._topics):
                if self._is_done(timer):
                    self._drop(key, timer, timer.slot_ms)
        self._check_points = ()

    def snapshot(self) -> Callable[[], Iterator[PendingTimer]]:
        """What is pending now, in the order of the timer topic, by a function that other threads may call."""
        packed, topics = list(self._entries.values()), self._topics

        def timers() -> Iterator[PendingTimer]:
            # A timer that is not packed takes ten times as much.
            one = _ENTRY.size
            each = [entries[at : at + one] for entries in packed for at in range(0, len(entries), one)]
            each.sort(key=_QUEUE_OFFSET)
            for entry in each:
                yield from _unpacked(entry, topics)

        return timers

    def __iter__(self) -> Iterator[PendingTimer]:
        for key in self._entries:
            yield from self._of(key)

    def _of(self, key: int) -> Iterator[PendingTimer]:
        for timer in _unpacked(self._entries.get(key, b""), self._topics):
            if not self._is_done(timer):
                yield timer

    def _is_done(self, timer: PendingTimer) -> bool:
        return timer.slot_ms < self._delivered_ms and any(
            timer.slot_ms < point.last_read_ms and timer.queue_offset < point.master_queue_offset
            for point in self._check_points
        )

    # -- in the order of their times ---------------------------------------------------------------------

    def waiting(self, slot_ms: int) -> int:
        """How many messages wait for a slot."""
        return self._counts[slot_ms]

    def figures(self) -> tuple[int, int | None, int | None]:
        """How many messages wait, and the first and the last of their slots, ms since 1970."""
        counts = self._counts
        return counts.total(), min(counts, default=None), max(counts, default=None)

    @property
    def first_ms(self) -> int | None:
        """The slot that is delivered next, or when a timer is to roll, ms since 1970; None without timers."""
        while self._times:
            first_ms = self._times[0]
            if any(key in self._entries for key in self._keys[first_ms]):
                return first_ms
            self.end_slot(first_ms)
        return None

    def at(self, time_ms: int) -> list[tuple[int, PendingTimer]]:
        """The keys and timers of that slot, or those that roll then, by queue offset."""
        found = {
            timer.queue_offset: (key, timer)
            for key in self._keys.get(time_ms, ())
            for timer in self._of(key)
            if (timer.rolls_at(self._roll_window_ms) or timer.slot_ms) <= time_ms
        }
        return [found[offset] for offset in sorted(found)]

    def done(self, key: int, timer: PendingTimer, *, now_ms: int) -> None:
        """A timer was delivered, rolled or given up, at this time."""
        if self._packed(timer) in self._entries.get(key, b""):
            self._drop(key, timer, now_ms)

    def end_slot(self, time_ms: int) -> None:
        """Nothing is left to do at this time, the first one."""
        heappop(self._times)
        del self._keys[time_ms]
        if len(self._recalled) > RECALLS_KEPT:
            self._recalled = {key: slot_ms for key, slot_ms in self._recalled.items() if slot_ms >= time_ms}


def has_slot(properties_raw: bytes) -> bool:
    """Whether a record may be a timer or the copy of one: a test that costs less than to parse."""
    return _SLOT_MARK in properties_raw


def real_queue(properties: Mapping[str, str]) -> tuple[str, int] | None:
    """Topic and queue id where a timer is delivered; None if it does not say so."""
    topic = properties.get(REAL_TOPIC)
    try:
        queue_id = parse_int(properties.get(REAL_QUEUE_ID), NATURAL32)
    except ValueError:
        return None
    return None if topic is None else (topic, queue_id)


def _unpacked(entries: bytes, topics: Sequence[str]) -> Iterator[PendingTimer]:
    """The timers of one key's entries."""
    for slot_ms, queue_offset, physical_offset, size, stored_ms, topic, is_pop in _ENTRY.iter_unpack(entries):
        yield PendingTimer(slot_ms, queue_offset, physical_offset, size, stored_ms, topics[topic], is_pop)


def _identity(record: Record, properties: Mapping[str, str]) -> str:
    """The same for a timer, its rolls and its copy."""
    if (unique := properties.get(UNIQUE_KEY)) is not None:
        return unique
    queue_id = properties.get(REAL_QUEUE_ID, "")
    return f"{record.born_timestamp_ms}\0{record.born_host}\0{queue_id}\0{record.body_crc}"


def _key(topic: str, identity: str, slot_ms: int) -> int:
    """64 bits of all three: a million timers share none."""
    text = f"{slot_ms}\0{topic}\0{identity}".encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(text, digest_size=8).digest())
