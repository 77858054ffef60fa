"""Speeds and ages from samples of offsets. Pure; times are milliseconds on one axis that does not go back."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque

from attrs import define, field

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
        passed = bisect_right(self._ends, offset)
        # In one go and seldom: what is cut off at the front of a list moves all the rest.
        if passed > len(self._ends) // 2 and passed >= 256:
            del self._ends[:passed]
            del self._times_ms[:passed]
            self._spacing_ms = 0

    def age_s(self, offset: int, *, now_ms: int) -> float:
        """Age in seconds of the byte at `offset`; 0 if there is none yet."""
        index = bisect_right(self._ends, offset)
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
