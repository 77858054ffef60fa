"""A recorded session that can be asked about any moment, without reading all of it. Needs NumPy.

Theory of operation. A position is a seq: the state at position `p` is what all records before `p` say. It is
the standing (`trioha.recording.standing`) at the begin of p's segment, which its KEYFRAMEs give, and the
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
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from operator import add
from pathlib import Path
from typing import Final

import numpy as np
from attrs import define, evolve, field, frozen
from numpy.typing import NDArray

from trioha.errors import StoreError
from trioha.recording.events import NO_CONNECTION, Kind, PutStatus
from trioha.recording.fold import OWN_MAX_KINDS
from trioha.recording.layout import CLOSED_NOTE
from trioha.recording.reader import (
    Damage,
    Fact,
    Segment,
    Segments,
    Session,
    open_session,
    read_facts,
    read_segments,
)
from trioha.recording.records import read_segment, record_dtype
from trioha.recording.standing import Ended, Standing
from trioha.recording.tallies import UNKNOWN

Array = NDArray[np.void]
Ints = NDArray[np.int64]

CHUNK_RECORDS: Final = 65_536
"""Records that are read at a time: 3 MiB."""
_CHUNKS_KEPT: Final = 6
"""Chunks that stay in memory."""
_KEYFRAME_HOPS_MAX: Final = 2
"""How many segments back a connection's last word is looked for."""

_IS_MARK: Final = np.zeros(256, np.bool_)
_IS_MARK[[Kind.STATE, Kind.REQUESTED, Kind.REFUSED, Kind.CLOSED, Kind.LINK, Kind.DROPPED]] = True
_TELLS_MAX: Final = np.zeros(256, np.bool_)
_TELLS_MAX[[*OWN_MAX_KINDS, Kind.PUT]] = True


@frozen
class Counts:
    """What happened since the session began."""

    puts: int = 0
    put_bytes: int = 0
    waits_begun: int = 0
    waits: tuple[int, ...] = (0,) * 256
    """Waits that ended, by `PutStatus`."""
    dropped: int = 0

    def __add__(self, later: Counts) -> Counts:
        return Counts(
            self.puts + later.puts,
            self.put_bytes + later.put_bytes,
            self.waits_begun + later.waits_begun,
            tuple(map(add, self.waits, later.waits)),
            self.dropped + later.dropped,
        )


@define(eq=False)
class _Passed:
    """What passing a segment's chunks left behind; lists by chunk."""

    stood: list[Standing]
    """Where everything stood at the begin of each chunk, and of the next one to be passed."""
    counted: list[Counts]
    """From the segment's begin to there; only `scan` counts."""
    first_seq: int
    """Seq of its first record that is no KEYFRAME."""
    ended: list[tuple[Ended, ...]] = field(factory=list)

    @property
    def chunks(self) -> int:
        return len(self.ended)


@frozen(eq=False)
class Chunk:
    """Records that lie together in a segment."""

    segment: int
    """Index among `Tape.segments`."""
    number: int
    """Index in its segment."""
    records: Array
    """Those that can be trusted."""
    stood: Standing
    """Where everything stood at its begin."""


