"""SEND_MESSAGE, SEND_MESSAGE_V2, SEND_BATCH_MESSAGE: from a request to a put.

See docs/protocol/remoting.md#sends.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Final

from attrs import evolve

from trioha.broker.delayed_messages import DELAY, delay_level, scheduled
from trioha.broker.half_messages import is_half_message
from trioha.broker.puts import PutAnswer, PutResult, PutService
from trioha.broker.remarks import SEE_FAQ, broker_refuses_sends, topic_refuses_sends
from trioha.broker.retries import Retries
from trioha.broker.timer_messages import TimerMessages, is_marked_delivered, without_delivery
from trioha.errors import RemoteProtocolError
from trioha.ha.group_commit import Commit
from trioha.metadata.table import TableFull
from trioha.metadata.topics import READ_WRITE, Perm, TopicConfig, TopicTable, describe_topic
from trioha.remoting.codes import ResponseCode
from trioha.remoting.command import BadRequestError, RemotingCommand
from trioha.remoting.message_batch import batch_items
from trioha.remoting.send_message import (
    STORED_STATUSES,
    SendMessageRequestHeader,
    SendMessageResponseHeader,
    refused_send,
    send_response,
)
from trioha.remoting.serving import Answer, Peer
from trioha.store.message_properties import encode_properties, join_properties, parse_properties
from trioha.store.messages import BatchItem, Message, MessageBatch
from trioha.store.record import Host
from trioha.store.record_layout import TRANSACTION_MASK
from trioha.store.tags import DelayLevels
from trioha.store.topics import (
    GIVEN_UP_TOPIC,
    HALF_TOPIC,
    OP_TOPIC,
    RETRY_TOPIC_PREFIX,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
)
from trioha.watermark import Watermark

FORBIDDEN_TOPICS: Final = frozenset(
    {
        SCHEDULE_TOPIC,
        HALF_TOPIC,
        OP_TOPIC,
        GIVEN_UP_TOPIC,
        # What is stored there is delivered to any topic.
        TIMER_TOPIC,
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
    }
)
"""System topics that clients must not write."""

BATCH_BITS: Final = 0xC0
"""Bits of sysFlag: the body is a batch that consumers take apart."""
_WAIT_FALSE = b"WAIT\x01false"
_INNER_NUM = b"INNER_NUM\x01"

Prepare = Callable[[Message], Message]
"""Makes the half message of a send that begins a transaction. Raises BadRequestError."""


class SendProcessor:
    """Handles sends."""

    def __init__(
        self,
        puts: PutService,
        *,
        topics: TopicTable,
        retries: Retries,
        cluster_name: str,
        broker_ip: str,
        delay_levels: DelayLevels,
        timers: TimerMessages,
        broker_permission: int = int(READ_WRITE),
        prepare: Prepare | None = None,
    ) -> None:
        """`broker_ip`: brokerIP1, for remarks; `delay_levels`: those of messageDelayLevel, which the
        dispatcher uses for due times; `prepare`: None refuses transactions."""
        self._puts = puts
        self._topics = topics
        self._retries = retries
        self._broker_ip = broker_ip
        self.is_writable = broker_permission & Perm.WRITE != 0
        """Whether brokerPermission allows sends."""
        self._delay_levels = delay_levels
        self._timers = timers
        self._prepare = prepare
        self._cluster = encode_properties({"CLUSTER": cluster_name})

    def configure(self, *, broker_permission: int) -> None:
        """Accept or refuse further sends by brokerPermission."""
        self.is_writable = broker_permission & Perm.WRITE != 0

    def answer(self, request: RemotingCommand, peer: Peer) -> Answer:
        """The response to a send, a later one if the put waits for slaves or the disk.

        The message is in the log when this returns, so messages of one connection keep their order. The
        answer to a send that made its topic waits until the topic is in its file.
        """
        try:
            header = SendMessageRequestHeader.of(request)
            message, queue_id, wait_store_ok = self._message(header, request, peer)
        except BadRequestError as error:
            return refused_send(request, error)
        put = self._puts.put_and_wait(message) if wait_store_ok else self._puts.put(message)
        answer: RemotingCommand | PutAnswer[RemotingCommand]
        if isinstance(put, PutResult):
            answer = self._respond(request, message, queue_id, put)
        else:
            answer = PutAnswer(put, partial(self._respond_later, request, message, queue_id, put))
        topics = self._topics
        if topics.changed_at:
            change = max(topics.changed_at.get(topic, 0) for topic in (header.topic, message.topic))
            if change:
                return _when_kept(answer, written=topics.written, change=change)
        return answer

    def _respond_later(
        self, request: RemotingCommand, message: Message | MessageBatch, queue_id: int, commit: Commit
    ) -> RemotingCommand:
        return self._respond(request, message, queue_id, self._puts.result(commit))

    def _message(
        self, header: SendMessageRequestHeader, request: RemotingCommand, peer: Peer
    ) -> tuple[Message | MessageBatch, int, bool]:
        """The message to store, the queue id of the answer, and the WAIT property. Raises BadRequestError."""
        topic = header.topic
        if topic in FORBIDDEN_TOPICS:
            raise BadRequestError(
                f"Sending message to topic[{topic}] is forbidden.", code=ResponseCode.NO_PERMISSION
            )
        # Lone surrogates, which UTF-8 cannot encode, become question marks, as in Java.
        properties = header.properties.encode("utf-8", "replace")
        if header.sys_flag & BATCH_BITS or _INNER_NUM in properties:
            raise BadRequestError(
                "only the broker marks inner batches: sysFlag 0x40 and 0x80, INNER_NUM",
                code=ResponseCode.MESSAGE_ILLEGAL,
            )
        if header.batch:
            return self._batch(header, properties, request, peer)
        prepare = self._prepare
        if not is_half_message(properties, reconsume_times=header.reconsume_times):
            prepare = None
        if header.sys_flag & TRANSACTION_MASK and prepare is None:
            raise BadRequestError(
                "transactional messages are not taken by this broker", code=ResponseCode.MESSAGE_ILLEGAL
            )
        queue_id = self._queue_id(header, peer)
        wait_store_ok = _waits(properties)
        properties = join_properties(without_delivery(properties), self._cluster)
        if topic.startswith(RETRY_TOPIC_PREFIX) and not self._puts.is_slave:
            topic, properties = self._retried(header, properties, version=request.version)
        message = Message(
            topic=topic,
            queue_id=queue_id,
            body=bytes(request.body),
            properties=properties,
            flag=header.flag,
            sys_flag=header.sys_flag,
            born_timestamp_ms=header.born_timestamp_ms,
            born_host=born_host_of(peer.address.host, peer.address.port),
            reconsume_times=header.reconsume_times,
        )
        kept = scheduled(message, self._delay_levels, self._timers) if prepare is None else prepare(message)
        return kept, queue_id, wait_store_ok

    def _retried(
        self, header: SendMessageRequestHeader, properties: bytes, *, version: int
    ) -> tuple[str, bytes]:
        """Topic and properties of a send to a retry topic; beyond its maximum, those of a dead letter."""
        topic = self._retries.topic_of_send(
            header.topic,
            reconsume_times=header.reconsume_times,
            max_reconsume_times=header.max_reconsume_times,
            version=version,
        )
        if topic == header.topic:
            return topic, properties
        return topic, encode_properties(parse_properties(properties) | {DELAY: "-1"})

    def _batch(
        self, header: SendMessageRequestHeader, properties: bytes, request: RemotingCommand, peer: Peer
    ) -> tuple[Message | MessageBatch, int, bool]:
        """As `_message`, of a batch: a record for each message, or one in a topic with batch queues.

        Each record has the properties of its message, and none of the batch, as in 5.5.0: up to 5.3 those of
        the batch follow, so that all its messages have one UNIQ_KEY.
        """
        if header.topic.startswith(RETRY_TOPIC_PREFIX):
            raise BadRequestError(
                f"batch request does not support retry group {header.topic}",
                code=ResponseCode.MESSAGE_ILLEGAL,
            )
        parsed = parse_properties(properties)
        if header.sys_flag & TRANSACTION_MASK or delay_level(parsed.get(DELAY, "0")) > 0:
            raise BadRequestError(
                "a batch has no delay level and no transaction",
                code=ResponseCode.MESSAGE_ILLEGAL,
            )
        body = bytes(request.body)
        try:
            items: Sequence[BatchItem] = batch_items(body)
        except RemoteProtocolError as error:
            raise BadRequestError(str(error), code=ResponseCode.MESSAGE_ILLEGAL) from None
        if is_marked_delivered(body):
            items = [evolve(item, properties=without_delivery(item.properties)) for item in items]
        queue_id = self._queue_id(header, peer)
        born_host = born_host_of(peer.address.host, peer.address.port)
        if "UNIQ_KEY" in parsed and self._has_batch_queues(header.topic):
            inner = Message(
                topic=header.topic,
                queue_id=queue_id,
                body=body,
                properties=join_properties(
                    join_properties(properties, self._cluster),
                    encode_properties({"INNER_NUM": str(len(items))}),
                ),
                flag=header.flag,
                sys_flag=header.sys_flag | BATCH_BITS,
                born_timestamp_ms=header.born_timestamp_ms,
                born_host=born_host,
                reconsume_times=header.reconsume_times,
            )
            return inner, queue_id, _waits(properties)
        batch = MessageBatch(
            topic=header.topic,
            queue_id=queue_id,
            items=items,
            sys_flag=header.sys_flag,
            born_timestamp_ms=header.born_timestamp_ms,
            born_host=born_host,
            reconsume_times=header.reconsume_times,
        )
        return batch, queue_id, _waits(properties)

    def _has_batch_queues(self, name: str) -> bool:
        topic = self._topics.find(name)
        attributes = None if topic is None else topic.other.get("attributes")
        return isinstance(attributes, dict) and attributes.get("queue.type") == "BatchCQ"

    def _queue_id(self, header: SendMessageRequestHeader, peer: Peer) -> int:
        """The queue of a message; creates its topic if needed. Raises BadRequestError."""
        if self._puts.is_slave:
            # A slave has its master's topics and refuses the put.
            return max(0, header.queue_id)
        if not self.is_writable:
            raise broker_refuses_sends(self._broker_ip)
        topic = self._topics.find(header.topic)
        if topic is None:
            topic = self._make_topic(header)
        if not topic.is_writable:
            raise topic_refuses_sends(topic.name)
        queue_id = header.queue_id
        if 0 <= queue_id < topic.queue_nums:
            return queue_id
        if queue_id < 0 and topic.write_queue_nums:
            return random.randrange(topic.write_queue_nums)
        raise BadRequestError(
            f"request queueId[{queue_id}] is illegal, {describe_topic(topic)} Producer: {peer.address}",
            code=ResponseCode.INVALID_PARAMETER,
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

    def _respond(
        self, request: RemotingCommand, message: Message | MessageBatch, queue_id: int, result: PutResult
    ) -> RemotingCommand:
        """The response. A message that waits: the queue is the real one, the offset that where it waits."""
        if result.status not in STORED_STATUSES:
            return send_response(request, result.status, header=None, remark=result.append.reason or None)
        batch_unique_id = transaction_id = recall_handle = None
        if isinstance(message, Message):
            if message.sys_flag & BATCH_BITS:
                batch_unique_id = parse_properties(message.properties).get("UNIQ_KEY")
            elif message.topic == HALF_TOPIC:
                transaction_id = parse_properties(message.properties).get("UNIQ_KEY")
            elif message.topic == TIMER_TOPIC:
                recall_handle = self._timers.handle(message)
        header = SendMessageResponseHeader(
            msg_id=result.append.message_id,
            queue_id=queue_id,
            queue_offset=result.append.queue_offset,
            batch_unique_id=batch_unique_id,
            transaction_id=transaction_id,
            recall_handle=recall_handle,
        )
        return send_response(request, result.status, header=header)


def _waits(properties: bytes) -> bool:
    """Whether a put waits for disk and slaves: unless the property WAIT is false."""
    return _WAIT_FALSE not in properties or parse_properties(properties).get("WAIT") != "false"


@lru_cache(maxsize=4096)
def born_host_of(host: str, port: int) -> Host:
    """The host in a record of a message that a peer sent."""
    return Host.parse(host, port)


async def _when_kept(
    answer: RemotingCommand | PutAnswer[RemotingCommand], *, written: Watermark, change: int
) -> RemotingCommand:
    if not isinstance(answer, RemotingCommand):
        await answer.commit.settled()
        answer = answer.answer()
    await written.reached(change)
    return answer
