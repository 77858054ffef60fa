"""A client of the remoting protocol: many requests in flight over one connection.

See docs/protocol/remoting.md#requests-and-responses.

Theory of operation. `request` chooses an opaque, puts its frame into the outbox and sleeps. One task sends
the whole outbox at once; another reads responses, in any order, and wakes their requests. A response without
a waiting request is counted and dropped; a request of the server is counted, and passed to `on_request`.
When the connection ends, every waiting and every later request fails with `ConnectionLostError`: a new
connection is a new client. A bug of ours ends the connection in the same way, at its boundary, where it is
logged: it never leaves `open_client` as a group of exceptions.
"""

from __future__ import annotations

import math
import os
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

import trio
from attrs import define, frozen

from trioha.errors import LocalProtocolError, PeerError, RemoteProtocolError
from trioha.net.error_boundary import ErrorBoundary
from trioha.remoting.address import Address, parse_address
from trioha.remoting.codec import FRAME_BYTES_MAX, FrameDecoder, encode
from trioha.remoting.command import RemotingCommand
from trioha.remoting.signature import Credentials, signed
from trioha.remoting.wrong_port import NO_TLS, UNANSWERED, words_of_bytes, words_of_handshake

RECEIVE_BYTES_MAX = 256 * 1024
"""Bytes of one read from the socket."""
SEND_TIMEOUT_S = 10.0
"""The connection ends when the server receives nothing for so long."""
FRAME_TIMEOUT_S = 30.0
"""The connection ends when a frame is not whole after so long, and a second more for each
`FRAME_BYTES_PER_S_MIN` of it: a peer that sends a byte now and then would keep it for ever."""
FRAME_BYTES_PER_S_MIN = 64 * 1024
OPAQUE_MAX = 2**31 - 1
FIRST_BYTES = 8
"""Bytes that show which protocol a peer speaks that does not speak remoting."""
BOUNDARY = ErrorBoundary("connection to a remoting server")
"""Shared by all clients of this process."""


class RequestTimeoutError(PeerError):
    """The peer is connected and did not answer in time."""


class ConnectionLostError(PeerError):
    """The connection ended or could not be made; the request may have been executed."""


@frozen
class ClientStatistics:
    """Counters of one connection since it was made."""

    requests: int
    """Sent or in the outbox."""
    responses: int
    """Responses to waiting requests."""
    late_responses: int
    """Responses without a waiting request: too late, or with an unknown opaque."""
    server_requests: int
    """Requests of the server."""


OnRequest = Callable[[RemotingCommand], None]
"""Called with each request of the server, by the reader: it must not block. The body is valid during the call
only."""


def ignore_request(_command: RemotingCommand) -> None:
    """An `OnRequest`."""


@define(eq=False)
class _Waiter:
    task: trio.lowlevel.Task
    response: RemotingCommand | None = None


