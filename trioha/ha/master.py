"""The master's side of replication: accepts the connections of slaves and serves them the log.

See docs/protocol/ha.md#masters-side.

Theory of operation. Each connection runs within an error boundary: what its peer causes ends that connection
at most. A connection is a slave's from its first valid request on. A connection that ends before its request
is a probe (`ha.probes`), and while it lasts the next peer gets its slot if all slots are in use.
"""

from __future__ import annotations

import ssl
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from itertools import count
from typing import Any

import structlog
import trio
from attrs import field, frozen

from trioha.broker_status import ConnectionStatus
from trioha.ha.admission import Admission, AdmissionSettings, Refusal, identity_of
from trioha.ha.connection import DefaultHaConnection, HaConnection, PeerIdentity
from trioha.ha.probes import ProbeCount, Probes
from trioha.ha.replicas import ConnectedReplicas, Replicas
from trioha.ha.settings import HaSettings
from trioha.ha.state_changes import StateChanges, Subscription
from trioha.net.descriptors import Gate, OpenGate
from trioha.net.error_boundary import ErrorBoundary
from trioha.net.listen import serve_listeners
from trioha.net.tls import MutualTls
from trioha.net.transport import SocketTransport, format_address
from trioha.recording.events import CloseReason, EventSink, HaState
from trioha.store.commit_log import CommitLog

log = structlog.get_logger(__name__)

TLS_HANDSHAKE_TIMEOUT_S = 10.0
OWN_ENDS = frozenset((CloseReason.SHUTDOWN, CloseReason.LOG_RESTARTED))
"""Ends by this node: a peer without a request is not counted as a probe then."""
LOOPBACK_PREFIXES = ("127.", "::1", "::ffff:127.")


@frozen
class MasterStatistics:
    """What happened at the HA port since the node started."""

    accepted: int
    """Connections accepted, probes included."""
    closed: dict[str, int] = field(factory=dict)
    """Connections of slaves that ended, by `CloseReason` name."""
    probes: tuple[ProbeCount, ...] = ()
    """Connections that ended without a valid request, and peers that were not admitted."""


@frozen
class ConnectionChange:
    """A slave's connection entered a state: HANDSHAKE with its request, SHUTDOWN at its end."""

    connection_id: int
    address: str
    """The peer, `host:port`."""
    replica: str
    """Which replica it is: see `trioha.ha.replicas`."""
    state: HaState


