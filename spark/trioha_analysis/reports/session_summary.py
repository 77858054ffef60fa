"""What happened in recorded sessions, in words: outages, how puts ended, lag, latency, invariants."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import tzinfo
from itertools import pairwise
from typing import Final

from attrs import frozen

from trioha.palette import ACCENT, GOOD, WARNING, put_status
from trioha.recording.events import CloseReason, GroupRole, PutStatus
from trioha.severity import Severity
from trioha.times import clock_text
from trioha.unit_texts import counted, format_bytes
from trioha_analysis.replicas import ReplicaOutage, ReplicaReplay
from trioha_analysis.session_replay import SessionReplay
from trioha_sessions.invariants.group import groups_of
from trioha_sessions.role_lives import RoleLife

OUTAGES_MAX: Final = 10
"""Outages of a session that are listed, the longest ones; the others are counted."""
RESTART_NS_MAX: Final = 24 * 3600 * 10**9
"""Between sessions of one node that are further apart nothing is said of the time between them."""

_CAUSES: Final = {
    CloseReason.EOF: "the replica closed the connection, or its process ended",
    CloseReason.IO_ERROR: "the connection broke: its process ended, or the network",
    CloseReason.HOUSEKEEPING: "nothing was received from it for haHousekeepingInterval",
    CloseReason.SHUTDOWN: "the recording node stopped",
    CloseReason.MASTER_CHANGED: "the master changed",
    CloseReason.STORE_ERROR: "its disk refused the bytes",
    CloseReason.DIVERGED: "its log differs from the master's",
    CloseReason.NOT_ALLOWED: "it was not admitted",
    CloseReason.REPLACED: "a newer connection took its place",
    CloseReason.LOG_RESTARTED: "the log of the master was archived or starts elsewhere",
}
"""Of an outage, in words; the other reasons by their name alone."""


BrokerIds = Mapping[tuple[str, int], int]
"""Broker ids of slaves, by the name of their master's session and the connection in it."""


@frozen
class Point:
    """A sentence of what happened."""

    severity: Severity
    text: str


def replica_names(replay: SessionReplay, broker_ids: BrokerIds) -> dict[int, str]:
    """Name of each replica of a session by its last connection: with its broker id if that is known."""
    names = {}
    for replica in replay.replicas:
        ids = (broker_ids.get((replay.name, conn)) for conn in reversed(replica.conns))
        known = next((one for one in ids if one is not None), None)
        names[replica.conns[-1]] = replica.name if known is None else f"broker {known} ({replica.name})"
    return names


def session_points(replay: SessionReplay, names: Mapping[int, str], zone: tzinfo | None) -> Iterator[Point]:
    """What happened in a master's session."""
    node = replay.node
    ends = replay.log_end_series.values
    if node.puts:
        stored = f"{counted(node.puts, 'put')}, {format_bytes(node.put_bytes)}"
    else:
        # A monitor records offsets, not puts.
        stored = f"the log grew by {format_bytes(int(ends.max() - ends[0]) if len(ends) else 0)}"
    yield Point(Severity.NOTICE, f"{_span(replay, zone)}: {stored}.")
    yield from _outages(replay, names, zone)
    yield from _statuses(replay, zone)
    yield from _worst_lag(replay, names, zone)
    ok = next((wait.waited_us for wait in node.waits if wait.status == PutStatus.PUT_OK.name), None)
    if ok is not None:
        yield Point(
            Severity.NOTICE,
            f"Put to ack (PUT_OK): p50 {_ms(ok.p50)}, p99 {_ms(ok.p99)}, at most {_ms(ok.largest)}.",
        )


def slave_points(replay: SessionReplay, zone: tzinfo | None) -> Iterator[Point]:
    """What happened in a slave's session."""
    connections = counted(len(replay.connections), "connection")
    yield Point(Severity.NOTICE, f"{_span(replay, zone)}: {connections} to its master.")
    wall_of = replay.session.wall_of
    lost = [
        (one.connection.figures.first_ts_ns - begin_ns, begin_ns, one.previous.figures.close_reason)
        for one in replay.reconnects
        if one.previous is not None
        for begin_ns in [one.previous.figures.closed_ts_ns or one.previous.figures.last_ts_ns]
    ]
    for away_ns, begin_ns, reason in sorted(sorted(lost, reverse=True)[:OUTAGES_MAX], key=_began):
        yield Point(
            Severity.WARNING,
            f"Without its master for {_s(max(0, away_ns))} from {_clock(wall_of(begin_ns), zone)}"
            f"{f' ({reason})' if reason else ''}.",
        )
    if len(lost) > OUTAGES_MAX:
        yield Point(Severity.WARNING, f"{len(lost) - OUTAGES_MAX:,} shorter times without its master.")


