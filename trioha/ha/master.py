"""The master's side of replication: accepts slaves and keeps what they acknowledged (spec ha 3.1).

Theory of operation. Every connection runs within the border of HA connections: what its peer causes ends that
connection at most. It is a slave's from its first valid request on; before that it is nobody's, and if it
ends so it was a probe (`ha.probes`). A place that such a connection holds is given to the next one that comes
when all places are taken.
"""

from __future__ import annotations

import ssl
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import partial
from itertools import count

import structlog
import trio
from attrs import field, frozen

from trioha.broker_status import ConnectionStatus
from trioha.ha.admission import Admission, AdmissionSettings, Refusal, identity_of
from trioha.ha.connection import HaConnection, PeerIdentity
from trioha.ha.probes import ProbeCount, Probes
from trioha.ha.replicas import Replicas
from trioha.ha.settings import HaSettings
from trioha.ha.state_changes import StateChanges, Subscription
from trioha.net.border import ConnectionBorder
from trioha.net.busy_poll import BusyPoll
from trioha.net.descriptors import Gate, OpenGate
from trioha.net.listen import serve_listeners
from trioha.net.transport import SocketTransport
from trioha.recording.events import CloseReason, EventSink, HaState
from trioha.store.commit_log import CommitLog
from trioha.watermark import Wait

log = structlog.get_logger(__name__)

TLS_HANDSHAKE_TIMEOUT_S = 10.0
OWN_ENDS = frozenset((CloseReason.SHUTDOWN, CloseReason.LOG_RESTARTED))
"""Ends that say nothing of the peer: it may have been about to ask."""
LOOPBACK_PREFIXES = ("127.", "::1", "::ffff:127.")


@frozen
class MasterStatistics:
    """What happened at the HA port since the node started."""

    accepted: int
    """Connections accepted, probes included."""
    closed: dict[str, int] = field(factory=dict)
    """Connections of slaves that ended, by `CloseReason` name."""
    probes: tuple[ProbeCount, ...] = ()
    """Connections that ended without a valid request, refused ones included."""


@frozen
class ConnectionChange:
    """A slave's connection entered a state: HANDSHAKE with its request, SHUTDOWN when it has ended."""

    connection_id: int
    address: str
    """The peer, `host:port`."""
    replica: str
    """Which replica it is: see design section 4."""
    state: HaState


