"""Tables of `trioha status --wide`: all that brokers and controllers report."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.table import Table

from trioha.broker_status import BrokerStatus, ControlStatus
from trioha.cli.console import out
from trioha.cli.status_rows import control_problems
from trioha.controller.overview import GroupView, MemberView, Overview
from trioha.palette import BAD
from trioha.unit_texts import counted

UNKNOWN = "-"
"""Shown for a value that the broker does not report."""
EPOCHS_SHOWN = 4
"""Epochs of a broker's log in its row, the last ones."""
PROBE_HOSTS_MAX = 5
"""Hosts whose probes get a line each."""


def print_overview(overview: Overview, *, with_epochs: bool = True) -> None:
    """Print a line of the controllers, and a table of the brokers of each group."""
    name = f" of {overview.name}" if overview.name else ""
    others = [view.address for view in overview.controllers if not view.is_leader and view.error is None]
    leads = f"{overview.leader} leads" if overview.leader else "NONE LEADS"
    following = f", {', '.join(others)} follow{'s' if len(others) == 1 else ''}" if others else ""
    out().print(
        f"Controllers{name}: {leads}{following}",
        style=None if overview.leader else BAD.terminal,
        soft_wrap=True,
    )
    for view in overview.controllers:
        if view.error is not None:
            text = f"Controller {view.address}: {view.error}"
            out().print(text, style=BAD.terminal, soft_wrap=True)
    for group in overview.groups:
        _print_group(group, with_epochs=with_epochs)
    for unknown in overview.unknown_groups:
        out().print(f"{unknown}: not known to the controllers", style=BAD.terminal, soft_wrap=True)


def _print_group(group: GroupView, *, with_epochs: bool) -> None:
    members = ", ".join(map(str, group.sync_state_set))
    table = Table(
        title=f"{group.broker_name}: epoch {group.master_epoch}, sync-state set {{{members}}} "
        f"of set epoch {group.sync_state_set_epoch}",
        title_justify="left",
    )
    _add_columns(table, "id", justify_right=True)
    _add_columns(table, "broker", "role", "alive", "in set")
    _add_columns(table, "max offset", justify_right=True)
    if with_epochs:
        _add_columns(table, "epochs (epoch: start)")
    for member in group.members:
        table.add_row(
            str(member.broker_id),
            member.address,
            "master" if member.is_master else "slave",
            "yes" if member.is_alive else "NO",
            "yes" if member.is_in_sync else "NO",
            _number(member.max_offset),
            *([_epochs(member) or UNKNOWN] if with_epochs else []),
            style=None if member.is_alive and member.is_in_sync else BAD.terminal,
        )
    out().print(table)
    if group.master_id is None:
        text = f"{group.broker_name}: no master: no living broker of the sync-state set {{{members}}}"
        out().print(text, style=BAD.terminal, soft_wrap=True)
    for member in group.members:
        if member.error is not None:
            text = f"{member.address}: no epochs: {member.error}"
            out().print(text, style=BAD.terminal, soft_wrap=True)


def _epochs(member: MemberView) -> str:
    """The last epochs, oldest first."""
    shown = ", ".join(f"{epoch.epoch}: {epoch.start_offset:,}" for epoch in member.epochs[-EPOCHS_SHOWN:])
    more = len(member.epochs) - EPOCHS_SHOWN
    return f"{more} older, {shown}" if more > 0 else shown


def print_statuses(brokers: Sequence[BrokerStatus]) -> None:
    """Print tables of brokers, of their slaves, and of slaves' own view of their master."""
    table = Table(title="Brokers", title_justify="left")
    _add_columns(table, "broker", "role", "name", "version", "HA address")
    _add_columns(
        table, "min offset", "max offset", "flushed", "dispatched", "slaves in sync", justify_right=True
    )
    for broker in brokers:
        table.add_row(
            broker.address,
            broker.role,
            _name(broker),
            _text(broker.version),
            _text(broker.ha_address),
            _number(broker.min_offset),
            _number(broker.max_offset),
            _number(broker.flushed_offset),
            _number(broker.dispatched_offset),
            _number(broker.in_sync_slaves),
        )
    out().print(table)
    _print_control(brokers)
    _print_connections(brokers)
    _print_clients(brokers)
    _print_metadata(brokers)
    _print_archives(brokers)
    for broker in brokers:
        if broker.dispatch_fault:
            text = f"{broker.address}: a record cannot be dispatched: {broker.dispatch_fault}"
            out().print(text, style=BAD.terminal, soft_wrap=True)
        if broker.clock_doubt:
            out().print(f"{broker.address}: {broker.clock_doubt}", style=BAD.terminal, soft_wrap=True)
        if broker.time_lead_ms:
            text = (
                f"{broker.address}: the newest record leads the clock by {broker.time_lead_ms / 1000:,.0f} s"
            )
            out().print(text, style=BAD.terminal, soft_wrap=True)
        if broker.time_steps:
            count = counted(broker.time_steps, "time")
            out().print(f"{broker.address}: store times went back {count} since the start", soft_wrap=True)
        if broker.read_fault:
            text = f"{broker.address}: {broker.read_faults:,} reads of the log failed: {broker.read_fault}"
            out().print(text, style=BAD.terminal, soft_wrap=True)
        for name, reason in broker.unwritten.items():
            failures = broker.write_failures.get(name, 0)
            text = f"{broker.address}: cannot be written: {name}: {reason} ({failures:,} failures)"
            out().print(text, style=BAD.terminal, soft_wrap=True)
        if broker.put_statuses:
            counts = ", ".join(f"{name} {number:,}" for name, number in broker.put_statuses.items())
            out().print(f"{broker.address} puts: {counts}")
        if broker.kernel:
            out().print(f"{broker.address} kernel: {broker.kernel}")
        if broker.acl_refusals:
            number = f"{broker.acl_refusals:,}"
            out().print(f"{broker.address} requests refused by access control: {number}")
        _print_probes(broker)


