"""Popped messages when the master changes: from a real 5.5.0 broker to trioha, and back."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio

from tests.interop.asking import committed, groups
from tests.interop.java import JavaDriver
from tests.interop.name_server import trioha_name_server
from tests.interop.popping import PopClient, PoppedMessage, pop_client, with_topic
from tests.interop.rocketmq import NEWEST
from tests.interop.world import QUICK, StartNode
from tests.waiting import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.process, pytest.mark.full]

NAMES = {"brokerName": "interop", "brokerClusterName": "interop"}
TOPIC, ORDERED = "Taken", "TakenInOrder"
LEFT_MS = 20_000
"""Invisible time of what nobody acknowledges: longer than a change of masters takes on an idle machine. On a
busy one the first master gives it again, which changes nothing of what is asked."""
BODIES = [f"m{number:02}" for number in range(12)]
ACKNOWLEDGED, CHANGED = BODIES[:6], BODIES[6]


def run(address: str, do: Callable[[PopClient], Awaitable[None]]) -> None:
    """Do something with a client of a broker."""

    async def main() -> None:
        async with pop_client(address) as client:
            await do(client)

    trio.run(main)


async def pop_and_acknowledge_half(client: PopClient) -> None:
    """Twelve messages: six acknowledged, one changed, five left. And three in order, one acknowledged."""
    for topic in (TOPIC, ORDERED):
        await with_topic(client.address, topic)
    await client.send(TOPIC, *BODIES)
    popped = await client.pop(TOPIC, invisibleTime=LEFT_MS)
    assert popped.bodies == BODIES
    by_body = {message.body: message for message in popped.messages}
    await client.ack_all(by_body[body] for body in ACKNOWLEDGED)
    await client.change(by_body[CHANGED], LEFT_MS // 2)
    await client.send(ORDERED, *"abc")
    ordered = await client.pop(ORDERED, order="true", invisibleTime=LEFT_MS)
    await client.ack_all(ordered.messages[:1])


async def is_given_what_was_left(client: PopClient) -> None:
    """What the next master gives: just what nobody has acknowledged, each once."""
    found: list[PoppedMessage] = []
    with trio.fail_after(180):
        while len(found) < len(BODIES) - len(ACKNOWLEDGED):
            popped = await client.pop(TOPIC, pollTime=5000)
            found += popped.messages
    assert sorted(message.body for message in found) == [CHANGED, *BODIES[7:]]
    assert {message.record.reconsume_times for message in found} == {1}
    await client.ack_all(found)
    ordered: list[str] = []
    with trio.fail_after(180):
        while not ordered:
            ordered = (await client.pop(ORDERED, order="true", pollTime=5000)).bodies
    assert ordered == ["b", "c"]
    assert await client.is_over(TOPIC)


def test_trioha_gives_again_what_a_killed_real_master_had_popped_and_nobody_acknowledged(
    own_jvm: Callable[..., JavaDriver], start_node: StartNode, tmp_path: Path
) -> None:
    java = own_jvm(NEWEST)
    with trioha_name_server(tmp_path / "names") as names:
        master = java.open_broker(
            tmp_path / "master", role="ASYNC_MASTER", timerWheelEnable=True, namesrvAddr=names, **NAMES
        )
        slave = start_node(
            "slave", role="SLAVE", namesrvAddr=names, ha_master_address=master.ha_address, **QUICK
        )

        def is_registered() -> bool:
            master.register()
            return len(groups(names).get("interop", {})) == 2

        wait_until(is_registered, "master and slave are registered")
        run(master.listen_address, pop_and_acknowledge_half)
        wait_until(lambda: slave.max_offset == master.max_offset, "the slave has all of the log")
        wait_until(
            lambda: (
                committed(slave.listen_address, "G", TOPIC).get(0) == len(BODIES)
                and committed(slave.listen_address, "G", ORDERED).get(0) == 1
            ),
            "the slave has the offsets",
        )
        java.kill()
        slave.stop()
    node = start_node("slave", role="ASYNC_MASTER", **NAMES)
    run(node.listen_address, is_given_what_was_left)


@pytest.mark.parametrize("is_killed", [False, True], ids=["stopped", "killed"])
def test_a_real_broker_gives_again_what_trioha_had_popped_and_nobody_acknowledged(
    newest: JavaDriver, start_node: StartNode, tmp_path: Path, *, is_killed: bool
) -> None:
    node = start_node("store", role="ASYNC_MASTER", flushConsumerOffsetInterval=100, **NAMES)
    run(node.listen_address, pop_and_acknowledge_half)
    offsets = tmp_path / "store/config/consumerOffset.json"
    noted = [
        re.compile(rf'"{topic}@G":\s*\{{\s*0:{offset}\b')
        for topic, offset in ((TOPIC, len(BODIES)), (ORDERED, 1))
    ]

    def is_noted() -> bool:
        text = offsets.read_text() if offsets.exists() else ""
        return all(each.search(text) for each in noted)

    wait_until(is_noted, "the offsets are in their file")
    if is_killed:
        node.kill()
    else:
        node.stop()
    master = newest.open_broker(tmp_path / "store", role="ASYNC_MASTER", timerWheelEnable=True, **NAMES)
    run(master.listen_address, is_given_what_was_left)
