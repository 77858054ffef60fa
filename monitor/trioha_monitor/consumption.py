"""Topics, groups and their lag: what brokers answer administrators, and the rows that the screen shows.
Pure: no clock, no I/O.

Theory of operation. Three requests that brokers of RocketMQ and trioha answer alike make one
`ConsumptionSample` of a node:

- GET_BROKER_CONSUME_STATS (317) has the offsets of all groups in all queues, and how many messages a group
  gets from this broker;
- GET_CONSUMER_CONNECTION_LIST (203) has the connected members of a group: of some groups in each round;
- GET_ALL_TOPIC_CONFIG (21) has the topics; a broker that does not answer it shows those of its groups.

Master and slave of one name answer for themselves. `Consumption.rows` makes one row of their answers for each
group and topic: lag and members are the master's, or a slave's while the master is down, and the brokers that
the group reads from are those that give it messages. Everything is bounded: rows that are dropped are
counted, those with the largest lag stay.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final
from zlib import crc32

from attrs import Factory, define, field, frozen

from trioha.errors import RemoteProtocolError
from trioha.numbers import I64, NATURAL32, parse_int
from trioha.outside_text import clean
from trioha.remoting.fastjson import JsonLimits, parse_json
from trioha_monitor.view import ConsumptionView, GroupView, Health, NodeView

ANSWER_LIMITS: Final = JsonLimits(containers_max=300_000, dialect_chars_max=8 * 1024 * 1024)
"""Of one answer; queues are keys in fastjson's dialect, and parsed in a thread."""
GROUPS_MAX: Final = 10_000
"""Pairs of group and topic that are read from one answer."""
TOPICS_MAX: Final = 10_000
"""Topics that are read from one answer."""
ROWS_MAX: Final = 1000
"""Rows of one view."""
CLIENTS_MAX: Final = 64
"""Members of a group whose names are kept; others are counted."""
OLD_S: Final = 15.0
"""Figures of a node that are older are not preferred to another node's."""
SYSTEM_TOPICS: Final = frozenset(
    (
        "TBW102", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC", "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT", "BenchmarkTest",
        "RMQ_SYS_TRACE_TOPIC",
    )
)  # fmt: skip
"""Topics of every broker, without a row of their own."""
_SYSTEM_PREFIXES: Final = ("rmq_sys_", "%SYS%")


@frozen
class GroupProgress:
    """A group in one topic, as one broker answers it."""

    group: str
    topic: str
    queues: int
    lag: int
    """Messages that are stored and not committed."""
    read_per_s: float
    """Messages that this broker gives the group."""
    oldest_ms: int | None
    """When the last committed message was stored, in the queue with a lag where that is longest ago."""


@frozen
class Members:
    """The connected consumers of a group."""

    clients: tuple[str, ...]
    """`client id (address)`, at most `CLIENTS_MAX`."""
    count: int
    model: str
    """CLUSTERING or BROADCASTING."""


@frozen
class ConsumptionSample:
    """One round of requests to a node: what it has answered, or why it has not."""

    address: str
    at_ms: int
    groups: tuple[GroupProgress, ...] = ()
    topics: Mapping[str, int] | None = None
    """Number of queues by topic; None if they were not asked for, or not answered."""
    members: Mapping[str, Members | None] = Factory(dict)
    """Of the groups that were asked for; None for a group without connected consumers."""
    more: int = 0
    """Pairs of group and topic that were not read."""
    fault: str = ""


def parse_consume_stats(body: bytes | memoryview) -> tuple[tuple[GroupProgress, ...], int]:
    """Groups of an answer to GET_BROKER_CONSUME_STATS, and how many were not read. Takes long: in a thread.

    Raises RemoteProtocolError.
    """
    whole = _object(parse_json(body, limits=ANSWER_LIMITS), "consume stats")
    found: list[GroupProgress] = []
    more = 0
    for by_group in _list(whole.get("consumeStatsList"), "consumeStatsList"):
        for name, all_stats in _object(by_group, "consumeStatsList").items():
            for stats in _list(all_stats, "consume stats of a group"):
                for progress in _progress(clean(str(name)), _object(stats, "consume stats of a group")):
                    if len(found) < GROUPS_MAX:
                        found.append(progress)
                    else:
                        more += 1
    return tuple(found), more


