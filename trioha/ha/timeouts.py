"""Deadlines of waits that all may take equally long: one task for all of them.

Theory of operation. A trio cancel scope for each waiting put costs more than the wait itself. Here each wait
still has its own exact deadline, but since all have the same timeout, their deadlines are in the order in
which they began: a deque, whose first one is what the task of `run` sleeps for. A wait that ended is dropped
from the front for nothing; behind one that is stuck they are swept out once they are the greater part. The
task sleeps on while waits end and others begin, so it wakes at most once in a timeout for a put that did not
need it.
"""

from __future__ import annotations

from collections import deque

import trio

from trioha.watermark import Wait

_ENDED_MAX = 64


class Timeouts:
    """Gives up each wait that was added once it has lasted `timeout_s` seconds. Run it."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._waits: deque[tuple[float, Wait]] = deque()
        """Deadline and wait, earliest first; those in front have not ended, when it was last looked."""
        self._waits_max = _ENDED_MAX
        self._filled: trio.Event | None = None
        """What `run` waits for when there is nothing to sleep for."""

    @property
    def kept(self) -> int:
        """How many waits are remembered, ended ones that stand behind a stuck one included."""
        return len(self._waits)

    def add(self, wait: Wait, now_s: float) -> None:
        """`wait` began now, at `now_s` of trio's clock, which never goes back."""
        waits = self._waits
        while waits and waits[0][1].result is not None:
            waits.popleft()
        waits.append((now_s + self._timeout_s, wait))
        if len(waits) > self._waits_max:
            self._waits = waits = deque(entry for entry in waits if entry[1].result is None)
            self._waits_max = max(_ENDED_MAX, 2 * len(waits))
        if self._filled is not None:
            self._filled.set()
            self._filled = None

    async def run(self) -> None:
        """End what is over, for ever."""
        while True:
            # Looked up anew each time: a sweep makes another deque.
            while self._waits and self._waits[0][1].result is not None:
                self._waits.popleft()
            if not self._waits:
                self._filled = filled = trio.Event()
                await filled.wait()
                continue
            await trio.sleep_until(self._waits[0][0])
            now_s = trio.current_time()
            while self._waits and self._waits[0][0] <= now_s:
                self._waits.popleft()[1].end()
