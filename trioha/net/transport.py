"""A TCP stream with fewer checkpoints than trio's, for latency.

trio's own `SocketStream` yields to the scheduler after every call, also if the call did not wait. A put and
its ack go through several such calls, and each turn of the scheduler costs more than the call itself
(docs/where-time-goes.md). `SocketTransport` tries the socket first and yields only when it must wait, or
after every `CALLS_PER_TURN` calls, so that a busy connection cannot starve the others.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Final, Protocol, runtime_checkable

import structlog
import trio

log = structlog.get_logger(__name__)

CALLS_PER_TURN = 16
BYTES_PER_CALL = 64 * 1024
"""Each further part of so many bytes in one call counts as another call: it takes as long."""
UNSENT_BYTES_MAX = 1 << 20
"""Unsent data in the kernel above which the writer waits. trio's 16 KiB suit short messages, a log transfer
needs more."""
PARTS_PER_CALL: Final = 1024
"""Most parts that one call may send: IOV_MAX of Linux and macOS."""


@runtime_checkable
class DirectStream(Protocol):
    """A stream that can be read without waiting, so that no buffer is needed before bytes arrive."""

    async def checkpoint_if_due(self) -> None:
        """Yield to the scheduler if a checkpoint is due."""
        ...

    def receive_now(self, max_bytes: int) -> bytes | None:
        """Received bytes, at most `max_bytes`; b"" at the end of the stream, None if none have arrived."""
        ...

    def peek_now(self, max_bytes: int) -> bytes | None:
        """As `receive_now`, without consuming them."""
        ...

    async def wait_readable(self) -> None:
        """Return when bytes, the end of the stream or an error have arrived."""
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
            # macOS refuses options of a socket that the peer has reset. The next send or receive reports that
            # as the end of the connection.
            log.debug("socket options refused", reason=error.strerror)
        self._socket = sock
        self._calls = 0

    @classmethod
    def from_stream(cls, stream: trio.SocketStream) -> SocketTransport:
        """A transport for the socket of `stream`, which must not be used any more.

        Raises OSError, with the socket closed, where the system reports that the peer is gone.
        """
        sock = socket.socket(fileno=stream.socket.detach())
        try:
            return cls(sock)
        except BaseException:
            sock.close()
            raise

    @property
    def socket(self) -> socket.socket:
        """The socket, for waiting only."""
        return self._socket

    @property
    def local_address(self) -> str | None:
        """The own end, `host:port` as a peer writes it; None if the connection is gone."""
        try:
            return format_address(*self._socket.getsockname()[:2])
        except OSError:
            return None

    def send_now(self, data: bytes | memoryview) -> int:
        """Send what the socket accepts without waiting; returns the number of bytes.

        Raises BrokenResourceError if the connection is gone, ClosedResourceError after `aclose`.
        """
        try:
            return self._socket.send(data)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError as error:
            raise self._translated(error) from error

    def send_parts_now(self, parts: Sequence[bytes | memoryview]) -> int:
        """Send what the socket accepts of `parts`, one after the other, without waiting and without a copy.

        Returns the number of bytes; at most `PARTS_PER_CALL` parts are sent. Raises as `send_now`.
        """
        try:
            return self._socket.sendmsg(parts[:PARTS_PER_CALL])
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError as error:
            raise self._translated(error) from error

    async def send_all_parts(self, parts: list[bytes | memoryview]) -> None:
        """As the function `send_all_parts` of this module."""
        await self.checkpoint_if_due()
        while parts:
            sent_bytes = self.send_parts_now(parts)
            drop_sent(parts, sent_bytes)
            if parts and not sent_bytes:
                await self.wait_send_all_might_not_block()

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send all of `data`. If cancelled, an unknown part was sent: the stream cannot be used further."""
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
        """Return when the socket accepts bytes again."""
        try:
            await trio.lowlevel.wait_writable(self._socket)
        except OSError as error:
            raise self._translated(error) from error

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Some bytes, at most `max_bytes`; b"" at the end of the stream."""
        await self.checkpoint_if_due()
        while (data := self.receive_now(65536 if max_bytes is None else max_bytes)) is None:
            await self.wait_readable()
        return data

    def receive_now(self, max_bytes: int, flags: int = 0) -> bytes | None:
        """Received bytes, at most `max_bytes`; b"" at the end of the stream, None if none have arrived.

        `flags` are those of `socket.recv`.
        """
        try:
            return self._socket.recv(max_bytes, flags)
        except (BlockingIOError, InterruptedError):
            return None
        except OSError as error:
            raise self._translated(error) from error

    def peek_now(self, max_bytes: int) -> bytes | None:
        """As `receive_now`, without consuming them."""
        return self.receive_now(max_bytes, socket.MSG_PEEK)

    async def receive_into(self, buffer: memoryview) -> int:
        """Receive some bytes into the start of `buffer`; returns how many, 0 at the end of the stream."""
        await self.checkpoint_if_due()
        while True:
            try:
                received = self._socket.recv_into(buffer)
            except (BlockingIOError, InterruptedError):
                await self.wait_readable()
            except OSError as error:
                raise self._translated(error) from error
            else:
                self._calls += received // BYTES_PER_CALL
                return received

    async def aclose(self) -> None:
        """Close the socket; tasks that wait for it get ClosedResourceError."""
        if self._socket.fileno() >= 0:
            trio.lowlevel.notify_closing(self._socket)
            self._socket.close()
        await trio.lowlevel.checkpoint()

    async def send_eof(self) -> None:
        """Close the sending side; receiving is still possible."""
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError as error:
            raise self._translated(error) from error
        await trio.lowlevel.checkpoint()

    async def wait_readable(self) -> None:
        """Return when bytes, the end of the stream or an error have arrived."""
        try:
            await trio.lowlevel.wait_readable(self._socket)
        except OSError as error:
            raise self._translated(error) from error

    async def checkpoint_if_due(self) -> None:
        """Yield to the scheduler at every `CALLS_PER_TURN`-th call."""
        self._calls += 1
        if self._calls >= CALLS_PER_TURN:
            self._calls = 0
            await trio.lowlevel.checkpoint()

    def _translated(self, error: OSError) -> Exception:
        if self._socket.fileno() < 0:
            return trio.ClosedResourceError("this stream is closed")
        return trio.BrokenResourceError(f"the connection is gone: {error.strerror}")


def format_address(host: str, port: int) -> str:
    """`host:port`, with brackets around an IPv6 host."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def send_parts_now(stream: trio.abc.Stream, parts: list[bytes | memoryview]) -> None:
    """Send what a `SocketTransport` accepts of `parts` without waiting; on other streams nothing is sent.

    What was sent is removed from the list, and its views are released.
    """
    if isinstance(stream, SocketTransport):
        drop_sent(parts, stream.send_parts_now(parts))


