"""The listeners of a node: opened once, while roles may come and go.

Theory of operation. Servers close their listeners when they end. A node with one role gives its listeners
away. A node whose role may change keeps them, and gives each role duplicates of their descriptors: the port
stays open between two roles, and connections of that time wait in the kernel's backlog for the next role.

A port that is 0 in the configuration is opened once, too: each role has the same one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final

import trio

from trioha.config.broker import BrokerConfig
from trioha.errors import ConfigError
from trioha.node.addresses import announced, os_reason
from trioha.remoting.address import Address
from trioha.remoting.server import open_listeners

HA_BACKLOG: Final = 50
"""As RocketMQ's listener (docs/protocol/ha.md#ha-port)."""
METRICS_BACKLOG: Final = 16
"""Connections for metrics that wait until they are accepted."""

Listeners = list[trio.SocketListener]


class Ports:
    """Opens each port when it is asked for first. The caller of a method owns the listeners that it gets."""

    def __init__(self, config: BrokerConfig, *, are_kept: bool = False) -> None:
        """`are_kept`: the ports outlive those that serve them, until `closed`."""
        self._config = config
        self._are_kept = are_kept
        self._kept: dict[str, Listeners] = {}
        self._ends = False

    async def check(self) -> None:
        """Raise ConfigError if a port cannot be listened on now: before a store is made for nothing."""
        listeners, _ = await self.for_slaves()
        listeners += await self.for_clients()
        if self._config.metrics_port is not None:
            listeners += await self.for_metrics()
        for listener in listeners:
            await listener.aclose()

    async def for_clients(self) -> Listeners:
        """Of listenPort first, then of the VIP port. Raises ConfigError."""
        config = self._config
        return await self._listeners(
            "clients",
            lambda: open_listeners(config.bind_address, config.listen_port, vip_port=config.vip_port),
        )

    async def for_slaves(self) -> tuple[Listeners, Address]:
        """Of haListenPort, and the address that slaves dial. Raises ConfigError."""
        host, port = self._config.bind_address, self._config.ha_listen_port
        listeners = await self._listeners(
            "slaves",
            lambda: _open(host, port, HA_BACKLOG, peers="slaves", key="haListenPort"),
        )
        return listeners, Address(announced(host, self._config.broker_ip2), bound_port(listeners))

    async def for_metrics(self) -> Listeners:
        """Of trioha.metricsPort. Raises ConfigError."""
        host, port = self._config.metrics_bind_address, self._config.metrics_port
        assert port is not None, "there is nothing to serve without a port"
        return await self._listeners(
            "metrics",
            lambda: _open(host, port, METRICS_BACKLOG, peers="Prometheus", key="trioha.metricsPort"),
        )

    async def _listeners(self, name: str, opened: Callable[[], Awaitable[Listeners]]) -> Listeners:
        if not self._are_kept or self._ends:
            return await opened()
        if name not in self._kept:
            self._kept[name] = await opened()
        return [_duplicate(listener) for listener in self._kept[name]]

    def end(self) -> None:
        """Close what was kept: each port is closed as soon as the part that serves it now closes it."""
        self._ends = True
        for listeners in self._kept.values():
            for listener in listeners:
                listener.socket.close()
        self._kept.clear()

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Closes what was kept at the end of the block."""
        try:
            yield
        finally:
            self.end()


def bound_port(listeners: Listeners) -> int:
    """The port that the first listener has."""
    port = listeners[0].socket.getsockname()[1]
    assert isinstance(port, int), "TCP addresses have it after the host"
    return port


def _duplicate(listener: trio.SocketListener) -> trio.SocketListener:
    """A listener of the same port with a descriptor of its own. Raises OSError for want of descriptors."""
    return trio.SocketListener(listener.socket.dup())


async def _open(host: str, port: int, backlog: int, *, peers: str, key: str) -> Listeners:
    try:
        return await trio.open_tcp_listeners(port, host=host, backlog=backlog)
    except OSError as error:
        raise ConfigError(
            f"cannot listen for {peers} on {host}:{port}: {os_reason(error)}",
            key=key,
            hint="choose another port or stop the program that uses it",
        ) from error
