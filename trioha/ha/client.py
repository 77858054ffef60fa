"""The slave's side of its connection to the master (RocketMQ: HAClient): the tasks that do its I/O.

See docs/protocol/ha.md#slaves-side, docs/protocol/ha.md#what-a-slave-checks.

Theory of operation. `ReplicationSession` has the rules: what to request, which frames continue the own log,
what may be acknowledged. `HaClient.run` is the nursery: a task appends what the master sends and reports the
log's end when it has grown; a task sends reports that the socket did not accept at once; a task sends
heartbeats; with trioha.haAckMode=flushed a task reports what was synced; a task waits for the idle timeout.
The first of them to end the connection sets its `CloseReason` and cancels the others. Frames move the idle
timeout on, and bytes of a long frame that come at `BYTES_PER_S_MIN` at least: a master that sends a byte now
and then is as silent as one that sends nothing. The first report goes out at once: it is the request.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Final, Protocol

import structlog
import trio

from trioha.config.keys.ha import AckMode
from trioha.errors import RemoteProtocolError, StoreError
from trioha.ha.bodies import BodyPart, Frame
from trioha.ha.followed_log import ReplicationError
from trioha.ha.frames import (
    BODY_BYTES_MAX,
    FrameHeader,
    TransferDecoder,
    encode_report,
)
from trioha.ha.link import VERDICT_REASONS, LinkStatistics, LinkVerdict
from trioha.ha.replication_session import WAITED_S, ReplicationSession
from trioha.ha.settings import HaSettings
from trioha.net.busy_poll import polled
from trioha.net.housekeeping import Housekeeping, quiet
from trioha.net.outbox import Outbox
from trioha.net.transport import local_address, receive_into
from trioha.recording.events import CloseReason, Direction, EventSink, HaState, Kind, LinkEvent
from trioha.store.commit_log import CommitLog

log = structlog.get_logger(__name__)

RECEIVE_BYTES: Final = 1 << 20
"""Size of a connection's receive buffer."""
BYTES_PER_S_MIN: Final = 1024
"""Bytes of a frame that come more slowly do not count: 32 KiB, RocketMQ's longest frame, take 32 s then."""


class SlaveSession(Protocol):
    """The rules of replication, as the tasks of a connection need them."""

    @property
    def ack_offset(self) -> int:
        """What may be acknowledged now."""

    @property
    def is_checked(self) -> bool:
        """Whether the own tail is known to equal the master's."""


