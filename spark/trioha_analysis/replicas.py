"""Replicas of a master's session: each one's offsets and lag over time, also while it has no connection.

Which connections are one replica is the rule of `trioha_sessions.reconnects`, and so is when an outage ends.
Lag in bytes is the log's end less the replica's last ack. Lag in seconds is the age of the oldest byte
without an ack; the time series have the step in which that byte was stored, and the age counts from the end
of that step, so it is never overstated.

Series are those of a `TimeGrid`, and have a value in each step from a replica's first ack on: the worst.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from attrs import evolve, frozen

from trioha.recording.state import UNKNOWN, known
from trioha_sessions.reconnects import Connection, Outage, Replica, Span, replicas
from trioha_sessions.state_arrays import Ints, first_beyond, lag_bytes, rising
from trioha_sessions.time_series import TimeGrid, TimeSeries

if TYPE_CHECKING:
    from trioha_analysis.session_replay import ConnectionReplay


@frozen(eq=False)
class ReplicaOutage:
    """Time in which a replica had no connection. Times are those of the session's monotonic clock."""

    conn: int
    """Its connection before; negative if that was in the recording before (`SessionReplay.before`)."""
    next_conn: int | None
    """Its connection after it; None if it is not known to be back."""
    began_ns: int
    """Not before the session."""
    ended_ns: int
    """When it was back, was forgotten (`LOST_NS`), or the recording ended."""
    reason: str | None
    """`CloseReason` of the connection before, by name; None if the recording has none."""
    ack_offset: int | None
    """Its last ack; None if it had none, and then the lag is not known."""
    lag_bytes_max: int | None
    age_ns_max: int | None
    lag: TimeSeries
    """In bytes."""
    age: TimeSeries
    """Of the oldest byte without an ack, in ns."""


