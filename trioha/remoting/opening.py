"""The start of a connection: plain or TLS, by its first byte (docs/protocol/remoting.md#frame).

A TLS handshake starts with 0x16, a remoting frame never does: it would be 369 MB long. The byte is looked at
without being consumed. A connection that sends nothing is closed at the idle timeout, as any other; one that
starts TLS must complete the handshake within `ServerTls.handshake_timeout_s`. Where TLS is required, a plain
request gets a TLS alert, from which clients know the reason.
"""

from __future__ import annotations

import ssl
from contextlib import suppress

import trio

from trioha.net.tls import ServerTls, TlsTransport
from trioha.net.transport import DirectStream
from trioha.remoting.closures import ClosureLog
from trioha.remoting.serving import Peer, ServerLimits, ServerStatistics
from trioha.remoting.wrong_port import UNEXPECTED_MESSAGE

TLS_HANDSHAKE = b"\x16"
UNREAD_BYTES_MAX = 64 * 1024
"""Bytes of a request without TLS that are read before the connection is closed."""


async def open_stream(
    stream: trio.abc.Stream,
    peer: Peer,
    *,
    tls: ServerTls,
    limits: ServerLimits,
    counters: ServerStatistics,
    closures: ClosureLog,
) -> trio.abc.Stream | None:
    """The stream of requests of an accepted connection; None if it must be closed, which is counted."""
    assert isinstance(stream, DirectStream), "a socket"
    first: bytes | None = None
    try:
        with trio.move_on_after(limits.idle_timeout_s) as waiting:
            while (first := stream.peek_now(1)) is None:
                await stream.wait_readable()
    except trio.BrokenResourceError:
        counters.broken_connections += 1
        return None
    if waiting.cancelled_caught:
        counters.idle_closes += 1
        return None
    if first == TLS_HANDSHAKE:
        return await _handshake(stream, peer, tls=tls, counters=counters, closures=closures)
    if tls.is_required:
        if first:
            await _send_alert(stream, timeout_s=tls.handshake_timeout_s)
            counters.tls_failures += 1
            closures.closed(str(peer), "it does not start TLS, which tls.server.mode=enforcing requires")
        return None
    return stream


async def _send_alert(stream: trio.abc.Stream, *, timeout_s: float) -> None:
    """Tell a client that does not start TLS that it must, as far as its connection takes it."""
    with trio.move_on_after(timeout_s), suppress(trio.BrokenResourceError):
        # A connection that is closed with unread bytes is reset, and the alert with it.
        await stream.receive_some(UNREAD_BYTES_MAX)
        await stream.send_all(UNEXPECTED_MESSAGE)


async def _handshake(
    stream: trio.abc.Stream, peer: Peer, *, tls: ServerTls, counters: ServerStatistics, closures: ClosureLog
) -> trio.abc.Stream | None:
    assert isinstance(stream, trio.abc.HalfCloseableStream), "a socket"
    transport = TlsTransport(stream, tls.context)
    try:
        with trio.fail_after(tls.handshake_timeout_s):
            await transport.do_handshake()
    except trio.TooSlowError:
        reason = f"no TLS handshake in {tls.handshake_timeout_s:g} s"
    except (trio.BrokenResourceError, ssl.SSLError) as error:
        # trio keeps the error of the ssl module as the cause of its own.
        cause = error.__cause__ or error
        reason = f"TLS handshake: {getattr(cause, 'reason', None) or cause}"
    else:
        counters.tls_connections += 1
        return transport
    counters.tls_failures += 1
    closures.closed(str(peer), reason)
    return None
