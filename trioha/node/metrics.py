"""The HTTP port of a node, for Prometheus and probes, and what its metrics are computed from."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

import trio

from trioha.broker.health import Facts, Health
from trioha.config.broker import BrokerConfig, BrokerRole
from trioha.metadata.metadata_store import MetadataStore
from trioha.net.descriptors import open_descriptors
from trioha.node.broker_service import BrokerService
from trioha.node.budget import DescriptorBudget
from trioha.node.hang_watch import HangWatch
from trioha.node.ports import open_port, reached
from trioha.node.replication import Replication
from trioha.node.store_tasks import StoreTasks
from trioha.store.disk_use import DiskUse

if TYPE_CHECKING:
    from trioha.metrics.port import HttpPort
    from trioha.metrics.sources import Sources

BACKLOG: Final = 16
"""Connections that wait until they are accepted."""


@asynccontextmanager
async def http_port(
    config: BrokerConfig, *, health: Health, budget: DescriptorBudget
) -> AsyncIterator[HttpPort | None]:
    """The port of trioha.metricsPort, which is served in the block; None without the key.

    Raises ConfigError if it cannot be listened on.
    """
    if config.metrics_port is None:
        yield None
        return
    from trioha.metrics.port import HttpPort  # noqa: PLC0415

    host = config.metrics_bind_address
    listeners = await open_port(
        host, config.metrics_port, BACKLOG, peers="Prometheus", key="trioha.metricsPort"
    )
    port = HttpPort(
        health,
        address=reached(listeners, host, config.broker_ip1),
        connections_max=budget.metrics_connections,
    )
    async with trio.open_nursery() as nursery:
        # Its connections are few and in the budget: an operator sees a shortage of descriptors.
        await nursery.start(partial(port.server.serve, listeners, gate=budget.ha_gate()))
        yield port
        nursery.cancel_scope.cancel()


def facts_of(config: BrokerConfig, *, broker: BrokerService, store: StoreTasks, hangs: HangWatch) -> Facts:
    """What the readiness of a node in one role is computed from."""
    return Facts(
        status=broker.info.ha_status,
        # In controller mode the sync-state set says whether puts are refused.
        slaves_needed=0 if config.enable_controller_mode else config.slave_acks_needed,
        are_queues_behind=lambda: store.store.commit_log.puts_blocked,
        hanging=hangs.hanging,
    )


def sources_of(
    config: BrokerConfig,
    port: HttpPort,
    *,
    broker: BrokerService,
    metadata: MetadataStore,
    ha: Replication,
    store: StoreTasks,
    budget: DescriptorBudget,
) -> Sources:
    """What the metrics of a node in one role are computed from."""
    from trioha.metrics.busiest import BusiestKeys  # noqa: PLC0415
    from trioha.metrics.disks import DiskWatch  # noqa: PLC0415
    from trioha.metrics.group_lags import LagCounter, LagSources  # noqa: PLC0415
    from trioha.metrics.rocketmq import figures_of  # noqa: PLC0415
    from trioha.metrics.sources import Descriptors, Limits, Sources  # noqa: PLC0415

    traffic, slave = broker.admin.traffic, ha.slave
    boundaries = {
        "clients": broker.server.connections.boundary,
        "slaves": ha.master.boundary,
        "metrics": port.server.boundary,
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
        lags=LagCounter(
            LagSources(
                offsets=metadata.consumer_offsets.items,
                max_offset=store.store.reads.max_offset,
                pull_offset=lambda *queue: traffic.pull_offsets.get(queue, 0),
            ),
            pairs_max=config.metrics_topics,
        ),
        disk=DiskWatch(partial(DiskUse.of, store.store.commit_log.directory)),
        rocketmq=lambda: figures_of(
            broker.consumers.clients,
            permission=broker.admin.config.config.broker_permission,
            topics=metadata.topics,
            groups=len(metadata.groups.entries),
            groups_max=config.metrics_topics,
        ),
        descriptors=lambda: Descriptors(
            open=open_descriptors(budget.limit), limit=budget.limit, reserve=budget.reserve
        ),
        boundaries=boundaries,
        http=port.server.statistics,
        limits=Limits(
            client_connections=budget.clients,
            client_bytes=config.client_bytes_max,
            ha_connections=budget.ha_connections,
            long_polls=config.long_polls_max,
            slaves_needed=_slaves_needed(config),
            disk_full_ratio=config.disk_space_warning_level_ratio / 100,
        ),
    )


def _slaves_needed(config: BrokerConfig) -> int:
    """Slaves that a put waits for, whoever is in sync."""
    if not config.enable_controller_mode:
        return config.slave_acks_needed
    # With allAckInSyncStateSet a put waits for the set, which may be the master alone.
    waits = config.broker_role is not BrokerRole.SLAVE and not config.all_ack_in_sync_state_set
    return config.in_sync_replicas - 1 if waits else 0
