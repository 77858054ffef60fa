"""trioha's own consumer beside RocketMQ's clients, of a group on a trioha node and on a real broker."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from itertools import count
from pathlib import Path

import pytest
import trio

from tests.interop.messages import bodies
from tests.interop.world import World
from tests.node_process import WITHIN_S
from tests.processes import DIE_WITH_PARENT
from tests.waiting import wait_until
from trioha.client.cluster import open_cluster
from trioha.client.consumer import ConsumerSettings, Start, StartAt, open_consumer

pytestmark = [pytest.mark.interop, pytest.mark.process, pytest.mark.full]


def test_trioha_is_given_again_what_it_sent_back(shared: World) -> None:
    topic = "SentBack"
    shared.make_topic(topic)
    # Enough for both brokers.
    assert shared.java.produce(shared.names, 16, topic=topic) == {"SEND_OK": 16}
    received = trio.run(receive_with_failures, shared.names, topic, 18)
    assert sorted(received) == sorted(
        [*((f"m{number}", 0, topic) for number in range(16)), *((body, 1, topic) for body in FAILING)]
    )


FAILING = ("m1", "m8")
"""Their handling fails once."""


async def receive_with_failures(name_server: str, topic: str, number: int) -> list[tuple[str, int, str]]:
    """Body, retries and topic of each message that a group receives."""
    settings = ConsumerSettings(topic, group="retrying", start_at=StartAt(Start.FIRST))
    received: list[tuple[str, int, str]] = []
    with trio.fail_after(WITHIN_S):
        async with (
            open_cluster(name_servers=(name_server,)) as cluster,
            open_consumer(cluster, settings) as consumer,
        ):
            while len(received) < number:
                for message in await consumer.receive():
                    received.append((message.body.decode(), message.reconsume_times, message.topic))
                    if received[-1][0] in FAILING and message.reconsume_times == 0:
                        await consumer.send_back(message)
                    else:
                        consumer.acknowledge((message,))
    return received


def test_an_administrator_resets_the_offsets_of_a_live_consumer(shared: World) -> None:
    topic = "Reset"
    shared.make_topic(topic)
    assert shared.java.produce(shared.names, 16, topic=topic) == {"SEND_OK": 16}
    received, again = trio.run(receive_around_a_reset, shared, topic)
    assert sorted(received) == sorted(again) == sorted(f"m{number}" for number in range(16))


async def receive_around_a_reset(shared: World, topic: str) -> tuple[list[str], list[str]]:
    """What a group receives before and after mqadmin has reset its offsets."""
    settings = ConsumerSettings(topic, group="reset", start_at=StartAt(Start.FIRST))
    received: list[list[str]] = []
    with trio.fail_after(WITHIN_S):
        async with (
            open_cluster(name_servers=(shared.names,)) as cluster,
            open_consumer(cluster, settings) as consumer,
        ):
            for _ in range(2):
                bodies: list[str] = []
                while len(bodies) < 16:
                    batch = await consumer.receive()
                    consumer.acknowledge(batch)
                    bodies += [message.body.decode() for message in batch]
                received.append(bodies)
                if len(received) == 1:
                    await consumer.commit()
                    said = await trio.to_thread.run_sync(
                        shared.java.mqadmin,
                        "resetOffsetByTime", shared.names, "-g", "reset", "-t", topic, "-s", "0",
                    )  # fmt: skip
                    assert "#offset" in said, said
    return received[0], received[1]


def test_a_group_is_shared_with_a_java_consumer(shared: World, tmp_path: Path) -> None:
    """Both allocate queues by the same rule: no queue is left out, and none is consumed twice for long."""
    topic, java = "SharedGroup", shared.java
    shared.make_topic(topic)
    assert java.produce(shared.names, 4, topic=topic, prefix="before") == {"SEND_OK": 4}
    member = java.consume(shared.names, group="shared", topic=topic)
    member.received(4)
    output = tmp_path / "trioha.ndjson"
    with output.open("w") as stdout:
        process = subprocess.Popen(
            [
                *DIE_WITH_PARENT,
                sys.executable,
                "-m",
                "trioha",
                "consume",
                topic,
                "--namesrv",
                shared.names,
                "--group",
                "shared",
                "--follow",
            ],
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
        )
    try:
        wanted: set[str] = set()

        def own() -> set[str]:
            """What trioha has printed so far, in whole lines."""
            lines, _, _ = output.read_text().rpartition("\n")
            return {json.loads(line)["body"] for line in lines.splitlines()}

        def missing() -> set[str]:
            return wanted - own() - set(bodies(member.received(0)))

        deadline_s = time.monotonic() + WITHIN_S
        for batch in count():
            assert process.poll() is None
            java.produce(shared.names, 8, topic=topic, prefix=f"b{batch}-")
            wanted |= {f"b{batch}-{number}" for number in range(8)}
            if own() & wanted and batch >= 3:
                break
            assert time.monotonic() < deadline_s, "trioha was given no queue"
        wait_until(lambda: not missing(), f"all of {len(wanted)} messages are consumed")
    finally:
        process.terminate()
        _, stderr = process.communicate(timeout=WITHIN_S)
        member.end()
    assert process.returncode == 0, stderr
