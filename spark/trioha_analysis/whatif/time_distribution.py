"""Distribution of measured times as a table of quantiles, to sample from."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, repeat
from typing import Final

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_PROBABILITIES: Final = np.concatenate(
    [np.linspace(0, 0.95, 39), 1 - 0.05 * np.logspace(-0.1, -3, 40), [1.0]]
)
"""Probabilities of the quantiles: finer towards the tail, which determines p99."""
_BATCH: Final = 4096
"""Samples drawn at once."""
ENOUGH: Final = 30
"""Fewest measurements that a figure is derived from."""


@frozen
class TimeDistribution:
    """Times in s, never negative, as a table of quantiles."""

    quantiles: tuple[float, ...]
    """At `_PROBABILITIES`; a single one is a constant time."""

    @classmethod
    def of(cls, times_s: Floats) -> TimeDistribution:
        """The distribution of measured times; negative ones count as 0, and so does an empty array."""
        if not len(times_s):
            return cls((0.0,))
        return cls(tuple(np.quantile(np.maximum(times_s, 0.0), _PROBABILITIES).tolist()))

    @property
    def median_s(self) -> float:
        """In s."""
        return float(self.at(np.array([0.5]))[0])

    def scaled(self, factor: float) -> TimeDistribution:
        """All times multiplied by `factor`."""
        return TimeDistribution(tuple(value * factor for value in self.quantiles))

    def shifted(self, time_s: float) -> TimeDistribution:
        """All times longer by `time_s`, which may be negative."""
        return TimeDistribution(tuple(max(0.0, value + time_s) for value in self.quantiles))

    def stretched(self, factor: float) -> TimeDistribution:
        """Times above the median moved to `factor` times their distance from it."""
        median_s = self.median_s
        return TimeDistribution(
            tuple(
                median_s + (value - median_s) * factor if value > median_s else value
                for value in self.quantiles
            )
        )

    def at(self, probabilities: Floats) -> Floats:
        """The quantiles at these probabilities, 0 to 1."""
        if len(self.quantiles) == 1:
            return np.full(len(probabilities), self.quantiles[0])
        found: Floats = np.interp(probabilities, _PROBABILITIES, self.quantiles)
        return found

    def sample(self, random: np.random.Generator, count: int) -> list[float]:
        """`count` independent times."""
        drawn: list[float] = self.at(random.random(count)).tolist()
        return drawn

    def samples(self, random: np.random.Generator) -> Iterator[float]:
        """Independent times without end."""
        return chain.from_iterable(self.sample(random, _BATCH) for _ in repeat(None))


ZERO_TIME: Final = TimeDistribution((0.0,))


def slope(x: Floats, times_s: Floats, *, probability: float) -> float:
    """Rise in s per unit of x, never negative, from the smaller to the larger half of `x`.

    Compares the halves' medians of `x` and quantiles of `times_s`; 0 for too few measurements.
    """
    small = x <= np.median(x)
    if min(np.count_nonzero(small), np.count_nonzero(~small)) < ENOUGH:
        return 0.0
    run = float(np.median(x[~small]) - np.median(x[small]))
    rise = float(np.quantile(times_s[~small], probability) - np.quantile(times_s[small], probability))
    return max(0.0, rise / run) if run >= 1 else 0.0
