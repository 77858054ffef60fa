"""A replay's result as one JSON document, for machines; its keys are the names of Spark's tables too.

Offsets and sizes are bytes, times ms (since 1970 if a name ends in `AtMs`); what there was none of is null.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trioha.distribution import Distribution
from trioha.recording.clocks import Link
from trioha.recording.events import NO_CONNECTION, PutStatus, code_name
from trioha.recording.histogram import Histogram
from trioha.recording.invariants import Violation
from trioha_analysis.causes import ACK, CAUSES
from trioha_analysis.reconnects import gap_rows, reconnect_rows, whose
from trioha_analysis.replay_result import ConnectionReplay, ReplayResult, SessionReplay

Row = dict[str, Any]


def document(result: ReplayResult, links: Sequence[Link] = ()) -> dict[str, list[Row]]:
    """Columns by table: `sessions`, `connections`, `reconnects`, `probes`, `gaps`, `waits`, `causes`,
    `links`, `invariants`, `violations`; `links` as `trioha.recording.clocks.links` finds them."""
    return {
        "sessions": [session_row(session) for session in result.sessions],
        "connections": [
            connection_row(session, connection)
            for session in result.sessions
            for connection in session.connections
        ],
        "reconnects": [row for session in result.sessions for row in reconnect_rows(session)],
        "probes": [row for session in result.sessions for row in probe_rows(session)],
        "gaps": [row for session in result.sessions for row in gap_rows(session)],
        "waits": [row for session in result.sessions for row in wait_rows(session)],
        "causes": [row for session in result.sessions for row in cause_rows(session, links)],
        "links": [link_row(link) for link in links],
        "invariants": [row for session in result.sessions for row in invariant_rows(session)],
        "violations": [row for session in result.sessions for row in violation_rows(session)],
    }


def session_row(replay: SessionReplay) -> Row:
    """One session: whose it is, what was in it, and where its node stood at the end."""
    identity, node = replay.session.identity, replay.node
    first_ns = replay.grid.origin_ns if node.first_ts_ns is None else node.first_ts_ns
    last_ns = first_ns if node.last_ts_ns is None else node.last_ts_ns
    histograms = [connection.figures.ack_latency_histogram for connection in replay.connections]
    latency_ns = sum(histograms, Histogram())
    return {
        "session": replay.name,
        "clusterName": identity.cluster_name,
        "brokerName": identity.broker_name,
        "brokerId": identity.broker_id,
        "role": identity.role,
        "beganAtMs": _wall_ms(replay, first_ns),
        "durationMs": _ms(last_ns - first_ns),
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
        "reconnects": replay.reconnects,
        "probes": sum(one.count for one in replay.probes),
        "ackLatencyMs": percentiles_row(latency_ns.distribution(), per_ms=1_000_000),
        "waitsOpen": node.waits_open,
    }


def connection_row(replay: SessionReplay, connection: ConnectionReplay) -> Row:
    """One connection as the session's node saw it."""
    figures = connection.figures
    closed_ns = figures.closed_ts_ns
    return {
        "session": replay.name,
        "brokerName": replay.session.identity.broker_name,
        "brokerId": replay.session.identity.broker_id,
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
        "lagBytes": percentiles_row(figures.lag_bytes),
        "ackLatencyMs": percentiles_row(figures.ack_latency_ns, per_ms=1_000_000),
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


def probe_rows(replay: SessionReplay) -> list[Row]:
    """Connections of a session that never asked for the log: a row for each host and reason."""
    return [
        {**whose(replay), "host": one.host, "reason": one.reason, "count": one.count} for one in replay.probes
    ]


def wait_rows(replay: SessionReplay) -> list[Row]:
    """The group-commit waits of a session, a row for each status."""
    return [
        {
            "session": replay.name,
            "brokerName": replay.session.identity.broker_name,
            "brokerId": replay.session.identity.broker_id,
            "status": wait.status,
            "count": wait.count,
            "waitedMs": percentiles_row(wait.waited_us, per_ms=1000),
        }
        for wait in replay.node.waits
    ]


def cause_rows(replay: SessionReplay, links: Sequence[Link] = ()) -> list[Row]:
    """What the group-commit waits of a session waited for: a row for each status, cause and connection."""
    mostly = ack_mostly(replay, links)
    addresses = {connection.figures.conn: connection.address for connection in replay.connections}
    return [
        {
            **whose(replay),
            "status": code_name(PutStatus, status),
            "cause": CAUSES[cause],
            "ackMostly": mostly.get(conn) if cause == ACK else None,
            "conn": None if conn == NO_CONNECTION else conn,
            "address": addresses.get(conn),
            "count": waited_us.total,
            "waitedMs": percentiles_row(waited_us.distribution(), per_ms=1000),
        }
        for (status, cause, conn), waited_us in replay.causes.waited_us.items()
    ]


def ack_mostly(replay: SessionReplay, links: Sequence[Link]) -> dict[int, str | None]:
    """What the acks of each connection that has a link mostly took: `network` or `slave`."""
    path = replay.session.path
    return {link.master_conn: link.ack_mostly for link in links if link.master.session.path == path}


def invariant_rows(replay: SessionReplay) -> list[Row]:
    """The invariants of a session, a row for each, whether it holds or not.

    `checked`: records that were judged by it; null if it cannot be judged in this session.
    """
    return [
        {
            **whose(replay),
            "invariant": verdict.invariant.name,
            "severity": verdict.invariant.severity.value,
            "sentence": verdict.invariant.sentence,
            "checked": verdict.checked if verdict.is_judged else None,
            "violations": verdict.count,
        }
        for verdict in replay.verdicts
    ]


def violation_rows(replay: SessionReplay) -> list[Row]:
    """The violations of a session in the order of their records, the first ones of each invariant."""
    found = [violation for verdict in replay.verdicts for violation in verdict.violations]
    return [
        {
            **whose(replay),
            "invariant": violation.invariant,
            "severity": violation.severity.value,
            "seq": violation.seq,
            "atMs": _wall_ms(replay, violation.ts_ns),
            "conn": violation.conn,
            "sentence": violation.sentence,
        }
        for violation in sorted(found, key=_seq)
    ]


def link_row(link: Link) -> dict[str, Any]:
    """One connection that a master's and a slave's session both have, with what is known of their clocks."""
    return {
        "session": link.master.session.path.resolve().name,
        "brokerName": link.master.session.identity.broker_name,
        "conn": link.master_conn,
        "slaveSession": link.slave.session.path.resolve().name,
        "slaveBrokerId": link.slave.session.identity.broker_id,
        "slaveConn": link.slave_conn,
        "frames": link.frames,
        "aheadMs": None if link.ahead_ns is None else link.ahead_ns / 1e6,
        "uncertainMs": None if link.uncertain_ns is None else link.uncertain_ns / 1e6,
        **{
            f"{name}Ms": percentiles_row(found, per_ms=1_000_000)
            for name, found in (("there", link.there_ns), ("slave", link.slave_ns), ("back", link.back_ns))
        },
    }


def _seq(violation: Violation) -> int:
    return violation.seq


def percentiles_row(found: Distribution[int] | None, *, per_ms: int | None = None) -> dict[str, float] | None:
    """`p50`, `p99` and `max`: as they are, or in ms if `per_ms` says how many of their units are one."""
    if found is None:
        return None
    if per_ms is None:
        return {"p50": found.p50, "p99": found.p99, "max": found.largest}
    return {"p50": found.p50 / per_ms, "p99": found.p99 / per_ms, "max": found.largest / per_ms}


def _ms(ns: int) -> float:
    return ns / 1_000_000


def _wall_ms(replay: SessionReplay, ts_ns: int) -> int:
    return replay.session.wall_of(ts_ns) // 1_000_000
