"""Popped messages when the master changes: from a real 5.x broker to trioha, and back."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio

from tests.interop.asking import committed, groups, make_topic, max_offset
from tests.interop.java import JavaDriver
from tests.interop.name_server import trioha_name_server
from tests.interop.popping import PopClient, PoppedMessage, pop_client, with_topic
from tests.interop.rocketmq import only_5
from tests.interop.timers import NAMES, keys, now_ms, open_slave, positions, send, slot_ms
from tests.interop.timers import TOPIC as TIMED
from tests.interop.world import QUICK, StartNode
from tests.ports import free_port
from tests.waiting import wait_until
from trioha.remoting.codes import ResponseCode
from trioha.store.topics import TIMER_TOPIC

pytestmark = [pytest.mark.interop, pytest.mark.process, pytest.mark.full]

TOPIC, ORDERED, LAST = "Taken", "TakenInOrder", "TakenLast"
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


async def acknowledge_one(client: PopClient) -> None:
    """Have a message's acknowledgement in the slave's log."""
    await with_topic(client.address, LAST)
    await client.send(LAST, "x")
    (message,) = (await client.pop(LAST, invisibleTime=600_000)).messages
    answer = await client.ack(message)
    # Not SLAVE_NOT_AVAILABLE: the slave has it.
    assert (answer.code, answer.remark) == (ResponseCode.SUCCESS, None)


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


@only_5
def test_trioha_gives_again_what_a_killed_real_master_had_popped_and_nobody_acknowledged(
    own_jvm: Callable[..., JavaDriver], java: JavaDriver, start_node: StartNode, tmp_path: Path
) -> None:
    killed = own_jvm(java.version)
    with trioha_name_server(tmp_path / "names") as names:
        master = killed.open_broker(
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
        killed.kill()
        slave.stop()
    node = start_node("slave", role="ASYNC_MASTER", **NAMES)
    run(node.listen_address, is_given_what_was_left)


@only_5
@pytest.mark.parametrize(
    "is_killed",
    [pytest.param(False, id="stopped", marks=pytest.mark.nightly), pytest.param(True, id="killed")],
)
def test_a_real_broker_gives_again_what_trioha_had_popped_and_nobody_acknowledged(
    java: JavaDriver, start_node: StartNode, tmp_path: Path, *, is_killed: bool
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
    master = java.open_broker(tmp_path / "store", role="ASYNC_MASTER", timerWheelEnable=True, **NAMES)
    run(master.listen_address, is_given_what_was_left)


@pytest.mark.nightly
@only_5
def test_a_real_slave_of_a_killed_trioha_master_gives_again_what_was_left_and_delivers_its_timers(
    java: JavaDriver, start_node: StartNode, tmp_path: Path
) -> None:
    with trioha_name_server(tmp_path / "names") as names:
        ports = {"listenPort": free_port(), "namesrvAddr": names}
        master = start_node("master", role="SYNC_MASTER", flushConsumerOffsetInterval=100, **ports, **NAMES)
        slave = open_slave(java, tmp_path / "slave", master.ha_address, names)
        wait_until(lambda: master.load(1).statuses == {"PUT_OK": 1}, "a put is on the slave")
        make_topic(master.listen_address, TIMED)
        soon_ms = now_ms() + 1000
        send(master.listen_address, "soon", due_ms=soon_ms)
        wait_until(lambda: max_offset(master.listen_address, TIMED) == 1, "trioha delivers a timer")
        send(master.listen_address, "later", due_ms=now_ms() + 60_000)
        run(master.listen_address, pop_and_acknowledge_half)
        ends = {TOPIC: len(BODIES), ORDERED: 1}

        def has_offsets() -> bool:
            # It passes over check points whose topic or group it does not have.
            slave.sync_metadata()
            return all(
                committed(slave.listen_address, "G", topic).get(0) == end for topic, end in ends.items()
            )

        wait_until(has_offsets, "the slave has topics, groups and offsets")
        # It asks for the check point 10 s after its start, and each 3 s.
        wait_until(
            lambda: (
                positions(slave)[0] > slot_ms(soon_ms)
                and positions(slave)[1] >= max_offset(master.listen_address, TIMER_TOPIC)
            ),
            "the slave has read the timers, and knows what was delivered",
        )

        run(master.listen_address, acknowledge_one)
        master.kill()
        slave.shutdown()
    promoted = java.open_broker(tmp_path / "slave", role="ASYNC_MASTER", timerWheelEnable=True, **NAMES)

    run(promoted.listen_address, is_given_what_was_left)
    # RocketMQ would pass over it if its check point were due before: it was not in the slave's timer yet.
    waiting = [message.record["properties"]["UNIQ_KEY"] for message in promoted.read(TIMER_TOPIC).messages]
    assert [key for key in waiting if key.startswith(f"{LAST}@0@0@G@") and key.endswith("@interop@ack")]
    wait_until(lambda: keys(promoted)["later"], "the promoted broker delivers the last timer")
    assert keys(promoted) == Counter(["soon", "later"])
