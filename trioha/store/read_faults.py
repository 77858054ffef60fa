"""Bytes of the log that the disk does not give: counted, logged now and then, the last one known."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import structlog

from trioha.errors import StoreError
from trioha.log_limit import LogLimit

log = structlog.get_logger(__name__)

LOG_INTERVAL_S: Final = 10.0
"""Between two lines in the log: a consumer tries again at once, thousands of times a second."""


class ReadFaults:
    """What one log could not read. Each fault ends the request, or the connection, that needed the bytes."""

    def __init__(self, *, clock_s: Callable[[], float] = time.monotonic) -> None:
        self.count = 0
        """Reads that failed since the log was opened."""
        self.last = ""
        """Path, offset and reason of the last one; empty without any."""
        self._line = LogLimit(LOG_INTERVAL_S, clock_s=clock_s)

    def note(self, error: StoreError) -> None:
        """Count a read that failed."""
        self.count += 1
        self.last = str(error)
        if reads := self._line.count():
            log.error(
                "the log cannot be read",
                path=error.path,
                offset=error.offset,
                reason=error.reason,
                reads=reads,
            )
