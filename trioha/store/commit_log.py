"""The commit log: bytes `[min_offset, max_offset)` in files of one size (spec store 1, 2, 8).

Theory of operation. The log is synchronous and has a single writer, the trio thread; it needs no locks and
never awaits. Whoever appends moves `appended`, whoever syncs moves `flushed`; everyone else waits for these
watermarks. A record's first eight bytes (length and magic) are written after all others, so a process that is
killed in the middle of an append leaves no bytes that could be taken for a record.

Files are contiguous; each but the last is full. A file is reserved on disk when it is made, so that a full
disk is an error at that moment and not the end of the process later. The next file can be made ahead in a
worker thread (`preallocate`).
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from struct import Struct

import structlog
from attrs import define
from isal.isal_zlib import crc32

from trioha.errors import StoreError
from trioha.store.consume_queues import QUEUES_MAX, topic_fault
from trioha.store.inner import INNER_BATCH, Inner, MultiDispatch, QueueKey, give_offsets
from trioha.store.mapped_file import FILE_NAME_DIGITS, MappedFile
from trioha.store.put_status import PutStatus
from trioha.store.record import Host, offset_message_id
from trioha.store.record_layout import (
    BLANK,
    BLANK_BYTES,
    BORN_HOST_V6,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_BYTES_MIN,
    STORE_HOST_V6,
    TOPIC_BYTES_MAX_V1,
    TRANSACTION_MASK,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
    record_around,
    starts_blank,
    store_timestamp_ms,
)
from trioha.store.syncing import SyncWork, sync_data, sync_directory
from trioha.watermark import Watermark

log = structlog.get_logger(__name__)

PROPERTIES_BYTES_MAX = 32767
TOPIC_BYTES_MAX = 255
RETRY_TOPIC_PREFIX = "%RETRY%"
MESSAGE_BYTES_MAX_DEFAULT = 4 << 20
"""maxMessageSize of a broker whose configuration does not say."""
RECORD_OVERHEAD_BYTES_MAX = 64 * 1024
"""A record may be this much longer than the longest body."""

NO_HOST = Host.parse("127.0.0.1", 0)
"""Born host of a message that came from no socket."""

_COMMIT = Struct(">iI")
"""totalSize and magic: what makes a record of the bytes behind them."""
_COMMIT_BYTES = 8
_FIXED_V4 = Struct(">iiiqqiq8sq8siqi")
"""bodyCRC to the body's length, the hosts packed, both IPv4."""
_BEFORE_HOSTS = Struct(">iiiqqiq")
_I64 = Struct(">q")
_BEFORE_BODY = Struct(">iqi")
_I16 = Struct(">h")
_TOPIC_V1 = Struct(">b")
_NOT_QUEUED = frozenset((TRANSACTION_PREPARED, TRANSACTION_ROLLBACK))
_RECORD_BYTES_LESS_HOSTS = RECORD_BYTES_MIN - 16
_HOST_V4_BYTES = 8
NO_BYTES = memoryview(b"")
PWRITE_BYTES_MIN = 16 * 1024
"""From here on the system call is cheaper than storing into pages that were not touched yet."""
_LANDMARK_SPACING_BYTES = 16 * 1024
_LANDMARKS_MAX = 4096


@define
class Message:
    """What a producer wants stored: a record without the fields that only the log can give.

    Not frozen, for what attrs makes it cost; nobody changes one.
    """

    topic: str
    queue_id: int
    body: bytes
    properties: bytes = b""
    """As stored, see `store.properties`."""
    flag: int = 0
    sys_flag: int = 0
    """Without the two host bits: the log sets them from the hosts."""
    born_timestamp_ms: int = 0
    born_host: Host = NO_HOST
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0


