"""Calibration: the time of each step of a put, measured in a recording.

A node is one thread, so the gap between two consecutive records is the work for the second one, if the node
was not idle in between. It was not between two wait begins without an append, two wait ends, and an append
and the next frame. Gaps between puts that exceed `BUSY_FACTOR` times the usual one count as idle time. A wait
begin that is stamped as its append takes no time of its own.

The time from a frame to its ack consists of the socket, the link and the slave. It is measured on frames that
were sent without another one in flight and whose acks arrived at an idle master. A regression over the frame
size gives the time per frame and per byte. The gaps between acks of frames in flight at the same time split
the time per frame into the slave's service time, during which the next frame waits, and the link's delay,
during which it does not. Slaves depend on each other: on one host they may be slow at the same time, so that
the faster of two helps little, or share a core, so that the second ack comes a service time after the first.
So the times of frames that were sent to all slaves together are kept together: `slave_rows`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from attrs import evolve, frozen
from numpy.typing import NDArray

from trioha.recording.events import Kind
from trioha.recording.state_arrays import Array, Ints, first_covering
from trioha_analysis.whatif.time_distribution import ENOUGH, ZERO_TIME, Floats, TimeDistribution, slope
from trioha_analysis.whatif.trace import Trace

BUSY_FACTOR: Final = 10
QUICK_PART: Final = 0.1
"""Quantile of the frames that the time per byte is derived from: while a slave is delayed, puts accumulate
and the next frame is large, so slow frames would overstate it."""
LINK_PART: Final = 0.05
"""Quantile of the frames' times that bounds the round trip of the link."""
PER_BYTE_S_MAX: Final = 1 / 50e6
"""A slave appends at least 50 MB/s."""
ACK_WORK_NS: Final = 100_000
"""A wait that ends within this time after an ack ended by it."""
START_NS_MAX: Final = 1_000_000
"""A sync begins within this time after the append that it is for, if the disk is idle."""
ROWS_MAX: Final = 4096
"""Frames to all slaves whose times are kept."""
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
    """Sending a frame, at the master: from the append to the record of the frame."""
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
    frame_bytes: int = 0
    """Median size of the frames; 0 without any."""
    send_next: TimeDistribution | None = None
    """Sending the same to the next slave, system call of the frame before included; None for as long as
    `send`."""
    slave_rows: tuple[tuple[float, ...], ...] = ()
    """Service times of the slaves for frames that were sent to all of them together; empty if it is not known
    how they depend on each other, with one slave above all."""

    def slowed(self, factor: float, *, tail: float = 1.0) -> Costs:
        """Times of slave and link multiplied by `factor`, and the slave's above the median stretched by
        `tail`."""
        return evolve(
            self,
            slave=self.slave.scaled(factor).stretched(tail),
            slave_rows=_stretched(self.slave_rows, factor, tail),
            slave_per_byte_s=self.slave_per_byte_s * factor,
            link_s=self.link_s * factor,
        )


def _stretched(
    rows: tuple[tuple[float, ...], ...], factor: float, tail: float
) -> tuple[tuple[float, ...], ...]:
    """As `TimeDistribution.scaled` and `stretched`, of all times together."""
    if not rows:
        return ()
    times_s = np.array(rows) * factor
    median_s = float(np.median(times_s))
    late = times_s > median_s
    times_s[late] = median_s + (times_s[late] - median_s) * tail
    return tuple(map(tuple, times_s.tolist()))


