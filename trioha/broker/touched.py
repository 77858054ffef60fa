"""What each request touches: the one table that both generations of access control ask.

A row of `TABLE` says which topics, groups or cluster a request of a code touches, and what it does with
them. Access control lists of RocketMQ 5 (`trioha.broker.user_access`) want one of the `actions` for each
touch, the rules of a plain_acl.yml (`trioha.broker.acl`) the `permission`, and an admin for some codes. A
request without a touch needs a valid signature alone. A code that is served and has no row fails a test.

What counts is what is touched, not what the request says of itself. So this is stricter than RocketMQ
(docs/protocol/acl2.md#what-trioha-asks-for-otherwise):

- A retry topic is its group, in every request.
- Lite pulls and batches need what pulls and sends need.
- Where a request names a message by its offset in the log (send-backs, views, the ends of transactions), the
  topic that the message was sent to counts. RocketMQ gives any message to who has its offset.
- Locks of queues and resets of offsets need the group; changes of groups and of the configuration need more
  than a signature.

Every account of a plain_acl.yml may send to the topic of message traces, whatever its list says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final, TypeAlias

from attrs import frozen

from trioha.auth.model import Action, Resource, ResourceKind
from trioha.broker.acl_rules import TRACE_TOPIC, Permission
from trioha.broker.admin_groups import asked_group
from trioha.broker.client_processor import heartbeat_of
from trioha.broker.pop.settings import popped_topic
from trioha.broker.queue_locks import asked_locks
from trioha.numbers import I64
from trioha.remoting.codes import RequestCode
from trioha.remoting.command import RemotingCommand
from trioha.remoting.header_fields import HeaderFields
from trioha.remoting.pop_message import BatchAckRequest

TopicAt: TypeAlias = Callable[[int], str | None]
"""The topic that the record at an offset of the log was sent to; None if no record starts there."""
OPEN_CODES: Final = frozenset((RequestCode.NOTIFY_BROKER_ROLE_CHANGED,))
"""Requests that need no account: RocketMQ's controllers do not sign, and their notice is not believed but
checked with the leading one."""


@frozen
class Touch:
    """One resource that a request touches."""

    resource: Resource
    actions: frozenset[Action]
    """What the request does with it; a user of RocketMQ 5 needs one of them."""
    permission: Permission | None = None
    """What an account of a plain_acl.yml needs; None: nothing but its signature."""


@frozen
class Around:
    """What a request does not say itself."""

    cluster: str
    """brokerClusterName."""
    topic_at: TopicAt


Finder: TypeAlias = Callable[[RemotingCommand, Around], Iterator[Touch]]
"""Finds touches in a request. A missing field touches nothing: its handler refuses the request.

