"""Reads records of some queues in the order of the log, from the files alone, also of a store in use.

Beside `MessageReader`, which belongs to the thread of the store that it reads: this one opens files of its
own, maps nothing, takes no lock and changes nothing. A log file that is deleted meanwhile is passed over. Of
a queue only a few entries are in memory at a time.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Self

from attrs import define, field, frozen

from trioha.errors import StoreError
from trioha.store.consume_queue import ENTRY_BYTES, fields_of
from trioha.store.consume_queues import CONSUME_QUEUE_FOLDER
from trioha.store.entry_queue import BLANK_SIZE
from trioha.store.mapped_file import FILE_NAME_DIGITS
from trioha.store.record import Record, RecordError, decode_record
from trioha.store.record_layout import RECORD_BYTES_MIN
from trioha.store.topics import topic_fault

TO_THE_END: Final = 1 << 63
"""An end of the log that no log reaches."""
ENTRIES_PER_READ: Final = 256
RECORDS_PER_STEP: Final = 256
"""So many are read between two reports of the progress: some milliseconds."""
QueueKey = tuple[str, int]
"""Topic and queue id."""


@frozen
class QueueFolders:
    """Where the consume queues and the log of a store are."""

    queues: Path
    """`consumequeue`."""
    log: Path
    """`commitlog`."""

    @classmethod
    def of(cls, root: Path, *, log: Path | None = None) -> Self:
        """Of the store in `root`, whose log may be elsewhere."""
        return cls(root / CONSUME_QUEUE_FOLDER, root / "commitlog" if log is None else log)

    def queues_of(self, topic_prefix: str) -> list[QueueKey]:
        """The plain queues of all topics whose names begin so. Raises StoreError."""
        topics = [path for path in _listed(self.queues) if path.name.startswith(topic_prefix)]
        return sorted(
            (topic.name, int(path.name))
            for topic in topics
            for path in _listed(topic)
            if path.name.isascii() and path.name.isdecimal()
        )

    def records(
        self,
        queues: list[QueueKey],
        *,
        containing: bytes = b"",
        follow: Callable[[Record], QueueKey | None] = lambda _record: None,
        end_offset: int = TO_THE_END,
        on_step: Callable[[int, int], None] = lambda _offset, _end: None,
    ) -> Iterator[Record]:
        """Whole records of `queues` before the physical offset `end_offset`, in the order of the log.

        Records without the bytes `containing` are passed over: that costs a fifth of decoding them.
        `follow` may name a further queue: its records after that one are read, too. `on_step` is called now
        and then, with the physical offset that is reached, and the end. Blocks. Raises StoreError.
        """
        log_files = _LogFiles(self.log)
        end_offset = min(end_offset, log_files.end)
        cursors: list[tuple[int, int, int, Iterator[tuple[int, int]]]] = []
        """For each queue its next record, the first in the log on top: offset, size, number, what follows."""
        known: set[QueueKey] = set()

        def push(number: int, entries: Iterator[tuple[int, int]]) -> None:
            physical_offset, size = next(entries, (end_offset, 0))
            if physical_offset < end_offset:
                heapq.heappush(cursors, (physical_offset, size, number, entries))

        def add(queue: QueueKey, from_offset: int) -> None:
            if queue not in known:
                known.add(queue)
                push(len(known), self._entries(*queue, from_offset))

        try:
            for queue in queues:
                add(queue, log_files.start)
            steps = 0
            while cursors:
                physical_offset, size, number, entries = heapq.heappop(cursors)
                if (record := log_files.record(physical_offset, size, containing)) is not None:
                    yield record
                    if (followed := follow(record)) is not None:
                        add(followed, physical_offset + 1)
                push(number, entries)
                steps += 1
                if steps % RECORDS_PER_STEP == 0:
                    on_step(physical_offset, end_offset)
        finally:
            log_files.close()

    def _entries(self, topic: str, queue_id: int, from_offset: int) -> Iterator[tuple[int, int]]:
        """Physical offset and size of a queue's records from that physical offset on."""
        if topic_fault(topic):
            return
        files = _numbered(self.queues / topic / str(queue_id))
        firsts = [next(_entries_of(path), (0, 0))[0] for path in files[1:]]
        skipped = sum(first <= from_offset for first in firsts)
        for path in files[skipped:]:
            for physical_offset, size in _entries_of(path):
                if size != BLANK_SIZE and physical_offset >= from_offset:
                    yield physical_offset, size


