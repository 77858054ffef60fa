"""The rows of a replay's tables: of a session, of a group of brokers, of a link.

`trioha_analysis.arrow_tables` has their types.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from trioha.distribution import Distribution
from trioha.recording.events import NO_CONNECTION, CloseReason, HaState, Kind, LinkEvent, PutStatus, code_name
from trioha.recording.state import known
from trioha_analysis.causes import CAUSES
from trioha_analysis.session_replay import ConnectionReplay, Reconnect, SessionReplay
from trioha_sessions.clocks import Link
from trioha_sessions.histogram import Histogram
from trioha_sessions.invariants.group import GroupResult
from trioha_sessions.invariants.rules import severity_text
from trioha_sessions.role_lives import RoleEvent, RoleLife, describe

Row = dict[str, Any]

GAP_SENTENCES: Final = {
    CloseReason.GAP: "the master's log has no record at {offset}; the own log ends at {own}",
    CloseReason.AHEAD: "the master's log ends at {offset}, below the end of the own log at {own}",
    CloseReason.DIVERGED: "the own log and the master's differ at {offset}; the own log ends at {own}",
    CloseReason.CUT_REFUSED: "the master's log differs from {offset} on, which the own one has confirmed",
    CloseReason.OFFSET_MISMATCH: "the master pushed offset {offset}; the own log ends at {own}",
    CloseReason.BAD_RECORD: "the record at {offset} is damaged; the own log ends at {own}",
    CloseReason.BAD_SIZE: "invalid size or offset at {offset}; the own log ends at {own}",
    CloseReason.STORE_ERROR: "the disk refused the bytes at {offset}",
    CloseReason.REQUEST_ABOVE_MAX: "the slave requested {offset}; the log ends at {own}",
    CloseReason.REQUEST_BELOW_MIN: "the slave requested {offset}, which is deleted; the log ends at {own}",
    CloseReason.ACK_BEYOND_SENT: "the slave's ack {offset} is beyond the sent bytes; the log ends at {own}",
    CloseReason.ACK_WENT_BACK: "the slave's ack {offset} is below its previous one",
}
"""By reason; `offset` of the record, `own` end of the log of the node that recorded it."""


def session_rows(replay: SessionReplay) -> dict[str, list[Row]]:
    """Rows of a session by table. `ackMostly` of `causes` is null: it needs the slave's session, too."""
    return {
        "sessions": [_session_row(replay)],
        "connections": [_connection_row(replay, one) for one in replay.connections],
        "reconnects": [_reconnect_row(replay, one) for one in replay.reconnects],
        "outages": list(_outage_rows(replay)),
        "probes": [
            {**session_columns(replay), "host": one.host, "reason": one.reason, "count": one.count}
            for one in replay.probes
        ],
        "gaps": _gap_rows(replay),
        "waits": [
            {
                **session_columns(replay),
                "status": wait.status,
                "count": wait.count,
                "waitedMs": _percentiles_row(wait.waited_us, per_ms=1000),
            }
            for wait in replay.node.waits
        ],
        "causes": _cause_rows(replay),
        "roles": _role_rows(replay),
        "invariants": _invariant_rows(replay),
        "violations": _violation_rows(replay),
        "events": _event_rows(replay),
    }


def group_rows(group: GroupResult) -> dict[str, list[Row]]:
    """Rows of a group of brokers under controllers by table."""
    return {"invariants": _group_invariant_rows(group), "violations": _group_violation_rows(group)}


def session_columns(replay: SessionReplay) -> Row:
    """The columns that name a row's session."""
    identity = replay.session.identity
    return {
        "session": replay.name,
        "brokerName": identity.broker_name,
        "brokerId": identity.broker_id,
    }


