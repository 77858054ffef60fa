"""Where everything stood in a session at a moment, and which connections were one replica then."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from attrs import frozen

from trioha.recording.events import Kind
from trioha.recording.standing import Ended, Standing, Stands, stands
from trioha_monitor.replay.reel import NS_PER_S, Reel, Take
from trioha_monitor.replay.rows import Life, Row, Rows, Twins

RATE_NS: Final = 2 * NS_PER_S
"""Speeds are means over this time, as in the live view."""
LOST_NS: Final = 300 * NS_PER_S
"""How long a lost connection is shown."""
_KEPT: Final = 64
"""Moments that stay in memory."""


@frozen(eq=False)
class Moment:
    """One session at one moment."""

    take: Take
    at_ns: int
    position: int
    standing: Standing
    connections: dict[int, Stands]
    """Open ones; of a master's session those that asked for the log."""
    waiting_probes: int
    """Open ones of a master's session on which nothing was asked."""
    acked_ns: dict[int, int]
    """Time of each one's last ack, on the axis."""

    @property
    def own_max(self) -> int | None:
        """End of the node's own log."""
        own_max = self.standing.own_max_offset
        return None if own_max < 0 else own_max


class Moments:
    """The moments of the sessions of `reel`. Used by one thread at a time; may read the disk."""

    def __init__(self, reel: Reel) -> None:
        self._reel = reel
        self._rows = Rows(Twins(reel))
        self._lives: dict[tuple[int, int], Life | None] = {}
        """What is known of ended connections, by take and the record that ended them."""
        self._known: OrderedDict[tuple[int, int], Moment] = OrderedDict()

    def at(self, take: Take, at_ns: int) -> Moment:
        """A session at `at_ns`."""
        key = (take.number, at_ns)
        known = self._known.get(key)
        if known is not None and not _has_grown(known):
            self._known.move_to_end(key)
            return known
        position = take.position_at(at_ns)
        standing = take.tape.with_own_times(take.tape.standing_at(position), position)
        connections: dict[int, Stands] = {}
        acked_ns: dict[int, int] = {}
        waiting_probes = 0
        for conn, records in standing.connections():
            said = stands(records, is_slave=take.is_slave)
            if said.state < 0 and said.ack_offset < 0 and said.received_offset < 0:
                continue
            if not take.is_slave and not has_asked(said):
                waiting_probes += 1
                continue
            connections[conn] = said
            acks = records["ts_ns"][records["kind"] == Kind.ACK]
            if len(acks):
                acked_ns[conn] = take.wall_of(int(acks[-1]))
        found = Moment(take, at_ns, position, standing, connections, waiting_probes, acked_ns)
        self._known[key] = found
        while len(self._known) > _KEPT:
            self._known.popitem(last=False)
        return found

    def earlier(self, moment: Moment, by_ns: int) -> Moment | None:
        """The same session so much earlier; None before it begins."""
        at_ns = moment.at_ns - by_ns
        return None if at_ns < moment.take.start_ns else self.at(moment.take, at_ns)

    def ended(self, moment: Moment) -> list[Ended]:
        """Connections that ended lately, or all that did where that is known."""
        tape = moment.take.tape
        return tape.ended_between(_ended_from(moment), moment.position)

    def rows(self, moment: Moment) -> list[Row]:
        """The replicas of a master's session, those included that were lost lately."""
        take = moment.take
        lives = [Life(conn, _came_ns(take, conn)) for conn in moment.connections]
        lives += [life for ended in self.ended(moment) if (life := self.life(take, ended)) is not None]
        return [
            row
            for row in self._rows.of(take, lives)
            if row.ended is None or moment.at_ns - ended_ns(take, row.ended) <= LOST_NS
        ]

    def life(self, take: Take, ended: Ended) -> Life | None:
        """A connection of a master's session that ended; None of a probe."""
        key = (take.number, ended.seq)
        if key not in self._lives:
            said = stands(ended.records, is_slave=False)
            self._lives[key] = (
                Life(ended.conn, _came_ns(take, ended.conn), ended_ns(take, ended), ended)
                if has_asked(said)
                else None
            )
        return self._lives[key]

    def ages_ns(self, at_ns: int, *, of: str = "") -> dict[tuple[int, int], int]:
        """Age of the oldest byte that each connected replica lacks, by take and connection.

        `of`: only of those whose address contains it.
        """
        ages: dict[tuple[int, int], int] = {}
        for node in self._reel.nodes:
            take = node.take_at(at_ns)
            if take.is_slave or not take.start_ns <= at_ns <= take.end_ns:
                continue
            moment = self.at(take, at_ns)
            for conn, said in moment.connections.items():
                if said.ack_offset < 0 or of not in take.addresses.get(conn, ""):
                    continue
                passed_ns = None
                if (moment.own_max or 0) > said.ack_offset:
                    passed_ns = take.tape.max_passed_ns(said.ack_offset, moment.position)
                ages[take.number, conn] = 0 if passed_ns is None else max(0, at_ns - take.wall_of(passed_ns))
        return ages


def _came_ns(take: Take, conn: int) -> int:
    came_ns = take.begin_ns(conn)
    return take.start_ns if came_ns is None else came_ns


def has_asked(said: Stands) -> bool:
    """Whether a connection of a master's session is a replica's: its peer sent a valid request."""
    return max(said.request_max_offset, said.sent_offset, said.ack_offset) >= 0


def ended_ns(take: Take, ended: Ended) -> int:
    """When a connection ended, on the axis."""
    ts_ns = stands(ended.records, is_slave=take.is_slave)
    return take.wall_of(ts_ns.closed_ts_ns if ts_ns.closed_ts_ns >= 0 else ts_ns.last_ts_ns)


def _ended_from(moment: Moment) -> int:
    tape = moment.take.tape
    if tape.knows_all_before(moment.position):
        return tape.first_seq
    return moment.take.position_at(moment.at_ns - LOST_NS)


def _has_grown(moment: Moment) -> bool:
    return moment.at_ns >= moment.take.end_ns and moment.position != moment.take.tape.end_seq


def age_s(take: Take, ts_ns: int, at_ns: int) -> float | None:
    """How long before `at_ns` a time of the session was, seconds; None for UNKNOWN."""
    return None if ts_ns < 0 else max(0, at_ns - take.wall_of(ts_ns)) / NS_PER_S


def known(value: int) -> int | None:
    """An offset; None for UNKNOWN."""
    return None if value < 0 else value
