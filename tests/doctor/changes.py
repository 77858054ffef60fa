"""Changes of a broker's metadata, for tests of what a slave lacks of it."""

from __future__ import annotations

import json
import time

import trio

from trioha.doctor.tables import OffsetTable, parse_table
from trioha.remoting.client import open_client
from trioha.remoting.codes import RequestCode, ResponseCode
from trioha.remoting.command import RemotingCommand, request
from trioha.remoting.send_message import SendMessageRequestHeader, send_request

TIMEOUT_S = 30.0
TOPIC = "TopicTest"
GROUP = "billing"


def ask(address: str, command: RemotingCommand) -> RemotingCommand:
    """The broker's answer, which is SUCCESS."""

    async def main() -> RemotingCommand:
        async with open_client(address) as client:
            return await client.request(command, timeout_s=TIMEOUT_S)

    answer = trio.run(main)
    assert answer.code == ResponseCode.SUCCESS, answer
    return answer


def commit(address: str, offset: int) -> None:
    """Commit an offset of the group in queue 0 of the topic."""
    fields = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "0", "commitOffset": str(offset)}
    ask(address, request(RequestCode.UPDATE_CONSUMER_OFFSET, ext_fields=fields))


def send_delayed(address: str) -> None:
    """Send a message of delay level 1."""
    header = SendMessageRequestHeader(
        "P", TOPIC, "TBW102", 4, 0, 0, time.time_ns() // 1_000_000, 0, properties="DELAY\x011\x02"
    )
    ask(address, send_request(header, b"later"))


def has_delivered(address: str) -> bool:
    """Whether a broker has delivered a message of delay level 1."""
    table = parse_table("delay_offsets", ask(address, request(RequestCode.GET_ALL_DELAY_OFFSET)).body)
    assert isinstance(table, OffsetTable)
    return table.offsets[""].get(1, 0) > 0


def make_topic(address: str) -> None:
    """Create the topic, as `mqadmin updateTopic` does."""
    fields = {
        "topic": TOPIC,
        "defaultTopic": "TBW102",
        "readQueueNums": "4",
        "writeQueueNums": "4",
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
    }
    ask(address, request(RequestCode.UPDATE_AND_CREATE_TOPIC, ext_fields=fields))


def make_group(address: str) -> None:
    """Create the consumer group."""
    body = json.dumps({"groupName": GROUP, "consumeEnable": True}).encode()
    ask(address, request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body))
