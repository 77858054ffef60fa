"""A node that a test controls, in place of a connection to one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

import trio
from attrs import define, field

from trioha.errors import PeerError

Answer = TypeVar("Answer")


@define
class FakeNode(Generic[Answer]):
    """Counts its requests; `connects` and `behaviour` may change while it is watched."""

    behaviour: Callable[[], Awaitable[Answer]]
    connects: bool = True
    asked_at_s: list[float] = field(factory=list)
    connected_at_s: list[float] = field(factory=list)
    in_flight: int = 0
    in_flight_max: int = 0
    open_sessions: int = 0

    @asynccontextmanager
    async def session(self, address: str) -> AsyncIterator[Callable[[], Awaitable[Answer]]]:
        """A connection; a node has one at a time."""
        self.connected_at_s.append(trio.current_time())
        if not self.connects:
            raise PeerError("cannot connect: Connection refused", address=address)
        self.open_sessions += 1
        assert self.open_sessions == 1, "one connection a node"
        try:
            yield self._ask
        finally:
            self.open_sessions -= 1

    async def _ask(self) -> Answer:
        self.asked_at_s.append(trio.current_time())
        self.in_flight += 1
        self.in_flight_max = max(self.in_flight_max, self.in_flight)
        try:
            return await self.behaviour()
        finally:
            self.in_flight -= 1
