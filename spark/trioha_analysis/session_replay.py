"""The replay of a session: the figures of its node and connections, from joined parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final

import numpy as np
from attrs import evolve, field, frozen
from numpy.typing import NDArray

from trioha.recording.events import CloseReason
from trioha.recording.probes import ProbeCount
from trioha.recording.reader import Session
from trioha.recording.state import UNKNOWN
from trioha_analysis.causes import CauseCounts
from trioha_analysis.parts import NodePart
from trioha_analysis.replicas import ReplicaReplay, replica_replays, spans_of
from trioha_analysis.state_at import LastSeen
from trioha_analysis.wait_history import WaitHistory
from trioha_sessions.aggregate import ConnectionPart
from trioha_sessions.counters import ConnectionCounters, NodeCounters
from trioha_sessions.facts import Peer, peers_of, probe_counts, read_facts
from trioha_sessions.figures import ConnectionResult, NodeResult, connection_result, node_result
from trioha_sessions.invariants import InvariantResult, SessionSettings, check, results_of
from trioha_sessions.reconnects import Connection, pair
from trioha_sessions.records import record_dtype
from trioha_sessions.role_lives import RoleLife, role_life
from trioha_sessions.segments import Damage
from trioha_sessions.time_series import TimeGrid, TimeSeries

CONNECTIONS_MAX: Final = 12
"""Connections of a session, and replicas, that get series in a report."""
CURVE_STEPS: Final = 1500
"""Approximate number of points of a curve: enough for a screen's width."""
FIRST_BEFORE: Final = -2
"""Number of the first connection of a recording before; -1 is the node's own."""


@frozen(eq=False)
class ConnectionReplay:
    """An HA connection as one of its nodes recorded it."""

    peer: Peer
    figures: ConnectionResult

    @property
    def address(self) -> str | None:
        """`host:port` of the peer; None if the recording does not name it."""
        return self.peer.address


@frozen(eq=False)
class Reconnect:
    """A reconnect of a replica."""

    connection: ConnectionReplay
    """The new connection."""
    previous: ConnectionReplay | None
    """The lost connection that it continues; None if there are several candidates."""


