"""Links of connections as work for tasks: a connection of a master beside those of slaves that may be it.

`trioha.recording.clocks` compares the first frames and acks of two connections. Where they start is known
after a replay, so a task reads only the starts of its connections, however long the sessions are.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

from attrs import astuple, frozen

from trioha.recording.clocks import (
    Candidate,
    FirstEvents,
    Link,
    LinkEnd,
    choose_links,
    compare_ends,
    first_events,
)
from trioha.recording.reader import Damage, Segment, Segments, open_session
from trioha_analysis.ranges import read_seqs
from trioha_analysis.replay_result import ConnectionReplay, ReplayResult, SessionReplay

READ_RECORDS_MAX: Final = 1_000_000
"""Records of a session, from a connection's first one on, in which its first frames and acks are searched."""
CANDIDATES_MAX: Final = 8
"""Connections of slaves that are compared with one of a master: those that start nearest in the log."""
_STARTS_KEPT: Final = 64
"""Connections whose first events stay in a process: slaves' are compared with several of the master's."""


@frozen
class ConnectionStart:
    """Where a connection starts in a session."""

    session_index: int
    path: Path
    conn: int
    first_seq: int
    segments: tuple[Segment, ...]
    """Those that have its first records."""


@frozen
class LinkWork:
    """A connection of a master, and those of slaves that may be it."""

    master: ConnectionStart
    slaves: tuple[ConnectionStart, ...]


def link_work(result: ReplayResult) -> Iterator[LinkWork]:
    """What is to be compared, by the connections of each master. Only sessions of one broker are."""
    by_broker: dict[str, list[tuple[int, SessionReplay]]] = {}
    for index, replay in enumerate(result.sessions):
        by_broker.setdefault(replay.session.identity.broker_name, []).append((index, replay))
    for replays in by_broker.values():
        slaves = sorted(
            (
                (_start_offset(one), index, replay, one)
                for index, replay in replays
                if replay.session.is_slave
                for one in replay.connections
                if one.figures.frames
            ),
            key=_offset_of,
        )
        for index, replay in replays:
            if replay.session.is_slave or not slaves:
                continue
            for one in replay.connections:
                if one.figures.frames:
                    chosen = _nearest(slaves, _start_offset(one), _end_offset(one))
                    yield LinkWork(
                        _start_of(index, replay, one),
                        tuple(_start_of(*slave[1:]) for slave in chosen),
                    )


_Slave = tuple[int, int, SessionReplay, ConnectionReplay]


def _offset_of(slave: _Slave) -> int:
    return slave[0]


def _nearest(slaves: Sequence[_Slave], start: int, end: int) -> list[_Slave]:
    """The connections whose frames overlap `[start, end)` and that start nearest to `start`."""
    at = bisect_left(slaves, start, key=_offset_of)
    low, high = at - 1, at
    chosen: list[_Slave] = []
    while len(chosen) < CANDIDATES_MAX and (low >= 0 or high < len(slaves)):
        below = start - slaves[low][0] if low >= 0 else None
        above = slaves[high][0] - start if high < len(slaves) else None
        if above is None or (below is not None and below < above):
            slave, low = slaves[low], low - 1
        else:
            slave, high = slaves[high], high + 1
        if slave[0] <= end and _end_offset(slave[3]) >= start:
            chosen.append(slave)
    return chosen


def _end_offset(one: ConnectionReplay) -> int:
    """End of its frames in the log."""
    figures = one.figures
    found = figures.sent_offset if figures.received_offset is None else figures.received_offset
    return found or 0


def _start_offset(one: ConnectionReplay) -> int:
    """Start of its frames in the log, which have no holes."""
    return _end_offset(one) - one.figures.body_bytes


def _start_of(index: int, replay: SessionReplay, one: ConnectionReplay) -> ConnectionStart:
    first_seq = one.figures.first_seq
    begin = max(0, bisect_right(replay.segments, first_seq, key=attrgetter("base_seq")) - 1)
    end = bisect_left(replay.segments, first_seq + READ_RECORDS_MAX, key=attrgetter("base_seq"))
    return ConnectionStart(
        index, replay.session.path, one.figures.conn, first_seq, replay.segments[begin : max(end, begin + 1)]
    )


@frozen(eq=False)
class Compared:
    """A candidate without its sessions, which the driver has."""

    master_index: int
    slave_index: int
    score: int
    apart_ns: int
    figures: tuple[Any, ...]
    """The fields of its `Link` but for the sessions."""

    def candidate(self, result: ReplayResult) -> Candidate:
        """With the sessions of `result`."""
        master, slave = (result.sessions[index].session for index in (self.master_index, self.slave_index))
        master_conn, slave_conn, *rest = self.figures
        return Candidate(Link(master, master_conn, slave, slave_conn, *rest), self.score, self.apart_ns)


def compare(work: LinkWork) -> Iterator[Compared]:
    """The links that the master's connection may be."""
    at_master = _end(work.master)
    for slave in work.slaves if at_master is not None else ():
        at_slave = _end(slave)
        if at_master is not None and at_slave is not None:
            found = compare_ends(at_master, at_slave)
            if found is not None:
                _, master_conn, _, slave_conn, *rest = astuple(found.link, recurse=False)
                yield Compared(
                    work.master.session_index,
                    slave.session_index,
                    found.score,
                    found.apart_ns,
                    (master_conn, slave_conn, *rest),
                )


def links_of(result: ReplayResult, compared: Iterable[Compared]) -> tuple[Link, ...]:
    """The links of a replay, as `trioha.recording.clocks.links` finds them."""
    return tuple(choose_links(one.candidate(result) for one in compared))


def _end(start: ConnectionStart) -> LinkEnd | None:
    events = _first_events(start)
    return None if events is None else LinkEnd(open_session(start.path), start.conn, events)


@lru_cache(_STARTS_KEPT)
def _first_events(start: ConnectionStart) -> FirstEvents | None:
    session = open_session(start.path)
    found = read_seqs(
        session,
        Segments(start.segments, ()),
        seq_from=start.first_seq,
        seq_to=start.first_seq + READ_RECORDS_MAX,
    )
    return first_events(session, start.conn, (one for one in found if not isinstance(one, Damage)))
