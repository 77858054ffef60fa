"""Lag of a master's connections at each of their events, many events at a time. Needs NumPy.

The rule is that of `trioha.recording.progress`: lag is the master's max offset less the slave's ack, from the
first ack to the end of the connection. It is known just before an event (with the ack before it) and just
after it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from trioha.recording.events import NO_CONNECTION, Kind
from trioha.recording.snapshot import Snapshot
from trioha.recording.state import LOG_END_KINDS, UNKNOWN
from trioha.recording.state_arrays import Array, Bools, Ints, ends_connection, kind_mask, lag_bytes

_IS_OF_CONNECTION = kind_mask(LOG_END_KINDS)


@frozen(eq=False)
class Lags:
    """Events of connections, by connection and then in their order; arrays of one length."""

    conn: Ints
    seq: Ints
    ts_ns: Ints
    before: Ints
    """Lag in bytes just before the event, UNKNOWN before the first ack."""
    after: Ints
    """Lag in bytes just after it."""
    ack_before: Ints
    """Ack offset just before it, UNKNOWN before the first one."""
    ack_after: Ints
    """Ack offset just after it."""
    snapshot: Ints
    """Lag in bytes just after the connection's event before these, UNKNOWN if there is none."""
    closed: Bools
    """Whether the connection ends here."""

    @property
    def worst(self) -> Ints:
        """The larger lag of each event."""
        return np.maximum(self.before, self.after)


def lags(records: Array, snapshot: Snapshot, *, is_sampled: bool = False) -> Lags:
    """Lag at the events in `records` of a master's session, where `snapshot` is the standing before them.

    `is_sampled`: a monitor recorded it. Then an ack and the master's end are of one moment, and there was no
    moment at which that end met the ack before.
    """
    kind = records["kind"]
    place = np.flatnonzero(_IS_OF_CONNECTION[kind] & (records["conn"] != NO_CONNECTION))
    # The state after a connection's end says nothing of its lag.
    states = np.flatnonzero(kind[place] == Kind.STATE)
    ended = states[ends_connection(kind[place[states]], records["flags"][place[states]])]
    if len(ended):
        place = np.delete(place, ended)
    conns, codes = _dense(records["conn"][place])
    order = np.argsort(codes, kind="stable")
    place, codes = place[order], codes[order].astype(np.int64)
    rows = np.arange(len(place))
    own = records["kind"][place]
    is_first = np.diff(codes, prepend=-1) != 0
    began = np.maximum.accumulate(np.where(is_first, rows, 0))
    known_ack, known_max = _known(snapshot, conns)
    offset = records["offset"][place]
    # The last ack at or before each event, if there is one among these.
    acked = np.maximum.accumulate(np.where(own == Kind.ACK, rows, -1))
    ack = np.where(acked >= began, offset[acked], known_ack[codes])
    max_offset = records["aux"][place]
    ack_before = np.where(is_first, known_ack[codes], np.roll(ack, 1))
    max_offset = np.maximum(max_offset, np.where(is_first, known_max[codes], UNKNOWN))
    before, after = lag_bytes(max_offset, ack_before), lag_bytes(max_offset, ack)
    if is_sampled:
        before = np.where((ack_before >= 0) & (ack != ack_before), after, before)
    return Lags(
        conn=conns[codes],
        seq=records["seq"][place].astype(np.int64),
        ts_ns=records["ts_ns"][place].astype(np.int64),
        before=before,
        after=after,
        ack_before=ack_before,
        ack_after=ack,
        snapshot=lag_bytes(known_max, known_ack)[codes],
        closed=own == Kind.CLOSED,
    )


def _dense(conn: NDArray[np.int32]) -> tuple[Ints, NDArray[np.integer[Any]]]:
    """The connections there are, and the place among them of each; as 16 bits if possible: sorted faster."""
    if not len(conn):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    lowest = int(conn.min())
    spread = int(conn.max()) - lowest + 1
    if spread > 1 << 16:
        unique, codes = np.unique(conn, return_inverse=True)
        return unique.astype(np.int64), codes
    shifted = (conn - np.int32(lowest)).astype(np.uint16)
    return np.arange(lowest, lowest + spread, dtype=np.int64), shifted


def _known(snapshot: Snapshot, conns: Ints) -> tuple[Ints, Ints]:
    """Ack and max offset of each connection before, UNKNOWN without any."""
    ack = np.full(len(conns), UNKNOWN, np.int64)
    max_offset = np.full(len(conns), UNKNOWN, np.int64)
    if not len(conns):
        return ack, max_offset
    records = snapshot.records[np.isin(snapshot.records["conn"], conns)]
    code = np.searchsorted(conns, records["conn"])
    np.maximum.at(max_offset, code, records["aux"])
    acks = records["kind"] == Kind.ACK
    ack[code[acks]] = records["offset"][acks]
    return ack, max_offset
