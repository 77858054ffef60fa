"""The loops that run once for each record that is read: walks, pulls, and what dispatch collects.

Compiled by mypyc where that is possible (`trioha.compiled`). A record is common if it is V1, has IPv4
hosts, is whole and, for dispatch, the next of its queue; `store.record_layout` and `store.record_entries`
handle all others. So these loops never report a fault: they go as far as they can, and stop before the
first record that is not common.

What keeps them fast: locals of type `i64` instead of Python's numbers; `bytes`, which are read without a
call, instead of memoryviews; 64 bits at a time, since conversions of narrower numbers are calls where
nothing is compiled; `BytesWriter` for what is made; constants of this module only, since those of other
modules are looked up by name. Compiled code checks the index of each read in `data`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, final

from librt.strings import BytesWriter, read_i64_be, write_i32_be, write_i64_be
from mypy_extensions import i32, i64

from trioha.compiled import use_compiled

SOURCE_SHA256: Final = ""
"""Of this file; the build sets it in the copy that it compiles."""

MAGIC_V1: Final = 0xDAA320A7
HOSTS_V6: Final = 0x30
TRANSACTION_MASK: Final = 0xC
TRANSACTION_PREPARED: Final = 0x4
TRANSACTION_ROLLBACK: Final = 0xC
CRC_MASK: Final = 0x7FFFFFFF
RECORD_BYTES_MIN: Final = 91
STORE_TIMESTAMP_AT: Final = 56
LEAD_MS_MAX: Final = 3000
"""As in `store.time_steps`."""
BODY_AT: Final = 88
TOPIC_BYTES_MAX: Final = 127
ENTRY_BYTES: Final = 20
"""Of an entry of a consume queue: i64 physical offset, i32 size, i64 tags code."""
KEY_BYTES: Final = 24
"""Of a key in the column that `Columns.collect` makes: i64 hash, physical offset, store timestamp."""
_MASK_32: Final = 0xFFFFFFFF
_SIGN_32: Final = 0x80000000


# -- common records ------------------------------------------------------------------------------------------


def _end_of_common(data: bytes, at: i64, end: i64, shift: i64) -> i64:
    """Index after the common record at `at`, of which `RECORD_BYTES_MIN` bytes are there; -1 for another."""
    word = read_i64_be(data, at)
    record_end: i64 = at + (word >> 32)
    if (
        word & _MASK_32 != MAGIC_V1
        or read_i64_be(data, at + 32) & HOSTS_V6 != 0
        or record_end > end
        or read_i64_be(data, at + 28) != at + shift
    ):
        return -1
    # A negative length is a large number here.
    topic_at: i64 = at + BODY_AT + (read_i64_be(data, at + 80) & _MASK_32)
    if topic_at + 3 > record_end:
        return -1
    topic_bytes: i64 = data[topic_at]
    properties_at: i64 = topic_at + 3 + topic_bytes
    if topic_bytes > TOPIC_BYTES_MAX or properties_at > record_end:
        return -1
    high: i64 = data[properties_at - 2]
    low: i64 = data[properties_at - 1]
    if high > 0x7F or properties_at + (high << 8 | low) != record_end:
        return -1
    return record_end


def _end_of_checked(data: bytes, at: i64, end: i64, shift: i64, crc32: Callable[[bytes], int] | None) -> i64:
    """As `_end_of_common`, with `crc32` also -1 for a body that is not what was stored."""
    record_end = _end_of_common(data, at, end, shift)
    if record_end >= 0 and crc32 is not None:
        body_at: i64 = at + BODY_AT
        checked: i64 = crc32(data[body_at : body_at + (read_i64_be(data, at + 80) & _MASK_32)])
        if checked & CRC_MASK != read_i64_be(data, at + 8) >> 32:
            return -1
    return record_end


def walk_records(data: bytes, shift: i64, crc32: Callable[[bytes], int] | None) -> tuple[int, int, int]:
    """Pass common records from the start of `data` on; the first one must name the offset `shift`.

    With `crc32` bodies are checked, too. Returns the index after them, how many they were, and the index of
    the last one, -1 without any.
    """
    at: i64 = 0
    end: i64 = len(data)
    records: i64 = 0
    last_at: i64 = -1
    while end - at >= RECORD_BYTES_MIN:
        record_end = _end_of_checked(data, at, end, shift, crc32)
        if record_end < 0:
            break
        last_at = at
        records += 1
        at = record_end
    return at, records, last_at


def describe_records(  # noqa: PLR0917 - keywords would cost a call more
    data: bytes, at: i64, shift: i64, topics: set[bytes], topics_max: i64, crc32: Callable[[bytes], int]
) -> tuple[int, int, int, int]:
    """Pass checked common records from `data[at]` on; the one at `at` must name the offset `at + shift`.

    Their topics are added to `topics` until these are more than `topics_max`. Returns the index after them,
    how many they were, and their least and greatest storeTimestamp, zeros without any.
    """
    end: i64 = len(data)
    records: i64 = 0
    least_ms: i64 = 0
    greatest_ms: i64 = 0
    while end - at >= RECORD_BYTES_MIN:
        record_end = _end_of_checked(data, at, end, shift, crc32)
        if record_end < 0:
            break
        time_ms = read_i64_be(data, at + STORE_TIMESTAMP_AT)
        if records == 0:
            least_ms = time_ms
            greatest_ms = time_ms
        least_ms = min(least_ms, time_ms)
        greatest_ms = max(greatest_ms, time_ms)
        if len(topics) <= topics_max:
            topic_at: i64 = at + BODY_AT + 1 + (read_i64_be(data, at + 80) & _MASK_32)
            topic_bytes: i64 = data[topic_at - 1]
            topics.add(data[topic_at : topic_at + topic_bytes])
        records += 1
        at = record_end
    return at, records, least_ms, greatest_ms


# -- records of a pull ---------------------------------------------------------------------------------------


def find_spans(
    entries: bytes, bytes_max: i64, first_offset: i64, end_offset: i64
) -> tuple[list[tuple[int, int]], int]:
    """Where a file has the records that entries of a consume queue name, and how many bytes they have.

    The file has the log's bytes `[first_offset, end_offset)`. (Index, size) of each span of records that
    follow each other. Records are taken while they have at most `bytes_max` bytes in all. None of them if an
    entry is not one of a record of such a length in this file.
    """
    spans: list[tuple[int, int]] = []
    at: i64 = 0
    end: i64 = len(entries)
    total_bytes: i64 = 0
    start: i64 = 0
    stop: i64 = -1
    while end - at >= ENTRY_BYTES and total_bytes < bytes_max:
        offset = read_i64_be(entries, at)
        size = read_i64_be(entries, at + 8) >> 32
        if at > 0 and size > bytes_max - total_bytes:
            break
        if (
            size < RECORD_BYTES_MIN
            or size > bytes_max
            or offset < first_offset
            or offset > end_offset
            or size > end_offset - offset
        ):
            return [], 0
        if offset != stop:
            if at > 0:
                spans.append((int(start - first_offset), int(stop - start)))
            start = offset
            stop = offset
        stop += size
        total_bytes += size
        at += ENTRY_BYTES
    if at > 0:
        spans.append((int(start - first_offset), int(stop - start)))
    return spans, int(total_bytes)


def count_records(data: bytes, entries: bytes) -> int:
    """How many common records `data` is, those of the first entries, one after the other.

    0 if it is anything else. Bodies are not checked.
    """
    at: i64 = 0
    end: i64 = len(data)
    entry: i64 = 0
    entries_end: i64 = len(entries)
    records: i64 = 0
    while at < end:
        if entries_end - entry < ENTRY_BYTES or end - at < RECORD_BYTES_MIN:
            return 0
        size = read_i64_be(entries, entry + 8) >> 32
        if _end_of_common(data, at, end, read_i64_be(entries, entry) - at) != at + size:
            return 0
        at += size
        entry += ENTRY_BYTES
        records += 1
    return int(records)


# -- entries of queues, and keys -----------------------------------------------------------------------------


@final
class _Target:
    """What is to be added to one plain queue."""

    def __init__(self, queue: Any, prefix_hash: i64) -> None:
        self.queue: Any = queue
        self.prefix_hash: i64 = prefix_hash
        """Hash of `topic#`."""
        self.call: i64 = 0
        """Number of the call to `collect` that the following fields belong to."""
        self.next_offset: i64 = 0
        self.max_physical_offset: i64 = -1
        self.entries: BytesWriter | None = None


@final
class _Topic:
    """The plain queues of one topic."""

    def __init__(self, name: bytes) -> None:
        self.name: bytes = name
        self.targets: list[_Target | None] = []
        """By queue id, below `LISTED_QUEUES`; None where no queue is known."""
        self.others: dict[int, _Target] = {}
        """Targets with higher ids: a list would be as long as the highest id, which a producer chooses."""


LISTED_QUEUES: Final = 64


@final
class Columns:
    """Collects queue entries and index keys of common records, for `record_entries.EntryCollector`.

    `collect` moves the entries into the queues' `pending` when it returns; the keys stay here until
    `clear`.
    """

    def __init__(
        self,
        hash_after: Callable[[int, bytes], int],
        *,
        multi_dispatch: bool,
    ) -> None:
        """`hash_after(prefix_hash, key)` hashes keys and tags that are not ASCII; with `multi_dispatch` a
        record with INNER_MULTI_DISPATCH is not common."""
        self._hash_after: Callable[[int, bytes], int] = hash_after
        self._multi_dispatch: bool = multi_dispatch
        self._topics: dict[bytes, _Topic] = {}
        self._topic: _Topic = _Topic(b"")
        """Topic of the last record."""
        self._keys: BytesWriter = BytesWriter()
        self._call: i64 = 0
        self._touched: list[_Target] = []
        self.records: i64 = 0
        """Records that the last call passed."""
        self.next_at: i64 = 0
        """Index after them."""
        self.last_at: i64 = 0
        """Index of the last of them, -1 without any."""
        self.last_store_timestamp_ms: i64 = 0
        """Its storeTimestamp."""
        self.latest_ms: i64 = 0
        """Latest storeTimestamp since the last step of it back, set before and after each call."""

    def add_queue(self, topic: bytes, queue_id: i64, queue: Any, prefix_hash: i64) -> None:
        """Make a queue known whose entries need no more than a record's tags; None if there are keys only."""
        found = self._topics.get(topic)
        if found is None:
            found = _Topic(topic)
            self._topics[topic] = found
        target = _Target(queue, prefix_hash)
        if not 0 <= queue_id < LISTED_QUEUES:
            found.others[int(queue_id)] = target
            return
        while len(found.targets) <= queue_id:
            found.targets.append(None)
        found.targets[queue_id] = target

    def forget_queues(self) -> None:
        """Forget all queues."""
        self._topics.clear()
        self._topic = _Topic(b"")

    def add_key(self, hashed: i64, physical_offset: i64, store_timestamp_ms: i64) -> None:
        """Add a key of a record that is not common."""
        write_i64_be(self._keys, hashed)
        write_i64_be(self._keys, physical_offset)
        write_i64_be(self._keys, store_timestamp_ms)

    def keys(self) -> bytes:
        """The keys collected since the last `clear`, in order, `KEY_BYTES` each."""
        return self._keys.getvalue()

    def clear(self) -> None:
        """Drop the keys."""
        self._keys.truncate(0)

    def collect(self, data: bytes, at: i64, shift: i64, records_max: i64, index_from: i64) -> list[Any]:
        """Collect up to `records_max` common records from `data[at]` on.

        The record at `at` must name the offset `at + shift`. Keys of records before `index_from` are left
        out. Returns the queues that have entries now; `next_at` is where it stopped.
        """
        self._call += 1
        self._touched.clear()
        touched = self._touched
        end: i64 = len(data)
        last_start: i64 = end - RECORD_BYTES_MIN
        records: i64 = 0
        last_at: i64 = -1
        latest_ms: i64 = self.latest_ms
        while records < records_max and at <= last_start:
            record_end = _end_of_common(data, at, end, shift)
            if record_end < 0:
                break
            stored_ms: i64 = read_i64_be(data, at + STORE_TIMESTAMP_AT)
            # A step back is noted by the collector.
            if stored_ms < latest_ms - LEAD_MS_MAX or not self._add(
                data, at, record_end, at + shift, index_from
            ):
                break
            latest_ms = max(latest_ms, stored_ms)
            last_at = at
            records += 1
            at = record_end
        self.records = records
        self.next_at = at
        self.last_at = last_at
        if last_at >= 0:
            self.last_store_timestamp_ms = read_i64_be(data, last_at + STORE_TIMESTAMP_AT)
        self.latest_ms = latest_ms
        queues: list[Any] = []
        for target in touched:
            queue = target.queue
            entries = target.entries
            if entries is not None:
                queue.pending.append(entries.getvalue())
                queue.next_offset = target.next_offset
                target.entries = None
                queues.append(queue)
        touched.clear()
        return queues

    def _find(self, data: bytes, topic_at: i64, topic_bytes: i64, queue_id: i64) -> _Target | None:
        topic = self._topic
        name = topic.name
        if len(name) == topic_bytes:
            index: i64 = 0
            while index < topic_bytes and data[topic_at + index] == name[index]:
                index += 1
            if index < topic_bytes:
                index = -1
        else:
            index = -1
        if index < 0:
            found = self._topics.get(data[topic_at : topic_at + topic_bytes])
            if found is None:
                return None
            topic = self._topic = found
        if 0 <= queue_id < len(topic.targets):
            return topic.targets[queue_id]
        return topic.others.get(int(queue_id))

    def _add(self, data: bytes, at: i64, record_end: i64, physical_offset: i64, index_from: i64) -> bool:
        """Add one common record; False, with nothing added, if it is not common."""
        topic_at: i64 = at + BODY_AT + 1 + (read_i64_be(data, at + 80) & _MASK_32)
        topic_bytes: i64 = data[topic_at - 1]
        target = self._find(data, topic_at, topic_bytes, read_i64_be(data, at + 12) >> 32)
        if target is None:
            return False
        if target.call != self._call:
            queue = target.queue
            if queue is not None:
                target.next_offset = queue.next_offset
                target.max_physical_offset = queue.max_physical_offset
            target.entries = None
            target.call = self._call
        # Where the values of the last TAGS, UNIQ_KEY and KEYS start and end; 0 if there is none.
        tags_at: i64 = 0
        tags_end: i64 = 0
        uniq_at: i64 = 0
        uniq_end: i64 = 0
        keys_at: i64 = 0
        keys_end: i64 = 0
        place: i64 = topic_at + topic_bytes + 2
        while place < record_end:
            stop = place
            while stop < record_end and data[stop] != 2:
                stop += 1
            first: i64 = data[place]
            if first == 84:
                # TAGS
                if _starts(data, place, stop, b"TAGS\x01"):
                    tags_at = place + 5
                    tags_end = stop
            elif first == 75:
                # KEYS
                if _starts(data, place, stop, b"KEYS\x01"):
                    keys_at = place + 5
                    keys_end = stop
            elif first == 85:
                # UNIQ_KEY
                if _starts(data, place, stop, b"UNIQ_KEY\x01"):
                    uniq_at = place + 9
                    uniq_end = stop
            elif (
                first == 73
                and self._multi_dispatch
                and _starts(data, place, stop, b"INNER_MULTI_DISPATCH\x01")
            ):
                return False
            place = stop + 1
        if (
            (tags_at > 0 and tags_at == tags_end)
            or (uniq_at > 0 and uniq_at == uniq_end)
            or (keys_at > 0 and keys_at == keys_end)
        ):
            # An empty value does not count, but an earlier property of the same name may.
            return False
        transaction: i64 = read_i64_be(data, at + 32) & TRANSACTION_MASK
        size: i64 = record_end - at
        if (
            target.queue is not None
            and transaction & TRANSACTION_PREPARED == 0
            and physical_offset + size > target.max_physical_offset
        ):
            # The conditions of `EntryCollector.collect`: the entry follows the queue's last one.
            queue_offset: i64 = read_i64_be(data, at + 20)
            if (
                queue_offset != target.next_offset
                or physical_offset < target.max_physical_offset
                or target.max_physical_offset <= 0
            ):
                return False
            entries = target.entries
            if entries is None:
                entries = target.entries = BytesWriter()
                self._touched.append(target)
            code: i64 = 0
            if tags_at > 0:
                code = self._hash(0, data, tags_at, tags_end)
                if code >= _SIGN_32:
                    code -= 1 << 32
            write_i64_be(entries, physical_offset)
            write_i64_be(entries, size << 32 | (code >> 32) & _MASK_32)
            write_i32_be(entries, i32(code))
            target.next_offset = queue_offset + 1
        if physical_offset >= index_from and transaction != TRANSACTION_ROLLBACK:
            time_ms: i64 = read_i64_be(data, at + 56)
            if uniq_at > 0:
                self.add_key(
                    self._hash(target.prefix_hash, data, uniq_at, uniq_end), physical_offset, time_ms
                )
            while keys_at < keys_end:
                stop = keys_at
                while stop < keys_end and data[stop] != 32:
                    stop += 1
                if stop > keys_at:
                    self.add_key(
                        self._hash(target.prefix_hash, data, keys_at, stop), physical_offset, time_ms
                    )
                keys_at = stop + 1
        return True

    def _hash(self, prefix_hash: i64, data: bytes, at: i64, end: i64) -> i64:
        """`String.hashCode` of a string with that prefix, unsigned."""
        value: i64 = prefix_hash
        for index in range(at, end):
            unit: i64 = data[index]
            if unit >= 0x80:
                return self._hash_after(prefix_hash, data[at:end])
            value = (value * 31 + unit) & _MASK_32
        return value


def _starts(data: bytes, at: i64, end: i64, name: bytes) -> bool:
    """Whether the property at `data[at:end]` has that name, which includes the separator."""
    size: i64 = len(name)
    if end - at < size:
        return False
    for index in range(size):  # noqa: SIM110 - a generator is not compiled to a loop
        if data[at + index] != name[index]:
            return False
    return True


use_compiled(__name__)