class HaClient(ABC):
    """The slave's side of one connection, in either protocol. `run` is its whole life."""

    first_state: ClassVar = HaState.TRANSFER
    """State of a connection that was just made."""

    def __init__(
        self,
        stream: trio.abc.Stream,
        *,
        connection_id: int,
        master_address: str,
        commit_log: CommitLog,
        session: SlaveSession,
        settings: HaSettings,
        ack_mode: AckMode,
        is_observer: bool,
        sink: EventSink,
        statistics: LinkStatistics,
        verdict: LinkVerdict,
        on_state: Callable[[HaState], None],
    ) -> None:
        """`on_state` is called with TRANSFER once the connection is up, and with READY at its end."""
        self.connection_id = connection_id
        self.close_reason = CloseReason.NONE
        self.reported_offset = -1
        """Last offset reported; -1 before the first report."""
        self.frame_received = False
        """Whether the body of a frame was received to its end."""
        self.local_address: str | None = None
        """Own end of the connection, `host:port`; None once it has ended."""
        self._stream = stream
        self._master_address = master_address
        self._log = commit_log
        self._session = session
        self._settings = settings
        self._ack_mode = ack_mode
        self._is_observer = is_observer
        self._sink = sink
        self._statistics = statistics
        self._verdict = verdict
        self._on_state = on_state
        self._request_offset = 0
        """The first report."""
        self._requested = trio.Event()
        self._tail_checked = trio.Event()
        self._is_answered = False
        """Whether the master has sent a byte."""
        self._is_unsettled = False
        """Whether what was received waits for `_settle`."""
        self._has_moved = False
        """Whether a frame began or ended with the last bytes."""
        self._frame_bytes = 0
        """Received since the idle timeout was moved on."""
        self._outbox = Outbox(stream, timeout_s=settings.housekeeping_interval_s)
        self._unsent = trio.Event()
        """Set while the outbox holds reports for the writer task to send."""
        self._last_report_s = 0.0
        self._scope = trio.CancelScope()
        """Cancelled when the connection ends."""
        self._housekeeping = Housekeeping(idle_timeout_s=settings.housekeeping_interval_s)

    async def run(self) -> CloseReason:
        """Replicate until the connection ends; returns why. The stream is closed then.

        Raises what the boundary is for, with the reason INTERNAL_ERROR.
        """
        try:
            if self._begin():
                with polled(self._stream), self._scope:
                    async with trio.open_nursery() as tasks:
                        tasks.start_soon(self._write_reports)
                        tasks.start_soon(self._send_heartbeats)
                        tasks.start_soon(self._end_when_silent)
                        if self._ack_mode is AckMode.FLUSHED and not self._is_observer:
                            tasks.start_soon(self._report_flushed)
                        await self._read_log()
        except Exception:
            self._end(CloseReason.INTERNAL_ERROR)
            raise
        finally:
            self._end(CloseReason.SHUTDOWN)
            self.local_address = None
            try:
                self._close()
            finally:
                await self._outbox.aclose()
        return self.close_reason

    def _begin(self) -> bool:
        """Begin the session, record and publish the connection; False if the own disk does not let it."""
        try:
            self._request_offset = self._first_report()
        except StoreError as error:
            self._refuse(self._log.max_offset, CloseReason.STORE_ERROR, str(error))
            return False
        self.local_address = local_address(self._stream)
        self._sink.fact("connection", conn=self.connection_id, address=self._master_address, role="slave")
        self._sink.emit(Kind.LINK, conn=self.connection_id, flags=LinkEvent.CONNECTED)
        self._enter(self.first_state)
        log.info("connected to the master", master=self._master_address, max_offset=self._log.max_offset)
        # Time that the above took, on a busy machine, is not the master's silence.
        self._housekeeping.deadline_s = trio.current_time() + self._settings.housekeeping_interval_s
        return True

    async def _end_when_silent(self) -> None:
        """End the connection when the idle timeout has passed."""
        await self._housekeeping.expired()
        self._end(CloseReason.HOUSEKEEPING)
        log.warning(
            f"ha housekeeping, found this connection[{self._master_address}] expired",
            interval_s=self._settings.housekeeping_interval_s,
        )

    @abstractmethod
    def _first_report(self) -> int:
        """Begin the session; returns the offset to request."""

    @abstractmethod
    def _encode_report(self, offset: int) -> bytes:
        """A report in the protocol of this connection."""

    def _requested_at_most(self) -> int | None:
        """What the first report may not be beyond, since it is an ack, too; None for no limit.

        For an observer so far back that no producer can still wait for it.
        """
        if self._is_observer:
            before_ms = time.time_ns() // 1_000_000 - round(WAITED_S * 1000)
            return self._log.starts.stored_before(before_ms)
        return self._log.flushed.offset if self._ack_mode is AckMode.FLUSHED else None

    def _end(self, reason: CloseReason) -> None:
        """End the connection; the first reason stays."""
        if self.close_reason is CloseReason.NONE:
            self.close_reason = reason
        self._scope.cancel()

    def _close(self) -> None:
        """Record and publish that the connection has ended."""
        self._on_state(HaState.READY)
        if not self._is_answered and self.close_reason in {CloseReason.EOF, CloseReason.IO_ERROR}:
            self._verdict.ended_unanswered(self._request_offset)
        max_offset = self._log.max_offset
        self._sink.emit(
            Kind.CLOSED,
            conn=self.connection_id,
            offset=max_offset,
            aux=max_offset,
            flags=self.close_reason,
        )
        self._record_state(HaState.READY)

    def _enter(self, state: HaState) -> None:
        """Publish and record the state of the connection."""
        self._on_state(state)
        self._record_state(state)

    def _record_state(self, state: HaState) -> None:
        max_offset = self._log.max_offset
        self._sink.emit(Kind.STATE, conn=self.connection_id, offset=max_offset, aux=max_offset, flags=state)

    def _refuse(self, offset: int, reason: CloseReason, message: str) -> None:
        """End the connection for what the master sent, or what the own disk did, at `offset`."""
        log.warning(message, master=self._master_address, reason=reason.name)
        self._sink.emit(
            Kind.REFUSED, conn=self.connection_id, offset=offset, aux=self._log.max_offset, flags=reason
        )
        self._end(reason)

    # -- the master's log ----------------------------------------------------------------------------------

    async def _read_log(self) -> None:
        buffer = memoryview(bytearray(RECEIVE_BYTES))
        housekeeping, statistics = self._housekeeping, self._statistics
        housekeeping_s = self._settings.housekeeping_interval_s
        try:
            while self.close_reason is CloseReason.NONE:
                received_bytes = await receive_into(self._stream, buffer)
                if not received_bytes:
                    self._end(CloseReason.EOF)
                    break
                if not self._is_answered:
                    self._is_answered = True
                    self._verdict.answered()
                self._receive(buffer[:received_bytes])
                if self._is_unsettled:
                    # What was received counts from now: the wait is not the master's silence.
                    housekeeping.deadline_s = trio.current_time() + housekeeping_s
                    await self._settle()
                ack_offset = self._ack_offset
                if ack_offset > self.reported_offset:
                    self._report(ack_offset)
                # After the report: the master waits for that. Time that appending took is not its silence.
                now_s = trio.current_time()
                self._frame_bytes += received_bytes
                if self._has_moved or self._frame_bytes >= BYTES_PER_S_MIN * housekeeping_s:
                    self._has_moved = False
                    self._frame_bytes = 0
                    housekeeping.deadline_s = now_s + housekeeping_s
                statistics.rate.add(received_bytes, now_s)
                statistics.last_read_ms = time.time_ns() // 1_000_000
        except trio.BrokenResourceError:
            self._end(CloseReason.IO_ERROR)
        except RemoteProtocolError as error:
            self._refuse(self._log.max_offset, CloseReason.BAD_SIZE, str(error))
        except ReplicationError as error:
            if error.reason in VERDICT_REASONS:
                self._verdict.set_gap(error)
            if error.reason is CloseReason.PROBED:
                log.info(str(error), master=self._master_address)
                self._end(error.reason)
            else:
                self._refuse(error.offset, error.reason, str(error))
        except StoreError as error:
            # A full disk: the log stays whole, and later connections find out when there is space again.
            self._refuse(self._log.max_offset, CloseReason.STORE_ERROR, str(error))

    async def _settle(self) -> None:
        """Complete what `_receive` could not: it has set `_is_unsettled`."""
        self._is_unsettled = False

    @abstractmethod
    def _receive(self, data: memoryview) -> None:
        """Append what `data` completes. Raises RemoteProtocolError, ReplicationError, StoreError."""

    def _after_header(self, offset: int, body_bytes: int) -> None:
        """Record the header of a frame that continues the log."""
        self._has_moved = True
        if body_bytes == 0:
            if self._log.is_empty:
                # The master's log reaches to where this one starts.
                self._verdict.clear()
            self._sink.emit(
                Kind.HEARTBEAT,
                conn=self.connection_id,
                offset=offset,
                aux=self._log.max_offset,
                flags=Direction.RECEIVED,
            )

    def _after_body(self, ended: Sequence[Frame]) -> None:
        """Record what was appended, with which the frames `ended` are whole."""
        if self._session.is_checked:
            self._verdict.text = ""
            self._tail_checked.set()
        if ended:
            self.frame_received = True
            self._has_moved = True
        max_offset = self._log.max_offset
        for frame in ended:
            self._sink.emit(
                Kind.RECEIVED,
                conn=self.connection_id,
                offset=frame.offset,
                aux=max_offset,
                size=frame.body_bytes,
            )

    # -- reports -------------------------------------------------------------------------------------------

    @property
    def _ack_offset(self) -> int:
        """What may be acknowledged now, by ack mode and tail check; nothing new by an observer."""
        if self._is_observer:
            return self._request_offset
        if self._ack_mode is AckMode.FLUSHED:
            return min(self._session.ack_offset, self._log.flushed.offset)
        return self._session.ack_offset

    async def _write_reports(self) -> None:
        """Send the first report, then what `_report` could not send at once."""
        with self._ended_by_errors():
            if self.reported_offset < 0:
                self._report(self._request_offset)
            self._requested.set()
            while True:
                await self._unsent.wait()
                await self._outbox.flush()
                self._unsent = trio.Event()

    async def _send_heartbeats(self) -> None:
        """Report again whenever nothing was reported for haSendHeartbeatInterval."""
        await self._requested.wait()
        with self._ended_by_errors():
            while True:
                await quiet(self._settings.heartbeat_interval_s, lambda: self._last_report_s)
                self._report(max(self._ack_offset, self.reported_offset))

    @contextmanager
    def _ended_by_errors(self) -> Iterator[None]:
        """A report that cannot be sent ends the connection."""
        try:
            yield
        except trio.BrokenResourceError:
            self._end(CloseReason.IO_ERROR)
        except trio.TooSlowError:
            self._end(CloseReason.HOUSEKEEPING)

    def _report(self, offset: int) -> None:
        """Report `offset` to the master: at once if the socket accepts it, else through the writer task."""
        has_grown = offset != self.reported_offset
        self.reported_offset = offset
        if has_grown:
            self._sink.emit(Kind.REPORTED, conn=self.connection_id, offset=offset, aux=self._log.max_offset)
        else:
            self._sink.emit(
                Kind.HEARTBEAT,
                conn=self.connection_id,
                offset=offset,
                aux=self._log.max_offset,
                flags=Direction.SENT,
            )
        self._outbox.put(self._encode_report(offset))
        if not self._outbox.is_empty:
            self._unsent.set()
        self._last_report_s = trio.current_time()
        self._statistics.last_write_ms = time.time_ns() // 1_000_000

    async def _report_flushed(self) -> None:
        """Report what was synced while nothing was received."""
        await self._requested.wait()
        with self._ended_by_errors():
            while True:
                await self._log.flushed.reached(self.reported_offset + 1)
                if self._ack_offset <= self.reported_offset:
                    # Until the tail check is over, flushed bytes may not be acknowledged.
                    await self._tail_checked.wait()
                else:
                    self._report(self._ack_offset)


