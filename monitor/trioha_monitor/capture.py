"""Records the monitor's views as sessions, which the replay, `trioha replay` and Spark read.

One session for each node, in the folder of the recording. A session has samples: the changes of each view, as
events of the kinds that fit (docs/session-format.md, "Recorded by a monitor"). A monitor does not see frames,
single acks and single puts, so none are recorded: sent offsets are HEARTBEATs, from which no ack latency can
be computed. Times are those of the views: a replay shows at a view's `time_ms` the figures of that view.

Mapping and writing run in a thread of their own with its own trio run (the recorder is that of nodes): `note`
passes a view on and returns.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import trio
from attrs import define, field

from trioha.errors import StoreError, TriohaError
from trioha.recording.events import CloseReason, Direction, HaState, Kind
from trioha.recording.layout import NODE_ID_MAX, SOURCE_MONITOR, SessionIdentity
from trioha.recording.recorder import Recorder
from trioha_monitor.replay.replay_timeline import NS_PER_MS
from trioha_monitor.view import ClusterView, Health, NodeView, ReplicaView

START_TIMEOUT_S: Final = 5.0
"""Timeout of the start of a recording."""
STOP_TIMEOUT_S: Final = 5.0
"""Timeout of its end."""
SAMPLE_FACT_MS: Final = 1000
"""Slow figures are recorded at most once in so many milliseconds."""
BLOCK_RECORDS: Final = 256
BLOCKS_MAX: Final = 16
NODES_MAX: Final = 64
"""Nodes of one recording."""
VIEWS_MAX: Final = 600
"""Views that may wait for a slow disk: a minute."""
_SIZE_MAX: Final = 2**31 - 1
_OPEN: Final = frozenset((HaState.HANDSHAKE, HaState.TRANSFER, HaState.SUSPEND))


class MonitorRecording:
    """Starts and stops recordings, each in a new folder in `directory`; used by one thread."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._thread: _Thread | None = None

    @property
    def is_on(self) -> bool:
        """Whether a recording is running."""
        return self._thread is not None

    def start(self) -> Path:
        """Start a recording; returns its folder. Raises StoreError if it cannot be made."""
        assert self._thread is None, "one recording at a time"
        while True:
            now = datetime.now(tz=UTC)
            path = self._directory / f"{now:%Y%m%dT%H%M%S}.{now.microsecond // 1000:03d}Z-monitor"
            try:
                path.mkdir(parents=True)
                break
            except OSError as error:
                if path.is_dir():
                    # Another recording of this millisecond has this name.
                    time.sleep(0.001)
                    continue
                raise StoreError(f"cannot record here: {error.strerror or error}", path=path) from error
        self._thread = _Thread(path)
        self._thread.begin()
        return path

    def note(self, view: ClusterView) -> None:
        """Record the changes in `view`; returns at once."""
        if self._thread is not None:
            self._thread.note(view)

    def stop(self) -> Path:
        """End the recording; returns its folder. Raises TriohaError if a part of it was not recorded."""
        assert self._thread is not None, "it was started"
        thread, self._thread = self._thread, None
        return thread.end()


