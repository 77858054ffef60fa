"""Metrics under RocketMQ's names have the types and labels that a 5.5.0 broker gives them."""

from __future__ import annotations

from pathlib import Path

import trio
from structlog.testing import capture_logs

from tests.metrics.making import make_lags, make_sources, make_traffic
from tests.metrics.scraping import documented, families_of, parsed, value, values_of
from trioha.broker.clients import ClientRegistry, ConsumerData, Heartbeat
from trioha.metadata.topics import TopicTable
from trioha.metrics.collector import NodeCollector
from trioha.metrics.disks import INTERVAL_S, DiskWatch
from trioha.metrics.families import LABEL_CHARS_MAX, REST
from trioha.metrics.group_lags import QUEUES_PER_SLICE, GroupLag, LagCounter, LagSources
from trioha.metrics.rocketmq import ConsumerKind, figures_of
from trioha.remoting.address import Address
from trioha.remoting.codes import LanguageCode
from trioha.store.disk_use import DiskUse

RECORDED = Path(__file__).parents[1] / "vectors/metrics-5.5.0/metrics.txt"
OF_OPENTELEMETRY = "otel_scope_name"
"""A label that every series of RocketMQ's has, and none here."""
NOT_SERVED = {
    "rocketmq_consumer_lag_latency_milliseconds",
    "rocketmq_consumer_queueing_latency_milliseconds",
    "rocketmq_message_size",
    "rocketmq_pop_buffer_scan_time_consume_milliseconds",
    "rocketmq_pop_checkpoint_buffer_size",
    "rocketmq_pop_offset_buffer_size",
    "rocketmq_pop_revive_lag_milliseconds",
    "rocketmq_pop_revive_latency_milliseconds",
    "rocketmq_processor_watermark",
    "rocketmq_rpc_latency_milliseconds",
    "rocketmq_storage_message_reserve_time_milliseconds",
    "rocketmq_timer_dequeue_lag",
    "rocketmq_timer_dequeue_latency_milliseconds",
    "rocketmq_timer_enqueue_lag",
    "rocketmq_timer_enqueue_latency_milliseconds",
    "rocketmq_timer_message_snapshot",
    "rocketmq_topic_create_execution_time_milliseconds",
}
"""Families of a 5.5.0 broker that docs/metrics.md says are not here."""


def recorded():
    """What a 5.5.0 broker answered."""
    return parsed(RECORDED.read_text(), is_openmetrics=False)


async def test_families_have_the_types_and_labels_of_a_real_brokers():
    real = families_of(recorded())
    ours = {
        name: family
        for name, family in families_of(NodeCollector(make_sources()).collect()).items()
        if name.startswith("rocketmq_")
    }
    assert ours.keys() == {name for name in real if name.startswith("rocketmq_")} - NOT_SERVED
    for name, family in ours.items():
        assert family.kind == real[name].kind, name
        assert family.labels == real[name].labels - {OF_OPENTELEMETRY}, name
        assert documented()[name] == family, name


async def test_values_of_labels_are_words_that_a_real_broker_uses():
    words: dict[str, set[str]] = {}
    for _, labels in values_of(recorded()):
        for label, text in labels:
            words.setdefault(label, set()).add(text)
    for label, text in {
        "node_type": "broker", "is_system": "false", "is_retry": "false", "storage_type": "local",
        "storage_medium": "disk", "protocol_type": "remoting", "language": "java", "consume_mode": "push",
    }.items():  # fmt: skip
        assert text in words[label]
        ours = {
            found
            for name, labels in values_of(list(NodeCollector(make_sources()).collect()))
            for key, found in labels
            if key == label and name.startswith("rocketmq_")
        }
        assert text in ours


async def test_lags_are_those_of_the_offsets_that_groups_committed():
    metrics = list(NodeCollector(make_sources()).collect())
    of_shop = {"consumer_group": "shop", "topic": "orders", "is_retry": "false"}
    of_audit = of_shop | {"consumer_group": "audit"}

    def figure(name, labels):
        node = {"cluster": "C", "node_type": "broker", "node_id": "b", "is_system": "false"}
        return value(metrics, f"rocketmq_consumer_{name}_messages", **node, **labels)

    assert [figure(name, of_shop) for name in ("lag", "inflight", "ready")] == [2, 2, 0]
    assert [figure(name, of_audit) for name in ("lag", "inflight", "ready")] == [3, 1, 2]
    of_retries = {"consumer_group": "shop", "topic": "%RETRY%shop", "is_retry": "true"}
    assert figure("lag", of_retries) == 0


async def test_traffic_is_what_was_stored_and_given():
    metrics = list(NodeCollector(make_sources()).collect())
    node = {"cluster": "C", "node_type": "broker", "node_id": "b", "is_system": "false"}
    stored = node | {"topic": "orders", "message_type": "unspecified"}
    assert value(metrics, "rocketmq_messages_in_total", **stored) == 3
    assert value(metrics, "rocketmq_throughput_in_total", **stored) == 300
    given = node | {"topic": "orders", "consumer_group": "audit"}
    assert value(metrics, "rocketmq_messages_out_total", **given) == 1
    assert value(metrics, "rocketmq_throughput_out_total", **given) == 100


