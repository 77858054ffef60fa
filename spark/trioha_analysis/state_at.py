"""The state of recorded sessions at one moment: `trioha replay --at`. Needs no Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import tzinfo
from pathlib import Path
from typing import Any

from attrs import evolve, frozen

from trioha.archive.session_paths import find_recordings
from trioha.errors import TriohaError
from trioha.recording.events import HaState, Kind, code_name
from trioha.recording.reader import Session
from trioha.recording.state import UNKNOWN, known
from trioha.times import MOMENT_HINT, MomentError, parse_moment
from trioha_sessions.facts import Peer, peers_of
from trioha_sessions.reconnects import LOST_NS, Connection, Span, replicas
from trioha_sessions.session_reader import SessionReader
from trioha_sessions.snapshot import ConnectionState, connection_state

Row = dict[str, Any]


def open_readers(paths: Iterable[str | Path]) -> list[SessionReader]:
    """The sessions of `paths`. Raises StoreError for a path without a session."""
    return [SessionReader.open(path) for path in find_recordings(paths)]


def wall_time(text: str, readers: Sequence[SessionReader], *, zone: tzinfo | None = None) -> int:
    """A time that a user names (`trioha.times`), in ns since 1970; `zone` is the user's, None for
    the system's. Raises TriohaError if it is not a time."""
    start_ns = min(reader.session.wall_of(reader.first_ts_ns) for reader in readers)
    end_ns = max(reader.session.wall_of(reader.last_ts_ns) for reader in readers)
    try:
        at_ns = parse_moment(text, start_ns=start_ns, end_ns=end_ns, zone=zone)
    except MomentError as error:
        raise TriohaError(f"--at {error}; say {MOMENT_HINT}") from None
    if at_ns is None:
        raise TriohaError(f"--at {text}: not a time; say {MOMENT_HINT}")
    return at_ns


def moment(readers: Sequence[SessionReader], wall_ns: int) -> dict[str, Any]:
    """`atMs`, and the state of `nodes` and `connections` of the sessions that cover that time.

    `probes` of a node: open connections without a request. A master's replica without a connection has the
    row of its last one: its lag goes on (`trioha_sessions.reconnects`).
    """
    nodes: list[Row] = []
    connections: list[Row] = []
    for reader in readers:
        ts_ns = wall_ns - reader.session.wall_ns + reader.session.monotonic_ns
        if reader.first_ts_ns <= ts_ns <= reader.last_ts_ns:
            node, its_connections = _node(reader, ts_ns)
            nodes.append(node)
            connections += its_connections
    return {"atMs": wall_ns / 1e6, "nodes": nodes, "connections": connections}


def _node(reader: SessionReader, ts_ns: int) -> tuple[Row, list[Row]]:
    session = reader.session
    position = reader.position_at(ts_ns)
    snapshot = reader.with_own_times(reader.snapshot_at(position), position)
    addresses = connection_addresses(reader)
    whose = {
        "session": session.path.resolve().name,
        "brokerName": session.identity.broker_name,
        "brokerId": session.identity.broker_id,
        "role": session.identity.role,
    }
    node = {
        **whose,
        "position": position,
        "maxOffset": known(snapshot.log_end_offset),
        "flushedOffset": snapshot.of_node(Kind.FLUSHED),
        "dispatchedOffset": snapshot.of_node(Kind.DISPATCHED),
    }
    rows = []
    opened = []
    peers = peers_of(reader.facts)
    waiting = 0
    for conn, records in snapshot.connections():
        is_served = not session.is_slave or (conn in peers and peers[conn].role == "master")
        at = connection_state(records, is_slave=session.is_slave)
        if is_served and not at.has_requested:
            waiting += 1
            continue
        if not session.is_slave:
            opened.append(conn)
            at = evolve(at, max_offset=snapshot.log_end_offset)
        row = _connection(at, ts_ns)
        if not session.is_slave:
            row["lagSeconds"] = _lag_s(reader, at, position, ts_ns)
        rows.append({**whose, "conn": conn, "address": addresses.get(conn), **row})
    if not session.is_slave:
        for away in _away(reader, peers, opened, position, ts_ns):
            at = evolve(away.state, state=UNKNOWN, max_offset=snapshot.log_end_offset)
            row = {**_connection(at, ts_ns), "isConnected": False}
            row["lagSeconds"] = _lag_s(reader, at, position, ts_ns)
            rows.append({**whose, "conn": away.conn, "address": addresses.get(away.conn), **row})
    return {**node, "probes": waiting}, rows


