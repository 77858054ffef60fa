"""Recorded sessions in archives, for those who read sessions by their folders.

An archive in a folder has its sessions in the folder `recordings`, where they are read as any others. Those
of an object storage are read in place, through `ObjectPath`, which has the methods of a `pathlib.Path` that
readers of sessions use. The list of their segments comes from the archive's head: none is opened for it.
"""

from __future__ import annotations

import errno
import io
from collections.abc import Iterable, Mapping
from os import SEEK_CUR, SEEK_END, SEEK_SET, strerror
from pathlib import Path, PurePosixPath
from typing import IO, Final, Literal, cast

from attrs import field, frozen

from trioha.archive.access import Location, is_remote
from trioha.archive.errors import MissingObjectError, NoArchiveError
from trioha.archive.heads import read_head
from trioha.archive.layout import HEADS, RECORDINGS, RecordedSegment, RecordedSession
from trioha.errors import StoreError
from trioha.recording.paths import absolute_path
from trioha.recording.reader import Segment, find_sessions

READ_BYTES_MIN: Final = 1 << 20
"""Bytes of one request, if the object has them."""


@frozen
class ObjectPath:
    """A file or folder of an object storage, read-only; may be pickled. Paths are equal if their keys are."""

    location: Location
    """Of the archive."""
    key: str
    session: RecordedSession | None = field(default=None, eq=False, repr=False)
    """Of a session's folder: what the archive's head had of it when it was listed."""

    def __reduce__(self) -> tuple[type[ObjectPath], tuple[Location, str]]:
        """Without the list of segments: tasks are sent what they read."""
        return ObjectPath, (self.location, self.key)

    def __truediv__(self, name: str) -> ObjectPath:
        return ObjectPath(self.location, f"{self.key}/{name}")

    def __str__(self) -> str:
        return f"{self.location.url}/{self.key}"

    def __lt__(self, other: ObjectPath) -> bool:
        return str(self) < str(other)

    @property
    def name(self) -> str:
        """The last part of the key."""
        return PurePosixPath(self.key).name

    @property
    def stem(self) -> str:
        """The name without its suffix."""
        return PurePosixPath(self.key).stem

    @property
    def suffix(self) -> str:
        """The name's end, from the last dot on."""
        return PurePosixPath(self.key).suffix

    def resolve(self) -> ObjectPath:
        """Itself: there are no links."""
        return self

    def read_bytes(self) -> bytes:
        """The whole object. Raises FileNotFoundError if there is none, ArchiveError."""
        try:
            return self.location.open().get(self.key)
        except MissingObjectError as error:
            raise _not_found(self) from error

    def open(self, mode: Literal["rb"] = "rb") -> IO[bytes]:
        """The object as a file that reads what is needed. Raises FileNotFoundError, ArchiveError."""
        assert mode == "rb", "objects are only read"
        return io.BufferedReader(cast("io.RawIOBase", _ObjectFile(self)), READ_BYTES_MIN)

    def exists(self) -> bool:
        """Whether there is such an object."""
        try:
            self.location.open().size(self.key)
        except MissingObjectError:
            return False
        return True

    def list_segments(self) -> list[Segment]:
        """The segments of this session in order: as it was listed, else as the archive's head has it now."""
        session = self.session or _session_now(self)
        return [
            Segment(_as_path(ObjectPath(self.location, one.key)), one.first_seq, one.first_ns, 0, one.records)
            for one in sorted(session.segments, key=_first_seq)
        ]


class _ObjectFile(io.RawIOBase):
    """Reads an object by ranges."""

    def __init__(self, path: ObjectPath) -> None:
        super().__init__()
        self._folder, self._key = path.location.open(), path.key
        try:
            self._size = self._folder.size(self._key)
        except MissingObjectError as error:
            raise _not_found(path) from error
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = SEEK_SET) -> int:
        origin = {SEEK_SET: 0, SEEK_CUR: self._at, SEEK_END: self._size}[whence]
        self._at = max(0, origin + offset)
        return self._at

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        end = min(self._size, self._at + len(buffer))
        if end <= self._at:
            return 0
        data = self._folder.get_range(self._key, start=self._at, end=end)
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


def find_recordings(paths: Iterable[str | Path], *, settings: Mapping[str, str] | None = None) -> list[Path]:
    """The session folders of `paths`, each a session, a folder of sessions, or an archive, by path or URL.

    `s3://bucket/archive` has all sessions of an archive, `s3://bucket/archive/recordings/SESSION` has one.
    `settings` are those of the storage, beside the environment's. Raises StoreError or ArchiveError for paths
    without sessions.
    """
    found: list[Path] = []
    for path in paths:
        if is_remote(path):
            found += map(_as_path, _of_archive(str(path), settings))
        else:
            folder = absolute_path(path)
            is_archive = (folder / HEADS).is_dir() and (folder / RECORDINGS).is_dir()
            found += find_sessions([folder / RECORDINGS if is_archive else folder])
    return list(dict.fromkeys(found))


def _of_archive(url: str, settings: Mapping[str, str] | None) -> list[ObjectPath]:
    base, _, wanted = url.rstrip("/").partition(f"/{RECORDINGS}")
    wanted = wanted.strip("/")
    location = Location.of(base, settings)
    head = read_head(location.open())
    if head is None:
        raise NoArchiveError(base)
    found = [
        ObjectPath(location, f"{RECORDINGS}/{one.session}", one)
        for one in head.recordings
        if wanted in {"", one.session}
    ]
    if not found:
        raise StoreError(
            "the archive has no recorded sessions" if not wanted else "the archive has no such session",
            path=url,
            hint="a node with trioha.recordDir records them",
        )
    return found


def _session_now(path: ObjectPath) -> RecordedSession:
    head = read_head(path.location.open())
    for one in () if head is None else head.recordings:
        if f"{RECORDINGS}/{one.session}" == path.key:
            return one
    raise StoreError("the archive has no such session any more", path=str(path))


def _first_seq(segment: RecordedSegment) -> int:
    return segment.first_seq


def _not_found(path: ObjectPath) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, strerror(errno.ENOENT), str(path))


def _as_path(path: ObjectPath) -> Path:
    """For readers of sessions, which use only the methods that it has."""
    return cast("Path", path)
