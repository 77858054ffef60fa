"""Where to go in a replay: the seek expressions of the dialogs "Go to" and "Play as fast as possible until".

Times are those of `trioha.times`, as `trioha replay --at` reads them: a clock time is local unless
`Z` or an offset follows it, and spans (`+90s`) count from the present position. Other expressions:

| text | meaning |
|---|---|
| `event`, `event lost`, `event puts` | the next event, or the next event of a kind |
| `lag > 10MB`, `lag <= 0` | a replica's lag in bytes begins to be so (KB, MB, GB: powers of 1024) |
| `lag > 3s` | the age of the oldest byte that a replica lacks does |
| `... of TEXT` | after event or lag: only of replicas whose address, or name, contains TEXT |

`search_lag` and `search_age` search in slices of some milliseconds, when the overview has read everything. A
replica that is not connected lags on: its lag only grows then, and goes on in its next connection. Of lag in
bytes the moment is exact. Lag in seconds grows with the clock alone: it is evaluated once in `STEP_NS`, and
buckets of the overview in which no replica can lack a byte that old are skipped.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import tzinfo
from typing import Any, Final, Literal

import numpy as np
from attrs import frozen

from trioha.errors import TriohaError
from trioha.recording.state import lag_bytes
from trioha.times import UNITS_NS, parse_moment
from trioha_monitor.replay.overview import Overview
from trioha_monitor.replay.replay_timeline import ReplayTimeline, SessionRun
from trioha_monitor.replay.session_states import SessionStates
from trioha_monitor.view import EventKind
from trioha_sessions.lags import lags
from trioha_sessions.segment_cache import Chunk
from trioha_sessions.snapshot import connection_state
from trioha_sessions.state_arrays import Ints

_BYTES = {"": 1, "B": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_LAG = re.compile(r"lag\s*(<=|>=|<|>|=)\s*([0-9]{1,15}(?:\.[0-9]{0,9})?)\s*([a-z]*)", re.IGNORECASE)
_OF = re.compile(r"(?:^|\s)of\s+(\S+)\s*$", re.IGNORECASE)
Comparison = Literal["<", "<=", ">", ">=", "="]
_OPERATIONS: Final[Mapping[Comparison, Callable[[Any, Any], Any]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "=": operator.eq,
}


class SeekError(TriohaError):
    """A seek expression that is not understood; the text says what it may be."""


@frozen
class AtTime:
    """Go to a moment."""

    at_ns: int


@frozen
class AtEvent:
    """Go to the next event."""

    kind: EventKind | None = None
    """None for any."""
    of: str = ""
    """Part of the replica's address or of the event's text; empty for any."""


@frozen
class AtLag:
    """Go to where the lag of a replica begins to compare so with `limit`."""

    comparison: Comparison
    limit: int
    """Bytes, or nanoseconds."""
    is_time: bool
    of: str = ""

    def holds(self, lag: Ints | int) -> Any:
        """Whether a lag is so; of an array, which of its values are."""
        return _OPERATIONS[self.comparison](lag, self.limit)


Goal = AtTime | AtEvent | AtLag


def parse_seek(text: str, *, now_ns: int, start_ns: int, end_ns: int, zone: tzinfo | None = None) -> Goal:
    """Parse a seek expression at the position `now_ns`; `zone` is that of clock times.

    Raises SeekError, or MomentError for a malformed time.
    """
    text = " ".join(text.split())
    if not text:
        raise SeekError("type a local time, +30s, 50%, event lost, or lag > 10MB")
    low = text.lower()
    at_ns = parse_moment(text, start_ns=start_ns, end_ns=end_ns, now_ns=now_ns, zone=zone)
    if at_ns is not None:
        return AtTime(at_ns)
    of = ""
    if filtered := _OF.search(text):
        of, text = filtered[1], text[: filtered.start()].rstrip()
        low = text.lower()
    if low == "event" or low.startswith("event "):
        return AtEvent(_kind(low.removeprefix("event").strip()), of)
    if lag := _LAG.fullmatch(text):
        return _lag(lag, of)
    if low.startswith("lag"):
        raise SeekError(f"{text!r}: compare lag with bytes or a time, as in lag > 10MB or lag > 3s")
    raise SeekError(
        f"{text!r} is not understood: type a time (12:03:04, 12:03:04Z), +30s, 50%, event lost, lag > 10MB"
    )


def _kind(name: str) -> EventKind | None:
    if not name:
        return None
    for kind in EventKind:
        if kind.value == name:
            return kind
    raise SeekError(f"unknown kind of event {name!r}: use {', '.join(kind.value for kind in EventKind)}")


def _lag(lag: re.Match[str], of: str) -> AtLag:
    comparison, amount, unit = lag.groups()
    sign: Comparison = comparison  # type: ignore[assignment]
    if unit.lower() in UNITS_NS and unit != "M":
        return AtLag(sign, round(float(amount) * UNITS_NS[unit.lower()]), True, of)
    short = unit.upper().removesuffix("IB").removesuffix("B") if unit.upper() != "B" else "B"
    if short not in _BYTES:
        raise SeekError(f"unknown unit {unit!r}: use B, KB, MB, GB, or ms, s, m, h")
    return AtLag(sign, round(float(amount) * _BYTES[short]), False, of)


STEP_NS: Final = 100_000_000


def search_lag(
    timeline: ReplayTimeline, overview: Overview, goal: AtLag, *, from_ns: int, forward: bool = True
) -> Iterator[int | None]:
    """Search for the first moment after `from_ns` at which the lag of a replica begins to fulfil `goal`.

    Not `forward`: for the last moment before `from_ns`. Yields None while it searches, and at last the moment
    if there is one: nanoseconds on the axis of the timeline.
    """
    while not overview.is_complete:
        # `SessionReplay.work` continues the overview between the steps of a search.
        yield None
    away = _while_away(timeline, overview, goal)
    away = [at_ns for at_ns in away if (at_ns > from_ns if forward else at_ns < from_ns)]
    best = (min if forward else max)(away, default=None)
    acks_before = {
        outage.next: ack
        for row in overview.replicas()
        for outage in row.outages
        if outage.next is not None and (ack := overview.ack_of(outage.lost)) is not None
    }
    for run in timeline.runs:
        if run.is_slave:
            continue
        of_run = {key[1]: ack for key, ack in acks_before.items() if key[0] == run.number}
        for chunk in run.reader.chunks_around(run.position_at(from_ns), forward=forward):
            if len(chunk.records):
                edge_ns = run.wall_of(int(chunk.records["ts_ns"][0 if forward else -1]))
                if best is not None and (edge_ns > best if forward else edge_ns < best):
                    break
                moments = _crossings(run, goal, chunk, of_run)
                moments = moments[moments > from_ns] if forward else moments[moments < from_ns]
                if len(moments):
                    found = int(moments.min() if forward else moments.max())
                    best = found if best is None else (min if forward else max)(best, found)
                    break
            yield None
    if best is not None:
        yield best


def search_age(
    states: SessionStates, overview: Overview, goal: AtLag, *, from_ns: int, end_ns: int, forward: bool = True
) -> Iterator[int | None]:
    """As `search_lag`, for a limit in nanoseconds; `end_ns` is the end of the axis in its direction."""
    while not overview.is_complete:
        # `SessionReplay.work` continues the overview between the steps of a search.
        yield None
    grows = goal.comparison in {">", ">="}
    held: dict[tuple[int, int], bool] | None = None
    number = from_ns // STEP_NS
    last = end_ns // STEP_NS + 1
    while number <= last if forward else number >= last - 1:
        at_ns = number * STEP_NS
        if grows and not overview.may_lack(at_ns, goal.limit):
            held = {}
        else:
            now = {key: goal.holds(age_ns) for key, age_ns in states.ages_ns(at_ns, of=goal.of).items()}
            earlier = now if held is None else held
            if forward and any(holds and not earlier.get(key, False) for key, holds in now.items()):
                yield at_ns
                return
            if not forward and any(
                held_before and not now.get(key, False) for key, held_before in earlier.items()
            ):
                # It began one step later.
                yield at_ns + STEP_NS
                return
            held = now
            yield None
        number += 1 if forward else -1


def _while_away(timeline: ReplayTimeline, overview: Overview, goal: AtLag) -> list[int]:
    """When the lag of each replica begins to fulfil `goal` while it is not connected: it only grows then."""
    found: list[int] = []
    if goal.comparison not in {">", ">="}:
        return found
    limit = goal.limit if goal.comparison == ">" else goal.limit - 1
    runs = {run.number: run for run in timeline.runs}
    for row in overview.replicas():
        for outage in row.outages:
            run = runs[outage.lost[0]]
            ack = overview.ack_of(outage.lost)
            if ack is None or goal.of not in run.addresses.get(outage.lost[1], ""):
                continue
            last = row.connections[-1].run
            stored_ns = timeline.stored_ns(timeline.node_of(last).runs[-1], ack + limit)
            if stored_ns is not None and outage.began_ns <= stored_ns < outage.ended_ns:
                found.append(stored_ns)
    return found


def _crossings(run: SessionRun, goal: AtLag, chunk: Chunk, acks_before: Mapping[int, int]) -> Ints:
    """When the lag of each connection begins to fulfil `goal`, among the records of `chunk`.

    `acks_before`: last ack of each replica's connection before, by that after it; the lag goes on between.
    A lag shrinks at an ack, which is an event of the connection. It grows with every put: the connection's
    next event shows it, and the moment is that of the put.
    """
    found = lags(chunk.records, chunk.snapshot)
    end, _ = chunk.snapshot.after(chunk.records)
    known = found.conn == found.conn
    wanted = None
    if goal.of:
        wanted = {conn for conn, address in run.addresses.items() if goal.of in address}
        known = np.isin(found.conn, list(wanted))
    is_first = np.diff(found.conn, prepend=-1) != 0
    earlier_lag = np.where(
        is_first, chunk.snapshot.log_end_offset - found.ack_before, np.roll(found.after, 1)
    )
    was = (found.ack_before >= 0) & goal.holds(np.maximum(earlier_lag, 0))
    before = (found.before >= 0) & goal.holds(found.before)
    for row in np.flatnonzero((found.ack_before < 0) & (found.after >= 0)).tolist():
        ack_before = acks_before.get(int(found.conn[row]))
        if ack_before is not None:
            before[row] = goal.holds(int(found.after[row] + found.ack_after[row]) - ack_before)
    after = (found.after >= 0) & goal.holds(found.after) & ~found.closed
    moments = found.ts_ns[known & after & ~before].tolist()
    limit = goal.limit if goal.comparison == ">" else goal.limit - 1
    last_seq = int(chunk.records["seq"][-1]) + 1
    for row in np.flatnonzero(known & before & ~was & (found.ack_before >= 0)).tolist():
        stored_ns = run.reader.max_passed_ns(int(found.ack_before[row]) + limit, last_seq)
        ts_ns = int(found.ts_ns[row])
        moments.append(ts_ns if stored_ns is None else min(ts_ns, stored_ns))
    last_after = dict(zip(found.conn.tolist(), found.after.tolist(), strict=True))
    for conn, records in end.connections():
        ack = connection_state(records, is_slave=False).ack_offset
        if ack < 0 or (wanted is not None and conn not in wanted):
            continue
        before_chunk = lag_bytes(chunk.snapshot.log_end_offset, ack) or 0
        earlier = last_after.get(conn, before_chunk)
        if goal.holds(lag_bytes(end.log_end_offset, ack) or 0) and not goal.holds(earlier):
            stored_ns = run.reader.max_passed_ns(ack + limit, last_seq)
            if stored_ns is not None:
                moments.append(stored_ns)
    return np.array(moments, np.int64) + run.wall_of(0)