def _session_row(replay: SessionReplay) -> Row:
    identity, node, life = replay.session.identity, replay.node, replay.life
    first_ns = replay.grid.origin_ns if node.first_ts_ns is None else node.first_ts_ns
    last_ns = first_ns if node.last_ts_ns is None else node.last_ts_ns
    latency_ns = sum((one.figures.ack_latency_histogram for one in replay.connections), Histogram())
    return {
        **session_columns(replay),
        "clusterName": identity.cluster_name,
        "role": identity.role,
        "brokerControllerId": None if life is None else known(life.broker_id),
        "epoch": None if life is None else known(life.epoch),
        "beganAtMs": _wall_ms(replay, first_ns),
        "durationMs": (last_ns - first_ns) / 1e6,
        "events": node.events,
        "dropped": node.dropped,
        "lost": sum(damage.records for damage in replay.damage),
        "damage": [f"{damage.path} at byte {damage.position}: {damage.reason}" for damage in replay.damage],
        "puts": node.puts,
        "putBytes": node.put_bytes,
        "maxOffset": node.max_offset,
        "flushedOffset": node.flushed_offset,
        "dispatchedOffset": node.dispatched_offset,
        "connections": len(replay.connections),
        "reconnects": len(replay.reconnects),
        "probes": sum(one.count for one in replay.probes),
        "ackLatencyMs": _percentiles_row(latency_ns.distribution(), per_ms=1_000_000),
        "waitsOpen": node.waits_open,
    }


def _connection_row(replay: SessionReplay, connection: ConnectionReplay) -> Row:
    figures = connection.figures
    closed_ns = figures.closed_ts_ns
    return {
        **session_columns(replay),
        "role": replay.session.identity.role,
        "conn": figures.conn,
        "address": connection.address,
        "openedAtMs": _wall_ms(replay, figures.first_ts_ns),
        "closedAtMs": None if closed_ns is None else _wall_ms(replay, closed_ns),
        "state": figures.state,
        "closeReason": figures.close_reason,
        "bytes": figures.body_bytes,
        "frames": figures.frames,
        "acks": figures.acks,
        "lagBytes": _percentiles_row(figures.lag_bytes),
        "ackLatencyMs": _percentiles_row(figures.ack_latency_ns, per_ms=1_000_000),
        "unacknowledgedFrames": figures.unacknowledged_frames,
        "requestOffset": figures.request_offset,
        "sentOffset": figures.sent_offset,
        "ackOffset": figures.ack_offset,
        "receivedOffset": figures.received_offset,
        "reportedOffset": figures.reported_offset,
        "maxOffset": figures.max_offset,
        "heartbeatsSent": figures.heartbeats_sent,
        "heartbeatsReceived": figures.heartbeats_received,
        "refused": figures.refused,
    }


def _outage_rows(replay: SessionReplay) -> Iterator[Row]:
    for replica in replay.replicas:
        for one in replica.outages:
            yield {
                **session_columns(replay),
                "replica": replica.name,
                "conn": None if one.conn < 0 else one.conn,
                "nextConn": one.next_conn,
                "closeReason": one.reason,
                "beganAtMs": replay.session.wall_of(one.began_ns) / 1e6,
                "awayMs": (one.ended_ns - one.began_ns) / 1e6,
                "ackOffset": one.ack_offset,
                "lagBytes": one.lag_bytes_max,
                "lagSeconds": None if one.age_ns_max is None else one.age_ns_max / 1e9,
            }


def _reconnect_row(replay: SessionReplay, one: Reconnect) -> Row:
    """Columns of the previous connection are null where that is not known."""
    after, before = one.connection.figures, None if one.previous is None else one.previous.figures
    row: Row = {
        **session_columns(replay),
        "role": replay.session.identity.role,
        "conn": after.conn,
        "address": one.connection.address,
        "requestOffset": after.request_offset,
        **dict.fromkeys(
            ("previousConn", "closeReason", "closedAtMs", "awayMs", "previousOffset", "resentBytes")
        ),
    }
    if before is None:
        return row
    closed_ns = before.last_ts_ns if before.closed_ts_ns is None else before.closed_ts_ns
    if before.sent_offset is not None and after.request_offset is not None:
        row["resentBytes"] = max(0, before.sent_offset - after.request_offset)
    return {
        **row,
        "previousConn": before.conn,
        "closeReason": before.close_reason,
        "closedAtMs": replay.session.wall_of(closed_ns) / 1e6,
        "awayMs": max(0, after.first_ts_ns - closed_ns) / 1e6,
        "previousOffset": before.reported_offset if replay.session.is_slave else before.ack_offset,
    }


