"""Worker threads under a shortage of threads.

trio keeps worker threads only while they are used, so after some idle seconds the next blocking call starts a
new one. Where the system has none (a limit of processes or of memory), `trio.to_thread.run_sync` raises
RuntimeError, which would end the node for a passing shortage. `run_in_thread` waits instead: a put that waits
for its sync runs into its own timeout, and the node continues to serve.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

import structlog
import trio

from trioha.log_limit import LogLimit
from trioha.net.error_boundary import is_thread_shortage

T = TypeVar("T")

log = structlog.get_logger(__name__)

RETRY_S: Final = 0.1
"""Time between two attempts to start a thread."""
REPORT_INTERVAL_S: Final = 60.0
"""Least time between two log lines about a shortage of threads."""


_line: trio.lowlevel.RunVar[LogLimit] = trio.lowlevel.RunVar("line about a shortage of threads")
"""One for each run of trio, which has a clock of its own."""


async def run_in_thread(
    call: Callable[[], T], *, abandon_on_cancel: bool = False, limiter: trio.CapacityLimiter | None = None
) -> T:
    """`trio.to_thread.run_sync`, but waits while no thread can be started.

    If cancelled while waiting, `call` was not called.
    """
    while True:
        try:
            return await trio.to_thread.run_sync(call, abandon_on_cancel=abandon_on_cancel, limiter=limiter)
        except RuntimeError as error:
            if not is_thread_shortage(error):
                raise
        _log_shortage()
        await trio.sleep(RETRY_S)


def _log_shortage() -> None:
    try:
        line = _line.get()
    except LookupError:
        line = LogLimit(REPORT_INTERVAL_S, clock_s=trio.current_time)
        _line.set(line)
    if line.count():
        log.warning("the system has no thread for disk work, which waits for one")
