"""The state of a replay at any moment, as the views that screens show.

Everything but histories and timeline is a function of the moment alone: where everything stood then
(`trioha.recording.tape`), and where it stood a little earlier for speeds. The verdict is that of
`trioha_monitor.verdict.judge` for the moment itself. There is no hysteresis in a replay: it would make what
is shown depend on how one came there.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Final

import numpy as np
from attrs import frozen

from trioha.recording.curves import Grid
from trioha.recording.events import CloseReason, HaState, Kind, PutStatus
from trioha.recording.fold import fold
from trioha.recording.histogram import Histogram
from trioha.recording.lags import lags
from trioha.recording.standing import Ended, Standing, Stands, stands
from trioha.recording.tape import Counts
from trioha_monitor.replay.happenings import GAP_REASONS
from trioha_monitor.replay.overview import Overview
from trioha_monitor.replay.reel import NS_PER_MS, NS_PER_S, RecordedNode, Reel, Take
from trioha_monitor.replay.rows import Row, Twins, rows_of
from trioha_monitor.texts import REASON_MAX, clean
from trioha_monitor.verdict import Facts, judge
from trioha_monitor.view import (
    ClusterView,
    Health,
    LogView,
    NodeView,
    PutRate,
    ReplicaView,
    SlaveView,
    Spread,
)

RATE_NS: Final = 2 * NS_PER_S
"""Speeds are means over this time, as in the live view."""
TREND_NS: Final = 5 * NS_PER_S
"""Whether a distance shrinks is judged over this time."""
LOST_NS: Final = 300 * NS_PER_S
"""How long a lost connection is shown."""
LATELY_NS: Final = 10 * NS_PER_S
"""Latencies and frame sizes are those of this time."""
LATELY_STEP_NS: Final = NS_PER_S // 2
"""They change once in this time."""
LATELY_RECORDS_MAX: Final = 8192
"""And of so many records at most."""
HISTORY_MS: Final = 15 * 60 * 1000
"""How far back histories go."""
QUIET_HEARTBEATS: Final = 2
"""Heartbeats without any record after which a session that has not ended looks dead."""
IN_STEP_S: Final = 1.0
REPLICAS_MAX: Final = 256
_ROWS: Final = 1 << 31
"""Keys of rows: take times this, and the first connection."""
_COMPLAINTS: Final = {
    CloseReason.DIVERGED: "DIVERGED",
    CloseReason.OFFSET_MISMATCH: "",
    CloseReason.AHEAD: "AHEAD",
    CloseReason.REQUEST_ABOVE_MAX: "AHEAD",
    CloseReason.GAP: "GAP",
    CloseReason.REQUEST_BELOW_MIN: "GAP",
}


@frozen(eq=False)
class Moment:
    """One session at one moment."""

    take: Take
    at_ns: int
    position: int
    standing: Standing
    connections: dict[int, Stands]
    """Open ones."""
    acked_ns: dict[int, int]
    """Time of each one's last ack, on the axis."""

    @property
    def own_max(self) -> int | None:
        """End of the node's own log."""
        own_max = self.standing.own_max_offset
        return None if own_max < 0 else own_max


