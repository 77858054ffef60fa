"""The master's side of a slave's connection: the tasks that do its I/O.

See docs/protocol/ha.md#masters-side, docs/protocol/ha.md#timers.

Theory of operation. `SlaveProgress` has the rules and the offsets, `ConnectionMeter` measures. `run` is the
nursery: a task that reads reports, a task that writes the log, a task that sends heartbeats, and a task that
waits for the idle timeout, which every report moves on. The first of them to end the connection sets its
`CloseReason` and cancels the others; then the socket is closed, and what the slave acknowledged is forgotten.

Until the first request with a possible offset the peer is unknown: nothing of it is recorded, logged or
published. A connection that ends before is a probe, which the master counts.

A connection serves one log. When that log begins anew (a slave that serves slaves has archived its own), the
connection ends at once (LOG_RESTARTED): bytes of the new log must not follow bytes of the old one.

The writer task sends what was appended since its last frame, in one frame if it fits: what puts of one turn
of the scheduler have appended goes together. By Nagle's rule a slave that has acknowledged all before does
not wait for that: `send_now` sends it a put within the put's own turn.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ClassVar

import structlog
import trio
from attrs import frozen

from trioha.broker_status import ConnectionStatus
from trioha.errors import StoreError
from trioha.ha.frames import HEADER_BYTES, ReportDecoder, encode_header
from trioha.ha.meter import ConnectionMeter, FlowControl
from trioha.ha.replicas import ConnectedReplicas, Replicas
from trioha.ha.settings import HaSettings
from trioha.ha.slave_progress import ACK, HEARTBEAT, REFUSED, SlaveProgress
from trioha.net.busy_poll import polled
from trioha.net.housekeeping import Housekeeping, quiet
from trioha.net.outbox import Outbox
from trioha.recording.events import CloseReason, Direction, EventSink, HaState, Kind
from trioha.store.commit_log import CommitLog

log = structlog.get_logger(__name__)

# Plain numbers, see group_commit.
_TRANSFER = int(Kind.TRANSFER)
_ACK = int(Kind.ACK)

RECEIVE_BYTES = 16 * 1024
FRAMES_PER_TURN = 16
REJECTION_TIMEOUT_S = 1.0
COPY_BYTES_MAX = 64 * 1024
"""Up to this length header and body leave in one call, which costs a copy; beyond it in two."""
_SEND_ERRORS = (trio.BrokenResourceError, trio.TooSlowError, StoreError)
"""What ends the sending to a slave, and its connection."""


@frozen
class PeerIdentity:
    """Whose connection it is."""

    connection_id: int
    host: str
    """IP address."""
    address: str
    """`host:port`."""
    replica: str
    """Which replica it is: several connections of one replica are one copy (`trioha.ha.replicas`)."""
    is_stable: bool
    """Whether `replica` will be the same on the peer's next connection."""
    certificate: str | None = None
    """Subject of its certificate, with TLS."""


