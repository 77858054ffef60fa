"""Metrics under RocketMQ's own names, with the types and labels of a 5.5.0 broker's Prometheus exporter.

So dashboards that were made for brokers of 5.x show trioha nodes, too. docs/metrics.md says which families
are there, and which of RocketMQ's are not. Labels that every series of a broker has (`cluster`, `node_type`,
`node_id`) come first; `otel_scope_name`, of RocketMQ's library, is left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from heapq import nlargest
from typing import Final

from attrs import frozen
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from trioha.broker.admin_topics import MORE_SYSTEM_TOPICS
from trioha.broker.clients import ClientRegistry, Member
from trioha.broker_status import BrokerStatus
from trioha.metadata.groups import SYSTEM_GROUP_PREFIX, SYSTEM_GROUPS
from trioha.metadata.topics import TopicTable, system_topics
from trioha.metrics.busiest import BusiestCounts, Count
from trioha.metrics.families import REST, label_text
from trioha.metrics.group_lags import GroupLag, GroupLags
from trioha.remoting.codes import Version
from trioha.store.disk_use import DiskUse

PREFIX: Final = "rocketmq_"
NODE_LABELS: Final = ("cluster", "node_type", "node_id")
STORAGE_LABELS: Final = ("storage_type", "storage_medium")
STORAGE: Final = ("local", "disk")
RETRY_PREFIX: Final = "%RETRY%"
CONSUME_ACTIVELY: Final = "CONSUME_ACTIVELY"
"""Of a consumer that pulls."""
MESSAGE_TYPE: Final = "unspecified"
"""A node counts messages by topic, and not by their type; RocketMQ's word for a type that is not known."""


@frozen
class ConsumerKind:
    """Consumers of one group that are alike."""

    group: str
    language: str
    version: str
    mode: str
    """`push` or `pull`."""


@frozen(kw_only=True)
class RocketmqFigures:
    """What only these families show."""

    permission: int
    """brokerPermission."""
    topics: int
    groups: int
    producers: Mapping[tuple[str, str], int]
    """Connections of producers by language and version."""
    consumers: Mapping[ConsumerKind, int]
    """Connections of consumers, of a bounded number of groups."""
    system_topics: frozenset[str]


class _Families:
    """Makes families whose series have the labels of the node."""

    def __init__(self, status: BrokerStatus) -> None:
        self._node = (label_text(status.cluster_name or ""), "broker", label_text(status.broker_name or ""))

    def gauge(self, name: str, documentation: str, labels: tuple[str, ...], series: _Series) -> Metric:
        family = GaugeMetricFamily(PREFIX + name, documentation, labels=(*NODE_LABELS, *labels))
        return self._filled(family, series)

    def counter(self, name: str, documentation: str, labels: tuple[str, ...], series: _Series) -> Metric:
        family = CounterMetricFamily(PREFIX + name, documentation, labels=(*NODE_LABELS, *labels))
        return self._filled(family, series)

    def _filled(self, family: GaugeMetricFamily | CounterMetricFamily, series: _Series) -> Metric:
        for values, value in series.items():
            family.add_metric((*self._node, *values), value)
        return family


_Series = Mapping[tuple[str, ...], float]
"""Values by the labels that are not the node's."""


def figures_of(
    clients: ClientRegistry, *, permission: int, topics: TopicTable, groups: int, groups_max: int
) -> RocketmqFigures:
    """The figures of now. Consumers of the `groups_max` groups with most members are named."""
    producers = Counter(
        (_language(member), _version(member))
        for members in clients.producers.values()
        for member in members.values()
    )
    consumers: Counter[ConsumerKind] = Counter()
    named = nlargest(groups_max, clients.consumers.values(), key=lambda group: len(group.members))
    names = {group.name for group in named}
    for group in clients.consumers.values():
        mode = "pull" if group.consume_type == CONSUME_ACTIVELY else "push"
        for member in group.members.values():
            name = group.name if group.name in names else REST
            consumers[ConsumerKind(name, _language(member), _version(member), mode)] += 1
    return RocketmqFigures(
        permission=permission,
        topics=len(topics.entries),
        groups=groups,
        producers=producers,
        consumers=consumers,
        system_topics=frozenset(
            (*(each.name for each in system_topics(topics.settings)), *MORE_SYSTEM_TOPICS)
        ),
    )


def _language(member: Member) -> str:
    return member.language.name.lower()


def _version(member: Member) -> str:
    """As `v4_9_7`; a client may claim any number, so one without a name here is `other`."""
    try:
        return Version(member.version).name.lower()
    except ValueError:
        return "other"


def rocketmq_families(
    status: BrokerStatus,
    figures: RocketmqFigures,
    *,
    topics: BusiestCounts,
    groups: BusiestCounts,
    lags: GroupLags,
    disk: DiskUse | None,
) -> Iterator[Metric]:
    """The families, with the samples of now. `groups` are by `topic@group`."""
    made = _Families(status)
    yield made.gauge(
        "broker_permission", "brokerPermission: 2 to write, 4 to read.", (), {(): figures.permission}
    )
    yield made.gauge("topic_number", "Topics.", (), {(): figures.topics})
    yield made.gauge("consumer_group_number", "Consumer groups.", (), {(): figures.groups})
    yield from _traffic(made, figures, topics=topics, groups=groups)
    yield from _lags(made, figures, lags)
    yield from _clients(made, figures)
    yield from _storage(made, status, disk)


