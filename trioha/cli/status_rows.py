"""What `trioha status` says of brokers at one moment: a row for each broker and replica, and a line for all.

Pure. Verdicts on replicas are those of `trioha.replica_verdict`, as in the monitor; what is wrong with a
broker are findings of the doctor that need no more than its status. A slave that was asked itself has the row
of its connection at its master, or a row of its own where no master that was asked has it.

One answer does not show whether an acknowledgement moves. `second_look_s` says how long to wait before the
brokers are asked again, if a replica may be stalled.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from attrs import evolve, frozen

from trioha.broker_status import BrokerStatus, ConnectionStatus, ControlStatus
from trioha.doctor.case import Case, Node, host_of
from trioha.doctor.diagnosis import findings_of
from trioha.doctor.facts import BrokerFacts, Facts
from trioha.replica_verdict import (
    Facts as ReplicaFacts,
)
from trioha.replica_verdict import Limits, Verdict, end_and_lag, judge, limits_of
from trioha.severity import Severity
from trioha.unit_texts import counted

DISK_FULL: Final = "disk-full"
BROKER_CHECKS: Final = (
    DISK_FULL,
    "cannot-be-written",
    "record-not-dispatched",
    "log-unreadable",
    "too-few-slaves-in-sync",
    "metadata-copy-fails",
    "archive-fenced",
    "archive-damaged",
    "archive-fails",
    "archive-hole",
    "pending-not-delivered",
    "unread-store",
)
"""Checks of the doctor that judge a broker by its status alone."""
WORDS: Final = {
    Severity.GOOD: "OK",
    Severity.NOTICE: "OK",
    Severity.WARNING: "WARNING",
    Severity.CRITICAL: "CRITICAL",
}
"""States of a broker, and of all."""


@frozen
class Problem:
    """Something that is wrong with a broker."""

    id: str
    """Of the doctor's check."""
    severity: Severity
    text: str


@frozen(kw_only=True)
class StatusRow:
    """A broker, a replica, or a slave that is both."""

    address: str
    """Listen address of a broker that was asked, else the slave's end of the connection."""
    master: str = ""
    """Address of the master that has it as a replica; empty in other rows."""
    name: str = ""
    """End of the log, role, name and id; empty where the broker itself was not asked."""
    state: str
    """A verdict, DISK FULL, or one of `WORDS`."""
    severity: Severity
    verdict: Verdict | None = None
    """Of a slave."""
    lag_bytes: int | None = None
    lag_ms: int | None = None
    """Age of the oldest byte that it has not acknowledged."""
    problems: tuple[str, ...] = ()
    """What is wrong, the reason of the verdict first."""


@frozen
class Earlier:
    """Answers of the same brokers, some time earlier."""

    brokers: Sequence[BrokerStatus]
    ago_s: float

    def connection(self, master: BrokerStatus, address: str) -> tuple[BrokerStatus, ConnectionStatus] | None:
        """The master's earlier answer, and that connection in it."""
        for broker in self.brokers:
            if broker.address == master.address:
                for connection in broker.connections:
                    if connection.address == address:
                        return broker, connection
        return None


# -- a second look -------------------------------------------------------------------------------------------


def second_look_s(brokers: Sequence[BrokerStatus]) -> float | None:
    """After how many seconds other answers show what these do not; None if these show it all.

    A replica that lacks bytes may be stalled if these are older than puts wait for it, or of unknown age.
    """
    waits = [
        limits.slave_timeout_s
        for master in brokers
        for limits in (limits_of(master),)
        for connection in master.connections
        if not connection.is_probe and _is_doubtful(master, connection, limits)
    ]
    return max(waits, default=None)


def _is_doubtful(master: BrokerStatus, connection: ConnectionStatus, limits: Limits) -> bool:
    if _furthest_beyond(master, connection) is not None:
        return True
    if connection.lag_ms is None:
        return connection.lag_bytes > 0
    return connection.lag_bytes > 0 and connection.lag_ms >= limits.slave_timeout_s * 1000


def _furthest_beyond(master: BrokerStatus, connection: ConnectionStatus) -> int | None:
    """The offset of the connection that is beyond the end of the log in the same answer, if one is."""
    ack = max(connection.ack_offset, 0)
    furthest = max(ack, connection.sent_offset)
    return furthest if furthest > max(master.max_offset, ack + connection.lag_bytes) else None


# -- rows ----------------------------------------------------------------------------------------------------


