"""The monitor's live source on real brokers, found through a real name server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from attrs import evolve

from tests.interop.java import JavaDriver
from tests.interop.name_server import name_server
from tests.interop.rocketmq import is_5
from tests.interop.test_java_master import sync_settings
from tests.node_process import ANSWER_WITHIN_S, WITHIN_S, TriohaNode, load
from trioha.remoting.client import open_client
from trioha.remoting.name_server import fetch_broker_groups
from trioha_monitor.app import MonitorApp
from trioha_monitor.live import LIVE_TIMES, LiveSettings, live_views
from trioha_monitor.panes.events import EventsPane
from trioha_monitor.panes.log import LogPane
from trioha_monitor.panes.replicas import ReplicasPane
from trioha_monitor.panes.slave import SlavePane
from trioha_monitor.view import ClusterView, EventKind, Health, Verdict

pytestmark = [pytest.mark.interop, pytest.mark.process]

SETTINGS = LiveSettings(
    # A JVM that has just started on a busy machine takes its time over a first answer.
    times=evolve(LIVE_TIMES, connect_timeout_s=ANSWER_WITHIN_S, request_timeout_s=ANSWER_WITHIN_S),
    discovery_interval_s=0.5,
)


def view_that(is_so: Callable[[ClusterView], bool], names: str, *addresses: str) -> ClusterView:
    """The first view of these sources that is as wanted."""

    async def watch() -> ClusterView:
        views: list[ClusterView] = []
        found = trio.Event()

        def show(view: ClusterView) -> None:
            views.append(view)
            if is_so(view):
                found.set()

        async with trio.open_nursery() as nursery:
            feed = live_views(addresses, name_servers=[names], settings=SETTINGS)
            nursery.start_soon(feed, show)
            with trio.move_on_after(WITHIN_S):
                await found.wait()
            nursery.cancel_scope.cancel()
        assert found.is_set(), f"never so; at last: {views[-1]} {views[-1].events}"
        return next(view for view in views if is_so(view))

    return trio.run(watch)


def test_real_brokers_are_found_through_a_real_name_server_and_shown(
    java: JavaDriver, start_node: Callable[..., TriohaNode], tmp_path: Path
) -> None:
    with name_server(java.version, folder=tmp_path / "names") as names:

        async def groups() -> object:
            async with open_client(names) as client:
                return await fetch_broker_groups(client)

        assert trio.run(groups) == ()
        broker = java.open_broker(
            tmp_path / "broker", role="SYNC_MASTER", namesrvAddr=names, **sync_settings(java)
        )
        slave = start_node("slave", role="SLAVE", ha_master_address=broker.ha_address)
        load(broker.listen_address, 50)
        slave.wait(max_offset=broker.max_offset)
        end = broker.max_offset

        def is_followed(view: ClusterView) -> bool:
            master = next((node for node in view.nodes if node.address == broker.listen_address), None)
            return (
                # Answers come one by one: the slave's own word makes a row before its master is found.
                master is not None
                and master.limits.are_reported
                and master.log.disk_ratio is not None
                and bool(view.replicas)
                and view.replicas[0].diff_bytes is not None
                and view.replicas[0].node is not None
                and view.replicas[0].ack_offset == end
                and view.replicas[0].verdict is Verdict.OK
                # Between two answers that are far apart, a node is LATE.
                and all(source.health is Health.UP for source in (*view.nodes, *view.name_servers))
            )

        view = view_that(is_followed, names, slave.listen_address)
        by_address = {node.address: node for node in view.nodes}
        master = by_address[broker.listen_address]
        assert (master.health, master.role, master.cluster, master.broker_id) == (
            Health.UP,
            "SYNC_MASTER",
            "interop",
            0,
        )
        assert master.version == "V" + java.version.replace(".", "_")
        assert master.source == ("28" if not is_5(java.version) else "907")
        assert (master.limits.are_reported, master.log.max_offset) == (True, end)
        assert master.log.disk_ratio is not None
        (row,) = view.replicas
        # 4.9.7 lists no slaves: the slave's own end stands for its ack.
        assert (row.node, row.master, row.diff_bytes) == (slave.listen_address, broker.listen_address, 0)
        assert view.name_servers[0].health is Health.UP
        found = [event for event in view.events if event.text == "found by the name server"]
        assert [event.kind for event in found] == [EventKind.NODE]
        asyncio.run(
            look_at_screens(names, slave, version=java.version, broker=broker.listen_address, end=end)
        )


async def look_at_screens(names: str, slave: TriohaNode, *, version: str, broker: str, end: int) -> None:
    """The same on the screens themselves: what an operator reads, before and after the slave is killed."""
    app = MonitorApp(live_views([slave.listen_address], name_servers=[names], settings=SETTINGS))
    async with app.run_test(size=(200, 50)) as pilot:
        panes = app.monitor_screen.panes
        replicas, slave_pane, log, events = (panes[name] for name in ("replicas", "slave", "log", "events"))
        assert isinstance(replicas, ReplicasPane)
        assert isinstance(slave_pane, SlavePane)
        assert isinstance(log, LogPane)
        assert isinstance(events, EventsPane)

        async def until(shown: Callable[[], list[str]], *texts: str) -> None:
            async with asyncio.timeout(WITHIN_S):
                while not all(text in "\n".join(shown()) for text in texts):
                    await pilot.pause(0.1)

        table = replicas.table
        # 4.9.7 does not list its slaves: then it is the slave itself that says that it follows.
        await until(lambda: table.lines, "● OK", f"{end:,}", " 0 B ", "in step")
        assert len(table.lines) == 1
        text = "1 slave, 1 in sync" if is_5(version) else "this version does not list its replicas"
        await until(lambda: replicas.nodes.lines, "● UP", "SYNC_MASTER", version.replace(".", "_"), text)
        await pilot.press("c")
        if is_5(version):
            assert f"#MasterAddr\t{broker}\n#MasterCommitLogMaxOffset\t{end}\n#SlaveNum\t1\n" in app.clipboard
            (line,) = [line for line in app.clipboard.splitlines() if line.startswith("127.")]
            address, ack, diff, _, status, _ = line.split()
            assert (address.partition(":")[0], ack, diff, status) == ("127.0.0.1", str(end), "0", "OK")
        await pilot.press("2")
        await until(lambda: slave_pane.ladder.lines, f"acked      {end:,}", f"dispatched {end:,}")
        await pilot.press("3")
        await until(lambda: log.facts.lines, f"0 to {end:,}", "Puts")
        await pilot.press("4")
        await until(lambda: events.table.lines, "found by the name server")
        slave.kill()
        await until(lambda: events.table.lines, "no longer answers")
        await pilot.press("1")
        await until(lambda: table.lines, "✗ SILENT", "gone")
        await until(lambda: replicas.nodes.lines, "✗ DOWN", "● UP")
    assert app.failure is None
