"""Sends that a broker refuses, and batches: real brokers and a trioha node side by side."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import trio
from attrs import evolve, frozen

from tests.interop.java import JavaDriver
from tests.interop.rocketmq import both_lines, is_5
from tests.interop.world import StartNode
from tests.remoting.batches import encode_batch_body
from trioha.remoting.client import open_client
from trioha.remoting.codes import RequestCode, ResponseCode, Version
from trioha.remoting.command import RemotingCommand, request
from trioha.remoting.send_message import SendMessageRequestHeader
from trioha.store.message_properties import encode_properties
from trioha.store.messages import BatchItem
from trioha.store.record import Record, decode_record

pytestmark = [pytest.mark.interop, pytest.mark.process, pytest.mark.full]

BODY_BYTES_MAX = 65000
BATCH = encode_batch_body([BatchItem(b"one"), BatchItem(b"two")])


def send(
    body: bytes = b"hello", *, without: str = "", fields: Mapping[str, str] | None = None, **changes: Any
) -> RemotingCommand:
    """SEND_MESSAGE_V2; `changes` are header values, `fields` replace encoded ones, `without` drops one."""
    values: dict[str, Any] = {
        "producer_group": "producers", "topic": "TopicRefused", "default_topic": "TBW102",
        "default_topic_queue_nums": 4, "queue_id": 0, "sys_flag": 0, "born_timestamp_ms": 1_700_000_000_000,
        "flag": 0, **changes,
    }  # fmt: skip
    if isinstance(values.get("properties"), dict):
        values["properties"] = encode_properties(values["properties"]).decode()
    ext = SendMessageRequestHeader(**values).to_ext_fields() | dict(fields or {})
    ext.pop(without, None)
    return request(RequestCode.SEND_MESSAGE_V2, ext_fields=ext, body=body)


def send_batch(body: bytes = BATCH, **changes: Any) -> RemotingCommand:
    """SEND_BATCH_MESSAGE."""
    single = send(body, batch=True, **changes)
    return request(RequestCode.SEND_BATCH_MESSAGE, ext_fields=single.ext_fields, body=body)


def send_back(**changes: str) -> RemotingCommand:
    """CONSUMER_SEND_MSG_BACK of an offset where no message is."""
    ext = {
        "offset": "7777777", "group": "consumers", "delayLevel": "0", "originMsgId": "x",
        "originTopic": "TopicRefused", "unitMode": "false", "maxReconsumeTimes": "16", **changes,
    }  # fmt: skip
    return request(RequestCode.CONSUMER_SEND_MSG_BACK, ext_fields=ext)


CASES: dict[str, RemotingCommand] = {
    "a topic without a name": send(topic=""),
    "a topic of illegal characters": send(topic="a topic"),
    "a topic of 128 characters": send(topic="t" * 128),
    "a retry topic of 256 characters": send(topic="%RETRY%" + "t" * 249),
    "SCHEDULE_TOPIC_XXXX": send(topic="SCHEDULE_TOPIC_XXXX"),
    "RMQ_SYS_TRANS_HALF_TOPIC": send(topic="RMQ_SYS_TRANS_HALF_TOPIC"),
    "RMQ_SYS_TRANS_OP_HALF_TOPIC": send(topic="RMQ_SYS_TRANS_OP_HALF_TOPIC"),
    "TRANS_CHECK_MAX_TIME_TOPIC": send(topic="TRANS_CHECK_MAX_TIME_TOPIC"),
    "SELF_TEST_TOPIC": send(topic="SELF_TEST_TOPIC"),
    "OFFSET_MOVED_EVENT": send(topic="OFFSET_MOVED_EVENT"),
    "rmq_sys_wheel_timer": send(topic="rmq_sys_wheel_timer"),
    "rmq_sys_SYNC_BROKER_MEMBER_x": send(topic="rmq_sys_SYNC_BROKER_MEMBER_x"),
    "a new topic like an unknown one": send(topic="TopicNew", default_topic="NoSuchTopic"),
    "a topic that is only readable": send(topic="TopicReadable"),
    "a queue that the topic does not have": send(queue_id=9),
    "a message without a body": send(b""),
    "a body above maxMessageSize": send(b"x" * (BODY_BYTES_MAX + 1)),
    "properties above 32767 bytes": send(properties={"p": "x" * 32767}),
    "no queueId": send(without="e"),
    "queueId that is no number": send(fields={"e": "one"}),
    "no topic": send(without="b"),
    "DELAY that is no number": send(properties={"DELAY": "soon"}),
    "a timer": send(properties={"TIMER_DELAY_SEC": "5"}),
    "a half message, with rejectTransactionMessage": send(properties={"TRAN_MSG": "true"}, sys_flag=4),
    "sysFlag of an inner batch": send(sys_flag=0x80),
    "an empty batch": send_batch(b""),
    "a damaged batch": send_batch(BATCH[:-3]),
    "a batch with a message above maxMessageSize": send_batch(
        encode_batch_body([BatchItem(b"x" * (BODY_BYTES_MAX + 1))])
    ),
    "a batch above maxMessageSize": send_batch(encode_batch_body([BatchItem(b"x" * 30000)] * 3)),
    "a batch to a retry topic": send_batch(topic="%RETRY%consumers"),
    "a batch with a delay": send_batch(properties={"DELAY": "1"}),
    "a retry of a group with an illegal name": send(topic="%RETRY%"),
    "send back: no message at the offset": send_back(),
    "send back: a group with an illegal name": send_back(group="a group"),
    "send back: no offset": send_back(offset=""),
}


READABLE = request(
    RequestCode.UPDATE_AND_CREATE_TOPIC,
    ext_fields={
        "topic": "TopicReadable", "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4",
        "perm": "4", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
    },
)  # fmt: skip
PULL = request(
    RequestCode.PULL_MESSAGE,
    ext_fields={
        "consumerGroup": "consumers", "topic": "TopicRefused", "queueId": "0", "queueOffset": "0",
        "maxMsgNums": "1", "sysFlag": "0", "commitOffset": "0", "suspendTimeoutMillis": "0",
        "subVersion": "0",
    },
)  # fmt: skip
BY_PERMISSION = {
    4: {"brokerPermission=4": send(), "send back: brokerPermission=4": send_back()},
    2: {"a pull: brokerPermission=2": PULL},
}
"""Requests to a broker with this brokerPermission."""


@frozen
class Refusal:
    """Code and remark of an answer."""

    code: int
    remark: str

    @classmethod
    def of(cls, answer: RemotingCommand) -> Refusal:
        """Without the producer's address, the attributes of 5.x, and the address of the documentation."""
        text = (answer.remark or "").split("\n")[0].split(" Producer: ")[0].replace(", attributes={}", "")
        return cls(answer.code, text)


