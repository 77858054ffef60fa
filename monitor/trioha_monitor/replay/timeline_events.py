"""Events of a replay's timeline, made of the marks of sessions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from trioha.recording.events import (
    NO_CONNECTION,
    CloseReason,
    Kind,
    LinkEvent,
    PutStatus,
    code_name,
)
from trioha.severity import Severity
from trioha.unit_texts import format_elapsed
from trioha_monitor import event_texts
from trioha_monitor.replay.replay_timeline import NS_PER_MS, RecordedNode, SessionRun, continues
from trioha_monitor.view import EventKind, TimelineEvent
from trioha_sessions.lags import Lags
from trioha_sessions.state_arrays import Array, shows_request

GAP_REASONS: Final = frozenset(
    (
        CloseReason.REQUEST_ABOVE_MAX,
        CloseReason.REQUEST_BELOW_MIN,
        CloseReason.GAP,
        CloseReason.AHEAD,
        CloseReason.DIVERGED,
        CloseReason.CUT_REFUSED,
    )
)
"""Reasons for which a connection ends and the slave cannot replicate again by itself."""
_IN_ORDER: Final = frozenset((CloseReason.SHUTDOWN, CloseReason.PROBED, CloseReason.MASTER_CHANGED))


def timeline_events(
    run: SessionRun,
    node: str,
    marks: Array,
    name_of_replica: Callable[[int], str],
    *,
    was_failing: bool = False,
) -> Iterator[TimelineEvent]:
    """The events of the `marks` of a session, in their order.

    `node` is the session's label, `name_of_replica` gives the label of a connection's replica, and
    `was_failing` says whether the last wait before the marks failed.
    """
    names = ("ts_ns", "kind", "flags", "conn", "offset", "aux", "size")
    is_failing = was_failing
    for ts_ns, kind, flags, conn, offset, aux, size in zip(
        *(marks[name].tolist() for name in names), strict=True
    ):
        if kind == Kind.WAIT_END:
            # One event for consecutive failures, and one for the first success after them.
            failed = flags != PutStatus.PUT_OK
            if failed is is_failing:
                continue
            is_failing = failed
        found = _timeline_event(run, kind, flags=flags, offset=offset, aux=aux, size=size)
        if found is not None:
            event_kind, text, severity = found
            replica = ""
            if conn >= 0:
                replica, address = name_of_replica(conn), run.address_of(conn)
                text += "" if replica == address or run.is_slave else f" ({address})"
            yield TimelineEvent(run.wall_of(ts_ns) // NS_PER_MS, event_kind, node, replica, text, severity)


def requested_conns(records: Array) -> set[int]:
    """Connections on which `records` show that the log was requested: a replica's, not a probe's."""
    return set(np.unique(records["conn"][shows_request(records)]).tolist())


def without_probes(marks: Array, requested: set[int]) -> Array:
    """The `marks` of a master's session without those of connections that are not in `requested`.

    Marks of refused connections stay: they had requested something.
    """
    conn = marks["conn"]
    is_kept = (conn == NO_CONNECTION) | np.isin(conn, list(requested)) | (marks["kind"] == Kind.REFUSED)
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
        case Kind.CLOSED:
            reasons = {code_name(CloseReason, flags)}
            if flags in GAP_REASONS or run.is_slave:
                text = event_texts.connection_ended(reasons, is_slave=run.is_slave)
            else:
                ack = offset if offset >= 0 else None
                lacks = None if ack is None else max(0, aux - ack)
                text = event_texts.connection_ended(reasons, ack_offset=ack, lacks_bytes=lacks)
            if flags in GAP_REASONS:
                return EventKind.GAP, text, Severity.CRITICAL
            return EventKind.LOST, text, Severity.NOTICE if flags in _IN_ORDER else Severity.WARNING
        case Kind.REFUSED:
            text = event_texts.refused(code_name(CloseReason, flags), offset=offset)
            return EventKind.REFUSED, text, Severity.WARNING
        case Kind.WAIT_END if flags == PutStatus.PUT_OK:
            return EventKind.PUTS, "puts succeed again", Severity.GOOD
        case Kind.WAIT_END:
            text = event_texts.puts_fail(code_name(PutStatus, flags), after_us=size)
            return EventKind.PUTS, text, Severity.CRITICAL
        case Kind.DROPPED:
            return EventKind.MARK, f"{aux} events were not recorded: the disk was too slow", Severity.WARNING
    return None


def sync_changes(
    run: SessionRun, node: str, found: Lags, name_of_replica: Callable[[int], str]
) -> Iterator[TimelineEvent]:
    """Where the lag of connections reached haMaxGapNotInSync, or fell below it, at the events of `found`.

    One event may do both: puts since the event before take the connection over the limit, and its ack brings
    it back.
    """
    limit = run.limits.gap_bytes_max
    is_first = np.diff(found.conn, prepend=-1) != 0
    after = found.after >= limit
    # Before a connection's first event in this range, its lag is that of the snapshot.
    earlier = np.where(is_first, found.snapshot >= limit, np.roll(after, 1))
    before = found.before >= limit
    for place in np.flatnonzero((before | after) & ~earlier).tolist():
        yield _sync(run, node, found, place, name_of_replica, is_in=False)
    for place in np.flatnonzero(~after & (before | earlier) & ~found.closed).tolist():
        yield _sync(run, node, found, place, name_of_replica, is_in=True)


def _sync(
    run: SessionRun, node: str, found: Lags, place: int, name_of_replica: Callable[[int], str], *, is_in: bool
) -> TimelineEvent:
    return TimelineEvent(
        run.wall_of(int(found.ts_ns[place])) // NS_PER_MS,
        EventKind.SYNC,
        node,
        name_of_replica(int(found.conn[place])),
        event_texts.sync_changed(in_sync=is_in, lacks_bytes=int(found.worst[place])),
        Severity.GOOD if is_in else Severity.WARNING,
    )


def session_marks(node: RecordedNode, run: SessionRun, *, starts: int, end_ns: int) -> list[TimelineEvent]:
    """Start and end of a session of `node`, and what is missing in it.

    `starts` counts the node's starts up to this session; `end_ns` is the end of the last session of any node.
    Where one role follows another, the node neither starts nor ends.
    """
    before = node.before(run)
    is_first = before is None or not continues(before, run)
    is_last = not node.is_continued(run)
    reader = run.reader
    start_ms, run_end_ms = run.start_ns // NS_PER_MS, run.end_ns // NS_PER_MS

    def mark(
        kind: EventKind, text: str, severity: Severity = Severity.NOTICE, *, time_ms: int = start_ms
    ) -> TimelineEvent:
        return TimelineEvent(time_ms, kind, node.key, "", text, severity)

    what = "its recording begins" if starts == 1 else f"started again: recording {starts} begins"
    marks = [mark(EventKind.NODE, f"{what} ({run.name})")] if is_first else []
    if run.clock_of and is_first:
        apart_ms = abs(run.clock_ahead_ns) / NS_PER_MS
        apart = f"{apart_ms:.1f} ms" if apart_ms < 100 else format_elapsed(apart_ms / 1000)
        way = "ahead of" if run.clock_ahead_ns > 0 else "behind"
        marks.append(
            mark(EventKind.CLOCK, f"its clock was {apart} {way} that of {run.clock_of}, by which it is shown")
        )
    if is_last and reader.ended_in_order:
        marks.append(mark(EventKind.NODE, "its recording ends in order", time_ms=run_end_ms))
    elif is_last and end_ns - run.end_ns > run.quiet_ns:
        text = "its recording breaks off: killed, or cut off from its disk"
        marks.append(mark(EventKind.NODE, text, Severity.CRITICAL, time_ms=run_end_ms))
    marks += [
        mark(
            EventKind.MARK,
            f"recording damaged: {one.path.rpartition('/')[2]} at {one.position}: {one.reason}"
            + (f" ({one.records} records)" if one.records else ""),
            Severity.WARNING,
        )
        for one in reader.damage
    ]
    return marks
