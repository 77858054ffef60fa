"""The state after some events: the last record of each kind of every open connection and of the node.

Not for a node, which has no NumPy.

`KeyframeBuilder` makes these records for a new segment while a session is written; `Snapshot` makes them at
any record of a session that is read, many records at a time. The state at any position is the snapshot at a
keyframe and the events since: `snapshot.after(a).after(b)` is `snapshot.after(a and b)`, wherever they are
cut.

`connection_state` derives what was sent, acknowledged, received and reported from a connection's records in a
snapshot; `aggregate` of all of its events gives the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

import numpy as np
from attrs import evolve, frozen

from trioha.recording.events import NO_CONNECTION, Direction, Kind
from trioha.recording.keyframes import FLAGS_IN_SIZE
from trioha.recording.state import (
    PEER_KINDS,
    STAGES,
    UNKNOWN,
    known,
    lag_bytes,
    reached_offset,
    shows_request,
)
from trioha_sessions.state_arrays import Array, Ints, ends_connection, last_log_end, log_ends

Identity = tuple[int, int, int]
"""Connection, kind, and direction of a heartbeat."""

_SLOTS: Final = 16
"""Slots of a connection: one for each kind, and direction of a heartbeat, that a snapshot keeps."""
_NODE_SLOTS: Final = {Kind.PUT: 1, Kind.FLUSHED: 2, Kind.DISPATCHED: 3}
_STATE: Final = 4
_HEARTBEAT: Final = 7
_HEARTBEAT_IN: Final = 8
_CLOSED: Final = 12
_ENDING: Final = 13
_REFUSED: Final = 14
_CONNECTION_SLOTS: Final = {
    Kind.STATE: _STATE,
    Kind.REQUESTED: 5,
    Kind.TRANSFER: 6,
    Kind.HEARTBEAT: _HEARTBEAT,
    Kind.ACK: 9,
    Kind.RECEIVED: 10,
    Kind.REPORTED: 11,
    Kind.CLOSED: _CLOSED,
    Kind.REFUSED: _REFUSED,
}
_SLOT_OF_KIND: Final = np.zeros(256, np.int64)
for _kind, _slot in (*_NODE_SLOTS.items(), *_CONNECTION_SLOTS.items()):
    _SLOT_OF_KIND[_kind] = _slot
_FIELDS_OF_KIND: Final = {
    is_slave: {
        int(kind): tuple(f"{stage}_offset" for stage, its_kinds in stages.items() if kind in its_kinds)
        for kinds in stages.values()
        for kind in kinds
    }
    for is_slave, stages in STAGES.items()
}
"""Fields of a `ConnectionState` that records of a kind raise."""
_CODES_MAX: Final = 1 << 22
"""Largest table by connection and slot; connection numbers farther apart are renumbered first."""


@frozen(eq=False)
class Ended:
    """A connection that ended, with its state just before."""

    conn: int
    seq: int
    """Of the record that ended it: CLOSED, or a STATE without one."""
    records: Array
    """Its last records, with CLOSED if there is one."""


@frozen(eq=False)
class Snapshot:
    """Last records, in the order of connection and kind; KEYFRAMEs as the events that they repeat."""

    records: Array
    log_end_offset: int = UNKNOWN
    """End of the node's log as the last record that has it names it."""

    @classmethod
    def nowhere(cls, dtype: np.dtype[np.void]) -> Snapshot:
        """Before any event; `dtype` is that of the session's records."""
        return cls(np.zeros(0, dtype))

    @classmethod
    def at_keyframes(cls, keyframes: Array) -> Snapshot:
        """At the start of a segment, from its KEYFRAME records."""
        records = keyframes_to_events(keyframes)
        snapshot, _ = cls.nowhere(records.dtype).after(records)
        # They are in the order of the connections: the largest is the latest.
        _, ends = log_ends(records)
        return evolve(snapshot, log_end_offset=int(ends.max(initial=UNKNOWN)))

    def after(self, records: Array) -> tuple[Snapshot, tuple[Ended, ...]]:
        """The snapshot after `records`, which come next, and the connections that ended in them.

        KEYFRAME records are ignored.
        """
        if not len(records):
            return self, ()
        conns, slots, places = _last_places(records)
        log_end_offset = last_log_end(records)
        if log_end_offset == UNKNOWN:
            log_end_offset = self.log_end_offset
        every = np.concatenate((self.records, records[places]))
        keys = np.concatenate((_keys_of(self.records), conns * _SLOTS + slots))
        # Earlier records have place -1: of each key the latest record stays.
        at = np.concatenate((np.full(len(self.records), -1, np.int64), places))
        order = np.lexsort((at, keys))
        latest = order[np.flatnonzero(np.diff(keys[order], append=np.iinfo(np.int64).max))]
        every, keys, at = every[latest], keys[latest], at[latest]
        slot = keys % _SLOTS
        closes = (slot == _CLOSED) | (slot == _ENDING)
        ended: list[Ended] = []
        gone = slot >= _CLOSED
        if closes.any():
            of_conn = keys // _SLOTS
            for conn in np.unique(of_conn[closes]):
                own = of_conn == conn
                end = int(at[own & closes].max())
                over = own & (at <= end)
                last = over & (slot <= _CLOSED)
                # A state SHUTDOWN whose CLOSED came before these records ends no connection.
                if last.any():
                    first_end = int(at[own & closes].min())
                    ended.append(Ended(int(conn), int(records["seq"][first_end]), every[last]))
                gone |= over
            ended.sort(key=_seq)
        if gone.any():
            every = every[~gone]
        return Snapshot(every, log_end_offset), tuple(ended)

    def connections(self) -> Iterator[tuple[int, Array]]:
        """The last records of each open connection, by its number."""
        conns = self.records["conn"]
        begins = np.flatnonzero(np.diff(conns, prepend=np.int32(-(2**31))))
        for begin, end in zip(begins, np.append(begins, len(conns))[1:], strict=True):
            if conns[begin] != NO_CONNECTION:
                yield int(conns[begin]), self.records[begin:end]

    def of_node(self, kind: Kind) -> int | None:
        """Offset of the node's last PUT, FLUSHED or DISPATCHED."""
        found = self.records[(self.records["conn"] == NO_CONNECTION) & (self.records["kind"] == kind)]
        return int(found["offset"][-1]) if len(found) else None