def _print_probes(broker: BrokerStatus) -> None:
    """A line for each host whose connections to the HA port ask for nothing, the busiest first."""
    by_host = sorted(broker.probes.items(), key=lambda item: -sum(item[1].values()))
    for host, reasons in by_host[:PROBE_HOSTS_MAX]:
        counts = ", ".join(f"{name} {number:,}" for name, number in reasons.items())
        out().print(f"{broker.address} probes of {host} at the HA port: {counts}")
    if len(by_host) > PROBE_HOSTS_MAX:
        number = sum(sum(reasons.values()) for _, reasons in by_host[PROBE_HOSTS_MAX:])
        hosts = len(by_host) - PROBE_HOSTS_MAX
        out().print(f"{broker.address} probes of {hosts} other hosts at the HA port: {number:,}")


def _print_connections(brokers: Sequence[BrokerStatus]) -> None:
    rows = [(broker, connection) for broker in brokers for connection in broker.connections]
    if not rows:
        return
    table = Table(title="Slaves, as their master sees them", title_justify="left")
    _add_columns(table, "master", "slave", "state", "in sync")
    _add_columns(table, "sent", "ack offset", "lag bytes", "lag ms", "bytes/s", justify_right=True)
    for broker, connection in rows:
        table.add_row(
            broker.address,
            connection.address,
            _text(connection.state),
            "yes" if connection.in_sync else "NO",
            _number(connection.sent_offset),
            _number(connection.ack_offset),
            _number(connection.lag_bytes),
            _number(connection.lag_ms),
            _number(connection.transferred_bytes_per_s),
            style=None if connection.in_sync else BAD.terminal,
        )
    out().print(table)


def _print_clients(brokers: Sequence[BrokerStatus]) -> None:
    rows = [(broker, broker.client) for broker in brokers if broker.client is not None]
    if not rows:
        return
    table = Table(title="Slaves, as they see themselves", title_justify="left")
    _add_columns(table, "slave", "master", "state")
    _add_columns(table, "max offset", "reported", "reconnects", "bytes/s", justify_right=True)
    for broker, client in rows:
        table.add_row(
            broker.address,
            _text(client.master_address),
            _text(client.state),
            _number(client.max_offset),
            _number(client.reported_offset),
            _number(client.reconnects),
            _number(client.transferred_bytes_per_s),
            style=BAD.terminal if client.verdict else None,
        )
    out().print(table)
    for broker, client in rows:
        if client.verdict:
            out().print(f"{broker.address}: {client.verdict}", style=BAD.terminal, soft_wrap=True)


