"""The answers of a node: checked and bounded, and as the views of its limits, log and slave's side.

Theory of operation. A status reader has parsed the answer: types are right, values may be anything.
`AnswerFilter` checks and bounds all of it, so that state, verdicts, columns and recordings work on values of
known size:

- an offset or a count outside the range of RocketMQ's types, or negative where it cannot be, is an impossible
  answer: RemoteProtocolError, and the node is DOWN with that reason;
- an impossible setting or figure of the runtime table is dropped (None);
- texts are made safe to draw (`trioha_monitor.texts`) and cut;
- connections, names and warnings are kept up to a maximum; the others are counted.

A connection whose peer has not sent a valid request is a probe: load balancers and monitoring connect to the
HA port all day. Probes are counted and are never replicas.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from attrs import evolve, frozen

from trioha.broker_status import (
    ArchiveStatus,
    BrokerRuntimeInfo,
    BrokerSettings,
    BrokerStatus,
    ConnectionStatus,
    ControllerLinkStatus,
    ControlStatus,
    SlaveStatus,
)
from trioha.distribution import Distribution
from trioha.errors import RemoteProtocolError
from trioha.numbers import I64, NATURAL32, NATURAL64, Range, parse_int
from trioha.outside_text import REASON_MAX, clean
from trioha.recording.events import CloseReason, PutStatus
from trioha_monitor.replicas import SlaveReport
from trioha_monitor.series import RateMeter, SeriesRecorder
from trioha_monitor.texts import Names
from trioha_monitor.view import ArchiveView, LogView, ProbeCount, PutRate, SlaveView, put_rates

CONNECTIONS_MAX: Final = 256
"""Connections kept of one node; others are counted as `hidden_replicas`."""
WARNINGS_MAX: Final = 16
"""Warnings kept of one node."""
PROBING_HOSTS_MAX: Final = 64
"""Hosts whose probes are counted separately."""
MEMBERS_MAX: Final = 64
"""Replicas kept of one group in controller mode, and ids of its set."""
CONTROLLERS_MAX: Final = 16
"""Controllers kept of one node."""
OFFSET: Final = Range(-1, I64.high)
"""An offset; RocketMQ says -1 for none."""


@frozen
class Answer:
    """A checked and bounded answer."""

    status: BrokerStatus
    """The bounded status; its connections are those of replicas."""
    more_connections: int = 0
    """Connections of replicas that were dropped."""
    waiting_probes: int = 0
    """Open connections whose peer has not sent a request."""


class AnswerFilter:
    """Checks and bounds the answers of one node; remembers the names that the node has used."""

    def __init__(self) -> None:
        self._puts = Names(known=frozenset(PutStatus.__members__))
        self._ends = Names(known=frozenset(CloseReason.__members__))
        self._probing = Names(names_max=PROBING_HOSTS_MAX)

    def check(self, status: BrokerStatus) -> Answer:
        """Check and bound `status`. Raises RemoteProtocolError for an impossible answer."""
        connections: dict[str, ConnectionStatus] = {}
        more = status.unread_connections
        probes = status.unread_probes
        for connection in status.connections:
            if connection.is_probe:
                probes += 1
            elif len(connections) < CONNECTIONS_MAX:
                kept = _connection(connection)
                more += kept.address in connections
                connections[kept.address] = kept
            else:
                more += 1
        _check("number of slaves in sync", status.in_sync_slaves, NATURAL32)
        _check("broker id", status.broker_id, I64)
        _check("number of files", status.files, NATURAL64)
        _check("max offset", status.max_offset, NATURAL64)
        for what, offset in (
            ("min offset", status.min_offset),
            ("flushed offset", status.flushed_offset),
            ("dispatched offset", status.dispatched_offset),
        ):
            _check(what, offset, OFFSET)
        kept_status = evolve(
            status,
            role=clean(status.role),
            # In controller mode a master's own id is 0, but not in the sync-state set.
            broker_id=status.broker_id
            if status.control is None
            else _own_id(status.control, status.broker_id),
            cluster_name=_text(status.cluster_name),
            broker_name=_text(status.broker_name),
            version=_text(status.version),
            ha_address=_text(status.ha_address),
            connections=tuple(connections.values()),
            client=None if status.client is None else _client(status.client),
            put_statuses=_counts("number of puts", status.put_statuses, self._puts),
            ended_connections=_counts("number of connections", status.ended_connections, self._ends),
            probes=self._probes(status.probes),
            dispatched_offset=_dispatched(status),
            dispatch_fault=clean(status.dispatch_fault, length_max=REASON_MAX),
            settings=_settings(status.settings),
            table=_table(status.table),
            archive=None if status.archive is None else _archive(status.archive),
            control=None if status.control is None else _control(status.control),
            warnings=_warnings(status.warnings),
        )
        return Answer(kept_status, more, probes)

    def _probes(self, reported: Mapping[str, Mapping[str, int]]) -> dict[str, dict[str, int]]:
        kept: dict[str, dict[str, int]] = {}
        for host, reasons in reported.items():
            counts = _counts("number of probes", reasons, self._ends)
            so_far = kept.setdefault(self._probing.of(host), {})
            for reason, count in counts.items():
                so_far[reason] = min(so_far.get(reason, 0) + count, NATURAL64.high)
        return kept


def _dispatched(status: BrokerStatus) -> int | None:
    """The dispatched offset, at most the end of the log.

    RocketMQ reports the two by two requests, one after the other, and no flushed offset.
    """
    if status.dispatched_offset is None or status.flushed_offset is not None:
        return status.dispatched_offset
    return min(status.dispatched_offset, status.max_offset)


def _check(what: str, number: int | None, within: Range) -> None:
    if number is not None:
        try:
            parse_int(number, within)
        except ValueError as error:
            raise RemoteProtocolError(f"answered with an impossible {what}") from error


def _text(text: str | None) -> str | None:
    return None if text is None else clean(text)


def _connection(connection: ConnectionStatus) -> ConnectionStatus:
    _check("sent offset", connection.sent_offset, OFFSET)
    _check("ack offset", connection.ack_offset, OFFSET)
    _check("lag", connection.lag_bytes, I64)
    _check("lag in ms", connection.lag_ms, I64)
    _check("silence in ms", connection.last_received_ms, I64)
    _check("transfer rate", connection.transferred_bytes_per_s, I64)
    _check("connection number", connection.connection_id, I64)
    _check_distribution("ack latency", connection.ack_latency_us)
    _check_distribution("frame size", connection.frame_bytes)
    address, state = clean(connection.address), _text(connection.state)
    if address == connection.address and state == connection.state:
        return connection
    return evolve(connection, address=address, state=state)


def _check_distribution(what: str, distribution: Distribution[int] | None) -> None:
    if distribution is not None:
        for number in (distribution.p50, distribution.p99, distribution.largest, distribution.count):
            _check(what, number, I64)


def _client(client: SlaveStatus) -> SlaveStatus:
    _check("max offset of the slave", client.max_offset, NATURAL64)
    _check("reported offset", client.reported_offset, OFFSET)
    _check("number of reconnects", client.reconnects, NATURAL64)
    _check("transfer rate", client.transferred_bytes_per_s, I64)
    _check("time of the last read", client.last_read_ms, I64)
    _check("time of the last write", client.last_write_ms, I64)
    return evolve(
        client,
        master_address=_text(client.master_address),
        state=_text(client.state),
        verdict=None if client.verdict is None else clean(client.verdict, length_max=REASON_MAX),
        local_address=_text(client.local_address),
    )


def _counts(what: str, counts: Mapping[str, int], names: Names) -> dict[str, int]:
    kept: dict[str, int] = {}
    for name, count in counts.items():
        _check(what, count, NATURAL64)
        shown = names.of(name)
        kept[shown] = min(kept.get(shown, 0) + count, NATURAL64.high)
    return kept


def _known(number: int | None) -> int | None:
    """A figure from 0 to the largest Java long; None for any other."""
    try:
        return None if number is None else parse_int(number, NATURAL64)
    except ValueError:
        return None


def _settings(settings: BrokerSettings) -> BrokerSettings:
    return BrokerSettings(
        gap_bytes_max=_known(settings.gap_bytes_max),
        slave_timeout_ms=_known(settings.slave_timeout_ms),
        housekeeping_ms=_known(settings.housekeeping_ms),
        heartbeat_ms=_known(settings.heartbeat_ms),
        file_bytes=_known(settings.file_bytes),
        reserved_h=_known(settings.reserved_h),
        disk_percent_max=_known(settings.disk_percent_max),
    )


def _table(table: BrokerRuntimeInfo) -> BrokerRuntimeInfo:
    return evolve(
        table,
        booted_ms=_known(table.booted_ms),
        earliest_ms=_known(table.earliest_ms),
        puts_total=_known(table.puts_total),
        puts_failed=_known(table.puts_failed),
        unflushed_bytes=_known(table.unflushed_bytes),
        disk_total_bytes=_known(table.disk_total_bytes),
        disk_free_bytes=_known(table.disk_free_bytes),
    )


def _archive(archive: ArchiveStatus) -> ArchiveStatus:
    return ArchiveStatus(
        url=clean(archive.url),
        state=clean(archive.state),
        error=clean(archive.error, length_max=REASON_MAX),
        generation=clean(archive.generation),
        archived_offset=_known(archive.archived_offset),
        lag_bytes=_known(archive.lag_bytes),
        lag_ms=_known(archive.lag_ms),
        objects=_known(archive.objects) or 0,
        object_bytes=_known(archive.object_bytes) or 0,
        failures=_known(archive.failures) or 0,
        files_deleted_unarchived=_known(archive.files_deleted_unarchived) or 0,
    )


def _own_id(control: ControlStatus, broker_id: int | None) -> int | None:
    """A broker's id in its group; None while it is not known. Ids from controllers are above 0."""
    return control.broker_id or broker_id or None


