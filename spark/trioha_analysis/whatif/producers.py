"""Who put: how many writers, and whether each waits for its last put (closed loop) or not (open loop).

A closed loop of N writers can be told by what a slow put does: the put N later comes late, too, by as much.
So the time from each put to the N-th put behind it is compared with how long the N puts in between kept their
writers: it rises with it one to one in a closed loop, and not at all in an open one. N is the largest number
of puts that waited at a time (bursts apart), which a closed loop reaches as soon as its writers think for
less time than they wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Final

import numpy as np
from attrs import frozen

from trioha.recording.state_arrays import Ints
from trioha_analysis.whatif.spread import NOTHING, Floats, Spread
from trioha_analysis.whatif.trace import NO_END, Trace

ENOUGH: Final = 30
CLOSED_SLOPE_MIN: Final = 0.5
WAITING_PARTS: Final = (0.98, 0.998)
"""A burst of a few puts is not what a loop is made of; where there are many, it is none."""
BURST_MAX: Final = 1.25
"""So many times the usual number of puts may wait at a time in a loop."""


class Producers(StrEnum):
    """How puts arrive."""

    CLOSED = "closed"
    """A writer's next put comes after its last one ended, and its think time."""
    OPEN = "open"
    """Puts come when they come."""
    AUTO = "auto"
    """Whichever of the two the recording shows."""


@frozen
class Producing:
    """How puts arrived in a recording."""

    kind: Producers
    """CLOSED or OPEN."""
    writers: int
    """Most puts that waited at a time: the writers of a closed loop."""
    rate_per_s: float
    slope: float
    """By how much a put that waits 1 s longer delays the one `writers` behind it, in s: 1 closed, 0 open."""
    turn_s: float
    """Closed: what the producers' own machine takes for each put, one after the other."""
    think: Spread
    """Closed: from the end of a put until the writer's next one arrives, `turn_s` not counted."""


def producing(traces: Sequence[Trace], wanted: Producers = Producers.AUTO) -> Producing:
    """How puts arrived; `wanted` CLOSED or OPEN decides what AUTO finds out."""
    writers, most = _outstanding(traces)
    spans_s = sum((int(trace.put_ts_ns[-1]) - int(trace.put_ts_ns[0])) / 1e9 for trace in traces)
    gaps = sum(trace.puts - 1 for trace in traces)
    rate_per_s = gaps / spans_s if spans_s > 0 else 0.0
    slope = _delay_slope(traces, writers) if writers else 0.0
    kind = wanted
    if wanted is Producers.AUTO:
        is_bounded = most <= BURST_MAX * writers + 1
        kind = Producers.CLOSED if slope >= CLOSED_SLOPE_MIN and is_bounded else Producers.OPEN
    turn_s, think = _thinking(traces, writers) if writers else (0.0, NOTHING)
    return Producing(kind, writers, rate_per_s, slope, turn_s, think)


def _outstanding(traces: Sequence[Trace]) -> tuple[int, int]:
    """How many puts wait at a time, that of the put included, at most at nearly all puts, and beyond."""
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
    """Arrivals of the puts whose waits are known, their sorted ends, and the arrivals these made room for."""
    known = trace.end_ts_ns != NO_END
    arrived, ended = trace.put_ts_ns[known], np.sort(trace.end_ts_ns[known])
    count = max(0, len(arrived) - writers)
    return arrived[:count], ended[:count], arrived[writers : writers + count]


def _delay_slope(traces: Sequence[Trace], writers: int) -> float:
    """Rise of the time from a put to that `writers` behind it, over the time from it to the end it needs."""
    waited: list[Floats] = [np.zeros(0)]
    cycle: list[Floats] = [np.zeros(0)]
    for trace in traces:
        arrived, ended, following = _cycles(trace, writers)
        waited.append((ended - arrived) / 1e9)
        cycle.append((following - arrived) / 1e9)
    x, y = np.concatenate(waited), np.concatenate(cycle)
    if len(x) < ENOUGH:
        return 0.0
    spread = float(np.var(x))
    # All waits alike tell nothing; a loop that never varies is taken for what it looks like.
    return float(np.cov(x, y)[0, 1] / spread) if spread > 0 else 0.0


def _thinking(traces: Sequence[Trace], writers: int) -> tuple[float, Spread]:
    """Time that each put takes of the producers' machine, and the rest of the time between end and next put.

    Puts that end together are answered together, and come back one after the other: how long the n-th of them
    takes over n says what each takes.
    """
    places: list[Floats] = [np.zeros(0)]
    thought: list[Floats] = [np.zeros(0)]
    for trace in traces:
        _, ended, following = _cycles(trace, writers)
        known = np.sort(trace.put_ts_ns[trace.end_ts_ns != NO_END])
        # Writers that think when an end comes, its own included: ends so far less puts beyond the first ones.
        behind = np.arange(len(ended)) + 1 + writers - np.searchsorted(known, ended, side="right")
        places.append(np.maximum(behind, 1).astype(np.float64))
        thought.append((following - ended) / 1e9)
    place, took_s = np.concatenate(places), np.concatenate(thought)
    if len(place) < ENOUGH:
        return 0.0, Spread.of(took_s)
    turn_s = _rise(place, took_s)
    return turn_s, Spread.of(took_s - turn_s * place)


def _rise(place: Floats, took_s: Floats) -> float:
    """Median time at the later places over that at the earlier ones, for each place."""
    middle = np.median(place)
    near, far = place <= middle, place > middle
    if np.count_nonzero(near) < ENOUGH or np.count_nonzero(far) < ENOUGH:
        return 0.0
    step = float(np.median(place[far]) - np.median(place[near]))
    return max(0.0, float(np.median(took_s[far]) - np.median(took_s[near])) / step) if step >= 1 else 0.0
