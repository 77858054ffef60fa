"""A client of a cluster: its connections, its route table and its memberships.

```
open_cluster
+- connections          a task each
+- route table          fetches the routes of the topics in use
+- heartbeats           to the brokers of these routes
```

Producers and consumers share one `Cluster`: one connection to each broker, one heartbeat for all groups.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Final

import structlog
import trio

from trioha.client.connections import Connections, Open
from trioha.client.heartbeats import HEARTBEAT_INTERVAL_S, heartbeat, new_client_id, unregistration
from trioha.client.memberships import Consumption, Memberships
from trioha.client.routes import NameServers, RouteTable, SingleBroker
from trioha.errors import ConfigError, PeerError
from trioha.remoting.address import parse_address
from trioha.remoting.client import NO_SECURITY, ClientSecurity
from trioha.remoting.codes import ResponseCode, response_code_name
from trioha.remoting.command import RemotingCommand
from trioha.remoting.route import MessageQueue
from trioha.remoting.subscriptions import Subscription

log = structlog.get_logger(__name__)

REQUEST_TIMEOUT_S: Final = 3.0
LEAVE_TIMEOUT_S: Final = 1.0
"""How long the end of a membership may take: a broker notices the end of the connection, too."""


class Cluster:
    """What producers and consumers of one client share. Made by `open_cluster`."""

    def __init__(
        self, connections: Connections, routes: RouteTable, memberships: Memberships, *, client_id: str
    ) -> None:
        self.connections = connections
        self.routes = routes
        self.client_id = client_id
        self._memberships = memberships

    async def request(
        self, address: str, command: RemotingCommand, *, timeout_s: float = REQUEST_TIMEOUT_S
    ) -> RemotingCommand:
        """Send `command` to the broker at `address`; its response, of any code. Raises PeerError."""
        return await self.connections.request(address, command, timeout_s=timeout_s)

    @asynccontextmanager
    async def producing(self, group: str) -> AsyncIterator[None]:
        """Be a member of a group of producers."""
        producers = self._memberships.producers
        producers[group] += 1
        self._memberships.heartbeat_due.set()
        try:
            yield
        finally:
            producers[group] -= 1
            if not producers[group]:
                del producers[group]
                await self._leave(unregistration(self.client_id, producer_group=group), masters_only=True)

    @asynccontextmanager
    async def consuming(
        self,
        group: str,
        subscriptions: Sequence[Subscription],
        *,
        on_members_changed: Callable[[], None],
        on_reset: Callable[[Mapping[MessageQueue, int]], None],
    ) -> AsyncIterator[None]:
        """Be a member of a group of consumers; all brokers of the known routes know it when this returns.

        `on_members_changed` and `on_reset` are those of `Consumption`.
        """
        consumptions = self._memberships.consumptions
        assert group not in consumptions, "a client consumes once for each group"
        consumptions[group] = Consumption(subscriptions, on_members_changed, on_reset)
        try:
            await self.send_heartbeats()
            yield
        finally:
            del consumptions[group]
            await self._leave(unregistration(self.client_id, consumer_group=group), masters_only=False)

    async def run(self) -> None:
        """Send heartbeats every `HEARTBEAT_INTERVAL_S` and over new connections, until cancelled."""
        while True:
            with trio.move_on_after(HEARTBEAT_INTERVAL_S):
                await self._memberships.heartbeat_due.wait()
            self._memberships.heartbeat_due = trio.Event()
            await self.send_heartbeats()

    async def send_heartbeats(self) -> None:
        """Tell the brokers of all known routes the groups of this client, now."""
        producers = self._memberships.producers
        consumers = {
            group: consumption.subscriptions for group, consumption in self._memberships.consumptions.items()
        }
        if not (producers or consumers):
            return
        command = heartbeat(self.client_id, producers=producers, consumers=consumers)
        await self._send_to_all(command, masters_only=not consumers, timeout_s=REQUEST_TIMEOUT_S)

    async def _leave(self, command: RemotingCommand, *, masters_only: bool) -> None:
        with trio.CancelScope(shield=True):
            await self._send_to_all(command, masters_only=masters_only, timeout_s=LEAVE_TIMEOUT_S)

    async def _send_to_all(self, command: RemotingCommand, *, masters_only: bool, timeout_s: float) -> None:
        addresses = {
            address for route in self.routes.routes for address in route.addresses(masters_only=masters_only)
        }

        async def send(address: str) -> None:
            try:
                answer = await self.request(address, command, timeout_s=timeout_s)
            except PeerError as error:
                log.debug("broker not reached", address=address, code=command.code, reason=error.reason)
                return
            if answer.code != ResponseCode.SUCCESS:
                log.warning(
                    "request refused",
                    address=address,
                    request=command.code,
                    answer=response_code_name(answer.code),
                    remark=answer.remark,
                )

        with trio.move_on_after(timeout_s):
            async with trio.open_nursery() as nursery:
                for address in addresses:
                    nursery.start_soon(send, address)


def parse_name_servers(name_servers: str | Sequence[str]) -> tuple[str, ...]:
    """Addresses of name servers, of a text `host:port;host:port` or of several. Raises ConfigError."""
    texts = [name_servers] if isinstance(name_servers, str) else name_servers
    parts = (part.strip() for text in texts for part in text.replace(",", ";").split(";"))
    addresses = tuple(str(parse_address(part)) for part in parts if part)
    if not addresses:
        raise ConfigError("there is no address of a name server", hint="write HOST:PORT;HOST:PORT")
    return addresses


@asynccontextmanager
async def open_cluster(
    *,
    name_servers: str | Sequence[str] = (),
    broker: SingleBroker | None = None,
    default_topic_queues: int = 4,
    connect_timeout_s: float = 3.0,
    client_id: str | None = None,
    security: ClientSecurity = NO_SECURITY,
    open_connection: Open | None = None,
) -> AsyncIterator[Cluster]:
    """A client of the cluster of `name_servers` (`host:port` each), or of one `broker` without any.

    Errors of the block are not wrapped in a group. Nothing is connected before it is needed. Raises
    ConfigError for an address that cannot be one.
    """
    assert bool(name_servers) != (broker is not None), "name servers or a broker"
    addresses = () if broker else parse_name_servers(name_servers)
    # Connections end after everything else: memberships end by them.
    async with trio.open_nursery() as nursery:
        memberships = Memberships()
        connections = Connections(
            nursery,
            on_request=memberships.receive,
            on_opened=memberships.connected,
            connect_timeout_s=connect_timeout_s,
            security=security,
            open_connection=open_connection,
        )
        source = broker or NameServers(connections, addresses)
        routes = RouteTable(source, default_topic_queues=default_topic_queues)
        cluster = Cluster(connections, routes, memberships, client_id=client_id or new_client_id())
        block_error: Exception | None = None
        nursery.start_soon(routes.run)
        nursery.start_soon(cluster.run)
        try:
            yield cluster
        except Exception as error:  # noqa: BLE001 - raised again below, outside the nursery that would wrap it
            block_error = error
        nursery.cancel_scope.cancel()
    if block_error is not None:
        raise block_error


class ClusterPlace:
    """Where a producer or consumer works: a cluster that others share, or one of its own."""

    def __init__(self, place: Cluster | str | Sequence[str]) -> None:
        """`place`: an open cluster, or name servers. Raises ConfigError for addresses that cannot be ones."""
        self._place = place if isinstance(place, Cluster) else parse_name_servers(place)

    def open(self) -> AbstractAsyncContextManager[Cluster]:
        """The cluster; one that was open stays open after the block."""
        if isinstance(self._place, Cluster):
            return nullcontext(self._place)
        return open_cluster(name_servers=self._place)


@asynccontextmanager
async def in_background(*services: Callable[[], Awaitable[object]]) -> AsyncIterator[None]:
    """Run `services` until the end of the block. Errors of the block are not wrapped in a group."""
    block_error: Exception | None = None
    async with trio.open_nursery() as nursery:
        for service in services:
            nursery.start_soon(service)
        try:
            yield
        except Exception as error:  # noqa: BLE001 - as in open_cluster
            block_error = error
        nursery.cancel_scope.cancel()
    if block_error is not None:
        raise block_error