def _control(control: ControlStatus) -> ControlStatus:
    for what, number, within in (
        ("broker id", control.broker_id, I64),
        ("epoch", control.master_epoch, I64),
        ("master's id", control.master_id, I64),
        ("last epoch of the log", control.log_epoch, I64),
        ("epoch of the sync-state set", control.sync_state_set_epoch, I64),
        ("confirm offset", control.confirm_offset, OFFSET),
    ):
        _check(what, number, within)
    for broker_id in control.sync_state_set[:MEMBERS_MAX]:
        _check("id in the sync-state set", broker_id, I64)
    for member in control.members[:MEMBERS_MAX]:
        _check("id of a replica", member.broker_id, I64)
        _check("ack offset of a replica", member.ack_offset, OFFSET)
    return ControlStatus(
        role=clean(control.role),
        step=clean(control.step),
        broker_id=control.broker_id,
        master_epoch=control.master_epoch,
        master_id=control.master_id,
        master_address=_text(control.master_address),
        log_epoch=control.log_epoch,
        sync_state_set=control.sync_state_set[:MEMBERS_MAX],
        sync_state_set_epoch=control.sync_state_set_epoch,
        in_sync_min=_known(control.in_sync_min),
        members=control.members[:MEMBERS_MAX],
        confirm_offset=control.confirm_offset,
        leader=_text(control.leader),
        leader_heard_ms=_known(control.leader_heard_ms),
        controllers=tuple(
            ControllerLinkStatus(
                address=clean(link.address),
                is_connected=link.is_connected,
                is_leader=link.is_leader,
                reason=clean(link.reason, length_max=REASON_MAX),
            )
            for link in control.controllers[:CONTROLLERS_MAX]
        ),
        refusal=clean(control.refusal, length_max=REASON_MAX),
        role_changes=_known(control.role_changes) or 0,
        role_changed_ms=_known(control.role_changed_ms),
    )


