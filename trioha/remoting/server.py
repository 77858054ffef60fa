"""A server of the remoting protocol: hands requests to one handler and writes its answers.

Theory of operation. Each connection is one nursery with a reader and a single writer; what ends one ends the
connection. The reader cuts frames and calls the handler for each request, in the order of their arrival. A
handler that has its answer at once returns it; one that must wait returns an awaitable, which gets a task of
its own, so that a send that waits three seconds for a slave does not hold the request behind it. Answers are
written as they become ready, in any order, all that are ready in one send: by the reader in its own turn, as
far as the socket takes them at once, else by the writer.

A request is in flight from when it is read until its answer is written. A connection with `in_flight_max`
requests or `in_flight_bytes_max` body bytes in flight is not read from until some are done: a peer that asks
and does not read what it is answered stops itself, and is closed when a send takes longer than
`send_timeout_s`. A connection on which nothing was read or written for `idle_timeout_s` is closed.

Error handling. A handler's exception is a bug: it is logged and answered with SYSTEM_ERROR. BadRequestError
is not: it is answered with its code and reason. A peer that breaks the protocol is closed without an answer,
and counted. One-way requests are never answered (spec remoting 1.3).

Not all that a server says is an answer: `push` sends a frame of its own to a connection, unless bytes are
already waiting to be sent there: who does not read is not sent more.

Cancelling `serve` closes every connection at once; handlers in flight see the cancellation.
"""

from __future__ import annotations

import math
import os
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeAlias

import structlog
import trio
from attrs import field, frozen
from attrs.validators import ge

from trioha.errors import ConfigError, LocalProtocolError, RemoteProtocolError
from trioha.net.housekeeping import Housekeeping
from trioha.net.transport import SocketTransport, send_now
from trioha.remoting.address import Address
from trioha.remoting.codec import FRAME_BYTES_MAX, FrameDecoder, encode_head
from trioha.remoting.codes import ResponseCode
from trioha.remoting.command import BadRequestError, RemotingCommand, response_to

log = structlog.get_logger()

REQUESTS_PER_TURN = 4
"""After so many requests their answers are sent and others get their turn. A client with 16 requests in
flight has then answers to work on while the server works on the rest: no lockstep."""


@frozen
class ServerLimits:
    """How much a server gives to its peers."""

    connections_max: int = field(default=1024, validator=ge(1))
    """Open at a time; one more is closed as soon as it is accepted."""
    in_flight_max: int = field(default=4096, validator=ge(1))
    """Requests of one connection between read and answered. Each pull that waits for messages is one."""
    in_flight_bytes_max: int = field(default=64 * 1024 * 1024, validator=ge(1))
    """Bodies of those requests; a single request may be larger."""
    frame_bytes_max: int = field(default=FRAME_BYTES_MAX, validator=ge(8))
    """One frame, its length field included."""
    idle_timeout_s: float = field(default=120.0, validator=ge(0))
    """Without a read or a write."""
    send_timeout_s: float = field(default=10.0, validator=ge(0))
    """For one send of whatever is ready."""
    receive_bytes_max: int = field(default=64 * 1024, validator=ge(1))
    """One read: what is handled before other connections get their turn."""


@frozen
class Peer:
    """Who asks."""

    address: Address
    connection: int
    """The connection's number on this server, from 1."""

    def __str__(self) -> str:
        return str(self.address)


Handler: TypeAlias = Callable[
    [RemotingCommand, Peer], "RemotingCommand | Awaitable[RemotingCommand | None] | None"
]
"""Answers a request. Returns the answer where it is known at once (much cheaper), else an awaitable of it.
None means that there is no answer: the right thing only for one-way requests."""


