"""What group-commit waits waited for: which connection was last, and what of it took the time.

A put that needs k acks is released by the k-th connection that acknowledges its end. From the begin of the
wait to that connection's TRANSFER of the put's last byte it waited to be sent (`send`), from there to the ack
for network and slave (`ack`); the longer of the two is what it waited for. With SYNC_FLUSH the own disk may
be later than both (`flush`). A put that failed waited for a connection that was sent its bytes and did not
acknowledge them (`ack`), for one that was not even sent them (`send`), or there was none (`no slave`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

import numpy as np
from attrs import field, frozen
from numpy.typing import NDArray

from trioha.recording.events import NO_CONNECTION, Kind, PutStatus
from trioha.recording.histogram import Histogram
from trioha.recording.judging.scene import Scene
from trioha.recording.judging.waits import pair_waits

Ints = NDArray[np.int64]

CAUSES: Final = ("nothing", "send", "ack", "flush", "no slave", "unknown")
"""`unknown`: the begin of the wait is not in the recording."""
NOTHING, SEND, ACK, FLUSH, NO_SLAVE, UNKNOWN = range(len(CAUSES))
NEVER: Final = np.iinfo(np.int64).max
EARLIER_NS: Final = 100_000_000
"""A WAIT_BEGIN is noted by so much at most before the wait's own clock starts, on a busy node."""
_CELLS_MAX: Final = 4_000_000
"""Waits times connections that are looked at together."""


@frozen(eq=False)
class Caused:
    """Waits that ended, with what they waited for; all of shape (n,)."""

    ends: Ints
    """Places of their WAIT_END in the records of the scene."""
    cause: Ints
    """Index in `CAUSES`."""
    conn: Ints
    """The connection that was last, or -1."""


@frozen(eq=False)
class CauseTally:
    """Waiting times of waits in us, by put status, cause (index in `CAUSES`) and connection (-1: none)."""

    waited_us: Mapping[tuple[int, int, int], Histogram] = field(factory=dict)

    def __add__(self, other: CauseTally) -> CauseTally:
        keys = sorted({*self.waited_us, *other.waited_us})
        none = Histogram()
        return CauseTally(
            {key: self.waited_us.get(key, none) + other.waited_us.get(key, none) for key in keys}
        )


@frozen(eq=False)
class Journey:
    """When offsets went over connections; shapes (n, c) and (c,)."""

    conns: Ints
    sent_ns: Ints
    """TRANSFER of the frame that holds each offset's last byte, or `NEVER`."""
    acked_ns: Ints
    """First ACK at or beyond each offset, or `NEVER`."""


class Journeys:
    """The frames and acks of a part, to be asked about many offsets."""

    def __init__(self, scene: Scene) -> None:
        records = scene.records
        places, conns, codes = scene.by_connection
        chosen = np.flatnonzero((codes == Kind.TRANSFER) | (codes == Kind.ACK))
        places, conns, is_ack = places[chosen], conns[chosen], codes[chosen] == Kind.ACK
        self.conns, begins = np.unique(conns, return_index=True)
        ends = np.append(begins, len(conns))[1:]
        self._tracks = []
        for begin, end in zip(begins, ends, strict=True):
            own, acks = places[begin:end], is_ack[begin:end]
            frames, acks = own[~acks], own[acks]
            frame_ends = records["offset"][frames] + records["size"][frames]
            self._tracks.append(
                (
                    np.maximum.accumulate(frame_ends),
                    np.append(records["ts_ns"][frames], NEVER),
                    np.maximum.accumulate(records["offset"][acks]),
                    np.append(records["ts_ns"][acks], NEVER),
                )
            )

    def of(self, offsets: Ints) -> Journey:
        """The journeys of some offsets (ends of records)."""
        sent = np.full((len(offsets), len(self._tracks)), NEVER, np.int64)
        acked = sent.copy()
        for column, (frame_ends, sent_ns, acks, acked_ns) in enumerate(self._tracks):
            sent[:, column] = sent_ns[np.searchsorted(frame_ends, offsets)]
            acked[:, column] = acked_ns[np.searchsorted(acks, offsets)]
        return Journey(self.conns, sent, acked)


