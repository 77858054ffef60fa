"""Which connections of a master are one replica: a slave's port changes with every connection.

As in the live view: a new connection continues one of the same host that is lost; of several lost ones that
which was lost first. A slave that recorded a session of its own is known by the times of its connections.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from attrs import define, field

from trioha.recording.standing import Ended
from trioha_monitor.replay.reel import NS_PER_S, Reel, Take

TWIN_NS_MAX: Final = 2 * NS_PER_S
"""Difference of both sides' times of one connection at most: clocks of two machines."""


@define(eq=False)
class Row:
    """One replica: its connections one after the other."""

    conns: list[int] = field(factory=list)
    """Their numbers; the last one is the present one."""
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


def rows_of(
    take: Take, position: int, *, open_conns: Iterable[int], ended: Iterable[Ended], first_seq: int
) -> list[Row]:
    """The rows of a master's session at `position`, in the order of their first connections.

    `ended` are the connections that ended since `first_seq`; of those that ended before, nothing is known
    but that they are neither open nor among these.
    """
    open_now = set(open_conns)
    ends = {one.conn: one for one in ended}
    turns: list[tuple[int, int, int]] = []
    begun = {conn: seq for conn, seq in take.begin_seqs.items() if seq < position}
    for conn in open_now - begun.keys() | ends.keys() - begun.keys():
        begun[conn] = first_seq
    for conn, seq in begun.items():
        turns.append((seq, 1, conn))
        if conn in ends:
            turns.append((ends[conn].seq, 0, conn))
        elif conn not in open_now:
            turns.append((max(seq + 1, min(first_seq, position)), 0, conn))
    rows: list[Row] = []
    of_conn: dict[int, Row] = {}
    vacant: dict[str, list[Row]] = {}
    for _, begins, conn in sorted(turns):
        host = take.addresses.get(conn, f":{conn}").rpartition(":")[0]
        if begins:
            lost = vacant.get(host)
            if lost:
                row = lost.pop(0)
            else:
                row = Row()
                rows.append(row)
            row.conns.append(conn)
            row.ended = None
            of_conn[conn] = row
        else:
            row = of_conn[conn]
            row.ended = ends.get(conn)
            vacant.setdefault(host, []).append(row)
    return [row for row in rows if row.conn in open_now or row.ended is not None]


class Twins:
    """Which connection of a slave's session is which of its master's."""

    def __init__(self, reel: Reel) -> None:
        self._reel = reel
        self._known: dict[tuple[int, int], tuple[Take, int]] = {}
        self._counted: tuple[int, ...] = ()
        self._begins: dict[tuple[int, int], int | None] = {}

    def of(self, take: Take, conn: int) -> tuple[Take, int] | None:
        """The slave's session and its number of the connection `conn` of a master's session."""
        counted = tuple(len(one.begin_seqs) for one in self._reel.takes)
        if counted != self._counted:
            self._find()
            self._counted = counted
        return self._known.get((take.number, conn))

    def _find(self) -> None:
        self._known.clear()
        pairs: list[tuple[int, Take, int, Take, int]] = []
        slaves = [one for one in self._reel.takes if one.is_slave]
        for master in self._reel.takes if slaves else ():
            if master.is_slave:
                continue
            identity = master.tape.session.identity
            ours = [
                (begin_ns, slave, conn)
                for slave in slaves
                if slave.tape.session.identity.cluster_name == identity.cluster_name
                and slave.tape.session.identity.broker_name == identity.broker_name
                for conn in slave.begin_seqs
                if (begin_ns := self._begin_ns(slave, conn)) is not None
            ]
            for conn in master.begin_seqs:
                begin_ns = self._begin_ns(master, conn)
                if begin_ns is None:
                    continue
                pairs += [
                    (abs(begin_ns - other_ns), master, conn, slave, slave_conn)
                    for other_ns, slave, slave_conn in ours
                    if abs(begin_ns - other_ns) <= TWIN_NS_MAX
                ]
        taken: set[tuple[int, int]] = set()
        for _, master, conn, slave, slave_conn in sorted(pairs, key=_apart):
            if (master.number, conn) in self._known or (slave.number, slave_conn) in taken:
                continue
            self._known[master.number, conn] = (slave, slave_conn)
            taken.add((slave.number, slave_conn))

    def _begin_ns(self, take: Take, conn: int) -> int | None:
        key = (take.number, conn)
        if self._begins.get(key) is None:
            ts_ns = take.tape.time_of(take.begin_seqs[conn])
            self._begins[key] = None if ts_ns is None else take.wall_of(ts_ns)
        return self._begins[key]


def _apart(pair: tuple[int, Take, int, Take, int]) -> tuple[int, int, int, int, int]:
    apart_ns, master, conn, slave, slave_conn = pair
    return apart_ns, master.number, conn, slave.number, slave_conn
