"""The log of a slave beside that of its master.

See docs/protocol/ha.md#where-a-master-starts, docs/protocol/ha.md#defects.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from trioha.broker_status import BrokerStatus
from trioha.doctor.case import Case, Node, Pair, dialled_address, same_address
from trioha.doctor.findings import Observation, check
from trioha.replica_verdict import Verdict, verdict_of
from trioha.severity import Severity

GAP_BYTES_MAX: Final = 256 * 1024 * 1024
"""RocketMQ's default of haMaxGapNotInSync."""
FILE_BYTES: Final = 1024 * 1024 * 1024
"""RocketMQ's default of mappedFileSizeCommitLog."""
DISK_PERCENT_MAX: Final = 75
FULL_PERCENT: Final = 90
"""RocketMQ's default of diskSpaceWarningLevelRatio."""
SILENT_HOUSEKEEPINGS: Final = 1.5
"""A slave is silent when it read nothing for so many housekeeping intervals."""
HOUSEKEEPING_MS: Final = 20_000


@check(
    "disk-full",
    Severity.CRITICAL,
    mend="Free space on the disk of the store, or lower `fileReservedTime`; puts are stored again at once.",
)
def disk_full(case: Case) -> Iterator[Observation]:
    """The disk keeps messages from being stored.

    A trioha node says so itself. A broker of RocketMQ refuses messages from diskSpaceWarningLevelRatio on
    (90 %), and reports how full its disk is.
    """
    for node in case.running:
        status = node.status
        if status is None:
            continue
        refused = status.put_statuses.get("SERVICE_NOT_AVAILABLE", 0)
        ratio = status.table.disk_ratio
        limit = node.number("diskSpaceWarningLevelRatio") or FULL_PERCENT
        if status.put_refusal:
            evidence = f"{status.put_refusal}; {refused} puts were SERVICE_NOT_AVAILABLE since its start"
        elif not node.is_trioha and ratio is not None and ratio * 100 >= limit:
            evidence = f"the disk is {ratio:.0%} full, messages are refused from {limit} % on"
        else:
            continue
        yield Observation(
            subject=node.label,
            evidence=evidence,
            remedy="free space on its disk, or delete old log files earlier: fileReservedTime",
        )


@check(
    "slave-not-connected",
    Severity.CRITICAL,
    mend="Follow the evidence: the slave dials another address, the port is closed, or the master "
    "refuses it.",
)
def slave_not_connected(case: Case) -> Iterator[Observation]:
    """A slave does not replicate: its master has no connection of it.

    By the master's list of connections, or the slave's own report of its connection (5.x and trioha report
    these, 4.9 neither).
    """
    for pair in case.pairs:
        reason = _why_not_connected(pair)
        if reason is None or _has_named_cause(pair):
            continue
        dialled = dialled_address(pair.slave) or "no address"
        expected = pair.master.ha_address
        remedy = f"open {expected} to the slave's host, and look into the slave's log"
        if pair.slave.is_trioha and expected and not same_address(dialled, expected):
            remedy = f"haMasterAddress={expected} in the broker.conf of the slave, then restart it"
        yield Observation(subject=pair.label, evidence=f"{reason}; the slave dials {dialled}", remedy=remedy)


@check(
    "slave-below-minimum",
    Severity.CRITICAL,
    mend="Stop the slave, move its store aside and start it empty (trioha: `trioha.haGapPolicy=resync`).",
)
def slave_below_minimum(case: Case) -> Iterator[Observation]:
    """A slave needs bytes that its master has deleted.

    The slave's log ends before the first byte of the master's log. RocketMQ sends heartbeats for ever, and
    both look healthy; the slave never gets another message. An empty slave of RocketMQ starts at the
    master's last file.
    """
    for pair in case.pairs:
        end, first = pair.slave.max_offset, _min_offset(pair.master)
        if end is not None and first is not None and 0 < end < first:
            yield Observation(
                subject=pair.label,
                evidence=f"the slave's log ends at {end}, the master's begins at {first}",
                remedy=_replace_log(pair.slave),
            )


