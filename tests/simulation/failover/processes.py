"""Simulated processes: which one a task belongs to, processes that hang, and their crashes.

A task belongs to the process of the task that spawned it, by a context variable. A process that hangs
(SIGSTOP, a long pause of a virtual machine) runs none of its tasks: what wakes one of them meanwhile waits
until it goes on, and then all its timers are late at once. Sockets and kernel go on without it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any
from unittest.mock import patch

import trio
from trio._core import _run


class Crash(BaseException):
    """The process ended here, in the middle of a call."""


class Process:
    """One process of a run."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_hung = False
        self._held: list[trio.lowlevel.Task] = []

    def hang(self) -> None:
        self.is_hung = True

    def resume(self) -> None:
        """Run the tasks that were woken meanwhile."""
        self.is_hung = False
        held, self._held = self._held, []
        if held:
            held[0]._runner.runq.extend(held)

    def hold(self, task: trio.lowlevel.Task) -> None:
        """Keep a task that was woken until the process goes on."""
        self._held.append(task)


CURRENT: ContextVar[Any] = ContextVar("simulated process", default=None)
"""The simulated broker that the current task belongs to; None for the world's own tasks."""


@contextmanager
def hanging_enabled() -> Iterator[None]:
    """Processes can hang inside."""
    real = _run.Runner.reschedule

    def reschedule(runner: _run.Runner, task: trio.lowlevel.Task, *next_send: Any) -> None:
        real(runner, task, *next_send)
        broker = task.context.get(CURRENT)
        if broker is not None and broker.process.is_hung:
            held = runner.runq.pop()
            assert held is task, "it was woken just now"
            broker.process.hold(task)

    with patch.object(_run.Runner, "reschedule", reschedule):
        yield
