"""Which connection of a master is which of a slave, and the offset between their clocks. Needs NumPy.

A slave records the frames that it receives (RECEIVED) as the master recorded them (TRANSFER), and its reports
(REPORTED) come back as acks (ACK). A connection of a master and one of a slave belong together if their
frames have the same starts and lengths. Of several the one with the most common frames and acks counts, then
the one with the nearest start.

The clock offset follows as in NTP. A frame is received no earlier than it was sent, and an ack no earlier
than its report. With the smallest difference to the slave (d1) and to the master (d2), the slave's clock is
ahead by (d1 - d2) / 2, with an error of at most (d1 + d2) / 2, if nothing is known of the two directions.

With this offset taken off, the time of an ack has three parts: the one-way delay of the frame to the slave,
the slave's own time (from the frame's end to the report that covers it: checks, and the disk if it
acknowledges what is flushed), and the one-way delay of the report. The clock error is in the two delays only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Final

import numpy as np
from attrs import define, evolve, field, frozen
from numpy.typing import NDArray

from trioha.distribution import Distribution
from trioha.recording.events import NO_CONNECTION, Kind
from trioha.recording.reader import Session
from trioha_sessions.facts import named_peers
from trioha_sessions.histogram import Histogram
from trioha_sessions.session_reader import SessionReader
from trioha_sessions.state_arrays import Ints, first_covering, kind_mask, shows_request

KEPT_MAX: Final = 5_000
"""Frames, and acks, of a connection that are compared: its first ones."""

PROBES_PER_CONNECTION: Final = 16
"""Connections to examine for each one wanted: in older recordings some are probes."""
BEGIN_RECORDS: Final = 4096
"""Records to read of a connection from its start, where not everything is read."""


@frozen
class Link:
    """One connection as its master and its slave recorded it."""

    master: Session
    master_conn: int
    slave: Session
    slave_conn: int
    frames: int
    """Frames that both have, of the first `KEPT_MAX`."""
    clock_offset_ns: int | None
    """How far the slave's wall clock is ahead of the master's; None if only one direction is known."""
    clock_error_ns: int | None
    """Largest error of `clock_offset_ns`."""
    to_slave_ns: Distribution[int] | None
    """One-way delay to the slave, from TRANSFER to RECEIVED; None if the clocks are not known. Like the two
    below, of the first `KEPT_MAX` frames or acks."""
    slave_ns: Distribution[int] | None
    """From a frame's RECEIVED to the first REPORTED at or beyond its end."""
    to_master_ns: Distribution[int] | None
    """One-way delay to the master, from REPORTED to ACK; None if the clocks are not known."""

    @property
    def ack_mostly(self) -> str | None:
        """The longer part of an ack's time, by the medians: `network` (both directions) or `slave`; None if
        the clocks are not known."""
        if self.to_slave_ns is None or self.to_master_ns is None or self.slave_ns is None:
            return None
        return "network" if self.to_slave_ns.p50 + self.to_master_ns.p50 > self.slave_ns.p50 else "slave"

    def master_wall_ns(self, slave_wall_ns: int) -> int:
        """A time of the slave's wall clock, on the master's."""
        return slave_wall_ns - (self.clock_offset_ns or 0)


@define
class FirstEvents:
    """The first frames and acks (or reports) of a connection."""

    began_ns: int
    """Wall clock at the first of them."""
    frames: list[NDArray[np.void]] = field(factory=list)
    acks: list[NDArray[np.void]] = field(factory=list)
    frame_count: int = 0
    ack_count: int = 0

    @property
    def is_full(self) -> bool:
        """Whether it has `KEPT_MAX` frames and acks."""
        return self.frame_count >= KEPT_MAX and self.ack_count >= KEPT_MAX

    def add(self, frames: NDArray[np.void], acks: NDArray[np.void]) -> None:
        """Add frames and acks that come next, up to `KEPT_MAX`."""
        frames, acks = frames[: KEPT_MAX - self.frame_count], acks[: KEPT_MAX - self.ack_count]
        if len(frames):
            self.frames.append(frames)
            self.frame_count += len(frames)
        if len(acks):
            self.acks.append(acks)
            self.ack_count += len(acks)

    def may_be(self, other: FirstEvents) -> bool:
        """Whether their frames overlap in the log."""
        if not self.frames or not other.frames:
            return False
        begin = max(self.frames[0]["offset"][0], other.frames[0]["offset"][0])
        return bool(begin <= min(self.frames[-1]["offset"][-1], other.frames[-1]["offset"][-1]))


