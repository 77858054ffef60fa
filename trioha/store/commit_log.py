"""The commit log: what puts append to a log of records, with the offsets and the time that they get.

See docs/protocol/store.md#records. `store.record_log` has what master and slave share: bytes, marks, files.
A put is one message, a batch of which all messages are stored or none, or a run of sends that came together;
each becomes one append. Common runs are encoded by compiled code, all else by `store.put_records`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from struct import Struct
from typing import Final

from isal.isal_zlib import crc32

from trioha.errors import StoreError
from trioha.store import compiled_runs
from trioha.store.consume_queues import QUEUES_MAX
from trioha.store.disk_refusals import DiskRefusals
from trioha.store.mapped_file import MappedFile
from trioha.store.message_offsets import INNER_BATCH, MessageOffsets, MultiDispatch, assign_offsets
from trioha.store.message_properties import PROPERTIES_BYTES_MAX
from trioha.store.messages import AppendResult, BatchItem, EncodedItems, EncodedSends, Message, MessageBatch
from trioha.store.put_limits import (
    RECORD_OVERHEAD_BYTES_MAX,
    encoded_topic,
    message_refusal,
    queues_refusal,
)
from trioha.store.put_records import encode_records, record_sizes
from trioha.store.put_status import PutStatus
from trioha.store.record import Host
from trioha.store.record_layout import (
    BLANK_BYTES,
    HOSTS_V6,
    RECORD_BYTES_MIN,
    TRANSACTION_MASK,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
)
from trioha.store.record_log import RecordLog
from trioha.store.time_steps import leads
from trioha.store.topics import SCHEDULE_TOPIC

_I64: Final = Struct(">q")
_PUT_OFFSETS: Final = Struct(">qq")
"""Physical offset and queue offset."""
_NOT_QUEUED: Final = frozenset((TRANSACTION_PREPARED, TRANSACTION_ROLLBACK))
_HOSTS_V4_BYTES: Final = 16


class CommitLog(RecordLog):
    """The log in one directory. Make it with `store.recovery.open_commit_log`, which finds its end."""

    def __init__(
        self,
        directory: Path,
        *,
        file_bytes: int,
        message_bytes_max: int,
        store_host: Host,
        files: list[MappedFile] | None = None,
        queues_max: int = QUEUES_MAX,
        multi_dispatch: MultiDispatch | None = None,
    ) -> None:
        super().__init__(directory, file_bytes=file_bytes, files=files)
        self.message_bytes_max = message_bytes_max
        self.store_host = store_host
        """What records name as their broker. Changes once: a broker on any free port knows its port late."""
        self.queue_offsets: dict[tuple[str, int], int] = {}
        """Next queue offset of each topic and queue that has messages."""
        self.queues_max = queues_max
        """Queues that puts may make: one that would add to so many is refused, not stored and never seen."""
        self.multi_dispatch = multi_dispatch or MultiDispatch()
        """Whether messages get offsets of other queues, too."""
        self._disk_refusals = DiskRefusals()
        self.disk_is_full = False
        """Whether puts are refused for want of space; replication is not."""
        self.puts_blocked = False
        """Whether puts are refused because `queue_offsets` is not known yet; replication is not."""

    def cut(self, offset: int, *, last_store_timestamp_ms: int) -> None:
        """As `RecordLog.cut`; puts are blocked until `queue_offsets` is that of the log that is left."""
        self.puts_blocked = True
        super().cut(offset, last_store_timestamp_ms=last_store_timestamp_ms)

    def archive(self, directory: Path) -> None:
        """As `RecordLog.archive`; queues begin anew, too."""
        super().archive(directory)
        self.queue_offsets.clear()

    # -- the time of records -------------------------------------------------------------------------------

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

    # -- appending -----------------------------------------------------------------------------------------

    def append(self, message: Message) -> AppendResult:
        """Store one message at the end of the log and assign its offsets (docs/protocol/store.md#records).

        A message that no file could ever hold is refused as MESSAGE_ILLEGAL: RocketMQ answers PUT_OK to it
        and stores nothing (docs/protocol/store.md#ends-of-files). Two more are refused because clients would
        never get them: one whose topic no consume queue can be made for, and one for a queue too many, as
        SERVICE_NOT_AVAILABLE.
        """
        item = BatchItem(message.body, message.properties, message.flag)
        offsets = None
        if b"INNER_" in item.properties or message.sys_flag & INNER_BATCH:
            offsets = assign_offsets(
                item.properties,
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
            item.properties = offsets.properties
        items = (item,)
        sizes = record_sizes(message, items, store_host=self.store_host)
        if refusal := self._refusal(message, offsets, properties_bytes=len(item.properties), size=sizes[0]):
            return refusal
        if message.sys_flag & TRANSACTION_MASK in _NOT_QUEUED:
            return self._append_items(message, items, sizes, queue_offset=0)
        key = (message.topic, message.queue_id)
        queue_offset = self.queue_offsets.get(key, 0)
        appended = self._append_items(message, items, sizes, queue_offset=queue_offset)
        if appended.status is PutStatus.PUT_OK:
            self.queue_offsets[key] = queue_offset + (1 if offsets is None else offsets.messages)
            for other in () if offsets is None else offsets.other_queues:
                self.queue_offsets[other] = self.queue_offsets.get(other, 0) + 1
        return appended

    def append_batch(self, batch: MessageBatch) -> AppendResult:
        """Store the messages of a batch one after the other, or none of them.

        See docs/protocol/store.md#ends-of-files, docs/protocol/store.md#batches.

        All records stand in one file. A process that is killed in the middle leaves none of them.
        """
        key = (batch.topic, batch.queue_id)
        queue_offset = self.queue_offsets.get(key, 0)
        if isinstance(batch.items, EncodedItems):
            appended = self._append_encoded(batch, batch.items.body)
            if appended is not None:
                appended.queue_offset = queue_offset
                return appended
        sizes = record_sizes(batch, batch.items, store_host=self.store_host)
        if refusal := self._batch_refusal(batch, sizes):
            return refusal
        appended = self._append_items(batch, batch.items, sizes, queue_offset=queue_offset)
        if appended.status is PutStatus.PUT_OK:
            self.queue_offsets[key] = queue_offset + len(sizes)
            appended.batch_offsets = list(accumulate(sizes[:-1], initial=appended.physical_offset))
        return appended

    def _append_items(
        self, put: Message | MessageBatch, items: Sequence[BatchItem], sizes: list[int], *, queue_offset: int
    ) -> AppendResult:
        """Store the records of a put that is legal, of these sizes; the first one with `queue_offset`."""
        size = sum(sizes)
        try:
            file, at = self._room_for(size)
            physical_offset = file.start_offset + at
            store_timestamp_ms = self._stamp_ms(put.topic)
            records = encode_records(
                put,
                items,
                sizes,
                physical_offset=physical_offset,
                queue_offset=queue_offset,
                store_timestamp_ms=store_timestamp_ms,
                store_host=self.store_host,
            )
            starts = accumulate(sizes[:-1], initial=physical_offset)
            self._append(file, at, memoryview(records), starts=starts)
        except StoreError as error:
            return self._disk_refusals.refuse(error)
        return AppendResult(
            PutStatus.PUT_OK,
            physical_offset,
            size,
            queue_offset,
            store_timestamp_ms,
            self.store_host.packed,
        )

    def _append_encoded(self, batch: MessageBatch, body: bytes) -> AppendResult | None:
        """`append_sends` of a batch that is still as it was sent; None where `append_batch` looks at it."""
        found = compiled_runs.read_batch(
            body, batch.queue_id, batch.sys_flag & ~HOSTS_V6, batch.born_timestamp_ms, batch.reconsume_times
        )
        if b"INNER_" in found.properties:
            return None
        sends = EncodedSends(
            batch.topic,
            found.columns,
            found.properties,
            found.count,
            found.body_bytes,
            found.body_bytes_max,
            found.properties_bytes_max,
            [batch.queue_id],
            is_oneway=False,
        )
        appended = self.append_sends(sends, body, born_host=batch.born_host)
        if appended is not None:
            # One put: its messages have no answers of their own.
            appended.put_offsets = b""
        return appended

    def append_sends(self, sends: EncodedSends, data: bytes, *, born_host: Host) -> AppendResult | None:
        """Store sends that came together, with bodies in `data`, as `append` does each, by compiled code.

        None, with nothing stored, where `append` has to look at each: it may refuse one, or end the file. The
        records share a store timestamp, and their `batch_offsets` are where they start.
        """
        topic, version_2, topic_is_legal = encoded_topic(sends.topic)
        store_host_packed = self.store_host.packed
        record_bytes = RECORD_BYTES_MIN - 1 + len(topic)
        size = sends.count * record_bytes + sends.body_bytes + len(sends.properties)
        files = self._files.files
        file = files[-1] if files else None
        physical_offset = self.appended.offset
        if (
            version_2
            or not topic_is_legal
            or len(born_host.packed) + len(store_host_packed) != _HOSTS_V4_BYTES
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
        records, put_offsets = compiled_runs.encode_run(
            data,
            sends.columns,
            sends.properties,
            topic,
            record_bytes,
            physical_offset,
            next_offsets,
            born_host.packed,
            _I64.pack(store_timestamp_ms) + store_host_packed,
            crc32,
        )
        starts = [start for start, _ in _PUT_OFFSETS.iter_unpack(put_offsets)]
        try:
            self._append(file, physical_offset - file.start_offset, memoryview(records), starts=starts)
        except StoreError:
            # The next append clears what was written of it, or is refused as well.
            return None
        for queue_id, queue_offset in next_offsets.items():
            queue_offsets[sends.topic, queue_id] = queue_offset
        return AppendResult(
            PutStatus.PUT_OK,
            physical_offset,
            size,
            store_timestamp_ms=store_timestamp_ms,
            store_host_packed=store_host_packed,
            batch_offsets=starts,
            put_offsets=put_offsets,
        )

    # -- refusing ------------------------------------------------------------------------------------------

    @property
    def put_refusal(self) -> str:
        """Why the disk keeps puts from being stored; empty if it does not."""
        if self.disk_is_full:
            return f"{self.directory}: the disk is full"
        return self._disk_refusals.current

    def _batch_refusal(self, batch: MessageBatch, sizes: list[int]) -> AppendResult | None:
        """Why a batch whose records have these sizes is not stored now; None if nothing speaks against it."""
        # What the others have in common with the first one is looked at once.
        longest = [
            number
            for number, item in enumerate(batch.items)
            if len(item.body) > self.message_bytes_max or len(item.properties) > PROPERTIES_BYTES_MAX
        ]
        for number in longest or (0,):
            item = batch.items[number]
            message = Message(batch.topic, batch.queue_id, item.body, item.properties)
            refusal = self._refusal(message, None, properties_bytes=len(item.properties), size=sizes[number])
            if refusal is not None:
                return AppendResult(refusal.status, reason=f"message {number} of the batch: {refusal.reason}")
        size = sum(sizes)
        inner = (number for number, item in enumerate(batch.items) if b"INNER_" in item.properties)
        if (first := next(inner, None)) is not None:
            reason = f"message {first} of the batch has INNER_ properties, which only the log writes"
        elif size + BLANK_BYTES > self.file_bytes:
            reason = f"a batch of {size} bytes never fits a log file of {self.file_bytes} bytes"
        elif size > self.message_bytes_max + RECORD_OVERHEAD_BYTES_MAX:
            reason = f"a batch of {size} bytes is longer than maxMessageSize allows"
        else:
            return None
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
        refusal = message_refusal(
            message,
            properties_bytes=properties_bytes,
            size=size,
            message_bytes_max=self.message_bytes_max,
            file_bytes=self.file_bytes,
        )
        other_queues = offsets.other_queues if offsets is not None else ()
        if refusal is not None or (message.sys_flag & TRANSACTION_MASK in _NOT_QUEUED and not other_queues):
            return refusal
        return queues_refusal(
            (message.topic, message.queue_id),
            other_queues,
            queue_offsets=self.queue_offsets,
            queues_max=self.queues_max,
        )
