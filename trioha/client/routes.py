"""The route table: which brokers have which queues of the topics in use, kept up to date.

See docs/protocol/remoting.md#java-clients.

A route comes from a source: name servers, or one broker without any. It is fetched when a topic is first
used, again every `REFRESH_INTERVAL_S`, and when a request shows that it is out of date.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol, TypeVar

import structlog
import trio
from attrs import evolve, frozen

from trioha.client.answers import check
from trioha.client.connections import Connections
from trioha.errors import PeerError, RemoteProtocolError
from trioha.remoting.codes import RequestCode, ResponseCode
from trioha.remoting.command import RemotingCommand, request
from trioha.remoting.name_server import BrokerGroup, parse_broker_groups
from trioha.remoting.route import MASTER_ID, READ, WRITE, QueueData, TopicRoute, parse_route
from trioha.remoting.send_message import DEFAULT_TOPIC
from trioha.store.topics import RETRY_TOPIC_PREFIX

log = structlog.get_logger(__name__)

T = TypeVar("T")

REFRESH_INTERVAL_S: Final = 30.0
TOPICS_MAX: Final = 4096
"""Of more topics, the one whose route was fetched longest ago is dropped."""
NAME_SERVER_TIMEOUT_S: Final = 3.0


class TopicNotFoundError(PeerError):
    """No broker has the topic."""


class RouteSource(Protocol):
    """Where routes come from."""

    async def fetch(self, topic: str) -> TopicRoute | None:
        """The route of `topic`, None if there is no such topic. Raises PeerError without an answer."""
        ...

    async def broker_groups(self) -> tuple[BrokerGroup, ...]:
        """All brokers. Raises PeerError without an answer."""
        ...

    async def forget(self, topic: str, /) -> None:
        """Drop the route of a topic that its brokers have deleted. Raises PeerError if one does not."""
        ...

    def __str__(self) -> str: ...


class NameServers:
    """Several name servers with the same routes: the next one is asked when one does not answer."""

    def __init__(self, connections: Connections, addresses: Sequence[str]) -> None:
        assert addresses, "there is a name server"
        self._connections = connections
        self._addresses = list(addresses)

    def __str__(self) -> str:
        return ";".join(self._addresses)

    async def fetch(self, topic: str) -> TopicRoute | None:
        """As `RouteSource.fetch`; `topic` is unknown if the first name server that answers does not know
        it."""

        def route(answer: RemotingCommand, address: str) -> TopicRoute | None:
            if answer.code == ResponseCode.TOPIC_NOT_EXIST:
                return None
            check(answer, address, f"the route of {topic}")
            return parse_route(answer.body)

        return await self._ask(
            request(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext_fields={"topic": topic}), route
        )

    async def broker_groups(self) -> tuple[BrokerGroup, ...]:
        """As `RouteSource.broker_groups`."""

        def groups(answer: RemotingCommand, address: str) -> tuple[BrokerGroup, ...]:
            check(answer, address, "the list of brokers")
            return parse_broker_groups(answer.body)

        return await self._ask(request(RequestCode.GET_BROKER_CLUSTER_INFO), groups)

    async def forget(self, topic: str) -> None:
        """As `RouteSource.forget`, of each name server."""
        asked = request(RequestCode.DELETE_TOPIC_IN_NAMESRV, ext_fields={"topic": topic})
        for address in list(self._addresses):
            answer = await self._connections.request(address, asked, timeout_s=NAME_SERVER_TIMEOUT_S)
            check(answer, address, f"the deletion of {topic}")

    async def _ask(self, asked: RemotingCommand, read: Callable[[RemotingCommand, str], T]) -> T:
        """What `read` makes of the first usable answer. Raises the last PeerError without any."""
        failure: PeerError | None = None
        for address in list(self._addresses):
            try:
                return read(
                    await self._connections.request(address, asked, timeout_s=NAME_SERVER_TIMEOUT_S), address
                )
            except PeerError as error:
                failure = error
            except RemoteProtocolError as error:
                failure = PeerError(str(error), address=address)
            # The others are asked first from now on.
            self._addresses.remove(address)
            self._addresses.append(address)
        assert failure is not None, "there is a name server"
        raise failure


@frozen
class SingleBroker:
    """A broker that is used without a name server: it has all topics, each with so many queues.

    Retry topics have one.
    """

    address: str
    queues: int = 4

    def __str__(self) -> str:
        return self.address

    async def fetch(self, topic: str) -> TopicRoute | None:
        """As `RouteSource.fetch`: always a route."""
        await trio.lowlevel.checkpoint()
        queues = 1 if topic.startswith(RETRY_TOPIC_PREFIX) else self.queues
        data = QueueData(self.address, queues, queues, READ | WRITE)
        return TopicRoute({self.address: {MASTER_ID: self.address}}, (data,))

    async def broker_groups(self) -> tuple[BrokerGroup, ...]:
        """As `RouteSource.broker_groups`: this one, which counts as a master of its address's name."""
        await trio.lowlevel.checkpoint()
        return (BrokerGroup("", self.address, {MASTER_ID: self.address}),)

    async def forget(self, _topic: str) -> None:
        """As `RouteSource.forget`: there is no route but the broker's own."""
        await trio.lowlevel.checkpoint()


