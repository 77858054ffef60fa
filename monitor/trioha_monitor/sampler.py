"""Samples of the views of a monitor, as events of sessions: one session for each role of each node.

As in a node's own recordings, another role begins another session, and in controller mode another epoch does
(`trioha_monitor.capture_roles`). Records are the changes of each view.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from attrs import define, evolve, field

from trioha.recording.events import CloseReason, Direction, GroupRole, HaState, Kind
from trioha.recording.layout import NODE_ID_MAX, SOURCE_MONITOR, SessionIdentity
from trioha.recording.recorder import Recorder
from trioha_monitor.capture_roles import (
    NOT_KNOWN,
    RoleRecorder,
    SampledRole,
    is_same_session,
    names_another_master,
)
from trioha_monitor.replay.replay_timeline import NS_PER_MS
from trioha_monitor.view import ClusterView, Health, LogView, NodeView, ReplicaView

SAMPLE_FACT_MS: Final = 1000
"""Slow figures are recorded at most once in so many milliseconds."""
BLOCK_RECORDS: Final = 256
BLOCKS_MAX: Final = 16
NODES_MAX: Final = 64
"""Nodes of one recording."""
SESSIONS_MAX: Final = 4096
"""Sessions of one recording: roles after them are not recorded."""
_SIZE_MAX: Final = 2**31 - 1
_OPEN: Final = frozenset((HaState.HANDSHAKE, HaState.TRANSFER, HaState.SUSPEND))


@define(eq=False)
class _Connection:
    conn: int
    address: str
    state: int = -1
    sent: int = -1
    ack: int = -1
    max_offset: int = -1
    broker_id: int | None = None
    """Of a slave in controller mode; None while it is not known."""


@define(eq=False)
class _Session:
    """A session of a node, and the figures that were recorded last."""

    recorder: Recorder
    role: SampledRole
    former: GroupRole
    """Role of the session before, if the node went on without a pause."""
    roles: RoleRecorder | None
    """None outside of controller mode."""
    is_begun: bool = False
    """Whether its role was recorded."""
    connections: dict[int, _Connection] = field(factory=dict)
    """Open ones, by `ReplicaView.key`."""
    conns: int = 0
    max_offset: int = -1
    flushed: int = -1
    dispatched: int = -1
    link: _Connection | None = None
    """A slave's own connection to its master."""
    reported: int = -1
    facts: dict[str, object] = field(factory=dict)
    sampled_ms: int = -SAMPLE_FACT_MS

    def new_conn(self) -> int:
        self.conns += 1
        return self.conns


@define(eq=False)
class _Node:
    """A node of the recording."""

    session: _Session | None = None
    """Its present session."""
    is_certain: bool = False
    """Whether its last answer says which role it is of."""
    was_down: bool = False
    """Whether it has not answered since its last view in this session."""
    log: LogView = field(factory=LogView)
    """Its log, as it was seen last."""
    log_epoch: int | None = None
    """Last epoch of that log."""


