"""Answers questions about any moment of a recorded session without reading all of it. Needs NumPy.

Theory of operation. A position is a seq: the state at position `p` follows from all records before `p`. It is
the snapshot (`trioha_sessions.snapshot`) at the start of p's segment, from its KEYFRAMEs, and the records
since. A segment is read in chunks of `CHUNK_RECORDS`, and each chunk that was read is indexed
(`trioha_sessions.segment_cache`). Opening a session reads the headers of its segments and its facts; the
first question about a segment reads at most that segment; `scan` reads everything, chunk by chunk.

An answer depends on its position only, never on earlier questions. Answers that need everything before their
position (`Counts`), or all segments before its own (`control_records`), are None until `scan` has read them.

A session may still grow: `refresh` adds what was written since. Records and segments that cannot be read are
left out and listed in `damage`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from attrs import evolve

from trioha.errors import StoreError
from trioha.recording.events import Kind
from trioha.recording.layout import CLOSED_NOTE
from trioha.recording.reader import Segment, Session, open_session
from trioha.recording.state import UNKNOWN
from trioha_sessions.batch_stats import Counts, control_records, counts_of
from trioha_sessions.facts import Fact, read_facts
from trioha_sessions.records import read_segment
from trioha_sessions.segment_cache import CHUNK_RECORDS, Chunk, SegmentCache
from trioha_sessions.segments import Damage
from trioha_sessions.snapshot import Ended, Snapshot, identity
from trioha_sessions.state_arrays import Array, log_ends

_KEYFRAME_HOPS_MAX: Final = 2
"""How many segments before a position's own are searched for the times of repeated records."""


