"""Looking at a socket for a moment before sleeping on it.

Theory of operation. A put that waits alone takes about 100 us from append to ack where nobody sleeps, and
twice that where each side has to be woken for its step: to wake a CPU that was halted is most of it. So who
expects bytes within that time looks for them instead (as net.core.busy_poll of Linux does, for devices). That
stops everything else in the thread, so it is short, and only done where it pays: after some looks in vain in
a row, calls do not look at all, twice as many each time, until a look succeeds again. (Some: a side that
does not look makes the other look in vain.)
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

IN_VAIN_MAX = 8
PASSED_OVER_MAX = 256


def has_cores_to_spare() -> bool:
    """Whether this process has more than one core: with one, looking would keep the peer from answering."""
    return len(os.sched_getaffinity(0)) > 1 if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1) > 1


class BusyPoll:
    """Looks for something, at most `limit_s` seconds at a time."""

    __slots__ = ("_clock", "_in_vain", "_limit_s", "_pass_over", "_passed_over")

    def __init__(self, limit_s: float, *, clock: Callable[[], float] = time.perf_counter) -> None:
        self._limit_s = limit_s
        self._clock = clock
        self._in_vain = 0
        """Looks in a row that were in vain."""
        self._pass_over = 0
        """Calls that do not look, before the next that does."""
        self._passed_over = 0
        """How many those were, the last time that looking was in vain."""

    def until(self, look: Callable[[], bool]) -> bool:
        """Call `look` until it says True, at most for the limit and often not at all; whether it did."""
        if self._pass_over:
            self._pass_over -= 1
            return False
        clock = self._clock
        end_s = clock() + self._limit_s
        while clock() < end_s:
            if look():
                self._in_vain = self._passed_over = 0
                return True
            # Whoever else has work for this core goes first, the peer above all if it runs here, too.
            os.sched_yield()
        self._in_vain += 1
        if self._in_vain >= IN_VAIN_MAX:
            self._passed_over = self._pass_over = min(2 * self._passed_over + 1, PASSED_OVER_MAX)
        return False
