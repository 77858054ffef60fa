"""Nodes that really replicate, in this process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from trioha.config.broker import BrokerConfig
from trioha.config.loading import load_config
from trioha.node.node import Ready, run_node
from trioha.remoting.client import open_client
from trioha.remoting.send_message import SendMessageRequestHeader, put_status_name, send_request

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
        with trio.fail_after(60):
            await is_ready.wait()
        yield said[0]
        nursery.cancel_scope.cancel()


async def send(address: str, count: int) -> list[str]:
    """The put statuses of `count` messages of 1000 bytes."""
    header = SendMessageRequestHeader(
        producer_group="p", topic="T", default_topic="TBW102", default_topic_queue_nums=4, queue_id=0,
        sys_flag=0, born_timestamp_ms=1_700_000_000_000, flag=0,
    )  # fmt: skip
    put = send_request(header, bytes(1000))
    async with open_client(address) as client:
        return [put_status_name(await client.request(put, timeout_s=5)) for _ in range(count)]
