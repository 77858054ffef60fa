"""How measured values are distributed: what a status says of ack latencies and frame sizes."""

from __future__ import annotations

from collections.abc import Collection
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
    """How many values were measured."""

    def divided_by(self, divisor: float) -> Distribution[float]:
        """The same distribution in a unit that is `divisor` times as large."""
        return Distribution(self.p50 / divisor, self.p99 / divisor, self.largest / divisor, self.count)


def distribution_of(values: Collection[float], *, per_unit: float = 1.0) -> Distribution[int] | None:
    """The distribution of `values`, each multiplied by `per_unit` and rounded; None for no values.

    A percentile is the smallest value that at least so many percent of all do not exceed.
    """
    if not values:
        return None
    in_order = sorted(values)
    count = len(in_order)
    p50, p99 = (round(in_order[-(-count * percent // 100) - 1] * per_unit) for percent in (50, 99))
    return Distribution(p50, p99, round(in_order[-1] * per_unit), count)
