"""`trioha offsets`: the offsets of consumer groups in a store, now or at a time in the past."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from attrs import frozen

from trioha.cli.console import out, print_json
from trioha.cli.tables import Column, number, table, text
from trioha.cli.times import time_option_ms
from trioha.errors import StoreError
from trioha.metadata.files import read_metadata
from trioha.metadata.history import CONSUMER_OFFSETS, entries_of, read_history
from trioha.metadata.history import FOLDER as HISTORY_FOLDER
from trioha.metadata.metadata_store import FOLDER
from trioha.metadata.values import members, natural, signed
from trioha.times import time_text


@frozen
class GroupOffset:
    """The offset of a group in one queue."""

    group: str
    topic: str
    queue_id: int
    offset: int


COLUMNS: Final[Sequence[Column[GroupOffset]]] = (
    text("group", lambda row: row.group),
    text("topic", lambda row: row.topic),
    number("queue", lambda row: row.queue_id),
    number("offset", lambda row: row.offset),
)


def offsets(store: Path, *, at: str | None = None, group: str | None = None, json: bool = False) -> int:
    """Print the offsets of consumer groups in a store.

    Works on any RocketMQ store, and beside a node or broker that is using it. The past is in the history of
    stores of trioha (trioha.metadataHistoryBytes).

    Parameters
    ----------
    store
        A storePathRootDir.
    at
        The time: 2026-11-22T14:30:00 (local, or with Z or an offset as +08:00), or milliseconds since 1970.
        By default the offsets of consumerOffset.json.
    group
        Print the offsets of this group only.
    json
        Print one JSON object.
    """
    folder = store / FOLDER
    if not folder.is_dir():
        raise StoreError("there is no folder config: not a store of a broker", path=store)
    if at is None:
        time_ms, entries = _current(folder)
    else:
        found = read_history(folder / HISTORY_FOLDER, time_option_ms(at, key="--at"))
        time_ms, entries = found.time_ms, found.tables.get(CONSUMER_OFFSETS, {})
    rows = [row for row in group_offsets(entries, folder) if group is None or row.group == group]
    if json:
        listed = [
            {"group": row.group, "topic": row.topic, "queueId": row.queue_id, "offset": row.offset}
            for row in rows
        ]
        print_json({"timestamp": time_ms, "offsets": listed})
        return 0
    out().print(table(f"Offsets as of {time_text(time_ms)}", COLUMNS, rows))
    return 0


def group_offsets(entries: Mapping[str, object], path: Path) -> Iterator[GroupOffset]:
    """The offsets of a table's entries by group, topic and queue. Raises StoreError about `path`."""
    found = []
    for key, queues in entries.items():
        topic, _, group = key.partition("@")
        try:
            for queue_id, offset in members(queues, key).items():
                found.append(GroupOffset(group, topic, natural(queue_id, key), signed(offset, key)))
        except ValueError as error:
            raise StoreError(f"offsets of {key!r:.100}: {error}", path=path) from None
    yield from sorted(found, key=lambda row: (row.group, row.topic, row.queue_id))


def _current(folder: Path) -> tuple[int, Mapping[str, object]]:
    """The time and the entries of consumerOffset.json."""
    path = folder / CONSUMER_OFFSETS
    value = read_metadata(path, lambda value: members(value, CONSUMER_OFFSETS))
    if value is None:
        raise StoreError("is not there: no group has committed an offset yet", path=path)
    try:
        time_ms = round(path.stat().st_mtime * 1000)
    except FileNotFoundError:
        # Its .bak was read.
        time_ms = 0
    return time_ms, entries_of(CONSUMER_OFFSETS, value)