Raises BadRequestError for a body or an offset that cannot be read.
"""

_PUB: Final = frozenset((Action.PUB,))
_SUB: Final = frozenset((Action.SUB,))


def _topics(
    field: str, *actions: Action, permission: Permission | None = None, split_by: str | None = None
) -> Finder:
    """The topic, or the topics, of a field."""

    def find(request: RemotingCommand, _: Around) -> Iterator[Touch]:
        text = request.ext_fields.get(field)
        if text is not None:
            for name in filter(None, text.split(split_by)) if split_by else (text,):
                yield Touch(Resource.of_topic(name), frozenset(actions), permission)

    return find


def _group(field: str, *actions: Action, permission: Permission | None = None) -> Finder:
    """The group of a field."""

    def find(request: RemotingCommand, _: Around) -> Iterator[Touch]:
        name = request.ext_fields.get(field)
        if name is not None:
            yield Touch(Resource.of_group(name), frozenset(actions), permission)

    return find


def _cluster(action: Action) -> Finder:
    """The cluster of the broker."""

    def find(_: RemotingCommand, around: Around) -> Iterator[Touch]:
        yield Touch(Resource(ResourceKind.CLUSTER, around.cluster), frozenset((action,)))

    return find


def _sent(field: str) -> Finder:
    """The topic of a send: who may receive in a group may send to its retry topic."""

    def find(request: RemotingCommand, _: Around) -> Iterator[Touch]:
        topic = request.ext_fields.get(field)
        if topic is None:
            return
        resource = Resource.of_topic(topic)
        if resource.kind is ResourceKind.GROUP:
            yield Touch(resource, _SUB, Permission.SUB)
        else:
            yield Touch(resource, _PUB, None if topic == TRACE_TOPIC else Permission.PUB)

    return find


def _record(field: str, *actions: Action, permission: Permission) -> Finder:
    """The topic of the message whose offset is in a field."""

    def find(request: RemotingCommand, around: Around) -> Iterator[Touch]:
        if field not in request.ext_fields:
            return
        topic = around.topic_at(HeaderFields(request.ext_fields).number(field, I64))
        if topic is not None:
            yield Touch(Resource.of_topic(topic), frozenset(actions), permission)

    return find


def _heartbeat(request: RemotingCommand, _: Around) -> Iterator[Touch]:
    for consumer in heartbeat_of(request).consumers:
        yield Touch(Resource.of_group(consumer.group), _SUB, Permission.SUB)
        for topic in consumer.subscriptions:
            yield Touch(Resource.of_topic(topic), _SUB, Permission.SUB)


def _locks(request: RemotingCommand, _: Around) -> Iterator[Touch]:
    asked = asked_locks(request)
    yield Touch(Resource.of_group(asked.group), _SUB, Permission.SUB)
    for topic in dict.fromkeys(queue.topic for queue in asked.queues):
        yield Touch(Resource.of_topic(topic), _SUB)


def _popped(request: RemotingCommand, _: Around) -> Iterator[Touch]:
    """Topic and group of popped messages, which may have come from a retry topic of both."""
    topic, group = (request.ext_fields.get(name) for name in ("topic", "consumerGroup"))
    if topic is not None:
        name = topic if group is None else popped_topic(group, topic)
        yield Touch(Resource.of_topic(name), _SUB, Permission.SUB)
    if group is not None:
        yield Touch(Resource.of_group(group), _SUB, Permission.SUB)


def _batch_acked(request: RemotingCommand, _: Around) -> Iterator[Touch]:
    for topic, group in dict.fromkeys((ack.topic, ack.group) for ack in BatchAckRequest.of(request).acks):
        yield Touch(Resource.of_topic(popped_topic(group, topic)), _SUB, Permission.SUB)
        yield Touch(Resource.of_group(group), _SUB, Permission.SUB)


def _changed_group(request: RemotingCommand, _: Around) -> Iterator[Touch]:
    yield Touch(Resource.of_group(asked_group(request).name), frozenset((Action.CREATE,)))


@frozen
class Row:
    """What requests of one code touch."""

    finders: tuple[Finder, ...] = ()
    needs_admin: bool = False
    """Whether rules of a plain_acl.yml give it to admins only."""


def _row(*finders: Finder) -> Row:
    return Row(finders)


def _admin(*finders: Finder) -> Row:
    return Row(finders, needs_admin=True)


_SIGNATURE: Final = Row()
_PULL: Final = _row(
    _topics("topic", Action.SUB, permission=Permission.SUB),
    _group("consumerGroup", Action.SUB, permission=Permission.SUB),
)
_TOPIC_GET: Final = _row(_topics("topic", Action.GET))
_CLUSTER_GET: Final = _row(_cluster(Action.GET))
_USERS_GET: Final = _admin(_cluster(Action.GET))
_USERS_UPDATE: Final = _admin(_cluster(Action.UPDATE))

TABLE: Final[Mapping[int, Row]] = {
    # Messages
    RequestCode.SEND_MESSAGE: _row(_sent("topic")),
    RequestCode.SEND_MESSAGE_V2: _row(_sent("b")),
    RequestCode.SEND_BATCH_MESSAGE: _row(_sent("b")),
    RequestCode.RECALL_MESSAGE: _row(_sent("topic")),
    RequestCode.CONSUMER_SEND_MSG_BACK: _row(
        _record("offset", Action.SUB, permission=Permission.SUB),
        _group("group", Action.SUB, permission=Permission.SUB),
    ),
    RequestCode.END_TRANSACTION: _row(_record("commitLogOffset", Action.PUB, permission=Permission.PUB)),
    RequestCode.PULL_MESSAGE: _PULL,
    RequestCode.LITE_PULL_MESSAGE: _PULL,
    RequestCode.POP_MESSAGE: _PULL,
    RequestCode.PEEK_MESSAGE: _PULL,
    RequestCode.NOTIFICATION: _PULL,
    RequestCode.POLLING_INFO: _PULL,
    RequestCode.ACK_MESSAGE: _row(_popped),
    RequestCode.BATCH_ACK_MESSAGE: _row(_batch_acked),
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: _row(_popped),
    RequestCode.QUERY_MESSAGE: _row(_topics("topic", Action.SUB, Action.GET, permission=Permission.SUB)),
    RequestCode.VIEW_MESSAGE_BY_ID: _row(
        _record("offset", Action.SUB, Action.GET, permission=Permission.SUB)
    ),
    # Consumers
    RequestCode.HEART_BEAT: _row(_heartbeat),
    RequestCode.UNREGISTER_CLIENT: _row(_group("consumerGroup", Action.SUB, permission=Permission.SUB)),
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: _row(
        _group("consumerGroup", Action.SUB, Action.GET, permission=Permission.SUB)
    ),
    RequestCode.CHECK_CLIENT_CONFIG: _SIGNATURE,
    RequestCode.LOCK_BATCH_MQ: _row(_locks),
    RequestCode.UNLOCK_BATCH_MQ: _row(_locks),
    RequestCode.QUERY_CONSUMER_OFFSET: _row(
        _topics("topic", Action.SUB, Action.GET), _group("consumerGroup", Action.SUB, Action.GET)
    ),
    RequestCode.UPDATE_CONSUMER_OFFSET: _row(
        _topics("topic", Action.SUB, Action.UPDATE, permission=Permission.SUB),
        _group("consumerGroup", Action.SUB, Action.UPDATE, permission=Permission.SUB),
    ),
    RequestCode.QUERY_ASSIGNMENT: _SIGNATURE,
    RequestCode.SET_MESSAGE_REQUEST_MODE: _admin(_cluster(Action.UPDATE)),
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: _row(
        _group("group", Action.UPDATE, permission=Permission.SUB),
        _topics("topic", Action.UPDATE, permission=Permission.SUB),
    ),
    # Topics, groups and their statistics
    RequestCode.UPDATE_AND_CREATE_TOPIC: _admin(_topics("topic", Action.CREATE)),
    RequestCode.DELETE_TOPIC_IN_BROKER: _admin(_topics("topic", Action.DELETE)),
    RequestCode.GET_TOPIC_CONFIG: _TOPIC_GET,
    RequestCode.GET_TOPIC_STATS_INFO: _TOPIC_GET,
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: _TOPIC_GET,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: _TOPIC_GET,
    RequestCode.GET_MAX_OFFSET: _TOPIC_GET,
    RequestCode.GET_MIN_OFFSET: _TOPIC_GET,
    RequestCode.GET_EARLIEST_MSG_STORETIME: _TOPIC_GET,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: _SIGNATURE,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: _admin(_changed_group),
    RequestCode.DELETE_SUBSCRIPTIONGROUP: _admin(_group("groupName", Action.DELETE)),
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: _row(_group("group", Action.GET)),
    RequestCode.GET_CONSUMER_CONNECTION_LIST: _row(_group("consumerGroup", Action.GET)),
    RequestCode.GET_CONSUME_STATS: _row(
        _group("consumerGroup", Action.GET),
        _topics("topic", Action.GET),
        _topics("topicList", Action.GET, split_by=";"),
    ),
    # The broker
    RequestCode.GET_PRODUCER_CONNECTION_LIST: _CLUSTER_GET,
    RequestCode.VIEW_BROKER_STATS_DATA: _CLUSTER_GET,
    RequestCode.GET_BROKER_CONSUME_STATS: _CLUSTER_GET,
    RequestCode.UPDATE_BROKER_CONFIG: _admin(_cluster(Action.UPDATE)),
    RequestCode.GET_BROKER_CONFIG: _SIGNATURE,
    RequestCode.GET_BROKER_RUNTIME_INFO: _SIGNATURE,
    RequestCode.GET_BROKER_HA_STATUS: _SIGNATURE,
    RequestCode.GET_BROKER_EPOCH_CACHE: _SIGNATURE,
    RequestCode.EXCHANGE_BROKER_HA_INFO: _row(_cluster(Action.UPDATE)),
    RequestCode.NOTIFY_BROKER_ROLE_CHANGED: _SIGNATURE,
    # Tables for slaves
    RequestCode.GET_ALL_TOPIC_CONFIG: _SIGNATURE,
    RequestCode.GET_ALL_CONSUMER_OFFSET: _SIGNATURE,
    RequestCode.GET_ALL_DELAY_OFFSET: _SIGNATURE,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: _SIGNATURE,
    RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: _SIGNATURE,
    RequestCode.GET_TIMER_METRICS: _SIGNATURE,
    RequestCode.GET_TIMER_CHECK_POINT: _SIGNATURE,
    # Users and access control lists
    RequestCode.AUTH_CREATE_USER: _USERS_UPDATE,
    RequestCode.AUTH_UPDATE_USER: _USERS_UPDATE,
    RequestCode.AUTH_DELETE_USER: _USERS_UPDATE,
    RequestCode.AUTH_GET_USER: _USERS_GET,
    RequestCode.AUTH_LIST_USER: _USERS_GET,
    RequestCode.AUTH_CREATE_ACL: _USERS_UPDATE,
    RequestCode.AUTH_UPDATE_ACL: _USERS_UPDATE,
    RequestCode.AUTH_DELETE_ACL: _USERS_UPDATE,
    RequestCode.AUTH_GET_ACL: _USERS_GET,
    RequestCode.AUTH_LIST_ACL: _USERS_GET,
}
"""By request code, each that a broker serves."""


def touches_of(request: RemotingCommand, around: Around) -> Iterator[Touch]:
    """What a request touches. Raises BadRequestError for a body or an offset that cannot be read."""
    for find in TABLE.get(request.code, _SIGNATURE).finders:
        yield from find(request, around)


def needs_admin(code: int) -> bool:
    """Whether rules of a plain_acl.yml give requests of this code to admins only."""
    return TABLE.get(code, _SIGNATURE).needs_admin
