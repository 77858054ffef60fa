"""The port for Prometheus of a node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trioha.config.broker import BrokerConfig, BrokerRole
from trioha.net.descriptors import open_descriptors
from trioha.net.error_boundary import ErrorBoundary
from trioha.node.broker_service import BrokerService
from trioha.node.budget import DescriptorBudget
from trioha.node.replication import Replication
from trioha.node.store_tasks import StoreTasks

if TYPE_CHECKING:
    from trioha.metrics.port import MetricsPort
    from trioha.metrics.sources import Sources


def metrics_port(
    config: BrokerConfig,
    *,
    broker: BrokerService,
    ha: Replication,
    store: StoreTasks,
    budget: DescriptorBudget,
) -> MetricsPort | None:
    """The port of trioha.metricsPort; None without it."""
    if config.metrics_port is None:
        return None
    from trioha.metrics.port import MetricsPort  # noqa: PLC0415

    sources = _sources(config, broker=broker, ha=ha, store=store, budget=budget)
    return MetricsPort(sources, connections_max=budget.metrics_connections)


def _sources(
    config: BrokerConfig,
    *,
    broker: BrokerService,
    ha: Replication,
    store: StoreTasks,
    budget: DescriptorBudget,
) -> Sources:
    from trioha.metrics.busiest import BusiestKeys  # noqa: PLC0415
    from trioha.metrics.http_statistics import HttpStatistics  # noqa: PLC0415
    from trioha.metrics.sources import Descriptors, Limits, Sources  # noqa: PLC0415

    traffic, slave = broker.admin.traffic, ha.slave
    boundaries = {
        "clients": broker.server.connections.boundary,
        "slaves": ha.master.boundary,
        "metrics": ErrorBoundary("connection for metrics"),
    }
    if slave is not None:
        boundaries["master"] = slave.boundary
    return Sources(
        status=broker.info.ha_status,
        puts=broker.puts.statistics,
        clients=lambda: broker.server.statistics,
        long_polls=broker.consumers.polls,
        flush_times_s=store.flush_times_s,
        unsent_ages_s=ha.master.unsent_ages_s,
        master_connections_ended=lambda: {} if slave is None else slave.ended_connections,
        topics=BusiestKeys(traffic.puts, traffic.broker_puts, keys_max=config.metrics_topics),
        groups=BusiestKeys(traffic.pulls, traffic.broker_pulls, keys_max=config.metrics_topics),
        descriptors=lambda: Descriptors(
            open=open_descriptors(budget.limit), limit=budget.limit, reserve=budget.reserve
        ),
        boundaries=boundaries,
        http=HttpStatistics(),
        limits=Limits(
            client_connections=budget.clients,
            client_bytes=config.client_bytes_max,
            ha_connections=budget.ha_connections,
            long_polls=config.long_polls_max,
            slaves_needed=_slaves_needed(config),
        ),
    )


def _slaves_needed(config: BrokerConfig) -> int:
    """Slaves that a put waits for, whoever is in sync."""
    if not config.enable_controller_mode:
        return config.slave_acks_needed
    # With allAckInSyncStateSet a put waits for the set, which may be the master alone.
    waits = config.broker_role is not BrokerRole.SLAVE and not config.all_ack_in_sync_state_set
    return config.in_sync_replicas - 1 if waits else 0