@frozen
class ConnectionState:
    """State of a connection. Offsets and times are `UNKNOWN` if there is none."""

    state: int = UNKNOWN
    """`HaState`."""
    close_reason: int = UNKNOWN
    closed_ts_ns: int = UNKNOWN
    request_offset: int = UNKNOWN
    request_max_offset: int = UNKNOWN
    """End of the master's log when the slave asked."""
    max_offset: int = UNKNOWN
    """Of the node that recorded."""
    sent_offset: int = UNKNOWN
    ack_offset: int = UNKNOWN
    received_offset: int = UNKNOWN
    reported_offset: int = UNKNOWN
    last_ts_ns: int = UNKNOWN
    """Time of the last record."""
    last_received_ts_ns: int = UNKNOWN
    """Time of the last record that shows the peer alive: an ACK, a frame or heartbeat received, a request."""
    has_requested: bool = False
    """Whether the log was requested on it: otherwise it may be a probe."""

    @property
    def lag_bytes(self) -> int | None:
        """Lag of a master's connection at its last record; None before the first ack."""
        return lag_bytes(known(self.max_offset), known(self.ack_offset))


def connection_state(records: Array, *, is_slave: bool) -> ConnectionState:
    """State of one connection by its last records, as `trioha_sessions.aggregate` has it by all of them."""
    found: dict[str, int] = {}
    has_requested = False

    def raise_to(name: str, value: int) -> None:
        found[name] = max(found.get(name, UNKNOWN), value)

    names = ("ts_ns", "kind", "flags", "offset", "aux", "size")
    fields_of = _FIELDS_OF_KIND[is_slave]
    for ts_ns, kind, flags, offset, aux, size in zip(
        *(records[name].tolist() for name in names), strict=True
    ):
        raise_to("last_ts_ns", ts_ns)
        raise_to("max_offset", aux)
        has_requested = has_requested or shows_request(kind, flags=flags, offset=offset)
        is_received = kind in PEER_KINDS
        if kind == Kind.HEARTBEAT and flags != Direction.SENT:
            is_received = True
        else:
            for name in fields_of.get(kind, ()):
                raise_to(name, reached_offset(kind, offset=offset, size=size))
        if is_received:
            raise_to("last_received_ts_ns", ts_ns)
        match kind:
            case Kind.STATE:
                found["state"] = flags
            case Kind.REQUESTED:
                found["request_offset"], found["request_max_offset"] = offset, aux
            case Kind.CLOSED:
                found["close_reason"], found["closed_ts_ns"] = flags, ts_ns
    return ConnectionState(**found, has_requested=has_requested)


