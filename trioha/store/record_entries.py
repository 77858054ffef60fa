"""Entries of records: in queues, by topic and queue id, and in the index, by keys.

See docs/protocol/store.md#consume-queues, docs/protocol/store.md#index.

A record's type decides: plain and committed messages enter their queue and the index, prepared ones only the
index, rolled back ones neither. `EntryCollector.collect` walks over records and keeps their entries in
memory; `write_queues` then writes each queue once, and `write_index` the index once.

`store.compiled_records.Columns` collects common records, and `EntryCollector` those where it stops: records
of unknown queues or batch topics, with another number than their queue's next, with empty properties, with a
store time that goes back, long ones, or damaged ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto
from typing import Final, NamedTuple

from attrs import define

from trioha.errors import StoreError
from trioha.numbers import I64, NATURAL32, NATURAL64, parse_int
from trioha.store import compiled_records
from trioha.store.consume_queue import ConsumeQueue
from trioha.store.consume_queues import ConsumeQueues, Queue
from trioha.store.dispatch_settings import DispatchFault, DispatchSettings
from trioha.store.index_service import IndexService
from trioha.store.message_properties import parse_properties
from trioha.store.record_layout import (
    HEAD,
    TRANSACTION_MASK,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
    check_record,
    claimed_bytes,
    starts_blank,
    store_timestamp_ms,
    topic_span,
)
from trioha.store.tags import java_hashes_with_prefix, tags_code
from trioha.store.time_steps import TimeStep, leads
from trioha.store.topics import LMQ_PREFIX, SCHEDULE_TOPIC

_COPY_BYTES: Final = 128 * 1024
"""Compiled code reads `bytes`, so stretches of a log are copied for it: as much as stays in a core's
cache."""
_LONG_RECORD_BYTES: Final = 8 * 1024
"""To copy a record of this length costs more than compiled code saves."""
_SHORT_KEY_BYTES = 48
"""Up to this length a loop hashes a single key faster than `tags.java_hashes`."""
_MASK_32 = 0xFFFFFFFF


class Stop(Enum):
    """Why a walk over records ended."""

    AT_END = auto()
    AT_BLANK = auto()
    AT_FAULT = auto()


AT_END: Final = Stop.AT_END
"""To look up a member of an enum costs as much as a call."""


class Collected(NamedTuple):
    """Result of a walk over records."""

    offset: int
    """Physical offset after the last record."""
    records: int
    stop: Stop
    last_store_timestamp_ms: int
    """storeTimestamp of the last record, 0 if there was none."""


@define(eq=False)
class _Target:
    """Queue and index prefix of a topic and queue id."""

    queue: Queue | None
    """None if no queue may be made for the topic."""
    fault: str
    prefix_hash: int
    """Hash of `topic#`, the prefix of all index keys of the topic."""


class EntryCollector:
    """Collects entries and keys of records until they are written."""

    def __init__(
        self, queues: ConsumeQueues | None, index: IndexService | None, settings: DispatchSettings
    ) -> None:
        """Without `index` no keys are collected, and without `queues` nothing else."""
        self._queues = queues
        self._index = index
        self._settings = settings
        self._targets: dict[tuple[bytes, int], _Target] = {}
        self._touched: dict[int, Queue] = {}
        """Queues with entries to be written, by identity."""
        self._last_record_offset = -1
        self._faults: list[DispatchFault] = []
        self.latest_ms = 0
        """Latest store time since the last step of it back, of the records that are written; 0 if none is."""
        self._latest_ms = 0
        """The same of the collected ones."""
        self._steps: list[TimeStep] = []
        self._columns = compiled_records.Columns(_hash_after, multi_dispatch=settings.enable_multi_dispatch)
        """Collects common records; it has the keys of all records, in log order."""

    def forget_queues(self) -> None:
        """Look queues up again: call it when topics were deleted or have become batch topics."""
        self._targets.clear()
        self._columns.forget_queues()

    def note_fault(self, physical_offset: int, reason: str) -> None:
        """Report a record that is not dispatched, or not to all of its queues."""
        self._faults.append(DispatchFault(physical_offset, reason))

    def write_queues(self) -> list[Queue]:
        """Write the collected entries to queues; returns these queues.

        Raises StoreError: `discard` then.
        """
        touched = list(self._touched.values())
        for queue in touched:
            queue.flush()
        return touched

    def write_index(self) -> None:
        """Write the collected keys to the index.

        Raises StoreError: the index may have some of them then, and drops these when they come again.
        """
        if self._index is None or self._last_record_offset < 0:
            return
        self._index.put(self._columns.keys(), last_record_offset=self._last_record_offset)

    def finish(self) -> tuple[Sequence[DispatchFault], Sequence[TimeStep]]:
        """Drop the collected entries, which are written; returns faults, and where store times go back."""
        self._clear()
        self.latest_ms = self._latest_ms
        if not self._faults and not self._steps:
            return (), ()
        found = self._faults, self._steps
        self._faults, self._steps = [], []
        return found

    def discard(self) -> None:
        """Drop the collected entries and faults, also in the queues. Cannot fail."""
        for queue in self._touched.values():
            queue.discard()
        self._faults.clear()
        self._steps.clear()
        self._clear()

    def _clear(self) -> None:
        self._touched.clear()
        self._columns.clear()
        self._last_record_offset = -1

    def collect(self, view: memoryview, physical_offset: int, *, records_max: int) -> Collected:
        """Walk over up to `records_max` records in `view`. The first of them has that physical offset."""
        self._latest_ms = self.latest_ms
        columns = self._columns
        index_from = self._index.end_physical_offset if self._index is not None else I64.high
        at, end = 0, len(view)
        records = 0
        last_time_ms = 0
        # A short stretch, as of a record that comes alone, is copied whole.
        data = bytes(view) if end <= _LONG_RECORD_BYTES else b""
        data_at = 0
        while records < records_max and at < end:
            size = claimed_bytes(view, at, end)
            if size <= _LONG_RECORD_BYTES and physical_offset + end <= I64.high:
                if at + size > data_at + len(data):
                    data_at = at
                    # Most records are as long as their neighbours.
                    data = bytes(view[at : at + min(size * (records_max - records), _COPY_BYTES)])
                columns.latest_ms = self._latest_ms
                touched = columns.collect(
                    data, at - data_at, physical_offset + data_at, records_max - records, index_from
                )
                self._latest_ms = columns.latest_ms
                if columns.records:
                    for queue in touched:
                        self._touched[id(queue)] = queue
                    records += columns.records
                    at = data_at + columns.next_at
                    self._last_record_offset = physical_offset + data_at + columns.last_at
                    last_time_ms = columns.last_store_timestamp_ms
                    continue
            size = check_record(view, at, end, physical_offset + at, check_crc=False)
            if size < 0:
                stop = Stop.AT_BLANK if starts_blank(view, at, end) else Stop.AT_FAULT
                return Collected(physical_offset + at, records, stop, last_time_ms)
            last_time_ms = self._collect_one(view[at : at + size], physical_offset + at, index_from)
            self._last_record_offset = physical_offset + at
            records += 1
            at += size
        return Collected(physical_offset + at, records, AT_END, last_time_ms)

    # -- uncommon records --------------------------------------------------------------------------------

    def _collect_one(self, record: memoryview, physical_offset: int, index_from: int) -> int:
        """Collect one record of any kind, which was checked; returns its storeTimestamp."""
        _, _, _, queue_id, _, queue_offset, _, sys_flag, _ = HEAD.unpack_from(record)
        time_ms = store_timestamp_ms(record, 0)
        if time_ms > self._latest_ms:
            self._latest_ms = time_ms
        elif leads(self._latest_ms, time_ms):
            self._steps.append(TimeStep(physical_offset, self._latest_ms, time_ms))
            self._latest_ms = time_ms
        topic_at, topic_end = topic_span(record, 0)
        place = bytes(record[topic_at:topic_end]), queue_id
        target = self._targets.get(place) or self._make_target(place)
        properties = parse_properties(bytes(record[topic_end + 2 :]))
        # Neither prepared (0x4) nor rolled back (0xC).
        if not sys_flag & TRANSACTION_PREPARED and self._queues is not None:
            self._put(
                target,
                properties,
                physical_offset=physical_offset,
                size=len(record),
                queue_id=queue_id,
                queue_offset=queue_offset,
                time_ms=time_ms,
            )
        if sys_flag & TRANSACTION_MASK != TRANSACTION_ROLLBACK and physical_offset >= index_from:
            for key in (properties.get("UNIQ_KEY", ""), *properties.get("KEYS", "").split(" ")):
                if key:
                    hashed = _hash_after(target.prefix_hash, key.encode())
                    self._columns.add_key(hashed, physical_offset, time_ms)
        return time_ms

    def _make_target(self, place: tuple[bytes, int]) -> _Target:
        topic = place[0].decode("utf-8", "replace")
        fault = ""
        queue: Queue | None = None
        if self._queues is not None:
            try:
                queue = self._queues.find_or_make(topic, place[1])
            except StoreError as error:
                fault = error.reason
        target = _Target(
            queue=queue,
            fault=fault,
            prefix_hash=_hash_after(0, place[0] + b"#"),
        )
        if not fault:
            # A refused topic costs a look-up for each of its records, but no memory.
            self._targets[place] = target
            if self._queues is None or (isinstance(queue, ConsumeQueue) and topic != SCHEDULE_TOPIC):
                self._columns.add_queue(*place, queue, target.prefix_hash)
        return target

    def _put(
        self,
        target: _Target,
        properties: dict[str, str],
        *,
        physical_offset: int,
        size: int,
        queue_id: int,
        queue_offset: int,
        time_ms: int,
    ) -> None:
        """Collect the entries of a record."""
        code = tags_code(properties.get("TAGS", ""))
        queue = target.queue
        if queue is None:
            self.note_fault(physical_offset, target.fault)
        elif isinstance(queue, ConsumeQueue):
            due = None
            if queue.topic == SCHEDULE_TOPIC:
                due = self._settings.delay_levels.tags_code(
                    properties.get("DELAY", ""), store_timestamp_ms=time_ms
                )
            self._touched[id(queue)] = queue
            queue.put(
                physical_offset=physical_offset,
                size=size,
                tags_code=code if due is None else due,
                queue_offset=queue_offset,
            )
        else:
            span = _batch_span(properties, queue_offset)
            if span is None:
                self.note_fault(physical_offset, "INNER_BASE or INNER_NUM is not a number")
                return
            self._touched[id(queue)] = queue
            queue.put(
                physical_offset=physical_offset,
                size=size,
                tags_code=code,
                store_timestamp_ms=time_ms,
                base_offset=span[0],
                messages=span[1],
            )
        if self._settings.enable_multi_dispatch:
            self._put_multi(properties, physical_offset, size, code, queue_id)

    def _put_multi(
        self, properties: dict[str, str], physical_offset: int, size: int, code: int, queue_id: int
    ) -> None:
        """Collect entries for the queues that INNER_MULTI_DISPATCH names.

        See docs/protocol/store.md#multi-dispatch.
        """
        assert self._queues is not None, "a walk for the index alone collects no entries"
        names = properties.get("INNER_MULTI_DISPATCH", "")
        offsets = properties.get("INNER_MULTI_QUEUE_OFFSET", "")
        if not names or not offsets:
            return
        try:
            numbers = [parse_int(offset, NATURAL64) for offset in offsets.split(",")]
            pairs = list(zip(names.split(","), numbers, strict=True))
            for name, queue_offset in pairs:
                light = self._settings.enable_lmq and name.startswith(LMQ_PREFIX)
                queue = self._queues.find_or_make(name, 0 if light else queue_id)
                self._touched[id(queue)] = queue
                if isinstance(queue, ConsumeQueue):
                    queue.put(
                        physical_offset=physical_offset,
                        size=size,
                        tags_code=code,
                        queue_offset=queue_offset,
                    )
        except ValueError:
            self.note_fault(physical_offset, "INNER_MULTI_DISPATCH and its offsets do not fit")
        except StoreError as error:
            self.note_fault(physical_offset, error.reason)


def _hash_after(prefix_hash: int, key: bytes) -> int:
    if len(key) <= _SHORT_KEY_BYTES and key.isascii():
        value = prefix_hash
        for unit in key:
            value = value * 31 + unit
        return value & _MASK_32
    return java_hashes_with_prefix([prefix_hash], [key])[0]


def _batch_span(properties: dict[str, str], queue_offset: int) -> tuple[int, int] | None:
    """First queue offset and number of the messages in a batch topic's record; None if they are malformed.

    They are INNER_BASE and INNER_NUM (docs/protocol/store.md#batches); a plain message has neither.
    """
    if "INNER_BASE" not in properties or "INNER_NUM" not in properties:
        return queue_offset, 1
    try:
        return parse_int(properties["INNER_BASE"], NATURAL64), parse_int(properties["INNER_NUM"], NATURAL32)
    except ValueError:
        return None
