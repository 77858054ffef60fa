"""The state of a session at a moment, and which of its connections belong to one replica.

A slave's port changes with every connection. Connections are joined into rows as in the live view, by the one
rule of `trioha_sessions.reconnects`; where the slave recorded a session of its own, the times of its
connections identify it. A connection on which nothing was requested is a probe and has no row.

A master that is started again goes on with its replicas, though it has another session: connections that were
open at the end of the session before are lost then.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict, defaultdict
from collections.abc import Sequence
from typing import Final

import numpy as np
from attrs import evolve, frozen

from trioha.recording.events import Kind
from trioha.recording.state import known
from trioha_monitor.replay.replay_timeline import NS_PER_S, ReplayTimeline, SessionRun
from trioha_sessions.reconnects import LOST_NS, Connection, Outage, Span, replicas
from trioha_sessions.snapshot import ConnectionState, Ended, Snapshot, connection_state

RATE_NS: Final = 2 * NS_PER_S
"""Rates are means over this time, as in the live view."""
SAME_CONNECTION_NS_MAX: Final = 2 * NS_PER_S
"""Largest difference between the times that master and slave recorded for one connection: two clocks."""
_CACHE_MAX: Final = 64
"""States, and answers of `ReplicaRows`, that are cached: views that follow each other share connections."""
_NEVER: Final = int(np.iinfo(np.int64).max)

Key = tuple[int, int]
"""A connection: number of its run, and its number there."""


@frozen(eq=False)
class SessionState:
    """The state of a session at a moment."""

    run: SessionRun
    at_ns: int
    position: int
    snapshot: Snapshot
    connections: dict[int, ConnectionState]
    """Open connections by number; of a master's session those on which the log was requested."""
    waiting_probes: int
    """Open connections of a master's session on which nothing was requested."""
    acked_ns: dict[int, int]
    """Time of each connection's last ack, on the axis."""

    @property
    def log_end(self) -> int | None:
        """End of the node's own log."""
        return known(self.snapshot.log_end_offset)

    @property
    def connection(self) -> tuple[int | None, ConnectionState | None]:
        """Number and state of the only connection that a slave's session has; both None without one."""
        return next(iter(self.connections.items()), (None, None))


@frozen(eq=False)
class ReplicaConnection:
    """A connection of a master's session on which the log was requested."""

    run: SessionRun
    conn: int
    began_ns: int
    ended_ns: int | None = None
    """None while it is open."""
    last: ConnectionState | None = None
    """State at its end; None while it is open."""

    @property
    def key(self) -> Key:
        """Its key among all connections."""
        return self.run.number, self.conn


@frozen(eq=False)
class ReplicaRow:
    """One replica: its connections one after the other."""

    connections: tuple[ReplicaConnection, ...]
    """The last one is the present one."""
    reconnects: int
    """How often the replica reconnected, also where its earlier connection is not known."""
    outages: tuple[Outage[Key], ...]
    """As far as they are known at the moment: the last one may end earlier."""

    @property
    def present(self) -> ReplicaConnection:
        """The present or last connection."""
        return self.connections[-1]

    @property
    def key(self) -> Key:
        """The first connection: it identifies the row."""
        return self.connections[0].key

    @property
    def is_connected(self) -> bool:
        """Whether the last connection is open."""
        return self.present.ended_ns is None

    def is_shown(self, at_ns: int) -> bool:
        """Whether it is connected, or not forgotten yet."""
        return self.is_connected or at_ns <= self.outages[-1].ended_ns


