"""The link of a slave to its master: what is known of it over all its connections."""

from __future__ import annotations

from typing import Final

import structlog
from attrs import define, field

from trioha.ha.followed_log import ReplicationError
from trioha.ha.meter import RateMeter
from trioha.recording.events import CloseReason

log = structlog.get_logger(__name__)

UNANSWERED_MAX: Final = 3
"""So many connections in a row that the master ended without sending a byte make a verdict."""
GAP_REASONS: Final = frozenset((CloseReason.GAP, CloseReason.AHEAD, CloseReason.DIVERGED))
"""The own log does not continue the master's, or the other way round."""
VERDICT_REASONS: Final = GAP_REASONS | {CloseReason.LOG_RESTARTED, CloseReason.CUT_REFUSED}
"""What keeps a log from following its master's for longer than a connection."""


@define
class LinkStatistics:
    """Measures of the link to the master, over all its connections."""

    rate: RateMeter = field(factory=lambda: RateMeter(0.0))
    last_read_ms: int = 0
    """Wall time of the last byte from the master, 0 before the first."""
    last_write_ms: int = 0
    """Wall time of the last report, 0 before the first."""


class LinkVerdict:
    """What keeps this log from following its master's, over all connections."""

    def __init__(self, master_address: str) -> None:
        self._master_address = master_address
        self.text = ""
        """Reason and offset; empty while nothing does."""
        self._unanswered = 0
        """Connections in a row that the master ended without sending a byte."""

    def set_gap(self, error: ReplicationError) -> None:
        """The logs do not continue each other."""
        self.text = f"{error.reason.name}: {error}"

    def check_master(self, refusal: str) -> None:
        """Why the broker there is not the master of this slave; empty if it is, or may be."""
        other = f"{CloseReason.OTHER_MASTER.name}: "
        if refusal and self.text != other + refusal:
            self.text = other + refusal
            log.warning(self.text, master=self._master_address)
        elif not refusal and self.text.startswith(other):
            self.text = ""

    def clear(self) -> None:
        """The master's log continues the own one."""
        self.text = ""

    def answered(self) -> None:
        """The master sent a byte on a new connection."""
        if self._unanswered >= UNANSWERED_MAX:
            self.text = ""
        self._unanswered = 0

    def ended_unanswered(self, request_offset: int) -> None:
        """The master ended a connection without sending a byte.

        A 4.9 master does so where the slave's log ends far beyond its own, a trioha master to peers that it
        does not admit.
        """
        self._unanswered += 1
        if self._unanswered >= UNANSWERED_MAX:
            self.text = (
                f"REFUSED: {self._unanswered} connections ended without an answer: the master does not "
                f"admit this slave, or its log ends before {request_offset}"
            )
            log.warning(self.text, master=self._master_address)
