"""Which connections of a master are one replica: a slave's port changes with every connection.

As in the live view, by the one rule of `trioha.recording.reconnects`. A slave that recorded a session of its
own is known by the times of its connections. A connection on which nothing was asked is a probe and no row.

Where everything stood in a session at a moment, and which connections were one replica then.
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
from trioha_monitor.replay.replay_timeline import NS_PER_S, ReplayTimeline, SessionRun

TWIN_NS_MAX: Final = 2 * NS_PER_S
"""Difference of both sides' times of one connection at most: clocks of two machines."""
_KEPT: Final = 64
"""Answers that stay in memory: while it plays, one view after the other has the same connections."""


@define(eq=False)
class Row:
    """One replica: its connections one after the other."""

    conns: list[int] = field(factory=list)
    """Their numbers; the last one is the present one."""
    returns: int = 0
    """How often it came back, also where it is not known after which connection."""
    ended: Ended | None = None
    """The end of the last one; None while it is open."""

    @property
    def conn(self) -> int:
        """The present or last connection."""
        return self.conns[-1]

    @property
    def root(self) -> int:
        """The first one: names the row."""
        return self.conns[0]


@frozen(eq=False)
class Life:
    """A connection of a master's session that asked for the log."""

    conn: int
    came_ns: int
    lost_ns: int | None = None
    """None while it is open."""
    ended: Ended | None = None
    """Its end, if it has one."""


class Rows:
    """Finds the rows of masters' sessions; keeps what it found last."""

    def __init__(self, twins: Twins) -> None:
        self._twins = twins
        self._found: OrderedDict[tuple[object, ...], tuple[Row, ...]] = OrderedDict()

    def of(self, run: SessionRun, lives: Sequence[Life]) -> tuple[Row, ...]:
        """The rows of these connections of a master's session, in the order of their first connections.

        Lost ones whose places others have taken are left out.
        """
        key = (run.number, *((life.conn, life.lost_ns) for life in lives))
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = tuple(self._find(run, lives))
            while len(self._found) > _KEPT:
                self._found.popitem(last=False)
        return found

    def _find(self, run: SessionRun, lives: Sequence[Life]) -> Iterable[Row]:
        by_conn = {life.conn: life for life in lives}
        spans = [Span(self._connection(run, life.conn), life.came_ns, life.lost_ns) for life in lives]
        reconnects: Reconnects[int] = Reconnects()
        rows: list[Row] = []
        of_conn: dict[int, Row] = {}
        for arrival in pair(spans, reconnects):
            row = None if arrival.previous is None else of_conn.get(arrival.previous)
            if row is None:
                row = Row()
                rows.append(row)
            conn = arrival.connection.key
            row.conns.append(conn)
            row.returns += arrival.is_reconnect
            row.ended = by_conn[conn].ended
            of_conn[conn] = row
        return (row for row in rows if row.ended is None or row.conn in reconnects)

    def _connection(self, run: SessionRun, conn: int) -> Connection[int]:
        identity = run.certificates.get(conn, "")
        if not identity and (twin := self._twins.of(run, conn)) is not None:
            session = twin[0].reader.session.identity
            identity = f"{session.cluster_name}/{session.broker_name}/{session.broker_id}"
        return Connection(conn, run.addresses.get(conn, ""), identity)


