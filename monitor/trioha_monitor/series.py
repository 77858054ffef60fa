"""Figures over time, kept so that no peak is ever averaged away.

Time is cut into buckets of equal length, aligned to multiples of that length; each keeps the worst value and
the worst severity seen in it. A picture with fewer columns than buckets takes the worst of the buckets that a
column touches. Columns are aligned too, so a peak keeps its height while it moves to the left, and a column
never changes again once the last bucket that it touches is over, within one `Series.revision`: whoever draws
may keep it.

A `Series` is a value. The one made by the next sample shares everything but the bucket that is being filled,
so making one with every poll costs nothing that grows with the time covered.
"""

from __future__ import annotations

from collections import deque
from enum import IntEnum

from attrs import define, field, frozen


class Severity(IntEnum):
    """How bad something is: what its colour says."""

    GOOD = 0
    """As it should be."""
    NOTICE = 1
    """Worth knowing, nothing to do."""
    WARNING = 2
    """Not as it should be, and may pass by itself."""
    BAD = 3
    """Somebody has to look at it."""


@frozen
class Bucket:
    """The worst of one stretch of time."""

    value: float
    """Largest value seen, in the unit of the series."""
    severity: Severity = Severity.GOOD
    """Worst severity seen."""

    def worst(self, other: Bucket | None) -> Bucket:
        """The worse of both, each field for itself."""
        if other is None or (other.value <= self.value and other.severity <= self.severity):
            return self
        if other.value >= self.value and other.severity >= self.severity:
            return other
        return Bucket(max(self.value, other.value), max(self.severity, other.severity))


@frozen
class Series:
    """A stretch of buckets. None is time without data."""

    bucket_ms: int = 500
    """Length of a bucket in milliseconds."""
    first: int = 0
    """Number of the first bucket: it covers the time from `first * bucket_ms` on."""
    finished: tuple[Bucket | None, ...] = field(default=(), repr=False)
    """Buckets that are over, oldest first: the same object until the next one is over."""
    current: Bucket | None = None
    """The bucket behind them, which is being filled; None exactly if there is no data at all."""
    revision: int = 0
    """Another one where buckets that were over may have changed: a replay that still learns of its past."""

    @property
    def buckets(self) -> tuple[Bucket | None, ...]:
        """All buckets, oldest first."""
        return self.finished if self.current is None else (*self.finished, self.current)

    def columns(self, count: int, *, end_ms: int, span_ms: int) -> tuple[Bucket | None, ...]:
        """The `span_ms` that end at `end_ms` as `count` columns, oldest first, the worst of each.

        The last column holds the moment `end_ms`. A column that is shorter than a bucket repeats it.
        """
        # Whole numbers all the way: edges fall where they fell before, whatever the moment.
        last = end_ms * count // span_ms
        return tuple(
            self.worst_between(column * span_ms // count, -(-(column + 1) * span_ms // count))
            for column in range(last - count + 1, last + 1)
        )

    def worst(self, *, end_ms: int, span_ms: int) -> Bucket | None:
        """The worst of the `span_ms` that end at `end_ms`, None without data."""
        return self.worst_between(end_ms - span_ms, end_ms + 1)

    def worst_between(self, start_ms: int, end_ms: int) -> Bucket | None:
        """The worst of what the time from `start_ms` up to `end_ms` touches, None without data."""
        start = start_ms // self.bucket_ms - self.first
        end = max(start + 1, -(-end_ms // self.bucket_ms) - self.first)
        worst: Bucket | None = None
        for bucket in self.finished[max(0, start) : max(0, end)]:
            if bucket is not None:
                worst = bucket.worst(worst)
        if self.current is not None and start <= len(self.finished) < end:
            worst = self.current.worst(worst)
        return worst


@define(eq=False)
class SeriesRecorder:
    """Collects values into buckets; `freeze` gives what it holds so far."""

    bucket_ms: int
    """Length of a bucket in milliseconds."""
    buckets_max: int
    """How many are kept: the oldest give way."""
    _finished: deque[Bucket | None] = field(factory=deque, init=False)
    _first: int = field(default=0, init=False)
    _current: Bucket | None = field(default=None, init=False)
    _frozen: tuple[Bucket | None, ...] | None = field(default=(), init=False)

    def add(self, value: float, severity: Severity = Severity.GOOD, *, at_ms: int) -> None:
        """Note a value seen at `at_ms`. Time does not go back: an earlier time counts for the last bucket."""
        finished, current = self._finished, self._current
        number = at_ms // self.bucket_ms
        newest = self._first + len(finished)
        if current is None or number >= newest + self.buckets_max:
            finished.clear()
            self._first, self._frozen = number, ()
            self._current = Bucket(value, severity)
        elif number > newest:
            finished.append(current)
            finished.extend([None] * (number - newest - 1))
            while len(finished) >= self.buckets_max:
                finished.popleft()
                self._first += 1
            self._frozen = None
            self._current = Bucket(value, severity)
        elif value > current.value or severity > current.severity:
            self._current = Bucket(max(value, current.value), max(severity, current.severity))

    def freeze(self) -> Series:
        """What was collected, as a value."""
        if self._frozen is None:
            self._frozen = tuple(self._finished)
        return Series(self.bucket_ms, self._first, self._frozen, self._current)


def buckets_for(span_ms: int, *, bucket_ms: int) -> int:
    """How many buckets cover `span_ms`, the one that just began included."""
    return -(-span_ms // bucket_ms) + 1