class HaMaster(ABC):
    """Serves the log to slaves, in either protocol."""

    def __init__(
        self,
        *,
        commit_log: CommitLog,
        replicas: ConnectedReplicas,
        settings: HaSettings,
        sink: EventSink,
        distinct_by_connection: bool = False,
        admission: AdmissionSettings | None = None,
        tls: MutualTls | None = None,
        connection_ids: Iterator[int] | None = None,
    ) -> None:
        """`distinct_by_connection`: each connection is a replica of its own, for several slaves on one host.

        `connection_ids` numbers connections: share it with the node's `HaSlave`, so that no two are alike.
        """
        self._log = commit_log
        self._replicas = replicas
        self._settings = settings
        self._sink = sink
        self._distinct_by_connection = distinct_by_connection
        self._admission = Admission(admission or AdmissionSettings())
        self._tls = tls
        self._ids = connection_ids or count(1)
        self._connections: dict[int, HaConnection] = {}
        self.probes = Probes(sink)
        """Counts connections that ended without a valid request."""
        self.boundary = ErrorBoundary("HA connection")
        """Ends and counts exceptions of connections."""
        self._closed: Counter[str] = Counter()
        self._accepted = 0
        self._changes: StateChanges[ConnectionChange] = StateChanges()
        commit_log.on_restart(self._end_connections)
        commit_log.on_cut(self._end_connections)

    def connections(self) -> list[ConnectionStatus]:
        """Open connections of slaves, oldest first."""
        return [one.status() for one in self._connections.values() if one.progress.is_slave]

    def unsent_ages_s(self) -> dict[int, float]:
        """`HaConnection.unsent_age_s` of each open connection of a slave, by number."""
        return {
            connection_id: one.unsent_age_s()
            for connection_id, one in self._connections.items()
            if one.progress.is_slave
        }

    def changes(self) -> AbstractContextManager[Subscription[ConnectionChange]]:
        """States of slaves' connections: `with master.changes() as changes: async for change in changes`."""
        return self._changes.subscribe()

    def send_now(self, start_offset: int) -> None:
        """Send what was just appended at `start_offset` to each slave that has acknowledged all before it.

        The others get it from their writer tasks.
        """
        for connection in self._connections.values():
            connection.send_now(start_offset)

    def _end_connections(self, _end_offset: int = 0) -> None:
        """End all connections, since the log begins anew or is cut: slaves connect again and request it."""
        for connection in self._connections.values():
            connection.end(CloseReason.LOG_RESTARTED)

    def retention_floor(self) -> int:
        """Lowest offset that a connected slave still needs; beyond every log without one.

        A slave may request again what it has not acknowledged. If its ack is overdue by
        haMaxTimeSlaveNotCatchup (an observer never acknowledges, a slave may be stuck), only its unsent bytes
        are kept: they are bounded, since a slave that does not read is disconnected.
        """
        return min(
            (
                progress.sent_offset
                if self._replicas.is_ack_overdue(connection_id)
                else max(progress.ack_offset, progress.start_offset)
                for connection_id, connection in self._connections.items()
                if (progress := connection.progress).start_offset >= 0
            ),
            default=2**63 - 1,
        )

    def statistics(self) -> MasterStatistics:
        """Counts since the start."""
        return MasterStatistics(
            accepted=self._accepted, closed=dict(self._closed), probes=self.probes.counts()
        )

    async def serve(
        self,
        listeners: list[trio.SocketListener],
        *,
        gate: Gate | None = None,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Accept slaves until cancelled, which closes every connection.

        Connections wait in the kernel's backlog while `gate` is closed; None is always open.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.probes.run)
            await nursery.start(
                partial(
                    serve_listeners,
                    self._serve_socket,
                    listeners,
                    gate=gate or OpenGate(),
                    boundary=self.boundary,
                )
            )
            task_status.started()

    async def _serve_socket(self, stream: trio.SocketStream) -> None:
        """Serve one accepted connection within the boundary; the accept loop closes `stream`."""
        try:
            host, port = stream.socket.getpeername()[:2]
        except OSError:
            # The peer has closed it already.
            return
        self._accepted += 1
        with self.boundary.around(format_address(host, port)) as guarded:
            await self._serve_peer(stream, host=host, port=port)
        if guarded.error is not None:
            self.probes.add(host, CloseReason.INTERNAL_ERROR, detail="see its traceback")

    async def _serve_peer(self, stream: trio.SocketStream, *, host: str, port: int) -> None:
        refusal = self._admission.refusal(host)
        if refusal is not None and refusal.is_limit and self._end_unknown_peer(refusal, host):
            refusal = None
        if refusal is not None:
            self.probes.add(host, CloseReason.NOT_ALLOWED, detail=refusal.reason)
            return
        with self._admission.slot(host):
            transport = SocketTransport.from_stream(stream)
            try:
                if self._tls is None:
                    await self.serve_stream(transport, host=host, port=port)
                else:
                    await self._serve_tls(transport, self._tls.server, host=host, port=port)
            finally:
                await trio.aclose_forcefully(transport)

    def _end_unknown_peer(self, refusal: Refusal, host: str) -> bool:
        """End the oldest connection without a request, for a peer that `refusal` keeps out at the limit.

        Returns whether there was one. Its slot is released when its task has run.
        """
        for connection in self._connections.values():
            counts = connection.peer.host == host or not refusal.is_peer_limit
            if counts and not connection.progress.is_slave and connection.progress.is_open:
                connection.end(CloseReason.NO_REQUEST)
                return True
        return False

    async def _serve_tls(
        self, transport: SocketTransport, context: ssl.SSLContext, *, host: str, port: int
    ) -> None:
        """Serve a peer once its handshake has shown a certificate of the authority; else count a probe."""
        stream = trio.SSLStream(transport, context, server_side=True)
        try:
            with trio.fail_after(min(self._settings.first_report_timeout_s, TLS_HANDSHAKE_TIMEOUT_S)):
                await stream.do_handshake()
        except trio.TooSlowError:
            self.probes.add(host, CloseReason.NO_REQUEST, detail="TLS: no handshake in time")
            return
        except (trio.BrokenResourceError, ssl.SSLError) as error:
            # trio keeps the error of the ssl module as the cause of its own; an end of the stream has none.
            cause = error.__cause__ or error
            is_refusal = isinstance(cause, ssl.SSLError) and not isinstance(cause, ssl.SSLEOFError)
            reason = CloseReason.NOT_ALLOWED if is_refusal else CloseReason.EOF
            self.probes.add(host, reason, detail=f"TLS: {cause}")
            return
        identity = identity_of(stream.getpeercert())
        await self.serve_stream(stream, host=host, port=port, identity=identity)

    async def serve_stream(
        self, stream: trio.abc.Stream, *, host: str, port: int, identity: str | None = None
    ) -> CloseReason:
        """Serve one slave over any stream until its connection ends; returns why.

        `identity` is the subject of its certificate. A bug ends the connection, with INTERNAL_ERROR and the
        traceback in the log.
        """
        connection_id = next(self._ids)
        replica, is_stable = self._replica_name(host=host, connection_id=connection_id, identity=identity)
        peer = PeerIdentity(connection_id, host, format_address(host, port), replica, is_stable, identity)

        def publish(state: HaState) -> None:
            if state is HaState.HANDSHAKE:
                certificate = {} if identity is None else {"certificate": identity}
                self._sink.fact(
                    "connection", conn=connection_id, address=peer.address, role="master", **certificate
                )
                log.info("slave connected", address=peer.address, connection=connection_id)
            self._changes.publish(
                ConnectionChange(connection_id, peer.address, connection.peer.replica, state)
            )

        connection = self._connection(stream, peer=peer, on_state=publish)
        self._connections[connection_id] = connection
        try:
            with self.boundary.around(peer.address):
                await connection.run()
        finally:
            del self._connections[connection_id]
            self._count_end(connection)
        return connection.progress.close_reason

    @abstractmethod
    def _connection(
        self, stream: trio.abc.Stream, *, peer: PeerIdentity, on_state: Callable[[HaState], None]
    ) -> HaConnection:
        """The connection of a peer; `on_state` as of `HaConnection`."""

    def _count_end(self, connection: HaConnection) -> None:
        peer, progress = connection.peer, connection.progress
        reason = progress.close_reason
        if not progress.is_slave:
            if reason not in OWN_ENDS:
                self.probes.add(peer.host, reason)
            return
        self._closed[reason.name] += 1
        log.info(
            "slave disconnected",
            address=peer.address,
            connection=peer.connection_id,
            reason=reason.name,
            ack_offset=progress.ack_offset,
        )

    def _replica_name(self, *, host: str, connection_id: int, identity: str | None) -> tuple[str, bool]:
        """The name of a peer's replica, and whether its next connection will have the same name.

        By certificate, else by address; on loopback by connection.
        """
        if identity is not None:
            return f"certificate of {identity}", True
        if self._distinct_by_connection or host.startswith(LOOPBACK_PREFIXES):
            return f"connection {connection_id}", False
        return host, True


class DefaultHaMaster(HaMaster):
    """Serves the log to slaves by the default protocol."""

    def __init__(self, *, replicas: Replicas, **options: Any) -> None:
        """`options` are those of `HaMaster`."""
        super().__init__(replicas=replicas, **options)
        self._acks = replicas

    def _connection(
        self, stream: trio.abc.Stream, *, peer: PeerIdentity, on_state: Callable[[HaState], None]
    ) -> HaConnection:
        return DefaultHaConnection(
            stream,
            peer=peer,
            commit_log=self._log,
            replicas=self._acks,
            settings=self._settings,
            sink=self._sink,
            on_state=on_state,
        )
