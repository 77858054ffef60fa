"""Everything a simulation must not leave to chance: time, scheduling, worker threads, log lines.

With these pinned a run is a function of its seed. What is left is the order of tasks within trio's set of a
cancelled scope; trio sorts every batch of runnable tasks before it shuffles it, so that order shows nowhere.
"""

from __future__ import annotations

import random
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

import structlog
import trio
from trio._core import _run

WALL_START_NS = 1_700_000_000_000_000_000
"""Wall time at virtual time 0."""

FAULT_METHODS = frozenset(("error", "exception", "critical"))


def stream_of(seed: int, name: str) -> random.Random:
    """The random numbers of one part of a run: parts do not disturb each other's."""
    return random.Random(f"{seed}/{name}")


@contextmanager
def pinned(seed: int, *, on_log_fault: Callable[[str], None]) -> Iterator[None]:
    """Run what is inside with scheduling from `seed`, wall time from the virtual clock, and no threads.

    Log lines of level error and above are passed to `on_log_fault`; others are dropped.
    """
    rng = stream_of(seed, "worker threads")
    state = _run._r.getstate()
    processors = structlog.get_config()["processors"]
    kept = list(processors)

    def on_line(logger: object, method: str, line: dict[str, object]) -> dict[str, object]:
        if method in FAULT_METHODS:
            reason = traceback.format_exc() if line.get("exc_info") else ""
            on_log_fault(f"{method} logged: {line} {reason}")
        raise structlog.DropEvent

    with ExitStack() as stack:
        stack.enter_context(patch.object(_run, "_ALLOW_DETERMINISTIC_SCHEDULING", new=True))
        stack.enter_context(patch.object(time, "time_ns", _wall_ns))
        stack.enter_context(patch.object(trio.to_thread, "run_sync", _inline(rng)))
        _run._r.seed(seed)
        processors[:] = [on_line]
        try:
            yield
        finally:
            processors[:] = kept
            _run._r.setstate(state)


def _wall_ns() -> int:
    """Wall time that passes as virtual time does."""
    return WALL_START_NS + round(trio.current_time() * 1e9)


def _inline(rng: random.Random) -> Callable[..., object]:
    """In place of a worker thread: the call itself, after a while. A crash before that leaves it undone."""

    async def run_sync(function: Callable[[], object], **_options: object) -> object:
        await trio.sleep(rng.choice((0.0, 0.001, 0.05, 0.5)))
        return function()

    return run_sync
