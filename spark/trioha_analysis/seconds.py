"""Per-second table of connections: lag, latency, offsets, rates and states, from the time series of a replay.

A connection has a row for each second of the wall clock with an event (a heartbeat is enough). In sessions
longer than a day rows are as far apart as the steps of the time series.

Lag in seconds is the age of the oldest byte without an ack, the worst in the second. While a slave keeps up
it is the worst ack latency, which is exact. For bytes that are owed longer, the time series give the step in
which they were stored: the age counts from the end of that step, so it is never overstated.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from trioha.recording.events import HaState, Kind, code_name
from trioha.recording.state_arrays import Ints, first_beyond, rising
from trioha.recording.time_series import TimeSeries
from trioha_analysis.parts import EVENTS_MAX
from trioha_analysis.replay_result import ConnectionReplay, ReplayResult, SessionReplay

SECOND_NS: Final = 10**9
NEVER_NS: Final = np.iinfo(np.int64).max

SECONDS_SCHEMA: Final = pa.schema(
    [
        ("session", pa.string()),
        ("brokerName", pa.string()),
        ("brokerId", pa.int64()),
        ("conn", pa.int64()),
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
"""`atMs`: start of the second, since 1970. `state`: at its end. `lagBytes`, `lagSeconds`, `ackLatencyMs`: the
worst in it. `bytesPerSecond`: log bytes sent (by a master) or received (by a slave). Offsets: at its end.
Unknown values, and those of the other role, are null."""

_OF_OFFSETS: Final = ("max", "sent", "ack", "received", "reported")


def seconds_table(result: ReplayResult) -> pa.Table:
    """The rows of all connections (`SECONDS_SCHEMA`), by session, connection and time."""
    tables = [
        _of_connection(replay, connection) for replay in result.sessions for connection in replay.connections
    ]
    return pa.concat_tables([SECONDS_SCHEMA.empty_table(), *tables])


def _of_connection(replay: SessionReplay, connection: ConnectionReplay) -> pa.Table:
    grid, series = replay.grid, connection.figures.series
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
    steps, ages_ns = _ages_before_acks(series["ack"], series["max"], grid.step_ns)
    age_ns = np.maximum(
        _ages_at(columns["ack"], series["max"], begin_ns, grid.step_ns, _ends(replay, connection, seconds)),
        np.maximum(_at(seconds, *_worst(second_of(steps), ages_ns), carried=False), latency_ns),
    )
    lag_seconds = np.where(lag_bytes < 0, np.nan, np.maximum(age_ns, 0) / SECOND_NS)
    moved = columns["received" if replay.session.is_slave else "sent"]
    rows = len(seconds)
    return pa.table(
        {
            "session": [replay.name] * rows,
            "brokerName": [replay.session.identity.broker_name] * rows,
            "brokerId": [replay.session.identity.broker_id] * rows,
            "conn": np.full(rows, connection.figures.conn),
            "atMs": seconds * (length_ns // 10**6),
            "state": _states(replay, connection, _ends(replay, connection, seconds)),
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


def _ends(replay: SessionReplay, connection: ConnectionReplay, seconds: Ints) -> Ints:
    """Wall clock at the end of each second, or at the connection's last event if that is before, in ns."""
    length_ns = max(SECOND_NS, replay.grid.step_ns)
    last_ns = replay.session.wall_of(connection.figures.last_ts_ns)
    ends: Ints = np.minimum((seconds + 1) * length_ns, last_ns)
    return ends


def _ages_before_acks(ack: TimeSeries, own: TimeSeries, step_ns: int) -> tuple[Ints, Ints]:
    """Age of the oldest byte without an ack just before each ack: the ack's step and the age in ns."""
    acks = rising(ack.values)
    rose = np.flatnonzero(np.diff(acks) > 0) + 1
    stored = first_beyond(own.values, acks[rose - 1])
    known = stored < len(own.values)
    rose, stored = rose[known], stored[known]
    return ack.steps[rose], np.maximum(ack.steps[rose] - own.steps[stored] - 1, 0) * step_ns


def _ages_at(ack_offset: Ints, own: TimeSeries, begin_ns: int, step_ns: int, ends_ns: Ints) -> Ints:
    """Age in ns of the byte at each of `ack_offset` at `ends_ns` (wall clock)."""
    stored = first_beyond(own.values, ack_offset)
    stored_ns = begin_ns + (np.append(own.steps, 0)[stored] + 1) * step_ns
    ages: Ints = np.where((ack_offset < 0) | (stored == len(own.values)), 0, ends_ns - stored_ns)
    return ages


def _states(replay: SessionReplay, connection: ConnectionReplay, ends_ns: Ints) -> pa.Array:
    """State at each of `ends_ns`; null after the last kept event, if not all events are kept."""
    events = replay.events
    wall_of = replay.session.wall_of
    known_to_ns = wall_of(int(events["ts_ns"][-1])) if len(events) >= EVENTS_MAX else NEVER_NS
    own = events[(events["conn"] == connection.figures.conn) & (events["kind"] == Kind.STATE)]
    names = [code_name(HaState, flags) for flags in own["flags"].tolist()]
    place = np.searchsorted(wall_of(own["ts_ns"].astype(np.int64)), ends_ns, side="right")
    place[ends_ns > known_to_ns] = 0
    return pa.array([names[at - 1] if at else None for at in place.tolist()], pa.string())
