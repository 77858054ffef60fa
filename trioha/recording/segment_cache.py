"""The records of a session, chunk by chunk, and what passing them left behind. Needs NumPy.

A segment is read in chunks of `CHUNK_RECORDS`, of which the last ones stay in memory. Whoever passes a chunk
leaves behind where everything stood at its begin and which connections ended in it, so that the next one need
not pass it again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping
from typing import Final

import numpy as np
from attrs import define, field, frozen

from trioha.errors import StoreError
from trioha.recording.batch_stats import Counts
from trioha.recording.events import Kind
from trioha.recording.reader import Damage, Segment, Segments, Session, read_segments
from trioha.recording.records import read_segment, record_dtype
from trioha.recording.snapshot import Ended, Identity, Snapshot, identity, last_of
from trioha.recording.state_arrays import Array

CHUNK_RECORDS: Final = 65_536
"""Records that are read at a time: 3 MiB."""
_CHUNKS_KEPT: Final = 6
"""SegmentCache that stay in memory."""


@define(eq=False)
class Passed:
    """What passing a segment's chunks left behind; lists by chunk."""

    snapshot: list[Snapshot]
    """Where everything stood at the begin of each chunk, and of the next one to be passed."""
    counted: list[Counts]
    """From the segment's begin to there; only `scan` counts."""
    first_seq: int
    """Seq of its first record that is no KEYFRAME."""
    ended: list[tuple[Ended, ...]] = field(factory=list)
    """Connections that ended in each chunk that was passed."""

    @property
    def chunks(self) -> int:
        """How many were passed."""
        return len(self.ended)


@frozen(eq=False)
class Chunk:
    """Records that lie together in a segment."""

    segment: int
    """Index among `SegmentCache.segments`."""
    number: int
    """Index in its segment."""
    records: Array
    """Those that can be trusted."""
    snapshot: Snapshot
    """Where everything stood at its begin."""


