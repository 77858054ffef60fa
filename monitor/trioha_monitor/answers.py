"""One node's answer, as it is shown: its limits, its log and its slave's side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from trioha.broker_status import BrokerStatus
from trioha_monitor.meters import RateMeter
from trioha_monitor.replicas import SlaveReport
from trioha_monitor.series import SeriesRecorder
from trioha_monitor.view import Limits, LogView, ProbeCount, PutRate, SlaveView


def view_log(
    status: BrokerStatus,
    *,
    rate: RateMeter,
    put_rates: Mapping[str, RateMeter],
    append: SeriesRecorder,
    is_live: bool,
) -> LogView:
    """A node's log: what it said last, and the speeds seen, which are None unless it `is_live`."""
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
        puts=tuple(
            PutRate(name, count, put_rates[name].per_s if is_live else None)
            for name, count in sorted(puts_of(status), key=lambda put: (put[0] != "PUT_OK", put[0]))
        ),
        disk_ratio=table.disk_ratio,
        disk_total_bytes=table.disk_total_bytes,
        disk_free_bytes=table.disk_free_bytes,
        earliest_ms=table.earliest_ms,
        retention_s=None if settings.reserved_h is None else settings.reserved_h * 3600.0,
        disk_ratio_max=None if settings.disk_percent_max is None else settings.disk_percent_max / 100,
        dispatch_fault=status.dispatch_fault,
    )


def puts_of(status: BrokerStatus) -> Iterable[tuple[str, int]]:
    """Puts since the start by their result: RocketMQ tells only how many there were, and how many failed."""
    if status.put_statuses:
        return tuple(status.put_statuses.items())
    table = status.table
    if status.role == "SLAVE" or table.puts_total is None or table.puts_failed is None:
        return ()
    return (("all", table.puts_total), ("failed", table.puts_failed))


def view_slave(news: SlaveReport | None, *, now_ms: int) -> SlaveView | None:
    """A slave's own side at `now_ms`; None for a node that is none."""
    if news is None:
        return None
    client = news.client
    if client is None:
        return SlaveView(None, "", None, None, None, None, None, "")
    return SlaveView(
        master_address=client.master_address,
        state=client.state or "",
        reported_offset=client.reported_offset,
        received_bytes_per_s=float(client.transferred_bytes_per_s),
        read_age_s=max(0, now_ms - news.heard_since_ms) / 1000 if client.last_read_ms else None,
        reconnects=client.reconnects,
        is_observer=client.is_observer,
        complaint=client.verdict or "",
    )


def limits_of(status: BrokerStatus) -> Limits:
    """A broker's limits where it tells them, RocketMQ's defaults else."""
    settings, default = status.settings, Limits()

    def in_s(value_ms: int | None, default_s: float) -> float:
        return value_ms / 1000 if value_ms else default_s

    return Limits(
        gap_bytes_max=settings.gap_bytes_max or default.gap_bytes_max,
        slave_timeout_s=in_s(settings.slave_timeout_ms, default.slave_timeout_s),
        housekeeping_s=in_s(settings.housekeeping_ms, default.housekeeping_s),
        heartbeat_s=in_s(settings.heartbeat_ms, default.heartbeat_s),
        are_told=bool(settings.gap_bytes_max),
    )


def probe_counts(told: Mapping[str, Mapping[str, int]]) -> tuple[ProbeCount, ...]:
    """Probes by host and reason, the most frequent first."""
    counts = [ProbeCount(host, name, count) for host, names in told.items() for name, count in names.items()]
    return tuple(sorted(counts, key=lambda one: (-one.count, one.host, one.reason)))
