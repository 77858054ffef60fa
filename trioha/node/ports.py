"""The listeners of a node for clients and slaves: opened once, while roles may come and go.

Theory of operation. Servers close their listeners when they end. A node with one role gives its listeners
away. A node whose role may change keeps them, and gives each role duplicates of their descriptors: the port
stays open between two roles, and connections of that time wait in the kernel's backlog for the next role.

A port that is 0 in the configuration is opened once, too: each role has the same one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from functools import partial
from typing import Final

import trio
from attrs import frozen

from trioha.config.broker import BrokerConfig
from trioha.errors import ConfigError
from trioha.node.addresses import announced, os_reason
from trioha.remoting.address import Address
from trioha.remoting.server import open_listeners

HA_BACKLOG: Final = 50
"""As RocketMQ's listener (docs/protocol/ha.md#ha-port)."""

Listeners = list[trio.SocketListener]


@frozen(kw_only=True)
class OpenPorts:
    """The listeners of a node, and the addresses at which others reach them."""

    clients: Listeners
    """Of listenPort first, then of the VIP port."""
    clients_address: Address
    slaves: Listeners
    """Of haListenPort."""
    slaves_address: Address


class Ports:
    """Opens each port when it is asked for first."""

    def __init__(self, config: BrokerConfig, *, are_kept: bool = False) -> None:
        """`are_kept`: the ports outlive those that serve them, until `closed`."""
        self._config = config
        self._are_kept = are_kept
        self._kept: dict[str, Listeners] = {}
        self._ends = False

    async def check(self) -> None:
        """Raise ConfigError if a port cannot be listened on now: before a store is made for nothing."""
        async with self.open():
            pass

    @asynccontextmanager
    async def open(self) -> AsyncIterator[OpenPorts]:
        """All ports; at the end of the block the listeners that are still open are closed.

        Raises ConfigError if one cannot be listened on.
        """
        config = self._config
        host = config.bind_address
        with ExitStack() as opened:
            slaves = await self._listeners(
                "slaves",
                partial(
                    open_port, host, config.ha_listen_port, HA_BACKLOG, peers="slaves", key="haListenPort"
                ),
                opened,
            )
            clients = await self._listeners(
                "clients",
                partial(open_listeners, host, config.listen_port, vip_port=config.vip_port),
                opened,
            )
            yield OpenPorts(
                clients=clients,
                clients_address=reached(clients, host, config.broker_ip1),
                slaves=slaves,
                slaves_address=reached(slaves, host, config.broker_ip2),
            )

    async def _listeners(
        self, name: str, opening: Callable[[], Awaitable[Listeners]], opened: ExitStack
    ) -> Listeners:
        """Listeners that `opened` closes."""
        if self._are_kept and not self._ends:
            if name not in self._kept:
                self._kept[name] = await opening()
            found = [_duplicate(listener) for listener in self._kept[name]]
        else:
            found = await opening()
        for listener in found:
            opened.callback(listener.socket.close)
        return found

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


def reached(listeners: Listeners, host: str, broker_ip: str) -> Address:
    """Where others dial the first of the listeners on `host`."""
    port = listeners[0].socket.getsockname()[1]
    assert isinstance(port, int), "TCP addresses have it after the host"
    return Address(announced(host, broker_ip), port)


def _duplicate(listener: trio.SocketListener) -> trio.SocketListener:
    """A listener of the same port with a descriptor of its own. Raises OSError for want of descriptors."""
    return trio.SocketListener(listener.socket.dup())


async def open_port(host: str, port: int, backlog: int, *, peers: str, key: str) -> Listeners:
    """Listen for `peers` on the port that `key` gives. Raises ConfigError."""
    try:
        return await trio.open_tcp_listeners(port, host=host, backlog=backlog)
    except OSError as error:
        raise ConfigError(
            f"cannot listen for {peers} on {host}:{port}: {os_reason(error)}",
            key=key,
            hint="choose another port or stop the program that uses it",
        ) from error
