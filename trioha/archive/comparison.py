"""Comparing a store with an archive of it, byte by byte.

The archive's records were checked when they were archived, and its objects have a CRC over every byte. So a
difference shows damage that RocketMQ's own checksums do not cover: theirs is over the body only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from attrs import evolve, field, frozen

from trioha.archive.checked_log import Extent, checked_extents
from trioha.archive.errors import ArchiveError, MissingObjectError
from trioha.archive.fetching import Fetcher
from trioha.archive.heads import read_head
from trioha.archive.layout import Generation
from trioha.archive.reader import ArchiveReader, Selection
from trioha.store.read_only_commit_log import ReadOnlyCommitLog
from trioha.store.record_layout import (
    BLANK,
    BODY_AT_V4,
    BORN_HOST_V6,
    HEAD,
    IPV6_EXTRA_BYTES,
    STORE_HOST_V6,
    body_span,
    scan_records,
    topic_of,
    topic_span,
)

DIFFERENCES_KEPT: Final = 100
_HEADS_TRIED: Final = 5

Progress = Callable[[str, int, int], None]
"""`on_progress(what, done, total)`: bytes of the log."""


@frozen(kw_only=True)
class Difference:
    """A record of the archive that the store has with other bytes."""

    offset: int
    """Of the first byte that differs."""
    record_offset: int
    """Of the record or blank."""
    bytes: int
    """How many of its bytes differ."""
    field: str
    """Where the first one is: a field of the record, `property NAME`, or `blank`."""
    topic: str | None
    """None in a blank."""
    queue_id: int | None
    queue_offset: int | None


@frozen(kw_only=True)
class Comparison:
    """Result of a comparison."""

    generation: str
    store_span: tuple[int, int]
    """First offset and end of the store's log."""
    archive_span: tuple[int, int]
    compared: tuple[int, int] | None
    """What both have; None if nothing is in both."""
    records: int
    """Records that were compared."""
    differences: tuple[Difference, ...]
    """The first `DIFFERENCES_KEPT`."""
    difference_count: int
    """Records and blanks that differ."""
    only_store: tuple[tuple[int, int], ...]
    only_store_records: int
    """Valid records after the archive's end."""
    only_store_fault: str
    """What is wrong at the end of those; empty if the log ends there."""
    only_archive: tuple[tuple[int, int], ...]
    damaged: tuple[str, ...] = field(factory=tuple)
    """Objects of the archive that could not be compared, and why."""

    @property
    def ends_early(self) -> bool:
        """Whether the store's log ends before the archive's."""
        return self.store_span[1] < self.archive_span[1]


def compare_with_archive(
    log: ReadOnlyCommitLog,
    reader: ArchiveReader,
    *,
    generation: str | None = None,
    on_progress: Progress = lambda _what, _done, _total: None,
) -> Comparison:
    """Compare all bytes that a store's log and a generation, by default the newest one, both have. Blocks.

    Raises ArchiveError if the archive cannot be read; damaged objects of it are passed over, and named.
    """
    return _Comparer(log, reader, generation, on_progress).run()


