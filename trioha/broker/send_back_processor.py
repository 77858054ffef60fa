"""CONSUMER_SEND_MSG_BACK: messages that a consumer could not consume.

See docs/protocol/remoting.md#clients-and-groups,
docs/protocol/store.md#delayed-transactional-and-retried-messages.

The message's record stays as it is. A copy is stored in the group's retry topic, by way of the schedule
topic, or in its dead-letter topic, with these properties:

| property | value |
|---|---|
| `RETRY_TOPIC` | the topic that the message was sent to first |
| `ORIGIN_MESSAGE_ID` | the offset msgId of the message that was sent first |
| `WAIT` | `false`: the put waits neither for disk nor for slaves |
| `DELAY` | as asked; asked for 0, 3 and one more for each earlier retry; 0 in the dead-letter topic |
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import Final

from attrs import evolve

from trioha.broker.delayed_messages import DELAY, scheduled, topic_sent_to
from trioha.broker.puts import PutService
from trioha.broker.remarks import broker_refuses_sends
from trioha.broker.retries import Retries, allowed_retries
from trioha.broker.timer_messages import TimerMessages
from trioha.errors import StoreError
from trioha.metadata.groups import SubscriptionGroup
from trioha.metadata.topics import READ_WRITE, Perm, TopicTable
from trioha.numbers import I32
from trioha.remoting.codes import ResponseCode
from trioha.remoting.command import BadRequestError, RemotingCommand, response_to
from trioha.remoting.send_back import SendBackRequest
from trioha.remoting.serving import Peer
from trioha.store.message_properties import encode_properties, parse_properties
from trioha.store.messages import Message
from trioha.store.put_status import PutStatus
from trioha.store.reads import MessageReader
from trioha.store.record import Record, RecordError, decode_record
from trioha.store.tags import DelayLevels

FIRST_RETRY_LEVEL: Final = 3
"""Delay level of the first retry."""


class SendBackProcessor:
    """Stores messages again that consumers could not consume."""

    def __init__(
        self,
        reads: MessageReader,
        puts: PutService,
        retries: Retries,
        topics: TopicTable,
        *,
        broker_ip: str,
        delay_levels: DelayLevels,
        timers: TimerMessages,
        broker_permission: int = int(READ_WRITE),
        on_stored: Callable[[str, str], None] = lambda _group, _topic: None,
    ) -> None:
        """`broker_ip`: brokerIP1, for remarks. `on_stored` is called for each message that was
        sent back, with the group and the topic that the message was sent to first."""
        self._reads = reads
        self._puts = puts
        self._retries = retries
        self._topics = topics
        self._broker_ip = broker_ip
        self._delay_levels = delay_levels
        self._timers = timers
        self._is_writable = broker_permission & Perm.WRITE != 0
        self._on_stored = on_stored

    def configure(self, *, broker_permission: int) -> None:
        """Accept or refuse further messages by brokerPermission."""
        self._is_writable = broker_permission & Perm.WRITE != 0

    def answer(self, request: RemotingCommand, _peer: Peer) -> RemotingCommand | Awaitable[RemotingCommand]:
        """The response, or an awaitable of it where a new topic is not in its file yet.

        Raises BadRequestError.
        """
        header = SendBackRequest.of(request)
        if self._puts.is_slave:
            # A slave has its master's groups and topics and makes none.
            raise BadRequestError(PutStatus.SERVICE_NOT_AVAILABLE.name)
        group = self._retries.group(header.group)
        if not self._is_writable:
            raise broker_refuses_sends(self._broker_ip)
        if group.retry_queue_nums <= 0:
            return response_to(request, ResponseCode.SUCCESS)
        origin, topic, message = self._message(header, group, version=request.version)
        result = self._puts.put(scheduled(message, self._delay_levels, self._timers))
        if result.status is not PutStatus.PUT_OK:
            raise BadRequestError(result.status.name)
        self._on_stored(group.name, origin)
        answer = response_to(request, ResponseCode.SUCCESS)
        if (change := self._topics.changed_at.get(topic)) is not None:
            return self._when_written(answer, change)
        return answer

    async def _when_written(self, answer: RemotingCommand, change: int) -> RemotingCommand:
        await self._topics.written.reached(change)
        return answer

    def _message(
        self, header: SendBackRequest, group: SubscriptionGroup, *, version: int
    ) -> tuple[str, str, Message]:
        """The topics that the message was sent to and goes to, and the message. Raises BadRequestError."""
        topic = self._retries.retry_topic(group, unit_mode=header.unit_mode)
        record = record_at(self._reads, header.offset)
        if record is None:
            raise BadRequestError(f"look message by offset failed, {header.offset}")
        properties = parse_properties(record.properties_raw)
        properties.setdefault("RETRY_TOPIC", record.topic)
        properties.setdefault("ORIGIN_MESSAGE_ID", record.message_id)
        properties["WAIT"] = "false"
        times_max = allowed_retries(group, header.max_reconsume_times, version=version)
        if record.reconsume_times >= times_max or header.delay_level < 0:
            topic = self._retries.dead_letter_topic(group)
            level = 0
        else:
            level = header.delay_level or FIRST_RETRY_LEVEL + max(record.reconsume_times, 0)
        # Without any levels the retry follows at once.
        properties[DELAY] = str(min(level, self._delay_levels.max_level))
        message = Message.again(
            record,
            topic=topic.name,
            queue_id=random.randrange(max(1, topic.write_queue_nums)),
            properties=encode_properties(properties),
        )
        message = evolve(message, reconsume_times=min(record.reconsume_times + 1, I32.high))
        return properties["RETRY_TOPIC"], topic.name, message


def record_at(reads: MessageReader, offset: int) -> Record | None:
    """The record that starts at `offset`, which may be any number; None if none does.

    Raises BadRequestError for bytes that cannot be read, or are no record.
    """
    try:
        view = reads.record_at(offset)
        record = None if view is None else decode_record(view)
    except (StoreError, RecordError) as error:
        raise BadRequestError(f"look message by offset failed, {offset}: {error}") from error
    return record if isinstance(record, Record) else None


def topic_at(reads: MessageReader, offset: int) -> str | None:
    """The topic that the record at an offset was sent to; None if no record starts there.

    Raises BadRequestError as `record_at` does.
    """
    record = record_at(reads, offset)
    return None if record is None else topic_sent_to(record)
