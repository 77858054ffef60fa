"""Which connections asked for the log, by their events: the others are probes. Needs NumPy."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from trioha.recording.events import HaState, Kind

Bools = NDArray[np.bool_]

OFFSET_END: Final = 1 << 56
"""Requests at or beyond it are bytes of another protocol: no log is so long."""
_SIGNS: Final = np.zeros(256, np.bool_)
_SIGNS[[Kind.TRANSFER, Kind.ACK, Kind.HEARTBEAT, Kind.RECEIVED, Kind.REPORTED]] = True


def asks(records: NDArray[np.void]) -> Bools:
    """Which records show that the log was asked for on their connection; shape (n,).

    KEYFRAMEs show nothing; read them as what they stand for.
    """
    kind, flags, offset = records["kind"], records["flags"], records["offset"]
    asked = (kind == Kind.REQUESTED) & (offset >= 0) & (offset < OFFSET_END)
    # An ack, or a slave's own log: the events that came before may be missing.
    told = ((kind == Kind.STATE) | (kind == Kind.CLOSED)) & (offset > 0) & (offset < OFFSET_END)
    shows: Bools = _SIGNS[kind] | asked | told | ((kind == Kind.STATE) & (flags == HaState.TRANSFER))
    return shows