class HaConnection(ABC):
    """The master's side of one connection, in either protocol. `run` is its whole life."""

    _header_bytes: ClassVar[int]
    """Length of a frame's header."""

    def __init__(
        self,
        stream: trio.abc.Stream,
        *,
        peer: PeerIdentity,
        commit_log: CommitLog,
        replicas: ConnectedReplicas,
        progress: SlaveProgress,
        decoder: ReportDecoder,
        settings: HaSettings,
        sink: EventSink,
        on_state: Callable[[HaState], None],
    ) -> None:
        """`on_state` is called with each state of a slave's connection before the state is recorded:
        HANDSHAKE when its request arrives, TRANSFER if that is accepted, SHUTDOWN at the end."""
        now_s = trio.current_time()
        self.peer = peer
        self.progress = progress
        self._id = peer.connection_id
        self._stream = stream
        self._log = commit_log
        self._replicas = replicas
        self._settings = settings
        self._sink = sink
        self._on_state = on_state
        self._meter = ConnectionMeter(now_s)
        self._decoder = decoder
        self._outbox = Outbox(stream, timeout_s=settings.housekeeping_interval_s)
        self._flow = None
        if settings.flow_bytes_per_s is not None:
            self._flow = FlowControl(settings.flow_bytes_per_s, now_s=now_s)
        self._scope = trio.CancelScope()
        """Cancelled when the connection ends."""
        self._requested = trio.Event()
        self._sent_s = now_s
        """When the last frame was sent."""
        self._housekeeping = Housekeeping(
            idle_timeout_s=min(settings.housekeeping_interval_s, settings.first_report_timeout_s)
        )

    @abstractmethod
    def _acknowledge(self, ack_offset: int, now_s: float) -> None:
        """The slave holds everything before `ack_offset`."""

    @abstractmethod
    def _encode_header(self, offset: int, body_bytes: int) -> bytes:
        """Header of a frame in the protocol of this connection."""

    def unsent_age_s(self) -> float:
        """Age of the oldest byte that was not sent to the slave, at most; 0 if there is none."""
        sent_offset = self.progress.sent_offset
        if not 0 <= sent_offset < self._log.max_offset:
            return 0.0
        return self._meter.lag_clock.age_from_s(sent_offset, trio.current_time())

    def status(self) -> ConnectionStatus:
        """A snapshot of the connection."""
        now_s = trio.current_time()
        progress, meter, max_offset = self.progress, self._meter, self._log.max_offset
        return ConnectionStatus(
            address=self.peer.address,
            sent_offset=progress.sent_offset,
            ack_offset=progress.ack_offset,
            lag_bytes=max_offset - max(progress.ack_offset, 0),
            in_sync=self._replicas.is_eligible(self._id, max_offset),
            transferred_bytes_per_s=meter.rate.bytes_per_s(now_s),
            state=progress.state.name,
            lag_ms=round(meter.lag_clock.age_s(now_s) * 1000),
            connection_id=self._id,
            last_received_ms=round((now_s - progress.last_received_s) * 1000),
            ack_latency_us=meter.ack_latency_s.distribution(now_s, per_unit=1e6),
            frame_bytes=meter.frame_bytes.distribution(now_s),
        )

    async def run(self) -> CloseReason:
        """Serve the slave until the connection ends; returns why. The stream is closed then.

        Cancelling closes the connection with the reason SHUTDOWN.
        """
        progress = self.progress
        try:
            with polled(self._stream), self._scope:
                async with trio.open_nursery() as tasks:
                    tasks.start_soon(self._write_log)
                    tasks.start_soon(self._send_heartbeats)
                    tasks.start_soon(self._end_when_silent)
                    await self._read_reports()
                    self._scope.cancel()
        except Exception:
            progress.end(CloseReason.INTERNAL_ERROR)
            raise
        finally:
            try:
                self._close()
            finally:
                await self._outbox.aclose()
        return progress.close_reason

    def end(self, reason: CloseReason) -> None:
        """End the connection at once, also before `run`: nothing is sent or acknowledged any more."""
        self.progress.end(reason)
        self._scope.cancel()

    def send_now(self, start_offset: int) -> None:
        """Send what was appended from `start_offset` on, if the slave has acknowledged all that comes before.

        Else it is left to the writer task, as is what the socket does not accept at once.
        """
        progress, commit_log = self.progress, self._log
        if (
            progress.ack_offset != start_offset
            or progress.sent_offset != start_offset
            or self._flow is not None
            or not self._outbox.is_empty
        ):
            return
        max_offset = commit_log.max_offset
        if body_bytes := progress.next_body_bytes(min_offset=commit_log.min_offset, max_offset=max_offset):
            try:
                self._put_frame(body_bytes, max_offset)
            except _SEND_ERRORS as error:
                self._end_by(error)

    async def _end_when_silent(self) -> None:
        """End the connection when the idle timeout has passed."""
        await self._housekeeping.expired()
        progress = self.progress
        progress.expire(trio.current_time())
        self._scope.cancel()
        if progress.is_slave and progress.close_reason is CloseReason.HOUSEKEEPING:
            log.warning(
                f"ha housekeeping, found this connection[{self.peer.address}] expired",
                interval_s=self._settings.housekeeping_interval_s,
            )

    def _close(self) -> None:
        """Forget the slave's acks; record and publish the end of its connection."""
        progress = self.progress
        progress.close()
        self._replicas.forget(self._id)
        if progress.is_slave:
            self._sink.emit(
                Kind.CLOSED,
                conn=self._id,
                offset=progress.ack_offset,
                aux=self._log.max_offset,
                flags=progress.close_reason,
            )
            self._publish(HaState.SHUTDOWN)

    def _publish(self, state: HaState) -> None:
        self._on_state(state)
        self._sink.emit(
            Kind.STATE,
            conn=self._id,
            offset=self.progress.ack_offset,
            aux=self._log.max_offset,
            flags=state,
        )

    # -- reports -----------------------------------------------------------------------------------------

    async def _read_reports(self) -> None:
        progress = self.progress
        housekeeping = self._housekeeping
        decoder = self._decoder
        try:
            while progress.is_open:
                data = await self._stream.receive_some(RECEIVE_BYTES)
                if not data:
                    progress.end(CloseReason.EOF)
                    break
                now_s = trio.current_time()
                report = decoder.feed(bytes(data))
                # A part of a report counts for nothing: it may be sent byte by byte for ever.
                if report is not None:
                    self._handle_report(report, now_s)
                if report is not None or decoder.is_between_reports:
                    housekeeping.deadline_s = progress.received(now_s)
            if progress.rejection_offset >= 0:
                # A RocketMQ slave closes the connection at an offset that is not its own; a trioha slave
                # finds out from it where the log begins or ends.
                with trio.move_on_after(REJECTION_TIMEOUT_S):
                    self._outbox.put(self._encode_header(progress.rejection_offset, 0))
                    await self._outbox.flush()
        except trio.BrokenResourceError:
            progress.end(CloseReason.IO_ERROR)

    def _handle_report(self, offset: int, now_s: float) -> None:
        progress = self.progress
        if progress.request_offset < 0:
            self._handle_request(offset, now_s)
            return
        report = progress.receive_report(offset)
        if report is ACK:
            max_offset = self._log.max_offset
            self._meter.acknowledged(offset, now_s)
            self._sink.emit(_ACK, conn=self._id, offset=offset, aux=max_offset)
            self._acknowledge(offset, now_s)
        elif report is HEARTBEAT:
            self._sink.emit(
                Kind.HEARTBEAT,
                conn=self._id,
                offset=offset,
                aux=self._log.max_offset,
                flags=Direction.RECEIVED,
            )
        elif report is REFUSED:
            self._report_refusal(offset)

    def _handle_request(self, offset: int, now_s: float) -> None:
        """Handle a report in HANDSHAKE. Before it is a possible request the peer is unknown."""
        progress = self.progress
        max_offset = self._log.max_offset
        report = progress.receive_request(offset, min_offset=self._log.min_offset, max_offset=max_offset)
        if not progress.is_slave:
            return
        self._publish(HaState.HANDSHAKE)
        self._sink.emit(Kind.REQUESTED, conn=self._id, offset=offset, aux=max_offset)
        if report is REFUSED:
            self._report_refusal(offset)
            return
        log.info(
            f"slave[{self.peer.address}] request offset {offset}",
            start_offset=progress.start_offset,
            max_offset=max_offset,
        )
        self._publish(HaState.TRANSFER)
        self._meter.lag_clock.appended(max_offset, now_s)
        self._handle_report(offset, now_s)
        self._requested.set()

    def _report_refusal(self, offset: int) -> None:
        """Log and record that the report `offset`, or the next byte to send, has ended the connection."""
        progress = self.progress
        reason, max_offset = progress.close_reason, self._log.max_offset
        log.warning(
            f"slave[{self.peer.address}] refused: report {offset} ({reason.name})",
            ack_offset=progress.ack_offset,
            sent_offset=progress.sent_offset,
            min_offset=self._log.min_offset,
            max_offset=max_offset,
        )
        self._sink.emit(Kind.REFUSED, conn=self._id, offset=offset, aux=max_offset, flags=reason)

    # -- log ---------------------------------------------------------------------------------------------

    async def _write_log(self) -> None:
        progress = self.progress
        await self._requested.wait()
        appended = self._log.appended
        with self._ended_by_errors():
            while progress.is_open:
                frames = 0
                while appended.offset > progress.sent_offset and progress.is_open:
                    await self._send_next_frame()
                    frames += 1
                    if frames % FRAMES_PER_TURN == 0:
                        await trio.lowlevel.checkpoint()
                await self._outbox.flush()
                await appended.reached(progress.sent_offset + 1)

    async def _send_heartbeats(self) -> None:
        """Send a heartbeat whenever nothing else was sent for haSendHeartbeatInterval."""
        await self._requested.wait()
        self._sent_s = trio.current_time()
        with self._ended_by_errors():
            while self.progress.is_open:
                await quiet(self._settings.heartbeat_interval_s, lambda: self._sent_s)
                if self.progress.is_open:
                    await self._send_heartbeat()

    @contextmanager
    def _ended_by_errors(self) -> Iterator[None]:
        """The end of sending ends the connection."""
        try:
            yield
        except _SEND_ERRORS as error:
            self._end_by(error)
        self._scope.cancel()

    def _end_by(self, error: Exception) -> None:
        """End the connection for a send that failed."""
        if isinstance(error, StoreError):
            # The disk does not give the slave's next bytes; the log has reported the place.
            self.end(CloseReason.STORE_ERROR)
            self._report_refusal(self.progress.sent_offset)
        elif isinstance(error, trio.TooSlowError):
            # The slave still reports, but does not read: as good as silent.
            self.end(CloseReason.HOUSEKEEPING)
        else:
            self.end(CloseReason.IO_ERROR)

    async def _send_next_frame(self) -> None:
        await self._outbox.flush()
        flow_bytes = None if self._flow is None else await self._wait_for_flow(self._flow)
        progress = self.progress
        if not progress.is_open:
            return
        commit_log = self._log
        max_offset = commit_log.max_offset
        body_bytes = progress.next_body_bytes(min_offset=commit_log.min_offset, max_offset=max_offset)
        if not body_bytes:
            self._report_refusal(progress.sent_offset)
            return
        self._put_frame(body_bytes if flow_bytes is None else min(body_bytes, flow_bytes), max_offset)
        await self._outbox.flush()

    async def _wait_for_flow(self, flow: FlowControl) -> int:
        """Wait until flow control allows a frame; returns the longest body that it allows."""
        allowed_bytes = flow.allowed_bytes(trio.current_time())
        if allowed_bytes <= self._header_bytes:
            await trio.sleep_until(flow.next_window_s)
            allowed_bytes = flow.allowed_bytes(trio.current_time())
        return allowed_bytes - self._header_bytes

    def _put_frame(self, body_bytes_max: int, max_offset: int) -> None:
        """Hand the log's next bytes to the outbox. BrokenResourceError: the connection is gone. Raises
        StoreError if the disk does not give the bytes.

        The slice of the log is released at once, also after an exception: it would keep the mapping of a
        deleted file, with its space and its descriptor, until a garbage collection.
        """
        progress = self.progress
        offset = progress.sent_offset
        with self._log.read(offset, body_bytes_max) as body:
            body_bytes = len(body)
            self._sent_s = trio.current_time()
            self._meter.frame_sent(offset + body_bytes, body_bytes, max_offset, self._sent_s)
            progress.sent(body_bytes)
            self._sink.emit(_TRANSFER, conn=self._id, offset=offset, aux=max_offset, size=body_bytes)
            if self._flow is not None:
                self._flow.spend(body_bytes + self._header_bytes)
            header = self._encode_header(offset, body_bytes)
            if body_bytes <= COPY_BYTES_MAX:
                # Most frames fit the socket as it is.
                self._outbox.put(header + body)
            else:
                self._outbox.put(header)
                self._outbox.put(body)

    async def _send_heartbeat(self) -> None:
        sent_offset = self.progress.sent_offset
        self._sent_s = trio.current_time()
        self._sink.emit(
            Kind.HEARTBEAT,
            conn=self._id,
            offset=sent_offset,
            aux=self._log.max_offset,
            flags=Direction.SENT,
        )
        self._outbox.put(self._encode_header(sent_offset, 0))
        await self._outbox.flush()


