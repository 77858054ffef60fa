"""Append a master's bytes to a replica's log: whole, checked records only.

A master cuts its log into frames at any byte, so a frame may end inside a record. The first part of a record
stays in memory until it is whole: a replica's log never holds a part of one, and `kill -9` at any moment
leaves no bytes that recovery could mistake for a record. (A record of which only the properties are missing
passes every check of RocketMQ's recovery, with zeros in their place, and differs from the master's for ever.)

The memory is bounded by the longest record that a broker accepts, maxMessageSize and 64 KiB
(docs/protocol/store.md#limits), not by the length that a record claims. This node's maxMessageSize counts,
but at least RocketMQ's default: a replica with a smaller one does not refuse its master's records.
"""

from __future__ import annotations

from trioha.store.commit_log import CommitLog
from trioha.store.log_files import NO_BYTES
from trioha.store.put_limits import MESSAGE_BYTES_MAX_DEFAULT, RECORD_OVERHEAD_BYTES_MAX
from trioha.store.record import RecordError
from trioha.store.record_layout import (
    BLANK,
    BLANK_BYTES,
    FaultKind,
    RecordFault,
    ScanEnd,
    scan_records,
)


class ReplicaAppender:
    """Receives a master's log bytes in order, cut anywhere, and appends the records."""

    def __init__(self, commit_log: CommitLog) -> None:
        self._log = commit_log
        self._record_bytes_max = (
            max(commit_log.message_bytes_max, MESSAGE_BYTES_MAX_DEFAULT) + RECORD_OVERHEAD_BYTES_MAX
        )
        self._partial = bytearray()
        """First part of the record at the log's end."""
        self._wanted_bytes = 0
        """Length at which `_partial` can be a record, and is checked."""
        self._blank_header = b""
        """Header of the blank that is being received; its filler is written to the file as it arrives."""
        self._filler_offset = 0

    @property
    def next_offset(self) -> int:
        """Offset of the next byte to receive: the log's end, plus the part of a record in memory."""
        if self._blank_header:
            return self._filler_offset
        return self._log.max_offset + len(self._partial)

    def discard(self) -> None:
        """Drop the part of a record in memory: the next byte to receive is at the log's end again."""
        self._partial = bytearray()
        self._wanted_bytes = 0
        self._blank_header = b""

    def append(self, data: memoryview) -> None:
        """Append the bytes at `next_offset`, which must not cross the end of its log file.

        Raises RecordError with the offset at the first bytes that cannot be a record; the whole records
        before it are in the log. Raises StoreError if the log needs a file that cannot be made. After
        either, call `discard` before the next append.
        """
        while self._partial and data:
            # Complete only the record that was cut: the others are appended from `data` without a copy.
            missing_bytes = self._wanted_bytes - len(self._partial)
            self._partial += data[:missing_bytes]
            data = data[missing_bytes:]
            if len(self._partial) < self._wanted_bytes:
                return
            # With a new buffer for the next one: a bytearray cannot grow while it has views.
            cut = memoryview(self._partial)
            self._partial = bytearray()
            end = scan_records(cut, 0, len(cut), self._log.max_offset)
            if end.records:
                self._append_records(data, first=cut, first_timestamp_ms=end.last_store_timestamp_ms)
                return
            self._keep(cut, end)
        if self._blank_header:
            self._append_filler(data)
        elif data:
            self._append_records(data)

    def _append_records(
        self, data: memoryview, *, first: memoryview = NO_BYTES, first_timestamp_ms: int = 0
    ) -> None:
        """Append `first`, a whole record, and those in `data` with one write; keep the rest."""
        log = self._log
        end = scan_records(data, 0, len(data), log.max_offset + len(first))
        if first or end.records:
            log.append_records(
                data[: end.at],
                first=first,
                last_store_timestamp_ms=max(first_timestamp_ms, end.last_store_timestamp_ms),
            )
        if end.at < len(data):
            self._keep(data[end.at :], end)

    def _keep(self, rest: memoryview, end: ScanEnd) -> None:
        """Keep the first bytes of a record, or begin the blank, at the log's end. Raises RecordError."""
        log = self._log
        offset = log.max_offset
        file_end = offset - offset % log.file_bytes + log.file_bytes
        if end.blank:
            blank_bytes, _ = BLANK.unpack_from(rest)
            if blank_bytes != file_end - offset:
                raise RecordError(
                    f"bad record at offset {offset}: "
                    f"blank of {blank_bytes} bytes, the file has {file_end - offset} left"
                )
            self._blank_header = bytes(rest[:BLANK_BYTES])
            self._filler_offset = offset + BLANK_BYTES
            self._append_filler(rest[BLANK_BYTES:])
            return
        assert end.fault is not None
        self._wanted_bytes = self._check_partial(end.fault, offset=offset, file_end=file_end)
        self._partial = bytearray(rest)

    def _append_filler(self, data: memoryview) -> None:
        log = self._log
        if data:
            log.write_filler(self._filler_offset, data)
            self._filler_offset += len(data)
        if self._filler_offset % log.file_bytes == 0:
            header, self._blank_header = self._blank_header, b""
            log.append_blank(header)

    def _check_partial(self, fault: RecordFault, *, offset: int, file_end: int) -> int:
        """Length that a truncated record will have; raises RecordError for any other fault."""
        if fault.bytes_left < BLANK_BYTES:
            return BLANK_BYTES
        if fault.kind is not FaultKind.TRUNCATED:
            raise RecordError(f"bad record at offset {offset}: {fault.reason}")
        size = fault.found
        if size > file_end - offset:
            raise RecordError(
                f"bad record at offset {offset}: the record has {size} bytes, its file {file_end - offset}"
            )
        if size > self._record_bytes_max:
            raise RecordError(
                f"record at offset {offset} says that it has {size} bytes, the most here are "
                f"{self._record_bytes_max}; raise maxMessageSize here to its master's if that allows it"
            )
        return size