def _warnings(warnings: tuple[str, ...]) -> tuple[str, ...]:
    kept = tuple(clean(text, length_max=REASON_MAX) for text in warnings[:WARNINGS_MAX])
    more = len(warnings) - len(kept)
    return (*kept, f"{more} more warnings") if more else kept


def view_log(
    status: BrokerStatus,
    *,
    rate: RateMeter,
    rates: Mapping[str, RateMeter],
    append: SeriesRecorder,
    is_live: bool,
) -> LogView:
    """A node's log by its last answer; measured rates are None unless it `is_live`."""
    settings, table = status.settings, status.table
    flushed_offset = status.flushed_offset
    if flushed_offset is None and table.unflushed_bytes is not None:
        flushed_offset = max(0, status.max_offset - table.unflushed_bytes)
    file_bytes, files = settings.file_bytes or None, status.files
    if (
        files is None
        and file_bytes
        and status.min_offset is not None
        and status.max_offset > status.min_offset
    ):
        files = (status.max_offset - 1) // file_bytes - status.min_offset // file_bytes + 1
    return LogView(
        min_offset=status.min_offset,
        max_offset=status.max_offset,
        flushed_offset=flushed_offset,
        dispatched_offset=status.dispatched_offset,
        append_bytes_per_s=rate.per_s if is_live else None,
        append_history=append.freeze(),
        file_bytes=file_bytes,
        files=files,
        put_messages_per_s=table.put_messages_per_s,
        puts=put_rates(
            PutRate(name, count, rates[name].per_s if is_live else None) for name, count in puts_of(status)
        ),
        disk_ratio=table.disk_ratio,
        disk_total_bytes=table.disk_total_bytes,
        disk_free_bytes=table.disk_free_bytes,
        earliest_ms=table.earliest_ms,
        retention_s=None if settings.reserved_h is None else settings.reserved_h * 3600.0,
        disk_ratio_max=None if settings.disk_percent_max is None else settings.disk_percent_max / 100,
        dispatch_fault=status.dispatch_fault,
        archive=None if status.archive is None else view_archive(status.archive),
    )


