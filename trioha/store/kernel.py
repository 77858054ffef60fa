"""The loops that run once for each record, in the form that mypyc compiles to machine code.

The build (`hatch_build.py`) compiles this file as `trioha.store._kernel`; `store.compiled` imports that
module if it fits this file. Nothing imports this file itself. Where there is no compiled module, or a record
is not the common one (V1, IPv4 hosts, whole, the next of its queue), the plain code of `store.record_layout`,
`store.record_entries` and `store.index_file` does the same work. So these loops never report a fault: they go
as far as they can, and stop before the first record that is not common.

What keeps them fast: locals of type `i64` instead of Python's numbers; `bytes`, which are read without a
call, instead of memoryviews; `BytesWriter` for what is made; constants of this module only, since those of
other modules are looked up by name. Compiled code checks the index of each read in `data`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, final

from librt.strings import (
    BytesWriter,
    read_i16_be,
    read_i32_be,
    read_i64_be,
    write_i16_be,
    write_i32_be,
    write_i64_be,
)
from mypy_extensions import i16, i32, i64

SOURCE_SHA256: Final = ""
"""Of this file; the build sets it in the copy that it compiles."""

MAGIC_V1: Final = 0xDAA320A7 - (1 << 32)
"""As the signed number that is read."""
MAGIC_V2: Final = 0xDAA320AB - (1 << 32)
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
TIME_DIFF_MAX_S: Final = 0x7FFFFFFF
_MASK_32: Final = 0xFFFFFFFF
_SIGN_32: Final = 0x80000000


# -- common records ------------------------------------------------------------------------------------------


def _end_of_common(data: bytes, at: i64, end: i64, shift: i64) -> i64:
    """Index after the common record at `at`, of which `RECORD_BYTES_MIN` bytes are there; -1 for another."""
    record_end: i64 = at + i64(read_i32_be(data, at))
    body_bytes: i64 = i64(read_i32_be(data, at + 84))
    if (
        i64(read_i32_be(data, at + 4)) != MAGIC_V1
        or i64(read_i32_be(data, at + 36)) & HOSTS_V6 != 0
        or record_end > end
        or read_i64_be(data, at + 28) != at + shift
        or body_bytes < 0
    ):
        return -1
    topic_at: i64 = at + BODY_AT + body_bytes
    if topic_at + 3 > record_end:
        return -1
    topic_bytes: i64 = data[topic_at]
    properties_at: i64 = topic_at + 3 + topic_bytes
    if (
        topic_bytes > TOPIC_BYTES_MAX
        or properties_at > record_end
        or properties_at + i64(read_i16_be(data, properties_at - 2)) != record_end
    ):
        return -1
    return record_end


def _end_of_checked(data: bytes, at: i64, end: i64, shift: i64, crc32: Callable[[bytes], int] | None) -> i64:
    """As `_end_of_common`, with `crc32` also -1 for a body that is not what was stored."""
    record_end = _end_of_common(data, at, end, shift)
    if record_end >= 0 and crc32 is not None:
        body_at: i64 = at + BODY_AT
        body = data[body_at : body_at + i64(read_i32_be(data, at + 84))]
        if i64(crc32(body)) & CRC_MASK != i64(read_i32_be(data, at + 8)):
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
            topic_at: i64 = at + BODY_AT + 1 + i64(read_i32_be(data, at + 84))
            topics.add(data[topic_at : topic_at + i64(data[topic_at - 1])])
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
        size = i64(read_i32_be(entries, at + 8))
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
        size = i64(read_i32_be(entries, entry + 8))
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
        self.is_cut: bool = False
        """Whether that call stopped at a record that is not whole in its data."""

    def add_queue(self, topic: bytes, queue_id: i64, queue: Any, prefix_hash: i64) -> None:
        """Make a queue known whose entries need no more than a record's tags."""
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
        """Add a key that the plain code collected."""
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
        self.is_cut = False
        while records < records_max:
            if at > last_start:
                self.is_cut = True
                break
            record_end = _end_of_common(data, at, end, shift)
            if record_end < 0:
                self.is_cut = i64(read_i32_be(data, at)) > end - at
                break
            stored_ms: i64 = read_i64_be(data, at + STORE_TIMESTAMP_AT)
            # A step back is noted by the plain code.
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
        """Add one common record; False if the plain code has to do it, with nothing added."""
        topic_at: i64 = at + BODY_AT + 1 + i64(read_i32_be(data, at + 84))
        topic_bytes: i64 = data[topic_at - 1]
        target = self._find(data, topic_at, topic_bytes, i64(read_i32_be(data, at + 12)))
        if target is None:
            return False
        if target.call != self._call:
            queue = target.queue
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
        transaction: i64 = i64(read_i32_be(data, at + 36)) & TRANSACTION_MASK
        size: i64 = record_end - at
        if transaction & TRANSACTION_PREPARED == 0 and physical_offset + size > target.max_physical_offset:
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
                return i64(self._hash_after(prefix_hash, data[at:end]))
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


