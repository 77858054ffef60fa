"""Producers of a recording: the number of writers, and whether they form a closed or an open loop.

In a closed loop of N writers a slow put delays the N-th put after it by as much. So the time from each put to
the N-th one after it is regressed on the time from the put to the end that it depends on: the slope is 1 in a
closed loop and 0 in an open one. N is the maximum number of waiting puts (without bursts), which a closed
loop reaches if its writers think for less time than they wait.

Writers that share a connection may be joined: their host handles all answers that have come, and then sends
all their next puts in one go, so that the master appends them in one turn and sends them in one frame.
Otherwise the first put of those that return is sent alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Final

import numpy as np
from attrs import frozen

from trioha.recording.events import Kind
from trioha.recording.state_arrays import Ints
from trioha_analysis.whatif.simulation import PUTS_PER_TURN
from trioha_analysis.whatif.time_distribution import ENOUGH, ZERO_TIME, Floats, TimeDistribution, slope
from trioha_analysis.whatif.trace import NO_END, Trace

CLOSED_SLOPE_MIN: Final = 0.5
WAITING_PARTS: Final = (0.98, 0.998)
"""Quantiles of the number of waiting puts: without bursts, and with them."""
QUICK_PART: Final = 0.1
"""Quantile of the time for each put that bounds the serial part of it."""
BURST_MAX: Final = 1.25
"""Bursts of a closed loop are at most this many times its number of writers."""


class Producers(StrEnum):
    """How puts arrive."""

    CLOSED = "closed"
    """A writer sends its next put a think time after the end of its last one."""
    OPEN = "open"
    """Puts arrive independently of the ends of others."""
    AUTO = "auto"
    """Detected in the recording."""


@frozen
class ProducerModel:
    """How the puts of a recording arrived."""

    kind: Producers
    """CLOSED or OPEN."""
    writers: int
    """Maximum number of waiting puts: the writers of a closed loop."""
    rate_per_s: float
    delay_slope: float
    """Delay in s of the put `writers` later for each s that a put waits longer: 1 closed, 0 open."""
    client_s: float
    """Closed: serial time of the producers' host for each put."""
    think: TimeDistribution
    """Closed: from the end of a put to the arrival of the writer's next one, without `client_s`."""
    is_joined: bool = False
    """Closed: whether writers return together."""


def producer_model(traces: Sequence[Trace], wanted: Producers = Producers.AUTO) -> ProducerModel:
    """Detect how puts arrived; `wanted` CLOSED or OPEN overrides the detection."""
    writers, most = _outstanding(traces)
    spans_s = sum((int(trace.put_ts_ns[-1]) - int(trace.put_ts_ns[0])) / 1e9 for trace in traces)
    gaps = sum(trace.puts - 1 for trace in traces)
    rate_per_s = gaps / spans_s if spans_s > 0 else 0.0
    delay_slope = _delay_slope(traces, writers) if writers else 0.0
    kind = wanted
    if wanted is Producers.AUTO:
        is_bounded = most <= BURST_MAX * writers + 1
        kind = Producers.CLOSED if delay_slope >= CLOSED_SLOPE_MIN and is_bounded else Producers.OPEN
    is_joined = _is_joined(traces, writers)
    if is_joined:
        client_s, think = _joined_think_times(traces)
    else:
        client_s, think = _think_times(traces, writers) if writers else (0.0, ZERO_TIME)
    return ProducerModel(kind, writers, rate_per_s, delay_slope, client_s, think, is_joined)


def _outstanding(traces: Sequence[Trace]) -> tuple[int, int]:
    """`WAITING_PARTS` of the number of waiting puts, at each put and with it."""
    found = [np.zeros(0)]
    for trace in traces:
        known = trace.end_ts_ns != NO_END
        began, ended = trace.put_ts_ns[known], np.sort(trace.end_ts_ns[known])
        found.append(np.arange(1, len(began) + 1) - np.searchsorted(ended, began))
    waiting = np.concatenate(found)
    if not len(waiting):
        return 0, 0
    usual, most = np.quantile(waiting, WAITING_PARTS, method="higher")
    return int(usual), int(most)


def _cycles(trace: Trace, writers: int) -> tuple[Ints, Ints, Ints]:
    """Arrivals of the puts with known waits, their sorted ends, and the arrivals that depend on these
    ends."""
    known = trace.end_ts_ns != NO_END
    arrived, ended = trace.put_ts_ns[known], np.sort(trace.end_ts_ns[known])
    count = max(0, len(arrived) - writers)
    return arrived[:count], ended[:count], arrived[writers : writers + count]


