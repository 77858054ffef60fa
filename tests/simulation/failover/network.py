"""Ports and partitions of the simulated network; its links are those of `tests.simulation.network`."""

from __future__ import annotations

import random
from collections import deque

import trio
from attrs import define, field

from tests.simulation.network import Link, LinkQuality


class Port:
    """Accepts links, as a listening socket: they wait until its process takes them."""

    def __init__(self) -> None:
        self.is_open = True
        self._waiting: deque[Link] = deque()
        self._more = trio.Event()

    def add(self, link: Link) -> None:
        self._waiting.append(link)
        self._more.set()

    async def next(self) -> Link:
        """The next link; a cancelled wait loses none."""
        while not self._waiting:
            self._more = trio.Event()
            await self._more.wait()
        return self._waiting.popleft()

    def close(self) -> None:
        """The process has ended: what waits is reset."""
        self.is_open = False
        while self._waiting:
            link = self._waiting.popleft()
            link.reset()
            link.far.close()


@define(eq=False)
class Network:
    """All links between hosts, and which of them cannot reach each other now."""

    quality: LinkQuality
    direct_streams: bool
    rng: random.Random
    _links: dict[int, tuple[Link, tuple[str, str]]] = field(factory=dict)
    """With the hosts of the near and of the far end."""
    _blocked_until_s: dict[frozenset[str], float] = field(factory=dict)
    _count: int = 0

    async def connect(self, near: str, far: str, port: Port) -> Link:
        """A link of `near` to a port of `far`; waits as long as they cannot reach each other.

        Raises OSError if nobody listens.
        """
        await trio.sleep(self.quality.latency_s)
        await self.reached(near, far)
        if not port.is_open:
            raise ConnectionRefusedError("the port is closed")
        self._count += 1
        link = Link(self.quality, self.rng, direct=self.direct_streams, number=self._count)
        self._links = {number: known for number, known in self._links.items() if known[0].is_open}
        self._links[self._count] = (link, (near, far))
        port.add(link)
        return link

    async def reached(self, near: str, far: str) -> None:
        """Wait until two hosts reach each other."""
        pair = frozenset((near, far))
        while (until_s := self._blocked_until_s.get(pair, 0.0)) > trio.current_time():  # noqa: ASYNC110
            await trio.sleep_until(until_s)

    def block(self, one: str, other: str, duration_s: float) -> None:
        """Cut two hosts off from each other: what is sent meanwhile arrives afterwards."""
        pair = frozenset((one, other))
        until_s = trio.current_time() + duration_s
        self._blocked_until_s[pair] = max(self._blocked_until_s.get(pair, 0.0), until_s)
        for link in self.links(pair):
            link.freeze(duration_s, reports=True, frames=True)

    def kill(self, host: str) -> None:
        """The process of a host is killed: its last tasks send nothing that arrives."""
        for link, (near, far) in self._links.values():
            if host == near:
                link.near.die()
            if host == far:
                link.far.die()

    def links(self, hosts: frozenset[str] | None = None) -> list[Link]:
        return [
            link
            for link, pair in self._links.values()
            if link.is_open and (hosts is None or hosts.issubset(pair))
        ]

    def heal(self, quality: LinkQuality) -> None:
        """No partition any more, and good links."""
        self._blocked_until_s.clear()
        self.quality = quality
        for link in self.links():
            link.heal(quality)
