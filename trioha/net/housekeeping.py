"""The tasks of a connection, which live and die together, and its idle timeout (docs/protocol/ha.md#timers).

Theory of operation. A connection is a nursery: the first of its tasks to end ends all. Beside them a timer
task sleeps until the deadline. The reader task only moves `deadline_s`, which costs nothing; when the timer
wakes, it sleeps again if the deadline has moved. So the timeout is exact although no timer is reset with
every read.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

import trio


class Housekeeping:
    """Runs a connection's tasks until one ends or the peer is silent for too long."""

    def __init__(self, *, idle_timeout_s: float) -> None:
        """`idle_timeout_s`: until the first deadline, from now."""
        self.deadline_s = trio.current_time() + idle_timeout_s
        """When the connection ends unless this is moved, never back; on trio's clock."""
        self.is_expired = False
        """Whether the idle timeout ended the connection."""
        self._scope = trio.CancelScope()

    async def run(self, *tasks: Callable[[], Awaitable[None]]) -> None:
        """Run `tasks` until one ends, the deadline passes or `end` is called; cancelling ends them."""
        with self._scope:
            await self._run(tasks)

    def end(self) -> None:
        """End the connection's tasks at their next checkpoint, also if they do not run yet."""
        self._scope.cancel()

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
        while trio.current_time() < self.deadline_s:
            await trio.sleep_until(self.deadline_s)
            # A process that was stopped finds the deadline passed, and the peer's bytes unread: they count.
            # The look for bytes that was interrupted finds none; the next one does, and the turn after reads.
            await trio.lowlevel.checkpoint()
            await trio.lowlevel.checkpoint()
        self.is_expired = True
        connection.cancel()