def _progress(group: str, stats: Mapping[object, object]) -> Iterator[GroupProgress]:
    """The group's progress in each topic of one ConsumeStats: brokers send one topic in each."""
    by_topic: dict[str, list[tuple[int, int]]] = {}
    for queue, value in _object(stats.get("offsetTable") or {}, "offsetTable").items():
        offsets = _object(value, "offsets of a queue")
        lag = _number(offsets, "brokerOffset") - _number(offsets, "consumerOffset")
        by_topic.setdefault(_topic_of(queue), []).append((max(0, lag), _number(offsets, "lastTimestamp")))
    per_s = stats.get("consumeTps")
    read_per_s = float(per_s) if isinstance(per_s, int | float) and 0 <= per_s < 1e12 else 0.0
    for topic, queues in by_topic.items():
        waiting = [last_ms for lag, last_ms in queues if lag and last_ms > 0]
        yield GroupProgress(
            group,
            topic,
            len(queues),
            min(sum(lag for lag, _ in queues), I64.high),
            read_per_s,
            min(waiting, default=None),
        )


def parse_members(body: bytes | memoryview) -> Members:
    """The members in an answer to GET_CONSUMER_CONNECTION_LIST. Raises RemoteProtocolError."""
    whole = _object(parse_json(body, limits=ANSWER_LIMITS), "consumer connections")
    connections = _list(whole.get("connectionSet"), "connectionSet")
    clients = []
    for connection in connections[:CLIENTS_MAX]:
        fields = _object(connection, "a connection")
        clients.append(f"{_text(fields, 'clientId')} ({_text(fields, 'clientAddr')})")
    return Members(tuple(sorted(clients)), len(connections), _text(whole, "messageModel"))


def parse_topics(body: bytes | memoryview) -> dict[str, int]:
    """Number of queues by topic, of an answer to GET_ALL_TOPIC_CONFIG. Raises RemoteProtocolError."""
    whole = _object(parse_json(body, limits=ANSWER_LIMITS), "topics")
    topics: dict[str, int] = {}
    for name, value in _object(whole.get("topicConfigTable") or {}, "topicConfigTable").items():
        if len(topics) >= TOPICS_MAX:
            break
        try:
            topics[clean(str(name))] = parse_int(_object(value, "a topic").get("readQueueNums"), NATURAL32)
        except ValueError as error:
            raise RemoteProtocolError(f"a topic with an impossible readQueueNums: {error}") from None
    return topics


def _topic_of(queue: object) -> str:
    fields = dict(queue) if isinstance(queue, tuple) else queue
    if isinstance(fields, str):
        # A key in quotes: fastjson reads it as well.
        fields = parse_json(fields, limits=ANSWER_LIMITS)
    return _text(_object(fields, "a queue"), "topic")


def _object(value: object, what: str) -> Mapping[object, object]:
    if not isinstance(value, dict):
        raise RemoteProtocolError(f"{what}: not an object")
    return value


def _list(value: object, what: str) -> list[object]:
    if not isinstance(value, list):
        raise RemoteProtocolError(f"{what}: not a list")
    return value


def _number(fields: Mapping[object, object], name: str) -> int:
    try:
        return parse_int(fields.get(name, 0), I64)
    except ValueError as error:
        raise RemoteProtocolError(f"an impossible {name}: {error}") from None


def _text(fields: Mapping[object, object], name: str) -> str:
    value = fields.get(name)
    return clean(value) if isinstance(value, str) else ""


@define
class _NodeConsumption:
    """The newest answers of one node."""

    at_ms: int | None = None
    groups: Mapping[tuple[str, str], GroupProgress] = Factory(dict)
    """By group and topic."""
    topics: Mapping[str, int] = Factory(dict)
    members: dict[str, Members | None] = Factory(dict)
    more: int = 0
    fault: str = ""


@define
class _Row:
    """What the nodes of one broker name answer of one group and topic."""

    preferred: tuple[int, GroupProgress] | None = None
    """Rank of the node, the lowest wins, and its progress."""
    members: Members | None = None
    has_members: bool = False
    sources: list[tuple[str, float]] = field(factory=list)
    at_ms: int = 0


