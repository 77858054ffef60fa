"""RocketMQ's own producers and consumers on a trioha node that they find through its name server.

All tests of a version share one node. Each has its own topic and groups; who kills a node has its own.
"""

from __future__ import annotations

import base64
import json
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from attrs import evolve, frozen

from tests.interop.commands import consume
from tests.interop.java import JavaConsumer, JavaDriver
from tests.interop.messages import assert_order_within_queues, bodies, expected, wait_for_offsets
from tests.interop.world import StartNode, running
from tests.node_process import TriohaNode, run_trioha
from tests.ports import free_port
from trioha.metadata.topics import dead_letter_topic

pytestmark = [pytest.mark.interop, pytest.mark.process, pytest.mark.full]

LEVELS_S = (1, 2, 1, 1, 8)
"""Waiting times of the delay levels from 1; retries have 3 and 4. No kill takes as long as level 5."""
SHARED_WITHIN_S = 120.0
"""A member that was not notified of another one looks for its queues each 20 s."""


@frozen
class Cluster:
    """A node with the name server in it, and clients."""

    java: JavaDriver
    name_server: str
    node: TriohaNode

    def produce(self, number: int, *, topic: str, **options: Any) -> None:
        """Send messages; all are stored."""
        assert self.java.produce(self.name_server, number, topic=topic, **options) == {"SEND_OK": number}

    def consume(self, group: str, *, topic: str, **options: Any) -> JavaConsumer:
        """Start a consumer."""
        return self.java.consume(self.name_server, group=group, topic=topic, **options)


def node_settings() -> dict[str, Any]:
    """Of a node with short delay levels and the name server in it, on ports that a restart keeps."""
    return {
        "role": "ASYNC_MASTER",
        "listenPort": free_port(),
        "namesrvAddr": f"127.0.0.1:{free_port()}",
        "trioha.withNamesrv": "true",
        "messageDelayLevel": " ".join(f"{delay_s}s" for delay_s in LEVELS_S),
        "flushDelayOffsetInterval": 100,
        "flushConsumerOffsetInterval": 100,
    }


