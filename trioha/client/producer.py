"""Sends messages to the queues of their topics, in turn, and again elsewhere where that can help.

A send is tried up to `attempts_max` times within `timeout_s`; the next attempt goes to another broker if
there is one. Tried again: no connection, no answer, and the codes in `RETRIED_CODES` (spec remoting 7). A
message that was sent twice may be stored twice, both times with the same message id.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from ipaddress import ip_address
from typing import Final
from zlib import crc32

import trio
from attrs import field, frozen
from attrs.validators import ge, gt

from trioha.client.cluster import Cluster
from trioha.client.messages import Message
from trioha.client.route import MessageQueue, TopicRoute
from trioha.client.routes import TOPICS_MAX
from trioha.errors import PeerError, RemoteProtocolError
from trioha.remoting.client import ConnectionLostError, RequestTimeoutError
from trioha.remoting.codes import ResponseCode
from trioha.remoting.command import RemotingCommand
from trioha.remoting.send_message import (
    DEFAULT_TOPIC,
    PUT_STATUS_CODES,
    STORED_STATUSES,
    SendMessageRequestHeader,
    SendMessageResponseHeader,
    put_status_name,
    send_request,
)
from trioha.remoting.unique_key import UniqueKeys

RETRIED_CODES: Final = frozenset(
    {
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST,
        204,
        205,
        ResponseCode.GO_AWAY,
    }
)
STORED_CODES: Final = frozenset(int(PUT_STATUS_CODES[status]) for status in STORED_STATUSES)
"""Answers to sends whose message is in the log."""
RETRY_PAUSE_S: Final = 0.05
"""Before the second attempt; doubled for each further one."""


@frozen
class ProducerSettings:
    """How messages are sent."""

    group: str = "trioha-produce"
    timeout_s: float = field(default=10.0, validator=gt(0))
    """For a message, with all attempts."""
    attempt_timeout_s: float = field(default=4.0, validator=gt(0))
    """For one attempt: longer than a broker waits for its slaves."""
    attempts_max: int = field(default=3, validator=ge(1))
    in_flight_max: int = field(default=1024, validator=ge(1))
    """Messages that are being sent; one more waits until another has ended."""
    compress_bytes_min: int | None = 4096
    """Bodies from this size on are compressed; None for none."""
    default_topic_queues: int = field(default=4, validator=ge(1))
    """Queues on each broker of a topic that the first send creates."""


@frozen
class SendResult:
    """A message that is in the log of a broker."""

    status: str
    """RocketMQ's name of the put status: PUT_OK, or why it may not survive a crash."""
    queue: MessageQueue
    queue_offset: int
    message_id: str
    """The producer's id."""
    offset_message_id: str
    """Store host and physical offset in hex."""
    attempts: int


class SendError(PeerError):
    """A message for which no broker said that it is stored; it may be stored."""

    def __init__(self, reason: str, *, address: str, code: int | None, attempts: int, status: str) -> None:
        super().__init__(reason, address=address, code=code)
        self.attempts = attempts
        self.status = status
        """Name of the last response code or put status; NO_ANSWER without one."""


class QueueSelector:
    """Chooses queues in turn, for each topic by itself."""

    def __init__(self, *, start: int = 0) -> None:
        self._start = start
        self._turns: dict[str, int] = {}

    def next(self, queues: Sequence[MessageQueue], *, avoid_broker: str | None = None) -> MessageQueue:
        """The next of these queues of one topic, of another broker than `avoid_broker` if there is one."""
        topic = queues[0].topic
        turn = self._turns.pop(topic, self._start)
        self._turns[topic] = turn + 1
        if len(self._turns) > TOPICS_MAX:
            del self._turns[next(iter(self._turns))]
        for step in range(len(queues)):
            queue = queues[(turn + step) % len(queues)]
            if queue.broker_name != avoid_broker:
                self._turns[topic] = turn + step + 1
                return queue
        return queues[turn % len(queues)]


def queue_of_key(queues: Sequence[MessageQueue], sharding_key: str) -> MessageQueue:
    """The queue of all messages with this key, as long as the queues are the same."""
    return queues[crc32(sharding_key.encode("utf-8", "replace")) % len(queues)]


