"""Brokers of one group whose every connection to the controller and to each other leads through a link.

Theory of operation. Brokers give each other's addresses to each other by way of controllers and name servers:
a proxy at an address of the configuration is not used for long. So each broker has links of its own, and in
what passes them addresses of links stand in place of those of brokers:

| link | from, to | towards the second | towards the first |
|---|---|---|---|
| `to_controller` | broker, controller | own -> notices | others -> their peers; leader -> this link |
| `notices` | controller, broker | others -> their peers | own -> notices |
| `peers` | others, broker (and its VIP port) | | own HA address -> ha |
| `ha` | others, its HA port | | |
| `names` | broker, name server | own HA address -> ha | others -> their peers |

Clients use none of them: they ask the name server itself and dial brokers directly. All addresses are equally
long, so that no length in a frame changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum

import trio
from attrs import frozen

from tests.faults.proxy import BOTH, Link
from tests.faults.trio_thread import TrioThread
from tests.ports import free_port

VIP_DISTANCE = 2
"""The second port for clients is so far below listenPort."""


@frozen
class Endpoint:
    """Where a broker really listens, as `host:port`."""

    address: str
    """For clients and notices."""
    ha_address: str


class Side(Enum):
    """From whom a broker is separated."""

    CONTROLLER = "controller"
    PEERS = "peers"


@frozen
class BrokerLinks:
    """All links of one broker."""

    to_controller: Link
    notices: Link
    peers: tuple[Link, Link]
    """At its port for clients, and at its VIP port."""
    ha: Link
    names: Link

    @property
    def all(self) -> tuple[Link, ...]:
        return (self.to_controller, self.notices, *self.peers, self.ha, self.names)


class Partitions(TrioThread):
    """The links between the brokers of a group, a controller and a name server; made by `partitions`."""

    def __init__(
        self,
        brokers: Sequence[Endpoint],
        *,
        controller: str,
        name_server: str,
    ) -> None:
        self._brokers = tuple(brokers)
        self._controller = controller
        self._name_server = name_server
        self._links: list[BrokerLinks] = []
        super().__init__()

    def controller_for(self, broker: int) -> str:
        """controllerAddr of a broker, by its place among those given."""
        return self._links[broker].to_controller.address

    def name_server_for(self, broker: int) -> str:
        """namesrvAddr of a broker."""
        return self._links[broker].names.address

    def separate(self, broker: int, *sides: Side) -> None:
        """Hold back all bytes between a broker and the controller, or the other broker, both ways."""

        def separate() -> None:
            for link in self._between(broker, sides):
                link.freeze(*BOTH)

        self.call(separate)

    def hold_replication(self, broker: int) -> None:
        """Hold back what a master sends to its slaves, and what they report."""
        self.call(lambda: self._links[broker].ha.freeze(*BOTH))

    def drop_replication(self, broker: int) -> None:
        """End the connections of a master with its slaves; bytes that are held back are lost."""

        def drop() -> None:
            self._links[broker].ha.cut(reset=True)
            self._links[broker].ha.thaw()

        self.call(drop)

    def forget(self, broker: int) -> None:
        """Leave all connections of a broker half open, as those of a machine that lost its power: nobody gets
        their end. New ones are joined."""

        def forget() -> None:
            for link in self._links[broker].all:
                link.vanish()
                link.appear()

        self.call(forget)

    def heal(self) -> None:
        """Let go on what was separated: all bytes that were held back arrive now."""

        def heal() -> None:
            for links in self._links:
                for link in links.all:
                    link.thaw()

        self.call(heal)

    def _between(self, broker: int, sides: Sequence[Side]) -> Iterator[Link]:
        own = self._links[broker]
        if Side.CONTROLLER in sides:
            yield from (own.to_controller, own.notices)
        if Side.PEERS in sides:
            assert len(self._links) == 2, "of two brokers, who dials one is the other"
            for links in self._links:
                yield from (*links.peers, links.ha)

    # -- in the thread of the links --------------------------------------------------------------------------

    async def _begin(self, nursery: trio.Nursery) -> None:
        """Make all links, with their ports first: each of them names those of the others."""
        for broker in self._brokers:
            port = free_port()
            links = BrokerLinks(
                to_controller=_link(self._controller),
                notices=_link(broker.address),
                peers=(
                    _link(broker.address, port=port),
                    _link(_below(broker.address, VIP_DISTANCE), port=port - VIP_DISTANCE),
                ),
                ha=_link(broker.ha_address),
                names=_link(self._name_server),
            )
            self._links.append(links)
        for index, (broker, links) in enumerate(zip(self._brokers, self._links, strict=True)):
            others = [(self._brokers[at], self._links[at]) for at in range(len(self._brokers)) if at != index]
            from_controller = {
                self._controller: links.to_controller.address,
                links.notices.address: broker.address,
                **{other.notices.address: other.peers[0].address for _, other in others},
            }
            announced_ha = {broker.ha_address: links.ha.address}
            own = {broker.address: links.notices.address}
            _replace(links.to_controller, own, from_controller)
            _replace(links.notices, from_controller, own)
            _replace(links.peers[0], {}, announced_ha)
            _replace(
                links.names,
                announced_ha,
                {other.address: other_links.peers[0].address for other, other_links in others},
            )
            for link in links.all:
                await nursery.start(link.serve)


def _link(target: str, *, port: int | None = None) -> Link:
    link = Link()
    host, _, target_port = target.rpartition(":")
    link.target = (host, int(target_port))
    # Given, so that all ports have five digits and are known before the first link serves.
    link.port = free_port() if port is None else port
    return link


def _replace(link: Link, to_target: Mapping[str, str], to_client: Mapping[str, str]) -> None:
    link.words_to_target = {old.encode(): new.encode() for old, new in to_target.items()}
    link.words = {old.encode(): new.encode() for old, new in to_client.items()}


def _below(address: str, distance: int) -> str:
    host, _, port = address.rpartition(":")
    return f"{host}:{int(port) - distance}"


@contextmanager
def partitions(brokers: Sequence[Endpoint], *, controller: str, name_server: str) -> Iterator[Partitions]:
    """Serve the links of these brokers in a thread until the block ends."""
    links = Partitions(brokers, controller=controller, name_server=name_server)
    try:
        yield links
    finally:
        links.close()
