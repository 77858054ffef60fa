"""Clients of gRPC through Apache's unmodified proxy, in cluster mode, before a trioha node."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
from attrs import frozen

from tests.doctor.changes import ask as ask_well
from tests.interop.asking import ask, max_offset, wait_for_route
from tests.interop.name_server import trioha_name_server
from tests.interop.proxy import grpc_proxy
from tests.interop.rocketmq import NEWEST, missing_tools
from tests.interop.sdks import DRIVERS, Sdk, opened_sdk
from tests.interop.world import running
from tests.ports import free_port
from tests.waiting import wait_until
from trioha.remoting.codes import RequestCode, ResponseCode
from trioha.remoting.command import request as request_of

pytestmark = [pytest.mark.interop, pytest.mark.process, pytest.mark.full, pytest.mark.timeout(1200)]

CLUSTER = "DefaultCluster"
RECEIVED_WITHIN_S = 300.0
INVISIBLE_S = 10
"""The least that the proxy allows."""
_numbers = count(1)


@frozen
class Grpc:
    """A node, its name server, and clients of the proxy before it."""

    node: str
    names: str
    sdk: Sdk

    def topic(self, kind: str) -> str:
        """A new topic for a kind of messages: the proxy lets producers send nothing else."""
        name = f"{kind.capitalize()}{next(_numbers)}"
        fields = {
            "topic": name, "defaultTopic": "TBW102", "readQueueNums": "2", "writeQueueNums": "2", "perm": "6",
            "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
            "attributes": f"+message.type={kind}",
        }  # fmt: skip
        answer = ask(self.node, RequestCode.UPDATE_AND_CREATE_TOPIC, **fields)
        assert answer.code == ResponseCode.SUCCESS, answer
        wait_for_route(self.names, name)
        return name

    def group(self, **settings: Any) -> str:
        """A new group."""
        name = f"G{next(_numbers)}"
        body = json.dumps({"groupName": name, "consumeEnable": True, **settings}).encode()
        ask_well(self.node, request_of(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body))
        return name

    def send(self, kind: str, topic: str, *bodies: str, **options: Any) -> None:
        """Send with a producer of its own."""
        name = f"P{next(_numbers)}"
        self.sdk("producer", name=name, topics=[topic], transactions=kind == "TRANSACTION")
        self.sdk("send", name=name, topic=topic, bodies=bodies, **options)
        self.sdk("end", name=name)

    def simple(self, topic: str, group: str, **options: Any) -> str:
        """A simple consumer. What it asks for before the proxy has its settings is refused: it is asked
        again."""
        name = f"C{next(_numbers)}"
        self.sdk("simple", name=name, group=group, topic=topic, **options)
        return name

    def receive(self, name: str, number: int) -> list[dict[str, Any]]:
        """So many messages."""
        found: list[dict[str, Any]] = []

        def has_all() -> bool:
            found.extend(self.sdk("receive", name=name, number=16, invisible_s=INVISIBLE_S))
            return len(found) >= number

        wait_until(has_all, f"{number} messages", within_s=RECEIVED_WITHIN_S)
        return found


@frozen
class Proxied:
    """A node behind a proxy."""

    node: str
    names: str
    endpoints: str
    """Of the proxy."""


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxied]:
    """All of it but the clients, for the tests of this module: each has topics and groups of its own."""
    if lacking := missing_tools():
        pytest.skip(lacking)
    folder = tmp_path_factory.mktemp("grpc")
    settings: dict[str, Any] = {
        "brokerName": "broker-t",
        "brokerClusterName": CLUSTER,
        "listenPort": free_port(),
    }
    with (
        trioha_name_server(folder / "names") as names,
        running(folder / "store", role="ASYNC_MASTER", namesrvAddr=names, **settings) as node,
        grpc_proxy(NEWEST, names, folder=folder / "proxy", cluster=CLUSTER) as endpoints,
    ):
        yield Proxied(node.listen_address, names, endpoints)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(language, marks=() if language == "python" else pytest.mark.nightly)
        for language in DRIVERS
    ],
)
def grpc(
    request: pytest.FixtureRequest, proxied: Proxied, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Grpc]:
    """Clients of one SDK after the other."""
    log = tmp_path_factory.mktemp(request.param) / "sdk.log"
    with opened_sdk(request.param, proxied.endpoints, log=log) as sdk:
        yield Grpc(proxied.node, proxied.names, sdk)


def bodies(messages: list[dict[str, Any]]) -> list[str]:
    return sorted(message["body"] for message in messages)


def test_a_simple_consumer_receives_and_what_it_leaves_comes_again(grpc):
    topic, group = grpc.topic("NORMAL"), grpc.group()
    consumer = grpc.simple(topic, group)
    sent = [f"m{number}" for number in range(6)]
    grpc.send("NORMAL", topic, *sent, tag="a")
    received = grpc.receive(consumer, 6)
    assert bodies(received) == sent
    assert {(message["attempt"], message["tag"]) for message in received} == {(1, "a")}
    assert received[0]["properties"]["colour"] == "red"
    grpc.sdk("ack", name=consumer, bodies=sent[:4])
    again = grpc.receive(consumer, 2)
    assert bodies(again) == sent[4:]
    assert {message["attempt"] for message in again} == {2}
    grpc.sdk("ack", name=consumer, bodies=sent[4:])
    grpc.sdk("end", name=consumer)


def test_a_push_consumer_retries_what_fails_until_it_is_a_dead_letter(grpc):
    topic = grpc.topic("NORMAL")
    policy = {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1000, 1000]}}
    group = grpc.group(retryMaxTimes=1, groupRetryPolicy=policy)
    grpc.sdk("push", name="push", group=group, topic=topic, failing=["bad"])
    grpc.send("NORMAL", topic, "good", "bad")

    def consumed() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = grpc.sdk("consumed", name="push")
        return found

    wait_until(lambda: len(consumed()) == 3, "the bad one is consumed twice", within_s=RECEIVED_WITHIN_S)
    wait_until(
        lambda: max_offset(grpc.node, f"%DLQ%{group}") == 1, "it is a dead letter", within_s=RECEIVED_WITHIN_S
    )
    assert sorted((message["body"], message["attempt"]) for message in consumed()) == [
        ("bad", 1),
        ("bad", 2),
        ("good", 1),
    ]
    grpc.sdk("end", name="push")


@pytest.mark.nightly
def test_messages_of_a_group_come_in_their_order(grpc):
    topic, group = grpc.topic("FIFO"), grpc.group(consumeMessageOrderly=True)
    grpc.sdk("push", name="fifo", group=group, topic=topic)
    sent = [f"o{number}" for number in range(8)]
    grpc.send("FIFO", topic, *sent, group="account-1")
    wait_until(
        lambda: len(grpc.sdk("consumed", name="fifo")) == len(sent),
        "all are consumed",
        within_s=RECEIVED_WITHIN_S,
    )
    consumed = grpc.sdk("consumed", name="fifo")
    assert [message["body"] for message in consumed] == sent
    assert {message["group"] for message in consumed} == {"account-1"}
    grpc.sdk("end", name="fifo")


@pytest.mark.nightly
def test_a_delayed_message_comes_at_its_time(grpc):
    topic, group = grpc.topic("DELAY"), grpc.group()
    consumer = grpc.simple(topic, group)
    due_ms = (time.time_ns() // 1_000_000_000 + 20) * 1000
    grpc.send("DELAY", topic, "later", at_ms=due_ms)
    received = grpc.receive(consumer, 1)
    assert bodies(received) == ["later"]
    assert time.time_ns() // 1_000_000 >= due_ms
    grpc.sdk("ack", name=consumer, bodies=["later"])
    grpc.sdk("end", name=consumer)


@pytest.mark.nightly
def test_of_transactions_only_what_is_committed_comes(grpc):
    topic, group = grpc.topic("TRANSACTION"), grpc.group()
    consumer = grpc.simple(topic, group)
    grpc.send("TRANSACTION", topic, "gone", transaction="rollback")
    grpc.send("TRANSACTION", topic, "done", transaction="commit")
    received = grpc.receive(consumer, 1)
    assert bodies(received) == ["done"]
    grpc.sdk("ack", name=consumer, bodies=["done"])
    grpc.sdk("end", name=consumer)
