"""The scripted controller as a process: it elects when a master is silent, and its state survives a kill."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import trio

from tests.faults.controlled.controllers import ScriptedController, leads
from tests.interop.controller import ask, eventually
from tests.waiting import wait_until
from trioha.controller import protocol
from trioha.controller.bodies import MemberSet
from trioha.controller.header import to_request
from trioha.controller.protocol import ReplicaInfo
from trioha.remoting.client import RemotingClient, open_client
from trioha.remoting.codes import RequestCode
from trioha.remoting.command import request

pytestmark = [pytest.mark.process, pytest.mark.full]
NOWHERE = "127.0.0.1:9"


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[ScriptedController]:
    running = ScriptedController(tmp_path)
    running.start()
    try:
        eventually("it leads", lambda: leads(running.address))
        yield running
    finally:
        running.close()


def info(controller: ScriptedController) -> tuple[int | None, int | None, frozenset[int]]:
    """Master, epoch and set."""
    answer = ask(controller.address, to_request(protocol.ReplicaInfoRequest(broker_name="b")))
    found = ReplicaInfo.of(answer.ext_fields)
    return found.master_id, found.master_epoch, MemberSet.of_body(answer.body).members


class Broker:
    """A broker on a connection of its own."""

    def __init__(self, client: RemotingClient, number: int) -> None:
        self._client = client
        self._number = number
        self._names = {"cluster_name": "c", "broker_name": "b"}

    async def join(self) -> None:
        number, names = self._number, self._names
        for fields in (
            protocol.ApplyBrokerIdRequest(applied_broker_id=number, register_check_code="x", **names),
            protocol.RegisterRequest(broker_id=number, broker_address=NOWHERE, invoke_time_ms=1, **names),
        ):
            assert (await self._client.request(to_request(fields))).code == 0

    async def beat(self, *, timeout_ms: int = 60_000) -> None:
        heartbeat = protocol.Heartbeat(
            broker_id=self._number,
            broker_address=NOWHERE,
            epoch=1,
            max_offset=0,
            confirm_offset=0,
            timeout_ms=timeout_ms,
            election_priority=1,
            **self._names,
        )
        self._client.send_oneway(to_request(heartbeat, oneway=True))
        # Answered after the heartbeat was received.
        await self._client.request(request(RequestCode.CONTROLLER_GET_METADATA_INFO))

    async def elect(self, *, is_designated: bool = False) -> int:
        wish = protocol.ElectRequest(
            broker_id=self._number, is_designated=is_designated, invoke_time_ms=1, **self._names
        )
        return (await self._client.request(to_request(wish))).code

    async def propose(self, members: set[int], *, epoch: int, set_epoch: int) -> int:
        asked = protocol.AlterSetRequest(
            broker_name="b", master_id=self._number, master_epoch=epoch, invoke_time_ms=1
        )
        body = MemberSet(frozenset(members), set_epoch).to_body()
        return (await self._client.request(to_request(asked, body=body))).code


def test_it_replaces_masters_that_are_gone_or_silent_and_its_state_survives_a_kill(
    controller: ScriptedController,
) -> None:
    async def until_master(broker_id: int | None) -> tuple[int | None, int | None, frozenset[int]]:
        await trio.to_thread.run_sync(
            partial(wait_until, lambda: info(controller)[0] == broker_id, f"{broker_id} is master")
        )
        return await trio.to_thread.run_sync(info, controller)

    async def play() -> None:
        async with open_client(controller.address) as client:
            two = Broker(client, 2)
            async with open_client(controller.address) as first:
                one = Broker(first, 1)
                await one.join()
                await two.join()
                await one.beat()
                assert await one.elect() == 0
                # A broker that is not alive comes into no set.
                assert await one.propose({1, 2}, epoch=1, set_epoch=1) != 0
                await two.beat()
                assert await one.propose({1, 2}, epoch=1, set_epoch=1) == 0
                assert await until_master(1) == (1, 1, {1, 2})
            assert await until_master(2) == (2, 2, {2})
            one = Broker(client, 1)
            await one.beat()
            await two.beat(timeout_ms=300)
            # Broker 1 is not in the set: it must not be elected.
            assert await until_master(None) == (None, 2, {2})
            assert await one.elect() != 0
            await two.beat()
            assert await two.elect() == 0
            assert await two.propose({1, 2}, epoch=3, set_epoch=4) == 0
            # An operator has the other member elected.
            assert await one.elect(is_designated=True) == 0
            controller.kill()

    trio.run(play)
    controller.start()
    eventually("it leads", lambda: leads(controller.address))
    assert info(controller) == (1, 4, {1})
