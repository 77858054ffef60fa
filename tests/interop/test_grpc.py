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
from tests.interop.asking import ask, max_offset, max_offsets, wait_for_route
from tests.interop.name_server import trioha_name_server
from tests.interop.proxy import grpc_proxy
from tests.interop.rocketmq import NEWEST, missing_tools
from tests.interop.sdks import DRIVERS, Sdk, SdkError, opened_sdk
from tests.interop.transactions import OPS
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
        """Send with a producer of its own, which lives until all is sent."""
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

    def push(self, topic: str, group: str, **options: Any) -> str:
        """A push consumer."""
        name = f"C{next(_numbers)}"
        self.sdk("push", name=name, group=group, topic=topic, **options)
        return name

    def consumed(self, name: str, number: int) -> list[dict[str, Any]]:
        """What a push consumer has consumed, once it is so much."""

        def found() -> list[dict[str, Any]]:
            messages: list[dict[str, Any]] = self.sdk("consumed", name=name)
            return messages

        wait_until(lambda: len(found()) >= number, f"{number} are consumed", within_s=RECEIVED_WITHIN_S)
        return found()

    def receive(self, name: str, number: int) -> list[dict[str, Any]]:
        """So many messages."""
        found: list[dict[str, Any]] = []

        def has_all() -> bool:
            found.extend(self.sdk("receive", name=name, number=32, invisible_s=INVISIBLE_S))
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
        # RocketMQ's own limit: messages of 4 MiB.
        "maxMessageSize": 4 << 20,
        "mappedFileSizeCommitLog": 32 << 20,
        # A decision that follows its message at once comes before the time-out.
        "transactionTimeOut": 3000,
        "transactionCheckInterval": 500,
        # The proxy names its producers to the node each 20 s; checks without a producer count.
        "transactionCheckMax": 1000,
    }
    with (
        trioha_name_server(folder / "names") as names,
        running(folder / "store", role="ASYNC_MASTER", namesrvAddr=names, **settings) as node,
        grpc_proxy(NEWEST, names, folder=folder / "proxy", cluster=CLUSTER) as proxy,
    ):
        yield Proxied(node.listen_address, names, proxy.endpoints)


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


def numbered(prefix: str, number: int) -> list[str]:
    return [f"{prefix}{index:03}" for index in range(number)]


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
    consumer = grpc.push(topic, group, failing=["bad"])
    grpc.send("NORMAL", topic, "good", "bad")
    wait_until(
        lambda: max_offset(grpc.node, f"%DLQ%{group}") == 1, "it is a dead letter", within_s=RECEIVED_WITHIN_S
    )
    consumed = grpc.consumed(consumer, 3)
    assert sorted((message["body"], message["attempt"]) for message in consumed) == [
        ("bad", 1),
        ("bad", 2),
        ("good", 1),
    ]
    grpc.sdk("end", name=consumer)


@pytest.mark.nightly
def test_messages_of_a_group_come_in_their_order(grpc):
    topic, group = grpc.topic("FIFO"), grpc.group(consumeMessageOrderly=True)
    consumer, sent = grpc.push(topic, group), numbered("o", 8)
    grpc.send("FIFO", topic, *sent, group="account-1")
    consumed = grpc.consumed(consumer, 8)
    assert [message["body"] for message in consumed] == sent
    assert {message["group"] for message in consumed} == {"account-1"}
    grpc.sdk("end", name=consumer)


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


# What Apache's acceptance suite does beside these (docs/grpc.md), by one SDK: the node does the same for all.
by_one_sdk = pytest.mark.parametrize("grpc", ["python"], indirect=True)


@pytest.mark.nightly
@by_one_sdk
def test_tags_choose_messages_that_were_sent_asynchronously(grpc):
    topic, one, two = grpc.topic("NORMAL"), grpc.group(), grpc.group()
    pushed = grpc.push(topic, one, tags="a || BB")
    simple = grpc.simple(topic, two, tags="a || BB")
    # The hash of Aa is that of BB.
    for tag in ("Aa", "bb", "a", "BB"):
        grpc.send("NORMAL", topic, *numbered(f"{tag}-", 10), tag=tag, is_async=True)
    wanted = sorted([*numbered("a-", 10), *numbered("BB-", 10)])
    assert bodies(grpc.consumed(pushed, 20)) == wanted
    assert bodies(grpc.receive(simple, 20)) == wanted
    grpc.sdk("end", name=pushed)
    grpc.sdk("end", name=simple)


@pytest.mark.nightly
@by_one_sdk
def test_sql_is_refused(grpc):
    topic, group = grpc.topic("NORMAL"), grpc.group()
    consumer = grpc.simple(topic, group, sql="colour = 'red'")

    def refusal() -> str:
        try:
            grpc.sdk("receive", name=consumer, number=32, invisible_s=INVISIBLE_S)
        except SdkError as error:
            return str(error)
        return ""

    wait_until(
        lambda: "does not support consumer to filter message by SQL92" in refusal(),
        "the node refuses",
        within_s=RECEIVED_WITHIN_S,
    )
    grpc.sdk("end", name=consumer)


@pytest.mark.nightly
@by_one_sdk
def test_each_group_gets_all_messages_and_members_of_a_group_share_them(grpc):
    topic, sent = grpc.topic("NORMAL"), numbered("m", 100)
    one, two, shared = (grpc.group() for _ in range(3))
    alone = [grpc.push(topic, group) for group in (one, two)]
    members = [grpc.push(topic, shared) for _ in range(2)]
    grpc.send("NORMAL", topic, *sent)
    for name in alone:
        assert bodies(grpc.consumed(name, 100)) == sent

    def consumed() -> list[dict[str, Any]]:
        return [message for name in members for message in grpc.sdk("consumed", name=name)]

    wait_until(lambda: len(consumed()) >= 100, "the group has all", within_s=RECEIVED_WITHIN_S)
    assert bodies(consumed()) == sent
    for name in (*alone, *members):
        grpc.sdk("end", name=name)


