"""How long each step of a put took in a recording: the times that the model is made of.

Theory of operation. A node does one thing after the other, so between two of its records that follow each
other at once lies the work for the second one. Where a node cannot have been idle in between (a wait begins
after another, with nothing appended between them; a wait ends after another; a frame goes out after an
append), the gaps are the times that this work takes, with all that a busy machine adds. Of puts that follow
each other, gaps beyond `BUSY_FACTOR` medians count as idle.

What lies between a frame and its ack is the socket, the link, the slave and the way back. It is measured on
frames that were sent when no other was under way, and whose acks found the master idle; over the frames'
sizes it gives a time for each frame and one for each byte. How much of the first is the slave at work, and
how much mere distance, show acks that follow each other: while the slave works, the next frame waits; while
bytes travel, it does not. Slaves may be slow together, as on one machine: then the quicker of two helps
little.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import numpy as np
from attrs import evolve, frozen
from numpy.typing import NDArray

from trioha.recording.events import Kind
from trioha.recording.state_arrays import Array, Ints, first_covering
from trioha_analysis.whatif.spread import NOTHING, Floats, Spread
from trioha_analysis.whatif.trace import Trace, ack_delays_s

BUSY_FACTOR: Final = 10
ENOUGH: Final = 30
"""So many measurements make a spread."""
QUICK_PART: Final = 0.1
PER_BYTE_S_MAX: Final = 1 / 50e6
"""A slave takes in at least 50 MB/s."""
_STEPS: Final = (Kind.PUT, Kind.TRANSFER, Kind.ACK, Kind.WAIT_BEGIN, Kind.WAIT_END, Kind.FLUSHED)
_IS_STEP: Final = np.zeros(256, np.bool_)
_IS_STEP[list(_STEPS)] = True


@frozen
class Costs:
    """Times in s of the steps of a put."""

    put: Spread
    """A request, until its message is appended."""
    wait_begin: Spread
    send: Spread
    """A frame, at the master."""
    ack: Spread
    """An ack, at the master, until the first wait ends."""
    wait_end: Spread
    """A wait's end and its answer."""
    slave: Spread
    """What the slave took at a time, without the time for each byte."""
    slave_per_byte_s: float
    link_s: float
    """There and back, on the recorded link."""
    sync: Spread
    """A sync of the disk of master or slave."""
    sync_bytes: int = 0
    """What half of those syncs put on disk at most."""
    slave_correlation: float = 0.0
    """How often slaves are slow together, 0 to 1: what keeps one waiting keeps the others waiting, too."""
    measured_frames: int = 0
    """Frames that the times of slave and link come from."""

    def slowed(self, factor: float, *, tail: float = 1.0) -> Costs:
        """The same: slave and link take `factor` times as long, and `tail` times that beyond the median."""
        return evolve(
            self,
            slave=self.slave.scaled(factor).stretched(tail),
            slave_per_byte_s=self.slave_per_byte_s * factor,
            link_s=self.link_s * factor,
        )


def costs_of(traces: Sequence[Trace], slaves: Sequence[Array] = ()) -> Costs:
    """Measure the steps in stretches of a master's session; `slaves` are records of its slaves' sessions."""
    gaps = [_Gaps(trace.records) for trace in traces]

    def between(first: int, second: int) -> Floats:
        return _joined(gap.between(first, second) for gap in gaps)

    put = _busy(between(Kind.PUT, Kind.PUT))
    begin = _enough(between(Kind.WAIT_BEGIN, Kind.WAIT_BEGIN))
    end = _enough(between(Kind.WAIT_END, Kind.WAIT_END))
    # Where too little was recorded of one kind of work, it is taken to be like its neighbours'.
    usual = next((spread for spread in (put, end, begin) if spread is not NOTHING), NOTHING)
    # The system call comes behind the record of the frame, the rest of the work before it.
    before = _busy(np.concatenate([between(kind, Kind.TRANSFER) for kind in (Kind.WAIT_BEGIN, Kind.PUT)]))
    behind = _enough(between(Kind.TRANSFER, Kind.WAIT_BEGIN))
    send = before if behind is NOTHING else behind.longer(before.median_s - begin.median_s)
    ack = _enough(between(Kind.ACK, Kind.WAIT_END)).longer(-end.median_s)
    slave, per_byte_s, link_s, frames = _slave_costs(traces)
    sync, sync_bytes = _syncs([[trace.records for trace in traces], *([records] for records in slaves)])
    return Costs(
        put=put if put is not NOTHING else usual,
        wait_begin=begin,
        send=send if send is not NOTHING else usual,
        ack=ack,
        wait_end=end if end is not NOTHING else usual,
        slave=slave,
        slave_per_byte_s=per_byte_s,
        link_s=link_s,
        sync=sync,
        sync_bytes=sync_bytes,
        slave_correlation=_slave_correlation(traces),
        measured_frames=frames,
    )


