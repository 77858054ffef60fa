"""Reads: by queue offset, by physical offset, by time, and by key.

See docs/protocol/store.md#consume-queues, docs/protocol/remoting.md#offsets-and-queries.

Records are unmodified: a consumer gets the bytes that the broker wrote. Near the log's end they are views of
its map; those that were synced long ago are read by calls, which raise StoreError if the disk does not give
them.
Every entry is checked against the record it names before that record is returned; queues and index are
derived files, and a damaged one must not lead to other bytes.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum
from itertools import islice, pairwise

from attrs import define, frozen

from trioha.store.commit_log import CommitLog
from trioha.store.consume_queue import ConsumeQueue, fields_of
from trioha.store.consume_queues import ConsumeQueues, Queue
from trioha.store.index_service import MESSAGES_MAX, IndexService
from trioha.store.message_properties import parse_properties
from trioha.store.record import Record, RecordError, decode_record
from trioha.store.record_layout import (
    RECORD_BYTES_MIN,
    check_record,
    claimed_bytes,
    is_records,
    store_timestamp_ms,
    topic_of,
)
from trioha.store.time_steps import LEAD_MS_MAX, TimeSteps

SCAN_ENTRIES_MAX = 800
"""Entries that one pull checks for matching tags, as in the broker (16,000 bytes of consume queue)."""
CANDIDATES_MAX = 4096
"""Records that one query by key checks: keys made to share a hash must not block the event loop."""
_SCAN_CHUNK = 64
_DOUBTED_BYTES = 1 << 20
"""Of a record of this length its own length is read first."""
_MASK_32 = 0xFFFFFFFF


class GetStatus(StrEnum):
    """Result of a read by queue offset, by the names that RocketMQ sends as remark."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    """Entries were checked, none has a wanted tag."""
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    """Entries were checked, but their records are no longer in the log."""
    OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL"
    """The offset is in the queue's range, but has no entry."""
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    """The offset is beyond the queue's end."""
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    """The offset is the queue's end: no new message."""
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    """The offset is before the queue's first message."""
    NO_MATCHED_LOGIC_QUEUE = "NO_MATCHED_LOGIC_QUEUE"
    """The queue does not exist."""
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"
    """The queue never had a message."""


_FOUND = GetStatus.FOUND


@frozen
class ReadLimits:
    """Limits of one read by queue offset; it returns one message at least, if there is any."""

    messages_max: int = 32
    bytes_max: int = 256 * 1024
    """maxTransferBytesOnMessageInMemory, or the request's own limit."""


@define
class GetResult:
    """Messages of one queue, and the offset to continue at. Never changed; not frozen, since each pull makes
    one, and attrs would set each field by a call."""

    status: GetStatus
    next_begin_offset: int
    """Queue offset to ask for next."""
    min_offset: int
    max_offset: int
    records: tuple[memoryview, ...] = ()
    """Whole records, in order, unmodified; if they were to be joined, those that are neighbours in the log in
    one view."""
    queue_offsets: tuple[int, ...] = ()
    """Queue offset of each record; of its first message, where a record holds several. Empty if records were
    to be joined."""
    messages: int = 0
    """Number of messages in `records`; more than the records only in batch topics."""
    total_bytes: int = 0
    """Bytes of all records."""


