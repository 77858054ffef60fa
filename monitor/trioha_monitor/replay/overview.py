"""What can only be said after all of a replay was passed: lag of every connection over the whole time, worst
of each bucket, and the timeline of what happened.

`work` passes the sessions chunk by chunk in the order of time, some milliseconds at a time, so that who
shows the replay does a little of it between two pictures. What was passed so far can be asked for all
the while; when `is_complete`, it is exact: each bucket has the largest lag that the recording tells for any
moment of it, also of connections of which nothing was recorded in it.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Iterator

import numpy as np
from attrs import define, field
from numpy.typing import NDArray

from trioha.recording.events import Kind, PutStatus
from trioha.recording.lags import Lags, lags
from trioha.recording.tape import Array, Chunk, marks_of, own_max_of
from trioha_monitor.replay.happenings import happenings, session_marks, sync_changes
from trioha_monitor.replay.reel import NS_PER_MS, Reel, Take
from trioha_monitor.series import Bucket, Series, Severity
from trioha_monitor.source import Tick
from trioha_monitor.view import Limits, TimelineEvent

Ints = NDArray[np.int64]

BUCKETS_MAX = 8192
"""Buckets of the whole time at most."""
_BUCKETS_MS = (100, 200, 500, 1000, 2000, 5000, 10_000, 30_000, 60_000, 300_000, 900_000, 3_600_000)
EVENTS_SHOWN_MAX = 2000
"""Events in a view: the last ones."""
_UNKNOWN = -1


@define(eq=False)
class Curve:
    """A value of each bucket, in an array that grows."""

    first: int
    """Number of the first bucket."""
    values: Ints = field(factory=lambda: np.full(16, _UNKNOWN, np.int64))
    """-1 without any; longer than what is in use."""
    used: int = 0

    def reserve(self, last: int) -> None:
        """Have room for the buckets up to the number `last`."""
        count = last + 1 - self.first
        if count > len(self.values):
            longer = np.full(max(count, 2 * len(self.values)), _UNKNOWN, np.int64)
            longer[: self.used] = self.values[: self.used]
            self.values = longer
        self.used = max(self.used, count)

    def carry_to(self, last: int) -> None:
        """Let the last value stand to the bucket `last`."""
        if self.first <= last and last + 1 - self.first > self.used:
            begin, value = self.used, self.values[self.used - 1]
            self.reserve(last)
            self.values[begin : self.used] = value

    def raise_at(self, buckets: Ints, values: Ints) -> None:
        """Make each of `buckets`, which ascend, no less than its values."""
        begins = np.flatnonzero(np.diff(buckets, prepend=-1))
        places = buckets[begins] - self.first
        self.values[places] = np.maximum(self.values[places], np.maximum.reduceat(values, begins))

    def raise_between(self, begin: int, end: int, values: Ints) -> None:
        """Make the buckets from the number `begin` to before `end` no less than `values`."""
        part = self.values[begin - self.first : end - self.first]
        np.maximum(part, values, out=part)


@define(eq=False)
class Lane(Curve):
    """Worst lag of one connection in bytes, bucket by bucket."""

    ack: int = _UNKNOWN
    """After its last event."""
    is_open: bool = True

    def take_in(self, buckets: Ints, worst: Ints, ack: Ints, own_max: Curve) -> None:
        """Take in events in their order: bucket of each, worst lag at it, ack after it.

        `own_max` is how long the master's log was at the end of each bucket: while a connection has no
        events, its ack stays and the log may grow.
        """
        begun = self.first + self.used - 1
        is_new = not self.used
        self.reserve(int(buckets[-1]))
        for gap in np.flatnonzero(np.diff(buckets, prepend=buckets[0] if is_new else begun) > 0).tolist():
            begin = int(buckets[gap - 1]) if gap else begun
            self.stay(begin, int(buckets[gap]), int(ack[gap - 1]) if gap else self.ack, own_max)
        self.raise_at(buckets, worst)
        self.ack = int(ack[-1])

    def stay(self, begin: int, end: int, ack: int, own_max: Curve) -> None:
        """Nothing but puts from the bucket `begin` to before `end`."""
        length = own_max.values[begin - own_max.first : end - own_max.first]
        self.raise_between(begin, begin + len(length), length - ack)

    def until(self, last: int, own_max: Curve) -> Ints:
        """Worst lag of its buckets to the number `last`, if it is still open."""
        if self.is_open and self.used:
            own_max.carry_to(last)
            begun = self.first + self.used - 1
            if last >= begun:
                self.reserve(last)
                self.stay(begun, last + 1, self.ack, own_max)
        return self.values[: min(self.used, max(0, last + 1 - self.first))]


class Overview:
    """Fed by `work`; see the module's text."""

    def __init__(self, reel: Reel) -> None:
        self._reel = reel
        span_ms = (reel.end_ns - reel.start_ns) // NS_PER_MS
        self.bucket_ms = next((ms for ms in _BUCKETS_MS if span_ms // ms < BUCKETS_MAX), _BUCKETS_MS[-1])
        self._lanes: dict[tuple[int, int], Lane] = {}
        self._events: list[TimelineEvent] = []
        self._times_ms: list[int] = []
        self._is_sorted = True
        self._shown: tuple[TimelineEvent, ...] = ()
        self._shown_at = (0, 0)
        self._ticks: tuple[Tick, ...] = ()
        self._damage: set[tuple[int, TimelineEvent]] = set()
        self._records = 0
        self._total = 1
        self.is_complete = False
        self._labels = {take.number: node.key for node in reel.nodes for take in node.takes}
        self._own_max: dict[int, Curve] = {}
        """How long each master's log was at the end of each bucket, by take."""
        self._passed: dict[int, int] = {}
        """Position behind what was passed, by take."""
        self._passed_bucket: dict[int, int] = {}
        """And the bucket of its last record."""
        self._series: dict[tuple[int, tuple[int, ...]], tuple[tuple[int, int, int, bool], Series]] = {}
        """Histories made last, with what they were made for."""
        self._failing: dict[int, bool] = {}
        """Whether the last wait that was passed failed, by take."""

    @property
    def share(self) -> float:
        """How much was passed, 0 to 1."""
        return 1.0 if self.is_complete else min(1.0, self._records / self._total)

    def work(self) -> Iterator[None]:
        """Pass everything that was not passed yet; goes on after a few milliseconds each time."""
        self.is_complete = False
        takes = self._reel.takes
        self._records = 0
        self._total = max(1, sum(take.tape.end_seq - self._passed.get(take.number, 0) for take in takes))
        for node in self._reel.nodes:
            for starts, take in enumerate(node.takes, start=1):
                self._add_session_marks(take, starts=starts)
        for take, chunk in heapq.merge(*(self._chunks(take) for take in takes), key=_begins_ns):
            self._pass(take, chunk)
            yield
        for node in self._reel.nodes:
            for starts, take in enumerate(node.takes, start=1):
                self._add_session_marks(take, starts=starts)
        self.is_complete = True

    def _chunks(self, take: Take) -> Iterator[tuple[Take, Chunk]]:
        for chunk in take.tape.scan(self._passed.get(take.number, 0)):
            yield take, chunk

    def _pass(self, take: Take, chunk: Chunk) -> None:
        records = chunk.records
        done = self._passed.get(take.number, 0)
        stood = chunk.stood
        if len(records) and int(records["seq"][0]) < done:
            # The part of a chunk that had not been written when it was passed.
            cut = int(np.searchsorted(records["seq"], done))
            stood, _ = stood.after(records[:cut])
            records = records[cut:]
        if not len(records):
            return
        self._passed[take.number] = int(records["seq"][-1]) + 1
        self._records += len(records)
        last_ns = take.wall_of(int(records["ts_ns"].max()))
        self._passed_bucket[take.number] = max(
            last_ns // (self.bucket_ms * NS_PER_MS), self._passed_bucket.get(take.number, 0)
        )
        node = self._labels[take.number]
        was_failing = self._failing.get(take.number, False)
        marks = marks_of(records, was_failing=was_failing)
        new = list(happenings(take, node, marks, was_failing=was_failing))
        waits = records["flags"][records["kind"] == Kind.WAIT_END]
        if len(waits):
            self._failing[take.number] = bool(waits[-1] != PutStatus.PUT_OK)
        if not take.is_slave:
            found = lags(records, stood, is_sampled=take.is_sampled)
            new += sync_changes(take, node, found)
            self._add_lags(take, found, self._grow(take, records))
        self._add_events(new)

    def _grow(self, take: Take, records: Array) -> Curve:
        ts_ns, own = own_max_of(records)
        curve = self._own_max.get(take.number)
        if not len(own):
            return curve if curve is not None else Curve(0)
        buckets = self._buckets(take, ts_ns)
        if curve is None:
            curve = self._own_max[take.number] = Curve(int(buckets[0]))
        begun = max(0, curve.used - 1)
        curve.reserve(int(buckets[-1]))
        curve.raise_at(buckets, own)
        grown = curve.values[begun : curve.used]
        np.maximum.accumulate(grown, out=grown)
        return curve

    def _buckets(self, take: Take, ts_ns: Ints) -> Ints:
        """Bucket of each time; where a damaged session's clock goes back, that of the one before."""
        buckets: Ints = (ts_ns + take.wall_of(0)) // (self.bucket_ms * NS_PER_MS)
        first = self._own_max[take.number].first if take.number in self._own_max else None
        if first is not None:
            np.maximum(buckets, first, out=buckets)
        return np.maximum.accumulate(buckets)

    def _add_lags(self, take: Take, found: Lags, own_max: Curve) -> None:
        known = found.worst >= 0
        conn, closed, ts_ns = found.conn[known], found.closed[known], found.ts_ns[known]
        worst, ack = found.worst[known], found.ack_after[known]
        if not len(conn):
            return
        begins = np.flatnonzero(np.diff(conn, prepend=-1) != 0).tolist()
        for begin, end in zip(begins, [*begins[1:], len(conn)], strict=True):
            key = (take.number, int(conn[begin]))
            buckets = self._buckets(take, ts_ns[begin:end])
            lane = self._lanes.get(key)
            if lane is None:
                lane = self._lanes[key] = Lane(int(buckets[0]))
            np.maximum(buckets, lane.first + max(0, lane.used - 1), out=buckets)
            lane.take_in(buckets, worst[begin:end], ack[begin:end], own_max)
            lane.is_open = not closed[begin:end].any()

    # -- lag -----------------------------------------------------------------------------------------------

    def _worst(self) -> tuple[int, Ints]:
        """Number of the axis's first bucket, and the worst lag in bytes of any replica in each bucket."""
        bucket_ns = self.bucket_ms * NS_PER_MS
        first, last = self._reel.start_ns // bucket_ns, self._reel.end_ns // bucket_ns
        worst = np.full(last - first + 1, _UNKNOWN, np.int64)
        for (number, _), lane in self._lanes.items():
            values = lane.until(self._passed_bucket[number], self._own_max[number])
            begin = lane.first - first
            part = worst[max(0, begin) : begin + len(values)]
            np.maximum(part, values[max(0, -begin) :][: len(part)], out=part)
        return first, worst

    def lag_whole(self) -> Series:
        """Worst lag in bytes of any replica over the whole axis, as far as it was passed."""
        limits = self._reel.takes[0].limits
        first, worst = self._worst()
        known = np.flatnonzero(worst >= 0)
        if not len(known):
            return Series(self.bucket_ms)
        begin, end = int(known[0]), int(known[-1]) + 1
        buckets = [None if value < 0 else _bucket(value, limits) for value in worst[begin:end].tolist()]
        return Series(self.bucket_ms, first + begin, tuple(buckets[:-1]), buckets[-1])

    def may_lack(self, at_ns: int, age_ns: int) -> bool:
        """Whether a replica may lack a byte older than `age_ns` at a moment; False is certain once all was
        passed."""
        bucket_ns = self.bucket_ms * NS_PER_MS
        bucket = at_ns // bucket_ns
        for (number, _), lane in self._lanes.items():
            own_max = self._own_max[number]
            values = lane.until(self._passed_bucket[number], own_max)
            place, before = bucket - lane.first, bucket - 1 - own_max.first
            if not 0 <= place < len(values) or values[place] <= 0:
                continue
            if before < 0:
                return True
            # The least that it had acknowledged in this bucket, and the bucket in which that was put.
            ack = own_max.values[before] - values[place]
            put = own_max.first + int(np.searchsorted(own_max.values[: own_max.used], ack, side="right"))
            if (bucket + 1 - put) * bucket_ns >= age_ns:
                return True
        return False

    def lag_series(
        self, take: Take, conns: tuple[int, ...], *, at_ns: int, span_ms: int, now: int | None, limits: Limits
    ) -> Series:
        """Worst lag of a replica, whose connections were `conns`, in the `span_ms` before `at_ns`.

        `now` is the worst of the bucket that holds `at_ns`, up to there; None if it is not known.
        """
        bucket_ns = self.bucket_ms * NS_PER_MS
        current = at_ns // bucket_ns
        key = (current, self._records, span_ms, now is None)
        known_key, series = self._series.get((take.number, conns), (None, None))
        if known_key != key or series is None:
            series = self._finished(take, conns, at_ns=at_ns, span_ms=span_ms, limits=limits)
            self._series[take.number, conns] = (key, series)
        if now is None:
            return series
        begin = series.first if series.current is not None else current
        # What was finished ends with a bucket that has a value; behind it there may be some without.
        gap = current - begin - len(series.buckets)
        return Series(self.bucket_ms, begin, (*series.buckets, *[None] * gap), _bucket(now, limits))

    def _finished(
        self, take: Take, conns: tuple[int, ...], *, at_ns: int, span_ms: int, limits: Limits
    ) -> Series:
        """The buckets before that of `at_ns`, up to the last one that has a value."""
        bucket_ns = self.bucket_ms * NS_PER_MS
        current = at_ns // bucket_ns
        first = max(current - span_ms // self.bucket_ms, take.start_ns // bucket_ns)
        values = np.full(max(0, current - first), _UNKNOWN, np.int64)
        for conn in conns:
            lane = self._lanes.get((take.number, conn))
            if lane is None or lane.first >= current:
                continue
            own = lane.until(self._passed_bucket[take.number], self._own_max[take.number])
            begin = lane.first - first
            part = values[max(0, begin) : max(0, begin + len(own))]
            np.maximum(part, own[max(0, -begin) :][: len(part)], out=part)
        known = np.flatnonzero(values >= 0)
        if not len(known):
            return Series(self.bucket_ms)
        begin, end = int(known[0]), int(known[-1]) + 1
        buckets = [None if value < 0 else _bucket(value, limits) for value in values[begin:end].tolist()]
        return Series(self.bucket_ms, first + begin, tuple(buckets[:-1]), buckets[-1])

    # -- events --------------------------------------------------------------------------------------------

    def _add_session_marks(self, take: Take, *, starts: int) -> None:
        new = []
        for event in session_marks(take, self._labels[take.number], starts=starts):
            if (take.number, event) not in self._damage:
                self._damage.add((take.number, event))
                new.append(event)
        self._add_events(new)

    def _add_events(self, new: list[TimelineEvent]) -> None:
        if new:
            self._events += new
            self._is_sorted = False

    def events(self) -> list[TimelineEvent]:
        """What happened, in order, as far as it was passed."""
        if not self._is_sorted:
            self._events.sort(key=_time_ms)
            self._times_ms = [event.time_ms for event in self._events]
            self._is_sorted = True
            self._shown_at = (0, 0)
        return self._events

    def events_until(self, at_ns: int) -> tuple[TimelineEvent, ...]:
        """The last events up to `at_ns`, numbered; the same object until there is another one."""
        events = self.events()
        count = bisect_right(self._times_ms, at_ns // NS_PER_MS)
        if self._shown_at != (count, len(events)):
            first = max(0, count - EVENTS_SHOWN_MAX)
            self._shown = tuple(
                _numbered(event, number) for number, event in enumerate(events[first:count], start=first + 1)
            )
            self._shown_at = (count, len(events))
        return self._shown

    def ticks(self) -> tuple[Tick, ...]:
        """The events as marks on the axis; the same object until there are more."""
        events = self.events()
        if len(self._ticks) != len(events):
            self._ticks = tuple(Tick(event.time_ms, event.severity) for event in events)
        return self._ticks


def _bucket(value: int, limits: Limits) -> Bucket:
    return Bucket(value, Severity.GOOD if value < limits.gap_bytes_max else Severity.WARNING)


def _numbered(event: TimelineEvent, number: int) -> TimelineEvent:
    return TimelineEvent(
        event.time_ms, event.kind, event.node, event.replica, event.text, event.severity, number
    )


def _begins_ns(item: tuple[Take, Chunk]) -> int:
    take, chunk = item
    return take.wall_of(int(chunk.records["ts_ns"][0])) if len(chunk.records) else take.start_ns


def _time_ms(event: TimelineEvent) -> int:
    return event.time_ms
