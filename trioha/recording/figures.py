"""The figures of a whole session: what replay, report and monitor show."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen

from trioha.recording.curves import Curve, Grid
from trioha.recording.events import CloseReason, HaState, PutStatus
from trioha.recording.fold import ConnectionPart
from trioha.recording.histogram import Histogram
from trioha.recording.tallies import NodeTally


@frozen
class Percentiles:
    """A distribution in three figures."""

    p50: int
    p99: int
    max: int


def percentiles(histogram: Histogram) -> Percentiles | None:
    """None of a distribution without any value. One whose values all have no weight is its largest value."""
    if histogram.max_value < 0:
        return None
    p50, p99 = histogram.percentile(50), histogram.percentile(99)
    largest = histogram.max_value
    return Percentiles(largest if p50 is None else p50, largest if p99 is None else p99, largest)


@frozen(eq=False)
class ConnectionResult:
    """One connection when all was folded. Offsets are None if there was none, and so is what a slave's
    session cannot say (lag, latency, sent, ack) or a master's (received, reported)."""

    conn: int
    first_ts_ns: int
    asked_ts_ns: int | None
    """First event that shows that the log was asked for; None of a probe."""
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
    """ACKs taken (master), or reports made (slave), heartbeats apart."""
    refused: int
    max_offset: int | None
    """Of the node that recorded, at the connection's last event."""
    request_offset: int | None
    sent_offset: int | None
    ack_offset: int | None
    received_offset: int | None
    reported_offset: int | None
    lag_bytes: Percentiles | None
    """Weighted by time."""
    ack_latency_ns: Percentiles | None
    unacknowledged_frames: int
    ack_latency_histogram: Histogram
    """In ns."""
    curves: Mapping[str, Curve]
    """`max`, `sent`, `ack`, `received`, `reported`, `lag` (bytes), `latency` (ns); on the part's grid."""


def connection_result(conn: int, part: ConnectionPart, grid: Grid) -> ConnectionResult:
    """The figures of one connection of a whole session."""
    tally = part.tally
    progress = part.finished(grid)
    return ConnectionResult(
        conn=conn,
        first_ts_ns=tally.first_ts_ns,
        asked_ts_ns=_known(tally.asked_ts_ns),
        last_ts_ns=tally.last_ts_ns,
        closed_ts_ns=_known(tally.closed_ts_ns),
        state=_name(HaState, tally.state),
        close_reason=_name(CloseReason, tally.close_reason),
        frames=tally.frames,
        body_bytes=tally.body_bytes,
        heartbeats_sent=tally.heartbeats_sent,
        heartbeats_received=tally.heartbeats_received,
        acks=tally.acks,
        refused=tally.refused,
        max_offset=_known(tally.max_offset),
        request_offset=_known(tally.request_offset),
        sent_offset=_known(tally.sent_offset),
        ack_offset=_known(tally.ack_offset),
        received_offset=_known(tally.received_offset),
        reported_offset=_known(tally.reported_offset),
        lag_bytes=percentiles(progress.lag),
        ack_latency_ns=percentiles(progress.latency),
        unacknowledged_frames=len(progress.flying_ts_ns),
        ack_latency_histogram=progress.latency,
        curves={
            "max": tally.max_curve,
            "sent": tally.sent_curve,
            "ack": tally.ack_curve,
            "received": tally.received_curve,
            "reported": tally.reported_curve,
            "lag": progress.lag_curve,
            "latency": progress.latency_curve,
        },
    )


@frozen(eq=False)
class WaitResult:
    """The group-commit waits that ended with one status."""

    status: str
    """`PutStatus`, by name."""
    count: int
    waited_us: Percentiles
    histogram: Histogram
    """In us."""


@frozen(eq=False)
class NodeResult:
    """The node when all was folded; offsets are None if there was none."""

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


def node_result(tally: NodeTally) -> NodeResult:
    """The figures of the node of a whole session."""
    waits = []
    for status, histogram in tally.waits.items():
        waited = percentiles(histogram)
        assert waited is not None, "a status is there because a wait ended with it"
        waits.append(WaitResult(_name(PutStatus, status) or str(status), histogram.total, waited, histogram))
    return NodeResult(
        events=tally.events,
        dropped=tally.dropped,
        first_ts_ns=_known(tally.first_ts_ns),
        last_ts_ns=_known(tally.last_ts_ns),
        puts=tally.puts,
        put_bytes=tally.put_bytes,
        put_offset=_known(tally.put_offset),
        flushed_offset=_known(tally.flushed_offset),
        dispatched_offset=_known(tally.dispatched_offset),
        max_offset=_known(tally.max_offset),
        waits=tuple(waits),
        waits_open=max(0, tally.waits_begun - sum(wait.count for wait in waits)),
        connects=tally.connects,
        kinds=tally.kinds,
    )


def _known(value: int) -> int | None:
    return None if value < 0 else value


def _name(names: type[HaState | CloseReason | PutStatus], code: int) -> str | None:
    """Name of a code; a code that is new here is its number."""
    if code < 0:
        return None
    try:
        return names(code).name
    except ValueError:
        return str(code)
