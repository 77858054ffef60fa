"""What events say by looking back: lag and ack latency of a master's connection.

- Lag in bytes is the master's max offset minus the slave's ack, from the first ack until the end. It is known
  at the connection's own events. Time between two events counts with the lag at the first, if that is 0 (a
  healthy connection that waits); else the slave is behind, puts may go on unseen until the next event, and it
  counts with the lag just before that: never less than it was. Percentiles are weighted by that time.
- Ack latency in ns is the time from a frame's TRANSFER to the first ACK at or beyond its end.
"""

from __future__ import annotations

import numpy as np
from attrs import evolve, field, frozen

from trioha.recording.histogram import Histogram
from trioha.recording.state import UNKNOWN
from trioha.recording.state_arrays import Ints, first_covering, lag_bytes, rising
from trioha.recording.time_series import TimeGrid, TimeSeries


@frozen(eq=False)
class Flow:
    """Events of a master's connection, as far as lag and latency need them."""

    ts_ns: Ints
    """Shape (n,)."""
    max_offset: Ints
    """The master's, or UNKNOWN; shape (n,)."""
    frames: Ints
    """Which events are frames, ascending; shape (m,)."""
    start_offset: Ints
    """Of each frame; shape (m,)."""
    end_offset: Ints
    """Of each frame; shape (m,)."""
    acks: Ints
    """Which events are acks, ascending; shape (k,)."""
    ack_offset: Ints
    """Of each ack; shape (k,)."""
    ends: Ints
    """Which events end the connection, ascending."""

    def __len__(self) -> int:
        return len(self.ts_ns)

    def cut(self, begin: int, end: int | None = None) -> Flow:
        """The events from `begin` to before `end`."""
        end = len(self) if end is None else end
        frames, acks, ends = (
            slice(*np.searchsorted(events, (begin, end))) for events in (self.frames, self.acks, self.ends)
        )
        return Flow(
            self.ts_ns[begin:end],
            self.max_offset[begin:end],
            self.frames[frames] - begin,
            self.start_offset[frames],
            self.end_offset[frames],
            self.acks[acks] - begin,
            self.ack_offset[acks],
            self.ends[ends] - begin,
        )

    def __add__(self, later: Flow) -> Flow:
        return Flow(
            np.concatenate((self.ts_ns, later.ts_ns)),
            np.concatenate((self.max_offset, later.max_offset)),
            np.concatenate((self.frames, later.frames + len(self))),
            np.concatenate((self.start_offset, later.start_offset)),
            np.concatenate((self.end_offset, later.end_offset)),
            np.concatenate((self.acks, later.acks + len(self))),
            np.concatenate((self.ack_offset, later.ack_offset)),
            np.concatenate((self.ends, later.ends + len(self))),
        )


def no_flow() -> Flow:
    none = np.zeros(0, np.int64)
    return Flow(none, none, none, none, none, none, none, none)


@frozen(eq=False)
class Progress:
    """Lag and latency up to some event, and what those that follow must know."""

    last_ts_ns: int = UNKNOWN
    max_offset: int = UNKNOWN
    ack_offset: int = UNKNOWN
    closed: bool = False
    flying_ts_ns: Ints = field(factory=lambda: np.zeros(0, np.int64))
    """When each frame was sent that is not acknowledged yet; shape (n,)."""
    flying_end_offset: Ints = field(factory=lambda: np.zeros(0, np.int64))
    """Where each of them ends; shape (n,)."""
    lag: Histogram = field(factory=Histogram)
    """Lag in bytes, weighted by ns."""
    latency: Histogram = field(factory=Histogram)
    """Ack latency in ns."""
    lag_series: TimeSeries = field(factory=TimeSeries)
    latency_series: TimeSeries = field(factory=TimeSeries)
    """Largest ack latency, in ns, of the frames that were acknowledged in each step."""

    def go_on(self, flow: Flow, grid: TimeGrid) -> Progress:
        """The progress after the events of `flow` too."""
        if self.closed or not len(flow):
            return self
        closed = bool(len(flow.ends))
        if closed:
            flow = flow.cut(0, int(flow.ends[0]) + 1)
        max_offset = rising(flow.max_offset, self.max_offset)
        ack_offset = rising(flow.ack_offset, self.ack_offset)
        lag, lag_series = self._lag(flow, max_offset, ack_offset, grid)

        sent_ts_ns = np.concatenate((self.flying_ts_ns, flow.ts_ns[flow.frames]))
        end_offset = np.concatenate((self.flying_end_offset, flow.end_offset))
        place = first_covering(ack_offset, end_offset)
        arrived = place < len(ack_offset)
        acked_ts_ns = flow.ts_ns[flow.acks[place[arrived]]]
        # Recorded clocks may be wrong in a damaged session; a negative time is none.
        latency = np.maximum(acked_ts_ns - sent_ts_ns[arrived], 0)
        return Progress(
            last_ts_ns=int(flow.ts_ns[-1]),
            max_offset=int(max_offset[-1]),
            ack_offset=int(ack_offset[-1]) if len(ack_offset) else self.ack_offset,
            closed=closed,
            flying_ts_ns=sent_ts_ns[~arrived],
            flying_end_offset=end_offset[~arrived],
            lag=self.lag + lag,
            latency=self.latency + Histogram.of(latency),
            lag_series=self.lag_series + lag_series,
            latency_series=self.latency_series + TimeSeries.over(grid, acked_ts_ns, latency),
        )

    def _lag(
        self, flow: Flow, max_offset: Ints, ack_offset: Ints, grid: TimeGrid
    ) -> tuple[Histogram, TimeSeries]:
        """`max_offset` at each event, `ack_offset` at each ack: the largest so far."""
        # The lag is known from the first ack on: after that one, and before and after all others.
        begin = 0
        if self.ack_offset < 0:
            if not len(flow.acks):
                return Histogram(), TimeSeries()
            begin = int(flow.acks[0])
        acks_before = np.diff(flow.acks, prepend=-1, append=len(flow) - 1)
        before_ack = np.repeat(np.append(self.ack_offset, ack_offset), acks_before)[begin:]
        # Before the connection's first event there was no time: its interval has no length.
        last_ts_ns = self.last_ts_ns if self.last_ts_ns >= 0 else flow.ts_ns[0]
        passed_ns = np.maximum(np.diff(flow.ts_ns, prepend=last_ts_ns)[begin:], 0)
        before_max = np.append(self.max_offset, max_offset)[begin:-1]
        # The end of the log is unknown in a damaged session only.
        at_begin = np.maximum(lag_bytes(before_max, before_ack), 0)
        at_end = np.maximum(lag_bytes(max_offset[begin:], before_ack), 0)
        first = 0
        if self.ack_offset < 0:
            first = 1
            at_end[0] = max(int(max_offset[begin] - ack_offset[0]), 0)
        lag = Histogram.of(np.where(at_begin == 0, 0, at_end)[first:], passed_ns[first:])
        return evolve(lag, max_value=int(at_end.max())), TimeSeries.over(grid, flow.ts_ns[begin:], at_end)

    def followed_by(self, later: Progress) -> Progress:
        """Both, where `later` was begun with what this one knows at its end."""
        return evolve(
            later,
            lag=self.lag + later.lag,
            latency=self.latency + later.latency,
            lag_series=self.lag_series + later.lag_series,
            latency_series=self.latency_series + later.latency_series,
        )
