"""Entries of records: in queues, by topic and queue id, and in the index, by keys.

See docs/protocol/store.md#consume-queues, docs/protocol/store.md#index.

A record's type decides: plain and committed messages enter their queue and the index, prepared ones only the
index, rolled back ones neither. `EntryCollector.collect` walks over records and keeps their entries in
memory; `write_queues` then writes each queue once, and `write_index` the index once.

With the compiled kernel, `store.kernel.Columns` collects common records, and the loop here those where it
stops: records of unknown queues or batch topics, with another number than their queue's next, with empty
properties, with a store time that goes back, or damaged ones.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from enum import Enum, auto
from struct import Struct
from typing import Final, NamedTuple, cast

from attrs import define

from trioha.errors import StoreError
from trioha.numbers import I64, NATURAL32, NATURAL64, parse_int
from trioha.store import compiled
from trioha.store.compiled import COPY_BYTES, LONG_RECORD_BYTES
from trioha.store.consume_queue import ConsumeQueue
from trioha.store.consume_queues import ConsumeQueues, Queue
from trioha.store.dispatch_settings import DispatchFault, DispatchSettings
from trioha.store.index_service import IndexService
from trioha.store.message_properties import parse_properties
from trioha.store.record_layout import (
    HEAD,
    RECORD_BYTES_MIN,
    TRANSACTION_MASK,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
    check_record,
    claimed_bytes,
    starts_blank,
    store_timestamp_ms,
    topic_span,
)
from trioha.store.tags import java_hashes, java_hashes_with_prefix, tags_code
from trioha.store.time_steps import TimeStep, leads
from trioha.store.topics import LMQ_PREFIX, SCHEDULE_TOPIC

_TAG_CACHE_MAX = 65536
_CACHED_TAG_BYTES_MAX = 128
_SHORT_KEY_BYTES = 48
"""Up to this length a loop hashes a single key faster than `tags.java_hashes`."""
_MASK_32 = 0xFFFFFFFF
_PLAIN_RECORDS_MAX = 64
"""The most records that are collected in plain Python before the compiled kernel is tried again."""

_pack_entry = Struct(">qiq").pack


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
    plain: ConsumeQueue | None
    """The queue, if its tags code is the hash of the record's tags and no property changes the entry."""


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
        self._tag_codes: dict[bytes, int] = {}
        self._touched: dict[int, Queue] = {}
        """Queues with entries to be written, by identity."""
        # Columns of the index keys to be written.
        self._keys: list[bytes] = []
        self._prefixes: list[int] = []
        self._key_offsets: list[int] = []
        self._key_times_ms: list[int] = []
        self._last_record_offset = -1
        self._faults: list[DispatchFault] = []
        self.latest_ms = 0
        """Latest store time since the last step of it back, of the records that are written; 0 if none is."""
        self._latest_ms = 0
        """The same of the collected ones."""
        self._steps: list[TimeStep] = []
        self._columns: compiled.kernel.Columns | None = None
        """Collects common records; the keys of all records, in log order, are in it then."""
        if compiled.IS_COMPILED and queues is not None:
            self._columns = compiled.kernel.Columns(
                _hash_after,
                multi_dispatch=settings.enable_multi_dispatch,
            )

    def forget_queues(self) -> None:
        """Look queues up again: call it when topics were deleted or have become batch topics."""
        self._targets.clear()
        if self._columns is not None:
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
        if self._columns is not None:
            self._move_keys(self._columns)
            self._index.put_column(self._columns.keys(), last_record_offset=self._last_record_offset)
        else:
            self._index.put(
                _hashes_after(self._prefixes, self._keys),
                self._key_offsets,
                self._key_times_ms,
                last_record_offset=self._last_record_offset,
            )

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
        if self._keys:
            self._clear_keys()
        if self._columns is not None:
            self._columns.clear()
        self._last_record_offset = -1

    def _clear_keys(self) -> None:
        self._keys.clear()
        self._prefixes.clear()
        self._key_offsets.clear()
        self._key_times_ms.clear()

    def collect(self, view: memoryview, start: int, physical_offset: int, *, records_max: int) -> Collected:
        """Walk over up to `records_max` records in `view`, which begins at index `start` of its object: of
        the map of a log file, or of bytes that were read.

        The first of them has that physical offset.
        """
        self._latest_ms = self.latest_ms
        columns = self._columns
        if columns is None or physical_offset + len(view) > I64.high:
            return self._collect_plain(view, start, physical_offset, records_max=records_max)
        index_from = self._index.end_physical_offset if self._index is not None else I64.high
        at, end = 0, len(view)
        records = 0
        last_time_ms = 0
        # A short stretch, as of a record that comes alone, is copied whole.
        data = bytes(view) if end <= LONG_RECORD_BYTES else b""
        data_at = 0
        plain_records = 1
        while records < records_max and at < end:
            size = claimed_bytes(view, at, end)
            if size <= LONG_RECORD_BYTES:
                if at + size > data_at + len(data):
                    data_at = at
                    # Most records are as long as their neighbours.
                    data = bytes(view[at : at + min(size * (records_max - records), COPY_BYTES)])
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
                    if columns.records > plain_records:
                        plain_records = 1
                    continue
            wanted = min(plain_records, records_max - records)
            found = self._collect_plain(view[at:], start + at, physical_offset + at, records_max=wanted)
            self._move_keys(columns)
            at = found.offset - physical_offset
            records += found.records
            if found.records:
                last_time_ms = found.last_store_timestamp_ms
            if found.stop is not AT_END:
                return Collected(found.offset, records, found.stop, last_time_ms)
            # Where uncommon records are usual, to try each of them would cost more than it saves.
            plain_records = min(plain_records * 2, _PLAIN_RECORDS_MAX)
        return Collected(physical_offset + at, records, AT_END, last_time_ms)

    def _move_keys(self, columns: compiled.kernel.Columns) -> None:
        """Move the keys that were collected in plain Python after those in `columns`."""
        if self._keys:
            hashes = java_hashes_with_prefix(self._prefixes, self._keys)
            for key in zip(hashes, self._key_offsets, self._key_times_ms, strict=True):
                columns.add_key(*key)
            self._clear_keys()

    def _collect_plain(
        self, view: memoryview, start: int, physical_offset: int, *, records_max: int
    ) -> Collected:
        """The same in plain Python."""
        # Slices of the map are bytes at half the cost of slices of its view. So indexes are positions in it.
        data = cast("mmap.mmap | bytes", view.obj)
        at = start
        end = start + len(view)
        shift = physical_offset - start
        index_from = self._index.end_physical_offset if self._index is not None else 1 << 63
        multi_dispatch = self._settings.enable_multi_dispatch
        targets = self._targets
        tag_codes = self._tag_codes
        touched = self._touched
        keys, prefixes = self._keys, self._prefixes
        key_offsets, key_times = self._key_offsets, self._key_times_ms
        last_record_offset = self._last_record_offset
        last_time_ms = 0
        latest_ms = self._latest_ms
        records = 0
        stop = AT_END
        # A record cannot start closer to the end.
        last_start = end - RECORD_BYTES_MIN
        while at <= last_start and records < records_max:
            size = check_record(view, at - start, end - start, shift + at, check_crc=False)
            if size < 0:
                stop = Stop.AT_BLANK if starts_blank(data, at, end) else Stop.AT_FAULT
                break
            _, _, _, queue_id, _, queue_offset, physical_offset, sys_flag, _ = HEAD.unpack_from(data, at)
            topic_at, topic_end = topic_span(data, at)
            time_ms = store_timestamp_ms(data, at)
            record_end = at + size
            records += 1
            last_record_offset = physical_offset
            last_time_ms = time_ms
            if time_ms > latest_ms:
                latest_ms = time_ms
            elif leads(latest_ms, time_ms):
                self._steps.append(TimeStep(physical_offset, latest_ms, time_ms))
                latest_ms = time_ms
            at = record_end
            # With a separator in front the first property is found like the others.
            properties = b"\x02" + data[topic_end + 2 : record_end]
            place = (data[topic_at:topic_end], queue_id)
            try:
                target = targets[place]
            except KeyError:
                target = self._make_target(place)
            if not sys_flag & TRANSACTION_PREPARED:
                # Neither prepared (0x4) nor rolled back (0xC).
                plain = target.plain
                if plain is not None:
                    _, name, rest = properties.rpartition(b"\x02TAGS\x01")
                    if name:
                        tags = rest.partition(b"\x02")[0]
                        try:
                            code = tag_codes[tags]
                        except KeyError:
                            code = self._tags_code(tags, properties)
                    else:
                        code = 0
                    if queue_offset == plain.next_offset and physical_offset >= plain.max_physical_offset > 0:
                        # `ConsumeQueue.put`, inlined for the entry that follows the last one.
                        pending = plain.pending
                        if not pending:
                            touched[id(plain)] = plain
                        pending.append(_pack_entry(physical_offset, size, code))
                        plain.next_offset = queue_offset + 1
                    else:
                        touched[id(plain)] = plain
                        plain.put(
                            physical_offset=physical_offset,
                            size=size,
                            tags_code=code,
                            queue_offset=queue_offset,
                        )
                    if multi_dispatch and b"\x02INNER_MULTI_DISPATCH\x01" in properties:
                        self._put_multi(properties, physical_offset, size, code, queue_id)
                else:
                    self._put_special(
                        target,
                        properties,
                        physical_offset=physical_offset,
                        size=size,
                        queue_id=queue_id,
                        queue_offset=queue_offset,
                        time_ms=time_ms,
                    )
            elif sys_flag & TRANSACTION_MASK == TRANSACTION_ROLLBACK:
                continue
            if physical_offset < index_from:
                continue
            _, name, rest = properties.rpartition(b"\x02UNIQ_KEY\x01")
            if name:
                if key := rest.partition(b"\x02")[0]:
                    keys.append(key)
                    prefixes.append(target.prefix_hash)
                    key_offsets.append(physical_offset)
                    key_times.append(time_ms)
                else:
                    self._put_keys(target, properties, "UNIQ_KEY", offset=physical_offset, time_ms=time_ms)
            _, name, rest = properties.rpartition(b"\x02KEYS\x01")
            if name:
                if (key := rest.partition(b"\x02")[0]) and b" " not in key:
                    keys.append(key)
                    prefixes.append(target.prefix_hash)
                    key_offsets.append(physical_offset)
                    key_times.append(time_ms)
                else:
                    self._put_keys(target, properties, "KEYS", offset=physical_offset, time_ms=time_ms)
        if last_start < at < end and stop is AT_END and records < records_max:
            stop = Stop.AT_BLANK if starts_blank(data, at, end) else Stop.AT_FAULT
        self._last_record_offset = last_record_offset
        self._latest_ms = latest_ms
        return Collected(shift + at, records, stop, last_time_ms)

    # -- uncommon records --------------------------------------------------------------------------------

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
            prefix_hash=java_hashes([place[0] + b"#"])[0],
            plain=queue if isinstance(queue, ConsumeQueue) and topic != SCHEDULE_TOPIC else None,
        )
        if queue is not None:
            # A refused topic costs a look-up for each of its records, but no memory.
            self._targets[place] = target
            if self._columns is not None and target.plain is not None:
                self._columns.add_queue(*place, target.plain, target.prefix_hash)
        return target

    def _tags_code(self, tags: bytes, properties: bytes) -> int:
        """Tags code of a TAGS property that is not in the cache."""
        if not tags:
            # An empty value does not count, but an earlier property of the same name may.
            return tags_code(parse_properties(properties).get("TAGS", ""))
        code = tags_code(tags.decode("utf-8", "replace"))
        if len(tags) <= _CACHED_TAG_BYTES_MAX:
            if len(self._tag_codes) >= _TAG_CACHE_MAX:
                self._tag_codes.clear()
            self._tag_codes[tags] = code
        return code

    def _put_special(
        self,
        target: _Target,
        raw_properties: bytes,
        *,
        physical_offset: int,
        size: int,
        queue_id: int,
        queue_offset: int,
        time_ms: int,
    ) -> None:
        """Collect a record of the schedule topic or of a batch topic, or one without a queue."""
        if self._queues is None:
            return
        properties = parse_properties(raw_properties)
        code = tags_code(properties.get("TAGS", ""))
        queue = target.queue
        if queue is None:
            self.note_fault(physical_offset, target.fault)
        elif isinstance(queue, ConsumeQueue):
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
            self._put_multi(raw_properties, physical_offset, size, code, queue_id)

    def _put_multi(
        self, raw_properties: bytes, physical_offset: int, size: int, code: int, queue_id: int
    ) -> None:
        """Collect entries for the queues that INNER_MULTI_DISPATCH names.

        See docs/protocol/store.md#multi-dispatch.
        """
        assert self._queues is not None, "a walk for the index alone collects no entries"
        properties = parse_properties(raw_properties)
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

    def _put_keys(
        self, target: _Target, raw_properties: bytes, name: str, *, offset: int, time_ms: int
    ) -> None:
        """Collect keys of a record whose property is empty, given twice, or a list."""
        value = parse_properties(raw_properties).get(name, "")
        for key in value.split(" ") if name == "KEYS" else [value]:
            if key:
                self._keys.append(key.encode())
                self._prefixes.append(target.prefix_hash)
                self._key_offsets.append(offset)
                self._key_times_ms.append(time_ms)


def _hash_after(prefix_hash: int, key: bytes) -> int:
    if len(key) <= _SHORT_KEY_BYTES and key.isascii():
        value = prefix_hash
        for unit in key:
            value = value * 31 + unit
        return value & _MASK_32
    return java_hashes_with_prefix([prefix_hash], [key])[0]


def _hashes_after(prefix_hashes: list[int], keys: list[bytes]) -> list[int]:
    if len(keys) == 1:
        return [_hash_after(prefix_hashes[0], keys[0])]
    return java_hashes_with_prefix(prefix_hashes, keys)


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
