"""Figures over time: series that keep every peak, rates, trends, and the age of bytes of a log. Pure.

Time is cut into buckets of equal length, aligned to multiples of that length; a bucket keeps the worst value
and the worst severity in it. A picture with fewer columns than buckets takes the worst of the buckets that a
column touches. Columns are aligned, too: a peak keeps its height while it moves to the left, and a column
does not change once its last bucket is over, within one `Series.revision`. So drawn columns can be cached.

A `Series` is a value. The next one shares all finished buckets with it, so that making one for each view
costs the same however much time it covers. Times are milliseconds on one axis that does not go back.
"""

from __future__ import annotations

from collections import deque
from copy import copy

from attrs import define, field, frozen

from trioha.recording.state import first_beyond
from trioha.severity import Severity


@frozen
class Bucket:
    """The worst value and severity of one bucket of time."""

    value: float
    """Largest value, in the unit of the series."""
    severity: Severity = Severity.GOOD
    """Worst severity."""

    def worst(self, other: Bucket | None) -> Bucket:
        """The worse of both in each field."""
        if other is None or (other.value <= self.value and other.severity <= self.severity):
            return self
        if other.value >= self.value and other.severity >= self.severity:
            return other
        return Bucket(max(self.value, other.value), max(self.severity, other.severity))


