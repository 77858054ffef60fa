"""Faults of the monitor itself: the boundary that contains them, their texts, and the log that has them.

While the screen is drawn there is no terminal to log to. Log lines and the traceback of a crash go to a file
in the user's state folder; lines that cannot be written go to stderr after the screen has closed.
"""

from __future__ import annotations

import logging
import traceback
from collections import deque
from pathlib import Path
from typing import Final, TextIO, cast

import structlog
from platformdirs import user_state_path

from trioha.net.error_boundary import ErrorBoundary
from trioha.outside_text import escaped_lines

BOUNDARY: Final = ErrorBoundary("monitor feed")
"""Contains faults with one node or one name server; counts and logs them."""
LOG_BYTES_MAX: Final = 1024 * 1024
"""A longer log is renamed to `monitor.log.1`, replacing the one before."""
UNWRITTEN_MAX: Final = 64
"""Unwritten lines that are kept: the last ones."""
ERROR_CHARS_MAX: Final = 60
"""How much of an error's text the screen shows."""


def state_folder() -> Path:
    """The user's state folder of this platform: on Linux `trioha` in `$XDG_STATE_HOME`, or in
    `~/.local/state`."""
    return user_state_path("trioha", appauthor=False)


def log_path() -> Path:
    """Path of the log."""
    return state_folder() / "monitor.log"


class FaultLog:
    """The monitor's log: a file that is made with its first line."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = log_path() if path is None else path
        self.unwritten: deque[str] = deque(maxlen=UNWRITTEN_MAX)
        """Lines that could not be written."""

    def write(self, text: str) -> None:
        """Append `text`, as a terminal may show it."""
        text = escaped_lines(text)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if self.path.exists() and self.path.stat().st_size > LOG_BYTES_MAX:
                self.path.replace(self.path.with_name(f"{self.path.name}.1"))
            with self.path.open("a", encoding="utf-8", errors="backslashreplace") as file:
                file.write(text)
        except OSError:
            self.unwritten.append(text)

    def flush(self) -> None:
        """Nothing is buffered."""

    def capture_logs(self) -> None:
        """Write the log lines of this process to this log."""
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
        """Write the traceback of a crash; returns where it is, empty if it is in `unwritten`."""
        self.write("".join(traceback.format_exception(error)))
        return "" if self.unwritten else f"traceback in {self.path}"


def fault_of_this_program(error: Exception) -> str:
    """Reason of a node that is DOWN after the boundary ended its connection."""
    words = f"{type(error).__name__}: {str(error)[:ERROR_CHARS_MAX]}"
    return f"a fault of this monitor: {words}; traceback in {log_path()}"
