"""Sends a node's status to those who asked for updates of it (docs/ha-status.md).

Theory of operation. Twenty monitors that ask ten times a second each are two hundred questions, and each
wakes the node, is read, taken apart and answered: a few per cent of what it could store. So a monitor asks
once for a number of updates. These go out at multiples of its interval on the node's clock, which all readers
of that interval share: the status is told once for all of them, and nobody wakes the node but its own timer.

A reader that has not taken yet what it was sent before is passed over. Whoever is gone, or has had what it
asked for, is forgotten: nothing has to be called off.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import trio
from attrs import define

from trioha.remoting.codec import encode
from trioha.remoting.codes import RequestCode
from trioha.remoting.command import request
from trioha.remoting.updates import Updates

Push = Callable[[int, bytes], bool]
"""Sends a frame to the connection of that number; False if there is none."""


@define
class _Reader:
    every_s: float
    left: int
    due_s: float


class StatusUpdates:
    """Who wants updates, and when they are due."""

    def __init__(self, tell: Callable[[], bytes]) -> None:
        """`tell` gives the body of an answer to 907 as things stand now."""
        self._tell = tell
        self._readers: dict[int, _Reader] = {}
        """By connection."""
        self._changed = trio.Event()

    @property
    def readers(self) -> int:
        """How many connections are owed updates."""
        return len(self._readers)

    def want(self, connection: int, updates: Updates) -> None:
        """Owe `connection` these updates, and none of those that it asked for before."""
        if updates.count:
            every_s = updates.every_ms / 1000
            self._readers[connection] = _Reader(every_s, updates.count, _next_s(trio.current_time(), every_s))
            self._changed.set()
        else:
            self._readers.pop(connection, None)

    async def run(self, push: Push) -> None:
        """Send for ever what becomes due."""
        while True:
            due_s = min((reader.due_s for reader in self._readers.values()), default=math.inf)
            with trio.move_on_at(due_s):
                await self._changed.wait()
            self._changed = trio.Event()
            self._send_due(push, trio.current_time())

    def _send_due(self, push: Push, now_s: float) -> None:
        due = [number for number, reader in self._readers.items() if reader.due_s <= now_s]
        if not due:
            return
        frame = encode(request(RequestCode.GET_BROKER_HA_STATUS, body=self._tell(), oneway=True))
        for connection in due:
            reader = self._readers[connection]
            reader.left -= 1
            reader.due_s = _next_s(now_s, reader.every_s)
            if not push(connection, frame) or not reader.left:
                del self._readers[connection]


def _next_s(now_s: float, every_s: float) -> float:
    """The next multiple of `every_s` after now; a moment that is now, up to rounding, is past."""
    return (math.floor(now_s / every_s + 1e-6) + 1) * every_s