class MessageReader:
    """Reads from one store's log, queues and index. Has no state of its own."""

    def __init__(
        self,
        commit_log: CommitLog,
        queues: ConsumeQueues,
        index: IndexService | None,
        time_steps: TimeSteps | None = None,
    ) -> None:
        """`time_steps` are the dispatcher's; without them store times are taken to rise."""
        self._log = commit_log
        self._queues = queues
        self._index = index
        self._time_steps = TimeSteps() if time_steps is None else time_steps

    # -- by queue offset ---------------------------------------------------------------------------------

    def get(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        *,
        limits: ReadLimits | None = None,
        tag_codes: Collection[int] | None = None,
        log_end: int | None = None,
        joined: bool = False,
    ) -> GetResult:
        """Messages from queue offset `offset` on (docs/protocol/remoting.md#pulls).

        `tag_codes` are `String.hashCode`s of the wanted tags; None or empty matches all. Different tags may
        have one code: consumers compare the tags themselves. Records that end after the physical offset
        `log_end` are left out, as if they were not stored yet. `joined`: for a caller that needs the bytes
        only, and not where each record begins; that costs less where a queue's records are neighbours.
        Raises StoreError if the disk refuses.
        """
        limits = limits or ReadLimits()
        queue = self._queues.find(topic, queue_id)
        if queue is None:
            return GetResult(GetStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0)
        low, end = queue.min_offset, queue.max_offset
        if end == 0:
            return GetResult(GetStatus.NO_MESSAGE_IN_QUEUE, 0, low, end)
        high = end if log_end is None else queue.end_before(log_end)
        if offset < low:
            return GetResult(GetStatus.OFFSET_TOO_SMALL, low, low, high)
        if high <= offset <= end:
            return GetResult(GetStatus.OFFSET_OVERFLOW_ONE, offset, low, high)
        if offset > end:
            return GetResult(GetStatus.OFFSET_OVERFLOW_BADLY, high, low, high)
        wanted = frozenset(code & _MASK_32 for code in tag_codes) if tag_codes else None
        if joined and isinstance(queue, ConsumeQueue):
            raw = queue.raw(offset, min(limits.messages_max, high - offset))
            neighbours = self._neighbours(raw, limits, wanted)
            if neighbours is not None:
                messages, records = neighbours
                total_bytes = sum(map(len, records))
                return GetResult(
                    GetStatus.FOUND, offset + messages, low, high, records, (), messages, total_bytes
                )
        return self._get_from(queue, offset, limits, wanted, high=high, joined=joined)

    def get_common(
        self, topic: str, queue_id: int, offset: int, limits: ReadLimits, log_end: int | None
    ) -> GetResult | None:
        """As `get` with `joined` and without tags, in half the time, where it finds common records only.

        None for any other result. Raises StoreError if the disk refuses.
        """
        queue = self._queues.find(topic, queue_id)
        if type(queue) is not ConsumeQueue:
            return None
        low = queue.min_offset
        high = queue.max_offset if log_end is None else queue.end_before(log_end)
        if not low <= offset < high:
            return None
        raw = queue.raw(offset, min(limits.messages_max, high - offset))
        found = self._log.common_records(raw, limits.bytes_max)
        if found is None:
            return None
        messages, records = found
        return GetResult(_FOUND, offset + messages, low, high, (records,), (), messages, len(records))

    def _neighbours(
        self, raw: bytes, limits: ReadLimits, wanted: frozenset[int] | None
    ) -> tuple[int, tuple[memoryview, ...]] | None:
        """The number of records that entries of a queue name, and those that follow each other in one view.

        None if one of them does not match, or is not there.
        """
        messages = 0
        records: list[memoryview] = []
        for start, size, count in _stretches(raw, limits.bytes_max, wanted):
            messages += count
            if count == 1:
                view = self.record(start, size)
                if view is None:
                    return None
            else:
                view = self._log.read(start, size)
                if len(view) != size or not is_records(view, start, count=count):
                    return None
            records.append(view)
        return (messages, tuple(records)) if messages else None

    def _get_from(
        self,
        queue: Queue,
        offset: int,
        limits: ReadLimits,
        wanted: frozenset[int] | None,
        *,
        high: int,
        joined: bool,
    ) -> GetResult:
        low = queue.min_offset
        records: list[memoryview] = []
        offsets: list[int] = []
        messages = total_bytes = looked_at = 0
        next_offset = offset
        removed = False
        full = False
        while not full and next_offset < high and looked_at < SCAN_ENTRIES_MAX:
            before = next_offset
            for entry in queue.entries(next_offset, min(_SCAN_CHUNK, SCAN_ENTRIES_MAX - looked_at)):
                if entry.queue_offset >= high:
                    full = True
                    break
                if wanted is None or entry.tags_code & _MASK_32 in wanted:
                    if records and (
                        total_bytes + entry.size > limits.bytes_max
                        or messages + entry.messages > limits.messages_max
                    ):
                        full = True
                        break
                    record = self.record(entry.physical_offset, entry.size)
                    if record is None:
                        removed = True
                    else:
                        records.append(record)
                        offsets.append(entry.queue_offset)
                        messages += entry.messages
                        total_bytes += entry.size
                looked_at += 1
                next_offset = max(next_offset, entry.queue_offset + entry.messages)
                if messages >= limits.messages_max or total_bytes >= limits.bytes_max:
                    full = True
                    break
            if next_offset == before:
                break
        if records:
            status = GetStatus.FOUND
        elif not looked_at:
            status, next_offset = GetStatus.OFFSET_FOUND_NULL, min(queue.roll(offset), high)
        else:
            status = GetStatus.MESSAGE_WAS_REMOVING if removed else GetStatus.NO_MATCHED_MESSAGE
        queue_offsets = () if joined else tuple(offsets)
        return GetResult(status, next_offset, low, high, tuple(records), queue_offsets, messages, total_bytes)

    def record(self, physical_offset: int, size: int) -> memoryview | None:
        """The record that an entry names, checked but for its CRC; None if the log has none such there."""
        if size < RECORD_BYTES_MIN or size > self._log.file_bytes:
            return None
        if size > _DOUBTED_BYTES:
            # Memory may be taken for this size, which a damaged entry has.
            head = self._log.read(physical_offset, RECORD_BYTES_MIN)
            if claimed_bytes(head, 0, len(head)) != size:
                return None
        view = self._log.read(physical_offset, size)
        if len(view) != size or check_record(view, 0, size, physical_offset, check_crc=False) != size:
            return None
        return view

    def min_offset(self, topic: str, queue_id: int) -> int:
        """First queue offset with its message in the log, 0 for an unknown queue."""
        queue = self._queues.find(topic, queue_id)
        return 0 if queue is None else queue.min_offset

    def max_offset(self, topic: str, queue_id: int, *, log_end: int | None = None) -> int:
        """Queue offset after the last message, 0 for an unknown queue; `log_end` as in `get`.

        Raises StoreError, but not without `log_end`.
        """
        queue = self._queues.find(topic, queue_id)
        if queue is None:
            return 0
        return queue.max_offset if log_end is None else queue.end_before(log_end)

    def physical_offset(self, topic: str, queue_id: int, offset: int) -> int | None:
        """Where the log has the message at a queue offset; None if the queue does not know it."""
        queue = self._queues.find(topic, queue_id)
        entry = None if queue is None else queue.entry(offset)
        return None if entry is None else entry.physical_offset

    # -- by physical offset ------------------------------------------------------------------------------

    def record_at(self, physical_offset: int) -> memoryview | None:
        """The record that starts at `physical_offset`, which may be any number; None if none does."""
        head = self._log.read(physical_offset, RECORD_BYTES_MIN)
        if len(head) < RECORD_BYTES_MIN:
            return None
        return self.record(physical_offset, claimed_bytes(head, 0, len(head)))

    # -- by time -----------------------------------------------------------------------------------------

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int, *, upper: bool = False) -> int:
        """First queue offset stored at or after `timestamp_ms`; `max_offset` if none was.

        With `upper` (5.x boundaryType UPPER) the last one stored at or before it; `min_offset` if none was.
        4.9 answers the last message if none is late enough; 5.3 as here
        (docs/protocol/remoting.md#offsets-and-queries). 0 for an unknown queue. Binary search by
        storeTimestamp, between each two steps at which store times go back: no message that was stored in
        time is missed. Messages that lead the clock do not count where later ones show that it was wrong.
        """
        queue = self._queues.find(topic, queue_id)
        if queue is None:
            return 0
        stretches = self._stretches_in_order(queue)
        latest_ms = self._log.now_ms() + LEAD_MS_MAX
        if upper:
            for low, high in reversed(stretches):
                end, _ = self._first_stored(queue, low, high, timestamp_ms + 1)
                last = self._stored_before(queue, end, low)
                if last is not None:
                    return last
            return queue.min_offset
        for low, high in stretches:
            offset, stored_ms = self._first_stored(queue, low, high, timestamp_ms)
            if stored_ms is not None and (stored_ms <= latest_ms or high == queue.max_offset):
                return offset
        return queue.max_offset

    def _stretches_in_order(self, queue: Queue) -> list[tuple[int, int]]:
        """The queue's offsets, cut where store times go back."""
        borders = [queue.min_offset, queue.max_offset]
        borders += [queue.end_before(step.offset) for step in self._time_steps.all]
        return list(pairwise(sorted(set(borders)))) or [(queue.min_offset, queue.max_offset)]

    def _first_stored(self, queue: Queue, low: int, high: int, timestamp_ms: int) -> tuple[int, int | None]:
        """First offset in `[low, high)`, whose store times rise, stored at or after `timestamp_ms`, and when.

        `high` and None if there is none.
        """
        end_offset, at_ms = high, None
        while low < high:
            middle = (low + high) // 2
            found = self._stored(queue, middle, high)
            if found is None:
                high = middle
                continue
            start, end, stored_ms = found
            if stored_ms >= timestamp_ms:
                # There is no readable record between the middle and `start`, so the middle is as late.
                high, at_ms = min(middle, start), stored_ms
            else:
                low = end
        return (end_offset, None) if at_ms is None else (low, at_ms)

    def _stored(self, queue: Queue, offset: int, end: int) -> tuple[int, int, int] | None:
        """(first and end offset, storeTimestamp) of the first readable record that ends after `offset`."""
        while offset < end:
            progress = offset
            for entry in queue.entries(offset, _SCAN_CHUNK):
                if entry.queue_offset >= end:
                    return None
                progress = max(progress, entry.queue_offset + entry.messages)
                record = self.record(entry.physical_offset, entry.size)
                if record is not None and progress > offset:
                    return entry.queue_offset, progress, store_timestamp_ms(record, 0)
            if progress == offset:
                return None
            offset = progress
        return None

    def _stored_before(self, queue: Queue, end: int, first: int) -> int | None:
        """Queue offset of the last readable record that starts before `end`."""
        for offset in range(end - 1, max(first, end - SCAN_ENTRIES_MAX) - 1, -1):
            entry = queue.entry(offset)
            if entry is not None and self.record(entry.physical_offset, entry.size) is not None:
                return entry.queue_offset
        return None

    def store_timestamp(self, topic: str, queue_id: int, offset: int) -> int:
        """storeTimestamp of the message at a queue offset, ms; -1 if it cannot be read."""
        queue = self._queues.find(topic, queue_id)
        entry = None if queue is None else queue.entry(offset)
        record = None if entry is None else self.record(entry.physical_offset, entry.size)
        return -1 if record is None else store_timestamp_ms(record, 0)

    def earliest_store_timestamp(self, topic: str, queue_id: int) -> int:
        """storeTimestamp of the queue's first message, ms; -1 if it has none."""
        return self.store_timestamp(topic, queue_id, self.min_offset(topic, queue_id))

    # -- by key ------------------------------------------------------------------------------------------

    def by_key(
        self,
        topic: str,
        key: str,
        *,
        limit: int = MESSAGES_MAX,
        begin_ms: int = 0,
        end_ms: int = (1 << 63) - 1,
    ) -> tuple[memoryview, ...]:
        """Records of `topic` with this key or UNIQ_KEY, stored in `[begin_ms, end_ms]`, newest first.

        At most `limit`, and never more than 64. Records that only share the key's hash are left out. Raises
        StoreError if the disk refuses.
        """
        if self._index is None:
            return ()
        limit = min(limit, MESSAGES_MAX)
        found: list[memoryview] = []
        if self._time_steps:
            # Files and chains of the index are not in the order of time.
            candidates = self._index.candidates(topic, key)
        else:
            candidates = self._index.candidates(topic, key, begin_ms=begin_ms, end_ms=end_ms)
        for physical_offset in islice(candidates, CANDIDATES_MAX):
            if len(found) >= limit:
                break
            record = self.record_at(physical_offset)
            if (
                record is not None
                and begin_ms <= store_timestamp_ms(record, 0) <= end_ms
                and has_key(record, topic, key)
            ):
                found.append(record)
        return tuple(found)


