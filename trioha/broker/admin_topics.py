"""Administrators' requests for topics: 17, 202, 215, 300, 305 and 351.

See docs/protocol/remoting.md#administration.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Final

import structlog
import trio
from attrs import evolve

from trioha.broker.admin_answers import (
    NO_CHANGE_ON_SLAVE,
    AnswerSize,
    QueueTable,
    json_answer,
    let_others_run,
    object_text,
    refuse_on_slave,
    text_answer,
    when_written,
)
from trioha.broker.clients import ClientRegistry
from trioha.broker.traffic import BrokerTraffic
from trioha.errors import StoreError
from trioha.metadata.metadata_store import MetadataStore
from trioha.metadata.table import TableFull
from trioha.metadata.topics import QUEUES_PER_TOPIC_MAX, TopicConfig, is_topic_name, system_topics
from trioha.numbers import I32, Range
from trioha.remoting.codes import ResponseCode, Version
from trioha.remoting.command import BadRequestError, RemotingCommand, response_to
from trioha.remoting.header_fields import HeaderFields
from trioha.remoting.serving import Peer
from trioha.store.message_store import MessageStore
from trioha.store.topic_deletion import delete_queues

log = structlog.get_logger(__name__)

DELETE_TIMEOUT_S: Final = 3.0
"""How long a deletion waits for the dispatch of the topic's last messages."""
FILTER_TYPES: Final = frozenset(("SINGLE_TAG", "MULTI_TAG"))
MORE_SYSTEM_TOPICS: Final = ("RMQ_SYS_TRACE_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC")
"""Beside those that every broker has."""
MESSAGE_TYPES: Final = frozenset(("UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED"))
_PERMISSIONS: Final = Range(0, 15)
_QUEUES: Final = Range(0, QUEUES_PER_TOPIC_MAX)
_ATTRIBUTES: Final = "attributes"
_MESSAGE_TYPE: Final = "message.type"