class Twins:
    """Which connection of a slave's session is which of its master's."""

    def __init__(self, timeline: ReplayTimeline) -> None:
        self._timeline = timeline
        self._known: dict[tuple[int, int], tuple[SessionRun, int]] = {}
        self._counted: tuple[int, ...] = ()

    def of(self, run: SessionRun, conn: int) -> tuple[SessionRun, int] | None:
        """The slave's session and its number of the connection `conn` of a master's session."""
        counted = tuple(len(one.begin_seqs) for one in self._timeline.runs)
        if counted != self._counted:
            self._find()
            self._counted = counted
        return self._known.get((run.number, conn))

    def _find(self) -> None:
        self._known.clear()
        ours: defaultdict[tuple[str, str], list[tuple[int, int, SessionRun, int]]] = defaultdict(list)
        for slave in self._timeline.runs:
            if slave.is_slave:
                ours[_group_of(slave)] += _begins(slave)
        pairs: list[tuple[int, SessionRun, int, SessionRun, int]] = []
        for own in ours.values():
            own.sort(key=_begin_and_number)
        for master in self._timeline.runs:
            own = ours.get(_group_of(master), [])
            if master.is_slave or not own:
                continue
            times = [begin_ns for begin_ns, *_ in own]
            for begin_ns, conn, _, _ in _begins(master):
                low = bisect_left(times, begin_ns - TWIN_NS_MAX)
                high = bisect_right(times, begin_ns + TWIN_NS_MAX)
                pairs += [
                    (abs(begin_ns - other_ns), master, conn, slave, slave_conn)
                    for other_ns, slave_conn, slave, _ in own[low:high]
                ]
        taken: set[tuple[int, int]] = set()
        for _, master, conn, slave, slave_conn in sorted(pairs, key=_apart):
            if (master.number, conn) in self._known or (slave.number, slave_conn) in taken:
                continue
            self._known[master.number, conn] = (slave, slave_conn)
            taken.add((slave.number, slave_conn))


def _begins(run: SessionRun) -> list[tuple[int, int, SessionRun, int]]:
    """When each connection of a session began, and its number; the last value only keeps takes in order."""
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


def _apart(pair_: tuple[int, SessionRun, int, SessionRun, int]) -> tuple[int, int, int, int, int]:
    apart_ns, master, conn, slave, slave_conn = pair_
    return apart_ns, master.number, conn, slave.number, slave_conn


RATE_NS: Final = 2 * NS_PER_S
"""Speeds are means over this time, as in the live view."""
LOST_NS: Final = 300 * NS_PER_S
"""How long a lost connection is shown."""


@frozen(eq=False)
class Moment:
    """One session at one moment."""

    run: SessionRun
    at_ns: int
    position: int
    snapshot: Snapshot
    connections: dict[int, ConnectionState]
    """Open ones; of a master's session those that asked for the log."""
    waiting_probes: int
    """Open ones of a master's session on which nothing was asked."""
    acked_ns: dict[int, int]
    """Time of each one's last ack, on the axis."""

    @property
    def own_max(self) -> int | None:
        """End of the node's own log."""
        own_max = self.snapshot.log_end_offset
        return None if own_max < 0 else own_max


