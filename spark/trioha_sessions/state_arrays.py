"""The rules of `trioha.recording.state` for arrays: one call for many records. Needs NumPy.

What is not known is `UNKNOWN`. `records` are a structured array of records, or anything else that gives a
record field as an array by its name.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from trioha.recording import state
from trioha.recording.events import NO_CONNECTION, HaState, Kind
from trioha.recording.state import REQUEST_OFFSET_END, UNKNOWN

Array = NDArray[np.void]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_WINDOW: Final = 4096
"""Records that are searched at a time for the first or last log end."""


class Fields(Protocol):
    """Records by field."""

    def __getitem__(self, name: str, /) -> NDArray[Any]:
        """The values of a field; shape (n,)."""


def kind_mask(kinds: Iterable[int]) -> Bools:
    """For each code of a kind whether it is one of `kinds`; shape (256,)."""
    mask = np.zeros(256, np.bool_)
    mask[list(kinds)] = True
    return mask


_IS_LOG_END: Final = kind_mask((*state.LOG_END_KINDS, Kind.PUT))
_IS_FRAME: Final = kind_mask(state.FRAME_KINDS)
_IS_REQUEST: Final = kind_mask(state.REQUEST_KINDS)
_IS_END_STATE: Final = kind_mask(state.END_STATES)


def log_ends(records: Fields, *, begin: int = 0, end: int | None = None) -> tuple[Ints, Ints]:
    """Places of the records from `begin` to before `end` that name the end of the node's log, and that end.

    Both of shape (n,).
    """
    # By columns: whole records would be copied.
    some = slice(begin, end)
    kind, conn = records["kind"][some], records["conn"][some]
    places = np.flatnonzero(_IS_LOG_END[kind])
    is_put = kind[places] == Kind.PUT
    names_end = is_put | (conn[places] != NO_CONNECTION)
    if not names_end.all():
        places, is_put = places[names_end], is_put[names_end]
    ends: Ints = np.where(is_put, records["offset"][some][places], records["aux"][some][places])
    return places + begin, ends


def last_log_end(records: Fields) -> int:
    """The end of the node's log as the last record that has it names it, or `UNKNOWN`."""
    # Most records have it: the search begins at the last one.
    for end in range(len(records["kind"]), 0, -_WINDOW):
        _, ends = log_ends(records, begin=max(0, end - _WINDOW), end=end)
        if len(ends):
            return int(ends[-1])
    return UNKNOWN


def log_end_before(records: Fields) -> int:
    """Where the node's log ended before the first record that says so, or `UNKNOWN`."""
    for begin in range(0, len(records["kind"]), _WINDOW):
        places, ends = log_ends(records, begin=begin, end=begin + _WINDOW)
        if len(places):
            is_put = records["kind"][places[0]] == Kind.PUT
            return int(ends[0]) - (int(records["size"][places[0]]) if is_put else 0)
    return UNKNOWN


def reached_offsets(records: Fields) -> Ints:
    """The offset that each record of a connection names: of a frame its end; shape (n,)."""
    offset = records["offset"]
    reached: Ints = np.where(_IS_FRAME[records["kind"]], offset + records["size"], offset)
    return reached


def ends_connection(kind: NDArray[Any], flags: NDArray[Any]) -> Bools:
    """Which records end their connection; shape (n,)."""
    ends: Bools = (kind == Kind.CLOSED) | ((kind == Kind.STATE) & _IS_END_STATE[flags])
    return ends


def shows_request(records: Fields) -> Bools:
    """Which records show that their connection requested the log; shape (n,).

    KEYFRAMEs show nothing: convert them to the events that they stand for first.
    """
    kind, flags, offset = records["kind"], records["flags"], records["offset"]
    is_state = kind == Kind.STATE
    is_possible = offset < REQUEST_OFFSET_END
    requested = (kind == Kind.REQUESTED) & (offset >= 0) & is_possible
    has_offset = (is_state | (kind == Kind.CLOSED)) & (offset > 0) & is_possible
    others = (_IS_REQUEST[kind] & (offset >= 0)) | (is_state & (flags == HaState.TRANSFER))
    shows: Bools = requested | has_offset | others
    return shows


def lag_bytes(log_end_offsets: Ints, ack_offsets: Ints) -> Ints:
    """Bytes of the log without an ack, at least 0; `UNKNOWN` where either offset is; shape (n,)."""
    lag = np.maximum(log_end_offsets - ack_offsets, 0)
    found: Ints = np.where((log_end_offsets < 0) | (ack_offsets < 0), UNKNOWN, lag)
    return found


def rising(offsets: Ints, known: int = UNKNOWN) -> Ints:
    """The largest of `known` and of the offsets so far, at each offset; shape (n,)."""
    if len(offsets) and offsets[0] >= known and (offsets[1:] >= offsets[:-1]).all():
        return offsets
    return np.maximum.accumulate(np.maximum(offsets, known))


def first_covering(offsets: Ints, wanted: Ints) -> Ints:
    """For each wanted offset the index of the first of `offsets` at or beyond it, `len(offsets)` if there is
    none; shape of `wanted`. Where `offsets` go back (damaged sessions), the largest so far counts."""
    return np.searchsorted(rising(offsets), wanted)


def covered_at(times: NDArray[Any], offsets: Ints, wanted: Ints, *, never: float) -> NDArray[Any]:
    """When each wanted offset was first covered: the time of `first_covering`, or `never`.

    `times` and `offsets` have one shape; the result that of `wanted` and the type of `times`.
    """
    return np.append(times, np.array([never], times.dtype))[first_covering(offsets, wanted)]


def first_beyond(ends: Ints, offsets: Ints) -> Ints:
    """For each offset the index of the first log end beyond it, `len(ends)` if there is none; shape of
    `offsets`. Where `ends` go back, the largest so far counts."""
    return np.searchsorted(rising(ends), offsets, side="right")
