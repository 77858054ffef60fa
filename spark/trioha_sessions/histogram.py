"""Histograms that add up: percentiles of any number of values, counted in parts.

Each value below 2048 has a bucket of its own; above that there are 1024 buckets for each power of two.
Percentiles are exact for small values, and at most 0.1 % above the true one for others. The
largest value is kept exactly. Weights are integers, so that merging in any order gives the same.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from attrs import field, frozen
from numpy.typing import NDArray

from trioha.distribution import Distribution

Ints = NDArray[np.int64]

_BITS: Final = 10
_EXACT_BELOW: Final = 1 << (_BITS + 1)
_MANTISSA_BITS: Final = 52
_FLOAT_EXACT_BELOW: Final = 1 << (_MANTISSA_BITS + 1)
_BUCKET_OF_FLOAT: Final = (1023 + _BITS - 1) << _BITS
"""Difference between the upper bits of a float64 and its bucket: 1023 is the exponent of 1."""
_FEW: Final = 64
"""Below so many buckets sorting is faster than counting."""
_SPREAD: Final = 16
"""Size of the table for counting, at most, as a multiple of the buckets to count."""


def _none() -> Ints:
    return np.zeros(0, np.int64)


@frozen(eq=False)
class Histogram:
    """Buckets with their weights; empty buckets are left out."""

    buckets: Ints = field(factory=_none)
    """Bucket numbers, ascending; shape (n,)."""
    weights: Ints = field(factory=_none)
    """Weight of each; shape (n,)."""
    max_value: int = -1
    """Largest value, of any weight; -1 without values."""

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
        lowest = int(buckets.min()) if len(buckets) else 0
        if len(buckets) < _FEW or int(buckets.max()) - lowest > _SPREAD * len(buckets):
            return cls._added_few(buckets, weights, max_value)
        counts = np.bincount(buckets - lowest)
        found = np.flatnonzero(counts)
        if weights is None:
            return cls(found + lowest, counts[found], max_value)
        if float(weights.sum(dtype=np.float64)) >= _FLOAT_EXACT_BELOW:
            return cls._added_few(buckets, weights, max_value)
        sums = np.bincount(buckets - lowest, weights)[found]
        return cls(found + lowest, sums.astype(np.int64), max_value)

    @classmethod
    def _added_few(cls, buckets: Ints, weights: Ints | None, max_value: int) -> Histogram:
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

    def distribution(self) -> Distribution[int] | None:
        """None without any value; values of which none has a weight have their largest one as percentiles."""
        if self.max_value < 0:
            return None
        p50, p99 = self.percentile(50), self.percentile(99)
        largest = self.max_value
        return Distribution(
            largest if p50 is None else p50, largest if p99 is None else p99, largest, self.total
        )


def _bucket_of(values: Ints) -> Ints:
    if not len(values) or int(values.max()) < _EXACT_BELOW:
        return values
    if int(values.max()) < _FLOAT_EXACT_BELOW:
        # A float64 has the power of two and, below it, the bits that make the bucket.
        bits = np.maximum(values, 1 << _BITS).astype(np.float64).view(np.int64)
        buckets: Ints = np.where(
            values < 1 << _BITS, values, (bits >> _MANTISSA_BITS - _BITS) - _BUCKET_OF_FLOAT
        )
        return buckets
    exponent = np.frexp(values.astype(np.float64))[1].astype(np.int64)
    shift = np.maximum(exponent - (_BITS + 1), 0)
    # A float64 rounds a value just below a power of two up to it.
    shift -= (shift > 0) & (values >> shift < 1 << _BITS)
    return (shift << _BITS) + (values >> shift)


def _upper(buckets: Ints) -> Ints:
    shift = np.maximum((buckets >> _BITS) - 1, 0)
    mantissa = buckets - (shift << _BITS)
    upper: Ints = ((mantissa + 1) << shift) - 1
    return upper