def _stretches(raw: bytes, bytes_max: int, wanted: frozenset[int] | None) -> list[tuple[int, int, int]]:
    """Start, size and number of messages of the stretches of the log that a read of these entries gives.

    None of them if a message does not match.
    """
    stretches: list[tuple[int, int, int]] = []
    start = end = -1
    messages = before = total_bytes = 0
    for physical_offset, size, code in fields_of(raw):
        if wanted is not None and code & _MASK_32 not in wanted:
            return []
        if messages and total_bytes + size > bytes_max:
            break
        if physical_offset != end:
            if messages:
                stretches.append((start, end - start, messages - before))
            start, before = physical_offset, messages
        end = physical_offset + size
        messages += 1
        total_bytes += size
        if total_bytes >= bytes_max:
            break
    if messages:
        stretches.append((start, end - start, messages - before))
    return stretches


def has_key(record: memoryview, topic: str, key: str) -> bool:
    """Whether a checked record is of `topic` and has `key` among its KEYS or as its UNIQ_KEY."""
    if topic_of(record, 0) != topic.encode("utf-8", "surrogatepass"):
        return False
    try:
        decoded = decode_record(record, check_crc=False)
    except RecordError:
        return False
    assert isinstance(decoded, Record)
    properties = parse_properties(decoded.properties_raw)
    return key == properties.get("UNIQ_KEY") or (key != "" and key in properties.get("KEYS", "").split(" "))
