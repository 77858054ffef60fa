"""The history of a store's metadata: what topics, groups and offsets were at a time in the past.

A wrong reset of offsets is noticed hours later, when the files have long been written over. The history is a
folder of segments, the oldest of which are deleted when all of them exceed `HistorySettings.bytes_max`:

| file | content |
|---|---|
| `config/history/<ms>.jsonl` | a line for each change, the first one with all tables; `ms`: its time |

| member of a line | meaning |
|---|---|
| `t` | time, ms since 1970 |
| `tables` | first line: entries of all tables by file name |
| `file`, `set`, `gone` | later lines: a table, its changed entries, and the names of those removed |
| `back` | true if a consumer offset or delay offset went back |

An entry is a topic, a group, or the offsets of one `topic@group`, as in its file. A table's changes are
gathered for `interval_s`, but for offsets that go back: what they were before is then written as well, with
the time when they were last written to their file. A line is on disk before the next one is begun; one that a
crash has cut is passed over by the reader. All functions block.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal

from attrs import define, field, frozen

from trioha.errors import StoreError
from trioha.metadata.table import wall_clock_ms
from trioha.store.syncing import sync_directory, sync_whole
from trioha.unwritten import HISTORY, Unwritten

FOLDER: Final = "history"
"""In the folder `config` of the store."""
SEGMENTS: Final = 8
"""About so many segments fill `bytes_max`."""
TABLES: Final = {
    "topics.json": "topicConfigTable",
    "subscriptionGroup.json": "subscriptionGroupTable",
    "consumerOffset.json": "offsetTable",
    "delayOffset.json": "offsetTable",
}
"""The tables of the history, and the members of their files that hold the entries."""
CONSUMER_OFFSETS: Final = "consumerOffset.json"

Entries = Mapping[str, Any]
"""The entries of a table by name. Offsets of a `topic@group` are a map of numbers; of a delay level, one."""


@frozen
class HistorySettings:
    """Where the history is, and how much of it is kept."""

    folder: Path
    bytes_max: int = 64 * 1024 * 1024
    """trioha.metadataHistoryBytes: of all segments, beside the newest one's first line."""
    interval_s: float = 60.0
    """trioha.metadataHistoryInterval."""


@frozen
class Difference:
    """What has changed between two states of a table."""

    changed: Entries
    gone: tuple[str, ...]
    went_back: bool = False
    """Whether an offset went back, or is gone."""

    @classmethod
    def between(cls, old: Entries, new: Entries) -> Difference:
        """Compare two states."""
        changed = {name: value for name, value in new.items() if old.get(name) != value}
        gone = tuple(name for name in old if name not in new)
        went_back = any(_went_back(old[name], new.get(name)) for name in (*changed, *gone) if name in old)
        return cls(changed, gone, went_back)

    @property
    def is_empty(self) -> bool:
        """Whether nothing has changed."""
        return not self.changed and not self.gone


def _went_back(old: object, new: object) -> bool:
    if isinstance(old, int):
        return not isinstance(new, int) or new < old
    if not isinstance(old, Mapping) or not all(isinstance(offset, int) for offset in old.values()):
        return False
    queues = new if isinstance(new, Mapping) else {}
    return any(not isinstance(queues.get(queue), int) or queues[queue] < old[queue] for queue in old)


@define
class _Seen:
    """A table as it was last noted, and as it was last recorded."""

    noted: Entries
    noted_ms: int
    recorded: Entries
    recorded_ms: int


