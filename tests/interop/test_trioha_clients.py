"""trioha's own producer and consumer beside RocketMQ's clients, over a trioha node and over a real broker."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.interop.clients import RocketClients
from tests.interop.java import JavaDriver
from tests.interop.name_server import name_server
from tests.interop.test_consumers import bodies
from tests.interop.test_name_servers import wait_until
from tests.node_process import WITHIN_S, TriohaNode
from tests.ports import free_port
from tests.processes import DIE_WITH_PARENT
from trioha.client.cluster import open_cluster
from trioha.client.consumer import ConsumerSettings, Start, StartAt, open_consumer
from trioha.errors import PeerError
from trioha.remoting.send_message import DEFAULT_TOPIC

pytestmark = [pytest.mark.interop, pytest.mark.process]

StartNode = Callable[..., TriohaNode]
TRIOHA = [sys.executable, "-m", "trioha"]
TOPIC = "TopicOfBoth"
DELAYS = "1s 1s 1s 1s 1s"


def produce(name_servers: str, messages: list[dict[str, Any]], *arguments: str) -> list[dict[str, Any]]:
    """The results of `trioha produce`."""
    done = subprocess.run(
        [*TRIOHA, "produce", TOPIC, "--namesrv", name_servers, "--ndjson", "--json", *arguments],
        input="".join(json.dumps(message) + "\n" for message in messages),
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def consume(name_servers: str, *arguments: str) -> list[dict[str, Any]]:
    """The messages that `trioha consume` prints."""
    done = subprocess.run(
        [*TRIOHA, "consume", TOPIC, "--namesrv", name_servers, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


async def wait_registered(name_server_address: str) -> None:
    """Wait until a broker has registered; one of 5.x may do that 10 s after its start."""
    with trio.fail_after(WITHIN_S):
        async with open_cluster(name_servers=(name_server_address,)) as cluster:
            while True:
                try:
                    await cluster.routes.fetch(DEFAULT_TOPIC)
                except PeerError:
                    await trio.sleep(0.1)
                else:
                    return


MESSAGES = [
    {"body": f"m{number}", "tags": "tag", "keys": [f"key-{number}"], "properties": {"own": "x"}}
    for number in range(40)
]


@pytest.fixture(params=["trioha", "rocketmq"])
def cluster(request: pytest.FixtureRequest, java: JavaDriver, start_node: StartNode, tmp_path: Path) -> Any:
    """A name server with a broker, all of trioha or all of RocketMQ: its address."""
    if request.param == "trioha":
        address = f"127.0.0.1:{free_port()}"
        settings = {"namesrvAddr": address, "trioha.withNamesrv": "true", "messageDelayLevel": DELAYS}
        start_node("broker", role="ASYNC_MASTER", **settings)
        yield address
        return
    with name_server(java.version, folder=tmp_path / "namesrv") as address:
        java.open_broker(
            tmp_path / "store", role="ASYNC_MASTER", namesrvAddr=address, messageDelayLevel=DELAYS
        )
        trio.run(wait_registered, address)
        yield address


def test_a_java_consumer_gets_what_trioha_produces(java: JavaDriver, cluster: str) -> None:
    # A large body is compressed on its way.
    large = {"body": "y" * 20_000, "tags": "tag"}
    results = produce(cluster, [*MESSAGES, large])
    assert {result["status"] for result in results} == {"PUT_OK"}
    consumer = java.consume(cluster, group="java", topic=TOPIC)
    received = consumer.received(41)
    consumer.end()
    assert Counter(message["body"] for message in received) == Counter(
        [*(message["body"] for message in MESSAGES), large["body"]]
    )
    by_body = {message["body"]: message for message in received}
    assert by_body["m7"]["tags"] == "tag"
    assert by_body["m7"]["keys"] == "key-7"


def test_trioha_consumes_what_a_java_producer_sends(java: JavaDriver, cluster: str) -> None:
    assert java.produce(cluster, 60, topic=TOPIC, tags="a") == {"SEND_OK": 60}
    assert java.produce(cluster, 20, topic=TOPIC, tags="b", prefix="other") == {"SEND_OK": 20}
    messages = consume(cluster, "--from", "first", "--tags", "a")
    assert Counter(message["body"] for message in messages) == Counter(f"m{number}" for number in range(60))
    # As a group, in two parts.
    first = consume(cluster, "--group", "g", "--from", "first", "--limit", "30")
    rest = consume(cluster, "--group", "g", "--from", "first")
    places = [(message["brokerName"], message["queueId"], message["queueOffset"]) for message in first + rest]
    assert len(places) == len(set(places)) == 80


def test_trioha_is_given_again_what_it_sent_back(java: JavaDriver, cluster: str) -> None:
    assert java.produce(cluster, 3, topic=TOPIC) == {"SEND_OK": 3}
    received = trio.run(receive_with_failures, cluster)
    assert sorted(received) == [
        ("m0", 0, TOPIC), ("m1", 0, TOPIC), ("m1", 1, TOPIC), ("m1", 2, TOPIC), ("m2", 0, TOPIC),
    ]  # fmt: skip


async def receive_with_failures(name_server: str) -> list[tuple[str, int, str]]:
    """Body, retries and topic of each message that a group receives; the handling of m1 fails twice."""
    settings = ConsumerSettings(TOPIC, group="retrying", start_at=StartAt(Start.FIRST))
    received: list[tuple[str, int, str]] = []
    with trio.fail_after(WITHIN_S):
        async with (
            open_cluster(name_servers=(name_server,)) as cluster,
            open_consumer(cluster, settings) as consumer,
        ):
            while len(received) < 5:
                for message in await consumer.receive():
                    received.append((message.body.decode(), message.reconsume_times, message.topic))
                    if received[-1][0] == "m1" and message.reconsume_times < 2:
                        await consumer.send_back(message)
                    else:
                        consumer.acknowledge((message,))
    return received


def test_an_administrator_resets_the_offsets_of_a_live_consumer(
    java: JavaDriver, clients: RocketClients, cluster: str
) -> None:
    assert java.produce(cluster, 8, topic=TOPIC) == {"SEND_OK": 8}
    received, again = trio.run(receive_around_a_reset, cluster, clients)
    assert sorted(received) == sorted(again) == [f"m{number}" for number in range(8)]


async def receive_around_a_reset(name_server: str, clients: RocketClients) -> tuple[list[str], list[str]]:
    """What a group receives before and after mqadmin has reset its offsets."""
    settings = ConsumerSettings(TOPIC, group="reset", start_at=StartAt(Start.FIRST))
    received: list[list[str]] = []
    with trio.fail_after(WITHIN_S):
        async with (
            open_cluster(name_servers=(name_server,)) as cluster,
            open_consumer(cluster, settings) as consumer,
        ):
            for _ in range(2):
                bodies: list[str] = []
                while len(bodies) < 8:
                    batch = await consumer.receive()
                    consumer.acknowledge(batch)
                    bodies += [message.body.decode() for message in batch]
                received.append(bodies)
                if len(received) == 1:
                    await consumer.commit()
                    said = await trio.to_thread.run_sync(
                        clients.mqadmin,
                        "resetOffsetByTime", name_server, "-g", "reset", "-t", TOPIC, "-s", "0",
                    )  # fmt: skip
                    assert "#offset" in said, said
    return received[0], received[1]


def test_a_group_is_shared_with_a_java_consumer(java: JavaDriver, cluster: str, tmp_path: Path) -> None:
    """Both allocate queues by the same rule: no queue is left out, and none is consumed twice for long."""
    assert java.produce(cluster, 4, topic=TOPIC, prefix="before") == {"SEND_OK": 4}
    member = java.consume(cluster, group="shared", topic=TOPIC)
    member.received(4)
    output = tmp_path / "trioha.ndjson"
    with output.open("w") as stdout:
        process = subprocess.Popen(
            [
                *DIE_WITH_PARENT,
                *TRIOHA,
                "consume",
                TOPIC,
                "--namesrv",
                cluster,
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
            java.produce(cluster, 8, topic=TOPIC, prefix=f"b{batch}-")
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