class RouteTable:
    """Routes of the topics in use. Run it to keep them up to date."""

    def __init__(self, source: RouteSource, *, default_topic_queues: int = 4) -> None:
        """`default_topic_queues`: queues on each broker of a topic that a first send creates."""
        self._source = source
        self._default_topic_queues = default_topic_queues
        self._routes: dict[str, TopicRoute] = {}
        """By topic, the one fetched last at the end."""
        self._defaults: dict[str, TopicRoute] = {}
        """Routes for sends to topics that are not known yet."""
        self._fetching = trio.Lock()

    @property
    def source(self) -> str:
        """Where routes come from, for messages."""
        return str(self._source)

    async def broker_groups(self) -> tuple[BrokerGroup, ...]:
        """All brokers of the source. Raises PeerError without an answer."""
        return await self._source.broker_groups()

    async def forget(self, topic: str) -> None:
        """Drop a topic that its brokers have deleted, here and at the source. Raises PeerError."""
        self._routes.pop(topic, None)
        self._defaults.pop(topic, None)
        await self._source.forget(topic)

    @property
    def routes(self) -> Iterable[TopicRoute]:
        """The routes that are known."""
        return (*self._routes.values(), *self._defaults.values())

    async def find(self, topic: str) -> TopicRoute:
        """The route of `topic`. Raises TopicNotFoundError, or PeerError without an answer."""
        route = self._routes.get(topic)
        return await self.fetch(topic) if route is None else route

    async def fetch(self, topic: str) -> TopicRoute:
        """The route of `topic` as it is now. Raises as `find`; a route that was known is kept then."""
        async with self._fetching:
            route = await self._source.fetch(topic)
        if route is None:
            raise TopicNotFoundError(
                f"there is no topic {topic}", address=str(self._source), code=ResponseCode.TOPIC_NOT_EXIST
            )
        self._defaults.pop(topic, None)
        _put(self._routes, topic, route)
        return route

    async def find_to_send(self, topic: str) -> TopicRoute:
        """As `find`; for an unknown topic the brokers that create topics, with the queues it will have."""
        known = self._routes.get(topic) or self._defaults.get(topic)
        if known is not None:
            return known
        try:
            return await self.fetch(topic)
        except TopicNotFoundError:
            model = await self._source.fetch(DEFAULT_TOPIC)
            if model is None:
                raise
        count = self._default_topic_queues
        route = evolve(
            model,
            queues=tuple(
                evolve(
                    data,
                    read_queues=min(count, data.read_queues),
                    write_queues=min(count, data.write_queues),
                )
                for data in model.queues
            ),
        )
        _put(self._defaults, topic, route)
        return route

    async def run(self) -> None:
        """Fetch the known routes every `REFRESH_INTERVAL_S`, until cancelled."""
        while True:
            await trio.sleep(REFRESH_INTERVAL_S)
            for topic in (*self._routes, *self._defaults):
                try:
                    await self.fetch(topic)
                except PeerError as error:
                    # The route may still be right; requests show it if not.
                    log.debug("route not refreshed", topic=topic, reason=error.reason)


def _put(table: dict[str, TopicRoute], topic: str, route: TopicRoute) -> None:
    table.pop(topic, None)
    table[topic] = route
    if len(table) > TOPICS_MAX:
        del table[next(iter(table))]