class SessionReader:
    """One session. Used by one thread at a time; every method may read the disk."""

    def __init__(self, session: Session, *, chunk_records: int = CHUNK_RECORDS) -> None:
        """Read headers, facts and the last record."""
        self.session = session
        self._cache = SegmentCache(session, chunk_records=chunk_records)
        self.dtype = self._cache.dtype
        self.facts: Sequence[Fact] = ()
        self.ended_in_order = False
        """Whether the recorder closed it, rather than being killed or still going on."""
        self._fact_damage: Sequence[Damage] = ()
        self.last_ts_ns = 0
        self.refresh()

    @classmethod
    def open(cls, path: Path) -> SessionReader:
        """Open the session folder `path`. Raises StoreError if it is not a session."""
        return cls(open_session(path))

    # -- contents ------------------------------------------------------------------------------------------

    @property
    def segments(self) -> tuple[Segment, ...]:
        """As of the last `refresh`."""
        return self._cache.segments

    @property
    def records(self) -> int:
        """How many records there are, damaged ones included."""
        return self._cache.records

    @property
    def damage(self) -> tuple[Damage, ...]:
        """Damage found so far."""
        return (*self._cache.segment_damage, *self._fact_damage, *self._cache.chunk_damage)

    @property
    def first_ts_ns(self) -> int:
        """Start of the session, on its monotonic clock."""
        return self.segments[0].base_ts_ns if self.segments else self.session.monotonic_ns

    @property
    def first_seq(self) -> int:
        """Its first position."""
        return self._cache.bases[0] if self._cache.bases else 0

    @property
    def end_seq(self) -> int:
        """Its last position, after the last record."""
        if not self.segments:
            return 0
        return self.segments[-1].base_seq + self.segments[-1].records

    def refresh(self) -> bool:
        """Read what was written since the last call; return whether there was anything."""
        if not self._cache.refresh() and self.last_ts_ns:
            return False
        self.facts, self._fact_damage = read_facts(self.session)
        self.ended_in_order = any(
            fact.type_ == "note" and fact.fields.get("text") == CLOSED_NOTE for fact in self.facts[-1:]
        )
        self.last_ts_ns = self._last_ts_ns()
        return True

    def _last_ts_ns(self) -> int:
        for index in reversed(range(len(self.segments))):
            for number in reversed(range(self._cache.count(index))):
                records = self._cache.read(index, number)
                if len(records):
                    return max(int(records["ts_ns"].max()), self.first_ts_ns)
        return self.first_ts_ns

    # -- positions and times -------------------------------------------------------------------------------

    def position_at(self, ts_ns: int) -> int:
        """The position after the last record that is not later than `ts_ns`.

        Where a damaged session's clock goes back, a record counts as no earlier than those before it in its
        chunk.
        """
        index = bisect_right([segment.base_ts_ns for segment in self.segments], ts_ns) - 1
        if index < 0:
            return self.first_seq
        low, high = 0, self._cache.count(index)
        while high - low > 1:
            middle = (low + high) // 2
            if self._begins_ns(index, middle) <= ts_ns:
                low = middle
            else:
                high = middle
        segment = self.segments[index]
        if not segment.records:
            return segment.base_seq
        records = self._cache.read(index, low)
        latest = np.maximum.accumulate(records["ts_ns"])
        place = int(np.searchsorted(latest, ts_ns, side="right"))
        if place < len(records):
            return int(records["seq"][place])
        return min(
            segment.base_seq + (low + 1) * self._cache.chunk_records, segment.base_seq + segment.records
        )

    def _begins_ns(self, index: int, number: int) -> int:
        """Time of the first undamaged record of a chunk."""
        segment = self.segments[index]
        try:
            first = read_segment(
                self.session, segment, first=number * self._cache.chunk_records, count=1
            ).array
        except StoreError:
            first = np.zeros(0, self.dtype)
        if not len(first):
            first = self._cache.read(index, number)[:1]
        return int(first["ts_ns"][0]) if len(first) else segment.base_ts_ns

    def record_before(self, position: int) -> np.void | None:
        """The last record before `position`, KEYFRAMEs included; None at the start."""
        for index in reversed(range(bisect_right(self._cache.bases, position - 1))):
            last = self._cache.place(min(position, self._cache.bases[index] + self.segments[index].records))[
                1
            ]
            for number in reversed(range(last + 1)):
                records = self._cache.before(index, number, position)
                if len(records):
                    found: np.void = records[-1]
                    return found
        return None

    def record_from(self, position: int) -> np.void | None:
        """The first record at or after `position`; None at the end."""
        for index in range(max(0, bisect_right(self._cache.bases, position) - 1), len(self.segments)):
            base_seq = self.segments[index].base_seq
            for number in range(
                max(0, position - base_seq) // self._cache.chunk_records, self._cache.count(index)
            ):
                records = self._cache.read(index, number)
                place = int(np.searchsorted(records["seq"], position))
                if place < len(records):
                    found: np.void = records[place]
                    return found
        return None

    def time_of(self, position: int) -> int | None:
        """Monotonic time of the first undamaged record from `position` on; None at the end."""
        index = bisect_right(self._cache.bases, position) - 1
        if index >= 0 and position - self._cache.bases[index] < self.segments[index].records:
            try:
                one = read_segment(
                    self.session, self.segments[index], first=position - self._cache.bases[index], count=1
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
        for index, number in self._cache.places(first, last):
            records = self._cache.read(index, number)
            low, high = np.searchsorted(records["seq"], (first, last))
            parts.append(records[low:high])
        every = np.concatenate(parts)
        wanted: Array = every[every["kind"] != Kind.KEYFRAME]
        return wanted

    # -- state at a position -------------------------------------------------------------------------------

    def snapshot_at(self, position: int) -> Snapshot:
        """The state at `position`."""
        if not self.segments:
            return Snapshot.nowhere(self.dtype)
        index, number = self._cache.place(position)
        snapshot = self._cache.index_to(index, number).snapshots[number]
        if index and self._cache.bases[index] not in self._cache.indexes:
            # Its KEYFRAMEs are still being written: they repeat the end of the segment before.
            index -= 1
            snapshot = self._cache.end_of(index)
        else:
            snapshot, _ = snapshot.after(self._cache.before(index, number, position))
        while snapshot.log_end_offset == UNKNOWN and index > 0:
            # No record of the segment names the log end: no connection was open at its start.
            index -= 1
            earlier = self._cache.end_of(index)
            snapshot = evolve(snapshot, log_end_offset=earlier.log_end_offset)
        return snapshot

    def with_own_times(self, snapshot: Snapshot, position: int) -> Snapshot:
        """`snapshot`, which is that at `position`, with each record's time and seq those of its own event.

        The events of KEYFRAMEs are searched in the segment of `position` and up to two before it.
        """
        records = snapshot.records
        if not self.segments or not len(records):
            return snapshot
        index, _ = self._cache.place(position)
        for _ in range(_KEYFRAME_HOPS_MAX):
            first_seq = self._cache.index_to(index, 0).first_seq
            repeated = np.flatnonzero(records["seq"] < first_seq)
            if not len(repeated) or index == 0:
                break
            index -= 1
            times = self._cache.last_times(index, {identity(record) for record in records[repeated]})
            records = records.copy()
            for place in repeated:
                known = times.get(identity(records[place]))
                if known is not None:
                    records["ts_ns"][place], records["seq"][place] = known
        return evolve(snapshot, records=records)

    def ended_between(self, first: int, last: int) -> list[Ended]:
        """Connections that a record from `first` to before `last` ended."""
        found: list[Ended] = []
        for index, number in self._cache.places(first, last):
            indexed = self._cache.index_to(index, number)
            if indexed.chunks > number:
                found += indexed.ended[number]
            else:
                found += indexed.snapshots[number].after(self._cache.read(index, number))[1]
        return [ended for ended in found if first <= ended.seq < last]

    def control_records(self, position: int) -> Array | None:
        """The records of controller mode before `position`, in their order.

        None while a segment before that of `position` has not been read: there are no KEYFRAMEs of them.
        """
        found = [np.zeros(0, self.dtype)]
        if self.segments:
            last, number = self._cache.place(position)
            for index in range(last):
                indexed = self._cache.indexes.get(self.segments[index].base_seq)
                if indexed is None or indexed.chunks < self._cache.whole(index):
                    return None
                found += indexed.control
            found += self._cache.index_to(last, number).control[:number]
            found.append(control_records(self._cache.before(last, number, position)))
        return np.concatenate([part for part in found if len(part)] or found[:1])

    def max_passed_ns(self, offset: int, position: int) -> int | None:
        """Time of the first record before `position` whose log end is beyond `offset`.

        None if there is none. If the log was longer when the session began, that is its first record that
        names the log end.
        """
        if not self.segments:
            return None
        end, number = self._cache.place(position)
        index = end
        while index > 0 and self._cache.index_to(index, 0).snapshots[0].log_end_offset > offset:
            index -= 1
            number = self._cache.whole(index)
        snapshot = self._cache.index_to(index, number).snapshots
        # The log end passed `offset` in this chunk: beyond it at the chunk's end, not at its start.
        chunk = max(0, bisect_right(snapshot, offset, hi=number + 1, key=_log_end_offset) - 1)
        for later, inside in self._cache.places(
            self.segments[index].base_seq + chunk * self._cache.chunk_records, position
        ):
            records = self._cache.before(later, inside, position)
            ends_at, ends = log_ends(records)
            beyond = np.flatnonzero(ends > offset)
            if len(beyond):
                return int(records["ts_ns"][ends_at[beyond[0]]])
        # Only KEYFRAMEs name it: segments before the first one are missing.
        return self.first_ts_ns if self._cache.index_to(0, 0).snapshots[0].log_end_offset > offset else None

    def knows_all_before(self, position: int) -> bool:
        """Whether `scan` has read everything before `position`."""
        if not self.segments:
            return True
        last_index, last_number = self._cache.place(position)
        for index in range(last_index + 1):
            number = last_number if index == last_index else self._cache.whole(index)
            indexed = self._cache.indexes.get(self.segments[index].base_seq)
            if indexed is None or len(indexed.counts) <= number:
                return False
        return True

    def counts_at(self, position: int) -> Counts | None:
        """Counts of the events before `position`; None until `scan` has read all of them."""
        if not self.knows_all_before(position):
            return None
        if not self.segments:
            return Counts()
        last_index, last_number = self._cache.place(position)
        counts = counts_of(self._cache.before(last_index, last_number, position))
        for index in range(last_index + 1):
            number = last_number if index == last_index else self._cache.whole(index)
            counts += self._cache.indexes[self.segments[index].base_seq].counts[number]
        return counts

    def counts_between(self, first: int, last: int) -> Counts:
        """Counts of the events from `first` to before `last`; reads all of them."""
        counts = Counts()
        for index, number in self._cache.places(first, last):
            records = self._cache.read(index, number)
            low, high = np.searchsorted(records["seq"], (first, last))
            counts += counts_of(records[low:high])
        return counts

    # -- reading everything --------------------------------------------------------------------------------

    def scan(self, position: int = 0) -> Iterator[Chunk]:
        """Read and index everything, and yield each chunk (a few ms each) from the one of `position` on.

        The last chunk is yielded as far as it is written now.
        """
        for index, number in self._cache.places(max(position, self.first_seq), self.end_seq):
            is_whole = self._cache.is_whole(index, number)
            indexed = self._cache.index_to(index, number + is_whole)
            records = self._cache.read(index, number)
            if is_whole and len(indexed.counts) == number + 1:
                indexed.counts.append(indexed.counts[-1] + counts_of(records))
            yield Chunk(index, number, records, indexed.snapshots[number])

    def chunks_around(self, position: int, *, forward: bool) -> Iterator[Chunk]:
        """The chunks from that of `position` to the end, or back to the start; whole ones."""
        first, last = (position, self.end_seq) if forward else (self.first_seq, position)
        places = list(self._cache.places(first, last))
        for index, number in places if forward else reversed(places):
            yield Chunk(
                index,
                number,
                self._cache.read(index, number),
                self._cache.index_to(index, number).snapshots[number],
            )


def _log_end_offset(snapshot: Snapshot) -> int:
    return snapshot.log_end_offset
