"""Requests that wait, in the order of their deadlines: one task ends them."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from itertools import count
from typing import Final, Protocol

import trio

_ENDED_MAX: Final = 64


class Ending(Protocol):
    """Something that waits no longer than until its deadline."""

    @property
    def is_over(self) -> bool:
        """Whether it waits no more."""

    def end(self) -> None:
        """Its time is over."""


class Deadlines:
    """What waits. Run it."""

    def __init__(self) -> None:
        self._entries: list[tuple[float, int, Ending]] = []
        self._entries_max = _ENDED_MAX
        self._order = count()
        self._earlier = trio.Event()
        """Set when there is an earlier deadline than `run` sleeps for."""

    def __len__(self) -> int:
        """How many are kept, with some that are over."""
        return len(self._entries)

    def add(self, deadline_s: float, waiting: Ending) -> None:
        """End it at a time of trio's clock, unless it is over before."""
        if not self._entries or deadline_s < self._entries[0][0]:
            self._earlier.set()
        heappush(self._entries, (deadline_s, next(self._order), waiting))
        if len(self._entries) > self._entries_max:
            self._entries = [entry for entry in self._entries if not entry[2].is_over]
            heapify(self._entries)
            self._entries_max = max(_ENDED_MAX, 2 * len(self._entries))

    async def run(self) -> None:
        """End each at its deadline, until cancelled."""
        while True:
            entries = self._entries
            while entries and entries[0][2].is_over:
                heappop(entries)
            self._earlier = trio.Event()
            with trio.move_on_at(entries[0][0] if entries else float("inf")):
                await self._earlier.wait()
            now_s = trio.current_time()
            while self._entries and self._entries[0][0] <= now_s:
                heappop(self._entries)[2].end()