def causes(scene: Scene) -> Caused:
    """What the waits that began and ended in a part waited for; the others are left out."""
    waits = pair_waits(scene)
    whole = waits.begins >= 0
    ends, begins = waits.ends[whole], waits.begins[whole]
    journeys = Journeys(scene)
    step = max(1, _CELLS_MAX // max(1, len(journeys.conns)))
    flushed = np.flatnonzero(scene.codes == Kind.FLUSHED)
    parts = [
        _causes(scene, journeys, flushed, ends[first : first + step], begins[first : first + step])
        for first in range(0, len(ends), step)
    ]
    none = np.zeros(0, np.int64)
    return Caused(
        ends,
        np.concatenate([none, *(cause for cause, _ in parts)]),
        np.concatenate([none, *(conn for _, conn in parts)]),
    )


def tally_causes(scene: Scene, *, before: Callable[[], Iterable[NDArray[np.void]]]) -> CauseTally:
    """What the waits that ended in a part waited for.

    `before` gives, if asked, more and more of the records just before them: for waits that began there.
    """
    records = scene.raw
    first_seq = int(records["seq"][0]) if len(records) else 0
    waits = pair_waits(scene)
    began_ns = _began_before(scene, waits.ends[waits.begins < 0])
    if began_ns is not None:
        recent = records[:0]
        for earlier in before():
            recent = earlier[earlier["ts_ns"] >= began_ns]
            if len(recent) < len(earlier):
                break
        scene = Scene(np.concatenate((recent, records)), scene.setting, cold=False)
        waits = pair_waits(scene)
    own = waits.ends[scene.records["seq"][waits.ends] >= first_seq]
    found = causes(scene)
    cause = np.full(len(scene.records), UNKNOWN, np.int64)
    conn = np.full(len(scene.records), NO_CONNECTION, np.int64)
    cause[found.ends], conn[found.ends] = found.cause, found.conn
    status = scene.records["flags"][own].astype(np.int64)
    waited_us = np.maximum(scene.records["size"][own].astype(np.int64), 0)
    keys = np.stack((status, cause[own], conn[own]), axis=1)
    unique, place = np.unique(keys, axis=0, return_inverse=True)
    place = place.reshape(-1)
    return CauseTally(
        {
            (int(key[0]), int(key[1]), int(key[2])): Histogram.of(waited_us[place == index])
            for index, key in enumerate(unique)
        }
    )


def _began_before(scene: Scene, ends: Ints) -> int | None:
    """When the first of these waits began, as their ends say, if that is before the part's first record."""
    records = scene.records
    if not len(ends):
        return None
    began_ns = records["ts_ns"][ends] - records["size"][ends].astype(np.int64) * 1000 - EARLIER_NS
    before = began_ns[began_ns < scene.raw["ts_ns"][0]]
    return int(before.min()) if len(before) else None


def _causes(scene: Scene, journeys: Journeys, flushed: Ints, ends: Ints, begins: Ints) -> tuple[Ints, Ints]:
    records = scene.records
    begin_ns, end_ns = records["ts_ns"][begins], records["ts_ns"][ends]
    offsets = records["offset"][ends]
    status = records["flags"][ends]
    need = records["size"][begins].astype(np.int64) - 1
    journey = journeys.of(offsets)
    rows = np.arange(len(ends))
    acked = np.where(journey.acked_ns <= end_ns[:, None], journey.acked_ns, NEVER)
    sent = np.where(journey.sent_ns <= end_ns[:, None], journey.sent_ns, NEVER)
    cause = np.full(len(ends), NOTHING, np.int64)
    conn = np.full(len(ends), NO_CONNECTION, np.int64)
    released_ns = begin_ns.copy()
    is_last = (need >= 1) & (need <= acked.shape[1])
    if is_last.any():
        order = np.argsort(acked, axis=1, kind="stable")
        column = order[rows, np.clip(need - 1, 0, acked.shape[1] - 1)]
        is_last &= acked[rows, column] < NEVER
        sent_ns, acked_ns = sent[rows, column], acked[rows, column]
        # Without a frame of its own (a slave that came with the bytes) nothing was waited for to be sent.
        waited_ns = np.where(sent_ns < NEVER, np.maximum(sent_ns - begin_ns, 0), 0)
        longer = waited_ns > acked_ns - np.minimum(np.maximum(sent_ns, begin_ns), acked_ns)
        cause[is_last] = np.where(longer, SEND, ACK)[is_last]
        conn[is_last] = journey.conns[column[is_last]]
        released_ns[is_last] = acked_ns[is_last]
    if scene.setting.values.get("flushDiskType") == "SYNC_FLUSH" and len(flushed):
        place = np.searchsorted(np.maximum.accumulate(records["offset"][flushed]), offsets)
        flushed_ns = np.append(records["ts_ns"][flushed], NEVER)[place]
        cause[(flushed_ns > released_ns) & (status == PutStatus.PUT_OK)] = FLUSH
    cause[status == PutStatus.FLUSH_DISK_TIMEOUT] = FLUSH
    cause[status == PutStatus.SLAVE_NOT_AVAILABLE] = NO_SLAVE
    late = np.flatnonzero(status == PutStatus.FLUSH_SLAVE_TIMEOUT)
    if len(late):
        owed = np.where(acked[late] == NEVER, sent[late], NEVER)
        is_silent = acked[late] == NEVER
        first = owed.argmin(axis=1) if owed.shape[1] else np.zeros(len(late), np.int64)
        was_sent = owed.min(axis=1, initial=NEVER) < NEVER
        cause[late] = np.where(was_sent, ACK, np.where(is_silent.any(axis=1), SEND, NO_SLAVE))
        conn[late] = NO_CONNECTION
        conn[late[was_sent]] = journey.conns[first[was_sent]]
    is_flush = (cause == FLUSH) | (cause == NO_SLAVE)
    conn[is_flush] = NO_CONNECTION
    return cause, conn
