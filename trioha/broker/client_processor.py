"""HEART_BEAT, UNREGISTER_CLIENT, GET_CONSUMER_LIST_BY_GROUP, CHECK_CLIENT_CONFIG.

See docs/protocol/remoting.md#clients-and-groups.
"""

from __future__ import annotations

import json
from typing import Final

from trioha.broker.clients import ClientRegistry, ConsumerData, Heartbeat, TooManyClients
from trioha.errors import RemoteProtocolError
from trioha.metadata.groups import GROUP_CHARS_MAX
from trioha.metadata.metadata_store import MetadataStore
from trioha.metadata.table import TableFull
from trioha.metadata.topics import retry_topic
from trioha.remoting.codes import ResponseCode
from trioha.remoting.command import BadRequestError, RemotingCommand, response_to
from trioha.remoting.fastjson import JsonLimits, parse_json
from trioha.remoting.header_fields import HeaderFields
from trioha.remoting.serving import Peer
from trioha.remoting.subscriptions import Subscription

BODY_BYTES_MAX: Final = 1024 * 1024
"""Of a heartbeat: a client with a thousand topics stays far below."""
GROUPS_MAX: Final = 1024
"""Groups of one heartbeat."""
CLIENT_ID_CHARS_MAX: Final = 512
_LIMITS: Final = JsonLimits(containers_max=20_000, dialect_chars_max=64 * 1024)


class ClientProcessor:
    """Handles heartbeats, and requests for the members of a group."""

    def __init__(self, clients: ClientRegistry, metadata: MetadataStore, *, is_slave: bool) -> None:
        self._clients = clients
        self._metadata = metadata
        self._is_slave = is_slave

    def heart_beat(self, request: RemotingCommand, peer: Peer) -> RemotingCommand:
        """HEART_BEAT: make the client a member of its groups. Raises BadRequestError."""
        heartbeat = heartbeat_of(request)
        try:
            for data in heartbeat.consumers:
                self._make_group(data.group)
            self._clients.heartbeat(
                heartbeat,
                connection=peer.connection,
                address=peer.address,
                language=request.language,
                version=request.version,
            )
        except TooManyClients as refused:
            raise BadRequestError(str(refused), code=ResponseCode.SYSTEM_BUSY) from None
        except TableFull as full:
            raise BadRequestError(str(full), code=ResponseCode.SYSTEM_ERROR) from None
        return response_to(request, ResponseCode.SUCCESS)

    def _make_group(self, name: str) -> None:
        """A group of consumers has an entry and a retry topic; on a slave its master makes them."""
        if self._is_slave:
            return
        group = self._metadata.groups.find_or_create(name)
        if group is None or group.retry_queue_nums < 1:
            return
        try:
            self._metadata.topics.create_retry_topic(retry_topic(name), queue_nums=group.retry_queue_nums)
        except ValueError as error:
            raise BadRequestError(str(error)) from None

    def unregister(self, request: RemotingCommand, peer: Peer) -> RemotingCommand:
        """UNREGISTER_CLIENT: remove the client from its groups. Raises BadRequestError."""
        fields = HeaderFields(request.ext_fields)
        fields.text("clientID")
        self._clients.unregister(
            peer.connection,
            producer_group=fields.optional("producerGroup"),
            consumer_group=fields.optional("consumerGroup"),
        )
        return response_to(request, ResponseCode.SUCCESS)

    def consumer_list(self, request: RemotingCommand, _peer: Peer) -> RemotingCommand:
        """Ids of a group's members. Raises BadRequestError."""
        name = HeaderFields(request.ext_fields).text("consumerGroup")
        group = self._clients.consumers.get(name)
        if group is None:
            raise BadRequestError(f"no consumer for this group, {name[:300]}")
        body = json.dumps({"consumerIdList": group.client_ids}, separators=(",", ":"), ensure_ascii=False)
        return response_to(request, ResponseCode.SUCCESS, body=body.encode("utf-8", "replace"))

    def check_client_config(self, request: RemotingCommand, _peer: Peer) -> RemotingCommand:
        """Whether the broker can filter by an expression: of tags only. Raises BadRequestError."""
        body = _parsed(request)
        value = body.get("subscriptionData")
        if value is None:
            return response_to(request, ResponseCode.SUCCESS)
        subscription = _subscription(value)
        if not subscription.is_tag_type:
            raise BadRequestError(
                "The broker does not support consumer to filter message by "
                f"{subscription.expression_type[:100]}"
            )
        return response_to(request, ResponseCode.SUCCESS)


def heartbeat_of(request: RemotingCommand) -> Heartbeat:
    """The body of a HEART_BEAT. Raises BadRequestError."""
    body = _parsed(request)
    client_id = body.get("clientID")
    if not isinstance(client_id, str) or not 1 <= len(client_id) <= CLIENT_ID_CHARS_MAX:
        raise BadRequestError("a heartbeat without clientID, or with a long one")
    producers = [_name(data) for data in _objects(body, "producerDataSet")]
    consumers = [_consumer(data) for data in _objects(body, "consumerDataSet")]
    return Heartbeat(client_id, tuple(producers), tuple(consumers))


def _consumer(data: dict[str, object]) -> ConsumerData:
    subscriptions = [_subscription(value) for value in _objects(data, "subscriptionDataSet")]
    return ConsumerData(
        _name(data),
        _enum(data, "consumeType"),
        _enum(data, "messageModel"),
        _enum(data, "consumeFromWhere"),
        {subscription.topic: subscription for subscription in subscriptions},
    )


def _subscription(value: object) -> Subscription:
    try:
        return Subscription.of_json(value)
    except ValueError as error:
        raise BadRequestError(str(error)) from None


def _name(data: dict[str, object]) -> str:
    name = data.get("groupName")
    if not isinstance(name, str) or not 1 <= len(name) <= GROUP_CHARS_MAX:
        raise BadRequestError("a heartbeat has a group without a name, or with a long one")
    return name


def _enum(data: dict[str, object], name: str) -> str:
    value = data.get(name)
    return value[:64] if isinstance(value, str) else ""


def _objects(data: dict[str, object], name: str) -> list[dict[str, object]]:
    """A member that is a list of objects; C++ clients leave out what is empty."""
    value = data.get(name)
    if value is None:
        return []
    if (
        not isinstance(value, list)
        or len(value) > GROUPS_MAX
        or not all(isinstance(item, dict) for item in value)
    ):
        raise BadRequestError(f"{name} is not a list of at most {GROUPS_MAX} objects")
    return value


def _parsed(request: RemotingCommand) -> dict[str, object]:
    """The body as a JSON object. Raises BadRequestError."""
    if len(request.body) > BODY_BYTES_MAX:
        raise BadRequestError(f"a body of {len(request.body)} bytes; at most {BODY_BYTES_MAX} are accepted")
    try:
        value = parse_json(request.body, limits=_LIMITS)
    except RemoteProtocolError as error:
        raise BadRequestError(str(error)) from None
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise BadRequestError("the body is not a JSON object")
    return value
