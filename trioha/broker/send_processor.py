"""SEND_MESSAGE and SEND_MESSAGE_V2: from a request to a stored message and its answer (spec remoting 4.1)."""

from __future__ import annotations

import random
from collections.abc import Awaitable
from functools import lru_cache
from typing import Final

from trioha.broker.puts import PutResult, PutService
from trioha.metadata.table import TableFull
from trioha.metadata.topics import READ_WRITE, Perm, TopicConfig, TopicTable, describe_topic
from trioha.numbers import I64, parse_int
from trioha.remoting.codes import ResponseCode
from trioha.remoting.command import BadRequestError, RemotingCommand
from trioha.remoting.send_message import (
    STORED_STATUSES,
    SendMessageRequestHeader,
    SendMessageResponseHeader,
    refused_send,
    send_response,
)
from trioha.remoting.serving import Peer
from trioha.store.message_properties import encode_properties, join_properties, parse_properties
from trioha.store.messages import Message
from trioha.store.record import Host
from trioha.store.record_layout import TRANSACTION_MASK
from trioha.store.tags import DelayLevels
from trioha.store.topics import SCHEDULE_TOPIC
from trioha.watermark import Watermark

SEE_FAQ: Final = "\nSee http://rocketmq.apache.org/docs/faq/ for further details."
"""End of some remarks of 4.9."""

FORBIDDEN_TOPICS: Final = frozenset(
    {
        SCHEDULE_TOPIC,
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
    }
)
"""System topics that clients must not write."""

BATCH_BITS: Final = 0xC0
_DELAY = b"DELAY\x01"
_WAIT_FALSE = b"WAIT\x01false"
_INNER_NUM = b"INNER_NUM\x01"


