"""A histogram of measured values: how many are at most each bound, since the start.

Adding a value costs a bisection and two additions, so that it may stand beside a sync or a request. For
percentiles of a short window see `trioha.distribution`.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate


class Histogram:
    """Counts values by ascending upper bounds, in the unit of the values."""

    def __init__(self, bounds: Sequence[float]) -> None:
        """`bounds` are finite; everything above the last one is counted together."""
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self.total = 0.0
        """Sum of all values."""

    def add(self, value: float) -> None:
        """Count one value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self.total += value

    def cumulative(self) -> list[tuple[float, int]]:
        """For each bound how many values were at most that; the last bound is infinity."""
        return list(zip((*self._bounds, math.inf), accumulate(self._counts), strict=True))