def view_archive(archive: ArchiveStatus) -> ArchiveView:
    """The archive of a node's log by its last answer."""
    return ArchiveView(
        url=archive.url,
        state=archive.state,
        error=archive.error,
        generation=archive.generation,
        archived_offset=archive.archived_offset,
        lag_bytes=archive.lag_bytes,
        lag_s=None if archive.lag_ms is None else archive.lag_ms / 1000,
        files_deleted_unarchived=archive.files_deleted_unarchived,
    )


def puts_of(status: BrokerStatus) -> Iterable[tuple[str, int]]:
    """Puts since the start by result; of RocketMQ only their number and the number of failed ones."""
    if status.put_statuses:
        return tuple(status.put_statuses.items())
    table = status.table
    if status.role == "SLAVE" or table.puts_total is None or table.puts_failed is None:
        return ()
    return (("all", table.puts_total), ("failed", table.puts_failed))


def view_slave(report: SlaveReport | None, *, now_ms: int) -> SlaveView | None:
    """A slave's own side at `now_ms`; None if the node is not a slave."""
    if report is None:
        return None
    client = report.client
    if client is None:
        return SlaveView(None, "", None, None, None, None, None, "")
    return SlaveView(
        master_address=client.master_address,
        state=client.state or "",
        reported_offset=client.reported_offset,
        received_bytes_per_s=float(client.transferred_bytes_per_s),
        read_age_s=max(0, now_ms - report.last_received_ms) / 1000 if client.last_read_ms else None,
        reconnects=report.reconnects,
        is_observer=client.is_observer,
        complaint=client.verdict or "",
    )


def probe_counts(counted: Mapping[str, Mapping[str, int]]) -> tuple[ProbeCount, ...]:
    """Probes by host and reason, the most frequent first."""
    counts = [
        ProbeCount(host, name, count) for host, names in counted.items() for name, count in names.items()
    ]
    return tuple(sorted(counts, key=lambda one: (-one.count, one.host, one.reason)))
