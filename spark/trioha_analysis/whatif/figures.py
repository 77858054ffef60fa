"""Figures of puts, recorded or predicted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from attrs import frozen

from trioha.distribution import nearest_rank
from trioha.recording.events import PutStatus, code_name
from trioha_analysis.whatif.play import Outcome
from trioha_analysis.whatif.recorded import NO_STATUS, Floats, Runs, slaves_of

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
    status, end_s, append_s, lag_bytes, lag_s = (
        np.concatenate([getattr(one, name) for one in outcomes])
        for name in ("status", "end_s", "append_s", "lag_bytes", "lag_s")
    )
    codes, counts = np.unique(status[status != NO_STATUS].astype(np.int64), return_counts=True)
    stored = status != PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH

    def percentiles(values: Floats) -> dict[str, float] | None:
        ordered = np.sort(values[stored & ~np.isnan(values)]).tolist()
        if not ordered:
            return None
        return {name: nearest_rank(ordered, part) for name, part in PERCENTILES.items()}

    return Figures(
        puts=len(status),
        seconds=sum(float(np.ptp(one.append_s)) for one in outcomes),
        statuses={
            code_name(PutStatus, code): count
            for code, count in zip(codes.tolist(), counts.tolist(), strict=True)
        },
        latency_ms=percentiles((end_s - append_s) * 1e3),
        lag_bytes=percentiles(lag_bytes),
        lag_seconds=percentiles(lag_s),
    )


def outcome_of(runs: Runs) -> Outcome:
    """The outcome of recorded puts, as `puts_of` has them."""
    lag_bytes = lag_s = np.full(len(runs.append_s), np.nan)
    for acked_s in runs.acked_s.T:
        known = ~np.isnan(acked_s)
        acked = np.searchsorted(acked_s[known], runs.append_s, side="right")
        offsets = np.append(np.nan, runs.end_offset[known])
        lag_bytes = np.fmax(lag_bytes, np.where(known, runs.end_offset - offsets[acked], np.nan))
        lag_s = np.fmax(lag_s, acked_s - runs.append_s)
    # Without an ack of every slave the worst one is not known.
    whole = np.count_nonzero(~np.isnan(runs.acked_s), axis=1) >= max(1, slaves_of(runs))
    return Outcome(
        append_s=runs.append_s,
        end_s=runs.end_s,
        status=runs.status.astype(np.float64),
        lag_bytes=np.where(whole, lag_bytes, np.nan),
        lag_s=np.where(whole, lag_s, np.nan),
    )
