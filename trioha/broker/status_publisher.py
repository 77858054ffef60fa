"""Sends a node's status to those who asked for updates of it (docs/ha-status.md).

Theory of operation. Twenty monitors that ask ten times a second each are two hundred questions, and each
wakes the node, is read, taken apart and answered: a few per cent of what it could store. So a monitor asks
once for a number of updates. These go out at multiples of its interval on the node's clock, which all readers
of that interval share: the status is told once for all of them, and nobody wakes the node but its own timer.
What moves slowly (28, the runtime table) goes along once a second.

A reader that has not taken yet what it was sent before is passed over. Whoever is gone, or has had what it
asked for, is forgotten: nothing has to be called off. Where the status cannot be told, that is logged,
nothing is sent, and a reader finds out when it asks.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable

import structlog
import trio
from attrs import define

from trioha.remoting.codec import encode
from trioha.remoting.codes import RequestCode
from trioha.remoting.command import request
from trioha.remoting.status_subscription import StatusSubscription

log = structlog.get_logger(__name__)

TABLE_EVERY_S = 1.0
"""How often the runtime table goes along."""

Push = Callable[[int, bytes], bool]
"""Sends a frame to the connection of that number; False if there is none."""


@define
class _Reader:
    every_s: float
    left: int
    due_s: float
    table: int
    """Number of the newest table that it has, or had when it asked."""


class StatusPublisher:
    """Who wants updates, and when they are due."""

    def __init__(self, tell: Callable[[], bytes], tell_table: Callable[[], Awaitable[bytes]]) -> None:
        """`tell` gives the body of an answer to 907 as things stand now, `tell_table` that of one to 28."""
        self._tell = tell
        self._tell_table = tell_table
        self._readers: dict[int, _Reader] = {}
        """By connection."""
        self._changed = trio.Event()
        self._table = b""
        """The newest table's frame."""
        self._tables = 0
        """How many there were."""
        self._table_due_s = -math.inf

    @property
    def readers(self) -> int:
        """How many connections are owed updates."""
        return len(self._readers)

    def want(self, connection: int, updates: StatusSubscription) -> None:
        """Owe `connection` these updates, and none of those that it asked for before."""
        if updates.count:
            every_s = updates.every_ms / 1000
            due_s = _next_s(trio.current_time(), every_s)
            self._readers[connection] = _Reader(every_s, updates.count, due_s, self._tables)
            self._changed.set()
        else:
            self._readers.pop(connection, None)

    async def run(self, push: Push) -> None:
        """Send for ever what becomes due."""
        async with trio.open_nursery() as nursery:
            while True:
                due_s = min((reader.due_s for reader in self._readers.values()), default=math.inf)
                with trio.move_on_at(due_s):
                    await self._changed.wait()
                self._changed = trio.Event()
                now_s = trio.current_time()
                due = [number for number, reader in self._readers.items() if reader.due_s <= now_s]
                if due:
                    self._send(push, due, now_s)
                    if now_s >= self._table_due_s:
                        # It may wait for a disk. StatusSubscription do not.
                        self._table_due_s = math.inf
                        nursery.start_soon(self._renew_table)

    def _send(self, push: Push, due: list[int], now_s: float) -> None:
        try:
            status = encode(request(RequestCode.GET_BROKER_HA_STATUS, body=self._tell(), oneway=True))
        except Exception as error:
            log.error("status cannot be told", exc_info=error)
            for connection in due:
                del self._readers[connection]
            return
        with_table = self._table + status
        for connection in due:
            reader = self._readers[connection]
            reader.left -= 1
            reader.due_s = _next_s(now_s, reader.every_s)
            is_there = push(connection, status if reader.table == self._tables else with_table)
            reader.table = self._tables
            if not is_there or not reader.left:
                del self._readers[connection]

    async def _renew_table(self) -> None:
        try:
            body = await self._tell_table()
            self._table = encode(request(RequestCode.GET_BROKER_RUNTIME_INFO, body=body, oneway=True))
            self._tables += 1
        except Exception as error:
            log.error("runtime table cannot be told", exc_info=error)
        self._table_due_s = trio.current_time() + TABLE_EVERY_S


def _next_s(now_s: float, every_s: float) -> float:
    """The next multiple of `every_s` after now; a moment that is now, up to rounding, is past."""
    return (math.floor(now_s / every_s + 1e-6) + 1) * every_s
