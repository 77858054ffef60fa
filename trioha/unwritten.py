"""What a node cannot write although it goes on without it: the index, recordings, histories, backups.

Such a thing is optional: its failure holds up nothing that was promised. It is counted, part of the node's
status and metrics, and a line in the log now and then; who writes it tries again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

import structlog
from attrs import define

from trioha.log_limit import LogLimit

log = structlog.get_logger(__name__)

INDEX: Final = "index"
RECORDING: Final = "recording"
HISTORY: Final = "metadata history"
CHECKPOINT: Final = "checkpoint"
QUEUE_LIST: Final = "list of queues"
TIME_STEPS: Final = "time steps"
OPTIONAL: Final = (INDEX, RECORDING, HISTORY, CHECKPOINT, QUEUE_LIST, TIME_STEPS)
"""Names of what every node may write; others are those of files."""
LOG_INTERVAL_S: Final = 60.0
"""Between two lines in the log about one thing that cannot be written."""


@define
class _Thing:
    line: LogLimit
    failures: int = 0
    reason: str = ""


class Unwritten:
    """What cannot be written, by name. Worker threads may call it, one thread for each name."""

    def __init__(self, *, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._things: dict[str, _Thing] = {}

    def fail(self, name: str, reason: str, *, consequence: str) -> None:
        """`name` could not be written; `consequence` says what goes on, and what is missing meanwhile."""
        thing = self._things.get(name)
        if thing is None:
            thing = self._things[name] = _Thing(LogLimit(LOG_INTERVAL_S, clock_s=self._clock_s))
        thing.failures += 1
        thing.reason = reason
        if thing.line.count():
            log.error(
                f"cannot be written: {name}", reason=reason, consequence=consequence, failures=thing.failures
            )

    def succeed(self, name: str) -> None:
        """`name` was written."""
        thing = self._things.get(name)
        if thing is not None and thing.reason:
            thing.reason = ""
            thing.line.reset()
            log.info(f"written again: {name}", failures=thing.failures)

    @property
    def reasons(self) -> Mapping[str, str]:
        """Why each thing that cannot be written now cannot."""
        return {name: thing.reason for name, thing in list(self._things.items()) if thing.reason}

    @property
    def failures(self) -> Mapping[str, int]:
        """How many writes of each thing failed since the start; without those that never did."""
        return {name: thing.failures for name, thing in list(self._things.items())}
