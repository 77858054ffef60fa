"""Topics and consumer groups of a cluster, as administrators look at them and change them.

See docs/protocol/remoting.md#administration.

A cluster's topics and groups are those of its masters: each is asked, or told, one after the other. Name
servers learn of a change with the next registration of the broker, which follows at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeVar

from attrs import evolve, frozen

from trioha.client.answers import check, number_field, object_body
from trioha.client.cluster import Cluster
from trioha.client.pulls import queue_fields
from trioha.client.routes import TopicNotFoundError
from trioha.errors import PeerError
from trioha.metadata.groups import SYSTEM_GROUP_PREFIX, SYSTEM_GROUPS, SubscriptionGroup
from trioha.metadata.topics import DEFAULT_TOPIC, TopicConfig
from trioha.numbers import I64, NATURAL64, parse_int
from trioha.remoting.codes import RequestCode, ResponseCode, Version
from trioha.remoting.command import RemotingCommand, request
from trioha.remoting.route import MASTER_ID, MessageQueue

REQUEST_TIMEOUT_S: Final = 10.0
"""A broker may write its tables before it answers."""
RESET_TO_END: Final = -1
"""As a time of `Administration.reset`: the end of each queue."""

Entry = TypeVar("Entry", TopicConfig, SubscriptionGroup)


@frozen(order=True)
class Master:
    """A broker that is asked."""

    broker_name: str
    address: str


@frozen
class BrokerTopic:
    """A topic of one broker."""

    broker_name: str
    topic: TopicConfig
    is_system: bool
    """Whether every broker has it, or a group's retries or dead letters make it."""


@frozen
class QueueRange:
    """The messages of a queue."""

    queue: MessageQueue
    min_offset: int
    max_offset: int
    """The offset of the next message."""
    last_stored_ms: int
    """When its last message was stored, ms since 1970; 0 without one."""


@frozen
class GroupSummary:
    """A consumer group, over all masters."""

    group: str
    members: int
    """Connected clients; one that is connected to several brokers counts once."""
    topics: tuple[str, ...]
    """In which it has offsets, without its retry topic."""
    lag: int
    """Messages of these topics and of its retry topic that are not committed."""
    is_system: bool


@frozen
class GroupQueue:
    """How far a group is in one queue."""

    queue: MessageQueue
    committed_offset: int
    max_offset: int
    last_consumed_ms: int
    """When the last message before its offset was stored, ms since 1970; 0 if that is not known."""

    @property
    def lag(self) -> int:
        """Messages that are not committed."""
        return max(0, self.max_offset - self.committed_offset)


