"""A slave's copy of its master's metadata: decides what an answer of the master changes.

See docs/protocol/ha.md#metadata-requests.

Theory of operation. Each answer is taken by a generator that changes the slave's tables and yields between
slices of `SLICE_ENTRIES`, where other tasks may run. There is no I/O here.

| table | rule |
|---|---|
| topics, groups | replaced at the end of the answer, if its DataVersion or an entry differs |
| consumer offsets, delay offsets | merged: what the answer does not name stays |
| request modes, orders, timer statistics, timer check point | replaced, if they differ |

A body that equals the last one, to a table that has not changed since, is not even parsed. After a start the
entries are compared whatever the DataVersion says: that of a table that was never changed is 0 on both sides.
Members of files that trioha does not know stay, and those of the answer are added.

Offsets never go back silently. Where the master's offset is before the slave's, `keep` keeps the slave's and
`accept` takes the master's; both count it. An offset beyond the end of the slave's own queue is not kept: the
log that it belongs to was replaced, and a consumer or delivery that went on there would miss messages. When
the slave sets its log aside, all its offsets are of that log: each stays until the master names another one,
however long the new queues have grown by then (`log_replaced`). When it cuts its log, so do those that are
beyond the ends of its queues then (`log_cut`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from typing import Final

import structlog
from attrs import define, field

from trioha.config.keys.metadata import OffsetRegression
from trioha.errors import RemoteProtocolError
from trioha.metadata.consumer_orders import GroupQueue, Order, orders_of
from trioha.metadata.data_version import DataVersion
from trioha.metadata.documents import TimerCheckPoint
from trioha.metadata.metadata_store import MetadataStore
from trioha.metadata.offsets import POPS_COMPLETE_TO
from trioha.metadata.table import E, EntryTable, MetadataTable, TableFull
from trioha.metadata.table_reader import TableReader, int_map_at
from trioha.metadata.topics import QUEUES_PER_TOPIC_MAX
from trioha.numbers import NATURAL64, Range, parse_int
from trioha.remoting.fastjson import as_text, parse_json, shown
from trioha.store.topics import SCHEDULE_TOPIC

log = structlog.get_logger(__name__)

SLICE_ENTRIES: Final = 64
"""Entries between two yields."""
ENTRIES_MAX: Final = 100_000
"""Of topics and of groups: as many topics as a name server accepts from one broker."""
OTHER_MEMBERS_MAX: Final = 16
"""Members of a table's file that trioha does not know: those of RocketMQ's versions are three."""
OTHER_CHARS_MAX: Final = 1024 * 1024
"""Of these in one answer, as JSON."""
OFFSET_NAMES_CHARS_MAX: Final = 64 * 1024 * 1024
"""Of all `topic@group` of which a slave has offsets: 128 for each of the 500,000 offsets that it may have
without a setting of its own. What an answer does not name stays, so that this grows from copy to copy."""
DELAY_LEVEL: Final = Range(1, QUEUES_PER_TOPIC_MAX)
"""A level is a queue of the schedule topic, from 1."""
ANSWER_ONLY: Final = frozenset(
    ("mappingDataVersion", "topicQueueMappingDetailMap", "topicQueueMappingInfoMap")
)
"""Members of an answer with topics that are not of topics.json."""
_TOPIC_AND_GROUP: Final = re.compile(r"(.*?)@(.*)", re.DOTALL)


class CopiedTable(StrEnum):
    """The tables that a slave copies, in the order in which it asks for them."""

    TOPICS = "topics"
    CONSUMER_OFFSETS = "consumerOffsets"
    DELAY_OFFSETS = "delayOffsets"
    GROUPS = "groups"
    REQUEST_MODES = "requestModes"
    CONSUMER_ORDERS = "consumerOrders"
    TIMER_METRICS = "timerMetrics"
    TIMER_CHECK_POINT = "timerCheckPoint"
    USERS = "users"
    """With access control lists; `trioha.broker.user_copy` decides what their answers change."""


_OldOffsets = dict[str, dict[int, int]]
"""Offsets that a slave had when its log began anew, until others are taken, by `topic@group` (delay levels:
`""`) and queue or level."""
QueueEnd = Callable[[str, int], int | None]
"""The end of a topic's queue in the slave's own log; None for a queue that it does not have."""


@define
class Regressions:
    """Offsets of the master that are before those of the slave."""

    kept: dict[tuple[str, int], int] = field(factory=dict)
    """The master's offsets that are kept out as of the last answer, by `topic@group` (delay levels: `""`) and
    queue or level."""
    seen: int = 0
    """How many there were since the start."""
    accepted: int = 0
    """How many of them were taken."""


@define
class _Last:
    """The last answer that was taken."""

    body: bytes
    changes: int
    """Of the table, after it was taken."""


class MetadataReplica:
    """Takes a master's answers into the tables of a slave."""

    def __init__(
        self,
        store: MetadataStore,
        *,
        policy: OffsetRegression = OffsetRegression.KEEP,
        queue_end: QueueEnd = lambda _topic, _queue_id: None,
    ) -> None:
        self._store = store
        self._policy = policy
        self._queue_end = queue_end
        self._last: dict[CopiedTable, _Last] = {}
        self._consumers_of_old_log: _OldOffsets = {}
        self._levels_of_old_log: _OldOffsets = {}
        self._logs_replaced = 0
        self.consumer_regressions = Regressions()
        self.delay_regressions = Regressions()
        self.entries: dict[CopiedTable, int] = {}
        """Entries of the last answers."""
        self.changes: dict[CopiedTable, int] = dict.fromkeys(CopiedTable, 0)
        """Answers that have changed a table since the start."""

    def take(self, table: CopiedTable, bodies: list[bytes]) -> Iterator[None]:
        """Take an answer, of several bodies where the master sent it in pages. Exhaust the iterator.

        Raises RemoteProtocolError for a body that makes no sense; then topics and groups are as they were,
        and of offsets those before the damage are taken.
        """
        own = self._own(table)
        last, body = self._last.get(table), b"".join(bodies)
        if last is not None and last.body == body and last.changes == own.changes.offset:
            return
        before, logs_replaced = own.changes.offset, self._logs_replaced
        match table:
            case CopiedTable.TOPICS:
                yield from self._replace(table, self._store.topics, bodies)
            case CopiedTable.GROUPS:
                yield from self._replace(table, self._store.groups, bodies)
            case CopiedTable.CONSUMER_OFFSETS:
                yield from self._merge_offsets(bodies)
            case CopiedTable.DELAY_OFFSETS:
                self._merge_delay_offsets(body)
            case CopiedTable.REQUEST_MODES:
                self._replace_modes(body)
            case CopiedTable.CONSUMER_ORDERS:
                yield from self._replace_orders(body)
            case CopiedTable.TIMER_METRICS:
                self._replace_metrics(body)
            case CopiedTable.TIMER_CHECK_POINT:
                self._replace_check_point(body)
        if own.changes.offset > before:
            self.changes[table] += 1
        if self._logs_replaced == logs_replaced:
            self._last[table] = _Last(body, own.changes.offset)

    def log_replaced(self) -> None:
        """The slave's log has begun anew: its offsets are of another one, and give way to its master's."""
        # The same dicts: a merge may be under way.
        self._consumers_of_old_log.clear()
        for key, queues in self._store.consumer_offsets.items():
            self._consumers_of_old_log[key] = dict(queues)
        self._levels_of_old_log[""] = dict(self._store.delay_offsets.items())
        # The same answers as before are to be read again.
        self._logs_replaced += 1
        self._last.clear()

    def log_cut(self) -> None:
        """The slave's log and queues were cut: offsets beyond their ends give way to its master's."""
        for key, queues in self._store.consumer_offsets.items():
            beyond = _beyond(queues, self._end_of(key))
            if beyond:
                self._consumers_of_old_log.setdefault(key, {}).update(beyond)
        levels = dict(self._store.delay_offsets.items())
        self._levels_of_old_log.setdefault("", {}).update(_beyond(levels, self._end_of_level))
        self._logs_replaced += 1
        self._last.clear()

    def queue_restarted(self, topic: str, queue_id: int) -> None:
        """A queue starts again at 0, since its topic was deleted and made again at the master.

        Its offsets are given up: they belong to messages that are gone, and would skip new ones.
        """
        if count := self._store.consumer_offsets.delete_queue(topic, queue_id):
            log.info("offsets of a deleted queue given up", topic=topic, queue=queue_id, groups=count)
            # The master's answer may be the same as before: it is to be read again.
            self._logs_replaced += 1
            self._last.clear()

    def _own(self, table: CopiedTable) -> MetadataTable:
        store = self._store
        tables: dict[CopiedTable, MetadataTable] = {
            CopiedTable.TOPICS: store.topics,
            CopiedTable.GROUPS: store.groups,
            CopiedTable.CONSUMER_OFFSETS: store.consumer_offsets,
            CopiedTable.DELAY_OFFSETS: store.delay_offsets,
            CopiedTable.REQUEST_MODES: store.request_modes,
            CopiedTable.CONSUMER_ORDERS: store.consumer_orders,
        }
        return tables.get(table, store.timers)

    # -- topics and groups

    def _replace(self, table: CopiedTable, own: EntryTable[E], bodies: list[bytes]) -> Iterator[None]:
        mine = own.entries
        theirs: dict[str, E] = {}
        is_equal, count = True, 0
        version: DataVersion | None = None
        other: dict[str, object] = {}
        for body in bodies:
            reader = TableReader(_text(body), table=own.member)
            for name, value in reader:
                entry = _entry(own.kind, name, value)
                known = mine.get(name)
                # The entry that is known stays the same object: registrations compare by identity.
                theirs[name] = known if known is not None and known == entry else entry
                is_equal = is_equal and theirs[name] is known
                count += 1
                check_entries(count)
                if count % SLICE_ENTRIES == 0:
                    yield
            version = _version(reader, own.member)
            other |= {key: value for key, value in reader.members.items() if key not in ANSWER_ONLY}
        assert version is not None, "an answer has a body"
        self.entries[table] = len(theirs)
        other.pop("dataVersion", None)
        _check_other(own, other)
        has_other = any(own.other.get(key) != value for key, value in other.items())
        if is_equal and own.entries.keys() == theirs.keys() and version == own.version and not has_other:
            return
        own.replace_all(theirs.values(), version, other=other)
        log.info("metadata copied from the master", table=table.value, entries=len(theirs))

    # -- offsets

    def _merge_offsets(self, bodies: list[bytes]) -> Iterator[None]:
        own = self._store.consumer_offsets
        merging = _Merging(self.consumer_regressions, self._policy, self._consumers_of_old_log)
        version: DataVersion | None = None
        pops_complete_to: object = None
        count, has_changed = 0, False
        names_chars = own.names_chars()
        try:
            for body in bodies:
                reader = TableReader(_text(body), table="offsetTable", read_value=int_map_at)
                for number, (key, theirs) in enumerate(reader, 1):
                    assert isinstance(theirs, dict), "read by int_map_at"
                    count += len(theirs)
                    mine = own.queues_of(key)
                    if mine != theirs:
                        taken = merging.taken(key, mine, theirs, self._end_of(key))
                        if taken:
                            names_chars += 0 if mine else len(key)
                            if names_chars > OFFSET_NAMES_CHARS_MAX:
                                raise RemoteProtocolError(
                                    f"names of topics and groups of more than {OFFSET_NAMES_CHARS_MAX} "
                                    "characters"
                                )
                            own.copy_queues(key, taken)
                            has_changed = True
                    if number % SLICE_ENTRIES == 0:
                        yield
                version = _version(reader, "offsetTable", is_optional=True)
                pops_complete_to = reader.members.get(POPS_COMPLETE_TO)
            merging.finish("consumer offsets")
            own.pops_complete_to = _pops_complete_to(pops_complete_to)
        except TableFull as error:
            raise RemoteProtocolError(str(error)) from None
        finally:
            # Also where the body is damaged or the slave ends: what was taken is to be written.
            own.note_copied(has_changed=has_changed, version=version)
        self.entries[CopiedTable.CONSUMER_OFFSETS] = count

    def _end_of(self, key: str) -> Callable[[int], int | None]:
        found = _TOPIC_AND_GROUP.fullmatch(key)
        topic = key if found is None else found[1]
        return lambda queue_id: self._queue_end(topic, queue_id)

    def _end_of_level(self, level: int) -> int | None:
        return self._queue_end(SCHEDULE_TOPIC, level - 1)

    def _merge_delay_offsets(self, body: bytes) -> None:
        own = self._store.delay_offsets
        reader = TableReader(_text(body), table="offsetTable")
        theirs: dict[int, int] = {}
        for key, value in reader:
            try:
                theirs[parse_int(key, DELAY_LEVEL)] = parse_int(value, NATURAL64)
            except ValueError as error:
                raise RemoteProtocolError(f"delay level {shown(key)}: {error}") from None
        version = _version(reader, "offsetTable", is_optional=True)
        merging = _Merging(self.delay_regressions, self._policy, self._levels_of_old_log)
        mine = own.items()
        taken = merging.taken("", mine, theirs, self._end_of_level)
        merging.finish("delay offsets")
        own.copy(taken, version=version)
        self.entries[CopiedTable.DELAY_OFFSETS] = len(theirs)

    # -- tables of 5.x

    def _replace_modes(self, body: bytes) -> None:
        modes = _member_of(body, "messageRequestModeMap")
        self.entries[CopiedTable.REQUEST_MODES] = len(modes)
        if modes != self._store.request_modes.modes:
            self._store.request_modes.replace_all(modes)

    def _replace_orders(self, body: bytes) -> Iterator[None]:
        own = self._store.consumer_orders
        theirs: dict[GroupQueue, Order] = {}
        reader = TableReader(_text(body), table="table")
        for number, (key, queues) in enumerate(reader, 1):
            try:
                theirs |= orders_of(key, queues)
            except ValueError as error:
                raise RemoteProtocolError(f"orders of {shown(key)}: {error}") from None
            if len(theirs) > own.orders_max:
                raise RemoteProtocolError(f"orders of more than {own.orders_max} queues")
            if number % SLICE_ENTRIES == 0:
                yield
        if not reader.has_table:
            raise RemoteProtocolError("no table in the answer")
        self.entries[CopiedTable.CONSUMER_ORDERS] = len(theirs)
        if theirs != dict(own.items()):
            own.replace_all(theirs)

    def _replace_metrics(self, body: bytes) -> None:
        own = self._store.timers
        metrics = _member_of(body, "timingCount")
        reader = TableReader(_text(body), table="")
        list(reader)
        version = _version(reader, None, is_optional=True) or DataVersion()
        self.entries[CopiedTable.TIMER_METRICS] = len(metrics)
        if metrics != own.metrics or version != own.metrics_version:
            own.set_metrics(metrics, version)

    def _replace_check_point(self, body: bytes) -> None:
        check_point = TimerCheckPoint.decode(body)
        self.entries[CopiedTable.TIMER_CHECK_POINT] = 1
        if check_point != self._store.timers.check_point:
            self._store.timers.set_check_point(check_point)