@check(
    "slave-beyond-end",
    Severity.CRITICAL,
    mend="Find out which log is right (`trioha verify STORE --against STORE2`); the slave's store is "
    "replaced, or "
    "the slave becomes the master.",
)
def slave_beyond_end(case: Case) -> Iterator[Observation]:
    """A slave has more bytes than its master.

    The slave has the log of another master, or the master lost the end of its log in a crash. 4.9 and 5.x
    never mend this: when the master grows past the slave's end, its bytes continue a different log. Until
    then the slave's reports count as acknowledgements of messages that it does not have.
    """
    for pair in case.pairs:
        end, last = pair.slave.max_offset, pair.master.max_offset
        if end is not None and last is not None and end > last:
            yield Observation(
                subject=pair.label,
                evidence=f"the slave's log ends at {end}, {end - last} bytes beyond the master's end at "
                f"{last}",
                remedy=f"compare the stores with trioha verify, then {_replace_log(pair.slave)}",
            )


@check(
    "slave-refuses-log",
    Severity.CRITICAL,
    mend="`trioha verify STORE --against STORE2` shows where the logs differ; "
    "`trioha.haGapPolicy=resync` copies "
    "the master's log anew and keeps the old one aside.",
)
def slave_refuses_log(case: Case) -> Iterator[Observation]:
    """A trioha slave reports that its log does not continue its master's.

    It compares the end of its log with its master's on each connection, and neither overwrites nor
    acknowledges anything where they differ.
    """
    for node, verdict in _verdicts(case):
        if verdict_of(verdict) is not Verdict.REFUSED:
            yield Observation(subject=node.label, evidence=verdict, remedy=_replace_log(node))


@check(
    "slave-not-admitted",
    Severity.CRITICAL,
    mend="Encrypt both sides of the replication or none, let the slave's host in "
    "(`trioha.haAllowedPeers`), and give the slave its own master's address.",
)
def slave_not_admitted(case: Case) -> Iterator[Observation]:
    """A trioha slave and its master end each other's connections before anything is replicated.

    One side encrypts and the other does not, the master does not let the slave's address in, or the slave
    was given the address of another broker. The logs are not the cause: they stay as they are.
    """
    masters = {id(pair.slave): pair.master for pair in case.pairs}
    for node, verdict in _verdicts(case):
        if verdict_of(verdict) is Verdict.REFUSED:
            remedy = _admission_remedy(masters.get(id(node)), node)
            yield Observation(subject=node.label, evidence=verdict, remedy=remedy)


@check(
    "slave-not-in-sync",
    Severity.WARNING,
    mend="Look at the network and the disk of the slave; the lag must shrink. `trioha monitor` shows "
    "its course.",
)
def slave_not_in_sync(case: Case) -> Iterator[Observation]:
    """A slave lags by more than haMaxGapNotInSync.

    The master does not count it as a copy, and a consumer that goes on at it misses that much. Computed
    from the ends of both logs, so that it also holds for 4.9.
    """
    for pair in case.pairs:
        lag = _lag_bytes(pair)
        gap = pair.master.number("haMaxGapNotInSync") or pair.master.number("haSlaveFallbehindMax")
        gap_bytes_max = gap or _setting(pair.master, "gap_bytes_max") or GAP_BYTES_MAX
        if lag is not None and lag >= gap_bytes_max and not _is_below_minimum(pair):
            yield Observation(
                subject=pair.label,
                evidence=f"the slave lacks {lag} bytes; in sync are less than {gap_bytes_max}",
                remedy="look at network and disk of the slave; trioha monitor shows how fast it catches up",
            )


