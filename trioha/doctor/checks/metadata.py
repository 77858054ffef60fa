"""Topics, groups and offsets of a slave beside those of its master (docs/protocol/ha.md#metadata)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Final, NamedTuple

from trioha.doctor.case import Case, Node, Pair, some_of
from trioha.doctor.findings import Observation, check
from trioha.doctor.tables import OffsetTable, Table
from trioha.metadata.groups import SYSTEM_GROUPS
from trioha.severity import Severity

LATE_S_OF_5: Final = 130
"""Two periods of 63 s, in which a slave of 5.x copies all tables."""
LATE_S: Final = 30
"""Three periods of 10 s, in which slaves of 4.9 and of trioha do."""
_LOCAL_PREFIXES: Final = ("rmq_sys_", "RMQ_SYS_", "%RETRY%", "%DLQ%", "TBW102", "CID_RMQ_SYS_")
_LOCAL_NAMES: Final = frozenset(
    (*SYSTEM_GROUPS, "BenchmarkTest", "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT", "SCHEDULE_TOPIC_XXXX")
)
"""Topics and groups that each broker makes for itself: a slave may have more of them."""


class _Tables(NamedTuple):
    """The same table of a master and of its slave."""

    pair: Pair
    master: Table
    slave: Table


@check(
    "metadata-copy-fails",
    Severity.WARNING,
    mend="See that the slave knows its master's address (`namesrvAddr`, or `trioha.masterAddress`), and "
    "reaches its listenPort.",
)
def metadata_copy_fails(case: Case) -> Iterator[Observation]:
    """A trioha slave cannot copy topics, groups or offsets of its master.

    It reports how each of its tables was copied: the last attempt failed, or the last success is older than
    three periods. What consumers find there after a change of roles is as old as that copy.
    """
    for node in case.slaves:
        copied = None if node.status is None else node.status.metadata
        if copied is None:
            continue
        late_ms = 1000 * _usual_late_s(node)
        clock = None if node.broker is None else node.broker.clock
        has_run = clock is not None and clock.uptime_s * 1000 > late_ms
        reasons: dict[str, list[str]] = {}
        for name, table in copied.tables.items():
            if table.error:
                reasons.setdefault(table.error, []).append(name)
            elif has_run and (table.age_ms is None or table.age_ms > late_ms):
                age = "never copied" if table.age_ms is None else f"copied {table.age_ms // 1000} s ago"
                reasons.setdefault(age, []).append(name)
        if reasons:
            of_whom = copied.master_address or "its master, whose address it does not know"
            yield Observation(
                subject=node.label,
                evidence=f"from {of_whom}: "
                + "; ".join(f"{some_of(names)}: {reason}" for reason, names in reasons.items()),
                remedy="trioha.masterAddress=HOST:PORT of its master in its broker.conf, then restart it; or "
                "open that port to it",
            )


@check(
    "topics-late",
    Severity.WARNING,
    mend="See that the slave has `namesrvAddr` and reaches its master's listenPort and listenPort - 2; "
    "what is "
    "missing can be made with `mqadmin updateTopic -b SLAVE`.",
)
def topics_late(case: Case) -> Iterator[Observation]:
    """A slave has other topics than its master.

    Consumers that go on at the slave do not find these topics or their queues, and a promoted slave refuses
    sends to them. Reported if the master's last change is older than two periods in which the slave copies
    them: 30 s (three periods of a trioha slave), for 5.x 130 s, or `--metadata-late`.
    """
    yield from _late(case, "topics")


@check(
    "groups-late",
    Severity.WARNING,
    mend="See that the slave has `namesrvAddr` and reaches its master's listenPort; what is missing can "
    "be made with "
    "`mqadmin updateSubGroup -b SLAVE`.",
)
def groups_late(case: Case) -> Iterator[Observation]:
    """A slave has other consumer groups than its master.

    Their consumers are refused, or get default settings, at a slave that takes over. Reported as
    topics-late.
    """
    yield from _late(case, "groups")


@check(
    "offsets-missing",
    Severity.WARNING,
    mend="See that the slave has `namesrvAddr` and reaches its master's listenPort.",
)
def offsets_missing(case: Case) -> Iterator[Observation]:
    """A slave lacks the offsets of consumer groups.

    When it takes over, these groups begin anew: they miss messages or consume all of them again. Reported
    for groups without any offset at the slave, if both brokers have run for longer than topics-late allows,
    and no topic or group of the master changed in that time. Offsets that are merely older are normal
    between two copies. A trioha slave reports when it copied them last. At one of RocketMQ a group that
    consumes a topic for the first time is reported until the next copy: run the command again.
    """
    for pair in case.pairs:
        master, slave = _offsets(pair.master), _offsets(pair.slave)
        if master is None or slave is None or not _have_run(case, pair) or _changed_lately(case, pair):
            continue
        if _has_copied(case, pair, "consumerOffsets"):
            continue
        missing = sorted(key for key, queues in master.offsets.items() if queues and key not in slave.offsets)
        if missing:
            yield Observation(
                subject=pair.label,
                evidence=f"no offsets at the slave (topic@group): {some_of(missing)}; the master has "
                f"{len(master.offsets)} of these, the slave {len(slave.offsets)}",
                remedy=_remedy(pair),
            )


@check(
    "offsets-ahead",
    Severity.WARNING,
    mend="Set the master's offset forward with `mqadmin resetOffsetByTime` before the next copy.",
)
def offsets_ahead(case: Case) -> Iterator[Observation]:
    """A slave has larger offsets of consumer groups than its master.

    Consumers committed at the slave while the master was away, or roles were exchanged, or the master's
    offsets were reset. The next copy sets the slave's offsets back (RocketMQ merges them without comparing
    versions), and what lies between is consumed again; a trioha slave keeps its own with
    `trioha.offsetRegression=keep`.
    """
    for pair in case.pairs:
        master, slave = _offsets(pair.master), _offsets(pair.slave)
        if master is None or slave is None:
            continue
        ahead = [
            f"{key} queue {queue}: {offset} at the slave, {known} at the master"
            for key, queues in sorted(slave.offsets.items())
            for queue, offset in sorted(queues.items())
            if (known := master.offsets.get(key, {}).get(queue)) is not None and offset > known
        ]
        if ahead:
            yield Observation(
                subject=pair.label,
                evidence=some_of(ahead, most=3),
                remedy=f"mqadmin resetOffsetByTime for the group at {pair.master.label}, forward",
            )


@check(
    "delay-offsets-late",
    Severity.WARNING,
    mend="See that the slave has `namesrvAddr` and reaches its master's listenPort.",
)
def delay_offsets_late(case: Case) -> Iterator[Observation]:
    """A slave lacks the offsets of delay levels.

    A promoted slave delivers all delayed messages of these levels again. Reported for levels without an
    offset at the slave, as offsets-missing. Slaves of 4.9 are not checked: they write the master's offsets
    into a file and do not report them.
    """
    for pair in case.pairs:
        master, slave = _delay_offsets(pair.master), _delay_offsets(pair.slave)
        if master is None or slave is None or pair.slave.version.is_4 or not _have_run(case, pair):
            continue
        if _has_copied(case, pair, "delayOffsets"):
            continue
        missing = [
            str(level) for level, offset in sorted(master.items()) if offset > 0 and level not in slave
        ]
        if missing:
            yield Observation(
                subject=pair.label,
                evidence=f"levels without an offset at the slave: {some_of(missing, most=18)}",
                remedy=_remedy(pair),
            )


@check(
    "handover-early",
    Severity.WARNING,
    mend="Stop producers and consumers, wait for the slave's next copy (10 s, 5.x 63 s), and run it again.",
)
def handover_early(case: Case) -> Iterator[Observation]:
    """A slave does not have everything of its master at this moment.

    Only with `--handover`, which asks whether the master can be stopped and the slave started as master
    without a message that is lost or comes again: the end of the log, topics, groups, each offset of each
    group, and delay levels. While clients work, some of it is always on its way.
    """
    if not case.thresholds.handover:
        return
    if not case.pairs:
        yield Observation(
            subject="all that was named",
            evidence="no master with its slave among them",
            remedy="name both: trioha doctor --handover MASTER SLAVE",
        )
    for pair in case.pairs:
        if parts := list(_missing_of(pair, case)):
            yield Observation(
                subject=pair.label,
                evidence="; ".join(parts),
                remedy="stop producers and consumers, wait for the slave's next copy, and run it again",
            )


def _missing_of(pair: Pair, case: Case) -> Iterator[str]:
    """What a slave does not have of its master, and what could not be compared."""
    end, slave_end = pair.master.max_offset, pair.slave.max_offset
    if end is None or slave_end is None:
        yield "the end of a log is not known"
    elif slave_end < end:
        yield f"{end - slave_end:,} bytes of the log"
    for name in ("topics", "groups"):
        known = [tables for tables in _both(case, name) if tables.pair is pair]
        if not known:
            yield f"the {name} of one of them are not known"
        for tables in known:
            yield from (f"{name} {part}" for part in _differences(tables))
    for name, read in (("offsets", _offsets), ("delay levels", _delays)):
        master, slave = read(pair.master), read(pair.slave)
        if master is None or slave is None:
            yield f"the {name} of one of them are not known"
            continue
        older = [
            key
            for key, queues in sorted(master.offsets.items())
            if any(offset > slave.offsets.get(key, {}).get(queue, 0) for queue, offset in queues.items())
        ]
        if older:
            yield f"newer {name}" + (f" of (topic@group): {some_of(older)}" if any(older) else "")


def _late(case: Case, name: str) -> Iterator[Observation]:
    for tables in _both(case, name):
        if _is_late(case, tables) and (parts := _differences(tables)):
            yield Observation(
                subject=tables.pair.label,
                evidence=f"{'; '.join(parts)} ({len(tables.master.entries)} at the master, "
                f"{len(tables.slave.entries)} at the slave)",
                remedy=_remedy(tables.pair),
            )


def _differences(tables: _Tables) -> list[str]:
    pair, master, slave = tables
    missing = sorted(master.entries.keys() - slave.entries.keys(), key=partial(_users_first, pair.slave))
    other = sorted(
        key for key, entry in master.entries.items() if key in slave.entries and slave.entries[key] != entry
    )
    extra = sorted(
        key for key in slave.entries.keys() - master.entries.keys() if not _is_local(key, pair.slave)
    )
    return [
        f"{what}: {some_of(keys)}"
        for what, keys in (
            ("missing at the slave", missing),
            ("with other settings", other),
            ("only at the slave", extra),
        )
        if keys
    ]


def _both(case: Case, name: str) -> Iterator[_Tables]:
    for pair in case.pairs:
        master, slave = (
            None if node.broker is None else getattr(node.broker.tables, name)
            for node in (pair.master, pair.slave)
        )
        if master is not None and slave is not None:
            yield _Tables(pair, master, slave)


def _is_late(case: Case, tables: _Tables) -> bool:
    """Whether the master's last change is so old that a slave should have copied it."""
    return _have_run(case, tables.pair) and not _is_recent(case, tables.pair, tables.master.changed_ms)


