"""How events become state: the one definition of it. Not for a node, which has no NumPy.

`fold` turns records into a `Part`: what they say of each connection and of the node. Parts of one session
that follow each other are joined by `combine`, which is associative, and `combine([fold(a), fold(b)])` says
the same as the fold of both: a session can be cut anywhere, folded in parallel, and joined. The figures are
made of the last part by `trioha.recording.figures`.

Theory of operation. Counts, last values and largest values simply add up (`Tally`). Two figures of a master's
connection look back: the lag needs the last ack, and an ack's latency the frames in flight (`Progress`). A
part that begins in the middle of a connection knows neither. It keeps its first events as they are (`Flow`),
up to the first ack that covers all that was sent before the part, and folds the rest from there; who joins
it to what came before folds the kept ones. There are about as many of these as frames are in flight.

Offsets only grow on a connection: the final one is the largest.

KEYFRAME records repeat what earlier segments say and are passed over, unless the fold begins with them
(`cold`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import reduce
from typing import Any, Final

import numpy as np
from attrs import evolve, field, frozen
from numpy.typing import NDArray

from trioha.recording.curves import Curve, Grid
from trioha.recording.events import NO_CONNECTION, Direction, HaState, Kind, LinkEvent
from trioha.recording.histogram import Histogram
from trioha.recording.progress import Flow, Progress, no_flow
from trioha.recording.standing import as_what_they_stand_for
from trioha.recording.tallies import UNKNOWN, NodeTally, Tally

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Array = NDArray[np.void]

OWN_MAX_KINDS: Final = np.array(
    [
        *(Kind.STATE, Kind.REQUESTED, Kind.TRANSFER, Kind.HEARTBEAT, Kind.ACK),
        *(Kind.REFUSED, Kind.CLOSED, Kind.RECEIVED, Kind.REPORTED),
    ]
)
"""Kinds whose aux is the node's own max offset."""


@frozen(eq=False)
class ConnectionPart:
    """What some events say of one connection."""

    tally: Tally
    head: Flow = field(factory=no_flow)
    """First events, to be folded by who knows what came before; empty for a slave."""
    progress: Progress | None = None
    """What comes after them, or None while the head is all."""

    def followed_by(self, later: ConnectionPart, grid: Grid) -> ConnectionPart:
        """What this part and the one after it say together."""
        tally = self.tally + later.tally
        if self.progress is None:
            return ConnectionPart(tally, self.head + later.head, later.progress)
        progress = self.progress.go_on(later.head, grid)
        if later.progress is not None:
            progress = progress.followed_by(later.progress)
        return ConnectionPart(tally, self.head, progress)

    def finished(self, grid: Grid) -> Progress:
        """Lag and latency when nothing came before."""
        progress = Progress().go_on(self.head, grid)
        return progress if self.progress is None else progress.followed_by(self.progress)


@frozen(eq=False)
class Part:
    """What some records of one session say."""

    grid: Grid
    node: NodeTally = field(factory=NodeTally)
    connections: Mapping[int, ConnectionPart] = field(factory=dict)
    """By connection number."""


def combine(parts: Iterable[Part]) -> Part:
    """What `parts` of one session (at least one), which follow each other, say together."""
    return reduce(_combine, parts)


def _combine(earlier: Part, later: Part) -> Part:
    assert earlier.grid == later.grid, "parts of one session have one grid"
    connections = dict(earlier.connections)
    for conn, part in later.connections.items():
        known = connections.get(conn)
        connections[conn] = part if known is None else known.followed_by(part, earlier.grid)
    return Part(earlier.grid, earlier.node + later.node, connections)


def fold(records: Array, *, is_slave: bool, grid: Grid, cold: bool = False) -> Part:
    """What `records` of one session, in the order of their seq, say.

    `is_slave`: whose session it is. `cold`: nothing came before these records, so that KEYFRAMEs count.
    """
    node = _fold_node(records)
    is_key = records["kind"] == Kind.KEYFRAME
    if is_key.any():
        if cold:
            records = records.copy()
            records[is_key] = as_what_they_stand_for(records[is_key])
            node += _stated_of_node(records[is_key])
        else:
            records, is_key = records[~is_key], is_key[~is_key]
    belongs = records["conn"] != NO_CONNECTION
    records, is_key = records[belongs], is_key[belongs]
    order = np.argsort(records["conn"], kind="stable")
    records, is_key = records[order], is_key[order]
    conns, begins = np.unique(records["conn"], return_index=True)
    ends = np.append(begins, len(records))[1:]
    connections = {}
    for conn, begin, end in zip(conns, begins, ends, strict=True):
        own = slice(int(begin), int(end))
        part = _fold_connection(records[own], is_key[own], is_slave=is_slave, grid=grid)
        if part is not None:
            connections[int(conn)] = part
    return Part(grid, node, connections)


def _stated_of_node(stated: Array) -> NodeTally:
    offset, kind = stated["offset"], stated["kind"]
    put_offset = _largest(offset[kind == Kind.PUT])
    return NodeTally(
        put_offset=put_offset,
        flushed_offset=_largest(offset[kind == Kind.FLUSHED]),
        dispatched_offset=_largest(offset[kind == Kind.DISPATCHED]),
        max_offset=put_offset,
    )