@check(
    "retention-overtakes-slave",
    Severity.CRITICAL,
    mend="Raise `fileReservedTime` and `diskMaxUsedSpaceRatio` of the master, or free disk space, until "
    "the slave "
    "has caught up.",
)
def retention_overtakes_slave(case: Case) -> Iterator[Observation]:
    """The master may delete the file that a slave needs next.

    RocketMQ deletes files by age in the hours of deleteWhen, and at any hour above diskMaxUsedSpaceRatio,
    no matter what slaves have. Reported if the slave lags by a whole file or more, and its next byte is in
    the master's oldest file or the disk is fuller than the limit. A trioha master keeps what a connected
    slave has not acknowledged unless the disk is nearly full.
    """
    for pair in case.pairs:
        first, last, end = _min_offset(pair.master), pair.master.max_offset, pair.slave.max_offset
        if first is None or last is None or end is None or not 0 < end < last or end < first:
            continue
        file_bytes = _setting(pair.master, "file_bytes") or FILE_BYTES
        if last - end < file_bytes:
            continue
        oldest_file_end = first - first % file_bytes + file_bytes
        status = pair.master.status
        reserved = pair.master.number("fileReservedTime") or _setting(pair.master, "reserved_h")
        limit = _setting(pair.master, "disk_percent_max") or DISK_PERCENT_MAX
        ratio = None if status is None else status.table.disk_ratio
        is_full = ratio is not None and ratio * 100 > limit
        if is_full:
            evidence = (
                f"the disk is {ratio:.0%} full, files go above {limit} %; the slave lacks {last - end} bytes"
            )
        elif end < oldest_file_end and not pair.master.is_trioha:
            evidence = (
                f"the slave needs offset {end}, in the master's oldest file ({first} to {oldest_file_end}); "
                f"fileReservedTime is {reserved} h"
            )
        else:
            continue
        yield Observation(
            subject=pair.label,
            evidence=evidence,
            remedy=f"fileReservedTime={(reserved or 72) * 2} at the master until the slave has caught "
            "up, as in: "
            f"mqadmin updateBrokerConfig -b {pair.master.label} -k fileReservedTime -v "
            f"{(reserved or 72) * 2}",
        )


@check(
    "file-sizes-differ",
    Severity.CRITICAL,
    mend="Set the master's `mappedFileSizeCommitLog` at the slave, and start the slave with an empty store.",
)
def file_sizes_differ(case: Case) -> Iterator[Observation]:
    """Master and slave have log files of different sizes.

    Frames do not cross the end of a master's file, but may cross that of the slave's: RocketMQ's slave
    refuses such a frame silently and never goes on. Records would start at other places of files.
    """
    for pair in case.pairs:
        sizes = _file_sizes(pair)
        if None not in sizes and sizes[0] != sizes[1]:
            yield Observation(
                subject=pair.label,
                evidence=f"mappedFileSizeCommitLog is {sizes[0]} at the master, {sizes[1]} at the slave",
                remedy=f"mappedFileSizeCommitLog={sizes[0]} in the broker.conf of the slave, and an "
                "empty store",
            )


@check(
    "record-not-dispatched",
    Severity.CRITICAL,
    mend="`trioha verify STORE` names the record; a slave copies its log anew from its master.",
)
def record_not_dispatched(case: Case) -> Iterator[Observation]:
    """A trioha node could not dispatch a record of its log.

    The record is damaged: it is in no consume queue, and consumers do not get it.
    """
    for node in case.running:
        if node.status is not None and node.status.dispatch_fault:
            yield Observation(
                subject=node.label,
                evidence=node.status.dispatch_fault,
                remedy=f"trioha verify {node.setting('storePathRootDir') or 'STORE'}",
            )


@check(
    "log-unreadable",
    Severity.CRITICAL,
    mend="Check the disk. A slave without a log copies its master's; of a master, promote the slave first. "
    "An archive may have the file, too.",
)
def log_unreadable(case: Case) -> Iterator[Observation]:
    """The disk does not give a trioha node bytes of its log.

    A bad sector, or a file that was cut or deleted. Consumers that need the messages there get an error, and
    slaves that need the bytes do not follow; all others are served.
    """
    for node in case.running:
        if node.status is not None and node.status.read_fault:
            yield Observation(
                subject=node.label,
                evidence=f"{node.status.read_faults} reads failed, the last one: {node.status.read_fault}",
                remedy="check the disk, and replace the log by a copy of the other node's",
            )


