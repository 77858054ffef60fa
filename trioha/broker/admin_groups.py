"""Administrators' requests for groups and their members: 200, 203, 204, 207 and 352.

See docs/protocol/remoting.md#administration.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Iterable
from typing import Final

import structlog

from trioha.broker.admin_answers import NO_CHANGE_ON_SLAVE, json_answer, refuse_on_slave, when_written
from trioha.broker.clients import ClientRegistry, Member
from trioha.broker.traffic import BrokerTraffic
from trioha.errors import RemoteProtocolError
from trioha.metadata.groups import GROUP_CHARS_MAX, SubscriptionGroup
from trioha.metadata.metadata_store import MetadataStore
from trioha.metadata.table import TableFull
from trioha.remoting.codes import ResponseCode, Version
from trioha.remoting.command import BadRequestError, RemotingCommand, response_to
from trioha.remoting.fastjson import JsonLimits, parse_json
from trioha.remoting.header_fields import HeaderFields
from trioha.remoting.serving import Peer

log = structlog.get_logger(__name__)

BODY_BYTES_MAX: Final = 16 * 1024
"""Of a group's settings: those of 5.5 take 600 bytes."""
_NAME: Final = re.compile(rf"[%|a-zA-Z0-9_-]{{1,{GROUP_CHARS_MAX}}}")
_LIMITS: Final = JsonLimits(containers_max=200, dialect_chars_max=BODY_BYTES_MAX)


class AdminGroups:
    """Handles requests for groups and their members."""

    def __init__(
        self, metadata: MetadataStore, clients: ClientRegistry, traffic: BrokerTraffic, *, is_slave: bool
    ) -> None:
        self._metadata = metadata
        self._clients = clients
        self._traffic = traffic
        self._is_slave = is_slave

    def update(self, request: RemotingCommand, _peer: Peer) -> Awaitable[RemotingCommand]:
        """UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: create or change a group. Raises BadRequestError.

        The answer is given when the group is in its file.
        """
        refuse_on_slave(NO_CHANGE_ON_SLAVE, is_slave=self._is_slave)
        group = asked_group(request)
        try:
            self._metadata.groups.put(group)
        except TableFull as full:
            raise BadRequestError(str(full)) from None
        log.info("consumer group created or changed", group=group.name)
        return when_written(self._metadata.groups, response_to(request, ResponseCode.SUCCESS))

    def delete(self, request: RemotingCommand, _peer: Peer) -> Awaitable[RemotingCommand]:
        """DELETE_SUBSCRIPTIONGROUP: delete a group, and its offsets if the request asks for it.

        Raises BadRequestError.
        """
        refuse_on_slave(NO_CHANGE_ON_SLAVE, is_slave=self._is_slave)
        fields = HeaderFields(request.ext_fields)
        name = fields.text("groupName")
        self._metadata.groups.delete(name)
        # 4.9 calls it removeOffset, 5.x cleanOffset.
        if fields.flag("removeOffset") or fields.flag("cleanOffset"):
            self._metadata.consumer_offsets.delete(group=name)
        self._traffic.group_deleted(name)
        log.info("consumer group deleted", group=name)
        return when_written(self._metadata.groups, response_to(request, ResponseCode.SUCCESS))

    def config(self, request: RemotingCommand, _peer: Peer) -> RemotingCommand:
        """GET_SUBSCRIPTIONGROUP_CONFIG: one group, made for a client of 5.x if it may be.

        Raises BadRequestError.
        """
        name = HeaderFields(request.ext_fields).text("group")
        groups = self._metadata.groups
        try:
            if self._is_slave or request.version < Version.V5_0_0 or not _NAME.fullmatch(name):
                group = groups.find(name)
            else:
                group = groups.find_or_create(name)
        except TableFull as full:
            raise BadRequestError(str(full)) from None
        if group is None:
            raise BadRequestError(
                f"No group in this broker. group: {name[:300]}",
                code=ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
            )
        return json_answer(request, group.to_json())

    def consumer_connections(self, request: RemotingCommand, _peer: Peer) -> RemotingCommand:
        """GET_CONSUMER_CONNECTION_LIST: members and subscriptions of a group. Raises BadRequestError."""
        name = HeaderFields(request.ext_fields).text("consumerGroup")
        group = self._clients.consumers.get(name)
        if group is None:
            raise BadRequestError(
                f"the consumer group[{name[:300]}] not online", code=ResponseCode.CONSUMER_NOT_ONLINE
            )
        return json_answer(
            request,
            {
                "connectionSet": _connections(group.members.values()),
                "consumeFromWhere": group.consume_from_where,
                "consumeType": group.consume_type,
                "messageModel": group.message_model,
                "subscriptionTable": {
                    topic: subscription.to_json() for topic, subscription in group.subscriptions.items()
                },
            },
        )

    def producer_connections(self, request: RemotingCommand, _peer: Peer) -> RemotingCommand:
        """GET_PRODUCER_CONNECTION_LIST: members of a group of producers. Raises BadRequestError."""
        name = HeaderFields(request.ext_fields).text("producerGroup")
        members = self._clients.producers.get(name)
        if members is None:
            raise BadRequestError(f"the producer group[{name[:300]}] not exist")
        return json_answer(request, {"connectionSet": _connections(members.values())})


def _connections(members: Iterable[Member]) -> list[dict[str, object]]:
    return [
        {
            "clientAddr": str(member.address),
            "clientId": member.client_id,
            "language": member.language.name,
            "version": member.version,
        }
        for member in members
    ]


def asked_group(request: RemotingCommand) -> SubscriptionGroup:
    """The group in a request's body. Raises BadRequestError."""
    if len(request.body) > BODY_BYTES_MAX:
        raise BadRequestError(f"a body of {len(request.body)} bytes; at most {BODY_BYTES_MAX} are accepted")
    try:
        group = SubscriptionGroup.of(parse_json(request.body, limits=_LIMITS))
    except (RemoteProtocolError, ValueError) as error:
        raise BadRequestError(f"the body is not a consumer group: {error}") from None
    if not _NAME.fullmatch(group.name):
        raise BadRequestError(
            f"group name {group.name[:100]!r} is empty, longer than {GROUP_CHARS_MAX} characters, or has "
            "others than ^[%|a-zA-Z0-9_-]+$"
        )
    return group