class Producer:
    """Sends messages. Made by `open_producer`."""

    def __init__(self, cluster: Cluster, settings: ProducerSettings) -> None:
        self._cluster = cluster
        self._settings = settings
        self._selector = QueueSelector(start=secrets.randbelow(1 << 16))
        self._in_flight = trio.CapacityLimiter(settings.in_flight_max)
        self._keys: UniqueKeys | None = None

    async def send(
        self, message: Message, *, queue: MessageQueue | None = None, sharding_key: str | None = None
    ) -> SendResult:
        """Send a message to `queue`, to the queue of `sharding_key`, or to the next of its topic's queues.

        Raises SendError if no broker said that the message is stored, TopicNotFoundError (both are PeerError)
        if no broker has or creates its topic, LocalProtocolError for a message that cannot be sent. After a
        cancellation the message may be stored.
        """
        settings = self._settings
        body, sys_flag = message.encoded_body(compress_bytes_min=settings.compress_bytes_min)
        unique_key = self._unique_key()
        properties = message.encoded_properties(unique_key=unique_key)
        async with self._in_flight:
            deadline_s = trio.current_time() + settings.timeout_s
            avoid_broker: str | None = None
            for attempt in range(1, settings.attempts_max + 1):
                route = await self._cluster.routes.find_to_send(message.topic)
                chosen = queue or self._choose(message.topic, route, avoid_broker, sharding_key)
                address = route.master(chosen.broker_name)
                if address is None:
                    raise SendError(
                        f"{chosen} has no master", address=self._cluster.routes.source, code=None,
                        attempts=attempt, status="NO_ANSWER",
                    )  # fmt: skip
                header = SendMessageRequestHeader(
                    producer_group=settings.group,
                    topic=message.topic,
                    default_topic=DEFAULT_TOPIC,
                    default_topic_queue_nums=settings.default_topic_queues,
                    queue_id=chosen.queue_id,
                    sys_flag=sys_flag,
                    born_timestamp_ms=time.time_ns() // 1_000_000,
                    flag=message.flag,
                    properties=properties,
                )
                result = await self._attempt(
                    send_request(header, body),
                    queue=chosen,
                    address=address,
                    unique_key=unique_key,
                    attempt=attempt,
                    deadline_s=deadline_s,
                )
                if isinstance(result, SendResult):
                    return result
                pause_s = RETRY_PAUSE_S * 2 ** (attempt - 1)
                is_retried = result.code is None or result.code in RETRIED_CODES
                if (
                    not is_retried
                    or attempt == settings.attempts_max
                    or trio.current_time() + pause_s >= deadline_s
                ):
                    raise result
                avoid_broker = chosen.broker_name
                await trio.sleep(pause_s)
                await self._refresh(message.topic)
        raise AssertionError("the last attempt returns or raises")

    async def _attempt(
        self,
        command: RemotingCommand,
        *,
        queue: MessageQueue,
        address: str,
        unique_key: str,
        attempt: int,
        deadline_s: float,
    ) -> SendResult | SendError:
        timeout_s = min(self._settings.attempt_timeout_s, max(deadline_s - trio.current_time(), 0.001))
        try:
            answer = await self._cluster.request(address, command, timeout_s=timeout_s)
            if answer.code in STORED_CODES:
                stored = SendMessageResponseHeader.of(answer)
                return SendResult(
                    put_status_name(answer),
                    MessageQueue(queue.topic, queue.broker_name, stored.queue_id),
                    stored.queue_offset,
                    unique_key,
                    stored.msg_id,
                    attempt,
                )
        except (ConnectionLostError, RequestTimeoutError) as error:
            return SendError(error.reason, address=address, code=None, attempts=attempt, status="NO_ANSWER")
        except RemoteProtocolError as error:
            return SendError(str(error), address=address, code=None, attempts=attempt, status="NO_ANSWER")
        status = put_status_name(answer)
        reason = f"{status}: {(answer.remark or '').strip()[:300]}"
        return SendError(reason, address=address, code=answer.code, attempts=attempt, status=status)

    def _choose(
        self, topic: str, route: TopicRoute, avoid_broker: str | None, sharding_key: str | None
    ) -> MessageQueue:
        queues = route.write_queues(topic)
        if not queues:
            raise SendError(
                f"topic {topic} has no queue that accepts messages", address=self._cluster.routes.source,
                code=None, attempts=0, status="NO_ANSWER",
            )  # fmt: skip
        if sharding_key is not None:
            return queue_of_key(queues, sharding_key)
        return self._selector.next(queues, avoid_broker=avoid_broker)

    async def _refresh(self, topic: str) -> None:
        """Fetch the route again after a failure: the broker may have been replaced."""
        try:
            await self._cluster.routes.fetch(topic)
        except PeerError:
            # The next attempt uses the route that is known, and fails by itself.
            await trio.lowlevel.checkpoint()

    def _unique_key(self) -> str:
        if self._keys is None:
            ip = ip_address(secrets.token_bytes(4))
            self._keys = UniqueKeys(ip=ip.packed, pid=os.getpid(), salt=secrets.randbits(32))
        return self._keys.next_key(time.time_ns() // 1_000_000)


@asynccontextmanager
async def open_producer(
    cluster: Cluster, settings: ProducerSettings | None = None
) -> AsyncIterator[Producer]:
    """A producer, which is a member of its group until the end of the block."""
    settings = settings or ProducerSettings()
    async with cluster.producing(settings.group):
        yield Producer(cluster, settings)
