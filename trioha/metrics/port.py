"""The HTTP port of a node: its metrics, and probes that say whether it lives and is ready.

The port is open from before the store is recovered until the node ends. Metrics are there while the node
serves in a role, whose parts they are computed from: before, and between two roles, they are answered 503,
and Prometheus takes the node for down.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

import trio
from prometheus_client import CollectorRegistry, ProcessCollector

from trioha.broker.health import Health
from trioha.metrics.collector import NodeCollector
from trioha.metrics.exposition import Exposition
from trioha.metrics.http_get import TEXT, GetServer, HttpLimits, Page, Query
from trioha.metrics.probes import probes
from trioha.metrics.sources import Sources
from trioha.remoting.address import Address

METRICS: Final = "/metrics"


class HttpPort:
    """Serves the pages of a node."""

    def __init__(self, health: Health, *, address: Address, connections_max: int) -> None:
        """`connections_max` of the budget of descriptors; one address may have half of them."""
        self.address = address
        """Where others reach it."""
        self._health = health
        self._exposition: Exposition | None = None
        limits = HttpLimits(
            connections_max=connections_max, connections_per_peer_max=max(1, connections_max // 2)
        )
        self.server = GetServer({METRICS: self._metrics, **probes(health)}, limits=limits)

    async def run_metrics(
        self, sources: Sources, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Have the metrics of `sources` until cancelled."""
        self._exposition = Exposition(registry_of(sources))
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(sources.topics.run)
                nursery.start_soon(sources.groups.run)
                nursery.start_soon(sources.lags.run)
                nursery.start_soon(sources.disk.run)
                task_status.started()
        finally:
            self._exposition = None

    def _metrics(self, query: Query) -> Page:
        if self._exposition is None:
            text = f"no metrics now: {self._health.summary()}\n"
            return Page(TEXT, text.encode(), HTTPStatus.SERVICE_UNAVAILABLE)
        return self._exposition.page(query)


def registry_of(sources: Sources) -> CollectorRegistry:
    """The metrics of a node."""
    registry = CollectorRegistry()
    registry.register(NodeCollector(sources))
    # Memory, CPU time and start of the process, under the names that all clients of Prometheus use; only
    # where there is /proc.
    ProcessCollector(registry=registry)
    return registry
