"""Stores for tests of archives: logs of small files that grow between steps, and virtual time."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attrs import define, field
from obstore.store import MemoryStore

from tests.archive.building import Put, record_at
from trioha.archive.archiver import Archiver
from trioha.archive.heads import read_head
from trioha.archive.log_bytes import read_log_object
from trioha.archive.objects import ObjectFolder
from trioha.archive.reader import ArchiveReader
from trioha.archive.settings import ArchiveSettings
from trioha.store.record_layout import BLANK, BLANK_BYTES, MAGIC_BLANK

FILE_BYTES = 4096
START_MS = 1_700_000_000_000


@define
class Clock:
    """Virtual time: what sleeps, advances it."""

    now_s: float = 0.0
    ahead_ms: int = 0
    """How wrong the time of day is."""

    def wall_ms(self) -> int:
        """Time of day."""
        return START_MS + self.ahead_ms + round(self.now_s * 1000)

    def monotonic(self) -> float:
        """Seconds."""
        return self.now_s

    def sleep(self, seconds: float) -> None:
        """Let that much time pass."""
        self.now_s += seconds


@define
class Log:
    """A store with a commit log that a broker writes."""

    store: Path
    file_bytes: int = FILE_BYTES
    first_offset: int = 0
    end_offset: int = field(init=False)
    clock: Clock = field(factory=Clock)
    is_new: bool = True

    def __attrs_post_init__(self) -> None:
        self.end_offset = self.first_offset
        if not self.is_new:
            return
        (self.store / "commitlog").mkdir(parents=True, exist_ok=True)
        (self.store / "abort").touch()
        self._file(self.first_offset)

    def append(self, count: int = 1, *, body: bytes = b"body", topic: str = "T") -> None:
        """Write records, with blanks and new files as a broker does."""
        for _ in range(count):
            data = self.record(self.end_offset, body=body, topic=topic)
            left = self.file_bytes - self.end_offset % self.file_bytes
            if len(data) + BLANK_BYTES > left:
                self.write(self.end_offset, BLANK.pack(left, MAGIC_BLANK))
                self.end_offset += left
                self._file(self.end_offset)
                data = self.record(self.end_offset, body=body, topic=topic)
            self.write(self.end_offset, data)
            self.end_offset += len(data)

    def record(self, offset: int, *, body: bytes = b"body", topic: str = "T") -> bytes:
        """A record that belongs at `offset`."""
        return record_at(offset, Put(body=body, topic=topic, store_ms=self.clock.wall_ms()))

    def write(self, offset: int, data: bytes) -> None:
        """Put bytes into the files."""
        path = self.path(offset)
        with path.open("r+b") as file:
            file.seek(offset % self.file_bytes)
            file.write(data)

    def data(self) -> bytes:
        """All bytes of the log."""
        return self.bytes_of(self.first_offset, self.end_offset)

    def bytes_of(self, first: int, end: int) -> bytes:
        """These bytes."""
        start = first - first % self.file_bytes
        data = b"".join(self.path(at).read_bytes() for at in range(start, end, self.file_bytes))
        return data[first - start : end - start]

    def delete_first_file(self) -> None:
        """As retention does."""
        self.path(self.first_offset).unlink()
        self.first_offset += self.file_bytes

    def fork(self, store: Path) -> Log:
        """A copy that goes on by itself."""
        shutil.copytree(self.store, store)
        log = Log(store, self.file_bytes, self.first_offset, clock=self.clock, is_new=False)
        log.end_offset = self.end_offset
        return log

    def cut(self, end: int) -> None:
        """Cut it as a broker that lost its tail: zeros from `end` on, and no later files."""
        first_later = end - end % self.file_bytes + self.file_bytes
        for start in range(first_later, self.end_offset + 1, self.file_bytes):
            self.path(start).unlink(missing_ok=True)
        self.write(end, bytes(first_later - end))
        self.end_offset = end

    def config(self, **files: str) -> None:
        """Write config files; names without .json."""
        (self.store / "config").mkdir(exist_ok=True)
        for name, text in files.items():
            (self.store / "config" / f"{name}.json").write_text(text)

    def path(self, offset: int) -> Path:
        return self.store / "commitlog" / f"{offset - offset % self.file_bytes:020d}"

    def _file(self, start: int) -> None:
        with self.path(start).open("xb") as file:
            file.truncate(self.file_bytes)


def archiver_of(folder: ObjectFolder, log: Log, **settings: Any) -> Archiver:
    """An archiver in the log's virtual time that has begun."""
    archiver = new_archiver(folder, log, **settings)
    archiver.begin()
    return archiver


def new_archiver(
    folder: ObjectFolder,
    log: Log,
    *,
    take_over: bool = False,
    trust_clock: bool = False,
    store: Path | None = None,
    notify: Callable[[str], object] = lambda _text: None,
    sleep: Callable[[float], object] | None = None,
    **settings: Any,
) -> Archiver:
    """An archiver in the log's virtual time."""
    return Archiver(
        folder,
        log.store if store is None else store,
        settings=ArchiveSettings(**settings),
        take_over=take_over,
        trust_clock=trust_clock,
        notify=notify,
        wall_ms=log.clock.wall_ms,
        monotonic=log.clock.monotonic,
        sleep=log.clock.sleep if sleep is None else sleep,
    )


def in_memory() -> ObjectFolder:
    """An object storage of this process."""
    return ObjectFolder(MemoryStore(), "memory:///archive")


def reader_of(folder: ObjectFolder) -> ArchiveReader:
    """A reader of the newest head."""
    head = read_head(folder)
    assert head is not None
    return ArchiveReader(folder, head)


def archived(folder: ObjectFolder, generation: str | None = None) -> tuple[int, bytes]:
    """First offset and all bytes of an archived generation, each object checked."""
    reader = reader_of(folder)
    found = reader.generation(generation)
    data = b"".join(piece for one in reader.objects(found) for piece in read_log_object(folder, one))
    return found.first_offset, data
