"""Figures of puts, recorded or simulated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from trioha.distribution import nearest_rank
from trioha.recording.events import PutStatus, code_name
from trioha.recording.state_arrays import covered_at
from trioha_analysis.whatif.simulation import Outcome
from trioha_analysis.whatif.trace import NO_END, Trace

Floats = NDArray[np.float64]

PERCENTILES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}


@frozen
class Figures:
    """Throughput, status, latency and lag of puts."""

    puts: int
    seconds: float
    """From the first put to the last."""
    statuses: dict[str, int]
    """Number of puts by status, without those whose end is unknown."""
    latency_ms: dict[str, float] | None
    """From a put's append to the end of its wait, by percentile; None if no put waited."""
    lag_bytes: dict[str, float] | None
    """Lag of the worst slave right after each put, by percentile; None without slaves."""
    lag_seconds: dict[str, float] | None
    """From each put to its ack by the worst slave, by percentile."""

    @property
    def puts_per_s(self) -> float:
        """0 if all puts came at one time."""
        return self.puts / self.seconds if self.seconds > 0 else 0.0

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "puts": self.puts,
            "seconds": self.seconds,
            "putsPerSecond": self.puts_per_s,
            "statuses": self.statuses,
            "latencyMs": self.latency_ms,
            "lagBytes": self.lag_bytes,
            "lagSeconds": self.lag_seconds,
        }


def figures(outcomes: Sequence[Outcome]) -> Figures:
    """The figures of all `outcomes` together."""
    status = np.concatenate([np.zeros(0, np.int64), *(one.status for one in outcomes)])
    codes, counts = np.unique(status[status != NO_END], return_counts=True)
    waited = np.concatenate([np.zeros(0), *(_waited(one) for one in outcomes)])
    lags = [_lags(one) for one in outcomes]
    return Figures(
        puts=sum(len(one.put_s) for one in outcomes),
        seconds=sum(float(np.ptp(one.put_s)) for one in outcomes if len(one.put_s)),
        statuses={
            code_name(PutStatus, code): count
            for code, count in zip(codes.tolist(), counts.tolist(), strict=True)
        },
        latency_ms=percentiles(waited * 1e3),
        lag_bytes=percentiles(np.concatenate([np.zeros(0), *(lag[0] for lag in lags)])),
        lag_seconds=percentiles(np.concatenate([np.zeros(0), *(lag[1] for lag in lags)])),
    )


def percentiles(values: Floats) -> dict[str, float] | None:
    """`PERCENTILES` by nearest rank; None without values."""
    if not len(values):
        return None
    ordered: list[float] = np.sort(values).tolist()
    return {name: nearest_rank(ordered, part) for name, part in PERCENTILES.items()}


def outcome_of(trace: Trace) -> Outcome:
    """The outcome of the recorded puts."""
    start_ns = int(trace.put_ts_ns[0])
    known = trace.end_ts_ns != NO_END
    waited_s = np.where(known, (trace.end_ts_ns - trace.put_ts_ns) / 1e9, np.nan)
    # A put without a wait was answered at once.
    never = (trace.begin_ts_ns == NO_END) & ~known
    return Outcome(
        put_s=(trace.put_ts_ns - start_ns) / 1e9,
        end_offset=trace.put_end_offset,
        waited_s=np.where(never, 0.0, waited_s),
        status=np.where(never, int(PutStatus.PUT_OK), trace.status),
        ack_s=[(ts_ns - start_ns) / 1e9 for ts_ns in trace.ack_ts_ns],
        ack_offset=trace.ack_offset,
    )


def _waited(outcome: Outcome) -> Floats:
    """Of the stored puts whose end is known."""
    waited: Floats = outcome.waited_s[(outcome.end_offset > 0) & ~np.isnan(outcome.waited_s)]
    return waited


def _lags(outcome: Outcome) -> tuple[Floats, Floats]:
    """Bytes and seconds of lag of the worst slave at each put, for the puts where both are known."""
    none = np.zeros(0)
    stored = outcome.end_offset > 0
    put_s, end_offset = outcome.put_s[stored], outcome.end_offset[stored]
    worst_bytes = worst_s = None
    for ack_s, ack_offset in zip(outcome.ack_s, outcome.ack_offset, strict=True):
        if not len(ack_s):
            continue
        acked = covered_at(ack_s, ack_offset, end_offset, never=np.nan) - put_s
        last = np.searchsorted(ack_s, put_s, side="right") - 1
        # The lag before the first ack is unknown.
        lag = np.where(last >= 0, end_offset - ack_offset[np.maximum(last, 0)], np.nan)
        worst_s = acked if worst_s is None else np.fmax(worst_s, acked)
        worst_bytes = lag if worst_bytes is None else np.fmax(worst_bytes, lag)
    if worst_bytes is None or worst_s is None:
        return none, none
    return worst_bytes[~np.isnan(worst_bytes)].astype(np.float64), worst_s[~np.isnan(worst_s)]
