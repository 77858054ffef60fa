"""A client that pops: requests by hand, so that real brokers and trioha are asked for the same."""

from __future__ import annotations

import json
import time
from base64 import b64encode
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from struct import unpack_from

import trio
from attrs import evolve, frozen

from tests.interop.asking import make_topic
from trioha.remoting.client import RemotingClient, open_client
from trioha.remoting.codes import RequestCode, ResponseCode
from trioha.remoting.command import RemotingCommand, request
from trioha.remoting.pop_handle import HANDLE, PopHandle, PopSource
from trioha.remoting.send_message import SendMessageRequestHeader, send_request
from trioha.store.message_properties import encode_properties, parse_properties
from trioha.store.record import Record, decode_record

BROKER = "interop"
"""The name of the brokers of these tests."""
ANSWER_WITHIN_S = 60.0
COMES_WITHIN_S = 90.0
"""For a message that is to be given again."""


@frozen
class PoppedMessage:
    """A message that was popped."""

    record: Record
    handle: PopHandle
    topic: str
    """Of the request."""
    group: str

    @property
    def body(self) -> str:
        return self.record.body.decode()

    @property
    def properties(self) -> Mapping[str, str]:
        return parse_properties(self.record.properties_raw)

    @property
    def real_topic(self) -> str:
        """The topic that it was read from."""
        if self.handle.source is PopSource.TOPIC:
            return self.topic
        separator = "_" if self.handle.source is PopSource.RETRY_V1 else "+"
        return f"%RETRY%{self.group}{separator}{self.topic}"

    def fields(self) -> dict[str, str]:
        """Of a request that names it."""
        return {
            "consumerGroup": self.group,
            "topic": self.real_topic,
            "queueId": str(self.handle.queue_id),
            "offset": str(self.handle.queue_offset),
            "extraInfo": f"{self.handle.encode()} {self.record.physical_offset}",
        }


@frozen
class Popped:
    """The answer to a pop."""

    answer: RemotingCommand
    messages: list[PoppedMessage]

    @property
    def code(self) -> int:
        return self.answer.code

    @property
    def fields(self) -> Mapping[str, str]:
        return self.answer.ext_fields

    @property
    def bodies(self) -> list[str]:
        """Sorted."""
        return sorted(message.body for message in self.messages)


def records_of(body: bytes | memoryview) -> list[Record]:
    """The records of an answer's body."""
    data, at, found = bytes(body), 0, []
    while at < len(data):
        (size,) = unpack_from(">I", data, at)
        record = decode_record(data, at)
        assert isinstance(record, Record)
        found.append(record)
        at += size
    return found


def messages_of(
    answer: RemotingCommand, topic: str, group: str, *, broker: str = BROKER
) -> list[PoppedMessage]:
    """The records of an answer with their handles, as clients make them of the texts."""
    fields, records, found = answer.ext_fields, records_of(answer.whole_body), []
    starts = [entry.split(" ") for entry in fields.get("startOffsetInfo", "").split(";") if entry]
    listed = [entry.split(" ") for entry in fields.get("msgOffsetInfo", "").split(";") if entry]
    for (source, queue_id, start), (_, _, offsets) in zip(starts, listed, strict=True):
        for offset in offsets.split(","):
            record = records[len(found)]
            assert (record.queue_id, record.queue_offset) == (int(queue_id), int(offset))
            handle = PopHandle(
                int(start),
                int(fields["popTime"]),
                int(fields["invisibleTime"]),
                int(fields["reviveQid"]),
                PopSource(source),
                broker,
                int(queue_id),
                int(offset),
            )
            message = PoppedMessage(record, handle, topic, group)
            if source != PopSource.TOPIC:
                assert message.properties[HANDLE] == handle.encode()
            else:
                assert HANDLE not in message.properties
            assert record.topic == topic
            found.append(message)
    assert len(found) == len(records)
    return found


