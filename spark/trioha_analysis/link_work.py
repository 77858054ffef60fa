"""Links of connections as work for tasks: a connection of a master beside those of slaves that may be it.

`trioha_sessions.clocks` compares the first frames and acks of two connections. Where they start is known
after a replay, so a task reads only the starts of its connections, however long the sessions are.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final

from attrs import frozen

from trioha.distribution import Distribution
from trioha.recording.reader import Session, open_session
from trioha_analysis.ranges import read_seqs
from trioha_analysis.session_replay import SessionReplay
from trioha_sessions.clocks import (
    Candidate,
    FirstEvents,
    Link,
    LinkEnd,
    choose_links,
    compare_ends,
    first_events,
)
from trioha_sessions.segments import Damage, Segments, read_segments

READ_RECORDS_MAX: Final = 1_000_000
"""Records of a session, from a connection's first one on, in which its first frames and acks are searched."""
CANDIDATES_MAX: Final = 8
"""Connections of slaves that are compared with one of a master: those that start nearest in the log."""
_STARTS_KEPT: Final = 64
"""Connections whose first events stay in memory: slaves' are compared with several of the master's."""


@frozen
class ConnectionFrames:
    """A connection that has frames: where it starts, and which bytes of the log they have, without holes."""

    broker_name: str
    is_slave: bool
    """Whether a slave recorded it."""
    session_index: int
    path: Path
    """Of the session."""
    conn: int
    first_seq: int
    start_offset: int
    end_offset: int


@frozen
class LinkWork:
    """A connection of a master, and those of slaves that may be it."""

    master: ConnectionFrames
    slaves: tuple[ConnectionFrames, ...]


def frames_of(index: int, replay: SessionReplay) -> Iterator[ConnectionFrames]:
    """The connections of a session, the one of this index, that have frames."""
    session = replay.session
    for one in replay.connections:
        figures = one.figures
        if figures.frames:
            found = figures.sent_offset if figures.received_offset is None else figures.received_offset
            end = found or 0
            yield ConnectionFrames(
                broker_name=session.identity.broker_name,
                is_slave=session.is_slave,
                session_index=index,
                path=session.path,
                conn=figures.conn,
                first_seq=figures.first_seq,
                start_offset=end - figures.body_bytes,
                end_offset=end,
            )


def link_work(frames: Iterable[ConnectionFrames]) -> Iterator[LinkWork]:
    """What is to be compared of the connections of one broker and its slaves."""
    ordered = sorted(frames, key=_by_conn)
    slaves = sorted((one for one in ordered if one.is_slave), key=_start_offset)
    if slaves:
        for one in ordered:
            if not one.is_slave:
                yield LinkWork(one, tuple(_nearest(slaves, one)))


def _by_conn(frames: ConnectionFrames) -> tuple[int, int]:
    return frames.session_index, frames.conn


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


@frozen
class Compared:
    """A connection of a master and one of a slave that have frames in common: the fields of their `Link`."""

    broker_name: str
    master_index: int
    """Of the master's session."""
    master_path: Path
    """Of the master's session, as `slave_path` of the slave's."""
    master_conn: int
    slave_path: Path
    slave_conn: int
    frames: int
    clock_offset_ns: int | None
    clock_error_ns: int | None
    to_slave_ns: Distribution[int] | None
    slave_ns: Distribution[int] | None
    to_master_ns: Distribution[int] | None
    score: int
    apart_ns: int


class ConnectionStarts:
    """Reads the first frames and acks of connections; those of the last `_STARTS_KEPT` stay in memory."""

    def __init__(self) -> None:
        self._sessions: dict[Path, tuple[Session, Segments]] = {}
        self._first_events = lru_cache(_STARTS_KEPT)(self._read)

    def end_of(self, frames: ConnectionFrames) -> LinkEnd | None:
        """The start of a connection. None if its frames are gone; raises StoreError if its session is."""
        events = self._first_events(frames.path, frames.conn, frames.first_seq)
        return None if events is None else LinkEnd(self._listed(frames.path)[0], frames.conn, events)

    def _read(self, path: Path, conn: int, first_seq: int) -> FirstEvents | None:
        session, segments = self._listed(path)
        found = read_seqs(session, segments, seq_from=first_seq, seq_to=first_seq + READ_RECORDS_MAX)
        return first_events(session, conn, (one for one in found if not isinstance(one, Damage)))

    def _listed(self, path: Path) -> tuple[Session, Segments]:
        if path not in self._sessions:
            session = open_session(path)
            self._sessions[path] = (session, read_segments(session))
        return self._sessions[path]


def compare(work: LinkWork, starts: ConnectionStarts) -> Iterator[Compared]:
    """The links that the master's connection may be."""
    at_master = starts.end_of(work.master)
    if at_master is None:
        return
    for slave in work.slaves:
        at_slave = starts.end_of(slave)
        found = None if at_slave is None else compare_ends(at_master, at_slave)
        if found is not None:
            link = found.link
            yield Compared(
                broker_name=work.master.broker_name,
                master_index=work.master.session_index,
                master_path=work.master.path,
                master_conn=link.master_conn,
                slave_path=slave.path,
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


def links_of(compared: Iterable[Compared]) -> tuple[Link, ...]:
    """The links of sessions, as `trioha_sessions.clocks.links` finds them."""
    found = list(compared)
    opened = {path: open_session(path) for one in found for path in (one.master_path, one.slave_path)}
    return tuple(choose_links(_candidate(one, opened) for one in found))


def _candidate(one: Compared, opened: Mapping[Path, Session]) -> Candidate:
    link = Link(
        master=opened[one.master_path],
        master_conn=one.master_conn,
        slave=opened[one.slave_path],
        slave_conn=one.slave_conn,
        frames=one.frames,
        clock_offset_ns=one.clock_offset_ns,
        clock_error_ns=one.clock_error_ns,
        to_slave_ns=one.to_slave_ns,
        slave_ns=one.slave_ns,
        to_master_ns=one.to_master_ns,
    )
    return Candidate(link, one.score, one.apart_ns)