def rows_of(brokers: Sequence[BrokerStatus], *, earlier: Earlier | None = None) -> list[StatusRow]:
    """A row for each broker, those of its replicas after each master."""
    case = Case.of(Facts(brokers=tuple(BrokerFacts(address=one.address, status=one) for one in brokers)))
    problems = _problems(case)
    rows: list[StatusRow] = []
    seen: set[str] = set()
    for node in sorted(case.nodes, key=lambda node: not node.is_master):
        status = node.status
        assert status is not None, "only brokers that answered"
        own = problems.get(status.address, [])
        if not node.is_slave:
            rows.append(_row(status.address, name=_name(status), problems=own))
        elif status.address not in seen:
            rows.append(_slave_row(None, None, status, own, earlier))
        if node.is_master:
            for connection, slave in _replicas(status, case.slaves_of(node)):
                seen.add("" if slave is None else slave.address)
                its = [] if slave is None else problems.get(slave.address, [])
                rows.append(_slave_row(status, connection, slave, its, earlier))
    return rows


def _problems(case: Case) -> dict[str, list[Problem]]:
    """What is wrong with each broker itself, by its address, the worst first."""
    found: dict[str, list[Problem]] = {}
    for finding in findings_of(case, BROKER_CHECKS):
        text = f"{finding.id}: {finding.evidence}"
        found.setdefault(finding.subject, []).append(Problem(finding.id, finding.severity, text))
    for node in case.running:
        if node.status is not None and node.status.control is not None:
            found.setdefault(node.label, []).extend(
                Problem("control", severity, text) for severity, text in control_problems(node.status.control)
            )
    return {
        name: sorted(each, key=lambda one: (one.id != DISK_FULL, -one.severity))
        for name, each in found.items()
    }


def control_problems(control: ControlStatus) -> list[tuple[Severity, str]]:
    """What keeps a broker of controller mode from its work."""
    problems = []
    if control.leader is None:
        reasons = "; ".join(f"{link.address}: {link.reason}" for link in control.controllers if link.reason)
        problems.append((Severity.WARNING, f"no controller leads{f': {reasons}' if reasons else ''}"))
    if control.refusal:
        problems.append((Severity.CRITICAL, f"refused by the controllers: {control.refusal}"))
    if control.is_set_short:
        members, least = len(control.sync_state_set), control.in_sync_min
        text = f"{members} in the sync-state set, minInSyncReplicas is {least}: messages are refused"
        problems.append((Severity.CRITICAL, text))
    return problems


def _replicas(
    master: BrokerStatus, slaves: Sequence[Node]
) -> Iterator[tuple[ConnectionStatus | None, BrokerStatus | None]]:
    """Each connection of a slave with the slave, if that was asked, then slaves without a connection.

    A slave has the connection of its local address, which trioha reports, or else the only one of its host
    that is left. A master that lists no connections (RocketMQ 4.9) has no replicas here.
    """
    if master.source == "runtime-info":
        return
    connections = {one.address: one for one in master.connections if not one.is_probe}
    left = list(slaves)
    found: dict[str, BrokerStatus] = {}
    for slave in slaves:
        client = None if slave.status is None else slave.status.client
        if slave.status is not None and client is not None and client.local_address in connections:
            found[client.local_address or ""] = slave.status
            left.remove(slave)
    for slave in list(left):
        alike = [each for each in connections if each not in found and host_of(each) in slave.hosts]
        others = [each for each in left if each.hosts & slave.hosts]
        if slave.status is not None and not _reports_its_end(slave.status) and len(alike) == len(others) == 1:
            found[alike[0]] = slave.status
            left.remove(slave)
    for address, connection in connections.items():
        yield connection, found.get(address)
    is_any_left = len(found) < len(connections)
    for slave in left:
        if slave.status is not None and (_reports_its_end(slave.status) or not is_any_left):
            yield None, slave.status


def _reports_its_end(slave: BrokerStatus) -> bool:
    """Whether it reports its end of the connection, as trioha's slaves do."""
    return slave.client is not None and slave.client.is_observer is not None


def _slave_row(
    master: BrokerStatus | None,
    connection: ConnectionStatus | None,
    slave: BrokerStatus | None,
    problems: Sequence[Problem],
    earlier: Earlier | None,
) -> StatusRow:
    """The row of a replica by what its master and it say; either may be None."""
    limits = Limits() if master is None else limits_of(master)
    client = None if slave is None else slave.client
    facts = ReplicaFacts(
        is_connected=connection is not None,
        complaint="" if client is None else client.verdict or "",
        is_observer=None if client is None else client.is_observer,
        min_offset=None if master is None else master.min_offset,
    )
    lag_bytes = None
    if connection is not None:
        assert master is not None, "the connection is its own"
        facts, lag_bytes = _connected(facts, master, connection, earlier)
    elif master is not None and slave is not None:
        lag_bytes = max(0, master.max_offset - slave.max_offset)
    else:
        # No master says whether it is connected; neither does a slave of RocketMQ.
        is_open = client is None or client.local_address is not None or client.is_observer is None
        facts = evolve(facts, is_connected=is_open, state="" if client is None else client.state or "")
    judged = judge(facts, limits)
    address = slave.address if slave is not None else "" if connection is None else connection.address
    return _row(
        address,
        master="" if master is None else master.address,
        name="" if slave is None else _name(slave),
        verdict=judged.verdict,
        why=judged.why,
        lag_bytes=lag_bytes,
        lag_ms=None if connection is None else connection.lag_ms,
        problems=problems,
    )


