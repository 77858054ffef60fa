"""The scripted controller as a process: it elects when a master is silent, and its state survives a kill."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import trio

from tests.faults.controlled.controllers import ScriptedController, leads
from tests.interop.controller import ask, eventually
from trioha.controller import protocol
from trioha.controller.protocol import MemberSet, ReplicaInfo, to_request
from trioha.remoting.client import open_client

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]
NOWHERE = "127.0.0.1:9"
WITHIN_S = 30


@pytest.fixture
def controller(tmp_path) -> Iterator[ScriptedController]:
    with closing(ScriptedController(tmp_path)) as running:
        yield running


@contextmanager
def closing(controller: ScriptedController) -> Iterator[ScriptedController]:
    controller.start()
    try:
        eventually("it leads", lambda: leads(controller.address))
        yield controller
    finally:
        controller.close()


def heartbeat(broker_id: int, *, max_offset: int = 0, timeout_ms: int = 60_000) -> protocol.Heartbeat:
    return protocol.Heartbeat(
        cluster_name="c",
        broker_name="b",
        broker_id=broker_id,
        broker_address=NOWHERE,
        epoch=1,
        max_offset=max_offset,
        confirm_offset=0,
        timeout_ms=timeout_ms,
        election_priority=1,
    )


def info(controller: ScriptedController) -> tuple[int | None, int | None, frozenset[int]]:
    """Master, epoch and set."""
    answer = ask(controller.address, to_request(protocol.ReplicaInfoRequest(broker_name="b")))
    found = ReplicaInfo.of(answer.ext_fields)
    return found.master_id, found.master_epoch, MemberSet.of_body(answer.body).members


async def wait_master(
    controller: ScriptedController, master_id: int | None
) -> tuple[int | None, int | None, frozenset[int]]:
    """Master, epoch and set as soon as this is the master."""
    with trio.fail_after(WITHIN_S):
        while True:
            found = await trio.to_thread.run_sync(info, controller)
            if found[0] == master_id:
                return found
            await trio.sleep(0.05)


async def join(client, broker_id: int) -> None:
    for fields in (
        protocol.ApplyBrokerIdRequest(
            cluster_name="c", broker_name="b", applied_broker_id=broker_id, register_check_code=str(broker_id)
        ),
        protocol.RegisterRequest(
            cluster_name="c", broker_name="b", broker_id=broker_id, broker_address=NOWHERE, invoke_time_ms=1
        ),
    ):
        assert (await client.request(to_request(fields))).code == 0


async def elect(client, broker_id: int, *, is_designated: bool = False) -> int:
    wish = protocol.ElectRequest(
        cluster_name="c",
        broker_name="b",
        broker_id=broker_id,
        is_designated=is_designated,
        invoke_time_ms=1,
    )
    return (await client.request(to_request(wish))).code


async def propose(client, members: set[int], *, epoch: int) -> int:
    asked = protocol.AlterSetRequest(broker_name="b", master_id=1, master_epoch=1, invoke_time_ms=1)
    body = MemberSet(frozenset(members), epoch).to_body()
    return (await client.request(to_request(asked, body=body))).code


async def begin(client) -> None:
    """Broker 1 is master, 1 and 2 are in its set."""
    for broker_id in (1, 2):
        await join(client, broker_id)
    client.send_oneway(to_request(heartbeat(1), oneway=True))
    assert await elect(client, 1) == 0
    # A broker that is not alive comes into no set.
    assert await propose(client, {1, 2}, epoch=1) != 0
    client.send_oneway(to_request(heartbeat(2), oneway=True))
    assert await propose(client, {1, 2}, epoch=1) == 0


def test_a_master_whose_connection_ends_is_replaced_by_the_other_of_the_set(controller):
    async def play() -> None:
        async with open_client(controller.address) as other:
            async with open_client(controller.address) as first:
                await begin(first)
                other.send_oneway(to_request(heartbeat(2), oneway=True))
                # Answered after the heartbeat was received.
                await other.request(to_request(protocol.MetadataRequest()))
                assert (await wait_master(controller, 1))[2] == {1, 2}
            assert await wait_master(controller, 2) == (2, 2, frozenset((2,)))

    trio.run(play)


def test_a_master_that_is_silent_is_replaced_and_without_a_candidate_there_is_none(controller):
    async def play() -> None:
        async with open_client(controller.address) as client:
            await begin(client)
            client.send_oneway(to_request(heartbeat(1, timeout_ms=300), oneway=True))
            await wait_master(controller, 2)
            client.send_oneway(to_request(heartbeat(2, timeout_ms=300), oneway=True))
            # Broker 1 is not in the set: it must not be elected.
            assert (await wait_master(controller, None))[1:] == (2, frozenset((2,)))
            client.send_oneway(to_request(heartbeat(1), oneway=True))
            assert await elect(client, 1) != 0

    trio.run(play)


def test_an_operator_has_a_member_elected_and_the_state_survives_a_kill(controller):
    async def play() -> None:
        async with open_client(controller.address) as client:
            await begin(client)
            assert await elect(client, 2, is_designated=True) == 0
            assert await wait_master(controller, 2) == (2, 2, frozenset((2,)))
            controller.kill()

    trio.run(play)
    controller.start()
    eventually("it leads", lambda: leads(controller.address))
    assert info(controller) == (2, 2, frozenset((2,)))
