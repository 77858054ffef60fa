"""Which connection of a master is which of a slave, and how far their clocks are apart. Needs NumPy.

A slave records the frames that it takes (RECEIVED) as the master recorded them (TRANSFER), and its reports
(REPORTED) come back as acks (ACK): a connection of each belong together if their frames begin at the same
offsets with the same lengths. Of several, the one with the most frames and acks in common, then the one that
began at the nearest time.

The difference of the clocks follows as in NTP. A frame is received no earlier than it was sent, and an ack no
earlier than its report: with the smallest difference on the way there (d1) and on the way back (d2), the
slave's clock is (d1 - d2) / 2 ahead, give or take (d1 + d2) / 2, if nothing is known of the two ways.

With that difference taken off, what an ack took falls into three: the frame's way there, the slave's own time
(from the frame's end to the report that covers it: checks, the disk if it acknowledges what is flushed), and
the report's way back. All of the clocks' uncertainty is in the two ways, none in the slave's time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Final

import numpy as np
from attrs import define, evolve, field, frozen
from numpy.typing import NDArray

from trioha.distribution import Distribution
from trioha.recording.events import NO_CONNECTION, Kind
from trioha.recording.histogram import Histogram
from trioha.recording.reader import named_peers
from trioha.recording.session_reader import SessionReader
from trioha.recording.state_arrays import Ints, first_covering, kind_mask, shows_request

KEPT_MAX: Final = 5_000
"""Frames, and acks, of a connection that are compared: its first ones."""

PROBES_PER_CONNECTION: Final = 16
"""Connections whose begin is looked at, for each one wanted: some may be probes, in older recordings."""
BEGIN_RECORDS: Final = 4096
"""Records that are the begin of a connection, where no more are looked at."""


@frozen
class Link:
    """One connection as its master and its slave recorded it."""

    master: SessionReader
    master_conn: int
    slave: SessionReader
    slave_conn: int
    frames: int
    """Frames that both have, of the first `KEPT_MAX`."""
    ahead_ns: int | None
    """How far the slave's wall clock is ahead of the master's; None if only one way is known."""
    uncertain_ns: int | None
    """The true difference is not farther from `ahead_ns` than this."""
    there_ns: Distribution[int] | None
    """From a frame's TRANSFER to its RECEIVED; None if the clocks are not known. Like the two below, of the
    first `KEPT_MAX` frames or acks."""
    slave_ns: Distribution[int] | None
    """From a frame's RECEIVED to the first REPORTED at or beyond its end."""
    back_ns: Distribution[int] | None
    """From a REPORTED to its ACK; None if the clocks are not known."""

    @property
    def ack_mostly(self) -> str | None:
        """What takes longer of an ack's time, by the medians: `network` (both ways) or `slave`; None if the
        clocks are not known."""
        if self.there_ns is None or self.back_ns is None or self.slave_ns is None:
            return None
        return "network" if self.there_ns.p50 + self.back_ns.p50 > self.slave_ns.p50 else "slave"

    def on_master(self, slave_wall_ns: int) -> int:
        """A time of the slave's wall clock on the master's."""
        return slave_wall_ns - (self.ahead_ns or 0)


@define
class _Track:
    """First frames and acks (or reports) of a connection: ts_ns, offset and size of each."""

    began_ns: int
    frames: list[NDArray[np.void]] = field(factory=list)
    acks: list[NDArray[np.void]] = field(factory=list)
    frame_count: int = 0
    ack_count: int = 0

    @property
    def is_full(self) -> bool:
        """Whether no more of it is kept."""
        return self.frame_count >= KEPT_MAX and self.ack_count >= KEPT_MAX

    def take(self, frames: NDArray[np.void], acks: NDArray[np.void]) -> None:
        """Keep these, which come next, as far as there is room."""
        frames, acks = frames[: KEPT_MAX - self.frame_count], acks[: KEPT_MAX - self.ack_count]
        if len(frames):
            self.frames.append(frames)
            self.frame_count += len(frames)
        if len(acks):
            self.acks.append(acks)
            self.ack_count += len(acks)

    def may_be(self, other: _Track) -> bool:
        """Whether their frames are of the same stretch of the log, as far as they are kept."""
        if not self.frames or not other.frames:
            return False
        begin = max(self.frames[0]["offset"][0], other.frames[0]["offset"][0])
        return bool(begin <= min(self.frames[-1]["offset"][-1], other.frames[-1]["offset"][-1]))


_End = tuple[SessionReader, int, _Track]