class SegmentCache:
    """The segments of one session and their chunks. Used by one thread at a time; may read the disk."""

    def __init__(self, session: Session, *, chunk_records: int = CHUNK_RECORDS) -> None:
        self.session = session
        self.chunk_records = chunk_records
        self.dtype = record_dtype(session)
        self.bases: list[int] = []
        """Seq of the first record of each segment."""
        self._found = Segments((), ())
        self._damage: dict[tuple[int, int], tuple[Damage, ...]] = {}
        self._passed: dict[int, Passed] = {}
        """By the segment's base seq: indices may change when a segment that was missing appears."""
        self._said: dict[int, dict[Identity, tuple[int, int]]] = {}
        """What `last_said` has found, by base seq."""
        self._cache: OrderedDict[tuple[int, int, int], Array] = OrderedDict()
        self._scratch = bytearray(chunk_records * session.record_bytes)
        """Where chunks are read to that are looked at once."""

    @property
    def segments(self) -> tuple[Segment, ...]:
        """As of the last `refresh`."""
        return self._found.segments

    @property
    def records(self) -> int:
        """How many records are there, those that cannot be trusted included."""
        return self._found.records

    @property
    def segment_damage(self) -> tuple[Damage, ...]:
        """Segments that cannot be read."""
        return tuple(self._found.damage)

    @property
    def chunk_damage(self) -> tuple[Damage, ...]:
        """What is known to be unreadable of those that can."""
        return tuple(one for key in sorted(self._damage) for one in self._damage[key])

    @property
    def passed(self) -> Mapping[int, Passed]:
        """What was passed by now, by base seq of the segment."""
        return self._passed

    def refresh(self) -> bool:
        """Look for segments and records that were written since the last time; whether there are any."""
        found = read_segments(self.session)
        if found == self._found:
            return False
        self._found = found
        self.bases = [segment.base_seq for segment in found.segments]
        return True

    def count(self, index: int) -> int:
        """How many chunks a segment has."""
        return -(-self.segments[index].records // self.chunk_records)

    def is_whole(self, index: int, number: int) -> bool:
        """Whether nothing can be added to a chunk any more."""
        return (
            index < len(self.segments) - 1
            or (number + 1) * self.chunk_records <= self.segments[index].records
        )

    def read(self, index: int, number: int, *, once: bool = False) -> Array:
        """The records of a chunk that can be trusted. Read `once`, they are good until the next such call."""
        segment = self.segments[index]
        first = number * self.chunk_records
        count = min(self.chunk_records, segment.records - first)
        key = (segment.base_seq, number, count)
        known = self._cache.get(key)
        if known is not None:
            self._cache.move_to_end(key)
            return known
        try:
            scratch = self._scratch if once else None
            read = read_segment(self.session, segment, first=first, count=count, scratch=scratch)
        except StoreError as error:
            # Taken away since the folder was looked at.
            damage: tuple[Damage, ...] = (
                Damage(str(segment.path), first * self.session.record_bytes, error.reason, count),
            )
            array = np.zeros(0, self.dtype)
        else:
            array, damage = read.array, read.damage
        if damage:
            self._damage[segment.base_seq, number] = damage
        if once:
            return array
        self._cache[key] = array
        while len(self._cache) > _CHUNKS_KEPT:
            self._cache.popitem(last=False)
        return array

    def passed_to(self, index: int, number: int) -> Passed:
        """Pass the chunks of a segment before `number`, which are whole."""
        base_seq = self.segments[index].base_seq
        passed = self._passed.get(base_seq)
        if passed is None:
            passed, is_complete = self._begin(index)
            if is_complete:
                self._passed[base_seq] = passed
        while passed.chunks < number:
            records = self.read(index, passed.chunks, once=True)
            snapshot, ended = passed.snapshot[-1].after(records)
            passed.ended.append(ended)
            passed.snapshot.append(snapshot)
        return passed

    def _begin(self, index: int) -> tuple[Passed, bool]:
        """What a segment's KEYFRAMEs say, and whether they are all there already."""
        segment = self.segments[index]
        heads = [np.zeros(0, self.dtype)]
        complete = False
        for number in range(self.count(index)):
            records = self.read(index, number)
            others = np.flatnonzero(records["kind"] != Kind.KEYFRAME)
            complete = bool(len(others))
            heads.append(records[: others[0]] if complete else records)
            if complete:
                break
        keyframes = np.concatenate(heads)
        snapshot = Snapshot.at_keyframes(keyframes) if len(keyframes) else Snapshot.nowhere(self.dtype)
        first_seq = int(keyframes["seq"][-1]) + 1 if len(keyframes) else segment.base_seq
        return Passed([snapshot], [Counts()], first_seq), complete or index < len(self.segments) - 1

    def whole(self, index: int) -> int:
        """How many chunks of a segment are whole."""
        chunks = self.count(index)
        return chunks if not chunks or self.is_whole(index, chunks - 1) else chunks - 1

    def place(self, position: int) -> tuple[int, int]:
        """Segment and chunk that hold the last record before `position`; there is a segment."""
        index = max(0, bisect_right(self.bases, position - 1) - 1)
        segment = self.segments[index]
        inside = min(position, segment.base_seq + segment.records) - 1 - segment.base_seq
        return index, max(0, inside) // self.chunk_records

    def before(self, index: int, number: int, position: int) -> Array:
        """The records of a chunk that come before `position`."""
        if not self.segments[index].records:
            return np.zeros(0, self.dtype)
        records = self.read(index, number)
        return records[: int(np.searchsorted(records["seq"], position))]

    def end_of(self, index: int) -> Snapshot:
        """Snapshot at the end of a segment."""
        segment = self.segments[index]
        chunks = self.whole(index)
        snapshot = self.passed_to(index, chunks).snapshot[chunks]
        if chunks < self.count(index):
            snapshot, _ = snapshot.after(self.read(index, chunks))
        assert segment.records or not len(snapshot.records), "a segment without records says nothing"
        return snapshot

    def last_said(self, index: int, identities: Collection[Identity]) -> dict[Identity, tuple[int, int]]:
        """Time and seq of the last record of each identity in a segment that is over, by identity.

        They must be of what stands at its end. Those that were said before it only have those of KEYFRAMEs.
        """
        base_seq = self.segments[index].base_seq
        known = self._said.setdefault(base_seq, {})
        left = set(identities) - known.keys()
        passed = self._passed.get(base_seq)
        if left and passed is not None and passed.chunks >= self.count(index):
            known.update(_said(self.end_of(index).records))
            left -= known.keys()
        # From its end on, since most were said often; without passing it, which takes twice as long.
        for number in range(self.count(index) - 1, -1, -1):
            if not left:
                break
            known.update(_said(last_of(self.read(index, number, once=True), left)))
            left -= known.keys()
        if left:
            at_begin = _said(self.passed_to(index, 0).snapshot[0].records)
            known.update({one: at_begin[one] for one in left if one in at_begin})
        return {one: known[one] for one in identities if one in known}

    def places(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Segment and number of each chunk that has records from `first` to before `last`."""
        if not self.segments or first >= last:
            return
        for index in range(max(0, bisect_right(self.bases, first) - 1), len(self.segments)):
            segment = self.segments[index]
            if segment.base_seq >= last:
                return
            begin = max(0, first - segment.base_seq) // self.chunk_records
            end = min(segment.records, last - segment.base_seq)
            yield from ((index, number) for number in range(begin, -(-end // self.chunk_records)))


def _said(records: Array) -> dict[Identity, tuple[int, int]]:
    return {identity(record): (int(record["ts_ns"]), int(record["seq"])) for record in records}
