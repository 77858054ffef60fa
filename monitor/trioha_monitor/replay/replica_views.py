"""Replicas of a replay at a moment, from their masters' sessions, and from their own where there is none."""

from __future__ import annotations

from typing import Final

from trioha.recording.events import CloseReason, HaState, Kind
from trioha.recording.snapshot import ConnectionState, connection_state
from trioha.recording.sync import SyncRule
from trioha_monitor.replay.moments import RATE_NS, Moment, Moments, age_s, ended_ns, known
from trioha_monitor.replay.node_views import health_of
from trioha_monitor.replay.overview import Overview
from trioha_monitor.replay.recent import Recent
from trioha_monitor.replay.replay_timeline import NS_PER_S, RecordedNode, ReplayTimeline, SessionRun
from trioha_monitor.replay.rows import Row, Twins
from trioha_monitor.replay.slave_sides import COMPLAINTS, complaint_of, side_of
from trioha_monitor.replay.timeline_events import GAP_REASONS, name_of
from trioha_monitor.verdict import Facts, is_rejoining, judge
from trioha_monitor.view import Health, ReplicaView

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
