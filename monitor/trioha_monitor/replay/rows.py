"""Which connections of a master are one replica: a slave's port changes with every connection.

As in the live view, by the one rule of `trioha.recording.reconnects`. A slave that recorded a session of its
own is known by the times of its connections. A connection on which nothing was asked is a probe and no row.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

from attrs import define, field, frozen

from trioha.recording.reconnects import Connection, Reconnects, Span, pair
from trioha.recording.snapshot import Ended
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
