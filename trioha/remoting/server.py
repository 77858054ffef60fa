"""A server of the remoting protocol: calls one handler for each request and writes the answers.

Theory of operation. The accept loop and the connections have a nursery each, the loop's within that of the
connections, so that accepting ends first and connections are drained before they are cut:

```
serve
+- connections          a ServerConnection each
   +- accept loop       ends with `stop_accepting`
```

`stop_accepting` closes the listeners. `drain` also closes each connection as soon as its requests in flight
are answered, or at the timeout. `serve` returns when accepting has ended and the last connection is closed;
cancelling it closes every connection at once.

Error handling. An exception of the handler is a bug: it is logged and answered with SYSTEM_ERROR, except
BadRequestError, which is answered with its code and reason. A connection whose peer breaks the protocol is
closed without an answer, and counted. One-way requests are never answered
(docs/protocol/remoting.md#requests-and-responses). Every other error of a connection ends at its boundary: it
is counted and logged, and affects no other connection.

`Connections.push` sends a frame that is not an answer.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

import trio

from trioha.errors import ConfigError
from trioha.net.descriptors import Gate, OpenGate
from trioha.net.error_boundary import is_shortage
from trioha.net.listen import serve_listeners
from trioha.net.tls import ServerTls
from trioha.net.transport import SocketTransport
from trioha.remoting.address import Address
from trioha.remoting.connections import Connections
from trioha.remoting.opening import open_stream
from trioha.remoting.pull_forms import PullForms
from trioha.remoting.server_connection import ServerConnection
from trioha.remoting.serving import (
    AckHandler,
    Handler,
    Peer,
    PullHandler,
    RunHandler,
    ServerLimits,
    ServerStatistics,
)

__all__ = ["Handler", "Peer", "RemotingServer", "ServerLimits", "ServerStatistics"]


class RemotingServer:
    """Serves connections with one handler."""

    def __init__(
        self,
        handler: Handler,
        connections: Connections | None = None,
        *,
        tls: ServerTls | None = None,
        runs: RunHandler | None = None,
        pulls: PullHandler | None = None,
        acks: AckHandler | None = None,
        forms: PullForms | None = None,
        on_closed: Callable[[Peer], None] | None = None,
    ) -> None:
        """`connections` are those of this server alone, by default with the limits of `ServerLimits()`.

        `tls` None: connections that start TLS are closed, as connections with an invalid frame.

        `runs` handles sends that come together, `acks` acknowledgements, `pulls` answers pulls of known
        forms, which are kept in `forms`; without them, `handler` gets each. `on_closed` is called once for
        each connection after its end; must not block.
        """
        self.handler = handler
        self.connections = Connections() if connections is None else connections
        self.limits = self.connections.limits
        self._tls = tls
        self._runs = runs
        self._pulls = pulls
        self._acks = acks
        self._forms = forms
        self._on_closed = on_closed
        self._counters = self.connections.counters
        self._open_by_host: Counter[str] = Counter()
        """Number of open connections by address."""
        self._accepting = trio.CancelScope()
        self._accepting_ended: trio.Event | None = None
        """Set when the listeners are closed; None before `serve`."""
        self._is_draining = False
        self._one_less = trio.Event()
        """Set when a connection has ended."""

    @property
    def statistics(self) -> ServerStatistics:
        """The current counters."""
        return self.connections.statistics()

    async def serve(
        self,
        *,
        host: str | None,
        port: int,
        vip_port: int | None = None,
        gate: Gate | None = None,
        task_status: trio.TaskStatus[Sequence[tuple[str, int]]] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Listen and serve, as `open_listeners` and `serve_listeners` do. Raises ConfigError if it cannot
        listen on the address."""
        listeners = await open_listeners(host, port, vip_port=vip_port)
        await self.serve_listeners(listeners, gate=gate, task_status=task_status)

    async def serve_listeners(
        self,
        listeners: Sequence[trio.SocketListener],
        *,
        gate: Gate | None = None,
        task_status: trio.TaskStatus[Sequence[tuple[str, int]]] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve on `listeners`, and close them; `started` gives their `(host, port)` pairs.

        Connections are accepted only while `gate` is open. Returns when accepting was stopped and the last
        connection has ended.
        """
        self._accepting_ended = trio.Event()
        async with trio.open_nursery() as connections:
            try:
                with self._accepting:
                    async with trio.open_nursery() as accepting:
                        await accepting.start(
                            partial(
                                serve_listeners,
                                self.serve_connection,
                                listeners,
                                gate=OpenGate() if gate is None else gate,
                                handler_nursery=connections,
                                boundary=self.connections.boundary,
                            )
                        )
                        task_status.started(
                            [_host_and_port(listener.socket.getsockname()) for listener in listeners]
                        )
            finally:
                self._accepting_ended.set()

    def stop_accepting(self) -> None:
        """Close the listeners; connections stay open."""
        self._accepting.cancel()

    async def drain(self, *, timeout_s: float = 3.0) -> None:
        """Stop accepting, read no more requests, answer those in flight, and close all connections.

        A request in flight is answered when its handler has the answer, at its own deadline at the latest;
        connections that are still open after `timeout_s` are cut. Returns when all are closed. After a
        cancellation the connections go on draining.
        """
        self.stop_accepting()
        self._is_draining = True
        if self._accepting_ended is not None:
            # A client whose connection has ended must not be accepted again.
            await self._accepting_ended.wait()
        for opening in self.connections.openings:
            # No request of it was received.
            opening.cancel()
        for connection in self.connections.served.values():
            connection.drain()
        with trio.move_on_after(timeout_s):
            await self._all_ended()
        for connection in self.connections.served.values():
            connection.cut()
        await self._all_ended()

    async def _all_ended(self) -> None:
        while len(self.connections):
            self._one_less = trio.Event()
            await self._one_less.wait()

    async def serve_connection(self, stream: trio.SocketStream) -> None:
        """Serve one accepted connection until it ends, and close it."""
        async with stream:
            if self._is_draining or len(self.connections) >= self.limits.connections_max:
                self._counters.connections_refused += 1
                return
            try:
                host, port = _host_and_port(stream.socket.getpeername())
                if self._open_by_host[host] >= self.limits.connections_per_peer_max:
                    self._counters.connections_refused += 1
                    return
                transport = SocketTransport.from_stream(stream)
            except OSError as error:
                if is_shortage(error):
                    raise
                # The peer has closed the connection since it was accepted.
                self._counters.broken_connections += 1
                return
            self._open_by_host[host] += 1
            try:
                async with transport:
                    await self.serve_stream(transport, Address(host, port))
            finally:
                self._open_by_host[host] -= 1
                if not self._open_by_host[host]:
                    del self._open_by_host[host]

    async def serve_stream(self, stream: trio.abc.Stream, address: Address) -> None:
        """Serve any kind of stream as a connection from `address`. The caller closes it."""
        self._counters.connections_accepted += 1
        peer = Peer(address, self._counters.connections_accepted)
        connections = self.connections
        with connections.boundary.around(str(peer)):
            opened = stream if self._tls is None else await self._open_stream(stream, peer, self._tls)
            if opened is None:
                return
            connection = connections.served[peer.connection] = ServerConnection(
                opened,
                peer,
                handler=self.handler,
                limits=self.limits,
                memory=connections.memory,
                counters=self._counters,
                boundary=connections.boundary,
                closures=connections.closures,
                runs=self._runs,
                pulls=self._pulls,
                acks=self._acks,
                forms=self._forms,
            )
            try:
                await connection.run()
            finally:
                del connections.served[peer.connection]
                self._one_less.set()
                if self._on_closed is not None:
                    self._on_closed(peer)

    async def _open_stream(
        self, stream: trio.abc.Stream, peer: Peer, tls: ServerTls
    ) -> trio.abc.Stream | None:
        """The stream of requests, plain or with TLS; None if the connection must be closed."""
        opened: trio.abc.Stream | None = None
        with trio.CancelScope() as opening:
            self.connections.openings.add(opening)
            try:
                opened = await open_stream(
                    stream,
                    peer,
                    tls=tls,
                    limits=self.limits,
                    counters=self._counters,
                    closures=self.connections.closures,
                )
            finally:
                self.connections.openings.remove(opening)
                self._one_less.set()
        return None if self._is_draining else opened


async def open_listeners(
    host: str | None, port: int, *, vip_port: int | None = None
) -> list[trio.SocketListener]:
    """Listeners for clients, for `RemotingServer.serve_listeners`.

    `host` None is all interfaces, `port` 0 a free port; with `vip_port` there are listeners for it, too,
    after those of `port`. Raises ConfigError if the system refuses one.
    """
    listeners = await _listeners(host, port)
    if vip_port is not None:
        try:
            listeners += await _listeners(host, vip_port, of=", the VIP port")
        except BaseException:
            for listener in listeners:
                listener.socket.close()
            raise
    return listeners


async def _listeners(host: str | None, port: int, *, of: str = "") -> list[trio.SocketListener]:
    """Listeners on a port. Raises ConfigError."""
    try:
        return await trio.open_tcp_listeners(port, host=host)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
        raise ConfigError(
            f"cannot listen on {host or '*'}:{port}{of}: {reason}",
            hint="choose another address or stop the program that uses it",
        ) from error


def _host_and_port(socket_address: tuple[object, ...]) -> tuple[str, int]:
    host, port = socket_address[:2]
    assert isinstance(host, str), "TCP addresses start with the host"
    assert isinstance(port, int), "and have the port after it"
    return host, port
