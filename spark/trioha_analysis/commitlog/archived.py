"""The commit log in an archive: which of its objects a query needs, and their records.

Objects hold whole records of one log file. Statistics of pages and objects (offsets, store timestamps,
topics) leave out those without a record that is wanted, before anything of them is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from attrs import frozen

from trioha.archive.access import Location
from trioha.archive.errors import ArchiveError, MissingObjectError
from trioha.archive.heads import read_head
from trioha.archive.layout import Generation, LogObject
from trioha.archive.log_bytes import read_log_object
from trioha.archive.reader import ArchiveReader, Selection
from trioha_analysis.commitlog.reading import LogDamage, ReadOptions, chosen_rows
from trioha_analysis.commitlog.walk import Columns, Gap, LogBytes, walk


@frozen(eq=False)
class ArchivedRange:
    """Consecutive objects of an archive that one task reads."""

    location: Location
    generation: str
    objects: tuple[LogObject, ...]
    start: int
    """Physical offsets `[start, end)`: the records that start there."""
    end: int


def open_archive(location: Location) -> ArchiveReader:
    """The archive of a location as of its newest head. Raises ArchiveError; also if there is none."""
    folder = location.open()
    head = read_head(folder)
    if head is None:
        raise ArchiveError(
            "there is no archive", url=location.url, hint="trioha archive STORE --to URL makes one"
        )
    return ArchiveReader(folder, head)


def selection_of(options: ReadOptions, *, start: int | None, end: int | None) -> Selection:
    """What a query wants, by its options and offsets."""
    return Selection(
        first_offset=start,
        end_offset=end,
        from_ms=options.from_ms,
        to_ms=options.to_ms,
        topics=options.topics or None,
    )


def plan_archive(
    location: Location,
    options: ReadOptions,
    *,
    generation: str | None = None,
    start: int | None = None,
    end: int | None = None,
    range_bytes: int,
) -> list[ArchivedRange]:
    """Ranges of at most `range_bytes` of the log, or of one object, that cover the offsets `[start, end)`.

    Objects without a wanted record are left out. Raises ArchiveError.
    """
    archive = open_archive(location)
    chosen = archive.generation(generation)
    start = chosen.first_offset if start is None else start
    end = chosen.end_offset if end is None else min(end, chosen.end_offset)
    wanted = archive.objects(chosen, selection_of(options, start=start, end=end)) if start < end else ()
    ranges: list[ArchivedRange] = []
    some: list[LogObject] = []
    for one in wanted:
        is_next = bool(some) and some[-1].end_offset == one.first_offset
        if some and not (is_next and one.end_offset - some[0].first_offset <= range_bytes):
            ranges.append(_range(location, chosen, some, start, end))
            some = []
        some.append(one)
    if some:
        ranges.append(_range(location, chosen, some, start, end))
    return ranges


def _range(
    location: Location, generation: Generation, objects: Sequence[LogObject], start: int, end: int
) -> ArchivedRange:
    return ArchivedRange(
        location,
        generation.id,
        tuple(objects),
        max(start, objects[0].first_offset),
        min(end, objects[-1].end_offset),
    )


def read_archived(wanted: ArchivedRange, options: ReadOptions) -> Iterator[Columns | LogDamage]:
    """Blocks of the records of a range, and the damage between them.

    Where an object was merged with others since the range was planned, those of the newest head are read.
    Raises ArchiveError for an object that is damaged or gone.
    """
    folder = wanted.location.open()
    offset = wanted.start
    for one in wanted.objects:
        try:
            data = b"".join(read_log_object(folder, one))
        except MissingObjectError:
            yield from _read_again(wanted, options, offset)
            return
        yield from _read_object(wanted, one, data, options)
        offset = max(offset, one.end_offset)


def _read_again(wanted: ArchivedRange, options: ReadOptions, start: int) -> Iterator[Columns | LogDamage]:
    archive = open_archive(wanted.location)
    generation = archive.generation(wanted.generation)
    if generation.first_offset > start:
        raise ArchiveError(
            f"offsets from {start} on were deleted since they were listed",
            url=wanted.location.url,
            hint="retention of the archive deletes old objects; load again to read what is left",
        )
    rest = ArchivedRange(wanted.location, wanted.generation, (), start, wanted.end)
    for one in archive.objects(generation, selection_of(options, start=start, end=wanted.end)):
        yield from _read_object(rest, one, b"".join(read_log_object(archive.folder, one)), options)


def _read_object(
    wanted: ArchivedRange, one: LogObject, data: bytes, options: ReadOptions
) -> Iterator[Columns | LogDamage]:
    path = f"{wanted.location.url}/{one.key}"
    log = LogBytes(np.frombuffer(data, np.uint8), one.first_offset, False, len(data))
    begin, end = max(0, wanted.start - one.first_offset), min(len(data), wanted.end - one.first_offset)
    for found in walk(log, begin, end, block_bytes=options.block_bytes):
        if isinstance(found, Gap):
            yield LogDamage(path, found)
        else:
            yield from chosen_rows(found, options, path=path, start_offset=one.first_offset)


@frozen
class ArchivedOffset:
    """How far a stream has read: all messages of a generation that start before `offset`."""

    generation: str
    offset: int


def stream_start(location: Location, *, generation: str | None, start: int | None) -> ArchivedOffset:
    """Where a stream begins: at `start`, or with the first message. Raises ArchiveError."""
    chosen = open_archive(location).generation(generation)
    return ArchivedOffset(chosen.id, chosen.first_offset if start is None else start)


def stream_end(location: Location, begin: ArchivedOffset, *, bytes_max: int | None) -> ArchivedOffset:
    """Up to where a stream may read now, from `begin` on: the archive's end, or that of the last object
    within `bytes_max`, at least one.

    Raises ArchiveError if messages would be lost silently: they were deleted unread, or the archive has a
    history that differs from the one that was read.
    """
    archive = open_archive(location)
    generation = archive.generation(begin.generation)
    newest = archive.generation()
    if begin.offset < generation.first_offset:
        raise ArchiveError(
            f"begins at {generation.first_offset}: the messages from {begin.offset} on were deleted unread",
            url=location.url,
            hint="begin anew with another checkpoint",
        )
    if begin.offset >= generation.end_offset and newest.id != generation.id:
        raise ArchiveError(
            f"generation {newest.id} has another history ({newest.reason}), and {generation.id} has ended",
            url=location.url,
            hint="begin anew with another checkpoint, or with option generation",
        )
    end = max(begin.offset, generation.end_offset)
    if bytes_max is not None and end - begin.offset > bytes_max:
        selection = Selection(first_offset=begin.offset, end_offset=begin.offset + bytes_max + 1)
        ends = [one.end_offset for one in archive.objects(generation, selection)]
        end = max((one for one in ends if one <= begin.offset + bytes_max), default=ends[0])
    return ArchivedOffset(generation.id, end)
