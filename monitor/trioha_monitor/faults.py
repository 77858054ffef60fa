"""Faults of the monitor itself: the border that ends them, what is said of them, where they are written.

While the screen is drawn there is no terminal to log to. Log lines, and the traceback of a crash, go into a
file in the user's state folder; what cannot be written there is kept, and goes to stderr when the screen is
gone.
"""

from __future__ import annotations

import logging
import os
import traceback
from collections import deque
from pathlib import Path
from typing import Final, TextIO, cast

import structlog

from trioha.net.border import ConnectionBorder

BORDER: Final = ConnectionBorder("monitor feed")
"""Ends what goes wrong with one node or one name server; counts and logs it."""
LOG_BYTES_MAX: Final = 1024 * 1024
"""A longer log is kept as `monitor.log.1`, in place of the one before, and begun anew."""
UNWRITTEN_MAX: Final = 64
"""Lines that are kept where the log cannot be written: the last ones."""
ERROR_CHARS_MAX: Final = 60
"""How much of an error's own words is said on the screen."""


def log_path() -> Path:
    """Where the monitor's log is: `trioha/monitor.log` in `$XDG_STATE_HOME`, by default `~/.local/state`."""
    state = Path(os.environ.get("XDG_STATE_HOME", ""))
    if not state.is_absolute():
        state = Path.home() / ".local" / "state"
    return state / "trioha" / "monitor.log"


class FaultLog:
    """The monitor's log: a file that exists only when there is something in it."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = log_path() if path is None else path
        self.unwritten: deque[str] = deque(maxlen=UNWRITTEN_MAX)
        """What could not be written."""

    def write(self, text: str) -> None:
        """Append `text`."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if self.path.exists() and self.path.stat().st_size > LOG_BYTES_MAX:
                self.path.replace(self.path.with_name(f"{self.path.name}.1"))
            with self.path.open("a", encoding="utf-8", errors="backslashreplace") as file:
                file.write(text)
        except OSError:
            self.unwritten.append(text)

    def flush(self) -> None:
        """Nothing is held back."""

    def take_logs(self) -> None:
        """Let the log lines of this process go here."""
        structlog.configure(
            processors=[
                structlog.processors.add_log_level,
                structlog.processors.TimeStamper(fmt="iso", utc=True),
                structlog.dev.ConsoleRenderer(
                    colors=False, exception_formatter=structlog.dev.plain_traceback
                ),
            ],
            wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
            logger_factory=structlog.WriteLoggerFactory(file=cast("TextIO", self)),
            cache_logger_on_first_use=False,
        )

    def keep(self, error: BaseException) -> str:
        """Write the whole traceback of a crash; returns where it is, empty if it is in `unwritten`."""
        self.write("".join(traceback.format_exception(error)))
        return "" if self.unwritten else f"traceback in {self.path}"


def fault_of_this_program(error: Exception) -> str:
    """What the row of a node says after the border ended its connection."""
    words = f"{type(error).__name__}: {str(error)[:ERROR_CHARS_MAX]}"
    return f"a fault of this monitor: {words}; traceback in {log_path()}"
