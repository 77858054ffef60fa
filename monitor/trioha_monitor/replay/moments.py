"""The state of a session at a moment, and which of its connections belong to one replica.

A slave's port changes with every connection. Connections are joined into rows as in the live view, by the one
rule of `trioha.recording.reconnects`; where the slave recorded a session of its own, the times of its
connections identify it. A connection on which nothing was requested is a probe and has no row.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

from attrs import define, field, frozen

from trioha.recording.events import Kind
from trioha.recording.reconnects import Connection, Reconnects, Span, pair
from trioha.recording.snapshot import ConnectionState, Ended, Snapshot, connection_state
from trioha.recording.state import known
from trioha_monitor.replay.replay_timeline import NS_PER_S, ReplayTimeline, SessionRun

RATE_NS: Final = 2 * NS_PER_S
"""Rates are means over this time, as in the live view."""
LOST_NS: Final = 300 * NS_PER_S
"""How long a lost connection is shown."""
SAME_CONNECTION_NS_MAX: Final = 2 * NS_PER_S
"""Largest difference between the times that master and slave recorded for one connection: two clocks."""
_CACHE_MAX: Final = 64
"""Moments, and answers of `ReplicaRows`, that are cached: views that follow each other share connections."""


@frozen(eq=False)
class Moment:
    """One session at one moment."""

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

    def lag_s(self, ack_offset: int | None) -> float | None:
        """Age of the oldest byte that is not acknowledged; 0 if all are, None if it is not known."""
        if ack_offset is None or self.log_end is None:
            return None
        if self.log_end <= ack_offset:
            return 0.0
        stored_ts_ns = self.run.reader.max_passed_ns(ack_offset, self.position)
        return None if stored_ts_ns is None else self.run.age_s(stored_ts_ns, self.at_ns)


@define(eq=False)
class ReplicaRow:
    """One replica: its connections one after the other."""

    conns: list[int] = field(factory=list)
    """Numbers of the connections; the last one is the present one."""
    reconnects: int = 0
    """How often the replica reconnected, also where its earlier connection is not known."""
    ended: Ended | None = None
    """End of the last connection; None while it is open."""

    @property
    def conn(self) -> int:
        """The present or last connection."""
        return self.conns[-1]

    @property
    def first_conn(self) -> int:
        """The first connection: it identifies the row."""
        return self.conns[0]


@frozen(eq=False)
class ReplicaConnection:
    """A connection of a master's session on which the log was requested."""

    conn: int
    began_ns: int
    ended_ns: int | None = None
    """None while it is open."""
    ended: Ended | None = None


