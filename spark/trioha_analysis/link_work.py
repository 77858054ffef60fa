"""Links of connections as work for tasks: a connection of a master beside those of slaves that may be it.

`trioha_sessions.clocks` compares the first frames and acks of two connections. Where they start is known
after a replay, so a task reads only the starts of its connections, however long the sessions are.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from operator import attrgetter
from pathlib import Path
from typing import Final

from attrs import frozen

from trioha.distribution import Distribution
from trioha.recording.reader import Segment, Session, open_session
from trioha_analysis.ranges import read_seqs
from trioha_analysis.replay_result import ReplayResult, SessionReplay
from trioha_sessions.clocks import (
    Candidate,
    FirstEvents,
    Link,
    LinkEnd,
    choose_links,
    compare_ends,
    first_events,
)
from trioha_sessions.segments import Damage, Segments

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


@frozen
class ConnectionFrames:
    """A connection that has frames, and which bytes of the log they have, without holes."""

    start: ConnectionStart
    start_offset: int
    end_offset: int


def link_work(result: ReplayResult) -> Iterator[LinkWork]:
    """What is to be compared, by the connections of each master. Only sessions of one broker are."""
    by_broker: dict[str, list[tuple[int, SessionReplay]]] = {}
    for index, replay in enumerate(result.sessions):
        by_broker.setdefault(replay.session.identity.broker_name, []).append((index, replay))
    for replays in by_broker.values():
        slaves = [
            frames
            for index, replay in replays
            if replay.session.is_slave
            for frames in _frames_of(index, replay)
        ]
        for index, replay in replays:
            if not replay.session.is_slave:
                yield from work_of(_frames_of(index, replay), slaves)


def work_of(masters: Iterable[ConnectionFrames], slaves: Iterable[ConnectionFrames]) -> Iterator[LinkWork]:
    """What is to be compared of these connections of a master and of its slaves."""
    ordered = sorted(slaves, key=_start_offset)
    if ordered:
        for one in masters:
            yield LinkWork(one.start, tuple(slave.start for slave in _nearest(ordered, one)))


def _start_offset(frames: ConnectionFrames) -> int:
    return frames.start_offset


def _nearest(slaves: Sequence[ConnectionFrames], master: ConnectionFrames) -> list[ConnectionFrames]:
    """The connections whose frames overlap those of `master` and that start nearest to it."""
    start, end = master.start_offset, master.end_offset
    at = bisect_left(slaves, start, key=_start_offset)
    low, high = at - 1, at
    chosen: list[ConnectionFrames] = []
    while len(chosen) < CANDIDATES_MAX and (low >= 0 or high < len(slaves)):
        below = start - slaves[low].start_offset if low >= 0 else None
        above = slaves[high].start_offset - start if high < len(slaves) else None
        if above is None or (below is not None and below < above):
            slave, low = slaves[low], low - 1
        else:
            slave, high = slaves[high], high + 1
        if slave.start_offset <= end and slave.end_offset >= start:
            chosen.append(slave)
    return chosen


def _frames_of(index: int, replay: SessionReplay) -> Iterator[ConnectionFrames]:
    for one in replay.connections:
        figures = one.figures
        if figures.frames:
            found = figures.sent_offset if figures.received_offset is None else figures.received_offset
            end = found or 0
            start = connection_start(
                index, replay.session.path, replay.segments, conn=figures.conn, first_seq=figures.first_seq
            )
            yield ConnectionFrames(start, end - figures.body_bytes, end)


def connection_start(
    index: int, path: Path, segments: Sequence[Segment], *, conn: int, first_seq: int
) -> ConnectionStart:
    """The start of a connection in the session of this index, which has these segments."""
    begin = max(0, bisect_right(segments, first_seq, key=attrgetter("base_seq")) - 1)
    end = bisect_left(segments, first_seq + READ_RECORDS_MAX, key=attrgetter("base_seq"))
    return ConnectionStart(index, path, conn, first_seq, tuple(segments[begin : max(end, begin + 1)]))


@frozen
class Compared:
    """A candidate without its sessions, which the driver has: the fields of its `Link`, and its score."""

    master_index: int
    """Of the master's session, as `slave_index` of the slave's."""
    master_conn: int
    slave_index: int
    slave_conn: int
    frames: int
    clock_offset_ns: int | None
    clock_error_ns: int | None
    to_slave_ns: Distribution[int] | None
    slave_ns: Distribution[int] | None
    to_master_ns: Distribution[int] | None
    score: int
    apart_ns: int

    def candidate(self, sessions: Sequence[Session]) -> Candidate:
        """With the sessions."""
        link = Link(
            master=sessions[self.master_index],
            master_conn=self.master_conn,
            slave=sessions[self.slave_index],
            slave_conn=self.slave_conn,
            frames=self.frames,
            clock_offset_ns=self.clock_offset_ns,
            clock_error_ns=self.clock_error_ns,
            to_slave_ns=self.to_slave_ns,
            slave_ns=self.slave_ns,
            to_master_ns=self.to_master_ns,
        )
        return Candidate(link, self.score, self.apart_ns)


def compare(work: LinkWork) -> Iterator[Compared]:
    """The links that the master's connection may be."""
    at_master = _end(work.master)
    for slave in work.slaves if at_master is not None else ():
        at_slave = _end(slave)
        if at_master is not None and at_slave is not None:
            found = compare_ends(at_master, at_slave)
            if found is not None:
                link = found.link
                yield Compared(
                    master_index=work.master.session_index,
                    master_conn=link.master_conn,
                    slave_index=slave.session_index,
                    slave_conn=link.slave_conn,
                    frames=link.frames,
                    clock_offset_ns=link.clock_offset_ns,
                    clock_error_ns=link.clock_error_ns,
                    to_slave_ns=link.to_slave_ns,
                    slave_ns=link.slave_ns,
                    to_master_ns=link.to_master_ns,
                    score=found.score,
                    apart_ns=found.apart_ns,
                )


def links_of(sessions: Sequence[Session], compared: Iterable[Compared]) -> tuple[Link, ...]:
    """The links of sessions, as `trioha_sessions.clocks.links` finds them."""
    return tuple(choose_links(one.candidate(sessions) for one in compared))


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
