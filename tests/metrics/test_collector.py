"""Metrics are computed from the status of a node, in both formats of Prometheus."""

import re

import pytest
import trio
from attrs import evolve
from prometheus_client import CollectorRegistry

from tests.metrics.making import SLAVE, STATUS, make_sources, make_traffic
from tests.metrics.scraping import OPENMETRICS, documented_of_nodes, families_of, parsed, value, values_of
from trioha.broker_status import BrokerStatus
from trioha.metrics.busiest import BusiestKeys
from trioha.metrics.collector import NodeCollector
from trioha.metrics.exposition import ANSWER_AGE_S_MAX, Exposition
from trioha.metrics.http_get import Query
from trioha.store.put_status import PutStatus

BASE_UNITS = ("_bytes", "_seconds")


def exposition(sources):
    registry = CollectorRegistry()
    registry.register(NodeCollector(sources))
    return Exposition(registry)


def collected(sources):
    return parsed(exposition(sources).page(Query(OPENMETRICS)).body.decode())


async def test_every_value_is_where_its_name_says():
    metrics = collected(make_sources())
    expected = {
        ("trioha_log_end_offset_bytes",): 1000,
        ("trioha_flush_lag_bytes",): 50,
        ("trioha_dispatch_lag_bytes",): 40,
        ("trioha_puts_total", "status", "FLUSH_SLAVE_TIMEOUT"): 1,
        ("trioha_acks_refused_total", "reason", "ACK_BEYOND_SENT"): 2,
        ("trioha_slave_connections_ended_total", "reason", "EOF"): 4,
        ("trioha_ha_probes_total", "reason", "EOF"): 6,
        ("trioha_ha_probes_total", "reason", "BAD_SIZE"): 7,
        ("trioha_topic_put_messages_total", "topic", "orders"): 3,
        ("trioha_pull_messages_total",): 4,
        ("trioha_metadata_sync_age_seconds", "table", "topics"): 4.5,
        ("trioha_metadata_sync_failures_total", "table", "topics"): 0,
        ("trioha_metadata_sync_failures_total", "table", "groups"): 3,
        ("trioha_offset_regressions_total",): 9,
        ("trioha_offset_regressions_kept",): 5,
        ("trioha_archive_state", "state", "waiting"): 1,
        ("trioha_archive_state", "state", "running"): 0,
        ("trioha_archive_offset_bytes",): 700,
        ("trioha_archive_lag_bytes",): 300,
        ("trioha_archive_lag_seconds",): 12.5,
        ("trioha_archive_objects_total",): 4,
        ("trioha_archive_object_bytes_total",): 512,
        ("trioha_archive_failures_total",): 3,
        ("trioha_log_files_deleted_unarchived_total",): 1,
        ("trioha_pending_timers",): 3,
        ("trioha_pending_popped_messages",): 12,
        ("trioha_unread_stores",): 1,
        ("trioha_control_role", "role", "master"): 1,
        ("trioha_control_role", "role", "slave"): 0,
        ("trioha_control_broker_id",): 2,
        ("trioha_control_master_id",): 2,
        ("trioha_control_master_epoch",): 5,
        ("trioha_control_log_epoch",): 5,
        ("trioha_control_sync_state_set_size",): 2,
        ("trioha_control_sync_state_set_epoch",): 9,
        ("trioha_control_sync_state_set_min",): 1,
        ("trioha_control_confirm_offset_bytes",): 800,
        ("trioha_control_roles_total",): 3,
        ("trioha_control_role_timestamp_seconds",): 1_700_000_000.5,
        ("trioha_control_leader_known",): 1,
        ("trioha_control_leader_silence_seconds",): 2.5,
        ("trioha_control_refused",): 1,
        ("trioha_control_controller_connected", "controller", "10.0.0.2:9878"): 0,
        ("trioha_control_member_in_set", "broker_id", "1"): 0,
        ("trioha_control_member_in_set", "broker_id", "3"): 1,
        ("trioha_control_member_ack_offset_bytes", "broker_id", "3"): 800,
        ("trioha_master_connections_ended_total", "reason", "CONNECT_FAILED"): 8,
        ("trioha_master_mismatch",): 1,
        ("trioha_client_connections_ended_total", "reason", "idle"): 3,
        ("trioha_acl_refusals_total",): 6,
        ("trioha_flush_duration_seconds_count",): 3,
        ("trioha_flush_duration_seconds_bucket", "le", "0.1"): 2,
        ("trioha_descriptors_reserved",): 64,
        ("trioha_slave_lag_seconds", "slave", "10.0.0.7", "connection", "3", "stage", "acknowledged"): 1.5,
        ("trioha_slave_lag_seconds", "slave", "10.0.0.7", "connection", "3", "stage", "sent"): 0.75,
        ("trioha_slave_lag_bytes", "slave", "10.0.0.7", "connection", "3", "stage", "sent"): 100,
        ("trioha_slave_ack_p99_seconds", "slave", "10.0.0.7", "connection", "3"): 0.004,
        ("trioha_group_pull_messages_total", "topic", "orders", "group", "shop"): 3,
    }
    found = {key: value(metrics, key[0], **dict(zip(key[1::2], key[2::2], strict=True))) for key in expected}
    assert found == expected