class Moments:
    """The moments of the sessions of `timeline`. Used by one thread at a time; may read the disk."""

    def __init__(self, timeline: ReplayTimeline) -> None:
        self._timeline = timeline
        self._rows = ReplicaRows(SlaveConnections(timeline))
        self._ended: dict[tuple[int, int], ReplicaConnection | None] = {}
        """Ended connections by run and seq of the record that ended them; None for a probe."""
        self._cache: OrderedDict[tuple[int, int], Moment] = OrderedDict()

    def at(self, run: SessionRun, at_ns: int) -> Moment:
        """A session at `at_ns`."""
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
        moment = Moment(run, at_ns, position, snapshot, connections, waiting_probes, acked_ns)
        self._cache[key] = moment
        while len(self._cache) > _CACHE_MAX:
            self._cache.popitem(last=False)
        return moment

    def earlier(self, moment: Moment, by_ns: int) -> Moment | None:
        """The same session `by_ns` earlier; None before its start."""
        at_ns = moment.at_ns - by_ns
        return None if at_ns < moment.run.start_ns else self.at(moment.run, at_ns)

    def growth_per_s(self, moment: Moment) -> float | None:
        """How fast the node's log grew in `RATE_NS` before a moment, bytes per second."""
        before = self.earlier(moment, RATE_NS)
        if before is None or moment.log_end is None or before.log_end is None:
            return None
        return max(0, moment.log_end - before.log_end) / (RATE_NS / NS_PER_S)

    def ended(self, moment: Moment) -> list[Ended]:
        """Connections that ended within `LOST_NS`; all that ever ended where the reader knows them."""
        run, reader = moment.run, moment.run.reader
        is_known = reader.knows_all_before(moment.position)
        first = reader.first_seq if is_known else run.position_at(moment.at_ns - LOST_NS)
        return reader.ended_between(first, moment.position)

    def rows(self, moment: Moment) -> list[ReplicaRow]:
        """The replicas of a master's session, with those that were lost within `LOST_NS`."""
        run = moment.run
        connections = [ReplicaConnection(conn, _began_ns(run, conn)) for conn in moment.connections]
        for ended in self.ended(moment):
            connection = self.replica_connection(run, ended)
            if connection is not None:
                connections.append(connection)
        return [
            row
            for row in self._rows.of(run, connections)
            if row.ended is None or moment.at_ns - ended_ns(run, row.ended) <= LOST_NS
        ]

    def replica_connection(self, run: SessionRun, ended: Ended) -> ReplicaConnection | None:
        """A connection of a master's session that ended; None for a probe."""
        key = (run.number, ended.seq)
        if key not in self._ended:
            state = connection_state(ended.records, is_slave=False)
            self._ended[key] = (
                ReplicaConnection(ended.conn, _began_ns(run, ended.conn), ended_ns(run, ended), ended)
                if is_replica(state)
                else None
            )
        return self._ended[key]

    def ages_ns(self, at_ns: int, *, of: str = "") -> dict[tuple[int, int], int]:
        """Age of the oldest byte that each connected replica lacks, by run and connection.

        `of`: only replicas whose address contains it.
        """
        ages: dict[tuple[int, int], int] = {}
        for node in self._timeline.nodes:
            run = node.run_at(at_ns)
            if run.is_slave or not run.start_ns <= at_ns <= run.end_ns:
                continue
            moment = self.at(run, at_ns)
            for conn, state in moment.connections.items():
                if state.ack_offset < 0 or of not in run.addresses.get(conn, ""):
                    continue
                stored_ns = None
                if (moment.log_end or 0) > state.ack_offset:
                    stored_ns = run.reader.max_passed_ns(state.ack_offset, moment.position)
                ages[run.number, conn] = 0 if stored_ns is None else max(0, at_ns - run.wall_of(stored_ns))
        return ages


class ReplicaRows:
    """Joins the connections of masters' sessions into rows; keeps its last answers."""

    def __init__(self, slave_connections: SlaveConnections) -> None:
        self._slave_connections = slave_connections
        self._cache: OrderedDict[tuple[object, ...], tuple[ReplicaRow, ...]] = OrderedDict()

    def of(self, run: SessionRun, connections: Sequence[ReplicaConnection]) -> tuple[ReplicaRow, ...]:
        """The rows of these connections of a master's session, in the order of their first connections.

        A lost connection that another one has replaced has no row.
        """
        key = (run.number, *((connection.conn, connection.ended_ns) for connection in connections))
        found = self._cache.get(key)
        if found is None:
            found = self._cache[key] = tuple(self._find(run, connections))
            while len(self._cache) > _CACHE_MAX:
                self._cache.popitem(last=False)
        return found

    def _find(self, run: SessionRun, connections: Sequence[ReplicaConnection]) -> Iterable[ReplicaRow]:
        by_conn = {connection.conn: connection for connection in connections}
        spans = [Span(self._identified(run, one.conn), one.began_ns, one.ended_ns) for one in connections]
        reconnects: Reconnects[int] = Reconnects()
        rows: list[ReplicaRow] = []
        of_conn: dict[int, ReplicaRow] = {}
        for arrival in pair(spans, reconnects):
            row = None if arrival.previous is None else of_conn.get(arrival.previous)
            if row is None:
                row = ReplicaRow()
                rows.append(row)
            conn = arrival.connection.key
            row.conns.append(conn)
            row.reconnects += arrival.is_reconnect
            row.ended = by_conn[conn].ended
            of_conn[conn] = row
        return (row for row in rows if row.ended is None or row.conn in reconnects)

    def _identified(self, run: SessionRun, conn: int) -> Connection[int]:
        identity = run.certificates.get(conn, "")
        if not identity and conn in run.broker_ids:
            identity = f"broker {run.broker_ids[conn]}"
        elif not identity and (slave := self._slave_connections.of(run, conn)) is not None:
            session = slave[0].reader.session.identity
            identity = f"{session.cluster_name}/{session.broker_name}/{session.broker_id}"
        return Connection(conn, run.addresses.get(conn, ""), identity)


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


def _has_grown(moment: Moment) -> bool:
    return moment.at_ns >= moment.run.end_ns and moment.position != moment.run.reader.end_seq


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
