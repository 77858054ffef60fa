"""Busy polling: looking for bytes for a moment before the node's thread sleeps.

Theory of operation. A lone put waits longer for halted CPUs to wake up than for anything else
(docs/where-time-goes.md#an-ack). So before trio's thread would sleep, it polls the sockets from which bytes
may come soon (as net.core.busy_poll of Linux does for devices): those of slaves, of the master, of clients.
No other work waits meanwhile: trio has found none. The end of a worker thread, which also ends a sleep, is
seen at the end of a poll only.

A poll pays if bytes come before its end. Polls become as rare as they fail:

| share of polls that pay | calls that poll |
|---|---|
| above 1/2 | all |
| 1/n | one of n |
| none | one of `CALLS_PER_POLL_MAX`, which notices that polls pay again |

The share is a moving average over the last `POLLS_REMEMBERED` polls or so, and 1 at the start. A side that
does not poll makes the polls of the other side fail: so polls go on while most of them pay.

Between two looks the thread yields its core. If it comes back late, others have waited for the core, the
peer maybe among them, or for the interpreter, as threads of this node do: the poll ends there, and has not
paid, whatever has come meanwhile; the next ones are half as many. So a node does not poll where processes
outnumber cores, and one late return is not the end of polls.
"""

from __future__ import annotations

import math
import os
import selectors
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Final, Protocol, runtime_checkable

import trio

POLLS_REMEMBERED: Final = 8
YIELD_S_MAX: Final = 300e-6
"""A look and a yield take some microseconds, and as long as a peer works that runs meanwhile. What takes
longer is not for this node."""
CALLS_PER_POLL_MAX: Final = 256
CPU_GROUPS: Final = Path("/sys/fs/cgroup")
"""Where a container sees its own control group."""
_current: trio.lowlevel.RunVar[BusyPoll] = trio.lowlevel.RunVar("busy poll")


def cpu_quota(groups: Path = CPU_GROUPS) -> float:
    """Cores' worth of CPU time that the container of this process may use; infinite without a limit.

    Of control groups of version 2, `cpu.max` has quota and period in microseconds; of version 1, two files
    have a number each. A process outside of containers sees the top of all groups, which has no limit.
    """
    try:
        if (groups / "cpu.max").exists():
            quota, period = (groups / "cpu.max").read_text().split()
        else:
            quota = (groups / "cpu" / "cpu.cfs_quota_us").read_text()
            period = (groups / "cpu" / "cpu.cfs_period_us").read_text()
        quota_us, period_us = int(quota), int(period)
    except (OSError, ValueError):
        # No such files, or `max`, which is not a number.
        return math.inf
    return quota_us / period_us if quota_us > 0 and period_us > 0 else math.inf


def has_cores_to_spare() -> bool:
    """Whether this process has more than one core, by affinity and by the CPU quota of its container.

    With one core, polls would keep the peer from answering, or use up the quota, and the kernel would stop
    the process until the next period.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, cpu_quota()) > 1


@runtime_checkable
class SocketHolder(Protocol):
    """A stream over a socket."""

    @property
    def socket(self) -> socket.socket:
        """The socket."""
        ...


def _yield_core() -> None:
    """Looked up when it is used: a system may not have it."""
    os.sched_yield()


class BusyPoll(trio.abc.Instrument):
    """Polls before trio's thread sleeps, at most `limit_s` seconds at a time."""

    def __init__(
        self,
        limit_s: float,
        *,
        clock: Callable[[], float] = time.perf_counter,
        yield_core: Callable[[], None] = _yield_core,
    ) -> None:
        self._limit_s = limit_s
        self._clock = clock
        self._yield_core = yield_core
        self._sockets: selectors.BaseSelector | None = None
        """Those to poll, while it is `used`."""
        self._share = 1.0
        """Share of polls that pay, at least one of `CALLS_PER_POLL_MAX`."""
        self._to_skip = 0
        """Calls left that skip the poll."""

    @contextmanager
    def used(self) -> Iterator[None]:
        """Poll in this run of trio, for the sockets that are `polled`."""
        with selectors.DefaultSelector() as sockets:
            self._sockets = sockets
            _current.set(self)
            trio.lowlevel.add_instrument(self)
            try:
                yield
            finally:
                trio.lowlevel.remove_instrument(self)
                self._sockets = None

    def before_io_wait(self, timeout: float) -> None:
        """As `trio.abc.Instrument`: trio would sleep so long, in s."""
        sockets = self._sockets
        if timeout > 0 and sockets is not None and sockets.get_map():
            self.until(lambda: bool(sockets.select(0)), limit_s=timeout)

    def until(self, poll: Callable[[], bool], *, limit_s: float = math.inf) -> None:
        """Call `poll` until it returns True, or another process wants the core, at most for the limits, or
        skip it."""
        if self._to_skip:
            self._to_skip -= 1
            return
        clock = self._clock
        now_s = clock()
        end_s = now_s + min(self._limit_s, limit_s)
        pays = False
        while now_s < end_s:
            if poll():
                pays = True
                break
            self._yield_core()
            began_s, now_s = now_s, clock()
            if now_s - began_s > YIELD_S_MAX:
                self._share /= 2
                break
        self._note(pays=pays)

    def _note(self, *, pays: bool) -> None:
        """Decide by the result of a poll how many calls skip the next one."""
        share = self._share + (pays - self._share) / POLLS_REMEMBERED
        self._share = share = max(share, 1 / CALLS_PER_POLL_MAX)
        self._to_skip = int(1 / share) - 1

    def add(self, sock: socket.socket) -> None:
        """Poll for its bytes, until `remove`."""
        if self._sockets is not None:
            self._sockets.register(sock, selectors.EVENT_READ)

    def remove(self, sock: socket.socket) -> None:
        """Poll for its bytes no more. Call it before the socket is closed."""
        if self._sockets is not None:
            self._sockets.unregister(sock)


def busy_polling(limit_s: float) -> AbstractContextManager[None]:
    """Poll in this run of trio, at most `limit_s` seconds at a time; not at all for 0, and without cores to
    spare."""
    return BusyPoll(limit_s).used() if limit_s and has_cores_to_spare() else nullcontext()


@contextmanager
def polled(stream: trio.abc.Stream) -> Iterator[None]:
    """Bytes of this stream may come soon: if this run of trio polls, it polls for them, too."""
    try:
        poll = _current.get()
    except LookupError:
        poll = None
    while isinstance(stream, trio.SSLStream):
        stream = stream.transport_stream
    if poll is None or not isinstance(stream, SocketHolder):
        yield
        return
    poll.add(stream.socket)
    try:
        yield
    finally:
        poll.remove(stream.socket)
