"""What a master's session says of the last seconds before a moment: latencies, frames, worst lag.

Replicas of a replay at a moment, from their masters' sessions, and from their own where there is none.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from trioha.distribution import Distribution
from trioha.recording.aggregate import aggregate
from trioha.recording.events import CloseReason, HaState, Kind
from trioha.recording.histogram import Histogram
from trioha.recording.lags import lags
from trioha.recording.snapshot import ConnectionState, connection_state
from trioha.recording.sync import SyncRule
from trioha.recording.time_series import TimeGrid
from trioha_monitor.replay.moments import RATE_NS, Moment, Moments, Row, Twins, age_s, ended_ns, known
from trioha_monitor.replay.node_views import COMPLAINTS, complaint_of, health_of, side_of
from trioha_monitor.replay.overview import Overview
from trioha_monitor.replay.replay_timeline import (
    NS_PER_MS,
    NS_PER_S,
    RecordedNode,
    ReplayTimeline,
    SessionRun,
)
from trioha_monitor.replay.timeline_events import GAP_REASONS, name_of
from trioha_monitor.verdict import Facts, is_rejoining, judge
from trioha_monitor.view import Health, ReplicaView

LATELY_NS: Final = 10 * NS_PER_S
"""Latencies and frame sizes are those of this time."""
LATELY_STEP_NS: Final = NS_PER_S // 2
"""They change once in this time."""
LATELY_RECORDS_MAX: Final = 8192
"""And of so many records at most."""

Distributions = tuple[Distribution[float] | None, Distribution[float] | None]
"""Of ack latencies in ms, and of frame sizes in bytes."""


class Recent:
    """Keeps what was read last: the rows of one moment ask one after the other."""

    def __init__(self) -> None:
        self._distributions_key: dict[int, tuple[int, int]] = {}
        self._distributions: dict[int, dict[int, Distributions]] = {}
        """Of each take at `_distributions_key`."""
        self._worst_of: tuple[Moment, int] | None = None
        self._worst: dict[int, int] = {}

    def distributions(self, moment: Moment, conn: int) -> Distributions:
        """Ack latency in ms and frame sizes of a connection, in `LATELY_NS` before the last half second."""
        run = moment.run
        if run.is_sampled:
            return None, None
        key = (run.number, moment.at_ns - moment.at_ns % LATELY_STEP_NS)
        if self._distributions_key.get(run.number) != key:
            self._distributions_key[run.number] = key
            self._distributions[run.number] = _distributions_at(run, key[1])
        return self._distributions[run.number].get(conn, (None, None))

    def worst_lag(self, moment: Moment, row: Row, *, bucket_ms: int) -> int | None:
        """Worst lag of a row in the bucket of its history that holds the moment, up to the moment."""
        if self._worst_of != (moment, bucket_ms):
            self._worst_of, self._worst = (moment, bucket_ms), _worst_lags(moment, bucket_ms)
        worst = self._worst.get(row.conn, -1)
        if row.ended is None:
            ack = moment.connections[row.conn].ack_offset
            worst = max(worst, (moment.own_max or 0) - ack if ack >= 0 else -1)
        return worst if worst >= 0 else None


def _distributions_at(run: SessionRun, at_ns: int) -> dict[int, Distributions]:
    last = run.position_at(at_ns)
    first = max(run.position_at(at_ns - LATELY_NS), last - LATELY_RECORDS_MAX)
    records = run.reader.records_between(first, last)
    if not len(records):
        return {}
    grid = TimeGrid.over(int(records["ts_ns"][0]), int(records["ts_ns"].max()), steps=1)
    sent = records["kind"] == Kind.TRANSFER
    distributions = {}
    for conn, part in aggregate(records, is_slave=False, grid=grid).connections.items():
        sizes = records["size"][sent & (records["conn"] == conn)].astype(np.int64)
        latency = part.finished(grid).latency
        distributions[conn] = (
            _distribution(latency, per=1e6),
            _distribution(Histogram.of(np.maximum(sizes, 0))),
        )
    return distributions


def _worst_lags(moment: Moment, bucket_ms: int) -> dict[int, int]:
    """By connection, from the begin of the bucket that holds the moment."""
    run = moment.run
    bucket_ns = bucket_ms * NS_PER_MS
    begin_ns = moment.at_ns - moment.at_ns % bucket_ns
    first = max(run.position_at(begin_ns - 1), moment.position - LATELY_RECORDS_MAX)
    records = run.reader.records_between(first, moment.position)
    found = lags(records, run.reader.snapshot_at(first), is_sampled=run.is_sampled)
    worst: dict[int, int] = {}
    for conn, lag in zip(found.conn.tolist(), found.worst.tolist(), strict=True):
        worst[conn] = max(worst.get(conn, -1), lag)
    return worst


def _distribution(histogram: Histogram, *, per: float = 1.0) -> Distribution[float] | None:
    p50, p99 = histogram.percentile(50), histogram.percentile(99)
    if p50 is None or p99 is None:
        return None
    return Distribution(p50 / per, p99 / per, histogram.max_value / per, histogram.total)


TREND_NS: Final = 5 * NS_PER_S
"""Whether a distance shrinks is judged over this time."""
IN_STEP_S: Final = 1.0
ROWS: Final = 1 << 31
"""Keys of rows: take times this, and the first connection."""


class ReplicaViews:
    """Makes them of `moments`; histories are those of `overview`."""

    def __init__(self, timeline: ReplayTimeline, moments: Moments, overview: Overview) -> None:
        self._timeline, self._moments, self._overview = timeline, moments, overview
        self._twins = Twins(timeline)
        self._recent = Recent()

    def view(self, node: RecordedNode, moment: Moment, row: Row) -> ReplicaView:
        """One replica of the master `node`."""
        run, at_ns, conn = moment.run, moment.at_ns, row.conn
        is_connected = row.ended is None
        if row.ended is None:
            said = moment.connections[conn]
            began_ns = run.begin_ns(conn)
            since_ns = run.start_ns if began_ns is None else began_ns
        else:
            said = connection_state(row.ended.records, is_slave=False)
            since_ns = ended_ns(run, row.ended)
        master_offset = moment.own_max
        ack = known(said.ack_offset)
        diff = None if ack is None or master_offset is None else master_offset - ack
        lag_s = _lag_s(moment, ack, diff)
        state = name_of(HaState, said.state) if is_connected and said.state >= 0 else ""
        limits = run.limits
        in_sync = (
            is_connected
            and diff is not None
            and SyncRule.of(run.reader.session.identity.settings).is_in_sync(
                lag_bytes=diff,
                now_ns=at_ns,
                acked_ns=moment.acked_ns.get(conn),
                oldest_ns=None if lag_s is None else at_ns - round(lag_s * NS_PER_S),
            )
        )
        for_s = max(0, at_ns - since_ns) / NS_PER_S
        slave_take, slave_moment = None, None
        twin = self._twins.of(run, conn)
        if twin is not None:
            slave_node = self._timeline.node_of(twin[0])
            slave_take = slave_node.run_at(at_ns)
            slave_moment = self._moments.at(slave_take, at_ns)
        complaint = ""
        if not is_connected and said.close_reason in GAP_REASONS:
            complaint = COMPLAINTS[CloseReason(said.close_reason)]
            complaint += f": the master ended it with {name_of(CloseReason, said.close_reason)}"
        if slave_moment is not None and not complaint:
            complaint = complaint_of(self._moments, slave_moment)
        rejoins = (
            is_connected
            and ack is not None
            and said.request_max_offset >= 0
            and is_rejoining(ack, joined_at_offset=said.request_max_offset, connected_s=for_s, limits=limits)
        )
        moved_ns = moment.acked_ns.get(conn, since_ns)
        judged = judge(
            Facts(
                is_connected=is_connected,
                unconnected_s=for_s,
                connected_s=for_s,
                is_master_heard=health_of(node, moment, is_growing=True)[0] is Health.UP
                and (at_ns <= run.end_ns or not run.reader.ended_in_order),
                # A monitor sees what was acknowledged, not when somebody spoke.
                last_received_s=(
                    age_s(run, said.last_received_ts_ns, at_ns)
                    if is_connected and not run.is_sampled
                    else None
                ),
                min_offset=_int(run.sample_at(at_ns).get("min_offset")),
                complaint=complaint,
                state=state,
                master_offset=master_offset,
                sent_offset=known(said.sent_offset),
                ack_offset=ack,
                in_sync=in_sync,
                lag_s=lag_s,
                unmoved_s=max(0, at_ns - moved_ns) / NS_PER_S,
                is_rejoining=rejoins,
            ),
            limits,
        )
        sent_rate, ack_rate, eta_s, is_closing = self._speeds(moment, conn, said, diff, lag_s)
        latency, frames = self._recent.distributions(moment, conn) if is_connected else (None, None)
        first = self._recent.worst_lag(moment, row, bucket_ms=self._overview.bucket_ms)
        return ReplicaView(
            key=run.number * ROWS + row.root,
            master=node.key,
            master_label=node.key,
            address=run.address_of(conn),
            node=None if slave_take is None else self._timeline.node_of(slave_take).key,
            label=(run.address_of(conn) if slave_take is None else self._timeline.node_of(slave_take).key),
            verdict=judged.verdict,
            why=judged.why,
            state=state,
            is_connected=is_connected,
            for_s=for_s,
            age_s=0.0,
            master_offset=master_offset,
            sent_offset=known(said.sent_offset),
            ack_offset=ack,
            slave_max_offset=None if slave_moment is None else slave_moment.own_max,
            flushed_offset=None if slave_moment is None else slave_moment.snapshot.of_node(Kind.FLUSHED),
            dispatched_offset=(
                None if slave_moment is None else slave_moment.snapshot.of_node(Kind.DISPATCHED)
            ),
            slave_age_s=None,
            diff_bytes=diff,
            lag_s=lag_s,
            in_sync=in_sync,
            sent_bytes_per_s=sent_rate,
            ack_bytes_per_s=ack_rate,
            transferred_bytes_per_s=None,
            eta_s=eta_s,
            is_closing=is_closing,
            reconnects=row.returns,
            is_rejoining=rejoins,
            ack_latency_ms=latency,
            frame_bytes=frames,
            lag_history=self._overview.lag_series(
                run, tuple(row.conns), at_ns=at_ns, now=first, limits=limits
            ),
            lag_s_history=self._overview.age_series(
                run, tuple(row.conns), at_ns=at_ns, now_s=lag_s if is_connected else None, limits=limits
            ),
            limits=limits,
        )

    def _speeds(
        self, moment: Moment, conn: int, said: ConnectionState, diff: int | None, lag_s: float | None
    ) -> tuple[float | None, float | None, float | None, bool | None]:
        sent_rate = ack_rate = None
        before = self._moments.earlier(moment, RATE_NS)
        if before is not None and conn in moment.connections and conn in before.connections:
            earlier = before.connections[conn]
            if min(earlier.sent_offset, said.sent_offset) >= 0:
                sent_rate = max(0, said.sent_offset - earlier.sent_offset) / (RATE_NS / NS_PER_S)
            if min(earlier.ack_offset, said.ack_offset) >= 0:
                ack_rate = max(0, said.ack_offset - earlier.ack_offset) / (RATE_NS / NS_PER_S)
        if diff is None or conn not in moment.connections:
            return sent_rate, ack_rate, None, None
        if diff <= 0 or (lag_s is not None and lag_s < IN_STEP_S):
            return sent_rate, ack_rate, 0.0, True
        trend = self._moments.earlier(moment, TREND_NS)
        then = None if trend is None else trend.connections.get(conn)
        if trend is None or then is None or then.ack_offset < 0 or trend.own_max is None:
            return sent_rate, ack_rate, None, None
        shrinks_per_s = (trend.own_max - then.ack_offset - diff) / (TREND_NS / NS_PER_S)
        if shrinks_per_s <= 0:
            return sent_rate, ack_rate, None, False
        return sent_rate, ack_rate, diff / shrinks_per_s, True

    def lone_slave(self, node: RecordedNode, moment: Moment) -> list[ReplicaView]:
        """A slave's session as a replica, where no master's session of its group is there at the moment."""
        run, at_ns = moment.run, moment.at_ns
        identity = run.reader.session.identity
        for other in self._timeline.nodes:
            master = other.run_at(at_ns)
            theirs = master.reader.session.identity
            if (
                not master.is_slave
                and master.start_ns <= at_ns
                and (theirs.cluster_name, theirs.broker_name) == (identity.cluster_name, identity.broker_name)
                and (moment.connections or self._row_of_slave(master, node, at_ns))
            ):
                return []
        said = next(iter(moment.connections.values()), None)
        slave = side_of(self._moments, moment)
        is_connected = said is not None
        since_ns = run.start_ns
        conn = next(iter(moment.connections), None)
        began_ns = None if conn is None else run.begin_ns(conn)
        if began_ns is not None:
            since_ns = began_ns
        elif not is_connected:
            ended = self._moments.ended(moment)
            since_ns = ended_ns(run, ended[-1]) if ended else since_ns
        for_s = max(0, at_ns - since_ns) / NS_PER_S
        judged = judge(
            Facts(
                is_connected=is_connected,
                unconnected_s=for_s,
                connected_s=for_s,
                last_received_s=slave.read_age_s,
                complaint=slave.complaint,
                state=slave.state,
            ),
            run.limits,
        )
        return [
            ReplicaView(
                key=run.number * ROWS,
                master=slave.master_address or "",
                master_label=slave.master_address or "",
                address=node.key,
                node=node.key,
                label=node.key,
                verdict=judged.verdict,
                why=judged.why,
                state=slave.state if is_connected else "",
                is_connected=is_connected,
                for_s=for_s,
                age_s=0.0,
                master_offset=None,
                sent_offset=None,
                ack_offset=slave.reported_offset if is_connected else moment.own_max,
                slave_max_offset=moment.own_max,
                flushed_offset=moment.snapshot.of_node(Kind.FLUSHED),
                dispatched_offset=moment.snapshot.of_node(Kind.DISPATCHED),
                slave_age_s=None,
                diff_bytes=None,
                lag_s=None,
                in_sync=None,
                sent_bytes_per_s=slave.received_bytes_per_s if is_connected else None,
                ack_bytes_per_s=None,
                transferred_bytes_per_s=None,
                eta_s=None,
                is_closing=None,
                reconnects=slave.reconnects,
                limits=run.limits,
            )
        ]

    def _row_of_slave(self, master: SessionRun, node: RecordedNode, at_ns: int) -> bool:
        """Whether a master's rows at a moment have one that is known to be the slave `node`."""
        for row in self._moments.rows(self._moments.at(master, at_ns)):
            twin = self._twins.of(master, row.conn)
            if twin is not None and self._timeline.node_of(twin[0]) is node:
                return True
        return False


def _lag_s(moment: Moment, ack: int | None, diff: int | None) -> float | None:
    """Age of the oldest byte that was not acknowledged."""
    if ack is None or diff is None:
        return None
    if diff <= 0:
        return 0.0
    run = moment.run
    passed_ts_ns = run.reader.max_passed_ns(ack, moment.position)
    return None if passed_ts_ns is None else age_s(run, passed_ts_ns, moment.at_ns)


def _int(value: object) -> int | None:
    return value if isinstance(value, int) else None
