"""Work that must not hang: syncs of the disk and changes of the role (controller mode).

Theory of operation. A broker whose disk hangs still has a living trio loop: its heartbeats go on, its
connections stay open, and the controllers take it for well. It may be a master that can store nothing for
good, or one to be that never becomes it. So work is announced here with its beginning and its end, and long
work also its steps. Work without an end or a step for `timeout_s` hangs: while any does, the node sends no
heartbeats (`ControllerAgent`), and the controllers elect another master after
controllerHeartBeatTimeoutMills. RocketMQ's brokers send theirs.

Steps may be reported by any thread. Everything else belongs to trio's thread; `hanging` has to be called more
often than each `timeout_s`, since it is what sees the steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import trio
from attrs import define


@define(eq=False)
class Work:
    """Work that has begun."""

    what: str
    """For operators, as `a sync of the log`."""
    begun_s: float
    steps: int = 0
    """Grows with each step."""
    seen_steps: int = 0
    seen_s: float = 0.0
    """When `hanging` saw the last step first."""

    def step(self) -> None:
        """Note that the work goes on. Called in any thread, for one work in one thread at a time."""
        self.steps += 1


class HangWatch:
    """All work under way of one node."""

    def __init__(self, timeout_s: float) -> None:
        """`timeout_s`: trioha.hangTimeout."""
        self._timeout_s = timeout_s
        self._works: list[Work] = []

    def begin(self, what: str) -> Work:
        """Work begins. `end` it."""
        now_s = trio.current_time()
        work = Work(what, now_s, seen_s=now_s)
        self._works.append(work)
        return work

    def end(self, work: Work) -> None:
        """Work has ended; nothing happens if it had before."""
        if work in self._works:
            self._works.remove(work)

    @contextmanager
    def working(self, what: str) -> Iterator[Work]:
        """The block is work."""
        work = self.begin(what)
        try:
            yield work
        finally:
            self.end(work)

    @contextmanager
    def stepping(self, what: str) -> Iterator[Callable[[], None]]:
        """The block is work; gives the function to call with each step."""
        with self.working(what) as work:
            yield work.step

    def hanging(self) -> str | None:
        """What hangs, for operators; None if nothing does."""
        now_s = trio.current_time()
        for work in self._works:
            if work.steps != work.seen_steps:
                work.seen_steps, work.seen_s = work.steps, now_s
            elif now_s - work.seen_s >= self._timeout_s:
                return f"{work.what} has begun {now_s - work.begun_s:.0f} s ago and makes no progress"
        return None
