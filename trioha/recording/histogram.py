"""Distributions that add up: percentiles of any number of values from parts that were counted apart.

A value v >= 0 falls into a bucket of its own below 2048, and above that into one of 1024 buckets for each
power of two: percentiles are exact for small values, and at most 0.1 % above the true one for others. The
largest value is kept exactly. Weights are integers, so that merging in any order gives the same.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from attrs import field, frozen
from numpy.typing import NDArray

Ints = NDArray[np.int64]

_BITS: Final = 10
_EXACT_BELOW: Final = 1 << (_BITS + 1)


def _none() -> Ints:
    return np.zeros(0, np.int64)


@frozen(eq=False)
class Histogram:
    """Weights of the buckets that have any."""

    buckets: Ints = field(factory=_none)
    """Bucket numbers, ascending; shape (n,)."""
    weights: Ints = field(factory=_none)
    """Weight of each; shape (n,)."""
    max_value: int = -1
    """Largest value that was counted, whatever its weight; -1 without any."""

    @classmethod
    def of(cls, values: Ints, weights: Ints | None = None) -> Histogram:
        """Count `values`, each once or with its weight; both of shape (n,), none negative."""
        if not len(values):
            return cls()
        return cls._added(_bucket_of(values), weights, int(values.max()))

    def __add__(self, other: Histogram) -> Histogram:
        return self._added(
            np.concatenate((self.buckets, other.buckets)),
            np.concatenate((self.weights, other.weights)),
            max(self.max_value, other.max_value),
        )

    @classmethod
    def _added(cls, buckets: Ints, weights: Ints | None, max_value: int) -> Histogram:
        if weights is None:
            unique, counts = np.unique(buckets, return_counts=True)
            return cls(unique, counts.astype(np.int64), max_value)
        unique, places = np.unique(buckets, return_inverse=True)
        sums = np.zeros(len(unique), np.int64)
        np.add.at(sums, places, weights)
        return cls(unique, sums, max_value)

    @property
    def total(self) -> int:
        """Sum of all weights."""
        return int(self.weights.sum())

    def percentile(self, percent: float) -> int | None:
        """The smallest value that at least `percent` (above 0, at most 100) of the weight is at or below.

        None without any weight.
        """
        sums = np.cumsum(self.weights)
        if not len(sums) or sums[-1] == 0:
            return None
        place = int(np.searchsorted(sums, sums[-1] * (percent / 100)))
        return min(int(_upper(self.buckets[place : place + 1])[0]), self.max_value)

    def uppers(self) -> Ints:
        """Largest value of each bucket that has weight; shape (n,)."""
        return np.minimum(_upper(self.buckets), self.max_value)


def _bucket_of(values: Ints) -> Ints:
    exponent = np.frexp(values.astype(np.float64))[1].astype(np.int64)
    shift = np.maximum(exponent - (_BITS + 1), 0)
    # A float64 rounds a value just below a power of two up to it.
    shift -= (shift > 0) & (values >> shift < 1 << _BITS)
    buckets: Ints = (shift << _BITS) + (values >> shift)
    return buckets


def _upper(buckets: Ints) -> Ints:
    shift = np.maximum((buckets >> _BITS) - 1, 0)
    mantissa = buckets - (shift << _BITS)
    upper: Ints = ((mantissa + 1) << shift) - 1
    return upper