class _Comparer:
    def __init__(
        self, log: ReadOnlyCommitLog, reader: ArchiveReader, generation: str | None, on_progress: Progress
    ) -> None:
        self._log = log
        self._reader = reader
        self._generation = reader.generation(generation)
        self._on_progress = on_progress
        self._written_end = log.written_end()
        """After the store's last byte that is not zero: in its last record, or at its end."""
        self._store_end = log.min_offset
        """End of the last record or blank of the archive that begins before that."""
        self._records = 0
        self._differences: dict[int, Difference] = {}
        self._difference_count = 0
        self._damaged: dict[str, str] = {}
        self._position = log.min_offset
        """Border of records up to which everything was compared."""
        self._blank_at = -1
        """Where the blank began that the extents at hand belong to."""

    def run(self) -> Comparison:
        generation = self._generation
        first = max(self._log.min_offset, generation.first_offset)
        self._position = first
        for _ in range(_HEADS_TRIED):
            try:
                self._compare_from(first)
                break
            except MissingObjectError:
                # Objects were merged meanwhile, and a newer head says into which.
                self._generation = self._reader.generation(generation.id)
        return self._result(generation, first)

    def _compare_from(self, first: int) -> None:
        """Compare from the position on, which was `first` at the beginning."""
        generation, position = self._generation, self._position
        end = min(generation.end_offset, self._written_end)
        if position >= end:
            return
        objects = self._reader.objects(generation, Selection(first_offset=position, end_offset=end))
        with Fetcher(self._reader.folder) as fetcher:
            for one, pieces in fetcher.fetch(objects):
                extents = checked_extents(
                    self._reader.folder, one, file_bytes=generation.file_bytes, pieces=pieces
                )
                try:
                    for extent in extents:
                        if extent.end_offset > position:
                            self._compare(_from(extent, position))
                            self._on_progress("comparing", extent.end_offset - first, end - first)
                except ArchiveError as error:
                    is_missing = isinstance(error, MissingObjectError)
                    if error.is_transient or (is_missing and self._has_newer_head()):
                        raise
                    self._damaged[one.key] = error.reason
                    self._store_end = max(self._store_end, min(one.end_offset, self._written_end))
                self._position = one.end_offset

    def _has_newer_head(self) -> bool:
        """Whether there is a newer head than the reader's; the reader is that of the newest then."""
        head = read_head(self._reader.folder)
        if head is None or head.number == self._reader.head.number:
            return False
        self._reader = ArchiveReader(self._reader.folder, head)
        return True

    def _compare(self, extent: Extent) -> None:
        """Compare one extent, as far as the store's log goes."""
        if not extent.is_blank:
            self._blank_at = -1
        elif self._blank_at < 0:
            self._blank_at = extent.offset
        begins_at = self._blank_at if extent.is_blank else extent.offset
        if begins_at >= self._written_end:
            return
        theirs = bytes(extent.data)
        mine = self._log.read(extent.offset, extent.end_offset)
        if extent.is_blank:
            self._store_end = max(self._store_end, extent.end_offset)
            if mine != theirs:
                self._note(extent.data, self._blank_at, extent.offset, mine, theirs)
            return
        if mine == theirs and extent.end_offset <= self._written_end:
            self._records += extent.records
            self._store_end = max(self._store_end, extent.end_offset)
            return
        at = 0
        while at < len(theirs) and extent.offset + at < self._written_end:
            size = BLANK.unpack_from(theirs, at)[0]
            self._records += 1
            self._store_end = max(self._store_end, extent.offset + at + size)
            if mine[at : at + size] != theirs[at : at + size]:
                record = memoryview(theirs)[at : at + size]
                offset = extent.offset + at
                self._note(record, offset, offset, mine[at : at + size], theirs[at : at + size])
            at += size

    def _note(self, record: memoryview, record_offset: int, offset: int, mine: bytes, theirs: bytes) -> None:
        """Note that bytes from `offset` on differ; `record` is the archive's, unless it is a blank."""
        if record_offset in self._differences:
            return
        self._difference_count += 1
        if len(self._differences) >= DIFFERENCES_KEPT:
            return
        # Where the store's file ends early, all that is missing differs.
        indexes = [index for index, byte in enumerate(theirs) if index >= len(mine) or mine[index] != byte]
        first = indexes[0]
        is_blank = record_offset == self._blank_at
        head = None if is_blank else HEAD.unpack_from(record)
        self._differences[record_offset] = Difference(
            offset=offset + first,
            record_offset=record_offset,
            bytes=len(indexes),
            field="blank" if is_blank else field_at(record, first),
            topic=None if is_blank else topic_of(record, 0).decode("utf-8", "replace"),
            queue_id=None if head is None else head[3],
            queue_offset=None if head is None else head[5],
        )

    def _result(self, generation: Generation, first: int) -> Comparison:
        log = self._log
        archive_span = (generation.first_offset, self._generation.end_offset)
        store_end, records, fault = self._store_end, 0, ""
        if self._written_end > archive_span[1]:
            begin = max(archive_span[1], log.min_offset)
            store_end = begin
            for start in log.file_starts():
                if start + log.file_bytes <= begin:
                    continue
                check = log.check_file(start, from_offset=max(start, begin))
                records += check.records
                store_end = check.end_offset
                fault = check.fault
                if fault or check.end_offset < start + log.file_bytes:
                    break
        store_span = (log.min_offset, store_end)
        compared_end = min(store_span[1], archive_span[1])
        spans = (
            (log.min_offset, min(archive_span[0], store_span[1])),
            (max(archive_span[1], log.min_offset), store_span[1]),
        )
        others = (
            (archive_span[0], min(log.min_offset, archive_span[1])),
            (max(store_span[1], archive_span[0]), archive_span[1]),
        )
        return Comparison(
            generation=generation.id,
            store_span=store_span,
            archive_span=archive_span,
            compared=(first, compared_end) if first < compared_end else None,
            records=self._records,
            differences=tuple(self._differences.values()),
            difference_count=self._difference_count,
            only_store=tuple(span for span in spans if span[0] < span[1]),
            only_store_records=records,
            only_store_fault=fault,
            only_archive=tuple(span for span in others if span[0] < span[1]),
            damaged=tuple(f"{key}: {reason}" for key, reason in self._damaged.items()),
        )


