"""Lines of the log that come again and again: at most one in an interval, with how often it happened."""

from __future__ import annotations

import math
import time
from collections.abc import Callable


class LogLimit:
    """When a line of one kind is due. What happens is counted in any case."""

    __slots__ = ("_clock_s", "_count", "_interval_s", "logged_s")

    def __init__(self, interval_s: float, *, clock_s: Callable[[], float] = time.monotonic) -> None:
        """`interval_s` is from one line to the next; `clock_s` is trio's for its tasks."""
        self._interval_s = interval_s
        self._clock_s = clock_s
        self._count = 0
        self.logged_s = -math.inf
        """When the last line was due, by the clock; -inf before the first, and after `reset`."""

    def count(self) -> int:
        """It has happened: how often since the last line, this time included, if a line is due; else 0."""
        self._count += 1
        now_s = self._clock_s()
        if now_s - self.logged_s < self._interval_s:
            return 0
        self.logged_s = now_s
        count, self._count = self._count, 0
        return count

    def reset(self) -> None:
        """It is over: the next time is the first one, and has its line at once."""
        self.logged_s = -math.inf
        self._count = 0
