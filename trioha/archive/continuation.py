"""Whether a store continues what is archived, and what a new generation shares with the one before it.

A store continues a generation if it has the bytes of the newest object, or starts exactly at its end. (Two
histories that have the same last object are the same: records name their offsets, hosts and times.) A store
that does not may still have a part of the same history: the newest object of which it has the same bytes is
found by bisection, and the new generation begins with the objects up to that one.
"""

from __future__ import annotations

from collections.abc import Callable

from attrs import frozen
from isal.isal_zlib import crc32

from trioha.archive.errors import DamagedSourceError
from trioha.archive.layout import Generation, LogObject, MetadataObject, Page
from trioha.archive.log_bytes import read_log_object
from trioha.archive.reader import ArchiveReader
from trioha.archive.source import LogSource
from trioha.store.record_layout import BLANK_BYTES


@frozen(kw_only=True)
class Continuation:
    """What a new generation begins with."""

    reason: str
    first_offset: int
    pages: tuple[Page, ...] = ()
    objects: tuple[LogObject, ...] = ()
    metadata: tuple[MetadataObject, ...] = ()


def continuation_of(reader: ArchiveReader, source: LogSource) -> Continuation | None:
    """None if the store, which has a log file, continues the newest generation. Raises ArchiveError."""
    first = source.first_offset
    assert first is not None, "only a store with a log file is compared"
    if not reader.head.generations:
        return Continuation(reason="first archive", first_offset=first)
    generation = reader.generation()
    end = generation.end_offset
    if source.file_bytes != generation.file_bytes:
        reason = f"the log has files of {source.file_bytes} bytes, before it had {generation.file_bytes}"
        return Continuation(reason=reason, first_offset=first)
    if first > end:
        reason = f"a gap: the log begins at offset {first}, {first - end} bytes after the archived end {end}"
        return Continuation(reason=reason, first_offset=first)
    if first == end:
        return None
    newest = newest_object(reader, generation)
    if newest is None:
        reason = f"the log begins at offset {first}, before the archived end {end}"
        return Continuation(reason=reason, first_offset=first)
    return None if is_in(source, newest) else _shared(reader, generation, source, first)


def is_completed(reader: ArchiveReader, source: LogSource, one: LogObject) -> bool:
    """Whether the store differs from an object in the object's last record only. Raises ArchiveError.

    Then the broker was still writing that record, after its body, when it was archived.
    """
    offset = one.first_offset
    if not source.has(offset, one.end_offset):
        return False
    for archived in read_log_object(reader.folder, one):
        current = next(source.pieces(offset, offset + len(archived), size=len(archived)))
        if current != archived:
            offset += next(index for index in range(len(archived)) if current[index] != archived[index])
            break
        offset += len(archived)
    start = one.first_offset
    try:
        before = source.next_part(start, bytes_max=max(1, offset - start))
        if before is not None and before.end_offset <= offset:
            start = before.end_offset
        last = source.next_part(start, bytes_max=1)
    except DamagedSourceError:
        # No record of the store starts there: it is of another history.
        return False
    return last is not None and last.end_offset == one.end_offset


def has_last_record(reader: ArchiveReader, source: LogSource, one: LogObject) -> bool:
    """Whether the store has the same bytes of an object's last record. Raises ArchiveError.

    Then it has the same history, since a record names its offset, host and time; what differs before it was
    damaged in the store.
    """
    last = bytearray()
    for piece in read_log_object(reader.folder, one):
        last += piece
        while BLANK_BYTES <= (size := int.from_bytes(last[:4], "big")) < len(last):
            del last[:size]
    first = one.end_offset - len(last)
    return source.crc32(first, one.end_offset) == crc32(last)


def newest_object(reader: ArchiveReader, generation: Generation) -> LogObject | None:
    """The last object of a generation, None if it has none. Raises ArchiveError."""
    if generation.objects:
        return generation.objects[-1]
    return _last_of(reader, generation.pages[-1]) if generation.pages else None


def is_in(source: LogSource, one: LogObject) -> bool:
    """Whether the store has the bytes of an object. Raises ArchiveError."""
    return source.crc32(one.first_offset, one.end_offset) == one.crc32


def _shared(reader: ArchiveReader, generation: Generation, source: LogSource, first: int) -> Continuation:
    def is_same(one: LogObject) -> bool:
        # Those before the store's first byte are of the same history if a later one is.
        return one.end_offset <= first or is_in(source, one)

    count = _leading(len(generation.pages), lambda index: is_same(_last_of(reader, generation.pages[index])))
    pages, metadata = generation.pages[:count], generation.metadata
    objects = generation.objects
    if count < len(generation.pages):
        content = reader.page(generation.pages[count])
        objects, metadata = content.objects, content.metadata + metadata
    same = _leading(len(objects), lambda index: is_same(objects[index]))
    reason = _difference(reader, source, objects[same])
    shared = objects[same - 1] if same else _last_of(reader, pages[-1]) if pages else None
    if shared is None or shared.end_offset <= first:
        return Continuation(reason=reason, first_offset=first)
    return Continuation(
        reason=reason,
        first_offset=generation.first_offset,
        pages=pages,
        objects=objects[:same],
        metadata=tuple(one for one in metadata if one.offset <= shared.end_offset),
    )


def _last_of(reader: ArchiveReader, page: Page) -> LogObject:
    return reader.page(page).objects[-1]


def _leading(count: int, holds: Callable[[int], bool]) -> int:
    """How many of the first of `count` things hold, if none holds after one that does not."""
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            low = middle + 1
        else:
            high = middle
    return low


def _difference(reader: ArchiveReader, source: LogSource, one: LogObject) -> str:
    """Where an object and the store differ, in words."""
    offset = one.first_offset
    for archived in read_log_object(reader.folder, one):
        end = offset + len(archived)
        if not source.has(offset, end):
            return f"the log ends before the archived end {reader.generation().end_offset}"
        current = next(source.pieces(offset, end, size=len(archived)))
        if current != archived:
            at = next(index for index in range(len(archived)) if current[index] != archived[index])
            if not any(current[at:]):
                part = source.next_part(one.first_offset, bytes_max=one.log_bytes)
                end_offset = one.first_offset if part is None else part.end_offset
                archived_end = reader.generation().end_offset
                return f"the log ends at offset {end_offset}, before the archived end {archived_end}"
            return f"the log differs from offset {offset + at} on"
        offset = end
    return f"the log differs in the bytes from offset {one.first_offset} to {one.end_offset}"
