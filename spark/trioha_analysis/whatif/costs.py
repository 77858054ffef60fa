"""Calibration: the time of each step of a put, measured in a recording.

A node is one thread, so the gap between two consecutive records is the work for the second one, if the node
was not idle in between. It was not between two wait begins without an append, two wait ends, and an append
and the next frame. Gaps between puts that exceed `BUSY_FACTOR` times the usual one count as idle time.

The time from a frame to its ack consists of the socket, the link and the slave. It is measured on frames that
were sent without another one in flight and whose acks arrived at an idle master. A regression over the frame
size gives the time per frame and per byte. The gaps between acks of frames in flight at the same time split
the time per frame into the slave's service time, during which the next frame waits, and the link's delay,
during which it does not. Slaves on one host may be slow at the same time, so that the faster of two helps
little: `slave_correlation`.
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
from trioha_analysis.whatif.time_distribution import ENOUGH, ZERO_TIME, Floats, TimeDistribution, slope
from trioha_analysis.whatif.trace import Trace, ack_delays_s

BUSY_FACTOR: Final = 10
QUICK_PART: Final = 0.1
"""Quantile of the frames that the time per byte is derived from: while a slave is delayed, puts accumulate
and the next frame is large, so slow frames would overstate it."""
PER_BYTE_S_MAX: Final = 1 / 50e6
"""A slave appends at least 50 MB/s."""
_STEPS: Final = (Kind.PUT, Kind.TRANSFER, Kind.ACK, Kind.WAIT_BEGIN, Kind.WAIT_END, Kind.FLUSHED)
_IS_STEP: Final = np.zeros(256, np.bool_)
_IS_STEP[list(_STEPS)] = True


@frozen
class Costs:
    """Times in s of the steps of a put."""

    put: TimeDistribution
    """From the request to the append."""
    wait_begin: TimeDistribution
    send: TimeDistribution
    """Sending a frame, at the master."""
    ack: TimeDistribution
    """Handling an ack, at the master, up to the end of the first wait."""
    wait_end: TimeDistribution
    """Ending a wait and answering its put."""
    slave: TimeDistribution
    """Service time of a batch, without the time per byte."""
    slave_per_byte_s: float
    link_s: float
    """Round trip of the recorded link."""
    sync: TimeDistribution
    """A sync of the disk of master or slave."""
    sync_bytes: int = 0
    """Median size of those syncs."""
    slave_correlation: float = 0.0
    """Probability, 0 to 1, that slaves share a service time."""

    def slowed(self, factor: float, *, tail: float = 1.0) -> Costs:
        """Times of slave and link multiplied by `factor`, and the slave's above the median stretched by
        `tail`."""
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
    # A step with too few measurements gets the times of its neighbours.
    usual = next((times for times in (put, end, begin) if times is not ZERO_TIME), ZERO_TIME)
    # The system call comes after the frame's record, the rest of the work before it.
    before = _busy(np.concatenate([between(kind, Kind.TRANSFER) for kind in (Kind.WAIT_BEGIN, Kind.PUT)]))
    after = _enough(between(Kind.TRANSFER, Kind.WAIT_BEGIN))
    send = before if after is ZERO_TIME else after.shifted(before.median_s - begin.median_s)
    ack = _enough(between(Kind.ACK, Kind.WAIT_END)).shifted(-end.median_s)
    slave, per_byte_s, link_s = _slave_costs(traces)
    sync, sync_bytes = _syncs([[trace.records for trace in traces], *([records] for records in slaves)])
    return Costs(
        put=put if put is not ZERO_TIME else usual,
        wait_begin=begin,
        send=send if send is not ZERO_TIME else usual,
        ack=ack,
        wait_end=end if end is not ZERO_TIME else usual,
        slave=slave,
        slave_per_byte_s=per_byte_s,
        link_s=link_s,
        sync=sync,
        sync_bytes=sync_bytes,
        slave_correlation=_slave_correlation(traces),
    )


def _syncs(nodes: Sequence[Sequence[Array]]) -> tuple[TimeDistribution, int]:
    """Sync times of the node with the smallest syncs, and their median size in bytes.

    A node whose acks or puts wait for the disk syncs the fewest bytes at a time.
    """
    found: list[tuple[float, Floats]] = []
    for node in nodes:
        flushes = [records[records["kind"] == Kind.FLUSHED] for records in node]
        sizes = np.concatenate([np.zeros(0), *(np.diff(flush["offset"]) for flush in flushes)])
        times_s = np.concatenate([np.zeros(0), *(flush["aux"] / 1e9 for flush in flushes)])
        if len(times_s):
            found.append((float(np.median(sizes)) if len(sizes) else 0.0, times_s))
    if not found:
        return ZERO_TIME, 0
    size, times_s = min(found, key=lambda syncs: syncs[0])
    return TimeDistribution.of(times_s), round(size)


class _Gaps:
    """Gaps between consecutive steps of a node."""

    def __init__(self, records: Array) -> None:
        steps = records[_IS_STEP[records["kind"]]]
        self._kind = steps["kind"]
        self._gap_s: Floats = np.diff(steps["ts_ns"]) / 1e9

    def between(self, first: int, second: int) -> Floats:
        """Gaps in s from a record of kind `first` to the next one, if that is of kind `second`."""
        found: Floats = self._gap_s[(self._kind[:-1] == first) & (self._kind[1:] == second)]
        return found


def _enough(gaps_s: Floats) -> TimeDistribution:
    """ZERO_TIME if there are too few."""
    return TimeDistribution.of(gaps_s) if len(gaps_s) >= ENOUGH else ZERO_TIME


def _busy(gaps_s: Floats) -> TimeDistribution:
    """Without idle time; ZERO_TIME if there are too few."""
    if len(gaps_s) < ENOUGH:
        return ZERO_TIME
    # Idle time lengthens the median, so the usual gap is the lower quartile.
    usual_s = float(np.quantile(gaps_s, 0.25))
    return TimeDistribution.of(gaps_s[gaps_s <= BUSY_FACTOR * usual_s])


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
    """Whether no other frame was in flight when it was sent."""
    idle: NDArray[np.bool_]
    """Whether the master was idle when the ack arrived."""


def _slave_costs(traces: Sequence[Trace]) -> tuple[TimeDistribution, float, float]:
    """Service time of a batch, time per byte, and round trip of the link."""
    flights = [found for trace in traces for found in _flights(trace.records)]
    if not flights:
        return ZERO_TIME, 0.0, 0.0
    took_s = _joined((one.acked_ns - one.sent_ns) / 1e9 for one in flights)
    size = np.concatenate([one.size for one in flights]).astype(np.float64)
    alone = np.concatenate([one.alone for one in flights])
    idle = np.concatenate([one.idle for one in flights])
    chosen = next(
        (mask for mask in (alone & idle, alone, idle) if np.count_nonzero(mask) >= ENOUGH),
        np.ones_like(alone),
    )
    took_s, size = took_s[chosen], size[chosen]
    per_byte_s = min(slope(size, took_s, probability=QUICK_PART), PER_BYTE_S_MAX)
    fixed_s = np.maximum(took_s - per_byte_s * size, 0.0)
    work_s = min(_slave_service_s(flights), float(np.median(fixed_s)))
    link_s = max(0.0, float(np.median(fixed_s)) - work_s)
    return TimeDistribution.of(fixed_s - link_s), per_byte_s, link_s


def _slave_correlation(traces: Sequence[Trace]) -> float:
    """Rank correlation of the puts' ack delays between slaves; never negative.

    It equals the probability with which simulated slaves share a service time.
    """
    found = []
    for trace in traces:
        for first, second in pairwise(ack_delays_s(trace)):
            known = ~np.isnan(first) & ~np.isnan(second)
            if np.count_nonzero(known) >= ENOUGH:
                rank, other = (np.argsort(np.argsort(delay[known])) for delay in (first, second))
                found.append(float(np.corrcoef(rank, other)[0, 1]))
    return max(0.0, float(np.mean(found))) if found else 0.0


def _slave_service_s(flights: Sequence[_Flights]) -> float:
    """Lower quartile of the time between acks whose frames were in flight at once; inf if too few were."""
    gaps: list[Floats] = [np.zeros(0)]
    for one in flights:
        in_flight = one.sent_ns[1:] < one.acked_ns[:-1]
        gap = np.diff(one.acked_ns)[in_flight] / 1e9
        gaps.append(gap[gap > 0])
    found = np.concatenate(gaps)
    return float(np.quantile(found, 0.25)) if len(found) >= ENOUGH else float("inf")


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
        # Frames sent after it do not count: otherwise slow ones would be left out.
        alone = np.concatenate([[True], acked_ns[:-1] <= sent_ns[1:]])
        found.append(_Flights(sent_ns, acked_ns, frames["size"].astype(np.int64), alone, idle[place]))
    return found
