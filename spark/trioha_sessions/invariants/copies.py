"""A put that was answered PUT_OK was on as many nodes as it needed.

Theory of operation. A connection covers an offset from its first ack at or beyond it until the connection
ends. A put was safe if at some moment before its wait ended as many connections as it needed covered its end.
Their number only falls when a connection ends. So two kinds of moments are checked: the end of the wait, and
the moments just before connections ended during it (the put may have been released before, and then waited
for the disk or the event loop).

A part does not know earlier acks. It keeps the waits that it cannot show to be safe, and the moments at which
connections ended, each with the last ack of every connection as far as the part has it (`AckTable`). The join
with the part before fills in the rest. A wait that is never shown to be safe, whose begin is known and has no
missing record since, is a violation. Connections are counted, not nodes.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from attrs import evolve, frozen
from numpy.typing import NDArray

from trioha.recording.events import Kind, PutStatus
from trioha_sessions.invariants.event_batch import EventBatch, SessionSettings
from trioha_sessions.invariants.findings import Findings
from trioha_sessions.state_arrays import Array, Bools, Ints

UNKNOWN: Final = -1
CLOSED: Final = -2
"""Instead of an ack: the connection has ended."""
PENDING_MAX: Final = 20_000
"""Waits that a part keeps because they are not shown to be safe, the earliest ones: far more than wait at
once."""
OPEN_MAX: Final = 100_000
"""Open waits that a part keeps, the latest ones."""
CELLS_MAX: Final = 1_000_000
"""Acks (of 8 bytes) in each table of a part: moments times connections."""


@frozen(eq=False)
class AckTable:
    """The last ack of each connection at some moments."""

    conns: Ints
    """Ascending; shape (c,)."""
    acks: Ints
    """Last ack of each connection before each moment, `UNKNOWN` or `CLOSED`; shape (n, c)."""

    def after(self, before: AckTable) -> AckTable:
        """The same moments, with unknown acks filled in from `before`, which has one moment."""
        conns = np.union1d(self.conns, before.conns)
        acks = np.full((len(self.acks), len(conns)), UNKNOWN, np.int64)
        acks[:, np.searchsorted(conns, self.conns)] = self.acks
        earlier = np.full(len(conns), UNKNOWN, np.int64)
        earlier[np.searchsorted(conns, before.conns)] = before.acks[0]
        return AckTable(conns, np.where(acks == UNKNOWN, earlier, acks))

    def pick(self, rows: NDArray[np.integer] | Bools) -> AckTable:
        """Some of the moments."""
        return AckTable(self.conns, self.acks[rows])

    def __add__(self, other: AckTable) -> AckTable:
        conns = np.union1d(self.conns, other.conns)
        acks = np.full((len(self.acks) + len(other.acks), len(conns)), UNKNOWN, np.int64)
        acks[: len(self.acks), np.searchsorted(conns, self.conns)] = self.acks
        acks[len(self.acks) :, np.searchsorted(conns, other.conns)] = other.acks
        return AckTable(conns, acks)


@frozen(eq=False)
class Pending:
    """Waits that ended with PUT_OK and are not yet shown to be safe, in their order."""

    ends: Array
    begins: Array
    """The WAIT_BEGIN of each; the end itself where it is not known."""
    acks_at: AckTable

    def pick(self, rows: Bools) -> Pending:
        """Some of them."""
        return Pending(self.ends[rows], self.begins[rows], self.acks_at.pick(rows))

    def __add__(self, other: Pending) -> Pending:
        return Pending(
            np.concatenate((self.ends, other.ends)),
            np.concatenate((self.begins, other.begins)),
            self.acks_at + other.acks_at,
        )

    @property
    def is_begun(self) -> Bools:
        """Whether the start of each is known."""
        known: Bools = self.begins["kind"] == Kind.WAIT_BEGIN
        return known

    def unsafe(self, closes: Ints, close_acks: AckTable) -> Pending:
        """Those still not shown to be safe, given the moments (seqs) at which connections ended."""
        begun = self.is_begun
        need = np.where(begun, self.begins["size"].astype(np.int64) - 1, np.iinfo(np.int64).max)
        wanted = self.ends["offset"]
        safe = (self.acks_at.acks >= wanted[:, None]).sum(axis=1) >= need
        for seq, acks in zip(closes, close_acks.acks, strict=True):
            during = np.flatnonzero(~safe & begun & (self.begins["seq"] < seq) & (self.ends["seq"] > seq))
            if len(during):
                covered = (acks[None, :] >= wanted[during, None]).sum(axis=1)
                safe[during[covered >= need[during]]] = True
        return self.pick(~safe)


@frozen(eq=False)
class Copies:
    """State of the rule after some records."""

    pending: Pending
    open_: Array
    """WAIT_BEGIN records without an end, by request id."""
    exit_: AckTable
    """Acks at the end: one moment."""
    closes: Ints
    """Seqs of records that ended a connection, as far as a wait may still need them."""
    close_acks: AckTable
    """Just before each of them."""
    has_hole: bool
    checked: int
    is_first: bool
    """Whether no records came before."""

    def pruned(self) -> Copies:
        """Without entries that no later record can need, and with bounded tables."""
        if not self.is_first:
            return self._bounded()
        # Only waits that are open now can have been released before they end.
        kept = self.closes > self.open_["seq"].min(initial=np.iinfo(np.int64).max)
        is_open = self.exit_.acks[0] != CLOSED
        return evolve(
            self,
            closes=self.closes[kept],
            close_acks=self.close_acks.pick(kept),
            exit_=AckTable(self.exit_.conns[is_open], self.exit_.acks[:, is_open]),
        )._bounded()

    def _bounded(self) -> Copies:
        """At most `CELLS_MAX` acks in each table: the earliest waits and the latest moments are kept.

        Without all moments, waits that last over the whole part are not checked, as over a hole.
        """
        rows = max(1, CELLS_MAX // max(1, len(self.pending.acks_at.conns)))
        bounded = self
        if len(self.pending.ends) > min(rows, PENDING_MAX):
            kept = np.arange(len(self.pending.ends)) < min(rows, PENDING_MAX)
            bounded = evolve(bounded, pending=self.pending.pick(kept))
        rows = max(1, CELLS_MAX // max(1, len(self.close_acks.conns)))
        if len(self.closes) > rows:
            # Waits of unknown begin may need a moment that is left out.
            pending = bounded.pending
            kept = pending.is_begun | (pending.ends["seq"] < self.closes[0])
            bounded = evolve(
                bounded,
                pending=pending.pick(kept),
                checked=self.checked - int(np.count_nonzero(~kept)),
                closes=self.closes[-rows:],
                close_acks=self.close_acks.pick(np.arange(len(self.closes) - rows, len(self.closes))),
                has_hole=True,
            )
        if len(self.open_) > OPEN_MAX:
            latest = np.sort(np.argsort(self.open_["seq"], kind="stable")[-OPEN_MAX:])
            bounded = evolve(bounded, open_=self.open_[latest], has_hole=True)
        return bounded


class CopiesRule:
    """PUT_OK is answered only with the copies that the put needed."""

    def check(self, batch: EventBatch) -> Copies:
        """Check the records of a part."""
        records, columns = batch.records, batch.columns
        waits = batch.wait_pairs
        acks = _Acks(batch)
        is_ok = columns["flags"][waits.ends] == PutStatus.PUT_OK
        need = np.where(waits.begins >= 0, columns["size"][waits.begins] - 1, -1)
        is_ok &= need != 0
        # A hole between begin and end may hold the acks that count.
        holes_before = np.searchsorted(batch.holes, waits.ends, side="right")
        holes_before_begin = np.searchsorted(batch.holes, waits.begins, side="right")
        is_ok &= np.where(waits.begins >= 0, holes_before == holes_before_begin, holes_before == 0)
        ends, begins, need = waits.ends[is_ok], waits.begins[is_ok], need[is_ok]
        covered = acks.covering(ends, columns["offset"][ends])
        doubtful = np.flatnonzero((covered < need) | (need < 0))[:PENDING_MAX]
        ends, begins = ends[doubtful], begins[doubtful]
        pending = Pending(records[ends], records[np.where(begins >= 0, begins, ends)], acks.acks_at(ends))
        closes = acks.closes
        close_acks = acks.acks_at(closes)
        seqs = records["seq"][closes]
        # A wait that ends after a hole is not checked by a begin before it.
        holes_before_begin = np.searchsorted(batch.holes, waits.open_, side="right")
        open_ = records[waits.open_[holes_before_begin == len(batch.holes)]]
        return Copies(
            pending=pending.unsafe(seqs, close_acks),
            open_=open_[np.argsort(open_["aux"], kind="stable")],
            exit_=acks.acks_at(np.array([len(records)])),
            closes=seqs,
            close_acks=close_acks,
            has_hole=bool(len(batch.holes)),
            checked=int(np.count_nonzero(is_ok)),
            is_first=batch.is_first,
        ).pruned()

    def join(self, earlier: Copies, later: Copies, settings: SessionSettings, *, gap: bool) -> Copies:
        """Join two parts that follow each other; `gap`: records between them are missing."""
        del settings
        checked = earlier.checked + later.checked
        begun = later.pending.is_begun
        if gap:
            kept = later.pending.pick(begun)
            return evolve(
                later,
                pending=earlier.pending + kept,
                exit_=later.exit_.after(earlier.exit_),
                has_hole=True,
                checked=checked - int(np.count_nonzero(~begun)),
                is_first=earlier.is_first,
            ).pruned()
        pending = later.pending
        place = np.searchsorted(earlier.open_["aux"], pending.ends["aux"])
        ended = np.zeros(0, np.int64)
        if len(pending.ends):
            fits = ~begun & (place < len(earlier.open_))
            fits[fits] = earlier.open_["aux"][place[fits]] == pending.ends["aux"][fits]
            begins = pending.begins.copy()
            begins[fits] = earlier.open_[place[fits]]
            ended = place[fits]
            # Waits whose begin lies before a known hole are not checked.
            lost = ~begun & ~fits & earlier.has_hole
            pending = evolve(pending, begins=begins).pick(~lost)
            checked -= int(np.count_nonzero(lost))
        pending = evolve(pending, acks_at=pending.acks_at.after(earlier.exit_))
        close_acks = earlier.close_acks + later.close_acks.after(earlier.exit_)
        closes = np.concatenate((earlier.closes, later.closes))
        both = (earlier.pending + pending).unsafe(closes, close_acks)
        open_ = later.open_
        if not later.has_hole:
            open_ = np.concatenate((np.delete(earlier.open_, ended), open_))
            open_ = open_[np.argsort(open_["aux"], kind="stable")]
        return Copies(
            pending=both,
            open_=open_,
            exit_=later.exit_.after(earlier.exit_),
            closes=closes,
            close_acks=close_acks,
            has_hole=earlier.has_hole or later.has_hole,
            checked=checked,
            is_first=earlier.is_first,
        ).pruned()

    def finish(self, copies: Copies, *, is_whole: bool) -> tuple[Findings, int]:
        """Violations, and how many waits were checked."""
        del is_whole
        unsafe = copies.pending.pick(copies.pending.is_begun)
        return Findings.of(unsafe.ends, unsafe.begins), copies.checked


class _Acks:
    """The acks of a part, by connection."""

    def __init__(self, batch: EventBatch) -> None:
        acks_and_ends = batch.connections.stream((Kind.ACK, Kind.CLOSED))
        is_end = acks_and_ends["kind"] == Kind.CLOSED
        values = np.where(is_end, CLOSED, acks_and_ends["offset"])
        has_any = np.diff(acks_and_ends.bounds) > 0
        self._conns = batch.connections.keys[has_any]
        self._tracks = [
            (acks_and_ends.places[begin:end], values[begin:end])
            for begin, end in zip(
                acks_and_ends.bounds[:-1][has_any], acks_and_ends.bounds[1:][has_any], strict=True
            )
        ]
        self.closes: Ints = np.sort(acks_and_ends.places[is_end])
        """Places of CLOSED records."""

    def covering(self, places: Ints, offsets: Ints) -> Ints:
        """At each of `places`, ascending, how many connections had acknowledged its offset."""
        counts = np.zeros(len(places), np.int64)
        for track, values in self._tracks:
            begin = int(np.searchsorted(places, track[0]))
            end = len(places)
            if values[-1] == CLOSED:
                end = int(np.searchsorted(places, track[-1]))
            if begin < end:
                at = np.searchsorted(track, places[begin:end]) - 1
                counts[begin:end] += values[at] >= offsets[begin:end]
        return counts

    def acks_at(self, places: Ints) -> AckTable:
        """The acks just before each of `places`, ascending."""
        acks = np.full((len(places), len(self._tracks)), UNKNOWN, np.int64)
        for column, (track, values) in enumerate(self._tracks):
            at = np.searchsorted(track, places) - 1
            acks[:, column] = np.where(at >= 0, values[at], UNKNOWN)
        return AckTable(self._conns, acks)