async def test_a_table_that_was_never_copied_is_as_old_as_the_node(monkeypatch):
    now_s = 50.0
    monkeypatch.setattr("trioha.metrics.collector.time.monotonic", lambda: now_s)
    collector = NodeCollector(make_sources())
    now_s += 7.25
    (ages,) = (one for one in collector.collect() if one.name == "trioha_metadata_sync_age_seconds")
    assert {one.labels["table"]: one.value for one in ages.samples} == {"topics": 4.5, "groups": 7.25}


async def test_a_leader_that_never_answered_is_silent_since_the_role_began(monkeypatch):
    now_s = 50.0
    monkeypatch.setattr("trioha.metrics.collector.time.monotonic", lambda: now_s)
    lost = evolve(STATUS.control, leader=None, leader_heard_ms=None, role="none", role_changed_ms=None)
    collector = NodeCollector(make_sources(status=evolve(STATUS, control=lost)))
    now_s += 7.25
    found = {one.name: [sample.value for sample in one.samples] for one in collector.collect()}
    assert found["trioha_control_leader_silence_seconds"] == [7.25]
    assert found["trioha_control_leader_known"] == [0]
    assert found["trioha_control_role_timestamp_seconds"] == []


async def test_names_kinds_and_labels_are_those_of_the_documentation():
    served = families_of(collected(make_sources()))
    listed = {name: one for name, one in documented_of_nodes().items() if not name.startswith("process_")}
    assert served == listed
    assert len(listed) > 50


async def test_names_follow_the_conventions_of_prometheus():
    for family in collected(make_sources()):
        if family.name.startswith("rocketmq_"):
            # As RocketMQ names them.
            continue
        assert re.fullmatch(r"trioha_[a-z0-9_]+", family.name)
        assert family.documentation.endswith(".")
        units = [unit for unit in BASE_UNITS if family.name.endswith(unit)]
        assert [f"_{family.unit}"] * bool(family.unit) == units
        # No unit but the base units, and none in the middle of a name.
        assert not re.search(r"_(ms|millis|us|micros|kb|mb|minutes|percent|ratio_percent)(_|$)", family.name)
        for sample in family.samples:
            if family.type == "counter":
                assert sample.name == f"{family.name}_total"
                assert sample.value >= 0
            assert all(re.fullmatch(r"[a-z][a-z0-9_]*", label) for label in sample.labels)


async def test_a_node_without_anything_has_the_same_families_and_zeros_for_what_is_counted():
    bare = BrokerStatus(
        role="ASYNC_MASTER",
        min_offset=0,
        flushed_offset=0,
        dispatched_offset=0,
        files=0,
        time_steps=0,
        time_lead_ms=0,
        read_faults=0,
        in_sync_slaves=0,
    )
    traffic = make_traffic()
    empty = make_sources(
        traffic,
        status=bare,
        topics=BusiestKeys(traffic.send_backs, traffic.send_backs, keys_max=5),
    )
    metrics, full = collected(empty), collected(make_sources())
    assert [one.name for one in metrics] == [one.name for one in full]
    assert value(metrics, "trioha_puts_total", status="PUT_OK") == 0
    assert len([one for one in values_of(metrics) if one[0] == "trioha_puts_total"]) == len(PutStatus)
    # A master has no master, without access control there are no refusals, without an archive no states.
    without = {one.name for one in metrics if not one.samples}
    assert without == {
        *("trioha_acl_refusals", "trioha_metadata_sync_age_seconds", "trioha_metadata_sync_failures"),
        *("trioha_offset_regressions", "trioha_offset_regressions_kept"),
        *("trioha_log_files_deleted_unarchived", "trioha_unread_stores"),
        *("trioha_pending_timers", "trioha_pending_popped_messages"),
        *(
            name
            for name in (one.name for one in full)
            if name.startswith(("trioha_master_", "trioha_slave_", "trioha_archive_", "trioha_control_"))
        ),
    } - {"trioha_slave_connections_ended", "trioha_slave_connections_max"}


