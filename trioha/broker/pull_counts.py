"""Counts of pulls since the node started, and their rates."""

from __future__ import annotations

import trio
from attrs import frozen

from trioha.broker.rates import MidnightTotals, RateWindows, local_date


@frozen
class PullStatistics:
    """Pulls since the node started; the rates are over the last 10 s, 60 s and 600 s."""

    messages: int = 0
    """Messages given to consumers."""
    messages_until_today: int = 0
    """Messages given before the last local midnight."""
    messages_until_yesterday: int = 0
    """Messages given before the midnight before that."""
    found_per_s: tuple[float, ...] = ()
    """Pulls that were given messages."""
    missed_per_s: tuple[float, ...] = ()
    """Pulls that were given none."""
    messages_per_s: tuple[float, ...] = ()


class PullCounts:
    """Counts the pulls of a broker."""

    def __init__(self) -> None:
        now_s = trio.current_time()
        self._second = int(now_s)
        """To which the rates were rolled."""
        self._midnights = MidnightTotals(local_date())
        self._found_rates = RateWindows(now_s)
        self._missed_rates = RateWindows(now_s)
        self._message_rates = RateWindows(now_s)

    def note(self, messages: int) -> None:
        """A pull was answered with so many messages."""
        second = int(trio.current_time())
        if second != self._second:
            self._second = second
            for rates in (self._found_rates, self._missed_rates, self._message_rates):
                rates.roll(second)
        if messages:
            self._found_rates.count += 1
            self._message_rates.count += messages
        else:
            self._missed_rates.count += 1

    def statistics(self) -> PullStatistics:
        """Pulls up to now."""
        now_s = trio.current_time()
        messages = self._message_rates.count
        self._midnights.roll_over(local_date(), messages)
        return PullStatistics(
            messages=messages,
            messages_until_today=self._midnights.until_today,
            messages_until_yesterday=self._midnights.until_yesterday,
            found_per_s=self._found_rates.rates_per_s(now_s),
            missed_per_s=self._missed_rates.rates_per_s(now_s),
            messages_per_s=self._message_rates.rates_per_s(now_s),
        )
