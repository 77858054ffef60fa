"""The port for metrics: its pages, its listeners, and the choice of the busiest topics."""

from __future__ import annotations

from functools import partial
from typing import Final

import trio
from prometheus_client import CollectorRegistry, ProcessCollector

from trioha.metrics.collector import NodeCollector
from trioha.metrics.exposition import Exposition
from trioha.metrics.http_get import GetServer, HttpLimits
from trioha.metrics.sources import Sources
from trioha.net.descriptors import Gate

PATH: Final = "/metrics"


class MetricsPort:
    """Serves the metrics of a node."""

    def __init__(self, sources: Sources, *, connections_max: int) -> None:
        """`connections_max` of the budget of descriptors; one address may have half of them."""
        self._sources = sources
        registry = CollectorRegistry()
        registry.register(NodeCollector(sources))
        # Memory, CPU time and start of the process, under the names that all clients of Prometheus use; only
        # where there is /proc.
        ProcessCollector(registry=registry)
        limits = HttpLimits(
            connections_max=connections_max, connections_per_peer_max=max(1, connections_max // 2)
        )
        self.server = GetServer(
            {PATH: Exposition(registry).page},
            limits=limits,
            statistics=sources.http,
            boundary=sources.boundaries["metrics"],
        )

    async def run(
        self,
        listeners: list[trio.SocketListener],
        *,
        gate: Gate,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve until cancelled; connections are accepted while `gate` is open."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._sources.topics.run)
            nursery.start_soon(self._sources.groups.run)
            await nursery.start(partial(self.server.serve, listeners, gate=gate))
            task_status.started()
