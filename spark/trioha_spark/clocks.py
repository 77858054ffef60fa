"""Which connection of a master is which of a slave, and how far their clocks are apart. Needs no Spark.

A slave records the frames that it takes (RECEIVED) as the master recorded them (TRANSFER), and its reports
(REPORTED) come back as acks (ACK): a connection of each belong together if their frames begin at the same
offsets with the same lengths. Of several, the one with the most frames and acks in common, then the one that
began at the nearest time.

The difference of the clocks follows as in NTP. A frame is received no earlier than it was sent, and an ack no
earlier than its report: with the smallest difference on the way there (d1) and on the way back (d2), the
slave's clock is (d1 - d2) / 2 ahead, give or take (d1 + d2) / 2, if nothing is known of the two ways.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from attrs import define, field, frozen
from numpy.typing import NDArray

from trioha.recording.events import NO_CONNECTION, Kind
from trioha.recording.tape import Tape

Ints = NDArray[np.int64]

KEPT_MAX: Final = 20_000
"""Frames, and acks, of a connection that are compared: its first ones."""


@frozen
class Link:
    """One connection as its master and its slave recorded it."""

    master: Tape
    master_conn: int
    slave: Tape
    slave_conn: int
    frames: int
    """Frames that both have, of the first `KEPT_MAX`."""
    ahead_ns: int | None
    """How far the slave's wall clock is ahead of the master's; None if only one way is known."""
    uncertain_ns: int | None
    """The true difference is not farther from `ahead_ns` than this."""

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


_End = tuple[Tape, int, _Track]


def links(tapes: Sequence[Tape]) -> list[Link]:
    """The connections that both a master's and a slave's session have, by the master's number."""
    masters = [(tape, _tracks(tape)) for tape in tapes if not tape.session.is_slave]
    slaves = [(tape, _tracks(tape)) for tape in tapes if tape.session.is_slave]
    found: list[tuple[int, int, Link]] = []
    for master, its_tracks in masters:
        for slave, other_tracks in slaves:
            if master.session.identity.broker_name != slave.session.identity.broker_name:
                continue
            for conn, track in its_tracks.items():
                for other, its_track in other_tracks.items():
                    link, score = _link((master, conn, track), (slave, other, its_track))
                    if link.frames:
                        found.append((-score, abs(track.began_ns - its_track.began_ns), link))
    taken: set[tuple[int, int]] = set()
    chosen = []
    for _, _, link in sorted(found, key=_by_score):
        ends = {(id(link.master), link.master_conn), (id(link.slave), link.slave_conn)}
        if not ends & taken:
            taken |= ends
            chosen.append(link)
    return sorted(chosen, key=_by_conn)


def _by_score(found: tuple[int, int, Link]) -> tuple[int, int]:
    return found[:2]


def _by_conn(link: Link) -> tuple[str, int]:
    return str(link.master.session.path), link.master_conn


def _tracks(tape: Tape) -> Mapping[int, _Track]:
    frame_kind, ack_kind = Kind.TRANSFER, Kind.ACK
    if tape.session.is_slave:
        frame_kind, ack_kind = Kind.RECEIVED, Kind.REPORTED
    tracks: dict[int, _Track] = {}
    for chunk in tape.scan():
        records = chunk.records
        records = records[
            np.isin(records["kind"], (frame_kind, ack_kind)) & (records["conn"] != NO_CONNECTION)
        ]
        for conn in np.unique(records["conn"]).tolist():
            own = records[records["conn"] == conn]
            track = tracks.setdefault(conn, _Track(tape.session.wall_of(int(own["ts_ns"][0]))))
            frames, acks = own[own["kind"] == frame_kind], own[own["kind"] == ack_kind]
            if track.frame_count < KEPT_MAX and len(frames):
                track.frames.append(frames[: KEPT_MAX - track.frame_count])
                track.frame_count += len(frames)
            if track.ack_count < KEPT_MAX and len(acks):
                track.acks.append(acks[: KEPT_MAX - track.ack_count])
                track.ack_count += len(acks)
    return tracks


def _link(at_master: _End, at_slave: _End) -> tuple[Link, int]:
    """The link if the two are one connection, and how many frames and acks they share."""
    master, conn, track = at_master
    slave, other, its_track = at_slave
    sent, received = _joined(master, track.frames), _joined(slave, its_track.frames)
    acked, reported = _joined(master, track.acks), _joined(slave, its_track.acks)
    _, at, there = np.intersect1d(sent[1], received[1], return_indices=True)
    same = sent[2][at] == received[2][there]
    out_ns = received[0][there[same]] - sent[0][at[same]]
    # The first report is the request: the master notes it as an ack too, but later.
    _, at, there = np.intersect1d(acked[1], reported[1], return_indices=True)
    back_ns = acked[0][at] - reported[0][there]
    ahead_ns = uncertain_ns = None
    if len(out_ns) and len(back_ns):
        there_ns, return_ns = int(out_ns.min()), int(back_ns.min())
        ahead_ns, uncertain_ns = (there_ns - return_ns) // 2, max(0, (there_ns + return_ns) // 2)
    link = Link(master, conn, slave, other, len(out_ns), ahead_ns, uncertain_ns)
    return link, len(out_ns) + len(back_ns)


def _joined(tape: Tape, parts: Sequence[NDArray[np.void]]) -> tuple[Ints, Ints, Ints]:
    """Wall time, offset and size of each record."""
    none = np.zeros(0, np.int64)
    session = tape.session
    return (
        np.concatenate([none, *(part["ts_ns"] for part in parts)]) - session.monotonic_ns + session.wall_ns,
        np.concatenate([none, *(part["offset"] for part in parts)]),
        np.concatenate([none, *(part["size"].astype(np.int64) for part in parts)]),
    )
