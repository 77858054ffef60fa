"""Lag and ack latency of a master's connection: the figures that need earlier events.

- Lag in bytes is the master's log end less the slave's ack, from the first ack until the connection ends. It
  is known at the connection's events only. A lag of 0 lasts until the next event (an idle connection).
  Otherwise the time up to the next event counts with the lag just before that event, since puts may go on
  unseen: a lagging slave's lag is never understated. Percentiles are weighted by time.
- Ack latency in ns is the time from a frame's TRANSFER to the first ACK at or beyond its end.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from attrs import evolve, field, frozen

from trioha.recording.state import UNKNOWN
from trioha_sessions.histogram import Histogram
from trioha_sessions.state_arrays import Ints, first_covering, lag_bytes, rising
from trioha_sessions.time_series import TimeGrid, TimeSeries

KEPT_MAX: Final = 200_000
"""Frames in flight of a connection that are kept, the latest ones, and events of a part that are kept until
the part before is known: far more than of a slave that acknowledges anything. Each takes up to 40 bytes."""


@frozen(eq=False)
class ConnectionEvents:
    """Events of a master's connection, reduced to what lag and latency need."""

    ts_ns: Ints
    """Shape (n,)."""
    max_offset: Ints
    """End of the master's log, or UNKNOWN; shape (n,)."""
    frames: Ints
    """Indices of the frames, ascending; shape (m,)."""
    start_offset: Ints
    """Of each frame; shape (m,)."""
    end_offset: Ints
    """Of each frame; shape (m,)."""
    acks: Ints
    """Indices of the acks, ascending; shape (k,)."""
    ack_offset: Ints
    """Of each ack; shape (k,)."""
    ends: Ints
    """Indices of the events that end the connection, ascending."""

    def __len__(self) -> int:
        return len(self.ts_ns)

    def cut(self, begin: int, end: int | None = None) -> ConnectionEvents:
        """The events from `begin` to before `end`."""
        end = len(self) if end is None else end
        frames, acks, ends = (
            slice(*np.searchsorted(events, (begin, end))) for events in (self.frames, self.acks, self.ends)
        )
        return ConnectionEvents(
            self.ts_ns[begin:end],
            self.max_offset[begin:end],
            self.frames[frames] - begin,
            self.start_offset[frames],
            self.end_offset[frames],
            self.acks[acks] - begin,
            self.ack_offset[acks],
            self.ends[ends] - begin,
        )

    def __add__(self, later: ConnectionEvents) -> ConnectionEvents:
        return ConnectionEvents(
            np.concatenate((self.ts_ns, later.ts_ns)),
            np.concatenate((self.max_offset, later.max_offset)),
            np.concatenate((self.frames, later.frames + len(self))),
            np.concatenate((self.start_offset, later.start_offset)),
            np.concatenate((self.end_offset, later.end_offset)),
            np.concatenate((self.acks, later.acks + len(self))),
            np.concatenate((self.ack_offset, later.ack_offset)),
            np.concatenate((self.ends, later.ends + len(self))),
        )


def no_events() -> ConnectionEvents:
    none = np.zeros(0, np.int64)
    return ConnectionEvents(none, none, none, none, none, none, none, none)