def _beyond(offsets: Mapping[int, int], end_of: Callable[[int], int | None]) -> dict[int, int]:
    """The offsets, by queue id or level, that are beyond the end of their queue, or have none."""
    return {number: offset for number, offset in offsets.items() if offset > (end_of(number) or 0)}


class _Merging:
    """One pass over the offsets of an answer."""

    def __init__(self, regressions: Regressions, policy: OffsetRegression, of_old_log: _OldOffsets) -> None:
        self._regressions = regressions
        self._policy = policy
        self._of_old_log = of_old_log
        self._kept: dict[tuple[str, int], int] = {}
        self._new = 0
        self._accepted = 0
        self._first = ""

    def taken(
        self,
        key: str,
        mine: Mapping[int, int],
        theirs: Mapping[int, int],
        queue_end: Callable[[int], int | None],
    ) -> dict[int, int]:
        """The offsets that the slave takes."""
        taken = {}
        for queue_id, offset in theirs.items():
            known = mine.get(queue_id)
            if known == offset:
                continue
            if (
                known is not None
                and offset < known
                and not self._takes(key, queue_id, known, offset, queue_end)
            ):
                continue
            taken[queue_id] = offset
            if key in self._of_old_log:
                self._of_old_log[key].pop(queue_id, None)
        return taken

    def _takes(
        self, key: str, queue_id: int, known: int, offset: int, queue_end: Callable[[int], int | None]
    ) -> bool:
        """Whether an offset that goes back is taken. Counts it, if it was not counted at the last answer."""
        end = queue_end(queue_id)
        is_kept = (
            self._policy is OffsetRegression.KEEP
            and end is not None
            and known <= end
            and self._of_old_log.get(key, {}).get(queue_id) != known
        )
        before = self._regressions.kept.get((key, queue_id))
        if is_kept:
            self._kept[key, queue_id] = offset
        if before is None or offset < before or not is_kept:
            self._new += 1
            self._accepted += not is_kept
            self._first = self._first or f"{key}/{queue_id}: {known} -> {offset}"
        return not is_kept

    def finish(self, what: str) -> None:
        """The pass has reached the end of the answer."""
        regressions = self._regressions
        regressions.kept = self._kept
        regressions.seen += self._new
        regressions.accepted += self._accepted
        if self._new:
            log.warning(
                f"{what} of the master are before those of this slave",
                number=self._new,
                accepted=self._accepted,
                first=self._first[:300],
            )


