"""The live source in virtual time, with fake nodes and name servers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import asynccontextmanager

import trio
from attrs import define, evolve, field

from tests.monitor.builders import MASTER, SLAVE, connection, master, slave
from trioha.broker_status import BrokerStatus
from trioha.errors import PeerError
from trioha.remoting.name_server import BrokerGroup
from trioha_monitor.live import LiveSettings, live_views
from trioha_monitor.view import ClusterView, EventKind, Health

NAMES = "127.0.0.1:9876"


@define
class World:
    """Nodes by address, and what the name server lists; None for one that cannot be reached."""

    nodes: dict[str, Callable[[], BrokerStatus]] = field(factory=dict)
    listed: Mapping[int, str] | None = None
    wall_ms: int = 1_700_000_000_000
    asked: list[str] = field(factory=list)
    views: list[ClusterView] = field(factory=list)

    @asynccontextmanager
    async def open_session(self, address, times):
        self.asked.append(address)

        async def ask():
            await trio.sleep(0.001)
            if address not in self.nodes:
                raise PeerError("the peer closed the connection", address=address)
            return self.nodes[address]()

        if address not in self.nodes:
            raise PeerError("cannot connect: Connection refused", address=address)
        yield ask

    @asynccontextmanager
    async def open_names(self, address, times):
        async def ask():
            await trio.sleep(0.001)
            if self.listed is None:
                raise PeerError("no answer", address=address)
            return (BrokerGroup("c", "broker-a", self.listed),)

        yield ask

    def settings(self):
        start_s = trio.current_time()
        return LiveSettings(
            open_session=self.open_session,
            open_names=self.open_names,
            wall_ms=lambda: self.wall_ms + round((trio.current_time() - start_s) * 1000),
        )

    @property
    def now(self):
        return self.views[-1]

    def texts(self, kind):
        return [event.text for event in self.now.events if event.kind is kind]


@asynccontextmanager
async def watching(world, *addresses, name_servers=()):
    async with trio.open_nursery() as nursery:
        feed = live_views(addresses, name_servers=name_servers, settings=world.settings())
        nursery.start_soon(feed, world.views.append)
        yield
        nursery.cancel_scope.cancel()


async def test_ten_views_a_second_of_nodes_that_are_asked_ten_times_a_second(autojump_clock):
    told = []

    def answer():
        told.append(trio.current_time())
        return master(1000, connection("10.0.0.1:1", sent=1000, ack=1000, lag=0))

    world = World({MASTER: answer, SLAVE: lambda: slave(1000)})
    async with watching(world, MASTER, SLAVE):
        await trio.sleep(2.05)
    assert len(world.views) == 21
    assert len(told) == 21
    assert [node.health for node in world.now.nodes] == [Health.UP, Health.UP]
    assert [row.address for row in world.now.replicas] == ["10.0.0.1:1"]
    assert world.now.time_ms - world.views[0].time_ms == 2000


async def test_brokers_are_found_by_the_name_server_and_followed(autojump_clock):
    world = World({MASTER: lambda: master(1000), SLAVE: lambda: slave(1000)}, {0: MASTER})
    async with watching(world, name_servers=(NAMES,)):
        await trio.sleep(1)
        assert [node.address for node in world.now.nodes] == [MASTER]
        assert world.now.name_servers[0].health is Health.UP
        world.listed = {0: MASTER, 1: SLAVE}
        await trio.sleep(4)
        assert [(node.address, node.health) for node in world.now.nodes] == [
            (MASTER, Health.UP),
            (SLAVE, Health.UP),
        ]
        # A dead node that is no longer listed is shown as down, and dropped after five minutes.
        del world.nodes[SLAVE]
        world.listed = {0: MASTER}
        await trio.sleep(10)
        assert world.now.nodes[1].health is Health.DOWN
        await trio.sleep(310)
        assert [node.address for node in world.now.nodes] == [MASTER]
        asked = len(world.asked)
        await trio.sleep(30)
        assert len(world.asked) == asked
    assert world.texts(EventKind.NODE) == [
        "found by the name server",
        "answers: SYNC_MASTER trioha 0.1.0",
        "found by the name server",
        "answers: SLAVE trioha 0.1.0",
        "no longer answers: the peer closed the connection",
        "no longer listed by the name server",
    ]


async def test_a_name_server_that_is_gone_changes_nothing_but_its_own_line(autojump_clock):
    world = World({MASTER: lambda: master(1000)}, {0: MASTER})
    async with watching(world, name_servers=(NAMES,)):
        await trio.sleep(1)
        world.listed = None
        await trio.sleep(10)
        (name_server,) = world.now.name_servers
        assert (name_server.health, name_server.reason) == (Health.DOWN, "no answer")
        assert 10 < name_server.age_s < 11.1
        assert [node.health for node in world.now.nodes] == [Health.UP]
        world.listed = {0: MASTER}
        await trio.sleep(5)
        assert world.now.name_servers[0].health is Health.UP
    assert world.texts(EventKind.NODE)[2:] == [
        "name server does not answer: no answer",
        "name server answers again",
    ]


async def test_a_wall_clock_that_is_set_is_an_event_and_no_age_is_negative(autojump_clock):
    world = World({MASTER: lambda: master(1000, connection("10.0.0.1:1", sent=9, ack=9, lag=991))})
    async with watching(world, MASTER):
        await trio.sleep(1)
        world.wall_ms -= 3_600_000
        await trio.sleep(1)
        world.wall_ms += 7_200_000
        await trio.sleep(1.05)
    assert world.texts(EventKind.CLOCK) == [
        "this machine's wall clock was set back by 3600.0 s",
        "this machine's wall clock was set ahead by 7200.0 s",
    ]
    times = [view.time_ms for view in world.views]
    assert times == sorted(times)
    assert times[-1] - times[0] == 3000
    assert all(row.for_s >= 0 and row.age_s >= 0 for view in world.views for row in view.replicas)


async def test_a_node_that_is_named_and_listed_is_asked_once(autojump_clock):
    world = World({MASTER: lambda: evolve(master(1000))}, {0: MASTER})
    async with watching(world, MASTER, MASTER, name_servers=(NAMES,)):
        await trio.sleep(5)
    assert world.asked == [MASTER]
