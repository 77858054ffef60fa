"""The commit log: bytes `[min_offset, max_offset)` in files of one size.

See docs/protocol/store.md#files, docs/protocol/store.md#records.

Theory of operation. The log is synchronous and has a single writer, the trio thread; it needs no locks and
never awaits. Appends move `appended`, flushes move `flushed`; all other parts of the node wait for these
watermarks. A record's first eight bytes (length and magic) are written after all others, so a process that is
killed in the middle of an append leaves no bytes that could be mistaken for a record.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from struct import Struct
from typing import Final

import structlog
from isal.isal_zlib import crc32

from trioha.errors import StoreError
from trioha.store import compiled
from trioha.store.batch_records import batch_record_sizes, common_sizes, encode_batch
from trioha.store.callbacks import Callbacks
from trioha.store.consume_queues import QUEUES_MAX
from trioha.store.disk_refusals import DiskRefusals
from trioha.store.landmarks import Landmarks
from trioha.store.log_files import LogFiles
from trioha.store.mapped_file import MappedFile
from trioha.store.message_offsets import INNER_BATCH, MessageOffsets, MultiDispatch, assign_offsets
from trioha.store.message_properties import PROPERTIES_BYTES_MAX
from trioha.store.messages import AppendResult, EncodedSends, Message, MessageBatch
from trioha.store.put_limits import (
    RECORD_OVERHEAD_BYTES_MAX,
    encoded_topic,
    message_refusal,
    queues_refusal,
)
from trioha.store.put_status import PutStatus
from trioha.store.read_faults import ReadFaults
from trioha.store.record import Host
from trioha.store.record_layout import (
    BLANK,
    BLANK_BYTES,
    BORN_HOST_V6,
    CRC_MASK,
    HOSTS_V6,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_BYTES_MIN,
    STORE_HOST_V6,
    TRANSACTION_MASK,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
    claimed_bytes,
    record_around,
    starts_blank,
    store_timestamp_ms,
)
from trioha.store.syncing import SyncWork
from trioha.store.time_steps import leads
from trioha.store.topics import SCHEDULE_TOPIC
from trioha.watermark import Watermark

log = structlog.get_logger(__name__)

_COMMIT = BLANK
"""totalSize and magic: what makes a record of the bytes after them."""
_COMMIT_BYTES = _COMMIT.size
_FIXED_V4 = Struct(">iiiqqiq8sq8siqi")
"""bodyCRC to the body's length, the hosts packed, both IPv4."""
_BEFORE_HOSTS = Struct(">iiiqqiq")
_I64 = Struct(">q")
_PLACE = Struct(">qq")
"""Physical offset and queue offset."""
_BEFORE_BODY = Struct(">iqi")
_I16 = Struct(">h")
_NOT_QUEUED = frozenset((TRANSACTION_PREPARED, TRANSACTION_ROLLBACK))
_RECORD_BYTES_LESS_HOSTS = RECORD_BYTES_MIN - 16
_HOST_V4_BYTES = 8
NO_BYTES = memoryview(b"")
_WALK_BYTES = 256 * 1024
"""Read at a time where records are looked for one after the other."""
MAPPED_BYTES: Final = 16 << 20
"""So far before the log's end bytes are read from the map: slaves that follow, and consumers in step, need
these only. They have just been written, so they are in memory."""
PWRITE_BYTES_MIN = 6 * 1024
"""From here on the system call is cheaper than storing into the map (docs/where-time-goes.md#a-send)."""


