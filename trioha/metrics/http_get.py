"""A server of HTTP/1.1 that answers GET and HEAD of a few pages, on trio's loop.

Theory of operation. A connection is for one request: h11 reads it, the page is computed, the answer says
`Connection: close`. Prometheus asks every few seconds; it gains nothing from a connection that stays open,
and the node would have descriptors in use between two requests. So a connection has one deadline for the
request and one for the answer, whatever its peer sends. After the answer the sending side is closed and what
the peer still sends (a body) is read for a moment and dropped: closing a socket with unread bytes would reset
the connection, and the peer might lose the answer.

h11 has the syntax: it is what the protocol's own RFCs say, in a library that does no I/O and has no
dependencies; a handler of our own would have to repeat its checks of request lines, header fields and of
messages that two readers understand differently. The bytes of a request are bounded. What is not a request is
answered with 400 or 431 and the connection is closed.

Each connection runs within a boundary, and pages too: a page that fails is answered with 500.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from email.utils import formatdate
from http import HTTPStatus
from typing import Final

import h11
import trio
from attrs import frozen

from trioha.metrics.http_statistics import HttpStatistics
from trioha.net.descriptors import Gate, OpenGate
from trioha.net.error_boundary import ErrorBoundary
from trioha.net.listen import serve_listeners
from trioha.net.transport import format_address

RECEIVE_BYTES: Final = 4096
TEXT: Final = "text/plain; charset=utf-8"


@frozen
class Query:
    """What a request says beside the path of its page."""

    accept: str = ""
    """The value of its Accept header, empty without one."""
    text: str = ""
    """What follows the `?` of its target, as it was sent."""


@frozen
class Page:
    """The content of an answer."""

    content_type: str
    body: bytes
    status: HTTPStatus = HTTPStatus.OK


Pages = Mapping[str, Callable[[Query], Page]]
"""By path: what makes the page."""


@frozen(kw_only=True)
class HttpLimits:
    """Limits of the server for its peers."""

    connections_max: int = 16
    """Open at a time; one more is closed as soon as it is accepted."""
    connections_per_peer_max: int = 8
    """Open at a time from one address."""
    head_bytes_max: int = 8192
    """A request without its body; what one read adds to it may be more."""
    request_timeout_s: float = 5.0
    """From the connection to the end of the request's head."""
    send_timeout_s: float = 10.0
    """For the whole answer."""
    linger_s: float = 1.0
    """How long bytes after the request are read and dropped."""
    linger_bytes_max: int = 64 * 1024
    """How many of them."""


