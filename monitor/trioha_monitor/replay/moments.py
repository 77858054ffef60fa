"""Where everything stood in a session at a moment, and which connections were one replica then."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from attrs import frozen

from trioha.recording.events import Kind
from trioha.recording.snapshot import ConnectionState, Ended, Snapshot, connection_state
from trioha_monitor.replay.replay_timeline import NS_PER_S, ReplayTimeline, SessionRun
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