def restarts(replays: Iterable[SessionReplay], zone: tzinfo | None) -> Iterator[Point]:
    """The times between sessions of one node in which it recorded nothing."""
    nodes: dict[tuple[str, int], list[SessionReplay]] = {}
    for replay in replays:
        if replay.node.first_ts_ns is not None and replay.life is None:
            identity = replay.session.identity
            nodes.setdefault((identity.broker_name, identity.broker_id), []).append(replay)
    for (name, broker_id), sessions in nodes.items():
        bounds = sorted(_bounds(one) for one in sessions)
        for (_, end_ns), (begin_ns, _) in pairwise(bounds):
            if 0 < begin_ns - end_ns <= RESTART_NS_MAX:
                yield Point(
                    Severity.WARNING,
                    f"{name} {broker_id} recorded nothing for {_s(begin_ns - end_ns)}, from "
                    f"{_clock(end_ns, zone)} to {_clock(begin_ns, zone)}: it was stopped or killed, "
                    "and started again.",
                )


def lives_of(replays: Iterable[SessionReplay]) -> list[RoleLife]:
    """Roles of the sessions that have one."""
    return [one.life for one in replays if one.life is not None]


def failovers(replays: Iterable[SessionReplay], zone: tzinfo | None) -> Iterator[Point]:
    """The times between two masters of a group under controllers."""
    for lives in groups_of(lives_of(replays)):
        masters = sorted((life for life in lives if life.role is GroupRole.MASTER), key=_life_begin)
        for before, after in pairwise(masters):
            length_ns = after.began.at_ns - before.ended_ns
            if length_ns > 0:
                yield Point(
                    Severity.CRITICAL,
                    f"{before.broker_name} had no master for {_s(length_ns)}, from "
                    f"{_clock(before.ended_ns, zone)} to {_clock(after.began.at_ns, zone)}: after broker "
                    f"{before.broker_id} in epoch {before.epoch} came broker {after.broker_id} in epoch "
                    f"{after.epoch}.",
                )


def _life_begin(life: RoleLife) -> int:
    return life.began.at_ns


def _outages(replay: SessionReplay, names: Mapping[int, str], zone: tzinfo | None) -> Iterator[Point]:
    end_ns = replay.node.last_ts_ns or 0
    every = [(outage, replica) for replica in replay.replicas for outage in replica.outages]
    # Who leaves with all of the log and is not expected back was stopped, as at the end of most recordings.
    found = [one for one in every if one[0].next_conn is not None or one[0].lag_bytes_max != 0]
    longest = sorted(found, key=_length_ns, reverse=True)[:OUTAGES_MAX]
    for outage, replica in sorted(longest, key=_outage_begin):
        yield Point(Severity.CRITICAL, _outage_text(replay, outage, names[replica.conns[-1]], end_ns, zone))
    if len(found) > OUTAGES_MAX:
        yield Point(Severity.CRITICAL, f"{len(found) - OUTAGES_MAX:,} shorter outages of replicas.")
    if not found and replay.replicas:
        yield Point(Severity.GOOD, f"No outage of {counted(len(replay.replicas), 'replica')}.")
    left = sorted((one for one in every if one not in found), key=_outage_begin)[-OUTAGES_MAX:]
    for outage, replica in left:
        at, name = _clock(replay.session.wall_of(outage.began_ns), zone), names[replica.conns[-1]]
        yield Point(Severity.NOTICE, f"Replica {name} left at {at} with all of the log{_cause(outage)}.")


def _outage_text(
    replay: SessionReplay, outage: ReplicaOutage, name: str, end_ns: int, zone: tzinfo | None
) -> str:
    wall_of = replay.session.wall_of
    begin, end = (_clock(wall_of(at_ns), zone) for at_ns in (outage.began_ns, outage.ended_ns))
    length = _s(outage.ended_ns - outage.began_ns)
    if outage.next_conn is not None:
        text = f"Replica {name} was away for {length}, from {begin} to {end}"
    elif outage.ended_ns >= end_ns:
        text = f"Replica {name} was away for the last {length}, from {begin}"
    else:
        text = f"Replica {name} left at {begin} and is not known to be back"
    text += f"{_cause(outage)}."
    if outage.lag_bytes_max is None or outage.age_ns_max is None:
        return text
    lacked = format_bytes(outage.lag_bytes_max)
    return f"{text} It lacked up to {lacked}, the oldest for {_s(outage.age_ns_max)}."


def _cause(outage: ReplicaOutage) -> str:
    if outage.conn < 0:
        return ": it was away when this recording of its master began"
    if outage.reason is None:
        return ""
    words = next((words for reason, words in _CAUSES.items() if reason.name == outage.reason), None)
    return f": {words} ({outage.reason})" if words else f": {outage.reason}"


