"""Deadlines of waits with the same timeout, kept by one task.

Theory of operation. A trio cancel scope for each waiting put costs more than the wait itself. Here each wait
still has its own exact deadline, but since all have the same timeout, deadlines are ordered by when the waits
began: a deque, and the task of `run` sleeps until the first deadline. Ended waits are dropped from the front
as waits are added; those after one that is stuck are removed once they are the greater part. The task does
not wake when waits end or begin, so it wakes at most once in a timeout for a put that has ended.
"""

from __future__ import annotations

from collections import deque

import trio

from trioha.watermark import Wait

_ENDED_MAX = 64


class Timeouts:
    """Gives up each added wait after `timeout_s` seconds, while `run` runs."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._waits: deque[Wait] = deque()
        """By deadline, earliest first."""
        self._waits_max = _ENDED_MAX
        self._filled: trio.Event | None = None
        """`run` waits for this while there are no waits."""
        self._is_over = False

    def add(self, wait: Wait, now_s: float) -> None:
        """Give up `wait`, which begins now (`now_s` of trio's clock), after the timeout."""
        if self._is_over:
            wait.end()
            return
        waits = self._waits
        while waits and waits[0].result is not None:
            waits.popleft()
        wait.deadline_s = now_s + self._timeout_s
        waits.append(wait)
        if len(waits) > self._waits_max:
            self._waits = waits = deque(one for one in waits if one.result is None)
            self._waits_max = max(_ENDED_MAX, 2 * len(waits))
        if self._filled is not None:
            self._filled.set()
            self._filled = None

    def end_all(self) -> None:
        """Give up every wait now, and each that is added later at once."""
        self._is_over = True
        self.end_now()

    def end_now(self) -> None:
        """Give up every wait now."""
        while self._waits:
            self._waits.popleft().end()

    async def run(self) -> None:
        """End waits at their deadlines, until cancelled."""
        while True:
            # Looked up anew each time: `add` may have made another deque.
            while self._waits and self._waits[0].result is not None:
                self._waits.popleft()
            if not self._waits:
                self._filled = filled = trio.Event()
                await filled.wait()
                continue
            await trio.sleep_until(self._waits[0].deadline_s)
            now_s = trio.current_time()
            while self._waits and self._waits[0].deadline_s <= now_s:
                self._waits.popleft().end()
