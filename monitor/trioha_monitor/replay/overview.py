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
from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
from attrs import evolve

from trioha.recording.batch_stats import marks_of
from trioha.recording.events import Kind, PutStatus
from trioha.recording.lags import Lags, lags
from trioha.recording.segment_cache import Chunk
from trioha.recording.state_arrays import Ints
from trioha_monitor.playback import Tick
from trioha_monitor.replay.histories import UNKNOWN, LagHistory, LogEndHistory
from trioha_monitor.replay.moments import Twins
from trioha_monitor.replay.replay_timeline import NS_PER_MS, NS_PER_S, ReplayTimeline, SessionRun
from trioha_monitor.replay.timeline_events import (
    asked_in,
    session_marks,
    sync_changes,
    timeline_events,
    without_probes,
)
from trioha_monitor.series import Bucket, Series, Severity
from trioha_monitor.verdict import OBSERVER_HOUSEKEEPINGS
from trioha_monitor.view import EventKind, Limits, TimelineEvent

BUCKETS_MAX = 8192
"""Buckets of the whole time at most."""
_BUCKETS_MS = (100, 200, 500, 1000, 2000, 5000, 10_000, 30_000, 60_000, 300_000, 900_000, 3_600_000)
HISTORY_MS = 15 * 60 * 1000
"""How far back histories go."""
EVENTS_SHOWN_MAX = 2000
"""Events in a view: the last ones."""
EVENTS_MAX = 50_000
"""Events of the whole time: beyond them those that are close together become one."""
THIN_MS_MIN, THIN_MS_MAX = 1000, 2**62
"""How close together such events are: doubled from the one to the other, milliseconds."""
SERIES_MAX = 1024
"""Histories that are kept: those that were asked for last."""


