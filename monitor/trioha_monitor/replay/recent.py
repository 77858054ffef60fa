"""What a master's session says of the last seconds before a moment: latencies, frames, worst lag."""

from __future__ import annotations

from typing import Final

import numpy as np

from trioha.distribution import Distribution
from trioha.recording.aggregate import aggregate
from trioha.recording.events import Kind
from trioha.recording.histogram import Histogram
from trioha.recording.lags import lags
from trioha.recording.time_series import TimeGrid
from trioha_monitor.replay.moments import Moment
from trioha_monitor.replay.replay_timeline import NS_PER_MS, NS_PER_S, SessionRun
from trioha_monitor.replay.rows import Row

LATELY_NS: Final = 10 * NS_PER_S
"""Latencies and frame sizes are those of this time."""
LATELY_STEP_NS: Final = NS_PER_S // 2
"""They change once in this time."""
LATELY_RECORDS_MAX: Final = 8192
"""And of so many records at most."""

Distributions = tuple[Distribution[float] | None, Distribution[float] | None]
"""Of ack latencies in ms, and of frame sizes in bytes."""


class Recent:
    """Keeps what was read last: the rows of one moment ask one after the other."""

    def __init__(self) -> None:
        self._distributions_key: dict[int, tuple[int, int]] = {}
        self._distributions: dict[int, dict[int, Distributions]] = {}
        """Of each take at `_distributions_key`."""
        self._worst_of: tuple[Moment, int] | None = None
        self._worst: dict[int, int] = {}

    def distributions(self, moment: Moment, conn: int) -> Distributions:
        """Ack latency in ms and frame sizes of a connection, in `LATELY_NS` before the last half second."""
        run = moment.run
        if run.is_sampled:
            return None, None
        key = (run.number, moment.at_ns - moment.at_ns % LATELY_STEP_NS)
        if self._distributions_key.get(run.number) != key:
            self._distributions_key[run.number] = key
            self._distributions[run.number] = _distributions_at(run, key[1])
        return self._distributions[run.number].get(conn, (None, None))

    def worst_lag(self, moment: Moment, row: Row, *, bucket_ms: int) -> int | None:
        """Worst lag of a row in the bucket of its history that holds the moment, up to the moment."""
        if self._worst_of != (moment, bucket_ms):
            self._worst_of, self._worst = (moment, bucket_ms), _worst_lags(moment, bucket_ms)
        worst = self._worst.get(row.conn, -1)
        if row.ended is None:
            ack = moment.connections[row.conn].ack_offset
            worst = max(worst, (moment.own_max or 0) - ack if ack >= 0 else -1)
        return worst if worst >= 0 else None


def _distributions_at(run: SessionRun, at_ns: int) -> dict[int, Distributions]:
    last = run.position_at(at_ns)
    first = max(run.position_at(at_ns - LATELY_NS), last - LATELY_RECORDS_MAX)
    records = run.reader.records_between(first, last)
    if not len(records):
        return {}
    grid = TimeGrid.over(int(records["ts_ns"][0]), int(records["ts_ns"].max()), steps=1)
    sent = records["kind"] == Kind.TRANSFER
    distributions = {}
    for conn, part in aggregate(records, is_slave=False, grid=grid).connections.items():
        sizes = records["size"][sent & (records["conn"] == conn)].astype(np.int64)
        latency = part.finished(grid).latency
        distributions[conn] = (
            _distribution(latency, per=1e6),
            _distribution(Histogram.of(np.maximum(sizes, 0))),
        )
    return distributions


def _worst_lags(moment: Moment, bucket_ms: int) -> dict[int, int]:
    """By connection, from the begin of the bucket that holds the moment."""
    run = moment.run
    bucket_ns = bucket_ms * NS_PER_MS
    begin_ns = moment.at_ns - moment.at_ns % bucket_ns
    first = max(run.position_at(begin_ns - 1), moment.position - LATELY_RECORDS_MAX)
    records = run.reader.records_between(first, moment.position)
    found = lags(records, run.reader.snapshot_at(first), is_sampled=run.is_sampled)
    worst: dict[int, int] = {}
    for conn, lag in zip(found.conn.tolist(), found.worst.tolist(), strict=True):
        worst[conn] = max(worst.get(conn, -1), lag)
    return worst


def _distribution(histogram: Histogram, *, per: float = 1.0) -> Distribution[float] | None:
    p50, p99 = histogram.percentile(50), histogram.percentile(99)
    if p50 is None or p99 is None:
        return None
    return Distribution(p50 / per, p99 / per, histogram.max_value / per, histogram.total)