@frozen(eq=False)
class ReplicaReplay:
    """One replica through all of its connections."""

    name: str
    """As the monitor names it: the name in its certificate, else the address of its last connection."""
    conns: tuple[int, ...]
    """Its connections one after the other."""
    reconnects: int
    outages: tuple[ReplicaOutage, ...]
    sent: TimeSeries
    """Of the steps with a frame; outages have none. So has `ack`."""
    ack: TimeSeries
    lag: TimeSeries
    """In bytes."""
    age: TimeSeries
    """Of the oldest byte without an ack, in ns."""

    def thinned(self, steps: int) -> ReplicaReplay:
        """With the largest value of every so many steps; none of them for 0."""

        def thin(series: TimeSeries) -> TimeSeries:
            return TimeSeries.of(series.steps // steps * steps, series.values) if steps else TimeSeries()

        return evolve(
            self,
            outages=tuple(evolve(one, lag=thin(one.lag), age=thin(one.age)) for one in self.outages),
            sent=thin(self.sent),
            ack=thin(self.ack),
            lag=thin(self.lag),
            age=thin(self.age),
        )


def replica_replays(
    connections: Sequence[ConnectionReplay], grid: TimeGrid, log_end: TimeSeries, *, end_ns: int
) -> tuple[ReplicaReplay, ...]:
    """The replicas of a master's session that ends at `end_ns`, in the order of their first connections.

    `log_end` is the end of the master's log.
    """
    by_conn = {one.figures.conn: one for one in connections}
    return tuple(
        _replica(replica, by_conn, _LogEnd(grid, log_end))
        for replica in replicas(spans_of(connections), end_ns=end_ns)
    )


def spans_of(connections: Sequence[ConnectionReplay]) -> Iterator[Span[int]]:
    """The connections that requested the log, from their requests on."""
    for one in connections:
        figures = one.figures
        if figures.requested_ts_ns is not None:
            identified = Connection(figures.conn, one.address or "", one.peer.certificate or "")
            yield Span(identified, figures.requested_ts_ns, figures.closed_ts_ns)


def _replica(replica: Replica[int], by_conn: dict[int, ConnectionReplay], log_end: _LogEnd) -> ReplicaReplay:
    own = [by_conn[conn] for conn in replica.connections]
    outages = tuple(_outage(outage, by_conn[outage.lost], log_end) for outage in replica.outages)
    series = [one.figures.series for one in own]
    while_connected = [_while_connected(one, log_end) for one in own]
    return ReplicaReplay(
        name=own[-1].peer.certificate or own[-1].address or f"connection {own[-1].figures.conn}",
        conns=tuple(replica.connections),
        reconnects=replica.reconnects,
        outages=outages,
        sent=sum((one["sent"] for one in series), TimeSeries()),
        ack=sum((one["ack"] for one in series), TimeSeries()),
        lag=sum((*(lag for lag, _ in while_connected), *(one.lag for one in outages)), TimeSeries()),
        age=sum((*(age for _, age in while_connected), *(one.age for one in outages)), TimeSeries()),
    )


def _outage(outage: Outage[int], before: ConnectionReplay, log_end: _LogEnd) -> ReplicaOutage:
    figures = before.figures
    ack = UNKNOWN if figures.ack_offset is None else figures.ack_offset
    # What is of the time of the next request is the next connection's.
    last_ns = outage.ended_ns if outage.next is None else outage.ended_ns - 1
    began_ns = max(outage.began_ns, log_end.grid.origin_ns)
    steps = log_end.steps(began_ns, last_ns)
    acks = np.full(len(steps), ack, np.int64)
    lag, age = log_end.lag(steps, acks), log_end.age(steps, acks, end_ns=outage.ended_ns)
    return ReplicaOutage(
        conn=outage.lost,
        next_conn=outage.next,
        began_ns=began_ns,
        ended_ns=outage.ended_ns,
        reason=figures.close_reason,
        ack_offset=known(ack),
        lag_bytes_max=known(int(lag.values.max(initial=UNKNOWN))),
        age_ns_max=known(int(age.values.max(initial=UNKNOWN))),
        lag=lag,
        age=age,
    )


def _while_connected(one: ConnectionReplay, log_end: _LogEnd) -> tuple[TimeSeries, TimeSeries]:
    """Lag and age of a connection from its first ack to its last event."""
    figures = one.figures
    series = figures.series
    if not len(series["ack"].steps):
        return TimeSeries(), TimeSeries()
    last = int(log_end.grid.step_of(np.array([figures.last_ts_ns]))[0])
    steps = np.arange(int(series["ack"].steps[0]), last + 1)
    acks = series["ack"].rising_at(steps)
    lag = log_end.lag(steps, acks) + series["lag"]
    age = log_end.age(steps, acks, end_ns=figures.last_ts_ns)
    return lag, age + ages_before_acks(series["ack"], log_end.series, log_end.grid.step_ns) + series[
        "latency"
    ]


@frozen(eq=False)
class _LogEnd:
    """End of a master's log over time."""

    grid: TimeGrid
    series: TimeSeries

    def steps(self, begin_ns: int, end_ns: int) -> Ints:
        """The steps that a time touches."""
        first, last = self.grid.step_of(np.array([begin_ns, end_ns])).tolist()
        return np.arange(first, last + 1)

    def lag(self, steps: Ints, acks: Ints) -> TimeSeries:
        """Bytes without an ack at the end of each step."""
        return TimeSeries.of(steps, lag_bytes(self.series.rising_at(steps), acks))

    def age(self, steps: Ints, acks: Ints, *, end_ns: int) -> TimeSeries:
        """Age of the oldest byte without an ack at the end of each step, the last of which is at `end_ns`."""
        ends_ns = np.minimum(self.grid.origin_ns + (steps + 1) * self.grid.step_ns, end_ns)
        ages = ages_at(acks, self.series, self.grid.origin_ns, self.grid.step_ns, ends_ns)
        return TimeSeries.of(steps, np.where(acks < 0, UNKNOWN, np.maximum(ages, 0)))


def ages_before_acks(ack: TimeSeries, own: TimeSeries, step_ns: int) -> TimeSeries:
    """Age in ns of the oldest byte without an ack just before each ack; `own` is the log's end."""
    acks = rising(ack.values)
    rose = np.flatnonzero(np.diff(acks) > 0) + 1
    stored = first_beyond(own.values, acks[rose - 1])
    is_known = stored < len(own.values)
    rose, stored = rose[is_known], stored[is_known]
    return TimeSeries(ack.steps[rose], np.maximum(ack.steps[rose] - own.steps[stored] - 1, 0) * step_ns)


def ages_at(acks: Ints, own: TimeSeries, origin_ns: int, step_ns: int, at_ns: Ints) -> Ints:
    """Age in ns of the byte at each ack at `at_ns`; 0 if it is not stored. `origin_ns`: start of step 0."""
    stored = first_beyond(own.values, acks)
    stored_ns = origin_ns + (np.append(own.steps, 0)[stored] + 1) * step_ns
    ages: Ints = np.where((acks < 0) | (stored == len(own.values)), 0, at_ns - stored_ns)
    return ages
