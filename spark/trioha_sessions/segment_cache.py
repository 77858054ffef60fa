"""The records of a session in chunks, and an index of each segment. Needs NumPy.

A segment is read in chunks of `CHUNK_RECORDS`; the last ones stay in memory. Reading a segment once leaves an
index: the snapshot at the start of each chunk, the connections that ended in it, and its records of
controller mode, for which there are no KEYFRAMEs.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping
from typing import Final

import numpy as np
from attrs import define, field, frozen

from trioha.errors import StoreError
from trioha.recording.events import Kind
from trioha.recording.reader import Segment, Session
from trioha_sessions.batch_stats import Counts, control_records
from trioha_sessions.records import read_segment, record_dtype
from trioha_sessions.segments import Damage, Segments, read_segments
from trioha_sessions.snapshot import Ended, Identity, Snapshot, identity, last_of
from trioha_sessions.state_arrays import Array

CHUNK_RECORDS: Final = 65_536
"""Records that are read at a time: 3 MiB."""
_CHUNKS_KEPT: Final = 6
"""Chunks that stay in memory."""


@define(eq=False)
class SegmentIndex:
    """Snapshots and ends of connections of a segment's first chunks; lists by chunk."""

    snapshots: list[Snapshot]
    """At the start of each indexed chunk, and of the next one."""
    counts: list[Counts]
    """From the segment's start to the start of each chunk; only `scan` counts."""
    first_seq: int
    """Seq of the segment's first record after its KEYFRAMEs."""
    ended: list[tuple[Ended, ...]] = field(factory=list)
    """Connections that ended in each indexed chunk."""
    control: list[Array] = field(factory=list)
    """Records of controller mode in each indexed chunk."""

    @property
    def chunks(self) -> int:
        """How many chunks are indexed."""
        return len(self.ended)


@frozen(eq=False)
class Chunk:
    """Consecutive records of a segment."""

    segment: int
    """Index among `SegmentCache.segments`."""
    number: int
    """Index in its segment."""
    records: Array
    """Without damaged ones."""
    snapshot: Snapshot
    """At its start."""


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
        self._indexes: dict[int, SegmentIndex] = {}
        """By the segment's base seq: indices may change when a segment that was missing appears."""
        self._last_times: dict[int, dict[Identity, tuple[int, int]]] = {}
        """Results of `last_times`, by base seq."""
        self._cache: OrderedDict[tuple[int, int, int], Array] = OrderedDict()
        self._scratch = bytearray(chunk_records * session.record_bytes)
        """Buffer for chunks that are read `once`."""

    @property
    def segments(self) -> tuple[Segment, ...]:
        """As of the last `refresh`."""
        return self._found.segments

    @property
    def records(self) -> int:
        """How many records there are, damaged ones included."""
        return self._found.records

    @property
    def segment_damage(self) -> tuple[Damage, ...]:
        """Damage of segments that cannot be read."""
        return tuple(self._found.damage)

    @property
    def chunk_damage(self) -> tuple[Damage, ...]:
        """Damage within readable segments, as far as they were read."""
        return tuple(one for key in sorted(self._damage) for one in self._damage[key])

    @property
    def indexes(self) -> Mapping[int, SegmentIndex]:
        """Index of each segment so far, by its base seq."""
        return self._indexes

    def refresh(self) -> bool:
        """Look for segments and records that were written since the last call; return whether any are."""
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
        """Whether a chunk cannot grow any more."""
        return (
            index < len(self.segments) - 1
            or (number + 1) * self.chunk_records <= self.segments[index].records
        )

    def read(self, index: int, number: int, *, once: bool = False) -> Array:
        """The undamaged records of a chunk. Read `once`, they are valid until the next such call."""
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
            # The file was removed after the folder was listed.
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

    def index_to(self, index: int, number: int) -> SegmentIndex:
        """Index the chunks of a segment before `number`, which are whole."""
        base_seq = self.segments[index].base_seq
        indexed = self._indexes.get(base_seq)
        if indexed is None:
            indexed, is_complete = self._begin(index)
            if is_complete:
                self._indexes[base_seq] = indexed
        while indexed.chunks < number:
            records = self.read(index, indexed.chunks, once=True)
            snapshot, ended = indexed.snapshots[-1].after(records)
            indexed.ended.append(ended)
            indexed.snapshots.append(snapshot)
            indexed.control.append(control_records(records))
        return indexed

    def _begin(self, index: int) -> tuple[SegmentIndex, bool]:
        """A new index of a segment, from its KEYFRAMEs, and whether all of them are written."""
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
        return SegmentIndex([snapshot], [Counts()], first_seq), complete or index < len(self.segments) - 1

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
        """The records of a chunk before `position`."""
        if not self.segments[index].records:
            return np.zeros(0, self.dtype)
        records = self.read(index, number)
        return records[: int(np.searchsorted(records["seq"], position))]

    def end_of(self, index: int) -> Snapshot:
        """The snapshot at the end of a segment."""
        segment = self.segments[index]
        chunks = self.whole(index)
        snapshot = self.index_to(index, chunks).snapshots[chunks]
        if chunks < self.count(index):
            snapshot, _ = snapshot.after(self.read(index, chunks))
        assert segment.records or not len(snapshot.records), "a segment without records has no state"
        return snapshot

    def last_times(self, index: int, identities: Collection[Identity]) -> dict[Identity, tuple[int, int]]:
        """Time and seq of the last record of each identity in a segment that cannot grow, by identity.

        The identities are of the snapshot at its end. If only its KEYFRAMEs have one, those count.
        """
        base_seq = self.segments[index].base_seq
        known = self._last_times.setdefault(base_seq, {})
        left = set(identities) - known.keys()
        indexed = self._indexes.get(base_seq)
        if left and indexed is not None and indexed.chunks >= self.count(index):
            known.update(_times_of(self.end_of(index).records))
            left -= known.keys()
        # From the end, since most are frequent; without the index, which takes twice as long.
        for number in range(self.count(index) - 1, -1, -1):
            if not left:
                break
            known.update(_times_of(last_of(self.read(index, number, once=True), left)))
            left -= known.keys()
        if left:
            at_begin = _times_of(self.index_to(index, 0).snapshots[0].records)
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


def _times_of(records: Array) -> dict[Identity, tuple[int, int]]:
    return {identity(record): (int(record["ts_ns"]), int(record["seq"])) for record in records}