@frozen
class Difference:
    """Where trioha answers otherwise, on purpose."""

    versions: tuple[str, ...]
    """Beginnings of the versions whose brokers answer otherwise."""
    code: int | None
    """Of trioha's answer; None if it is the real broker's."""
    remark: str
    """Of trioha's answer."""


SYSTEM_ERROR, ILLEGAL = int(ResponseCode.SYSTEM_ERROR), int(ResponseCode.MESSAGE_ILLEGAL)
NO_GROUP, NO_PERMISSION = int(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST), int(ResponseCode.NO_PERMISSION)
ONLY_4, TO_5_3, ONLY_5, BOTH = ("4.",), ("4.", "5.3."), ("5.",), ("4.", "5.")
DIFFERENCES = {
    # Remarks of 4.9 and 5.3 that do not say which topic.
    "a topic of illegal characters": Difference(
        TO_5_3,
        None,
        "The specified topic: a topic, contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$",
    ),
    "a topic of 128 characters": Difference(
        TO_5_3, None, f"The specified topic: {'t' * 128}, is longer than topic max length: 127"
    ),
    "a retry topic of 256 characters": Difference(
        TO_5_3,
        None,
        f"The specified topic is DLQ or Retry topic: %RETRY%{'t' * 249}, "
        "and it's longer than topic max length: 255",
    ),
    # Remarks that do not say which limit.
    "a body above maxMessageSize": Difference(BOTH, ILLEGAL, "body of 65001 bytes, maxMessageSize is 65000"),
    "properties above 32767 bytes": Difference(BOTH, ILLEGAL, "properties of 32786 bytes, 32767 is the most"),
    "a batch with a delay": Difference(BOTH, ILLEGAL, "a batch has no delay level and no transaction"),
    "a batch with a message above maxMessageSize": Difference(
        BOTH, ILLEGAL, "message 0 of the batch: body of 65001 bytes, maxMessageSize is 65000"
    ),
    "a batch above maxMessageSize": Difference(
        BOTH, ILLEGAL, "a batch of 90309 bytes never fits a log file of 65536 bytes"
    ),
    # Java exceptions.
    "no queueId": Difference(BOTH, SYSTEM_ERROR, "request header field queueId (e) is missing"),
    "queueId that is no number": Difference(
        BOTH, SYSTEM_ERROR, "request header field queueId (e) is not a 32-bit number: 'one'"
    ),
    "no topic": Difference(BOTH, SYSTEM_ERROR, "request header field topic (b) is missing"),
    "DELAY that is no number": Difference(
        BOTH, ILLEGAL, "property DELAY is not a level: 'soon' is not a whole number"
    ),
    "an empty batch": Difference(BOTH, ILLEGAL, "the batch has no message"),
    "a damaged batch": Difference(
        BOTH,
        ILLEGAL,
        "message 1 of the batch, at byte 25 of 47, is cut short, or its lengths do not add up",
    ),
    "send back: no offset": Difference(
        BOTH, SYSTEM_ERROR, "request header field offset: '' is not a whole number"
    ),
    "a message without a body": Difference(ONLY_5, 0, ""),
    # What 4.9, or 5.3 too, stores or carries out, and 5.5 refuses.
    "a timer": Difference(
        ONLY_4, SYSTEM_ERROR, "accurate timer message is not enabled, timerWheelEnable is false"
    ),
    "sysFlag of an inner batch": Difference(
        BOTH, ILLEGAL, "only the broker marks inner batches: sysFlag 0x40 and 0x80, INNER_NUM"
    ),
    "a batch to a retry topic": Difference(
        ONLY_4, ILLEGAL, "batch request does not support retry group %RETRY%consumers"
    ),
    "a retry of a group with an illegal name": Difference(
        TO_5_3, NO_GROUP, "subscription group not exist,  "
    ),
    "send back: a group with an illegal name": Difference(
        ONLY_4, NO_GROUP, "subscription group not exist, a group "
    ),
    # Timers by which clients would reach topics that they may not write.
    "rmq_sys_wheel_timer": Difference(
        BOTH, NO_PERMISSION, "Sending message to topic[rmq_sys_wheel_timer] is forbidden."
    ),
    # What RocketMQ leaves to producers, which read permissions from the route each 30 s.
    "a topic that is only readable": Difference(
        BOTH, NO_PERMISSION, "the topic[TopicReadable] sending message is forbidden"
    ),
    "brokerPermission=4": Difference(
        BOTH, NO_PERMISSION, "the broker[127.0.0.1] sending message is forbidden"
    ),
}


