"""Replicas of a replay at a moment, from their masters' sessions, or from their own where there is none."""

from __future__ import annotations

from typing import Final

import numpy as np

from trioha.distribution import Distribution
from trioha.recording.events import CloseReason, HaState, Kind, code_name
from trioha.recording.state import known, lag_bytes
from trioha.replica_verdict import Facts, is_rejoining, judge
from trioha_monitor.replay.node_views import COMPLAINTS, complaint_of, health_of, slave_view
from trioha_monitor.replay.overview import Overview
from trioha_monitor.replay.recorded_control import RecordedControls
from trioha_monitor.replay.replay_timeline import (
    NS_PER_MS,
    NS_PER_S,
    RecordedNode,
    ReplayTimeline,
    SessionRun,
)
from trioha_monitor.replay.session_states import (
    RATE_NS,
    ReplicaRow,
    SessionState,
    SessionStates,
    SlaveConnections,
    ended_ns,
)
from trioha_monitor.replay.timeline_events import GAP_REASONS
from trioha_monitor.replica_view import (
    Measurements,
    ReplicaNames,
    SlaveOffsets,
    has_caught_up,
    in_unit,
    view_replica,
)
from trioha_monitor.view import Health, ReplicaView
from trioha_sessions.aggregate import aggregate
from trioha_sessions.histogram import Histogram
from trioha_sessions.lags import lags
from trioha_sessions.snapshot import ConnectionState
from trioha_sessions.sync import SyncRule
from trioha_sessions.time_series import TimeGrid

TREND_NS: Final = 5 * NS_PER_S
"""Whether a distance shrinks is judged over this time."""
ROWS: Final = 1 << 31
"""Key of a row: number of the run times this, plus the row's first connection."""
RECENT_NS: Final = 10 * NS_PER_S
"""Latencies and frame sizes are those of this time before the moment."""
RECENT_STEP_NS: Final = NS_PER_S // 2
"""They are computed again once in this time."""
RECENT_RECORDS_MAX: Final = 8192
"""Records that one computation reads at most."""

Distributions = tuple[Distribution[float] | None, Distribution[float] | None]
"""Of ack latencies in ms, and of frame sizes in bytes."""


