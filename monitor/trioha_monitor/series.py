"""Figures over time, kept so that no peak is ever averaged away.

Time is cut into buckets of equal length, aligned to multiples of that length; each keeps the worst value and
the worst severity seen in it. A picture with fewer columns than buckets takes the worst of the buckets that a
column touches. Columns are aligned too, so a peak keeps its height while it moves to the left, and a column
never changes again once the last bucket that it touches is over, within one `Series.revision`: whoever draws
may keep it.

A `Series` is a value. The one made by the next sample shares everything but the bucket that is being filled,
so making one with every poll costs nothing that grows with the time covered.

Speeds and ages from samples of offsets. Pure; times are milliseconds on one axis that does not go back.
"""

from __future__ import annotations

from collections import deque
from enum import IntEnum

from attrs import define, field, frozen

from trioha.recording.state import first_beyond


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


RATE_WINDOW_MS = 2000
"""Rates are means over this many milliseconds."""
TREND_WINDOW_MS = 5000
"""Whether a distance shrinks is judged over this many milliseconds."""
TREND_MIN_MS = 1000
"""And not before so many are known."""
TREND_STEP_MS = 250
"""Distances closer than this are one."""
NOTES_MAX = 8192
"""Notes of an `AppendClock`."""


@define(eq=False)
class RateMeter:
    """How fast something that only grows does: a mean over the last `RATE_WINDOW_MS`. Never negative."""

    _points: deque[tuple[int, int]] = field(factory=deque, init=False)

    def add(self, value: int, *, at_ms: int) -> None:
        """It was `value` at `at_ms`; one that goes back is another log, or counts anew."""
        points = self._points
        if points:
            last_ms, last = points[-1]
            if value < last or at_ms < last_ms:
                points.clear()
        points.append((at_ms, value))
        while len(points) > 2 and at_ms - points[1][0] >= RATE_WINDOW_MS:
            points.popleft()

    def clear(self) -> None:
        """What comes next does not continue what was."""
        self._points.clear()

    @property
    def per_s(self) -> float | None:
        """Its speed per second; None until two samples at different times are there."""
        points = self._points
        if len(points) < 2:
            return None
        (start_ms, start), (end_ms, end) = points[0], points[-1]
        return (end - start) * 1000 / (end_ms - start_ms) if end_ms > start_ms else None


@define(eq=False)
class TrendMeter:
    """How fast a distance shrinks, over the last `TREND_WINDOW_MS`."""

    _points: deque[tuple[int, int]] = field(factory=deque, init=False)

    def add(self, distance: int, *, at_ms: int) -> None:
        """It was `distance` at `at_ms`."""
        points = self._points
        if len(points) > 1 and at_ms - points[-2][0] < TREND_STEP_MS:
            points[-1] = (at_ms, distance)
            return
        points.append((at_ms, distance))
        while len(points) > 2 and at_ms - points[1][0] >= TREND_WINDOW_MS:
            points.popleft()

    def clear(self) -> None:
        """What comes next does not continue what was."""
        self._points.clear()

    @property
    def shrinks_per_s(self) -> float | None:
        """By how much it shrinks in a second, negative while it grows; None while that is not known."""
        points = self._points
        if not points:
            return None
        (start_ms, start), (end_ms, end) = points[0], points[-1]
        return (start - end) * 1000 / (end_ms - start_ms) if end_ms - start_ms >= TREND_MIN_MS else None


@define(eq=False)
class AppendClock:
    """When a log was seen to end where, to tell how old a byte is that somebody lacks.

    Real brokers tell offsets only. What was appended between two looks counts as appended at the second one,
    so an age is at most one interval too small; of bytes older than the first look it is a lower bound.
    Notes are even in time: whenever there are `NOTES_MAX`, each two become one, and from then on none come
    closer than that. An age may be too large by the time between two notes: two intervals for each
    `NOTES_MAX` intervals that somebody is behind.
    """

    _ends: list[int] = field(factory=list, init=False)
    _times_ms: list[int] = field(factory=list, init=False)
    """When the log was first seen to reach beyond the end before each of `_ends`; both ascending."""
    _spacing_ms: int = field(default=0, init=False)
    """Notes are no closer than this."""

    def appended(self, end_offset: int, *, at_ms: int) -> None:
        """The log ends at `end_offset`; one that ends lower than before is another log."""
        ends, times_ms = self._ends, self._times_ms
        if ends:
            last = ends[-1]
            if end_offset == last:
                return
            if end_offset < last:
                ends.clear()
                times_ms.clear()
            elif at_ms - times_ms[-1] < self._spacing_ms:
                ends[-1] = end_offset
                return
        ends.append(end_offset)
        times_ms.append(at_ms)
        if len(ends) >= NOTES_MAX:
            self._thin()

    def acknowledged(self, offset: int) -> None:
        """Nobody will ask for the age of a byte before `offset`."""
        passed = first_beyond(self._ends, offset)
        # In one go and seldom: what is cut off at the front of a list moves all the rest.
        if passed > len(self._ends) // 2 and passed >= 256:
            del self._ends[:passed]
            del self._times_ms[:passed]
            self._spacing_ms = 0

    def age_s(self, offset: int, *, now_ms: int) -> float:
        """Age in seconds of the byte at `offset`; 0 if there is none yet."""
        index = first_beyond(self._ends, offset)
        if index == len(self._ends):
            return 0.0
        return max(0, now_ms - self._times_ms[index]) / 1000

    def _thin(self) -> None:
        """Join notes until none are closer than twice the mean: the later end, the earlier time."""
        ends, times_ms = self._ends, self._times_ms
        self._spacing_ms = max(1, 2 * (times_ms[-1] - times_ms[0]) // len(ends))
        kept_ends, kept_times_ms = ends[:1], times_ms[:1]
        for end_offset, at_ms in zip(ends[1:], times_ms[1:], strict=True):
            if at_ms - kept_times_ms[-1] < self._spacing_ms:
                kept_ends[-1] = end_offset
            else:
                kept_ends.append(end_offset)
                kept_times_ms.append(at_ms)
        self._ends, self._times_ms = kept_ends, kept_times_ms