@define
class _LogFiles:
    """The files of a log, the one that was read last being open."""

    folder: Path
    start: int = field(init=False)
    """First byte of the first file."""
    end: int = field(init=False)
    """After the last byte of the last file."""
    _file_bytes: int = field(init=False)
    _open_start: int | None = field(default=None, init=False)
    _descriptor: int = field(default=-1, init=False)

    def __attrs_post_init__(self) -> None:
        files = _numbered(self.folder)
        if not files:
            self.start = self.end = 0
            self._file_bytes = 1
            return
        try:
            self._file_bytes = files[0].stat().st_size
        except OSError as error:
            raise _unreadable(error, files[0]) from error
        self.start, self.end = int(files[0].name), int(files[-1].name) + self._file_bytes

    def record(self, physical_offset: int, size: int, containing: bytes) -> Record | None:
        """The record there; None without these bytes, and if there is no whole record of that size."""
        at = physical_offset % self._file_bytes
        if size < RECORD_BYTES_MIN or at + size > self._file_bytes:
            return None
        if not self._open(physical_offset - at):
            return None
        try:
            data = os.pread(self._descriptor, size, at)
        except OSError as error:
            raise _unreadable(error, self._path(physical_offset - at), physical_offset) from error
        if containing not in data:
            return None
        try:
            record = decode_record(data, check_crc=False)
        except RecordError:
            return None
        if not isinstance(record, Record) or (record.physical_offset, record.total_size) != (
            physical_offset,
            size,
        ):
            return None
        return record

    def _open(self, start: int) -> bool:
        """Open the file that starts there, if it is not open; False if it is deleted."""
        if start != self._open_start:
            self.close()
            try:
                self._descriptor = os.open(self._path(start), os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return False
            except OSError as error:
                raise _unreadable(error, self._path(start)) from error
            self._open_start = start
        return True

    def _path(self, start: int) -> Path:
        return self.folder / f"{start:0{FILE_NAME_DIGITS}d}"

    def close(self) -> None:
        if self._open_start is not None:
            os.close(self._descriptor)
            self._open_start = None


def _entries_of(path: Path) -> Iterator[tuple[int, int]]:
    """Physical offset and size of each entry of one file of a queue, up to the end of those written."""
    position = 0
    while True:
        try:
            with path.open("rb", buffering=0) as file:
                file.seek(position)
                data = file.read(ENTRIES_PER_READ * ENTRY_BYTES)
        except FileNotFoundError:
            # Deleted with the log files of its records.
            return
        except OSError as error:
            raise _unreadable(error, path) from error
        for physical_offset, size, _ in fields_of(data[: len(data) // ENTRY_BYTES * ENTRY_BYTES]):
            if physical_offset < 0 or size <= 0:
                return
            yield physical_offset, size
        if len(data) < ENTRIES_PER_READ * ENTRY_BYTES:
            return
        position += len(data)


def _numbered(folder: Path) -> list[Path]:
    """The files of a folder that are named by their first byte, in order."""
    return sorted(
        path
        for path in _listed(folder)
        if len(path.name) == FILE_NAME_DIGITS and path.name.isascii() and path.name.isdecimal()
    )


def _listed(folder: Path) -> list[Path]:
    """What is in a folder; nothing if there is none, or it is a file."""
    try:
        return list(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise _unreadable(error, folder) from error


def _unreadable(error: OSError, path: Path, offset: int | None = None) -> StoreError:
    return StoreError(f"cannot be read: {error.strerror}", path=path, offset=offset)