@pytest.mark.nightly
@by_one_sdk
def test_a_time_of_delivery_in_the_past_is_now_and_one_in_two_days_is_refused(grpc):
    topic, group = grpc.topic("DELAY"), grpc.group()
    consumer, now_ms = grpc.push(topic, group), time.time_ns() // 1_000_000
    grpc.send("DELAY", topic, *numbered("past", 10), at_ms=now_ms - 20_000)
    assert bodies(grpc.consumed(consumer, 10)) == numbered("past", 10)
    with pytest.raises(SdkError, match="the max delay time of message is too large"):
        grpc.send("DELAY", topic, "late", at_ms=now_ms + 2 * 86_400_000)
    grpc.sdk("end", name=consumer)


@pytest.mark.nightly
@by_one_sdk
def test_order_holds_in_each_message_group_when_messages_are_tried_again(grpc):
    topic = grpc.topic("FIFO")
    policy = {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1000]}}
    group = grpc.group(consumeMessageOrderly=True, groupRetryPolicy=policy)
    sent = {name: numbered(f"{name}-", 20) for name in ("a", "b", "c")}
    failing = [body for name in sent for body in sent[name][1::5]]
    consumer = grpc.push(topic, group, failing_once=failing)
    for name, of_group in sent.items():
        grpc.send("FIFO", topic, *of_group, group=name)
    consumed = grpc.consumed(consumer, 60 + len(failing))
    for name, of_group in sent.items():
        tried = [body for body in of_group for _ in range(2 if body in failing else 1)]
        assert [message["body"] for message in consumed if message["group"] == name] == tried
    grpc.sdk("end", name=consumer)


@pytest.mark.nightly
@by_one_sdk
def test_a_queue_of_an_ordered_group_waits_for_the_first_message_that_is_not_acknowledged(grpc):
    topic, group = grpc.topic("FIFO"), grpc.group(consumeMessageOrderly=True)
    consumer, sent = grpc.simple(topic, group), numbered("o", 6)
    grpc.send("FIFO", topic, *sent, group="account-1")

    def receive_three() -> list[tuple[str, int]]:
        while not (found := grpc.sdk("receive", name=consumer, number=3, invisible_s=INVISIBLE_S)):
            pass
        return [(message["body"], message["attempt"]) for message in found]

    assert receive_three() == [(body, 1) for body in sent[:3]]
    grpc.sdk("ack", name=consumer, bodies=sent[1:3])
    assert receive_three()[0] == (sent[0], 2)
    grpc.sdk("ack", name=consumer, bodies=sent[:1])
    grpc.sdk("end", name=consumer)


@pytest.mark.nightly
@by_one_sdk
def test_handles_expire_and_a_longer_time_counts(grpc):
    topic, group = grpc.topic("NORMAL"), grpc.group()
    consumer = grpc.simple(topic, group)
    grpc.send("NORMAL", topic, "left", "kept")
    assert bodies(grpc.receive(consumer, 2)) == ["kept", "left"]
    changed_ms = time.time_ns() // 1_000_000
    grpc.sdk("change", name=consumer, body="kept", invisible_s=30)
    time.sleep(INVISIBLE_S + 1)
    with pytest.raises(SdkError, match="INVALID_RECEIPT_HANDLE"):
        grpc.sdk("ack", name=consumer, bodies=["left"])
    again = grpc.receive(consumer, 1)
    assert [(message["body"], message["attempt"]) for message in again] == [("left", 2)]
    grpc.sdk("ack", name=consumer, bodies=["left"])
    again = grpc.receive(consumer, 1)
    assert [(message["body"], message["attempt"]) for message in again] == [("kept", 2)]
    assert time.time_ns() // 1_000_000 >= changed_ms + 30_000
    grpc.sdk("ack", name=consumer, bodies=["kept"])
    grpc.sdk("end", name=consumer)


@pytest.mark.nightly
@by_one_sdk
def test_producers_are_asked_for_decisions_that_are_missing(grpc):
    topic, group = grpc.topic("TRANSACTION"), grpc.group()
    consumer = grpc.push(topic, group)
    sent, decided_before = [*numbered("no", 5), *numbered("yes", 5)], max_offset(grpc.node, OPS)
    grpc.sdk("producer", name="checked", topics=[topic], transactions=True)
    grpc.sdk("send", name="checked", topic=topic, bodies=sent, transaction="undecided")
    assert bodies(grpc.consumed(consumer, 5)) == numbered("yes", 5)
    wait_until(lambda: max_offset(grpc.node, OPS) >= decided_before + 10, "all are decided")
    assert sum(max_offsets(grpc.node, topic).values()) == 5
    grpc.sdk("end", name="checked")
    grpc.sdk("end", name=consumer)


@pytest.mark.nightly
@by_one_sdk
def test_the_largest_messages_come_as_they_were_sent(grpc):
    topic, group = grpc.topic("NORMAL"), grpc.group()
    consumer = grpc.simple(topic, group)
    body, properties = "é" * (2 << 20), {"long": "x" * 16_000, "名": "空 📦"}
    grpc.send("NORMAL", topic, body, "📦", properties=properties, tag="名")
    received = grpc.receive(consumer, 2)
    assert bodies(received) == sorted([body, "📦"])
    for message in received:
        assert (message["tag"], message["properties"]) == ("名", properties)
    with pytest.raises(SdkError, match="body size"):
        grpc.send("NORMAL", topic, body + "x")
    grpc.sdk("ack", name=consumer, bodies=[body, "📦"])
    grpc.sdk("end", name=consumer)