class State:
    """Makes views of any moment of `reel`. Used by one thread at a time; may read the disk."""

    def __init__(self, reel: Reel, overview: Overview) -> None:
        self._reel = reel
        self._overview = overview
        self._twins = Twins(reel)
        self._moments: OrderedDict[tuple[int, int], Moment] = OrderedDict()
        self._spreads_key: dict[int, tuple[int, int]] = {}
        self._spreads: dict[int, dict[int, tuple[Spread | None, Spread | None]]] = {}
        """Of each take at `_spreads_key`."""
        self._worst_of: Moment | None = None
        self._worst: dict[int, int] = {}

    def view(self, at_ns: int, *, is_growing: bool = False) -> ClusterView:
        """Everything at `at_ns`. `is_growing`: the sessions are still written, and this is their end."""
        nodes: list[NodeView] = []
        replicas: list[ReplicaView] = []
        for node in self._reel.nodes:
            take = node.take_at(at_ns)
            if at_ns < take.start_ns:
                nodes.append(NodeView(node.key, reason="its recording begins later"))
                continue
            moment = self.moment(take, at_ns)
            rows = [] if take.is_slave else self._rows(moment)
            views = [self._replica(node, moment, row) for row in rows[:REPLICAS_MAX]]
            if take.is_slave:
                views = self._lone_slave(node, moment)
            replicas += views
            nodes.append(self._node(node, moment, views, rows, is_growing=is_growing))
        return ClusterView(
            time_ms=at_ns // NS_PER_MS,
            nodes=tuple(nodes),
            replicas=tuple(replicas),
            events=self._overview.events_until(at_ns),
            interval_s=0.0,
            is_live=False,
        )

    def moment(self, take: Take, at_ns: int) -> Moment:
        """A session at `at_ns`."""
        key = (take.number, at_ns)
        known = self._moments.get(key)
        if known is not None and not self._reel_grew(known):
            self._moments.move_to_end(key)
            return known
        position = take.position_at(at_ns)
        standing = take.tape.with_own_times(take.tape.standing_at(position), position)
        connections: dict[int, Stands] = {}
        acked_ns: dict[int, int] = {}
        for conn, records in standing.connections():
            said = stands(records, is_slave=take.is_slave)
            if said.state < 0 and said.ack_offset < 0 and said.received_offset < 0:
                continue
            connections[conn] = said
            acks = records["ts_ns"][records["kind"] == Kind.ACK]
            if len(acks):
                acked_ns[conn] = take.wall_of(int(acks[-1]))
        found = Moment(take, at_ns, position, standing, connections, acked_ns)
        self._moments[key] = found
        while len(self._moments) > 64:
            self._moments.popitem(last=False)
        return found

    def ages_ns(self, at_ns: int, *, of: str = "") -> dict[tuple[int, int], int]:
        """Age of the oldest byte that each connected replica lacks, by take and connection.

        `of`: only of those whose address contains it.
        """
        ages: dict[tuple[int, int], int] = {}
        for node in self._reel.nodes:
            take = node.take_at(at_ns)
            if take.is_slave or not take.start_ns <= at_ns <= take.end_ns:
                continue
            moment = self.moment(take, at_ns)
            for conn, said in moment.connections.items():
                if said.ack_offset < 0 or of not in take.addresses.get(conn, ""):
                    continue
                passed_ns = None
                if (moment.own_max or 0) > said.ack_offset:
                    passed_ns = take.tape.max_passed_ns(said.ack_offset, moment.position)
                ages[take.number, conn] = 0 if passed_ns is None else max(0, at_ns - take.wall_of(passed_ns))
        return ages

    @staticmethod
    def _reel_grew(moment: Moment) -> bool:
        return moment.at_ns >= moment.take.end_ns and moment.position != moment.take.tape.end_seq

    # -- nodes ---------------------------------------------------------------------------------------------

    def _node(
        self,
        node: RecordedNode,
        moment: Moment,
        views: list[ReplicaView],
        rows: list[Row],
        *,
        is_growing: bool,
    ) -> NodeView:
        take, at_ns = moment.take, moment.at_ns
        identity = take.tape.session.identity
        health, reason, since_ns = self._health(node, moment, is_growing=is_growing)
        connected = sum(view.is_connected for view in views)
        last = take.tape.record_before(moment.position)
        age_ns = at_ns - (take.start_ns if last is None else take.wall_of(int(last["ts_ns"])))
        return NodeView(
            address=node.key,
            health=health,
            reason=reason,
            for_s=max(0, at_ns - since_ns) / NS_PER_S,
            age_s=0.0 if health is Health.UP else max(0, age_ns) / NS_PER_S,
            role=identity.role,
            cluster=identity.cluster_name,
            broker_name=identity.broker_name,
            broker_id=identity.broker_id,
            version=clean(str(take.sample_at(at_ns).get("version") or ""))
            or ("" if take.is_sampled else take.tape.session.program_version),
            told_by="session",
            tells_replicas=not take.is_slave,
            log=self._log(moment),
            limits=take.limits,
            slave=self._slave(moment) if take.is_slave else None,
            connected_replicas=0 if take.is_slave else len(moment.connections),
            hidden_replicas=max(0, len(rows) - REPLICAS_MAX),
            in_sync_replicas=None
            if take.is_slave
            else sum(bool(view.in_sync) for view in views if connected),
            ended_connections=self._ended_reasons(moment),
        )

    def _health(self, node: RecordedNode, moment: Moment, *, is_growing: bool) -> tuple[Health, str, int]:
        take, at_ns = moment.take, moment.at_ns
        sample = take.sample_at(at_ns)
        if sample.get("health") == Health.DOWN.value and (at_ns <= take.end_ns or is_growing):
            return Health.DOWN, f"did not answer the monitor: {sample.get('reason')}", take.start_ns
        if at_ns <= take.end_ns or is_growing:
            return Health.UP, "", take.start_ns
        if take.tape.ended_in_order:
            return Health.DOWN, "its recording ended in order", take.end_ns
        quiet_ns = at_ns - take.end_ns
        if node.next_start_ns(take) is not None:
            return Health.DOWN, "its recording breaks off here: killed, and started again later", take.end_ns
        if quiet_ns > QUIET_HEARTBEATS * take.limits.heartbeat_s * NS_PER_S:
            return Health.DOWN, "its recording breaks off here: killed, or still going on", take.end_ns
        return Health.UP, "", take.start_ns

    def _log(self, moment: Moment) -> LogView:
        take, at_ns = moment.take, moment.at_ns
        before = self._earlier(moment, RATE_NS)
        passed_s = RATE_NS / NS_PER_S
        append = None
        puts_per_s = None
        puts: tuple[PutRate, ...] = ()
        if before is not None and moment.own_max is not None and before.own_max is not None:
            append = max(0, moment.own_max - before.own_max) / passed_s
        if not take.is_slave and not take.is_sampled:
            lately = None
            if before is not None:
                lately = take.tape.counts_between(before.position, moment.position)
                puts_per_s = lately.puts / passed_s
            puts = self._puts(moment, lately, passed_s)
        size = take.tape.session.identity.settings.get("mappedFileSizeCommitLog")
        sample = take.sample_at(at_ns)
        if take.is_sampled:
            puts = _sampled_puts(sample, take.sample_at(at_ns - RATE_NS), passed_s)
        min_offset = sample.get("min_offset")
        return LogView(
            min_offset=min_offset if isinstance(min_offset, int) else None,
            max_offset=moment.own_max,
            flushed_offset=moment.standing.of_node(Kind.FLUSHED),
            dispatched_offset=moment.standing.of_node(Kind.DISPATCHED),
            append_bytes_per_s=append,
            file_bytes=size if isinstance(size, int) else None,
            put_messages_per_s=puts_per_s,
            puts=puts,
        )

    @staticmethod
    def _puts(moment: Moment, lately: Counts | None, passed_s: float) -> tuple[PutRate, ...]:
        every = moment.take.tape.counts_at(moment.position)
        if every is None:
            return ()
        recent = None if lately is None else _results(lately)
        return tuple(
            PutRate(_name(PutStatus, code), count, None if recent is None else recent.get(code, 0) / passed_s)
            for code, count in sorted(_results(every).items(), key=_ok_first)
        )

    def _ended_reasons(self, moment: Moment) -> dict[str, int]:
        tape = moment.take.tape
        if not tape.knows_all_before(moment.position):
            return {}
        reasons: dict[str, int] = {}
        for ended in tape.ended_between(tape.first_seq, moment.position):
            closed = ended.records[ended.records["kind"] == Kind.CLOSED]
            name = _name(CloseReason, int(closed["flags"][-1])) if len(closed) else "NONE"
            reasons[name] = reasons.get(name, 0) + 1
        return reasons

    def _slave(self, moment: Moment) -> SlaveView:
        take, at_ns = moment.take, moment.at_ns
        said = next(iter(moment.connections.values()), None)
        known = [conn for conn, seq in take.begin_seqs.items() if seq < moment.position]
        rate = None
        before = self._earlier(moment, RATE_NS)
        if before is not None and moment.own_max is not None and before.own_max is not None:
            rate = max(0, moment.own_max - before.own_max) / (RATE_NS / NS_PER_S)
        return SlaveView(
            master_address=take.addresses.get(known[-1]) if known else None,
            state=_name(HaState, HaState.READY if said is None or said.state < 0 else said.state),
            reported_offset=None if said is None else _known(said.reported_offset),
            received_bytes_per_s=rate,
            read_age_s=None if said is None or take.is_sampled else _age_s(take, said.heard_ts_ns, at_ns),
            reconnects=max(0, len(known) - 1),
            is_observer=None,
            complaint=self._complaint(moment),
        )

    def _complaint(self, moment: Moment) -> str:
        """What keeps a slave that is not connected from following: how its last connection ended."""
        noted = moment.take.sample_at(moment.at_ns).get("complaint")
        if noted:
            return clean(str(noted), length_max=REASON_MAX)
        if moment.connections:
            return ""
        ended = self._ended(moment)
        if not ended:
            return ""
        said = stands(ended[-1].records, is_slave=True)
        if said.close_reason not in GAP_REASONS:
            return ""
        name = _COMPLAINTS[CloseReason(said.close_reason)]
        return f"{name}: its last connection ended with {_name(CloseReason, said.close_reason)}"

    # -- replicas ------------------------------------------------------------------------------------------

    def _earlier(self, moment: Moment, by_ns: int) -> Moment | None:
        at_ns = moment.at_ns - by_ns
        return None if at_ns < moment.take.start_ns else self.moment(moment.take, at_ns)

    def _ended(self, moment: Moment) -> list[Ended]:
        """Connections that ended lately, or all that did where that is known."""
        tape = moment.take.tape
        return tape.ended_between(self._ended_from(moment), moment.position)

    @staticmethod
    def _ended_from(moment: Moment) -> int:
        tape = moment.take.tape
        if tape.knows_all_before(moment.position):
            return tape.first_seq
        return moment.take.position_at(moment.at_ns - LOST_NS)

    def _rows(self, moment: Moment) -> list[Row]:
        rows = rows_of(
            moment.take,
            moment.position,
            open_conns=moment.connections,
            ended=self._ended(moment),
            first_seq=self._ended_from(moment),
        )
        take = moment.take
        return [
            row
            for row in rows
            if row.ended is None or moment.at_ns - self._ended_ns(take, row.ended) <= LOST_NS
        ]

    @staticmethod
    def _ended_ns(take: Take, ended: Ended) -> int:
        ts_ns = stands(ended.records, is_slave=take.is_slave)
        return take.wall_of(ts_ns.closed_ts_ns if ts_ns.closed_ts_ns >= 0 else ts_ns.last_ts_ns)

    def _replica(self, node: RecordedNode, moment: Moment, row: Row) -> ReplicaView:
        take, at_ns, conn = moment.take, moment.at_ns, row.conn
        is_connected = row.ended is None
        if row.ended is None:
            said = moment.connections[conn]
            since_ts_ns = take.tape.time_of(take.begin_seqs[conn]) if conn in take.begin_seqs else None
            since_ns = take.start_ns if since_ts_ns is None else take.wall_of(since_ts_ns)
        else:
            said = stands(row.ended.records, is_slave=False)
            since_ns = self._ended_ns(take, row.ended)
        master_offset = moment.own_max
        ack = _known(said.ack_offset)
        diff = None if ack is None or master_offset is None else master_offset - ack
        lag_s = self._lag_s(moment, ack, diff)
        state = _name(HaState, said.state) if is_connected and said.state >= 0 else ""
        limits = take.limits
        in_sync = is_connected and diff is not None and diff < limits.gap_bytes_max
        for_s = max(0, at_ns - since_ns) / NS_PER_S
        slave_take, slave_moment = None, None
        twin = self._twins.of(take, conn)
        if twin is not None:
            slave_node = self._reel.node_of(twin[0])
            slave_take = slave_node.take_at(at_ns)
            slave_moment = self.moment(slave_take, at_ns)
        complaint = ""
        if not is_connected and said.close_reason in GAP_REASONS:
            complaint = _COMPLAINTS[CloseReason(said.close_reason)]
            complaint += f": the master ended it with {_name(CloseReason, said.close_reason)}"
        if slave_moment is not None and not complaint:
            complaint = self._complaint(slave_moment)
        moved_ns = moment.acked_ns.get(conn, since_ns)
        judged = judge(
            Facts(
                is_connected=is_connected,
                unconnected_s=for_s,
                connected_s=for_s,
                is_master_heard=self._health(node, moment, is_growing=True)[0] is Health.UP
                and (at_ns <= take.end_ns or not take.tape.ended_in_order),
                # A monitor sees what was acknowledged, not when somebody spoke.
                heard_s=(
                    _age_s(take, said.heard_ts_ns, at_ns) if is_connected and not take.is_sampled else None
                ),
                min_offset=_int(take.sample_at(at_ns).get("min_offset")),
                complaint=complaint,
                state=state,
                master_offset=master_offset,
                sent_offset=_known(said.sent_offset),
                ack_offset=ack,
                in_sync=in_sync,
                lag_s=lag_s,
                unmoved_s=max(0, at_ns - moved_ns) / NS_PER_S,
            ),
            limits,
        )
        sent_rate, ack_rate, eta_s, is_closing = self._speeds(moment, conn, said, diff, lag_s)
        latency, frames = self._lately(moment, conn) if is_connected else (None, None)
        first = self._moment_lag(moment, row)
        return ReplicaView(
            key=take.number * _ROWS + row.root,
            master=node.key,
            master_label=node.key,
            address=take.addresses.get(conn, f"connection {conn}"),
            node=None if slave_take is None else self._reel.node_of(slave_take).key,
            label=(
                take.addresses.get(conn, f"connection {conn}")
                if slave_take is None
                else self._reel.node_of(slave_take).key
            ),
            verdict=judged.verdict,
            why=judged.why,
            state=state,
            is_connected=is_connected,
            for_s=for_s,
            age_s=0.0,
            master_offset=master_offset,
            sent_offset=_known(said.sent_offset),
            ack_offset=ack,
            flushed_offset=None if slave_moment is None else slave_moment.standing.of_node(Kind.FLUSHED),
            dispatched_offset=(
                None if slave_moment is None else slave_moment.standing.of_node(Kind.DISPATCHED)
            ),
            diff_bytes=diff,
            lag_s=lag_s,
            in_sync=in_sync,
            sent_bytes_per_s=sent_rate,
            ack_bytes_per_s=ack_rate,
            transferred_bytes_per_s=None,
            eta_s=eta_s,
            is_closing=is_closing,
            reconnects=len(row.conns) - 1,
            ack_latency_ms=latency,
            frame_bytes=frames,
            lag_history=self._overview.lag_series(
                take, tuple(row.conns), at_ns=at_ns, span_ms=HISTORY_MS, now=first, limits=limits
            ),
            limits=limits,
        )

    @staticmethod
    def _lag_s(moment: Moment, ack: int | None, diff: int | None) -> float | None:
        """Age of the oldest byte that was not acknowledged."""
        if ack is None or diff is None:
            return None
        if diff <= 0:
            return 0.0
        take = moment.take
        passed_ts_ns = take.tape.max_passed_ns(ack, moment.position)
        return None if passed_ts_ns is None else _age_s(take, passed_ts_ns, moment.at_ns)

    def _speeds(
        self, moment: Moment, conn: int, said: Stands, diff: int | None, lag_s: float | None
    ) -> tuple[float | None, float | None, float | None, bool | None]:
        sent_rate = ack_rate = None
        before = self._earlier(moment, RATE_NS)
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
        trend = self._earlier(moment, TREND_NS)
        known = None if trend is None else trend.connections.get(conn)
        if trend is None or known is None or known.ack_offset < 0 or trend.own_max is None:
            return sent_rate, ack_rate, None, None
        shrinks_per_s = (trend.own_max - known.ack_offset - diff) / (TREND_NS / NS_PER_S)
        if shrinks_per_s <= 0:
            return sent_rate, ack_rate, None, False
        return sent_rate, ack_rate, diff / shrinks_per_s, True

    def _lately(self, moment: Moment, conn: int) -> tuple[Spread | None, Spread | None]:
        """Ack latency in ms and frame sizes of a connection, in `LATELY_NS` before the last half second."""
        take = moment.take
        if take.is_sampled:
            return None, None
        key = (take.number, moment.at_ns - moment.at_ns % LATELY_STEP_NS)
        if self._spreads_key.get(take.number) != key:
            self._spreads_key[take.number] = key
            self._spreads[take.number] = self._spreads_at(take, key[1])
        return self._spreads[take.number].get(conn, (None, None))

    @staticmethod
    def _spreads_at(take: Take, at_ns: int) -> dict[int, tuple[Spread | None, Spread | None]]:
        last = take.position_at(at_ns)
        first = max(take.position_at(at_ns - LATELY_NS), last - LATELY_RECORDS_MAX)
        records = take.tape.records_between(first, last)
        if not len(records):
            return {}
        grid = Grid.over(int(records["ts_ns"][0]), int(records["ts_ns"].max()), steps=1)
        sent = records["kind"] == Kind.TRANSFER
        spreads = {}
        for conn, part in fold(records, is_slave=False, grid=grid).connections.items():
            sizes = records["size"][sent & (records["conn"] == conn)].astype(np.int64)
            latency = part.finished(grid).latency
            spreads[conn] = (_spread(latency, per=1e6), _spread(Histogram.of(np.maximum(sizes, 0))))
        return spreads

    def _moment_lag(self, moment: Moment, row: Row) -> int | None:
        """Worst lag of a row in the bucket of its history that holds the moment, up to the moment."""
        if self._worst_of is not moment:
            self._worst_of, self._worst = moment, self._worst_lags(moment)
        worst = self._worst.get(row.conn, -1)
        if row.ended is None:
            ack = moment.connections[row.conn].ack_offset
            worst = max(worst, (moment.own_max or 0) - ack if ack >= 0 else -1)
        return worst if worst >= 0 else None

    def _worst_lags(self, moment: Moment) -> dict[int, int]:
        """By connection, from the begin of the bucket that holds the moment."""
        take = moment.take
        bucket_ns = self._overview.bucket_ms * NS_PER_MS
        begin_ns = moment.at_ns - moment.at_ns % bucket_ns
        first = max(take.position_at(begin_ns - 1), moment.position - LATELY_RECORDS_MAX)
        records = take.tape.records_between(first, moment.position)
        found = lags(records, take.tape.standing_at(first), is_sampled=take.is_sampled)
        worst: dict[int, int] = {}
        for conn, lag in zip(found.conn.tolist(), found.worst.tolist(), strict=True):
            worst[conn] = max(worst.get(conn, -1), lag)
        return worst

    def _lone_slave(self, node: RecordedNode, moment: Moment) -> list[ReplicaView]:
        """A slave's session as a replica, where no master's session of its group is there at the moment."""
        take, at_ns = moment.take, moment.at_ns
        identity = take.tape.session.identity
        for other in self._reel.nodes:
            known = other.take_at(at_ns)
            theirs = known.tape.session.identity
            if (
                not known.is_slave
                and known.start_ns <= at_ns
                and (theirs.cluster_name, theirs.broker_name) == (identity.cluster_name, identity.broker_name)
                and (moment.connections or self._row_of_slave(known, node, at_ns))
            ):
                return []
        said = next(iter(moment.connections.values()), None)
        slave = self._slave(moment)
        is_connected = said is not None
        since_ns = take.start_ns
        conn = next(iter(moment.connections), None)
        if conn is not None and conn in take.begin_seqs:
            began = take.tape.time_of(take.begin_seqs[conn])
            since_ns = since_ns if began is None else take.wall_of(began)
        elif not is_connected:
            ended = self._ended(moment)
            since_ns = self._ended_ns(take, ended[-1]) if ended else since_ns
        for_s = max(0, at_ns - since_ns) / NS_PER_S
        judged = judge(
            Facts(
                is_connected=is_connected,
                unconnected_s=for_s,
                connected_s=for_s,
                heard_s=slave.read_age_s,
                complaint=slave.complaint,
                state=slave.state,
            ),
            take.limits,
        )
        return [
            ReplicaView(
                key=take.number * _ROWS,
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
                flushed_offset=moment.standing.of_node(Kind.FLUSHED),
                dispatched_offset=moment.standing.of_node(Kind.DISPATCHED),
                diff_bytes=None,
                lag_s=None,
                in_sync=None,
                sent_bytes_per_s=slave.received_bytes_per_s if is_connected else None,
                ack_bytes_per_s=None,
                transferred_bytes_per_s=None,
                eta_s=None,
                is_closing=None,
                reconnects=slave.reconnects,
                limits=take.limits,
            )
        ]

    def _row_of_slave(self, master: Take, node: RecordedNode, at_ns: int) -> bool:
        """Whether a master's rows at a moment have one that is known to be the slave `node`."""
        for row in self._rows(self.moment(master, at_ns)):
            twin = self._twins.of(master, row.conn)
            if twin is not None and self._reel.node_of(twin[0]) is node:
                return True
        return False