def _gap_rows(replay: SessionReplay) -> list[Row]:
    """Of the recording's first events."""
    addresses = {connection.figures.conn: connection.address for connection in replay.connections}
    refused = replay.events[replay.events["kind"] == Kind.REFUSED]
    columns = [refused[name].tolist() for name in ("ts_ns", "seq", "conn", "flags", "offset", "aux")]
    return [
        {
            **session_columns(replay),
            "role": replay.session.identity.role,
            "atMs": replay.session.wall_of(ts_ns) / 1e6,
            "seq": seq,
            "conn": conn,
            "address": addresses.get(conn),
            "reason": code_name(CloseReason, flags),
            "offset": offset,
            "maxOffset": own,
            "sentence": GAP_SENTENCES.get(flags, "refused {offset}; the own log ends at {own}").format(
                offset=offset, own=own
            ),
        }
        for ts_ns, seq, conn, flags, offset, own in zip(*columns, strict=True)
    ]


def _cause_rows(replay: SessionReplay) -> list[Row]:
    addresses = {connection.figures.conn: connection.address for connection in replay.connections}
    return [
        {
            **session_columns(replay),
            "status": code_name(PutStatus, status),
            "cause": CAUSES[cause],
            "ackMostly": None,
            "conn": None if conn == NO_CONNECTION else conn,
            "address": addresses.get(conn),
            "count": waited_us.total,
            "waitedMs": _percentiles_row(waited_us.distribution(), per_ms=1000),
        }
        for (status, cause, conn), waited_us in replay.causes.waited_us.items()
    ]


def _invariant_rows(replay: SessionReplay) -> list[Row]:
    """`checked`: number of checked records; null if the invariant does not apply to the session."""
    return [
        {
            **session_columns(replay),
            "invariant": result.invariant.name,
            "severity": severity_text(result.invariant.severity),
            "sentence": result.invariant.sentence,
            "checked": result.checked if result.applies else None,
            "violations": result.count,
        }
        for result in replay.invariants
    ]


def _violation_rows(replay: SessionReplay) -> list[Row]:
    """The first violations of each invariant, in the order of their records."""
    violations = (violation for result in replay.invariants for violation in result.violations)
    return [
        {
            **session_columns(replay),
            "invariant": violation.invariant,
            "severity": severity_text(violation.severity),
            "seq": violation.seq,
            "atMs": _wall_ms(replay, violation.ts_ns),
            "conn": violation.conn,
            "sentence": violation.sentence,
        }
        for violation in sorted(violations, key=lambda violation: violation.seq)
    ]


def _role_rows(replay: SessionReplay) -> list[Row]:
    """`epoch` is that of the life, and of EPOCH and LOG_CUT their own."""
    life = replay.life
    if life is None:
        return []
    return [
        {
            **session_columns(replay),
            "brokerControllerId": known(life.broker_id),
            "role": life.role.name,
            "atMs": event.at_ns / 1e6,
            "seq": event.seq,
            "kind": event.kind.name,
            "epoch": known(_epoch_of(life, event)),
            "offset": None if event.kind is Kind.CONTROLLER else known(event.offset),
            "endOffset": event.aux if event.kind is Kind.LOG_CUT else None,
            "setEpoch": event.aux if event.kind is Kind.SYNC_STATE_SET else None,
            "members": _members(event),
            "address": _address(life, event),
            "sentence": describe(life, event),
        }
        for event in (life.began, *life.events)
    ]


def _epoch_of(life: RoleLife, event: RoleEvent) -> int:
    if event.kind is Kind.EPOCH:
        return event.aux
    return event.size if event.kind is Kind.LOG_CUT else life.epoch