class MetadataHistory:
    """Writes the history of one store. Threads may call it at the same time.

    A history that cannot be written is reported, and goes on with a new segment at the next change.
    """

    def __init__(
        self,
        settings: HistorySettings,
        *,
        now_ms: Callable[[], int] = wall_clock_ms,
        unwritten: Unwritten | None = None,
    ) -> None:
        self._settings = settings
        self._unwritten = unwritten or Unwritten()
        self._now_ms = now_ms
        self._lock = threading.Lock()
        self._tables: dict[str, _Seen] = {}
        self._segment: Path | None = None
        """What is appended to; open only while a line is written, since there is a line in a minute."""
        self._bytes = 0
        """Of the segment."""
        self._first_bytes = 0
        """Of its first line."""

    def begin(self, values: Mapping[str, Mapping[str, object]]) -> None:
        """Begin a segment with the JSON values of all files, by file name."""
        with self._lock:
            now_ms = self._now_ms()
            for name, value in values.items():
                if name in TABLES:
                    entries = entries_of(name, value)
                    self._tables[name] = _Seen(entries, now_ms, entries, now_ms)
            self._guarded(lambda: self._begin_segment(now_ms))

    def note(self, file_name: str, value: Mapping[str, object]) -> None:
        """A file was written with this JSON value, of which nobody changes anything any more."""
        if file_name not in TABLES:
            return
        with self._lock:
            seen, now_ms = self._tables[file_name], self._now_ms()
            entries = entries_of(file_name, value)
            is_offsets = file_name in {CONSUMER_OFFSETS, "delayOffset.json"}
            if is_offsets and Difference.between(seen.noted, entries).went_back:
                self._record(file_name, seen)
                seen.noted, seen.noted_ms = entries, now_ms
                self._record(file_name, seen, went_back=True)
                return
            seen.noted, seen.noted_ms = entries, now_ms
            if now_ms - seen.recorded_ms >= self._settings.interval_s * 1000 or now_ms < seen.recorded_ms:
                self._record(file_name, seen)

    def close(self) -> None:
        """Record what was gathered."""
        with self._lock:
            for name, seen in self._tables.items():
                self._record(name, seen)

    def _record(self, name: str, seen: _Seen, *, went_back: bool = False) -> None:
        """Write what has changed since the last record of a table."""
        difference = Difference.between(seen.recorded, seen.noted)
        seen.recorded, seen.recorded_ms = seen.noted, seen.noted_ms
        if difference.is_empty:
            return
        line: dict[str, object] = {"t": seen.noted_ms, "file": name, "set": difference.changed}
        if difference.gone:
            line["gone"] = difference.gone
        if went_back:
            line["back"] = True
        self._guarded(lambda: self._append(line, now_ms=seen.noted_ms))

    def _append(self, line: Mapping[str, object], *, now_ms: int) -> None:
        limit = self._first_bytes + self._settings.bytes_max // SEGMENTS
        segment = self._segment
        if segment is None or self._bytes >= limit or not segment.exists():
            # Its first line has this change, too.
            self._begin_segment(now_ms)
            return
        self._bytes += _write(segment, _encode(line), mode="ab")

    def _begin_segment(self, now_ms: int) -> None:
        self._segment = None
        folder = self._settings.folder
        if not folder.exists():
            folder.mkdir(parents=True)
            sync_directory(folder.parent)
        # Two starts within a millisecond, or a clock that was set back, must not write over a segment.
        newest = max((_start_ms(path) for path in segments_of(folder)), default=-1)
        path = folder / f"{max(now_ms, newest + 1):020}.jsonl"
        data = _encode({"t": now_ms, "tables": {name: seen.recorded for name, seen in self._tables.items()}})
        self._bytes = self._first_bytes = _write(path, data, mode="xb")
        sync_directory(folder)
        self._segment = path
        self._delete_old(folder)

    def _delete_old(self, folder: Path) -> None:
        segments = segments_of(folder)
        sizes = [path.stat().st_size for path in segments]
        excess = sum(sizes) - self._settings.bytes_max
        for path, size in zip(segments[:-1], sizes, strict=False):
            if excess <= 0:
                break
            path.unlink()
            excess -= size

    def _guarded(self, write: Callable[[], None]) -> None:
        try:
            write()
        except OSError as error:
            self._segment = None
            reason = f"{self._settings.folder}: {error.strerror or error}"
            self._unwritten.fail(HISTORY, reason, consequence="metadata are kept without their history")
        else:
            self._unwritten.succeed(HISTORY)


def _write(path: Path, data: bytes, *, mode: Literal["ab", "xb"]) -> int:
    """The length of a line that was written whole, and is on disk. Raises OSError."""
    with path.open(mode) as file:
        written = file.write(data)
        file.flush()
        sync_whole(file.fileno())
    return written


def entries_of(file_name: str, value: Mapping[str, object]) -> Entries:
    """The entries of a file's JSON value, with texts as names."""
    table = value.get(TABLES[file_name])
    if not isinstance(table, Mapping):
        return {}
    if file_name == CONSUMER_OFFSETS:
        return {
            name: {str(queue): offset for queue, offset in queues.items()} for name, queues in table.items()
        }
    return {str(name): entry for name, entry in table.items()}


def _encode(line: Mapping[str, object]) -> bytes:
    return json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace") + b"\n"


# -- reading


@frozen
class MetadataAt:
    """The metadata of a store at a time."""

    time_ms: int
    """Of the last change before that time, ms since 1970."""
    tables: Mapping[str, Entries] = field(factory=dict)
    """Entries by file name."""


def segments_of(folder: Path) -> list[Path]:
    """The segments of a history, the oldest first."""
    return sorted(path for path in folder.glob("*.jsonl") if path.stem.isdigit())


def read_history(folder: Path, at_ms: int) -> MetadataAt:
    """The metadata as it was at `at_ms`, as far as it was recorded then.

    Raises StoreError if the history does not go back so far, or cannot be read.
    """
    segments = segments_of(folder)
    before = [path for path in segments if _start_ms(path) <= at_ms]
    if not before:
        begin = f"begins at {_start_ms(segments[0])} ms" if segments else "has no segment"
        raise StoreError(f"the history {begin}, {at_ms} ms is before it", path=folder)
    for path in reversed(before):
        time_ms = -1
        tables: dict[str, Any] = {}
        for line in _lines(path):
            line_ms = line.get("t")
            if not isinstance(line_ms, int) or (line_ms > at_ms and time_ms >= 0):
                continue
            time_ms = max(time_ms, line_ms)
            _apply(tables, line)
        if time_ms >= 0:
            return MetadataAt(time_ms, tables)
        # A crash or a full disk has cut its first line.
    raise StoreError("no segment has a line that can be read", path=folder)


def _apply(tables: dict[str, Any], line: Mapping[str, Any]) -> None:
    """Make the changes of a line."""
    if isinstance(whole := line.get("tables"), dict):
        tables.update({name: dict(entries) for name, entries in whole.items() if isinstance(entries, dict)})
        return
    changed, gone = line.get("set"), line.get("gone", ())
    if isinstance(changed, dict):
        table = tables.setdefault(str(line.get("file")), {})
        table.update(changed)
        for name in gone:
            table.pop(name, None)


def _lines(path: Path) -> Iterator[Mapping[str, Any]]:
    try:
        with path.open("rb") as file:
            for data in file:
                try:
                    line = json.loads(data)
                except ValueError:
                    # The end of a line that a crash has cut.
                    continue
                if isinstance(line, dict):
                    yield line
    except OSError as error:
        raise StoreError(f"cannot be read: {error.strerror}", path=path) from error


def _start_ms(path: Path) -> int:
    return int(path.stem)