def _statuses(replay: SessionReplay, zone: tzinfo | None) -> Iterator[Point]:
    """How puts that waited ended: what was not PUT_OK with when it happened."""
    node, wall_of = replay.node, replay.session.wall_of
    if not node.waits:
        if node.puts:
            yield Point(Severity.NOTICE, "No put waited for a replica or the disk.")
        return
    total = sum(wait.count for wait in node.waits)
    spans = {
        PutStatus(code).name: span for code, span in replay.waits.spans_ns.items() if code in set(PutStatus)
    }
    for wait in sorted(node.waits, key=lambda wait: wait.status != PutStatus.PUT_OK.name):
        hue, share = (
            put_status(wait.status),
            f"{wait.count:,} of {total:,} puts ({100 * wait.count / total:.3g} %)",
        )
        if hue == GOOD:
            is_all = wait.count == total
            text = f"All {total:,} puts were PUT_OK." if is_all else f"{share} were {wait.status}."
            yield Point(Severity.GOOD if is_all else Severity.NOTICE, text)
            continue
        text = f"{share} were {wait.status}"
        if wait.status in spans:
            begin, end = (_clock(wall_of(at_ns), zone) for at_ns in spans[wait.status])
            text += f", at {begin}" if begin == end else f", from {begin} to {end}"
        yield Point(Severity.WARNING if hue in {WARNING, ACCENT} else Severity.CRITICAL, f"{text}.")
    if node.waits_open:
        yield Point(
            Severity.WARNING, f"{counted(node.waits_open, 'put')} had no answer when the recording ended."
        )


def _worst_lag(replay: SessionReplay, names: Mapping[int, str], zone: tzinfo | None) -> Iterator[Point]:
    worst = max((one for one in replay.replicas if len(one.age.values)), key=_worst_age_ns, default=None)
    if worst is None:
        return
    place = int(worst.age.values.argmax())
    age_ns, step = int(worst.age.values[place]), int(worst.age.steps[place])
    at_ns = replay.session.wall_of(replay.grid.origin_ns + step * replay.grid.step_ns)
    lag_bytes = int(worst.lag.values.max(initial=0))
    yield Point(
        Severity.NOTICE if age_ns <= _slave_timeout_ns(replay) else Severity.WARNING,
        f"Worst lag: {_s(age_ns)}, of {names[worst.conns[-1]]} at {_clock(at_ns, zone)}; "
        f"at most {format_bytes(lag_bytes)} without an ack.",
    )


def _slave_timeout_ns(replay: SessionReplay) -> int:
    """How long a put waits for replicas: a lag beyond it is one that producers see."""
    timeout_ms = replay.session.identity.settings.get("slaveTimeout")
    return (timeout_ms if type(timeout_ms) is int else 3000) * 10**6


def _worst_age_ns(replica: ReplicaReplay) -> int:
    return int(replica.age.values.max(initial=-1))


def _length_ns(found: tuple[ReplicaOutage, ReplicaReplay]) -> int:
    return found[0].ended_ns - found[0].began_ns


def _outage_begin(found: tuple[ReplicaOutage, ReplicaReplay]) -> int:
    return found[0].began_ns


def _began(lost: tuple[int, int, str | None]) -> int:
    return lost[1]


def _bounds(replay: SessionReplay) -> tuple[int, int]:
    first_ns, last_ns = replay.node.first_ts_ns, replay.node.last_ts_ns
    assert first_ns is not None, "it has records"
    assert last_ns is not None, "it has records"
    return replay.session.wall_of(first_ns), replay.session.wall_of(last_ns)


def _span(replay: SessionReplay, zone: tzinfo | None) -> str:
    if replay.node.first_ts_ns is None:
        return "No event was recorded"
    begin_ns, end_ns = _bounds(replay)
    if begin_ns == end_ns:
        return f"Recorded at {clock_text(begin_ns, zone)}"
    return f"Recorded for {_s(end_ns - begin_ns)}, from {clock_text(begin_ns, zone)}"


def _clock(at_ns: int, zone: tzinfo | None) -> str:
    """Without the date, which the summary's first line has and charts show."""
    return clock_text(at_ns, zone)[11:] or clock_text(at_ns, zone)


def _s(duration_ns: int) -> str:
    """A duration in its unit, with three digits."""
    duration_s = duration_ns / 1e9
    if duration_s < 0.1:
        return f"{duration_s * 1000:.3g} ms"
    if duration_s < 100:
        return f"{duration_s:.3g} s"
    if duration_s < 7200:
        return f"{duration_s / 60:.1f} min"
    return f"{duration_s / 3600:.1f} h"


def _ms(waited_us: int) -> str:
    return f"{waited_us / 1000:,.3g} ms" if waited_us < 10**6 else f"{waited_us / 1000:,.0f} ms"