# -- index ---------------------------------------------------------------------------------------------------


def index_entries(  # noqa: PLR0917 - keywords would cost a call more
    keys: bytes,
    start: i64,
    end: i64,
    slot_words: memoryview,
    slots: i64,
    number: i64,
    begin_ms: i64,
    first_diff_s: i64,
    little_endian: bool,
) -> tuple[bytes, int]:
    """Entries for `keys[start:end]`, the first of which gets that number; also puts them into the slots.

    `slot_words` are the file's slots as numbers in this machine's byte order, the file's is big-endian.
    Returns the entries as they are in the file, and how many slots were empty before.
    """
    entries = BytesWriter()
    used: i64 = 0
    diff: i64 = first_diff_s
    at: i64 = start
    while at < end:
        value: i64 = read_i64_be(keys, at)
        if value >= _SIGN_32:
            value = ((1 << 32) - value) & 0x7FFFFFFF
        if at > start:
            diff = _time_diff_s(read_i64_be(keys, at + 16), begin_ms)
        slot = value % slots
        before: i64 = slot_words[slot]
        after: i64 = number
        if little_endian:
            before = _swapped(before)
            after = _swapped(after)
        slot_words[slot] = after
        if before >= number:
            # Damage: a chain leads to earlier entries only.
            before = 0
        if before == 0:
            used += 1
        write_i32_be(entries, i32(value))
        write_i64_be(entries, read_i64_be(keys, at + 8))
        write_i64_be(entries, diff << 32 | before)
        number += 1
        at += KEY_BYTES
    return entries.getvalue(), used