@define
class AppendResult:
    """What became of an append. The offsets mean something only if `status` is PUT_OK.

    Not frozen, as `Message`.
    """

    status: PutStatus
    physical_offset: int = -1
    size: int = 0
    """Bytes of the record."""
    queue_offset: int = -1
    store_timestamp_ms: int = 0
    store_host_packed: bytes = b""
    """The host that the record names."""
    reason: str = ""
    """Why it was refused, one clause."""

    @property
    def message_id(self) -> str:
        """The offset msgId; empty for what was not stored."""
        return offset_message_id(self.store_host_packed, self.physical_offset) if self.size else ""

    @property
    def end_offset(self) -> int:
        """Offset of the first byte behind the record: what flush and replicas must reach."""
        return self.physical_offset + self.size


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
        self.directory = directory
        self.file_bytes = file_bytes
        self.message_bytes_max = message_bytes_max
        self.store_host = store_host
        self._store_host_packed = store_host.packed
        self._files: list[MappedFile] = files or []
        self._start_offset = self._files[0].start_offset if self._files else 0
        self._offered: MappedFile | None = None
        self._held: list[MappedFile] = []
        """Files with a descriptor: the last one, and those with bytes that are not on disk."""
        self._syncs: list[SyncWork] = []
        """Syncs that were asked for and have not run yet."""
        self.queue_offsets: dict[tuple[str, int], int] = {}
        """Next queue offset of each topic and queue that has messages."""
        self.queues_max = QUEUES_MAX
        """Queues that puts may make: one that would add to so many is refused, not stored and never seen."""
        self.multi_dispatch = MultiDispatch()
        """Whether messages get offsets of further queues, too."""
        self.last_store_timestamp_ms = 0
        """storeTimestamp of the newest record, 0 for an empty log."""
        self._landmarks: deque[int] = deque(maxlen=_LANDMARKS_MAX)
        """Offsets at which records start, some 16 KiB apart, of the newest part of the log."""
        self._on_restart: list[Callable[[], None]] = []
        self.before_restart: Callable[[], None] = lambda: None
        """Called before all bytes are given up: what was built from them has to go first, since a process
        that is killed in between can build it again, but could not tell it from what the new log says."""
        self.disk_is_full = False
        """Whether puts are refused for want of space; replication is not."""
        self.puts_blocked = False
        """Whether puts are refused because `queue_offsets` is not known yet; replication is not."""
        self.appended = Watermark(self._start_offset)
        """End of the log: everything before it is whole records. Moved by appends only."""
        self.flushed = Watermark(self._start_offset)
        """Everything before it is on disk. Moved by the flush task; never beyond `appended`."""

    def set_store_host(self, store_host: Host) -> None:
        """Name `store_host` in all records from now on: a broker that takes any free port knows it late."""
        self.store_host = store_host
        self._store_host_packed = store_host.packed

    def on_restart(self, callback: Callable[[], None]) -> None:
        """Call `callback` whenever the log begins anew, before any byte of the new log is there.

        For those who hold offsets of the old log and do not wait for a watermark: a wait ends by itself.
        """
        self._on_restart.append(callback)

    # -- where the log is ------------------------------------------------------------------------------

    @property
    def min_offset(self) -> int:
        """Offset of the first byte that is there."""
        return self._start_offset

    @property
    def max_offset(self) -> int:
        """Offset of the first free byte."""
        return self.appended.offset

    @property
    def is_empty(self) -> bool:
        """Whether the log holds no byte."""
        return self.max_offset == self._start_offset

    @property
    def files(self) -> tuple[MappedFile, ...]:
        """The log's files, oldest first."""
        return tuple(self._files)

    @property
    def next_file_offset(self) -> int:
        """Where the file behind the last one starts."""
        return self._files[-1].end_offset if self._files else self._start_offset

    def start_at(self, offset: int) -> None:
        """Let an empty log begin at `offset`, a file start: a replica begins where its master does.

        Raises StoreError if a file that was made for it cannot be deleted; it begins where it did then.
        """
        assert self.is_empty, "only an empty log can begin elsewhere"
        assert offset % self.file_bytes == 0, f"{offset} is no start of a file of {self.file_bytes} bytes"
        self.discard_preallocated()
        while self._files:
            self._files[-1].remove()
            self._files.pop()
        self._held.clear()
        self._landmarks.clear()
        self._start_offset = offset
        for mark in (self.appended, self.flushed):
            # Waits end even where the mark stays or moves forward: they were for offsets of another log.
            mark.rewind(min(offset, mark.offset))
            mark.advance(offset)
        for callback in self._on_restart:
            callback()

    def read(self, offset: int, limit_bytes: int) -> memoryview:
        """Up to `limit_bytes` from `offset` on, without copying, never across a file's end.

        Empty if `offset` is the log's end or outside of the log.
        """
        max_offset = self.appended.offset
        if not self._start_offset <= offset < max_offset:
            return memoryview(b"")
        file = self._files[(offset - self._start_offset) // self.file_bytes]
        at = offset - file.start_offset
        return file.view[at : min(at + limit_bytes, file.size, max_offset - file.start_offset)]

    # -- appending messages ----------------------------------------------------------------------------

    def append(self, message: Message) -> AppendResult:
        """Store one message at the end of the log and give it its offsets (spec store 2).

        A message that no file could ever hold is refused as MESSAGE_ILLEGAL: RocketMQ answers PUT_OK to it
        and stores nothing (spec store 2.5). So is one whose topic no consume queue can be made for, and one
        for a queue too many as SERVICE_NOT_AVAILABLE: clients would never get it.
        """
        topic, version_2, topic_is_legal = _encoded_topic(message.topic)
        body = message.body
        properties = message.properties
        inner = None
        if b"INNER_" in properties or message.sys_flag & INNER_BATCH:
            inner = give_offsets(
                properties,
                topic=message.topic,
                queue_id=message.queue_id,
                sys_flag=message.sys_flag,
                queue_offsets=self.queue_offsets,
                multi=self.multi_dispatch,
            )
            if inner is None:
                return AppendResult(
                    PutStatus.MESSAGE_ILLEGAL, reason="INNER_NUM is no number of messages of an inner batch"
                )
            properties = inner.properties
        born_host_packed = message.born_host.packed
        store_host_packed = self._store_host_packed
        body_bytes = len(body)
        hosts_bytes = len(born_host_packed) + len(store_host_packed)
        sys_flag = message.sys_flag & ~(BORN_HOST_V6 | STORE_HOST_V6)
        queued = sys_flag & TRANSACTION_MASK not in _NOT_QUEUED
        key = (message.topic, message.queue_id)
        queue_offset = self.queue_offsets.get(key, -1) if queued else 0
        # The topic comes with its length, of which one byte is counted already.
        size = _RECORD_BYTES_LESS_HOSTS - 1 + hosts_bytes + body_bytes + len(topic) + len(properties)
        if (
            self.disk_is_full
            or self.puts_blocked
            or body_bytes > self.message_bytes_max
            or len(properties) > PROPERTIES_BYTES_MAX
            or not topic_is_legal
            or size > self.message_bytes_max + RECORD_OVERHEAD_BYTES_MAX
            or size + BLANK_BYTES > self.file_bytes
            or (queue_offset < 0 and len(self.queue_offsets) >= self.queues_max)
            or (inner is not None and inner.further and self._further_fault(key, inner.further))
        ):
            return self._refusal(message, inner=inner, properties_bytes=len(properties), size=size)
        try:
            file, at = self._room_for(size)
        except StoreError as error:
            log.error("no file for the next message", path=error.path, reason=error.reason)
            return AppendResult(PutStatus.SERVICE_NOT_AVAILABLE, reason=error.reason)
        physical_offset = file.start_offset + at
        queue_offset = max(queue_offset, 0)
        # The newest record's time never goes back, so that a search by time stays a binary search.
        store_timestamp_ms = max(time.time_ns() // 1_000_000, self.last_store_timestamp_ms)
        if hosts_bytes == 2 * _HOST_V4_BYTES:
            fixed = _FIXED_V4.pack(
                crc32(body) & 0x7FFFFFFF,
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
                        crc32(body) & 0x7FFFFFFF,
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
        view[at + _COMMIT_BYTES : at + size] = b"".join(
            (fixed, body, topic, _I16.pack(len(properties)), properties)
        )
        _COMMIT.pack_into(view, at, size, MAGIC_V2 if version_2 else MAGIC_V1)
        self.note_record(physical_offset)
        if queued:
            self.queue_offsets[key] = queue_offset + (1 if inner is None else inner.messages)
            if inner is not None:
                for further in inner.further:
                    self.queue_offsets[further] = self.queue_offsets.get(further, 0) + 1
        self.last_store_timestamp_ms = store_timestamp_ms
        self.appended.advance(physical_offset + size)
        return AppendResult(
            PutStatus.PUT_OK, physical_offset, size, queue_offset, store_timestamp_ms, store_host_packed
        )

    def _further_fault(self, key: QueueKey, further: tuple[QueueKey, ...]) -> str:
        """Why a message of the queue `key` cannot enter those further ones; empty if it can."""
        for topic, _ in further:
            if fault := topic_fault(topic):
                return fault
        new = {name for name in (key, *further) if name not in self.queue_offsets}
        if new and len(self.queue_offsets) + len(new) > self.queues_max:
            return f"{len(new)} queues more than the {self.queues_max} that trioha.queuesMax allows"
        return ""

    def _refusal(
        self, message: Message, *, inner: Inner | None, properties_bytes: int, size: int
    ) -> AppendResult:
        """Which of the limits of spec store 2.6 a message that would be `size` bytes is beyond."""
        if self.disk_is_full:
            return AppendResult(PutStatus.SERVICE_NOT_AVAILABLE, reason="the disk is full")
        if self.puts_blocked:
            return AppendResult(
                PutStatus.SERVICE_NOT_AVAILABLE, reason="consume queues are not at the log's end yet"
            )
        illegal = PutStatus.MESSAGE_ILLEGAL
        if len(message.body) > self.message_bytes_max:
            return AppendResult(
                illegal,
                reason=f"body of {len(message.body)} bytes, maxMessageSize is {self.message_bytes_max}",
            )
        if properties_bytes > PROPERTIES_BYTES_MAX:
            return AppendResult(
                PutStatus.PROPERTIES_SIZE_EXCEEDED,
                reason=f"properties of {properties_bytes} bytes, {PROPERTIES_BYTES_MAX} is the most",
            )
        topic_bytes = len(message.topic.encode("utf-8", "surrogatepass"))
        if not 1 <= topic_bytes <= TOPIC_BYTES_MAX:
            return AppendResult(
                illegal, reason=f"topic has {topic_bytes} bytes, 1 to {TOPIC_BYTES_MAX} are legal"
            )
        if topic_bytes > TOPIC_BYTES_MAX_V1 and not message.topic.startswith(RETRY_TOPIC_PREFIX):
            return AppendResult(
                illegal, reason=f"topic of {topic_bytes} bytes, {TOPIC_BYTES_MAX_V1} is the most"
            )
        if fault := topic_fault(message.topic):
            return AppendResult(illegal, reason=fault)
        if size > self.message_bytes_max + RECORD_OVERHEAD_BYTES_MAX:
            return AppendResult(
                illegal, reason=f"record of {size} bytes is longer than maxMessageSize allows"
            )
        if size + BLANK_BYTES > self.file_bytes:
            return AppendResult(
                illegal, reason=f"record of {size} bytes never fits a log file of {self.file_bytes} bytes"
            )
        further = () if inner is None else inner.further
        key = (message.topic, message.queue_id)
        if fault := next(filter(None, (topic_fault(topic) for topic, _ in further)), ""):
            return AppendResult(illegal, reason=fault)
        return AppendResult(
            PutStatus.SERVICE_NOT_AVAILABLE,
            reason=self._further_fault(key, further)
            if further
            else f"no room for queue {message.queue_id} of {message.topic!r}: there are "
            f"{len(self.queue_offsets)}, trioha.queuesMax is {self.queues_max}",
        )

    def _room_for(self, size: int) -> tuple[MappedFile, int]:
        """File and index where a record of `size` bytes goes; a file it does not fit is ended.

        At least eight bytes always end a full file (spec store 2.5). Raises StoreError if no file can be
        made, with nothing changed.
        """
        max_offset = self.appended.offset
        file = self._last_file_with(max_offset)
        if file is None:
            return self._add_file(max_offset), 0
        at = max_offset - file.start_offset
        left = file.size - at
        if size + BLANK_BYTES <= left:
            return file, at
        following = self._add_file(file.end_offset)
        BLANK.pack_into(file.view, at, left, MAGIC_BLANK)
        return following, 0

    # -- appending a master's bytes ----------------------------------------------------------------------

    def append_records(
        self, data: memoryview, *, first: memoryview = NO_BYTES, last_store_timestamp_ms: int
    ) -> None:
        """Append whole, checked records as they are, those in `first` before those in `data`.

        A replica's way in; `first` is what it had to put together elsewhere. The records must not cross a
        file's end. Raises StoreError if a file is needed and cannot be made, or the disk refuses the bytes;
        the log is as it was then.
        """
        max_offset = self.appended.offset
        file = self._last_file_with(max_offset) or self._add_file(max_offset)
        at = max_offset - file.start_offset
        size = len(first) + len(data)
        assert size <= file.size - at, f"{size} bytes at {max_offset} cross the end of {file.path.name}"
        if not first:
            first, data = data, NO_BYTES
        view = file.view
        if size < PWRITE_BYTES_MIN:
            view[at + len(first) : at + size] = data
            view[at + _COMMIT_BYTES : at + len(first)] = first[_COMMIT_BYTES:]
        else:
            file.write(at + _COMMIT_BYTES, first[_COMMIT_BYTES:], data)
        view[at : at + _COMMIT_BYTES] = first[:_COMMIT_BYTES]
        self.note_record(max_offset)
        self.last_store_timestamp_ms = max(self.last_store_timestamp_ms, last_store_timestamp_ms)
        self.appended.advance(max_offset + size)

    def write_filler(self, offset: int, data: memoryview) -> None:
        """Put bytes behind a blank's header before the blank itself is there; `append_blank` completes it."""
        max_offset = self.appended.offset
        file = self._last_file_with(max_offset) or self._add_file(max_offset)
        at = offset - file.start_offset
        assert max_offset + BLANK_BYTES <= offset <= offset + len(data) <= file.end_offset
        file.write(at, data)

    def append_blank(self, header: bytes) -> None:
        """End the current file: its filler is all there, now comes the blank's header."""
        max_offset = self.appended.offset
        file = self._last_file_with(max_offset) or self._add_file(max_offset)
        at = max_offset - file.start_offset
        file.view[at : at + BLANK_BYTES] = header
        self.appended.advance(file.end_offset)

    # -- where records start -------------------------------------------------------------------------------

    def note_record(self, offset: int) -> None:
        """A record starts at `offset`, behind all noted before: helps to find records near the log's end."""
        landmarks = self._landmarks
        if not landmarks or offset - landmarks[-1] >= _LANDMARK_SPACING_BYTES:
            landmarks.append(offset)

    def first_record_from(self, offset: int) -> int:
        """Where the first record at or behind `offset` starts; the log's end if there is none.

        Walks from the nearest noted record of the same file, else from the file's start: cheap near the end
        of the log, up to a second for a gigabyte elsewhere.
        """
        max_offset = self.max_offset
        if offset >= max_offset:
            return max_offset
        start, end = self._record_around(max(offset, self._start_offset))
        return start if start >= offset else end

    def last_record_offset(self) -> int:
        """Where the last record or blank starts, of a log that has one; as dear as `first_record_from`."""
        return self._record_around(self.max_offset - 1)[0]

    def _record_around(self, offset: int) -> tuple[int, int]:
        """Start and end of the record or blank that the byte at `offset`, which is there, belongs to."""
        max_offset = self.max_offset
        file = self._files[(offset - self._start_offset) // self.file_bytes]
        index = bisect_right(self._landmarks, offset) - 1
        start = max(self._landmarks[index] if index >= 0 else 0, file.start_offset)
        at, end_at = record_around(file.view, start - file.start_offset, offset - file.start_offset)
        return file.start_offset + at, min(file.start_offset + end_at, max_offset)

    def record_stored_before(self, timestamp_ms: int) -> int:
        """Where a record starts that was stored before `timestamp_ms`: the newest known; 0 if none is."""
        starts = [*(file.start_offset for file in self._files), *self._landmarks]
        for offset in sorted(starts, reverse=True):
            view = self.read(offset, self.file_bytes)
            if (
                len(view)
                and not starts_blank(view, 0, len(view))
                and store_timestamp_ms(view, 0) < timestamp_ms
            ):
                return offset
        return 0

    # -- files -------------------------------------------------------------------------------------------

    def _last_file_with(self, offset: int) -> MappedFile | None:
        """The last file if it holds `offset`, None if a new one is needed."""
        last = self._files[-1] if self._files else None
        return last if last is not None and offset < last.end_offset else None

    def _add_file(self, start_offset: int) -> MappedFile:
        offered = self._offered
        if offered is not None and offered.start_offset == start_offset:
            file, self._offered = offered, None
        else:
            self.discard_preallocated()
            file = MappedFile.create(self.directory, start_offset=start_offset, size=self.file_bytes)
        self._files.append(file)
        self._held.append(file)
        return file

    def preallocate(self, file: MappedFile) -> None:
        """Take a file that was made ahead; one that came too late is closed, its bytes are in use already.

        Raises StoreError if one that is not needed cannot be deleted.
        """
        if self._offered is None and file.start_offset == self.next_file_offset:
            self._offered = file
        elif any(known.start_offset == file.start_offset for known in self._files):
            file.close()
        else:
            try:
                file.remove()
            finally:
                file.close()

    @property
    def has_preallocated(self) -> bool:
        """Whether the next file is there already."""
        return self._offered is not None

    def discard_preallocated(self) -> None:
        """Delete a file that was made ahead and is not needed. Raises StoreError if it cannot be."""
        if self._offered is not None:
            self._offered.remove()
            self._offered = None

    def delete_first_file(self) -> None:
        """Delete the oldest file, which must not be the last: the log begins behind it then.

        Slices of it that are being sent stay valid. Raises StoreError if it cannot be deleted, with nothing
        changed.
        """
        assert len(self._files) > 1, "the last file is never deleted"
        self._files[0].remove()
        del self._files[0]
        self._start_offset = self._files[0].start_offset

    def archive(self, directory: Path) -> None:
        """Move all files to `directory`, which must not exist, and go on with an empty log.

        Raises OSError if the files cannot be moved, StoreError if what was built from them cannot be deleted;
        the log is then as it was, and what was built from it is built again.
        """
        try:
            self.before_restart()
            self.discard_preallocated()
            self._move_directory(directory)
        except (OSError, StoreError):
            # Dispatch has to begin anew although the log stays: it waits for these marks.
            for mark in (self.appended, self.flushed):
                mark.rewind(mark.offset)
            raise
        for file in self._files:
            file.close()
        self._files.clear()
        self.queue_offsets.clear()
        self.last_store_timestamp_ms = 0
        for mark in (self.appended, self.flushed):
            mark.rewind(self._start_offset)
        self.start_at(0)

    def _move_directory(self, directory: Path) -> None:
        """Rename the log's directory and make an empty one; raises OSError with the old one in its place."""
        self.directory.rename(directory)
        try:
            self.directory.mkdir()
            sync_directory(self.directory.parent)
        except OSError:
            if self.directory.exists():
                self.directory.rmdir()
            directory.rename(self.directory)
            raise

    def sync_work(self, start_offset: int, end_offset: int) -> SyncWork:
        """What a worker thread runs to put bytes `[start_offset, end_offset)` on disk.

        It needs no new descriptor for bytes that are not flushed: their files have theirs.
        """
        self._syncs = [work for work in self._syncs if work.left]
        work = SyncWork(sync_data)
        # From here on, so that `close` finds it if a file gives no descriptor.
        self._syncs.append(work)
        for file in self._files:
            if file.start_offset < end_offset and start_offset < file.end_offset:
                work.add(file.path, file.share())
        self._release_flushed()
        return work

    def _release_flushed(self) -> None:
        """Give up the descriptors of files that are full and on disk: no write or sync comes any more."""
        flushed_offset, last = self.flushed.offset, self._files[-1] if self._files else None
        held = self._held
        self._held = [file for file in held if file is last or file.end_offset > flushed_offset]
        for file in held:
            if file is not last and file.end_offset <= flushed_offset:
                file.release()

    def hold_last_file(self) -> None:
        """Keep a descriptor for the file that is written to. Raises StoreError if there is none."""
        if self._files:
            self._files[-1].hold()
            self._held = [self._files[-1]]

    def close(self) -> None:
        """Delete what was made ahead and close all files. Flush first.

        No sync may be running; those that were asked for and never ran are given up.
        """
        for work in self._syncs:
            work.close()
        self._syncs.clear()
        offered, self._offered = self._offered, None
        if offered is not None:
            try:
                offered.remove()
            except StoreError as error:
                # The next start finds it empty and removes it.
                log.warning("file made ahead stays", path=error.path, reason=error.reason)
                offered.close()
        self._held.clear()
        for file in self._files:
            file.close()
        self._files.clear()


@lru_cache(maxsize=4096)
def _encoded_topic(topic: str) -> tuple[bytes, bool, bool]:
    """The topic with its length before it, whether that takes a V2 record, and whether it is legal."""
    if topic_fault(topic):
        return b"", False, False
    data = topic.encode()
    version_2 = len(data) > TOPIC_BYTES_MAX_V1
    if not data or len(data) > TOPIC_BYTES_MAX or (version_2 and not topic.startswith(RETRY_TOPIC_PREFIX)):
        return data, version_2, False
    return (_I16 if version_2 else _TOPIC_V1).pack(len(data)) + data, version_2, True


def list_files(directory: Path, *, size: int) -> list[MappedFile]:
    """Map a log's files, oldest first; raises StoreError for one of another length or a missing one between.

    Other names are left alone, and so are folders (spec store 1). An empty last file is one that was being
    made when the process ended: it is removed.
    """
    if not directory.exists():
        return []
    paths = sorted(
        path
        for path in directory.iterdir()
        if len(path.name) == FILE_NAME_DIGITS and path.name.isdecimal() and path.is_file()
    )
    while paths and paths[-1].stat().st_size == 0:
        paths.pop().unlink()
    files: list[MappedFile] = []
    try:
        for path in paths:
            file = MappedFile.open(path, size=size)
            file.release()
            files.append(file)
            expected = files[0].start_offset + (len(files) - 1) * size
            if file.start_offset != expected:
                raise StoreError(
                    f"starts at {file.start_offset}, the file before it ends at {expected}",
                    path=path,
                    hint="a file of the log is missing or mappedFileSizeCommitLog is not the store's",
                )
    except StoreError:
        for file in files:
            file.close()
        raise
    return files
