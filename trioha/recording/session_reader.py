"""A recorded session that can be asked about any moment, without reading all of it. Needs NumPy.

Theory of operation. A position is a seq: the state at position `p` is what all records before `p` say. It is
the standing (`trioha.recording.snapshot`) at the begin of p's segment, which its KEYFRAMEs give, and the
records from there. A segment is read in chunks of `CHUNK_RECORDS`. Whoever passes a chunk leaves behind where
everything stood at its begin and which connections ended in it, so that the next one need not pass it again.
Opening reads the segments' headers and the facts; the first question about a segment passes at most that
segment; `scan` passes everything, chunk by chunk, for whoever has time.

The answer to a question depends on its position only, never on what was asked before. What is known only
after all was passed (`Counts`) is None until then.

A session may still grow: `refresh` takes in what was written since. Records and segments that cannot be read
are left out and told in `damage`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from attrs import evolve

from trioha.errors import StoreError
from trioha.recording.batch_stats import Counts, counts_of
from trioha.recording.events import Kind
from trioha.recording.layout import CLOSED_NOTE
from trioha.recording.reader import Damage, Fact, Segment, Session, open_session, read_facts
from trioha.recording.records import read_segment
from trioha.recording.segment_cache import CHUNK_RECORDS, Chunk, SegmentCache
from trioha.recording.snapshot import Ended, Snapshot, identity
from trioha.recording.state import UNKNOWN
from trioha.recording.state_arrays import Array, log_ends

_KEYFRAME_HOPS_MAX: Final = 2
"""How many segments back a connection's last word is looked for."""


