"""A proxy before an S3 server that breaks requests on command.

Each request is read whole and, unless its fault comes before, sent on; its answer is read whole and, unless
its fault comes between, sent back. So it is always known whether the server has carried out a request whose
client was cut off:

| fault | carried out | what the client sees |
|---|---|---|
| `CUT_BEFORE` | no | the connection ends after the request's head |
| `CUT_IN_REQUEST` | no | the connection ends after half of the request's body |
| `CUT_AFTER` | yes | the connection ends without an answer |
| `CUT_IN_ANSWER` | yes | the connection ends after half of the answer |
| `SILENT_BEFORE`, `SILENT_AFTER` | no, yes | nothing, until the client gives up |
| `SLOW` | yes | the answer in small pieces, over `SLOW_S` |
| `ERROR`, `SLOW_DOWN`, `DENIED` | no | 500, 503 or 403, as S3 says it |

Every cut is an end in order (FIN) or a reset, in turn. A proxy has threads of its own and may be told what to
do by any other one.
"""

from __future__ import annotations

import random
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import StrEnum
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler
from itertools import cycle
from socketserver import ThreadingTCPServer
from typing import Final

from attrs import define, field, frozen

SLOW_S: Final = 0.5
SLOW_PIECES: Final = 10
UPSTREAM_TIMEOUT_S: Final = 60.0
_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)


class S3Fault(StrEnum):
    """What happens to one request."""

    CUT_BEFORE = "cut before"
    CUT_IN_REQUEST = "cut in request"
    CUT_AFTER = "cut after"
    CUT_IN_ANSWER = "cut in answer"
    SILENT_BEFORE = "silent before"
    SILENT_AFTER = "silent after"
    SLOW = "slow"
    ERROR = "error"
    SLOW_DOWN = "slow down"
    DENIED = "denied"


PASSING: Final = tuple(
    fault for fault in S3Fault if fault not in {S3Fault.SILENT_BEFORE, S3Fault.SILENT_AFTER, S3Fault.DENIED}
)
"""Faults after which the same request may succeed, without the client's time limit."""

_ANSWERS: Final = {
    S3Fault.ERROR: (500, "InternalError", "Please try again."),
    S3Fault.SLOW_DOWN: (503, "SlowDown", "Please reduce your request rate."),
    S3Fault.DENIED: (403, "AccessDenied", "Access Denied"),
}


@frozen(kw_only=True)
class S3Request:
    """A request as the proxy has received it."""

    method: str
    target: str
    """Path and query."""


@frozen(kw_only=True)
class S3Passage:
    """What became of a request."""

    request: S3Request
    fault: S3Fault | None
    status: int | None
    """Of the server's answer; None if it was not asked."""


Choice = Callable[[S3Request], S3Fault | None]


@define(eq=False)
class S3Proxy:
    """A proxy that runs. `choose` gives each request its fault: see `strike` and `strike_at_random`."""

    upstream_port: int
    port: int = 0
    choose: Choice = field(default=lambda _: None)
    passages: list[S3Passage] = field(factory=list)
    """All requests so far, those under way left out."""
    bugs: list[BaseException] = field(factory=list)
    """What its own threads have raised."""

    @property
    def endpoint(self) -> str:
        """Its URL."""
        return f"http://127.0.0.1:{self.port}"

    def heal(self) -> None:
        """No faults from now on."""
        self.choose = lambda _: None

    def strike(self, fault: S3Fault, *, times: int | None = None, method: str = "", within: str = "") -> None:
        """Give this fault to so many requests (None: all) of a method, with a text in their target."""
        left = iter(range(times)) if times is not None else cycle([0])
        lock = threading.Lock()

        def choose(request: S3Request) -> S3Fault | None:
            if (method and request.method != method) or within not in request.target:
                return None
            with lock:
                return None if next(left, None) is None else fault

        self.choose = choose

    def strike_at_random(
        self, *, seed: int, share: float, faults: tuple[S3Fault, ...] = PASSING, in_a_row_max: int = 3
    ) -> None:
        """Give a share of all requests one of these faults, at most so many of one target in a row."""
        chance = random.Random(seed)
        lock = threading.Lock()
        in_a_row: dict[tuple[str, str], int] = {}

        def choose(request: S3Request) -> S3Fault | None:
            key = (request.method, request.target)
            with lock:
                if chance.random() >= share or in_a_row.get(key, 0) >= in_a_row_max:
                    in_a_row.pop(key, None)
                    return None
                in_a_row[key] = in_a_row.get(key, 0) + 1
                return chance.choice(faults)

        self.choose = choose


@contextmanager
def s3_proxy(upstream_port: int) -> Iterator[S3Proxy]:
    """A proxy on a free port for as long as the block runs."""
    proxy = S3Proxy(upstream_port)
    with _Server(proxy) as server:
        proxy.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield proxy
        finally:
            server.shutdown()
            server.end_connections()
            thread.join()
    if proxy.bugs:
        raise proxy.bugs[0]


