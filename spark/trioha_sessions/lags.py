"""Lag of a master's connections at each of their events, many events at a time. Needs NumPy.

The rule is that of `trioha_sessions.progress`: lag is the master's log end less the slave's ack, from the
first ack to the end of the connection. Each event has two lags: with the ack just before it, and with the ack
just after it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from trioha.recording.events import NO_CONNECTION, Kind
from trioha.recording.state import LOG_END_KINDS, UNKNOWN
from trioha_sessions.snapshot import Snapshot
from trioha_sessions.state_arrays import Array, Bools, Ints, ends_connection, kind_mask, lag_bytes

_IS_OF_CONNECTION = kind_mask(LOG_END_KINDS)


@frozen(eq=False)
class Lags:
    """Lag at events of connections, sorted by connection, then by seq; arrays of one length."""

    conn: Ints
    seq: Ints
    ts_ns: Ints
    before: Ints
    """Lag in bytes just before the event; UNKNOWN before the first ack."""
    after: Ints
    """Lag in bytes just after it."""
    ack_before: Ints
    """Ack offset just before it, UNKNOWN before the first one."""
    ack_after: Ints
    """Ack offset just after it."""
    snapshot: Ints
    """Lag in bytes at the connection's last event before these, by the snapshot; UNKNOWN without one."""
    closed: Bools
    """Whether the connection ends with the event."""

    @property
    def worst(self) -> Ints:
        """The larger lag of each event."""
        return np.maximum(self.before, self.after)


def lags(records: Array, snapshot: Snapshot) -> Lags:
    """Lag at the events in `records` of a master's session; `snapshot` is the state before them."""
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
    # The last ack at or before each event; below `began` if it is of another connection.
    acked = np.maximum.accumulate(np.where(own == Kind.ACK, rows, -1))
    ack = np.where(acked >= began, offset[acked], known_ack[codes])
    max_offset = records["aux"][place]
    ack_before = np.where(is_first, known_ack[codes], np.roll(ack, 1))
    max_offset = np.maximum(max_offset, np.where(is_first, known_max[codes], UNKNOWN))
    before, after = lag_bytes(max_offset, ack_before), lag_bytes(max_offset, ack)
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
    """The connections, and the index of each record's connection; as 16 bits if possible: sorted faster."""
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
    """Ack and log end of each connection in `snapshot`, UNKNOWN if it has none."""
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
