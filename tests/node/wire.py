"""A blocking remoting connection: any requests, one after the other or several at once."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from attrs import evolve

from tests.node.client import Connection
from trioha.client.messages import received_messages
from trioha.remoting.codec import encode
from trioha.remoting.codes import RequestCode, ResponseCode
from trioha.remoting.command import RemotingCommand, request
from trioha.remoting.route import MessageQueue
from trioha.remoting.send_message import SendMessageRequestHeader, send_request


def now_ms() -> int:
    """Wall clock."""
    return time.time_ns() // 1_000_000


def send_to(topic: str, body: bytes, *, queues: int = 1, queue_id: int = 0, **fields: Any) -> RemotingCommand:
    """A request to store a message, in a topic that is made with `queues`."""
    asked = {"group": "P", "sys_flag": 0, "properties": "", **fields}
    header = SendMessageRequestHeader(
        asked["group"], topic, "TBW102", queues, queue_id, asked["sys_flag"], now_ms(), 0, asked["properties"]
    )
    return send_request(header, body)


def pull_from(
    topic: str,
    offset: int,
    *,
    queue_id: int = 0,
    group: str = "readers",
    suspend_ms: int = 0,
    number: int = 32,
) -> RemotingCommand:
    """A request for messages of a queue, which waits for the next one for `suspend_ms`."""
    fields = {
        "consumerGroup": group, "topic": topic, "queueId": str(queue_id), "queueOffset": str(offset),
        "maxMsgNums": str(number), "sysFlag": "6", "commitOffset": "0",
        "suspendTimeoutMillis": str(suspend_ms), "subscription": "*", "subVersion": "0",
        "expressionType": "TAG",
    }  # fmt: skip
    return request(RequestCode.PULL_MESSAGE, ext_fields=fields)


def bodies_of(answer: RemotingCommand) -> list[bytes]:
    """Of the messages in the answer to a pull."""
    assert answer.code == ResponseCode.SUCCESS, answer
    return [message.body for message in received_messages(answer.body, MessageQueue("", "b", 0))]


class Wire(Connection):
    """A connection to a node."""

    def __init__(self, address: str) -> None:
        super().__init__(address, timeout_s=30)

    def start(self, *commands: RemotingCommand) -> list[int]:
        """Send requests, all at once; their opaques."""
        opaques = list(range(self._opaque, self._opaque + len(commands)))
        self._opaque += len(commands)
        self._socket.sendall(
            b"".join(
                encode(evolve(command, opaque=opaque))
                for opaque, command in zip(opaques, commands, strict=True)
            )
        )
        return opaques

    def answers(self, opaques: Sequence[int]) -> dict[int, RemotingCommand]:
        """Answers by opaque, as far as they come before the connection ends."""
        found: dict[int, RemotingCommand] = {}
        while not found.keys() >= set(opaques):
            command = self.next_command()
            if command is None:
                return found
            found[command.opaque] = command
        return found

    def ask(self, command: RemotingCommand) -> RemotingCommand:
        """The answer to one request."""
        (opaque,) = self.start(command)
        return self.answers([opaque])[opaque]