def _from(extent: Extent, offset: int) -> Extent:
    """What of an extent is not before `offset`, a border of its records."""
    if extent.offset >= offset:
        return extent
    data = extent.data[offset - extent.offset :]
    records = scan_records(data, 0, len(data), offset, check_crc=False).records
    return evolve(extent, offset=offset, data=data, records=0 if extent.is_blank else records)


# -- fields of records --------------------------------------------------------------------------------------

_HEAD_FIELDS: Final = (
    ("totalSize", 4),
    ("magic", 8),
    ("bodyCRC", 12),
    ("queueId", 16),
    ("flag", 20),
    ("queueOffset", 28),
    ("physicalOffset", 36),
    ("sysFlag", 40),
    ("bornTimestamp", 48),
)
"""Names and ends of the fields that are at fixed places."""


def field_at(record: memoryview, index: int) -> str:
    """Name of the field of a valid record that has the byte at `index`; of properties with their name."""
    for name, end in _HEAD_FIELDS:
        if index < end:
            return name
    sys_flag = HEAD.unpack_from(record)[7]
    born_end = 56 + (IPV6_EXTRA_BYTES if sys_flag & BORN_HOST_V6 else 0)
    stored_end = born_end + 8
    store_host_end = stored_end + 8 + (IPV6_EXTRA_BYTES if sys_flag & STORE_HOST_V6 else 0)
    body_at, body_end = body_span(record, 0)
    assert body_at >= BODY_AT_V4, "the body follows the fixed fields"
    topic_at, topic_end = topic_span(record, 0)
    for name, end in (
        ("bornHost", born_end),
        ("storeTimestamp", stored_end),
        ("storeHost", store_host_end),
        ("reconsumeTimes", store_host_end + 4),
        ("preparedTransactionOffset", store_host_end + 12),
        ("bodyLength", body_at),
        ("body", body_end),
        ("topicLength", topic_at),
        ("topic", topic_end),
        ("propertiesLength", topic_end + 2),
    ):
        if index < end:
            return name
    properties = bytes(record[topic_end + 2 :])
    at = index - topic_end - 2
    # A separator belongs to the property before it.
    start = properties.rfind(b"\x02", 0, at) + 1
    name = properties[start:].split(b"\x02", 1)[0].split(b"\x01", 1)[0].decode("utf-8", "replace")
    return f"property {name}" if name else "properties"
