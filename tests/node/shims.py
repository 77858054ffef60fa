"""Shortages and faults of the system for one node, which kernel limits cannot cause for root.

`python -m tests.node.shims FILE ARGUMENTS` is `trioha ARGUMENTS` on a system that does what the one word in
FILE says: `threads` has no thread to give; a number of seconds is what the wall clock has jumped by. Without
the file the system is healthy.
"""

from __future__ import annotations

import datetime
import sys
import threading
import time
from pathlib import Path
from typing import Any

from trio._core import _thread_cache

THREADS = "threads"
IDLE_THREAD_S = 0.05
"""How long trio keeps an idle thread; 10 s without these faults."""


def program(fault_file: Path) -> list[str]:
    """The command to start instead of `trioha`."""
    return [sys.executable, "-m", "tests.node.shims", str(fault_file)]


def _word(fault_file: Path) -> str:
    try:
        return fault_file.read_text()
    except FileNotFoundError:
        return ""


def install(fault_file: Path) -> None:
    """Install the faults in this process."""
    start, seconds, nanoseconds = threading.Thread.start, time.time, time.time_ns
    before = datetime.datetime

    def start_thread(self: threading.Thread) -> None:
        if _word(fault_file) == THREADS:
            raise RuntimeError("can't start new thread")
        start(self)

    def jump_s() -> int:
        word = _word(fault_file)
        return int(word) if word.lstrip("-").isdecimal() else 0

    class Jumping(before):  # type: ignore[valid-type, misc]
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return before.now(tz) + datetime.timedelta(seconds=jump_s())

    _thread_cache.IDLE_TIMEOUT = IDLE_THREAD_S
    threading.Thread.start = start_thread  # type: ignore[method-assign]
    time.time = lambda: seconds() + jump_s()
    time.time_ns = lambda: nanoseconds() + jump_s() * 1_000_000_000
    datetime.datetime = Jumping  # type: ignore[misc]


def main() -> int:
    """Run `trioha` on a system with faults."""
    install(Path(sys.argv.pop(1)))
    from trioha.cli import main as trioha

    return trioha()


if __name__ == "__main__":
    sys.exit(main())