async def _answers(address: str, version: int) -> dict[str, Refusal]:
    async with open_client(address) as client:

        async def ask(command: RemotingCommand) -> RemotingCommand:
            return await client.request(evolve(command, version=version), timeout_s=10.0)

        for command in (READABLE, send()):
            made = await ask(command)
            assert made.code == ResponseCode.SUCCESS, made
        answers = {name: Refusal.of(await ask(command)) for name, command in CASES.items()}
        for permission, cases in BY_PERMISSION.items():
            change = request(RequestCode.UPDATE_BROKER_CONFIG, body=b"brokerPermission=%d\n" % permission)
            changed = await ask(change)
            assert changed.code == ResponseCode.SUCCESS, changed
            answers |= {name: Refusal.of(await ask(command)) for name, command in cases.items()}
        return answers


@both_lines
def test_a_refused_send_gets_the_answer_of_a_real_broker_or_one_that_differs_on_purpose(
    java: JavaDriver, start_node: StartNode, tmp_path: Path
) -> None:
    version = Version.V5_3_3 if is_5(java.version) else Version.V4_9_7
    settings: dict[str, Any] = {"maxMessageSize": BODY_BYTES_MAX, "rejectTransactionMessage": "true"}
    real = java.open_broker(tmp_path / "real", role="ASYNC_MASTER", **settings)
    node = start_node("broker", role="ASYNC_MASTER", timerWheelEnable="false", **settings)
    theirs = trio.run(_answers, real.listen_address, version)
    ours = trio.run(_answers, node.listen_address, version)
    expected = {}
    for name, answer in theirs.items():
        difference = DIFFERENCES.get(name)
        if difference is None or not java.version.startswith(difference.versions):
            expected[name] = answer
        else:
            code = answer.code if difference.code is None else difference.code
            expected[name] = Refusal(code, difference.remark)
            assert expected[name] != answer, f"{name}: no longer a difference"
    assert ours == expected


