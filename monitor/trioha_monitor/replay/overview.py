"""Figures that need a pass over all of a replay: the lag histories of its replicas, and its events.

`work` reads the sessions chunk by chunk in the order of time, a few milliseconds at a time between two views.
Figures of what has been read are available all the while. When `is_complete`, they are exact: each bucket has
the largest lag of any moment in it, also of connections that have no record in it.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise

import numpy as np
from attrs import define, evolve, field

from trioha.recording.batch_stats import control_records, marks_of
from trioha.recording.events import Kind, PutStatus
from trioha.recording.lags import Lags, lags
from trioha.recording.segment_cache import Chunk
from trioha.recording.state import UNKNOWN
from trioha.recording.state_arrays import Array, Ints
from trioha.replica_verdict import OBSERVER_HOUSEKEEPINGS, Limits, Severity
from trioha_monitor.replay.histories import LagHistory, LogEndHistory
from trioha_monitor.replay.moments import SlaveConnections
from trioha_monitor.replay.recorded_control import (
    RecordedControl,
    after,
    begun,
    control_events,
    events_of,
)
from trioha_monitor.replay.replay_timeline import (
    NS_PER_MS,
    NS_PER_S,
    ReplayTimeline,
    SessionRun,
    continues,
)
from trioha_monitor.replay.timeline_events import (
    EventLog,
    requested_conns,
    session_marks,
    sync_changes,
    timeline_events,
    without_probes,
)
from trioha_monitor.series import Bucket, Series
from trioha_monitor.view import TimelineEvent

BUCKETS_MAX = 8192
"""Buckets of the whole time at most."""
_BUCKETS_MS = (100, 200, 500, 1000, 2000, 5000, 10_000, 30_000, 60_000, 300_000, 900_000, 3_600_000)
HISTORY_MS = 15 * 60 * 1000
"""How far back histories go."""
SERIES_MAX = 1024
"""Series that are cached: the last ones that were used."""


@define(eq=False)
class _RunProgress:
    """What has been read of one session."""

    log_ends: LogEndHistory
    next_seq: int = 0
    """Seq of the first record that has not been read."""
    last_bucket: int = 0
    """Number of the bucket of the last record that has."""
    requested: set[int] = field(factory=set)
    """Connections on which the log was requested."""
    is_failing: bool = False
    """Whether the last wait failed."""
    lags: dict[int, LagHistory] = field(factory=dict)
    """By connection."""
    control: RecordedControl | None = None
    """In controller mode after the last record that has been read; None before the first one."""


class Overview:
    """Histories and events of a replay; fed by `work`."""

    def __init__(self, timeline: ReplayTimeline) -> None:
        self._timeline = timeline
        span_ms = (timeline.end_ns - timeline.start_ns) // NS_PER_MS
        self.bucket_ms = next((ms for ms in _BUCKETS_MS if span_ms // ms < BUCKETS_MAX), _BUCKETS_MS[-1])
        self.event_log = EventLog()
        self._session_marks: set[tuple[int, TimelineEvent]] = set()
        """Marks that are in the event log, by run."""
        self._records = 0
        self._total = 1
        self.is_complete = False
        self._nodes = {run.number: node for node in timeline.nodes for run in node.runs}
        self._slave_connections = SlaveConnections(timeline)
        self._runs = {
            run.number: _RunProgress(LogEndHistory(run, bucket_ns=self._bucket_ns)) for run in timeline.runs
        }
        self._series: OrderedDict[tuple[object, ...], tuple[tuple[int, int], Series]] = OrderedDict()
        """Series by name, each with the bucket and the number of records that it was made for."""

    @property
    def share(self) -> float:
        """How much has been read, 0 to 1."""
        return 1.0 if self.is_complete else min(1.0, self._records / self._total)

    @property
    def _bucket_ns(self) -> int:
        return self.bucket_ms * NS_PER_MS

    def work(self) -> Iterator[None]:
        """Read everything that has not been read yet; yields after a few milliseconds each time."""
        self.is_complete = False
        runs = self._timeline.runs
        self._records = 0
        self._total = max(1, sum(run.reader.end_seq - self._runs[run.number].next_seq for run in runs))
        self._add_session_marks()
        for run, chunk in heapq.merge(*(self._chunks(run) for run in runs), key=_begins_ns):
            self._read(run, self._runs[run.number], chunk)
            yield
        self._add_session_marks()
        self.is_complete = True

    def _chunks(self, run: SessionRun) -> Iterator[tuple[SessionRun, Chunk]]:
        for chunk in run.reader.scan(self._runs[run.number].next_seq):
            yield run, chunk

    def _read(self, run: SessionRun, progress: _RunProgress, chunk: Chunk) -> None:
        records, snapshot = chunk.records, chunk.snapshot
        if len(records) and int(records["seq"][0]) < progress.next_seq:
            # The chunk has grown since a part of it was read.
            cut = int(np.searchsorted(records["seq"], progress.next_seq))
            snapshot, _ = snapshot.after(records[:cut])
            records = records[cut:]
        if not len(records):
            return
        progress.next_seq = int(records["seq"][-1]) + 1
        self._records += len(records)
        last_ns = run.wall_of(int(records["ts_ns"].max()))
        progress.last_bucket = max(last_ns // self._bucket_ns, progress.last_bucket)
        progress.requested |= requested_conns(records)
        marks = marks_of(records, was_failing=progress.is_failing)
        if not run.is_slave:
            marks = without_probes(marks, progress.requested | requested_conns(snapshot.records))
        node, name_of = self._nodes[run.number].key, partial(self._name_of, run)
        events = list(timeline_events(run, node, marks, name_of, was_failing=progress.is_failing))
        events += self._control_events(run, progress, records)
        waits = records["flags"][records["kind"] == Kind.WAIT_END]
        if len(waits):
            progress.is_failing = bool(waits[-1] != PutStatus.PUT_OK)
        progress.log_ends.add(records)
        if not run.is_slave:
            found = lags(records, snapshot, is_sampled=run.is_sampled)
            if run.life is None:
                # Under controllers the set says it.
                events += sync_changes(run, node, found, name_of)
            self._add_lags(run, progress, found)
        self.event_log.add(events)

    def _control_events(
        self, run: SessionRun, progress: _RunProgress, records: Array
    ) -> Iterator[TimelineEvent]:
        """The events of the `records` of controller mode that follow."""
        if run.life is None:
            return
        node = self._nodes[run.number]
        for event in events_of(run, control_records(records)):
            earlier = state = progress.control
            if state is None:
                # A session follows the end of the one before.
                before = node.before(run)
                earlier = None if before is None else self._runs[before.number].control
                state = begun(node, run, earlier)
            progress.control = after(state, event)
            time_ms = (event.at_ns - run.clock_ahead_ns) // NS_PER_MS
            yield from control_events(earlier, progress.control, event, node=node.key, time_ms=time_ms)

    def _name_of(self, run: SessionRun, conn: int) -> str:
        """The replica of a connection: its slave's label if the slave has a session, else its address."""
        slave = self._slave_connections.of(run, conn)
        return run.address_of(conn) if slave is None else self._nodes[slave[0].number].key

    def _add_lags(self, run: SessionRun, progress: _RunProgress, found: Lags) -> None:
        known = found.worst >= 0
        conn, closed, ts_ns = found.conn[known], found.closed[known], found.ts_ns[known]
        worst, ack = found.worst[known], found.ack_after[known]
        ack_before = found.ack_before[known]
        if not len(conn):
            return
        begins = np.flatnonzero(np.diff(conn, prepend=-1) != 0).tolist()
        for begin, end in zip(begins, [*begins[1:], len(conn)], strict=True):
            number = int(conn[begin])
            part = slice(begin, end)
            buckets = progress.log_ends.buckets(ts_ns[part])
            history = progress.lags.get(number)
            if history is None:
                history = progress.lags[number] = LagHistory.starting_at(
                    int(buckets[0]), log_ends=progress.log_ends, bucket_ns=self._bucket_ns
                )
            np.maximum(buckets, history.last_bucket, out=buckets)
            history.add(
                buckets,
                ts_ns[part] + run.wall_of(0),
                worst=worst[part],
                ack_before=ack_before[part],
                ack=ack[part],
            )
            history.is_open = not closed[part].any()

    def _add_session_marks(self) -> None:
        end_ns = self._timeline.end_ns
        for node in self._timeline.nodes:
            starts = 0
            for before, run in pairwise((None, *node.runs)):
                assert run is not None, "only the first one has none before it"
                starts += before is None or not continues(before, run)
                marks = session_marks(node, run, starts=starts, end_ns=end_ns)
                new = [mark for mark in marks if (run.number, mark) not in self._session_marks]
                self._session_marks.update((run.number, mark) for mark in new)
                self.event_log.add(new)

    # -- series --------------------------------------------------------------------------------------------

    def lag_whole(self) -> Series:
        """Worst lag in bytes of any replica over the whole axis, as far as it has been read.

        Connections that have not acknowledged anything new for as long as an observer are left out: their lag
        grows with the log and would hide that of the others.
        """
        limits = self._timeline.runs[0].limits
        observer_ns = round(OBSERVER_HOUSEKEEPINGS * limits.housekeeping_s * NS_PER_S)
        first, last = self._timeline.start_ns // self._bucket_ns, self._timeline.end_ns // self._bucket_ns
        worst = np.full(last - first + 1, UNKNOWN, np.int64)
        for history in self._extended_histories():
            if history.has_moved or history.duration_ns <= observer_ns:
                np.maximum(worst, history.lag.part(first, len(worst)), out=worst)
        return _series(worst, first, self.bucket_ms, limit=limits.gap_bytes_max)

    def may_lack(self, at_ns: int, age_ns: int) -> bool:
        """Whether a replica may lack a byte older than `age_ns` at a moment.

        False is certain once everything has been read.
        """
        bucket = at_ns // self._bucket_ns
        return any(history.age.part(bucket, 1)[0] >= age_ns for history in self._extended_histories())

    def _extended_histories(self) -> Iterator[LagHistory]:
        for progress in self._runs.values():
            for history in progress.lags.values():
                history.extend_to(progress.last_bucket)
                yield history

    def lag_series(
        self, run: SessionRun, conns: tuple[int, ...], *, at_ns: int, now: int | None, limits: Limits
    ) -> Series:
        """Worst lag in bytes of the replica that had the connections `conns`, in the time before `at_ns`.

        `now` is the worst lag in the bucket that holds `at_ns`, up to there; None if it is not known.
        """

        def find(first: int, count: int) -> Ints:
            return _largest([one.lag.part(first, count) for one in self._histories_of(run, conns)], count)

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
        """As `lag_series`: greatest age in seconds of the oldest byte that the replica lacked."""

        def find(first: int, count: int) -> Ints:
            return _largest([one.age.part(first, count) for one in self._histories_of(run, conns)], count)

        limit, per = round(limits.slave_timeout_s * NS_PER_S), float(NS_PER_S)
        key = ("age", run.number, conns)
        series = self._before(key, run, find, at_ns, limit=limit, per=per)
        now = None if now_s is None else _bucket(round(now_s * NS_PER_S), limit, per)
        return self._up_to(series, at_ns, now)

    def append_series(self, runs: Sequence[SessionRun], *, at_ns: int, log_end: int | None) -> Series:
        """How fast a node's log grew in each bucket up to `at_ns`, in bytes per second.

        `runs` are its sessions up to that moment, at least one; `log_end` is the end of its log then.
        """

        def ends(first: int, count: int) -> Ints:
            found = np.full(count, UNKNOWN, np.int64)
            for run in runs:
                progress = self._runs[run.number]
                curve = progress.log_ends.curve
                if curve is not None:
                    curve.extend_to(progress.last_bucket)
                    part = curve.part(first, count)
                    found = np.where(part >= 0, part, found)
            return found

        def find(first: int, count: int) -> Ints:
            found = ends(first - 1, count + 1)
            is_known = (found[1:] >= 0) & (found[:-1] >= 0)
            # A log that was cut has not grown.
            return np.where(is_known, np.maximum(np.diff(found), 0), UNKNOWN)

        per = self.bucket_ms / 1000
        name = ("append", runs[-1].number)
        series = self._before(name, runs[0], find, at_ns, limit=None, per=per)
        now = None
        if log_end is not None:
            before = int(ends(at_ns // self._bucket_ns - 1, 1)[0])
            now = _bucket(max(0, log_end - before), None, per) if before >= 0 else None
        return self._up_to(series, at_ns, now)

    def _histories_of(self, run: SessionRun, conns: tuple[int, ...]) -> list[LagHistory]:
        progress = self._runs[run.number]
        histories = [progress.lags[conn] for conn in conns if conn in progress.lags]
        for history in histories:
            history.extend_to(progress.last_bucket)
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
        cached_key, series = self._series.get(name, (None, None))
        if cached_key != key or series is None:
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
        # The series ends with its last bucket that has a value: buckets without one may follow.
        gap = current - begin - len(series.buckets)
        past = (*series.buckets, *[None] * gap)
        return Series(self.bucket_ms, begin, past, now, revision=series.revision)


def _largest(parts: list[Ints], count: int) -> Ints:
    largest: Ints = np.max([np.full(count, UNKNOWN, np.int64), *parts], axis=0)
    return largest


def _series(values: Ints, first: int, bucket_ms: int, *, limit: int | None, per: float = 1.0) -> Series:
    """The known ones of `values` as a series, from the bucket `first` on; `per` of them make one unit."""
    known = np.flatnonzero(values >= 0)
    if not len(known):
        return Series(bucket_ms)
    begin, end = int(known[0]), int(known[-1]) + 1
    buckets = [None if value < 0 else _bucket(value, limit, per) for value in values[begin:end].tolist()]
    return Series(bucket_ms, first + begin, tuple(buckets[:-1]), buckets[-1])


def _bucket(value: int, limit: int | None, per: float = 1.0) -> Bucket:
    is_good = limit is None or value < limit
    return Bucket(value if per == 1.0 else value / per, Severity.GOOD if is_good else Severity.WARNING)


def _begins_ns(item: tuple[SessionRun, Chunk]) -> int:
    run, chunk = item
    return run.wall_of(int(chunk.records["ts_ns"][0])) if len(chunk.records) else run.start_ns