def _changed_lately(case: Case, pair: Pair) -> bool:
    """Whether the master's topics or groups have changed lately: offsets of new ones are not copied yet."""
    known = None if pair.master.broker is None else pair.master.broker.tables
    return known is not None and any(
        table is not None and _is_recent(case, pair, table.changed_ms)
        for table in (known.topics, known.groups)
    )


def _is_recent(case: Case, pair: Pair, changed_ms: int | None) -> bool:
    """Whether a change at the master is so young that a slave may not have copied it."""
    clock = None if pair.master.broker is None else pair.master.broker.clock
    if clock is None or changed_ms is None:
        return False
    return clock.now_ms - changed_ms <= 1000 * _late_s(case, pair.slave)


def _has_copied(case: Case, pair: Pair, table: str) -> bool:
    """Whether the slave reports that it copied a table lately: what it lacks is newer than that copy."""
    copied = None if pair.slave.status is None else pair.slave.status.metadata
    step = None if copied is None else copied.tables.get(table)
    if step is None or step.error or step.age_ms is None:
        return False
    return step.age_ms <= 1000 * _late_s(case, pair.slave)


def _have_run(case: Case, pair: Pair) -> bool:
    """Whether both have run for so long that the slave should have copied everything."""
    for node in (pair.master, pair.slave):
        clock = None if node.broker is None else node.broker.clock
        if clock is None or clock.uptime_s <= _late_s(case, pair.slave):
            return False
    return True


