"""Rates of the broker over the last 10 s, 60 s and 600 s, and its totals at midnight, for its runtime info.

`traffic.py` has messages by topic and group, over a minute, an hour and a day.
"""

from __future__ import annotations

from datetime import date, datetime, timedelta

WINDOWS_S = (10, 60, 600)
_SLOTS = WINDOWS_S[-1] + 1


class RateWindows:
    """Counts events, with the count at the start of each of the last 600 seconds."""

    def __init__(self, now_s: float) -> None:
        self._count = 0
        self._counts = [0] * _SLOTS
        """Count at the start of each second; that of the second s is at s % _SLOTS."""
        self._second = int(now_s)
        self._started_s = now_s

    def add(self, count: int, now_s: float) -> None:
        """Count events that happened now."""
        second = int(now_s)
        if second != self._second:
            self._roll(second)
        self._count += count

    def rates_per_s(self, now_s: float) -> tuple[float, ...]:
        """Events per second over each window, without the current second; over its age if that is less."""
        self._roll(int(now_s))
        age_s = max(1, self._second - int(self._started_s))
        total = self._counts[self._second % _SLOTS]
        return tuple(
            (total - self._counts[(self._second - window_s) % _SLOTS]) / min(window_s, age_s)
            for window_s in WINDOWS_S
        )

    def _roll(self, second: int) -> None:
        """Store the count for the seconds since the last call."""
        for passed in range(self._second + 1, min(second, self._second + _SLOTS) + 1):
            self._counts[passed % _SLOTS] = self._count
        self._second = max(self._second, second)


def local_date() -> date:
    """Today, in local time."""
    return datetime.now().astimezone().date()


class MidnightTotals:
    """A growing total at the last two local midnights, exact to the first call of `roll_over` after each."""

    def __init__(self, today: date) -> None:
        self._today = today
        self.until_today = 0
        """At the last midnight."""
        self.until_yesterday = 0
        """At the midnight before that."""

    def roll_over(self, today: date, total: int) -> None:
        """Note `total` if a midnight has passed since the last call."""
        if today == self._today:
            return
        one_day_later = today - self._today == timedelta(days=1)
        self.until_yesterday = self.until_today if one_day_later else total
        self.until_today = total
        self._today = today