class DefaultHaClient(HaClient):
    """A connection of the default protocol."""

    def __init__(
        self, stream: trio.abc.Stream, *, session: ReplicationSession, commit_log: CommitLog, **options: Any
    ) -> None:
        """`options` are those of `HaClient`."""
        super().__init__(stream, session=session, commit_log=commit_log, **options)
        self._replication = session
        self._decoder = TransferDecoder(
            body_bytes_max=min(BODY_BYTES_MAX, commit_log.file_bytes),
            joined_within_bytes=commit_log.file_bytes,
        )

    def _first_report(self) -> int:
        """The offset to request."""
        if self._log.is_empty:
            return self._replication.begin()
        return self._replication.begin(at_most=self._requested_at_most())

    def _receive(self, data: memoryview) -> None:
        """Append what `data` completes. Raises ReplicationError at a frame that does not continue the log."""
        decoder, session = self._decoder, self._replication
        decoder.feed(data)
        while (event := decoder.next_event()) is not None:
            match event:
                case FrameHeader():
                    session.receive_header(event)
                    self._after_header(event.offset, event.body_bytes)
                case BodyPart():
                    session.receive_body(event.data)
                    self._after_body(event.ended)

    def _encode_report(self, offset: int) -> bytes:
        return encode_report(offset)