class DefaultHaConnection(HaConnection):
    """The master's side of a connection of the default protocol."""

    _header_bytes = HEADER_BYTES

    def __init__(
        self,
        stream: trio.abc.Stream,
        *,
        peer: PeerIdentity,
        commit_log: CommitLog,
        replicas: Replicas,
        settings: HaSettings,
        sink: EventSink,
        on_state: Callable[[HaState], None],
    ) -> None:
        """The options are those of `HaConnection`."""
        super().__init__(
            stream,
            peer=peer,
            commit_log=commit_log,
            replicas=replicas,
            progress=SlaveProgress(settings, file_bytes=commit_log.file_bytes, now_s=trio.current_time()),
            decoder=ReportDecoder(),
            settings=settings,
            sink=sink,
            on_state=on_state,
        )
        self._acks = replicas

    def _acknowledge(self, ack_offset: int, now_s: float) -> None:
        self._acks.acknowledge(
            self._id,
            replica=self.peer.replica,
            ack_offset=ack_offset,
            is_stable_identity=self.peer.is_stable,
            has_unsent=self.progress.sent_offset < self._log.max_offset,
            lag_clock=self._meter.lag_clock,
            now_s=now_s,
        )

    def _encode_header(self, offset: int, body_bytes: int) -> bytes:
        return encode_header(offset, body_bytes)
