"""Waiting for what no event reports: another process, a worker thread, a counter."""

from __future__ import annotations

import time
from collections.abc import Callable

import trio

WITHIN_S = 60.0
"""For conditions of processes, which come true in a second or two on an idle machine."""


def wait_until(condition: Callable[[], object], what: str = "", *, within_s: float = WITHIN_S) -> None:
    """Return once `condition` holds; `what` names it where it does not in time."""
    deadline_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline_s, f"not within {within_s:g} s: {what or condition}"
        time.sleep(0.02)


async def until(condition: Callable[[], object], *, within_s: float = WITHIN_S) -> None:
    """As `wait_until` in a trio task. With an autojump clock, time passes only while every task waits."""
    with trio.fail_after(within_s):
        while not condition():  # noqa: ASYNC110 - what it waits for has no event
            await trio.sleep(0.005)
