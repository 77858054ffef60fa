"""Topics and groups of nodes that really run: a pair with a consumer, asked over sockets."""

from __future__ import annotations

from pathlib import Path

import trio

from tests.monitor.real_nodes import running, send
from trioha.client.cluster import open_cluster
from trioha.client.consumer import ConsumerSettings, Start, StartAt, open_consumer
from trioha.client.routes import SingleBroker
from trioha_monitor.consumption_feed import Demand, consumption_session
from trioha_monitor.live import LIVE_TIMES, LiveSettings, live_views
from trioha_monitor.view import ClusterView, GroupView


async def test_a_group_its_lag_its_member_and_its_broker_are_shown(tmp_path: Path) -> None:
    async with running(tmp_path / "node", brokerRole="ASYNC_MASTER", listenPort=0, haListenPort=0) as ready:
        address = str(ready.listen)
        assert await send(address, 5) == ["PUT_OK"] * 5
        settings = ConsumerSettings("T", group="g", start_at=StartAt(Start.FIRST))
        demand = Demand(is_wanted=True)
        async with (
            open_cluster(broker=SingleBroker(address)) as cluster,
            open_consumer(cluster, settings) as consumer,
        ):
            received = 0
            while received < 5:
                batch = await consumer.receive()
                # The first three of the queue, however the pulls cut it.
                consumer.acknowledge(batch[: max(0, 3 - received)])
                received += len(batch)
            await consumer.commit()
            async with consumption_session(address) as ask:
                sample = await ask()
            (progress,) = (one for one in sample.groups if (one.group, one.topic) == ("g", "T"))
            assert (progress.queues, progress.lag) == (4, 2)
            members = sample.members["g"]
            assert members is not None
            assert (members.count, members.model) == (1, "CLUSTERING")
            assert members.clients[0].startswith(cluster.client_id[:20])

            rows: list[GroupView] = []
            shown = trio.Event()

            def show(view: ClusterView) -> None:
                rows[:] = rows_of(view, "g", "T")
                if rows:
                    shown.set()

            feed = live_views([address], settings=LiveSettings(LIVE_TIMES, demand=demand))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(feed, show)
                with trio.fail_after(60):
                    await shown.wait()
                nursery.cancel_scope.cancel()
    (row,) = rows
    assert (row.lag, row.members, row.broker) == (2, 1, "broker-a")


def rows_of(view: ClusterView, group: str, topic: str) -> list[GroupView]:
    """Rows of a group in a view, once they have their broker's name."""
    rows = () if view.consumption is None else view.consumption.rows
    return [row for row in rows if (row.group, row.topic, row.broker) == (group, topic, "broker-a")]
