"""What a request needs: permissions for topics and groups, or an admin.

See docs/protocol/remoting.md#signed-requests.

As in RocketMQ 4.9, other requests need a valid signature and no permission. What is stricter here:

- A send to a retry topic needs the group of that topic, not the one that the request names.
- Lite pulls and batches need what pulls and sends need.
- Where a request names a message by its offset in the log (send-backs, views, the ends of transactions), the
  topic that the message was sent to counts. RocketMQ gives any message to who has its offset.
- Locks of queues and resets of offsets need the group. RocketMQ asks for a signature alone.
- What lies in the topics that hold messages of all others (`HOLDING_TOPICS`) is for who has them in its list.

Every account may send to the topic of message traces, whatever its list says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

from trioha.broker.acl_rules import TRACE_TOPIC, Permission, Resource
from trioha.broker.client_processor import heartbeat_of
from trioha.broker.queue_locks import asked_locks
from trioha.numbers import I64
from trioha.remoting.codes import RequestCode
from trioha.remoting.command import RemotingCommand
from trioha.remoting.header_fields import HeaderFields

Need: TypeAlias = tuple[Resource, Permission]
TopicAt: TypeAlias = Callable[[int], str | None]
"""The topic that the record at an offset of the log was sent to; None if no record starts there."""

ADMIN_CODES: Final = frozenset(
    (
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        RequestCode.UPDATE_BROKER_CONFIG,
        RequestCode.DELETE_TOPIC_IN_BROKER,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        RequestCode.DELETE_SUBSCRIPTIONGROUP,
        RequestCode.SET_MESSAGE_REQUEST_MODE,
    )
)
"""Requests that only an admin may send."""
OPEN_CODES: Final = frozenset((RequestCode.NOTIFY_BROKER_ROLE_CHANGED,))
"""Requests that need no account: RocketMQ's controllers do not sign, and their notice is not believed but
checked with the leading one."""


def needs_of(request: RemotingCommand, topic_at: TopicAt) -> Iterator[Need]:
    """The permissions that a request needs. A missing field needs none: its handler refuses the request.

    Raises BadRequestError for a body or an offset that cannot be read.
    """
    match request.code:
        case RequestCode.SEND_MESSAGE | RequestCode.RECALL_MESSAGE:
            yield from _send(request, "topic")
        case RequestCode.SEND_MESSAGE_V2 | RequestCode.SEND_BATCH_MESSAGE:
            yield from _send(request, "b")
        case RequestCode.PULL_MESSAGE | RequestCode.LITE_PULL_MESSAGE | RequestCode.UPDATE_CONSUMER_OFFSET:
            yield from _topic(request)
            yield from _group(request, "consumerGroup")
        case RequestCode.QUERY_MESSAGE:
            yield from _topic(request)
        case RequestCode.CONSUMER_SEND_MSG_BACK:
            yield from _record(request, "offset", topic_at, Permission.SUB)
            yield from _group(request, "group")
        case RequestCode.VIEW_MESSAGE_BY_ID:
            yield from _record(request, "offset", topic_at, Permission.SUB)
        case RequestCode.END_TRANSACTION:
            yield from _record(request, "commitLogOffset", topic_at, Permission.PUB)
        case RequestCode.INVOKE_BROKER_TO_RESET_OFFSET:
            yield from _topic(request)
            yield from _group(request, "group")
        case RequestCode.LOCK_BATCH_MQ | RequestCode.UNLOCK_BATCH_MQ:
            yield Resource.of_group(asked_locks(request).group), Permission.SUB
        case RequestCode.UNREGISTER_CLIENT | RequestCode.GET_CONSUMER_LIST_BY_GROUP:
            yield from _group(request, "consumerGroup")
        case RequestCode.HEART_BEAT:
            for consumer in heartbeat_of(request).consumers:
                yield Resource.of_group(consumer.group), Permission.SUB
                for topic in consumer.subscriptions:
                    yield Resource.of_topic(topic), Permission.SUB


def _send(request: RemotingCommand, field: str) -> Iterator[Need]:
    topic = request.ext_fields.get(field)
    if topic is not None and topic != TRACE_TOPIC:
        resource = Resource.of_topic(topic)
        yield resource, Permission.SUB if resource.is_group else Permission.PUB


def _record(
    request: RemotingCommand, field: str, topic_at: TopicAt, permission: Permission
) -> Iterator[Need]:
    if field not in request.ext_fields:
        return
    topic = topic_at(HeaderFields(request.ext_fields).number(field, I64))
    if topic is not None:
        yield Resource.of_topic(topic), permission


def _topic(request: RemotingCommand) -> Iterator[Need]:
    topic = request.ext_fields.get("topic")
    if topic is not None:
        yield Resource.of_topic(topic), Permission.SUB


def _group(request: RemotingCommand, field: str) -> Iterator[Need]:
    group = request.ext_fields.get(field)
    if group is not None:
        yield Resource.of_group(group), Permission.SUB