class Administration:
    """An administrator's view of a cluster (`open_cluster`). Each method raises PeerError for a broker or
    name server that does not answer or refuses."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def masters(self) -> tuple[Master, ...]:
        """The masters, by broker name; at least one."""
        groups = await self._cluster.routes.broker_groups()
        found = sorted(
            Master(group.broker_name, group.addresses[MASTER_ID])
            for group in groups
            if MASTER_ID in group.addresses
        )
        if not found:
            raise PeerError("no master is registered", address=self._cluster.routes.source)
        return tuple(found)

    # -- topics ----------------------------------------------------------------------------------------

    async def topics(self) -> tuple[BrokerTopic, ...]:
        """The topics of all masters, by name and broker."""
        found = []
        for master in await self.masters():
            entries = await self._table(
                master, RequestCode.GET_ALL_TOPIC_CONFIG, "topicConfigTable", TopicConfig
            )
            system = await self._system_topics(master)
            found += [
                BrokerTopic(master.broker_name, topic, topic.name in system or topic.name.startswith("%"))
                for topic in entries
            ]
        return tuple(sorted(found, key=lambda found: (found.topic.name, found.broker_name)))

    async def put_topic(self, topic: TopicConfig) -> tuple[Master, ...]:
        """Create a topic at each master, or change it; those masters, each of which has it in its file."""
        fields = {
            "topic": topic.name,
            "defaultTopic": DEFAULT_TOPIC,
            "readQueueNums": str(topic.read_queue_nums),
            "writeQueueNums": str(topic.write_queue_nums),
            "perm": str(topic.perm),
            "topicFilterType": topic.filter_type,
            "topicSysFlag": str(topic.sys_flag),
            "order": "true" if topic.order else "false",
        }
        masters = await self.masters()
        for master in masters:
            await self._ask(
                master, request(RequestCode.UPDATE_AND_CREATE_TOPIC, ext_fields=fields), f"topic {topic.name}"
            )
        return masters

    async def delete_topic(self, name: str) -> tuple[Master, ...]:
        """Delete a topic with its queues and offsets, at each master that has it and at the name servers.

        Returns these masters. Raises TopicNotFoundError if none has it.
        """
        having = {found.broker_name for found in await self.topics() if found.topic.name == name}
        if not having:
            raise TopicNotFoundError(
                f"there is no topic {name}",
                address=self._cluster.routes.source,
                code=ResponseCode.TOPIC_NOT_EXIST,
            )
        masters = tuple(master for master in await self.masters() if master.broker_name in having)
        for master in masters:
            asked = request(RequestCode.DELETE_TOPIC_IN_BROKER, ext_fields={"topic": name})
            await self._ask(master, asked, f"the deletion of topic {name}")
        await self._cluster.routes.forget(name)
        return masters

    async def topic_queues(self, name: str) -> tuple[QueueRange, ...]:
        """The queues of a topic. Raises TopicNotFoundError."""
        route = await self._cluster.routes.fetch(name)
        found = []
        for broker_name in sorted(route.brokers):
            address = route.pull_address(broker_name)
            if address is None:
                continue
            asked = request(RequestCode.GET_TOPIC_STATS_INFO, ext_fields={"topic": name})
            answer = await self._ask(Master(broker_name, address), asked, f"topic {name}")
            for queue, fields in _by_queue(object_body(answer, address), address):
                offsets = _numbers(fields, ("minOffset", "maxOffset", "lastUpdateTimestamp"), address)
                found.append(QueueRange(queue, *offsets))
        return tuple(sorted(found, key=lambda found: found.queue))

    # -- groups ----------------------------------------------------------------------------------------

    async def groups(self) -> tuple[GroupSummary, ...]:
        """The groups of all masters, by name."""
        names: set[str] = set()
        queues: dict[str, list[GroupQueue]] = {}
        masters = await self.masters()
        for master in masters:
            code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
            table = await self._table(master, code, "subscriptionGroupTable", SubscriptionGroup)
            names |= {group.name for group in table}
            answer = await self._ask(
                master,
                request(RequestCode.GET_BROKER_CONSUME_STATS, ext_fields={"isOrder": "false"}),
                "the offsets of the groups",
            )
            for group, found in _stats_of_groups(object_body(answer, master.address), master.address):
                queues.setdefault(group, []).extend(found)
        found_groups = []
        for name in sorted(names | queues.keys()):
            of_group = queues.get(name, [])
            found_groups.append(
                GroupSummary(
                    name,
                    len(await self._members(masters, name)),
                    tuple(
                        sorted({one.queue.topic for one in of_group if not one.queue.topic.startswith("%")})
                    ),
                    sum(one.lag for one in of_group),
                    name in SYSTEM_GROUPS or name.startswith(SYSTEM_GROUP_PREFIX),
                )
            )
        return tuple(found_groups)

    async def group_queues(self, group: str) -> tuple[GroupQueue, ...]:
        """How far a group is in each queue in which it has offsets, its retry topic's among them."""
        found: list[GroupQueue] = []
        for master in await self.masters():
            asked = request(RequestCode.GET_CONSUME_STATS, ext_fields={"consumerGroup": group})
            answer = await self._ask(master, asked, f"the offsets of {group}")
            found += _group_queues(object_body(answer, master.address), master.address)
        return tuple(sorted(found, key=lambda found: found.queue))

    async def reset(self, group: str, topic: str, *, timestamp_ms: int) -> Mapping[MessageQueue, int]:
        """Let a group continue at the messages that were stored from a time on (ms since 1970; 0: at the
        first ones), or at the end (`RESET_TO_END`); the new offset of each queue.

        Connected members continue there at once. Without any the offsets are committed: by brokers of 5.x
        and trioha themselves, for others by this client. Raises TopicNotFoundError.
        """
        route = await self._cluster.routes.fetch(topic)
        offsets: dict[MessageQueue, int] = {}
        for broker_name in sorted(route.brokers):
            address = route.master(broker_name)
            if address is None:
                raise PeerError(f"{broker_name} has no master", address=self._cluster.routes.source)
            asked = request(
                RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
                ext_fields={
                    "topic": topic, "group": group, "timestamp": str(timestamp_ms), "isForce": "true",
                    "queueId": "-1",
                },
            )  # fmt: skip
            # What is done without members depends on the version of who asks.
            answer = await self._request(address, evolve(asked, version=int(Version.V5_3_3)))
            if answer.code == ResponseCode.CONSUMER_NOT_ONLINE:
                queues = [queue for queue in route.read_queues(topic) if queue.broker_name == broker_name]
                for queue in queues:
                    offsets[queue] = await self._commit_at_time(address, group, queue, timestamp_ms)
                continue
            check(answer, address, f"the reset of {group} in {topic}")
            for queue, offset in _by_queue(object_body(answer, address), address):
                offsets[queue] = _number(offset, "offset", address)
        return dict(sorted(offsets.items()))

    async def _commit_at_time(self, address: str, group: str, queue: MessageQueue, timestamp_ms: int) -> int:
        if timestamp_ms == RESET_TO_END:
            asked = request(RequestCode.GET_MAX_OFFSET, ext_fields=queue_fields(queue))
        else:
            fields = {**queue_fields(queue), "timestamp": str(timestamp_ms)}
            asked = request(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, ext_fields=fields)
        answer = await self._request(address, asked)
        check(answer, address, f"an offset of {queue}")
        offset = number_field(answer, "offset", address)
        fields = {**queue_fields(queue), "consumerGroup": group, "commitOffset": str(offset)}
        answer = await self._request(address, request(RequestCode.UPDATE_CONSUMER_OFFSET, ext_fields=fields))
        check(answer, address, f"the commit of {queue}")
        return offset

    async def _members(self, masters: Sequence[Master], group: str) -> set[str]:
        """Client ids of a group's connected members."""
        members: set[str] = set()
        asked = request(RequestCode.GET_CONSUMER_CONNECTION_LIST, ext_fields={"consumerGroup": group})
        for master in masters:
            answer = await self._request(master.address, asked)
            if answer.code == ResponseCode.CONSUMER_NOT_ONLINE:
                continue
            check(answer, master.address, f"the members of {group}")
            connections = object_body(answer, master.address).get("connectionSet")
            if not isinstance(connections, list):
                raise PeerError("an answer without a usable connectionSet", address=master.address)
            members |= {str(one.get("clientId")) for one in connections if isinstance(one, dict)}
        return members

    # -- requests --------------------------------------------------------------------------------------

    async def _request(self, address: str, asked: RemotingCommand) -> RemotingCommand:
        return await self._cluster.request(address, asked, timeout_s=REQUEST_TIMEOUT_S)

    async def _ask(self, master: Master, asked: RemotingCommand, what: str) -> RemotingCommand:
        answer = await self._request(master.address, asked)
        check(answer, master.address, what)
        return answer

    async def _table(
        self, master: Master, code: RequestCode, member: str, kind: type[Entry]
    ) -> tuple[Entry, ...]:
        answer = await self._ask(master, request(code), member)
        table = object_body(answer, master.address).get(member)
        if not isinstance(table, dict):
            raise PeerError(f"an answer without a usable {member}", address=master.address)
        try:
            return tuple(kind.of(value, name=str(name)) for name, value in table.items())
        except ValueError as error:
            raise PeerError(f"an entry of {member}: {error}", address=master.address) from None

    async def _system_topics(self, master: Master) -> frozenset[str]:
        asked = request(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
        answer = await self._ask(master, asked, "the list of system topics")
        names = object_body(answer, master.address).get("topicList")
        return frozenset(map(str, names)) if isinstance(names, list) else frozenset()


def _by_queue(body: Mapping[object, object], address: str) -> list[tuple[MessageQueue, object]]:
    """The entries of offsetTable. Raises PeerError."""
    table = body.get("offsetTable")
    if not isinstance(table, dict):
        raise PeerError("an answer without a usable offsetTable", address=address)
    try:
        return [(MessageQueue.of_key(key), value) for key, value in table.items()]
    except ValueError as error:
        raise PeerError(f"offsetTable: {error}", address=address) from None


def _group_queues(body: Mapping[object, object], address: str) -> list[GroupQueue]:
    found = []
    for queue, fields in _by_queue(body, address):
        end, committed, last_ms = _numbers(
            fields, ("brokerOffset", "consumerOffset", "lastTimestamp"), address
        )
        found.append(GroupQueue(queue, committed, end, last_ms))
    return found


def _stats_of_groups(body: Mapping[object, object], address: str) -> list[tuple[str, list[GroupQueue]]]:
    """The entries of consumeStatsList, one object for each group. Raises PeerError."""
    entries = body.get("consumeStatsList")
    if not isinstance(entries, list):
        raise PeerError("an answer without a usable consumeStatsList", address=address)
    found = []
    for entry in entries:
        if not isinstance(entry, dict):
            raise PeerError("consumeStatsList: an entry is not an object", address=address)
        for group, stats in entry.items():
            if not isinstance(stats, list) or not all(isinstance(one, dict) for one in stats):
                raise PeerError("consumeStatsList: not a list of offsets", address=address)
            found.append((str(group), [queue for one in stats for queue in _group_queues(one, address)]))
    return found


def _numbers(fields: object, names: Sequence[str], address: str) -> list[int]:
    if not isinstance(fields, dict):
        raise PeerError("offsetTable: an entry is not an object", address=address)
    return [_number(fields.get(name), name, address) for name in names]


def _number(value: object, name: str, address: str) -> int:
    try:
        return parse_int(value, I64 if name == "consumerOffset" else NATURAL64)
    except ValueError as error:
        raise PeerError(f"an answer without a usable {name}: {error}", address=address) from None
