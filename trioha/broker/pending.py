"""What a log holds for delivery: timers, and what a RocketMQ 5 master has popped.

A promoted slave, or a node on the store of a RocketMQ broker, has all timers and popped messages that are
pending in its log. It delivers the timers (`trioha.broker.timer_delivery`) and gives popped messages again
(`trioha.broker.pop.revive`), both with timerWheelEnable alone. Counting reads the
queue of timers, the revive queues, and the queues that timers are delivered to, in log order, from the files
alone: in a worker thread beside a node, or offline.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Final

from attrs import field, frozen

from trioha.broker.master_stores import remembered_keys
from trioha.broker.pop.records import REVIVE_GROUP
from trioha.broker.pop_records import GroupQueue, PendingCheckPoint, PendingPops, is_pop_record
from trioha.broker.timer_records import PendingTimers, has_slot, real_queue
from trioha.broker_status import PendingStatus
from trioha.errors import StoreError
from trioha.metadata.documents import TimerCheckPoint, TimerState
from trioha.metadata.files import read_metadata
from trioha.metadata.metadata_store import FOLDER
from trioha.metadata.offsets import ConsumerOffsets
from trioha.metadata.timer_check import TIMER_CHECK, read_timer_check
from trioha.store.message_properties import parse_properties
from trioha.store.queue_folders import TO_THE_END, QueueFolders, QueueKey
from trioha.store.record import Record
from trioha.store.rocksdb_stores import has_only_rocksdb_queues, rocksdb_stores, stores_of_master
from trioha.store.topics import REVIVE_TOPIC_PREFIX, TIMER_TOPIC
from trioha.times import time_text
from trioha.unit_texts import counted

GROUPS_MAX: Final = 100
"""Groups that a `PendingStatus` names."""
GROUPS_SHOWN: Final = 5
REMEDY: Final = (
    "a master with timerWheelEnable=true delivers timers, and gives popped messages again; all of it stays "
    "in the log for fileReservedTime"
)
"""What to do about timers and popped messages that are not delivered."""
DOUBT_REMEDY: Final = (
    "a timer counts as pending unless its copy is found in the log: one that was delivered to a topic that "
    "is deleted counts, and a RocketMQ slave that takes over may deliver again what came after it"
)
"""What it means for the numbers that `PendingCount.doubt` is not empty."""
UNREAD_REMEDY: Final = (
    "trioha reads no RocksDB store, and no slave has a copy of it: let a RocketMQ broker be the master of "
    "this store, or see that nothing in it is needed"
)
MASTER_REMEDY: Final = (
    "a slave does not have it, so that a take-over goes without it: switch these settings off at the master"
)
NO_QUEUES: Final = (
    "its consume queues are in RocksDB, which is not read; a trioha node that is started on it builds its "
    "own from the log, and counts then"
)
PROPERTY: Final = b"TIMER_"
"""All records of timers and pops have a property whose name begins so, and few others have one."""
Progress = Callable[[int, int], None]


@frozen
class PendingCount:
    """What was counted."""

    status: PendingStatus
    timers: PendingTimers = field(eq=False, repr=False)
    """All that wait, those of pops included."""
    timers_from_ms: int | None = None
    """No timer that waits, of a message or of a pop, is in an earlier slot of a RocketMQ broker's wheel, ms
    since 1970; None if none waits."""
    positions: Mapping[GroupQueue, int] = field(factory=dict)
    """How far groups have popped at least, by check points that their offsets may lack."""
    doubt: str = ""
    """Why timers may be counted that a master was done with; empty if they are not."""


def count_pending(
    root: Path,
    *,
    log: Path | None = None,
    revived: Mapping[QueueKey, int],
    check_point: TimerCheckPoint | None = None,
    roll_window_ms: float = math.inf,
    end_offset: int = TO_THE_END,
    pops_complete_to: int | None = None,
    on_step: Progress = lambda _offset, _end: None,
) -> PendingCount:
    """What is pending in the store at `root`, in its log before `end_offset`.

    `log` is its commit log, if that is elsewhere; `revived` is `revived_offsets` of its offsets;
    `check_point` is that of the master that it was a slave of; `roll_window_ms` is that of
    `PendingTimers`; `pops_complete_to` is that of its offsets. `on_step` gets the physical offset that is
    reached every few milliseconds, and the end. Blocks. A store that cannot be read is part of the answer.
    """
    check_points = [] if check_point is None else [check_point]
    doubt = ""
    try:
        if (own := read_timer_check(root / FOLDER)) is not None:
            check_points.append(own)
        elif check_point is None:
            doubt = f"{root / FOLDER / TIMER_CHECK}: is missing"
    except StoreError as error:
        doubt = str(error)
    timers = PendingTimers(check_points, roll_window_ms=roll_window_ms)
    pops = PendingPops(revived, complete_to=pops_complete_to)
    stores: tuple[str, ...] = ()
    try:
        stores = rocksdb_stores(root)
        stores += stores_of_master(remembered_keys(root / FOLDER))
        folders = QueueFolders.of(root, log=log)
        if has_only_rocksdb_queues(folders.queues):
            return PendingCount(PendingStatus(unread_stores=stores, error=NO_QUEUES), timers)
        _read(folders, timers, pops, end_offset=end_offset, on_step=on_step)
    except StoreError as error:
        return PendingCount(PendingStatus(unread_stores=stores, error=str(error)), timers)
    timers.settle()
    status = _status(timers, pops, unreadable=pops.unreadable, stores=stores)
    slots_ms = (timer.wheel_ms for timer in timers)
    return PendingCount(
        status, timers, min(slots_ms, default=None), pops.positions(), doubt if status.timers else ""
    )


def _read(
    folders: QueueFolders,
    timers: PendingTimers,
    pops: PendingPops,
    *,
    end_offset: int,
    on_step: Progress,
) -> None:
    def follow(record: Record) -> QueueKey | None:
        # Copies of delivered timers are in the queues that timers name.
        return None if record.topic != TIMER_TOPIC else real_queue(parse_properties(record.properties_raw))

    queues = [(TIMER_TOPIC, 0), *folders.queues_of(REVIVE_TOPIC_PREFIX)]
    records = folders.records(
        queues, containing=PROPERTY, follow=follow, end_offset=end_offset, on_step=on_step
    )
    for record in records:
        is_timer = has_slot(record.properties_raw)
        if is_timer or record.topic.startswith(REVIVE_TOPIC_PREFIX):
            properties = parse_properties(record.properties_raw)
            is_pop = is_pop_record(record, properties)
            if is_pop:
                pops.add(record, properties)
            if is_timer:
                timers.add(record, properties, is_pop=is_pop)


def _status(
    timers: PendingTimers,
    pops: Iterable[PendingCheckPoint],
    *,
    unreadable: int,
    stores: tuple[str, ...],
) -> PendingStatus:
    """The figures of what is pending."""
    popped = 0
    popped_ms = None
    count, first_ms, last_ms = timers.figures()
    groups: Counter[str] = Counter()
    for one in pops:
        popped += len(one.offsets)
        popped_ms = one.pop_ms if popped_ms is None else min(popped_ms, one.pop_ms)
        groups[f"{one.topic}@{one.group}"] += len(one.offsets)
    return PendingStatus(
        timers=count,
        timers_first_ms=first_ms,
        timers_last_ms=last_ms,
        popped=popped,
        popped_first_ms=popped_ms,
        popped_groups=dict(groups.most_common(GROUPS_MAX)),
        unreadable=unreadable,
        unread_stores=stores,
    )


def revived_offsets(offsets: ConsumerOffsets) -> dict[QueueKey, int]:
    """By revive queue, the offset of the last check point that the master was done with."""
    return {
        (topic, queue_id): offset
        for key, queues in offsets.items()
        for topic, _, group in (key.partition("@"),)
        if group == REVIVE_GROUP
        for queue_id, offset in queues.items()
    }


def stored_revived_offsets(folder: Path) -> dict[QueueKey, int]:
    """The same of the tables in the folder `config` of a store. Blocks. Raises StoreError."""
    offsets = ConsumerOffsets()
    read_metadata(folder / offsets.file_name, offsets.load)
    return revived_offsets(offsets)


def stored_check_point(folder: Path) -> TimerCheckPoint | None:
    """What the former master answered, by the tables in the folder `config` of a store. As above."""
    timers = TimerState()
    read_metadata(folder / timers.file_name, timers.load)
    return timers.check_point


def pending_text(pending: PendingStatus) -> str:
    """What is pending, in one sentence; empty if nothing is."""
    parts = []
    if pending.timers and not pending.delivers_timers:
        first, last = pending.timers_first_ms or 0, pending.timers_last_ms or 0
        due = f"at {time_text(first)}" if first == last else f"from {time_text(first)} to {time_text(last)}"
        parts.append(f"{counted(pending.timers, 'timer')} due {due}")
    if pending.popped and not pending.delivers_timers:
        shown = [
            f"{group} ({number})" for group, number in islice(pending.popped_groups.items(), GROUPS_SHOWN)
        ]
        more = len(pending.popped_groups) - len(shown)
        groups = ", ".join(shown) + (f" and {more} more" if more else "")
        since = time_text(pending.popped_first_ms or 0)
        parts.append(
            f"{counted(pending.popped, 'popped message')} without acknowledgement of {groups}, since {since}"
        )
    if pending.unreadable:
        parts.append(f"{counted(pending.unreadable, 'record')} of pops in an unknown format")
    if pending.error:
        parts.append(f"what is pending could not be counted: {pending.error}")
    return "; ".join(parts)
