"""The error boundary of a connection: the one place where its exceptions end.

Theory of operation. What a peer sends or does ends its own connection at most. Inside the boundary its tasks
may raise anything; expected ends (end of stream, idle, a broken protocol) are values, or the connection
catches them. An exception that reaches the boundary is either a shortage of this process (descriptors,
memory), which is counted and logged in one line, or a bug, which is counted and logged with its traceback
once per kind and minute, so that a peer that repeats it cannot fill the log. Cancellation and
KeyboardInterrupt pass.

There is one boundary for each kind of connection (remoting server, HA master, HA slave, remoting client,
monitor feed).
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from traceback import extract_tb
from typing import Final

import structlog
from attrs import define

from trioha.log_limit import LogLimit

log = structlog.get_logger(__name__)

REPORT_INTERVAL_S: Final = 60.0
"""Least time between two log entries of one kind of bug."""
KINDS_MAX: Final = 256
"""Kinds of bugs that are remembered; the oldest is dropped first."""
SHORTAGES: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS))
"""System errors that mean a shortage of this process or machine."""


def is_shortage(error: BaseException) -> bool:
    """Whether `error` means that descriptors, memory or threads ran out."""
    if isinstance(error, OSError):
        return error.errno in SHORTAGES
    return isinstance(error, MemoryError) or is_thread_shortage(error)


def find_shortage(error: BaseException) -> Exception | None:
    """The shortage that `error` is, or that caused it, at any depth of groups; None without one."""
    if isinstance(error, Exception) and is_shortage(error):
        return error
    inner = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    for cause in (*inner, error.__cause__):
        if cause is not None and (found := find_shortage(cause)) is not None:
            return found
    return None


def is_thread_shortage(error: BaseException) -> bool:
    """Whether `error` is that of `threading` for a thread that the system did not start."""
    return isinstance(error, RuntimeError) and "can't start new thread" in str(error)


@define
class Guarded:
    """One connection within an error boundary."""

    error: Exception | None = None
    """The exception that ended the connection; None without one."""


class ErrorBoundary:
    """Ends the exceptions of one kind of connection."""

    def __init__(self, kind: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        """`kind` names the connections in log lines; `clock` gives seconds."""
        self.kind = kind
        self.bugs = 0
        """Connections and requests that a bug ended."""
        self.shortages = 0
        """Connections and requests that a shortage ended."""
        self._clock = clock
        self._lines: dict[tuple[str, str, int], LogLimit] = {}
        """Of each kind of bug: exception type, file, line."""

    @contextmanager
    def around(self, peer: str) -> Iterator[Guarded]:
        """Run a connection inside the `with`. No `Exception` leaves it; the `Guarded` gets the first one."""
        guarded = Guarded()
        try:
            yield guarded
        except* Exception as group:  # noqa: BLE001 - this is the boundary
            guarded.error = _first(group)
            self.report(guarded.error, peer)

    def report(self, error: Exception, peer: str, *, what: str = "", **facts: object) -> None:
        """Count and log an exception that ended the connection of `peer`, or one of its requests.

        `what` is the text of the log line, if not the connection ended; `facts` are logged with it.
        """
        if is_shortage(error):
            self.shortages += 1
            key = (type(error).__name__, "shortage", getattr(error, "errno", 0) or 0)
        else:
            self.bugs += 1
            frames = extract_tb(error.__traceback__)
            last = frames[-1] if frames else None
            key = (type(error).__name__, last.filename if last else "", (last.lineno or 0) if last else 0)
        if key not in self._lines:
            if len(self._lines) >= KINDS_MAX:
                del self._lines[min(self._lines, key=lambda one: self._lines[one].logged_s)]
            self._lines[key] = LogLimit(REPORT_INTERVAL_S, clock_s=self._clock)
        times = self._lines[key].count()
        if not times:
            return
        repeated = times - 1
        if key[1] == "shortage":
            ended = what or f"{self.kind} closed"
            log.warning(f"{ended}: {str(error) or 'out of memory'}", peer=peer, repeated=repeated, **facts)
        else:
            ended = what or f"{self.kind} closed by a fault of this program"
            log.error(ended, peer=peer, repeated=repeated, exc_info=error, **facts)


def _first(error: BaseException) -> Exception:
    """The first exception of a group, at any depth."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, Exception), "except* Exception selects nothing else"
    return error