class PopClient:
    """One connection to a broker."""

    def __init__(self, client: RemotingClient, address: str) -> None:
        self._client = client
        self.address = address

    async def ask(
        self, code: int, fields: Mapping[str, object] | None = None, *, body: bytes = b""
    ) -> RemotingCommand:
        """The answer to a request."""
        texts = {name: str(value) for name, value in (fields or {}).items() if value is not None}
        asked = evolve(request(code, ext_fields=texts, body=body), version=513)
        return await self._client.request(asked, timeout_s=ANSWER_WITHIN_S)

    async def send(self, topic: str, *bodies: str, queue_id: int = 0, **properties: str) -> None:
        """Store messages in one queue, one after the other; they can be popped then."""
        for body in bodies:
            header = SendMessageRequestHeader(
                "P", topic, "TBW102", 4, queue_id, 0, time.time_ns() // 1_000_000, 0,
                properties=encode_properties({"UNIQ_KEY": f"{topic}-{body}", **properties}).decode(),
            )  # fmt: skip
            answer = await self._client.request(
                send_request(header, body.encode()), timeout_s=ANSWER_WITHIN_S
            )
            assert answer.code == ResponseCode.SUCCESS, answer
        end = int(answer.ext_fields["queueOffset"]) + 1
        with trio.fail_after(ANSWER_WITHIN_S):
            # The broker says nothing when it has dispatched a message.
            while await self._end_of(topic, queue_id) < end:  # noqa: ASYNC110
                await trio.sleep(0.005)

    async def _end_of(self, topic: str, queue_id: int) -> int:
        answer = await self.ask(RequestCode.GET_MAX_OFFSET, {"topic": topic, "queueId": queue_id})
        return int(answer.ext_fields["offset"])

    async def pop(self, topic: str, group: str = "G", **changes: object) -> Popped:
        """One pop of all queues; by default it does not wait, and begins at the first message."""
        fields = {
            "consumerGroup": group, "topic": topic, "queueId": -1, "maxMsgNums": 32, "invisibleTime": 60_000,
            "pollTime": 0, "bornTime": time.time_ns() // 1_000_000, "initMode": 0, "expType": "TAG",
            "exp": "*", "order": "false", **changes,
        }  # fmt: skip
        answer = await self.ask(RequestCode.POP_MESSAGE, fields)
        return Popped(answer, messages_of(answer, topic, group))

    async def pop_all(
        self, topic: str, number: int, group: str = "G", **changes: object
    ) -> list[PoppedMessage]:
        """Pop until so many messages have come."""
        found: list[PoppedMessage] = []
        with trio.fail_after(COMES_WITHIN_S):
            while len(found) < number:
                found += (await self.pop(topic, group, **{"pollTime": 2000, **changes})).messages
        return found

    async def ack(self, message: PoppedMessage, **changes: object) -> RemotingCommand:
        """Acknowledge one message."""
        return await self.ask(RequestCode.ACK_MESSAGE, {**message.fields(), **changes})

    async def ack_all(self, messages: Iterable[PoppedMessage]) -> None:
        for message in messages:
            answer = await self.ack(message)
            assert answer.code == ResponseCode.SUCCESS, answer

    async def change(self, message: PoppedMessage, invisible_ms: int, **changes: object) -> PoppedMessage:
        """Have a message given again at another time; the message with its new handle."""
        fields = {**message.fields(), "invisibleTime": invisible_ms, **changes}
        answer = await self.ask(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, fields)
        assert answer.code == ResponseCode.SUCCESS, answer
        given = answer.ext_fields
        handle = evolve(
            message.handle,
            start_offset=message.handle.queue_offset,
            pop_ms=int(given["popTime"]),
            invisible_ms=int(given["invisibleTime"]),
            revive_queue_id=int(given["reviveQid"]),
        )
        return evolve(message, handle=handle)

    async def batch_ack(self, messages: list[PoppedMessage]) -> RemotingCommand:
        """Acknowledge messages of one check point."""
        handle = messages[0].handle
        bits = 0
        for message in messages:
            bits |= 1 << (message.handle.queue_offset - handle.start_offset)
        ack = {
            "c": messages[0].group, "t": messages[0].topic, "r": handle.source.value,
            "so": handle.start_offset, "q": handle.queue_id, "rq": handle.revive_queue_id,
            "pt": handle.pop_ms, "it": handle.invisible_ms,
            "b": b64encode(bits.to_bytes((bits.bit_length() + 7) // 8, "little")).decode(),
        }  # fmt: skip
        body = json.dumps({"brokerName": BROKER, "acks": [ack]}).encode()
        return await self.ask(RequestCode.BATCH_ACK_MESSAGE, body=body)

    async def is_over(self, topic: str, group: str = "G", **changes: object) -> bool:
        """Whether nothing of what was given comes again: what could have was due before a message that was
        sent, popped and left now."""
        marker = f"marker-{time.time_ns()}"
        await self.send(topic, marker)
        found: list[str] = []
        with trio.fail_after(COMES_WITHIN_S):
            while found.count(marker) < 2:
                popped = await self.pop(topic, group, invisibleTime=1500, pollTime=2000, **changes)
                found += popped.bodies
                await self.ack_all(message for message in popped.messages if message.record.reconsume_times)
        return set(found) == {marker}


@asynccontextmanager
async def pop_client(address: str) -> AsyncIterator[PopClient]:
    """A client for as long as the block runs."""
    async with open_client(address, connect_timeout_s=ANSWER_WITHIN_S) as client:
        yield PopClient(client, address)


async def with_topic(address: str, topic: str) -> str:
    """The topic, made with four queues."""
    await trio.to_thread.run_sync(make_topic, address, topic)
    return topic
