"""A server and the other ends of its connections: over loopback or in memory, played by the test."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any

import trio
import trio.testing

from tests.remoting.streams import transport_pair
from trioha.remoting.address import Address
from trioha.remoting.client import RemotingClient, open_client
from trioha.remoting.codec import FrameDecoder
from trioha.remoting.command import RemotingCommand, response_to
from trioha.remoting.server import Handler, Peer, RemotingServer
from trioha.remoting.serving import PendingAnswer
from trioha.watermark import Wait, Watermark

PEER_ADDRESS = Address("192.0.2.1", 4711)
WITHIN_S = 60.0
"""For what takes milliseconds on an idle machine."""


def echo(asked: RemotingCommand, _peer: Peer) -> RemotingCommand:
    """A handler that sends fields and body back."""
    return response_to(asked, 0, ext_fields=asked.ext_fields, body=asked.body)


def failing() -> RemotingCommand:
    """The answer of a handler with a bug."""
    raise RuntimeError("planted")


class Later(PendingAnswer):
    """An answer that may be given once the test says so."""

    marks: Hashable = None

    def __init__(self, answer: Callable[[], RemotingCommand | bytes], marks: Hashable = None) -> None:
        self._answer = answer
        self._mark = Watermark()
        self._wait: Wait | None = None
        self.marks = marks

    def give(self) -> None:
        self._mark.advance(1)

    def watch(self, event: trio.Event, now_s: float) -> float:
        self._wait = self._mark.watch(1, event)
        return math.inf

    def unwatch(self) -> None:
        if self._wait is not None:
            self._mark.unwatch(self._wait)

    def is_settled(self, now_s: float) -> bool:
        return self._mark.offset > 0

    def answer(self) -> RemotingCommand | bytes:
        return self._answer()


@asynccontextmanager
async def serving(handler: Handler = echo, **options: Any) -> AsyncIterator[tuple[RemotingServer, str]]:
    """A server on loopback, and its address. An exception that leaves the server fails the test."""
    server = RemotingServer(handler, **options)
    with trio.fail_after(WITHIN_S):
        async with trio.open_nursery() as nursery:
            ((host, port),) = await nursery.start(partial(server.serve, host="127.0.0.1", port=0))
            yield server, f"{host}:{port}"
            assert not nursery.cancel_scope.cancel_called
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def client_of(handler: Handler) -> AsyncIterator[RemotingClient]:
    """A client of a server on loopback."""
    async with serving(handler) as (_, address), open_client(address) as client:
        yield client


async def dialled(address: str) -> trio.SocketStream:
    """A connection to a server on loopback."""
    host, _, port = address.rpartition(":")
    return await trio.open_tcp_stream(host, int(port))


@asynccontextmanager
async def connected(server: RemotingServer) -> AsyncIterator[tuple[trio.SocketStream, FrameDecoder]]:
    """Our end of a connection over loopback, and a decoder for it."""
    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, server.serve_connection, listeners)
        async with await trio.open_tcp_stream(*listeners[0].socket.getsockname()) as stream:
            with trio.fail_after(WITHIN_S):
                yield stream, FrameDecoder()
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def served_stream(server: RemotingServer, pair: tuple[Any, Any] | None = None) -> AsyncIterator[Any]:
    """Our end of a pair of streams in memory whose other end `server` serves."""
    ours, theirs = pair or trio.testing.memory_stream_pair()

    async def run() -> None:
        await server.serve_stream(theirs, PEER_ADDRESS)
        await theirs.aclose()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        yield ours
        nursery.cancel_scope.cancel()


def served_pipe(server: RemotingServer, capacity_bytes: int = 64 * 1024) -> AbstractAsyncContextManager[Any]:
    """As `served_stream` with streams that behave like sockets: see `tests.remoting.streams`."""
    return served_stream(server, transport_pair(capacity_bytes))


async def read_command(
    stream: trio.abc.ReceiveStream, decoder: FrameDecoder | None = None
) -> RemotingCommand | None:
    """The next command; None at the end of the stream."""
    decoder = decoder or FrameDecoder()
    while (command := decoder.next_command()) is None:
        data = await stream.receive_some(65536)
        if not data:
            return None
        decoder.feed(data)
    return command


async def opaques(stream: trio.abc.ReceiveStream, decoder: FrameDecoder, count: int) -> list[int | None]:
    """Those of the next `count` commands; None for each after the end of the stream."""
    found = [await read_command(stream, decoder) for _ in range(count)]
    return [command and command.opaque for command in found]


def reset(stream: trio.SocketStream) -> None:
    """End a connection by a reset, at once."""
    stream.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    stream.socket.close()
