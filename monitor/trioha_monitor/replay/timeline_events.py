"""From the marks of a session to events of the timeline."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from trioha.recording.events import NO_CONNECTION, CloseReason, Direction, HaState, Kind, LinkEvent, PutStatus
from trioha.recording.lags import Lags
from trioha.recording.state_arrays import Array
from trioha_monitor.replay.replay_timeline import NS_PER_MS, SessionRun
from trioha_monitor.series import Severity
from trioha_monitor.texts import format_bytes, format_elapsed
from trioha_monitor.view import EventKind, TimelineEvent

GAP_REASONS = frozenset(
    (
        CloseReason.REQUEST_ABOVE_MAX,
        CloseReason.REQUEST_BELOW_MIN,
        CloseReason.GAP,
        CloseReason.AHEAD,
        CloseReason.DIVERGED,
    )
)
"""Ends after which a slave does not follow again by itself."""
_ASKS: Final = np.zeros(256, np.bool_)
_ASKS[[Kind.REQUESTED, Kind.TRANSFER, Kind.ACK, Kind.HEARTBEAT]] = True
_IN_ORDER = frozenset((CloseReason.SHUTDOWN, CloseReason.PROBED, CloseReason.MASTER_CHANGED))


def timeline_events(
    run: SessionRun,
    node: str,
    marks: Array,
    name_of_replica: Callable[[int], str],
    *,
    was_failing: bool = False,
) -> Iterator[TimelineEvent]:
    """The events that `marks` of a session are, in their order; `node` is its label, `name_of_replica` says
    who is behind a connection, and `was_failing` whether the last wait before them failed."""
    names = ("ts_ns", "kind", "flags", "conn", "offset", "aux", "size")
    putting_ok = not was_failing
    for ts_ns, kind, flags, conn, offset, aux, size in zip(
        *(marks[name].tolist() for name in names), strict=True
    ):
        found = _timeline_event(run, kind, flags=flags, offset=offset, aux=aux, size=size)
        if kind == Kind.WAIT_END:
            # One event for a row of failures, one for the first success behind it.
            is_ok = flags == PutStatus.PUT_OK
            if is_ok is putting_ok:
                continue
            putting_ok = is_ok
        if found is not None:
            event_kind, text, severity = found
            replica = ""
            if conn >= 0:
                replica, address = name_of_replica(conn), run.address_of(conn)
                text += "" if replica == address or run.is_slave else f" ({address})"
            yield TimelineEvent(run.wall_of(ts_ns) // NS_PER_MS, event_kind, node, replica, text, severity)


def asked_in(records: Array) -> set[int]:
    """Connections that `records` show to have asked for the log: a replica's, not a probe's."""
    kind = records["kind"]
    asks = _ASKS[kind] & ((kind != Kind.HEARTBEAT) | (records["flags"] == Direction.SENT))
    # A monitor records where a connection is sent from, though it be from nowhere yet.
    asks &= records["offset"] >= 0
    return set(np.unique(records["conn"][asks]).tolist())


def without_probes(marks: Array, asked: set[int]) -> Array:
    """The `marks` of a master's session but those of connections that are not among `asked`.

    What a master refused stays: it was asked for something.
    """
    conn = marks["conn"]
    is_kept = (conn == NO_CONNECTION) | np.isin(conn, list(asked)) | (marks["kind"] == Kind.REFUSED)
    is_kept |= (marks["kind"] == Kind.CLOSED) & np.isin(marks["flags"], list(GAP_REASONS))
    kept: Array = marks[is_kept]
    return kept


def _timeline_event(
    run: SessionRun, kind: int, *, flags: int, offset: int, aux: int, size: int
) -> tuple[EventKind, str, Severity] | None:
    match kind:
        case Kind.REQUESTED:
            return EventKind.CONNECT, f"asks from {offset}, the log ends at {aux}", Severity.NOTICE
        case Kind.LINK if flags == LinkEvent.CONNECTED:
            return EventKind.CONNECT, "connected to its master", Severity.NOTICE
        case Kind.STATE if run.is_sampled and flags not in {HaState.READY, HaState.SHUTDOWN}:
            return EventKind.CONNECT, f"seen in state {name_of(HaState, flags)}", Severity.NOTICE
        case Kind.CLOSED:
            reason = name_of(CloseReason, flags)
            lacks = f", {format_bytes(aux - offset)} behind" if not run.is_slave and aux > offset >= 0 else ""
            if flags in GAP_REASONS:
                return EventKind.GAP, f"connection ended: {reason}", Severity.BAD
            severity = Severity.NOTICE if flags in _IN_ORDER else Severity.WARNING
            text = "no longer listed" if flags == CloseReason.NONE else f"connection ended: {reason}"
            return EventKind.LOST, text + lacks, severity
        case Kind.REFUSED:
            return EventKind.REFUSED, f"refused {offset}: {name_of(CloseReason, flags)}", Severity.WARNING
        case Kind.WAIT_END if flags == PutStatus.PUT_OK:
            return EventKind.PUTS, "puts succeed again", Severity.GOOD
        case Kind.WAIT_END:
            name = name_of(PutStatus, flags)
            return EventKind.PUTS, f"puts end with {name} after {size / 1000:.0f} ms", Severity.BAD
        case Kind.DROPPED:
            return EventKind.MARK, f"{aux} events were not recorded: the disk was too slow", Severity.WARNING
    return None


def sync_changes(
    run: SessionRun, node: str, found: Lags, name_of_replica: Callable[[int], str]
) -> Iterator[TimelineEvent]:
    """Where connections came to lack haMaxGapNotInSync or more, or less again, at the events of `found`.

    An event may be both: puts since the one before it took the connection over the limit, and its ack brings
    it back.
    """
    limit = run.limits.gap_bytes_max
    is_first = np.diff(found.conn, prepend=-1) != 0
    after = found.after >= limit
    # Before a connection's first event here nothing is known but what stood:.
    snapshot = np.where(is_first, found.snapshot >= limit, np.roll(after, 1))
    before = found.before >= limit
    for place in np.flatnonzero(before & ~snapshot).tolist():
        yield _sync(run, node, found, place, name_of_replica, is_in=False)
    for place in np.flatnonzero(after & ~before & ~snapshot).tolist():
        yield _sync(run, node, found, place, name_of_replica, is_in=False)
    for place in np.flatnonzero(~after & (before | snapshot) & ~found.closed).tolist():
        yield _sync(run, node, found, place, name_of_replica, is_in=True)


def _sync(
    run: SessionRun, node: str, found: Lags, place: int, name_of_replica: Callable[[int], str], *, is_in: bool
) -> TimelineEvent:
    conn = int(found.conn[place])
    return TimelineEvent(
        run.wall_of(int(found.ts_ns[place])) // NS_PER_MS,
        EventKind.SYNC,
        node,
        name_of_replica(conn),
        "in sync again" if is_in else f"not in sync: {format_bytes(int(found.worst[place]))} behind",
        Severity.GOOD if is_in else Severity.WARNING,
    )


def session_marks(run: SessionRun, node: str, *, starts: int, end_ns: int) -> list[TimelineEvent]:
    """Begin and end of a session, and what is missing in it; `starts` counts the node's sessions so far, and
    `end_ns` is where the last of all nodes' sessions ends."""
    reader = run.reader
    what = "its recording begins" if starts == 1 else f"started again: recording {starts} begins"
    marks = [TimelineEvent(run.start_ns // NS_PER_MS, EventKind.NODE, node, "", f"{what} ({run.name})")]
    if run.clock_of:
        apart_ms = abs(run.clock_ahead_ns) / NS_PER_MS
        apart = f"{apart_ms:.1f} ms" if apart_ms < 100 else format_elapsed(apart_ms / 1000)
        way = "ahead of" if run.clock_ahead_ns > 0 else "behind"
        text = f"its clock was {apart} {way} that of {run.clock_of}, by which it is shown"
        marks.append(TimelineEvent(run.start_ns // NS_PER_MS, EventKind.CLOCK, node, "", text))
    if reader.ended_in_order:
        marks.append(
            TimelineEvent(run.end_ns // NS_PER_MS, EventKind.NODE, node, "", "its recording ends in order")
        )
    elif end_ns - run.end_ns > run.quiet_ns:
        text = "its recording breaks off: killed, or cut off from its disk"
        marks.append(TimelineEvent(run.end_ns // NS_PER_MS, EventKind.NODE, node, "", text, Severity.BAD))
    marks += [
        TimelineEvent(
            run.start_ns // NS_PER_MS,
            EventKind.MARK,
            node,
            "",
            f"recording damaged: {one.path.rpartition('/')[2]} at {one.position}: {one.reason}"
            + (f" ({one.records} records)" if one.records else ""),
            Severity.WARNING,
        )
        for one in reader.damage
    ]
    return marks


def name_of(names: type[CloseReason | HaState | PutStatus], code: int) -> str:
    """Name of a code; its number if it has none."""
    try:
        return names(code).name
    except ValueError:
        return str(code)
