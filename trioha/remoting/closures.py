"""Log lines of closed connections, not more than a log can bear."""

from __future__ import annotations

from typing import Final

import structlog
import trio

log = structlog.get_logger()

LINES_PER_MINUTE: Final = 30
"""A peer that connects and breaks the protocol, again and again, must not fill the log."""


class ClosureLog:
    """Logs why a server closed connections: up to `LINES_PER_MINUTE`, then how many were left out."""

    def __init__(self) -> None:
        self._minute = -1
        self._lines = 0
        self._left_out = 0

    def closed(self, peer: str, reason: str) -> None:
        """The connection of `peer` was closed for `reason`."""
        minute = int(trio.current_time() // 60)
        if minute != self._minute:
            if self._left_out:
                log.warning("remoting connections closed, not logged one by one", count=self._left_out)
            self._minute, self._lines, self._left_out = minute, 0, 0
        if self._lines == LINES_PER_MINUTE:
            self._left_out += 1
            return
        self._lines += 1
        log.warning("remoting connection closed", peer=peer, reason=reason)
