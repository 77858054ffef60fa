"""Causes of group-commit waits: the last connection, and which part of it took the time.

A put that needs k acks is released by the k-th connection that acknowledges its end. From the start of the
wait to that connection's TRANSFER of the put's last byte it waited to be sent (`send`), from there to the ack
for network and slave (`ack`); the longer of the two is the cause. With SYNC_FLUSH the node's own disk may be
later than both (`flush`). A put that failed waited for a connection that was sent its bytes and did not
acknowledge them (`ack`), or for one that was not sent them (`send`), or there was none (`no slave`).

Only records before the put's WAIT_END count. The order of the records decides what came first, since several
may have one time.

An open connection may be silent for long, so a part may not know which connections are open. Of puts without
a known connection it keeps which connections it cannot have been (`CauseCounts.alone`); the join with the
part before decides. Replay (`count_causes`) and the story of one put (`cause_of`) share these rules. A
connection counts as open from its request on: a probe is not a slave.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeVar

import numpy as np
from attrs import evolve, field, frozen
from numpy.typing import NDArray

from trioha.recording.events import NO_CONNECTION, Kind, PutStatus
from trioha_sessions.histogram import Histogram
from trioha_sessions.invariants.event_batch import Columns, EventBatch
from trioha_sessions.state_arrays import (
    Fields,
    Ints,
    covered_at,
    ends_connection,
    log_end_before,
    rising,
)

K = TypeVar("K")

CAUSES: Final = ("nothing", "send", "ack", "flush", "no slave", "unknown")
"""`unknown`: the start of the wait is not in the recording."""
NOTHING, SEND, ACK, FLUSH, NO_SLAVE, UNKNOWN = range(len(CAUSES))
NEVER: Final = np.iinfo(np.int64).max
EARLIER_NS: Final = 100_000_000
"""On a busy node a WAIT_BEGIN may be recorded up to so long before the wait's own clock starts."""
BEFORE_RECORDS: Final = (16_384, 131_072, 1_000_000)
"""Records before a part that are searched for begins of waits, frames and acks, step by step."""
_CELLS_MAX: Final = 4_000_000
"""Waits times connections that are computed together."""


@frozen(eq=False)
class Caused:
    """Waits that ended, with their causes; arrays of shape (n,)."""

    ends: Ints
    """Places of their WAIT_END in the records of the batch."""
    cause: Ints
    """Index in `CAUSES`."""
    conn: Ints
    """The last connection, or -1."""
    out: tuple[frozenset[int], ...]
    """For each wait that timed out without a known slave: the connections that had ended or acknowledged it;
    length at most n."""


@frozen(eq=False)
class CauseCounts:
    """Waiting times of waits in us, by put status, cause (index in `CAUSES`) and connection (-1: none)."""

    waited_us: Mapping[tuple[int, int, int], Histogram] = field(factory=dict)
    alone: Mapping[frozenset[int], Histogram] = field(factory=dict)
    """Waiting times of waits that timed out without a known slave, by the connections that it cannot have
    been: those that had ended or acknowledged it."""
    opened: frozenset[int] = frozenset()
    """Connections with a request and without an end."""
    ended: frozenset[int] = frozenset()

    def __add__(self, later: CauseCounts) -> CauseCounts:
        alone: dict[frozenset[int], Histogram] = dict(self.alone)
        decided: dict[_Key, Histogram] = {}
        for out, waited_us in later.alone.items():
            if self.opened - out:
                decided = _added(decided, {_NOT_SENT: waited_us})
            else:
                alone = _added(alone, {out | self.ended: waited_us})
        return CauseCounts(
            _added(_added(self.waited_us, later.waited_us), decided),
            alone,
            (self.opened | later.opened) - self.ended - later.ended,
            self.ended | later.ended,
        )

    def finished(self) -> CauseCounts:
        """The counts if no part came before."""
        decided = {_NO_SLAVE: sum(self.alone.values(), Histogram())} if self.alone else {}
        return CauseCounts(dict(sorted(_added(self.waited_us, decided).items())))


