"""The slave's side of replication: dials the master, takes its log, reports how far it is (spec ha 2.3, 3.2).

Theory of operation. While the node runs, the slave is READY (no connection), or in TRANSFER with one. A
connection is a nursery like the master's: a reader that appends what the master sends and reports the log's
end when it has grown, and a writer that sends heartbeats, and reports that the socket did not take at once.
The first report goes out at once: it is the request, and names the exact byte to go on from. Silence of the
master beyond the housekeeping interval ends the connection; after any end the slave waits (0.1 s, doubling to
5 s, back to 0.1 s once a frame was taken) and dials again.

An ack is a promise: what is reported is the end of whole, checked records in the own log. The bytes of a
frame are checked record by record before they are appended; a bad one ends the connection. With
trioha.haVerify=frame only the records' boundaries are, and their contents by the dispatcher behind.

Each connection, from the dial to its end, runs within a border: whatever the master sends, a fault of this
program or a shortage ends that connection, and the slave dials again. A disk that refuses bytes does so, too;
one that fails a sync ends the node, but not here: in the flush task.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from itertools import count

import structlog
import trio

from trioha.broker_status import SlaveStatus
from trioha.config.model import AckMode, GapPolicy
from trioha.errors import RemoteProtocolError, StoreError
from trioha.ha.frames import BODY_BYTES_MAX, BodyPart, FrameHeader, TransferDecoder, encode_report
from trioha.ha.meter import RateMeter
from trioha.ha.replication_session import ReplicationError, ReplicationSession, ReplicationSettings
from trioha.ha.settings import HaSettings
from trioha.ha.states import StateCell
from trioha.net.border import ConnectionBorder, find_shortage
from trioha.net.busy_poll import BusyPoll
from trioha.net.housekeeping import Housekeeping
from trioha.net.transport import SocketTransport, local_address, receive_into, send_now
from trioha.recording.events import (
    NO_CONNECTION,
    CloseReason,
    Direction,
    EventSink,
    HaState,
    Kind,
    LinkEvent,
)
from trioha.store.commit_log import CommitLog

log = structlog.get_logger(__name__)

CONNECT_TIMEOUT_S = 5.0
BACK_OFF_MIN_S = 0.1
BACK_OFF_MAX_S = 5.0
UNANSWERED_MAX = 3
"""Connections that the master ended without a byte, in a row, before that is named."""
RECEIVE_BYTES = 1 << 20
"""Taken at once at most: what a connection's buffer holds."""

OBSERVED_AGE_S = 60.0
"""An observer asks from a record at least so old: no put waits that long."""

GAP_REASONS = frozenset((CloseReason.GAP, CloseReason.AHEAD, CloseReason.DIVERGED))
"""Ends after which the own log cannot be continued as it is."""

LASTING_REASONS = GAP_REASONS | {CloseReason.INTERNAL_ERROR}
"""Ends that a new connection does not change, even one that has brought something."""

Connect = Callable[[], Awaitable[trio.abc.Stream]]