class SessionStates:
    """The states of the sessions of `timeline`. Used by one thread at a time; may read the disk."""

    def __init__(self, timeline: ReplayTimeline) -> None:
        self._timeline = timeline
        self._rows = ReplicaRows(SlaveConnections(timeline))
        self._ended: dict[tuple[int, int], ReplicaConnection | None] = {}
        """Ended connections by run and seq of the record that ended them; None for a probe."""
        self._before: dict[int, tuple[bool, list[ReplicaConnection]]] = {}
        """By run: connections of the sessions before it, and whether these are all."""
        self._cache: OrderedDict[tuple[int, int], SessionState] = OrderedDict()

    def at(self, run: SessionRun, at_ns: int) -> SessionState:
        """The state of a session at `at_ns`."""
        key = (run.number, at_ns)
        cached = self._cache.get(key)
        if cached is not None and not _has_grown(cached):
            self._cache.move_to_end(key)
            return cached
        position = run.position_at(at_ns)
        snapshot = run.reader.with_own_times(run.reader.snapshot_at(position), position)
        connections: dict[int, ConnectionState] = {}
        acked_ns: dict[int, int] = {}
        waiting_probes = 0
        for conn, records in snapshot.connections():
            state = connection_state(records, is_slave=run.is_slave)
            if state.state < 0 and state.ack_offset < 0 and state.received_offset < 0:
                continue
            if not run.is_slave and not is_replica(state):
                waiting_probes += 1
                continue
            connections[conn] = state
            acks = records["ts_ns"][records["kind"] == Kind.ACK]
            if len(acks):
                acked_ns[conn] = run.wall_of(int(acks[-1]))
        session = SessionState(run, at_ns, position, snapshot, connections, waiting_probes, acked_ns)
        self._cache[key] = session
        while len(self._cache) > _CACHE_MAX:
            self._cache.popitem(last=False)
        return session

    def earlier(self, session: SessionState, by_ns: int) -> SessionState | None:
        """The same session `by_ns` earlier; None before its start."""
        at_ns = session.at_ns - by_ns
        return None if at_ns < session.run.start_ns else self.at(session.run, at_ns)

    def growth_per_s(self, session: SessionState) -> float | None:
        """How fast the node's log grew in `RATE_NS` before a moment, bytes per second."""
        before = self.earlier(session, RATE_NS)
        if before is None or session.log_end is None or before.log_end is None:
            return None
        return max(0, session.log_end - before.log_end) / (RATE_NS / NS_PER_S)

    def ended(self, session: SessionState) -> list[Ended]:
        """Connections that ended within `LOST_NS`; all that ever ended where the reader knows them."""
        run, reader = session.run, session.run.reader
        is_known = reader.knows_all_before(session.position)
        first = reader.first_seq if is_known else run.position_at(session.at_ns - LOST_NS)
        return reader.ended_between(first, session.position)

    def rows(self, session: SessionState) -> list[ReplicaRow]:
        """The replicas of a master's session, with those that are lost and not forgotten."""
        return [row for row in self.replicas(session) if row.is_shown(session.at_ns)]

    def replicas(self, session: SessionState) -> tuple[ReplicaRow, ...]:
        """All replicas of a master's session, in the order of their first connections."""
        return self._rows.of(session.run, self._connections(session))

    def _connections(self, session: SessionState) -> list[ReplicaConnection]:
        run = session.run
        found = list(self._connections_before(run))
        found += [ReplicaConnection(run, conn, _began_ns(run, conn)) for conn in session.connections]
        for ended in self.ended(session):
            connection = self.replica_connection(run, ended)
            if connection is not None:
                found.append(connection)
        return found

    def _connections_before(self, run: SessionRun) -> list[ReplicaConnection]:
        """Those of the sessions that `run` goes on from; all of them are lost."""
        before = self._timeline.continued(run)
        if before is None:
            return []
        knows_all, found = self._before.get(run.number, (False, []))
        if not knows_all:
            knows_all = before.reader.knows_all_before(before.reader.end_seq)
            session = self.at(before, before.end_ns)
            found = [
                one
                if one.ended_ns is not None
                else evolve(one, ended_ns=run.start_ns, last=session.connections[one.conn])
                for one in self._connections(session)
            ]
            self._before[run.number] = knows_all, found
        return found

    def replica_connection(self, run: SessionRun, ended: Ended) -> ReplicaConnection | None:
        """A connection of a master's session that ended; None for a probe."""
        key = (run.number, ended.seq)
        if key not in self._ended:
            state = connection_state(ended.records, is_slave=False)
            self._ended[key] = (
                ReplicaConnection(run, ended.conn, _began_ns(run, ended.conn), ended_ns(run, ended), state)
                if is_replica(state)
                else None
            )
        return self._ended[key]

    def state_of(self, session: SessionState, row: ReplicaRow) -> ConnectionState:
        """State of a row's present connection, or of its last one at its end."""
        last = row.present.last
        return session.connections[row.present.conn] if last is None else last

    def lag_s(
        self, session: SessionState, ack_offset: int | None, *, at_ns: int | None = None
    ) -> float | None:
        """Age of the oldest byte that is not acknowledged; 0 if all are, None if it is not known.

        At the moment, or earlier at `at_ns`.
        """
        if ack_offset is None or session.log_end is None:
            return None
        if session.log_end <= ack_offset:
            return 0.0
        stored_ns = self._timeline.stored_ns(session.run, ack_offset, session.position)
        at_ns = session.at_ns if at_ns is None else at_ns
        return None if stored_ns is None else max(0, at_ns - stored_ns) / NS_PER_S

    def ages_ns(self, at_ns: int, *, of: str = "") -> dict[Key, int]:
        """Age of the oldest byte that each replica lacks, connected or not, by its row.

        `of`: only replicas whose address contains it.
        """
        ages: dict[Key, int] = {}
        for node in self._timeline.nodes:
            run = node.run_at(at_ns)
            if run.is_slave or not run.start_ns <= at_ns <= run.end_ns:
                continue
            session = self.at(run, at_ns)
            for row in self.rows(session):
                if of not in row.present.run.addresses.get(row.present.conn, ""):
                    continue
                lag_s = self.lag_s(session, known(self.state_of(session, row).ack_offset))
                if lag_s is not None:
                    ages[row.key] = round(lag_s * NS_PER_S)
        return ages