class SessionReader:
    """One session. Used by one thread at a time; every method may read the disk."""

    def __init__(self, session: Session, *, chunk_records: int = CHUNK_RECORDS) -> None:
        """Read what is needed to answer: headers, facts, the last record."""
        self.session = session
        self._chunks = SegmentCache(session, chunk_records=chunk_records)
        self.dtype = self._chunks.dtype
        self.facts: Sequence[Fact] = ()
        self.ended_in_order = False
        """Whether the recorder closed it, rather than being killed or still going on."""
        self._fact_damage: Sequence[Damage] = ()
        self.last_ts_ns = 0
        self.refresh()

    @classmethod
    def open(cls, path: Path) -> SessionReader:
        """The session folder `path`. Raises StoreError if it is none."""
        return cls(open_session(path))

    # -- what is there -------------------------------------------------------------------------------------

    @property
    def segments(self) -> tuple[Segment, ...]:
        """As of the last `refresh`."""
        return self._chunks.segments

    @property
    def records(self) -> int:
        """How many records are there, those that cannot be trusted included."""
        return self._chunks.records

    @property
    def damage(self) -> tuple[Damage, ...]:
        """What is known to be unreadable by now."""
        return (*self._chunks.segment_damage, *self._fact_damage, *self._chunks.chunk_damage)

    @property
    def first_ts_ns(self) -> int:
        """When it begins, on its monotonic clock."""
        return self.segments[0].base_ts_ns if self.segments else self.session.monotonic_ns

    @property
    def first_seq(self) -> int:
        """Its first position."""
        return self._chunks.bases[0] if self._chunks.bases else 0

    @property
    def end_seq(self) -> int:
        """Its last position: behind the last record."""
        if not self.segments:
            return 0
        return self.segments[-1].base_seq + self.segments[-1].records

    def refresh(self) -> bool:
        """Take in what was written since the last time; whether there is anything."""
        if not self._chunks.refresh() and self.last_ts_ns:
            return False
        self.facts, self._fact_damage = read_facts(self.session)
        self.ended_in_order = any(
            fact.type_ == "note" and fact.fields.get("text") == CLOSED_NOTE for fact in self.facts[-1:]
        )
        self.last_ts_ns = self._last_ts_ns()
        return True

    def _last_ts_ns(self) -> int:
        for index in reversed(range(len(self.segments))):
            for number in reversed(range(self._chunks.count(index))):
                records = self._chunks.read(index, number)
                if len(records):
                    return max(int(records["ts_ns"].max()), self.first_ts_ns)
        return self.first_ts_ns

    # -- positions and times -------------------------------------------------------------------------------

    def position_at(self, ts_ns: int) -> int:
        """The position behind the last record that is not later than `ts_ns`.

        Where a damaged session's clock goes back, a record counts as no earlier than those before it in its
        chunk.
        """
        index = bisect_right([segment.base_ts_ns for segment in self.segments], ts_ns) - 1
        if index < 0:
            return self.first_seq
        low, high = 0, self._chunks.count(index)
        while high - low > 1:
            middle = (low + high) // 2
            if self._begins_ns(index, middle) <= ts_ns:
                low = middle
            else:
                high = middle
        segment = self.segments[index]
        if not segment.records:
            return segment.base_seq
        records = self._chunks.read(index, low)
        latest = np.maximum.accumulate(records["ts_ns"])
        place = int(np.searchsorted(latest, ts_ns, side="right"))
        if place < len(records):
            return int(records["seq"][place])
        return min(
            segment.base_seq + (low + 1) * self._chunks.chunk_records, segment.base_seq + segment.records
        )

    def _begins_ns(self, index: int, number: int) -> int:
        """Time of the first record of a chunk that can be trusted."""
        segment = self.segments[index]
        try:
            first = read_segment(
                self.session, segment, first=number * self._chunks.chunk_records, count=1
            ).array
        except StoreError:
            first = np.zeros(0, self.dtype)
        if not len(first):
            first = self._chunks.read(index, number)[:1]
        return int(first["ts_ns"][0]) if len(first) else segment.base_ts_ns

    def record_before(self, position: int) -> np.void | None:
        """The last record before `position`, KEYFRAMEs included; None at the begin."""
        for index in reversed(range(bisect_right(self._chunks.bases, position - 1))):
            last = self._chunks.place(
                min(position, self._chunks.bases[index] + self.segments[index].records)
            )[1]
            for number in reversed(range(last + 1)):
                records = self._chunks.before(index, number, position)
                if len(records):
                    found: np.void = records[-1]
                    return found
        return None

    def record_from(self, position: int) -> np.void | None:
        """The first record at or behind `position`; None at the end."""
        for index in range(max(0, bisect_right(self._chunks.bases, position) - 1), len(self.segments)):
            base_seq = self.segments[index].base_seq
            for number in range(
                max(0, position - base_seq) // self._chunks.chunk_records, self._chunks.count(index)
            ):
                records = self._chunks.read(index, number)
                place = int(np.searchsorted(records["seq"], position))
                if place < len(records):
                    found: np.void = records[place]
                    return found
        return None

    def time_of(self, position: int) -> int | None:
        """Monotonic time of the first record that can be trusted from `position` on; None at the end."""
        index = bisect_right(self._chunks.bases, position) - 1
        if index >= 0 and position - self._chunks.bases[index] < self.segments[index].records:
            try:
                one = read_segment(
                    self.session, self.segments[index], first=position - self._chunks.bases[index], count=1
                ).array
            except StoreError:
                one = np.zeros(0, self.dtype)
            if len(one):
                return int(one["ts_ns"][0])
        following = self.record_from(position)
        return None if following is None else int(following["ts_ns"])

    def records_between(self, first: int, last: int) -> Array:
        """The records from `first` to before `last`, without KEYFRAMEs; reads all of them."""
        parts = [np.zeros(0, self.dtype)]
        for index, number in self._chunks.places(first, last):
            records = self._chunks.read(index, number)
            low, high = np.searchsorted(records["seq"], (first, last))
            parts.append(records[low:high])
        every = np.concatenate(parts)
        wanted: Array = every[every["kind"] != Kind.KEYFRAME]
        return wanted

    # -- what stood where ----------------------------------------------------------------------------------

    def snapshot_at(self, position: int) -> Snapshot:
        """Where everything stood at `position`."""
        if not self.segments:
            return Snapshot.nowhere(self.dtype)
        index, number = self._chunks.place(position)
        snapshot = self._chunks.passed_to(index, number).snapshot[number]
        if index and self._chunks.bases[index] not in self._chunks.passed:
            # Its KEYFRAMEs are just being written: what they repeat is where the segment before it ends.
            index -= 1
            snapshot = self._chunks.end_of(index)
        else:
            snapshot, _ = snapshot.after(self._chunks.before(index, number, position))
        while snapshot.log_end_offset == UNKNOWN and index > 0:
            # Nothing of the segment tells it: no connection was open at its begin.
            index -= 1
            earlier = self._chunks.end_of(index)
            snapshot = evolve(snapshot, log_end_offset=earlier.log_end_offset)
        return snapshot

    def connection_snapshot(self, conn: int, position: int) -> Array:
        """The standing of one connection, with the time of each record's event, also of those that are
        KEYFRAMEs in the segment of `position` (up to two segments back)."""
        snapshot = self.snapshot_at(position).records
        return self._with_own_times(snapshot[snapshot["conn"] == conn], position)

    def with_own_times(self, snapshot: Snapshot, position: int) -> Snapshot:
        """`snapshot`, which is that at `position`, with the time of each record's event as
        `connection_snapshot`."""
        return evolve(snapshot, records=self._with_own_times(snapshot.records, position))

    def _with_own_times(self, records: Array, position: int) -> Array:
        if not self.segments or not len(records):
            return records
        index, _ = self._chunks.place(position)
        for _ in range(_KEYFRAME_HOPS_MAX):
            first_seq = self._chunks.passed_to(index, 0).first_seq
            repeated = np.flatnonzero(records["seq"] < first_seq)
            if not len(repeated) or index == 0:
                break
            index -= 1
            times = self._chunks.last_said(index, {identity(record) for record in records[repeated]})
            records = records.copy()
            for place in repeated:
                known = times.get(identity(records[place]))
                if known is not None:
                    records["ts_ns"][place], records["seq"][place] = known
        return records

    def ended_between(self, first: int, last: int) -> list[Ended]:
        """Connections whose end is a record from `first` to before `last`."""
        found: list[Ended] = []
        for index, number in self._chunks.places(first, last):
            passed = self._chunks.passed_to(index, number)
            if passed.chunks > number:
                found += passed.ended[number]
            else:
                found += passed.snapshot[number].after(self._chunks.read(index, number))[1]
        return [ended for ended in found if first <= ended.seq < last]

    def max_passed_ns(self, offset: int, position: int) -> int | None:
        """When the node's own log first went beyond `offset`, as far as the records before `position` say.

        None if it did not. Of a log that was already longer when the session began: when that is first told.
        """
        if not self.segments:
            return None
        end, number = self._chunks.place(position)
        index = end
        while index > 0 and self._chunks.passed_to(index, 0).snapshot[0].log_end_offset > offset:
            index -= 1
            number = self._chunks.whole(index)
        snapshot = self._chunks.passed_to(index, number).snapshot
        # The chunk at whose begin it was not yet beyond, and at whose end it was.
        chunk = max(0, bisect_right(snapshot, offset, hi=number + 1, key=_log_end_offset) - 1)
        for later, inside in self._chunks.places(
            self.segments[index].base_seq + chunk * self._chunks.chunk_records, position
        ):
            records = self._chunks.before(later, inside, position)
            ends_at, ends = log_ends(records)
            beyond = np.flatnonzero(ends > offset)
            if len(beyond):
                return int(records["ts_ns"][ends_at[beyond[0]]])
        # Told by KEYFRAMEs only: what came before the first segment that is there.
        return self.first_ts_ns if self._chunks.passed_to(0, 0).snapshot[0].log_end_offset > offset else None

    def knows_all_before(self, position: int) -> bool:
        """Whether everything before `position` was passed (`scan`)."""
        if not self.segments:
            return True
        last_index, last_number = self._chunks.place(position)
        for index in range(last_index + 1):
            number = last_number if index == last_index else self._chunks.whole(index)
            passed = self._chunks.passed.get(self.segments[index].base_seq)
            if passed is None or len(passed.counted) <= number:
                return False
        return True

    def counts_at(self, position: int) -> Counts | None:
        """What happened before `position`; None until everything before it was passed (`scan`)."""
        if not self.knows_all_before(position):
            return None
        if not self.segments:
            return Counts()
        last_index, last_number = self._chunks.place(position)
        counts = counts_of(self._chunks.before(last_index, last_number, position))
        for index in range(last_index + 1):
            number = last_number if index == last_index else self._chunks.whole(index)
            counts += self._chunks.passed[self.segments[index].base_seq].counted[number]
        return counts

    def counts_between(self, first: int, last: int) -> Counts:
        """What happened from `first` to before `last`; reads all of it."""
        counts = Counts()
        for index, number in self._chunks.places(first, last):
            records = self._chunks.read(index, number)
            low, high = np.searchsorted(records["seq"], (first, last))
            counts += counts_of(records[low:high])
        return counts

    # -- all of it -----------------------------------------------------------------------------------------

    def scan(self, position: int = 0) -> Iterator[Chunk]:
        """Pass everything that is there, a chunk at a time (a few ms each), and show each chunk from the one
        that holds `position` on.

        What can still grow is shown as far as it goes now.
        """
        for index, number in self._chunks.places(max(position, self.first_seq), self.end_seq):
            is_whole = self._chunks.is_whole(index, number)
            passed = self._chunks.passed_to(index, number + is_whole)
            records = self._chunks.read(index, number)
            if is_whole and len(passed.counted) == number + 1:
                passed.counted.append(passed.counted[-1] + counts_of(records))
            yield Chunk(index, number, records, passed.snapshot[number])

    def chunks_around(self, position: int, *, forward: bool) -> Iterator[Chunk]:
        """The chunks from the one that holds `position` on, or back from it; whole ones."""
        first, last = (position, self.end_seq) if forward else (self.first_seq, position)
        places = list(self._chunks.places(first, last))
        for index, number in places if forward else reversed(places):
            yield Chunk(
                index,
                number,
                self._chunks.read(index, number),
                self._chunks.passed_to(index, number).snapshot[number],
            )


def _log_end_offset(snapshot: Snapshot) -> int:
    return snapshot.log_end_offset