async def send_all_parts(stream: trio.abc.Stream, parts: list[bytes | memoryview]) -> None:
    """Send all of `parts`, one after the other.

    What was sent is removed from the list, and its views are released; after a cancellation or an error the
    list has the rest, of which an unknown part was sent. Streams other than a `SocketTransport` (TLS) cost a
    copy.
    """
    if isinstance(stream, SocketTransport):
        await stream.send_all_parts(parts)
    else:
        await stream.send_all(b"".join(parts))
        release(parts)


def drop_sent(parts: list[bytes | memoryview], sent_bytes: int) -> None:
    """Remove the first `sent_bytes` bytes of `parts`, and release their views."""
    count = 0
    while count < len(parts) and sent_bytes >= len(parts[count]):
        sent_bytes -= len(parts[count])
        count += 1
    rest = memoryview(parts[count])[sent_bytes:] if sent_bytes else None
    release(parts, count + (rest is not None))
    if rest is not None:
        parts.insert(0, rest)


def release(parts: list[bytes | memoryview], count: int | None = None) -> None:
    """Remove the first `count` parts, by default all, and release their views."""
    for part in parts[:count]:
        if isinstance(part, memoryview):
            part.release()
    del parts[:count]


async def receive_into(stream: trio.abc.Stream, buffer: memoryview) -> int:
    """Receive some bytes into the start of `buffer`; returns how many, 0 at the end of the stream.

    Streams other than a `SocketTransport` (TLS) cost a copy.
    """
    if isinstance(stream, SocketTransport):
        return await stream.receive_into(buffer)
    data = await stream.receive_some(len(buffer))
    buffer[: len(data)] = data
    return len(data)


def local_address(stream: trio.abc.Stream) -> str | None:
    """The own end of a connection, with or without TLS; None for streams without a socket."""
    while isinstance(stream, trio.SSLStream):
        stream = stream.transport_stream
    return stream.local_address if isinstance(stream, SocketTransport) else None