class _Server(ThreadingTCPServer):
    """Accepts connections; `server_close` waits for the threads of all."""

    daemon_threads = False
    request_queue_size = 64

    def __init__(self, proxy: S3Proxy) -> None:
        self.proxy = proxy
        self.resets = cycle([False, True])
        self._lock = threading.Lock()
        self._connections: set[socket.socket] = set()
        super().__init__(("127.0.0.1", 0), _Handler)

    def process_request(self, request: socket.socket, client_address: object) -> None:  # type: ignore[override]
        with self._lock:
            self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: socket.socket) -> None:  # type: ignore[override]
        """Close it, without a FIN before a reset."""
        with self._lock:
            self._connections.discard(request)
        request.close()

    def end_connections(self) -> None:
        """End all: their threads notice it."""
        with self._lock:
            for connection in self._connections:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, *_: object) -> None:
        """Keep a bug of the proxy's own for the end of its block."""
        error = sys.exception()
        assert error is not None
        self.proxy.bugs.append(error)


class _CutError(Exception):
    """Ends the connection."""


class _Handler(BaseHTTPRequestHandler):
    """The requests of one connection."""

    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, *_: object) -> None:
        """Nothing to stderr."""

    def handle(self) -> None:
        """All requests, until one is cut off or the client ends."""
        try:
            super().handle()
        except _CutError:
            if next(self.server.resets):
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        except OSError:
            # The client has gone, or the proxy ends.
            return

    def do_any(self) -> None:
        """One request."""
        proxy = self.server.proxy
        request = S3Request(method=self.command, target=self.path)
        fault = proxy.choose(request)
        answer: _Answer | None = None
        try:
            answer = self._carry_out(fault)
        finally:
            status = None if answer is None or answer.is_own else answer.status
            proxy.passages.append(S3Passage(request=request, fault=fault, status=status))
        self._give(answer, fault)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = do_any  # noqa: N815 (names of http.server)

    def _carry_out(self, fault: S3Fault | None) -> _Answer | None:
        """The answer to the request whose head was read; None if there is none."""
        body_bytes = int(self.headers.get("Content-Length") or 0)
        assert "Transfer-Encoding" not in self.headers, "a request of S3 has a length"
        if fault is S3Fault.CUT_BEFORE:
            raise _CutError
        if fault is S3Fault.CUT_IN_REQUEST:
            self.rfile.read(body_bytes // 2)
            raise _CutError
        body = self.rfile.read(body_bytes)
        if len(body) < body_bytes:
            raise _CutError
        if fault is S3Fault.SILENT_BEFORE:
            return None
        if fault in _ANSWERS:
            return _Answer.of_s3(*_ANSWERS[fault])
        answer = self._ask(body)
        if fault is S3Fault.CUT_AFTER:
            raise _CutError
        return answer

    def _ask(self, body: bytes) -> _Answer:
        upstream = HTTPConnection("127.0.0.1", self.server.proxy.upstream_port, timeout=UPSTREAM_TIMEOUT_S)
        try:
            upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in {"connection", "expect"}:
                    upstream.putheader(name, value)
            upstream.endheaders(body or None)
            answer = upstream.getresponse()
            headers = [
                (name, value)
                for name, value in answer.getheaders()
                if name.lower() not in {"connection", "transfer-encoding"}
            ]
            return _Answer(answer.status, answer.reason, headers, answer.read())
        finally:
            upstream.close()

    def _give(self, answer: _Answer | None, fault: S3Fault | None) -> None:
        if answer is None or fault is S3Fault.SILENT_AFTER:
            # The client sends nothing more: this ends when it, or the proxy, closes the connection.
            self.rfile.read(1)
            raise _CutError
        head, body = answer.head(), b"" if self.command == "HEAD" else answer.body
        if fault is S3Fault.CUT_IN_ANSWER:
            self.wfile.write(head + body[: len(body) // 2] if body else head[: len(head) // 2])
            raise _CutError
        if fault is S3Fault.SLOW:
            self._give_slowly(head + body)
        else:
            self.wfile.write(head + body)

    def _give_slowly(self, data: bytes) -> None:
        piece_bytes = max(1, -(-len(data) // SLOW_PIECES))
        for start in range(0, len(data), piece_bytes):
            time.sleep(SLOW_S / SLOW_PIECES)
            self.wfile.write(data[start : start + piece_bytes])


@frozen
class _Answer:
    """An answer as it is sent to the client."""

    status: int
    reason: str
    headers: list[tuple[str, str]]
    body: bytes
    is_own: bool = False
    """Made by the proxy, without the server."""

    @classmethod
    def of_s3(cls, status: int, code: str, message: str) -> _Answer:
        body = (
            '<?xml version="1.0" encoding="UTF-8"?>\n'
            f"<Error><Code>{code}</Code><Message>{message}</Message><RequestId>1</RequestId></Error>"
        ).encode()
        headers = [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))]
        return cls(status, code, headers, body, is_own=True)

    def head(self) -> bytes:
        lines = [
            f"HTTP/1.1 {self.status} {self.reason}",
            *(f"{name}: {value}" for name, value in self.headers),
        ]
        if not any(name.lower() == "content-length" for name, _ in self.headers):
            lines.append(f"Content-Length: {len(self.body)}")
        return "\r\n".join([*lines, "", ""]).encode("latin-1")
