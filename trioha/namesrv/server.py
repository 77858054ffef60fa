"""A running name server: its tables, its remoting server, and the task that removes silent brokers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

import structlog
import trio

from trioha.namesrv.kv_config import KvConfig
from trioha.namesrv.processor import NameServerProcessor
from trioha.namesrv.registry import BrokerIdentity, Registry, RegistryLimits
from trioha.namesrv.settings import NameServerSettings
from trioha.net.descriptors import Gate
from trioha.net.threads import run_in_thread
from trioha.net.tls import ServerTls
from trioha.remoting.address import Address
from trioha.remoting.connections import Connections
from trioha.remoting.server import RemotingServer
from trioha.remoting.serving import Peer, ServerLimits, ServerStatistics

log = structlog.get_logger(__name__)

DRAIN_S: Final = 3.0


class NameServer:
    """One name server; `open` makes it, `run` serves."""

    def __init__(
        self,
        settings: NameServerSettings,
        kv: KvConfig,
        *,
        connections_max: int,
        tls: ServerTls | None = None,
    ) -> None:
        self.registry = Registry(
            clock=trio.current_time,
            limits=RegistryLimits(brokers_max=settings.brokers_max, topics_max=settings.topics_max),
        )
        self._processor = NameServerProcessor(self.registry, kv, settings)
        self._server = RemotingServer(
            self._processor,
            Connections(
                ServerLimits(
                    connections_max=connections_max,
                    connections_per_peer_max=max(1, connections_max // 2),
                    total_bytes_max=settings.client_bytes_max,
                    idle_timeout_s=float(settings.idle_timeout_s),
                )
            ),
            tls=tls,
            on_closed=self._closed,
        )

    @classmethod
    async def open(
        cls,
        settings: NameServerSettings,
        *,
        connections_max: int | None = None,
        tls: ServerTls | None = None,
    ) -> NameServer:
        """A name server with the key-value table of its file. Raises StoreError.

        `connections_max` replaces that of the settings where there are not descriptors for so many.
        """
        kv = await run_in_thread(partial(KvConfig.load, settings.kv_config_path))
        return cls(settings, kv, connections_max=connections_max or settings.connections_max, tls=tls)

    @property
    def settings(self) -> NameServerSettings:
        """As they are now."""
        return self._processor.settings

    @property
    def statistics(self) -> ServerStatistics:
        """Counters of the remoting server."""
        return self._server.statistics

    async def run(
        self, *, gate: Gate | None = None, task_status: trio.TaskStatus[Address] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Serve until cancelled, or until `drain` is done; started with the address that is listened on.

        Raises ConfigError if it cannot listen there.
        """
        async with trio.open_nursery() as nursery:
            listening: Sequence[tuple[str, int]] = await nursery.start(
                partial(
                    self._server.serve,
                    host=self.settings.bind_address,
                    port=self.settings.listen_port,
                    gate=gate,
                )
            )
            nursery.start_soon(self._expire)
            task_status.started(Address(*listening[0]))

    async def drain(self) -> None:
        """Stop accepting, answer what is in flight, and close all connections."""
        await self._server.drain(timeout_s=DRAIN_S)

    async def _expire(self) -> None:
        while True:
            await trio.sleep(self.settings.scan_not_active_broker_interval / 1000)
            _log_removed(self.registry.expire(), "it was silent for too long")

    def _closed(self, peer: Peer) -> None:
        _log_removed(self.registry.connection_closed(peer.connection), "its connection was closed")


def _log_removed(removed: tuple[BrokerIdentity, ...], reason: str) -> None:
    for identity in removed:
        log.warning(
            "broker removed",
            reason=reason,
            cluster=identity.cluster_name,
            broker=identity.broker_name,
            broker_id=identity.broker_id,
            address=identity.address,
        )
