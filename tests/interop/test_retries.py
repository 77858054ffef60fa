"""RocketMQ's own producers and consumers: delay levels, failed messages, dead letters, batches."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.interop.java import JavaDriver
from tests.interop.node import TriohaNode
from tests.interop.test_consumers import TOPIC, StartNode, bodies, expected, free_port, wait_for_offsets
from trioha.metadata.topics import dead_letter_topic

pytestmark = [pytest.mark.interop, pytest.mark.process]

LEVELS = "1s 2s 3s 3s 20s"


@pytest.fixture
def settings() -> dict[str, Any]:
    """A node with short delay levels, and the name server in it, on ports that a restart keeps."""
    return {
        "role": "ASYNC_MASTER",
        "listenPort": free_port(),
        "namesrvAddr": f"127.0.0.1:{free_port()}",
        "trioha.withNamesrv": "true",
        "messageDelayLevel": LEVELS,
    }


@pytest.fixture
def node(start_node: StartNode, settings: dict[str, Any]) -> TriohaNode:
    return start_node("broker", **settings)


def waits_ms(messages: list[dict[str, Any]]) -> list[int]:
    """How long after they were sent messages came."""
    return [message["receivedTimestamp"] - message["bornTimestamp"] for message in messages]


def test_messages_come_when_their_delay_level_is_over(
    java: JavaDriver, node: TriohaNode, settings: dict[str, Any]
) -> None:
    name_server = settings["namesrvAddr"]
    # A consumer looks for a topic that does not exist every 30 s only.
    assert java.produce(name_server, 1, topic=TOPIC, prefix="level-0-") == {"SEND_OK": 1}
    consumer = java.consume(name_server, group="delayed", topic=TOPIC)
    assert bodies(consumer.received(1)) == expected(1, "level-0-"), node.log()
    for level in (3, 2, 1):
        assert java.produce(name_server, 5, topic=TOPIC, delay_level=level, prefix=f"level-{level}-") == {
            "SEND_OK": 5
        }
    messages = consumer.received(16)[1:]
    assert bodies(messages) == sum((expected(5, f"level-{level}-") for level in (1, 2, 3)), Counter())
    for message, wait_ms in zip(messages, waits_ms(messages), strict=True):
        assert wait_ms >= 1000 * int(message["body"].split("-")[1]), (message, node.log())
    consumer.end()


def test_delayed_messages_come_after_a_kill_and_those_that_came_do_not_come_again(
    java: JavaDriver, start_node: StartNode, settings: dict[str, Any]
) -> None:
    settings |= {"flushDelayOffsetInterval": 100, "flushConsumerOffsetInterval": 100}
    name_server = settings["namesrvAddr"]
    node = start_node("broker", **settings)
    assert java.produce(name_server, 5, topic=TOPIC, delay_level=1, prefix="early") == {"SEND_OK": 5}
    consumer = java.consume(name_server, group="survivor", topic=TOPIC)
    assert bodies(consumer.received(5)) == expected(5, "early"), node.log()
    wait_for_offsets(node.root, "survivor", 5)
    # Longer than a kill takes: what is delivered between a write of delayOffset.json and a kill comes twice.
    assert java.produce(name_server, 5, topic=TOPIC, delay_level=5, prefix="late") == {"SEND_OK": 5}
    node.kill()
    node = start_node("broker", **settings)
    wanted = expected(5, "early") + expected(5, "late")
    # A consumer that connects again may be given a message again; the queues have each of them once.
    consumer.received(10, within_s=60.0)
    messages = consumer.received(20, within_s=5.0)
    stored = {(one["queueId"], one["queueOffset"]): one["body"] for one in messages}
    assert Counter(stored.values()) == wanted, node.log()
    consumer.end()


@pytest.mark.parametrize("retry_level", [0, 1])
def test_a_failed_message_comes_again_until_its_listener_succeeds(
    java: JavaDriver, node: TriohaNode, settings: dict[str, Any], retry_level: int
) -> None:
    name_server = settings["namesrvAddr"]
    assert java.produce(name_server, 4, topic=TOPIC) == {"SEND_OK": 4}
    consumer = java.consume(name_server, group="failing", topic=TOPIC, failures=2, retry_level=retry_level)
    # It finds its retry topic, which its first heartbeat makes, by the next look at its routes: every 30 s.
    messages = consumer.received(12, within_s=60.0)
    times = Counter((message["body"], message["reconsumeTimes"]) for message in messages)
    assert times == {(f"m{number}", tries): 1 for number in range(4) for tries in range(3)}, node.log()
    assert len(consumer.received(13, within_s=2.0)) == 12
    consumer.end()


@pytest.mark.parametrize("mode", ["concurrent", "orderly"])
def test_a_message_that_fails_too_often_becomes_a_dead_letter(
    java: JavaDriver, node: TriohaNode, settings: dict[str, Any], mode: str
) -> None:
    name_server = settings["namesrvAddr"]
    group = f"hopeless-{mode}"
    assert java.produce(name_server, 2, topic=TOPIC, tags="t") == {"SEND_OK": 2}
    consumer = java.consume(
        name_server, group=group, topic=TOPIC, mode=mode, failures=99, retry_level=1, maxReconsumeTimes=2
    )
    messages = consumer.received(6, within_s=60.0)
    assert Counter(message["body"] for message in messages) == {"m0": 3, "m1": 3}, node.log()
    # Its topic is there when the first message has failed for the last time.
    undertaker = java.consume(name_server, group="undertaker", topic=dead_letter_topic(group))
    letters = undertaker.received(2, within_s=60.0)
    assert bodies(letters) == expected(2), node.log()
    assert {(message["tags"], message["keys"][:3]) for message in letters} == {("t", "key")}
    assert len(consumer.received(7, within_s=2.0)) == 6
    consumer.end()
    undertaker.end()


def test_the_messages_of_a_batch_come_one_by_one(
    java: JavaDriver, node: TriohaNode, settings: dict[str, Any]
) -> None:
    name_server = settings["namesrvAddr"]
    assert java.produce(name_server, 64, topic=TOPIC, tags="a", batch=16) == {"SEND_OK": 64}
    assert java.produce(name_server, 16, topic=TOPIC, tags="b", batch=16) == {"SEND_OK": 16}
    consumer = java.consume(name_server, group="batches", topic=TOPIC, expression="a")
    messages = consumer.received(64)
    assert bodies(messages) == expected(64), node.log()
    assert {message["keys"] for message in messages} == {f"key{number}" for number in range(64)}
    # Each batch is in one queue, in order.
    queues = {int(message["body"][1:]): message["queueId"] for message in messages}
    assert all(len({queues[start + index] for index in range(16)}) == 1 for start in range(0, 64, 16))
    consumer.end()