class ReplicaViews:
    """Makes the views of replicas from `states`; histories are those of `overview`."""

    def __init__(
        self, timeline: ReplayTimeline, states: SessionStates, overview: Overview, controls: RecordedControls
    ) -> None:
        self._timeline, self._states, self._overview = timeline, states, overview
        self._controls = controls
        self._slave_connections = SlaveConnections(timeline)
        self._recent = RecentFigures()

    def view(self, node: RecordedNode, session: SessionState, row: ReplicaRow) -> ReplicaView:
        """One replica of the master `node`."""
        at_ns, limits = session.at_ns, session.run.limits
        # Of a master that was started again, the run may be one before.
        run, conn = row.present.run, row.present.conn
        connection = self._states.state_of(session, row)
        since_ns = row.present.began_ns if row.present.ended_ns is None else row.present.ended_ns
        slave_node, slave_session = self._slave_of(run, conn, at_ns)
        facts = self._facts(node, session, row, connection, since_ns=since_ns, slave=slave_session)
        diff_bytes = (
            None
            if facts.ack_offset is None or session.log_end is None
            else session.log_end - facts.ack_offset
        )
        worst_now = lag_s_now = None
        if facts.master_answers:
            worst_now = self._worst_now(session, row, None if facts.is_rejoining else diff_bytes)
            lag_s_now = None if facts.is_rejoining else facts.lag_s
        lag_history = self._overview.lag_series(row, at_ns=at_ns, now=worst_now, limits=limits)
        lag_s_history = self._overview.age_series(row, at_ns=at_ns, now_s=lag_s_now, limits=limits)
        sent_rate = ack_rate = shrinks_per_s = latency = frames = None
        if row.is_connected:
            sent_rate, ack_rate = self._rates(session, conn)
            shrinks_per_s = self._shrinks_per_s(session, conn, diff_bytes, lag_s=facts.lag_s)
            latency, frames = self._recent.distributions(session, conn)
        address = run.address_of(conn)
        return view_replica(
            ReplicaNames(
                key=row.key[0] * ROWS + row.key[1],
                master=node.key,
                master_label=node.key,
                address=address,
                node=None if slave_node is None else slave_node.key,
                label=address if slave_node is None else slave_node.key,
            ),
            facts,
            judge(facts, limits),
            limits,
            slave=SlaveOffsets() if slave_session is None else _own_offsets(slave_session),
            measured=Measurements(
                diff_bytes=diff_bytes,
                sent_bytes_per_s=sent_rate,
                ack_bytes_per_s=ack_rate,
                shrinks_per_s=shrinks_per_s,
                reconnects=row.reconnects,
                ack_latency_ms=latency,
                frame_bytes=frames,
                lag_history=lag_history,
                lag_s_history=lag_s_history,
            ),
        )

    def _slave_of(
        self, run: SessionRun, conn: int, at_ns: int
    ) -> tuple[RecordedNode | None, SessionState | None]:
        """The slave of a master's connection and its own session at the moment, where there is one."""
        found = self._slave_connections.of(run, conn)
        if found is None:
            return None, None
        node = self._timeline.node_of(found[0])
        return node, self._states.at(node.run_at(at_ns), at_ns)

    def _facts(
        self,
        node: RecordedNode,
        session: SessionState,
        row: ReplicaRow,
        connection: ConnectionState,
        *,
        since_ns: int,
        slave: SessionState | None,
    ) -> Facts:
        run, at_ns, limits = session.run, session.at_ns, session.run.limits
        is_connected = row.is_connected
        for_s = max(0, at_ns - since_ns) / NS_PER_S
        ack = known(connection.ack_offset)
        master_answers = health_of(node, session, is_growing=False)[0] is Health.UP
        # As of the master's last answer: nothing is known of what came after it.
        lag_s = self._states.lag_s(
            session, ack, at_ns=at_ns if master_answers else run.last_ns(session.position)
        )
        acked_ns = session.acked_ns.get(row.present.conn) if is_connected else None
        complaint = ""
        if not is_connected and connection.close_reason in GAP_REASONS:
            reason = CloseReason(connection.close_reason)
            complaint = f"{COMPLAINTS[reason]}: the master ended it with {reason.name}"
        elif slave is not None:
            complaint = complaint_of(self._states, slave)
        return Facts(
            is_connected=is_connected,
            unconnected_s=for_s,
            connected_s=for_s,
            master_answers=master_answers,
            last_received_s=run.age_s(connection.last_received_ts_ns, at_ns) if is_connected else None,
            complaint=complaint,
            state=code_name(HaState, connection.state) if is_connected and connection.state >= 0 else "",
            master_offset=session.log_end,
            sent_offset=known(connection.sent_offset),
            ack_offset=ack,
            in_sync=is_connected and self._is_in_sync(node, session, row.present.conn, ack=ack, lag_s=lag_s),
            lag_s=lag_s,
            unmoved_s=max(0, at_ns - (since_ns if acked_ns is None else acked_ns)) / NS_PER_S,
            is_rejoining=is_connected
            and ack is not None
            and connection.request_max_offset >= 0
            and is_rejoining(
                ack, joined_at_offset=connection.request_max_offset, connected_s=for_s, limits=limits
            ),
        )

    def _worst_now(self, session: SessionState, row: ReplicaRow, diff_bytes: int | None) -> int | None:
        """Worst lag of a row in the history's bucket that holds the moment, up to the moment."""
        bucket_ms = self._overview.bucket_ms
        begin_ns = session.at_ns - session.at_ns % (bucket_ms * NS_PER_MS)
        of_connections = self._recent.worst_lags(session, bucket_ms=bucket_ms)
        heartbeat_ns = round(session.run.limits.heartbeat_s * NS_PER_S)
        worst = [
            of_connections.get(one.conn, -1)
            for one in row.connections
            # Until a heartbeat after it connected it may have been rejoining in this bucket.
            if one.run is session.run and one.began_ns + heartbeat_ns < begin_ns
        ]
        worst.append(-1 if diff_bytes is None else max(diff_bytes, 0))
        by_key = {one.key: one for one in row.connections}
        for outage in row.outages:
            if outage.next is not None and begin_ns <= outage.ended_ns <= session.at_ns:
                lost = by_key[outage.lost].last
                log_end = known(self._overview.log_end_before(outage.next))
                now = lag_bytes(log_end, None if lost is None else known(lost.ack_offset))
                worst.append(-1 if now is None else now)
        return known(max(worst))

    def _is_in_sync(
        self, node: RecordedNode, session: SessionState, conn: int, *, ack: int | None, lag_s: float | None
    ) -> bool:
        """Whether the master counts an open connection: in controller mode by its sync-state set."""
        run = session.run
        state = self._controls.at(node, run, session.position)
        if state is not None and state.control.sync_state_set_epoch is not None and conn in run.broker_ids:
            return run.broker_ids[conn] in state.control.sync_state_set
        if ack is None or session.log_end is None:
            return False
        return SyncRule.of(run.reader.session.identity.settings).is_in_sync(
            lag_bytes=session.log_end - ack,
            now_ns=session.at_ns,
            acked_ns=session.acked_ns.get(conn),
            oldest_ns=None if lag_s is None else session.at_ns - round(lag_s * NS_PER_S),
        )

    def _rates(self, session: SessionState, conn: int) -> tuple[float | None, float | None]:
        """How fast the sent offset and the ack of an open connection move, bytes per second."""
        before = self._states.earlier(session, RATE_NS)
        now = session.connections.get(conn)
        earlier = None if before is None else before.connections.get(conn)
        if now is None or earlier is None:
            return None, None
        rates = [
            max(0, last - first) / (RATE_NS / NS_PER_S) if min(first, last) >= 0 else None
            for first, last in (
                (earlier.sent_offset, now.sent_offset),
                (earlier.ack_offset, now.ack_offset),
            )
        ]
        return rates[0], rates[1]

    def _shrinks_per_s(
        self, session: SessionState, conn: int, diff_bytes: int | None, *, lag_s: float | None
    ) -> float | None:
        """By how much the distance of an open connection shrinks in a second, over `TREND_NS`.

        None where that is not known or does not matter: an earlier moment may cost a read of the disk.
        """
        if diff_bytes is None or conn not in session.connections or has_caught_up(diff_bytes, lag_s=lag_s):
            return None
        before = self._states.earlier(session, TREND_NS)
        earlier = None if before is None else before.connections.get(conn)
        if before is None or earlier is None or earlier.ack_offset < 0:
            return None
        if before.log_end is None:
            return None
        return (before.log_end - earlier.ack_offset - diff_bytes) / (TREND_NS / NS_PER_S)

    def lone_slave(self, node: RecordedNode, session: SessionState) -> list[ReplicaView]:
        """A slave's session as a replica, where no master's session of its group has it at the moment."""
        run, at_ns = session.run, session.at_ns
        if self._is_listed(node, session):
            return []
        conn, connection = session.connection
        slave = slave_view(self._states, session)
        since_ns = run.start_ns
        began_ns = None if conn is None else run.begin_ns(conn)
        if began_ns is not None:
            since_ns = began_ns
        elif connection is None:
            ended = self._states.ended(session)
            since_ns = ended_ns(run, ended[-1]) if ended else since_ns
        for_s = max(0, at_ns - since_ns) / NS_PER_S
        facts = Facts(
            is_connected=connection is not None,
            unconnected_s=for_s,
            connected_s=for_s,
            last_received_s=slave.read_age_s,
            complaint=slave.complaint,
            state="" if connection is None else slave.state,
            ack_offset=session.log_end if connection is None else slave.reported_offset,
        )
        master = slave.master_address or ""
        return [
            view_replica(
                ReplicaNames(
                    key=run.number * ROWS,
                    master=master,
                    master_label=master,
                    address=node.key,
                    node=node.key,
                    label=node.key,
                ),
                facts,
                judge(facts, run.limits),
                run.limits,
                slave=_own_offsets(session),
                measured=Measurements(
                    sent_bytes_per_s=slave.received_bytes_per_s, reconnects=slave.reconnects
                ),
            )
        ]

    def _is_listed(self, node: RecordedNode, session: SessionState) -> bool:
        """Whether a master's session of the slave's group has a row that is, or may be, the slave's."""
        identity = session.run.reader.session.identity
        for other in self._timeline.nodes:
            master = other.run_at(session.at_ns)
            theirs = master.reader.session.identity
            if (
                not master.is_slave
                and master.start_ns <= session.at_ns
                and not self._timeline.is_deposed(master, session.at_ns)
                and (theirs.cluster_name, theirs.broker_name) == (identity.cluster_name, identity.broker_name)
                and (session.connections or self._has_row_of(master, node, session.at_ns))
            ):
                return True
        return False

    def _has_row_of(self, master: SessionRun, node: RecordedNode, at_ns: int) -> bool:
        """Whether one of a master's rows at a moment is known to be the slave `node`."""
        for row in self._states.rows(self._states.at(master, at_ns)):
            found = self._slave_connections.of(row.present.run, row.present.conn)
            if found is not None and self._timeline.node_of(found[0]) is node:
                return True
        return False