@frozen
class Series:
    """Consecutive buckets. None is time without data."""

    bucket_ms: int = 500
    """Length of a bucket in milliseconds."""
    first: int = 0
    """Number of the first bucket, which starts at `first * bucket_ms`."""
    finished: tuple[Bucket | None, ...] = field(default=(), repr=False)
    """Finished buckets, oldest first: the same object until the next one is finished."""
    current: Bucket | None = None
    """The bucket after them, which is being filled; None exactly if there is no data."""
    revision: int = 0
    """Changes when finished buckets may have changed: a replay is still reading its sessions."""

    @property
    def buckets(self) -> tuple[Bucket | None, ...]:
        """All buckets, oldest first."""
        return self.finished if self.current is None else (*self.finished, self.current)

    def columns(self, count: int, *, end_ms: int, span_ms: int) -> tuple[Bucket | None, ...]:
        """The `span_ms` that end at `end_ms` as `count` columns, oldest first, the worst of each.

        The last column has the moment `end_ms`. A column that is shorter than a bucket repeats it.
        """
        # Integers only: column edges are the same for every moment.
        last = end_ms * count // span_ms
        return tuple(
            self.worst_between(column * span_ms // count, -(-(column + 1) * span_ms // count))
            for column in range(last - count + 1, last + 1)
        )

    def worst(self, *, end_ms: int, span_ms: int) -> Bucket | None:
        """The worst of the `span_ms` that end at `end_ms`, None without data."""
        return self.worst_between(end_ms - span_ms, end_ms + 1)

    def worst_between(self, start_ms: int, end_ms: int) -> Bucket | None:
        """The worst of the buckets from `start_ms` to before `end_ms`, None without data."""
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
    """Collects values into buckets; `freeze` returns them."""

    bucket_ms: int
    """Length of a bucket in milliseconds."""
    buckets_max: int
    """How many are kept: the oldest are dropped."""
    _finished: deque[Bucket | None] = field(factory=deque, init=False)
    _first: int = field(default=0, init=False)
    _current: Bucket | None = field(default=None, init=False)
    _frozen: tuple[Bucket | None, ...] | None = field(default=(), init=False)

    def add(self, value: float, severity: Severity = Severity.GOOD, *, at_ms: int) -> None:
        """Add a value of the time `at_ms`; a time before the last bucket counts for the last bucket."""
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

    def __deepcopy__(self, memo: object) -> SeriesRecorder:
        """A copy, which shares the buckets."""
        other = copy(self)
        other._finished = self._finished.copy()
        return other

    def freeze(self) -> Series:
        """The collected buckets as a value."""
        if self._frozen is None:
            self._frozen = tuple(self._finished)
        return Series(self.bucket_ms, self._first, self._frozen, self._current)


def buckets_for(span_ms: int, *, bucket_ms: int) -> int:
    """How many buckets cover `span_ms`, with the one that is being filled."""
    return -(-span_ms // bucket_ms) + 1


BUCKETS_MAX = 8192
"""Buckets of the whole time of a replay at most."""
_BUCKETS_MS = (100, 200, 500, 1000, 2000, 5000, 10_000, 30_000, 60_000, 300_000, 900_000, 3_600_000)


def bucket_ms_for(span_ms: int) -> int:
    """Length of the buckets of a replay of `span_ms`."""
    return next((ms for ms in _BUCKETS_MS if span_ms // ms < BUCKETS_MAX), _BUCKETS_MS[-1])


RATE_WINDOW_MS = 2000
"""Rates are means over this many milliseconds."""
TREND_WINDOW_MS = 5000
"""Whether a distance shrinks is judged over this many milliseconds."""
TREND_MIN_MS = 1000
"""At least so much time must be known."""
TREND_STEP_MS = 250
"""Distances that are closer in time are merged."""
ENTRIES_MAX = 8192
"""Entries of an `AppendClock`."""


@define(eq=False)
class RateMeter:
    """Rate of a growing value: a mean over the last `RATE_WINDOW_MS`. Never negative."""

    _points: deque[tuple[int, int]] = field(factory=deque, init=False)

    def add(self, value: int, *, at_ms: int) -> None:
        """Add the value at `at_ms`; a smaller value than before restarts the measurement."""
        points = self._points
        if points:
            last_ms, last = points[-1]
            if value < last or at_ms < last_ms:
                points.clear()
        points.append((at_ms, value))
        while len(points) > 2 and at_ms - points[1][0] >= RATE_WINDOW_MS:
            points.popleft()

    def clear(self) -> None:
        """Restart the measurement."""
        self._points.clear()

    @property
    def per_s(self) -> float | None:
        """Growth per second; None before two samples of different times."""
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
        """Add the distance at `at_ms`."""
        points = self._points
        if len(points) > 1 and at_ms - points[-2][0] < TREND_STEP_MS:
            points[-1] = (at_ms, distance)
            return
        points.append((at_ms, distance))
        while len(points) > 2 and at_ms - points[1][0] >= TREND_WINDOW_MS:
            points.popleft()

    def clear(self) -> None:
        """Restart the measurement."""
        self._points.clear()

    @property
    def shrinks_per_s(self) -> float | None:
        """By how much it shrinks in a second, negative while it grows; None before enough samples."""
        points = self._points
        if not points:
            return None
        (start_ms, start), (end_ms, end) = points[0], points[-1]
        return (start - end) * 1000 / (end_ms - start_ms) if end_ms - start_ms >= TREND_MIN_MS else None


@define(eq=False)
class AppendClock:
    """Times and end offsets of a log, for the age of a byte that a replica lacks.

    RocketMQ reports offsets only. Bytes that were appended between two answers count as appended at the
    second one: an age is at most one interval too small; for bytes older than the first answer it is a lower
    bound. At `ENTRIES_MAX` entries, pairs are merged, and later entries are as far apart. An age may then be
    too large by the time between two entries: two intervals for each `ENTRIES_MAX` intervals that a replica
    lags.
    """

    _ends: list[int] = field(factory=list, init=False)
    _times_ms: list[int] = field(factory=list, init=False)
    """When the log was first seen to end beyond the entry before; both ascend."""
    _spacing_ms: int = field(default=0, init=False)
    """Smallest time between two entries."""

    def __deepcopy__(self, memo: object) -> AppendClock:
        """A copy, which shares the numbers."""
        other = copy(self)
        other._ends, other._times_ms = self._ends.copy(), self._times_ms.copy()
        return other

    def appended(self, end_offset: int, *, at_ms: int) -> None:
        """The log ends at `end_offset`; a lower end than before is that of another log."""
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
        if len(ends) >= ENTRIES_MAX:
            self._thin()

    def acknowledged(self, offset: int) -> None:
        """Drop entries of bytes before `offset`: all replicas have acknowledged them."""
        passed = first_beyond(self._ends, offset)
        # Seldom, and many at once: deleting at the front of a list moves its rest.
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
        """Merge entries that are closer than twice the mean: the later end, the earlier time."""
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