@frozen(eq=False)
class Progress:
    """Lag and latency up to an event, and the state that later events need."""

    last_ts_ns: int = UNKNOWN
    max_offset: int = UNKNOWN
    ack_offset: int = UNKNOWN
    closed: bool = False
    in_flight_ts_ns: Ints = field(factory=lambda: np.zeros(0, np.int64))
    """Send time of each frame without an ack, of the last `KEPT_MAX`; shape (n,)."""
    in_flight_end_offset: Ints = field(factory=lambda: np.zeros(0, np.int64))
    """End of each of these frames; shape (n,)."""
    given_up: int = 0
    """Earlier frames without an ack, which are not kept: their latency is not counted."""
    knows_before: bool = True
    """Whether nothing came before its first event, or what came before is known."""
    lag: Histogram = field(factory=Histogram)
    """Lag in bytes, weighted by ns."""
    latency: Histogram = field(factory=Histogram)
    """Ack latency in ns."""
    lag_series: TimeSeries = field(factory=TimeSeries)
    latency_series: TimeSeries = field(factory=TimeSeries)
    """Largest ack latency in ns of the frames acknowledged in each step."""

    def after(self, events: ConnectionEvents, grid: TimeGrid) -> Progress:
        """The progress after `events`, which come next."""
        if self.closed or not len(events):
            return self
        closed = bool(len(events.ends))
        if closed:
            events = events.cut(0, int(events.ends[0]) + 1)
        max_offset = rising(events.max_offset, self.max_offset)
        ack_offset = rising(events.ack_offset, self.ack_offset)
        lag, lag_series = self._lag(events, max_offset, ack_offset, grid)

        sent_ts_ns = np.concatenate((self.in_flight_ts_ns, events.ts_ns[events.frames]))
        end_offset = np.concatenate((self.in_flight_end_offset, events.end_offset))
        place = first_covering(ack_offset, end_offset)
        arrived = place < len(ack_offset)
        acked_ts_ns = events.ts_ns[events.acks[place[arrived]]]
        # In a damaged session the clock may go back: latency is at least 0.
        latency = np.maximum(acked_ts_ns - sent_ts_ns[arrived], 0)
        waiting_ns, waiting_end_offset = sent_ts_ns[~arrived], end_offset[~arrived]
        return Progress(
            last_ts_ns=int(events.ts_ns[-1]),
            max_offset=int(max_offset[-1]),
            ack_offset=int(ack_offset[-1]) if len(ack_offset) else self.ack_offset,
            closed=closed,
            in_flight_ts_ns=waiting_ns[-KEPT_MAX:],
            in_flight_end_offset=waiting_end_offset[-KEPT_MAX:],
            # An ack of a kept frame covers all frames before it.
            given_up=(0 if arrived.any() else self.given_up) + max(0, len(waiting_ns) - KEPT_MAX),
            knows_before=self.knows_before,
            lag=self.lag + lag,
            latency=self.latency + Histogram.of(latency),
            lag_series=self.lag_series + lag_series,
            latency_series=self.latency_series + TimeSeries.over(grid, acked_ts_ns, latency),
        )

    def _lag(
        self, events: ConnectionEvents, max_offset: Ints, ack_offset: Ints, grid: TimeGrid
    ) -> tuple[Histogram, TimeSeries]:
        """`max_offset` at each event and `ack_offset` at each ack are the largest so far."""
        # The lag is known after the first ack, and before and after all later events.
        begin = 0
        if self.ack_offset < 0:
            if not len(events.acks):
                return Histogram(), TimeSeries()
            begin = int(events.acks[0])
        acks_before = np.diff(events.acks, prepend=-1, append=len(events) - 1)
        before_ack = np.repeat(np.append(self.ack_offset, ack_offset), acks_before)[begin:]
        # The connection's first event has no interval before it.
        last_ts_ns = self.last_ts_ns if self.last_ts_ns >= 0 else events.ts_ns[0]
        passed_ns = np.maximum(np.diff(events.ts_ns, prepend=last_ts_ns)[begin:], 0)
        before_max = np.append(self.max_offset, max_offset)[begin:-1]
        # The end of the log is unknown in a damaged session only.
        at_begin = np.maximum(lag_bytes(before_max, before_ack), 0)
        at_end = np.maximum(lag_bytes(max_offset[begin:], before_ack), 0)
        first = 0
        if self.ack_offset < 0:
            first = 1
            at_end[0] = max(int(max_offset[begin] - ack_offset[0]), 0)
        lag = Histogram.of(np.where(at_begin == 0, 0, at_end)[first:], passed_ns[first:])
        return evolve(lag, max_value=int(at_end.max())), TimeSeries.over(grid, events.ts_ns[begin:], at_end)

    def followed_by(self, later: Progress) -> Progress:
        """This progress and `later`, which started with the state of this one, or without any."""
        if not later.knows_before:
            later = self._with_frames_of(later)
        return evolve(
            later,
            knows_before=self.knows_before,
            lag=self.lag + later.lag,
            latency=self.latency + later.latency,
            lag_series=self.lag_series + later.lag_series,
            latency_series=self.latency_series + later.latency_series,
        )

    def _with_frames_of(self, later: Progress) -> Progress:
        """`later` with the frames in flight of this one that it did not know of."""
        waits = self.in_flight_end_offset > later.ack_offset
        sent_ns = np.concatenate((self.in_flight_ts_ns[waits], later.in_flight_ts_ns))
        end_offset = np.concatenate((self.in_flight_end_offset[waits], later.in_flight_end_offset))
        return evolve(
            later,
            ack_offset=max(self.ack_offset, later.ack_offset),
            in_flight_ts_ns=sent_ns[-KEPT_MAX:],
            in_flight_end_offset=end_offset[-KEPT_MAX:],
            given_up=(self.given_up if waits.all() else 0) + later.given_up + max(0, len(sent_ns) - KEPT_MAX),
        )
