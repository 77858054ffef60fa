"""Log lines of closed connections, at a limited rate."""

from __future__ import annotations

from typing import Final

import structlog
import trio

log = structlog.get_logger()

LINES_PER_MINUTE: Final = 30
"""A peer that repeatedly connects and breaks the protocol must not fill the log."""


class ClosureLog:
    """Logs closed connections with their reasons: up to `LINES_PER_MINUTE`, then the number of the others."""

    def __init__(self) -> None:
        self._minute = -1
        self._lines = 0
        self._suppressed = 0

    def closed(self, peer: str, reason: str) -> None:
        """The connection of `peer` was closed for `reason`."""
        minute = int(trio.current_time() // 60)
        if minute != self._minute:
            if self._suppressed:
                log.warning("remoting connections closed, not logged one by one", count=self._suppressed)
            self._minute, self._lines, self._suppressed = minute, 0, 0
        if self._lines == LINES_PER_MINUTE:
            self._suppressed += 1
            return
        self._lines += 1
        log.warning("remoting connection closed", peer=peer, reason=reason)