def _connected(
    facts: ReplicaFacts, master: BrokerStatus, connection: ConnectionStatus, earlier: Earlier | None
) -> tuple[ReplicaFacts, int]:
    """The facts of a replica that its master lists, and the bytes that it has not acknowledged."""
    found = None if earlier is None else earlier.connection(master, connection.address)
    end, lag_bytes = end_and_lag(
        connection,
        max_offset=master.max_offset,
        furthest_before=None if found is None else _furthest_beyond(*found),
    )
    lag_s = None if connection.lag_ms is None else max(0, connection.lag_ms) / 1000
    unmoved_s = None
    if earlier is not None and found is not None:
        before, seen = found
        unmoved_s = earlier.ago_s if seen.ack_offset == connection.ack_offset else 0.0
        if lag_s is None and connection.ack_offset < before.max_offset:
            lag_s = earlier.ago_s
    received_ms = connection.last_received_ms
    return (
        evolve(
            facts,
            is_connected=True,
            last_received_s=None if received_ms is None else max(0, received_ms) / 1000,
            state=connection.state or "",
            master_offset=end,
            sent_offset=connection.sent_offset,
            ack_offset=max(connection.ack_offset, 0),
            in_sync=connection.in_sync,
            lag_s=lag_s,
            unmoved_s=unmoved_s,
        ),
        lag_bytes,
    )


def _row(
    address: str,
    *,
    name: str,
    problems: Sequence[Problem],
    master: str = "",
    verdict: Verdict | None = None,
    why: str = "",
    lag_bytes: int | None = None,
    lag_ms: int | None = None,
) -> StatusRow:
    severity = max(
        (*(one.severity for one in problems), Severity.GOOD if verdict is None else verdict.severity),
        default=Severity.GOOD,
    )
    if any(one.id == DISK_FULL for one in problems):
        state = "DISK FULL"
    elif verdict is not None and (verdict is not Verdict.OK or severity < Severity.WARNING):
        state = verdict.value.partition(":")[0]
    else:
        state = WORDS[severity]
    return StatusRow(
        address=address,
        master=master,
        name=name,
        state=state,
        severity=severity,
        verdict=verdict,
        lag_bytes=lag_bytes,
        lag_ms=lag_ms,
        problems=(*((why,) if why else ()), *(one.text for one in problems)),
    )


def _name(broker: BrokerStatus) -> str:
    number = "" if broker.broker_id is None else f" ({broker.broker_id})"
    return f"end {broker.max_offset:,}, {broker.role} {broker.broker_name or ''}{number}".rstrip()


# -- all of it -----------------------------------------------------------------------------------------------


@frozen
class Summary:
    """The state of all that was asked."""

    severity: Severity
    text: str
    """One line, the worst first."""


def summary_of(
    rows: Sequence[StatusRow], *, unreachable: int = 0, further: Sequence[tuple[Severity, str]] = ()
) -> Summary:
    """The whole's state: a full disk, what does not answer, replicas, brokers, and `further` problems."""
    full = [row.address for row in rows if row.state == "DISK FULL"]
    replicas = [row for row in rows if row.verdict is not None]
    brokers = len(rows) - sum(not row.name for row in rows)
    parts: list[str] = []
    if full:
        parts.append(f"DISK FULL: {', '.join(full)}")
    if unreachable:
        parts.append(f"{unreachable} of {brokers + unreachable} did not answer")
    states = Counter(
        row.state for row in replicas if row.severity >= Severity.WARNING and row.state != "DISK FULL"
    )
    parts += [f"{counted(number, 'replica')} {state}" for state, number in states.items()]
    parts += [
        f"{row.address}: {row.problems[0].partition(':')[0]}"
        for row in rows
        if row.verdict is None and row.severity >= Severity.WARNING and row.state != "DISK FULL"
    ]
    parts += [text for _, text in further]
    severity = max(
        [row.severity for row in rows]
        + [each for each, _ in further]
        + [Severity.CRITICAL] * bool(unreachable),
        default=Severity.GOOD,
    )
    counts = ", ".join(
        counted(number, word) for number, word in ((brokers, "broker"), (len(replicas), "replica")) if number
    )
    return Summary(severity, f"{WORDS[severity]}: {'; '.join(parts) or counts or 'nothing is wrong'}")
