"""A hostile node beside an honest one: against the live feed, and against the running application."""

from __future__ import annotations

import asyncio
from itertools import cycle

import trio
from attrs import evolve
from rich.cells import cell_len
from textual.pilot import Pilot

from tests.monitor.hostile_node import TEXTS, Answer, answer_to, answers, speaking
from tests.monitor.test_feed_loopback import each_request, listening, status_of
from trioha.remoting.codes import RequestCode
from trioha.remoting.command import RemotingCommand
from trioha_monitor.app import MonitorApp
from trioha_monitor.faults import BORDER
from trioha_monitor.live import FeedTimes, LiveSettings, live_views
from trioha_monitor.texts import clean
from trioha_monitor.timeline import EVENTS_MAX
from trioha_monitor.view import ClusterView, Health, Show, ViewFeed

TIMES = FeedTimes(
    interval_s=0.001, refresh_s=0.02, request_timeout_s=20.0, back_off_s_min=0.001, back_off_s_max=0.001
)

SLOWER = evolve(TIMES, interval_s=0.05, refresh_s=0.1)

CONNECTED = {Health.UP, Health.LATE}
"""On a busy machine an answer may take longer than a second; a node whose connection ended is DOWN."""


class HostileNode:
    """Answers each request for its status with the next body, in a cycle."""

    def __init__(self, told: list[Answer]) -> None:
        self.told = 0
        self.all_told = trio.Event()
        """Set when it begins anew."""
        self.say(told)

    def say(self, told: list[Answer]) -> None:
        """Answer so from now on."""
        self._told, self._count = cycle(told), len(told)

    async def serve(self, stream: trio.SocketStream) -> None:
        """One connection of the monitor's."""
        current: Answer = {}

        def answer(command: RemotingCommand) -> bytes:
            nonlocal current
            if command.code == RequestCode.GET_BROKER_HA_STATUS:
                self.told += 1
                if self.told > self._count:
                    self.all_told.set()
                current = next(self._told)
            return answer_to(command, current)

        await each_request(stream, answer)


async def honest(stream: trio.SocketStream) -> None:
    await each_request(stream, status_of)


async def test_a_hostile_answer_ends_its_own_connection_only() -> None:
    told = list(answers(7, count=250))
    node = HostileNode(told)
    bugs, healths, faults = BORDER.bugs, set(), set()
    views: list[ClusterView] = []

    def show(view: ClusterView) -> None:
        good, bad = view.nodes
        healths.add(good.health)
        faults.update(bad.faults)
        views[:] = [view]
        assert_bounded_and_clean(view)

    async with listening(honest) as good, listening(node.serve) as bad, trio.open_nursery() as nursery:
        feed = live_views([f"127.0.0.1:{good}", f"127.0.0.1:{bad}"], settings=LiveSettings(times=TIMES))
        nursery.start_soon(feed, show)
        with trio.fail_after(100):
            await node.all_told.wait()
        nursery.cancel_scope.cancel()
    assert healths <= CONNECTED | {Health.CONNECTING}
    assert views[0].nodes[0].health in CONNECTED
    assert len(faults) > 10
    assert BORDER.bugs == bugs


def assert_bounded_and_clean(view: ClusterView) -> None:
    assert len(view.events) <= EVENTS_MAX
    assert len(view.replicas) <= 2 * 600
    for node in view.nodes:
        texts = [node.label, node.role, node.cluster, node.version, node.ha_address, node.reason]
        texts += [put.status for put in node.log.puts]
        texts += [*node.ended_connections, *node.warnings, *node.faults]
        texts += [f"{probe.host} {probe.reason}" for probe in node.probes]
        assert all(text == clean(text, length_max=400) for text in texts)
        assert max(len(node.log.puts), len(node.ended_connections), len(node.warnings)) <= 60
        assert len(node.faults) <= 33


def test_no_hostile_text_ends_the_application_or_leaves_its_cell() -> None:
    node = HostileNode([speaking(TEXTS[0])])
    bugs = BORDER.bugs
    app = MonitorApp(feed_with(node, honest_ports := []))

    async def run() -> None:
        async with app.run_test(size=(120, 40)) as pilot:
            for text in TEXTS:
                node.say([speaking(text)])
                # A view with the answers to the next two requests follows.
                until, before = node.told + 2, app.monitor_screen.view
                while node.told < until or (view := app.monitor_screen.view) is None or view is before:
                    await pilot.pause(0.01)
                for key in "1234":
                    await pilot.press(key)
                    app.monitor_screen.redraw()
                    await pilot.pause()
                    assert_drawn_in_cells(pilot, size=(120, 40))
                honest_node = view.node(f"127.0.0.1:{honest_ports[0]}")
                assert honest_node is not None
                assert honest_node.health in CONNECTED
                assert honest_node.log.max_offset == 5000
            assert app.is_running

    asyncio.run(run())
    assert (app.failure, app.crash, app.return_code or 0) == (None, None, 0)
    assert BORDER.bugs == bugs


def feed_with(node: HostileNode, honest_ports: list[int]) -> ViewFeed:
    """The live feed of `node`, which is the first and so the chosen one, and of an honest node."""

    async def feed(show: Show) -> None:
        async with listening(honest) as good, listening(node.serve) as bad:
            honest_ports.append(good)
            addresses = [f"127.0.0.1:{bad}", f"127.0.0.1:{good}"]
            await live_views(addresses, settings=LiveSettings(times=SLOWER))(show)

    return feed


def assert_drawn_in_cells(pilot: Pilot[None], *, size: tuple[int, int]) -> None:
    """Every line of the screen is as wide as the screen, and nothing in it is more than a character."""
    width, height = size
    strips = pilot.app.screen._compositor.render_strips()
    assert len(strips) == height
    for strip in strips:
        text = strip.text
        assert text.isprintable(), ascii(text)
        assert strip.cell_length == cell_len(text) == sum(map(cell_len, text)) == width
