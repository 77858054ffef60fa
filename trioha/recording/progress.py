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
from numpy.typing import NDArray

from trioha.recording.curves import Curve, Grid
from trioha.recording.histogram import Histogram
from trioha.recording.tallies import UNKNOWN

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@frozen(eq=False)
class Flow:
    """Events of a master's connection, as far as lag and latency need them: arrays of one length."""

    ts_ns: Ints
    max_offset: Ints
    """The master's, or UNKNOWN."""
    start_offset: Ints
    """Start of a frame, else UNKNOWN."""
    end_offset: Ints
    """End of a frame, else UNKNOWN."""
    ack_offset: Ints
    """Of an ACK, else UNKNOWN."""
    closed: Bools

    def __len__(self) -> int:
        return len(self.ts_ns)

    def cut(self, begin: int, end: int | None = None) -> Flow:
        """The events from `begin` to before `end`."""
        part = slice(begin, end)
        return Flow(
            self.ts_ns[part],
            self.max_offset[part],
            self.start_offset[part],
            self.end_offset[part],
            self.ack_offset[part],
            self.closed[part],
        )

    def __add__(self, later: Flow) -> Flow:
        return Flow(
            np.concatenate((self.ts_ns, later.ts_ns)),
            np.concatenate((self.max_offset, later.max_offset)),
            np.concatenate((self.start_offset, later.start_offset)),
            np.concatenate((self.end_offset, later.end_offset)),
            np.concatenate((self.ack_offset, later.ack_offset)),
            np.concatenate((self.closed, later.closed)),
        )


def no_flow() -> Flow:
    none = np.zeros(0, np.int64)
    return Flow(none, none, none, none, none, np.zeros(0, np.bool_))


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
    lag_curve: Curve = field(factory=Curve)

    def go_on(self, flow: Flow, grid: Grid) -> Progress:
        """The progress after the events of `flow` too."""
        if self.closed or not len(flow):
            return self
        ends = np.flatnonzero(flow.closed)
        closed = bool(len(ends))
        if closed:
            flow = flow.cut(0, int(ends[0]) + 1)
        max_offset = np.maximum.accumulate(np.maximum(flow.max_offset, self.max_offset))
        ack_offset = np.maximum.accumulate(np.maximum(flow.ack_offset, self.ack_offset))
        lag, lag_curve = self._lag(flow, max_offset, ack_offset, grid)

        is_frame = flow.end_offset >= 0
        sent_ts_ns = np.concatenate((self.flying_ts_ns, flow.ts_ns[is_frame]))
        end_offset = np.concatenate((self.flying_end_offset, flow.end_offset[is_frame]))
        is_ack = flow.ack_offset >= 0
        place = np.searchsorted(ack_offset[is_ack], end_offset)
        arrived = place < np.count_nonzero(is_ack)
        latency = flow.ts_ns[is_ack][place[arrived]] - sent_ts_ns[arrived]
        return Progress(
            last_ts_ns=int(flow.ts_ns[-1]),
            max_offset=int(max_offset[-1]),
            ack_offset=int(ack_offset[-1]),
            closed=closed,
            flying_ts_ns=sent_ts_ns[~arrived],
            flying_end_offset=end_offset[~arrived],
            lag=self.lag + lag,
            # Recorded clocks may be wrong in a damaged session; a negative time is none.
            latency=self.latency + Histogram.of(np.maximum(latency, 0)),
            lag_curve=self.lag_curve + lag_curve,
        )

    def _lag(self, flow: Flow, max_offset: Ints, ack_offset: Ints, grid: Grid) -> tuple[Histogram, Curve]:
        # Before the connection's first event there was no time: its interval has no length.
        before_ts_ns = np.concatenate(
            ([self.last_ts_ns if self.last_ts_ns >= 0 else flow.ts_ns[0]], flow.ts_ns)
        )
        before_ack = np.concatenate(([self.ack_offset], ack_offset[:-1]))
        before_max = np.concatenate(([self.max_offset], max_offset[:-1]))
        passed_ns = np.maximum(np.diff(before_ts_ns), 0)
        known = before_ack >= 0
        # An observed lag may be negative in a damaged session only.
        at_begin = np.maximum(before_max - before_ack, 0)
        at_end = np.maximum(max_offset - before_ack, 0)
        counted = np.where(at_begin == 0, 0, at_end)[known]
        after = np.where(ack_offset >= 0, np.maximum(max_offset - ack_offset, 0), UNKNOWN)
        worst = np.maximum(after, np.where(known, at_end, UNKNOWN))
        lag = Histogram.of(counted, passed_ns[known])
        return (
            evolve(lag, max_value=max(lag.max_value, int(worst.max()))),
            Curve.of(grid.step_of(flow.ts_ns), worst),
        )

    def followed_by(self, later: Progress) -> Progress:
        """Both, where `later` was begun with what this one knows at its end."""
        return evolve(
            later,
            lag=self.lag + later.lag,
            latency=self.latency + later.latency,
            lag_curve=self.lag_curve + later.lag_curve,
        )
