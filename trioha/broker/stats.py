"""Rates over the last 10 s, 60 s and 600 s, as RocketMQ's runtime info gives them."""

from __future__ import annotations

WINDOWS_S = (10, 60, 600)
_SLOTS = WINDOWS_S[-1] + 1


class RateWindows:
    """Counts events by second, for ten minutes."""

    def __init__(self, now_s: float) -> None:
        self._counts = [0] * _SLOTS
        self._second = int(now_s)
        self._started_s = now_s

    def add(self, count: int, now_s: float) -> None:
        """`count` events happened now."""
        second = int(now_s)
        if second != self._second:
            self._roll(second)
        self._counts[self._second % _SLOTS] += count

    def rates_per_s(self, now_s: float) -> tuple[float, ...]:
        """Events per second over each window, the running second left out; a young counter by its age."""
        self._roll(int(now_s))
        age_s = max(1, self._second - int(self._started_s))
        rates = []
        for window_s in WINDOWS_S:
            seconds = range(self._second - window_s, self._second)
            total = sum(self._counts[second % _SLOTS] for second in seconds)
            rates.append(total / min(window_s, age_s))
        return tuple(rates)

    def _roll(self, second: int) -> None:
        """Empty the slots of the seconds that have passed unseen."""
        for passed in range(self._second + 1, min(second, self._second + _SLOTS) + 1):
            self._counts[passed % _SLOTS] = 0
        self._second = max(self._second, second)