def keyframes_to_events(keyframes: Array) -> Array:
    """KEYFRAME records as the events that they repeat, with the times and seqs of the KEYFRAMEs."""
    records = keyframes.copy()
    kinds = keyframes["flags"]
    records["kind"] = kinds
    in_size = np.isin(kinds, list(FLAGS_IN_SIZE))
    records["flags"] = np.where(in_size, keyframes["size"], 0)
    records["size"][in_size] = 0
    return records


def identity(record: np.void) -> Identity:
    """Key of a record in a snapshot."""
    kind = int(record["kind"])
    return int(record["conn"]), kind, int(record["flags"]) if kind == Kind.HEARTBEAT else 0


def last_of(records: Array, identities: Collection[Identity]) -> Array:
    """The last record of each of `identities` in `records`, also of connections that ended."""
    of_kind = np.zeros(256, np.bool_)
    of_kind[[kind for _, kind, _ in identities]] = True
    some = records[of_kind[records["kind"]]]
    if len(some):
        some = some[_last_places(some)[2]]
    wanted: Array = some[[identity(record) in identities for record in some]]
    return wanted


def _last_places(records: Array) -> tuple[Ints, Ints, Ints]:
    """Connection, slot and place of the last record of each slot."""
    kind = records["kind"]
    slots = _SLOT_OF_KIND[kind]
    fix = np.flatnonzero((slots == _STATE) | (slots == _HEARTBEAT))
    if len(fix):
        flags = records["flags"][fix]
        slots[fix[ends_connection(kind[fix], flags)]] = _ENDING
        slots[fix[(kind[fix] == Kind.HEARTBEAT) & (flags != Direction.SENT)]] = _HEARTBEAT_IN
    codes = records["conn"].astype(np.int64)
    lowest = int(codes.min())
    known: Ints | None = None
    if (int(codes.max()) - lowest + 1) * _SLOTS > _CODES_MAX:
        known, codes = np.unique(codes, return_inverse=True)
    else:
        codes -= lowest
    codes *= _SLOTS
    codes += slots
    table = np.full(int(codes.max()) + 1, -1, np.int64)
    # Of several values for one place the last one stays.
    table[codes] = np.arange(len(codes))
    found = np.flatnonzero(table >= 0)
    rows, slots = found // _SLOTS, found % _SLOTS
    conns = rows + lowest if known is None else known[rows]
    is_node = np.isin(slots, list(_NODE_SLOTS.values()))
    lasting = (slots > 0) & (is_node == (conns == NO_CONNECTION))
    return conns[lasting], slots[lasting], table[found[lasting]]


def _keys_of(records: Array) -> Ints:
    slots = _SLOT_OF_KIND[records["kind"]]
    slots[(slots == _HEARTBEAT) & (records["flags"] != Direction.SENT)] = _HEARTBEAT_IN
    keys: Ints = records["conn"].astype(np.int64) * _SLOTS + slots
    return keys


def _seq(ended: Ended) -> int:
    return ended.seq