def _syncs(nodes: Sequence[Sequence[Array]]) -> tuple[Spread, int]:
    """Times of the syncs of the node that puts least on disk at a time, and how many bytes that usually is.

    Where acks or puts wait for the disk, a sync comes with every few of them, as it does in no other node.
    """
    found: list[tuple[float, Floats]] = []
    for node in nodes:
        flushes = [records[records["kind"] == Kind.FLUSHED] for records in node]
        sizes = np.concatenate([np.zeros(0), *(np.diff(flush["offset"]) for flush in flushes)])
        times_s = np.concatenate([np.zeros(0), *(flush["aux"] / 1e9 for flush in flushes)])
        if len(times_s):
            found.append((float(np.median(sizes)) if len(sizes) else 0.0, times_s))
    if not found:
        return NOTHING, 0
    size, times_s = min(found, key=_size)
    return Spread.of(times_s), round(size)


def _size(syncs: tuple[float, Floats]) -> float:
    return syncs[0]


class _Gaps:
    """Gaps between the steps of a node's work that follow each other."""

    def __init__(self, records: Array) -> None:
        steps = records[_IS_STEP[records["kind"]]]
        self._kind = steps["kind"]
        self._gap_s: Floats = np.diff(steps["ts_ns"]) / 1e9

    def between(self, first: int, second: int) -> Floats:
        """Gaps in s from a record of kind `first` to one of kind `second` right behind it."""
        found: Floats = self._gap_s[(self._kind[:-1] == first) & (self._kind[1:] == second)]
        return found


def _enough(gaps_s: Floats) -> Spread:
    """Their spread, NOTHING of a few."""
    return Spread.of(gaps_s) if len(gaps_s) >= ENOUGH else NOTHING


def _busy(gaps_s: Floats) -> Spread:
    """Their spread without those that are idle time, NOTHING of a few."""
    if len(gaps_s) < ENOUGH:
        return NOTHING
    # Idle time makes a median longer, never shorter: the quicker half tells.
    usual_s = float(np.quantile(gaps_s, 0.25))
    return Spread.of(gaps_s[gaps_s <= BUSY_FACTOR * usual_s])


def _joined(parts: object) -> Floats:
    found: Floats = np.concatenate([np.zeros(0), *parts])  # type: ignore[misc]
    return found


# -- slave and link ------------------------------------------------------------------------------------------


@frozen(eq=False)
class _Flights:
    """Frames of one connection and the acks that covered them."""

    sent_ns: Ints
    acked_ns: Ints
    size: Ints
    alone: NDArray[np.bool_]
    """No other frame was under way when it was sent."""
    clean: NDArray[np.bool_]
    """Nothing else kept the master busy when the ack came."""