@frozen
class ServerStatistics:
    """Counters since the server was made; `connections_open` is as of now."""

    connections_open: int
    connections_accepted: int
    connections_refused: int
    """Closed at once for `connections_max`."""
    requests: int
    """One-way requests included."""
    oneway_requests: int
    responses: int
    """Answers written or waiting to be."""
    unasked_responses: int
    """Responses that peers sent to a server that asks nothing. Ignored."""
    handler_errors: int
    """Exceptions of the handler, answered with SYSTEM_ERROR."""
    protocol_errors: int
    """Connections closed for what the peer sent."""
    broken_connections: int
    """Connections reset by the peer or the network."""
    idle_closes: int
    send_timeouts: int
    """Connections closed because the peer did not read."""


class RemotingServer:
    """A handler, its limits, and what they have seen."""

    def __init__(self, handler: Handler, *, limits: ServerLimits | None = None) -> None:
        self.handler = handler
        self.limits = ServerLimits() if limits is None else limits
        self.connections_open = 0
        self.connections_accepted = 0
        self.connections_refused = 0
        self.requests = 0
        self.oneway_requests = 0
        self.responses = 0
        self.unasked_responses = 0
        self.handler_errors = 0
        self.protocol_errors = 0
        self.broken_connections = 0
        self.idle_closes = 0
        self.send_timeouts = 0
        self._connections: dict[int, _Connection] = {}
        """Those that are served now, by their number."""

    def push(self, connection: int, frame: bytes) -> bool:
        """Send a whole frame that no request waits for to the connection of that number, if it takes it now.

        It is dropped where bytes still wait to be sent there. False if there is no such connection.
        """
        served = self._connections.get(connection)
        if served is not None:
            served.push(frame)
        return served is not None

    @property
    def statistics(self) -> ServerStatistics:
        """The counters as they are now."""
        return ServerStatistics(
            self.connections_open,
            self.connections_accepted,
            self.connections_refused,
            self.requests,
            self.oneway_requests,
            self.responses,
            self.unasked_responses,
            self.handler_errors,
            self.protocol_errors,
            self.broken_connections,
            self.idle_closes,
            self.send_timeouts,
        )

    async def serve(
        self,
        *,
        host: str | None,
        port: int,
        task_status: trio.TaskStatus[Sequence[tuple[str, int]]] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Listen and serve until cancelled; started with the `(host, port)` pairs that are listened on.

        `host` None is all interfaces; `port` 0 is a free one. Raises ConfigError if it cannot listen there.
        """
        try:
            listeners = await trio.open_tcp_listeners(port, host=host)
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
            raise ConfigError(
                f"cannot listen on {host or '*'}:{port}: {reason}",
                hint="choose another address or stop who uses it",
            ) from error
        async with trio.open_nursery() as nursery:
            await nursery.start(trio.serve_listeners, self.serve_connection, listeners)
            task_status.started([_host_and_port(listener.socket.getsockname()) for listener in listeners])

    async def serve_connection(self, stream: trio.SocketStream) -> None:
        """Serve one accepted connection until it ends, and close it."""
        async with stream:
            if self.connections_open >= self.limits.connections_max:
                self.connections_refused += 1
                return
            try:
                host, port = _host_and_port(stream.socket.getpeername())
            except OSError:
                # Gone between accept and here.
                self.broken_connections += 1
                return
            async with SocketTransport.take_over(stream) as transport:
                await self.serve_stream(transport, Address(host, port))

    async def serve_stream(self, stream: trio.abc.Stream, address: Address) -> None:
        """Serve `stream`, whatever it is made of, as a connection from `address`. The caller closes it."""
        self.connections_open += 1
        self.connections_accepted += 1
        peer = Peer(address, self.connections_accepted)
        connection = self._connections[peer.connection] = _Connection(self, stream, peer)
        try:
            await connection.run()
        finally:
            del self._connections[peer.connection]
            self.connections_open -= 1


async def serve(
    handler: Handler,
    *,
    host: str | None,
    port: int,
    limits: ServerLimits | None = None,
    task_status: trio.TaskStatus[Sequence[tuple[str, int]]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """`RemotingServer(handler, limits=limits).serve(...)` for whoever needs no statistics."""
    await RemotingServer(handler, limits=limits).serve(host=host, port=port, task_status=task_status)


class _Connection:
    """One connection: its reader, its writer, and the requests in flight between them."""

    def __init__(self, server: RemotingServer, stream: trio.abc.Stream, peer: Peer) -> None:
        self._server = server
        self._limits = server.limits
        self._stream = stream
        self._peer = peer
        self._decoder = FrameDecoder(frame_bytes_max=self._limits.frame_bytes_max)
        self._housekeeping = Housekeeping(patience_s=math.inf)
        self._outbox: list[bytes | memoryview] = []
        self._outbox_filled = trio.Event()
        self._in_flight = 0
        """Requests read and not yet answered on the wire."""
        self._in_flight_bytes = 0
        """Their bodies."""
        self._answered = 0
        """Those of them whose answers are in the outbox."""
        self._answered_bytes = 0
        self._room: trio.Event | None = None
        """Set when there is room again; None unless the reader waits for it."""
        self._is_turn_of_reader = False
        """Whether the reader is at work, and will send what is in the outbox."""
        self._is_sending = False
        """Whether the writer is in the middle of a send."""
        self._is_over = False

    async def run(self) -> None:
        """Serve until either side ends it."""
        self._housekeeping = Housekeeping(patience_s=self._limits.idle_timeout_s)
        async with trio.open_nursery() as handlers:
            await self._housekeeping.run(partial(self._read, handlers), self._write)
            handlers.cancel_scope.cancel()
        self._server.idle_closes += self._housekeeping.is_expired

    def _end(self, *, is_broken: bool) -> None:
        """The connection is over. Reader and writer may both find it broken: whoever ends it counts it."""
        self._server.broken_connections += is_broken and not self._is_over
        self._is_over = True

    def _not_idle(self) -> None:
        self._housekeeping.deadline_s = trio.current_time() + self._limits.idle_timeout_s

    async def _read(self, handlers: trio.Nursery) -> None:
        handled = 0
        try:
            while data := await self._stream.receive_some(self._limits.receive_bytes_max):
                self._not_idle()
                self._decoder.feed(data)
                self._is_turn_of_reader = True
                while (command := self._decoder.next_command()) is not None:
                    if command.is_response:
                        self._server.unasked_responses += 1
                        continue
                    if not self._has_room(command):
                        self._end_turn()
                        await self._wait_for_room(command)
                        self._is_turn_of_reader = True
                    self._handle(command, handlers)
                    handled += 1
                    if handled % REQUESTS_PER_TURN == 0:
                        self._end_turn()
                        await trio.lowlevel.checkpoint()
                        self._is_turn_of_reader = True
                self._end_turn()
            self._end(is_broken=False)
        except trio.BrokenResourceError:
            self._end(is_broken=True)
        except RemoteProtocolError as error:
            self._end(is_broken=False)
            self._server.protocol_errors += 1
            log.warning("remoting connection closed", peer=str(self._peer), reason=str(error))

    def _end_turn(self) -> None:
        """Send what is answered, as far as the socket takes it at once; the rest is the writer's."""
        self._is_turn_of_reader = False
        if not self._outbox:
            return
        if not self._is_sending:
            batch = b"".join(self._outbox)
            left = send_now(self._stream, batch)
            if not left:
                self._outbox.clear()
                self._leave_flight(*self._take_answered())
                return
            self._outbox = [left]
        self._outbox_filled.set()

    def push(self, frame: bytes) -> None:
        """Send `frame`, or drop it if other bytes wait."""
        if self._outbox or self._is_sending or self._is_over:
            return
        try:
            left = send_now(self._stream, frame)
        except trio.BrokenResourceError:
            # The reader finds that, too, and ends the connection.
            return
        if left:
            self._outbox.append(left)
            self._outbox_filled.set()

    def _take_answered(self) -> tuple[int, int]:
        """How many requests, with bodies of how many bytes, the answers in the outbox are for."""
        answered = self._answered, self._answered_bytes
        self._answered = self._answered_bytes = 0
        return answered

    def _has_room(self, command: RemotingCommand) -> bool:
        if self._in_flight == 0:
            return True
        return (
            self._in_flight < self._limits.in_flight_max
            and self._in_flight_bytes + len(command.body) <= self._limits.in_flight_bytes_max
        )

    async def _wait_for_room(self, command: RemotingCommand) -> None:
        while not self._has_room(command):
            self._room = trio.Event()
            await self._room.wait()
        self._room = None

    def _handle(self, command: RemotingCommand, nursery: trio.Nursery) -> None:
        self._server.requests += 1
        self._in_flight += 1
        self._in_flight_bytes += len(command.body)
        try:
            answer = self._server.handler(command, self._peer)
        except Exception as error:  # noqa: BLE001 - a handler's bug must not take the connection along
            answer = self._answer_to_error(command, error)
        if answer is None or isinstance(answer, RemotingCommand):
            self._done(command, answer)
        else:
            nursery.start_soon(self._await_answer, command, answer)

    async def _await_answer(
        self, command: RemotingCommand, awaitable: Awaitable[RemotingCommand | None]
    ) -> None:
        try:
            answer = await awaitable
        except Exception as error:  # noqa: BLE001 - as in _handle
            answer = self._answer_to_error(command, error)
        self._done(command, answer)

    def _answer_to_error(self, command: RemotingCommand, error: Exception) -> RemotingCommand:
        if isinstance(error, BadRequestError):
            return response_to(command, error.code, remark=error.reason)
        self._server.handler_errors += 1
        log.error("request failed", code=command.code, peer=str(self._peer), exc_info=error)
        return response_to(command, ResponseCode.SYSTEM_ERROR, remark=f"{type(error).__name__}: {error}")

    def _done(self, command: RemotingCommand, answer: RemotingCommand | None) -> None:
        """The handler is through with `command`: queue its answer, if it is to have one."""
        if command.is_oneway or answer is None:
            self._server.oneway_requests += command.is_oneway
            self._leave_flight(1, len(command.body))
            return
        try:
            head = encode_head(answer)
        except LocalProtocolError as error:
            answer = self._answer_to_error(command, error)
            head = encode_head(answer)
        if not self._is_turn_of_reader:
            self._outbox_filled.set()
        self._outbox.append(head)
        if answer.body:
            self._outbox.append(answer.body)
        self._server.responses += 1
        self._answered += 1
        self._answered_bytes += len(command.body)

    def _leave_flight(self, requests: int, body_bytes: int) -> None:
        self._in_flight -= requests
        self._in_flight_bytes -= body_bytes
        if self._room is not None:
            self._room.set()

    async def _write(self) -> None:
        # One scope for all sends: a new one for each would cost as much as the rest of a small one.
        sending = trio.CancelScope()
        try:
            with sending:
                while True:
                    await self._outbox_filled.wait()
                    self._outbox_filled = trio.Event()
                    if not self._outbox:
                        # The reader has sent it.
                        continue
                    batch = b"".join(self._outbox)
                    self._outbox.clear()
                    answered = self._take_answered()
                    sending.deadline = trio.current_time() + self._limits.send_timeout_s
                    self._is_sending = True
                    await self._stream.send_all(batch)
                    self._is_sending = False
                    sending.deadline = math.inf
                    self._not_idle()
                    self._leave_flight(*answered)
        except trio.BrokenResourceError:
            self._end(is_broken=True)
        if sending.cancelled_caught:
            self._server.send_timeouts += 1
            log.warning(
                "remoting connection closed",
                peer=str(self._peer),
                reason=f"it took nothing for {self._limits.send_timeout_s:g} s",
            )


def _host_and_port(socket_address: tuple[object, ...]) -> tuple[str, int]:
    host, port = socket_address[:2]
    assert isinstance(host, str), "TCP addresses start with the host"
    assert isinstance(port, int), "and go on with the port"
    return host, port