@frozen
class _Away:
    """A replica without a connection."""

    conn: int
    """Its last connection."""
    state: ConnectionState
    """Of that at its end."""
    lost_ns: int


def _away(
    reader: SessionReader, peers: Mapping[int, Peer], opened: Sequence[int], position: int, ts_ns: int
) -> Iterator[_Away]:
    """The replicas of a master that are away at a moment, when the connections `opened` are open."""
    spans = [_span(reader, peers, conn) for conn in opened]
    lost: dict[int, _Away] = {}
    for ended in reader.ended_between(reader.position_at(ts_ns - LOST_NS), position):
        at = connection_state(ended.records, is_slave=False)
        if at.has_requested:
            ended_ns = at.last_ts_ns if at.closed_ts_ns < 0 else at.closed_ts_ns
            lost[ended.conn] = _Away(ended.conn, at, ended_ns)
            spans.append(_span(reader, peers, ended.conn, ended_ns))
    for replica in replicas(spans, end_ns=ts_ns):
        conn = replica.connections[-1]
        if conn in lost and replica.outages[-1].ended_ns == ts_ns:
            yield lost[conn]


@frozen
class LastSeen:
    """A replica as its master's recording has it at its end."""

    peer: Peer
    ack_offset: int | None
    lost_wall_ns: int
    """When its connection ended, or the recording, ns since 1970."""


def last_seen(session: Session) -> list[LastSeen]:
    """The replicas of a master's session that were not forgotten at its end."""
    reader = SessionReader(session)
    if not reader.records:
        return []
    ts_ns, position = reader.last_ts_ns, reader.end_seq
    peers = peers_of(reader.facts)
    opened = {}
    for conn, records in reader.snapshot_at(position).connections():
        at = connection_state(records, is_slave=False)
        if at.has_requested:
            opened[conn] = _Away(conn, at, ts_ns)
    away = [*opened.values(), *_away(reader, peers, list(opened), position, ts_ns)]
    return [
        LastSeen(
            peers.get(one.conn, Peer(None, None, None)),
            known(one.state.ack_offset),
            session.wall_of(one.lost_ns),
        )
        for one in away
    ]


def _span(
    reader: SessionReader, peers: Mapping[int, Peer], conn: int, lost_ns: int | None = None
) -> Span[int]:
    peer = peers.get(conn, Peer(None, None, None))
    began = next((fact.seq for fact in reader.facts if fact.fields.get("conn") == conn), None)
    came_ns = None if began is None else reader.time_of(began)
    return Span(
        Connection(conn, peer.address or "", peer.certificate or ""),
        reader.first_ts_ns if came_ns is None else came_ns,
        lost_ns,
    )


def _lag_s(reader: SessionReader, at: ConnectionState, position: int, ts_ns: int) -> float | None:
    """Age of the oldest byte of a master's log without an ack, seconds."""
    if at.lag_bytes is None:
        return None
    stored_ns = reader.max_passed_ns(at.ack_offset, position)
    return 0.0 if stored_ns is None else max(0, ts_ns - stored_ns) / 1e9


def _connection(at: ConnectionState, ts_ns: int) -> Row:
    return {
        "state": None if at.state < 0 else code_name(HaState, at.state),
        "isConnected": True,
        "lagBytes": at.lag_bytes,
        "lagSeconds": None,
        "heardMsAgo": None if at.last_received_ts_ns < 0 else (ts_ns - at.last_received_ts_ns) / 1e6,
        "requestOffset": known(at.request_offset),
        "sentOffset": known(at.sent_offset),
        "ackOffset": known(at.ack_offset),
        "receivedOffset": known(at.received_offset),
        "reportedOffset": known(at.reported_offset),
        "maxOffset": known(at.max_offset),
    }


def connection_addresses(reader: SessionReader) -> dict[int, str]:
    """The address of the peer of each connection that a fact names, by connection."""
    return {conn: peer.address for conn, peer in peers_of(reader.facts).items() if peer.address is not None}
