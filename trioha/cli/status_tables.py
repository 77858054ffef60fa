"""Tables of `trioha status --wide`: all that brokers and controllers report."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Generic, TypeVar

from attrs import frozen

from trioha.broker_status import (
    ArchiveStatus,
    BrokerStatus,
    ConnectionStatus,
    ControlStatus,
    MemberStatus,
    MetadataStatus,
    SlaveStatus,
    TableCopyStatus,
)
from trioha.cli.console import out
from trioha.cli.status_rows import control_problems
from trioha.cli.tables import UNKNOWN, Column, number, seconds, table, text, yes_no
from trioha.controller.overview import GroupView, MemberView, Overview
from trioha.palette import BAD
from trioha.unit_texts import counted

EPOCHS_SHOWN: Final = 4
"""Epochs of a broker's log in its row, the last ones."""
PROBE_HOSTS_MAX: Final = 5
"""Hosts whose probes get a line each."""

Row = TypeVar("Row")
Status = TypeVar("Status")


@frozen
class Reported(Generic[Status]):
    """A row of a table: what a broker reports of a connection, or of one of its services."""

    broker: BrokerStatus
    status: Status


# -- columns -------------------------------------------------------------------------------------------------


def _epochs(member: MemberView) -> str:
    """The last epochs, oldest first."""
    shown = ", ".join(f"{epoch.epoch}: {epoch.start_offset:,}" for epoch in member.epochs[-EPOCHS_SHOWN:])
    more = len(member.epochs) - EPOCHS_SHOWN
    return f"{more} older, {shown}" if more > 0 else shown


def _name(broker: BrokerStatus) -> str:
    if broker.broker_name is None:
        return UNKNOWN
    cluster = f"{broker.cluster_name}/" if broker.cluster_name else ""
    broker_id = "" if broker.broker_id is None else f" ({broker.broker_id})"
    return f"{cluster}{broker.broker_name}{broker_id}"


def _master(control: ControlStatus) -> str:
    return "" if control.master_id is None else f"{control.master_id} at {control.master_address}"


def _set_text(control: ControlStatus) -> str:
    """Members and epoch of the set."""
    if control.sync_state_set_epoch is None:
        return UNKNOWN
    members = ", ".join(map(str, control.sync_state_set))
    return f"{{{members}}} epoch {control.sync_state_set_epoch}"