def _print_control(brokers: Sequence[BrokerStatus]) -> None:
    """Tables of brokers in controller mode and of their masters' groups, and what is wrong with them."""
    rows = [(broker, broker.control) for broker in brokers if broker.control is not None]
    if not rows:
        return
    table = Table(title="Controller mode", title_justify="left")
    _add_columns(table, "broker")
    _add_columns(table, "id", justify_right=True)
    _add_columns(table, "role")
    _add_columns(table, "epoch", justify_right=True)
    _add_columns(table, "master", "sync-state set")
    _add_columns(table, "confirm offset", justify_right=True)
    _add_columns(table, "leading controller")
    _add_columns(table, "heard s", "roles", "since s", justify_right=True)
    for broker, control in rows:
        table.add_row(
            broker.address,
            _number(control.broker_id),
            control.role,
            _number(control.master_epoch),
            UNKNOWN if control.master_id is None else f"{control.master_id} at {control.master_address}",
            _set_text(control),
            _number(control.confirm_offset),
            control.leader or "NONE",
            _seconds(control.leader_heard_ms),
            _number(control.role_changes),
            _seconds(
                None
                if control.role_changed_ms is None
                else max(0, time.time_ns() // 1_000_000 - control.role_changed_ms)
            ),
            style=BAD.terminal if control.leader is None or control.refusal or control.is_set_short else None,
        )
    out().print(table)
    _print_members(rows)
    for broker, control in rows:
        for _, text in control_problems(control):
            out().print(f"{broker.address}: {text}", style=BAD.terminal, soft_wrap=True)


def _print_members(rows: Sequence[tuple[BrokerStatus, ControlStatus]]) -> None:
    if not any(control.members for _, control in rows):
        return
    table = Table(title="Replicas, as their master sees them", title_justify="left")
    _add_columns(table, "master")
    _add_columns(table, "id", justify_right=True)
    _add_columns(table, "in set", "connected")
    _add_columns(table, "ack offset", "lag bytes", justify_right=True)
    for broker, control in rows:
        for member in control.members:
            is_well = member.in_set and member.is_connected
            lag = None if member.ack_offset is None else broker.max_offset - member.ack_offset
            table.add_row(
                broker.address,
                str(member.broker_id),
                "yes" if member.in_set else "proposed" if member.is_required else "NO",
                "yes" if member.is_connected else "NO",
                _number(member.ack_offset),
                _number(lag),
                style=None if is_well else BAD.terminal,
            )
    out().print(table)


def _set_text(control: ControlStatus) -> str:
    """Members and epoch of the set."""
    if control.sync_state_set_epoch is None:
        return UNKNOWN
    members = ", ".join(map(str, control.sync_state_set))
    return f"{{{members}}} epoch {control.sync_state_set_epoch}"


def _seconds(milliseconds: int | None) -> str:
    return UNKNOWN if milliseconds is None else f"{milliseconds / 1000:.1f}"


def _print_metadata(brokers: Sequence[BrokerStatus]) -> None:
    """A table of what slaves have copied of their masters' metadata, and a line for offsets that go back."""
    rows = [(broker, broker.metadata) for broker in brokers if broker.metadata is not None]
    if not rows:
        return
    table = Table(title="Metadata that slaves copy from their masters", title_justify="left")
    _add_columns(table, "slave", "master", "table")
    _add_columns(table, "age s", "entries", "changes", "failures", justify_right=True)
    for broker, metadata in rows:
        for name, copied in metadata.tables.items():
            table.add_row(
                broker.address,
                _text(metadata.master_address),
                name,
                UNKNOWN if copied.age_ms is None else f"{copied.age_ms / 1000:.1f}",
                _number(None if copied.age_ms is None else copied.entries),
                _number(copied.changes),
                _number(copied.failures),
                style=BAD.terminal if copied.error else None,
            )
    out().print(table)
    for broker, metadata in rows:
        for name, copied in metadata.tables.items():
            if copied.error:
                text = f"{broker.address}: {name} cannot be copied: {copied.error}"
                out().print(text, style=BAD.terminal, soft_wrap=True)
        if metadata.regressions:
            text = (
                f"{broker.address}: {metadata.regressions:,} offsets of the master were before the slave's, "
                f"{metadata.regressions_accepted:,} were taken, {metadata.regressions_kept:,} are kept out "
                f"(trioha.offsetRegression={metadata.policy})"
            )
            out().print(text, style=BAD.terminal, soft_wrap=True)


def _print_archives(brokers: Sequence[BrokerStatus]) -> None:
    """A table of archives, and a line for each that does not run or lacks something."""
    rows = [(broker, broker.archive) for broker in brokers if broker.archive is not None]
    if not rows:
        return
    table = Table(title="Archives", title_justify="left")
    _add_columns(table, "broker", "archive", "generation", "state")
    _add_columns(table, "archived offset", "lag bytes", "age s", "objects", "bytes", justify_right=True)
    for broker, archive in rows:
        table.add_row(
            broker.address,
            _text(archive.url),
            _text(archive.generation),
            _text(archive.state),
            _number(archive.archived_offset),
            _number(archive.lag_bytes),
            UNKNOWN if archive.lag_ms is None else f"{archive.lag_ms / 1000:.1f}",
            _number(archive.objects),
            _number(archive.object_bytes),
            style=BAD.terminal if archive.error else None,
        )
    out().print(table)
    for broker, archive in rows:
        if archive.error:
            text = f"{broker.address}: archive {archive.state}: {archive.error}"
            out().print(text, style=BAD.terminal, soft_wrap=True)
        if archive.files_deleted_unarchived:
            text = (
                f"{broker.address}: {archive.files_deleted_unarchived:,} log files were deleted before they "
                "were archived"
            )
            out().print(text, style=BAD.terminal, soft_wrap=True)


def _add_columns(table: Table, *names: str, justify_right: bool = False) -> None:
    for name in names:
        table.add_column(name, justify="right" if justify_right else "left", overflow="fold")


def _name(broker: BrokerStatus) -> str:
    if broker.broker_name is None:
        return UNKNOWN
    cluster = f"{broker.cluster_name}/" if broker.cluster_name else ""
    number = "" if broker.broker_id is None else f" ({broker.broker_id})"
    return f"{cluster}{broker.broker_name}{number}"


def _text(value: str | None) -> str:
    return value or UNKNOWN


def _number(value: int | None) -> str:
    return UNKNOWN if value is None else f"{value:,}"