class ReplicaRows:
    """Joins the connections of masters' sessions into rows; keeps its last answers."""

    def __init__(self, slave_connections: SlaveConnections) -> None:
        self._slave_connections = slave_connections
        self._cache: OrderedDict[tuple[object, ...], tuple[ReplicaRow, ...]] = OrderedDict()

    def of(self, run: SessionRun, connections: Sequence[ReplicaConnection]) -> tuple[ReplicaRow, ...]:
        """The rows of these connections of a master, in the order of their first connections."""
        key = (run.number, *((connection.key, connection.ended_ns) for connection in connections))
        found = self._cache.get(key)
        if found is None:
            by_key = {one.key: one for one in connections}
            spans = [Span(self._identified(one), one.began_ns, one.ended_ns) for one in connections]
            found = self._cache[key] = tuple(
                ReplicaRow(
                    tuple(by_key[key] for key in replica.connections),
                    replica.reconnects,
                    tuple(replica.outages),
                )
                for replica in replicas(spans, end_ns=_NEVER)
            )
            while len(self._cache) > _CACHE_MAX:
                self._cache.popitem(last=False)
        return found

    def _identified(self, connection: ReplicaConnection) -> Connection[Key]:
        run, conn = connection.run, connection.conn
        identity = run.certificates.get(conn, "")
        if not identity and conn in run.broker_ids:
            identity = f"broker {run.broker_ids[conn]}"
        elif not identity and (slave := self._slave_connections.of(run, conn)) is not None:
            session = slave[0].reader.session.identity
            identity = f"{session.cluster_name}/{session.broker_name}/{session.broker_id}"
        return Connection(connection.key, run.addresses.get(conn, ""), identity)


class SlaveConnections:
    """Which connection of a slave's session is which connection of its master's session."""

    def __init__(self, timeline: ReplayTimeline) -> None:
        self._timeline = timeline
        self._pairs: dict[tuple[int, int], tuple[SessionRun, int]] = {}
        self._counts: tuple[int, ...] = ()
        """Connections of each run when `_pairs` was made."""

    def of(self, run: SessionRun, conn: int) -> tuple[SessionRun, int] | None:
        """The slave's session, and its number for the connection `conn` of a master's session."""
        counts = tuple(len(one.begin_seqs) for one in self._timeline.runs)
        if counts != self._counts:
            self._find()
            self._counts = counts
        return self._pairs.get((run.number, conn))

    def _find(self) -> None:
        """Pair the connections whose times are closest, each once."""
        self._pairs.clear()
        of_slaves: defaultdict[tuple[str, str], list[tuple[int, int, SessionRun, int]]] = defaultdict(list)
        for slave in self._timeline.runs:
            if slave.is_slave:
                of_slaves[_group_of(slave)] += _begins(slave)
        candidates: list[tuple[int, SessionRun, int, SessionRun, int]] = []
        for begins in of_slaves.values():
            begins.sort(key=_begin_and_number)
        for master in self._timeline.runs:
            begins = of_slaves.get(_group_of(master), [])
            if master.is_slave or not begins:
                continue
            times = [begin_ns for begin_ns, *_ in begins]
            for begin_ns, conn, _, _ in _begins(master):
                low = bisect_left(times, begin_ns - SAME_CONNECTION_NS_MAX)
                high = bisect_right(times, begin_ns + SAME_CONNECTION_NS_MAX)
                candidates += [
                    (abs(begin_ns - other_ns), master, conn, slave, slave_conn)
                    for other_ns, slave_conn, slave, _ in begins[low:high]
                ]
        paired: set[tuple[int, int]] = set()
        for _, master, conn, slave, slave_conn in sorted(candidates, key=_difference):
            if (master.number, conn) in self._pairs or (slave.number, slave_conn) in paired:
                continue
            self._pairs[master.number, conn] = (slave, slave_conn)
            paired.add((slave.number, slave_conn))


def is_replica(state: ConnectionState) -> bool:
    """Whether a connection of a master's session is a replica's and not a probe's."""
    return state.has_requested


def ended_ns(run: SessionRun, ended: Ended) -> int:
    """When a connection ended, on the axis."""
    state = connection_state(ended.records, is_slave=run.is_slave)
    return run.wall_of(state.closed_ts_ns if state.closed_ts_ns >= 0 else state.last_ts_ns)


def _began_ns(run: SessionRun, conn: int) -> int:
    began_ns = run.begin_ns(conn)
    return run.start_ns if began_ns is None else began_ns


def _has_grown(session: SessionState) -> bool:
    return session.at_ns >= session.run.end_ns and session.position != session.run.reader.end_seq


def _begins(run: SessionRun) -> list[tuple[int, int, SessionRun, int]]:
    """Start and number of each connection of a run, with the run and its number."""
    return [
        (begin_ns, conn, run, run.number)
        for conn in run.begin_seqs
        if (begin_ns := run.begin_ns(conn)) is not None
    ]


def _group_of(run: SessionRun) -> tuple[str, str]:
    identity = run.reader.session.identity
    return identity.cluster_name, identity.broker_name


def _begin_and_number(begin: tuple[int, int, SessionRun, int]) -> tuple[int, int, int]:
    begin_ns, conn, _, number = begin
    return begin_ns, number, conn


def _difference(candidate: tuple[int, SessionRun, int, SessionRun, int]) -> tuple[int, int, int, int, int]:
    difference_ns, master, conn, slave, slave_conn = candidate
    return difference_ns, master.number, conn, slave.number, slave_conn
