"""The result of a replay: the figures of each session's node and connections, from joined parts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np
from attrs import evolve, field, frozen
from numpy.typing import NDArray

from trioha.archive.session_paths import find_recordings
from trioha.recording.events import CloseReason, Kind
from trioha.recording.probes import ProbeCount
from trioha.recording.reader import Segment, Session, open_session
from trioha.recording.state import UNKNOWN
from trioha_analysis.causes import CauseCounts
from trioha_analysis.parts import RANGE_RECORDS, NodePart, Run, runs_of
from trioha_analysis.replicas import ReplicaReplay, replica_replays, spans_of
from trioha_analysis.state_at import LastSeen, last_seen
from trioha_analysis.wait_history import WaitHistory
from trioha_sessions.aggregate import ConnectionPart
from trioha_sessions.clocks import Link
from trioha_sessions.counters import ConnectionCounters, NodeCounters
from trioha_sessions.facts import Peer, peers_of, probe_counts, read_facts
from trioha_sessions.figures import ConnectionResult, NodeResult, connection_result, node_result
from trioha_sessions.invariants import InvariantResult, SessionSettings, check, results_of
from trioha_sessions.invariants.group import GroupResult, check_group, groups_of
from trioha_sessions.reconnects import LOST_NS, Connection, pair
from trioha_sessions.records import read_segment, record_dtype
from trioha_sessions.role_lives import RoleLife, role_life
from trioha_sessions.segments import Damage, Segments, read_segments
from trioha_sessions.time_series import TimeGrid, TimeSeries

CONNECTIONS_MAX: Final = 12
"""Connections of a session, and replicas, that get series in a report."""
CURVE_STEPS: Final = 1500
"""Approximate number of points of a curve: enough for a screen's width."""
FIRST_BEFORE: Final = -2
"""Number of the first connection of a recording before; -1 is the node's own."""
SECONDS_MAX: Final = 86_400
"""Longest session, in s, whose time series have a step for each second; those of longer ones are coarser."""
_STEPS_NS: Final = (
    *(10**6 * factor for factor in (1, 2, 5, 10, 20, 50, 100, 200, 500)),
    *(10**9 * factor for factor in (1, 2, 5, 10, 30, 60, 300, 600, 3600)),
)


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
    segments: tuple[Segment, ...]
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

    def with_detail(self, detail: Detail) -> SessionReplay:
        """The result with what `detail` names."""
        if detail is Detail.WHOLE:
            return self
        # Of a master's session the replicas' series are shown.
        has_curves = detail is Detail.CURVES and self.session.is_slave
        curves = {one.figures.conn for one in busiest_connections(self)} if has_curves else set()
        thinning = -(-self.grid.steps // (2 * CURVE_STEPS))
        shown = set(_busiest_replicas(self)) if detail is Detail.CURVES else set()
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
            events=self.events[self.events["kind"] == Kind.REFUSED],
            log_end_series=self.log_end_series if detail is Detail.CURVES else TimeSeries(),
            waits=self.waits if detail is Detail.CURVES else WaitHistory(),
            node=evolve(self.node, put_series=TimeSeries()),
        )


class Detail(Enum):
    """How much of a session's result is kept."""

    WHOLE = "whole"
    """Everything: the time series of each connection, and the events."""
    CURVES = "curves"
    """What a report shows: figures, and the time series of the busiest connections."""
    FIGURES = "figures"
    """Figures only: a few KB for each connection."""


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


@frozen(eq=False)
class ReplayResult:
    """Results of sessions, in the order of the arguments."""

    sessions: tuple[SessionReplay, ...]
    links: tuple[Link, ...] = ()
    """Connections that both a master's and a slave's session have, if they were asked for."""
    groups: tuple[GroupResult, ...] = ()
    """Groups of brokers under controllers, by their names."""

    @property
    def lives(self) -> tuple[RoleLife, ...]:
        """Roles of all sessions that have one."""
        return tuple(one.life for one in self.sessions if one.life is not None)

    @property
    def opened(self) -> tuple[Session, ...]:
        """The sessions themselves."""
        return tuple(one.session for one in self.sessions)