def _members(event: RoleEvent) -> list[int] | None:
    found = event.fact.get("members")
    return found if isinstance(found, list) and all(type(one) is int for one in found) else None


def _address(life: RoleLife, event: RoleEvent) -> str | None:
    """Of the master, or of the leading controller."""
    if event.kind is Kind.ROLE:
        return life.master_address
    found = event.fact.get("address")
    return found if isinstance(found, str) else None


def _group_invariant_rows(group: GroupResult) -> list[Row]:
    """`session` and `brokerId` are null; so is `checked` if the sessions show nothing of an invariant."""
    return [
        {
            "session": None,
            "brokerName": group.broker_name,
            "brokerId": None,
            "invariant": result.invariant.name,
            "severity": severity_text(result.invariant.severity),
            "sentence": result.invariant.sentence,
            "checked": result.checked or None,
            "violations": result.count,
        }
        for result in group.results
    ]


def _group_violation_rows(group: GroupResult) -> list[Row]:
    """`brokerId` is the id from the controllers: in its sessions a master has 0."""
    return [
        {
            "session": one.session,
            "brokerName": group.broker_name,
            "brokerId": one.broker_id,
            "invariant": one.invariant,
            "severity": severity_text(one.severity),
            "seq": one.seq,
            "atMs": one.at_ns // 1_000_000,
            "conn": None,
            "sentence": one.sentence,
        }
        for result in group.results
        for one in result.violations
    ]


def link_row(link: Link) -> Row:
    """A connection that both its master and its slave recorded."""
    return {
        "session": link.master.path.resolve().name,
        "brokerName": link.master.identity.broker_name,
        "conn": link.master_conn,
        "slaveSession": link.slave.path.resolve().name,
        "slaveBrokerId": link.slave.identity.broker_id,
        "slaveConn": link.slave_conn,
        "frames": link.frames,
        "aheadMs": None if link.clock_offset_ns is None else link.clock_offset_ns / 1e6,
        "uncertainMs": None if link.clock_error_ns is None else link.clock_error_ns / 1e6,
        "thereMs": _percentiles_row(link.to_slave_ns, per_ms=1_000_000),
        "slaveMs": _percentiles_row(link.slave_ns, per_ms=1_000_000),
        "backMs": _percentiles_row(link.to_master_ns, per_ms=1_000_000),
    }


def _percentiles_row(found: Distribution[int] | None, *, per_ms: int = 1) -> Row | None:
    """As it is, or in ms if `per_ms` of its units are one."""
    if found is None:
        return None
    scaled = found if per_ms == 1 else found.divided_by(per_ms)
    return {"p50": scaled.p50, "p99": scaled.p99, "max": scaled.largest}


def _wall_ms(replay: SessionReplay, ts_ns: int) -> int:
    return replay.session.wall_of(ts_ns) // 1_000_000


def _event_rows(replay: SessionReplay) -> list[Row]:
    columns = [
        replay.events[name].tolist() for name in ("ts_ns", "seq", "conn", "kind", "flags", "offset", "aux")
    ]
    return [
        {
            **session_columns(replay),
            "atMs": replay.session.wall_of(ts_ns) / 1e6,
            "seq": seq,
            "conn": None if conn == NO_CONNECTION else conn,
            "kind": Kind(kind).name,
            "what": _what(kind, flags),
            "offset": aux if kind == Kind.DROPPED else offset,
            "maxOffset": None if kind in {Kind.DROPPED, Kind.LINK} else aux,
        }
        for ts_ns, seq, conn, kind, flags, offset, aux in zip(*columns, strict=True)
    ]


_NAMES: Final = {
    Kind.STATE: HaState,
    Kind.CLOSED: CloseReason,
    Kind.REFUSED: CloseReason,
    Kind.LINK: LinkEvent,
}


def _what(kind: int, flags: int) -> str | None:
    names = _NAMES.get(Kind(kind))
    if names is None:
        return None
    return code_name(names, flags)