def _fold_node(records: Array) -> NodeTally:
    if not len(records):
        return NodeTally()
    kind = records["kind"]
    codes, counts = np.unique(kind, return_counts=True)
    puts = records[kind == Kind.PUT]
    ended = records[kind == Kind.WAIT_END]
    own_max = np.where(np.isin(kind, OWN_MAX_KINDS), records["aux"], UNKNOWN)
    return NodeTally(
        events=len(records),
        dropped=int(records["aux"][kind == Kind.DROPPED].sum()),
        first_ts_ns=int(records["ts_ns"][0]),
        last_ts_ns=int(records["ts_ns"].max()),
        puts=len(puts),
        put_bytes=int(puts["size"].sum(dtype=np.int64)),
        put_offset=_largest(puts["offset"]),
        flushed_offset=_largest(records["offset"][kind == Kind.FLUSHED]),
        dispatched_offset=_largest(records["offset"][kind == Kind.DISPATCHED]),
        max_offset=max(_largest(own_max), _largest(puts["offset"])),
        waits_begun=int(np.count_nonzero(kind == Kind.WAIT_BEGIN)),
        waits={
            int(status): Histogram.of(np.maximum(ended["size"][ended["flags"] == status].astype(np.int64), 0))
            for status in np.unique(ended["flags"])
        },
        connects=int(np.count_nonzero((kind == Kind.LINK) & (records["flags"] == LinkEvent.CONNECTED))),
        kinds={int(code): int(count) for code, count in zip(codes, counts, strict=True)},
    )


def _fold_connection(records: Array, is_key: Bools, *, is_slave: bool, grid: Grid) -> ConnectionPart | None:
    """None if the records say nothing of a connection (a LINK without one)."""
    kind = records["kind"]
    tells = np.isin(kind, OWN_MAX_KINDS)
    if not tells.any():
        return None
    records, is_key, kind = records[tells], is_key[tells], kind[tells]
    ts_ns = records["ts_ns"].astype(np.int64)
    offset = records["offset"].astype(np.int64)
    max_offset = records["aux"].astype(np.int64)
    flags = records["flags"]
    frame_kind = Kind.RECEIVED if is_slave else Kind.TRANSFER
    is_frame = kind == frame_kind
    size = records["size"].astype(np.int64)
    frame_end = np.where(is_frame, offset + size, UNKNOWN)
    ack = np.where(kind == Kind.ACK, offset, UNKNOWN)
    went_out = (kind == Kind.HEARTBEAT) & (flags == Direction.SENT)
    came_in = (kind == Kind.HEARTBEAT) & (flags == Direction.RECEIVED)
    # A heartbeat that goes out names what was sent (master) or reported (slave) last.
    own_heartbeat = np.where(went_out, offset, UNKNOWN)
    reported = np.where(kind == Kind.REPORTED, offset, UNKNOWN)
    # What the slave had before the connection counts as sent: an ack never goes beyond what was sent.
    sent = np.maximum(np.maximum(frame_end, ack), own_heartbeat)
    nothing = np.full(len(records), UNKNOWN, np.int64)
    if is_slave:
        sent, ack, received, reported = nothing, nothing, frame_end, np.maximum(reported, own_heartbeat)
    else:
        received, reported = nothing, nothing
    states = flags[kind == Kind.STATE]
    ended = kind == Kind.CLOSED
    requests = offset[kind == Kind.REQUESTED]
    counted = is_frame & ~is_key
    steps = grid.step_of(ts_ns)
    tally = Tally(
        first_ts_ns=int(ts_ns[0]),
        last_ts_ns=int(ts_ns.max()),
        state=int(states[-1]) if len(states) else UNKNOWN,
        close_reason=int(flags[ended][-1]) if ended.any() else UNKNOWN,
        closed_ts_ns=_largest(ts_ns[ended]),
        frames=int(np.count_nonzero(counted)),
        body_bytes=int(size[counted].sum()),
        heartbeats_sent=int(np.count_nonzero(went_out & ~is_key)),
        heartbeats_received=int(np.count_nonzero(came_in & ~is_key)),
        acks=int(np.count_nonzero((kind == (Kind.REPORTED if is_slave else Kind.ACK)) & ~is_key)),
        refused=int(np.count_nonzero(kind == Kind.REFUSED)),
        request_offset=int(requests[0]) if len(requests) else UNKNOWN,
        max_offset=_largest(max_offset),
        sent_offset=_largest(sent),
        ack_offset=_largest(ack),
        received_offset=_largest(received),
        reported_offset=_largest(reported),
        max_curve=Curve.of(steps, max_offset),
        sent_curve=Curve.of(steps, sent),
        ack_curve=Curve.of(steps, ack),
        received_curve=Curve.of(steps, received),
        reported_curve=Curve.of(steps, reported),
    )
    if is_slave:
        return ConnectionPart(tally)
    flow = Flow(
        ts_ns,
        max_offset,
        np.where(counted, offset, UNKNOWN),
        np.where(counted, frame_end, UNKNOWN),
        ack,
        ended,
    )
    born = bool(is_key.any()) or bool((states == HaState.HANDSHAKE).any())
    return _split(tally, flow, grid, born=born)


def _split(tally: Tally, flow: Flow, grid: Grid, *, born: bool) -> ConnectionPart:
    """Fold from where nothing earlier matters: the connection's begin, or an ack of all that came before."""
    if born:
        return ConnectionPart(tally, no_flow(), Progress().go_on(flow, grid))
    frames = np.flatnonzero(flow.start_offset >= 0)
    if len(frames):
        covering = np.flatnonzero(flow.ack_offset >= flow.start_offset[frames[0]])
        if len(covering):
            at = int(covering[0]) + 1
            head = flow.cut(0, at)
            # Begun with what the head leaves behind, and without its figures: those are for who folds it.
            known = evolve(
                Progress().go_on(head, grid), lag=Histogram(), latency=Histogram(), lag_curve=Curve()
            )
            return ConnectionPart(tally, head, known.go_on(flow.cut(at), grid))
    return ConnectionPart(tally, flow, None)


def _largest(values: NDArray[np.integer[Any]]) -> int:
    return int(values.max()) if len(values) else UNKNOWN