class HaSlave:
    """Keeps this node's log a copy of the master's."""

    def __init__(
        self,
        *,
        master_address: str,
        connect: Connect,
        commit_log: CommitLog,
        settings: HaSettings,
        sink: EventSink,
        replication: ReplicationSettings | None = None,
        ack_mode: AckMode = AckMode.WRITTEN,
        is_observer: bool = False,
        gap_policy: GapPolicy = GapPolicy.FAIL,
        connection_ids: Iterator[int] | None = None,
    ) -> None:
        """`connect` opens a stream to the master's HA port; OSError and TooSlowError mean it is not there.

        `connection_ids` numbers connections: the same as the node's `HaMaster` has, so that no two are alike.
        """
        self._master_address = master_address
        self._connect = connect
        self._log = commit_log
        self._settings = settings
        self._sink = sink
        self._ack_mode = ack_mode
        self._is_observer = is_observer
        self._gap_policy = gap_policy
        self._session = ReplicationSession(commit_log, replication or ReplicationSettings())
        self._verdict = ""
        self._request_offset = 0
        """First report of the current connection."""
        self._requested = trio.Event()
        """Set when the current connection's first report went out."""
        self._checked = trio.Event()
        """Set when the current connection's tail check is over."""
        self._ids = connection_ids or count(1)
        self._connection_id = NO_CONNECTION
        self._connections = 0
        self.border = ConnectionBorder("link to the master")
        """Ends what a connection raises, and counts it."""
        self.state = StateCell(HaState.READY)
        """The link's state; whoever wants to know of changes waits here."""
        self._reported_offset = -1
        self._local_address: str | None = None
        self._reason = CloseReason.NONE
        self.last_close_reason = CloseReason.NONE
        """Why the last connection ended; NONE before that."""
        self._frame_taken = False
        self._is_answered = False
        """Whether the master has sent a byte on the current connection."""
        self._unanswered = 0
        """Connections in a row that the master ended without one."""
        self._header = FrameHeader(0, 0)
        """Header of the frame that is being received."""
        self._unsent = bytearray()
        """Reports that the socket did not take at once; the writer task sends them."""
        self._unsent_report = trio.Event()
        self._last_report_s = 0.0
        self._rate = RateMeter(0.0)
        self._last_read_ms = 0
        self._last_write_ms = 0

    def status(self) -> SlaveStatus:
        """How the link stands now."""
        return SlaveStatus(
            master_address=self._master_address,
            max_offset=self._log.max_offset,
            transferred_bytes_per_s=self._rate.bytes_per_s(trio.current_time()),
            last_read_ms=self._last_read_ms,
            last_write_ms=self._last_write_ms,
            reported_offset=self._reported_offset,
            state=self.state.state.name,
            reconnects=max(0, self._connections - 1),
            verdict=self._verdict,
            local_address=self._local_address,
            is_observer=self._is_observer,
        )

    async def run(self) -> None:
        """Replicate for ever, whatever master or disk do meanwhile."""
        back_off_s = BACK_OFF_MIN_S
        try:
            while True:
                self._frame_taken = False
                with self.border.around(self._master_address) as crossing:
                    self._sink.emit(Kind.LINK, flags=LinkEvent.CONNECTING)
                    await self._connect_and_replicate()
                if crossing.error is not None:
                    self.last_close_reason = CloseReason.INTERNAL_ERROR
                with self.border.around(self._master_address):
                    back_off_s = self._back_off(back_off_s)
                await trio.sleep(back_off_s)
                back_off_s = min(back_off_s * 2, BACK_OFF_MAX_S)
        finally:
            self.state.change_to(HaState.SHUTDOWN)

    def _back_off(self, back_off_s: float) -> float:
        """A connection has ended: what is to be done before the next one, and how long it has to wait."""
        reason = self.last_close_reason
        if reason in GAP_REASONS and self._gap_policy is GapPolicy.RESYNC and not self._log.is_empty:
            self._archive_log(reason)
            back_off_s = BACK_OFF_MIN_S
        elif self._frame_taken and reason not in LASTING_REASONS:
            back_off_s = BACK_OFF_MIN_S
        log.info(
            "no connection to the master",
            master=self._master_address,
            reason=reason.name,
            next_try_s=back_off_s,
        )
        self._sink.emit(
            Kind.LINK, conn=self._connection_id, size=round(back_off_s * 1000), flags=LinkEvent.BACK_OFF
        )
        return back_off_s

    async def _connect_and_replicate(self) -> None:
        self._connection_id = NO_CONNECTION
        try:
            with trio.fail_after(CONNECT_TIMEOUT_S):
                stream = await self._connect()
        except (OSError, trio.TooSlowError, UnicodeError) as error:
            # UnicodeError: a host name that the resolver cannot encode.
            self.last_close_reason = CloseReason.CONNECT_FAILED
            shortage = find_shortage(error)
            if shortage is not None:
                self.border.report(shortage, self._master_address, what="connect failed")
            else:
                log.info("connect failed", master=self._master_address, error=str(error) or "timed out")
            return
        self._connections += 1
        await self.replicate(stream)

    async def replicate(self, stream: trio.abc.Stream) -> CloseReason:
        """Take the log over one stream until the connection ends, and say why. The stream is closed then.

        Raises what the border is for, with the reason INTERNAL_ERROR.
        """
        self._reason = CloseReason.NONE
        try:
            await self._replicate(stream)
        except Exception:
            self._end(CloseReason.INTERNAL_ERROR)
            raise
        finally:
            self._end(CloseReason.SHUTDOWN)
            self.last_close_reason = self._reason
            self._local_address = None
            try:
                self._closed()
            finally:
                with trio.CancelScope(shield=True):
                    await trio.aclose_forcefully(stream)
        return self._reason

    async def _replicate(self, stream: trio.abc.Stream) -> None:
        self._connection_id = next(self._ids)
        self._is_answered = False
        self._reported_offset = -1
        self._requested = trio.Event()
        self._checked = trio.Event()
        try:
            self._request_offset = self._first_report()
        except StoreError as error:
            self._refuse(self._log.max_offset, CloseReason.STORE_ERROR, str(error))
            return
        self._unsent = bytearray()
        self._unsent_report = trio.Event()
        self._rate = RateMeter(trio.current_time())
        self._local_address = local_address(stream)
        if isinstance(stream, SocketTransport) and self._settings.busy_poll_s:
            stream.busy_poll = BusyPoll(self._settings.busy_poll_s)
        self._sink.fact("connection", conn=self._connection_id, address=self._master_address, role="slave")
        self._sink.emit(Kind.LINK, conn=self._connection_id, flags=LinkEvent.CONNECTED)
        self._change_state(HaState.TRANSFER)
        log.info("connected to the master", master=self._master_address, max_offset=self._log.max_offset)
        housekeeping = Housekeeping(idle_timeout_s=self._settings.housekeeping_interval_s)
        tasks = [partial(self._read_log, stream, housekeeping), partial(self._write_reports, stream)]
        if self._ack_mode is AckMode.FLUSHED and not self._is_observer:
            tasks.append(partial(self._report_flushed, stream))
        await housekeeping.run(*tasks)
        if housekeeping.is_expired:
            self._end(CloseReason.HOUSEKEEPING)
            log.warning(
                f"ha housekeeping, found this connection[{self._master_address}] expired",
                interval_s=self._settings.housekeeping_interval_s,
            )

    def _closed(self) -> None:
        """Report that the connection has ended."""
        self.state.change_to(HaState.READY)
        self._judge_silence()
        max_offset = self._log.max_offset
        self._sink.emit(
            Kind.CLOSED, conn=self._connection_id, offset=max_offset, aux=max_offset, flags=self._reason
        )
        self._change_state(HaState.READY)

    def _judge_silence(self) -> None:
        """Name a master that takes the connection, and the request, and hangs up.

        A 4.9 master does so where the slave's log ends far beyond its own, a trioha master to peers that it
        does not admit.
        """
        if self._is_answered:
            self._unanswered = 0
        elif self._reason in {CloseReason.EOF, CloseReason.IO_ERROR}:
            self._unanswered += 1
            if self._unanswered >= UNANSWERED_MAX:
                self._verdict = (
                    f"REFUSED: {self._unanswered} connections ended without an answer: the master does not "
                    f"admit this slave, or its log ends before {self._request_offset}"
                )
                log.warning(self._verdict, master=self._master_address)

    def _archive_log(self, reason: CloseReason) -> None:
        """Keep the log that does not follow the master's beside the store, and begin a new one."""
        directory = self._log.directory
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%f")
        aside = directory.with_name(f"{directory.name}.{reason.name.lower()}-{stamp}")
        try:
            self._log.archive(aside)
        except (OSError, StoreError) as error:
            log.error("the log cannot be set aside", path=str(aside), reason=str(error))
            return
        log.warning("log set aside, starting anew", kept_as=str(aside), reason=self._verdict)
        self._verdict = ""
        # Until the next connection nothing else would say that the own log ends elsewhere now.
        self._change_state(HaState.READY)
        self._sink.emit(Kind.FLUSHED, offset=self._log.flushed.offset)

    def _end(self, reason: CloseReason) -> None:
        if self._reason is CloseReason.NONE:
            self._reason = reason

    def _change_state(self, state: HaState) -> None:
        self.state.change_to(state)
        max_offset = self._log.max_offset
        self._sink.emit(Kind.STATE, conn=self._connection_id, offset=max_offset, aux=max_offset, flags=state)

    # -- the master's log ----------------------------------------------------------------------------------

    async def _read_log(self, stream: trio.abc.Stream, housekeeping: Housekeeping) -> None:
        file_bytes = self._log.file_bytes
        decoder = TransferDecoder(
            body_bytes_max=min(BODY_BYTES_MAX, file_bytes), joined_within_bytes=file_bytes
        )
        buffer = memoryview(bytearray(RECEIVE_BYTES))
        housekeeping_s = self._settings.housekeeping_interval_s
        try:
            while self._reason is CloseReason.NONE:
                received_bytes = await receive_into(stream, buffer)
                if not received_bytes:
                    self._end(CloseReason.EOF)
                    break
                if not self._is_answered:
                    self._is_answered = True
                    if self._unanswered >= UNANSWERED_MAX:
                        self._verdict = ""
                now_s = trio.current_time()
                self._rate.add(received_bytes, now_s)
                self._last_read_ms = time.time_ns() // 1_000_000
                decoder.feed(buffer[:received_bytes])
                self._take_events(decoder)
                if self._ack_offset > self._reported_offset:
                    self._report(stream, self._ack_offset)
                # The time that its bytes took here is no silence of the master's.
                housekeeping.deadline_s = trio.current_time() + housekeeping_s
        except trio.BrokenResourceError:
            self._end(CloseReason.IO_ERROR)
        except RemoteProtocolError as error:
            self._refuse(self._log.max_offset, CloseReason.BAD_SIZE, str(error))
        except ReplicationError as error:
            if error.reason in GAP_REASONS:
                self._verdict = f"{error.reason.name}: {error}"
            if error.reason is CloseReason.PROBED:
                log.info(str(error), master=self._master_address)
                self._end(error.reason)
            else:
                self._refuse(error.offset, error.reason, str(error))
        except StoreError as error:
            # A full disk: the log stays whole, and the next tries find out when there is space again.
            self._refuse(self._log.max_offset, CloseReason.STORE_ERROR, str(error))

    def _take_events(self, decoder: TransferDecoder) -> None:
        """Take all that the decoder has; raises ReplicationError at a frame that does not fit."""
        while (event := decoder.next_event()) is not None:
            match event:
                case FrameHeader():
                    self._header = event
                    self._session.receive_header(event)
                    if event.body_bytes == 0:
                        if self._log.is_empty:
                            # The master's log reaches to where this one is to begin.
                            self._verdict = ""
                        self._sink.emit(
                            Kind.HEARTBEAT,
                            conn=self._connection_id,
                            offset=event.offset,
                            aux=self._log.max_offset,
                            flags=Direction.RECEIVED,
                        )
                case BodyPart(data, ended):
                    self._session.receive_body(data)
                    if self._session.is_checked:
                        self._verdict = ""
                        self._checked.set()
                    if ended:
                        self._frame_taken = True
                    max_offset = self._log.max_offset
                    for offset, body_bytes in ended:
                        self._sink.emit(
                            Kind.RECEIVED,
                            conn=self._connection_id,
                            offset=offset,
                            aux=max_offset,
                            size=body_bytes,
                        )

    def _refuse(self, offset: int, reason: CloseReason, message: str) -> None:
        log.warning(message, master=self._master_address, reason=reason.name)
        self._sink.emit(
            Kind.REFUSED,
            conn=self._connection_id,
            offset=offset,
            aux=self._log.max_offset,
            flags=reason,
        )
        self._end(reason)

    @property
    def _ack_offset(self) -> int:
        """What may be promised now: by ack mode, as far as the tail was compared; nothing by an observer."""
        if self._is_observer:
            return self._request_offset
        if self._ack_mode is AckMode.FLUSHED:
            return min(self._session.ack_offset, self._log.flushed.offset)
        return self._session.ack_offset

    def _first_report(self) -> int:
        """Where to go on from; for an observer so far back that no producer can still wait for it."""
        session = self._session
        if not self._is_observer or self._log.is_empty:
            return session.begin()
        before_ms = time.time_ns() // 1_000_000 - round(OBSERVED_AGE_S * 1000)
        return session.begin(at_most=self._log.record_stored_before(before_ms))

    # -- reports -------------------------------------------------------------------------------------------

    async def _write_reports(self, stream: trio.abc.Stream) -> None:
        """Send what `_report` could not send at once, and a heartbeat whenever nothing else was sent."""
        heartbeat_s = self._settings.heartbeat_interval_s
        self._last_report_s = trio.current_time()
        try:
            self._report(stream, self._request_offset)
            self._requested.set()
            while True:
                with trio.move_on_at(self._last_report_s + heartbeat_s):
                    await self._unsent_report.wait()
                if self._unsent:
                    data = bytes(self._unsent)
                    with trio.fail_after(self._settings.housekeeping_interval_s):
                        await stream.send_all(data)
                    del self._unsent[: len(data)]
                if not self._unsent:
                    self._unsent_report = trio.Event()
                    if trio.current_time() >= self._last_report_s + heartbeat_s:
                        self._report(stream, max(self._ack_offset, self._reported_offset))
        except trio.BrokenResourceError:
            self._end(CloseReason.IO_ERROR)
        except trio.TooSlowError:
            self._end(CloseReason.HOUSEKEEPING)

    def _report(self, stream: trio.abc.Stream, offset: int) -> None:
        """Tell the master where the log ends; sent at once if the socket takes it, else by the writer."""
        grown = offset != self._reported_offset
        self._reported_offset = offset
        self._last_report_s = trio.current_time()
        self._last_write_ms = time.time_ns() // 1_000_000
        if grown:
            self._sink.emit(Kind.REPORTED, conn=self._connection_id, offset=offset, aux=self._log.max_offset)
        else:
            self._sink.emit(
                Kind.HEARTBEAT,
                conn=self._connection_id,
                offset=offset,
                aux=self._log.max_offset,
                flags=Direction.SENT,
            )
        report = encode_report(offset)
        # What is waiting already goes first.
        self._unsent += report if self._unsent else send_now(stream, report)
        if self._unsent:
            self._unsent_report.set()

    async def _report_flushed(self, stream: trio.abc.Stream) -> None:
        """Report what came to be on disk while nothing was received."""
        try:
            await self._requested.wait()
            while True:
                await self._log.flushed.reached(self._reported_offset + 1)
                if self._ack_offset <= self._reported_offset:
                    # The tail check is not over: what is flushed of it counts when it is.
                    await self._checked.wait()
                else:
                    self._report(stream, self._ack_offset)
        except trio.BrokenResourceError:
            self._end(CloseReason.IO_ERROR)
