"""Sources of metrics that tests make: a node that is master and slave at once, so that it has all samples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trioha.broker.long_polls import LongPolls
from trioha.broker.puts import PutStatistics
from trioha.broker.traffic import BrokerTraffic
from trioha.broker_status import (
    ArchiveStatus,
    BrokerStatus,
    ConnectionStatus,
    ControllerLinkStatus,
    ControlStatus,
    MemberStatus,
    MetadataStatus,
    PendingStatus,
    SlaveStatus,
    TableCopyStatus,
)
from trioha.distribution import Distribution
from trioha.histogram import Histogram
from trioha.metrics.busiest import BusiestKeys
from trioha.metrics.disks import DiskWatch
from trioha.metrics.group_lags import LagCounter, LagSources
from trioha.metrics.http_statistics import HttpStatistics
from trioha.metrics.rocketmq import ConsumerKind, RocketmqFigures
from trioha.metrics.sources import Descriptors, Limits, Sources
from trioha.net.error_boundary import ErrorBoundary
from trioha.remoting.serving import ServerStatistics
from trioha.store.disk_use import DiskUse

SLAVE = ConnectionStatus(
    address="10.0.0.7:41000",
    sent_offset=900,
    ack_offset=800,
    lag_bytes=200,
    in_sync=True,
    state="TRANSFER",
    lag_ms=1500,
    connection_id=3,
    last_received_ms=250,
    ack_latency_us=Distribution(300, 4000, 9000, 12),
)

STATUS = BrokerStatus(
    version="0.1.0",
    role="SYNC_MASTER",
    cluster_name="C",
    broker_name="b",
    broker_id=0,
    min_offset=100,
    max_offset=1000,
    flushed_offset=950,
    dispatched_offset=960,
    in_sync_slaves=1,
    connections=(SLAVE,),
    ended_connections={"EOF": 4, "ACK_BEYOND_SENT": 2},
    probes={"10.0.0.1": {"EOF": 5}, "10.0.0.2": {"EOF": 1, "BAD_SIZE": 7}},
    put_statuses={"PUT_OK": 10, "FLUSH_SLAVE_TIMEOUT": 1},
    files=2,
    acl_refusals=6,
    warnings=("one",),
    client=SlaveStatus(state="TRANSFER", reported_offset=1000, last_read_ms=1, verdict="GAP: at 5"),
    metadata=MetadataStatus(
        tables={"topics": TableCopyStatus(age_ms=4500), "groups": TableCopyStatus(failures=3)},
        regressions=9,
        regressions_kept=5,
    ),
    archive=ArchiveStatus(
        url="s3://backups/b",
        state="waiting",
        archived_offset=700,
        lag_bytes=300,
        lag_ms=12_500,
        objects=4,
        object_bytes=512,
        failures=3,
        files_deleted_unarchived=1,
    ),
    pending=PendingStatus(timers=3, popped=12, unread_stores=("kvStore (popped messages)",)),
    control=ControlStatus(
        role="master",
        step="following",
        broker_id=2,
        master_epoch=5,
        master_id=2,
        master_address="10.0.0.6:10911",
        log_epoch=5,
        sync_state_set=(2, 3),
        sync_state_set_epoch=9,
        in_sync_min=1,
        members=(
            MemberStatus(broker_id=1, is_connected=True),
            MemberStatus(broker_id=2, in_set=True, is_required=True, is_connected=True, ack_offset=1000),
            MemberStatus(broker_id=3, in_set=True, is_required=True, is_connected=True, ack_offset=800),
        ),
        confirm_offset=800,
        leader="10.0.0.1:9878",
        leader_heard_ms=2500,
        controllers=(
            ControllerLinkStatus(address="10.0.0.1:9878", is_connected=True, is_leader=True),
            ControllerLinkStatus(address="10.0.0.2:9878", reason="refused"),
        ),
        refusal="2012",
        role_changes=3,
        role_changed_ms=1_700_000_000_500,
    ),
)


def make_traffic(**settings: Any) -> BrokerTraffic:
    """Traffic of two topics, one of which two groups pull from."""
    traffic = BrokerTraffic(cluster_name="C", keys_max=settings.pop("keys_max", 100))
    traffic.note_put("orders", 3, 300)
    traffic.note_put("bills", 1, 50)
    traffic.note_pull("shop", "orders", 0, next_offset=3, messages=3, total_bytes=300)
    traffic.note_pull("audit", "orders", 0, next_offset=1, messages=1, total_bytes=100)
    return traffic


FIGURES = RocketmqFigures(
    permission=6,
    topics=16,
    groups=9,
    producers={("java", "v4_9_7"): 2},
    consumers={ConsumerKind("shop", "java", "v4_9_7", "push"): 1},
    system_topics=frozenset(("SELF_TEST_TOPIC",)),
)


def make_lags(*, pairs_max: int = 50) -> LagCounter:
    """Lags of two groups, counted once: `shop` has committed 1 of 3 orders and was given all of them."""
    offsets: list[tuple[str, Mapping[int, int]]] = [
        ("orders@shop", {0: 1}),
        ("%RETRY%shop@shop", {0: 0}),
        ("orders@audit", {0: 0, 7: 5}),
    ]
    ends = {("orders", 0): 3}
    pulled = {("shop", "orders", 0): 3, ("audit", "orders", 0): 1}
    made = LagCounter(
        LagSources(
            offsets=lambda: offsets,
            max_offset=lambda topic, queue_id: ends.get((topic, queue_id), 0),
            pull_offset=lambda *queue: pulled.get(queue, 0),
        ),
        pairs_max=pairs_max,
    )
    for _ in made.count():
        pass
    return made


def make_disk() -> DiskWatch:
    """A disk that was asked."""
    made = DiskWatch(lambda: DiskUse(1000, 700, 200))
    made.use = DiskUse(1000, 700, 200)
    return made


def make_sources(
    traffic: BrokerTraffic | None = None, *, status: BrokerStatus = STATUS, keys_max: int = 50, **other: Any
) -> Sources:
    """Sources of a node with all samples. Call it within a run of trio."""
    traffic = traffic or make_traffic()
    flush_times_s = Histogram((0.001, 0.1))
    for value_s in (0.0005, 0.05, 2.0):
        flush_times_s.add(value_s)
    values: dict[str, Any] = {
        "status": lambda: status,
        "puts": lambda: PutStatistics(messages_stored=12, bytes_appended=1200),
        "clients": lambda: ServerStatistics(connections_open=2, connections_accepted=9, idle_closes=3),
        "long_polls": LongPolls(polls_max=100, per_connection_max=10),
        "flush_times_s": flush_times_s,
        "unsent_ages_s": lambda: {3: 0.75},
        "master_connections_ended": lambda: {"CONNECT_FAILED": 8},
        "topics": BusiestKeys(traffic.puts, traffic.broker_puts, keys_max=keys_max),
        "groups": BusiestKeys(traffic.pulls, traffic.broker_pulls, keys_max=keys_max),
        "lags": make_lags(),
        "disk": make_disk(),
        "rocketmq": lambda: FIGURES,
        "descriptors": lambda: Descriptors(open=20, limit=1024, reserve=64),
        "boundaries": {"clients": ErrorBoundary("connection"), "metrics": ErrorBoundary("metrics")},
        "http": HttpStatistics(),
        "limits": Limits(
            client_connections=614,
            client_bytes=1 << 27,
            ha_connections=64,
            long_polls=100,
            slaves_needed=1,
            disk_full_ratio=0.9,
        ),
    }
    return Sources(**(values | other))