class Tape:
    """One session. Used by one thread at a time; every method may read the disk."""

    def __init__(self, session: Session, *, chunk_records: int = CHUNK_RECORDS) -> None:
        """Read what is needed to answer: headers, facts, the last record."""
        self.session = session
        self._chunk_records = chunk_records
        self.dtype = record_dtype(session)
        self.facts: Sequence[Fact] = ()
        self.ended_in_order = False
        """Whether the recorder closed it, rather than being killed or still going on."""
        self._found = Segments((), ())
        self._fact_damage: Sequence[Damage] = ()
        self._chunk_damage: dict[tuple[int, int], tuple[Damage, ...]] = {}
        self._bases: list[int] = []
        self._passed: dict[int, _Passed] = {}
        """By the segment's base seq: indices may change when a segment that was missing appears."""
        self._cache: OrderedDict[tuple[int, int, int], Array] = OrderedDict()
        self.last_ts_ns = 0
        self.refresh()

    @classmethod
    def open(cls, path: Path) -> Tape:
        """The session folder `path`. Raises StoreError if it is none."""
        return cls(open_session(path))

    # -- what is there -------------------------------------------------------------------------------------

    @property
    def segments(self) -> tuple[Segment, ...]:
        """As of the last `refresh`."""
        return self._found.segments

    @property
    def records(self) -> int:
        """How many records are there, those that cannot be trusted included."""
        return self._found.records

    @property
    def damage(self) -> tuple[Damage, ...]:
        """What is known to be unreadable by now."""
        return (
            *self._found.damage,
            *self._fact_damage,
            *(one for key in sorted(self._chunk_damage) for one in self._chunk_damage[key]),
        )

    @property
    def first_ts_ns(self) -> int:
        """When it begins, on its monotonic clock."""
        return self.segments[0].base_ts_ns if self.segments else self.session.monotonic_ns

    @property
    def first_seq(self) -> int:
        """Its first position."""
        return self._bases[0] if self._bases else 0

    @property
    def end_seq(self) -> int:
        """Its last position: behind the last record."""
        if not self.segments:
            return 0
        return self.segments[-1].base_seq + self.segments[-1].records

    def refresh(self) -> bool:
        """Take in what was written since the last time; whether there is anything."""
        found = read_segments(self.session)
        if found == self._found and self.last_ts_ns:
            return False
        self._found = found
        self._bases = [segment.base_seq for segment in found.segments]
        self.facts, self._fact_damage = read_facts(self.session)
        self.ended_in_order = any(
            fact.type_ == "note" and fact.fields.get("text") == CLOSED_NOTE for fact in self.facts[-1:]
        )
        self.last_ts_ns = self._last_ts_ns()
        return True

    def _last_ts_ns(self) -> int:
        for index in reversed(range(len(self.segments))):
            for number in reversed(range(self._chunks(index))):
                records = self._chunk(index, number)
                if len(records):
                    return max(int(records["ts_ns"].max()), self.first_ts_ns)
        return self.first_ts_ns

    # -- chunks --------------------------------------------------------------------------------------------

    def _chunks(self, index: int) -> int:
        return -(-self.segments[index].records // self._chunk_records)

    def _is_whole(self, index: int, number: int) -> bool:
        """Whether nothing can be added to a chunk any more."""
        return (
            index < len(self.segments) - 1
            or (number + 1) * self._chunk_records <= self.segments[index].records
        )

    def _chunk(self, index: int, number: int) -> Array:
        segment = self.segments[index]
        first = number * self._chunk_records
        count = min(self._chunk_records, segment.records - first)
        key = (segment.base_seq, number, count)
        known = self._cache.get(key)
        if known is not None:
            self._cache.move_to_end(key)
            return known
        try:
            read = read_segment(self.session, segment, first=first, count=count)
        except StoreError as error:
            # Taken away since the folder was looked at.
            damage: tuple[Damage, ...] = (
                Damage(str(segment.path), first * self.session.record_bytes, error.reason, count),
            )
            array = np.zeros(0, self.dtype)
        else:
            array, damage = read.array, read.damage
        if damage:
            self._chunk_damage[segment.base_seq, number] = damage
        self._cache[key] = array
        while len(self._cache) > _CHUNKS_KEPT:
            self._cache.popitem(last=False)
        return array

    def _pass_to(self, index: int, number: int) -> _Passed:
        """Pass the chunks of a segment before `number`, which are whole."""
        base_seq = self.segments[index].base_seq
        passed = self._passed.get(base_seq)
        if passed is None:
            passed, is_complete = self._begin(index)
            if is_complete:
                self._passed[base_seq] = passed
        while passed.chunks < number:
            records = self._chunk(index, passed.chunks)
            standing, ended = passed.stood[-1].after(records)
            passed.ended.append(ended)
            passed.stood.append(standing)
        return passed

    def _begin(self, index: int) -> tuple[_Passed, bool]:
        """What a segment's KEYFRAMEs say, and whether they are all there already."""
        segment = self.segments[index]
        heads = [np.zeros(0, self.dtype)]
        complete = False
        for number in range(self._chunks(index)):
            records = self._chunk(index, number)
            others = np.flatnonzero(records["kind"] != Kind.KEYFRAME)
            complete = bool(len(others))
            heads.append(records[: others[0]] if complete else records)
            if complete:
                break
        keyframes = np.concatenate(heads)
        standing = Standing.at_keyframes(keyframes) if len(keyframes) else Standing.nowhere(self.dtype)
        first_seq = int(keyframes["seq"][-1]) + 1 if len(keyframes) else segment.base_seq
        return _Passed([standing], [Counts()], first_seq), complete or index < len(self.segments) - 1

    def _whole_chunks(self, index: int) -> int:
        chunks = self._chunks(index)
        return chunks if not chunks or self._is_whole(index, chunks - 1) else chunks - 1

    def _place(self, position: int) -> tuple[int, int]:
        """Segment and chunk that hold the last record before `position`; there is a segment."""
        index = max(0, bisect_right(self._bases, position - 1) - 1)
        segment = self.segments[index]
        inside = min(position, segment.base_seq + segment.records) - 1 - segment.base_seq
        return index, max(0, inside) // self._chunk_records

    def _before(self, index: int, number: int, position: int) -> Array:
        """The records of a chunk that come before `position`."""
        if not self.segments[index].records:
            return np.zeros(0, self.dtype)
        records = self._chunk(index, number)
        return records[: int(np.searchsorted(records["seq"], position))]

    # -- positions and times -------------------------------------------------------------------------------

    def position_at(self, ts_ns: int) -> int:
        """The position behind the last record that is not later than `ts_ns`.

        Where a damaged session's clock goes back, a record counts as no earlier than those before it in its
        chunk.
        """
        index = bisect_right([segment.base_ts_ns for segment in self.segments], ts_ns) - 1
        if index < 0:
            return self.first_seq
        low, high = 0, self._chunks(index)
        while high - low > 1:
            middle = (low + high) // 2
            if self._begins_ns(index, middle) <= ts_ns:
                low = middle
            else:
                high = middle
        segment = self.segments[index]
        if not segment.records:
            return segment.base_seq
        records = self._chunk(index, low)
        latest = np.maximum.accumulate(records["ts_ns"])
        place = int(np.searchsorted(latest, ts_ns, side="right"))
        if place < len(records):
            return int(records["seq"][place])
        return min(segment.base_seq + (low + 1) * self._chunk_records, segment.base_seq + segment.records)

    def _begins_ns(self, index: int, number: int) -> int:
        """Time of the first record of a chunk that can be trusted."""
        segment = self.segments[index]
        try:
            first = read_segment(self.session, segment, first=number * self._chunk_records, count=1).array
        except StoreError:
            first = np.zeros(0, self.dtype)
        if not len(first):
            first = self._chunk(index, number)[:1]
        return int(first["ts_ns"][0]) if len(first) else segment.base_ts_ns

    def record_before(self, position: int) -> np.void | None:
        """The last record before `position`, KEYFRAMEs included; None at the begin."""
        for index in reversed(range(bisect_right(self._bases, position - 1))):
            last = self._place(min(position, self._bases[index] + self.segments[index].records))[1]
            for number in reversed(range(last + 1)):
                records = self._before(index, number, position)
                if len(records):
                    found: np.void = records[-1]
                    return found
        return None

    def record_from(self, position: int) -> np.void | None:
        """The first record at or behind `position`; None at the end."""
        for index in range(max(0, bisect_right(self._bases, position) - 1), len(self.segments)):
            base_seq = self.segments[index].base_seq
            for number in range(max(0, position - base_seq) // self._chunk_records, self._chunks(index)):
                records = self._chunk(index, number)
                place = int(np.searchsorted(records["seq"], position))
                if place < len(records):
                    found: np.void = records[place]
                    return found
        return None

    def time_of(self, position: int) -> int | None:
        """Monotonic time of the first record that can be trusted from `position` on; None at the end."""
        index = bisect_right(self._bases, position) - 1
        if index >= 0 and position - self._bases[index] < self.segments[index].records:
            try:
                one = read_segment(
                    self.session, self.segments[index], first=position - self._bases[index], count=1
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
        for index, number in self._places(first, last):
            records = self._chunk(index, number)
            low, high = np.searchsorted(records["seq"], (first, last))
            parts.append(records[low:high])
        every = np.concatenate(parts)
        wanted: Array = every[every["kind"] != Kind.KEYFRAME]
        return wanted

    # -- what stood where ----------------------------------------------------------------------------------

    def standing_at(self, position: int) -> Standing:
        """Where everything stood at `position`."""
        if not self.segments:
            return Standing.nowhere(self.dtype)
        index, number = self._place(position)
        stood = self._pass_to(index, number).stood[number]
        if index and self._bases[index] not in self._passed:
            # Its KEYFRAMEs are just being written: what they repeat is where the segment before it ends.
            index -= 1
            standing = self._end_of(index)
        else:
            standing, _ = stood.after(self._before(index, number, position))
        while standing.own_max_offset == UNKNOWN and index > 0:
            # Nothing of the segment tells it: no connection was open at its begin.
            index -= 1
            earlier = self._end_of(index)
            standing = evolve(standing, own_max_offset=earlier.own_max_offset)
        return standing

    def _end_of(self, index: int) -> Standing:
        """Standing at the end of a segment."""
        segment = self.segments[index]
        chunks = self._whole_chunks(index)
        stood = self._pass_to(index, chunks).stood[chunks]
        if chunks < self._chunks(index):
            stood, _ = stood.after(self._chunk(index, chunks))
        assert segment.records or not len(stood.records), "a segment without records says nothing"
        return stood

    def standing_of(self, conn: int, position: int) -> Array:
        """The standing of one connection, with the time of each record's event, also of those that are
        KEYFRAMEs in the segment of `position` (up to two segments back)."""
        standing = self.standing_at(position).records
        return self._with_own_times(standing[standing["conn"] == conn], position)

    def with_own_times(self, standing: Standing, position: int) -> Standing:
        """`standing`, which is that at `position`, with the time of each record's event as `standing_of`."""
        return evolve(standing, records=self._with_own_times(standing.records, position))

    def _with_own_times(self, records: Array, position: int) -> Array:
        if not self.segments or not len(records):
            return records
        index, _ = self._place(position)
        for _ in range(_KEYFRAME_HOPS_MAX):
            first_seq = self._pass_to(index, 0).first_seq
            repeated = np.flatnonzero(records["seq"] < first_seq)
            if not len(repeated) or index == 0:
                break
            index -= 1
            earlier = self._end_of(index).records
            times = {
                _identity(record): (int(record["ts_ns"]), int(record["seq"]))
                for record in earlier[np.isin(earlier["conn"], records["conn"][repeated])]
            }
            records = records.copy()
            for place in repeated:
                known = times.get(_identity(records[place]))
                if known is not None:
                    records["ts_ns"][place], records["seq"][place] = known
        return records

    def ended_between(self, first: int, last: int) -> list[Ended]:
        """Connections whose end is a record from `first` to before `last`."""
        found: list[Ended] = []
        for index, number in self._places(first, last):
            passed = self._pass_to(index, number)
            if passed.chunks > number:
                found += passed.ended[number]
            else:
                found += passed.stood[number].after(self._chunk(index, number))[1]
        return [ended for ended in found if first <= ended.seq < last]

    def _places(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Segment and number of each chunk that has records from `first` to before `last`."""
        if not self.segments or first >= last:
            return
        for index in range(max(0, bisect_right(self._bases, first) - 1), len(self.segments)):
            segment = self.segments[index]
            if segment.base_seq >= last:
                return
            begin = max(0, first - segment.base_seq) // self._chunk_records
            end = min(segment.records, last - segment.base_seq)
            yield from ((index, number) for number in range(begin, -(-end // self._chunk_records)))

    def max_passed_ns(self, offset: int, position: int) -> int | None:
        """When the node's own log first went beyond `offset`, as far as the records before `position` say.

        None if it did not. Of a log that was already longer when the session began: when that is first told.
        """
        if not self.segments:
            return None
        end, number = self._place(position)
        index = end
        while index > 0 and self._pass_to(index, 0).stood[0].own_max_offset > offset:
            index -= 1
            number = self._whole_chunks(index)
        stood = self._pass_to(index, number).stood
        # The chunk at whose begin it was not yet beyond, and at whose end it was.
        chunk = max(0, bisect_right(stood, offset, hi=number + 1, key=_own_max_offset) - 1)
        for later, inside in self._places(
            self.segments[index].base_seq + chunk * self._chunk_records, position
        ):
            records = self._before(later, inside, position)
            ts_ns, own = own_max_of(records)
            beyond = np.flatnonzero(own > offset)
            if len(beyond):
                return int(ts_ns[beyond[0]])
        # Told by KEYFRAMEs only: what came before the first segment that is there.
        return self.first_ts_ns if self._pass_to(0, 0).stood[0].own_max_offset > offset else None

    def knows_all_before(self, position: int) -> bool:
        """Whether everything before `position` was passed (`scan`)."""
        if not self.segments:
            return True
        last_index, last_number = self._place(position)
        for index in range(last_index + 1):
            number = last_number if index == last_index else self._whole_chunks(index)
            passed = self._passed.get(self.segments[index].base_seq)
            if passed is None or len(passed.counted) <= number:
                return False
        return True

    def counts_at(self, position: int) -> Counts | None:
        """What happened before `position`; None until everything before it was passed (`scan`)."""
        if not self.knows_all_before(position):
            return None
        if not self.segments:
            return Counts()
        last_index, last_number = self._place(position)
        counts = _counts_of(self._before(last_index, last_number, position))
        for index in range(last_index + 1):
            number = last_number if index == last_index else self._whole_chunks(index)
            counts += self._passed[self.segments[index].base_seq].counted[number]
        return counts

    def counts_between(self, first: int, last: int) -> Counts:
        """What happened from `first` to before `last`; reads all of it."""
        counts = Counts()
        for index, number in self._places(first, last):
            records = self._chunk(index, number)
            low, high = np.searchsorted(records["seq"], (first, last))
            counts += _counts_of(records[low:high])
        return counts

    # -- all of it -----------------------------------------------------------------------------------------

    def scan(self, position: int = 0) -> Iterator[Chunk]:
        """Pass everything that is there, a chunk at a time (a few ms each), and show each chunk from the one
        that holds `position` on.

        What can still grow is shown as far as it goes now.
        """
        for index, number in self._places(max(position, self.first_seq), self.end_seq):
            is_whole = self._is_whole(index, number)
            passed = self._pass_to(index, number + is_whole)
            records = self._chunk(index, number)
            if is_whole and len(passed.counted) == number + 1:
                passed.counted.append(passed.counted[-1] + _counts_of(records))
            yield Chunk(index, number, records, passed.stood[number])

    def chunks_around(self, position: int, *, forward: bool) -> Iterator[Chunk]:
        """The chunks from the one that holds `position` on, or back from it; whole ones."""
        first, last = (position, self.end_seq) if forward else (self.first_seq, position)
        places = list(self._places(first, last))
        for index, number in places if forward else reversed(places):
            yield Chunk(index, number, self._chunk(index, number), self._pass_to(index, number).stood[number])


def marks_of(records: Array, *, was_failing: bool = False) -> Array:
    """The few of `records` that an operator cares about, in their order.

    STATE, REQUESTED, REFUSED, CLOSED, LINK, DROPPED; and of WAIT_END the failed ones, and the first good one
    behind a failed one. `was_failing`: whether the last wait before these records failed.
    """
    kind = records["kind"]
    is_mark = _IS_MARK[kind]
    ends = np.flatnonzero(kind == Kind.WAIT_END)
    if len(ends):
        failed = records["flags"][ends] != PutStatus.PUT_OK
        if was_failing or failed.any():
            after_failed = np.concatenate(([was_failing], failed[:-1]))
            is_mark[ends[failed | after_failed]] = True
    marks: Array = records[is_mark]
    return marks


def _counts_of(records: Array) -> Counts:
    kind = records["kind"]
    counts = np.bincount(kind, minlength=256)
    waits = (0,) * 256
    if counts[Kind.WAIT_END]:
        flags = records["flags"][kind == Kind.WAIT_END]
        waits = tuple(np.bincount(flags, minlength=256).tolist())
    put_bytes = int(records["size"][kind == Kind.PUT].sum(dtype=np.int64)) if counts[Kind.PUT] else 0
    dropped = int(records["aux"][kind == Kind.DROPPED].sum()) if counts[Kind.DROPPED] else 0
    return Counts(int(counts[Kind.PUT]), put_bytes, int(counts[Kind.WAIT_BEGIN]), waits, dropped)


def _identity(record: np.void) -> tuple[int, int, int]:
    """What tells a record of a standing from the others: connection, kind, direction of a heartbeat."""
    kind = int(record["kind"])
    return int(record["conn"]), kind, int(record["flags"]) if kind == Kind.HEARTBEAT else 0


def own_max_of(records: Array) -> tuple[Ints, Ints]:
    """When the node's own log was how long, as `records` tell it: times and offsets, both of shape (n,)."""
    kind = records["kind"]
    # Whole columns, not whole records: those would be copied.
    tells = np.flatnonzero(_TELLS_MAX[kind])
    is_put = kind[tells] == Kind.PUT
    has_connection = records["conn"][tells] != NO_CONNECTION
    if not (is_put | has_connection).all():
        tells, is_put = tells[is_put | has_connection], is_put[is_put | has_connection]
    own: Ints = np.where(is_put, records["offset"][tells], records["aux"][tells])
    return records["ts_ns"][tells], own


def _own_max_offset(standing: Standing) -> int:
    return standing.own_max_offset
