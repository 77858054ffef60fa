"""Nodes that really replicate and record: the replay shows what the live views showed."""

from __future__ import annotations

from pathlib import Path

import trio

from tests.monitor.real_nodes import running, send
from tests.monitor.test_live_nodes import SETTINGS, Watch
from trioha_monitor.live import live_views
from trioha_monitor.replay import ReplaySource, open_replay
from trioha_monitor.verdict import Verdict
from trioha_monitor.view import ClusterView, EventKind, Health, ReplicaView


def finished(*folders: Path) -> ReplaySource:
    source = open_replay(list(folders))
    while source.work(for_s=1.0):
        pass
    return source


def figures(row: ReplicaView) -> tuple[object, ...]:
    """All figures that a node records; the dispatched offset is not one."""
    return (
        (row.address, row.label, row.state, row.is_connected, row.in_sync, row.verdict),
        (row.master_offset, row.sent_offset, row.ack_offset, row.flushed_offset),
        (row.diff_bytes, row.lag_s),
    )


async def test_the_replayed_state_is_the_live_state(tmp_path: Path) -> None:
    watch = Watch()
    recorded = tmp_path / "recorded"
    settings: dict[str, object] = {"listenPort": 0, "trioha.recordDir": str(recorded)}

    def is_at_rest(view: ClusterView) -> bool:
        (row, *others) = view.replicas or (None,)
        return (
            row is not None
            and not others
            and row.node is not None
            and row.verdict is Verdict.OK
            and (row.ack_offset or 0) > 20_000
            and row.ack_offset == row.flushed_offset == row.dispatched_offset == row.master_offset
        )

    async with running(tmp_path / "m", brokerRole="SYNC_MASTER", brokerId=0, **settings) as master:
        slave_settings = {
            **settings, "brokerRole": "SLAVE", "brokerId": 1, "haMasterAddress": str(master.ha),
        }  # fmt: skip
        async with trio.open_nursery() as nursery:
            async with running(tmp_path / "s", **slave_settings) as slave:
                feed = live_views([str(master.listen), str(slave.listen)], settings=SETTINGS)
                nursery.start_soon(feed, watch.show)
                await watch.until(lambda view: any(row.node and row.is_connected for row in view.replicas))
                assert await send(str(master.listen), 20) == ["PUT_OK"] * 20
                live = await watch.until(is_at_rest)

                def replayed() -> tuple[object, ...]:
                    growing = finished(recorded)
                    (row,) = growing.view_at(growing.position.end_ns).replicas
                    return figures(row)

                # Recorders write a little after the event.
                for _ in range(600):
                    if replayed() == figures(live.replicas[0]):
                        break
                    await trio.sleep(0.1)
                assert replayed() == figures(live.replicas[0])
            await watch.until(lambda view: any(not row.is_connected for row in view.replicas))
            nursery.cancel_scope.cancel()
    source = finished(recorded)
    view = source.view_at(source.position.end_ns)
    (row,) = view.replicas
    assert (row.verdict, row.is_connected, row.ack_offset) == (
        Verdict.SILENT,
        False,
        live.replicas[0].ack_offset,
    )
    assert [(node.label, node.role) for node in view.nodes] == [
        ("broker-a #0", "SYNC_MASTER"),
        ("broker-a #1", "SLAVE"),
    ]
    assert view.nodes[1].health is Health.DOWN
    (result,) = view.nodes[0].log.puts
    assert (result.status, result.count) == ("PUT_OK", 20)
    kinds = [event.kind for event in view.events]
    assert kinds.count(EventKind.LOST) == 2
    assert source.damage == ()
