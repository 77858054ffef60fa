"""Offsets of consumer groups and delay levels, clamped to the queues that a restored log has.

See docs/protocol/store.md#configuration-files.

A queue of a restored log ends before the one of the log that it was archived from, and a queue of which all
records were deleted begins again at 0. Offsets beyond a queue's end would skip messages that are put later.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final

from attrs import field, frozen

from trioha.metadata.pretty_json import encode_pretty, parse_pretty
from trioha.metadata.values import int_map, members
from trioha.store.message_offsets import QueueKey
from trioha.store.topics import LMQ_PREFIX, SCHEDULE_TOPIC

CONSUMER_OFFSETS: Final = "consumerOffset.json"
DELAY_OFFSETS: Final = "delayOffset.json"

QueueEnds = Callable[[Collection[QueueKey]], Mapping[QueueKey, int]]
"""Finds the next queue offsets of queues, 0 for those without records."""


@frozen(kw_only=True)
class ClampedOffset:
    """An offset that was beyond the end of its queue."""

    file_name: str
    name: str
    """`topic@group`, or the delay level."""
    topic: str
    queue_id: int
    offset: int
    """What the file had."""
    end_offset: int
    """What it has now: the next queue offset of the restored queue."""


@frozen(kw_only=True)
class ClampedFiles:
    """Config files whose offsets are in the queues."""

    files: Mapping[str, str]
    """Contents by name; those without such offsets as they were."""
    clamped: tuple[ClampedOffset, ...] = ()
    unreadable: Mapping[str, str] = field(factory=dict)
    """Why files of offsets could not be read, by name: they are as they were."""


def clamp_offsets(files: Mapping[str, str], ends_of: QueueEnds) -> ClampedFiles:
    """Clamp the offsets in `consumerOffset.json` and `delayOffset.json` to the ends of their queues.

    Light queues (`%LMQ%`) are left alone: their ends are in properties of records.
    """
    documents: dict[str, dict[str, object]] = {}
    offsets: list[_Offset] = []
    unreadable: dict[str, str] = {}
    for file_name in (CONSUMER_OFFSETS, DELAY_OFFSETS):
        if not files.get(file_name, "").strip():
            continue
        try:
            document = members(parse_pretty(files[file_name]), file_name)
            table = document.get("offsetTable", {})
            found, changeable = (
                _delay_offsets(table) if file_name == DELAY_OFFSETS else _consumer_offsets(table)
            )
        except ValueError as error:
            unreadable[file_name] = str(error)
            continue
        documents[file_name] = document | {"offsetTable": changeable}
        offsets += [one for one in found if one.offset > 0 and not one.queue[0].startswith(LMQ_PREFIX)]
    ends = ends_of({one.queue for one in offsets})
    beyond = [one for one in offsets if one.offset > ends[one.queue]]
    changed = dict(files)
    for one in beyond:
        one.table[one.key] = ends[one.queue]
    for file_name in {one.file_name for one in beyond}:
        changed[file_name] = encode_pretty(documents[file_name])
    clamped = tuple(
        ClampedOffset(
            file_name=one.file_name,
            name=one.name,
            topic=one.queue[0],
            queue_id=one.queue[1],
            offset=one.offset,
            end_offset=ends[one.queue],
        )
        for one in beyond
    )
    return ClampedFiles(files=changed, clamped=clamped, unreadable=unreadable)


@frozen(kw_only=True)
class _Offset:
    """An offset, and where in its file's value it is: `table[key]`."""

    file_name: str
    name: str
    queue: QueueKey
    offset: int
    table: dict[int, int]
    key: int


def _consumer_offsets(value: object) -> tuple[list[_Offset], dict[str, dict[int, int]]]:
    """The offsets of groups by `topic@group` and queue id. Raises ValueError."""
    table = {name: int_map(queues, name) for name, queues in members(value, "offsetTable").items()}
    offsets = [
        _Offset(
            file_name=CONSUMER_OFFSETS,
            name=name,
            queue=(name.partition("@")[0], queue_id),
            offset=offset,
            table=queues,
            key=queue_id,
        )
        for name, queues in table.items()
        for queue_id, offset in queues.items()
    ]
    return offsets, table


def _delay_offsets(value: object) -> tuple[list[_Offset], dict[int, int]]:
    """The offsets of delay levels: level 1 is in queue 0 of the schedule topic. Raises ValueError."""
    table = int_map(value, "offsetTable")
    offsets = [
        _Offset(
            file_name=DELAY_OFFSETS,
            name=f"level {level}",
            queue=(SCHEDULE_TOPIC, level - 1),
            offset=offset,
            table=table,
            key=level,
        )
        for level, offset in table.items()
    ]
    return offsets, table
