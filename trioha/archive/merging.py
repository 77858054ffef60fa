"""Which objects of a generation are merged, which are whole, and which metadata stays: no I/O.

Objects of one log file are grouped from its start, each group as long as it fits into one object. A group
is complete if the next object does not fit, or the file has ended: it becomes one object at once. The last
group grows: its newest objects are merged when there are `merge_objects` of them, together with each object
before them that has at most an eighth of the bytes after it. So a byte is sent again about once for each
time that its object becomes eight times larger.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from attrs import frozen

from trioha.archive.crc import combined_crc32
from trioha.archive.layout import LogObject, MetadataObject, union_of_topics

_GROWTH: Final = 8
THIN_AFTER_MS: Final = 3_600_000
"""Of metadata older than this, one a minute stays."""
_MINUTE_MS: Final = 60_000


@frozen
class Group:
    """Objects in a row that become one."""

    objects: tuple[LogObject, ...]
    is_complete: bool
    """Whether nothing can be added to it."""


def groups_of(objects: Sequence[LogObject], *, bytes_max: int, file_bytes: int) -> list[Group]:
    """The groups of these objects, in order."""
    groups: list[Group] = []
    members: list[LogObject] = []
    for one in objects:
        if members and (
            one.first_offset // file_bytes != members[0].first_offset // file_bytes
            or one.end_offset - members[0].first_offset > bytes_max
        ):
            groups.append(Group(tuple(members), is_complete=True))
            members = []
        members.append(one)
    if members:
        groups.append(Group(tuple(members), is_complete=members[-1].end_offset % file_bytes == 0))
    return groups


def due_merges(groups: Iterable[Group], *, merge_objects: int) -> list[tuple[LogObject, ...]]:
    """Runs of objects that are to become one each, oldest first."""
    runs = []
    for group in groups:
        run = group.objects if group.is_complete else _tail_run(group.objects, merge_objects)
        if len(run) > 1:
            runs.append(run)
    return runs


def _tail_run(objects: tuple[LogObject, ...], merge_objects: int) -> tuple[LogObject, ...]:
    """The longest run of the newest objects whose first one is small beside those after it."""
    after = 0
    begin = None
    for index in range(len(objects) - 1, -1, -1):
        size = objects[index].log_bytes
        if len(objects) - index >= merge_objects and size * _GROWTH <= after:
            begin = index
        after += size
    return () if begin is None else objects[begin:]


def whole_objects(groups: Sequence[Group]) -> list[LogObject]:
    """The first objects that are not merged any more."""
    whole = []
    for group in groups:
        if not group.is_complete or len(group.objects) > 1:
            break
        whole.append(group.objects[0])
    return whole


def crc32_of(run: Sequence[LogObject]) -> int:
    """CRC of the bytes of objects in a row."""
    result = 0
    for one in run:
        result = combined_crc32(result, one.crc32, second_bytes=one.log_bytes)
    return result


def merged_object(run: Sequence[LogObject], **fields: object) -> LogObject:
    """The object that replaces a run, with its statistics; `fields` are those of its bytes."""
    with_records = [one for one in run if one.records]
    return LogObject(
        first_offset=run[0].first_offset,
        end_offset=run[-1].end_offset,
        records=sum(one.records for one in run),
        min_store_ms=min((one.min_store_ms for one in with_records), default=0),
        max_store_ms=max((one.max_store_ms for one in with_records), default=0),
        topics=union_of_topics(one.topics for one in run),
        **fields,  # type: ignore[arg-type]
    )


def thinned(
    metadata: Sequence[MetadataObject], *, now_ms: int
) -> tuple[tuple[MetadataObject, ...], list[MetadataObject]]:
    """What stays of metadata in order of time, and what goes: the last one of each minute stays."""
    kept: list[MetadataObject] = []
    dropped: list[MetadataObject] = []
    for index, one in enumerate(metadata):
        after = metadata[index + 1] if index + 1 < len(metadata) else None
        if (
            after is not None
            and after.taken_ms < now_ms - THIN_AFTER_MS
            and after.taken_ms // _MINUTE_MS == one.taken_ms // _MINUTE_MS
        ):
            dropped.append(one)
        else:
            kept.append(one)
    return tuple(kept), dropped
