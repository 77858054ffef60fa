"""The master's side of replication: accepts slaves and keeps what they acknowledged (spec ha 3.1)."""

from __future__ import annotations

import ssl
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager
from itertools import count

import structlog
import trio
from attrs import field, frozen

from trioha.ha.admission import Admission, AdmissionSettings, identity_of
from trioha.ha.connection import ConnectionStatus, HaConnection, HaSettings
from trioha.ha.replicas import Replicas
from trioha.ha.states import Changes, Notices
from trioha.net.busy_poll import BusyPoll
from trioha.net.transport import SocketTransport
from trioha.recording.events import CloseReason, EventSink, HaState
from trioha.store.commit_log import CommitLog
from trioha.watermark import Wait

log = structlog.get_logger(__name__)

TLS_HANDSHAKE_TIMEOUT_S = 10.0
LOOPBACK_PREFIXES = ("127.", "::1", "::ffff:127.")


@frozen
class MasterStatistics:
    """What happened at the HA port since the node started."""

    accepted: int
    """Connections accepted."""
    closed: dict[str, int] = field(factory=dict)
    """Connections ended, by `CloseReason` name."""


@frozen
class ConnectionChange:
    """A connection entered a state: HANDSHAKE when it was made, SHUTDOWN when it has ended."""

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
        self._closed: Counter[str] = Counter()
        self._accepted = 0
        self._busy_poll = BusyPoll(settings.busy_poll_s) if settings.busy_poll_s else None
        self._pushed: list[HaConnection] = []
        """The connections that the last `push` sent on."""
        self._notices: Notices[ConnectionChange] = Notices()
        commit_log.on_restart(self._end_connections)

    def connections(self) -> list[ConnectionStatus]:
        """Every connection that is open now, oldest first."""
        return [connection.status() for connection in self._connections.values()]

    def changes(self) -> AbstractContextManager[Changes[ConnectionChange]]:
        """Of all connections, from now on: `with master.changes() as changes: async for change in changes`.

        RocketMQ's notification (spec ha 3.3) knows one who waits, and tells connections apart by their
        address alone.
        """
        return self._notices.listen()

    def _end_connections(self) -> None:
        """The log begins anew: slaves connect again and ask for what they need of the new one."""
        for connection in self._connections.values():
            connection.log_restarted()

    def push(self) -> None:
        """Send what was appended to slaves that have acknowledged all before, without their writers' turns.

        For a put that waits alone; see `HaConnection.push`.
        """
        self._pushed = [connection for connection in self._connections.values() if connection.push()]

    def look_for_acks(self, wait: Wait) -> None:
        """Look for acks of what `push` sent, until `wait` has ended or trioha.haBusyPoll is over."""
        pushed = self._pushed
        if self._busy_poll is None or not pushed:
            return

        def look() -> bool:
            for connection in pushed:
                connection.look_for_ack()
            return wait.outcome is not None

        self._busy_poll.until(look)

    def needed_from(self) -> int:
        """Lowest offset that a connected slave has not acknowledged; beyond every log if there is none."""
        acks = (connection.ack_offset for connection in self._connections.values())
        return min((ack for ack in acks if ack >= 0), default=2**63 - 1)

    def statistics(self) -> MasterStatistics:
        """What happened since the start."""
        return MasterStatistics(accepted=self._accepted, closed=dict(self._closed))

    async def serve(
        self,
        listeners: list[trio.SocketListener],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Accept slaves for ever; cancelling closes every connection."""
        async with trio.open_nursery() as nursery:
            await nursery.start(trio.serve_listeners, self._serve_socket, listeners)
            task_status.started()

    async def _serve_socket(self, stream: trio.SocketStream) -> None:
        try:
            peer = stream.socket.getpeername()
        except OSError:
            # Gone before it was served.
            await trio.aclose_forcefully(stream)
            return
        host, port = peer[0], peer[1]
        refusal = self._admission.refusal(host)
        if refusal is not None:
            self._count_refused(f"{host}:{port}", refusal)
            await trio.aclose_forcefully(stream)
            return
        self._admission.opened(host)
        try:
            transport = SocketTransport.take_over(stream)
            if self._tls is None:
                await self.serve_stream(transport, host=host, port=port)
            else:
                await self._serve_tls(transport, self._tls, host=host, port=port)
        finally:
            self._admission.closed(host)

    async def _serve_tls(
        self, transport: SocketTransport, context: ssl.SSLContext, *, host: str, port: int
    ) -> None:
        """Shake hands first: a peer without a certificate of the authority is counted and gets no more."""
        stream = trio.SSLStream(transport, context, server_side=True)
        try:
            with trio.fail_after(min(self._settings.first_report_timeout_s, TLS_HANDSHAKE_TIMEOUT_S)):
                await stream.do_handshake()
        except (trio.BrokenResourceError, trio.TooSlowError) as error:
            self._count_refused(f"{host}:{port}", f"TLS: {error.__cause__ or 'no handshake in time'}")
            await trio.aclose_forcefully(stream)
            return
        identity = identity_of(stream.getpeercert())
        await self.serve_stream(stream, host=host, port=port, identity=identity)

    def _count_refused(self, address: str, reason: str) -> None:
        self._closed[CloseReason.NOT_ALLOWED.name] += 1
        log.warning("HA connection refused", peer=address, reason=reason)

    async def serve_stream(
        self, stream: trio.abc.Stream, *, host: str, port: int, identity: str | None = None
    ) -> CloseReason:
        """Serve one slave over any stream until its connection ends; says why it did.

        `identity` is what its certificate says it is.
        A fault of our own in one connection ends that connection, with its traceback in the log.
        """
        connection_id = next(self._ids)
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        replica, is_lasting_name = self._replica_name(
            host=host, connection_id=connection_id, identity=identity
        )
        connection = HaConnection(
            stream,
            connection_id=connection_id,
            address=address,
            replica=replica,
            is_lasting_name=is_lasting_name,
            commit_log=self._log,
            replicas=self._replicas,
            settings=self._settings,
            sink=self._sink,
            on_state=lambda state: self._notices.tell(
                ConnectionChange(connection_id, address, replica, state)
            ),
        )
        self._accepted += 1
        self._connections[connection_id] = connection
        named = {} if identity is None else {"certificate": identity}
        self._sink.fact("connection", conn=connection_id, address=address, role="master", **named)
        log.info("slave connected", address=address, connection=connection_id)
        try:
            await connection.run()
        except* Exception:
            log.exception("connection ended by a fault of this node", address=address)
        finally:
            del self._connections[connection_id]
            self._closed[connection.close_reason.name] += 1
            log.info(
                "slave disconnected",
                address=address,
                connection=connection_id,
                reason=connection.close_reason.name,
                ack_offset=connection.ack_offset,
            )
        return connection.close_reason

    def _replica_name(self, *, host: str, connection_id: int, identity: str | None) -> tuple[str, bool]:
        """What makes a replica distinct, and whether it is known by that on its next connection, too.

        Its certificate, its address, or on one host each connection (design section 4).
        """
        if identity is not None:
            return f"certificate of {identity}", True
        if self._distinct_by_connection or host.startswith(LOOPBACK_PREFIXES):
            return f"connection {connection_id}", False
        return host, True