def _results(counts: Counts) -> dict[int, int]:
    """Puts by status; those that wait for nothing are OK at once."""
    results = {code: count for code, count in enumerate(counts.waits) if count}
    unwaited = max(0, counts.puts - counts.waits_begun)
    if unwaited or counts.puts:
        results[PutStatus.PUT_OK] = results.get(PutStatus.PUT_OK, 0) + unwaited
    return results


def _sampled_puts(
    sample: Mapping[str, object], earlier: Mapping[str, object], passed_s: float
) -> tuple[PutRate, ...]:
    """Results of puts as a monitor noted them."""
    puts, before = sample.get("puts"), earlier.get("puts")
    if not isinstance(puts, dict):
        return ()
    rates = []
    for status, count in sorted(puts.items(), key=lambda item: (item[0] != "PUT_OK", item[0])):
        was = before.get(status) if isinstance(before, dict) else None
        if isinstance(count, int):
            per_s = (count - was) / passed_s if isinstance(was, int) and was <= count else None
            rates.append(PutRate(clean(str(status)), count, per_s))
    return tuple(rates)


def _int(value: object) -> int | None:
    return value if isinstance(value, int) else None


def _ok_first(item: tuple[int, int]) -> tuple[bool, str]:
    return item[0] != PutStatus.PUT_OK, _name(PutStatus, item[0])


def _spread(histogram: Histogram, *, per: float = 1.0) -> Spread | None:
    p50, p99 = histogram.percentile(50), histogram.percentile(99)
    if p50 is None or p99 is None:
        return None
    return Spread(p50 / per, p99 / per, histogram.max_value / per, histogram.total)


def _age_s(take: Take, ts_ns: int, at_ns: int) -> float | None:
    return None if ts_ns < 0 else max(0, at_ns - take.wall_of(ts_ns)) / NS_PER_S


def _known(value: int) -> int | None:
    return None if value < 0 else value


def _name(names: type[CloseReason | HaState | PutStatus], code: int) -> str:
    try:
        return names(code).name
    except ValueError:
        return str(code)