def costs_of(
    traces: Sequence[Trace],
    slaves: Sequence[Array] = (),
    *,
    is_sync_flush: bool = False,
    is_joined: bool = False,
) -> Costs:
    """Measure the steps in stretches of a master's session; `slaves` are records of its slaves' sessions.

    `is_sync_flush`: whether puts waited for the master's disk. Then most waits do not end with an ack.
    `is_joined`: whether writers return together. Then a node is never idle between two puts, or two ends,
    without a frame or an ack between them: long gaps are stalls, which hold up all that wait.
    """
    gaps = [_Gaps(trace.records) for trace in traces]

    def between(first: int, second: int) -> Floats:
        return _joined(gap.between(first, second) for gap in gaps)

    busy = _enough if is_joined else _busy
    put = busy(between(Kind.PUT, Kind.PUT))
    begin = _enough(between(Kind.WAIT_BEGIN, Kind.WAIT_BEGIN))
    # Also two waits that end with different syncs follow each other.
    end = busy(between(Kind.WAIT_END, Kind.WAIT_END))
    # A step with too few measurements gets the times of its neighbours.
    usual = next((times for times in (put, end, begin) if times is not ZERO_TIME), ZERO_TIME)
    # The system call comes after the frame's record, the rest of the work before it.
    before = _busy(np.concatenate([between(kind, Kind.TRANSFER) for kind in (Kind.WAIT_BEGIN, Kind.PUT)]))
    after = _enough(between(Kind.TRANSFER, Kind.WAIT_BEGIN))
    send = before if after is ZERO_TIME else after.shifted(before.median_s - begin.median_s)
    following = between(Kind.TRANSFER, Kind.TRANSFER)
    ack = _enough(between(Kind.ACK, Kind.WAIT_END)).shifted(-end.median_s)
    if is_sync_flush:
        ack = send
    # A slave does for a batch about what a master does for put, frame and ack: receive, append, report.
    work_s = (put if put is not ZERO_TIME else usual).median_s + send.median_s + ack.median_s
    slave, per_byte_s, link_s = _slave_costs(traces, work_s=work_s)
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
        frame_bytes=_frame_bytes(traces),
        send_next=_busy(following) if len(following) >= ENOUGH else None,
        slave_rows=_slave_rows(traces, per_byte_s=per_byte_s, link_s=link_s),
    )


def _frame_bytes(traces: Sequence[Trace]) -> int:
    sizes = [trace.records["size"][trace.records["kind"] == Kind.TRANSFER] for trace in traces]
    found = np.concatenate([np.zeros(0), *sizes])
    return round(float(np.median(found))) if len(found) else 0


def _syncs(nodes: Sequence[Sequence[Array]]) -> tuple[TimeDistribution, int]:
    """Sync times of the node with the smallest syncs, and their median size in bytes.

    A node whose acks or puts wait for the disk syncs the fewest bytes at a time.
    """
    found: list[tuple[float, Floats]] = []
    for node in nodes:
        flushes = [records[records["kind"] == Kind.FLUSHED] for records in node]
        sizes = np.concatenate([np.zeros(0), *(np.diff(flush["offset"]) for flush in flushes)])
        times_s = _joined(_sync_times_s(records) for records in node)
        if len(times_s):
            found.append((float(np.median(sizes)) if len(sizes) else 0.0, times_s))
    if not found:
        return ZERO_TIME, 0
    size, times_s = min(found, key=lambda syncs: syncs[0])
    return TimeDistribution.of(times_s), round(size)


def _sync_times_s(records: Array) -> Floats:
    """Of each sync in a node's records: from the put that it was begun for to the end of the first wait.

    A node records a sync after it has ended the waits that depended on it, and begins it some time after the
    append.
    """
    steps = records[_IS_STEP[records["kind"]] & (records["kind"] != Kind.WAIT_BEGIN)]
    kind, ts_ns = steps["kind"], steps["ts_ns"].astype(np.int64)
    place = np.flatnonzero(kind == Kind.FLUSHED)
    if not len(place):
        return np.zeros(0)
    started_ns = ts_ns[place] - steps["aux"][place]
    # The first of the ends that directly precede each record, itself without one.
    is_end = kind == Kind.WAIT_END
    first_of_run = np.maximum.accumulate(np.where(is_end, -1, np.arange(len(kind)))) + 1
    before = np.maximum(place - 1, 0)
    first = np.where((place > 0) & is_end[before], first_of_run[before], place)
    # Ends that directly follow an ack are of that ack, unless all that precedes is idle time.
    after_ack = (first > 0) & (kind[np.maximum(first - 1, 0)] == Kind.ACK)
    gap_ns = ts_ns[first] - ts_ns[np.maximum(first - 1, 0)]
    first = np.where(after_ack & (gap_ns < ACK_WORK_NS), place, first)
    ended_ns = np.maximum(ts_ns[first], started_ns)
    puts_ns = ts_ns[kind == Kind.PUT]
    if len(puts_ns):
        # The last put before it, if the sync before had ended by then: it was idle.
        last = puts_ns[np.maximum(np.searchsorted(puts_ns, started_ns, side="right") - 1, 0)]
        idle_ns = np.concatenate([[np.iinfo(np.int64).min], ts_ns[place][:-1]])
        begins_ns = np.where((last <= started_ns) & (last >= idle_ns), last, started_ns)
        started_ns = np.where(started_ns - begins_ns < START_NS_MAX, begins_ns, started_ns)
    found: Floats = (ended_ns - started_ns) / 1e9
    return found