class SendProcessor:
    """Handles sends."""

    def __init__(
        self,
        puts: PutService,
        *,
        topics: TopicTable,
        cluster_name: str,
        delay_levels: DelayLevels,
        broker_permission: int = int(READ_WRITE),
    ) -> None:
        """`delay_levels`: those of messageDelayLevel, which the dispatcher uses for due times."""
        self._puts = puts
        self._topics = topics
        self._is_writable = broker_permission & Perm.WRITE != 0
        self._delay_levels = delay_levels
        self._cluster = encode_properties({"CLUSTER": cluster_name})

    def answer(self, request: RemotingCommand, peer: Peer) -> RemotingCommand | Awaitable[RemotingCommand]:
        """The response to a send, or an awaitable of it if the put waits for slaves or the disk.

        The message is in the log when this returns, so messages of one connection keep their order. The
        answer to a send that made its topic waits until the topic is in its file.
        """
        try:
            header = SendMessageRequestHeader.of(request)
            message, wait_store_ok = self._message(header, bytes(request.body), peer)
        except BadRequestError as error:
            return refused_send(request, error)
        result = self._puts.put(message, wait_store_ok=wait_store_ok)
        topics = self._topics
        if topics.changed_at and (change := topics.changed_at.get(header.topic)) is not None:
            return _respond_when_kept(request, message, result, topics.written, change)
        if isinstance(result, PutResult):
            return _respond(request, message, result)
        return _respond_later(request, message, result)

    def _message(self, header: SendMessageRequestHeader, body: bytes, peer: Peer) -> tuple[Message, bool]:
        """The message to store, and its WAIT property. Raises BadRequestError."""
        topic = header.topic
        if topic in FORBIDDEN_TOPICS:
            raise BadRequestError(
                f"sending to the system topic {topic} is forbidden", code=ResponseCode.NO_PERMISSION
            )
        # Lone surrogates, which UTF-8 cannot encode, become question marks, as in Java.
        properties = header.properties.encode("utf-8", "replace")
        if header.batch or header.sys_flag & BATCH_BITS or _INNER_NUM in properties:
            raise BadRequestError("batches are not taken by this broker", code=ResponseCode.MESSAGE_ILLEGAL)
        if header.sys_flag & TRANSACTION_MASK:
            raise BadRequestError(
                "transactional messages are not taken by this broker", code=ResponseCode.MESSAGE_ILLEGAL
            )
        queue_id = self._queue_id(header, peer)
        wait_store_ok = _WAIT_FALSE not in properties or parse_properties(properties).get("WAIT") != "false"
        properties = join_properties(properties, self._cluster)
        if _DELAY in properties:
            topic, queue_id, properties = self._delayed(topic, queue_id, properties)
        message = Message(
            topic=topic,
            queue_id=queue_id,
            body=body,
            properties=properties,
            flag=header.flag,
            sys_flag=header.sys_flag,
            born_timestamp_ms=header.born_timestamp_ms,
            born_host=_born_host(peer.address.host, peer.address.port),
            reconsume_times=header.reconsume_times,
        )
        return message, wait_store_ok

    def _queue_id(self, header: SendMessageRequestHeader, peer: Peer) -> int:
        """The queue of a message; creates its topic if needed. Raises BadRequestError."""
        if self._puts.is_slave:
            # A slave has its master's topics and refuses the put.
            return max(0, header.queue_id)
        if not self._is_writable:
            raise BadRequestError("the broker sending message is forbidden", code=ResponseCode.NO_PERMISSION)
        topic = self._topics.find(header.topic)
        if topic is None:
            topic = self._make_topic(header)
        if not topic.is_writable:
            raise BadRequestError(
                f"the topic[{topic.name}] sending message is forbidden", code=ResponseCode.NO_PERMISSION
            )
        queue_id = header.queue_id
        if 0 <= queue_id < topic.queue_nums:
            return queue_id
        if queue_id < 0 and topic.write_queue_nums:
            return random.randrange(topic.write_queue_nums)
        raise BadRequestError(
            f"request queueId[{queue_id}] is illegal, {describe_topic(topic)} Producer: {peer.address}",
            code=ResponseCode.SYSTEM_ERROR,
        )

    def _make_topic(self, header: SendMessageRequestHeader) -> TopicConfig:
        try:
            topic = self._topics.find_or_create(
                header.topic, default_topic=header.default_topic, queue_nums=header.default_topic_queue_nums
            )
        except TableFull as full:
            raise BadRequestError(str(full), code=ResponseCode.SYSTEM_ERROR) from None
        if topic is None:
            raise BadRequestError(
                f"topic[{header.topic}] not exist, apply first please!{SEE_FAQ}",
                code=ResponseCode.TOPIC_NOT_EXIST,
            )
        return topic

    def _delayed(self, topic: str, queue_id: int, properties: bytes) -> tuple[str, int, bytes]:
        """Topic, queue and properties of a delayed message: queue level - 1 of the schedule topic.

        A level above the highest counts as the highest (spec store 2.9).
        """
        parsed = parse_properties(properties)
        try:
            level = parse_int(parsed.get("DELAY", "0"), I64)
        except ValueError as error:
            raise BadRequestError(
                f"property DELAY is no level: {error}", code=ResponseCode.MESSAGE_ILLEGAL
            ) from None
        if level <= 0:
            return topic, queue_id, properties
        level = min(level, self._delay_levels.max_level)
        if level == 0:
            raise BadRequestError(
                "the message has a delay level, and this broker's messageDelayLevel has none",
                code=ResponseCode.MESSAGE_ILLEGAL,
            )
        parsed |= {"DELAY": str(level), "REAL_TOPIC": topic, "REAL_QID": str(queue_id)}
        return SCHEDULE_TOPIC, level - 1, encode_properties(parsed)


@lru_cache(maxsize=4096)
def _born_host(host: str, port: int) -> Host:
    return Host.parse(host, port)


async def _respond_later(
    request: RemotingCommand, message: Message, result: Awaitable[PutResult]
) -> RemotingCommand:
    return _respond(request, message, await result)


async def _respond_when_kept(
    request: RemotingCommand,
    message: Message,
    result: PutResult | Awaitable[PutResult],
    written: Watermark,
    change: int,
) -> RemotingCommand:
    if not isinstance(result, PutResult):
        result = await result
    await written.reached(change)
    return _respond(request, message, result)


def _respond(request: RemotingCommand, message: Message, result: PutResult) -> RemotingCommand:
    if result.status not in STORED_STATUSES:
        return send_response(request, result.status, header=None, remark=result.append.reason or None)
    header = SendMessageResponseHeader(
        msg_id=result.append.message_id,
        queue_id=message.queue_id,
        queue_offset=result.append.queue_offset,
    )
    return send_response(request, result.status, header=header)
