"""The connection of a replica that is, or may come to be, in the sync-state set (`ha.sync_state_set`)."""

from __future__ import annotations

from typing import Final

from attrs import define

from trioha.ha.meter import LagClock

JOIN_LAG_S: Final = 0.5
"""A replica joins whose oldest missing byte is younger."""
JOIN_LAG_BYTES: Final = 16 * 1024 * 1024
"""A replica joins that lacks no more bytes. When it has just connected, their age is not known."""


@define(eq=False)
class Link:
    """One connection of a replica, and how far behind the log it is."""

    connection_id: int
    is_learner: bool
    connected_s: float
    ack_offset: int = -1
    """Its last report; -1 before the first."""
    acked_s: float = 0.0
    """When the last report came."""
    lag_clock: LagClock | None = None
    """When its unacknowledged bytes were appended; None before its first report."""
    join_offset: int = 0
    """The log's end when it began to join."""
    join_until_s: float = 0.0
    """When it joins no more."""

    def unacked_for_s(self, now_s: float) -> float:
        """How long an ack has been due; 0 if none is."""
        clock = self.lag_clock
        return 0.0 if clock is None else clock.unacked_for_s(now_s, acked_s=self.acked_s)

    def caught_up_s(self, now_s: float) -> float:
        """Until when it had all that was appended."""
        if self.lag_clock is None:
            return self.connected_s
        oldest_s = self.lag_clock.oldest_s
        return now_s if oldest_s is None else oldest_s

    def is_close(self, log_end: int, now_s: float) -> bool:
        """Whether so little of a log that ends at `log_end` is missing that the replica may join the set."""
        return now_s - self.caught_up_s(now_s) <= JOIN_LAG_S and log_end - self.ack_offset <= JOIN_LAG_BYTES