class CommitLog:
    """The log in one directory. Make it with `store.recovery.open_commit_log`, which finds its end."""

    def __init__(
        self,
        directory: Path,
        *,
        file_bytes: int,
        message_bytes_max: int,
        store_host: Host,
        files: list[MappedFile] | None = None,
    ) -> None:
        self.file_bytes = file_bytes
        self.message_bytes_max = message_bytes_max
        self.store_host = store_host
        self._store_host_packed = store_host.packed
        self._files = LogFiles(directory, file_bytes=file_bytes, files=files or [])
        self.queue_offsets: dict[tuple[str, int], int] = {}
        """Next queue offset of each topic and queue that has messages."""
        self.queues_max = QUEUES_MAX
        """Queues that puts may make: one that would add to so many is refused, not stored and never seen."""
        self.multi_dispatch = MultiDispatch()
        """Whether messages get offsets of other queues, too."""
        self.last_store_timestamp_ms = 0
        """storeTimestamp of the newest record, 0 for an empty log. After a record of the schedule topic it
        may be up to `LEAD_MS_MAX` later than that, see `_stamp_ms`."""
        self._landmarks = Landmarks()
        self._on_restart: Callbacks[[]] = Callbacks()
        self._on_cut: Callbacks[[int]] = Callbacks()
        self.before_restart: Callbacks[[]] = Callbacks()
        """Called before the log begins anew, to delete its queues and index. They are deleted first: after a
        kill in between they can be built again, but old ones could not be distinguished from those of the
        new log."""
        self._disk_refusals = DiskRefusals()
        self.disk_is_full = False
        """Whether puts are refused for want of space; replication is not."""
        self.puts_blocked = False
        """Whether puts are refused because `queue_offsets` is not known yet; replication is not."""
        self._refused: tuple[MappedFile, int, int] | None = None
        """File, index and number of bytes that the disk has refused, and may hold in part."""
        self.appended = Watermark(self.min_offset)
        """End of the log: everything before it is whole records. Moved by appends only."""
        self.flushed = Watermark(self.min_offset)
        """Everything before it is on disk. Moved by the flush task; never beyond `appended`."""

    def set_store_host(self, store_host: Host) -> None:
        """Name `store_host` in all records from now on: a broker on any free port knows its port late."""
        self.store_host = store_host
        self._store_host_packed = store_host.packed

    def on_restart(self, callback: Callable[[], None]) -> None:
        """Call `callback` whenever the log begins anew, before any byte of the new log is there.

        For parts that hold offsets of the old log and do not wait for a watermark: a wait ends by itself. A
        bound method is called as long as others keep its object.
        """
        self._on_restart.add(callback)

    def on_cut(self, callback: Callable[[int], None]) -> None:
        """Call `callback` with the log's new end before each cut, as `on_restart`'s."""
        self._on_cut.add(callback)

    # -- where the log is ------------------------------------------------------------------------------

    @property
    def directory(self) -> Path:
        """Where the files are."""
        return self._files.directory

    @property
    def min_offset(self) -> int:
        """Offset of the first byte that is there."""
        return self._files.start_offset

    @property
    def max_offset(self) -> int:
        """Offset of the first free byte."""
        return self.appended.offset

    @property
    def is_empty(self) -> bool:
        """Whether the log holds no byte."""
        return self.max_offset == self.min_offset

    @property
    def files(self) -> tuple[MappedFile, ...]:
        """The log's files, oldest first."""
        return tuple(self._files.files)

    @property
    def read_faults(self) -> ReadFaults:
        """Bytes that the disk did not give."""
        return self._files.read_faults

    @property
    def next_file_offset(self) -> int:
        """Where the file after the last one starts."""
        return self._files.end_offset

    def read(self, offset: int, limit_bytes: int) -> memoryview:
        """Up to `limit_bytes` from `offset` on, never across a file's end.

        Without copying near the log's end, from where the file is mapped; what was synced long ago is read by
        a call, into memory of its own. Empty if `offset` is the log's end or outside of the log. Raises
        StoreError if the disk does not give the bytes.
        """
        max_offset = self.appended.offset
        files = self._files
        if not files.start_offset <= offset < max_offset:
            return NO_BYTES
        file = files.file_of(offset)
        at = offset - file.start_offset
        end = min(at + limit_bytes, file.size, max_offset - file.start_offset)
        if max_offset - offset <= MAPPED_BYTES and file.is_held:
            return file.view[at:end]
        return files.read(file, at, end)

    def common_records(self, entries: bytes, bytes_max: int) -> tuple[int, tuple[memoryview, ...]] | None:
        """The records that entries of a consume queue name: their number, and views of them, as of `read`.

        Records that follow each other in the log are in one view. They are checked but for their bodies, and
        taken while they have at most `bytes_max` bytes in all; the first one always is. None unless all are
        common and in the file of the first one, and the disk gives them. Those that are read by calls are in
        one view. For compiled code only.
        """
        offset = int.from_bytes(entries[:8], "big", signed=True)
        max_offset = self.appended.offset
        files = self._files
        if not files.start_offset <= offset < max_offset:
            return None
        file = files.file_of(offset)
        start, view = file.start_offset, file.view
        end = min(file.size, max_offset - start)
        if max_offset - offset > MAPPED_BYTES or not file.is_held:
            read = files.read_records(file, entries, bytes_max, end_offset=start + end)
            return None if read is None else (read[0], (read[1],))
        found = compiled.records.find_records(entries, bytes_max, view, end, start)
        if found is None:
            return None
        records, stretches = found
        return records, tuple([view[at:end] for at, end in stretches])

    # -- appending messages ----------------------------------------------------------------------------

    @property
    def put_refusal(self) -> str:
        """Why the disk keeps puts from being stored; empty if it does not."""
        if self.disk_is_full:
            return f"{self.directory}: the disk is full"
        return self._disk_refusals.current

    @staticmethod
    def now_ms() -> int:
        """The clock that stamps records, ms since 1970."""
        return time.time_ns() // 1_000_000

    @property
    def lead_ms(self) -> int:
        """By how much the newest record's store time leads the clock; 0 if by `LEAD_MS_MAX` at most."""
        now_ms = self.now_ms()
        return self.last_store_timestamp_ms - now_ms if leads(self.last_store_timestamp_ms, now_ms) else 0

    def _stamp_ms(self, topic: str) -> int:
        """The store time of the next record, or of the records of one append.

        It is the clock's, as with RocketMQ. Only where that was set back by `LEAD_MS_MAX` at most the time of
        the newest record is kept until the clock is there, so that small corrections keep the log in order. A
        delayed message is due so long after its store time, so its own is always the clock's.
        """
        now_ms = self.now_ms()
        last_ms = self.last_store_timestamp_ms
        if now_ms >= last_ms or leads(last_ms, now_ms):
            self.last_store_timestamp_ms = now_ms
            return now_ms
        return now_ms if topic == SCHEDULE_TOPIC else last_ms

    def append(self, message: Message) -> AppendResult:
        """Store one message at the end of the log and assign its offsets (docs/protocol/store.md#records).

        A message that no file could ever hold is refused as MESSAGE_ILLEGAL: RocketMQ answers PUT_OK to it
        and stores nothing (docs/protocol/store.md#ends-of-files). Two more are refused because clients would
        never get them: one whose topic no consume queue can be made for, and one for a queue too many, as
        SERVICE_NOT_AVAILABLE.
        """
        topic, version_2, topic_is_legal = encoded_topic(message.topic)
        if topic_is_legal and not version_2 and compiled.IS_COMPILED and compiled.CHECKS_CRC:
            appended = self._append_common(message, topic)
            if appended is not None:
                return appended
        body = message.body
        properties = message.properties
        offsets = None
        if b"INNER_" in properties or message.sys_flag & INNER_BATCH:
            offsets = assign_offsets(
                properties,
                topic=message.topic,
                queue_id=message.queue_id,
                sys_flag=message.sys_flag,
                queue_offsets=self.queue_offsets,
                multi=self.multi_dispatch,
            )
            if offsets is None:
                return AppendResult(
                    PutStatus.MESSAGE_ILLEGAL,
                    reason="INNER_NUM is not the number of messages of an inner batch",
                )
            properties = offsets.properties
        born_host_packed = message.born_host.packed
        store_host_packed = self._store_host_packed
        body_bytes = len(body)
        hosts_bytes = len(born_host_packed) + len(store_host_packed)
        sys_flag = message.sys_flag & ~HOSTS_V6
        queued = sys_flag & TRANSACTION_MASK not in _NOT_QUEUED
        key = (message.topic, message.queue_id)
        queue_offset = self.queue_offsets.get(key, -1) if queued else 0
        # The topic comes with its length, of which one byte is counted already.
        size = _RECORD_BYTES_LESS_HOSTS - 1 + hosts_bytes + body_bytes + len(topic) + len(properties)
        # One chain of comparisons, since it stands in the way of every message; which one holds is found out
        # afterwards.
        if (
            self.disk_is_full
            or self.puts_blocked
            or body_bytes > self.message_bytes_max
            or len(properties) > PROPERTIES_BYTES_MAX
            or not topic_is_legal
            or size > self.message_bytes_max + RECORD_OVERHEAD_BYTES_MAX
            or size + BLANK_BYTES > self.file_bytes
            or (queue_offset < 0 and len(self.queue_offsets) >= self.queues_max)
            or (offsets is not None and offsets.other_queues)
        ) and (refusal := self._refusal(message, offsets, properties_bytes=len(properties), size=size)):
            return refusal
        try:
            file, at = self._room_for(size)
        except StoreError as error:
            return self._disk_refusals.refuse(error)
        physical_offset = file.start_offset + at
        queue_offset = max(queue_offset, 0)
        store_timestamp_ms = self._stamp_ms(message.topic)
        if hosts_bytes == 2 * _HOST_V4_BYTES:
            fixed = _FIXED_V4.pack(
                crc32(body) & CRC_MASK,
                message.queue_id,
                message.flag,
                queue_offset,
                physical_offset,
                sys_flag,
                message.born_timestamp_ms,
                born_host_packed,
                store_timestamp_ms,
                store_host_packed,
                message.reconsume_times,
                message.prepared_transaction_offset,
                body_bytes,
            )
        else:
            if message.born_host.is_ipv6:
                sys_flag |= BORN_HOST_V6
            if self.store_host.is_ipv6:
                sys_flag |= STORE_HOST_V6
            fixed = b"".join(
                (
                    _BEFORE_HOSTS.pack(
                        crc32(body) & CRC_MASK,
                        message.queue_id,
                        message.flag,
                        queue_offset,
                        physical_offset,
                        sys_flag,
                        message.born_timestamp_ms,
                    ),
                    born_host_packed,
                    _I64.pack(store_timestamp_ms),
                    store_host_packed,
                    _BEFORE_BODY.pack(
                        message.reconsume_times, message.prepared_transaction_offset, body_bytes
                    ),
                )
            )
        view = file.view
        data = b"".join((fixed, body, topic, _I16.pack(len(properties)), properties))
        if size < PWRITE_BYTES_MIN:
            view[at + _COMMIT_BYTES : at + size] = data
        else:
            try:
                self._write(file, at + _COMMIT_BYTES, memoryview(data))
            except StoreError as error:
                return self._disk_refusals.refuse(error)
        _COMMIT.pack_into(view, at, size, MAGIC_V2 if version_2 else MAGIC_V1)
        self._landmarks.add(physical_offset)
        if queued:
            self.queue_offsets[key] = queue_offset + (1 if offsets is None else offsets.messages)
            if offsets is not None:
                for other in offsets.other_queues:
                    self.queue_offsets[other] = self.queue_offsets.get(other, 0) + 1
        self.appended.advance(physical_offset + size)
        return AppendResult(
            PutStatus.PUT_OK, physical_offset, size, queue_offset, store_timestamp_ms, store_host_packed
        )

    def _append_common(self, message: Message, topic: bytes) -> AppendResult | None:
        """Store a common message in a queue that has messages, by one call of compiled code.

        None, with nothing stored, where `append` has to look at it. `topic` has its length before it.
        """
        appended = self.appended
        physical_offset = appended.offset
        queue_offsets = self.queue_offsets
        key = (message.topic, message.queue_id)
        queue_offset = queue_offsets.get(key)
        files = self._files.files
        if (
            queue_offset is None
            or not files
            or self.disk_is_full
            or self.puts_blocked
            or self._refused is not None
        ):
            return None
        file = files[-1]
        store_timestamp_ms = self._stamp_ms(message.topic)
        store_host_packed = self._store_host_packed
        size = compiled.records.write_record(
            file.view,
            physical_offset - file.start_offset,
            topic,
            message,
            self.message_bytes_max,
            queue_offset,
            physical_offset,
            store_timestamp_ms,
            store_host_packed,
        )
        if not size:
            return None
        self._landmarks.add(physical_offset)
        queue_offsets[key] = queue_offset + 1
        appended.advance(physical_offset + size)
        return AppendResult(
            PutStatus.PUT_OK, physical_offset, size, queue_offset, store_timestamp_ms, store_host_packed
        )

    def append_batch(self, batch: MessageBatch) -> AppendResult:
        """Store the messages of a batch one after the other, or none of them.

        See docs/protocol/store.md#ends-of-files, docs/protocol/store.md#batches.

        All records stand in one file. A process that is killed in the middle leaves none of them.
        """
        topic, version_2, topic_is_legal = encoded_topic(batch.topic)
        store_host = self.store_host
        sizes = common_sizes(batch, topic=topic, store_host=store_host, body_bytes_max=self.message_bytes_max)
        suspects = []
        if not sizes:
            sizes = batch_record_sizes(batch, topic=topic, store_host=store_host)
            suspects = self._suspects(batch)
        size = sum(sizes)
        if refusal := self._batch_refusal(
            batch, sizes, suspects=suspects, size=size, topic_is_legal=topic_is_legal
        ):
            return refusal
        try:
            file, at = self._room_for(size)
        except StoreError as error:
            return self._disk_refusals.refuse(error)
        key = (batch.topic, batch.queue_id)
        physical_offset = file.start_offset + at
        queue_offset = self.queue_offsets.get(key, 0)
        store_timestamp_ms = self._stamp_ms(batch.topic)
        data = encode_batch(
            batch,
            sizes,
            topic=topic,
            version_2=version_2,
            physical_offset=physical_offset,
            queue_offset=queue_offset,
            store_timestamp_ms=store_timestamp_ms,
            store_host=self.store_host,
        )
        written = memoryview(data)
        try:
            self._write_behind_commit(file, at, written)
        except StoreError as error:
            return self._disk_refusals.refuse(error)
        file.view[at : at + _COMMIT_BYTES] = written[:_COMMIT_BYTES]
        offsets = list(accumulate(sizes[:-1], initial=physical_offset))
        self._landmarks.add_all(offsets)
        self.queue_offsets[key] = queue_offset + len(sizes)
        self.appended.advance(physical_offset + size)
        return AppendResult(
            PutStatus.PUT_OK,
            physical_offset,
            size,
            queue_offset,
            store_timestamp_ms,
            self._store_host_packed,
            batch_offsets=offsets,
        )

    def append_sends(self, sends: EncodedSends, data: bytes, *, born_host: Host) -> AppendResult | None:
        """Store sends that came together, with bodies in `data`, as `append` does each, by the kernel.

        None, with nothing stored, where `append` has to look at each: it may refuse one, or end the file. The
        records share a store timestamp, and their `batch_offsets` are where they start.
        """
        topic, version_2, topic_is_legal = encoded_topic(sends.topic)
        host_bytes = len(born_host.packed) + len(self._store_host_packed)
        record_bytes = RECORD_BYTES_MIN - 1 + len(topic)
        size = sends.count * record_bytes + sends.body_bytes + len(sends.properties)
        files = self._files.files
        file = files[-1] if files else None
        physical_offset = self.appended.offset
        if (
            version_2
            or not topic_is_legal
            or host_bytes != 2 * _HOST_V4_BYTES
            or self.disk_is_full
            or self.puts_blocked
            or self._refused is not None
            or sends.body_bytes_max > self.message_bytes_max
            or sends.properties_bytes_max > PROPERTIES_BYTES_MAX
            or len(self.queue_offsets) + len(sends.queue_ids) > self.queues_max
            or file is None
            or size + BLANK_BYTES > file.end_offset - physical_offset
        ):
            return None
        queue_offsets = self.queue_offsets
        next_offsets = {
            queue_id: queue_offsets.get((sends.topic, queue_id), 0) for queue_id in sends.queue_ids
        }
        store_timestamp_ms = self._stamp_ms(sends.topic)
        records, places = compiled.kernel.encode_sends(
            data,
            sends.columns,
            sends.properties,
            topic,
            record_bytes,
            physical_offset,
            next_offsets,
            born_host.packed,
            _I64.pack(store_timestamp_ms) + self._store_host_packed,
            crc32,
        )
        at = physical_offset - file.start_offset
        written = memoryview(records)
        try:
            self._write_behind_commit(file, at, written)
        except StoreError:
            # The next append clears what was written of it, or is refused as well.
            return None
        file.view[at : at + _COMMIT_BYTES] = written[:_COMMIT_BYTES]
        offsets = [start for start, _ in _PLACE.iter_unpack(places)]
        self._landmarks.add_all(offsets)
        for queue_id, queue_offset in next_offsets.items():
            queue_offsets[sends.topic, queue_id] = queue_offset
        self.appended.advance(physical_offset + size)
        return AppendResult(
            PutStatus.PUT_OK,
            physical_offset,
            size,
            store_timestamp_ms=store_timestamp_ms,
            store_host_packed=self._store_host_packed,
            batch_offsets=offsets,
            places=places,
        )

    def _suspects(self, batch: MessageBatch) -> list[int]:
        """Numbers of the messages of a batch that may be refused for themselves."""
        return [
            number
            for number, item in enumerate(batch.items)
            if len(item.body) > self.message_bytes_max
            or len(item.properties) > PROPERTIES_BYTES_MAX
            or b"INNER_" in item.properties
        ]

    def _batch_refusal(
        self,
        batch: MessageBatch,
        sizes: list[int],
        *,
        suspects: list[int],
        size: int,
        topic_is_legal: bool,
    ) -> AppendResult | None:
        """Why a batch whose records have these sizes, `size` in all, is not stored; None if it can be."""
        is_new_queue = (batch.topic, batch.queue_id) not in self.queue_offsets
        if (
            not suspects
            and not (self.disk_is_full or self.puts_blocked)
            and topic_is_legal
            and not (is_new_queue and len(self.queue_offsets) >= self.queues_max)
            and size <= self.message_bytes_max + RECORD_OVERHEAD_BYTES_MAX
            and size + BLANK_BYTES <= self.file_bytes
        ):
            return None
        for number in suspects or (0,):
            item = batch.items[number]
            message = Message(batch.topic, batch.queue_id, item.body, item.properties)
            refusal = self._refusal(message, None, properties_bytes=len(item.properties), size=sizes[number])
            if refusal is not None:
                return AppendResult(refusal.status, reason=f"message {number} of the batch: {refusal.reason}")
        if suspects:
            reason = f"message {suspects[0]} of the batch has INNER_ properties, which only the log writes"
        elif size + BLANK_BYTES > self.file_bytes:
            reason = f"a batch of {size} bytes never fits a log file of {self.file_bytes} bytes"
        else:
            reason = f"a batch of {size} bytes is longer than maxMessageSize allows"
        return AppendResult(PutStatus.MESSAGE_ILLEGAL, reason=reason)

    def _refusal(
        self, message: Message, offsets: MessageOffsets | None, *, properties_bytes: int, size: int
    ) -> AppendResult | None:
        """Why a message that would be `size` bytes is not stored now; None if nothing speaks against it."""
        if self.disk_is_full:
            return AppendResult(PutStatus.SERVICE_NOT_AVAILABLE, reason="the disk is full")
        if self.puts_blocked:
            return AppendResult(
                PutStatus.SERVICE_NOT_AVAILABLE, reason="consume queues are not at the log's end yet"
            )
        return message_refusal(
            message,
            properties_bytes=properties_bytes,
            size=size,
            message_bytes_max=self.message_bytes_max,
            file_bytes=self.file_bytes,
        ) or queues_refusal(
            (message.topic, message.queue_id),
            offsets.other_queues if offsets is not None else (),
            queue_offsets=self.queue_offsets,
            queues_max=self.queues_max,
        )

    def _room_for(self, size: int) -> tuple[MappedFile, int]:
        """File and index where a record of `size` bytes goes; a file it does not fit is ended.

        At least eight bytes always end a full file (docs/protocol/store.md#ends-of-files). Raises StoreError
        if no file can be made, with nothing changed, or if the disk does not clear what it has refused.
        """
        if self._refused is not None:
            self._clear_refused()
        max_offset = self.appended.offset
        files = self._files.files
        file = files[-1] if files else None
        at = 0 if file is None else max_offset - file.start_offset
        if file is None or at == file.size:
            return self._files.add(max_offset), 0
        left = file.size - at
        if size + BLANK_BYTES <= left:
            return file, at
        following = self._files.add(file.end_offset)
        BLANK.pack_into(file.view, at, left, MAGIC_BLANK)
        # Whatever becomes of the record: the next one goes where the files end.
        self.appended.advance(file.end_offset)
        return following, 0

    # -- appending a master's bytes ----------------------------------------------------------------------

    def append_records(
        self, data: memoryview, *, first: memoryview = NO_BYTES, last_store_timestamp_ms: int
    ) -> None:
        """Append whole, checked records as they are, those in `first` before those in `data`.

        For a replica; `first` is a record that it put together from several frames. The records must not
        cross a file's end. Raises StoreError if a file is needed and cannot be made, or the disk refuses the
        bytes; the log is as it was then.
        """
        max_offset = self.appended.offset
        file = self._last_file()
        at = max_offset - file.start_offset
        size = len(first) + len(data)
        assert size <= file.size - at, f"{size} bytes at {max_offset} cross the end of {file.path.name}"
        if not first:
            first, data = data, NO_BYTES
        self._write_behind_commit(file, at, first, data)
        file.view[at : at + _COMMIT_BYTES] = first[:_COMMIT_BYTES]
        self.note_record(max_offset)
        self.last_store_timestamp_ms = last_store_timestamp_ms
        self.appended.advance(max_offset + size)

    def _write_behind_commit(
        self, file: MappedFile, at: int, first: memoryview, rest: memoryview = NO_BYTES
    ) -> None:
        """Write `first` and then `rest` at index `at`, but for the bytes by which they count as stored.

        Raises StoreError if the disk refuses them; the log is as it was then.
        """
        size = len(first) + len(rest)
        if size < PWRITE_BYTES_MIN:
            view = file.view
            view[at + len(first) : at + size] = rest
            view[at + _COMMIT_BYTES : at + len(first)] = first[_COMMIT_BYTES:]
        else:
            self._write(file, at + _COMMIT_BYTES, first[_COMMIT_BYTES:], rest)

    def _write(self, file: MappedFile, at: int, *chunks: memoryview) -> None:
        """Write `chunks` beyond the log's end by the system call.

        Raises StoreError if the disk refuses them; what it has written of them is cleared before anything
        else is appended.
        """
        try:
            file.write(at, *chunks)
        except StoreError:
            self._refused = file, at, sum(map(len, chunks))
            raise

    def _clear_refused(self) -> None:
        """Clear what the disk may have written of bytes that it refused. Raises StoreError if it refuses.

        Another record in the place of the first one would bring back those after it.
        """
        assert self._refused is not None
        file, at, size = self._refused
        file.write(at, memoryview(bytes(size)))
        self._refused = None

    def write_filler(self, offset: int, data: memoryview) -> None:
        """Write bytes that follow a blank's header; `append_blank` writes that when they are all there."""
        max_offset = self.appended.offset
        file = self._last_file()
        assert max_offset + BLANK_BYTES <= offset <= offset + len(data) <= file.end_offset
        self._write(file, offset - file.start_offset, data)

    def append_blank(self, header: bytes) -> None:
        """End the current file with a blank, whose filler is there already."""
        file = self._last_file()
        at = self.appended.offset - file.start_offset
        file.view[at : at + BLANK_BYTES] = header
        self.appended.advance(file.end_offset)

    def _last_file(self) -> MappedFile:
        """The file for the next byte, made if needed. Raises StoreError, also while the disk does not clear
        what it has refused."""
        if self._refused is not None:
            self._clear_refused()
        max_offset = self.appended.offset
        return self._files.last_with(max_offset) or self._files.add(max_offset)

    # -- where records start -------------------------------------------------------------------------------

    def note_record(self, offset: int) -> None:
        """A record starts at `offset`, after all noted before: helps to find records near the log's end."""
        self._landmarks.add(offset)

    def known_record_start(self, offset: int) -> int:
        """Where a record starts, at or before the byte at `offset`, which is there.

        The newest start that is known without reading the log.
        """
        return max(self._landmarks.nearest(offset), self._files.file_of(offset).start_offset)

    def first_record_from(self, offset: int) -> int:
        """Where the first record at or after `offset` starts; the log's end if there is none.

        Walks from the nearest noted record of the same file, else from the file's start: cheap near the end
        of the log, up to a second for a gigabyte elsewhere. Raises StoreError.
        """
        max_offset = self.max_offset
        if offset >= max_offset:
            return max_offset
        start, end = self._record_around(max(offset, self.min_offset))
        return start if start >= offset else end

    def last_record_offset(self, *, before: int | None = None) -> int:
        """Where the last record or blank starts that begins before `before`, or before the log's end.

        Of a log that has one; as slow as `first_record_from`.
        """
        return self._record_around((self.max_offset if before is None else before) - 1)[0]

    def _record_around(self, offset: int) -> tuple[int, int]:
        """Start and end of the record or blank that the byte at `offset`, which is there, belongs to."""
        file = self._files.file_of(offset)
        start = max(self._landmarks.nearest(offset), file.start_offset)
        while True:
            view = self.read(start, _WALK_BYTES)
            at, is_found = record_around(view, offset - start)
            start += at
            if is_found:
                is_blank = starts_blank(view, at, len(view))
                end_offset = file.end_offset if is_blank else start + claimed_bytes(view, at, len(view))
                return start, min(end_offset, self.max_offset)
            assert at, f"no record at {start}"

    def record_stored_before(self, timestamp_ms: int) -> int:
        """Where a record starts that was stored before `timestamp_ms`: the newest known; 0 if none is."""
        starts: list[int] = [*(file.start_offset for file in self._files.files), *self._landmarks]
        for offset in sorted(starts, reverse=True):
            view = self.read(offset, RECORD_BYTES_MIN)
            if (
                len(view)
                and not starts_blank(view, 0, len(view))
                and store_timestamp_ms(view, 0) < timestamp_ms
            ):
                return offset
        return 0

    # -- files -------------------------------------------------------------------------------------------

    def preallocate(self, file: MappedFile) -> None:
        """Keep a preallocated file, as `LogFiles.preallocate`."""
        self._files.preallocate(file)

    @property
    def has_preallocated(self) -> bool:
        """Whether the next file is there already."""
        return self._files.preallocated is not None

    def delete_first_file(self) -> None:
        """Delete the oldest file, which must not be the last: the log begins after it then.

        Slices of it that are being sent stay valid. Raises StoreError if it cannot be deleted, with nothing
        changed.
        """
        self._files.delete_first()

    def start_at(self, offset: int) -> None:
        """Let an empty log begin at `offset`, a file start: a replica begins where its master does.

        Raises StoreError if a file that was made for it cannot be deleted; it begins where it did then.
        """
        assert self.is_empty, "only an empty log can begin elsewhere"
        assert offset % self.file_bytes == 0, (
            f"{offset} is not the start of a file of {self.file_bytes} bytes"
        )
        self._files.restart_at(offset)
        self._refused = None
        self._landmarks.clear()
        for mark in (self.appended, self.flushed):
            # Waits end even where the mark stays or moves forward: they were for offsets of another log.
            mark.rewind(min(offset, mark.offset))
            mark.advance(offset)
        self._on_restart()

    def cut(self, offset: int, *, last_store_timestamp_ms: int) -> None:
        """Let the log end at `offset`, the start of a record before its end: on disk when this returns.

        `last_store_timestamp_ms` is `store_timestamp_before(offset)`. `flushed` must be at `offset` at least:
        all of the log is on disk afterwards. Part of `MessageStore.cut`, which also cuts what is built from
        the log. Blocks. Raises StoreError and OSError with a part of it done: the log must not be used any
        more.
        """
        assert self.flushed.offset >= offset, f"{self.flushed.offset} is flushed, the cut is at {offset}"
        # The rest of an unfinished record would follow other bytes: connections end before any byte changes.
        self._on_cut(offset)
        self.puts_blocked = True
        self._landmarks.cut(offset)
        self.last_store_timestamp_ms = last_store_timestamp_ms
        # `flushed` is never beyond `appended`; waits end also for offsets that stay.
        self.flushed.rewind(offset)
        self.appended.rewind(offset)
        self._files.cut(offset)
        # The rest of the last file was cleared.
        self._refused = None

    def store_timestamp_before(self, offset: int) -> int:
        """Store time of the last record before `offset`, the start of a record; 0 if there is none."""
        while offset > self.min_offset:
            offset = self._record_around(offset - 1)[0]
            view = self.read(offset, RECORD_BYTES_MIN)
            if not starts_blank(view, 0, len(view)):
                return store_timestamp_ms(view, 0)
        return 0

    def archive(self, directory: Path) -> None:
        """Move all files to `directory`, which must not exist, and go on with an empty log.

        Raises OSError if the files cannot be moved, StoreError if what was built from them cannot be deleted;
        the log is then as it was, and what was built from it is built again.
        """
        try:
            self.before_restart()
            self._files.discard_preallocated()
            self._files.archive(directory)
        except (OSError, StoreError):
            # Dispatch has to begin anew although the log stays: it waits for these marks.
            for mark in (self.appended, self.flushed):
                mark.rewind(mark.offset)
            raise
        self._files.close_all()
        self.queue_offsets.clear()
        self.last_store_timestamp_ms = 0
        for mark in (self.appended, self.flushed):
            mark.rewind(self.min_offset)
        self.start_at(0)

    def sync_work(self, start_offset: int, end_offset: int) -> SyncWork:
        """What a worker thread runs to put bytes `[start_offset, end_offset)` on disk.

        It needs no new descriptor for bytes that are not flushed: their files have theirs.
        """
        return self._files.sync_work(start_offset, end_offset, flushed_offset=self.flushed.offset)

    def hold_last_file(self) -> None:
        """Keep a descriptor for the file that is written to. Raises StoreError if there is none."""
        self._files.hold_last()

    def close(self) -> None:
        """Close all files, and delete the preallocated one. Flush first; no sync may be running."""
        self._files.close()