class RemotingClient:
    """One connection to a broker or name server; made by `open_client`."""

    def __init__(
        self,
        stream: trio.abc.Stream,
        address: str,
        *,
        local_address: Address | None = None,
        peer_host: str | None = None,
        frame_bytes_max: int = FRAME_BYTES_MAX,
        credentials: Credentials | None = None,
        on_request: OnRequest = ignore_request,
    ) -> None:
        """Requests are signed with `credentials`; `on_request` gets those of the server."""
        self._stream = stream
        self._address = address
        self._local_address = local_address
        self._peer_host = peer_host
        self._credentials = credentials
        self._decoder = FrameDecoder(frame_bytes_max=frame_bytes_max)
        self._waiting: dict[int, _Waiter] = {}
        self._outbox: list[bytes] = []
        self._outbox_filled = trio.Event()
        self._opaque = 0
        self._first_bytes = b""
        """Start of what was received."""
        self._frame_began_s = 0.0
        """When the first byte of the unfinished frame came."""
        self._lost_because: str | None = None
        self._lost = trio.Event()
        self._requests = 0
        self._responses = 0
        self._late_responses = 0
        self._server_requests = 0
        self._on_request = on_request

    @property
    def address(self) -> str:
        """The peer as `host:port`."""
        return self._address

    @property
    def is_connected(self) -> bool:
        """False as soon as the connection has ended, for good."""
        return self._lost_because is None

    @property
    def local_address(self) -> Address | None:
        """Our end of the connection; None if the stream is not a socket."""
        return self._local_address

    @property
    def peer_host(self) -> str | None:
        """The peer's IP address; None if the stream is not a socket."""
        return self._peer_host

    async def wait_lost(self) -> str:
        """Wait until the connection has ended; returns the reason."""
        await self._lost.wait()
        assert self._lost_because is not None, "the event is set with the reason"
        return self._lost_because

    @property
    def statistics(self) -> ClientStatistics:
        """The current counters."""
        return ClientStatistics(self._requests, self._responses, self._late_responses, self._server_requests)

    async def request(self, command: RemotingCommand, *, timeout_s: float = 3.0) -> RemotingCommand:
        """Send `command` with a new opaque and return its response, of any code.

        Raises RequestTimeoutError after `timeout_s`, ConnectionLostError when the connection ends first (both
        are PeerError), and LocalProtocolError for a command that no frame can hold. After a cancellation the
        peer may still execute the request; its answer is dropped.
        """
        opaque = self._send(command)
        waiter = self._waiting[opaque] = _Waiter(trio.lowlevel.current_task())

        def give_up(_: object) -> trio.lowlevel.Abort:
            # Before the task runs again: an answer that is read until then must not wake it twice.
            self._waiting.pop(opaque, None)
            return trio.lowlevel.Abort.SUCCEEDED

        # No Event: at tens of thousands of requests a second each object costs.
        with trio.move_on_after(timeout_s):
            await trio.lowlevel.wait_task_rescheduled(give_up)
        if waiter.response is not None:
            return waiter.response
        if self._lost_because is not None:
            raise ConnectionLostError(self._lost_because, address=self._address)
        raise RequestTimeoutError(
            f"no answer to request {command.code} in {timeout_s:g} s", address=self._address
        )

    def send_oneway(self, command: RemotingCommand) -> None:
        """Put a one-way request into the outbox.

        Raises ConnectionLostError on an ended connection, LocalProtocolError if `command` is not one-way.
        """
        if not command.is_oneway:
            raise LocalProtocolError(f"request {command.code} is not one-way: use request()")
        self._send(command)

    def _send(self, command: RemotingCommand) -> int:
        if self._lost_because is not None:
            raise ConnectionLostError(self._lost_because, address=self._address)
        if self._credentials is not None:
            command = signed(command, self._credentials)
        opaque = self._opaque
        self._opaque = 0 if opaque == OPAQUE_MAX else opaque + 1
        if not self._outbox:
            self._outbox_filled.set()
        self._outbox.append(encode(command, opaque=opaque))
        self._requests += 1
        return opaque

    async def _run(self) -> None:
        """Read and write until the connection ends, then fail all waiting requests."""
        try:
            with BOUNDARY.around(self._address) as guarded:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._read, nursery.cancel_scope)
                    nursery.start_soon(self._write, nursery.cancel_scope)
            if guarded.error is not None:
                self._lose(f"a fault of this program: {type(guarded.error).__name__}: {guarded.error}")
        finally:
            self._lose("the connection was closed")

    async def _read(self, connection: trio.CancelScope) -> None:
        decoder = self._decoder
        try:
            with trio.CancelScope() as reading:
                while True:
                    data = await self._stream.receive_some(RECEIVE_BYTES_MAX)
                    if not data:
                        self._lose(self._end_of("the peer closed the connection"))
                        break
                    self._first_bytes = self._first_bytes or bytes(data[:FIRST_BYTES])
                    decoder.feed(data)
                    has_ended = False
                    while (command := decoder.next_command()) is not None:
                        self._receive(command)
                        has_ended = True
                    self._note_unfinished(reading, begins=has_ended)
            if reading.cancelled_caught:
                took_s = trio.current_time() - self._frame_began_s
                self._lose(f"a frame of the peer was not whole after {took_s:.0f} s")
        except trio.BrokenResourceError as error:
            self._lose(self._end_of(f"the connection broke: {_reason(error)}"))
        except RemoteProtocolError as error:
            words = None if self._responses else words_of_bytes(self._first_bytes)
            self._lose(words or f"the peer does not speak remoting: {error}")
        connection.cancel()

    def _note_unfinished(self, reading: trio.CancelScope, *, begins: bool) -> None:
        """Set the deadline of the unfinished frame, if there is one; `begins`: another frame has just ended.

        Every request has a timeout of its own; this ends the connection, on which none is answered any more.
        """
        if not self._decoder.buffered_bytes:
            reading.deadline = math.inf
            return
        if begins or reading.deadline == math.inf:
            self._frame_began_s = trio.current_time()
        reading.deadline = (
            self._frame_began_s + FRAME_TIMEOUT_S + self._decoder.wanted_bytes / FRAME_BYTES_PER_S_MIN
        )

    def _receive(self, command: RemotingCommand) -> None:
        if not command.is_response:
            self._server_requests += 1
            self._on_request(command)
            return
        waiter = self._waiting.pop(command.opaque, None)
        if waiter is None:
            self._late_responses += 1
            return
        self._responses += 1
        waiter.response = command
        trio.lowlevel.reschedule(waiter.task)

    async def _write(self, connection: trio.CancelScope) -> None:
        try:
            while True:
                await self._outbox_filled.wait()
                batch = b"".join(self._outbox)
                self._outbox.clear()
                self._outbox_filled = trio.Event()
                with trio.fail_after(SEND_TIMEOUT_S):
                    await self._stream.send_all(batch)
        except trio.BrokenResourceError as error:
            self._lose(self._end_of(f"the connection broke: {_reason(error)}"))
        except trio.TooSlowError:
            self._lose(f"the peer took nothing for {SEND_TIMEOUT_S:g} s")
        connection.cancel()

    def _end_of(self, reason: str) -> str:
        """Why the peer has ended the connection: `reason`, unless it never answered a request."""
        return UNANSWERED if self._requests and not self._first_bytes else reason

    def _lose(self, reason: str) -> None:
        """End the connection with its first reason, with which every waiting request fails."""
        if self._lost_because is not None:
            return
        self._lost_because = reason
        self._lost.set()
        waiting, self._waiting = self._waiting, {}
        for waiter in waiting.values():
            trio.lowlevel.reschedule(waiter.task)


