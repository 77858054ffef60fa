"""An accept loop that keeps descriptors free, and that a connection cannot end.

trio's `serve_listeners` accepts as long as the kernel grants descriptors, logs a traceback ten times a second
when it grants none, and raises the exceptions of handlers and unusual errors of accept(2). For a node all
three are wrong: peers that only connect would use up the descriptors that the store needs, and one connection
could end the node.

Theory of operation. A listener waits until a connection arrives, checks its gate, and accepts. While the gate
is closed, connections wait in the kernel's backlog: they are not lost, they use no descriptor here, and the
peer sees a connection that is not served yet; beyond the backlog connecting fails. A gate is for shortages,
which pass. (At its limit of connections a server accepts the next one and closes it at once, so that the peer
notices: the handler's task.) Each accepted connection gets a task in `handler_nursery`; cancelling the loop
closes the listeners and leaves the connections to that nursery.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final, NoReturn

import structlog
import trio

from trioha.log_limit import LogLimit
from trioha.net.descriptors import Gate
from trioha.net.error_boundary import ErrorBoundary, is_shortage
from trioha.net.transport import format_address

log = structlog.get_logger(__name__)

Handler = Callable[[trio.SocketStream], Awaitable[object]]

RECHECK_S: Final = 0.1
"""Time between two checks of a closed gate, and before accepting again after an error."""
REPORT_INTERVAL_S: Final = 60.0
"""Least time between two log lines of a listener that does not accept."""
PEER_ERRORS: Final = frozenset(
    getattr(errno, name)
    for name in (
        "ECONNABORTED", "ECONNRESET", "EPROTO", "ENETDOWN", "ENOPROTOOPT", "EHOSTDOWN", "ENONET",
        "EHOSTUNREACH", "EOPNOTSUPP", "ENETUNREACH", "EPERM", "ETIMEDOUT", "EINTR", "EAGAIN",
    )
    if hasattr(errno, name)
)  # fmt: skip
"""Errors of accept(2) that concern only the connection that was about to be accepted."""


async def serve_listeners(
    handler: Handler,
    listeners: Sequence[trio.SocketListener],
    *,
    gate: Gate,
    handler_nursery: trio.Nursery | None = None,
    boundary: ErrorBoundary | None = None,
    task_status: trio.TaskStatus[Sequence[trio.SocketListener]] = trio.TASK_STATUS_IGNORED,
) -> NoReturn:
    """Accept connections on `listeners` until cancelled; each runs `handler(stream)` in a task of its own.

    Resource handling: the listeners are closed when the loop ends, each stream when its handler does.

    Error handling: exceptions of a handler end at `boundary` (the loop's own, if None), which counts and logs
    them. Errors of accept(2) never leave the loop: those of the connection are ignored, shortages and
    all others are logged at most once a minute, and accepting continues after `RECHECK_S`.

    Connections run in `handler_nursery`, so that they may outlive the loop; if None, they end with it.
    """
    last_boundary = boundary or ErrorBoundary("connection")
    async with trio.open_nursery() as nursery:
        for listener in listeners:
            nursery.start_soon(
                _serve_listener, listener, handler, gate, handler_nursery or nursery, last_boundary
            )
        task_status.started(listeners)
    raise AssertionError("a listener ends only by cancellation")


async def _serve_listener(
    listener: trio.SocketListener,
    handler: Handler,
    gate: Gate,
    handler_nursery: trio.Nursery,
    boundary: ErrorBoundary,
) -> NoReturn:
    report = _Report(format_address(*listener.socket.getsockname()[:2]))
    async with listener:
        while True:
            try:
                await trio.lowlevel.wait_readable(listener.socket)
                while not gate.is_open(listener.socket.fileno()):
                    report.not_accepting(gate.describe())
                    await trio.sleep(RECHECK_S)
                stream = await listener.accept()
            except OSError as error:
                if error.errno not in PEER_ERRORS:
                    report.not_accepting(error.strerror or str(error), is_expected=is_shortage(error))
                    await trio.sleep(RECHECK_S)
                continue
            handler_nursery.start_soon(partial(_run_handler, handler, stream, boundary))


async def _run_handler(handler: Handler, stream: trio.SocketStream, boundary: ErrorBoundary) -> None:
    try:
        with boundary.around(_peer(stream)):
            await handler(stream)
    finally:
        await trio.aclose_forcefully(stream)


class _Report:
    """Logs that a listener does not accept, at most once in `REPORT_INTERVAL_S`."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._line = LogLimit(REPORT_INTERVAL_S, clock_s=trio.current_time)

    def not_accepting(self, reason: str, *, is_expected: bool = True) -> None:
        if times := self._line.count():
            level = log.warning if is_expected else log.error
            level("new connections wait", listener=self._address, reason=reason, repeated=times - 1)


def _peer(stream: trio.SocketStream) -> str:
    """The peer's address, for a log line."""
    try:
        return format_address(*stream.socket.getpeername()[:2])
    except OSError as error:
        # Closed already; the handler will find that, too.
        return f"unknown ({os.strerror(error.errno or 0)})"