class HaMaster:
    """Serves the log to every slave that connects."""

    def __init__(
        self,
        *,
        commit_log: CommitLog,
        replicas: Replicas,
        settings: HaSettings,
        sink: EventSink,
        distinct_by_connection: bool = False,
        admission: AdmissionSettings | None = None,
        tls: ssl.SSLContext | None = None,
        connection_ids: Iterator[int] | None = None,
    ) -> None:
        """`distinct_by_connection`: each connection is a replica of its own, for several on one host.

        `connection_ids` numbers connections; a node that is a slave too has one for both sides.
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
        """Counts connections that are no slave's."""
        self._border = ConnectionBorder("HA connection")
        self._closed: Counter[str] = Counter()
        self._accepted = 0
        self._busy_poll = BusyPoll(settings.busy_poll_s) if settings.busy_poll_s else None
        self._pushed: list[HaConnection] = []
        """The connections that the last `push` sent on."""
        self._changes: StateChanges[ConnectionChange] = StateChanges()
        commit_log.on_restart(self._end_connections)

    def connections(self) -> list[ConnectionStatus]:
        """Every slave's connection that is open now, oldest first."""
        return [one.status() for one in self._connections.values() if one.progress.is_slave]

    def changes(self) -> AbstractContextManager[Subscription[ConnectionChange]]:
        """Of all connections, from now on: `with master.changes() as changes: async for change in changes`.

        RocketMQ's notification (spec ha 3.3) knows one who waits, and tells connections apart by their
        address alone.
        """
        return self._changes.subscribe()

    def _end_connections(self) -> None:
        """The log begins anew: slaves connect again and ask for what they need of the new one."""
        for connection in self._connections.values():
            connection.log_restarted()

    def push(self) -> None:
        """Send what was appended to slaves that have acknowledged all before, without their writers' turns.

        For a put that waits alone; see `HaConnection.push`.
        """
        self._pushed = pushed = []
        connection = None
        # A put calls this, and must not fail with a slave's connection.
        with self._border.around("a push") as crossing:
            for connection in self._connections.values():
                if connection.push():
                    pushed.append(connection)
        if crossing.error is not None and connection is not None:
            connection.end(CloseReason.INTERNAL_ERROR)

    def poll_acks(self, wait: Wait) -> None:
        """Look for acks of what `push` sent, until `wait` has ended or trioha.haBusyPoll is over."""
        pushed = self._pushed
        if self._busy_poll is None or not pushed:
            return

        connection = pushed[0]

        def look() -> bool:
            nonlocal connection
            for connection in pushed:
                connection.poll_acks()
            return wait.result is not None

        with self._border.around("a look for acks") as crossing:
            self._busy_poll.until(look)
        if crossing.error is not None:
            connection.end(CloseReason.INTERNAL_ERROR)

    def retention_floor(self) -> int:
        """Lowest offset that a connected slave still needs; beyond every log if there is none.

        A replica may ask again for what it has not acknowledged. Where an acknowledgement has been due for
        haMaxTimeSlaveNotCatchup (an observer never gives one, a slave may be stuck), only bytes that were not
        sent yet are kept for it: they are bounded, since a slave that takes nothing is disconnected.
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
        """What happened since the start."""
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
        """Accept slaves for ever; cancelling closes every connection.

        Connections wait in the kernel's backlog while `gate` is closed; without one it is always open.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.probes.run)
            await nursery.start(
                partial(
                    serve_listeners,
                    self._serve_socket,
                    listeners,
                    gate=gate or OpenGate(),
                    border=self._border,
                )
            )
            task_status.started()

    async def _serve_socket(self, stream: trio.SocketStream) -> None:
        """One accepted connection, from its first moment on; the accept loop closes `stream`."""
        try:
            host, port = stream.socket.getpeername()[:2]
        except OSError:
            # Gone before it was served.
            return
        self._accepted += 1
        with self._border.around(_address(host, port)) as crossing:
            await self._serve_peer(stream, host=host, port=port)
        if crossing.error is not None:
            self.probes.add(host, CloseReason.INTERNAL_ERROR, detail="see its traceback")

    async def _serve_peer(self, stream: trio.SocketStream, *, host: str, port: int) -> None:
        refusal = self._admission.refusal(host)
        if refusal is not None and refusal.is_for_want_of_places:
            refusal = self._take_place(refusal, host)
        if refusal is not None:
            self.probes.add(host, CloseReason.NOT_ALLOWED, detail=refusal.reason)
            return
        with self._admission.place(host):
            transport = SocketTransport.from_stream(stream)
            try:
                if self._tls is None:
                    await self.serve_stream(transport, host=host, port=port)
                else:
                    await self._serve_tls(transport, self._tls, host=host, port=port)
            finally:
                await trio.aclose_forcefully(transport)

    def _take_place(self, refusal: Refusal, host: str) -> Refusal | None:
        """End the oldest connection that has not asked for anything, for one that comes when all are taken.

        Returns the refusal if there is none. Its place is free when its task has had its turn.
        """
        for connection in self._connections.values():
            is_of_peer = connection.peer.host == host or not refusal.is_of_peer
            if is_of_peer and not connection.progress.is_slave and connection.progress.is_open:
                connection.end(CloseReason.NO_REQUEST)
                return None
        return refusal

    async def _serve_tls(
        self, transport: SocketTransport, context: ssl.SSLContext, *, host: str, port: int
    ) -> None:
        """Shake hands first: a peer without a certificate of the authority is counted and gets no more."""
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
        """Serve one slave over any stream until its connection ends; says why it did.

        `identity` is what its certificate says it is. A fault of this program ends the connection, with
        INTERNAL_ERROR and its traceback in the log.
        """
        connection_id = next(self._ids)
        replica, is_stable = self._replica_name(host=host, connection_id=connection_id, identity=identity)
        peer = PeerIdentity(connection_id, host, _address(host, port), replica, is_stable)

        def publish(state: HaState) -> None:
            if state is HaState.HANDSHAKE:
                certificate = {} if identity is None else {"certificate": identity}
                self._sink.fact(
                    "connection", conn=connection_id, address=peer.address, role="master", **certificate
                )
                log.info("slave connected", address=peer.address, connection=connection_id)
            self._changes.publish(ConnectionChange(connection_id, peer.address, replica, state))

        connection = HaConnection(
            stream,
            peer=peer,
            commit_log=self._log,
            replicas=self._replicas,
            settings=self._settings,
            sink=self._sink,
            on_state=publish,
        )
        self._connections[connection_id] = connection
        try:
            with self._border.around(peer.address):
                await connection.run()
        finally:
            del self._connections[connection_id]
            self._count_end(connection)
        return connection.progress.close_reason

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
        """What makes a replica distinct, and whether it is known by that on its next connection, too.

        Its certificate, its address, or on one host each connection (design section 4).
        """
        if identity is not None:
            return f"certificate of {identity}", True
        if self._distinct_by_connection or host.startswith(LOOPBACK_PREFIXES):
            return f"connection {connection_id}", False
        return host, True


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
