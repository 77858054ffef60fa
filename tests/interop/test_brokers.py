"""RocketMQ's own client, which is given a broker's address, on a trioha pair."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.interop.java import JavaDriver
from tests.interop.rocketmq import is_5
from tests.interop.world import StartNode
from tests.node_process import SLAVE_TIMEOUT_MS, TriohaNode

pytestmark = [pytest.mark.interop, pytest.mark.process, pytest.mark.full]


@pytest.mark.parametrize("serialize_type", ["JSON", "ROCKETMQ"])
def test_rocketmqs_own_client_sends_to_a_trioha_node_and_reads_its_status(
    java: JavaDriver, own_jvm: Callable[..., JavaDriver], start_node: StartNode, serialize_type: str
) -> None:
    # The binary header is a property of the JVM.
    client = java
    if serialize_type == "ROCKETMQ":
        client = own_jvm(java.version, **{"rocketmq.serialize.type": serialize_type})
    master = start_node("master", role="SYNC_MASTER", slaveTimeout=SLAVE_TIMEOUT_MS)
    alone = client.send(master.listen_address, 1)
    start_node("slave", role="SLAVE", ha_master_address=master.ha_address)
    master.wait(ack_offset=master.max_offset)
    sent = client.send(master.listen_address, 20)
    end = master.max_offset
    said = client.ask(master.listen_address)
    read = client.open_store(stopped(master), role="ASYNC_MASTER").read()

    assert [result["sendStatus"] for result in alone] == ["SLAVE_NOT_AVAILABLE"]
    assert {result["sendStatus"] for result in sent} == {"SEND_OK"}
    # RocketMQ's store finds the message under the ids that the client received.
    received = [tuple(result[key] for key in ANSWERED) for result in alone + sent]
    found = [
        (
            message.record["properties"]["UNIQ_KEY"],
            message.record["msgId"],
            message.queue_id,
            message.queue_offset,
        )
        for message in read.messages
    ]
    assert received == found
    assert said["serializeType"] == serialize_type
    assert int(said["runtimeInfo"]["commitLogMaxOffset"]) == end
    assert int(said["runtimeInfo"]["commitLogMinOffset"]) == 0
    if is_5(java.version):
        assert said["haStatus"]["masterCommitLogMaxOffset"] == end
        (connection,) = said["haStatus"]["haConnectionInfo"]
        assert (connection["slaveAckOffset"], connection["diff"], connection["inSync"]) == (end, 0, True)


ANSWERED = ("msgId", "offsetMsgId", "queueId", "queueOffset")


def stopped(node: TriohaNode) -> Path:
    """The store of a node that is stopped cleanly."""
    node.stop()
    return node.root
