"""Per-second table of connections: lag, latency, offsets, rates and states, from the time series of a replay.

A connection has a row for each second of the wall clock with an event (a heartbeat is enough), and of a
master's session for each second of the outage after it (`trioha_analysis.replicas`): so the rows of a replica
have no hole. In sessions longer than a day rows are as far apart as the steps of the time series.

Lag in seconds is the age of the oldest byte without an ack, the worst in the second. While a slave keeps up
it is the worst ack latency, which is exact. For bytes that are owed longer, the time series give the step in
which they were stored: the age counts from the end of that step, so it is never overstated.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from trioha.recording.events import HaState, Kind, code_name
from trioha.recording.state import UNKNOWN
from trioha_analysis.parts import EVENTS_MAX
from trioha_analysis.replicas import ReplicaOutage, ReplicaReplay, ages_at, ages_before_acks
from trioha_analysis.session_replay import ConnectionReplay, SessionReplay
from trioha_sessions.state_arrays import Bools, Ints, rising
from trioha_sessions.time_series import TimeSeries

SECOND_NS: Final = 10**9
NEVER_NS: Final = np.iinfo(np.int64).max

SECONDS_SCHEMA: Final = pa.schema(
    [
        ("session", pa.string()),
        ("brokerName", pa.string()),
        ("brokerId", pa.int64()),
        ("conn", pa.int64()),
        ("replica", pa.string()),
        ("isConnected", pa.bool_()),
        ("atMs", pa.int64()),
        ("state", pa.string()),
        ("lagBytes", pa.int64()),
        ("lagSeconds", pa.float64()),
        ("ackLatencyMs", pa.float64()),
        ("bytesPerSecond", pa.float64()),
        ("maxOffset", pa.int64()),
        ("sentOffset", pa.int64()),
        ("ackOffset", pa.int64()),
        ("receivedOffset", pa.int64()),
        ("reportedOffset", pa.int64()),
    ]
)
"""`replica`: name of the replica, null in a slave's session. `isConnected`: whether the connection lasted to
the end of the second; after it `conn` is the last connection, null if the master's recording before had it,
and `state` is null. `atMs`: start of the
second, since 1970. `state`: at its end. `lagBytes`, `lagSeconds`, `ackLatencyMs`: the worst in it.
`bytesPerSecond`: log bytes sent (by a master) or received (by a slave). Offsets: at its end. Unknown values,
and those of the other role, are null."""

_OF_OFFSETS: Final = ("max", "sent", "ack", "received", "reported")


def seconds_table(replay: SessionReplay) -> pa.Table:
    """The rows of a session's connections (`SECONDS_SCHEMA`), by connection and time."""
    replicas = {conn: one for one in replay.replicas for conn in one.conns}
    tables = [
        _of_connection(replay, connection, replicas.get(connection.figures.conn))
        for connection in (*replay.before, *replay.connections)
    ]
    return pa.concat_tables([SECONDS_SCHEMA.empty_table(), *tables])