class _Thread:
    """One recording: a thread with a trio run that receives views."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._failure: BaseException | None = None
        self._ready = threading.Event()
        self._token: trio.lowlevel.TrioToken | None = None
        self._send: trio.MemorySendChannel[ClusterView] | None = None
        self._lost = 0
        self._thread = threading.Thread(target=self._run, name="monitor recording", daemon=True)

    def begin(self) -> None:
        self._thread.start()
        if not self._ready.wait(START_TIMEOUT_S):
            raise StoreError("the recording did not start in time", path=self._path)

    def note(self, view: ClusterView) -> None:
        if self._token is not None:
            try:
                self._token.run_sync_soon(self._receive, view)
            except trio.RunFinishedError:
                # `end` reports it.
                self._lost += 1

    def end(self) -> Path:
        if self._token is not None:
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self._close)
        self._thread.join(STOP_TIMEOUT_S)
        if self._thread.is_alive():
            raise StoreError("the recording did not end in time: the disk is too slow", path=self._path)
        if self._failure is not None:
            raise StoreError(f"the recording failed: {self._failure}", path=self._path)
        if self._lost:
            raise StoreError(f"{self._lost} views were not recorded: the disk is too slow", path=self._path)
        return self._path

    # -- in the thread -------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            trio.run(self._record)
        except* (TriohaError, OSError) as group:
            error: BaseException = group
            while isinstance(error, BaseExceptionGroup):
                error = error.exceptions[0]
            self._failure = error
        finally:
            self._ready.set()

    async def _record(self) -> None:
        send, receive = trio.open_memory_channel[ClusterView](VIEWS_MAX)
        self._send = send
        self._token = trio.lowlevel.current_trio_token()
        self._ready.set()
        sampler = Sampler(self._path)
        async with trio.open_nursery() as recorders:
            async for view in receive:
                for recorder in sampler.new_recorders(view):
                    await recorders.start(recorder.run)
                sampler.note(view)
            sampler.finish()
            recorders.cancel_scope.cancel()

    def _receive(self, view: ClusterView) -> None:
        assert self._send is not None
        try:
            self._send.send_nowait(view)
        except (trio.WouldBlock, trio.ClosedResourceError, trio.BrokenResourceError):
            self._lost += 1

    def _close(self) -> None:
        if self._send is not None:
            self._send.close()


@define(eq=False)
class _Connection:
    conn: int
    address: str
    state: int = -1
    sent: int = -1
    ack: int = -1
    max_offset: int = -1


@define(eq=False)
class _Sampled:
    """A node, and its figures that were recorded last."""

    recorder: Recorder
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


class Sampler:
    """Makes events of views, with one recorder for each node; has no thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._nodes: dict[str, _Sampled] = {}
        self._now_ns = 0

    def new_recorders(self, view: ClusterView) -> list[Recorder]:
        """Recorders of the nodes that are new in `view`; the caller runs them before `note`."""
        self._now_ns = view.time_ms * NS_PER_MS
        new = []
        for node in view.nodes:
            # A node that never answered has no identity.
            if node.role and node.address not in self._nodes and len(self._nodes) < NODES_MAX:
                sampled = _Sampled(self._recorder(view, node))
                self._nodes[node.address] = sampled
                new.append(sampled.recorder)
        return new

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
        )

    def _clock_ns(self) -> int:
        return self._now_ns

    def note(self, view: ClusterView) -> None:
        """Record the changes in `view`, after the recorders of `new_recorders` were started."""
        self._now_ns = view.time_ms * NS_PER_MS
        rows: dict[str, list[ReplicaView]] = {}
        for replica in view.replicas:
            rows.setdefault(replica.master, []).append(replica)
        for node in view.nodes:
            sampled = self._nodes.get(node.address)
            if sampled is None:
                continue
            self._note_status(sampled, node, view.time_ms)
            if node.health is Health.DOWN:
                # Its last figures were recorded.
                continue
            self._note_log(sampled, node)
            if node.slave is not None:
                self._note_slave(sampled, node)
            else:
                self._note_replicas(sampled, rows.get(node.address, []))

    def finish(self) -> None:
        """Record the time of the end, also if nothing has changed."""
        for sampled in self._nodes.values():
            sampled.recorder.fact("sample", ts_ns=self._now_ns, **sampled.facts)

    def _note_status(self, sampled: _Sampled, node: NodeView, time_ms: int) -> None:
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
        is_due = time_ms - sampled.sampled_ms >= SAMPLE_FACT_MS or facts["health"] != sampled.facts.get(
            "health"
        )
        if is_due and facts != sampled.facts:
            sampled.facts, sampled.sampled_ms = facts, time_ms
            sampled.recorder.fact("sample", ts_ns=self._now_ns, **facts)

    @staticmethod
    def _note_log(sampled: _Sampled, node: NodeView) -> None:
        emit, log = sampled.recorder.emit, node.log
        if log.max_offset is not None and log.max_offset != sampled.max_offset:
            if node.slave is None:
                grown = log.max_offset - sampled.max_offset if sampled.max_offset >= 0 else 0
                emit(Kind.PUT, offset=log.max_offset, size=min(max(grown, 0), _SIZE_MAX))
            sampled.max_offset = log.max_offset
        if log.flushed_offset is not None and log.flushed_offset != sampled.flushed:
            sampled.flushed = log.flushed_offset
            emit(Kind.FLUSHED, offset=log.flushed_offset)
        if log.dispatched_offset is not None and log.dispatched_offset != sampled.dispatched:
            sampled.dispatched = log.dispatched_offset
            emit(Kind.DISPATCHED, offset=log.dispatched_offset)

    def _note_replicas(self, sampled: _Sampled, rows: list[ReplicaView]) -> None:
        emit = sampled.recorder.emit
        seen = set()
        for row in rows:
            known = sampled.connections.get(row.key)
            if known is not None and (not row.is_connected or row.address != known.address):
                self._close(sampled, row.key)
                known = None
            # A row without a connection, or from the slave's own answer, is not the master's.
            if not row.is_connected or row.master_offset is None or row.sent_offset is None:
                continue
            seen.add(row.key)
            aux = row.master_offset
            if known is None:
                known = sampled.connections[row.key] = _Connection(sampled.new_conn(), row.address)
                sampled.recorder.fact("connection", conn=known.conn, address=row.address, role="master")
            state = _state_of(row.state)
            ack = -1 if row.ack_offset is None else row.ack_offset
            if ack != known.ack and ack >= 0:
                known.ack = ack
                emit(Kind.ACK, conn=known.conn, offset=ack, aux=aux)
            if state != known.state:
                known.state = state
                emit(Kind.STATE, conn=known.conn, offset=ack, aux=aux, flags=state)
            if (row.sent_offset, aux) != (known.sent, known.max_offset):
                known.sent, known.max_offset = row.sent_offset, aux
                emit(Kind.HEARTBEAT, conn=known.conn, offset=row.sent_offset, aux=aux, flags=Direction.SENT)
        for key in sampled.connections.keys() - seen:
            self._close(sampled, key)

    @staticmethod
    def _close(sampled: _Sampled, key: int) -> None:
        known = sampled.connections.pop(key)
        aux = max(sampled.max_offset, known.max_offset)
        # A monitor does not see the reason.
        sampled.recorder.emit(Kind.CLOSED, conn=known.conn, offset=known.ack, aux=aux, flags=CloseReason.NONE)

    @staticmethod
    def _note_slave(sampled: _Sampled, node: NodeView) -> None:
        slave, emit, recorder = node.slave, sampled.recorder.emit, sampled.recorder
        assert slave is not None
        own_max = sampled.max_offset
        # A RocketMQ slave reports no state: it has a connection if it has a master.
        state = _state_of(slave.state) if slave.state or slave.master_address else HaState.READY
        link = sampled.link
        if link is not None and (state not in _OPEN or link.address != (slave.master_address or "")):
            emit(Kind.CLOSED, conn=link.conn, offset=own_max, aux=own_max, flags=CloseReason.NONE)
            link = sampled.link = None
        if state not in _OPEN:
            return
        if link is None:
            link = sampled.link = _Connection(sampled.new_conn(), slave.master_address or "")
            recorder.fact("connection", conn=link.conn, address=link.address, role="slave")
            sampled.reported = -1
        if state != link.state:
            link.state = state
            emit(Kind.STATE, conn=link.conn, offset=own_max, aux=own_max, flags=state)
        if own_max != link.max_offset:
            size = min(max(0, own_max - link.max_offset), _SIZE_MAX) if link.max_offset >= 0 else 0
            link.max_offset = own_max
            emit(Kind.RECEIVED, conn=link.conn, offset=own_max - size, aux=own_max, size=size)
        reported = slave.reported_offset
        if reported is not None and reported != sampled.reported:
            sampled.reported = reported
            emit(Kind.REPORTED, conn=link.conn, offset=reported, aux=own_max)


def _state_of(name: str) -> HaState:
    """RocketMQ's state of that name; TRANSFER for a peer that does not report it (CONNECTED)."""
    try:
        return HaState[name]
    except KeyError:
        return HaState.TRANSFER