class RecentFigures:
    """Latencies, frame sizes and worst lag shortly before a moment; caches the last ones of each run."""

    def __init__(self) -> None:
        self._distributions: dict[int, tuple[int, dict[int, Distributions]]] = {}
        """By run: the time that they were computed for, and those of each connection."""
        self._worst_of: tuple[SessionState, int] | None = None
        self._worst: dict[int, int] = {}

    def distributions(self, session: SessionState, conn: int) -> Distributions:
        """Ack latency in ms and frame sizes of a connection, in `RECENT_NS` before the last half second."""
        run = session.run
        at_ns = session.at_ns - session.at_ns % RECENT_STEP_NS
        cached = self._distributions.get(run.number)
        if cached is None or cached[0] != at_ns:
            cached = self._distributions[run.number] = (at_ns, _distributions_at(run, at_ns))
        return cached[1].get(conn, (None, None))

    def worst_lags(self, session: SessionState, *, bucket_ms: int) -> dict[int, int]:
        """Worst lag of each connection in the history's bucket that holds the moment, up to the moment."""
        if self._worst_of != (session, bucket_ms):
            self._worst_of, self._worst = (session, bucket_ms), _worst_lags(session, bucket_ms)
        return self._worst


def _distributions_at(run: SessionRun, at_ns: int) -> dict[int, Distributions]:
    last = run.position_at(at_ns)
    first = max(run.position_at(at_ns - RECENT_NS), last - RECENT_RECORDS_MAX)
    records = run.reader.records_between(first, last)
    if not len(records):
        return {}
    grid = TimeGrid.over(int(records["ts_ns"][0]), int(records["ts_ns"].max()), steps=1)
    sent = records["kind"] == Kind.TRANSFER
    distributions = {}
    for conn, part in aggregate(records, is_slave=False, grid=grid).connections.items():
        sizes = records["size"][sent & (records["conn"] == conn)].astype(np.int64)
        distributions[conn] = (
            in_unit(part.finished(grid).latency.distribution(), per=NS_PER_MS),
            in_unit(Histogram.of(np.maximum(sizes, 0)).distribution()),
        )
    return distributions


def _worst_lags(session: SessionState, bucket_ms: int) -> dict[int, int]:
    """By connection, from the start of the bucket that holds the moment."""
    run = session.run
    bucket_ns = bucket_ms * NS_PER_MS
    begin_ns = session.at_ns - session.at_ns % bucket_ns
    first = max(run.position_at(begin_ns - 1), session.position - RECENT_RECORDS_MAX)
    records = run.reader.records_between(first, session.position)
    found = lags(records, run.reader.snapshot_at(first))
    worst: dict[int, int] = {}
    for conn, lag in zip(found.conn.tolist(), found.worst.tolist(), strict=True):
        worst[conn] = max(worst.get(conn, -1), lag)
    return worst


def _own_offsets(session: SessionState) -> SlaveOffsets:
    return SlaveOffsets(
        max_offset=session.log_end,
        flushed_offset=session.snapshot.of_node(Kind.FLUSHED),
        dispatched_offset=session.snapshot.of_node(Kind.DISPATCHED),
    )
