"""Whether groups pull or pop, and which queues a member consumes, as the broker assigns them.

See docs/protocol/pop.md#assignments.

Consumers of 5.x with `clientRebalance=false` ask a broker of their topic for their queues
(QUERY_ASSIGNMENT, 400), of all brokers that have it: the broker asks a name server for the topic's route.
SET_MESSAGE_REQUEST_MODE (401) makes a group pop a topic. A member that pops has a broker's queues as one, the
queue id -1; or, where members share their queues with a number of others, its own and theirs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

import structlog
from attrs import frozen

from trioha.broker.admin_answers import NO_CHANGE_ON_SLAVE, json_answer, refuse_on_slave, when_written
from trioha.broker.clients import ClientRegistry
from trioha.broker.retries import Retries
from trioha.errors import PeerError, RemoteProtocolError
from trioha.metadata.documents import RequestModes
from trioha.metadata.metadata_store import MetadataStore
from trioha.metadata.table import TableFull
from trioha.metadata.topics import TopicTable
from trioha.numbers import I32, parse_int
from trioha.remoting.allocation import Allocation, allocate, allocate_in_circle, shared_allocation
from trioha.remoting.codes import RequestCode, ResponseCode
from trioha.remoting.command import BadRequestError, RemotingCommand, response_to
from trioha.remoting.fastjson import JsonLimits, parse_json
from trioha.remoting.route import MessageQueue
from trioha.remoting.serving import Handler, Peer
from trioha.store.topics import RETRY_TOPIC_PREFIX

log = structlog.get_logger(__name__)

PULL: Final = "PULL"
POP: Final = "POP"
ALL_QUEUES: Final = -1
BROADCASTING: Final = "BROADCASTING"
ALLOCATIONS: Final[Mapping[str, Allocation]] = {"AVG": allocate, "AVG_BY_CIRCLE": allocate_in_circle}
"""By strategyName."""
BODY_BYTES_MAX: Final = 16 * 1024
_LIMITS: Final = JsonLimits(containers_max=32, dialect_chars_max=BODY_BYTES_MAX)

Route = Callable[[str], Awaitable[Sequence[MessageQueue]]]
"""The readable queues of a topic at all brokers. Raises PeerError or RemoteProtocolError."""


@frozen
class Mode:
    """How a group receives a topic."""

    name: str = PULL
    sharers: int = -1
    """popShareQueueNum: with how many members one shares its queues; 0 or less with all."""


def mode_of(modes: RequestModes, topic: str, group: str) -> Mode:
    """How a group receives a topic: by pulls, if nothing was set, and from retry topics always."""
    found = None if topic.startswith(RETRY_TOPIC_PREFIX) else modes.find(topic, group)
    if found is None or found.get("mode") != POP:
        return Mode()
    try:
        return Mode(POP, parse_int(found.get("popShareQueueNum", -1), I32))
    except ValueError:
        return Mode(POP)


def own_queues(topics: TopicTable, broker_name: str, topic: str) -> Sequence[MessageQueue]:
    """The readable queues of a topic at this broker alone: for one without name servers."""
    found = topics.find(topic)
    if found is None or not found.is_readable:
        return ()
    return [MessageQueue(topic, broker_name, queue_id) for queue_id in range(found.read_queue_nums)]


class RequestModeProcessor:
    """Handles requests for modes and assignments."""

    def __init__(
        self,
        metadata: MetadataStore,
        clients: ClientRegistry,
        retries: Retries,
        *,
        route: Route,
        groups_max: int,
        is_slave: bool,
    ) -> None:
        """`groups_max`: trioha.groupsMax, also of modes."""
        self._metadata = metadata
        self._clients = clients
        self._retries = retries
        self._route = route
        self._groups_max = groups_max
        self._is_slave = is_slave

    @property
    def handlers(self) -> Mapping[int, Handler]:
        """By request code."""
        return {
            RequestCode.QUERY_ASSIGNMENT: self.assignment,
            RequestCode.SET_MESSAGE_REQUEST_MODE: self.set_mode,
        }

    def set_mode(self, request: RemotingCommand, _peer: Peer) -> Awaitable[RemotingCommand]:
        """SET_MESSAGE_REQUEST_MODE: the answer when the mode is in its file. Raises BadRequestError."""
        refuse_on_slave(NO_CHANGE_ON_SLAVE, is_slave=self._is_slave)
        body = _Body(request)
        topic, group = body.text("topic"), body.text("consumerGroup")
        name, sharers = body.text("mode"), body.number("popShareQueueNum", 0)
        if name not in {PULL, POP}:
            raise BadRequestError(f"mode {name[:100]!r} is neither PULL nor POP")
        if topic.startswith(RETRY_TOPIC_PREFIX):
            raise BadRequestError("retry topic is not allowed to set mode", code=ResponseCode.NO_PERMISSION)
        if self._metadata.topics.find(topic) is None:
            raise BadRequestError(f"topic[{topic[:300]}] not exist", code=ResponseCode.TOPIC_NOT_EXIST)
        self._retries.group(group)
        mode = {"consumerGroup": group, "mode": name, "popShareQueueNum": sharers, "topic": topic}
        modes = self._metadata.request_modes
        try:
            modes.put(topic, group, mode, modes_max=self._groups_max)
        except TableFull as full:
            raise BadRequestError(str(full)) from None
        log.info("request mode of a consumer group set", group=group, topic=topic, mode=name)
        return when_written(modes, response_to(request, ResponseCode.SUCCESS))

    async def assignment(self, request: RemotingCommand, _peer: Peer) -> RemotingCommand:
        """QUERY_ASSIGNMENT: the queues of a member; without any, it keeps those that it has.

        Raises BadRequestError.
        """
        body = _Body(request)
        topic, group, client_id = body.text("topic"), body.text("consumerGroup"), body.text("clientId")
        strategy, model = body.text("strategyName", ""), body.text("messageModel", "")
        try:
            queues = await self._route(topic)
        except (PeerError, RemoteProtocolError) as error:
            log.warning("no assignment of queues, as there is no route", topic=topic, reason=str(error))
            queues = ()
        mode = mode_of(self._metadata.request_modes, topic, group)
        given = self._assigned(
            queues, group, client_id, mode, strategy, is_broadcasting=model == BROADCASTING
        )
        if given is None:
            return json_answer(request, {})
        return json_answer(
            request,
            {
                "messageQueueAssignments": [
                    {
                        "messageQueue": {
                            "brokerName": queue.broker_name, "queueId": queue.queue_id, "topic": queue.topic,
                        },
                        "mode": mode.name,
                    }
                    for queue in given
                ]
            },
        )  # fmt: skip

    def _assigned(
        self,
        queues: Sequence[MessageQueue],
        group: str,
        client_id: str,
        mode: Mode,
        strategy: str,
        *,
        is_broadcasting: bool,
    ) -> Sequence[MessageQueue] | None:
        """The queues of a member; None if nothing can be said."""
        if not queues:
            return None
        if is_broadcasting:
            return queues
        consumers, allocation = self._clients.consumers.get(group), ALLOCATIONS.get(strategy)
        if consumers is None or allocation is None:
            return None
        members = consumers.client_ids
        if mode.name == POP and not 0 < mode.sharers < len(members) - 1:
            return [
                MessageQueue(queues[0].topic, name, ALL_QUEUES)
                for name in dict.fromkeys(queue.broker_name for queue in queues)
            ]
        if client_id not in members:
            return ()
        if mode.name == POP:
            return shared_allocation(
                queues, members, member=client_id, allocation=allocation, sharers=mode.sharers
            )
        return allocation(queues, members, member=client_id)


class _Body:
    """The JSON object in a request's body. Its methods raise BadRequestError for one of another shape."""

    def __init__(self, request: RemotingCommand) -> None:
        if len(request.body) > BODY_BYTES_MAX:
            raise BadRequestError(
                f"a body of {len(request.body)} bytes; at most {BODY_BYTES_MAX} are accepted"
            )
        try:
            members = parse_json(request.body, limits=_LIMITS)
        except RemoteProtocolError as error:
            raise BadRequestError(f"the body is not JSON: {error}") from None
        if not isinstance(members, dict):
            raise BadRequestError("the body is not an object")
        self._members = members

    def text(self, name: str, default: str | None = None) -> str:
        value = self._members.get(name)
        if value is None and default is not None:
            return default
        if not isinstance(value, str):
            raise BadRequestError(f"{name} is not a text")
        return value

    def number(self, name: str, default: int) -> int:
        try:
            return parse_int(self._members.get(name, default), I32)
        except ValueError as error:
            raise BadRequestError(f"{name}: {error}") from None
