"""Texts of what happens to connections and puts: one wording for the live view and replays of sessions."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from trioha.unit_texts import format_bytes

REASONS: Final = {
    "EOF": "the slave closed it",
    "IO_ERROR": "the socket failed",
    "HOUSEKEEPING": "nothing was received for haHousekeepingInterval",
    "SHUTDOWN": "the master stops",
    "ACK_BEYOND_SENT": "acknowledged more than it was sent",
    "ACK_WENT_BACK": "acknowledged less than before",
    "BAD_SIZE": "sent a report of the wrong size",
    "REQUEST_ABOVE_MAX": "requested bytes beyond the log",
    "REQUEST_BELOW_MIN": "requested bytes that were deleted",
    "NOT_ALLOWED": "is not allowed to connect",
    "NO_REQUEST": "sent no request in time",
    "LOG_RESTARTED": "the node restarted its log",
    "INTERNAL_ERROR": "a fault of the node ended it; its log has the traceback",
    "REPLACED": "a newer connection of the same broker took its place",
    "NO_EPOCH": "requested bytes of no epoch",
}
"""What a master's reason (`trioha.recording.events.CloseReason`) means, where the name does not say it."""


def connection_ended(
    reasons: Collection[str],
    *,
    is_slave: bool = False,
    ack_offset: int | None = None,
    lacks_bytes: int | None = None,
) -> str:
    """A connection ended for one of `reasons`, names of a CloseReason; none if they are not known.

    `is_slave`: of a slave's own connection, whose reasons are those of the slave. What it had acknowledged,
    and what it lacks, where that is known.
    """
    names = sorted(reasons)
    words = REASONS.get(names[0]) if len(names) == 1 and not is_slave else None
    why = f" ({' or '.join(names)}{f': {words}' if words else ''})" if names else ""
    ack = "" if ack_offset is None else f"; ack {ack_offset}"
    return f"connection ended{why}{ack}" + (f", {format_bytes(lacks_bytes)} behind" if lacks_bytes else "")


def sync_changed(*, in_sync: bool, lacks_bytes: int | None) -> str:
    """A replica came in sync, or is not in sync any more."""
    if in_sync:
        return "in sync again"
    return "not in sync" + (f": {format_bytes(lacks_bytes)} behind" if lacks_bytes else "")


def refused(reason: str, *, offset: int | None = None, count: int = 1) -> str:
    """A master refused a peer, `count` times, for `reason`, the name of a CloseReason.

    It had asked from `offset`, where that is known.
    """
    words = REASONS.get(reason)
    what = f"refused a peer that {words} ({reason}" if words else f"refused a peer ({reason}"
    where = "" if offset is None else f": from {offset}"
    return f"{what}{where}{'' if count == 1 else f', {count} times'})"


def puts_fail(status: str, *, after_us: int | None = None) -> str:
    """Puts end with `status`, the name of a PutMessageStatus; the first one after so many microseconds."""
    return f"puts end with {status}" + ("" if after_us is None else f" after {after_us / 1000:.0f} ms")