def _age_ms(wall_ms: int | None) -> int | None:
    return None if wall_ms is None else max(0, time.time_ns() // 1_000_000 - wall_ms)


def _membership(member: MemberStatus) -> str:
    return "yes" if member.in_set else "proposed" if member.is_required else "NO"


def _lag_bytes(master: BrokerStatus, member: MemberStatus) -> int | None:
    return None if member.ack_offset is None else master.max_offset - member.ack_offset


MEMBER_COLUMNS: Final[Sequence[Column[MemberView]]] = (
    number("id", lambda member: member.broker_id),
    text("broker", lambda member: member.address),
    text("role", lambda member: "master" if member.is_master else "slave"),
    yes_no("alive", lambda member: member.is_alive),
    yes_no("in set", lambda member: member.is_in_sync),
    number("max offset", lambda member: member.max_offset),
)
EPOCHS_COLUMN: Final[Column[MemberView]] = text("epochs (epoch: start)", _epochs)
BROKER_COLUMNS: Final[Sequence[Column[BrokerStatus]]] = (
    text("broker", lambda broker: broker.address),
    text("role", lambda broker: broker.role),
    text("name", _name),
    text("version", lambda broker: broker.version),
    text("HA address", lambda broker: broker.ha_address),
    number("min offset", lambda broker: broker.min_offset),
    number("max offset", lambda broker: broker.max_offset),
    number("flushed", lambda broker: broker.flushed_offset),
    number("dispatched", lambda broker: broker.dispatched_offset),
    number("slaves in sync", lambda broker: broker.in_sync_slaves),
)
CONTROL_COLUMNS: Final[Sequence[Column[Reported[ControlStatus]]]] = (
    text("broker", lambda row: row.broker.address),
    number("id", lambda row: row.status.broker_id),
    text("role", lambda row: row.status.role),
    number("epoch", lambda row: row.status.master_epoch),
    text("master", lambda row: _master(row.status)),
    text("sync-state set", lambda row: _set_text(row.status)),
    number("confirm offset", lambda row: row.status.confirm_offset),
    text("leading controller", lambda row: row.status.leader or "NONE"),
    seconds("heard", lambda row: row.status.leader_heard_ms),
    number("roles", lambda row: row.status.role_changes),
    seconds("since", lambda row: _age_ms(row.status.role_changed_ms)),
)
REPLICA_COLUMNS: Final[Sequence[Column[Reported[MemberStatus]]]] = (
    text("master", lambda row: row.broker.address),
    number("id", lambda row: row.status.broker_id),
    text("in set", lambda row: _membership(row.status)),
    yes_no("connected", lambda row: row.status.is_connected),
    number("ack offset", lambda row: row.status.ack_offset),
    number("lag bytes", lambda row: _lag_bytes(row.broker, row.status)),
)
CONNECTION_COLUMNS: Final[Sequence[Column[Reported[ConnectionStatus]]]] = (
    text("master", lambda row: row.broker.address),
    text("slave", lambda row: row.status.address),
    text("state", lambda row: row.status.state),
    yes_no("in sync", lambda row: row.status.in_sync),
    number("sent", lambda row: row.status.sent_offset),
    number("ack offset", lambda row: row.status.ack_offset),
    number("lag bytes", lambda row: row.status.lag_bytes),
    number("lag ms", lambda row: row.status.lag_ms),
    number("bytes/s", lambda row: row.status.transferred_bytes_per_s),
)
SLAVE_COLUMNS: Final[Sequence[Column[Reported[SlaveStatus]]]] = (
    text("slave", lambda row: row.broker.address),
    text("master", lambda row: row.status.master_address),
    text("state", lambda row: row.status.state),
    number("max offset", lambda row: row.status.max_offset),
    number("reported", lambda row: row.status.reported_offset),
    number("reconnects", lambda row: row.status.reconnects),
    number("bytes/s", lambda row: row.status.transferred_bytes_per_s),
)
COPY_COLUMNS: Final[Sequence[Column[tuple[Reported[MetadataStatus], str, TableCopyStatus]]]] = (
    text("slave", lambda row: row[0].broker.address),
    text("master", lambda row: row[0].status.master_address),
    text("table", lambda row: row[1]),
    seconds("age", lambda row: row[2].age_ms),
    number("entries", lambda row: None if row[2].age_ms is None else row[2].entries),
    number("changes", lambda row: row[2].changes),
    number("failures", lambda row: row[2].failures),
)
ARCHIVE_COLUMNS: Final[Sequence[Column[Reported[ArchiveStatus]]]] = (
    text("broker", lambda row: row.broker.address),
    text("archive", lambda row: row.status.url),
    text("generation", lambda row: row.status.generation),
    text("state", lambda row: row.status.state),
    number("archived offset", lambda row: row.status.archived_offset),
    number("lag bytes", lambda row: row.status.lag_bytes),
    seconds("age", lambda row: row.status.lag_ms),
    number("objects", lambda row: row.status.objects),
    number("bytes", lambda row: row.status.object_bytes),
)


# -- controllers ---------------------------------------------------------------------------------------------


def print_overview(overview: Overview, *, with_epochs: bool = True) -> None:
    """Print a line of the controllers, and a table of the brokers of each group."""
    name = f" of {overview.name}" if overview.name else ""
    others = [view.address for view in overview.controllers if not view.is_leader and view.error is None]
    leads = f"{overview.leader} leads" if overview.leader else "NONE LEADS"
    following = f", {', '.join(others)} follow{'s' if len(others) == 1 else ''}" if others else ""
    _print_line(f"Controllers{name}: {leads}{following}", is_bad=not overview.leader)
    for view in overview.controllers:
        if view.error is not None:
            _print_line(f"Controller {view.address}: {view.error}", is_bad=True)
    for group in overview.groups:
        _print_group(group, with_epochs=with_epochs)
    for unknown in overview.unknown_groups:
        _print_line(f"{unknown}: not known to the controllers", is_bad=True)


def _print_group(group: GroupView, *, with_epochs: bool) -> None:
    members = ", ".join(map(str, group.sync_state_set))
    title = (
        f"{group.broker_name}: epoch {group.master_epoch}, sync-state set {{{members}}} "
        f"of set epoch {group.sync_state_set_epoch}"
    )
    columns = (*MEMBER_COLUMNS, EPOCHS_COLUMN) if with_epochs else MEMBER_COLUMNS
    out().print(
        table(title, columns, group.members, is_bad=lambda one: not (one.is_alive and one.is_in_sync))
    )
    if group.master_id is None:
        why = f"no living broker of the sync-state set {{{members}}}"
        _print_line(f"{group.broker_name}: no master: {why}", is_bad=True)
    for member in group.members:
        if member.error is not None:
            _print_line(f"{member.address}: no epochs: {member.error}", is_bad=True)


# -- brokers -------------------------------------------------------------------------------------------------


def print_statuses(brokers: Sequence[BrokerStatus]) -> None:
    """Print tables of brokers, of their slaves, and of slaves' own view of their master."""
    out().print(table("Brokers", BROKER_COLUMNS, brokers))
    _print_control(_reported(brokers, lambda broker: broker.control))
    connections = [Reported(broker, one) for broker in brokers for one in broker.connections]
    _print_table(
        "Slaves, as their master sees them",
        CONNECTION_COLUMNS,
        connections,
        is_bad=lambda row: not row.status.in_sync,
    )
    _print_slaves(_reported(brokers, lambda broker: broker.client))
    _print_metadata(_reported(brokers, lambda broker: broker.metadata))
    _print_archives(_reported(brokers, lambda broker: broker.archive))
    for broker in brokers:
        _print_remarks(broker)


def _print_remarks(broker: BrokerStatus) -> None:
    """The lines of a broker after all tables: what is wrong, and counts since its start."""
    address = broker.address
    if broker.dispatch_fault:
        _print_line(f"{address}: a record cannot be dispatched: {broker.dispatch_fault}", is_bad=True)
    if broker.clock_doubt:
        _print_line(f"{address}: {broker.clock_doubt}", is_bad=True)
    if broker.time_lead_ms:
        lead_s = broker.time_lead_ms / 1000
        _print_line(f"{address}: the newest record leads the clock by {lead_s:,.0f} s", is_bad=True)
    if broker.time_steps:
        _print_line(f"{address}: store times went back {counted(broker.time_steps, 'time')} since the start")
    if broker.read_fault:
        reads = f"{broker.read_faults:,} reads of the log failed"
        _print_line(f"{address}: {reads}: {broker.read_fault}", is_bad=True)
    for name, reason in broker.unwritten.items():
        failures = broker.write_failures.get(name, 0)
        _print_line(f"{address}: cannot be written: {name}: {reason} ({failures:,} failures)", is_bad=True)
    if broker.put_statuses:
        out().print(f"{address} puts: {_counts(broker.put_statuses)}")
    if broker.kernel:
        out().print(f"{address} kernel: {broker.kernel}")
    if broker.acl_refusals:
        out().print(f"{address} requests refused by access control: {broker.acl_refusals:,}")
    _print_probes(broker)


def _print_probes(broker: BrokerStatus) -> None:
    """A line for each host whose connections to the HA port ask for nothing, the busiest first."""
    by_host = sorted(broker.probes.items(), key=lambda item: -sum(item[1].values()))
    for host, reasons in by_host[:PROBE_HOSTS_MAX]:
        out().print(f"{broker.address} probes of {host} at the HA port: {_counts(reasons)}")
    if len(by_host) > PROBE_HOSTS_MAX:
        count = sum(sum(reasons.values()) for _, reasons in by_host[PROBE_HOSTS_MAX:])
        hosts = len(by_host) - PROBE_HOSTS_MAX
        out().print(f"{broker.address} probes of {hosts} other hosts at the HA port: {count:,}")


def _print_slaves(rows: Sequence[Reported[SlaveStatus]]) -> None:
    _print_table("Slaves, as they see themselves", SLAVE_COLUMNS, rows, is_bad=lambda row: row.status.verdict)
    for row in rows:
        if row.status.verdict:
            _print_line(f"{row.broker.address}: {row.status.verdict}", is_bad=True)


def _print_control(rows: Sequence[Reported[ControlStatus]]) -> None:
    """Tables of brokers in controller mode and of their masters' groups, and what is wrong with them."""
    _print_table(
        "Controller mode",
        CONTROL_COLUMNS,
        rows,
        is_bad=lambda row: row.status.leader is None or row.status.refusal or row.status.is_set_short,
    )
    _print_table(
        "Replicas, as their master sees them",
        REPLICA_COLUMNS,
        [Reported(row.broker, member) for row in rows for member in row.status.members],
        is_bad=lambda row: not (row.status.in_set and row.status.is_connected),
    )
    for row in rows:
        for _, problem in control_problems(row.status):
            _print_line(f"{row.broker.address}: {problem}", is_bad=True)


def _print_metadata(rows: Sequence[Reported[MetadataStatus]]) -> None:
    """A table of what slaves have copied of their masters' metadata, and a line for offsets that go back."""
    copies = [(row, name, copied) for row in rows for name, copied in row.status.tables.items()]
    _print_table(
        "Metadata that slaves copy from their masters", COPY_COLUMNS, copies, is_bad=lambda row: row[2].error
    )
    for row in rows:
        address, metadata = row.broker.address, row.status
        for name, copied in metadata.tables.items():
            if copied.error:
                _print_line(f"{address}: {name} cannot be copied: {copied.error}", is_bad=True)
        if metadata.regressions:
            _print_line(
                f"{address}: {metadata.regressions:,} offsets of the master were before the slave's, "
                f"{metadata.regressions_accepted:,} were taken, {metadata.regressions_kept:,} are kept out "
                f"(trioha.offsetRegression={metadata.policy})",
                is_bad=True,
            )


def _print_archives(rows: Sequence[Reported[ArchiveStatus]]) -> None:
    """A table of archives, and a line for each that does not run or lacks something."""
    _print_table("Archives", ARCHIVE_COLUMNS, rows, is_bad=lambda row: row.status.error)
    for row in rows:
        address, archive = row.broker.address, row.status
        if archive.error:
            _print_line(f"{address}: archive {archive.state}: {archive.error}", is_bad=True)
        if archive.files_deleted_unarchived:
            files = f"{archive.files_deleted_unarchived:,} log files"
            _print_line(f"{address}: {files} were deleted before they were archived", is_bad=True)


def _reported(
    brokers: Sequence[BrokerStatus], status_of: Callable[[BrokerStatus], Status | None]
) -> list[Reported[Status]]:
    """A row for each broker that reports it."""
    return [Reported(broker, status) for broker in brokers if (status := status_of(broker)) is not None]


def _print_table(
    title: str,
    columns: Sequence[Column[Row]],
    rows: Sequence[Row],
    *,
    is_bad: Callable[[Row], object],
) -> None:
    """Print a table, if it has rows."""
    if rows:
        out().print(table(title, columns, rows, is_bad=is_bad))


def _print_line(line: str, *, is_bad: bool = False) -> None:
    """Print a line, whatever the width of the terminal."""
    out().print(line, style=BAD.terminal if is_bad else None, soft_wrap=True)


def _counts(numbers: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in numbers.items())
