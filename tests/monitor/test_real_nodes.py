"""The feed on nodes that really replicate, in this process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from tests.monitor.builders import example_snapshot
from trioha.config.broker import BrokerConfig, load_config
from trioha.node.node import Ready, run_node
from trioha.remoting.client import open_client
from trioha.remoting.send import SendMessageRequestHeader, put_status_name, send_request
from trioha_monitor.feed import FeedTimes, live_feed
from trioha_monitor.model import Health, LinkState, Snapshot

CONFIG = """\
brokerClusterName=DefaultCluster
brokerName=broker-a
trioha.bindAddress=127.0.0.1
brokerIP1=127.0.0.1
brokerIP2=127.0.0.1
mappedFileSizeCommitLog=1048576
maxMessageSize=65536
"""


def config_of(folder: Path, settings: dict[str, object]) -> BrokerConfig:
    folder.mkdir(exist_ok=True)
    file = folder / "broker.conf"
    file.write_text(CONFIG)
    overrides = [f"{key}={value}" for key, value in {"storePathRootDir": folder, **settings}.items()]
    return load_config(file, overrides).config


@asynccontextmanager
async def running(folder: Path, **settings: object) -> AsyncIterator[Ready]:
    """A node that serves, stopped at the end of the block."""
    config = config_of(folder, settings)
    is_ready = trio.Event()
    said: list[Ready] = []

    def on_ready(ready: Ready) -> None:
        said.append(ready)
        is_ready.set()

    async def run() -> None:
        await run_node(config, on_ready=on_ready)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        with trio.fail_after(10):
            await is_ready.wait()
        yield said[0]
        nursery.cancel_scope.cancel()


class Watch:
    """The snapshots of a feed that runs in the background."""

    def __init__(self) -> None:
        self._send, self._receive = trio.open_memory_channel[Snapshot](1000)

    def publish(self, snapshot: Snapshot) -> None:
        self._send.send_nowait(snapshot)

    async def until(self, is_so: Callable[[Snapshot], bool]) -> Snapshot:
        snapshot = example_snapshot()
        with trio.move_on_after(15):
            async for snapshot in self._receive:
                if is_so(snapshot):
                    return snapshot
        raise AssertionError(f"never so; at last: {snapshot}")


async def send(address: str, count: int) -> list[str]:
    """The put statuses of `count` messages of 1000 bytes."""
    header = SendMessageRequestHeader(
        producer_group="p", topic="T", default_topic="TBW102", default_topic_queue_nums=4, queue_id=0,
        sys_flag=0, born_timestamp_ms=1_700_000_000_000, flag=0,
    )  # fmt: skip
    put = send_request(header, bytes(1000))
    async with open_client(address) as client:
        return [put_status_name(await client.request(put, timeout_s=5)) for _ in range(count)]


def in_sync_at(offset: int) -> Callable[[Snapshot], bool]:
    """Both nodes up, the slave's ack at `offset` or beyond, and both of one mind."""

    def is_so(snapshot: Snapshot) -> bool:
        master, slave = snapshot.nodes
        return (
            master.health is slave.health is Health.UP
            and [link.link for link in master.connections] == [LinkState.LIVE]
            and (master.max_offset or 0) >= offset
            and master.connections[0].ack_offset == master.max_offset == slave.max_offset
        )

    return is_so


async def test_a_pair_is_shown_through_sends_a_dead_slave_and_its_return(tmp_path: Path) -> None:
    watch = Watch()
    times = FeedTimes(interval_s=0.05, refresh_s=0.05, back_off_s_max=0.2)
    async with running(tmp_path / "m", brokerRole="SYNC_MASTER", brokerId=0, listenPort=0) as master:
        slave_settings = {
            "brokerRole": "SLAVE",
            "brokerId": 1,
            "haMasterAddress": str(master.ha),
            # It comes back at its exact end: a tail check would show for a moment as a lag of its own.
            "trioha.haTailCheck": 0,
        }
        async with trio.open_nursery() as nursery:
            async with running(tmp_path / "s", listenPort=0, **slave_settings) as slave:
                addresses = [str(master.listen), str(slave.listen)]
                nursery.start_soon(live_feed(addresses, times=times), watch.publish)
                await watch.until(in_sync_at(0))
                assert await send(addresses[0], 20) == ["PUT_OK"] * 20
                together = await watch.until(in_sync_at(20_000))
                node, copy = together.nodes
                assert (node.role, node.name, node.cluster) == (
                    "SYNC_MASTER",
                    "broker-a #0",
                    "DefaultCluster",
                )
                assert (copy.role, copy.name) == ("SLAVE", "broker-a #1")
                assert (node.in_sync_slaves, node.connections[0].state, node.connections[0].lag_bytes) == (
                    1, "TRANSFER", 0,
                )  # fmt: skip
                assert copy.slave is not None
                assert (copy.slave.master_address, copy.slave.state) == (str(master.ha), "TRANSFER")
                assert copy.slave.reported_offset == copy.max_offset
            serial = node.connections[0].serial

            def slave_is_gone(snapshot: Snapshot) -> bool:
                links = [link.link for link in snapshot.connections]
                return snapshot.nodes[1].health is Health.DOWN and links == [LinkState.LOST]

            gone = await watch.until(slave_is_gone)
            assert gone.nodes[0].health is Health.UP
            assert await send(addresses[0], 3) == ["SLAVE_NOT_AVAILABLE"] * 3
            behind = await watch.until(lambda snapshot: snapshot.connections[0].lag_bytes > 3000)
            assert behind.connections[0].link is LinkState.LOST

            async with running(tmp_path / "s", listenPort=slave.listen.port, **slave_settings):
                again = await watch.until(in_sync_at(23_000))
                assert again.connections[0].serial == serial
                worst = again.connections[0].history.worst(end_s=again.at_s, span_s=60.0)
                assert worst is not None
                assert worst.lag_bytes == behind.connections[0].lag_bytes
            nursery.cancel_scope.cancel()