def _delay_slope(traces: Sequence[Trace], writers: int) -> float:
    """Regression of the time from a put to the one `writers` later on the time to the end it depends on."""
    waited: list[Floats] = [np.zeros(0)]
    cycle: list[Floats] = [np.zeros(0)]
    for trace in traces:
        arrived, ended, following = _cycles(trace, writers)
        waited.append((ended - arrived) / 1e9)
        cycle.append((following - arrived) / 1e9)
    x, y = np.concatenate(waited), np.concatenate(cycle)
    if len(x) < ENOUGH:
        return 0.0
    variance = float(np.var(x))
    # Constant waits show nothing.
    return float(np.cov(x, y)[0, 1] / variance) if variance > 0 else 0.0


def _think_times(traces: Sequence[Trace], writers: int) -> tuple[float, TimeDistribution]:
    """Serial time of the producers' host for each put, and the rest of the time between end and next put.

    Puts that end together return one after the other, so the n-th of them takes n times the serial time.
    """
    places: list[Floats] = [np.zeros(0)]
    thought: list[Floats] = [np.zeros(0)]
    for trace in traces:
        _, ended, following = _cycles(trace, writers)
        known = np.sort(trace.put_ts_ns[trace.end_ts_ns != NO_END])
        # Writers that think at an end, its own included: ends so far, less puts beyond the first ones.
        thinking = np.arange(len(ended)) + 1 + writers - np.searchsorted(known, ended, side="right")
        places.append(np.maximum(thinking, 1).astype(np.float64))
        thought.append((following - ended) / 1e9)
    place, took_s = np.concatenate(places), np.concatenate(thought)
    if len(place) < ENOUGH:
        return 0.0, TimeDistribution.of(took_s)
    client_s = slope(place, took_s, probability=0.5)
    return client_s, TimeDistribution.of(took_s - client_s * place)


def _is_joined(traces: Sequence[Trace], writers: int) -> bool:
    """Whether most frames have the puts of several writers; False for a single one."""
    if writers < 2:
        return False
    found = [np.zeros(0, np.int64)]
    for trace in traces:
        kind = trace.records["kind"]
        puts = np.cumsum(kind == Kind.PUT)[kind == Kind.TRANSFER]
        frames = np.diff(puts, prepend=0)
        # Of frames with the same bytes for several slaves, the first one counts.
        found.append(frames[frames > 0])
    frames = np.concatenate(found)
    if len(frames) < ENOUGH:
        return False
    return bool(np.quantile(frames, 0.25) >= max(2.0, min(writers, PUTS_PER_TURN) / 3))


def _joined_think_times(traces: Sequence[Trace]) -> tuple[float, TimeDistribution]:
    """As `_think_times`, for writers that return together: from the last end before they do."""
    counts: list[Floats] = [np.zeros(0)]
    thought: list[Floats] = [np.zeros(0)]
    put_gaps: list[Floats] = [np.zeros(0)]
    work_s = 0.0
    for trace in traces:
        kind = trace.records["kind"]
        steps = trace.records[(kind == Kind.PUT) | (kind == Kind.WAIT_END)]
        is_put = steps["kind"] == Kind.PUT
        gap_s = np.diff(steps["ts_ns"].astype(np.int64)) / 1e9
        put_gaps.append(gap_s[is_put[:-1] & is_put[1:]])
        returns = np.flatnonzero(~is_put[:-1] & is_put[1:])
        ends = np.flatnonzero(is_put & ~np.append(is_put[1:], False))
        last = ends[np.searchsorted(ends, returns + 1)]
        counts.append((last - returns).astype(np.float64))
        thought.append(gap_s[returns])
        work_s += _work_s(trace)
    count, took_s = np.concatenate(counts), np.concatenate(thought)
    if not len(count):
        return 0.0, ZERO_TIME
    gaps_s = np.concatenate(put_gaps)
    # The arrival of the first one is a put's work before its append.
    took_s = np.maximum(took_s - (float(np.median(gaps_s)) if len(gaps_s) else 0.0), 0.0)
    client_s = slope(count, took_s, probability=0.5)
    if not client_s:
        # As many return each time, so that it does not show: a put is as much work for its producer as for
        # the master, but no more than there is time for.
        puts = sum(trace.puts for trace in traces)
        client_s = min(work_s / puts, float(np.quantile(took_s / count, QUICK_PART)))
    return client_s, TimeDistribution.of(took_s - client_s * count)


def _work_s(trace: Trace) -> float:
    """Time that the master has worked for puts: all but that before an ack, or before the first put after
    the end of others."""
    kind = trace.records["kind"]
    steps = trace.records[np.isin(kind, (Kind.PUT, Kind.TRANSFER, Kind.ACK, Kind.WAIT_END))]
    before, after = steps["kind"][:-1], steps["kind"][1:]
    is_work = (after != Kind.ACK) & ~((before == Kind.WAIT_END) & (after == Kind.PUT))
    return float(np.diff(steps["ts_ns"].astype(np.int64))[is_work].sum()) / 1e9
