"""Consumers that wait for messages: while there are any, dispatch gathers records for less time."""

from __future__ import annotations

import trio


class WaitingReaders:
    """Counts them. Those who serve consumers call `begin` and `end`, the dispatch task reads it."""

    def __init__(self) -> None:
        self.count = 0
        """How many wait now."""
        self._begun = trio.Event()

    def begin(self) -> None:
        """One more waits, also for records that are not dispatched yet."""
        self.count += 1
        self._begun.set()

    def end(self) -> None:
        """One waits no more."""
        self.count -= 1

    async def begins(self) -> None:
        """Wait until another one begins to wait. For one task."""
        self._begun = trio.Event()
        await self._begun.wait()