def _traffic(
    made: _Families, figures: RocketmqFigures, *, topics: BusiestCounts, groups: BusiestCounts
) -> Iterator[Metric]:
    labels = ("topic", "message_type", "is_system")
    arrived: dict[tuple[str, ...], Count] = {}
    for topic, count in {**topics.named, REST: topics.rest}.items():
        is_system = _flag(topic in figures.system_topics)
        _add(arrived, (label_text(topic), MESSAGE_TYPE, is_system), count)
    yield made.counter("messages_in", "Messages that were stored.", labels, _messages(arrived))
    yield made.counter("throughput_in", "Bytes of their records.", labels, _bytes(arrived))
    labels = ("topic", "consumer_group", "is_system")
    given: dict[tuple[str, ...], Count] = {}
    for key, count in {**groups.named, f"{REST}@{REST}": groups.rest}.items():
        topic, _, group = key.partition("@")
        _add(given, (label_text(topic), label_text(group), _is_system(figures, topic, group)), count)
    yield made.counter("messages_out", "Messages that consumers were given.", labels, _messages(given))
    yield made.counter("throughput_out", "Bytes of their records.", labels, _bytes(given))


def _lags(made: _Families, figures: RocketmqFigures, lags: GroupLags) -> Iterator[Metric]:
    labels = ("consumer_group", "topic", "is_retry", "is_system")
    series: dict[tuple[str, ...], GroupLag] = {}
    for one in (*lags.named, GroupLag(lags.rest.lag, lags.rest.in_flight, REST, REST)):
        values = (
            label_text(one.group),
            label_text(one.topic),
            _flag(one.topic.startswith(RETRY_PREFIX)),
            _is_system(figures, one.topic, one.group),
        )
        # Texts that label_text shortens may be the same afterwards.
        before = series.get(values, GroupLag())
        series[values] = GroupLag(before.lag + one.lag, before.in_flight + one.in_flight)
    yield made.gauge(
        "consumer_lag_messages",
        "Messages that a group has not committed.",
        labels,
        {values: one.lag for values, one in series.items()},
    )
    yield made.gauge(
        "consumer_inflight_messages",
        "Those that it was given.",
        labels,
        {values: one.in_flight for values, one in series.items()},
    )
    yield made.gauge(
        "consumer_ready_messages",
        "Those that it was not given yet.",
        labels,
        {values: one.ready for values, one in series.items()},
    )


def _clients(made: _Families, figures: RocketmqFigures) -> Iterator[Metric]:
    yield made.gauge(
        "producer_connections",
        "Connections of producers.",
        ("language", "version", "protocol_type"),
        {(*kind, "remoting"): count for kind, count in figures.producers.items()},
    )
    consumers: dict[tuple[str, ...], float] = {}
    for kind, count in figures.consumers.items():
        values = (
            label_text(kind.group),
            kind.language,
            kind.version,
            kind.mode,
            "remoting",
            _flag(_is_system_group(kind.group)),
        )
        consumers[values] = consumers.get(values, 0) + count
    yield made.gauge(
        "consumer_connections",
        "Connections of consumers.",
        ("consumer_group", "language", "version", "consume_mode", "protocol_type", "is_system"),
        consumers,
    )


def _storage(made: _Families, status: BrokerStatus, disk: DiskUse | None) -> Iterator[Metric]:
    used: _Series = {} if disk is None else {STORAGE: float(disk.used_bytes)}
    yield made.gauge("storage_size_bytes", "Used bytes of the log's disk.", STORAGE_LABELS, used)
    end = status.max_offset
    for name, documentation, offset in (
        ("storage_flush_behind_bytes", "Bytes of the log that are not on disk.", status.flushed_offset),
        (
            "storage_dispatch_behind_bytes",
            "Bytes of the log that are not in consume queues and index.",
            status.dispatched_offset,
        ),
    ):
        behind: _Series = {} if offset is None else {STORAGE: float(max(0, end - offset))}
        yield made.gauge(name, documentation, STORAGE_LABELS, behind)


def _add(counts: dict[tuple[str, ...], Count], labels: tuple[str, ...], count: Count) -> None:
    # Texts that label_text shortens may be the same afterwards.
    counts[labels] = counts.get(labels, Count()) + count


def _messages(counts: Mapping[tuple[str, ...], Count]) -> _Series:
    return {labels: count.messages for labels, count in counts.items()}


def _bytes(counts: Mapping[tuple[str, ...], Count]) -> _Series:
    return {labels: count.total_bytes for labels, count in counts.items()}


def _is_system(figures: RocketmqFigures, topic: str, group: str) -> str:
    return _flag(topic in figures.system_topics or _is_system_group(group))


def _is_system_group(group: str) -> bool:
    return group.startswith(SYSTEM_GROUP_PREFIX) or group in SYSTEM_GROUPS


def _flag(value: bool) -> str:
    return "true" if value else "false"
