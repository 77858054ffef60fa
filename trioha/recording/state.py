"""The state of a session: the rules by which events become offsets, lag and connection states. No NumPy.

Every view of a session follows these rules: figures of a replay, a monitor's live view, per-second tables,
causes of waits, what-if. They work on one value at a time, and what is not known is None.
`trioha_sessions.state_arrays` has the same rules for arrays.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Final

from trioha.recording.events import HaState, Kind

UNKNOWN: Final = -1
"""Stands for None where a value must be a number: in records, arrays and counters."""
REQUEST_OFFSET_END: Final = 1 << 56
"""A request at or beyond it is bytes of another protocol: no log is that long."""
END_STATES: Final = frozenset(map(int, (HaState.READY, HaState.SHUTDOWN)))
"""States in which there is no connection."""
LOG_END_KINDS: Final = frozenset(
    map(
        int,
        (
            *(Kind.STATE, Kind.REQUESTED, Kind.TRANSFER, Kind.HEARTBEAT, Kind.ACK),
            *(Kind.REFUSED, Kind.CLOSED, Kind.RECEIVED, Kind.REPORTED),
        ),
    )
)
"""Kinds of a connection's records, whose aux is the end of the recording node's log."""
FRAME_KINDS: Final = frozenset(map(int, (Kind.TRANSFER, Kind.RECEIVED)))
"""Kinds whose offset is the start of a frame of `size` bytes."""
REQUEST_KINDS: Final = frozenset(
    map(int, (Kind.TRANSFER, Kind.ACK, Kind.HEARTBEAT, Kind.RECEIVED, Kind.REPORTED))
)
"""Kinds that only a connection has on which the log was requested."""
PEER_KINDS: Final = frozenset(map(int, (Kind.ACK, Kind.RECEIVED, Kind.REQUESTED)))
"""Kinds that show the peer of a connection alive, beside a HEARTBEAT that was received."""
STAGES: Final[Mapping[bool, Mapping[str, tuple[int, ...]]]] = {
    False: {"sent": (Kind.TRANSFER, Kind.ACK, Kind.HEARTBEAT), "ack": (Kind.ACK,)},
    True: {"received": (Kind.RECEIVED,), "reported": (Kind.REPORTED, Kind.HEARTBEAT)},
}
"""Stages of a connection by `is_slave` of the session, each with the kinds that name its offset.

Of HEARTBEAT only those that the recording node sent: a master names the sent offset in it, a slave the
reported one. An ACK counts as sent, since a slave acknowledges what it had before the connection too.
"""


def known(value: int) -> int | None:
    """`value`, or None if it is `UNKNOWN`."""
    return None if value < 0 else value


def reached_offset(kind: int, *, offset: int, size: int) -> int:
    """The offset that a record of a connection names: of a frame its end."""
    return offset + size if kind in FRAME_KINDS else offset


def ends_connection(kind: int, *, flags: int) -> bool:
    """Whether a record ends its connection."""
    return kind == Kind.CLOSED or (kind == Kind.STATE and flags in END_STATES)


def shows_request(kind: int, *, flags: int, offset: int) -> bool:
    """Whether a record shows that its connection requested the log: otherwise it may be a probe.

    An offset below 0 shows nothing: nothing was sent yet. In STATE and CLOSED it is the ack, or a slave's own
    log, whose earlier records may be missing.
    """
    if kind == Kind.REQUESTED:
        return 0 <= offset < REQUEST_OFFSET_END
    if kind in {Kind.STATE, Kind.CLOSED}:
        return 0 < offset < REQUEST_OFFSET_END or (kind == Kind.STATE and flags == HaState.TRANSFER)
    return kind in REQUEST_KINDS and offset >= 0


def lag_bytes(log_end_offset: int | None, ack_offset: int | None) -> int | None:
    """Bytes of the log that are not acknowledged; None if either offset is not known.

    At least 0: an ack beyond the log's end, of a damaged session, does not count as lag.
    """
    if log_end_offset is None or ack_offset is None:
        return None
    return max(0, log_end_offset - ack_offset)


def first_beyond(ends: Sequence[int], offset: int) -> int:
    """Index of the first log end beyond `offset`, which is when the byte at `offset` was stored.

    If `offset` is the ack, that byte is the oldest without one, and its age is the lag in time.
    `len(ends)` if there is none. `ends` ascend.
    """
    return bisect_right(ends, offset)