# -- batches that are accepted -------------------------------------------------------------------------------

BATCH_PROPERTIES_ADDED = ("4.9.7", "5.3.3")
"""Versions that put the properties of a batch after those of each of its messages."""
OWN = [b"UNIQ_KEY\x01U1\x02WAIT\x01true\x02", b"TAGS\x01a", b""]


async def _stored_properties(address: str, version: int) -> list[bytes]:
    """Properties of the messages of a batch that has some of its own, as consumers get them."""
    body = encode_batch_body([BatchItem(b"body", properties) for properties in OWN])
    batch = send_batch(body, topic="TopicBatch", properties={"WAIT": "true", "UNIQ_KEY": "of the batch"})
    subscribed = {"topic": "TopicBatch", "sysFlag": "4", "subscription": "*", "maxMsgNums": "32"}
    pull = evolve(PULL, ext_fields={**PULL.ext_fields, **subscribed})
    async with open_client(address) as client:
        assert (await client.request(evolve(batch, version=version), timeout_s=10.0)).code == 0
        with trio.fail_after(20):
            while (found := await client.request(evolve(pull, version=version), timeout_s=10.0)).code != 0:  # noqa: ASYNC110
                await trio.sleep(0.1)
    view, at, stored = memoryview(bytes(found.whole_body)), 0, []
    while at < len(view):
        size = int.from_bytes(view[at : at + 4], "big")
        record = decode_record(view[at : at + size])
        assert isinstance(record, Record)
        stored.append(record.properties_raw)
        at += size
    return stored


@both_lines
def test_messages_of_a_batch_have_their_own_properties_only_as_in_the_newest_broker(
    java: JavaDriver, start_node: StartNode, tmp_path: Path
) -> None:
    version = Version.V5_3_3 if is_5(java.version) else Version.V4_9_7
    real = java.open_broker(tmp_path / "real", role="ASYNC_MASTER")
    node = start_node("broker", role="ASYNC_MASTER")
    theirs = trio.run(_stored_properties, real.listen_address, version)
    assert trio.run(_stored_properties, node.listen_address, version) == OWN
    if java.version in BATCH_PROPERTIES_ADDED:
        assert all(len(more) > len(own) and own in more for own, more in zip(OWN, theirs, strict=True))
    else:
        assert theirs == OWN