class AdminTopics:
    """Handles requests for topics."""

    def __init__(
        self,
        store: MessageStore,
        metadata: MetadataStore,
        clients: ClientRegistry,
        traffic: BrokerTraffic,
        *,
        memory_lock: trio.Lock,
        is_slave: bool,
    ) -> None:
        """`memory_lock` is held while a long answer is built: only one may take memory at a time."""
        self._memory_lock = memory_lock
        self._store = store
        self._metadata = metadata
        self._clients = clients
        self._traffic = traffic
        self._is_slave = is_slave

    def update(self, request: RemotingCommand, _peer: Peer) -> Awaitable[RemotingCommand]:
        """UPDATE_AND_CREATE_TOPIC: create or change a topic. Raises BadRequestError.

        The answer is given when the topic is in its file. Members that the request does not name stay.
        """
        refuse_on_slave(NO_CHANGE_ON_SLAVE, is_slave=self._is_slave)
        fields = HeaderFields(request.ext_fields)
        name = fields.text("topic")
        self._check_name(name)
        filter_type = fields.optional("topicFilterType") or "SINGLE_TAG"
        if filter_type not in FILTER_TYPES:
            raise BadRequestError(f"topicFilterType {filter_type[:100]!r} is not one of RocketMQ's")
        topics = self._metadata.topics
        known = topics.find(name) or TopicConfig(name)
        topic = evolve(
            known,
            read_queue_nums=fields.number("readQueueNums", _QUEUES),
            write_queue_nums=fields.number("writeQueueNums", _QUEUES),
            perm=fields.number("perm", _PERMISSIONS),
            filter_type=filter_type,
            sys_flag=fields.number("topicSysFlag", I32, default=0),
            order=fields.flag("order"),
            other=_with_attributes(known.other, fields.optional(_ATTRIBUTES) or ""),
        )
        try:
            topics.put(topic)
        except (TableFull, ValueError) as error:
            raise BadRequestError(str(error)) from None
        log.info("topic created or changed", topic=name, queues=topic.queue_nums, permission=topic.perm)
        return when_written(topics, response_to(request, ResponseCode.SUCCESS))

    def _check_name(self, name: str) -> None:
        if not name.strip():
            raise BadRequestError("The specified topic is blank.")
        if not is_topic_name(name):
            raise BadRequestError(
                "The specified topic contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$, "
                "or is longer than 127 characters."
            )
        if name in self._system_names():
            raise BadRequestError(f"The topic[{name}] is conflict with system topic.")

    def _system_names(self) -> list[str]:
        names = [topic.name for topic in system_topics(self._metadata.topics.settings)]
        return [*names, *MORE_SYSTEM_TOPICS]

    async def delete(self, request: RemotingCommand, _peer: Peer) -> RemotingCommand:
        """DELETE_TOPIC_IN_BROKER: delete a topic, its queues and the offsets of groups in it.

        Its messages stay in the log, where they can be found by id and by key, until retention deletes them.
        A topic that the broker does not have counts as deleted: it may have queues without one. A client that
        disconnects does not stop a deletion halfway. Raises BadRequestError; the topic is deleted then, and
        the same request deletes what is left.
        """
        refuse_on_slave(NO_CHANGE_ON_SLAVE, is_slave=self._is_slave)
        name = HeaderFields(request.ext_fields).text("topic")
        self._check_name(name)
        self._metadata.topics.delete(name)
        log.info("topic deleted", topic=name)
        await self._delete_queues(name)
        self._metadata.consumer_offsets.delete(topic=name)
        self._traffic.topic_deleted(name)
        return await when_written(self._metadata.topics, response_to(request, ResponseCode.SUCCESS))

    async def _delete_queues(self, topic: str) -> None:
        """Delete the topic's queues as soon as its messages are dispatched. Raises BadRequestError."""
        dispatched = self._store.dispatcher.dispatched
        with trio.move_on_after(DELETE_TIMEOUT_S, shield=True):
            while True:
                is_whole = True
                try:
                    for is_deleted in delete_queues(self._store, topic):
                        is_whole = is_whole and is_deleted
                        await trio.lowlevel.checkpoint()
                except StoreError as error:
                    raise BadRequestError(f"queues cannot be deleted: {error}") from error
                if is_whole:
                    return
                await dispatched.reached(dispatched.offset + 1)
        raise BadRequestError(
            f"topic {topic} was deleted; some of its queues still get messages and are there. Stop its "
            "producers and delete it again"
        )

    def config(self, request: RemotingCommand, _peer: Peer) -> RemotingCommand:
        """GET_TOPIC_CONFIG: one topic. Raises BadRequestError."""
        topic = self._topic(request, "No topic in this broker. topic: {}")
        return json_answer(request, {_ATTRIBUTES: {}, **topic.to_json()})

    async def stats(self, request: RemotingCommand, _peer: Peer) -> RemotingCommand:
        """GET_TOPIC_STATS_INFO: first and last offsets of each queue. Raises BadRequestError."""
        topic = self._topic(request, "topic[{}] not exist")
        reads = self._store.reads
        table = QueueTable(self._metadata.topics.settings.broker_name, AnswerSize())
        self._store.dispatcher.catch_up()
        async with self._memory_lock:
            try:
                for queue_id in range(topic.queue_nums):
                    await let_others_run(queue_id)
                    low, high = reads.min_offset(topic.name, queue_id), reads.max_offset(topic.name, queue_id)
                    last_ms = reads.store_timestamp(topic.name, queue_id, high - 1) if high > 0 else 0
                    table.add(
                        topic.name,
                        queue_id,
                        {"lastUpdateTimestamp": max(0, last_ms), "maxOffset": high, "minOffset": low},
                    )
            except StoreError as error:
                raise BadRequestError(str(error)) from error
            body = {"offsetTable": table.text}
            if request.version >= Version.V5_0_0:
                body["topicPutTps"] = str(self._traffic.puts.per_s(topic.name))
            return text_answer(request, object_text(body))

    def _topic(self, request: RemotingCommand, remark: str) -> TopicConfig:
        name = HeaderFields(request.ext_fields).text("topic")
        topic = self._metadata.topics.find(name)
        if topic is None:
            raise BadRequestError(remark.format(name[:300]), code=ResponseCode.TOPIC_NOT_EXIST)
        return topic

    def consumed_by(self, request: RemotingCommand, _peer: Peer) -> RemotingCommand:
        """QUERY_TOPIC_CONSUME_BY_WHO: groups that subscribe to a topic, or have committed in it.

        Raises BadRequestError.
        """
        name = HeaderFields(request.ext_fields).text("topic")
        groups = [group.name for group in self._clients.consumers.values() if name in group.subscriptions]
        groups += self._metadata.consumer_offsets.groups_of(name)
        return json_answer(request, {"groupList": list(dict.fromkeys(groups))})

    def system_list(self, request: RemotingCommand, _peer: Peer) -> RemotingCommand:
        """GET_SYSTEM_TOPIC_LIST_FROM_BROKER: topics that clients may not create or delete."""
        return json_answer(request, {"topicList": self._system_names()})


def _with_attributes(other: Mapping[str, object], changes: str) -> Mapping[str, object]:
    """A topic's further members after `+name=value,-name` of 5.x. Raises BadRequestError.

    Only message.type can be changed: the others have no effect here or, as queue.type, would need the
    topic's queues to be built anew.
    """
    if not changes.strip():
        return other
    known = other.get(_ATTRIBUTES)
    attributes = dict(known) if isinstance(known, dict) else {}
    for change in map(str.strip, changes.split(",")):
        name, _, value = change[1:].partition("=")
        if change[:1] not in {"+", "-"} or name != _MESSAGE_TYPE:
            raise BadRequestError(
                f"attribute {change[:100]!r} cannot be changed here, only {_MESSAGE_TYPE}",
                code=ResponseCode.INVALID_PARAMETER,
            )
        if change[0] == "-":
            attributes.pop(name, None)
        elif value in MESSAGE_TYPES:
            attributes[name] = value
        else:
            raise BadRequestError(
                f"attribute {change[:100]!r} has none of the values {', '.join(sorted(MESSAGE_TYPES))}",
                code=ResponseCode.INVALID_PARAMETER,
            )
    return {**other, _ATTRIBUTES: attributes}