@define
class ClientSecurity:
    """How a client signs and encrypts."""

    credentials: Credentials | None = None
    """Signs each request; None: requests are not signed."""
    tls: ssl.SSLContext | None = None
    """Encrypts the next connections, another one when the authorities were renewed; None: they are plain."""


NO_SECURITY: Final = ClientSecurity()


@asynccontextmanager
async def open_client(
    address: str | Address,
    *,
    connect_timeout_s: float = 3.0,
    frame_bytes_max: int = FRAME_BYTES_MAX,
    security: ClientSecurity = NO_SECURITY,
    on_request: OnRequest = ignore_request,
) -> AsyncIterator[RemotingClient]:
    """A client connected to `address` (`host:port`), closed at the end of the block.

    The TLS handshake of `security` belongs to connecting.
    Errors of the block are not wrapped in a group. Raises ConfigError for an invalid address,
    ConnectionLostError if no connection can be made within `connect_timeout_s`.
    """
    peer = parse_address(address) if isinstance(address, str) else address
    stream, local, peer_host = await _connect(peer, connect_timeout_s, security.tls)
    client = RemotingClient(
        stream,
        str(peer),
        local_address=local,
        peer_host=peer_host,
        frame_bytes_max=frame_bytes_max,
        credentials=security.credentials,
        on_request=on_request,
    )
    async with running(client):
        yield client


@asynccontextmanager
async def running(client: RemotingClient) -> AsyncIterator[None]:
    """Run a client until the end of the block, then close its stream.

    Errors of the block are not wrapped in a group.
    """
    block_error: Exception | None = None
    async with client._stream, trio.open_nursery() as nursery:
        nursery.start_soon(client._run)
        try:
            yield
        except Exception as error:  # noqa: BLE001 - raised again below, outside the nursery that would wrap it
            block_error = error
        nursery.cancel_scope.cancel()
    if block_error is not None:
        raise block_error


async def _connect(
    address: Address, timeout_s: float, tls: ssl.SSLContext | None
) -> tuple[trio.abc.Stream, Address | None, str | None]:
    """A stream to the peer, its local address, and the peer's IP address."""
    stream: trio.SocketStream | None = None
    try:
        with trio.fail_after(timeout_s):
            stream = await trio.open_tcp_stream(address.host, address.port)
            local, peer_host = _local_address(stream), _peer_host(stream)
            encrypted = stream if tls is None else await _encrypted(stream, address, tls)
            return encrypted, local, peer_host
    except trio.TooSlowError:
        reason = f"cannot connect: no answer in {timeout_s:g} s"
        if stream is not None:
            reason = f"cannot connect: TLS: no answer in {timeout_s:g} s: {NO_TLS}"
        raise ConnectionLostError(reason, address=str(address)) from None
    except OSError as error:
        raise ConnectionLostError(f"cannot connect: {_reason(error)}", address=str(address)) from error
    except ValueError as error:
        # Raised by the encoding of host names.
        raise ConnectionLostError(
            f"cannot connect: {address.host[:80]!r} is not a host name", address=str(address)
        ) from error


async def _encrypted(stream: trio.SocketStream, address: Address, tls: ssl.SSLContext) -> trio.abc.Stream:
    """The stream after its TLS handshake. Raises ConnectionLostError."""
    try:
        encrypted = trio.SSLStream(stream, tls, server_hostname=address.host, https_compatible=True)
        await encrypted.do_handshake()
    except trio.BrokenResourceError as error:
        await trio.aclose_forcefully(stream)
        cause = error.__cause__
        if isinstance(cause, ssl.SSLCertVerificationError):
            reason = cause.verify_message
        else:
            reason = words_of_handshake(cause.reason if isinstance(cause, ssl.SSLError) else None)
        raise ConnectionLostError(f"cannot connect: TLS: {reason}", address=str(address)) from error
    except BaseException:
        await trio.aclose_forcefully(stream)
        raise
    return encrypted


def _local_address(stream: trio.SocketStream) -> Address | None:
    try:
        host, port = stream.socket.getsockname()[:2]
    except OSError:
        # Already reset; the reader handles that.
        return None
    return Address(host, port)


def _peer_host(stream: trio.SocketStream) -> str | None:
    try:
        return str(stream.socket.getpeername()[0])
    except OSError:
        # As above.
        return None


def _reason(error: BaseException) -> str:
    """The message of the operating system, without what trio and happy eyeballs wrap around it."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, BaseExceptionGroup):
            cause = cause.exceptions[-1]
            continue
        if isinstance(cause, socket.gaierror):
            return cause.strerror or str(cause)
        if isinstance(cause, OSError) and cause.errno is not None:
            return os.strerror(cause.errno)
        cause = cause.__cause__
    return str(error)
