"""Looks for where a lag crosses a limit, in slices of some milliseconds.

Of lag in bytes the moment is exact. Lag in seconds grows with the clock alone: it is looked at each
`STEP_NS`, and the moment is the first of these at which it is so. Buckets of the overview in which no
replica can lack anything that old are passed over.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from trioha.recording.lags import lags
from trioha.recording.segment_cache import Chunk
from trioha.recording.snapshot import connection_state
from trioha.recording.state_arrays import Ints
from trioha_monitor.replay.overview import Overview
from trioha_monitor.replay.replay_timeline import ReplayTimeline, SessionRun
from trioha_monitor.replay.seek_expression import AtLag
from trioha_monitor.replay.state import State

STEP_NS: Final = 100_000_000
_OPERATIONS: Final = {
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
    "=": np.equal,
}


def search_lag(
    timeline: ReplayTimeline, until: AtLag, *, from_ns: int, forward: bool = True
) -> Iterator[int | None]:
    """Search for the first moment after `from_ns` (the last one before it, if not `forward`) at which the lag
    of a replica begins to be as `until` says.

    Yields None while it looks, and the moment at last, if there is one: nanoseconds on the reel's axis.
    """
    best: int | None = None
    for run in timeline.runs:
        if run.is_slave:
            continue
        for chunk in run.reader.chunks_around(run.position_at(from_ns), forward=forward):
            if len(chunk.records):
                edge_ns = run.wall_of(int(chunk.records["ts_ns"][0 if forward else -1]))
                if best is not None and (edge_ns > best if forward else edge_ns < best):
                    break
                moments = _crossings(run, until, chunk)
                moments = moments[moments > from_ns] if forward else moments[moments < from_ns]
                if len(moments):
                    found = int(moments.min() if forward else moments.max())
                    best = found if best is None else (min if forward else max)(best, found)
                    break
            yield None
    if best is not None:
        yield best


def search_age(
    state: State, overview: Overview, until: AtLag, *, from_ns: int, end_ns: int, forward: bool = True
) -> Iterator[int | None]:
    """As `search_lag`, for a limit in nanoseconds; `end_ns` is the end of the axis that it looks towards."""
    while not overview.is_complete:
        # It is passed beside this.
        yield None
    holds = _OPERATIONS[until.comparison]
    grows = until.comparison in {">", ">="}
    held: dict[tuple[int, int], bool] | None = None
    number = from_ns // STEP_NS
    last = end_ns // STEP_NS + 1
    while number <= last if forward else number >= last - 1:
        at_ns = number * STEP_NS
        if grows and not overview.may_lack(at_ns, until.limit):
            held = {}
        else:
            now = {
                key: bool(holds(age_ns, until.limit))
                for key, age_ns in state.ages_ns(at_ns, of=until.of).items()
            }
            earlier = now if held is None else held
            if forward and any(is_so and not earlier.get(key, False) for key, is_so in now.items()):
                yield at_ns
                return
            if not forward and any(was_so and not now.get(key, False) for key, was_so in earlier.items()):
                # It began to be so one step later.
                yield at_ns + STEP_NS
                return
            held = now
            yield None
        number += 1 if forward else -1


def _crossings(run: SessionRun, until: AtLag, chunk: Chunk) -> Ints:
    """When the lag of each connection begins to be so, among the records of `chunk`.

    A lag shrinks at an ack, which is an event of the connection. It grows with every put: that is told by the
    connection's next event, and the moment is that of the put.
    """
    found = lags(chunk.records, chunk.snapshot, is_sampled=run.is_sampled)
    end, _ = chunk.snapshot.after(chunk.records)
    holds = _OPERATIONS[until.comparison]
    known = found.conn == found.conn
    wanted = None
    if until.of:
        wanted = {conn for conn, address in run.addresses.items() if until.of in address}
        known = np.isin(found.conn, list(wanted))
    is_first = np.diff(found.conn, prepend=-1) != 0
    snapshot = np.where(is_first, chunk.snapshot.log_end_offset - found.ack_before, np.roll(found.after, 1))
    was = (found.ack_before >= 0) & holds(np.maximum(snapshot, 0), until.limit)
    before = (found.before >= 0) & holds(found.before, until.limit)
    after = (found.after >= 0) & holds(found.after, until.limit) & ~found.closed
    moments = found.ts_ns[known & after & ~before].tolist()
    limit = until.limit if until.comparison == ">" else until.limit - 1
    last_seq = int(chunk.records["seq"][-1]) + 1
    for row in np.flatnonzero(known & before & ~was).tolist():
        passed_ns = run.reader.max_passed_ns(int(found.ack_before[row]) + limit, last_seq)
        ts_ns = int(found.ts_ns[row])
        moments.append(ts_ns if passed_ns is None else min(ts_ns, passed_ns))
    last_after = dict(zip(found.conn.tolist(), found.after.tolist(), strict=True))
    for conn, records in end.connections():
        ack = connection_state(records, is_slave=False).ack_offset
        if ack < 0 or (wanted is not None and conn not in wanted):
            continue
        earlier = last_after.get(conn, max(0, chunk.snapshot.log_end_offset - ack))
        if holds(max(0, end.log_end_offset - ack), until.limit) and not holds(earlier, until.limit):
            passed_ns = run.reader.max_passed_ns(ack + limit, last_seq)
            if passed_ns is not None:
                moments.append(passed_ns)
    return np.array(moments, np.int64) + run.wall_of(0)