@check(
    "cannot-be-written",
    Severity.WARNING,
    mend="Make room, or mend the permissions, where the evidence says; the node tries again by itself, but "
    "for a recording: that begins again with the next start.",
)
def cannot_be_written(case: Case) -> Iterator[Observation]:
    """A trioha node cannot write something, and goes on without it.

    Messages are stored, replicated and consumed. Without the index queries by key find nothing new; a
    history or a recording has a gap; metadata that cannot be written are lost if the node is killed.
    """
    for node in case.running:
        if node.status is None:
            continue
        for name, reason in node.status.unwritten.items():
            failures = node.status.write_failures.get(name, 0)
            yield Observation(
                subject=node.label,
                evidence=f"{name}: {reason} ({failures} failures since its start)",
                remedy="free space on that disk, or mend the permissions there",
            )


def _verdicts(case: Case) -> Iterator[tuple[Node, str]]:
    """Trioha slaves that say why they do not follow their master."""
    for node in case.running:
        client = None if node.status is None else node.status.client
        if client is not None and client.verdict:
            yield node, client.verdict


def _has_named_cause(pair: Pair) -> bool:
    """Whether another check reports why the slave does not replicate."""
    client = None if pair.slave.status is None else pair.slave.status.client
    sizes = _file_sizes(pair)
    return bool(client is not None and client.verdict) or (None not in sizes and sizes[0] != sizes[1])


def _file_sizes(pair: Pair) -> list[int | None]:
    return [
        node.number("mappedFileSizeCommitLog") or _setting(node, "file_bytes") or _default_file_bytes(node)
        for node in (pair.master, pair.slave)
    ]


def _admission_remedy(master: Node | None, slave: Node) -> str:
    if master is not None:
        encrypted = [bool(node.setting("trioha.haTlsCert")) for node in (master, slave)]
        if encrypted[0] != encrypted[1]:
            here, there = ("the master", "the slave") if encrypted[0] else ("the slave", "the master")
            return f"trioha.haTlsCert, haTlsKey and haTlsCa at {there} as at {here}, or at neither"
    return "compare trioha.haTlsCert of both, and the master's trioha.haAllowedPeers with the slave's address"


def _why_not_connected(pair: Pair) -> str | None:
    master, slave = pair.master.status, pair.slave.status
    if master is None or slave is None:
        return None
    if master.source == "ha-status" and not any(not one.is_probe for one in master.connections):
        return "the master lists no connection of a slave"
    client = slave.client
    if slave.source != "ha-status" or client is None:
        return None
    if client.state is not None:
        return None if client.state == "TRANSFER" else f"the slave's connection is {client.state}"
    if not client.master_address:
        return "the slave has no address of its master"
    if client.last_read_ms == 0:
        return "the slave has never received anything"
    clock = None if pair.slave.broker is None else pair.slave.broker.clock
    limit_ms = SILENT_HOUSEKEEPINGS * (_setting(pair.slave, "housekeeping_ms") or HOUSEKEEPING_MS)
    if clock is not None and clock.now_ms - client.last_read_ms > limit_ms:
        return f"the slave received nothing for {(clock.now_ms - client.last_read_ms) // 1000} s"
    return None


def _min_offset(node: Node) -> int | None:
    return None if node.status is None else node.status.min_offset


def _lag_bytes(pair: Pair) -> int | None:
    end, last = pair.slave.max_offset, pair.master.max_offset
    return None if end is None or last is None else last - end


def _is_below_minimum(pair: Pair) -> bool:
    end, first = pair.slave.max_offset, _min_offset(pair.master)
    return end is not None and first is not None and 0 < end < first


def _setting(node: Node, name: str) -> int | None:
    """A field of BrokerSettings, as the broker reports it."""
    status: BrokerStatus | None = node.status
    value = None if status is None else getattr(status.settings, name)
    assert value is None or isinstance(value, int), f"{name} is a number"
    return value


def _default_file_bytes(node: Node) -> int | None:
    return FILE_BYTES if node.conf is not None and node.broker is None else None


def _replace_log(slave: Node) -> str:
    if slave.is_trioha:
        return (
            "start the slave with -p trioha.haGapPolicy=resync: its log is kept aside, and all that its "
            "master still has is copied anew"
        )
    store = slave.setting("storePathRootDir") or "its storePathRootDir"
    return f"stop the slave, move {store} aside and start it with an empty one"
