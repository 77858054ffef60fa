"""The commit log of a store in use, read for an archive: nothing is written, locked or kept open there.

The log's files are listed and opened anew, since a running broker adds and deletes them. They are read, not
mapped: a file that the broker truncates or deletes ends a read, and would kill a process that has mapped it.

**The present end.** A broker writes records in order, with one thread, and this reader may see a record while
it is written: its header without its body, or all but some properties, which no CRC covers. So a part of the
log is read twice: `next_part` checks its records, and the bytes that are archived later must have the same
CRC. Where nothing follows the last record yet, some time passes between the two. Bytes that are no
whole record are the present end. They are damage if the log goes on after them, or if no broker
runs: its file `abort` is not there.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from attrs import frozen
from isal.isal_zlib import crc32

from trioha.archive.errors import ArchiveError, DamagedSourceError
from trioha.archive.layout import FRAME_BYTES, TOPICS_MAX
from trioha.numbers import I64
from trioha.store.mapped_file import FILE_NAME_DIGITS
from trioha.store.record_layout import (
    BLANK,
    BLANK_BYTES,
    BODY_AT_V4,
    HEAD,
    HEAD_BYTES,
    IPV6_EXTRA_BYTES,
    MAGICS,
    RECORD_BYTES_MIN,
    TOPIC_BYTES_MAX_V2,
    body_start,
    claimed_bytes,
    find_fault,
    starts_blank,
)
from trioha.store.record_statistics import RecordStatistics

WALK_BYTES: Final = 512 << 10
"""Read and checked at a time, in about half a millisecond: other threads wait for no longer."""
LOOK_AHEAD_BYTES: Final = 4 << 20
"""Searched for a record after bytes that are none."""
SETTLE_S: Final = 0.1
"""Time that a record at the log's end has to be completed, before its bytes are read again."""
ABORT_FILE: Final = "abort"
"""In a store while its broker runs, and after it was killed."""
_HEAD_READ_BYTES: Final = BODY_AT_V4 + 2 * IPV6_EXTRA_BYTES
_BESIDE_BODY_MAX: Final = TOPIC_BYTES_MAX_V2 + 0x7FFF + 2 * IPV6_EXTRA_BYTES + 1
"""Of a record: everything but its body and `RECORD_BYTES_MIN`."""
_MAGIC_BYTES: Final = tuple(magic.to_bytes(4, "big") for magic in sorted(MAGICS))


@frozen(kw_only=True)
class LogPart:
    """Whole, checked records and blanks of one log file."""

    first_offset: int
    end_offset: int
    records: int
    """Messages in it; a blank is none."""
    min_store_ms: int
    """Least store timestamp; 0 without records."""
    max_store_ms: int
    topics: tuple[str, ...] | None
    """Sorted; None for more than `TOPICS_MAX`, and for names that are no UTF-8."""
    crc32: int
    reaches_end: bool
    """Whether it reaches to the log's present end."""

    @property
    def log_bytes(self) -> int:
        """Size of it."""
        return self.end_offset - self.first_offset


