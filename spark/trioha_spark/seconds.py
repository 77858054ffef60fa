"""Connections second by second: lag, offsets and rates, from the curves of a replay.

A connection has a row for each second of the wall clock in which something happened on it (a heartbeat is
enough). Of a session longer than a day the rows are farther apart: as its curves' steps are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from trioha.recording.curves import Curve
from trioha_spark.replay import ConnectionReplay, ReplayResult, SessionReplay

Ints = NDArray[np.int64]

SECOND_NS: Final = 10**9

SECONDS_SCHEMA: Final = pa.schema(
    [
        ("session", pa.string()),
        ("brokerName", pa.string()),
        ("brokerId", pa.int64()),
        ("conn", pa.int64()),
        ("atMs", pa.int64()),
        ("lagBytes", pa.int64()),
        ("lagSeconds", pa.float64()),
        ("bytesPerSecond", pa.float64()),
        ("maxOffset", pa.int64()),
        ("sentOffset", pa.int64()),
        ("ackOffset", pa.int64()),
        ("receivedOffset", pa.int64()),
        ("reportedOffset", pa.int64()),
    ]
)
"""`atMs`: begin of the second, since 1970. `lagBytes`: the worst in it. `lagSeconds`: at its end, the age of
the oldest byte without an ack, to the precision of a curve's step. `bytesPerSecond`: log bytes sent (of a
master) or received (of a slave). Offsets: at its end; null where there is none yet, or never in this role."""


def seconds_table(result: ReplayResult) -> pa.Table:
    """The rows of all connections (`SECONDS_SCHEMA`), by session, connection and time."""
    tables = [
        _of_connection(replay, connection) for replay in result.sessions for connection in replay.connections
    ]
    return pa.concat_tables([SECONDS_SCHEMA.empty_table(), *tables])


def _of_connection(replay: SessionReplay, connection: ConnectionReplay) -> pa.Table:
    grid, curves = replay.grid, connection.figures.curves
    length_ns = max(SECOND_NS, grid.step_ns)
    begin_ns = replay.session.wall_of(grid.origin_ns)

    def second_of(steps: Ints) -> Ints:
        return (begin_ns + steps * grid.step_ns) // length_ns

    seconds = np.unique(np.concatenate([second_of(curve.steps) for curve in curves.values()]))
    lag_bytes = _at(seconds, *_worst(second_of(curves["lag"].steps), curves["lag"].values), carried=False)
    columns = {
        name: _at(seconds, *_worst(second_of(curve.steps), np.maximum.accumulate(curve.values)), carried=True)
        for name, curve in curves.items()
        if name != "lag"
    }
    moved = columns["received" if replay.session.is_slave else "sent"]
    rows = len(seconds)
    return pa.table(
        {
            "session": [replay.name] * rows,
            "brokerName": [replay.session.identity.broker_name] * rows,
            "brokerId": [replay.session.identity.broker_id] * rows,
            "conn": np.full(rows, connection.figures.conn),
            "atMs": seconds * (length_ns // 10**6),
            "lagBytes": _nullable(lag_bytes),
            "lagSeconds": pa.array(
                list(_lag_seconds(replay, connection, (seconds + 1) * length_ns, columns))
            ),
            "bytesPerSecond": _rates(moved, connection, seconds, length_ns),
            **{f"{name}Offset": _nullable(values) for name, values in columns.items()},
        },
        schema=SECONDS_SCHEMA,
    )


def _worst(seconds: Ints, values: Ints) -> tuple[Ints, Ints]:
    curve = Curve.of(seconds, values)
    return curve.steps, curve.values


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
    """Bytes a second since the row before; of the first row since the request."""
    if not len(moved) or moved.max() < 0:
        return pa.nulls(len(moved), pa.float64())
    figures = connection.figures
    origin = figures.request_offset or (moved[moved >= 0][0] - min(figures.body_bytes, int(moved.max())))
    before = np.concatenate(
        ([max(0, int(origin))], np.where(moved[:-1] < 0, max(0, int(origin)), moved[:-1]))
    )
    passed = np.diff(seconds, prepend=seconds[0] - 1) * length_ns / SECOND_NS
    return pa.array(np.where(moved < 0, 0, np.maximum(moved - before, 0)) / passed)


def _lag_seconds(
    replay: SessionReplay, connection: ConnectionReplay, ends_ns: Ints, columns: dict[str, Ints]
) -> Iterator[float | None]:
    grid, session, figures = replay.grid, replay.session, connection.figures
    ack, reached = columns["ack"], columns["max"]
    curve = figures.curves["max"]
    maxima = np.maximum.accumulate(curve.values)
    last_ns = session.wall_of(figures.last_ts_ns)
    for end_ns, ack_offset, max_offset in zip(
        np.minimum(ends_ns, last_ns).tolist(), ack.tolist(), reached.tolist(), strict=True
    ):
        if ack_offset < 0:
            yield None
        elif max_offset <= ack_offset:
            yield 0.0
        else:
            step = int(curve.steps[np.searchsorted(maxima, ack_offset, side="right")])
            since_ns = session.wall_of(grid.origin_ns + step * grid.step_ns)
            yield max(0, end_ns - since_ns) / SECOND_NS