class Sampler:
    """Makes events of views, with one recorder for each session of a node; has no thread."""

    def __init__(self, path: Path, *, on_error: Callable[[str], None]) -> None:
        """`on_error` as `Recorder`'s."""
        self._path = path
        self._on_error = on_error
        self._nodes: dict[str, _Node] = {}
        self._sessions = 0
        self._now_ns = 0

    def turn(self, view: ClusterView) -> tuple[list[Recorder], list[Recorder]]:
        """Recorders of the sessions that end before `view`, and of those that begin with it.

        The caller stops the former, and starts the latter before `note`.
        """
        self._now_ns = view.time_ms * NS_PER_MS
        ended, begun = [], []
        for node in view.nodes:
            # A node that never answered has no identity.
            if not node.role or (node.address not in self._nodes and len(self._nodes) == NODES_MAX):
                continue
            known = self._nodes.setdefault(node.address, _Node())
            before = known.session
            if before is not None and node.health is Health.DOWN:
                known.was_down = True
                continue
            role = SampledRole.of(node, None if before is None else before.role)
            known.is_certain = role is not None
            if role is None:
                continue
            if before is None or not is_same_session(before.role, role):
                if before is not None:
                    self._end(before, CloseReason.NONE if known.was_down else CloseReason.SHUTDOWN)
                    ended.append(before.recorder)
                known.session = self._begin(view, node, role, known)
                begun += [] if known.session is None else [known.session.recorder]
            elif before.role.broker_id is None:
                before.role = evolve(before.role, broker_id=role.broker_id)
            known.was_down = False
        return ended, begun

    def _begin(self, view: ClusterView, node: NodeView, role: SampledRole, known: _Node) -> _Session | None:
        """The next session of a node; None if there are too many."""
        if self._sessions == SESSIONS_MAX:
            return None
        self._sessions += 1
        former = GroupRole.NONE
        if known.session is not None and not known.was_down:
            former = known.session.role.group_role or GroupRole.NONE
        recorder = self._recorder(view, node)
        roles = None if role.group_role is None else RoleRecorder(recorder, role.group_role)
        return _Session(recorder, role, former, roles)

    def _end(self, session: _Session, reason: CloseReason) -> None:
        """Record that the connections of a session end with it, and its last sample."""
        for key in list(session.connections):
            self._close(session, key, reason)
        self._close_link(session, reason)
        self._record_sample(session)

    def _recorder(self, view: ClusterView, node: NodeView) -> Recorder:
        limits = node.limits
        settings: dict[str, object] = {"address": node.address}
        if limits.are_reported:
            settings |= {
                "haMaxGapNotInSync": limits.gap_bytes_max,
                "slaveTimeout": round(limits.slave_timeout_s * 1000),
                "haHousekeepingInterval": round(limits.housekeeping_s * 1000),
                "haSendHeartbeatInterval": round(limits.heartbeat_s * 1000),
            }
        if node.log.file_bytes is not None:
            settings["mappedFileSizeCommitLog"] = node.log.file_bytes
        broker_id = min(max(node.broker_id or 0, 0), NODE_ID_MAX)
        if node.control is not None:
            settings["enableControllerMode"] = True
            if node.control.in_sync_min is not None:
                settings["minInSyncReplicas"] = node.control.in_sync_min
            if node.slave is None:
                # As the node has it: the id from the controllers is in its ROLE.
                broker_id = 0
        return Recorder(
            self._path,
            identity=SessionIdentity(
                cluster_name=node.cluster,
                broker_name=node.broker_name or node.address,
                broker_id=broker_id,
                role=node.role,
                settings=settings,
                source=SOURCE_MONITOR,
                sampled_ms=round(view.interval_s * 1000),
            ),
            node_id=broker_id,
            block_records=BLOCK_RECORDS,
            blocks_max=BLOCKS_MAX,
            clock_ns=self._clock_ns,
            wall_ns=self._clock_ns,
            on_error=self._on_error,
        )

    def _clock_ns(self) -> int:
        return self._now_ns

    def note(self, view: ClusterView) -> None:
        """Record the changes in `view`, after `turn`."""
        self._now_ns = view.time_ms * NS_PER_MS
        rows: dict[str, list[ReplicaView]] = {}
        for replica in view.replicas:
            rows.setdefault(replica.master, []).append(replica)
        broker_ids = {node.address: node.broker_id for node in view.nodes if node.control is not None}
        for node in view.nodes:
            known = self._nodes.get(node.address)
            if known is None or known.session is None or not known.is_certain:
                continue
            session = known.session
            self._note_status(session, node, view.time_ms)
            is_down = node.health is Health.DOWN
            if session.roles is not None and not (is_down and session.is_begun):
                self._note_role(known, session, session.roles, node)
            if is_down:
                # Its last figures were recorded.
                continue
            self._note_log(session, node)
            if node.slave is not None:
                self._note_slave(session, node)
            else:
                self._note_replicas(session, rows.get(node.address, []), broker_ids)

    def finish(self) -> None:
        """Record the time of the end, also if nothing has changed."""
        for known in self._nodes.values():
            if known.session is not None:
                self._record_sample(known.session)

    def _record_sample(self, session: _Session) -> None:
        session.recorder.fact("sample", ts_ns=self._now_ns, **session.facts)

    def _note_status(self, session: _Session, node: NodeView, time_ms: int) -> None:
        slave = node.slave
        facts: dict[str, object] = {
            "health": node.health.value,
            "reason": node.reason,
            "version": node.version,
            "min_offset": node.log.min_offset,
            "puts": {rate.status: rate.count for rate in node.log.puts},
            "probes": [[one.host, one.reason, one.count] for one in node.probes],
            "complaint": "" if slave is None else slave.complaint,
        }
        is_due = time_ms - session.sampled_ms >= SAMPLE_FACT_MS or facts["health"] != session.facts.get(
            "health"
        )
        if is_due and facts != session.facts:
            session.facts, session.sampled_ms = facts, time_ms
            self._record_sample(session)

    @staticmethod
    def _note_role(known: _Node, session: _Session, roles: RoleRecorder, node: NodeView) -> None:
        control, log, before = node.control, node.log, known.log
        max_offset = NOT_KNOWN if log.max_offset is None else log.max_offset
        if control is None or names_another_master(control, session.role.broker_id):
            return
        if not session.is_begun:
            session.is_begun = True
            roles.begin(session.role, session.former, control, max_offset=max_offset)
        end_offset = _end_before_cut(before, log)
        if end_offset is not None:
            roles.cut(offset=max_offset, end_offset=end_offset, epoch=known.log_epoch)
        roles.note(control, max_offset=max_offset)
        known.log, known.log_epoch = log, control.log_epoch

    @staticmethod
    def _note_log(session: _Session, node: NodeView) -> None:
        emit, log = session.recorder.emit, node.log
        if log.max_offset is not None and log.max_offset != session.max_offset:
            if node.slave is None:
                grown = log.max_offset - session.max_offset if session.max_offset >= 0 else 0
                emit(Kind.PUT, offset=log.max_offset, size=min(max(grown, 0), _SIZE_MAX))
            session.max_offset = log.max_offset
        if log.flushed_offset is not None and log.flushed_offset != session.flushed:
            session.flushed = log.flushed_offset
            emit(Kind.FLUSHED, offset=log.flushed_offset)
        if log.dispatched_offset is not None and log.dispatched_offset != session.dispatched:
            session.dispatched = log.dispatched_offset
            emit(Kind.DISPATCHED, offset=log.dispatched_offset)

    def _note_replicas(
        self, session: _Session, rows: list[ReplicaView], broker_ids: Mapping[str, int | None]
    ) -> None:
        """`broker_ids` are those of nodes in controller mode, by their addresses."""
        emit = session.recorder.emit
        seen = set()
        for row in rows:
            known = session.connections.get(row.key)
            if known is not None and (not row.is_connected or row.address != known.address):
                self._close(session, row.key, CloseReason.NONE)
                known = None
            # A row without a connection, or from the slave's own answer, is not the master's.
            if not row.is_connected or row.master_offset is None or row.sent_offset is None:
                continue
            seen.add(row.key)
            aux = row.master_offset
            if known is None:
                known = session.connections[row.key] = _Connection(session.new_conn(), row.address)
                session.recorder.fact("connection", conn=known.conn, address=row.address, role="master")
            peer_id = None if row.node is None else broker_ids.get(row.node)
            if peer_id is not None and peer_id != known.broker_id:
                # A slave is found when it has answered, too.
                known.broker_id = peer_id
                session.recorder.fact("replica", conn=known.conn, brokerId=peer_id)
            state = _state_of(row.state)
            ack = -1 if row.ack_offset is None else row.ack_offset
            if ack != known.ack and ack >= 0:
                if known.ack < 0 and row.is_rejoining:
                    # What it lacks now may be the tail that it compares: a replay shows it so, too.
                    emit(Kind.REQUESTED, conn=known.conn, offset=ack, aux=aux)
                known.ack = ack
                emit(Kind.ACK, conn=known.conn, offset=ack, aux=aux)
            if state != known.state:
                known.state = state
                emit(Kind.STATE, conn=known.conn, offset=ack, aux=aux, flags=state)
            if (row.sent_offset, aux) != (known.sent, known.max_offset):
                known.sent, known.max_offset = row.sent_offset, aux
                emit(Kind.HEARTBEAT, conn=known.conn, offset=row.sent_offset, aux=aux, flags=Direction.SENT)
        for key in session.connections.keys() - seen:
            # A monitor does not see the reason.
            self._close(session, key, CloseReason.NONE)

    @staticmethod
    def _close(session: _Session, key: int, reason: CloseReason) -> None:
        known = session.connections.pop(key)
        aux = max(session.max_offset, known.max_offset)
        session.recorder.emit(Kind.CLOSED, conn=known.conn, offset=known.ack, aux=aux, flags=reason)

    @staticmethod
    def _close_link(session: _Session, reason: CloseReason) -> None:
        link, session.link = session.link, None
        if link is not None:
            own_max = session.max_offset
            session.recorder.emit(Kind.CLOSED, conn=link.conn, offset=own_max, aux=own_max, flags=reason)

    def _note_slave(self, session: _Session, node: NodeView) -> None:
        slave, emit, recorder = node.slave, session.recorder.emit, session.recorder
        assert slave is not None
        own_max = session.max_offset
        # A RocketMQ slave reports no state: it has a connection if it has a master.
        state = _state_of(slave.state) if slave.state or slave.master_address else HaState.READY
        link = session.link
        if link is not None and (state not in _OPEN or link.address != (slave.master_address or "")):
            self._close_link(session, CloseReason.NONE)
            link = None
        if state not in _OPEN:
            return
        if link is None:
            link = session.link = _Connection(session.new_conn(), slave.master_address or "")
            recorder.fact("connection", conn=link.conn, address=link.address, role="slave")
            session.reported = -1
        if state != link.state:
            link.state = state
            emit(Kind.STATE, conn=link.conn, offset=own_max, aux=own_max, flags=state)
        if own_max != link.max_offset:
            size = min(max(0, own_max - link.max_offset), _SIZE_MAX) if link.max_offset >= 0 else 0
            link.max_offset = own_max
            emit(Kind.RECEIVED, conn=link.conn, offset=own_max - size, aux=own_max, size=size)
        reported = slave.reported_offset
        if reported is not None and reported != session.reported:
            session.reported = reported
            emit(Kind.REPORTED, conn=link.conn, offset=reported, aux=own_max)


def _end_before_cut(before: LogView, log: LogView) -> int | None:
    """Where the log ended before it was cut; None if it was not.

    One that begins elsewhere than before, or has no bytes, was set aside.
    """
    if log.min_offset is None or log.max_offset is None or before.max_offset is None:
        return None
    is_cut = before.min_offset == log.min_offset < log.max_offset < before.max_offset
    return before.max_offset if is_cut else None


def _state_of(name: str) -> HaState:
    """RocketMQ's state of that name; TRANSFER for a peer that does not report it (CONNECTED)."""
    try:
        return HaState[name]
    except KeyError:
        return HaState.TRANSFER