_Key = tuple[int, int, int]
_NOT_SENT: Final = (int(PutStatus.FLUSH_SLAVE_TIMEOUT), SEND, NO_CONNECTION)
_NO_SLAVE: Final = (int(PutStatus.FLUSH_SLAVE_TIMEOUT), NO_SLAVE, NO_CONNECTION)


def _added(some: Mapping[K, Histogram], more: Mapping[K, Histogram]) -> dict[K, Histogram]:
    none = Histogram()
    return {key: some.get(key, none) + more.get(key, none) for key in {**some, **more}}


@frozen(eq=False)
class AckPlaces:
    """Where each connection was sent and acknowledged some offsets, as places in the records of a batch.

    Shapes (n, c), and (c,) of `conns`.
    """

    conns: Ints
    sent: Ints
    """TRANSFER of the frame that holds each offset's last byte, or `NEVER`."""
    acked: Ints
    """First ACK at or beyond each offset, or `NEVER`."""


class AckPlacesTable:
    """The frames and acks of a part, to look up `AckPlaces`."""

    def __init__(self, batch: EventBatch) -> None:
        grouped = batch.connections
        frames, acks = grouped.stream((Kind.TRANSFER,)), grouped.stream((Kind.ACK,))
        frame_ends = frames["offset"] + frames["size"]
        groups = np.flatnonzero(np.diff(frames.bounds) + np.diff(acks.bounds))
        self.conns = grouped.keys[groups]
        self._tracks = []
        for group in groups.tolist():
            sent = slice(*frames.bounds[group : group + 2].tolist())
            acked = slice(*acks.bounds[group : group + 2].tolist())
            self._tracks.append(
                (
                    *(frames.places[sent], rising(frame_ends[sent])),
                    *(acks.places[acked], rising(acks["offset"][acked])),
                )
            )

    def of(self, offsets: Ints, ends: Ints) -> AckPlaces:
        """The places of some offsets (ends of records); those of `ends`, shape (n,), or later are `NEVER`."""
        sent = np.full((len(offsets), len(self._tracks)), NEVER, np.int64)
        acked = sent.copy()
        for column, (frames, frame_ends, acks, ack_offsets) in enumerate(self._tracks):
            sent[:, column] = _covered_before(ends, frames, frame_ends, offsets)
            acked[:, column] = _covered_before(ends, acks, ack_offsets, offsets)
        return AckPlaces(self.conns, sent, acked)


def _covered_before(ends: Ints, places: Ints, covering: Ints, offsets: Ints) -> Ints:
    """The place of the first record that covers each offset, `NEVER` if none does before its end."""
    place = covered_at(places, covering, offsets, never=NEVER)
    return np.where(place < ends, place, NEVER)


def count_causes(batch: EventBatch, *, before: Callable[[], Iterable[NDArray[np.void]]]) -> CauseCounts:
    """Causes of the waits that ended in a part.

    `before` yields more and more of the records just before the part: for waits that began there, or whose
    bytes were in the log before, so that their frames and acks may be there.
    """
    seen, ended = _connections_before(batch, len(batch.records))
    return evolve(_count_some(batch, batch.wait_pairs.ends, before), opened=seen - ended, ended=ended)


def cause_of(
    batch: EventBatch,
    end: int,
    *,
    before: Callable[[], Iterable[NDArray[np.void]]],
    opened: frozenset[int],
) -> tuple[int, int]:
    """Cause of one wait of a part: index in `CAUSES`, and the last connection, or -1.

    `end` is the place of its WAIT_END in the batch's records, `opened` the connections with a request that
    were open at the batch's start, `before` as in `count_causes`.
    """
    part = _count_some(batch, np.array([end], np.int64), before)
    ((_, cause, conn),) = (CauseCounts(opened=opened) + part).finished().waited_us
    return cause, conn


