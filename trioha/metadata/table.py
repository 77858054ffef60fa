"""What all metadata tables share: a version, a count of changes, and a form for the file.

Theory of operation. A table lives in the loop's thread and never touches the disk. Each change moves
`changes`, for which the users of changes wait: the writer of the file, registrations with name servers, a
slave's copy. `MetadataStore` writes the file in a worker thread from a
`snapshot`, which later changes do not touch, and then moves `written`.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import ClassVar, Generic, Protocol, Self, TypeVar

from trioha.metadata.data_version import DataVersion
from trioha.metadata.values import members
from trioha.watermark import Watermark


def wall_clock_ms() -> int:
    """Now, ms since 1970."""
    return time.time_ns() // 1_000_000


class MetadataTable(ABC):
    """One metadata file's contents."""

    file_name: str
    """In the folder `config` of the store."""
    version_if_absent: DataVersion | None = None
    """Version of a table whose file has none."""

    def __init__(self, *, now_ms: Callable[[], int] = wall_clock_ms) -> None:
        self.version: DataVersion | None = None
        """None where the file has none: offsets of a 4.9 broker."""
        self.other: dict[str, object] = {}
        """Members of the file that trioha does not know; they are written back."""
        self.changes = Watermark()
        """How often the table has changed since the start."""
        self.written = Watermark()
        """Of `changes`: for how many a write was attempted. A failed one is repeated."""
        self._now_ms = now_ms

    def load(self, value: object) -> None:
        """Take the table from its file's JSON value. Raises ValueError, and is as it was then."""
        fields = dict(members(value, self.file_name))
        version = self.version_if_absent
        if "dataVersion" in fields:
            version = DataVersion.of(fields.pop("dataVersion"))
        self._load(fields)
        self.version, self.other = version, fields

    def snapshot(self) -> Callable[[], Mapping[str, object]]:
        """What makes the JSON value of the table as it is now, also in another thread and later."""
        version = {} if self.version is None else {"dataVersion": self.version.to_json()}
        other, own = dict(self.other), self._snapshot()
        return lambda: dict(sorted({**other, **version, **own()}.items()))

    def note_written(self, changes: int) -> None:
        """An attempt was made to write the table as it was after so many changes."""
        self.written.advance(changes)

    def _note_change(self) -> None:
        if self.version is not None:
            self.version = self.version.following(self._now_ms())
        self.changes.advance(self.changes.offset + 1)

    @abstractmethod
    def _load(self, fields: dict[str, object]) -> None:
        """Take what the table knows out of `fields`. Raises ValueError before anything is changed."""

    @abstractmethod
    def _snapshot(self) -> Callable[[], Mapping[str, object]]:
        """What makes the members that `_load` takes, of copies that do not change."""


class Entry(Protocol):
    """An entry of a table, known by its name. Never changed: another value is another object."""

    @property
    def name(self) -> str:
        """Its key in the table."""

    @classmethod
    def of(cls, value: object, *, name: str | None = None) -> Self:
        """From its JSON value, in which `name` takes the place of its own. Raises ValueError."""

    def to_json(self) -> dict[str, object]:
        """Its JSON value."""


E = TypeVar("E", bound=Entry)


class EntryTable(MetadataTable, Generic[E]):
    """A table of entries by name, as topics and groups are."""

    member: ClassVar[str]
    """The member of the file that has the entries."""
    what: ClassVar[str]
    """What they are, and the setting that limits their number."""
    version_if_absent = DataVersion()

    def __init__(self, kind: type[E], *, now_ms: Callable[[], int] = wall_clock_ms) -> None:
        super().__init__(now_ms=now_ms)
        self.version: DataVersion = DataVersion()
        self.kind = kind
        self.entries: dict[str, E] = {}
        """Read it; change it by the methods only."""

    def _load(self, fields: dict[str, object]) -> None:
        table = members(fields.pop(self.member, {}), self.member)
        self.entries = {name: self.kind.of(value, name=name) for name, value in table.items()}

    def _snapshot(self) -> Callable[[], Mapping[str, object]]:
        entries = dict(self.entries)
        return lambda: {self.member: {name: entry.to_json() for name, entry in entries.items()}}

    def find(self, name: str) -> E | None:
        """The entry, if there is one."""
        return self.entries.get(name)

    def put(self, entry: E) -> None:
        """Create or replace an entry. Raises TableFull."""
        if entry.name not in self.entries and len(self.entries) >= self._entries_max:
            raise TableFull(f"this broker has {len(self.entries)} {self.what}")
        self.entries[entry.name] = entry
        self._note_change()

    def delete(self, name: str) -> bool:
        """Delete an entry; whether there was one."""
        if self.entries.pop(name, None) is None:
            return False
        self._note_change()
        return True

    def replace_all(
        self,
        entries: Iterable[E],
        version: DataVersion,
        *,
        other: Mapping[str, object] = MappingProxyType({}),
    ) -> None:
        """Be a copy of another broker's table; `other` are members of its file that trioha does not know."""
        self.entries = {entry.name: entry for entry in entries}
        self.other = {**self.other, **other}
        self._note_change()
        self.version = version

    @property
    @abstractmethod
    def _entries_max(self) -> int:
        """How many entries there may be."""


class TableFull(Exception):  # noqa: N818 - says what the table is
    """A table has as many entries as it may have; `str()` names the setting."""