@pytest.fixture(scope="module")
def cluster(java_of_module: JavaDriver, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster for all tests of a version."""
    settings = node_settings()
    with running(tmp_path_factory.mktemp("consumers") / "broker", **settings) as node:
        yield Cluster(java_of_module, settings["namesrvAddr"], node)


@pytest.mark.parametrize(
    "mode",
    [
        "concurrent",
        *(pytest.param(mode, marks=pytest.mark.nightly) for mode in ("orderly", "broadcast", "lite")),
    ],
)
def test_a_consumer_gets_every_message_once_those_that_were_there_and_those_that_come(
    cluster: Cluster, mode: str
) -> None:
    topic, log = f"Topic-{mode}", cluster.node.log
    cluster.produce(100, topic=topic, prefix="old")
    consumer = cluster.consume(f"group-{mode}", topic=topic, mode=mode)
    assert bodies(consumer.received(100)) == expected(100, "old"), log()
    cluster.produce(50, topic=topic, prefix="new")
    messages = consumer.received(150)
    assert bodies(messages) == expected(100, "old") + expected(50, "new")
    if mode == "orderly":
        assert_order_within_queues(messages)
    consumer.end()
    # A consumer that comes later goes on where this one was; broadcast keeps its offsets itself.
    if mode != "broadcast":
        cluster.produce(10, topic=topic, prefix="later")
        later = cluster.consume(f"group-{mode}", topic=topic, mode=mode)
        assert bodies(later.received(10)) == expected(10, "later"), log()
        later.end()


@pytest.mark.nightly
def test_each_member_of_a_broadcast_group_gets_every_message(cluster: Cluster) -> None:
    topic = "TopicForAll"
    cluster.produce(40, topic=topic, prefix="old")
    members = [cluster.consume("everyone", topic=topic, mode="broadcast") for _ in range(2)]
    for member in members:
        assert bodies(member.received(40)) == expected(40, "old"), cluster.node.log()
    cluster.produce(20, topic=topic, prefix="new")
    for member in members:
        assert bodies(member.received(60)) == expected(40, "old") + expected(20, "new")
        member.end()


def test_tags_select_messages_and_two_members_share_the_queues(cluster: Cluster) -> None:
    topic, log = "TopicShared", cluster.node.log
    for tag in ("a", "b", "c"):
        cluster.produce(20, topic=topic, tags=tag, prefix=tag)
    first = cluster.consume("shared", topic=topic, expression="a || b")
    assert bodies(first.received(40)) == expected(20, "a") + expected(20, "b"), log()
    # The first member is notified of the second, and leaves it half of the queues.
    second = cluster.consume("shared", topic=topic, expression="a || b")
    sent = 0
    deadline_s = time.monotonic() + SHARED_WITHIN_S
    # Offsets that the first has not committed yet are consumed again by the second: only new ones count.
    while not any(body.startswith("shared-") for body in bodies(second.received(1, within_s=0.1))):
        assert time.monotonic() < deadline_s, log()
        cluster.produce(4, topic=topic, tags="b", prefix=f"shared-{sent}-")
        sent += 4
        time.sleep(0.05)
    # While queues change hands some messages may come twice, as with any broker; none is lost.
    wanted = {f"shared-{start}-{index}" for start in range(0, sent, 4) for index in range(4)}
    while not wanted <= set(bodies(first.received(0)) + bodies(second.received(0))):
        assert time.monotonic() < deadline_s, log()
        time.sleep(0.05)
    assert not any(body.startswith("c") for body in bodies(first.received(0)) + bodies(second.received(0)))
    first.end()
    second.end()


def waits_ms(messages: list[dict[str, Any]]) -> list[int]:
    """How long after they were sent messages came."""
    return [message["receivedTimestamp"] - message["bornTimestamp"] for message in messages]


def test_messages_come_when_their_delay_level_is_over(cluster: Cluster) -> None:
    topic = "TopicDelayed"
    cluster.produce(1, topic=topic, prefix="level-0-")
    consumer = cluster.consume("delayed", topic=topic)
    assert bodies(consumer.received(1)) == expected(1, "level-0-"), cluster.node.log()
    for level in (2, 1, 3):
        cluster.produce(5, topic=topic, delay_level=level, prefix=f"level-{level}-")
    messages = consumer.received(16)[1:]
    assert bodies(messages) == sum((expected(5, f"level-{level}-") for level in (1, 2, 3)), Counter())
    for message, wait_ms in zip(messages, waits_ms(messages), strict=True):
        level = int(message["body"].split("-")[1])
        assert wait_ms >= 1000 * LEVELS_S[level - 1], (message, cluster.node.log())
    consumer.end()


def test_delayed_messages_come_after_a_kill_and_those_that_came_do_not_come_again(
    cluster: Cluster, start_node: StartNode
) -> None:
    topic, settings = "TopicKilled", node_settings()
    node = start_node("broker", **settings)
    cluster = evolve(cluster, name_server=settings["namesrvAddr"], node=node)
    cluster.produce(5, topic=topic, delay_level=1, prefix="early")
    consumer = cluster.consume("survivor", topic=topic)
    assert bodies(consumer.received(5)) == expected(5, "early"), node.log()
    wait_for_offsets(node.root, "survivor", topic, 5)
    # A consumer of 4.9 waits 30 s for the answer to a pull whose broker is gone.
    consumer.end()
    # Longer than a kill takes: what is delivered between a write of delayOffset.json and a kill comes twice.
    cluster.produce(5, topic=topic, delay_level=5, prefix="late")
    node.kill()
    node = start_node("broker", **settings)
    again = cluster.consume("survivor", topic=topic)
    everything = cluster.consume("everything", topic=topic)
    assert bodies(again.received(5)) == expected(5, "late"), node.log()
    assert bodies(everything.received(10)) == expected(5, "early") + expected(5, "late")
    assert len(everything.received(11, within_s=2.0)) == 10, node.log()
    for consumer in (again, everything):
        consumer.end()


def test_a_failed_message_comes_again_until_its_listener_succeeds(cluster: Cluster) -> None:
    topic = "TopicFailing"
    cluster.produce(4, topic=topic)
    # Retry level 0 leaves the delay to the broker.
    consumers = [
        cluster.consume(f"failing-{level}", topic=topic, failures=2, retry_level=level) for level in (0, 1)
    ]
    for consumer in consumers:
        messages = consumer.received(12)
        times = Counter((message["body"], message["reconsumeTimes"]) for message in messages)
        assert times == {(f"m{number}", tries): 1 for number in range(4) for tries in range(3)}
    assert len(consumers[0].received(13, within_s=2.0)) == 12, cluster.node.log()
    for consumer in consumers:
        assert len(consumer.received(13, within_s=0.0)) == 12, cluster.node.log()
        consumer.end()


def test_a_message_that_fails_too_often_becomes_a_dead_letter(cluster: Cluster) -> None:
    topic = "TopicHopeless"
    groups = {mode: f"hopeless-{mode}" for mode in ("concurrent", "orderly")}
    cluster.produce(2, topic=topic, tags="t")
    consumers = [
        cluster.consume(group, topic=topic, mode=mode, failures=99, retry_level=1, maxReconsumeTimes=2)
        for mode, group in groups.items()
    ]
    readers = [
        cluster.consume(f"letters-{mode}", topic=dead_letter_topic(group)) for mode, group in groups.items()
    ]
    for consumer, reader in zip(consumers, readers, strict=True):
        messages = consumer.received(6)
        assert Counter(message["body"] for message in messages) == {"m0": 3, "m1": 3}, cluster.node.log()
        letters = reader.received(2)
        assert bodies(letters) == expected(2), cluster.node.log()
        assert {(message["tags"], message["keys"][:3]) for message in letters} == {("t", "key")}
    assert len(consumers[0].received(7, within_s=2.0)) == 6
    assert len(consumers[1].received(7, within_s=0.0)) == 6
    for client in consumers + readers:
        client.end()


def test_the_messages_of_a_batch_come_one_by_one(cluster: Cluster) -> None:
    topic = "TopicBatches"
    cluster.produce(64, topic=topic, tags="a", batch=16)
    cluster.produce(16, topic=topic, tags="b", batch=16)
    consumer = cluster.consume("batches", topic=topic, expression="a")
    messages = consumer.received(64)
    assert bodies(messages) == expected(64), cluster.node.log()
    assert {message["keys"] for message in messages} == {f"key{number}" for number in range(64)}
    # Each batch is in one queue, in order.
    queues = {int(message["body"][1:]): message["queueId"] for message in messages}
    assert all(len({queues[start + index] for index in range(16)}) == 1 for start in range(0, 64, 16))
    consumer.end()


COMPRESSED = {"ZLIB": 0x301, "LZ4": 0x101, "ZSTD": 0x201}
"""The bits of sysFlag that say that and how a body is compressed."""


def test_compressed_bodies_are_stored_as_they_came_and_consumers_get_their_text(
    cluster: Cluster, newest: JavaDriver
) -> None:
    topic = "TopicCompressed"
    texts = {algorithm: f"{algorithm}-" + "compressible " * 500 for algorithm in COMPRESSED}
    for algorithm, text in texts.items():
        # A producer of 4.9 can choose the algorithm for its whole JVM only.
        sent = newest.produce(cluster.name_server, 3, topic=topic, prefix=text, compression=algorithm)
        assert sent == {"SEND_OK": 3}
    wanted = sum((expected(3, text) for text in texts.values()), Counter())
    consumer = cluster.consume("compressed", topic=topic)
    assert bodies(consumer.received(9)) == wanted, cluster.node.log()
    consumer.end()
    assert bodies(consume(topic, cluster.name_server, "--from", "first")) == wanted
    printed = run_trioha("inspect", "--json", cluster.node.root).stdout.splitlines()
    records = [record for record in map(json.loads, printed) if record.get("topic") == topic]
    assert Counter(record["sysFlag"] for record in records) == dict.fromkeys(COMPRESSED.values(), 3)
    assert max(len(base64.b64decode(record["body"])) for record in records) < 1000