class GetServer:
    """Serves pages."""

    def __init__(
        self,
        pages: Pages,
        *,
        limits: HttpLimits | None = None,
        statistics: HttpStatistics | None = None,
        boundary: ErrorBoundary | None = None,
    ) -> None:
        """`statistics` and `boundary` count what happens; None for new ones."""
        self.pages = pages
        self._limits = limits or HttpLimits()
        self.statistics = statistics or HttpStatistics()
        self.boundary = boundary or ErrorBoundary("HTTP connection")
        self._open_by_host: Counter[str] = Counter()

    async def serve(
        self,
        listeners: list[trio.SocketListener],
        *,
        gate: Gate | None = None,
        task_status: trio.TaskStatus[object] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve until cancelled, which closes every connection. They are accepted while `gate` is open."""
        await serve_listeners(
            self._serve_socket,
            listeners,
            gate=gate or OpenGate(),
            boundary=self.boundary,
            task_status=task_status,
        )

    async def _serve_socket(self, stream: trio.SocketStream) -> None:
        """Serve one accepted connection; the accept loop closes `stream`."""
        statistics, limits = self.statistics, self._limits
        try:
            host, port = stream.socket.getpeername()[:2]
        except OSError:
            # The peer has closed it already.
            statistics.broken_connections += 1
            return
        if (
            statistics.connections_open >= limits.connections_max
            or self._open_by_host[host] >= limits.connections_per_peer_max
        ):
            statistics.connections_refused += 1
            return
        statistics.connections_open += 1
        self._open_by_host[host] += 1
        try:
            await self.serve_stream(stream, format_address(host, port))
        finally:
            statistics.connections_open -= 1
            self._open_by_host[host] -= 1
            if not self._open_by_host[host]:
                del self._open_by_host[host]

    async def serve_stream(self, stream: trio.abc.HalfCloseableStream, peer: str) -> None:
        """Serve the request of any kind of stream. The caller closes it."""
        try:
            await self._serve(stream, peer)
        except trio.BrokenResourceError:
            self.statistics.broken_connections += 1

    async def _serve(self, stream: trio.abc.HalfCloseableStream, peer: str) -> None:
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=self._limits.head_bytes_max)
        answer = None
        with trio.move_on_after(self._limits.request_timeout_s) as reading:
            answer = await self._read_request(connection, stream, peer)
        if reading.cancelled_caught:
            self.statistics.request_timeouts += 1
            return
        if answer is None:
            return
        with trio.move_on_after(self._limits.send_timeout_s) as sending:
            await stream.send_all(answer)
            await stream.send_eof()
        if sending.cancelled_caught:
            self.statistics.send_timeouts += 1
            return
        with trio.move_on_after(self._limits.linger_s):
            dropped_bytes = 0
            while dropped_bytes < self._limits.linger_bytes_max and (
                data := await stream.receive_some(RECEIVE_BYTES)
            ):
                dropped_bytes += len(data)

    async def _read_request(
        self, connection: h11.Connection, stream: trio.abc.ReceiveStream, peer: str
    ) -> bytes | None:
        """The answer to the request; None if the peer closes the connection instead."""
        try:
            while (event := connection.next_event()) is h11.NEED_DATA:
                connection.receive_data(bytes(await stream.receive_some(RECEIVE_BYTES)))
        except h11.RemoteProtocolError as error:
            status = HTTPStatus(error.error_status_hint)
            return self._answer(connection, status, _text(f"{status.phrase}\n"))
        if not isinstance(event, h11.Request):
            return None
        return self._answer_request(connection, event, peer)

    def _answer_request(self, connection: h11.Connection, request: h11.Request, peer: str) -> bytes:
        is_head = request.method == b"HEAD"
        path, query = _path_and_query(request.target)
        make_page = self.pages.get(path)
        if make_page is None:
            found = _text(f"not here; there is {', '.join(self.pages)}\n")
            return self._answer(connection, HTTPStatus.NOT_FOUND, found, is_head=is_head)
        if not is_head and request.method != b"GET":
            refusal = _text("only GET and HEAD are served\n")
            return self._answer(connection, HTTPStatus.METHOD_NOT_ALLOWED, refusal, ("Allow", "GET, HEAD"))
        accept = b",".join(value for name, value in request.headers if name == b"accept").decode("latin-1")
        page = Page(TEXT, b"the page failed: see the node's log\n", HTTPStatus.INTERNAL_SERVER_ERROR)
        with self.boundary.around(peer):
            page = make_page(Query(accept, query))
        return self._answer(connection, page.status, page, is_head=is_head)

    def _answer(
        self,
        connection: h11.Connection,
        status: HTTPStatus,
        page: Page,
        *headers: tuple[str, str],
        is_head: bool = False,
    ) -> bytes:
        self.statistics.answers[int(status)] += 1
        response = h11.Response(
            status_code=int(status),
            reason=status.phrase.encode(),
            headers=[
                ("Content-Type", page.content_type),
                ("Content-Length", str(len(page.body))),
                ("Cache-Control", "no-store"),
                ("X-Content-Type-Options", "nosniff"),
                ("Date", formatdate(usegmt=True)),
                ("Connection", "close"),
                *headers,
            ],
        )
        parts = [connection.send(response)]
        if not is_head:
            parts.append(connection.send(h11.Data(data=page.body)))
        parts.append(connection.send(h11.EndOfMessage()))
        return b"".join(parts)


def _text(text: str) -> Page:
    return Page(TEXT, text.encode())


def _path_and_query(target: bytes) -> tuple[str, str]:
    """The path of a request's target, and its query. A target may be a whole URL (RFC 9112 3.2.2)."""
    text = target.decode("latin-1")
    scheme, separator, rest = text.partition("://")
    if separator and scheme.lower() in {"http", "https"}:
        before, mark, query = rest.partition("?")
        text = "/" + before.partition("/")[2] + mark + query
    path, _, query = text.partition("?")
    return path, query
