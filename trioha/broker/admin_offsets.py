"""Administrators' requests for offsets of groups: 208, 222 and 317.

See docs/protocol/remoting.md#administration.

A reset goes to the group's consumers that are connected (220): each drops what it has pulled and goes on at
the new offsets. Without any, what happens depends on the version of the tool, as with real brokers: 4.9's is
answered CONSUMER_NOT_ONLINE and then commits the offsets itself, for 5.x the broker commits them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import structlog
import trio
from attrs import define

from trioha.broker.admin_answers import (
    NO_RESET_ON_SLAVE,
    AnswerSize,
    QueueTable,
    let_others_run,
    object_text,
    refuse_on_slave,
    text_answer,
)
from trioha.broker.clients import ClientRegistry, ConsumerGroup
from trioha.broker.half_messages import refuse_own_group
from trioha.broker.traffic import BrokerTraffic
from trioha.errors import StoreError
from trioha.metadata.metadata_store import MetadataStore
from trioha.metadata.table import TableFull
from trioha.metadata.topics import TopicConfig
from trioha.numbers import I32, I64
from trioha.remoting.codec import encode
from trioha.remoting.codes import LanguageCode, RequestCode, ResponseCode, Version
from trioha.remoting.command import BadRequestError, RemotingCommand
from trioha.remoting.command import request as new_request
from trioha.remoting.connections import Push
from trioha.remoting.fastjson import format_json
from trioha.remoting.header_fields import HeaderFields
from trioha.remoting.serving import Peer
from trioha.store.message_store import MessageStore

log = structlog.get_logger(__name__)

TOPICS_SEPARATOR: Final = ";"
"""Between the names of topicList of 5.x."""
END: Final = -1
"""timestamp of a reset to the end of each queue."""
_ALL_QUEUES: Final = -1


@define(eq=False)
class _Progress:
    """How far a group is in some topics."""

    table: QueueTable
    """OffsetWrapper by MessageQueue."""
    has_pull_offsets: bool
    """5.x."""
    lag: int = 0
    """Messages that are not committed."""
    in_flight: int = 0
    """Messages that were pulled and are not committed."""


class AdminOffsets:
    """Handles requests for offsets."""

    def __init__(
        self,
        store: MessageStore,
        metadata: MetadataStore,
        clients: ClientRegistry,
        traffic: BrokerTraffic,
        *,
        memory_lock: trio.Lock,
        is_slave: bool,
        push: Push,
        address: str,
    ) -> None:
        """`memory_lock` is held while a long answer is built: only one may take memory at a time. `push`
        sends a frame to a connection; clients reach the broker at `address`."""
        self._memory_lock = memory_lock
        self._push = push
        self._address = address
        self._store = store
        self._metadata = metadata
        self._clients = clients
        self._traffic = traffic
        self._is_slave = is_slave

    # -- progress --------------------------------------------------------------------------------------

    async def consume_stats(self, request: RemotingCommand, _peer: Peer) -> RemotingCommand:
        """GET_CONSUME_STATS: a group's offsets in its topics, or in those of the request.

        Raises BadRequestError.
        """
        fields = HeaderFields(request.ext_fields)
        group = fields.text("consumerGroup")
        named = [name for name in (fields.optional("topicList") or "").split(TOPICS_SEPARATOR) if name]
        named = named or [name for name in [fields.optional("topic")] if name]
        per_s = 0.0
        async with self._memory_lock:
            progress = self._new_progress(request, AnswerSize())
            for topic in self._subscribed(group, named or self._metadata.consumer_offsets.topics_of(group)):
                await self._add(progress, group, topic, queues=topic.read_queue_nums)
                per_s += self._per_s(group, topic)
            return text_answer(
                request, object_text({"consumeTps": str(per_s), "offsetTable": progress.table.text})
            )

    async def broker_consume_stats(self, request: RemotingCommand, _peer: Peer) -> RemotingCommand:
        """GET_BROKER_CONSUME_STATS: offsets of all groups, with isOrder in ordered topics only.

        Raises BadRequestError.
        """
        is_order = HeaderFields(request.ext_fields).flag("isOrder")
        size = AnswerSize()
        lag = in_flight = 0
        groups = []
        async with self._memory_lock:
            topics_by_group = self._metadata.consumer_offsets.topics_by_group()
            for number, group in enumerate(list(self._metadata.groups.entries)):
                await let_others_run(number)
                stats = []
                for topic in self._subscribed(group, topics_by_group.get(group, ())):
                    if is_order and not topic.order:
                        continue
                    progress = self._new_progress(request, size)
                    await self._add(progress, group, topic, queues=topic.write_queue_nums)
                    stats.append(
                        object_text(
                            {
                                "consumeTps": str(self._per_s(group, topic)),
                                "offsetTable": progress.table.text,
                            }
                        )
                    )
                    lag += progress.lag
                    in_flight += progress.in_flight
                size.add(len(group) + 10)
                groups.append(object_text({group: f"[{','.join(stats)}]"}))
            body = {
                "brokerAddr": format_json(self._address, bare_keys=True),
                "consumeStatsList": f"[{','.join(groups)}]",
                "totalDiff": str(lag),
            }
            if request.version >= Version.V5_0_0:
                body["totalInflightDiff"] = str(in_flight)
            return text_answer(request, object_text(body))

    def _subscribed(self, group: str, names: Sequence[str]) -> list[TopicConfig]:
        """The topics that are there, less those that the group's connected consumers do not subscribe to."""
        consumers = self._clients.consumers.get(group)
        found = []
        for name in names:
            topic = self._metadata.topics.find(name)
            if topic is None:
                continue
            if consumers is not None and consumers.subscriptions and name not in consumers.subscriptions:
                continue
            found.append(topic)
        return found

    def _per_s(self, group: str, topic: TopicConfig) -> float:
        return self._traffic.pulls.per_s(f"{topic.name}@{group}")

    def _new_progress(self, request: RemotingCommand, size: AnswerSize) -> _Progress:
        self._store.dispatcher.catch_up()
        broker_name = self._metadata.topics.settings.broker_name
        return _Progress(QueueTable(broker_name, size), request.version >= Version.V5_0_0)

    async def _add(self, progress: _Progress, group: str, topic: TopicConfig, *, queues: int) -> None:
        """Add the offsets of one group in one topic. Raises BadRequestError."""
        reads = self._store.reads
        committed = self._metadata.consumer_offsets.of_group(group, topic.name)
        try:
            for queue_id in range(queues):
                await let_others_run(queue_id)
                high = reads.max_offset(topic.name, queue_id)
                offset = max(0, committed.get(queue_id, 0))
                last_ms = reads.store_timestamp(topic.name, queue_id, offset - 1) if offset else 0
                pulled = self._traffic.pull_offsets.get((group, topic.name, queue_id), 0)
                progress.table.add(
                    topic.name,
                    queue_id,
                    {
                        "brokerOffset": high,
                        "consumerOffset": offset,
                        "lastTimestamp": max(0, last_ms),
                        **({"pullOffset": pulled} if progress.has_pull_offsets else {}),
                    },
                )
                progress.lag += high - offset
                progress.in_flight += max(0, pulled - offset)
        except StoreError as error:
            raise BadRequestError(str(error)) from error

    # -- reset -----------------------------------------------------------------------------------------

    async def reset(self, request: RemotingCommand, _peer: Peer) -> RemotingCommand:
        """INVOKE_BROKER_TO_RESET_OFFSET: let a group go on at the messages of a time, or at an offset.

        Without isForce no offset moves forward. The answer has the new offsets. Raises BadRequestError.
        """
        refuse_on_slave(NO_RESET_ON_SLAVE, is_slave=self._is_slave)
        fields = HeaderFields(request.ext_fields)
        group, name = fields.text("group"), fields.text("topic")
        refuse_own_group(group)
        is_5 = request.version >= Version.V5_0_0
        topic = self._metadata.topics.find(name)
        if topic is None:
            raise BadRequestError(
                f"[reset-offset] reset offset failed, no topic in this broker. topic={name[:300]}"
            )
        consumers = self._clients.consumers.get(group)
        timestamp_ms = fields.number("timestamp", I64)
        if consumers is None and not is_5:
            raise BadRequestError(
                f"Consumer not online, so can not reset offset, Group: {group[:300]} Topic: {name} "
                f"Timestamp: {timestamp_ms}",
                code=ResponseCode.CONSUMER_NOT_ONLINE,
            )
        async with self._memory_lock:
            offsets = await self._new_offsets(
                group,
                topic,
                timestamp_ms=timestamp_ms,
                queue_id=fields.number("queueId", I32, default=_ALL_QUEUES),
                offset=fields.number("offset", I64, default=END),
                is_force=fields.flag("isForce"),
            )
        if consumers is None:
            self._commit(group, name, offsets)
        else:
            self._notify(consumers, name, offsets, timestamp_ms=timestamp_ms, is_cpp=_is_cpp(request))
        log.info("offsets of a group reset", group=group, topic=name, queues=len(offsets))
        return text_answer(request, self._by_queue(name, offsets))

    async def _new_offsets(
        self, group: str, topic: TopicConfig, *, timestamp_ms: int, queue_id: int, offset: int, is_force: bool
    ) -> dict[int, int]:
        """Offsets after the reset, by queue id. Raises BadRequestError."""
        if self._metadata.groups.find(group) is None:
            raise BadRequestError(
                f"Group {group[:300]} does not exist", code=ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
            )
        queues = range(topic.queue_nums)
        if queue_id != _ALL_QUEUES:
            if queue_id not in queues:
                raise BadRequestError(f"topic {topic.name} has no queue {queue_id}")
            queues = range(queue_id, queue_id + 1)
        committed = self._metadata.consumer_offsets.of_group(group, topic.name)
        reads = self._store.reads
        self._store.dispatcher.catch_up()
        if queue_id != _ALL_QUEUES and offset != END:
            low, high = reads.min_offset(topic.name, queue_id), reads.max_offset(topic.name, queue_id)
            if not low <= offset <= high:
                raise BadRequestError(f"Target offset {offset} not in consume queue range [{low}-{high}]")
            return {queue_id: offset}
        offsets = {}
        try:
            for number in queues:
                await let_others_run(number)
                if timestamp_ms == END:
                    wanted = reads.max_offset(topic.name, number)
                else:
                    wanted = reads.offset_by_time(topic.name, number, timestamp_ms)
                known = committed.get(number)
                offsets[number] = wanted if is_force or known is None else min(wanted, known)
        except StoreError as error:
            raise BadRequestError(str(error)) from error
        return offsets

    def _commit(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        try:
            for queue_id, offset in offsets.items():
                self._metadata.consumer_offsets.commit(group, topic, queue_id, offset)
        except TableFull as full:
            raise BadRequestError(str(full)) from None

    def _notify(
        self, group: ConsumerGroup, topic: str, offsets: Mapping[int, int], *, timestamp_ms: int, is_cpp: bool
    ) -> None:
        """RESET_CONSUMER_CLIENT_OFFSET to each member."""
        body = self._for_cpp(topic, offsets) if is_cpp else self._by_queue(topic, offsets)
        frame = encode(
            new_request(
                RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
                ext_fields={
                    "topic": topic,
                    "group": group.name,
                    "timestamp": str(timestamp_ms),
                    "isForce": "false",
                },
                body=body.encode("utf-8", "replace"),
                oneway=True,
            )
        )
        for connection in list(group.members):
            self._push(connection, frame)

    def _by_queue(self, topic: str, offsets: Mapping[int, int]) -> str:
        """ResetOffsetBody."""
        table = QueueTable(self._metadata.topics.settings.broker_name, AnswerSize())
        for queue_id, offset in offsets.items():
            table.add(topic, queue_id, offset)
        return object_text({"offsetTable": table.text})

    def _for_cpp(self, topic: str, offsets: Mapping[int, int]) -> str:
        """ResetOffsetBodyForC."""
        broker_name = self._metadata.topics.settings.broker_name
        table = [
            {"brokerName": broker_name, "offset": offset, "queueId": queue_id, "topic": topic}
            for queue_id, offset in offsets.items()
        ]
        return format_json({"offsetTable": table}, bare_keys=True)


def _is_cpp(request: RemotingCommand) -> bool:
    """Whether the tool says that the group's consumers are of C++, which read another form."""
    return request.language is LanguageCode.CPP
