"""Puts that the disk refuses, as a full one does: counted, logged now and then, known for a minute."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Final

import structlog

from trioha.errors import StoreError
from trioha.log_limit import LogLimit
from trioha.store.messages import AppendResult
from trioha.store.put_status import PutStatus

log = structlog.get_logger(__name__)

LOG_INTERVAL_S: Final = 10.0
"""Between two lines in the log: producers try again at once, thousands of times a second."""
CURRENT_S: Final = 60.0
"""How long after a refusal the disk counts as refusing puts."""


class DiskRefusals:
    """What the disk refused of one log."""

    def __init__(self, *, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._reason = ""
        self._refused_s = -math.inf
        self._line = LogLimit(LOG_INTERVAL_S, clock_s=clock_s)

    @property
    def current(self) -> str:
        """Why puts are refused; empty if none was within the last minute."""
        return self._reason if self._clock_s() - self._refused_s <= CURRENT_S else ""

    def refuse(self, error: StoreError) -> AppendResult:
        """The result of a put that the disk refused."""
        self._reason, self._refused_s = str(error), self._clock_s()
        if puts := self._line.count():
            log.error("the disk refuses puts", path=error.path, reason=error.reason, puts=puts)
        return AppendResult(PutStatus.SERVICE_NOT_AVAILABLE, reason=error.reason)