class Consumption:
    """The newest answers of all nodes."""

    def __init__(self) -> None:
        self._nodes: dict[str, _NodeConsumption] = {}

    def observe(self, sample: ConsumptionSample) -> None:
        """Keep the answers of a round of requests; a failed one leaves the last answers as they are."""
        node = self._nodes.setdefault(sample.address, _NodeConsumption())
        node.fault = clean(sample.fault)
        if sample.fault:
            return
        node.at_ms, node.more = sample.at_ms, sample.more
        node.groups = {(one.group, one.topic): one for one in sample.groups}
        if sample.topics is not None:
            node.topics = sample.topics
        known = {group for group, _ in node.groups}
        for group in node.members.keys() - known:
            del node.members[group]
        node.members.update((group, members) for group, members in sample.members.items() if group in known)

    def forget(self, addresses: Iterable[str]) -> None:
        """Drop the answers of nodes that are not watched any more."""
        for address in addresses:
            self._nodes.pop(address, None)

    def view(self, nodes: Sequence[NodeView], *, now_ms: int) -> ConsumptionView:
        """The rows of `nodes`, those with the largest lag first."""
        rows: dict[tuple[str, str, str], _Row] = {}
        topics: dict[tuple[str, str], int] = {}
        faults: list[str] = []
        hidden = 0
        for node in nodes:
            kept = self._nodes.get(node.address)
            if kept is None:
                continue
            if kept.fault:
                faults.append(f"{node.label}: {kept.fault}")
            if kept.at_ms is None:
                continue
            hidden += kept.more
            broker = node.broker_name or node.address
            rank = _rank(node, age_s=(now_ms - kept.at_ms) / 1000)
            for (group, topic), progress in kept.groups.items():
                row = rows.setdefault((broker, group, topic), _Row())
                if progress.read_per_s > 0 and node.health is Health.UP:
                    row.sources.append((node.label, progress.read_per_s))
                if row.preferred is None or rank < row.preferred[0]:
                    row.preferred, row.at_ms = (rank, progress), kept.at_ms
                    row.members, row.has_members = kept.members.get(group), group in kept.members
            for topic, queues in kept.topics.items():
                topics.setdefault((broker, topic), queues)
        seen = [_group_view(key, row, now_ms=now_ms) for key, row in rows.items()]
        consumed = {(view.broker, view.topic) for view in seen}
        names = {node.cluster for node in nodes} | {node.broker_name for node in nodes}
        seen += [
            GroupView(_key(broker, "", topic), group="", topic=topic, broker=broker, queues=queues)
            for (broker, topic), queues in topics.items()
            if (broker, topic) not in consumed and topic not in names and not is_system_topic(topic)
        ]
        seen.sort(key=lambda view: (-(view.lag or 0), view.group == "", view.topic, view.group, view.broker))
        groups = Counter(bool(view.group) for view in seen)
        return ConsumptionView(
            rows=tuple(seen[:ROWS_MAX]),
            hidden_rows=hidden + max(0, len(seen) - ROWS_MAX),
            pairs=groups[True],
            faults=tuple(faults[:CLIENTS_MAX]),
        )


def is_system_topic(topic: str) -> bool:
    """Whether every broker has the topic, or one of that kind."""
    return topic in SYSTEM_TOPICS or topic.startswith(_SYSTEM_PREFIXES)


def _rank(node: NodeView, *, age_s: float) -> int:
    """Whose figures are shown: of a master that answers first, then of slaves that do, by their ids."""
    is_current = node.health is not Health.DOWN and age_s < OLD_S
    broker_id = 0 if node.is_master else max(1, node.broker_id or 1)
    return min(broker_id, 1 << 20) + (0 if is_current else 1 << 24)


def _group_view(key: tuple[str, str, str], row: _Row, *, now_ms: int) -> GroupView:
    broker, group, topic = key
    assert row.preferred is not None, "a row is made of an answer"
    progress = row.preferred[1]
    oldest_ms = progress.oldest_ms
    members = row.members
    return GroupView(
        _key(broker, group, topic),
        group=group,
        topic=topic,
        broker=broker,
        queues=progress.queues,
        lag=progress.lag,
        lag_s=None if oldest_ms is None else max(0, now_ms - oldest_ms) / 1000,
        read_per_s=sum(per_s for _, per_s in row.sources),
        members=None if not row.has_members else 0 if members is None else members.count,
        clients=() if members is None else members.clients,
        model="" if members is None else members.model,
        sources=tuple(sorted(row.sources, key=lambda source: -source[1])),
        age_s=max(0, now_ms - row.at_ms) / 1000,
    )


def _key(broker: str, group: str, topic: str) -> int:
    return crc32(f"{broker}\0{group}\0{topic}".encode("utf-8", "replace"))