class _Gaps:
    """Gaps between consecutive steps of a node."""

    def __init__(self, records: Array) -> None:
        steps = records[_IS_STEP[records["kind"]]]
        # Put and wait begin have one timestamp if the node records them in one go.
        ts_ns = steps["ts_ns"].astype(np.int64)
        is_joined = (steps["kind"] == Kind.WAIT_BEGIN) & (np.diff(ts_ns, prepend=np.int64(-1)) == 0)
        steps = steps[~is_joined]
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
    end_offset: Ints
    alone: NDArray[np.bool_]
    """Whether no other frame was in flight when it was sent."""
    idle: NDArray[np.bool_]
    """Whether the master was idle when the ack arrived."""


def _slave_costs(traces: Sequence[Trace], *, work_s: float) -> tuple[TimeDistribution, float, float]:
    """Service time of a batch, time per byte, and round trip of the link.

    `work_s` is the service time if no frames were in flight at the same time, which would show it.
    """
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
    all_s, all_size = took_s, size
    took_s, size = took_s[chosen], size[chosen]
    per_byte_s = min(slope(size, took_s, probability=QUICK_PART), PER_BYTE_S_MAX)
    fixed_s = np.maximum(took_s - per_byte_s * size, 0.0)
    measured_s = _slave_service_s(flights)
    service_s = min(work_s if measured_s is None else measured_s, float(np.median(fixed_s)))
    # No frame is faster than the link.
    quickest_s = float(np.quantile(np.maximum(all_s - per_byte_s * all_size, 0.0), LINK_PART))
    link_s = min(max(0.0, float(np.median(fixed_s)) - service_s), quickest_s)
    return TimeDistribution.of(fixed_s - link_s), per_byte_s, link_s


def _slave_rows(
    traces: Sequence[Trace], *, per_byte_s: float, link_s: float
) -> tuple[tuple[float, ...], ...]:
    """Service times of all slaves for the same bytes, sent to each without another frame in flight.

    The latest `ROWS_MAX`; empty if there are too few, or one slave.
    """
    found: list[Floats] = []
    for trace in traces:
        flights = _flights(trace.records)
        if len(flights) < 2:
            continue
        # All of them sent the frame with these ends.
        ends = flights[0].end_offset[flights[0].alone]
        for one in flights[1:]:
            ends = np.intersect1d(ends, one.end_offset[one.alone])
        columns = []
        for one in flights:
            place = np.searchsorted(one.end_offset, ends)
            took_s = (one.acked_ns[place] - one.sent_ns[place]) / 1e9
            columns.append(np.maximum(took_s - per_byte_s * one.size[place] - link_s, 0.0))
        found.append(np.stack(columns, axis=1))
    widths = {rows.shape[1] for rows in found}
    if not found or len(widths) > 1 or sum(map(len, found)) < ENOUGH:
        return ()
    return tuple(map(tuple, np.concatenate(found)[-ROWS_MAX:].tolist()))


def _slave_service_s(flights: Sequence[_Flights]) -> float | None:
    """Lower quartile of the time between acks whose frames were in flight at once; None if too few were."""
    gaps: list[Floats] = [np.zeros(0)]
    for one in flights:
        in_flight = one.sent_ns[1:] < one.acked_ns[:-1]
        gap = np.diff(one.acked_ns)[in_flight] / 1e9
        gaps.append(gap[gap > 0])
    found = np.concatenate(gaps)
    return float(np.quantile(found, 0.25)) if len(found) >= ENOUGH else None


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
        sizes = frames["size"].astype(np.int64)
        found.append(_Flights(sent_ns, acked_ns, sizes, ends.astype(np.int64), alone, idle[place]))
    return found
