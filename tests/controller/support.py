"""An agent with a scripted controllers' group, for tests in virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio
import trio.lowlevel
from attrs import define

from tests.controller.scripted import CLUSTER, NAME, ScriptedControllers
from trioha.controller.agent import ControllerAgent
from trioha.controller.agent_status import AgentSettings, Offsets, SetDecision
from trioha.controller.identity import IdentityFiles
from trioha.controller.role import Role

ADDRESSES = ("c0:1", "c1:1", "c2:1")
OWN = "here:10911"
OTHER = "there:10911"


async def at_once(call: Callable[[], Any]) -> Any:
    """In place of a worker thread, which virtual time would leap over."""
    await trio.lowlevel.checkpoint()
    return call()


@define
class Bench:
    """A running agent and its controllers."""

    agent: ControllerAgent
    controllers: ScriptedControllers
    roles: list[Role]
    """All that the agent published."""
    offsets: Offsets
    hang: str | None = None
    """What hangs in the broker."""

    @property
    def role(self) -> Role:
        """The agent's, which has one."""
        assert self.agent.role is not None
        return self.agent.role

    async def propose(self, *members: int, set_epoch: int = 1, epoch: int = 1) -> SetDecision | None:
        """Have the set altered."""
        return await self.agent.alter_sync_state_set(frozenset(members), set_epoch, master_epoch=epoch)

    def elect_other(self) -> None:
        """Another broker of the group registers, lives and is elected."""
        group = self.controllers.group
        group.ids[9], group.addresses[9] = "there:10911;1", OTHER
        group.alive.add(9)
        group.elect(9)

    def send_notice(self) -> None:
        """The agent receives the notice that the controllers would send now."""
        group = self.controllers.group
        self.agent.role_changed(group.notice().to_fields(), group.set_of().to_body())


@asynccontextmanager
async def bench(
    folder: Path,
    *,
    addresses: tuple[str, ...] = ADDRESSES,
    leader: str | None = ADDRESSES[0],
    epoch: int = -1,
    doubtful_epoch: int = -1,
) -> AsyncIterator[Bench]:
    async with trio.open_nursery() as nursery:
        controllers = ScriptedControllers(nursery, leader)
        async with running_agent(
            folder, controllers, addresses=addresses, epoch=epoch, doubtful_epoch=doubtful_epoch
        ) as running:
            yield running
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def running_agent(
    folder: Path,
    controllers: ScriptedControllers,
    *,
    addresses: tuple[str, ...] = ADDRESSES,
    epoch: int = -1,
    doubtful_epoch: int = -1,
) -> AsyncIterator[Bench]:
    files = IdentityFiles.open(folder / "brokerIdentity", cluster_name=CLUSTER, broker_name=NAME)
    agent_settings = AgentSettings(
        controllers=addresses,
        cluster_name=CLUSTER,
        broker_name=NAME,
        broker_address=OWN,
    )
    started = Bench.__new__(Bench)
    started.offsets = Offsets(epoch=epoch, max_offset=100, confirm_offset=90)
    agent = ControllerAgent(
        agent_settings,
        files,
        offsets=lambda: started.offsets,
        connect=controllers.connect,
        run_blocking=at_once,
        clock_ms=lambda: int(trio.current_time() * 1000),
        hanging=lambda: started.hang,
        doubtful_epoch=doubtful_epoch,
    )
    started.hang = None
    started.agent, started.controllers, started.roles = agent, controllers, []

    async def collect() -> None:
        with agent.changes() as changes:
            async for role in changes:
                started.roles.append(role)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(collect)
        await nursery.start(agent.run)
        yield started
        nursery.cancel_scope.cancel()