class LogSource:
    """The commit log of a store. Everything here blocks; one thread uses it at a time.

    `commit_log` is its folder, if it is not that of its name in the store.

    `limit`, if given, is the offset to which the log may be read now: a node knows it. Raises ArchiveError
    (transient if a file vanishes while it is read) and DamagedSourceError.
    """

    def __init__(
        self,
        store: Path,
        *,
        commit_log: Path | None = None,
        limit: Callable[[], int] | None = None,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self.store = store
        folder = store / "commitlog" if commit_log is None else commit_log
        self.folder = folder if commit_log or folder.is_dir() or not any(_log_names(store)) else store
        self._root = self.folder.parent if commit_log is None else store
        self._limit = limit
        self._sleep = sleep
        self._files: dict[int, int] = {}
        """Sizes by start offset, oldest first."""

    # -- files ---------------------------------------------------------------------------------------------

    def refresh(self) -> None:
        """List the log's files."""
        try:
            sizes = {int(name): (self.folder / name).stat().st_size for name in _log_names(self.folder)}
        except FileNotFoundError as error:
            raise self._gone(error) from error
        except OSError as error:
            raise self._unreadable(error) from error
        self._files = {start: sizes[start] for start in sorted(sizes) if sizes[start]}

    @property
    def first_offset(self) -> int | None:
        """Offset of the first byte; None without a file."""
        return next(iter(self._files), None)

    @property
    def file_bytes(self) -> int:
        """Size of the log's files; 0 without one."""
        return next(iter(self._files.values()), 0)

    def is_stopped(self) -> bool:
        """Whether no broker uses the store: its file `abort` is not there."""
        return not (self._root / ABORT_FILE).exists()

    def estimated_end(self) -> int:
        """About where the log ends, without a walk: for progress. Raises ArchiveError."""
        last = next((start for start in reversed(self._files) if self._has_begun(start)), None)
        if last is None:
            return self.first_offset or 0
        low, high = 0, self._files[last] // 4096
        with self._opened(last) as fd:
            # Zeros follow after the end; a body may have a block of zeros, too, so this is an estimate.
            while low < high:
                middle = (low + high) // 2
                if any(os.pread(fd, 4096, middle * 4096)):
                    low = middle + 1
                else:
                    high = middle
        return last + min(low * 4096, self._files[last])

    # -- bytes ---------------------------------------------------------------------------------------------

    def pieces(self, first_offset: int, end_offset: int, *, size: int = FRAME_BYTES) -> Iterator[bytes]:
        """The bytes of `[first_offset, end_offset)`, of one or several files, in pieces of `size`.

        Raises ArchiveError if they are not all there.
        """
        offset = first_offset
        while offset < end_offset:
            want = min(size, end_offset - offset)
            piece = self._read(offset, want)
            while len(piece) < want:
                more = self._read(offset + len(piece), want - len(piece))
                if not more:
                    raise ArchiveError(
                        f"has no byte at offset {offset + len(piece)} any more",
                        url=str(self.folder),
                        is_transient=True,
                    )
                piece += more
            yield piece
            offset += want

    def has(self, first_offset: int, end_offset: int) -> bool:
        """Whether files have these bytes, by their sizes."""
        offset = first_offset
        while offset < end_offset:
            start = self._start_of(offset)
            if start is None:
                return False
            offset = start + self._files[start]
        return True

    def crc32(self, first_offset: int, end_offset: int) -> int | None:
        """CRC-32 of these bytes; None if the files do not have them all."""
        if not self.has(first_offset, end_offset):
            return None
        result = 0
        for piece in self.pieces(first_offset, end_offset, size=WALK_BYTES):
            result = crc32(piece, result)
        return result

    # -- records -------------------------------------------------------------------------------------------

    def next_part(self, offset: int, *, bytes_max: int) -> LogPart | None:
        """Whole, checked records from `offset` on, up to the end of the file or to `bytes_max`.

        At least one record or blank, whatever its size. None at the log's present end. Raises
        DamagedSourceError for damage at `offset`.
        """
        part = self._walk(offset, bytes_max=bytes_max)
        if part is None:
            part = self.check_end(offset, bytes_max=bytes_max)
        if part is not None and not self.goes_on(part.end_offset):
            self._sleep(SETTLE_S)
        return part

    def check_end(self, offset: int, *, bytes_max: int) -> LogPart | None:
        """Raise DamagedSourceError if the log cannot go on at `offset`, where no whole record was found.

        Returns the part that starts there if one has been written in the meantime.
        """
        if self._damage(offset) is None:
            return None
        # What follows was written after it: look once more at bytes that may have been unfinished.
        self._sleep(SETTLE_S)
        part = self._walk(offset, bytes_max=bytes_max)
        if part is None and (reason := self._damage(offset)) is not None:
            raise DamagedSourceError(reason, url=str(self.folder), offset=offset)
        return part

    def _walk(self, offset: int, *, bytes_max: int) -> LogPart | None:
        start = self._start_of(offset)
        if start is None:
            return None
        limit = start + self._files[start]
        if self._limit is not None:
            limit = min(limit, self._limit())
        part_end = min(limit, offset + bytes_max)
        at, crc, statistics = offset, 0, RecordStatistics(topics_max=TOPICS_MAX)
        is_full = False
        with self._opened(start) as fd:
            while at < limit:
                data = os.pread(fd, min(WALK_BYTES, part_end - at), at - start) if at < part_end else b""
                passed = statistics.pass_records(data, at=0, shift=at).at
                if not passed:
                    # A record of more bytes than were read, a blank, or the end.
                    size = self._claimed(fd, start, at, limit)
                    if at > offset and size and at + size > part_end:
                        is_full = True
                        break
                    if not size:
                        break
                    if at + size == start + self.file_bytes and self._is_blank(fd, start, at):
                        crc = self._crc_of(fd, at - start, size, crc)
                        at += size
                        break
                    data = os.pread(fd, size, at - start)
                    passed = statistics.pass_records(data, at=0, shift=at).at
                    if not passed:
                        break
                crc = crc32(memoryview(data)[:passed], crc)
                at += passed
        if at == offset:
            return None
        min_store_ms, max_store_ms = statistics.store_times_ms
        return LogPart(
            first_offset=offset,
            end_offset=at,
            records=statistics.records,
            # A record may claim a time before 1970.
            min_store_ms=max(0, min_store_ms),
            max_store_ms=max(0, max_store_ms),
            topics=_texts(statistics.topics),
            crc32=crc,
            reaches_end=not is_full and at < start + self.file_bytes,
        )

    def _claimed(self, fd: int, start: int, at: int, limit: int) -> int:
        """Size of the record or blank at `at`, by its header; 0 if it cannot end before `limit`."""
        head = os.pread(fd, _HEAD_READ_BYTES, at - start)
        size = claimed_bytes(head, 0, len(head))
        if size < BLANK_BYTES or size > limit - at:
            return 0
        if starts_blank(head, 0, len(head)):
            return size
        if size < RECORD_BYTES_MIN:
            return 0
        fields = HEAD.unpack_from(head)
        body_at = body_start(0, fields[7])
        if fields[1] not in MAGICS or fields[6] != at or body_at > len(head):
            return 0
        # Memory is taken for this size: a wrong one has another length of the body.
        body_bytes = int.from_bytes(head[body_at - 4 : body_at], "big", signed=True)
        return size if body_bytes <= size - RECORD_BYTES_MIN <= body_bytes + _BESIDE_BODY_MAX else 0

    def _is_blank(self, fd: int, start: int, at: int) -> bool:
        """Whether a whole blank starts at `at`: one that the next file follows."""
        head = os.pread(fd, BLANK_BYTES, at - start)
        return starts_blank(head, 0, len(head)) and start + self.file_bytes in self._files

    def _crc_of(self, fd: int, position: int, size: int, crc: int) -> int:
        while size:
            piece = os.pread(fd, min(size, WALK_BYTES), position)
            if not piece:
                break
            crc = crc32(piece, crc)
            position += len(piece)
            size -= len(piece)
        return crc

    def _damage(self, offset: int) -> str | None:
        """What is wrong at `offset`, where no whole record is; None if the log can go on there later."""
        start = self._start_of(offset)
        if start is None:
            later = next((first for first in self._files if first > offset), None)
            return None if later is None else f"its file is missing, there is one from {later} on"
        if self._limit is not None and offset >= self._limit():
            return None
        with self._opened(start) as fd:
            data = os.pread(fd, LOOK_AHEAD_BYTES, offset - start)
            size = self._claimed(fd, start, offset, start + self._files[start])
            if len(data) == LOOK_AHEAD_BYTES and size > 0 and not starts_blank(data, 0, len(data)):
                data += os.pread(fd, size, offset + len(data) - start)
        goes_on = _has_record(data, offset) or any(
            self._has_begun(first) for first in self._files if first > offset
        )
        if not any(data[:BLANK_BYTES]):
            return "zeros, and the log goes on after them" if goes_on else None
        if starts_blank(data, 0, len(data)):
            file_end = start + self.file_bytes
            if BLANK.unpack_from(data)[0] == file_end - offset:
                return f"the file after it, of offset {file_end}, is missing" if goes_on else None
            reason = "a blank that does not reach the end of its file"
        else:
            fault = find_fault(data, 0, len(data), offset)
            if fault is None:
                return None
            reason = fault.reason
        return reason if goes_on or self.is_stopped() else None

    def goes_on(self, offset: int) -> bool:
        """Whether something was written at `offset`."""
        start = self._start_of(offset)
        if start is None:
            return False
        with self._opened(start) as fd:
            return any(os.pread(fd, BLANK_BYTES, offset - start))

    # -- reading -------------------------------------------------------------------------------------------

    def _start_of(self, offset: int) -> int | None:
        """Start of the file that has the byte at `offset`."""
        first = self.first_offset
        if first is None or offset < first:
            return None
        start = offset - (offset - first) % self.file_bytes
        return start if offset < start + self._files.get(start, 0) else None

    def _has_begun(self, start: int) -> bool:
        with self._opened(start) as fd:
            return any(os.pread(fd, BLANK_BYTES, 0))

    def _read(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes at `offset`, of one file; empty where there is none."""
        start = self._start_of(offset)
        if start is None:
            return b""
        with self._opened(start) as fd:
            return os.pread(fd, min(size, start + self._files[start] - offset), offset - start)

    @contextmanager
    def _opened(self, start: int) -> Iterator[int]:
        try:
            fd = os.open(self.folder / f"{start:0{FILE_NAME_DIGITS}d}", os.O_RDONLY | os.O_CLOEXEC)
            try:
                yield fd
            finally:
                os.close(fd)
        except FileNotFoundError as error:
            raise self._gone(error) from error
        except OSError as error:
            raise self._unreadable(error) from error

    def _gone(self, error: OSError) -> ArchiveError:
        return ArchiveError(f"{error.filename} is gone", url=str(self.folder), is_transient=True)

    def _unreadable(self, error: OSError) -> ArchiveError:
        reason = f"cannot be read: {error.strerror or error}"
        return ArchiveError(reason, url=str(error.filename or self.folder))


def _log_names(folder: Path) -> list[str]:
    """Names of the log files in a folder; none if there is no such folder."""
    try:
        names = [path.name for path in folder.iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise ArchiveError(f"cannot be read: {error.strerror or error}", url=str(folder)) from error
    return [
        name
        for name in names
        if len(name) == FILE_NAME_DIGITS and name.isascii() and name.isdecimal() and int(name) < I64.high
    ]


def _has_record(data: bytes, offset: int) -> bool:
    """Whether a record starts after the first byte of `data`, which has `offset`."""
    for magic in _MAGIC_BYTES:
        at = data.find(magic, 5)
        while at >= 0:
            first = at - 4
            if len(data) - first >= HEAD_BYTES and HEAD.unpack_from(data, first)[6] == offset + first:
                return True
            at = data.find(magic, at + 1)
    return False


def _texts(topics: set[bytes] | None) -> tuple[str, ...] | None:
    if topics is None:
        return None
    try:
        return tuple(sorted(topic.decode() for topic in topics))
    except UnicodeDecodeError:
        return None
