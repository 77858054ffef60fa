"""One replica's connection at the master (spec ha 2.2, 2.4, 3.1).

Theory of operation. A connection is a nursery (`Housekeeping`): a reader that takes reports and a writer that
sends the log live and die together, within a housekeeping limit that every byte read moves on. The first of
reader, writer and limit to end the connection says why (`CloseReason`); then the others are cancelled, the
socket is closed and what the slave acknowledged is forgotten.

Until its first valid request (an offset that a log can have) a connection may be anybody's: nothing of it is
recorded, logged or notified. With the request it is announced as a slave's, also if the request is refused.
One that ends before that is a probe, and counted as such by the master.

A connection serves one log. When that log begins anew (a slave that serves slaves has set its own aside),
the connection ends at once (`log_restarted`): bytes of the new log must not follow bytes of the old one.

The writer sends what was appended when its turn comes, all of it in one frame if it fits. Where a single put
waits and the slave has acknowledged all before, no other put's bytes could join the frame: `push` sends it in
the put's own turn, and saves it the writer's. Both put their bytes in one `Outbox`, which keeps them in order
whatever the socket takes.

States. HANDSHAKE from birth until the first report, which is the request; TRANSFER from then on; SHUTDOWN at
the end. Offsets:

- `request_offset`: the first report that was not negative; -1 before it. Set once.
- `sent_offset`: everything before it was handed to the socket, or the slave had it already. Only the writer
  moves it, only forward.
- `ack_offset`: the slave's last report; -1 before the first. Only the reader moves it, only forward, and
  never beyond `sent_offset`: an ack is a promise about bytes that were sent.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import structlog
import trio

from trioha.broker_status import ConnectionStatus
from trioha.ha.frames import HEADER_BYTES, OFFSET_END, ReportDecoder, encode_header, last_report
from trioha.ha.meter import DistributionMeter, FlowControl, LagClock, RateMeter
from trioha.ha.replicas import Replicas
from trioha.ha.settings import HaSettings
from trioha.ha.states import StateCell
from trioha.ha.timeouts import Timeouts
from trioha.net.housekeeping import Housekeeping
from trioha.net.outbox import Outbox
from trioha.net.transport import SocketTransport
from trioha.recording.events import CloseReason, Direction, EventSink, HaState, Kind
from trioha.store.commit_log import CommitLog
from trioha.watermark import GIVEN_UP

log = structlog.get_logger(__name__)

# Plain numbers, see group_commit.
_TRANSFER = int(Kind.TRANSFER)
_ACK = int(Kind.ACK)

RECEIVE_BYTES = 16 * 1024
FRAMES_PER_TURN = 16
HINT_TIMEOUT_S = 1.0
COPY_BYTES_MAX = 64 * 1024
"""Up to this length header and body leave in one call, which costs a copy; beyond it in two."""


class HaConnection:
    """The master's side of one connection. `run` is its whole life."""

    def __init__(
        self,
        stream: trio.abc.Stream,
        *,
        connection_id: int,
        host: str,
        address: str,
        replica: str,
        is_stable_identity: bool,
        commit_log: CommitLog,
        replicas: Replicas,
        settings: HaSettings,
        sink: EventSink,
        on_announced: Callable[[], None] = lambda: None,
        on_state: Callable[[HaState], None] = lambda _state: None,
    ) -> None:
        """`on_announced` is called with the first valid request, before anything of it is reported;
        `on_state` from then on with each state, HANDSHAKE first."""
        self.connection_id = connection_id
        self.host = host
        """The peer's IP address."""
        self.address = address
        """The peer, `host:port`."""
        self.replica = replica
        """Which replica this is: several connections of one replica are one copy."""
        self._is_stable_identity = is_stable_identity
        self.state = StateCell(HaState.HANDSHAKE)
        """Whoever wants to know of changes waits here."""
        self.is_announced = False
        """Whether there was a valid request; if it ends without, the connection was a probe."""
        self.request_offset = -1
        self.start_offset = -1
        """Where sending began; -1 before the request."""
        self.sent_offset = -1
        self.ack_offset = -1
        self.close_reason = CloseReason.NONE
        self._stream = stream
        self._log = commit_log
        self._replicas = replicas
        self._settings = settings
        self._sink = sink
        self._on_announced = on_announced
        self._on_state = on_state
        self._decoder = ReportDecoder()
        self._requested = trio.Event()
        self._housekeeping = Housekeeping(idle_timeout_s=math.inf)
        self._heartbeats = Timeouts(settings.heartbeat_interval_s)
        self._is_waiting = False
        """Whether the writer waits for new bytes, or has been woken and not yet had its turn."""
        self._outbox = Outbox(stream, timeout_s=settings.housekeeping_interval_s)
        self._request_deadline_s = math.inf
        """When a peer that has not asked for anything is closed."""
        self._rejection_offset = -1
        """Where the log begins or ends, for a slave that asks for bytes outside of it."""
        self._batch_bytes = settings.transfer_batch_bytes
        self._flow = None
        if settings.flow_bytes_per_s is not None:
            self._flow = FlowControl(settings.flow_bytes_per_s, now_s=trio.current_time())
        self._lag_clock = LagClock()
        now_s = trio.current_time()
        self._rate = RateMeter(now_s)
        self._last_received_s = now_s
        self._ack_latency = DistributionMeter(now_s)
        self._frame_bytes = DistributionMeter(now_s)
        self._timed_offset = -1
        """End of the frame whose ack is being timed; -1 while none is."""
        self._timed_s = now_s
        """When it was sent."""

    def status(self) -> ConnectionStatus:
        """How the connection stands now."""
        now_s = trio.current_time()
        max_offset = self._log.max_offset
        return ConnectionStatus(
            address=self.address,
            sent_offset=self.sent_offset,
            ack_offset=self.ack_offset,
            lag_bytes=max_offset - max(self.ack_offset, 0),
            in_sync=self._replicas.is_eligible(self.connection_id, max_offset),
            transferred_bytes_per_s=self._rate.bytes_per_s(now_s),
            state=self.state.state.name,
            lag_ms=round(self._lag_clock.age_s(now_s) * 1000),
            connection_id=self.connection_id,
            last_received_ms=round((now_s - self._last_received_s) * 1000),
            ack_latency_us=self._ack_latency.distribution(now_s, per_unit=1e6),
            frame_bytes=self._frame_bytes.distribution(now_s),
        )

    async def run(self) -> CloseReason:
        """Serve the slave until the connection ends, and say why it did. The stream is closed then.

        Cancelling closes the connection with the reason SHUTDOWN.
        """
        settings = self._settings
        self._request_deadline_s = trio.current_time() + settings.first_report_timeout_s
        self._housekeeping = Housekeeping(
            idle_timeout_s=min(settings.housekeeping_interval_s, settings.first_report_timeout_s)
        )
        try:
            await self._housekeeping.run(self._read_reports, self._write_log, self._heartbeats.run)
            if self._housekeeping.is_expired:
                self._expire()
        except Exception:
            self._end(CloseReason.INTERNAL_ERROR)
            raise
        finally:
            self._end(CloseReason.SHUTDOWN)
            try:
                self._close()
            finally:
                self._outbox.close()
                with trio.CancelScope(shield=True):
                    await trio.aclose_forcefully(self._stream)
        return self.close_reason

    def _expire(self) -> None:
        """The peer was silent too long, or has not asked for anything in time."""
        if trio.current_time() >= self._request_deadline_s:
            self._end(CloseReason.NO_REQUEST)
            return
        self._end(CloseReason.HOUSEKEEPING)
        if self.is_announced:
            log.warning(
                f"ha housekeeping, found this connection[{self.address}] expired",
                interval_s=self._settings.housekeeping_interval_s,
            )

    def _close(self) -> None:
        """Forget the slave and report that the connection has ended."""
        self._replicas.forget(self.connection_id)
        if self.is_announced:
            self._sink.emit(
                Kind.CLOSED,
                conn=self.connection_id,
                offset=self.ack_offset,
                aux=self._log.max_offset,
                flags=self.close_reason,
            )
        self._change_state(HaState.SHUTDOWN)

    def end(self, reason: CloseReason) -> None:
        """End the connection from outside of its tasks, at once: nothing is sent or acknowledged any more."""
        self._end(reason)
        self._housekeeping.end()

    def log_restarted(self) -> None:
        """End the connection: its offsets, and the slave's, are of a log that is not served any more.

        Not a byte is sent from now on, wherever the writer waits.
        """
        self.end(CloseReason.LOG_RESTARTED)

    def _end(self, reason: CloseReason) -> None:
        """Note why the connection ends; the first reason stays."""
        if self.close_reason is CloseReason.NONE:
            self.close_reason = reason

    def _change_state(self, state: HaState) -> None:
        self.state.change_to(state)
        if not self.is_announced:
            return
        self._on_state(state)
        self._sink.emit(
            Kind.STATE,
            conn=self.connection_id,
            offset=self.ack_offset,
            aux=self._log.max_offset,
            flags=state,
        )

    def _announce(self) -> None:
        """The first valid request is there: this is a slave's connection."""
        self.is_announced = True
        self._on_announced()
        self._change_state(HaState.HANDSHAKE)

    # -- reports -----------------------------------------------------------------------------------------

    async def _read_reports(self) -> None:
        decoder = self._decoder
        try:
            while self.close_reason is CloseReason.NONE:
                data = await self._stream.receive_some(RECEIVE_BYTES)
                if not data:
                    self._end(CloseReason.EOF)
                    break
                report = decoder.feed(bytes(data))
                if report is not None:
                    self._take_report(report)
                self._hear()
            if self._rejection_offset >= 0:
                # Says where the log is: a RocketMQ slave sees an offset that is not its own and goes.
                with trio.move_on_after(HINT_TIMEOUT_S):
                    self._outbox.put(encode_header(self._rejection_offset, 0))
                    await self._outbox.flush()
        except trio.BrokenResourceError:
            self._end(CloseReason.IO_ERROR)

    def _hear(self) -> None:
        """The peer has said something: until it has asked for the log, that buys it no more time."""
        self._last_received_s = now_s = trio.current_time()
        self._housekeeping.deadline_s = min(
            now_s + self._settings.housekeeping_interval_s, self._request_deadline_s
        )

    def poll_acks(self) -> None:
        """Take an ack that has come, without the reader's turn; whatever else came is left for the reader."""
        stream = self._stream
        if (
            self.close_reason is not CloseReason.NONE
            or not isinstance(stream, SocketTransport)
            or not stream.is_readable()
        ):
            return
        data = stream.peek(RECEIVE_BYTES)
        offset = last_report(data)
        if offset is None or not self._decoder.is_between_reports:
            return
        if self.ack_offset < offset <= self.sent_offset:
            try:
                stream.consume(len(data))
            except trio.BrokenResourceError:
                self._end(CloseReason.IO_ERROR)
                return
            self._acknowledge(offset)
            self._hear()

    def _take_report(self, offset: int) -> None:
        if self.close_reason is not CloseReason.NONE:
            # Received in the turn in which the connection was ended.
            return
        if self.request_offset < 0:
            self._take_request(offset)
        elif offset < self.ack_offset:
            self._refuse(offset, CloseReason.ACK_WENT_BACK)
        elif offset > self.sent_offset:
            self._refuse(offset, CloseReason.ACK_BEYOND_SENT)
        elif offset == self.ack_offset:
            self._sink.emit(
                Kind.HEARTBEAT,
                conn=self.connection_id,
                offset=offset,
                aux=self._log.max_offset,
                flags=Direction.RECEIVED,
            )
        else:
            self._acknowledge(offset)

    def _take_request(self, offset: int) -> None:
        """The first report says what the slave has, and so where to start (spec ha 2.2).

        -1 means that it has nothing to say yet. A slave outside of the log is sent away, so that it sees the
        fault: RocketMQ would send it heartbeats for ever.
        """
        commit_log = self._log
        max_offset = commit_log.max_offset
        if offset == -1:
            return
        if not 0 <= offset < OFFSET_END:
            self._refuse(offset, CloseReason.BAD_SIZE)
            return
        self._announce()
        self._sink.emit(Kind.REQUESTED, conn=self.connection_id, offset=offset, aux=max_offset)
        if offset > max_offset and not (offset == 1 and max_offset == 0):
            # A slave that wants all history asks from 1, of an empty log too.
            self._rejection_offset = max_offset
            self._refuse(offset, CloseReason.REQUEST_ABOVE_MAX)
            return
        if 0 < offset < commit_log.min_offset:
            self._rejection_offset = commit_log.min_offset
            self._refuse(offset, CloseReason.REQUEST_BELOW_MIN)
            return
        self.request_offset = offset
        self.sent_offset = self.start_offset = offset or max_offset - max_offset % commit_log.file_bytes
        log.info(
            f"slave[{self.address}] request offset {offset}",
            start_offset=self.sent_offset,
            max_offset=max_offset,
        )
        self._change_state(HaState.TRANSFER)
        self._lag_clock.appended(max_offset, trio.current_time())
        self._acknowledge(offset)
        self._request_deadline_s = math.inf
        self._requested.set()

    def _acknowledge(self, offset: int) -> None:
        self.ack_offset = offset
        self._lag_clock.acknowledged(offset)
        self._sink.emit(_ACK, conn=self.connection_id, offset=offset, aux=self._log.max_offset)
        self._replicas.acknowledge(
            self.connection_id,
            replica=self.replica,
            ack_offset=offset,
            is_stable_identity=self._is_stable_identity,
            is_behind=self.sent_offset < self._log.max_offset,
            lag_clock=self._lag_clock,
        )
        if 0 <= self._timed_offset <= offset:
            self._ack_latency.add(trio.current_time() - self._timed_s)
            self._timed_offset = -1

    def _refuse(self, offset: int, reason: CloseReason) -> None:
        self._end(reason)
        if not self.is_announced:
            return
        max_offset = self._log.max_offset
        log.warning(
            f"slave[{self.address}] refused: report {offset} ({reason.name})",
            ack_offset=self.ack_offset,
            sent_offset=self.sent_offset,
            min_offset=self._log.min_offset,
            max_offset=max_offset,
        )
        self._sink.emit(Kind.REFUSED, conn=self.connection_id, offset=offset, aux=max_offset, flags=reason)

    # -- log ---------------------------------------------------------------------------------------------

    async def _write_log(self) -> None:
        try:
            await self._requested.wait()
            appended = self._log.appended
            while True:
                frames = 0
                while appended.offset > self.sent_offset and self.close_reason is CloseReason.NONE:
                    await self._send_frame()
                    frames += 1
                    if frames % FRAMES_PER_TURN == 0:
                        await trio.lowlevel.checkpoint()
                if self.close_reason is not CloseReason.NONE:
                    break
                if not self._outbox.is_empty:
                    await self._outbox.flush()
                    continue
                more = appended.wait_for(self.sent_offset + 1)
                self._heartbeats.add(more, trio.current_time())
                self._is_waiting = True
                outcome = await more.wait()
                self._is_waiting = False
                if outcome is GIVEN_UP:
                    await self._send_heartbeat()
        except trio.BrokenResourceError:
            self._end(CloseReason.IO_ERROR)
        except trio.TooSlowError:
            # The slave still talks but takes nothing: as good as silent.
            self._end(CloseReason.HOUSEKEEPING)

    def push(self) -> bool:
        """Send now what was appended, if the slave has acknowledged all before and the socket is free.

        Returns whether it was sent. What the socket does not take, the writer sends: it wakes up in any case.
        """
        if not (
            self._is_waiting
            and self.ack_offset == self.sent_offset < self._log.max_offset
            and self._outbox.sends_at_once
            and self._flow is None
            and self.close_reason is CloseReason.NONE
        ):
            return False
        offset = self.sent_offset
        body = self._next_body(self._settings.transfer_batch_bytes)
        if not body:
            return False
        try:
            self._put(encode_header(offset, len(body)), body)
        except trio.BrokenResourceError:
            self._end(CloseReason.IO_ERROR)
            return False
        return True

    def _next_body(self, body_bytes_max: int) -> memoryview | None:
        """The log's next bytes, None if they are gone; they count as sent from now on."""
        offset = self.sent_offset
        commit_log = self._log
        max_offset = commit_log.max_offset
        if offset < commit_log.min_offset:
            # Deleted while the slave was behind.
            self._refuse(offset, CloseReason.REQUEST_BELOW_MIN)
            return None
        body = commit_log.read(offset, body_bytes_max)
        now_s = trio.current_time()
        body_bytes = len(body)
        self._lag_clock.appended(max_offset, now_s)
        self._rate.add(body_bytes, now_s)
        self._frame_bytes.add(body_bytes)
        if self._timed_offset < 0:
            self._timed_offset, self._timed_s = offset + body_bytes, now_s
        # Counted as sent before the first byte leaves: the slave's ack may be faster than our own return.
        self.sent_offset = offset + body_bytes
        self._sink.emit(_TRANSFER, conn=self.connection_id, offset=offset, aux=max_offset, size=body_bytes)
        return body

    async def _send_frame(self) -> None:
        await self._outbox.flush()
        behind_bytes = self._log.max_offset - self.sent_offset
        body_bytes_max = self._next_batch_bytes(behind_bytes)
        if self._flow is not None:
            body_bytes_max = await self._allowed_bytes(self._flow, body_bytes_max, behind_bytes)
            if self.close_reason is not CloseReason.NONE:
                return
        offset = self.sent_offset
        body = self._next_body(body_bytes_max)
        if body is not None:
            self._put(encode_header(offset, len(body)), body)
            await self._outbox.flush()

    def _next_batch_bytes(self, behind_bytes: int) -> int:
        """Longest body of the next frame: doubles while the slave is far behind, is small again in step.

        Long frames are what catching up at full speed takes; short ones are what acks in step are.
        """
        settings = self._settings
        if behind_bytes <= settings.transfer_batch_bytes:
            self._batch_bytes = settings.transfer_batch_bytes
        elif behind_bytes > 2 * self._batch_bytes:
            self._batch_bytes = max(
                settings.transfer_batch_bytes, min(2 * self._batch_bytes, settings.transfer_batch_bytes_max)
            )
        return self._batch_bytes

    async def _allowed_bytes(self, flow: FlowControl, batch_bytes: int, behind_bytes: int) -> int:
        """Longest body of the next frame, as flow control allows; waits until it allows any."""
        allowed_bytes = flow.allowed_bytes(trio.current_time())
        if allowed_bytes <= HEADER_BYTES:
            await trio.sleep_until(flow.next_window_s)
            allowed_bytes = flow.allowed_bytes(trio.current_time())
        frame_bytes = min(batch_bytes, behind_bytes, allowed_bytes - HEADER_BYTES)
        flow.spend(frame_bytes + HEADER_BYTES)
        return frame_bytes

    async def _send_heartbeat(self) -> None:
        self._sink.emit(
            Kind.HEARTBEAT,
            conn=self.connection_id,
            offset=self.sent_offset,
            aux=self._log.max_offset,
            flags=Direction.SENT,
        )
        self._outbox.put(encode_header(self.sent_offset, 0))
        await self._outbox.flush()

    def _put(self, header: bytes, body: memoryview) -> None:
        """Hand a frame to the outbox and release `body`. BrokenResourceError: the connection is gone.

        Released, not forgotten: a slice keeps the mapping of a deleted file, with its space and its
        descriptor, and the frames of a send that was cancelled live until a garbage collection.
        """
        with body:
            if len(body) <= COPY_BYTES_MAX:
                # Most frames fit the socket as it is.
                self._outbox.put(header + body)
            else:
                self._outbox.put(header)
                self._outbox.put(body)