def links(readers: Sequence[SessionReader], *, connections_max: int | None = None) -> list[Link]:
    """The connections that both a master's and a slave's session have, by the master's number.

    With `connections_max` no more than the begins of so many connections of each session are looked at, which
    takes milliseconds of however large a session; else all of them are, wherever they begin.
    """
    masters = [reader for reader in readers if not reader.session.is_slave]
    slaves = [reader for reader in readers if reader.session.is_slave]
    # Who has no other side is not read.
    shared = {_broker(reader) for reader in masters} & {_broker(reader) for reader in slaves}
    tracks = {id(reader): _tracks(reader, connections_max) for reader in readers if _broker(reader) in shared}
    found: list[tuple[int, int, Link]] = []
    for master, slave in product(masters, slaves):
        if _broker(master) == _broker(slave):
            for conn, grouped in tracks[id(master)].items():
                for other, its_track in tracks[id(slave)].items():
                    if not grouped.may_be(its_track):
                        continue
                    link, score = _link((master, conn, grouped), (slave, other, its_track))
                    if link.frames:
                        found.append((-score, abs(grouped.began_ns - its_track.began_ns), link))
    taken: set[tuple[int, int]] = set()
    chosen = []
    for _, _, link in sorted(found, key=_by_score):
        ends = {(id(link.master), link.master_conn), (id(link.slave), link.slave_conn)}
        if not ends & taken:
            taken |= ends
            chosen.append(link)
    return sorted(chosen, key=_by_conn)


def _broker(reader: SessionReader) -> str:
    return reader.session.identity.broker_name


def _by_score(found: tuple[int, int, Link]) -> tuple[int, int]:
    return found[:2]


def _by_conn(link: Link) -> tuple[str, int]:
    return str(link.master.session.path), link.master_conn


def _pieces(reader: SessionReader, connections_max: int | None) -> Iterator[NDArray[np.void]]:
    """The records to look at."""
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
        # A probe is no connection to look at.
        found += bool(shows_request(records).any())
        yield records
        if found >= connections_max:
            return


def _tracks(reader: SessionReader, connections_max: int | None) -> Mapping[int, _Track]:
    """The begin of each connection; about 100 ns a record."""
    frame_kind, ack_kind = Kind.TRANSFER, Kind.ACK
    if reader.session.is_slave:
        frame_kind, ack_kind = Kind.RECEIVED, Kind.REPORTED
    is_wanted = kind_mask((frame_kind, ack_kind))
    tracks: dict[int, _Track] = {}
    full: list[int] = []
    for piece in _pieces(reader, connections_max):
        records = piece[is_wanted[piece["kind"]] & ~np.isin(piece["conn"], [NO_CONNECTION, *full])]
        for conn in np.unique(records["conn"]).tolist():
            own = records[records["conn"] == conn]
            grouped = tracks.setdefault(conn, _Track(reader.session.wall_of(int(own["ts_ns"][0]))))
            grouped.take(own[own["kind"] == frame_kind], own[own["kind"] == ack_kind])
            if grouped.is_full:
                full.append(conn)
    return tracks


def _link(at_master: _End, at_slave: _End) -> tuple[Link, int]:
    """The link if the two are one connection, and how many frames and acks they share."""
    master, conn, grouped = at_master
    slave, other, its_track = at_slave
    sent, received = _joined(master, grouped.frames), _joined(slave, its_track.frames)
    acked, reported = _joined(master, grouped.acks), _joined(slave, its_track.acks)
    _, at, there = np.intersect1d(sent[1], received[1], return_indices=True)
    same = sent[2][at] == received[2][there]
    out_ns = received[0][there[same]] - sent[0][at[same]]
    # The first report is the request: the master notes it as an ack too, but later.
    _, at, there = np.intersect1d(acked[1], reported[1], return_indices=True)
    back_ns = acked[0][at] - reported[0][there]
    place = first_covering(reported[1], received[1] + received[2])
    covered = place < len(reported[1])
    link = Link(
        *(master, conn, slave, other, len(out_ns)),
        ahead_ns=None,
        uncertain_ns=None,
        there_ns=None,
        slave_ns=_spread(reported[0][place[covered]] - received[0][covered]),
        back_ns=None,
    )
    if len(out_ns) and len(back_ns):
        there_ns, return_ns = int(out_ns.min()), int(back_ns.min())
        ahead_ns = (there_ns - return_ns) // 2
        link = evolve(
            link,
            ahead_ns=ahead_ns,
            uncertain_ns=max(0, (there_ns + return_ns) // 2),
            there_ns=_spread(out_ns - ahead_ns),
            back_ns=_spread(back_ns + ahead_ns),
        )
    return link, len(out_ns) + len(back_ns)


def _spread(passed_ns: Ints) -> Distribution[int] | None:
    """Clocks that drift may make a time negative: that is none."""
    return Histogram.of(np.maximum(passed_ns, 0)).distribution()


def _joined(reader: SessionReader, parts: Sequence[NDArray[np.void]]) -> tuple[Ints, Ints, Ints]:
    """Wall time, offset and size of each record."""
    none = np.zeros(0, np.int64)
    session = reader.session
    return (
        np.concatenate([none, *(part["ts_ns"] for part in parts)]) - session.monotonic_ns + session.wall_ns,
        np.concatenate([none, *(part["offset"] for part in parts)]),
        np.concatenate([none, *(part["size"].astype(np.int64) for part in parts)]),
    )