class Overview:
    """Fed by `work`; see the module's text."""

    def __init__(self, timeline: ReplayTimeline) -> None:
        self._timeline = timeline
        span_ms = (timeline.end_ns - timeline.start_ns) // NS_PER_MS
        self.bucket_ms = next((ms for ms in _BUCKETS_MS if span_ms // ms < BUCKETS_MAX), _BUCKETS_MS[-1])
        self._lag_histories: dict[tuple[int, int], LagHistory] = {}
        self._events: list[TimelineEvent] = []
        self._times_ms: list[int] = []
        self._is_sorted = True
        self._thinned_ms = 0
        """Events of one node and kind are no closer than this; 0 while all are kept."""
        self._asked: dict[int, set[int]] = {}
        """Connections on which the log was asked for, so far, by take."""
        self._shown: tuple[TimelineEvent, ...] = ()
        self._shown_at = (0, 0)
        self._ticks: tuple[Tick, ...] = ()
        self._damage: set[tuple[int, TimelineEvent]] = set()
        self._records = 0
        self._total = 1
        self.is_complete = False
        self._labels = {run.number: node.key for node in timeline.nodes for run in node.runs}
        self._twins = Twins(timeline)
        self._growth: dict[int, LogEndHistory] = {}
        """How long each node's log was, by take."""
        self._passed: dict[int, int] = {}
        """Position behind what was passed, by take."""
        self._passed_bucket: dict[int, int] = {}
        """And the bucket of its last record."""
        self._series: OrderedDict[tuple[object, ...], tuple[tuple[int, int], Series]] = OrderedDict()
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
        runs = self._timeline.runs
        self._records = 0
        self._total = max(1, sum(run.reader.end_seq - self._passed.get(run.number, 0) for run in runs))
        for node in self._timeline.nodes:
            for starts, run in enumerate(node.runs, start=1):
                self._add_session_marks(run, starts=starts)
        for run, chunk in heapq.merge(*(self._chunks(run) for run in runs), key=_begins_ns):
            self._pass(run, chunk)
            yield
        for node in self._timeline.nodes:
            for starts, run in enumerate(node.runs, start=1):
                self._add_session_marks(run, starts=starts)
        self.is_complete = True

    def _chunks(self, run: SessionRun) -> Iterator[tuple[SessionRun, Chunk]]:
        for chunk in run.reader.scan(self._passed.get(run.number, 0)):
            yield run, chunk

    def _pass(self, run: SessionRun, chunk: Chunk) -> None:
        records = chunk.records
        done = self._passed.get(run.number, 0)
        snapshot = chunk.snapshot
        if len(records) and int(records["seq"][0]) < done:
            # The part of a chunk that had not been written when it was passed.
            cut = int(np.searchsorted(records["seq"], done))
            snapshot, _ = snapshot.after(records[:cut])
            records = records[cut:]
        if not len(records):
            return
        self._passed[run.number] = int(records["seq"][-1]) + 1
        self._records += len(records)
        last_ns = run.wall_of(int(records["ts_ns"].max()))
        self._passed_bucket[run.number] = max(
            last_ns // (self.bucket_ms * NS_PER_MS), self._passed_bucket.get(run.number, 0)
        )
        node = self._labels[run.number]
        was_failing = self._failing.get(run.number, False)
        asked = self._asked.setdefault(run.number, set())
        asked |= asked_in(records)
        marks = marks_of(records, was_failing=was_failing)
        if not run.is_slave:
            marks = without_probes(marks, asked | asked_in(snapshot.records))
        name_of = partial(self._name_of, run)
        new = list(timeline_events(run, node, marks, name_of, was_failing=was_failing))
        waits = records["flags"][records["kind"] == Kind.WAIT_END]
        if len(waits):
            self._failing[run.number] = bool(waits[-1] != PutStatus.PUT_OK)
        log_end_history = self._growth.get(run.number)
        if log_end_history is None:
            log_end_history = self._growth[run.number] = LogEndHistory(run, bucket_ns=self._bucket_ns)
        log_end_history.take_in(records)
        if not run.is_slave:
            found = lags(records, snapshot, is_sampled=run.is_sampled)
            new += sync_changes(run, node, found, name_of)
            self._add_lags(run, found, log_end_history)
        self._add_events(new)

    def _name_of(self, run: SessionRun, conn: int) -> str:
        """The replica behind a connection: the slave where its own session is there, else its address."""
        twin = self._twins.of(run, conn)
        return run.address_of(conn) if twin is None else self._labels[twin[0].number]

    @property
    def _bucket_ns(self) -> int:
        return self.bucket_ms * NS_PER_MS

    def _add_lags(self, run: SessionRun, found: Lags, log_end_history: LogEndHistory) -> None:
        known = found.worst >= 0
        conn, closed, ts_ns = found.conn[known], found.closed[known], found.ts_ns[known]
        worst, ack = found.worst[known], found.ack_after[known]
        ack_before = found.ack_before[known]
        if not len(conn):
            return
        begins = np.flatnonzero(np.diff(conn, prepend=-1) != 0).tolist()
        for begin, end in zip(begins, [*begins[1:], len(conn)], strict=True):
            key = (run.number, int(conn[begin]))
            part = slice(begin, end)
            buckets = log_end_history.buckets(ts_ns[part])
            history = self._lag_histories.get(key)
            if history is None:
                history = self._lag_histories[key] = LagHistory.at(
                    log_end_history, int(buckets[0]), bucket_ns=self._bucket_ns
                )
            np.maximum(buckets, history.next_bucket, out=buckets)
            history.take_in(
                buckets,
                ts_ns[part] + run.wall_of(0),
                worst=worst[part],
                ack_before=ack_before[part],
                ack=ack[part],
            )
            history.is_open = not closed[part].any()

    # -- lag -----------------------------------------------------------------------------------------------

    def lag_whole(self) -> Series:
        """Worst lag in bytes of any replica over the whole axis, as far as it was passed.

        Without those that never acknowledged anything new for as long as makes an observer: theirs grows
        with the log, and would hide all others'.
        """
        limits = self._timeline.runs[0].limits
        patience_ns = round(OBSERVER_HOUSEKEEPINGS * limits.housekeeping_s * NS_PER_S)
        first, last = self._timeline.start_ns // self._bucket_ns, self._timeline.end_ns // self._bucket_ns
        worst = np.full(last - first + 1, UNKNOWN, np.int64)
        for (number, _), history in self._lag_histories.items():
            history.carry_to(self._passed_bucket[number])
            if not history.has_moved and history.lasted_ns > patience_ns:
                continue
            np.maximum(worst, history.lag.part(first, len(worst)), out=worst)
        return _series(worst, first, self.bucket_ms, limit=limits.gap_bytes_max)

    def may_lack(self, at_ns: int, age_ns: int) -> bool:
        """Whether a replica may lack a byte older than `age_ns` at a moment; False is certain once all was
        passed."""
        bucket = at_ns // self._bucket_ns
        for (number, _), history in self._lag_histories.items():
            history.carry_to(self._passed_bucket[number])
            if history.age.part(bucket, 1)[0] >= age_ns:
                return True
        return False

    def lag_series(
        self, run: SessionRun, conns: tuple[int, ...], *, at_ns: int, now: int | None, limits: Limits
    ) -> Series:
        """Worst lag in bytes of a replica, whose connections were `conns`, in the time before `at_ns`.

        `now` is the worst of the bucket that holds `at_ns`, up to there; None if it is not known.
        """

        def find(first: int, count: int) -> Ints:
            histories = self._lanes_of(run, conns)
            return _largest([history.lag.part(first, count) for history in histories], count)

        limit = limits.gap_bytes_max
        series = self._before(("lag", run.number, conns), run, find, at_ns, limit=limit)
        return self._up_to(series, at_ns, None if now is None else _bucket(now, limit))

    def age_series(
        self,
        run: SessionRun,
        conns: tuple[int, ...],
        *,
        at_ns: int,
        now_s: float | None,
        limits: Limits,
    ) -> Series:
        """As `lag_series`: greatest age in seconds of the oldest byte that it lacked."""

        def find(first: int, count: int) -> Ints:
            histories = self._lanes_of(run, conns)
            return _largest([history.age.part(first, count) for history in histories], count)

        limit, per = round(limits.slave_timeout_s * NS_PER_S), float(NS_PER_S)
        key = ("age", run.number, conns)
        series = self._before(key, run, find, at_ns, limit=limit, per=per)
        now = None if now_s is None else _bucket(round(now_s * NS_PER_S), limit, per)
        return self._up_to(series, at_ns, now)

    def append_series(self, run: SessionRun, *, at_ns: int, own_max: int | None) -> Series:
        """How fast a node's log, which ends at `own_max` now, grew in each bucket up to `at_ns`, bytes/s."""

        def find(first: int, count: int) -> Ints:
            log_end_history = self._growth.get(run.number)
            if log_end_history is None or log_end_history.curve is None:
                return np.full(count, UNKNOWN, np.int64)
            log_end_history.curve.carry_to(self._passed_bucket[run.number])
            length = log_end_history.curve.part(first - 1, count + 1)
            return np.where((length[1:] >= 0) & (length[:-1] >= 0), np.diff(length), UNKNOWN)

        per = self.bucket_ms / 1000
        series = self._before(("append", run.number), run, find, at_ns, limit=None, per=per)
        log_end_history, now = self._growth.get(run.number), None
        if log_end_history is not None and log_end_history.curve is not None and own_max is not None:
            before = int(log_end_history.curve.part(at_ns // self._bucket_ns - 1, 1)[0])
            now = _bucket(max(0, own_max - before), None, per) if before >= 0 else None
        return self._up_to(series, at_ns, now)

    def _lanes_of(self, run: SessionRun, conns: tuple[int, ...]) -> list[LagHistory]:
        histories = [
            history for conn in conns if (history := self._lag_histories.get((run.number, conn))) is not None
        ]
        for history in histories:
            history.carry_to(self._passed_bucket[run.number])
        return histories

    def _before(
        self,
        name: tuple[object, ...],
        run: SessionRun,
        find: Callable[[int, int], Ints],
        at_ns: int,
        *,
        limit: int | None,
        per: float = 1.0,
    ) -> Series:
        """The buckets before that of `at_ns`, up to the last one that has a value."""
        current = at_ns // self._bucket_ns
        key = (current, self._records)
        known_key, series = self._series.get(name, (None, None))
        if known_key != key or series is None:
            first = max(current - HISTORY_MS // self.bucket_ms, run.start_ns // self._bucket_ns)
            values = find(first, max(0, current - first))
            series = _series(values, first, self.bucket_ms, limit=limit, per=per)
            series = evolve(series, revision=self._records)
            self._series[name] = (key, series)
            while len(self._series) > SERIES_MAX:
                self._series.popitem(last=False)
        self._series.move_to_end(name)
        return series

    def _up_to(self, series: Series, at_ns: int, now: Bucket | None) -> Series:
        """`series` with the bucket that holds `at_ns`."""
        if now is None:
            return series
        current = at_ns // self._bucket_ns
        begin = series.first if series.current is not None else current
        # What is over ends with a bucket that has a value; behind it there may be some without.
        gap = current - begin - len(series.buckets)
        past = (*series.buckets, *[None] * gap)
        return Series(self.bucket_ms, begin, past, now, revision=series.revision)

    # -- events --------------------------------------------------------------------------------------------

    def _add_session_marks(self, run: SessionRun, *, starts: int) -> None:
        new = []
        marks = session_marks(run, self._labels[run.number], starts=starts, end_ns=self._timeline.end_ns)
        for event in marks:
            if (run.number, event) not in self._damage:
                self._damage.add((run.number, event))
                new.append(event)
        self._add_events(new)

    def _add_events(self, new: list[TimelineEvent]) -> None:
        if new:
            self._events += new
            self._is_sorted = False
        if len(self._events) > EVENTS_MAX:
            self._thin()

    def _thin(self) -> None:
        """Make one event of those of a node and kind that are close together, until half the most are left.

        The one that stays is the worst of them, the first of several: nothing bad goes unseen.
        """
        while len(self._events) > EVENTS_MAX // 2:
            self._thinned_ms = max(THIN_MS_MIN, 2 * self._thinned_ms)
            kept: dict[tuple[int, EventKind, str], TimelineEvent] = {}
            for event in sorted(self._events, key=_time_ms):
                place = (event.time_ms // self._thinned_ms, event.kind, event.node)
                known = kept.get(place)
                if known is None:
                    kept[place] = event
                else:
                    worst = event if event.severity > known.severity else known
                    kept[place] = evolve(worst, more=known.more + event.more + 1)
            self._events = list(kept.values())
            if self._thinned_ms >= THIN_MS_MAX:
                break
        self._ticks = ()

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


def _largest(parts: list[Ints], count: int) -> Ints:
    largest: Ints = np.max([np.full(count, UNKNOWN, np.int64), *parts], axis=0)
    return largest


def _series(values: Ints, first: int, bucket_ms: int, *, limit: int | None, per: float = 1.0) -> Series:
    """A series of what is known of `values`, of which `per` make one; the first is of the bucket `first`."""
    known = np.flatnonzero(values >= 0)
    if not len(known):
        return Series(bucket_ms)
    begin, end = int(known[0]), int(known[-1]) + 1
    buckets = [None if value < 0 else _bucket(value, limit, per) for value in values[begin:end].tolist()]
    return Series(bucket_ms, first + begin, tuple(buckets[:-1]), buckets[-1])


def _bucket(value: int, limit: int | None, per: float = 1.0) -> Bucket:
    is_good = limit is None or value < limit
    return Bucket(value if per == 1.0 else value / per, Severity.GOOD if is_good else Severity.WARNING)


def _numbered(event: TimelineEvent, number: int) -> TimelineEvent:
    return TimelineEvent(
        event.time_ms,
        event.kind,
        event.node,
        event.replica,
        event.text,
        event.severity,
        number,
        event.more,
    )


def _begins_ns(item: tuple[SessionRun, Chunk]) -> int:
    run, chunk = item
    return run.wall_of(int(chunk.records["ts_ns"][0])) if len(chunk.records) else run.start_ns


def _time_ms(event: TimelineEvent) -> int:
    return event.time_ms