@frozen(eq=False)
class LinkEnd:
    """A connection in the session of one of its nodes."""

    session: Session
    conn: int
    events: FirstEvents


@frozen(eq=False)
class Candidate:
    """A connection of a master and one of a slave that may be the same one."""

    link: Link
    score: int
    """How many frames and acks they have in common."""
    apart_ns: int
    """Time between their starts, by their own clocks."""


def links(readers: Sequence[SessionReader], *, connections_max: int | None = None) -> list[Link]:
    """The connections that both a master's and a slave's session have, by the master's number.

    With `connections_max` only the starts of so many connections of each session are read, which takes
    milliseconds however large the session is; otherwise all of them.
    """
    masters = [reader for reader in readers if not reader.session.is_slave]
    slaves = [reader for reader in readers if reader.session.is_slave]
    # Sessions without a counterpart are not read.
    shared = {_broker(reader) for reader in masters} & {_broker(reader) for reader in slaves}
    ends = {
        id(reader): [
            LinkEnd(reader.session, conn, events) for conn, events in _tracks(reader, connections_max).items()
        ]
        for reader in readers
        if _broker(reader) in shared
    }
    candidates: list[Candidate] = []
    for master, slave in product(masters, slaves):
        if _broker(master) == _broker(slave):
            for at_master, at_slave in product(ends[id(master)], ends[id(slave)]):
                candidate = compare_ends(at_master, at_slave)
                if candidate is not None:
                    candidates.append(candidate)
    return choose_links(candidates)


def compare_ends(at_master: LinkEnd, at_slave: LinkEnd) -> Candidate | None:
    """The two ends as a link; None if they have no frame in common."""
    if not at_master.events.may_be(at_slave.events):
        return None
    link, score = _link(at_master, at_slave)
    if not link.frames:
        return None
    return Candidate(link, score, abs(at_master.events.began_ns - at_slave.events.began_ns))


def choose_links(candidates: Iterable[Candidate]) -> list[Link]:
    """The best candidate of each connection, by the master's number."""
    linked: set[tuple[str, int]] = set()
    chosen = []
    for candidate in sorted(candidates, key=_by_score):
        link = candidate.link
        ends = {(str(link.master.path), link.master_conn), (str(link.slave.path), link.slave_conn)}
        if not ends & linked:
            linked |= ends
            chosen.append(link)
    return sorted(chosen, key=_by_conn)


def _broker(reader: SessionReader) -> str:
    return reader.session.identity.broker_name


def _by_score(candidate: Candidate) -> tuple[int, int]:
    return -candidate.score, candidate.apart_ns


def _by_conn(link: Link) -> tuple[str, int]:
    return str(link.master.path), link.master_conn


def _batches(reader: SessionReader, connections_max: int | None) -> Iterator[NDArray[np.void]]:
    """The records to examine."""
    if connections_max is None:
        yield from (chunk.records for chunk in reader.scan())
        return
    begins: dict[int, int] = {}
    for conn, seq, _ in named_peers(reader.facts):
        if len(begins) < PROBES_PER_CONNECTION * connections_max:
            begins.setdefault(conn, seq)
    found = 0
    for conn, seq in begins.items():
        records = reader.records_between(seq, seq + BEGIN_RECORDS)
        records = records[records["conn"] == conn]
        # Probes do not count.
        found += bool(shows_request(records).any())
        yield records
        if found >= connections_max:
            return


