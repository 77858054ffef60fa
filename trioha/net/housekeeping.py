"""The idle timeout of a connection (docs/protocol/ha.md#timers).

Theory of operation. A connection is a nursery; its reader moves `deadline_s` with what it receives, which
costs nothing, and one of its tasks waits for `expired`, and then ends the connection:

    async with trio.open_nursery() as tasks:
        tasks.start_soon(write)
        tasks.start_soon(end_when_silent)
        await read()
        tasks.cancel_scope.cancel()

A deadline of the nursery's cancel scope is no substitute: in a process that was stopped and continues, it
would end the connection before the bytes are read that came in time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

import trio


class Housekeeping:
    """The idle timeout of one connection."""

    def __init__(self, *, idle_timeout_s: float) -> None:
        """`idle_timeout_s`: until the first deadline, from now."""
        self.deadline_s = trio.current_time() + idle_timeout_s
        """When the connection ends unless this is moved, never back; on trio's clock."""
        self.is_expired = False
        """Whether the idle timeout ended the connection that `run` ran."""
        self._scope = trio.CancelScope()

    async def expired(self) -> None:
        """Return when the deadline has passed, and what had arrived by then is read."""
        while trio.current_time() < self.deadline_s:
            await trio.sleep_until(self.deadline_s)
            # A process that was stopped finds the deadline passed, and the peer's bytes unread: they count.
            # The look for bytes that was interrupted finds none; the next one does, and the turn after reads.
            await trio.lowlevel.checkpoint()
            await trio.lowlevel.checkpoint()

    async def run(self, *tasks: Callable[[], Awaitable[None]]) -> None:
        """Run `tasks` until one ends or the deadline passes; cancelling ends them."""
        with self._scope:
            await self._run(tasks)

    async def _run(self, tasks: Iterable[Callable[[], Awaitable[None]]]) -> None:
        async with trio.open_nursery() as connection:
            for task in tasks:
                connection.start_soon(self._run_one, task, connection.cancel_scope)
            connection.start_soon(self._watch, connection.cancel_scope)

    async def _run_one(self, task: Callable[[], Awaitable[None]], connection: trio.CancelScope) -> None:
        try:
            await task()
        finally:
            connection.cancel()

    async def _watch(self, connection: trio.CancelScope) -> None:
        await self.expired()
        self.is_expired = True
        connection.cancel()
