"""What both generations of access control share: a handler behind a check, and the count of its refusals.

Refusals are counted, and logged at most once a minute, so that a client that repeats them does not fill the
log.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final

import structlog

from trioha.log_limit import LogLimit
from trioha.remoting.command import BadRequestError, RemotingCommand
from trioha.remoting.serving import Answer, Handler, Peer

log = structlog.get_logger(__name__)

REPORT_INTERVAL_S: Final = 60.0
"""Least time between two log lines about refusals."""


class RequestGuard(ABC):
    """Checks and counts the requests to a broker."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` gives seconds."""
        self._line = LogLimit(REPORT_INTERVAL_S, clock_s=clock)
        self.refused = 0
        """Requests refused so far."""

    @abstractmethod
    def check(self, request: RemotingCommand, peer: Peer) -> None:
        """Return if the request is allowed. Raises BadRequestError."""

    def guard(self, handler: Handler) -> Handler:
        """`handler` behind this check. Raises BadRequestError for a request that is refused."""

        def guarded(request: RemotingCommand, peer: Peer) -> Answer:
            try:
                self.check(request, peer)
            except BadRequestError as refusal:
                self._count(refusal, request, peer)
                raise
            return handler(request, peer)

        return guarded

    def _count(self, refusal: BadRequestError, request: RemotingCommand, peer: Peer) -> None:
        self.refused += 1
        if refusals := self._line.count():
            log.warning(
                "request refused by access control",
                peer=str(peer),
                code=request.code,
                reason=refusal.reason[:200],
                not_logged=refusals - 1,
            )
