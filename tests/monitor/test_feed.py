"""Requests to a node in virtual time, with nodes that a test controls."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import pairwise

import pytest
import trio
from attrs import define, evolve
from structlog.testing import capture_logs

from tests.monitor.builders import MASTER, master
from tests.monitor.fake_node import FakeNode
from trioha.broker_status import BrokerStatus
from trioha.errors import PeerError, RemoteProtocolError
from trioha.net.error_boundary import ErrorBoundary
from trioha_monitor.faults import fault_of_this_program
from trioha_monitor.live import ANSWER_BYTES_PER_S, FeedTimes, watch_node

TIMES = FeedTimes(interval_s=0.2)

Behaviour = Callable[[], Awaitable[BrokerStatus]]


async def answers():
    return master(1000)


async def hangs():
    await trio.sleep_forever()
    raise AssertionError("not reached")


async def talks_nonsense():
    raise RemoteProtocolError("runtime info: no table in it")


@define
class Heard:
    """One word on a node."""

    at_s: float
    status: BrokerStatus | None
    fault: str | None


class Watch:
    """A watched node, and all results of its requests."""

    def __init__(self, node):
        self.node = node
        self.heard: list[Heard] = []

    def hear(self, address, status, fault):
        assert address == MASTER
        self.heard.append(Heard(trio.current_time(), status, fault))

    async def run_for(self, seconds):
        with trio.move_on_after(seconds):
            await watch_node(MASTER, self.hear, TIMES, lambda address, _times: self.node.session(address))

    @property
    def faults(self):
        return [heard.fault for heard in self.heard]


async def test_a_node_gets_one_request_an_interval_and_one_at_a_time(autojump_clock):
    watch = Watch(FakeNode(answers))
    start_s = trio.current_time()
    await watch.run_for(1.95)
    asked_at_s = [round(at_s - start_s, 6) for at_s in watch.node.asked_at_s]
    assert asked_at_s == [round(n * 0.2, 6) for n in range(10)]
    assert watch.node.in_flight_max == 1
    assert [heard.status for heard in watch.heard] == [master(1000)] * 10


async def test_a_stuck_node_is_disconnected_with_the_reason_and_asked_again(autojump_clock):
    watch = Watch(FakeNode(hangs))
    start_s = trio.current_time()
    await watch.run_for(10.1)
    assert watch.faults == ["no answer within 1 s"] * 5
    assert [heard.at_s - start_s for heard in watch.heard] == [1, 2.25, 3.75, 5.75, 8.75]
    assert watch.node.in_flight_max == 1


async def test_a_slow_node_is_asked_less_often_and_never_twice_at_once(autojump_clock):
    async def slowly():
        await trio.sleep(0.7)
        return master(1000)

    watch = Watch(FakeNode(slowly))
    await watch.run_for(7.05)
    assert (len(watch.node.asked_at_s), watch.node.in_flight_max) == (11, 1)
    assert len(watch.node.connected_at_s) == 1
    assert watch.faults == [None] * 10


async def test_a_node_that_refuses_is_tried_again_after_two_seconds_at_most(autojump_clock):
    watch = Watch(FakeNode(answers, connects=False))
    start_s = trio.current_time()
    await watch.run_for(9.0)
    assert [at_s - start_s for at_s in watch.node.connected_at_s] == [0, 0.25, 0.75, 1.75, 3.75, 5.75, 7.75]
    assert set(watch.faults) == {"Connection refused"}


async def test_a_node_that_answers_again_resets_the_back_off(autojump_clock):
    node = FakeNode(answers, connects=False)
    watch = Watch(node)
    start_s = trio.current_time()

    async def loses_its_connection():
        raise PeerError("the peer closed the connection", address=MASTER)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch.run_for, 30.0)
        await trio.sleep(5.0)
        assert watch.heard[-1].fault == "Connection refused"
        node.connects = True
        await trio.sleep(5.0)
        assert next(heard.at_s for heard in watch.heard if heard.status) - start_s == 5.75
        node.behaviour = loses_its_connection
        await trio.sleep(0.5)
        assert watch.heard[-1].fault == "the peer closed the connection"
        # Lost within an interval after 10.0, and connected again after the shortest pause.
        assert 10.25 <= node.connected_at_s[-1] - start_s <= 10.45
        node.behaviour = answers
        await trio.sleep(1.0)
        assert watch.heard[-1].status == master(1000)
        nursery.cancel_scope.cancel()


async def test_a_malformed_answer_is_a_reason_and_not_a_crash(autojump_clock):
    watch = Watch(FakeNode(talks_nonsense))
    await watch.run_for(20.0)
    assert set(watch.faults) == {"runtime info: no table in it"}
    connected_at_s = watch.node.connected_at_s
    assert max(after - before for before, after in pairwise(connected_at_s)) <= 2.0


async def test_a_bug_ends_the_connection_only_and_is_logged_once_a_minute(autojump_clock):
    async def is_broken():
        raise ZeroDivisionError("boom")

    boundary = ErrorBoundary("monitor feed", clock=trio.current_time)
    watch = Watch(FakeNode(is_broken))
    with capture_logs() as logged:
        with trio.move_on_after(100):
            await watch_node(
                MASTER, watch.hear, TIMES, lambda _a, _t: watch.node.session(MASTER), boundary=boundary
            )
        assert watch.node.open_sessions == 0
    assert set(watch.faults) == {fault_of_this_program(ZeroDivisionError("boom"))}
    assert boundary.bugs == len(watch.faults) > 40
    assert [line["event"] for line in logged] == ["monitor feed closed by a fault of this program"] * 2
    assert {line["peer"] for line in logged} == {MASTER}


async def test_a_bug_in_the_listener_ends_the_connection_only(autojump_clock):
    node = FakeNode(answers)
    heard = []

    def hear(_address, status, fault):
        heard.append(fault)
        if status is not None:
            raise ValueError("cannot be shown")

    with trio.move_on_after(10), capture_logs():
        await watch_node(MASTER, hear, TIMES, lambda address, _times: node.session(address))
    assert node.open_sessions == 0
    assert set(heard) == {None, fault_of_this_program(ValueError("cannot be shown"))}


async def test_a_node_whose_answers_are_large_is_asked_less_often(autojump_clock):
    async def at_length():
        return evolve(master(1000), answer_bytes=2 * ANSWER_BYTES_PER_S)

    watch = Watch(FakeNode(at_length))
    start_s = trio.current_time()
    await watch.run_for(5.0)
    assert [at_s - start_s for at_s in watch.node.asked_at_s] == [0, 2, 4]


@pytest.mark.parametrize("behaviour", [answers, hangs])
async def test_a_watch_that_is_cancelled_closes_its_connection(behaviour, autojump_clock):
    node = FakeNode(behaviour)
    await Watch(node).run_for(0.5)
    assert (len(node.connected_at_s), node.open_sessions) == (1, 0)