@frozen(eq=False)
class SessionReplay:
    """The result of one session."""

    session: Session
    node: NodeResult
    connections: tuple[ConnectionReplay, ...]
    """By connection number, without probes."""
    probes: tuple[ProbeCount, ...]
    """Connections that never requested the log, by host and reason."""
    reconnects: tuple[Reconnect, ...]
    """By the time of the new connection, paired by `trioha_sessions.reconnects`; of a slave's session its
    own connections to its master after the first one."""
    damage: tuple[Damage, ...]
    """Unreadable parts of the recording."""
    grid: TimeGrid
    """Time steps of the connections' time series."""
    invariants: tuple[InvariantResult, ...]
    """Of every invariant."""
    causes: CauseCounts
    """Causes of the group-commit waits."""
    events: NDArray[np.void]
    """The first records of the kinds `trioha_analysis.parts.EVENT_KINDS`."""
    log_end_series: TimeSeries
    """End of the node's log, by its puts and the events of all its connections."""
    waits: WaitHistory = field(factory=WaitHistory)
    """How group-commit waits ended, over time."""
    replicas: tuple[ReplicaReplay, ...] = ()
    """Of a master's session, in the order of their first connections."""
    before: tuple[ConnectionReplay, ...] = ()
    """The last connections of replicas in the master's recording before; their numbers are negative."""
    life: RoleLife | None = None
    """Its role under controllers; None without."""

    @property
    def name(self) -> str:
        """Name of the session's folder."""
        return self.session.path.resolve().name

    def for_report(self) -> SessionReplay:
        """What a report shows: figures, and thinned series of the replicas or connections that moved most."""
        # Of a master's session the replicas' series are shown.
        curves = {one.figures.conn for one in busiest_connections(self)} if self.session.is_slave else set()
        thinning = -(-self.grid.steps // (2 * CURVE_STEPS))
        shown = set(_busiest_replicas(self))
        return evolve(
            self,
            replicas=tuple(
                one.thinned(thinning if number in shown else 0) for number, one in enumerate(self.replicas)
            ),
            connections=tuple(
                evolve(
                    one,
                    figures=evolve(
                        one.figures,
                        series=_thinned(one.figures.series, thinning)
                        if one.figures.conn in curves
                        else _NO_SERIES,
                    ),
                )
                for one in self.connections
            ),
            events=self.events[:0],
            node=evolve(self.node, put_series=TimeSeries()),
        )


_NO_SERIES: Final = dict.fromkeys(
    ("max", "sent", "ack", "received", "reported", "lag", "latency"), TimeSeries()
)


def _thinned(series: Mapping[str, TimeSeries], steps: int) -> dict[str, TimeSeries]:
    """The largest value of every so many steps; acks as they are, whose times are shown exactly."""
    return {
        name: one if name == "ack" else TimeSeries.of(one.steps // steps * steps, one.values)
        for name, one in series.items()
    }


def busiest_connections(replay: SessionReplay) -> list[ConnectionReplay]:
    """The `CONNECTIONS_MAX` connections that moved the most bytes, by number."""
    busiest = sorted(replay.connections, key=_by_bytes)[:CONNECTIONS_MAX]
    return sorted(busiest, key=_by_conn)


def _busiest_replicas(replay: SessionReplay) -> list[int]:
    """Indices of the `CONNECTIONS_MAX` replicas that moved the most bytes."""
    moved = {one.figures.conn: one.figures.body_bytes for one in (*replay.before, *replay.connections)}
    bytes_of = [sum(moved[conn] for conn in one.conns) for one in replay.replicas]
    return sorted(range(len(bytes_of)), key=bytes_of.__getitem__, reverse=True)[:CONNECTIONS_MAX]


def _by_bytes(one: ConnectionReplay) -> int:
    return -one.figures.body_bytes


def _by_conn(one: ConnectionReplay) -> int:
    return one.figures.conn


def session_replay(
    session: Session,
    damage: Sequence[Damage],
    grid: TimeGrid,
    node_part: NodePart,
    parts: Mapping[int, ConnectionPart],
    *,
    seen: Sequence[LastSeen] = (),
) -> SessionReplay:
    """The result of a session from its joined parts: of its node, and of connections by number.

    `damage`: of its segments. `seen`: the replicas that its master had when its recording before ended.
    """
    facts, fact_damage = read_facts(session)
    peers = peers_of(facts)
    # A slave is the master of those that connect to it.
    served = {conn for conn, peer in peers.items() if peer.role == "master"}
    # A slave's connections to its master are not probes.
    probes = {
        **{
            conn: max(part.counters.close_reason, CloseReason.NONE)
            for conn, part in parts.items()
            if part.counters.requested_ts_ns < 0 and (not session.is_slave or conn in served)
        },
        # The last state of such a connection may be in the next range.
        **node_part.probes,
    }
    connections = tuple(
        ConnectionReplay(peers.get(conn, Peer(None, None, None)), connection_result(conn, part, grid))
        for conn, part in parts.items()
        if conn not in probes
    )
    before = tuple(_before(FIRST_BEFORE - number, one, session, grid) for number, one in enumerate(seen))
    own = [one for one in connections if not (session.is_slave and one.figures.conn in served)]
    node = node_result(node_part.counters)
    events = np.concatenate([np.zeros(0, record_dtype(session)), *node_part.events])
    log_end = sum((one.figures.series["max"] for one in connections), node.put_series)
    end_ns = node.last_ts_ns or grid.origin_ns
    return SessionReplay(
        session=session,
        node=node,
        connections=connections,
        probes=tuple(
            probe_counts(
                facts,
                probes,
                {conn: Connection(conn, peer.address or "").host for conn, peer in peers.items()},
            )
        ),
        reconnects=tuple(_reconnects(own, is_slave=session.is_slave)),
        damage=(*damage, *node_part.damage, *fact_damage),
        grid=grid,
        invariants=results_of(node_part.invariants),
        causes=node_part.causes.finished(),
        events=events[~np.isin(events["conn"], list(probes))],
        log_end_series=log_end,
        waits=node_part.waits,
        replicas=()
        if session.is_slave
        else replica_replays((*before, *connections), grid, log_end, end_ns=end_ns),
        before=before,
        life=role_life(session, node_part.roles, facts, last_ts_ns=node.last_ts_ns),
    )


def _before(conn: int, seen: LastSeen, session: Session, grid: TimeGrid) -> ConnectionReplay:
    """The last connection of a replica to its master before the session."""
    lost_ns = seen.lost_wall_ns - session.wall_of(0)
    ack = UNKNOWN if seen.ack_offset is None else seen.ack_offset
    figures = connection_result(conn, ConnectionPart(ConnectionCounters(ack_offset=ack)), grid)
    ended = evolve(
        figures, first_ts_ns=lost_ns, requested_ts_ns=lost_ns, last_ts_ns=lost_ns, closed_ts_ns=lost_ns
    )
    return ConnectionReplay(seen.peer, ended)


def empty_node_part(session: Session) -> NodePart:
    """The node's part of a session without records."""
    none = np.zeros(0, record_dtype(session))
    return NodePart(NodeCounters(), (), check(none, SessionSettings.of(session)), CauseCounts(), ())


def _reconnects(connections: Sequence[ConnectionReplay], *, is_slave: bool) -> Iterator[Reconnect]:
    """By the time of the new connection."""
    if is_slave:
        for previous, connection in pairwise(connections):
            yield Reconnect(connection, previous)
        return
    by_conn = {connection.figures.conn: connection for connection in connections}
    for arrival in pair(spans_of(connections)):
        if arrival.is_reconnect:
            before = None if arrival.previous is None else by_conn[arrival.previous]
            yield Reconnect(by_conn[arrival.connection.key], before)
