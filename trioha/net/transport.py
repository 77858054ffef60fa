"""A TCP stream for the node's connections: trio's, less the detours that cost latency.

trio's own `SocketStream` yields to the scheduler after every call, also when nothing had to be waited for.
That is right for most programs and costs a node 10-20 us a step, on a path of eight steps from a put to
its ack. This stream tries the socket first and yields only when it must wait, or after every
`CALLS_PER_TURN` calls, so that a connection that always has more cannot starve the others.
"""

from __future__ import annotations

import select
import socket
from typing import Protocol, runtime_checkable

import structlog
import trio

from trioha.net.busy_poll import BusyPoll

log = structlog.get_logger(__name__)

CALLS_PER_TURN = 16
BYTES_PER_CALL = 64 * 1024
"""Receiving so much more than once counts as another call: it costs the others as long."""
IN_STEP_BYTES_MAX = 16 * 1024
"""Whoever receives more at once is catching up: its next bytes are no answer that somebody waits for."""
UNSENT_BYTES_MAX = 1 << 20
"""How much unsent data the kernel holds before the writer waits: trio's 16 KiB is meant for chat between
peers, a log transfer wants the socket full."""


@runtime_checkable
class DirectStream(Protocol):
    """A stream that says at once what it has: nothing is received before its reader is ready for it."""

    async def checkpoint_if_due(self) -> None:
        """Let other tasks run, if it is their turn."""
        ...

    def receive_now(self, max_bytes: int) -> bytes | None:
        """Bytes that have come, at most `max_bytes`; none at the end of the stream, None for none yet."""
        ...

    async def wait_readable(self) -> None:
        """Return when bytes have come, or the end of the stream, or a fault."""
        ...