def first_events(session: Session, conn: int, blocks: Iterable[NDArray[np.void]]) -> FirstEvents | None:
    """The first frames and acks of a connection, from blocks of records; None without any.

    Blocks are read until there are enough, or the connection has ended.
    """
    frame_kind, ack_kind = _frame_and_ack(session)
    events: FirstEvents | None = None
    for block in blocks:
        own = block[block["conn"] == conn]
        some = own[(own["kind"] == frame_kind) | (own["kind"] == ack_kind)]
        if len(some):
            if events is None:
                events = FirstEvents(session.wall_of(int(some["ts_ns"][0])))
            events.add(some[some["kind"] == frame_kind], some[some["kind"] == ack_kind])
            if events.is_full:
                break
        if (own["kind"] == Kind.CLOSED).any():
            break
    return events


def _frame_and_ack(session: Session) -> tuple[Kind, Kind]:
    return (Kind.RECEIVED, Kind.REPORTED) if session.is_slave else (Kind.TRANSFER, Kind.ACK)


def _tracks(reader: SessionReader, connections_max: int | None) -> Mapping[int, FirstEvents]:
    """The first frames and acks of each connection."""
    frame_kind, ack_kind = _frame_and_ack(reader.session)
    is_wanted = kind_mask((frame_kind, ack_kind))
    tracks: dict[int, FirstEvents] = {}
    full: list[int] = []
    for batch in _batches(reader, connections_max):
        records = batch[is_wanted[batch["kind"]] & ~np.isin(batch["conn"], [NO_CONNECTION, *full])]
        for conn in np.unique(records["conn"]).tolist():
            own = records[records["conn"] == conn]
            track = tracks.setdefault(conn, FirstEvents(reader.session.wall_of(int(own["ts_ns"][0]))))
            track.add(own[own["kind"] == frame_kind], own[own["kind"] == ack_kind])
            if track.is_full:
                full.append(conn)
    return tracks


def _link(at_master: LinkEnd, at_slave: LinkEnd) -> tuple[Link, int]:
    """The two ends as a link, and its score: how many frames and acks they have in common."""
    master, conn, track = at_master.session, at_master.conn, at_master.events
    slave, other, other_track = at_slave.session, at_slave.conn, at_slave.events
    sent, received = _joined(master, track.frames), _joined(slave, other_track.frames)
    acked, reported = _joined(master, track.acks), _joined(slave, other_track.acks)
    _, at, there = np.intersect1d(sent[1], received[1], return_indices=True)
    same = sent[2][at] == received[2][there]
    sent_ns = received[0][there[same]] - sent[0][at[same]]
    # The first report is the request: the master records it as an ack too, but later.
    _, at, there = np.intersect1d(acked[1], reported[1], return_indices=True)
    back_ns = acked[0][at] - reported[0][there]
    place = first_covering(reported[1], received[1] + received[2])
    covered = place < len(reported[1])
    link = Link(
        *(master, conn, slave, other, len(sent_ns)),
        clock_offset_ns=None,
        clock_error_ns=None,
        to_slave_ns=None,
        slave_ns=_distribution(reported[0][place[covered]] - received[0][covered]),
        to_master_ns=None,
    )
    if len(sent_ns) and len(back_ns):
        to_slave_ns, to_master_ns = int(sent_ns.min()), int(back_ns.min())
        clock_offset_ns = (to_slave_ns - to_master_ns) // 2
        link = evolve(
            link,
            clock_offset_ns=clock_offset_ns,
            clock_error_ns=max(0, (to_slave_ns + to_master_ns) // 2),
            to_slave_ns=_distribution(sent_ns - clock_offset_ns),
            to_master_ns=_distribution(back_ns + clock_offset_ns),
        )
    return link, len(sent_ns) + len(back_ns)


def _distribution(passed_ns: Ints) -> Distribution[int] | None:
    """Clocks that drift may make a time negative: it counts as 0."""
    return Histogram.of(np.maximum(passed_ns, 0)).distribution()


def _joined(session: Session, parts: Sequence[NDArray[np.void]]) -> tuple[Ints, Ints, Ints]:
    """Wall time, offset and size of each record."""
    none = np.zeros(0, np.int64)
    return (
        np.concatenate([none, *(part["ts_ns"] for part in parts)]) - session.monotonic_ns + session.wall_ns,
        np.concatenate([none, *(part["offset"] for part in parts)]),
        np.concatenate([none, *(part["size"].astype(np.int64) for part in parts)]),
    )
