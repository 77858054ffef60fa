"""Sends messages to the queues of their topics, in turn, and again elsewhere where that can help.

A send is tried up to `attempts_max` times within `timeout_s`; the next attempt goes to another broker if
there is one. Tried again: no route, no connection, no answer, and the codes in `RETRIED_CODES`
(docs/protocol/remoting.md#client-rules). A message that was sent twice may be stored twice, both times with
the same message id.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Collection, Sequence
from contextlib import AsyncExitStack
from ipaddress import ip_address
from itertools import count
from types import TracebackType
from typing import Final, Self
from zlib import crc32

import trio
from attrs import field, frozen
from attrs.validators import ge, gt

from trioha.client.cluster import Cluster, ClusterPlace
from trioha.client.messages import Message
from trioha.client.routes import TOPICS_MAX, TopicNotFoundError
from trioha.errors import PeerError, RemoteProtocolError
from trioha.remoting.codes import ResponseCode
from trioha.remoting.command import RemotingCommand
from trioha.remoting.route import MessageQueue, TopicRoute
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
"""Before the second attempt; doubled for each further one up to RETRY_PAUSE_S_MAX."""
RETRY_PAUSE_S_MAX: Final = 2.0
NO_ANSWER: Final = "NO_ANSWER"
"""Status of a send that no broker answered."""


@frozen
class ProducerSettings:
    """How messages are sent."""

    group: str = "trioha-produce"
    timeout_s: float = field(default=10.0, validator=gt(0))
    """For a message, with all attempts; `math.inf` for no limit."""
    attempt_timeout_s: float = field(default=4.0, validator=gt(0))
    """For one attempt: longer than a broker waits for its slaves."""
    attempts_max: int = field(default=3, validator=ge(0))
    """0: as many as `timeout_s` allows."""
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
    """Sends messages; a member of its group of producers for the length of its block.

    ```
    async with Producer("127.0.0.1:9876") as producer:
        await producer.send(Message("Orders", b"42"))
    ```
    """

    def __init__(
        self, place: Cluster | str | Sequence[str], settings: ProducerSettings | None = None
    ) -> None:
        """`place`: name servers (`host:port;host:port`), or a cluster that others share (`open_cluster`).

        Raises ConfigError for addresses that cannot be ones.
        """
        self._place = ClusterPlace(place)
        self._settings = settings or ProducerSettings()
        self._selector = QueueSelector(start=secrets.randbelow(1 << 16))
        self._in_flight = trio.CapacityLimiter(self._settings.in_flight_max)
        self._keys: UniqueKeys | None = None
        self._failing: dict[str, PeerError] = {}
        self._stack = AsyncExitStack()
        self._open_cluster: Cluster | None = None

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            self._open_cluster = await stack.enter_async_context(self._place.open())
            await stack.enter_async_context(self._open_cluster.producing(self._settings.group))
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        self._open_cluster = None
        return await self._stack.__aexit__(kind, error, traceback)

    @property
    def _cluster(self) -> Cluster:
        if self._open_cluster is None:
            raise RuntimeError("the producer is not open: use `async with Producer(...) as producer`")
        return self._open_cluster

    @property
    def failing(self) -> Collection[PeerError]:
        """The last failure of each send that is being tried again now."""
        return self._failing.values()

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

        def command_for(chosen: MessageQueue) -> RemotingCommand:
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
            return send_request(header, body)

        async with self._in_flight:
            deadline_s = trio.current_time() + settings.timeout_s
            chosen: MessageQueue | None = None
            try:
                for attempt in count(1):
                    failure: PeerError
                    avoid_broker = chosen.broker_name if chosen else None
                    try:
                        chosen, address = await self._target(
                            message.topic, queue=queue, sharding_key=sharding_key, avoid_broker=avoid_broker
                        )
                        timeout_s = max(deadline_s - trio.current_time(), 0.001)
                        answer = await self._cluster.request(
                            address,
                            command_for(chosen),
                            timeout_s=min(settings.attempt_timeout_s, timeout_s),
                        )
                        if answer.code in STORED_CODES:
                            return _result(answer, chosen, unique_key=unique_key, attempts=attempt)
                        failure = _refused(answer, address, attempts=attempt)
                    except TopicNotFoundError as error:
                        failure = error
                    except PeerError as error:
                        failure = SendError(
                            error.reason,
                            address=error.address,
                            code=error.code,
                            attempts=attempt,
                            status=NO_ANSWER,
                        )
                    except RemoteProtocolError as error:
                        failure = SendError(
                            str(error), address=address, code=None, attempts=attempt, status=NO_ANSWER
                        )
                    pause_s = min(RETRY_PAUSE_S * 2.0 ** min(attempt - 1, 32), RETRY_PAUSE_S_MAX)
                    if (
                        (failure.code is not None and failure.code not in RETRIED_CODES)
                        or attempt == settings.attempts_max
                        or trio.current_time() + pause_s >= deadline_s
                    ):
                        raise failure
                    self._failing[unique_key] = failure
                    await trio.sleep(pause_s)
                    await self._refresh(message.topic)
            finally:
                self._failing.pop(unique_key, None)
        raise AssertionError("the last attempt returns or raises")

    async def _target(
        self, topic: str, *, queue: MessageQueue | None, sharding_key: str | None, avoid_broker: str | None
    ) -> tuple[MessageQueue, str]:
        """The queue of the next attempt and its master's address. Raises PeerError."""
        route = await self._cluster.routes.find_to_send(topic)
        chosen = queue or self._choose(topic, route, avoid_broker, sharding_key)
        address = route.master(chosen.broker_name)
        if address is None:
            raise PeerError(f"{chosen} has no master", address=self._cluster.routes.source)
        return chosen, address

    def _choose(
        self, topic: str, route: TopicRoute, avoid_broker: str | None, sharding_key: str | None
    ) -> MessageQueue:
        queues = route.write_queues(topic)
        if not queues:
            raise PeerError(
                f"topic {topic} has no queue that accepts messages", address=self._cluster.routes.source
            )
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


def _result(answer: RemotingCommand, queue: MessageQueue, *, unique_key: str, attempts: int) -> SendResult:
    """Raises RemoteProtocolError."""
    stored = SendMessageResponseHeader.of(answer)
    return SendResult(
        put_status_name(answer),
        MessageQueue(queue.topic, queue.broker_name, stored.queue_id),
        stored.queue_offset,
        unique_key,
        stored.msg_id,
        attempts,
    )


def _refused(answer: RemotingCommand, address: str, *, attempts: int) -> SendError:
    status = put_status_name(answer)
    reason = f"{status}: {(answer.remark or '').strip()[:300]}"
    return SendError(reason, address=address, code=answer.code, attempts=attempts, status=status)
