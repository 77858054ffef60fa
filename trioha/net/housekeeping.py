"""The timers of a connection: its idle timeout, and its heartbeats (docs/protocol/ha.md#timers).

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

from collections.abc import Callable

import trio


async def quiet(interval_s: float, last_sent_s: Callable[[], float]) -> None:
    """Return when nothing was sent for `interval_s`: a heartbeat is due. `last_sent_s` gives the time of the
    last send, on trio's clock."""
    while trio.current_time() < (due_s := last_sent_s() + interval_s):  # noqa: ASYNC110 - sends move it
        await trio.sleep_until(due_s)


class Housekeeping:
    """The idle timeout of one connection."""

    def __init__(self, *, idle_timeout_s: float) -> None:
        """`idle_timeout_s`: until the first deadline, from now."""
        self.deadline_s = trio.current_time() + idle_timeout_s
        """When the connection ends unless its reader moves this, never back; on trio's clock."""

    async def expired(self) -> None:
        """Return when the deadline has passed, and what had arrived by then is read."""
        while trio.current_time() < self.deadline_s:
            await trio.sleep_until(self.deadline_s)
            # A process that was stopped finds the deadline passed, and the peer's bytes unread: they count.
            # The look for bytes that was interrupted finds none; the next one does, and the turn after reads.
            await trio.lowlevel.checkpoint()
            await trio.lowlevel.checkpoint()
