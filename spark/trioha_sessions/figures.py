"""The figures of a whole session, as replay and report show them."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen

from trioha.distribution import Distribution
from trioha.recording.events import CloseReason, HaState, PutStatus, code_name
from trioha.recording.state import known
from trioha_sessions.aggregate import ConnectionPart
from trioha_sessions.counters import NodeCounters
from trioha_sessions.histogram import Histogram
from trioha_sessions.time_series import TimeGrid, TimeSeries


@frozen(eq=False)
class ConnectionResult:
    """Figures of one connection. An offset that no event named is None; so are lag, latency, sent and ack in
    a slave's session, received and reported in a master's."""

    conn: int
    first_seq: int
    """Seq of its first record."""
    first_ts_ns: int
    requested_ts_ns: int | None
    """First event that shows a request for the log; None of a probe."""
    last_ts_ns: int
    closed_ts_ns: int | None
    """None if it was open at the end."""
    state: str | None
    """Last `HaState`, by name."""
    close_reason: str | None
    frames: int
    """TRANSFER frames sent (master) or RECEIVED (slave)."""
    body_bytes: int
    """Log bytes in them."""
    heartbeats_sent: int
    heartbeats_received: int
    acks: int
    """ACKs received (master) or reports sent (slave), heartbeats apart."""
    refused: int
    max_offset: int | None
    """End of the recording node's log at the connection's last event."""
    request_offset: int | None
    sent_offset: int | None
    ack_offset: int | None
    received_offset: int | None
    reported_offset: int | None
    lag_bytes: Distribution[int] | None
    """Weighted by time."""
    ack_latency_ns: Distribution[int] | None
    unacknowledged_frames: int
    ack_latency_histogram: Histogram
    """In ns."""
    series: Mapping[str, TimeSeries]
    """`max`, `sent`, `ack`, `received`, `reported`, `lag` (bytes), `latency` (ns); on the part's grid."""


def connection_result(conn: int, part: ConnectionPart, grid: TimeGrid) -> ConnectionResult:
    """Figures of one connection of a whole session; `grid` is that of its part."""
    counters = part.counters
    progress = part.finished(grid)
    return ConnectionResult(
        conn=conn,
        first_seq=counters.first_seq,
        first_ts_ns=counters.first_ts_ns,
        requested_ts_ns=known(counters.requested_ts_ns),
        last_ts_ns=counters.last_ts_ns,
        closed_ts_ns=known(counters.closed_ts_ns),
        state=None if counters.state < 0 else code_name(HaState, counters.state),
        close_reason=(None if counters.close_reason < 0 else code_name(CloseReason, counters.close_reason)),
        frames=counters.frames,
        body_bytes=counters.body_bytes,
        heartbeats_sent=counters.heartbeats_sent,
        heartbeats_received=counters.heartbeats_received,
        acks=counters.acks,
        refused=counters.refused,
        max_offset=known(counters.max_offset),
        request_offset=known(counters.request_offset),
        sent_offset=known(counters.sent_offset),
        ack_offset=known(counters.ack_offset),
        received_offset=known(counters.received_offset),
        reported_offset=known(counters.reported_offset),
        lag_bytes=progress.lag.distribution(),
        ack_latency_ns=progress.latency.distribution(),
        unacknowledged_frames=len(progress.in_flight_ts_ns) + progress.given_up,
        ack_latency_histogram=progress.latency,
        series={
            "max": counters.max_series,
            "sent": counters.sent_series,
            "ack": counters.ack_series,
            "received": counters.received_series,
            "reported": counters.reported_series,
            "lag": progress.lag_series,
            "latency": progress.latency_series,
        },
    )


@frozen(eq=False)
class WaitResult:
    """The group-commit waits that ended with one status."""

    status: str
    """`PutStatus`, by name."""
    count: int
    waited_us: Distribution[int]
    histogram: Histogram
    """In us."""


@frozen(eq=False)
class NodeResult:
    """Figures of the node; an offset that no event named is None."""

    events: int
    dropped: int
    first_ts_ns: int | None
    last_ts_ns: int | None
    puts: int
    put_bytes: int
    put_offset: int | None
    flushed_offset: int | None
    dispatched_offset: int | None
    max_offset: int | None
    waits: tuple[WaitResult, ...]
    waits_open: int
    """Waits whose end is not in the recording."""
    connects: int
    kinds: Mapping[int, int]
    put_series: TimeSeries
    """End of the node's log by its puts; on the part's grid."""


def node_result(counters: NodeCounters) -> NodeResult:
    """Figures of the node of a whole session."""
    waits = []
    for status, histogram in counters.waits.items():
        waited = histogram.distribution()
        assert waited is not None, "each status has a wait that ended with it"
        waits.append(WaitResult(code_name(PutStatus, status), histogram.total, waited, histogram))
    return NodeResult(
        events=counters.events,
        dropped=counters.dropped,
        first_ts_ns=known(counters.first_ts_ns),
        last_ts_ns=known(counters.last_ts_ns),
        puts=counters.puts,
        put_bytes=counters.put_bytes,
        put_offset=known(counters.put_offset),
        flushed_offset=known(counters.flushed_offset),
        dispatched_offset=known(counters.dispatched_offset),
        max_offset=known(counters.max_offset),
        waits=tuple(waits),
        waits_open=max(0, counters.waits_begun - sum(wait.count for wait in waits)),
        connects=counters.connects,
        kinds=counters.kinds,
        put_series=counters.put_series,
    )