class Moments:
    """The moments of the sessions of `timeline`. Used by one thread at a time; may read the disk."""

    def __init__(self, timeline: ReplayTimeline) -> None:
        self._timeline = timeline
        self._rows = Rows(Twins(timeline))
        self._lives: dict[tuple[int, int], Life | None] = {}
        """What is known of ended connections, by take and the record that ended them."""
        self._known: OrderedDict[tuple[int, int], Moment] = OrderedDict()

    def at(self, run: SessionRun, at_ns: int) -> Moment:
        """A session at `at_ns`."""
        key = (run.number, at_ns)
        known = self._known.get(key)
        if known is not None and not _has_grown(known):
            self._known.move_to_end(key)
            return known
        position = run.position_at(at_ns)
        snapshot = run.reader.with_own_times(run.reader.snapshot_at(position), position)
        connections: dict[int, ConnectionState] = {}
        acked_ns: dict[int, int] = {}
        waiting_probes = 0
        for conn, records in snapshot.connections():
            said = connection_state(records, is_slave=run.is_slave)
            if said.state < 0 and said.ack_offset < 0 and said.received_offset < 0:
                continue
            if not run.is_slave and not has_asked(said):
                waiting_probes += 1
                continue
            connections[conn] = said
            acks = records["ts_ns"][records["kind"] == Kind.ACK]
            if len(acks):
                acked_ns[conn] = run.wall_of(int(acks[-1]))
        found = Moment(run, at_ns, position, snapshot, connections, waiting_probes, acked_ns)
        self._known[key] = found
        while len(self._known) > _KEPT:
            self._known.popitem(last=False)
        return found

    def earlier(self, moment: Moment, by_ns: int) -> Moment | None:
        """The same session so much earlier; None before it begins."""
        at_ns = moment.at_ns - by_ns
        return None if at_ns < moment.run.start_ns else self.at(moment.run, at_ns)

    def ended(self, moment: Moment) -> list[Ended]:
        """Connections that ended lately, or all that did where that is known."""
        reader = moment.run.reader
        return reader.ended_between(_ended_from(moment), moment.position)

    def rows(self, moment: Moment) -> list[Row]:
        """The replicas of a master's session, those included that were lost lately."""
        run = moment.run
        lives = [Life(conn, _came_ns(run, conn)) for conn in moment.connections]
        lives += [life for ended in self.ended(moment) if (life := self.life(run, ended)) is not None]
        return [
            row
            for row in self._rows.of(run, lives)
            if row.ended is None or moment.at_ns - ended_ns(run, row.ended) <= LOST_NS
        ]

    def life(self, run: SessionRun, ended: Ended) -> Life | None:
        """A connection of a master's session that ended; None of a probe."""
        key = (run.number, ended.seq)
        if key not in self._lives:
            said = connection_state(ended.records, is_slave=False)
            self._lives[key] = (
                Life(ended.conn, _came_ns(run, ended.conn), ended_ns(run, ended), ended)
                if has_asked(said)
                else None
            )
        return self._lives[key]

    def ages_ns(self, at_ns: int, *, of: str = "") -> dict[tuple[int, int], int]:
        """Age of the oldest byte that each connected replica lacks, by take and connection.

        `of`: only of those whose address contains it.
        """
        ages: dict[tuple[int, int], int] = {}
        for node in self._timeline.nodes:
            run = node.run_at(at_ns)
            if run.is_slave or not run.start_ns <= at_ns <= run.end_ns:
                continue
            moment = self.at(run, at_ns)
            for conn, said in moment.connections.items():
                if said.ack_offset < 0 or of not in run.addresses.get(conn, ""):
                    continue
                passed_ns = None
                if (moment.own_max or 0) > said.ack_offset:
                    passed_ns = run.reader.max_passed_ns(said.ack_offset, moment.position)
                ages[run.number, conn] = 0 if passed_ns is None else max(0, at_ns - run.wall_of(passed_ns))
        return ages


def _came_ns(run: SessionRun, conn: int) -> int:
    came_ns = run.begin_ns(conn)
    return run.start_ns if came_ns is None else came_ns


def has_asked(said: ConnectionState) -> bool:
    """Whether a connection of a master's session is a replica's: its peer sent a valid request."""
    return max(said.request_max_offset, said.sent_offset, said.ack_offset) >= 0


def ended_ns(run: SessionRun, ended: Ended) -> int:
    """When a connection ended, on the axis."""
    ts_ns = connection_state(ended.records, is_slave=run.is_slave)
    return run.wall_of(ts_ns.closed_ts_ns if ts_ns.closed_ts_ns >= 0 else ts_ns.last_ts_ns)


def _ended_from(moment: Moment) -> int:
    reader = moment.run.reader
    if reader.knows_all_before(moment.position):
        return reader.first_seq
    return moment.run.position_at(moment.at_ns - LOST_NS)


def _has_grown(moment: Moment) -> bool:
    return moment.at_ns >= moment.run.end_ns and moment.position != moment.run.reader.end_seq


def age_s(run: SessionRun, ts_ns: int, at_ns: int) -> float | None:
    """How long before `at_ns` a time of the session was, seconds; None for UNKNOWN."""
    return None if ts_ns < 0 else max(0, at_ns - run.wall_of(ts_ns)) / NS_PER_S


def known(value: int) -> int | None:
    """An offset; None for UNKNOWN."""
    return None if value < 0 else value
