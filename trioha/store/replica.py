"""Append a master's bytes to a replica's log: whole, checked records only.

A master cuts its log into frames anywhere, so a frame may end inside a record. What is not yet a whole record
stays in memory: the log of a replica never holds a part of one, and `kill -9` at any moment leaves nothing
that recovery could mistake for a record. (A record of which only the properties are missing passes every
check of RocketMQ's recovery with zeros in their place, and differs from the master's for ever.)

What a master may make a replica keep so is the longest record that a broker takes, maxMessageSize and 64 KiB
(spec store 2.6), and not what a record claims. It goes by this node's maxMessageSize, but at least RocketMQ's
default: a replica whose own is smaller does not refuse its master's records.
"""

from __future__ import annotations

from trioha.store.commit_log import NO_BYTES, CommitLog
from trioha.store.put_limits import MESSAGE_BYTES_MAX_DEFAULT, RECORD_OVERHEAD_BYTES_MAX
from trioha.store.record import RecordError
from trioha.store.record_layout import (
    BLANK,
    BLANK_BYTES,
    FaultKind,
    RecordFault,
    ScanEnd,
    scan_boundaries,
    scan_records,
)


class ReplicaAppender:
    """Takes a master's log bytes in order, in pieces of any size, and appends the records they make."""

    def __init__(self, commit_log: CommitLog, *, boundaries_only: bool = False) -> None:
        """With `boundaries_only` of each record only length, magic and position are checked: the rest is for
        the dispatcher after it."""
        self._log = commit_log
        self._scan = scan_boundaries if boundaries_only else scan_records
        self._record_bytes_max = (
            max(commit_log.message_bytes_max, MESSAGE_BYTES_MAX_DEFAULT) + RECORD_OVERHEAD_BYTES_MAX
        )
        self._partial = bytearray()
        """Bytes after the log's end that are no whole record yet."""
        self._wanted_bytes = 0
        """Length at which `_partial` can be a record; below it there is nothing to check."""
        self._blank_header = b""
        """Header of the blank that is being received; its filler goes to the file as it comes."""
        self._filler_offset = 0

    @property
    def next_offset(self) -> int:
        """Offset of the next byte to take: the log's end, plus what waits to become a record."""
        if self._blank_header:
            return self._filler_offset
        return self._log.max_offset + len(self._partial)

    def discard(self) -> None:
        """Forget what is no whole record: the next byte to take is the log's end again."""
        self._partial = bytearray()
        self._wanted_bytes = 0
        self._blank_header = b""

    def append(self, data: memoryview) -> None:
        """Take the bytes at `next_offset`, none of them after the end of the log file it lies in.

        Raises RecordError, naming the offset, at the first bytes that cannot be a record; the whole records
        before it are in the log. Raises StoreError if the log needs a file that cannot be made. Either way
        `discard` before going on.
        """
        while self._partial and data:
            # Complete the one record that was cut, and no more: the others are taken in place.
            missing_bytes = self._wanted_bytes - len(self._partial)
            self._partial += data[:missing_bytes]
            data = data[missing_bytes:]
            if len(self._partial) < self._wanted_bytes:
                return
            # Take the buffer over: a bytearray cannot grow while views of it live.
            cut = memoryview(self._partial)
            self._partial = bytearray()
            end = self._scan(cut, 0, len(cut), self._log.max_offset)
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
        end = self._scan(data, 0, len(data), log.max_offset + len(first))
        if first or end.records:
            log.append_records(
                data[: end.at],
                first=first,
                last_store_timestamp_ms=max(first_timestamp_ms, end.last_store_timestamp_ms),
            )
        if end.at < len(data):
            self._keep(data[end.at :], end)

    def _keep(self, rest: memoryview, end: ScanEnd) -> None:
        """What stands at the log's end and is no whole record: a blank, or the first bytes of a record."""
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
        """Bytes that the record needs which `fault` says is not whole; raises RecordError if none can be."""
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
