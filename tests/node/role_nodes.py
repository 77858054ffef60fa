"""Nodes in this process that change their roles when a test says so."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import trio
from attrs import evolve, frozen

from tests.monitor.real_nodes import config_of
from tests.node.wire import pull_from, send_to
from trioha.broker_status import BrokerStatus
from trioha.config.broker import BrokerRole
from trioha.errors import PeerError
from trioha.node.node import Ready, run_node
from trioha.node.roles import NodeRole, Roles
from trioha.remoting.client import RemotingClient, open_client
from trioha.remoting.command import RemotingCommand, SerializeType
from trioha.remoting.send_message import put_status_name
from trioha.remoting.status_reader import fetch_status

WITHIN_S = 60.0
SYNC_MASTER = NodeRole(BrokerRole.SYNC_MASTER, 0)
ASYNC_MASTER = NodeRole(BrokerRole.ASYNC_MASTER, 0)


def slave_of(master: RoleNode | None = None) -> NodeRole:
    """A slave, of a master that is nowhere if it is None."""
    return NodeRole(BrokerRole.SLAVE, 1, None if master is None else str(master.ready.ha))


@frozen
class RoleNode:
    """A running node."""

    ready: Ready
    """Of its first life."""
    roles: Roles
    folder: Path

    @property
    def address(self) -> str:
        """Where clients connect, in every role."""
        return str(self.ready.listen)

    async def status(self) -> BrokerStatus:
        """The status; waits until the node answers."""
        with trio.fail_after(WITHIN_S):
            while True:
                try:
                    async with open_client(self.address) as client:
                        return await fetch_status(client)
                except PeerError:
                    await trio.sleep(0.02)

    async def change(self, role: NodeRole) -> None:
        """Have the node change its role, and wait until it serves in it."""
        self.roles.set(role)
        await self.until(lambda status: status.role == role.broker_role.value)

    async def follows(self, max_offset: int) -> None:
        """Wait until the node's log ends at `max_offset`, and it is connected to its master."""
        await self.until(
            lambda status: (
                status.max_offset == max_offset
                and status.client is not None
                and status.client.state == "TRANSFER"
            )
        )

    async def has_slave(self) -> None:
        """Wait until a slave has all of the node's log."""
        await self.until(
            lambda status: any(one.ack_offset == status.max_offset for one in status.connections)
        )

    async def until(self, holds: Callable[[BrokerStatus], bool]) -> BrokerStatus:
        """The first status for which `holds` is true."""
        with trio.fail_after(WITHIN_S):
            while True:
                status = await self.status()
                if holds(status):
                    return status
                await trio.sleep(0.02)


@asynccontextmanager
async def role_node(folder: Path, first: NodeRole, **settings: object) -> AsyncIterator[RoleNode]:
    """A node that serves in its first role, stopped at the end of the block."""
    config = config_of(folder, {"listenPort": 0, "haListenPort": 0, **settings})
    roles, stopping, is_ready = Roles(first), trio.Event(), trio.Event()
    said: list[Ready] = []

    def on_ready(ready: Ready) -> None:
        said.append(ready)
        is_ready.set()

    async def run() -> None:
        await run_node(config, on_ready=on_ready, roles=roles, stopping=stopping)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        with trio.fail_after(WITHIN_S):
            await is_ready.wait()
        yield RoleNode(said[0], roles, folder)
        stopping.set()


def message(
    body: bytes, *, is_oneway: bool = False, json: bool = True, delay_level: int = 0
) -> RemotingCommand:
    """A request to send `body` to queue 0."""
    properties = f"DELAY\x01{delay_level}\x02" if delay_level else ""
    sent = send_to("T", body, queues=4, properties=properties)
    return evolve(
        sent,
        flag=sent.flag | 2 * is_oneway,
        serialize_type=SerializeType.JSON if json else SerializeType.ROCKETMQ,
    )


def pull(offset: int, *, suspend_ms: int = 0, json: bool = True, queue_id: int = 0) -> RemotingCommand:
    """A request for messages of a queue."""
    asked = pull_from("T", offset, queue_id=queue_id, group="G", suspend_ms=suspend_ms)
    return asked if json else evolve(asked, serialize_type=SerializeType.ROCKETMQ)


async def put(client: RemotingClient, body: bytes, *, json: bool = True, delay_level: int = 0) -> str:
    """The status of a message that is sent."""
    sent = message(body, json=json, delay_level=delay_level)
    return put_status_name(await client.request(sent, timeout_s=WITHIN_S))
