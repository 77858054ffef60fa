"""The border of a connection: the one place where its exceptions end.

Theory of operation. Whatever a peer sends or does ends its own connection at most. Inside the border a
connection's tasks raise as they like; expected ends (end of stream, idle, a broken protocol) are values or
are caught by the connection itself. What still arrives here is either a shortage of this process
(descriptors, memory: one line, counted) or a bug of ours: counted, and logged with its traceback once per
kind and minute, so that a peer that repeats it cannot fill the log. Cancellation and KeyboardInterrupt pass.

A border is made once for each kind of connection (remoting server, HA master, HA slave, remoting client,
monitor feed) and used by all connections of that kind.
"""

from __future__ import annotations

import errno
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from traceback import extract_tb
from typing import Final

import structlog
from attrs import define

log = structlog.get_logger(__name__)

REPORT_INTERVAL_S: Final = 60.0
"""One kind of bug is logged with its traceback once in so long."""
KINDS_MAX: Final = 256
"""Kinds of bugs that are told apart; beyond them the oldest is forgotten."""
SHORTAGES: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS))
"""Errors of the system that say that this process or machine is short of something."""


def is_shortage(error: BaseException) -> bool:
    """Whether `error` says that descriptors, memory or threads ran out; nothing about peer, disk or code."""
    if isinstance(error, OSError):
        return error.errno in SHORTAGES
    return isinstance(error, MemoryError) or is_thread_shortage(error)


def find_shortage(error: BaseException) -> Exception | None:
    """The shortage that `error` is, or that caused it, however deep in groups; None if there is none."""
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
class Crossing:
    """What became of one passage of the border."""

    error: Exception | None = None
    """The exception that ended the connection, None if it ended by itself."""


class ConnectionBorder:
    """Ends the exceptions of one kind of connection."""

    def __init__(self, kind: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        """`kind` names the connections in log lines; `clock` gives seconds."""
        self.kind = kind
        self.bugs = 0
        """Connections that a bug of ours ended."""
        self.shortages = 0
        """Connections that ended because descriptors or memory ran out."""
        self._clock = clock
        self._reported_s: dict[tuple[str, str, int], float] = {}
        """When a kind of bug (exception type, file, line) was last logged."""
        self._unreported: Counter[tuple[str, str, int]] = Counter()

    @contextmanager
    def around(self, peer: str) -> Iterator[Crossing]:
        """Run one connection's life. No `Exception` leaves; the `Crossing` says which one came, if any."""
        crossing = Crossing()
        try:
            yield crossing
        except* Exception as group:  # noqa: BLE001 - this is the border
            crossing.error = _first(group)
            self.report(crossing.error, peer)

    def report(self, error: Exception, peer: str, *, what: str = "", **facts: object) -> None:
        """Count and log an exception that ended the connection of `peer`, or one request of it.

        `what` says in the log line what it ended, if not the connection; `facts` are logged with it.
        """
        if is_shortage(error):
            self.shortages += 1
            key = (type(error).__name__, "shortage", getattr(error, "errno", 0) or 0)
        else:
            self.bugs += 1
            frames = extract_tb(error.__traceback__)
            last = frames[-1] if frames else None
            key = (type(error).__name__, last.filename if last else "", (last.lineno or 0) if last else 0)
        now_s = self._clock()
        reported_s = self._reported_s.get(key)
        if reported_s is not None and now_s - reported_s < REPORT_INTERVAL_S:
            self._unreported[key] += 1
            return
        if len(self._reported_s) >= KINDS_MAX:
            oldest = min(self._reported_s, key=self._reported_s.__getitem__)
            del self._reported_s[oldest]
            self._unreported.pop(oldest, None)
        self._reported_s[key] = now_s
        repeated = self._unreported.pop(key, 0)
        if key[1] == "shortage":
            ended = what or f"{self.kind} closed"
            log.warning(f"{ended}: {str(error) or 'out of memory'}", peer=peer, repeated=repeated, **facts)
        else:
            ended = what or f"{self.kind} closed by a fault of this program"
            log.error(ended, peer=peer, repeated=repeated, exc_info=error, **facts)


def _first(error: BaseException) -> Exception:
    """The first exception of a group, however deep."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, Exception), "except* Exception selects nothing else"
    return error
