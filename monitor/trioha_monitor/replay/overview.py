"""Figures that need a pass over all of a replay: the lag histories of its replicas, and its events.

`work` reads the sessions chunk by chunk in the order of time, a few milliseconds at a time between two views.
Figures of what has been read are available all the while. When `is_complete`, they are exact: each bucket has
the largest lag of any moment in it, also of connections that have no record in it, and of replicas without a
connection.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import pairwise

import numpy as np
from attrs import define, evolve, field

from trioha.recording.events import Kind, PutStatus
from trioha.recording.state import UNKNOWN
from trioha.replica_verdict import OBSERVER_HOUSEKEEPINGS, Limits, Verdict, is_rejoining
from trioha.severity import Severity
from trioha_monitor.replay.event_log import EventLog
from trioha_monitor.replay.histories import LagHistory, LogEndHistory
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
from trioha_monitor.replay.session_states import Key, ReplicaRow, SessionStates, SlaveConnections
from trioha_monitor.replay.timeline_events import (
    requested_conns,
    session_marks,
    sync_changes,
    timeline_events,
    without_probes,
)
from trioha_monitor.series import Bucket, Series, bucket_ms_for
from trioha_monitor.view import TimelineEvent
from trioha_sessions.batch_stats import control_records, marks_of
from trioha_sessions.lags import Lags, lags
from trioha_sessions.reconnects import Outage
from trioha_sessions.segment_cache import Chunk
from trioha_sessions.state_arrays import Array, Ints, log_ends

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
    acks: dict[int, int] = field(factory=dict)
    """The last ack of each connection."""
    log_ends_before: dict[int, int] = field(factory=dict)
    """By connection: end of the log just before its first ack."""
    requests: dict[int, tuple[int, int]] = field(factory=dict)
    """By connection: end of the log at its request, and when that was, on the axis."""
    control: RecordedControl | None = None
    """In controller mode after the last record that has been read; None before the first one."""


class Overview:
    """Histories and events of a replay; fed by `work`."""

    def __init__(self, timeline: ReplayTimeline, states: SessionStates) -> None:
        self._timeline, self._states = timeline, states
        self.bucket_ms = bucket_ms_for((timeline.end_ns - timeline.start_ns) // NS_PER_MS)
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
        self._replicas: tuple[int, list[ReplicaRow]] = (-1, [])
        """All replicas, as of that many records."""
        self._lacks_since: dict[Key, int] = {}
        """When the oldest byte was stored that a replica lacks after that connection."""
        self._ages: tuple[int, Ints] = (-1, np.zeros(0, np.int64))
        """Greatest age of all replicas in each bucket of the axis, as of that many records."""

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
        requests = records[records["kind"] == Kind.REQUESTED]
        for conn, ts_ns, log_end in zip(
            *(requests[name].tolist() for name in ("conn", "ts_ns", "aux")), strict=True
        ):
            progress.requests.setdefault(conn, (log_end, run.wall_of(ts_ns)))
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
            found = lags(records, snapshot)
            if run.life is None:
                # Under controllers the set says it.
                events += sync_changes(run, node, found, name_of)
            self._add_lags(run, progress, found, _log_ends_of(records, snapshot.log_end_offset))
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

    def _add_lags(
        self, run: SessionRun, progress: _RunProgress, found: Lags, ends: tuple[Ints, Ints]
    ) -> None:
        """`ends`: as of `_log_ends_of`."""
        known = found.worst >= 0
        conn, closed, ts_ns = found.conn[known], found.closed[known], found.ts_ns[known]
        worst, after, ack = found.worst[known], found.after[known], found.ack_after[known]
        ack_before = found.ack_before[known]
        if not len(conn):
            return
        begins = np.flatnonzero(np.diff(conn, prepend=-1) != 0).tolist()
        for begin, end in zip(begins, [*begins[1:], len(conn)], strict=True):
            number = int(conn[begin])
            if number not in progress.acks:
                # What is of the same time is not before it.
                place = int(np.searchsorted(ends[0], ts_ns[begin]))
                progress.log_ends_before[number] = int(ends[1][place])
            progress.acks[number] = int(ack[end - 1])
            first = begin
            if number not in progress.lags:
                first += self._rejoining(run, progress.requests.get(number), ack[begin:end], ts_ns[begin:end])
                if first == end:
                    continue
                if first > begin:
                    # What it lacked before was not a lag.
                    worst[first], ack_before[first] = after[first], UNKNOWN
            part = slice(first, end)
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

    @staticmethod
    def _rejoining(run: SessionRun, request: tuple[int, int] | None, acks: Ints, ts_ns: Ints) -> int:
        """How many of the first events of a connection are of a replica that compares its tail.

        What it lacks then is not a lag, as in the live view. `request`: end of the log at the connection's
        request, and when that was.
        """
        if request is None:
            return 0
        log_end, requested_ns = request
        for number, (ack, at_ns) in enumerate(zip(acks.tolist(), ts_ns.tolist(), strict=True)):
            connected_s = (run.wall_of(at_ns) - requested_ns) / NS_PER_S
            if not is_rejoining(ack, joined_at_offset=log_end, connected_s=connected_s, limits=run.limits):
                return number
        return len(acks)

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
        outages: list[Outage[Key]] = []
        for row in self.replicas():
            outages_of = {one.lost: one for one in row.outages}
            for key in (one.key for one in row.connections):
                history = self._history(key)
                if history is not None and (history.has_moved or history.duration_ns <= observer_ns):
                    outages += [outages_of[key]] if key in outages_of else []
                    worst = _largest([worst, history.lag.part(first, len(worst))], len(worst))
        away, _ = self._away(outages, first, len(worst))
        return _series(worst, away, first, self.bucket_ms, limit=limits.gap_bytes_max)

    def may_lack(self, at_ns: int, age_ns: int) -> bool:
        """Whether a replica may lack a byte older than `age_ns` at a moment.

        False is certain once everything has been read.
        """
        first, last = self._timeline.start_ns // self._bucket_ns, self._timeline.end_ns // self._bucket_ns
        if self._ages[0] != self._records:
            count = last - first + 1
            parts = [part for row in self.replicas() for part in self._ages_of(row, first, count)]
            self._ages = self._records, _largest(parts, count)
        place = at_ns // self._bucket_ns - first
        ages = self._ages[1]
        return 0 <= place < len(ages) and bool(ages[place] >= age_ns)

    def replicas(self) -> list[ReplicaRow]:
        """All replicas of all masters, as far as they are known."""
        if self._replicas[0] != self._records:
            going_on = {self._timeline.continued(run) for run in self._timeline.runs}
            found = [
                row
                for run in self._timeline.runs
                # Those of a session that another one goes on from are in that one's.
                if not run.is_slave and run not in going_on
                for row in self._states.replicas(self._states.at(run, run.end_ns))
            ]
            self._replicas = self._records, found
        return self._replicas[1]

    def log_end_before(self, key: Key) -> int:
        """End of the log just before the first ack of a connection; UNKNOWN without one."""
        return self._runs[key[0]].log_ends_before.get(key[1], UNKNOWN)

    def ack_of(self, key: Key) -> int | None:
        """The last ack of a connection; None without one."""
        return self._runs[key[0]].acks.get(key[1])

    def lag_series(self, row: ReplicaRow, *, at_ns: int, now: int | None, limits: Limits) -> Series:
        """Worst lag in bytes of a replica in the time before `at_ns`.

        `now` is the worst lag in the bucket that holds `at_ns`, up to there; None if it is not known.
        """

        def find(first: int, count: int) -> tuple[Ints, Ints]:
            histories = [self._history(one.key) for one in row.connections]
            parts = [one.lag.part(first, count) for one in histories if one is not None]
            return _largest(parts, count), self._away(row.outages, first, count)[0]

        limit = limits.gap_bytes_max
        series = self._before(("lag", *_keys(row)), row.connections[0].run, find, at_ns, limit=limit)
        is_away = not row.is_connected
        return self._up_to(series, at_ns, None if now is None else _bucket(now, limit, is_away=is_away))

    def age_series(self, row: ReplicaRow, *, at_ns: int, now_s: float | None, limits: Limits) -> Series:
        """As `lag_series`: greatest age in seconds of the oldest byte that the replica lacked."""

        def find(first: int, count: int) -> tuple[Ints, Ints]:
            return self._ages_of(row, first, count)

        limit, per = round(limits.slave_timeout_s * NS_PER_S), float(NS_PER_S)
        key = ("age", *_keys(row))
        series = self._before(key, row.connections[0].run, find, at_ns, limit=limit, per=per)
        now = None
        if now_s is not None:
            now = _bucket(round(now_s * NS_PER_S), limit, per, is_away=not row.is_connected)
        return self._up_to(series, at_ns, now)

    def _ages_of(self, row: ReplicaRow, first: int, count: int) -> tuple[Ints, Ints]:
        """Greatest ages of a replica: with a connection, and without one."""
        histories = [self._history(one.key) for one in row.connections]
        parts = [one.age.part(first, count) for one in histories if one is not None]
        return _largest(parts, count), self._away(row.outages, first, count)[1]

    def _away(self, outages: Iterable[Outage[Key]], first: int, count: int) -> tuple[Ints, Ints]:
        """Worst lag and greatest age of a replica in its `outages`, as `Curve.part` has them."""
        lag, age = np.full(count, UNKNOWN, np.int64), np.full(count, UNKNOWN, np.int64)
        for outage in outages:
            begin = max(outage.began_ns // self._bucket_ns - first, 0)
            end = min(outage.ended_ns // self._bucket_ns - first + 1, count)
            ack = self.ack_of(outage.lost) if begin < end else None
            if ack is None:
                continue
            run = self._last_run(outage)
            ends = self._log_ends(self._runs_from(outage.lost[0], run), first + begin, end - begin)
            if outage.next is not None and outage.ended_ns // self._bucket_ns - first + 1 == end:
                # The log has grown on in that bucket.
                ends[-1] = self.log_end_before(outage.next)
            is_known = ends >= 0
            lags_ = np.where(is_known, np.maximum(ends - ack, 0), UNKNOWN)
            at_ns = np.arange(first + begin + 1, first + end + 1) * self._bucket_ns
            ages = np.minimum(at_ns, outage.ended_ns) - self._lacks_since_ns(outage, run, ack)
            lag[begin:end] = np.maximum(lag[begin:end], lags_)
            age[begin:end] = np.maximum(age[begin:end], np.where(is_known, np.maximum(ages, 0), UNKNOWN))
        return lag, age

    def _last_run(self, outage: Outage[Key]) -> SessionRun:
        """The session of the master in which an outage ended, or its last one."""
        runs = self._nodes[outage.lost[0]].runs
        return runs[-1] if outage.next is None else next(run for run in runs if run.number == outage.next[0])

    def _runs_from(self, number: int, last: SessionRun) -> list[SessionRun]:
        """The sessions of a master from the one with that number to `last`."""
        runs = self._nodes[number].runs
        first = next(place for place, run in enumerate(runs) if run.number == number)
        return runs[first : runs.index(last) + 1]

    def _lacks_since_ns(self, outage: Outage[Key], run: SessionRun, ack: int) -> int:
        """When the oldest byte that a replica lacks in an outage was stored; its end if it lacks none."""
        found = self._lacks_since.get(outage.lost)
        if found is None:
            found = self._timeline.stored_ns(run, ack)
            if found is None:
                return outage.ended_ns
            self._lacks_since[outage.lost] = found
        return found

    def _log_ends(self, runs: Sequence[SessionRun], first: int, count: int) -> Ints:
        """End of a node's log at the end of each bucket, by its sessions `runs`."""
        found = np.full(count, UNKNOWN, np.int64)
        for run in runs:
            progress = self._runs[run.number]
            curve = progress.log_ends.curve
            if curve is not None:
                curve.extend_to(progress.last_bucket)
                part = curve.part(first, count)
                found = np.where(part >= 0, part, found)
        return found

    def _history(self, key: Key) -> LagHistory | None:
        """The history of a connection up to what has been read; None if it has no ack."""
        progress = self._runs[key[0]]
        history = progress.lags.get(key[1])
        if history is not None:
            history.extend_to(progress.last_bucket)
        return history

    def append_series(self, runs: Sequence[SessionRun], *, at_ns: int, log_end: int | None) -> Series:
        """How fast a node's log grew in each bucket up to `at_ns`, in bytes per second.

        `runs` are its sessions up to that moment, at least one; `log_end` is the end of its log then.
        """

        def find(first: int, count: int) -> tuple[Ints, Ints]:
            found = self._log_ends(runs, first - 1, count + 1)
            is_known = (found[1:] >= 0) & (found[:-1] >= 0)
            # A log that was cut has not grown.
            return np.where(is_known, np.maximum(np.diff(found), 0), UNKNOWN), _largest([], count)

        per = self.bucket_ms / 1000
        name = ("append", runs[-1].number)
        series = self._before(name, runs[0], find, at_ns, limit=None, per=per)
        now = None
        if log_end is not None:
            before = int(self._log_ends(runs, at_ns // self._bucket_ns - 1, 1)[0])
            now = _bucket(max(0, log_end - before), None, per) if before >= 0 else None
        return self._up_to(series, at_ns, now)

    def _before(
        self,
        name: tuple[object, ...],
        run: SessionRun,
        find: Callable[[int, int], tuple[Ints, Ints]],
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
            found, away = find(first, max(0, current - first))
            series = _series(found, away, first, self.bucket_ms, limit=limit, per=per)
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


def _log_ends_of(records: Array, before: int) -> tuple[Ints, Ints]:
    """Times at which `records` name the end of the log, and that end; `before`, that before them, is first.

    Shapes (n,) and (n + 1,).
    """
    places, ends = log_ends(records)
    return np.maximum.accumulate(records["ts_ns"][places]), np.append(np.int64(before), ends)


def _keys(row: ReplicaRow) -> tuple[Key, ...]:
    return tuple(one.key for one in row.connections)


def _largest(parts: list[Ints], count: int) -> Ints:
    largest: Ints = np.max([np.full(count, UNKNOWN, np.int64), *parts], axis=0)
    return largest


def _series(
    values: Ints, away: Ints, first: int, bucket_ms: int, *, limit: int | None, per: float = 1.0
) -> Series:
    """The known ones of `values`, and of those without a connection, as a series, from the bucket `first` on.

    `per` of them make one unit.
    """
    worst = np.maximum(values, away)
    known = np.flatnonzero(worst >= 0)
    if not len(known):
        return Series(bucket_ms)
    begin, end = int(known[0]), int(known[-1]) + 1
    buckets = [
        None if value < 0 else _bucket(value, limit, per, is_away=is_away)
        for value, is_away in zip(worst[begin:end].tolist(), (away[begin:end] >= 0).tolist(), strict=True)
    ]
    return Series(bucket_ms, first + begin, tuple(buckets[:-1]), buckets[-1])


def _bucket(value: int, limit: int | None, per: float = 1.0, *, is_away: bool = False) -> Bucket:
    """`is_away`: of a replica without a connection, which is bad however small the lag is."""
    severity = Severity.GOOD if limit is None or value < limit else Severity.WARNING
    return Bucket(value if per == 1.0 else value / per, Verdict.SILENT.severity if is_away else severity)


def _begins_ns(item: tuple[SessionRun, Chunk]) -> int:
    run, chunk = item
    return run.wall_of(int(chunk.records["ts_ns"][0])) if len(chunk.records) else run.start_ns
