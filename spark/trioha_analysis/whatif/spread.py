"""How long something takes, as it was measured: a table of quantiles to draw from."""

from __future__ import annotations

from typing import Final

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_PARTS: Final = np.concatenate([np.linspace(0, 0.95, 39), 1 - 0.05 * np.logspace(-0.1, -3, 40), [1.0]])
"""Parts at which a spread is kept: finer towards the tail, which makes p99."""


@frozen
class Spread:
    """Times in s, never negative, as a table of quantiles."""

    quantiles: tuple[float, ...]
    """At `_PARTS`; a single one is a time that never varies."""

    @classmethod
    def of(cls, times_s: Floats) -> Spread:
        """The spread of measured times; those below 0 count as 0, none at all as 0."""
        if not len(times_s):
            return cls((0.0,))
        return cls(tuple(np.quantile(np.maximum(times_s, 0.0), _PARTS).tolist()))

    @property
    def median_s(self) -> float:
        """The time that half of them do not exceed."""
        if len(self.quantiles) == 1:
            return self.quantiles[0]
        return float(np.interp(0.5, _PARTS, self.quantiles))

    def scaled(self, factor: float) -> Spread:
        """The same spread, `factor` times as long."""
        return Spread(tuple(value * factor for value in self.quantiles))

    def longer(self, time_s: float) -> Spread:
        """The same spread, longer by `time_s`, which may be below 0."""
        return Spread(tuple(max(0.0, value + time_s) for value in self.quantiles))

    def stretched(self, factor: float) -> Spread:
        """The same median and below; what is above it is `factor` times as far from it."""
        median_s = self.median_s
        return Spread(
            tuple(
                median_s + (value - median_s) * factor if value > median_s else value
                for value in self.quantiles
            )
        )

    def at(self, parts: Floats) -> Floats:
        """The times at these parts, 0 to 1, of the spread."""
        if len(self.quantiles) == 1:
            return np.full(len(parts), self.quantiles[0])
        found: Floats = np.interp(parts, _PARTS, self.quantiles)
        return found

    def draw(self, random: np.random.Generator, count: int) -> list[float]:
        """`count` times, drawn independently."""
        drawn: list[float] = self.at(random.random(count)).tolist()
        return drawn


NOTHING: Final = Spread((0.0,))
