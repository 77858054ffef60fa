"""Counts, last values and largest values of events: they need no earlier event and add up.

Offsets only grow on a connection, so its final offset is the largest. A node's own offsets may go back (a
slave replaces a log that is not its master's), so its final offset is the last.
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import field, frozen

from trioha.recording.state import UNKNOWN
from trioha_sessions.histogram import Histogram
from trioha_sessions.time_series import TimeSeries


@frozen(eq=False)
class ConnectionCounters:
    """Counters of one connection. Offsets, times and codes are `UNKNOWN` at first."""

    first_seq: int = UNKNOWN
    first_ts_ns: int = UNKNOWN
    requested_ts_ns: int = UNKNOWN
    """First event that shows a request for the log; `UNKNOWN` of a probe."""
    last_ts_ns: int = UNKNOWN
    state: int = UNKNOWN
    """Last `HaState`."""
    close_reason: int = UNKNOWN
    """`CloseReason` of its CLOSED record."""
    closed_ts_ns: int = UNKNOWN
    frames: int = 0
    body_bytes: int = 0
    heartbeats_sent: int = 0
    heartbeats_received: int = 0
    acks: int = 0
    refused: int = 0
    request_offset: int = UNKNOWN
    max_offset: int = UNKNOWN
    """End of the recording node's log."""
    sent_offset: int = UNKNOWN
    ack_offset: int = UNKNOWN
    received_offset: int = UNKNOWN
    reported_offset: int = UNKNOWN
    max_series: TimeSeries = field(factory=TimeSeries)
    sent_series: TimeSeries = field(factory=TimeSeries)
    ack_series: TimeSeries = field(factory=TimeSeries)
    received_series: TimeSeries = field(factory=TimeSeries)
    reported_series: TimeSeries = field(factory=TimeSeries)

    def __add__(self, later: ConnectionCounters) -> ConnectionCounters:
        return ConnectionCounters(
            first_seq=self.first_seq if self.first_seq >= 0 else later.first_seq,
            first_ts_ns=self.first_ts_ns if self.first_ts_ns >= 0 else later.first_ts_ns,
            requested_ts_ns=self.requested_ts_ns if self.requested_ts_ns >= 0 else later.requested_ts_ns,
            last_ts_ns=max(self.last_ts_ns, later.last_ts_ns),
            state=later.state if later.state >= 0 else self.state,
            close_reason=later.close_reason if later.close_reason >= 0 else self.close_reason,
            closed_ts_ns=max(self.closed_ts_ns, later.closed_ts_ns),
            frames=self.frames + later.frames,
            body_bytes=self.body_bytes + later.body_bytes,
            heartbeats_sent=self.heartbeats_sent + later.heartbeats_sent,
            heartbeats_received=self.heartbeats_received + later.heartbeats_received,
            acks=self.acks + later.acks,
            refused=self.refused + later.refused,
            request_offset=self.request_offset if self.request_offset >= 0 else later.request_offset,
            max_offset=max(self.max_offset, later.max_offset),
            sent_offset=max(self.sent_offset, later.sent_offset),
            ack_offset=max(self.ack_offset, later.ack_offset),
            received_offset=max(self.received_offset, later.received_offset),
            reported_offset=max(self.reported_offset, later.reported_offset),
            max_series=self.max_series + later.max_series,
            sent_series=self.sent_series + later.sent_series,
            ack_series=self.ack_series + later.ack_series,
            received_series=self.received_series + later.received_series,
            reported_series=self.reported_series + later.reported_series,
        )


@frozen(eq=False)
class NodeCounters:
    """Counters of the node itself."""

    events: int = 0
    """Records that were read, those of kinds unknown here included."""
    dropped: int = 0
    """Events that found no free block in the recorder."""
    first_ts_ns: int = UNKNOWN
    last_ts_ns: int = UNKNOWN
    puts: int = 0
    put_bytes: int = 0
    put_offset: int = UNKNOWN
    """End offset of the last put."""
    flushed_offset: int = UNKNOWN
    """Offset of the last flush."""
    dispatched_offset: int = UNKNOWN
    """Offset of the last dispatch."""
    max_offset: int = UNKNOWN
    """End of the node's log, by the last record that names it."""
    waits_begun: int = 0
    waits: Mapping[int, Histogram] = field(factory=dict)
    """Waiting times of finished waits in us, by `PutStatus`."""
    connects: int = 0
    """Connections that a slave made."""
    kinds: Mapping[int, int] = field(factory=dict)
    """Records of each kind."""
    put_series: TimeSeries = field(factory=TimeSeries)
    """End of the node's log by its puts, which go on without a connection."""

    def __add__(self, later: NodeCounters) -> NodeCounters:
        return NodeCounters(
            events=self.events + later.events,
            dropped=self.dropped + later.dropped,
            first_ts_ns=self.first_ts_ns if self.first_ts_ns >= 0 else later.first_ts_ns,
            last_ts_ns=max(self.last_ts_ns, later.last_ts_ns),
            puts=self.puts + later.puts,
            put_bytes=self.put_bytes + later.put_bytes,
            put_offset=_last(self.put_offset, later.put_offset),
            flushed_offset=_last(self.flushed_offset, later.flushed_offset),
            dispatched_offset=_last(self.dispatched_offset, later.dispatched_offset),
            max_offset=_last(self.max_offset, later.max_offset),
            waits_begun=self.waits_begun + later.waits_begun,
            waits={
                status: self.waits.get(status, Histogram()) + later.waits.get(status, Histogram())
                for status in sorted({*self.waits, *later.waits})
            },
            connects=self.connects + later.connects,
            kinds={
                kind: self.kinds.get(kind, 0) + later.kinds.get(kind, 0)
                for kind in sorted({*self.kinds, *later.kinds})
            },
            put_series=self.put_series + later.put_series,
        )


def _last(earlier: int, later: int) -> int:
    return later if later >= 0 else earlier