async def test_series_of_a_slave_end_with_its_connection_and_two_of_a_host_are_apart(autojump_clock):
    status = STATUS
    sources = evolve(make_sources(), status=lambda: status)
    made = exposition(sources)

    def slaves():
        text = made.page(Query(OPENMETRICS)).body.decode()
        found = values_of(parsed(text))
        return {
            dict(labels)["connection"] for name, labels in found if name == "trioha_slave_ack_offset_bytes"
        }

    assert slaves() == {"3"}
    status = evolve(STATUS, connections=(SLAVE, evolve(SLAVE, connection_id=4, address="10.0.0.7:41002")))
    assert slaves() == {"3"}
    await trio.sleep(ANSWER_AGE_S_MAX)
    assert slaves() == {"3", "4"}
    status = evolve(STATUS, connections=())
    await trio.sleep(ANSWER_AGE_S_MAX)
    assert slaves() == set()


@pytest.mark.parametrize(
    ("address", "host"), [("10.0.0.7:4", "10.0.0.7"), ("[fe80::1]:4", "fe80::1"), ("", "")]
)
async def test_a_slave_is_known_by_its_host(address, host):
    status = evolve(STATUS, connections=(evolve(SLAVE, address=address),))
    metrics = collected(make_sources(status=status))
    assert value(metrics, "trioha_slave_ack_offset_bytes", slave=host, connection="3") == 800


async def test_names_that_clients_choose_cannot_break_the_format():
    traffic = make_traffic()
    names = ['a"b', "a\\b", "a\nb", "\ud800", "g" * 300, "g" * 400, "x@y", "", "}# EOF", "日本"]
    for name in names:
        traffic.note_pull(name, "orders", 0, next_offset=1, messages=1, total_bytes=10)
    page = exposition(make_sources(traffic)).page(Query(OPENMETRICS))
    found = values_of(parsed(page.body.decode("utf-8")))
    groups = {
        dict(labels)["group"]: count
        for (name, labels), count in found.items()
        if name == "trioha_group_pull_messages_total"
    }
    assert groups["g" * 255] == 2
    assert {'a"b', "a\\b", "a\nb", "\\ud800", "x@y", "", "}# EOF", "日本"} <= groups.keys()
    assert sum(groups.values()) == 4 + len(names)


async def test_as_many_topics_have_series_as_the_setting_says():
    traffic = make_traffic(keys_max=5000)
    for number in range(2000):
        traffic.note_put(f"t{number}", 1, 10)
    sources = make_sources(traffic, keys_max=10)
    for _ in sources.topics.choose():
        pass
    metrics = collected(sources)
    series = [labels for name, labels in values_of(metrics) if name == "trioha_topic_put_messages_total"]
    assert len(series) == 11
    assert value(metrics, "trioha_topic_put_messages_total", topic="(other)") == 2004


@pytest.mark.parametrize(
    ("accept", "is_openmetrics"),
    [
        (OPENMETRICS, True),
        ("application/openmetrics-text", True),
        ("text/html, Application/OpenMetrics-Text ;version=9;escaping=\x00", True),
        ("", False),
        ("*/*", False),
        ("text/plain;version=0.0.4", False),
        ("application/openmetrics-texts", False),
    ],
)
async def test_the_accept_header_chooses_between_two_formats(accept, is_openmetrics):
    page = exposition(make_sources()).page(Query(accept))
    assert page.content_type.startswith(
        "application/openmetrics-text; version=1.0.0" if is_openmetrics else "text/plain; version=0.0.4"
    )
    text = page.body.decode()
    assert text.endswith("# EOF\n") == is_openmetrics
    metrics = parsed(text, is_openmetrics=is_openmetrics)
    assert value(metrics, "trioha_puts_total", status="PUT_OK") == 10
    assert value(metrics, "trioha_log_end_offset_bytes") == 1000


async def test_peers_that_ask_often_get_one_computation(autojump_clock):
    computed = 0

    def status():
        nonlocal computed
        computed += 1
        return STATUS

    made = exposition(evolve(make_sources(), status=status))
    for _ in range(100):
        made.page(Query(OPENMETRICS))
        made.page(Query())
    assert computed == 2
    await trio.sleep(ANSWER_AGE_S_MAX)
    made.page(Query())
    assert computed == 3
