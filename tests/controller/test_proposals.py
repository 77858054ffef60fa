"""Sync-state sets from a master's proposal to the controllers and back, and what puts wait for meanwhile.

The agent, the set with its keeper, and group commit are the real ones. Slaves and controllers are scripted.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import trio
from attrs import define
from trio.testing import MockClock

from tests.controller.scripted import Fault, ScriptedControllers
from tests.controller.support import bench
from tests.ha.autoswitch.master_support import Life, begin_life, connected
from tests.ha.support import committed, settled
from tests.store.support import message, open_log
from trioha.controller.agent import ControllerAgent
from trioha.node.controlled_replication import ControlledReplication
from trioha.node.role_recording import SetRecorder
from trioha.node.roles import Control
from trioha.recording.events import NoSink
from trioha.remoting.codes import RequestCode, ResponseCode
from trioha.store.put_status import PutStatus

ALTER = RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET


@define
class Master:
    """A master of epoch 1, alone in the set of set epoch 1."""

    life: Life
    controllers: ScriptedControllers
    agent: ControllerAgent

    async def put(self) -> PutStatus:
        appended = self.life.log.append(message())
        return await committed(self.life.commit, appended)


@asynccontextmanager
async def master(folder: Path) -> AsyncIterator[Master]:
    """Its only controller leads."""
    log, _ = open_log(folder / "store")
    log.append(message())
    async with bench(folder, addresses=("c0:1",)) as running, trio.open_nursery() as nursery:
        await trio.sleep(0.5)
        life = begin_life(log)
        alter = partial(running.agent.alter_sync_state_set, master_epoch=1)
        nursery.start_soon(life.keeper.run, life.set, alter)
        yield Master(life, running.controllers, running.agent)
        nursery.cancel_scope.cancel()
    log.close()


async def test_master_that_is_cut_off_waits_for_a_slave_that_the_controllers_may_have_taken(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """The controllers accept {1, 2}, and the master is cut off before their answer: 2 will be elected."""
    async with master(tmp_path) as one:
        life, controllers = one.life, one.controllers

        def cut_off_the_master(code: RequestCode) -> Fault:
            if code is not ALTER:
                return Fault.NONE
            controllers.down.add("c0:1")
            return Fault.CUT

        controllers.fault = cut_off_the_master
        async with connected(life) as two:
            await two.join(life.log.max_offset)
            await settled()
        assert controllers.group.members == {1, 2}
        assert life.set.members == {1}
        await trio.sleep(16)
        assert life.set.required == {1, 2}
        assert await one.put() is PutStatus.FLUSH_SLAVE_TIMEOUT
        # They are back: without 2, the set is the master alone.
        controllers.down.clear()
        controllers.fault = lambda _: Fault.NONE
        await trio.sleep(16)
        assert controllers.group.members == life.set.required == {1}
        assert await one.put() is PutStatus.PUT_OK


async def test_set_that_the_controllers_may_take_after_an_error_is_waited_for(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with master(tmp_path) as one, connected(one.life) as two:
        group = one.controllers.group
        one.controllers.refuse[ALTER] = ResponseCode.CONTROLLER_JRAFT_INTERNAL_ERROR
        await two.join(one.life.log.max_offset)
        await settled()
        statuses: list[PutStatus] = []

        async def put() -> None:
            statuses.append(await one.put())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(put)
            await trio.sleep(2)
            assert statuses == [], "2 has not got the message, and may be elected in a moment"
            group.members, group.set_epoch = frozenset((1, 2)), 2
        assert statuses == [PutStatus.FLUSH_SLAVE_TIMEOUT]


async def test_set_that_was_decided_before_the_life_subscribed_is_known_to_it(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """As the answer to a proposal of the life before, in the same epoch."""
    async with master(tmp_path) as one, trio.open_nursery() as nursery:
        life, agent = one.life, one.agent
        parts = ControlledReplication(
            replicas=life.replicas,
            master=life.master,
            group_commit=life.commit,
            keeper=life.keeper,
            set=life.set,
            control=Control(agent=agent, role=agent.role),
            recorder=SetRecorder(NoSink(), set_epoch=1),
        )
        assert await agent.alter_sync_state_set(frozenset((1, 2)), 1, master_epoch=1)
        await settled()
        assert life.set.members == {1}
        nursery.start_soon(parts.keep_set)
        await settled()
        assert (life.set.members, life.set.set_epoch) == ({1, 2}, 2)
        nursery.cancel_scope.cancel()
