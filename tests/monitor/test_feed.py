"""The feed in virtual time, with nodes that do whatever a test tells them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import trio
from attrs import define, field

from tests.monitor.builders import MASTER, SLAVE, master
from trioha.errors import PeerError, RemoteProtocolError
from trioha.remoting.status import BrokerStatus
from trioha_monitor.feed import Ask, Feed, FeedTimes, live_feed
from trioha_monitor.model import Health, NodeView, Snapshot

Behaviour = Callable[[], Awaitable[BrokerStatus]]


async def answers() -> BrokerStatus:
    return master(1000)


async def hangs() -> BrokerStatus:
    await trio.sleep_forever()
    raise AssertionError("not reached")


async def talks_nonsense() -> BrokerStatus:
    raise RemoteProtocolError("runtime info: no table in it")


@define
class FakeNode:
    """Counts what is asked of it; `connects` and `behaviour` may change while it is watched."""

    behaviour: Behaviour = answers
    connects: bool = True
    asked_at_s: list[float] = field(factory=list)
    connected_at_s: list[float] = field(factory=list)
    in_flight: int = 0
    in_flight_max: int = 0
    open_sessions: int = 0

    @asynccontextmanager
    async def session(self, address: str) -> AsyncIterator[Ask]:
        self.connected_at_s.append(trio.current_time())
        if not self.connects:
            raise PeerError("cannot connect: Connection refused", address=address)
        self.open_sessions += 1
        assert self.open_sessions == 1, "one connection a node"
        try:
            yield self._ask
        finally:
            self.open_sessions -= 1

    async def _ask(self) -> BrokerStatus:
        self.asked_at_s.append(trio.current_time())
        self.in_flight += 1
        self.in_flight_max = max(self.in_flight_max, self.in_flight)
        try:
            return await self.behaviour()
        finally:
            self.in_flight -= 1


class Watch:
    """A feed over fake nodes, and the last snapshot that it published."""

    def __init__(self, nodes: dict[str, FakeNode], *, addresses: list[str] | None = None) -> None:
        self.snapshots: list[Snapshot] = []
        self.feed: Feed = live_feed(
            addresses or list(nodes),
            times=FeedTimes(),
            open_session=lambda address, _times: nodes[address].session(address),
        )

    def node(self, address: str = MASTER) -> NodeView:
        return next(node for node in self.snapshots[-1].nodes if node.address == address)

    async def run_for(self, seconds: float) -> None:
        with trio.move_on_after(seconds):
            await self.feed(self.snapshots.append)


async def test_a_node_is_asked_five_times_a_second_one_question_at_a_time(autojump_clock: object) -> None:
    node = FakeNode()
    watch = Watch({MASTER: node})
    start_s = trio.current_time()
    await watch.run_for(1.95)
    assert [round(at_s - start_s, 6) for at_s in node.asked_at_s] == [round(n * 0.2, 6) for n in range(10)]
    assert node.in_flight_max == 1
    assert watch.node().health is Health.UP


async def test_a_snapshot_comes_five_times_a_second_whatever_the_nodes_do(
    autojump_clock: object,
) -> None:
    watch = Watch({MASTER: FakeNode(behaviour=hangs)})
    await watch.run_for(1.95)
    assert len(watch.snapshots) == 10


async def test_a_stuck_node_is_down_with_the_reason_and_disturbs_no_other(autojump_clock: object) -> None:
    stuck, sound = FakeNode(behaviour=hangs), FakeNode()
    watch = Watch({MASTER: stuck, SLAVE: sound})
    await watch.run_for(10.1)
    assert (watch.node(MASTER).health, watch.node(MASTER).reason) == (Health.DOWN, "no answer within 1 s")
    assert watch.node(SLAVE).health is Health.UP
    assert len(sound.asked_at_s) == 51
    assert stuck.in_flight_max == 1


async def test_a_slow_node_is_asked_less_often_and_never_twice_at_once(autojump_clock: object) -> None:
    async def slowly() -> BrokerStatus:
        await trio.sleep(0.7)
        return master(1000)

    node = FakeNode(behaviour=slowly)
    watch = Watch({MASTER: node})
    await watch.run_for(7.05)
    assert (len(node.asked_at_s), node.in_flight_max) == (11, 1)
    assert len(node.connected_at_s) == 1
    assert watch.node().health is Health.UP


async def test_a_node_that_refuses_is_tried_again_after_two_seconds_at_most(
    autojump_clock: object,
) -> None:
    node = FakeNode(connects=False)
    watch = Watch({MASTER: node})
    start_s = trio.current_time()
    await watch.run_for(9.0)
    assert [at_s - start_s for at_s in node.connected_at_s] == [0, 0.25, 0.75, 1.75, 3.75, 5.75, 7.75]
    assert (watch.node().health, watch.node().reason) == (Health.DOWN, "Connection refused")


async def test_a_node_that_comes_back_is_picked_up_and_the_pauses_begin_anew(autojump_clock: object) -> None:
    node = FakeNode(connects=False)
    watch = Watch({MASTER: node})
    start_s = trio.current_time()

    async def loses_its_connection() -> BrokerStatus:
        raise PeerError("the peer closed the connection", address=MASTER)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch.run_for, 30.0)
        await trio.sleep(5.0)
        assert watch.node().health is Health.DOWN
        node.connects = True
        await trio.sleep(5.0)
        assert watch.node().health is Health.UP
        assert watch.node().for_s == pytest.approx(10.0 - 5.75, abs=0.25)
        node.behaviour = loses_its_connection
        await trio.sleep(0.5)
        assert watch.node().reason == "the peer closed the connection"
        assert node.connected_at_s[-1] - start_s == pytest.approx(10.35, abs=0.11)
        node.behaviour = answers
        await trio.sleep(1.0)
        assert watch.node().health is Health.UP
        nursery.cancel_scope.cancel()


async def test_nonsense_is_a_reason_and_not_a_crash(autojump_clock: object) -> None:
    node = FakeNode(behaviour=talks_nonsense)
    watch = Watch({MASTER: node})
    await watch.run_for(20.0)
    assert (watch.node().health, watch.node().reason) == (Health.DOWN, "runtime info: no table in it")
    gaps = [
        after - before for before, after in zip(node.connected_at_s, node.connected_at_s[1:], strict=False)
    ]
    assert max(gaps) <= 2.0


async def test_an_address_that_is_named_twice_is_one_node(autojump_clock: object) -> None:
    node = FakeNode()
    watch = Watch({MASTER: node}, addresses=[MASTER, MASTER])
    await watch.run_for(1.0)
    assert len(node.connected_at_s) == 1
    assert len(watch.snapshots[-1].nodes) == 1


async def test_a_bug_in_the_feed_is_raised_and_not_shown_as_a_down_node(autojump_clock: object) -> None:
    async def is_broken() -> BrokerStatus:
        raise ZeroDivisionError

    watch = Watch({MASTER: FakeNode(behaviour=is_broken)})
    with pytest.RaisesGroup(ZeroDivisionError, flatten_subgroups=True):
        await watch.run_for(5.0)


async def test_a_cancelled_feed_closes_its_connections(autojump_clock: object) -> None:
    nodes = {MASTER: FakeNode(), SLAVE: FakeNode(behaviour=hangs)}
    await Watch(nodes).run_for(0.5)
    assert [node.open_sessions for node in nodes.values()] == [0, 0]