@frozen(eq=False)
class ReplayPlan:
    """Sessions, split into ranges that are aggregated in parallel."""

    sessions: tuple[Session, ...]
    segments: tuple[Segments, ...]
    """Of each session."""
    grids: tuple[TimeGrid, ...]
    """Of each session."""
    range_records: int
    """Records that are aggregated at a time."""
    seen: tuple[Sequence[LastSeen], ...]
    """Of each session the replicas that its master had when its recording before ended."""

    @property
    def ranges(self) -> int:
        """Number of ranges of all sessions."""
        return sum(
            -(-segment.records // self.range_records) for found in self.segments for segment in found.segments
        )

    def runs(self, *, run_ranges: int = 1) -> Iterator[Run]:
        """Runs of at most `run_ranges` ranges that cover all sessions, one session after the other."""
        for index, session in enumerate(self.sessions):
            yield from runs_of(
                index,
                session.path,
                self.segments[index].segments,
                self.grids[index],
                range_records=self.range_records,
                run_ranges=run_ranges,
            )

    def result(
        self, nodes: Mapping[int, NodePart], connections: Mapping[tuple[int, int], ConnectionPart]
    ) -> ReplayResult:
        """The result from the joined parts: of nodes by session index, of connections by session index and
        connection number."""
        by_session: dict[int, dict[int, ConnectionPart]] = {}
        for index, conn in sorted(connections):
            by_session.setdefault(index, {})[conn] = connections[index, conn]
        result = ReplayResult(
            tuple(
                session_replay(
                    session,
                    self.segments[index],
                    self.grids[index],
                    nodes.get(index) or empty_node_part(session),
                    by_session.get(index, {}),
                    seen=self.seen[index],
                )
                for index, session in enumerate(self.sessions)
            )
        )
        return evolve(result, groups=tuple(map(check_group, groups_of(result.lives))))

    def finished(self, found: Mapping[int, SessionReplay]) -> ReplayResult:
        """The result from those of the sessions, made without their segments; by index."""
        return ReplayResult(
            tuple(
                evolve(found[index], segments=segments.segments)
                for index, segments in enumerate(self.segments)
            )
        )


def plan_replay(sessions: Iterable[str | Path], *, range_records: int = RANGE_RECORDS) -> ReplayPlan:
    """Open `sessions` (session folders, folders of them, archives) and list their segments.

    Raises StoreError or ArchiveError if a path is not a session.
    """
    opened = tuple(open_session(path) for path in find_recordings(sessions))
    found = tuple(read_segments(session) for session in opened)
    grids = tuple(_grid(session, segments) for session, segments in zip(opened, found, strict=True))
    return ReplayPlan(opened, found, grids, range_records, _seen_before(opened))


def _seen_before(sessions: Sequence[Session]) -> tuple[Sequence[LastSeen], ...]:
    """Of each session the replicas that its master had when its recording before ended, less than `LOST_NS`
    before this one began."""
    latest: dict[tuple[str, str, int], Session] = {}
    seen: dict[Path, Sequence[LastSeen]] = {}
    for session in sorted(sessions, key=lambda one: one.wall_ns):
        node = session.identity
        whose = (node.cluster_name, node.broker_name, node.broker_id)
        before = latest.get(whose)
        latest[whose] = session
        if before is not None and not (before.is_slave or session.is_slave):
            seen[session.path] = [
                one for one in last_seen(before) if 0 <= session.wall_ns - one.lost_wall_ns < LOST_NS
            ]
    return tuple(seen.get(session.path, ()) for session in sessions)


def _grid(session: Session, segments: Segments) -> TimeGrid:
    """Steps from the session's first record to its last readable one."""
    first_ns = segments.segments[0].base_ts_ns if segments.segments else 0
    last_ns = first_ns
    for segment in reversed(segments.segments):
        records = read_segment(session, segment, first=max(0, segment.records - 1), count=1).array
        if len(records):
            last_ns = max(first_ns, int(records["ts_ns"][-1]))
            break
    return series_grid(first_ns, last_ns, wall_ns=session.wall_of(first_ns))


def series_grid(first_ns: int, last_ns: int, *, wall_ns: int) -> TimeGrid:
    """Steps that divide the seconds of the wall clock, which was `wall_ns` at `first_ns`."""
    span_ns = last_ns - first_ns
    wanted_ns = max(span_ns // CURVE_STEPS, 1)
    if wanted_ns > 10**9:
        # Tables have a row for each second, within a limit.
        wanted_ns = max(10**9, span_ns // SECONDS_MAX)
    step_ns = next((step for step in _STEPS_NS if step >= wanted_ns), _STEPS_NS[-1])
    origin_ns = first_ns - wall_ns % step_ns
    return TimeGrid(origin_ns, step_ns, (last_ns - origin_ns) // step_ns + 1)


def session_replay(
    session: Session,
    segments: Segments,
    grid: TimeGrid,
    node_part: NodePart,
    parts: Mapping[int, ConnectionPart],
    *,
    seen: Sequence[LastSeen] = (),
) -> SessionReplay:
    """The result of a session from its joined parts: of its node, and of connections by number.

    `seen`: the replicas that its master had when its recording before ended.
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
        damage=(*segments.damage, *node_part.damage, *fact_damage),
        grid=grid,
        invariants=results_of(node_part.invariants),
        causes=node_part.causes.finished(),
        events=events[~np.isin(events["conn"], list(probes))],
        segments=segments.segments,
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
