"""Values of the archive format, version 1, and the keys of objects: see `docs/archive-format.md`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final, Literal

from attrs import frozen

FORMAT: Final = "trioha-archive"
VERSION: Final = 1

HEADS: Final = "heads"
PAGES: Final = "pages"
LOG: Final = "log"
METADATA: Final = "metadata"
RECORDINGS: Final = "recordings"

OBJECT_BYTES_MAX: Final = 64 << 20
"""Bytes of the log in one object."""
FRAME_BYTES: Final = 4 << 20
"""Bytes of the log in one zstd frame."""
TOPICS_MAX: Final = 64
"""Topics that an object's statistics name."""
PAGE_OBJECTS: Final = 64

Codec = Literal["none", "zstd"]

_KEY: Final = re.compile(r"[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)+")
_NUMBERED: Final = re.compile(rf"{HEADS}/([0-9]{{20}})\.json\.zst")


@frozen(kw_only=True)
class LogObject:
    """An immutable part of the log."""

    key: str
    first_offset: int
    end_offset: int
    records: int
    """Messages in it; a blank is none."""
    min_store_ms: int
    """Least store timestamp; 0 without records."""
    max_store_ms: int
    topics: tuple[str, ...] | None
    """Sorted; None for more than `TOPICS_MAX`."""
    crc32: int
    """Of the log's bytes, before compression."""
    codec: Codec
    object_bytes: int
    """Size of the object."""

    @property
    def log_bytes(self) -> int:
        """Size of its part of the log."""
        return self.end_offset - self.first_offset


@frozen(kw_only=True)
class MetadataObject:
    """The broker's config files at one moment."""

    key: str
    taken_ms: int
    offset: int
    """No offset in the files is beyond it."""
    bytes: int
    """Size of the object."""


@frozen(kw_only=True)
class Page:
    """A sealed part of a generation's list of objects, with statistics over it."""

    key: str
    first_offset: int
    end_offset: int
    records: int
    min_store_ms: int
    max_store_ms: int
    topics: tuple[str, ...] | None
    objects: int
    object_bytes: int


@frozen(kw_only=True)
class PageContent:
    """What a page's object has."""

    objects: tuple[LogObject, ...]
    metadata: tuple[MetadataObject, ...]


@frozen(kw_only=True)
class Generation:
    """One history of the log."""

    id: str
    began_ms: int
    reason: str
    file_bytes: int
    """Size of the commit log's files."""
    first_offset: int
    pages: tuple[Page, ...] = ()
    objects: tuple[LogObject, ...] = ()
    """Those after the pages, in order, without a hole."""
    metadata: tuple[MetadataObject, ...] = ()
    """Those that no page has, in order of time."""

    @property
    def end_offset(self) -> int:
        """End of what is archived."""
        if self.objects:
            return self.objects[-1].end_offset
        return self.pages[-1].end_offset if self.pages else self.first_offset


@frozen(kw_only=True)
class Writer:
    """Who creates the heads."""

    id: str
    """Host and path of the store."""
    epoch: int
    """One more with each writer that takes over."""
    since_ms: int
    renewed_ms: int
    token: str = ""
    """Drawn by each writer when it begins: two that begin together are told apart."""


@frozen(kw_only=True)
class RecordedSegment:
    """A packed segment of a recorded session."""

    key: str
    first_seq: int
    records: int
    first_ns: int
    """Monotonic clock of the first record."""
    last_ns: int
    bytes: int


@frozen(kw_only=True)
class RecordedSession:
    """A recorded session in the archive."""

    session: str
    segments: tuple[RecordedSegment, ...]
    closed: bool
    """Whether its node has ended it."""


@frozen(kw_only=True)
class Head:
    """The state of an archive."""

    number: int
    cluster_name: str
    broker_name: str
    writer: Writer
    generations: tuple[Generation, ...]
    """Oldest first; the last one grows."""
    recordings: tuple[RecordedSession, ...] = ()
    format: str = FORMAT
    version: int = VERSION


@frozen(kw_only=True)
class MetadataContent:
    """What a metadata object has."""

    taken_ms: int
    offset: int
    files: dict[str, str]
    """Contents by file name."""


def head_key(number: int) -> str:
    """Where the head of this number is."""
    return f"{HEADS}/{number:020d}.json.zst"


def head_number(key: str) -> int | None:
    """The number of a head by its key; None for a key of anything else."""
    match = _NUMBERED.fullmatch(key)
    return None if match is None else int(match[1])


def log_key(generation: str, *, first_offset: int, end_offset: int, crc32: int, codec: Codec) -> str:
    """Where a part of the log is."""
    suffix = ".log.zst" if codec == "zstd" else ".log"
    return f"{LOG}/{generation}/{first_offset:020d}-{end_offset:020d}-{crc32:08x}{suffix}"


def page_key(generation: str, *, first_offset: int, token: str) -> str:
    """Where a page is; `token` keeps the keys of two writers apart."""
    return f"{PAGES}/{generation}/{first_offset:020d}-{token}.json.zst"


def metadata_key(generation: str, *, offset: int, taken_ms: int, token: str) -> str:
    """Where metadata of a moment is; `token` keeps the keys of two writers apart."""
    return f"{METADATA}/{generation}/{offset:020d}-{taken_ms:013d}-{token}.json.zst"


def is_key(text: str) -> bool:
    """Whether it can be a key: of letters, digits, `_`, `.` and `-`, and of nothing that leads elsewhere."""
    return bool(_KEY.fullmatch(text)) and not any(set(part) == {"."} for part in text.split("/"))


def union_of_topics(parts: Iterable[tuple[str, ...] | None]) -> tuple[str, ...] | None:
    """Topics of several objects together; None if one has None, or for more than `TOPICS_MAX`."""
    topics: set[str] = set()
    for part in parts:
        if part is None:
            return None
        topics.update(part)
    return tuple(sorted(topics)) if len(topics) <= TOPICS_MAX else None


def page_of(key: str, objects: Sequence[LogObject]) -> Page:
    """The page with these objects, at least one, and its statistics."""
    with_records = [one for one in objects if one.records]
    return Page(
        key=key,
        first_offset=objects[0].first_offset,
        end_offset=objects[-1].end_offset,
        records=sum(one.records for one in objects),
        min_store_ms=min((one.min_store_ms for one in with_records), default=0),
        max_store_ms=max((one.max_store_ms for one in with_records), default=0),
        topics=union_of_topics(one.topics for one in objects),
        objects=len(objects),
        object_bytes=sum(one.object_bytes for one in objects),
    )
