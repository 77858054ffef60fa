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
        self._messages = 0
        self._midnights = MidnightTotals(local_date())
        self._found_rates = RateWindows(now_s)
        self._missed_rates = RateWindows(now_s)
        self._message_rates = RateWindows(now_s)

    def note(self, messages: int) -> None:
        """A pull was answered with so many messages."""
        now_s = trio.current_time()
        if messages:
            self._messages += messages
            self._found_rates.add(1, now_s)
            self._message_rates.add(messages, now_s)
        else:
            self._missed_rates.add(1, now_s)

    def statistics(self) -> PullStatistics:
        """Pulls up to now."""
        now_s = trio.current_time()
        self._midnights.roll_over(local_date(), self._messages)
        return PullStatistics(
            messages=self._messages,
            messages_until_today=self._midnights.until_today,
            messages_until_yesterday=self._midnights.until_yesterday,
            found_per_s=self._found_rates.rates_per_s(now_s),
            missed_per_s=self._missed_rates.rates_per_s(now_s),
            messages_per_s=self._message_rates.rates_per_s(now_s),
        )