def _late_s(case: Case, slave: Node) -> int:
    if case.thresholds.metadata_late_s is not None:
        return case.thresholds.metadata_late_s
    return _usual_late_s(slave)


def _usual_late_s(slave: Node) -> int:
    """In what time a slave should have copied a change, by its version and settings."""
    if slave.version.is_5:
        return LATE_S_OF_5
    first_ms = slave.number("trioha.metadataSyncFirst") or 0
    period_ms = slave.number("trioha.metadataSyncPeriod") or 0
    return max(LATE_S, (first_ms + 999) // 1000, 3 * period_ms // 1000)


def _is_local(key: str, slave: Node) -> bool:
    return key.startswith(_LOCAL_PREFIXES) or key in _LOCAL_NAMES or key in {slave.name, slave.cluster}


def _users_first(slave: Node, name: str) -> tuple[bool, str]:
    """Key of an order in which topics and groups of users come before those that each broker makes."""
    return _is_local(name, slave), name


def _offsets(node: Node) -> OffsetTable | None:
    return None if node.broker is None else node.broker.tables.consumer_offsets


def _delays(node: Node) -> OffsetTable | None:
    return None if node.broker is None else node.broker.tables.delay_offsets


def _delay_offsets(node: Node) -> Mapping[int, int] | None:
    table = _delays(node)
    return None if table is None else table.offsets.get("", {})


def _remedy(pair: Pair) -> str:
    slave = pair.slave
    if slave.is_trioha:
        return f"let {slave.label} reach {pair.master.label}; its log says why it cannot copy the tables"
    if not slave.setting("namesrvAddr"):
        return "namesrvAddr=HOST:9876 in the broker.conf of the slave, then restart it"
    return (
        f"open {pair.master.label} and the port 2 below to the slave; `SyncTopicConfig Exception` in its log"
    )