def check_entries(count: int) -> None:
    """Raises RemoteProtocolError if a table of topics or groups has too many entries."""
    if count > ENTRIES_MAX:
        raise RemoteProtocolError(f"more than {ENTRIES_MAX} entries")


def _check_other(own: MetadataTable, other: Mapping[str, object]) -> None:
    """Members that trioha does not know are kept with the table's: they must not become many, or long."""
    if len(own.other.keys() | other.keys()) > OTHER_MEMBERS_MAX:
        raise RemoteProtocolError(f"more than {OTHER_MEMBERS_MAX} members beside the table")
    if other and sum(len(name) + len(as_text(value)) for name, value in other.items()) > OTHER_CHARS_MAX:
        raise RemoteProtocolError(f"members beside the table of more than {OTHER_CHARS_MAX} characters")


def _text(body: bytes) -> str:
    return body.decode("utf-8", "replace")


def _entry(kind: type[E], name: str, value: object) -> E:
    try:
        return kind.of(value, name=name)
    except ValueError as error:
        raise RemoteProtocolError(f"entry {shown(name)}: {error}") from None


def _version(reader: TableReader, member: str | None, *, is_optional: bool = False) -> DataVersion | None:
    """The DataVersion of a body that was read. Raises RemoteProtocolError for one without its table."""
    if member is not None and not reader.has_table:
        raise RemoteProtocolError(f"no {member} in the answer")
    value = reader.members.get("dataVersion")
    if value is None:
        return None if is_optional else DataVersion()
    try:
        return DataVersion.of(value)
    except ValueError as error:
        raise RemoteProtocolError(f"dataVersion: {error}") from None


def _pops_complete_to(value: object) -> int | None:
    """A master's `ConsumerOffsets.pops_complete_to`; None from RocketMQ."""
    try:
        return None if value is None else parse_int(value, NATURAL64)
    except ValueError as error:
        raise RemoteProtocolError(f"{POPS_COMPLETE_TO}: {error}") from None


def _member_of(body: bytes, name: str) -> dict[str, object]:
    whole = parse_json(body)
    value = whole.get(name) if isinstance(whole, dict) else None
    if not isinstance(value, dict):
        raise RemoteProtocolError(f"no {name} in the answer")
    return value
