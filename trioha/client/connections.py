"""Connections to brokers and name servers, one for each address, made when they are needed.

Theory of operation. Each connection has a task of its own, which opens it, keeps it until it is lost, and
then removes it: the next request to that address opens a new one. Requests that need a connection at the same
time share one attempt; each of them gets its error.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Final, Protocol

import trio

from trioha.errors import ConfigError, PeerError
from trioha.remoting.client import (
    NO_SECURITY,
    ClientSecurity,
    ConnectionLostError,
    OnRequest,
    RemotingClient,
    open_client,
)
from trioha.remoting.codes import ResponseCode
from trioha.remoting.command import RemotingCommand
from trioha.remoting.wrong_port import check_kind

CONNECTIONS_MAX: Final = 1024


class Open(Protocol):
    """Connects to an address."""

    def __call__(self, address: str, *, on_request: OnRequest) -> AbstractAsyncContextManager[RemotingClient]:
        """As `open_client`."""


class _Connection:
    """One connection, which is being opened at first."""

    def __init__(self) -> None:
        self.opened = trio.Event()
        """Set when `client` or `error` is set."""
        self.client: RemotingClient | None = None
        self.error: str | None = None


class Connections:
    """All connections of a client."""

    def __init__(
        self,
        nursery: trio.Nursery,
        *,
        connect_timeout_s: float = 3.0,
        security: ClientSecurity = NO_SECURITY,
        open_connection: Open | None = None,
        on_request: Callable[[str, RemotingCommand], None] = lambda _address, _command: None,
        on_opened: Callable[[str], None] = lambda _address: None,
    ) -> None:
        """Connections live in `nursery`, until it is cancelled; tests replace `open_connection`.

        `on_request` is called with the address and each request of a server, whose body is valid during the
        call only, `on_opened` with the address of each new connection. Neither may block.
        """
        self._nursery = nursery
        self._open = open_connection or partial(
            open_client, connect_timeout_s=connect_timeout_s, security=security
        )
        self._connections: dict[str, _Connection] = {}
        self._on_request = on_request
        self._on_opened = on_opened

    async def get(self, address: str) -> RemotingClient:
        """A connection to `address`, opened if there is none. Raises PeerError if none can be made."""
        while True:
            connection = self._connections.get(address)
            if connection is None:
                if len(self._connections) >= CONNECTIONS_MAX:
                    raise ConnectionLostError(
                        f"not connected: there are {CONNECTIONS_MAX} connections", address=address
                    )
                connection = self._connections[address] = _Connection()
                self._nursery.start_soon(self._keep, address, connection)
            await connection.opened.wait()
            if connection.error is not None:
                raise ConnectionLostError(connection.error, address=address)
            assert connection.client is not None, "without an error there is a client"
            if connection.client.is_connected:
                return connection.client
            self._remove(address, connection)

    async def request(
        self, address: str, command: RemotingCommand, *, timeout_s: float = 3.0
    ) -> RemotingCommand:
        """Send `command` to `address`; its response, of any code.

        Raises PeerError without a response, and if a server of another kind answers there.
        """
        client = await self.get(address)
        answer = await client.request(command, timeout_s=timeout_s)
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            await check_kind(client, command.code, timeout_s=timeout_s)
        return answer

    async def _keep(self, address: str, connection: _Connection) -> None:
        try:
            async with self._open(address, on_request=partial(self._on_request, address)) as client:
                connection.client = client
                connection.opened.set()
                self._on_opened(address)
                await client.wait_lost()
        except PeerError as error:
            connection.error = error.reason
        except ConfigError as error:
            # The address came from a name server.
            connection.error = str(error)
        finally:
            if connection.client is None and connection.error is None:
                connection.error = "the client is closed"
            connection.opened.set()
            self._remove(address, connection)

    def _remove(self, address: str, connection: _Connection) -> None:
        if self._connections.get(address) is connection:
            del self._connections[address]
