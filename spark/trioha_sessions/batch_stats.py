"""Counts and marks of a range of a session's records, without a look at earlier ones. Needs NumPy."""

from __future__ import annotations

from operator import add
from typing import Final

import numpy as np
from attrs import frozen

from trioha.recording.events import Kind, PutStatus
from trioha_sessions.state_arrays import Array, kind_mask

_IS_MARK: Final = kind_mask((Kind.STATE, Kind.REQUESTED, Kind.REFUSED, Kind.CLOSED, Kind.LINK, Kind.DROPPED))
_IS_OF_CONTROL: Final = kind_mask(
    (Kind.ROLE, Kind.EPOCH, Kind.SYNC_STATE_SET, Kind.CONFIRMED, Kind.LOG_CUT, Kind.CONTROLLER)
)


@frozen
class Counts:
    """Counts of events since the session began."""

    puts: int = 0
    put_bytes: int = 0
    waits_begun: int = 0
    waits: tuple[int, ...] = (0,) * 256
    """Waits that ended, by code of `PutStatus`."""
    dropped: int = 0

    def __add__(self, later: Counts) -> Counts:
        return Counts(
            self.puts + later.puts,
            self.put_bytes + later.put_bytes,
            self.waits_begun + later.waits_begun,
            tuple(map(add, self.waits, later.waits)),
            self.dropped + later.dropped,
        )


def marks_of(records: Array, *, was_failing: bool = False) -> Array:
    """The few of `records` that an operator looks for, in their order.

    STATE, REQUESTED, REFUSED, CLOSED, LINK, DROPPED; and of WAIT_END the failed ones, and the first good one
    after a failed one. `was_failing`: whether the last wait before these records failed.
    """
    kind = records["kind"]
    is_mark = _IS_MARK[kind]
    ends = np.flatnonzero(kind == Kind.WAIT_END)
    if len(ends):
        failed = records["flags"][ends] != PutStatus.PUT_OK
        if was_failing or failed.any():
            after_failed = np.concatenate(([was_failing], failed[:-1]))
            is_mark[ends[failed | after_failed]] = True
    marks: Array = records[is_mark]
    return marks


def control_records(records: Array) -> Array:
    """Those of `records` that are of controller mode (kinds 70 to 75), in their order: few, and a copy."""
    found: Array = records[_IS_OF_CONTROL[records["kind"]]]
    return found


def counts_of(records: Array) -> Counts:
    """Counts of the events in `records`."""
    kind = records["kind"]
    counts = np.bincount(kind, minlength=256)
    waits = (0,) * 256
    if counts[Kind.WAIT_END]:
        flags = records["flags"][kind == Kind.WAIT_END]
        waits = tuple(np.bincount(flags, minlength=256).tolist())
    put_bytes = int(records["size"][kind == Kind.PUT].sum(dtype=np.int64)) if counts[Kind.PUT] else 0
    dropped = int(records["aux"][kind == Kind.DROPPED].sum()) if counts[Kind.DROPPED] else 0
    return Counts(int(counts[Kind.PUT]), put_bytes, int(counts[Kind.WAIT_BEGIN]), waits, dropped)
