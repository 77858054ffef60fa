"""Busy polling: polling a socket for a moment before waiting for it.

Theory of operation. A single waiting put takes about 100 us from append to ack if neither side sleeps, and
twice that if each side has to be woken, mostly for waking a halted CPU. So a side that expects bytes within
that time polls for them (as net.core.busy_poll of Linux does for devices). That blocks every other task of
the thread, so polls are short, and only done where they pay.

A poll pays if what it waits for comes before its end. Between two polls as many calls skip it as polls fail
for each one that pays: one where every second poll pays, two where every third one does, and where none does
as many as leave one call of `CALLS_PER_POLL_MAX` to notice that it pays again. The share of polls that pay is
a moving average, over the last `POLLS_REMEMBERED` or so, and 1 at the start. While it is above a half no call
skips: some failures are no reason to stop, since a side that does not poll makes the other's polls fail.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from trioha.net.cpu_quota import cpu_quota

POLLS_REMEMBERED = 8
CALLS_PER_POLL_MAX = 256


def has_cores_to_spare() -> bool:
    """Whether this process has more than one core, by affinity and by the CPU quota of its container.

    With one, polling would keep the peer from answering, or use up the quota, which stops the process.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, cpu_quota()) > 1


class BusyPoll:
    """Polls for a condition, at most `limit_s` seconds at a time."""

    __slots__ = ("_clock", "_limit_s", "_share", "_to_skip", "took_s")

    def __init__(self, limit_s: float, *, clock: Callable[[], float] = time.perf_counter) -> None:
        self._limit_s = limit_s
        self._clock = clock
        self._share = 1.0
        """Share of polls that pay, at least one of `CALLS_PER_POLL_MAX`."""
        self._to_skip = 0
        """Calls left that skip the poll."""
        self.took_s = 0.0
        """How long the last successful poll took."""

    def until(self, poll: Callable[[], bool]) -> bool:
        """Call `poll` until it returns True, at most for the limit, or skip it. Returns whether it did."""
        if self._to_skip:
            self._to_skip -= 1
            return False
        clock = self._clock
        start_s = clock()
        end_s = start_s + self._limit_s
        while (now_s := clock()) < end_s:
            if poll():
                self.took_s = now_s - start_s
                self._note(pays=True)
                return True
            # Yields the core to other processes, above all to a peer on this machine.
            os.sched_yield()
        self._note(pays=False)
        return False

    def _note(self, *, pays: bool) -> None:
        """Decide by the result of a poll how many calls skip the next one."""
        share = self._share + (pays - self._share) / POLLS_REMEMBERED
        self._share = share = max(share, 1 / CALLS_PER_POLL_MAX)
        self._to_skip = int(1 / share) - 1
