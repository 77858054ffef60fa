"""Lag over time, kept so that no peak is ever averaged away.

Time is cut into buckets of equal length, aligned to multiples of that length; each keeps the worst lag seen
in it and the worst grade of its connection. A picture with fewer columns than buckets takes the worst of the
buckets that a column covers. Columns are aligned too, so a peak keeps its height while it moves to the left.
"""

from __future__ import annotations

from collections import deque
from enum import IntEnum
from math import ceil, floor

from attrs import define, field, frozen


class Grade(IntEnum):
    """How a connection does, from good to bad: what its colour says."""

    GOOD = 0
    """Transferring, and the master counts the slave as in sync."""
    BEHIND = 1
    """Connected, but not in sync or not transferring."""
    LOST = 2
    """No longer connected."""


@frozen
class Bucket:
    """The worst of one stretch of time."""

    lag_bytes: int
    """Largest distance between the master's max offset and the slave's ack, in bytes."""
    grade: Grade
    """Worst grade seen."""

    def worst(self, other: Bucket | None) -> Bucket:
        """The worse of both, each field for itself."""
        if other is None:
            return self
        return Bucket(max(self.lag_bytes, other.lag_bytes), max(self.grade, other.grade))


@frozen
class LagHistory:
    """A frozen stretch of buckets. None in `buckets` is time without data."""

    bucket_s: float = 0.5
    """Length of a bucket in seconds."""
    first: int = 0
    """Number of the first bucket: it covers the time from `first * bucket_s` on."""
    buckets: tuple[Bucket | None, ...] = ()

    def columns(self, count: int, *, end_s: float, span_s: float) -> tuple[Bucket | None, ...]:
        """The `span_s` seconds that end at `end_s` as `count` columns, oldest first, the worst of each.

        The last column holds the moment `end_s`. A column that is shorter than a bucket repeats it.
        """
        column_s = span_s / count
        last = floor(end_s / column_s)
        return tuple(
            self._between(column * column_s, (column + 1) * column_s)
            for column in range(last - count + 1, last + 1)
        )

    def worst(self, *, end_s: float, span_s: float) -> Bucket | None:
        """The worst of the `span_s` seconds that end at `end_s`, None without data."""
        return self._between(end_s - span_s, end_s + self.bucket_s)

    def _between(self, start_s: float, end_s: float) -> Bucket | None:
        # Rounding guards the edges: 0.3 / 0.1 is a little less than 3.
        start = floor(round(start_s / self.bucket_s, 6))
        end = max(start + 1, floor(round(end_s / self.bucket_s, 6)))
        worst: Bucket | None = None
        for bucket in self.buckets[max(0, start - self.first) : max(0, end - self.first)]:
            if bucket is not None:
                worst = bucket.worst(worst)
        return worst


@define(eq=False)
class LagRecorder:
    """Collects lag into buckets; `freeze` gives what it holds so far."""

    bucket_s: float
    """Length of a bucket in seconds."""
    buckets_max: int
    """How many are kept: the oldest give way."""
    _buckets: deque[Bucket | None] = field(factory=deque, init=False)
    _first: int = field(default=0, init=False)

    def add(self, lag_bytes: int, grade: Grade, *, at_s: float) -> None:
        """Note a lag seen at `at_s`. Time does not go back: an earlier `at_s` counts for the last bucket."""
        number = floor(at_s / self.bucket_s)
        buckets = self._buckets
        if not buckets or number >= self._first + len(buckets) + self.buckets_max:
            buckets.clear()
            self._first = number
        while self._first + len(buckets) <= number:
            buckets.append(None)
        buckets[-1] = Bucket(lag_bytes, grade).worst(buckets[-1])
        while len(buckets) > self.buckets_max:
            buckets.popleft()
            self._first += 1

    def freeze(self) -> LagHistory:
        """What was collected, as a value."""
        return LagHistory(bucket_s=self.bucket_s, first=self._first, buckets=tuple(self._buckets))


def buckets_for(span_s: float, *, bucket_s: float) -> int:
    """How many buckets cover `span_s` seconds, the one that just began included."""
    return ceil(span_s / bucket_s) + 1
