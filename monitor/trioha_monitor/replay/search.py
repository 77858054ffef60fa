"""Where to go: the small language of the dialogs "jump to" and "as fast as possible until".

Moments are those of `trioha.recording.times`, as `trioha replay --at` reads them: a clock time is local
unless a `Z` or an offset is written after it, and spans (`+90s`) count from the present position. Beyond
them:

| text | meaning |
|---|---|
| `event`, `event lost`, `event puts` | the next event, or the next one of a kind |
| `lag > 10MB`, `lag <= 0` | the lag of any replica in bytes crosses that (KB, MB, GB: powers of 1024) |
| `lag > 3s` | the age of the oldest byte that a replica lacks does |
| `... of TEXT` | behind event and lag: only of replicas whose address, or name, contains TEXT |

Looks for where a lag crosses a limit, in slices of some milliseconds.

Of lag in bytes the moment is exact. Lag in seconds grows with the clock alone: it is looked at each
`STEP_NS`, and the moment is the first of these at which it is so. Buckets of the overview in which no
replica can lack anything that old are passed over.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import tzinfo
from typing import Final, Literal

import numpy as np
from attrs import frozen

from trioha.errors import TriohaError
from trioha.recording.lags import lags
from trioha.recording.segment_cache import Chunk
from trioha.recording.snapshot import connection_state
from trioha.recording.state_arrays import Ints
from trioha.recording.times import UNITS_NS, parse_moment
from trioha_monitor.replay.overview import Overview
from trioha_monitor.replay.replay_timeline import ReplayTimeline, SessionRun
from trioha_monitor.replay.state import State
from trioha_monitor.view import EventKind

_BYTES = {"": 1, "B": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_LAG = re.compile(r"lag\s*(<=|>=|<|>|=)\s*([0-9]{1,15}(?:\.[0-9]{0,9})?)\s*([a-z]*)", re.IGNORECASE)
_OF = re.compile(r"(?:^|\s)of\s+(\S+)\s*$", re.IGNORECASE)
Comparison = Literal["<", "<=", ">", ">=", "="]


class SeekError(TriohaError):
    """A text that names no place; says what it may be."""


@frozen
class AtTime:
    """A moment."""

    at_ns: int


@frozen
class AtEvent:
    """The next event."""

    kind: EventKind | None = None
    """None for any."""
    of: str = ""
    """Part of the replica's address; empty for any."""


@frozen
class AtLag:
    """Where a replica's lag begins to be so."""

    comparison: Comparison
    limit: int
    """Bytes, or nanoseconds."""
    is_time: bool
    of: str = ""

    def holds(self, lag: int) -> bool:
        """Whether a lag is so."""
        match self.comparison:
            case "<":
                return lag < self.limit
            case "<=":
                return lag <= self.limit
            case ">":
                return lag > self.limit
            case ">=":
                return lag >= self.limit
            case _:
                return lag == self.limit


Until = AtTime | AtEvent | AtLag


def parse_seek(text: str, *, now_ns: int, start_ns: int, end_ns: int, zone: tzinfo | None = None) -> Until:
    """What `text` means for a replay that stands at `now_ns`; `zone` is that of clock times.

    Raises UntilError, or MomentError for a time that is none.
    """
    text = " ".join(text.split())
    if not text:
        raise SeekError("say where to: a local time, +30s, 50%, event lost, lag > 10MB")
    low = text.lower()
    at_ns = parse_moment(text, start_ns=start_ns, end_ns=end_ns, now_ns=now_ns, zone=zone)
    if at_ns is not None:
        return AtTime(at_ns)
    of = ""
    if said := _OF.search(text):
        of, text = said[1], text[: said.start()].rstrip()
        low = text.lower()
    if low == "event" or low.startswith("event "):
        return AtEvent(_kind(low.removeprefix("event").strip()), of)
    if lag := _LAG.fullmatch(text):
        return _lag(lag, of)
    if low.startswith("lag"):
        raise SeekError(f"{text!r}: compare lag with bytes or a time, as in lag > 10MB or lag > 3s")
    raise SeekError(
        f"{text!r} is no place: say a time (12:03:04, 12:03:04Z), +30s, 50%, event lost, lag > 10MB"
    )


def _kind(name: str) -> EventKind | None:
    if not name:
        return None
    for kind in EventKind:
        if kind.value == name:
            return kind
    raise SeekError(f"no events are of kind {name!r}: use {', '.join(kind.value for kind in EventKind)}")


def _lag(lag: re.Match[str], of: str) -> AtLag:
    comparison, amount, unit = lag.groups()
    sign: Comparison = comparison  # type: ignore[assignment]
    if unit.lower() in UNITS_NS and unit != "M":
        return AtLag(sign, round(float(amount) * UNITS_NS[unit.lower()]), True, of)
    short = unit.upper().removesuffix("IB").removesuffix("B") if unit.upper() != "B" else "B"
    if short not in _BYTES:
        raise SeekError(f"{unit!r} is no unit: use B, KB, MB, GB, or ms, s, m, h")
    return AtLag(sign, round(float(amount) * _BYTES[short]), False, of)


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
