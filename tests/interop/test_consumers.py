"""RocketMQ's own consumers, unmodified, on a trioha node that they find through its name server."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.interop.java import JavaDriver
from tests.node_process import TriohaNode
from tests.ports import free_port
from trioha.metadata.offsets import ConsumerOffsets
from trioha.metadata.pretty_json import parse_pretty

pytestmark = [pytest.mark.interop, pytest.mark.process]

StartNode = Callable[..., TriohaNode]
TOPIC = "TopicConsumed"
SHARED_WITHIN_S = 120.0
"""A member that was not notified of another one looks for its queues each 20 s."""


@pytest.fixture
def cluster(start_node: StartNode) -> tuple[TriohaNode, str]:
    """A node and the name server in it."""
    name_server = f"127.0.0.1:{free_port()}"
    node = start_node(
        "broker",
        role="ASYNC_MASTER",
        namesrvAddr=name_server,
        **{"trioha.withNamesrv": "true"},
    )
    return node, name_server


def bodies(messages: list[dict[str, Any]]) -> Counter[str]:
    return Counter(message["body"] for message in messages)


def expected(number: int, prefix: str = "m") -> Counter[str]:
    return Counter(f"{prefix}{index}" for index in range(number))


def wait_for_offsets(root: Path, group: str, number: int, *, within_s: float = 120.0) -> None:
    """Wait until the file of offsets says that the group has consumed so many messages."""
    deadline_s = time.monotonic() + within_s
    path = root / "config" / ConsumerOffsets.file_name
    while True:
        offsets = ConsumerOffsets()
        if path.exists():
            offsets.load(parse_pretty(path.read_text()))
        if sum(offsets.of_group(group, TOPIC).values()) == number:
            return
        assert time.monotonic() < deadline_s, path.read_text()
        time.sleep(0.05)


@pytest.mark.parametrize("mode", ["concurrent", "orderly", "broadcast", "lite"])
def test_a_consumer_gets_every_message_once_those_that_were_there_and_those_that_come(
    java: JavaDriver, cluster: tuple[TriohaNode, str], mode: str
) -> None:
    node, name_server = cluster
    assert java.produce(name_server, 100, topic=TOPIC, prefix="old") == {"SEND_OK": 100}
    consumer = java.consume(name_server, group=f"group-{mode}", topic=TOPIC, mode=mode)
    assert bodies(consumer.received(100)) == expected(100, "old"), node.log()
    assert java.produce(name_server, 50, topic=TOPIC, prefix="new") == {"SEND_OK": 50}
    messages = consumer.received(150)
    assert bodies(messages) == expected(100, "old") + expected(50, "new")
    if mode == "orderly":
        for queue_id in range(4):
            offsets = [message["queueOffset"] for message in messages if message["queueId"] == queue_id]
            assert offsets == sorted(offsets)
    consumer.end()
    # A consumer that comes later goes on where this one was; broadcast keeps its offsets itself.
    if mode != "broadcast":
        assert java.produce(name_server, 10, topic=TOPIC, prefix="later") == {"SEND_OK": 10}
        later = java.consume(name_server, group=f"group-{mode}", topic=TOPIC, mode=mode)
        assert bodies(later.received(10)) == expected(10, "later"), node.log()
        later.end()


def test_tags_select_messages_and_two_members_share_the_queues(
    java: JavaDriver, cluster: tuple[TriohaNode, str]
) -> None:
    node, name_server = cluster
    for tag in ("a", "b", "c"):
        assert java.produce(name_server, 20, topic=TOPIC, tags=tag, prefix=tag) == {"SEND_OK": 20}
    first = java.consume(name_server, group="shared", topic=TOPIC, expression="a || b")
    assert bodies(first.received(40)) == expected(20, "a") + expected(20, "b"), node.log()
    # The first member is notified of the second, and leaves it half of the queues.
    second = java.consume(name_server, group="shared", topic=TOPIC, expression="a || b")
    sent = 0
    deadline_s = time.monotonic() + SHARED_WITHIN_S
    # Offsets that the first has not committed yet are consumed again by the second: only new ones count.
    while not any(body.startswith("shared-") for body in bodies(second.received(1, within_s=0.1))):
        assert time.monotonic() < deadline_s, node.log()
        assert java.produce(name_server, 4, topic=TOPIC, tags="b", prefix=f"shared-{sent}-") == {"SEND_OK": 4}
        sent += 4
        time.sleep(0.05)
    # While queues change hands some messages may come twice, as with any broker; none is lost.
    wanted = {f"shared-{start}-{index}" for start in range(0, sent, 4) for index in range(4)}
    while not wanted <= set(bodies(first.received(0)) + bodies(second.received(0))):
        assert time.monotonic() < deadline_s, node.log()
        time.sleep(0.05)
    assert not any(body.startswith("c") for body in bodies(first.received(0)) + bodies(second.received(0)))
    first.end()
    second.end()


def test_offsets_outlive_a_kill(java: JavaDriver, start_node: StartNode) -> None:
    ports = {"namesrvAddr": f"127.0.0.1:{free_port()}", "listenPort": free_port()}
    settings = {**ports, "trioha.withNamesrv": "true", "flushConsumerOffsetInterval": 100}
    name_server = str(ports["namesrvAddr"])
    node = start_node("broker", role="ASYNC_MASTER", **settings)
    java.produce(name_server, 60, topic=TOPIC)
    consumer = java.consume(name_server, group="survivor", topic=TOPIC)
    assert bodies(consumer.received(60)) == expected(60)
    consumer.end()
    wait_for_offsets(node.root, "survivor", 60)
    node.kill()
    node = start_node("broker", role="ASYNC_MASTER", **settings)
    java.produce(name_server, 5, topic=TOPIC, prefix="after")
    again = java.consume(name_server, group="survivor", topic=TOPIC)
    assert bodies(again.received(5)) == expected(5, "after"), node.log()
    again.end()