def _time_diff_s(store_timestamp_ms: i64, begin_ms: i64) -> i64:
    if begin_ms <= 0 or store_timestamp_ms <= begin_ms:
        return 0
    return min((store_timestamp_ms - begin_ms) // 1000, TIME_DIFF_MAX_S)


def _swapped(word: i64) -> i64:
    """The 32-bit number with its bytes in the other order."""
    return (word & 0xFF) << 24 | (word & 0xFF00) << 8 | (word >> 8) & 0xFF00 | (word >> 24) & 0xFF


# -- runs of sends, and batches ------------------------------------------------------------------------------

SEND_BYTES: Final = 72
"""Of one send in the columns of a run, see `remoting.kernel`."""
ITEM_BYTES_MIN: Final = 22
ITEM_BODY_AT: Final = 20
"""In a message of a batch, see `remoting.message_batch`."""


@final
class Batch:
    """The messages of a batch as a run of sends, as `read_batch` found them."""

    def __init__(self) -> None:
        self.count: i64 = 0
        self.columns: bytes = b""
        self.properties: bytes = b""
        """Those of all messages, one after the other."""
        self.body_bytes: i64 = 0
        """Of all bodies."""
        self.body_bytes_max: i64 = 0
        """Of the longest body."""
        self.properties_bytes_max: i64 = 0
        """Of the longest properties."""


def read_batch(data: bytes, queue_id: i64, sys_flag: i64, born_ms: i64, reconsume_times: i64) -> Batch:
    """The messages of a batch, with the fields that they share; none if `data` is not a batch."""
    found = Batch()
    columns = BytesWriter()
    properties = BytesWriter()
    properties_bytes: i64 = 0
    at: i64 = 0
    end: i64 = len(data)
    count: i64 = 0
    while at < end:
        if end - at < ITEM_BYTES_MIN:
            return Batch()
        body_at: i64 = at + ITEM_BODY_AT
        body_bytes: i64 = i64(read_i32_be(data, at + 16))
        if body_bytes < 0 or body_bytes > end - at - ITEM_BYTES_MIN:
            return Batch()
        body_end: i64 = body_at + body_bytes
        own_bytes: i64 = i64(read_i16_be(data, body_end))
        item_end: i64 = body_end + 2 + own_bytes
        if own_bytes < 0 or item_end > end or item_end - at != i64(read_i32_be(data, at)):
            return Batch()
        properties.write(data[body_end + 2 : item_end])
        properties_bytes += own_bytes
        write_i64_be(columns, 0)
        write_i64_be(columns, queue_id)
        write_i64_be(columns, sys_flag)
        write_i64_be(columns, i64(read_i32_be(data, at + 12)))
        write_i64_be(columns, born_ms)
        write_i64_be(columns, reconsume_times)
        write_i64_be(columns, body_at)
        write_i64_be(columns, body_end)
        write_i64_be(columns, properties_bytes)
        found.body_bytes += body_bytes
        found.body_bytes_max = max(found.body_bytes_max, body_bytes)
        found.properties_bytes_max = max(found.properties_bytes_max, own_bytes)
        count += 1
        at = item_end
    found.count = count
    found.columns = columns.getvalue()
    found.properties = properties.getvalue()
    return found


def encode_run(  # noqa: PLR0917 - keywords would cost a call more
    data: bytes,
    columns: bytes,
    properties: bytes,
    topic: bytes,
    record_bytes: i64,
    physical_offset: i64,
    next_offsets: dict[int, int],
    born_host: bytes,
    stored: bytes,
    crc32: Callable[[bytes], int],
) -> tuple[bytes, bytes]:
    """The records of a run of sends, and for each its physical offset and its queue offset, as i64.

    Bodies are in `data`. `topic` has its length before it, `record_bytes` are those of a record without body
    and properties, `stored` is store timestamp and store host. `next_offsets` has the next offset of each
    queue id of the run, and is changed.
    """
    records = BytesWriter()
    places = BytesWriter()
    at: i64 = 0
    end: i64 = len(columns)
    properties_at: i64 = 0
    while at < end:
        queue_id: i64 = read_i64_be(columns, at + 8)
        body = data[read_i64_be(columns, at + 48) : read_i64_be(columns, at + 56)]
        properties_end: i64 = read_i64_be(columns, at + 64)
        body_bytes: i64 = len(body)
        size: i64 = record_bytes + body_bytes + properties_end - properties_at
        boxed = int(queue_id)
        queue_offset: i64 = next_offsets[boxed]
        next_offsets[boxed] = int(queue_offset + 1)
        write_i32_be(records, i32(size))
        write_i32_be(records, i32(MAGIC_V1))
        write_i32_be(records, i32(i64(crc32(body)) & CRC_MASK))
        write_i32_be(records, i32(queue_id))
        write_i32_be(records, i32(read_i64_be(columns, at + 24)))
        write_i64_be(records, queue_offset)
        write_i64_be(records, physical_offset)
        write_i32_be(records, i32(read_i64_be(columns, at + 16)))
        write_i64_be(records, read_i64_be(columns, at + 32))
        records.write(born_host)
        records.write(stored)
        write_i32_be(records, i32(read_i64_be(columns, at + 40)))
        write_i64_be(records, 0)
        write_i32_be(records, i32(body_bytes))
        records.write(body)
        records.write(topic)
        write_i16_be(records, i16(properties_end - properties_at))
        records.write(properties[properties_at:properties_end])
        write_i64_be(places, physical_offset)
        write_i64_be(places, queue_offset)
        physical_offset += size
        properties_at = properties_end
        at += SEND_BYTES
    return records.getvalue(), places.getvalue()