def _of_connection(
    replay: SessionReplay, connection: ConnectionReplay, replica: ReplicaReplay | None
) -> pa.Table:
    grid, series = replay.grid, connection.figures.series
    outage = _outage_after(connection, replica)
    if outage is not None:
        log_end = TimeSeries(outage.lag.steps, replay.log_end_series.rising_at(outage.lag.steps))
        ack = UNKNOWN if outage.ack_offset is None else outage.ack_offset
        last_ack = TimeSeries(outage.lag.steps[:1], np.full(min(1, len(outage.lag.steps)), ack))
        series = {
            **series,
            "lag": series["lag"] + outage.lag,
            "max": series["max"] + log_end,
            "ack": series["ack"] + last_ack,
        }
    last_ns = connection.figures.last_ts_ns if outage is None else outage.ended_ns
    length_ns = max(SECOND_NS, grid.step_ns)
    begin_ns = replay.session.wall_of(grid.origin_ns)

    def second_of(steps: Ints) -> Ints:
        return (begin_ns + steps * grid.step_ns) // length_ns

    seconds = np.unique(np.concatenate([second_of(series.steps) for series in series.values()]))
    lag_bytes, latency_ns = (
        _at(seconds, *_worst(second_of(series[name].steps), series[name].values), carried=False)
        for name in ("lag", "latency")
    )
    columns = {
        name: _at(
            seconds,
            *_worst(second_of(series[name].steps), rising(series[name].values)),
            carried=True,
        )
        for name in _OF_OFFSETS
    }
    ends_ns = np.minimum((seconds + 1) * length_ns, replay.session.wall_of(last_ns))
    ages = ages_before_acks(series["ack"], replay.log_end_series, grid.step_ns)
    age_ns = np.maximum(
        ages_at(columns["ack"], replay.log_end_series, begin_ns, grid.step_ns, ends_ns),
        np.maximum(_at(seconds, *_worst(second_of(ages.steps), ages.values), carried=False), latency_ns),
    )
    lag_seconds = np.where(lag_bytes < 0, np.nan, np.maximum(age_ns, 0) / SECOND_NS)
    moved = columns["received" if replay.session.is_slave else "sent"]
    rows = len(seconds)
    return pa.table(
        {
            "session": [replay.name] * rows,
            "brokerName": [replay.session.identity.broker_name] * rows,
            "brokerId": [replay.session.identity.broker_id] * rows,
            "conn": _nullable(np.full(rows, connection.figures.conn)),
            "replica": [None if replica is None else replica.name] * rows,
            "isConnected": _is_connected(replay, connection, (seconds + 1) * length_ns),
            "atMs": seconds * (length_ns // 10**6),
            "state": _states(replay, connection, seconds, length_ns),
            "lagBytes": _nullable(lag_bytes),
            "lagSeconds": pa.array(lag_seconds, from_pandas=True),
            "ackLatencyMs": pa.array(latency_ns / 1e6, mask=latency_ns < 0),
            "bytesPerSecond": _rates(moved, connection, seconds, length_ns),
            **{f"{name}Offset": _nullable(values) for name, values in columns.items()},
        },
        schema=SECONDS_SCHEMA,
    )


def _worst(seconds: Ints, values: Ints) -> tuple[Ints, Ints]:
    series = TimeSeries.of(seconds, values)
    return series.steps, series.values


def _at(seconds: Ints, known: Ints, values: Ints, *, carried: bool) -> Ints:
    """The value at each second, -1 without one; `carried`: the last one before it."""
    if not len(known):
        return np.full(len(seconds), -1, np.int64)
    place = np.searchsorted(known, seconds, side="right") - 1
    is_there = place >= 0
    if not carried:
        is_there &= known[place] == seconds
    found: Ints = np.where(is_there, values[place], -1)
    return found


def _nullable(values: Ints) -> pa.Array:
    return pa.array(values, mask=values < 0)


def _rates(moved: Ints, connection: ConnectionReplay, seconds: Ints, length_ns: int) -> pa.Array:
    """Bytes per second since the row before; for the first row since the request."""
    if not len(moved) or moved.max() < 0:
        return pa.nulls(len(moved), pa.float64())
    figures = connection.figures
    origin = figures.request_offset or (moved[moved >= 0][0] - min(figures.body_bytes, int(moved.max())))
    before = np.concatenate(
        ([max(0, int(origin))], np.where(moved[:-1] < 0, max(0, int(origin)), moved[:-1]))
    )
    passed = np.diff(seconds, prepend=seconds[0] - 1) * length_ns / SECOND_NS
    return pa.array(np.where(moved < 0, 0, np.maximum(moved - before, 0)) / passed)


def _outage_after(connection: ConnectionReplay, replica: ReplicaReplay | None) -> ReplicaOutage | None:
    outages = () if replica is None else replica.outages
    return next((one for one in outages if one.conn == connection.figures.conn), None)


def _is_connected(replay: SessionReplay, connection: ConnectionReplay, ends_ns: Ints) -> Bools:
    closed_ns = connection.figures.closed_ts_ns
    is_open: Bools = np.full(len(ends_ns), True)
    return is_open if closed_ns is None else ends_ns <= replay.session.wall_of(closed_ns)


def _states(replay: SessionReplay, connection: ConnectionReplay, seconds: Ints, length_ns: int) -> pa.Array:
    """State at the end of each second; null after the connection's last event, and after the last kept event
    if not all events are kept."""
    events = replay.events
    wall_of = replay.session.wall_of
    last_ns = wall_of(connection.figures.last_ts_ns)
    known_to_ns = wall_of(int(events["ts_ns"][-1])) if len(events) >= EVENTS_MAX else NEVER_NS
    own = events[(events["conn"] == connection.figures.conn) & (events["kind"] == Kind.STATE)]
    names = [code_name(HaState, flags) for flags in own["flags"].tolist()]
    ends_ns = np.minimum((seconds + 1) * length_ns, last_ns)
    place = np.searchsorted(wall_of(own["ts_ns"].astype(np.int64)), ends_ns, side="right")
    place[(ends_ns > known_to_ns) | (seconds > last_ns // length_ns)] = 0
    return pa.array([names[at - 1] if at else None for at in place.tolist()], pa.string())