def _count_some(
    batch: EventBatch, ends: Ints, before: Callable[[], Iterable[NDArray[np.void]]]
) -> CauseCounts:
    """Tally some waits of a part; `ends`: places of their WAIT_END, ascending."""
    waits = batch.wait_pairs
    begins = waits.begins[np.searchsorted(waits.ends, ends)]
    offsets = batch.columns["offset"][ends]
    is_early = (begins < 0) | (offsets <= _log_end_before(batch.columns))
    early = ends[is_early]
    if batch.is_first or not len(early):
        return _count(batch, ends)
    began_ns, lowest_offset = _began_ns(batch, early).min(), offsets[is_early].min()
    recent = batch.raw[:0]
    for recent in before():
        # Damaged segments may have no records.
        reaches_back = len(recent) and recent["ts_ns"].min() < began_ns
        if reaches_back and _log_end_before(Columns(recent)) < lowest_offset:
            break
    records = batch.records[: int(early[-1]) + 1]
    joined = EventBatch(np.concatenate((recent, records)), batch.settings, is_first=False)
    # The two tallies are of one part: neither has open connections for the other.
    return _count(batch, ends[~is_early]) + _count(joined, early + len(joined.records) - len(records))


def _began_ns(batch: EventBatch, ends: Ints) -> Ints:
    """A time not later than the start of each of these waits, from their ends."""
    columns = batch.columns
    began_ns: Ints = columns["ts_ns"][ends] - columns["size"][ends] * 1000 - EARLIER_NS
    return began_ns


def _log_end_before(records: Fields) -> int:
    """As `log_end_before`; `NEVER` if no record has a log end."""
    end = log_end_before(records)
    return int(NEVER) if end < 0 else end


def _count(batch: EventBatch, ends: Ints) -> CauseCounts:
    """Tally some waits of a batch; `ends`: places of their WAIT_END, ascending."""
    waits = batch.wait_pairs
    begins = waits.begins[np.searchsorted(waits.ends, ends)]
    whole = begins >= 0
    found = _caused(batch, ends[whole], begins[whole])
    cause = np.full(len(ends), UNKNOWN, np.int64)
    conn = np.full(len(ends), NO_CONNECTION, np.int64)
    cause[whole], conn[whole] = found.cause, found.conn
    status = batch.columns["flags"][ends].astype(np.int64)
    waited_us = np.maximum(batch.columns["size"][ends], 0)
    alone: dict[frozenset[int], Histogram] = {}
    is_alone = (cause == NO_SLAVE) & (status == PutStatus.FLUSH_SLAVE_TIMEOUT)
    for out, own_us in zip(found.out, waited_us[is_alone].tolist(), strict=True):
        alone = _added(alone, {out: Histogram.of(np.array([own_us]))})
    status, waited_us, cause, conn = (each[~is_alone] for each in (status, waited_us, cause, conn))
    conns, column = np.unique(conn, return_inverse=True)
    keys = (status * len(CAUSES) + cause) * len(conns) + column
    return CauseCounts(
        {
            (
                key // len(conns) // len(CAUSES),
                key // len(conns) % len(CAUSES),
                int(conns[key % len(conns)]),
            ): Histogram.of(waited_us[keys == key])
            for key in np.flatnonzero(np.bincount(keys)).tolist()
        },
        alone,
    )