class SocketTransport(trio.abc.HalfCloseableStream):
    """A connected, non-blocking TCP socket as a stream, for one reading and one writing task."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
            if hasattr(socket, "TCP_NOTSENT_LOWAT"):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES_MAX)
        except OSError as error:
            # macOS refuses options of a socket whose peer has reset it. The next send or receive says so,
            # too, as the end of a connection that it is.
            log.debug("socket options refused", reason=error.strerror)
        self._socket = sock
        self._calls = 0
        self.busy_poll: BusyPoll | None = None
        """How `receive_into` looks for bytes before it waits for them; None for not at all."""
        self._received_bytes = 0
        """How much was received the last time."""
        self._readable = select.poll()
        self._readable.register(sock, select.POLLIN)

    @classmethod
    def from_stream(cls, stream: trio.SocketStream) -> SocketTransport:
        """The socket of a trio stream, which must not be used any more.

        Raises OSError where the peer is gone already and the system says so; the socket is closed then.
        """
        sock = socket.socket(fileno=stream.socket.detach())
        try:
            return cls(sock)
        except BaseException:
            sock.close()
            raise

    @property
    def local_address(self) -> str | None:
        """Our own end, `host:port` as a peer writes it; None if it is gone."""
        try:
            host, port = self._socket.getsockname()[:2]
        except OSError:
            return None
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def send_now(self, data: bytes | memoryview) -> int:
        """Send what the socket takes without waiting, and say how many bytes that were.

        Raises BrokenResourceError if the connection is gone, ClosedResourceError after `aclose`.
        """
        try:
            return self._socket.send(data)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError as error:
            raise self._translated(error) from error

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send all of `data`; if cancelled, an unknown part of it was sent and the stream is of no use."""
        await self.checkpoint_if_due()
        with memoryview(data) as whole:
            sent = 0
            while sent < len(whole):
                with whole[sent:] as rest:
                    sent_now = self.send_now(rest)
                sent += sent_now
                if not sent_now:
                    await self.wait_send_all_might_not_block()

    async def wait_send_all_might_not_block(self) -> None:
        """Return when the socket takes bytes again."""
        try:
            await trio.lowlevel.wait_writable(self._socket)
        except OSError as error:
            raise self._translated(error) from error

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Some bytes, at most `max_bytes`; none at the end of the stream."""
        await self.checkpoint_if_due()
        while (data := self.receive_now(65536 if max_bytes is None else max_bytes)) is None:
            await self.wait_readable()
        return data

    def receive_now(self, max_bytes: int) -> bytes | None:
        """Bytes that have come, at most `max_bytes`; none at the end of the stream, None for none yet."""
        try:
            return self._socket.recv(max_bytes)
        except (BlockingIOError, InterruptedError):
            return None
        except OSError as error:
            raise self._translated(error) from error

    def is_readable(self) -> bool:
        """Whether receiving would not have to wait: bytes have come, the end of the stream, or a fault."""
        return bool(self._readable.poll(0))

    def peek(self, max_bytes: int) -> bytes:
        """Bytes that have come, without taking them; none if there are none, or never will be."""
        try:
            return self._socket.recv(max_bytes, socket.MSG_PEEK)
        except OSError:
            # Nothing yet, or a fault, which who receives will see.
            return b""

    def consume(self, count: int) -> None:
        """Take the first `count` bytes that `peek` showed. Raises BrokenResourceError if they are gone."""
        try:
            self._socket.recv(count)
        except OSError as error:
            raise self._translated(error) from error

    async def receive_into(self, buffer: memoryview) -> int:
        """Fill the start of `buffer` with some bytes and say how many; 0 at the end of the stream."""
        await self.checkpoint_if_due()
        while True:
            try:
                received = self._socket.recv_into(buffer)
            except (BlockingIOError, InterruptedError):
                if (
                    self.busy_poll is not None
                    and self._received_bytes <= IN_STEP_BYTES_MAX
                    and self.busy_poll.until(self.is_readable)
                ):
                    continue
                await self.wait_readable()
            except OSError as error:
                raise self._translated(error) from error
            else:
                self._received_bytes = received
                self._calls += received // BYTES_PER_CALL
                return received

    async def aclose(self) -> None:
        """Close the socket; whoever waits for it gets ClosedResourceError."""
        if self._socket.fileno() >= 0:
            trio.lowlevel.notify_closing(self._socket)
            self._socket.close()
        await trio.lowlevel.checkpoint()

    async def send_eof(self) -> None:
        """Say that nothing more will be sent; what the peer sends can still be received."""
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError as error:
            raise self._translated(error) from error
        await trio.lowlevel.checkpoint()

    async def wait_readable(self) -> None:
        """Return when bytes have come, or the end of the stream, or a fault."""
        try:
            await trio.lowlevel.wait_readable(self._socket)
        except OSError as error:
            raise self._translated(error) from error

    async def checkpoint_if_due(self) -> None:
        """Let other tasks run after every `CALLS_PER_TURN` calls."""
        self._calls += 1
        if self._calls >= CALLS_PER_TURN:
            self._calls = 0
            await trio.lowlevel.checkpoint()

    def _translated(self, error: OSError) -> Exception:
        if self._socket.fileno() < 0:
            return trio.ClosedResourceError("this stream is closed")
        return trio.BrokenResourceError(f"the connection is gone: {error.strerror}")


def send_now(stream: trio.abc.Stream, data: bytes) -> memoryview:
    """What is left of `data` after all was sent that goes without waiting; all of it on other streams."""
    view = memoryview(data)
    return view[stream.send_now(view) :] if isinstance(stream, SocketTransport) else view


async def receive_into(stream: trio.abc.Stream, buffer: memoryview) -> int:
    """Fill the start of `buffer` with some bytes and say how many; 0 at the end of the stream.

    Without a copy in between on a `SocketTransport`, with one on other streams (TLS).
    """
    if isinstance(stream, SocketTransport):
        return await stream.receive_into(buffer)
    data = await stream.receive_some(len(buffer))
    buffer[: len(data)] = data
    return len(data)


def local_address(stream: trio.abc.Stream) -> str | None:
    """Our own end of a connection, also one within TLS; None for a stream that is no socket."""
    while isinstance(stream, trio.SSLStream):
        stream = stream.transport_stream
    return stream.local_address if isinstance(stream, SocketTransport) else None
