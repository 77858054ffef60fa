"""Nodes of a replay at a moment, and a slave's own side of its connection, from their sessions."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Final

from trioha.broker_status import ControlStatus
from trioha.recording.events import CloseReason, HaState, Kind, PutStatus, code_name
from trioha.recording.state import known
from trioha.replica_verdict import Verdict
from trioha_monitor.answers import probe_counts
from trioha_monitor.replay.overview import Overview
from trioha_monitor.replay.recorded_control import RecordedControls, role_spans, with_members
from trioha_monitor.replay.replay_timeline import NS_PER_S, RecordedNode
from trioha_monitor.replay.session_states import RATE_NS, SessionState, SessionStates
from trioha_monitor.replay.timeline_events import GAP_REASONS
from trioha_monitor.texts import host_of
from trioha_monitor.view import (
    Health,
    LogView,
    NodeView,
    PutRate,
    ReplicaView,
    SlaveView,
    put_rates,
)
from trioha_sessions.batch_stats import Counts
from trioha_sessions.snapshot import connection_state

COMPLAINTS: Final = {
    CloseReason.DIVERGED: "DIVERGED",
    CloseReason.AHEAD: "AHEAD",
    CloseReason.REQUEST_ABOVE_MAX: "AHEAD",
    CloseReason.GAP: "GAP",
    CloseReason.REQUEST_BELOW_MIN: "GAP",
    CloseReason.CUT_REFUSED: "CUT_REFUSED",
}
"""What a slave complains of after its connection ended with one of `GAP_REASONS`."""
_RATE_S: Final = RATE_NS / NS_PER_S


class NodeViews:
    """Makes the views of nodes from `states` and `controls`; histories are those of `overview`."""

    def __init__(self, states: SessionStates, overview: Overview, controls: RecordedControls) -> None:
        self._states, self._overview, self._controls = states, overview, controls

    def view(
        self,
        node: RecordedNode,
        session: SessionState,
        replicas: list[ReplicaView],
        *,
        hidden: int,
        is_growing: bool,
    ) -> NodeView:
        """The node with the `replicas` that are shown; `hidden` others are only counted."""
        run, at_ns = session.run, session.at_ns
        identity = run.reader.session.identity
        health, reason, since_ns = health_of(node, session, is_growing=is_growing)
        ended, probes = self._ended_connections(session)
        age_ns = at_ns - run.last_ns(session.position)
        counted = [replica for replica in replicas if replica.verdict is not Verdict.OBSERVER]
        in_sync = sum(replica.in_sync is True for replica in counted)
        control = self._control(node, session)
        if control is not None and control.sync_state_set_epoch is not None:
            in_sync = len(control.sync_state_set) - 1
        return NodeView(
            address=node.key,
            health=health,
            reason=reason,
            for_s=max(0, at_ns - since_ns) / NS_PER_S,
            age_s=0.0 if health is Health.UP else max(0, age_ns) / NS_PER_S,
            role=identity.role,
            cluster=identity.cluster_name,
            broker_name=identity.broker_name,
            broker_id=node.broker_id,
            version=run.reader.session.program_version,
            source="session",
            lists_replicas=not run.is_slave,
            log=self._log(node, session),
            limits=run.limits,
            slave=slave_view(self._states, session) if run.is_slave else None,
            connected_replicas=0 if run.is_slave else len(session.connections),
            hidden_replicas=hidden,
            observers=sum(
                replica.is_connected and replica.verdict is Verdict.OBSERVER for replica in replicas
            ),
            in_sync_replicas=None if run.is_slave else in_sync,
            ended_connections=ended,
            waiting_probes=session.waiting_probes,
            probes=probe_counts(probes),
            control=control,
            roles=role_spans(node, at_ns, ended_ns=since_ns if health is Health.DOWN else None),
        )

    def _control(self, node: RecordedNode, session: SessionState) -> ControlStatus | None:
        """Role, group and controllers; None outside of controller mode, and while they are not known."""
        state = self._controls.at(node, session.run, session.position)
        if state is None:
            return None
        acks = {conn: known(one.ack_offset) for conn, one in session.connections.items()}
        return with_members(state, session.run, log_end=session.log_end, acks=acks)

    def _log(self, node: RecordedNode, session: SessionState) -> LogView:
        run, reader, at_ns = session.run, session.run.reader, session.at_ns
        puts_per_s = None
        puts: tuple[PutRate, ...] = ()
        if not run.is_slave:
            before = self._states.earlier(session, RATE_NS)
            recent = None if before is None else reader.counts_between(before.position, session.position)
            puts_per_s = None if recent is None else recent.puts / _RATE_S
            puts = _puts(reader.counts_at(session.position), recent)
        size = reader.session.identity.settings.get("mappedFileSizeCommitLog")
        return LogView(
            max_offset=session.log_end,
            flushed_offset=session.snapshot.of_node(Kind.FLUSHED),
            dispatched_offset=session.snapshot.of_node(Kind.DISPATCHED),
            append_bytes_per_s=self._states.growth_per_s(session),
            append_history=self._overview.append_series(
                node.runs[: node.runs.index(run) + 1], at_ns=at_ns, log_end=session.log_end
            ),
            file_bytes=size if isinstance(size, int) else None,
            put_messages_per_s=puts_per_s,
            puts=puts,
        )

    def _ended_connections(self, session: SessionState) -> tuple[dict[str, int], dict[str, dict[str, int]]]:
        """Connections that ended: replicas' by reason, probes' by host and reason.

        Nodes count probes in facts; earlier versions recorded each probe as a connection.
        """
        run, reader = session.run, session.run.reader
        reasons: Counter[str] = Counter()
        probes: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for (host, reason), count in run.probes_at(session.position).items():
            probes[host][reason] += count
        if reader.knows_all_before(session.position):
            for ended in reader.ended_between(reader.first_seq, session.position):
                closed = ended.records[ended.records["kind"] == Kind.CLOSED]
                name = code_name(CloseReason, int(closed["flags"][-1])) if len(closed) else "NONE"
                if run.is_slave or self._states.replica_connection(run, ended) is not None:
                    reasons[name] += 1
                else:
                    probes[host_of(run.address_of(ended.conn))][name] += 1
        return dict(reasons), {host: dict(names) for host, names in probes.items()}


def health_of(node: RecordedNode, session: SessionState, *, is_growing: bool) -> tuple[Health, str, int]:
    """Health of a node, its reason, and since when; `is_growing` as in `SessionReplay.view_at`."""
    run, at_ns = session.run, session.at_ns
    if at_ns <= run.end_ns or is_growing or node.is_continued(run):
        return Health.UP, "", node.roles_of_start(run)[0].start_ns
    if run.reader.ended_in_order:
        return Health.DOWN, "its recording ended in order", run.end_ns
    if node.next_start_ns(run) is not None:
        return Health.DOWN, "its recording breaks off here: killed, and started again later", run.end_ns
    if at_ns - run.end_ns > run.quiet_ns:
        return Health.DOWN, "its recording breaks off here: killed, or still going on", run.end_ns
    return Health.UP, "", node.roles_of_start(run)[0].start_ns


def slave_view(states: SessionStates, session: SessionState) -> SlaveView:
    """A slave's own side of its connection."""
    run, at_ns = session.run, session.at_ns
    _, connection = session.connection
    conns = [conn for conn, seq in run.begin_seqs.items() if seq < session.position]
    state = HaState.READY if connection is None or connection.state < 0 else connection.state
    return SlaveView(
        master_address=run.addresses.get(conns[-1]) if conns else None,
        state=code_name(HaState, state),
        reported_offset=None if connection is None else known(connection.reported_offset),
        received_bytes_per_s=states.growth_per_s(session),
        read_age_s=(None if connection is None else run.age_s(connection.last_received_ts_ns, at_ns)),
        reconnects=max(0, len(conns) - 1),
        is_observer=None,
        complaint=complaint_of(states, session),
    )


def complaint_of(states: SessionStates, session: SessionState) -> str:
    """Why a slave without a connection cannot replicate: how its last connection ended; else empty."""
    ended = [] if session.connections or not session.run.is_slave else states.ended(session)
    if not ended:
        return ""
    code = connection_state(ended[-1].records, is_slave=True).close_reason
    if code not in GAP_REASONS:
        return ""
    reason = CloseReason(code)
    return f"{COMPLAINTS[reason]}: its last connection ended with {reason.name}"


def _puts(total: Counts | None, recent: Counts | None) -> tuple[PutRate, ...]:
    """Puts by status since the start of the session, with their rates."""
    if total is None:
        return ()
    recent_counts = None if recent is None else _by_status(recent)
    return put_rates(
        PutRate(status, count, None if recent_counts is None else recent_counts[status] / _RATE_S)
        for status, count in _by_status(total).items()
    )


def _by_status(counts: Counts) -> Counter[str]:
    """Puts by status; a put that waits for nothing is PUT_OK at once."""
    by_status = Counter(
        {code_name(PutStatus, code): count for code, count in enumerate(counts.waits) if count}
    )
    if counts.puts:
        by_status[PutStatus.PUT_OK.name] += max(0, counts.puts - counts.waits_begun)
    return by_status