def _slave_costs(traces: Sequence[Trace]) -> tuple[Spread, float, float, int]:
    """Spread of a batch at the slave, time per byte, time of the link there and back, and frames measured."""
    flights = [found for trace in traces for found in _flights(trace.records)]
    if not flights:
        return NOTHING, 0.0, 0.0, 0
    took_s = _joined((one.acked_ns - one.sent_ns) / 1e9 for one in flights)
    size = np.concatenate([one.size for one in flights]).astype(np.float64)
    alone = np.concatenate([one.alone for one in flights])
    clean = np.concatenate([one.clean for one in flights])
    chosen = next(
        (mask for mask in (alone & clean, alone, clean) if np.count_nonzero(mask) >= ENOUGH),
        np.ones_like(alone),
    )
    took_s, size = took_s[chosen], size[chosen]
    per_byte_s = _slope(size, took_s)
    fixed_s = np.maximum(took_s - per_byte_s * size, 0.0)
    work_s = min(_turn_s(flights), float(np.median(fixed_s)))
    link_s = max(0.0, float(np.median(fixed_s)) - work_s)
    return Spread.of(fixed_s - link_s), per_byte_s, link_s, len(took_s)


def _slave_correlation(traces: Sequence[Trace]) -> float:
    """Rank correlation of what puts waited for one slave with what they waited for another; never negative.

    Where slaves take a time in common with this probability, and else each its own, that is what it is.
    """
    found = []
    for trace in traces:
        for first, second in pairwise(ack_delays_s(trace)):
            known = ~np.isnan(first) & ~np.isnan(second)
            if np.count_nonzero(known) >= ENOUGH:
                rank, other = (np.argsort(np.argsort(delay[known])) for delay in (first, second))
                found.append(float(np.corrcoef(rank, other)[0, 1]))
    return max(0.0, float(np.mean(found))) if found else 0.0


def _turn_s(flights: Sequence[_Flights]) -> float:
    """Least time between two acks whose frames were under way together; inf if none were."""
    gaps: list[Floats] = [np.zeros(0)]
    for one in flights:
        under_way = one.sent_ns[1:] < one.acked_ns[:-1]
        gap = np.diff(one.acked_ns)[under_way] / 1e9
        gaps.append(gap[gap > 0])
    found = np.concatenate(gaps)
    return float(np.quantile(found, 0.25)) if len(found) >= ENOUGH else float("inf")


def _slope(size: Floats, took_s: Floats) -> float:
    """Time per byte, from the quick ones of the smaller and of the larger half of the frames.

    The slow ones tell nothing: while something else keeps a slave, puts pile up, and the next frame is large.
    """
    middle = np.median(size)
    small, large = size <= middle, size > middle
    if np.count_nonzero(small) < ENOUGH or np.count_nonzero(large) < ENOUGH:
        return 0.0
    rise = float(np.median(size[large]) - np.median(size[small]))
    if rise < 1:
        return 0.0
    quick = [float(np.quantile(took_s[half], QUICK_PART)) for half in (small, large)]
    return min(max(0.0, (quick[1] - quick[0]) / rise), PER_BYTE_S_MAX)


def _flights(records: Array) -> list[_Flights]:
    kind = records["kind"]
    steps = records[_IS_STEP[kind]]
    gap_ns = np.diff(steps["ts_ns"], prepend=steps["ts_ns"][:1])
    usual_ns = float(np.quantile(gap_ns[1:], 0.25)) if len(gap_ns) > 1 else 0.0
    idle_before = gap_ns > 3 * usual_ns
    found = []
    for conn in np.unique(steps["conn"][steps["kind"] == Kind.TRANSFER]):
        own = steps["conn"] == conn
        frames = steps[own & (steps["kind"] == Kind.TRANSFER)]
        is_ack = own & (steps["kind"] == Kind.ACK)
        acks, idle = steps[is_ack], idle_before[is_ack]
        ends = frames["offset"] + frames["size"]
        place = first_covering(acks["offset"], ends)
        known = place < len(acks)
        frames, ends, place = frames[known], ends[known], place[known]
        if not len(frames):
            continue
        sent_ns, acked_ns = frames["ts_ns"].astype(np.int64), acks["ts_ns"][place].astype(np.int64)
        # What was sent behind it, while it waited, does not count: slow ones would be left out.
        alone = np.concatenate([[True], acked_ns[:-1] <= sent_ns[1:]])
        found.append(_Flights(sent_ns, acked_ns, frames["size"].astype(np.int64), alone, idle[place]))
    return found
