"""Percentiles of measured values: ack latencies, frame sizes, lag, waiting times.

The rule is nearest rank: a percentile is a value that was measured, never a mean of two.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Generic, TypeVar

from attrs import frozen

Number = TypeVar("Number", int, float)


@frozen
class Distribution(Generic[Number]):
    """Percentiles of measured values, in the unit of the field that holds it."""

    p50: Number
    p99: Number
    largest: Number
    count: int
    """How many values were measured; of weighted ones the total weight."""

    def divided_by(self, divisor: float) -> Distribution[float]:
        """The same distribution in a unit that is `divisor` times as large."""
        return Distribution(self.p50 / divisor, self.p99 / divisor, self.largest / divisor, self.count)


def distribution_of(values: Collection[float], *, per_unit: float = 1.0) -> Distribution[int] | None:
    """The distribution of `values`, each multiplied by `per_unit` and rounded; None for no values."""
    if not values:
        return None
    ordered = sorted(values)
    p50, p99, largest = (round(nearest_rank(ordered, part) * per_unit) for part in (0.5, 0.99, 1.0))
    return Distribution(p50, p99, largest, len(ordered))


def nearest_rank(ordered: Sequence[Number], part: float) -> Number:
    """The smallest of the ascending values, at least one, that `part` (0 to 1) of them do not exceed."""
    return ordered[max(0, math.ceil(part * len(ordered)) - 1)]
