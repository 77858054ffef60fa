"""RocketMQ's push consumer of 5.x with clientRebalance=false: a trioha node assigns its queues, it pops."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from attrs import frozen

from tests.doctor.changes import ask
from tests.interop.asking import make_topic, wait_for_route
from tests.interop.java import JavaConsumer, JavaDriver
from tests.interop.world import running
from tests.node_process import TriohaNode
from tests.ports import free_port
from tests.waiting import wait_until
from trioha.remoting.codes import RequestCode
from trioha.remoting.command import request

pytestmark = [pytest.mark.interop, pytest.mark.process, pytest.mark.full]

CONSUMED_WITHIN_S = 180.0


@frozen
class Cluster:
    """A node with a name server in it."""

    names: str
    node: TriohaNode

    def topic(self, name: str, group: str, mode: str) -> str:
        """A topic that a group pulls or pops."""
        make_topic(self.node.listen_address, name)
        wait_for_route(self.names, name)
        body = json.dumps({"topic": name, "consumerGroup": group, "mode": mode, "popShareQueueNum": -1})
        ask(self.node.listen_address, request(RequestCode.SET_MESSAGE_REQUEST_MODE, body=body.encode()))
        return name


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    settings: dict[str, Any] = {
        "role": "ASYNC_MASTER",
        "listenPort": free_port(),
        "namesrvAddr": f"127.0.0.1:{free_port()}",
        "trioha.withNamesrv": "true",
    }
    with running(tmp_path / "broker", **settings) as node:
        yield Cluster(settings["namesrvAddr"], node)


def consumed(*consumers: JavaConsumer) -> Counter[str]:
    """How often each message was consumed, by all of them."""
    return Counter(message["body"] for consumer in consumers for message in consumer.received(0, within_s=0))


@pytest.mark.parametrize("mode", ["POP", "PULL"])
def test_queues_are_assigned_by_the_node_and_each_message_is_consumed_once(
    newest: JavaDriver, cluster: Cluster, mode: str
) -> None:
    topic = cluster.topic("Orders", "workers", mode)
    with (
        newest.consuming(cluster.names, group="workers", topic=topic, mode="pop") as one,
        newest.consuming(cluster.names, group="workers", topic=topic, mode="pop") as other,
    ):
        assert newest.produce(cluster.names, 60, topic=topic, prefix="m") == {"SEND_OK": 60}
        wait_until(lambda: len(consumed(one, other)) == 60, "all are consumed", within_s=CONSUMED_WITHIN_S)
        assert set(consumed(one, other).values()) == {1}


def test_what_a_popping_consumer_fails_is_retried(newest: JavaDriver, cluster: Cluster) -> None:
    topic = cluster.topic("Orders", "workers", "POP")
    options: dict[str, Any] = {"mode": "pop", "failures": 1, "retry_level": 1}
    with newest.consuming(cluster.names, group="workers", topic=topic, **options) as consumer:
        assert newest.produce(cluster.names, 3, topic=topic, prefix="m") == {"SEND_OK": 3}
        messages = consumer.received(6, within_s=CONSUMED_WITHIN_S)
    tried = Counter((message["body"], message["reconsumeTimes"]) for message in messages)
    assert len(tried) == 6
    assert {times for _, times in tried} == {0, 1}
