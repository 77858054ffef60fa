"""Rates over the last 10 s, 60 s and 600 s, as RocketMQ's runtime info gives them."""

from __future__ import annotations

WINDOWS_S = (10, 60, 600)
_SLOTS = WINDOWS_S[-1] + 1


class RateWindows:
    """Counts events and keeps for ten minutes how many there were up to each second."""

    def __init__(self, now_s: float) -> None:
        self._count = 0
        self._counts = [0] * _SLOTS
        """How many there were before each second; that of the second s is at s % _SLOTS."""
        self._second = int(now_s)
        self._started_s = now_s

    def add(self, count: int, now_s: float) -> None:
        """`count` events happened now."""
        second = int(now_s)
        if second != self._second:
            self._roll(second)
        self._count += count

    def rates_per_s(self, now_s: float) -> tuple[float, ...]:
        """Events per second over each window, the running second left out; a young counter by its age."""
        self._roll(int(now_s))
        age_s = max(1, self._second - int(self._started_s))
        until_now = self._counts[self._second % _SLOTS]
        return tuple(
            (until_now - self._counts[(self._second - window_s) % _SLOTS]) / min(window_s, age_s)
            for window_s in WINDOWS_S
        )

    def _roll(self, second: int) -> None:
        """Note how many there are at the begin of the seconds that have passed unseen."""
        for passed in range(self._second + 1, min(second, self._second + _SLOTS) + 1):
            self._counts[passed % _SLOTS] = self._count
        self._second = max(self._second, second)
