"""Timers of a RocketMQ 5 master, read from records of its log: which of them are still to be delivered.

Theory of operation (docs/protocol/timer.md#delivery, docs/protocol/timer.md#recall). The log alone says what
is pending. Its records in log order:

| record | effect |
|---|---|
| in `rmq_sys_wheel_timer`, with TIMER_OUT_MS | waits for its slot |
| there, with TIMER_ROLL_TIMES | replaces the one that was put before: a timer far ahead is put anew |
| there, with TIMER_DEL_UNIQKEY | recalls the timers of that slot with this key, whichever comes first |
| in another topic, with TIMER_OUT_MS and TIMER_DEQUEUE_MS | a delivered copy: one of its key is done |

A key is UNIQ_KEY and slot; a record without UNIQ_KEY is known by its birth, queue and CRC, which its copies
keep. A client that sends a message again gives two timers the same key: they are counted, one for one.

A timer without a copy is done as well if a master's check point says so: the copy's topic was deleted, or the
put failed. As masters deliver slot by slot, the log must also have a copy of a later slot: the log of a slave
may end before what its master had done at the check point.

Check points and acknowledgements of popped messages are timers, too (`trioha.broker.pop_records`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b
from struct import Struct
from typing import Final

from attrs import frozen

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
_ENTRY: Final = Struct(">qqqiq")
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

    @property
    def wheel_ms(self) -> int:
        """The first slot where a RocketMQ broker may have it, to roll or be delivered; ms since 1970."""
        if self.slot_ms - self.stored_ms < ROLLS_FROM_MS:
            return self.slot_ms
        return self.stored_ms + ROLLS_AFTER_MS


class PendingTimers:
    """What is pending after the records that were added, packed: a log may have millions of timers."""

    def __init__(self, check_points: Iterable[TimerCheckPoint] = ()) -> None:
        """`check_points`: of masters that the log is from."""
        self._check_points = tuple(check_points)
        self._delivered_ms = -1
        """The latest slot of a copy."""
        self._entries: dict[int, bytes] = {}
        """By key, the entries of all timers that have it, oldest first."""
        self._recalled: set[int] = set()
        """Keys of recalls: a timer that rolls may come after its recall."""

    def add(self, record: Record, properties: Mapping[str, str]) -> None:
        """The next record, and its properties."""
        try:
            slot_ms = parse_int(properties.get(SLOT), NATURAL64)
        except ValueError:
            # Not a timer, or the property of a client that no broker reads.
            return
        key = _key(_identity(record, properties), slot_ms)
        if record.topic != TIMER_TOPIC:
            if DELIVERED in properties:
                self._drop_oldest(key)
                self._delivered_ms = max(self._delivered_ms, slot_ms)
        elif (recalled := properties.get(RECALLED_KEY)) is not None:
            # With appendTopicForTimerDeleteKey the topic stands before the key.
            plain = recalled.removeprefix(properties.get(REAL_TOPIC, ""))
            for each in {_key(recalled, slot_ms), _key(plain, slot_ms)}:
                self._recalled.add(each)
                self._entries.pop(each, None)
        elif key not in self._recalled:
            if ROLL_TIMES in properties:
                self._drop_oldest(key)
            entry = _ENTRY.pack(
                slot_ms,
                record.queue_offset,
                record.physical_offset,
                record.total_size,
                record.store_timestamp_ms,
            )
            self._entries[key] = self._entries.get(key, b"") + entry

    def _drop_oldest(self, key: int) -> None:
        entries = self._entries.pop(key, b"")
        if len(entries) > _ENTRY.size:
            self._entries[key] = entries[_ENTRY.size :]

    def __iter__(self) -> Iterator[PendingTimer]:
        for entries in self._entries.values():
            for fields in _ENTRY.iter_unpack(entries):
                timer = PendingTimer(*fields)
                if not self._is_done(timer):
                    yield timer

    def _is_done(self, timer: PendingTimer) -> bool:
        return timer.slot_ms < self._delivered_ms and any(
            timer.slot_ms < point.last_read_ms and timer.queue_offset < point.master_queue_offset
            for point in self._check_points
        )


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


def _identity(record: Record, properties: Mapping[str, str]) -> str:
    """The same for a timer, its rolls and its copy."""
    if (unique := properties.get(UNIQUE_KEY)) is not None:
        return unique
    queue_id = properties.get(REAL_QUEUE_ID, "")
    return f"{record.born_timestamp_ms}\0{record.born_host}\0{queue_id}\0{record.body_crc}"


def _key(identity: str, slot_ms: int) -> int:
    """64 bits of both: a million timers share none."""
    text = f"{slot_ms}\0{identity}".encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(text, digest_size=8).digest())
