"""Records of timers and pops: those that a RocketMQ 5.5.0 broker wrote, and stores that have them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from attrs import evolve

from tests.store.support import VECTORS, message, open_store
from tests.store.whole_stores import dispatch
from trioha.broker.pop_records import PendingCheckPoint, PendingPops, is_pop_record
from trioha.broker.timer_records import PendingTimer, PendingTimers, has_slot
from trioha.metadata.documents import TimerCheckPoint
from trioha.metadata.offsets import ConsumerOffsets
from trioha.metadata.pretty_json import parse_pretty
from trioha.store.message_properties import encode_properties, parse_properties
from trioha.store.message_store import MessageStore
from trioha.store.record import Record, decode_record
from trioha.store.topics import TIMER_TOPIC

TIMERS: Final = "timer-5.5.0/records.bin"
POPS: Final = ("pop-5.5.0/wheel-timer.bin", "pop-5.5.0/revive.bin")
FAILOVER: Final = "pop-5.5.0/failover/records.bin"
KILLED_AT: Final = 5456
"""In `FAILOVER`: the real master was killed before it wrote anything from here on."""
SENT: Final = 14
"""How many records of `TIMERS` come before the first delivered copy."""


def recorded(*names: str) -> list[Record]:
    """The records of recorded files, in the order of the log they are from."""
    found: list[Record] = []
    for name in names:
        data = (VECTORS / name).read_bytes()
        at = 0
        while at < len(data):
            record = decode_record(data, at)
            assert isinstance(record, Record)
            found.append(record)
            at += record.total_size
    return sorted(found, key=lambda record: record.physical_offset)


def pending_check_points(
    records: Iterable[Record], revived: Mapping[tuple[str, int], int] | None = None
) -> list[PendingCheckPoint]:
    """The check points that are pending after these records, which are in log order.

    `revived` as for `PendingPops`.
    """
    pops = PendingPops(revived)
    for record in records:
        properties = parse_properties(record.properties_raw)
        if is_pop_record(record, properties):
            pops.add(record, properties)
    return list(pops)


def pending_timers(
    records: Iterable[Record], check_points: Iterable[TimerCheckPoint] = ()
) -> list[PendingTimer]:
    """The timers that are pending after these records, which are in log order, by these check points."""
    timers = PendingTimers(check_points)
    for record in records:
        if has_slot(record.properties_raw):
            timers.add(record, parse_properties(record.properties_raw))
    return list(timers)


def recorded_offsets() -> ConsumerOffsets:
    """The broker's offsets at the end of `POPS`."""
    offsets = ConsumerOffsets()
    offsets.load(parse_pretty((VECTORS / "pop-5.5.0/consumerOffset.json").read_text()))
    return offsets


def with_properties(record: Record, **changes: str | None) -> Record:
    """The record with other properties; without those that are None."""
    properties: dict[str, Any] = {**parse_properties(record.properties_raw), **changes}
    kept = {name: value for name, value in properties.items() if value is not None}
    return evolve(record, properties_raw=encode_properties(kept))


def stored(root: Path, records: list[Record], *, clock: Callable[[], int] | None = None) -> MessageStore:
    """A store with these records, in log files of 64 KiB and queue files of 20 entries.

    `clock` stamps them, ms since 1970; without it, that of this machine.
    """
    store = open_store(root)
    if clock is not None:
        store.commit_log.now_ms = clock
    for record in records:
        append(store, record)
    dispatch(store)
    return store


def append(store: MessageStore, record: Record) -> None:
    result = store.commit_log.append(
        message(
            record.body,
            topic=record.topic,
            queue_id=record.queue_id,
            properties=record.properties_raw,
            born_timestamp_ms=record.born_timestamp_ms,
            born_host=record.born_host,
        )
    )
    assert result.physical_offset >= 0, result


def in_timer_topic(records: list[Record]) -> list[Record]:
    return [record for record in records if record.topic == TIMER_TOPIC]