def test_of_many_groups_those_furthest_behind_are_named_and_the_rest_is_their_sum():
    made = make_lags(pairs_max=1)
    assert made.lags.named == (GroupLag(3, 1, "audit", "orders"),)
    assert made.lags.rest == GroupLag(2, 2)


async def test_other_tasks_run_while_half_a_million_offsets_are_counted(autojump_clock):
    offsets = [(f"t{number}@g", dict.fromkeys(range(8), 1)) for number in range(1000)]
    counter = LagCounter(
        LagSources(offsets=lambda: offsets, max_offset=lambda *_: 2, pull_offset=lambda *_: 0), pairs_max=3
    )
    assert sum(1 for _ in counter.count()) == 8 * 1000 // QUEUES_PER_SLICE
    assert counter.lags.rest.lag == 997 * 8
    offsets.clear()
    with trio.move_on_after(100):
        await counter.run()
    assert counter.lags.named == ()


async def test_names_that_clients_choose_have_a_bounded_number_of_series_and_cannot_break_the_format():
    traffic = make_traffic(keys_max=5000)
    names = ['a"b', "a\nb", "\ud800", "", "}# EOF", *("g" * 300 + str(number) for number in range(3))]
    for name in names:
        traffic.note_put(name, 1, 10)
        traffic.note_pull(name, name, 0, next_offset=1, messages=1, total_bytes=10)
    offsets = [(f"{name}@{name}", {0: 0}) for name in names]
    lags = LagCounter(
        LagSources(offsets=lambda: offsets, max_offset=lambda *_: 1, pull_offset=lambda *_: 0), pairs_max=50
    )
    for _ in lags.count():
        pass
    found = values_of(list(NodeCollector(make_sources(traffic, lags=lags)).collect()))
    long = "g" * LABEL_CHARS_MAX
    groups = {
        dict(labels)["consumer_group"]: lag
        for (name, labels), lag in found.items()
        if name == "rocketmq_consumer_lag_messages"
    }
    assert groups == {'a"b': 1, "a\nb": 1, "\\ud800": 1, "": 1, "}# EOF": 1, long: 3, REST: 0}
    arrived = {
        dict(labels)["topic"]: count
        for (name, labels), count in found.items()
        if name == "rocketmq_messages_in_total"
    }
    assert arrived[long] == 3


async def test_clients_are_counted_by_kind_and_only_the_largest_groups_are_named():
    clients = ClientRegistry(members_max=100)

    def join(connection, groups, *, version, language=LanguageCode.GO, mode="CONSUME_PASSIVELY"):
        data = tuple(
            ConsumerData(group, mode, "CLUSTERING", "CONSUME_FROM_LAST_OFFSET", {}) for group in groups
        )
        clients.heartbeat(
            Heartbeat(f"c{connection}", ("P",), data),
            connection=connection,
            address=Address("10.0.0.1", connection),
            language=language,
            version=version,
        )

    join(1, ["large", "small"], version=407)
    join(2, ["large"], version=-5, language=LanguageCode.JAVA)
    join(3, ["pulling"], version=479, mode="CONSUME_ACTIVELY")
    join(4, ["pulling"], version=479, mode="CONSUME_ACTIVELY")
    figures = figures_of(clients, permission=6, topics=TopicTable(), groups=3, groups_max=2)
    assert figures.producers == {("go", "v4_9_7"): 1, ("java", "other"): 1, ("go", "v5_3_3"): 2}
    assert figures.consumers == {
        ConsumerKind("large", "go", "v4_9_7", "push"): 1,
        ConsumerKind(REST, "go", "v4_9_7", "push"): 1,
        ConsumerKind("large", "java", "other", "push"): 1,
        ConsumerKind("pulling", "go", "v5_3_3", "pull"): 2,
    }
    assert {"SELF_TEST_TOPIC", "RMQ_SYS_TRACE_TOPIC"} <= figures.system_topics


async def test_a_disk_that_does_not_answer_has_no_figures_and_one_line(autojump_clock, monkeypatch):
    answers = [DiskUse(100, 50, 40), OSError("gone"), OSError("gone"), DiskUse(100, 60, 30)]

    async def run_here(read):
        return read()

    def read():
        found = answers.pop(0)
        if isinstance(found, OSError):
            raise found
        return found

    monkeypatch.setattr("trioha.metrics.disks.run_in_thread", run_here)
    watch = DiskWatch(read)
    seen = []
    with capture_logs() as lines:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch.run)
            for _ in range(4):
                await trio.sleep(INTERVAL_S / 2)
                seen.append(watch.use)
                if answers:
                    await trio.sleep(INTERVAL_S / 2)
            nursery.cancel_scope.cancel()
    assert seen == [DiskUse(100, 50, 40), None, None, DiskUse(100, 60, 30)]
    assert [line["event"] for line in lines] == ["the use of the disk is not known"]