def _caused(batch: EventBatch, ends: Ints, begins: Ints) -> Caused:
    """Causes of waits whose begin and end are in the batch."""
    table = AckPlacesTable(batch)
    step = max(1, _CELLS_MAX // max(1, len(table.conns)))
    parts = [
        _causes(batch, table, ends[first : first + step], begins[first : first + step])
        for first in range(0, len(ends), step)
    ]
    none = np.zeros(0, np.int64)
    return Caused(
        ends,
        np.concatenate([none, *(cause for cause, _, _ in parts)]),
        np.concatenate([none, *(conn for _, conn, _ in parts)]),
        tuple(out for _, _, some in parts for out in some),
    )


def _causes(
    batch: EventBatch, table: AckPlacesTable, ends: Ints, begins: Ints
) -> tuple[Ints, Ints, list[frozenset[int]]]:
    columns = batch.columns
    offsets, status = columns["offset"][ends], columns["flags"][ends]
    need = columns["size"][begins] - 1
    found = table.of(offsets, ends)
    rows = np.arange(len(ends))
    cause = np.full(len(ends), NOTHING, np.int64)
    conn = np.full(len(ends), NO_CONNECTION, np.int64)
    released = begins.copy()
    is_last = (need >= 1) & (need <= found.acked.shape[1])
    if is_last.any():
        if need.max() == 1:
            column = found.acked.argmin(axis=1)
        else:
            order = np.argsort(found.acked, axis=1, kind="stable")
            column = order[rows, np.clip(need - 1, 0, found.acked.shape[1] - 1)]
        sent, acked = found.sent[rows, column], found.acked[rows, column]
        is_last &= acked < NEVER
        cause[is_last] = _longer_part(columns["ts_ns"], begins[is_last], sent[is_last], acked[is_last])
        conn[is_last] = found.conns[column[is_last]]
        released[is_last] = acked[is_last]
    if batch.settings.values.get("flushDiskType") == "SYNC_FLUSH":
        flushes = batch.whole.stream((Kind.FLUSHED,))
        flushed = _covered_before(ends, flushes.places, flushes["offset"], offsets)
        cause[(flushed > released) & (flushed < NEVER) & (status == PutStatus.PUT_OK)] = FLUSH
    cause[status == PutStatus.FLUSH_DISK_TIMEOUT] = FLUSH
    cause[status == PutStatus.SLAVE_NOT_AVAILABLE] = NO_SLAVE
    late = np.flatnonzero(status == PutStatus.FLUSH_SLAVE_TIMEOUT)
    out: list[frozenset[int]] = []
    if len(late):
        owed = np.where(found.acked[late] == NEVER, found.sent[late], NEVER)
        first = owed.argmin(axis=1) if owed.shape[1] else np.zeros(len(late), np.int64)
        was_sent = owed.min(axis=1, initial=NEVER) < NEVER
        cause[late] = ACK
        conn[late] = NO_CONNECTION
        conn[late[was_sent]] = found.conns[first[was_sent]]
        for at in late[~was_sent].tolist():
            seen, ended = _connections_before(batch, int(ends[at]))
            not_it = ended.union(found.conns[found.acked[at] < NEVER].tolist())
            cause[at] = SEND if seen - not_it else NO_SLAVE
            if cause[at] == NO_SLAVE:
                out.append(not_it)
    is_flush = (cause == FLUSH) | (cause == NO_SLAVE)
    conn[is_flush] = NO_CONNECTION
    return cause, conn, out


def _longer_part(ts_ns: Ints, begins: Ints, sent: Ints, acked: Ints) -> Ints:
    """`SEND` or `ACK` of each wait, by places: of its begin, its last byte's TRANSFER and its ack."""
    begin_ns, acked_ns = ts_ns[begins], ts_ns[acked]
    # Without a TRANSFER (the slave had the bytes when it connected) there was no wait to be sent.
    sent_ns = np.maximum(ts_ns[np.where(sent < NEVER, sent, begins)], begin_ns)
    return np.where(sent_ns - begin_ns > acked_ns - np.minimum(sent_ns, acked_ns), SEND, ACK)


def _connections_before(batch: EventBatch, place: int) -> tuple[frozenset[int], frozenset[int]]:
    """Connections with a request in the records of a batch before a place, and those that ended before it."""
    grouped = batch.connections
    assert grouped.places is not None, "connections are sorted"
    requested = np.unique(batch.columns["conn"][:place][batch.requests[:place]])
    ends = grouped.stream((Kind.CLOSED, Kind.STATE))
    is_end = ends_connection(ends["kind"], ends["flags"])
    return (
        frozenset(requested[requested != NO_CONNECTION].tolist()),
        frozenset(ends["conn"][is_end & (ends.places < place)].tolist()),
    )
