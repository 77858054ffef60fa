"""One connection of a remoting server: its tasks.

Theory of operation. A connection is one nursery with a reader, a writer and the idle timeout; the first of
them to end ends the connection. What they know of requests is in objects without tasks: `InFlight` (what is
in flight, and its limits) and `RequestHandling` (from frames to handlers, from answers to frames);
`RequestReader` says when bytes may be read.

The reader has each request handled, in the order of their arrival. What a handler answers at once is in the
outbox then. Other answers have tasks in the same nursery:

- `_answer_sends`: one for all sends that wait for the same marks. Sends of one connection are stored in their
  order, and what they wait for moves forward: the first one is settled first. It waits for the oldest, and
  answers all that are settled then, in one send. Sends that wait for something else (other copies, the disk)
  have another one.
- `_answer_waiting`: one for all `WaitingAnswer`, as pulls that wait for messages. It answers those that were
  woken, in one send.
- `_await_answer`: one for each other awaitable.

Answers are written in any order, all that are there in one send: by the task that has put them into the
outbox, as far as the socket accepts them at once, else by the writer.

A request is in flight from its read until its answer is written. A connection with `in_flight_max` requests
or `in_flight_bytes_max` bytes in flight is not read from until some are answered; nor is one for which
`ClientMemory` has no room. So a peer that sends requests and does not read the answers blocks itself, and is
closed when a send takes longer than `send_timeout_s`. A frame that is not complete `frame_timeout_s` after
its first byte ends the connection; its clock stops while the connection is not read from.

Draining. `drain` ends the reader, also in the middle of a frame, and drops requests that were received and
not yet handled: for the peer the connection ends without an answer, as after a crash, and it retries
elsewhere. Requests in flight are answered. Then the connection closes its sending side and discards what it
still receives, for at most `LINGER_S`: closing a socket with unread bytes would reset the connection, and the
peer would lose answers that it has not received yet.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Awaitable, Hashable
from typing import Final

import trio
from attrs import define, field

from trioha.errors import RemoteProtocolError
from trioha.net.busy_poll import polled
from trioha.net.error_boundary import ErrorBoundary
from trioha.net.housekeeping import Housekeeping
from trioha.net.transport import send_all_parts, send_parts_now
from trioha.remoting.closures import ClosureLog
from trioha.remoting.codec import FrameDecoder
from trioha.remoting.command import RemotingCommand
from trioha.remoting.in_flight import InFlight
from trioha.remoting.memory import ClientMemory
from trioha.remoting.pull_forms import PullForms
from trioha.remoting.request_handling import Blocked, RequestHandling, Wait
from trioha.remoting.request_reader import RequestReader
from trioha.remoting.serving import (
    AckHandler,
    Handler,
    Peer,
    PendingAnswer,
    PullHandler,
    RunHandler,
    ServerLimits,
    ServerStatistics,
    WaitingAnswer,
    WokenAnswers,
)

REQUESTS_PER_TURN: Final = 16
"""After so many requests the reader yields to other connections. Sends of one turn go to slaves in one frame:
with four a turn, a send of 16 in flight cost a third more CPU time, on the slave twice as much."""
RECEIVES_PER_TURN: Final = 4
"""Receives of one turn while other requests are in flight: what came while it handled the first ones
goes to slaves, and is answered, together with them."""
ANSWERS_PER_SEND: Final = 4
"""So many answers to the requests of a turn are sent before it ends. A client with 16 requests in flight then
handles answers while the server handles the rest: no lockstep."""
ANSWER_BYTES_PER_SEND: Final = 64 * 1024
"""Answers of more bytes than this, and those with slices, are also sent before the turn ends: a consumer
decodes the messages of one pull while the server reads those of the next."""
LINGER_S: Final = 0.5
"""How long a drained connection waits until its peer closes it."""


@define(eq=False)
class _Lane:
    """Sends that wait for the same marks: the first one is settled first. Each lane has a task.

    The task sleeps until the first one is settled, or its deadline. Who puts the first send into an empty
    lane watches it, so that the task does not wake up for that.
    """

    marks: Hashable
    sends: deque[tuple[Wait, PendingAnswer]] = field(factory=deque)
    """Oldest first."""
    woken: trio.Event = field(factory=trio.Event)
    alarm: trio.CancelScope = field(factory=trio.CancelScope)
    """Cancelled at the deadline of the first one, or of one before: moving it costs as much as a wait."""

    def add(self, wait: Wait, answer: PendingAnswer) -> None:
        """One more, after all others."""
        self.sends.append((wait, answer))
        if len(self.sends) == 1:
            self.watch(trio.current_time())

    def watch(self, now_s: float) -> None:
        """Have the task woken for the first one."""
        due_s = self.sends[0][1].watch(self.woken, now_s)
        if due_s < self.alarm.deadline:  # noqa: PLR1730 - setting it costs the same if it is as before
            self.alarm.deadline = due_s


class ServerConnection:
    """Serves one peer."""

    def __init__(
        self,
        stream: trio.abc.Stream,
        peer: Peer,
        *,
        handler: Handler,
        limits: ServerLimits,
        memory: ClientMemory,
        counters: ServerStatistics,
        boundary: ErrorBoundary,
        closures: ClosureLog,
        runs: RunHandler | None = None,
        pulls: PullHandler | None = None,
        acks: AckHandler | None = None,
        forms: PullForms | None = None,
    ) -> None:
        self._stream = stream
        self.peer = peer
        self._limits = limits
        self._counters = counters
        self._closures = closures
        self._account = memory.open_account(self._give_up)
        self._decoder = FrameDecoder(frame_bytes_max=limits.frame_bytes_max, forms=forms)
        self._in_flight = InFlight(limits, self._account, counters)
        self._handling = RequestHandling(
            peer,
            self._decoder,
            self._in_flight,
            self._account,
            handler=handler,
            runs=runs,
            pulls=pulls,
            acks=acks,
            counters=counters,
            boundary=boundary,
        )
        self._reader = RequestReader(stream, self._decoder, self._account, limits)
        self._housekeeping = Housekeeping(idle_timeout_s=limits.idle_timeout_s)
        self._life = trio.CancelScope()
        self._to_send = trio.Event()
        """Set when there is something for the writer to send."""
        self._less_in_flight: trio.Event | None = None
        """Set when answers were sent; None unless the reader waits for it."""
        self._lanes: dict[Hashable, _Lane] = {}
        """Sends that wait, by what they wait for; the newest lane last."""
        self._waiting: dict[WaitingAnswer, Wait] = {}
        self._woken: WokenAnswers | None = None
        """Those of `_waiting` that were woken; None before the first one waits."""
        self._is_draining = False
        self._is_given_up = False
        self._is_over = False

    async def run(self) -> None:
        """Serve until either side ends the connection."""
        try:
            with self._life, polled(self._stream):
                async with trio.open_nursery() as tasks:
                    tasks.start_soon(self._write)
                    tasks.start_soon(self._end_when_silent)
                    await self._read(tasks)
                    self._life.cancel()
        finally:
            self._is_over = True
            for waiting in self._waiting:
                waiting.abandon()
            # Free the buffers now, not by the garbage collector.
            self._decoder.clear()
            self._in_flight.close()
            self._account.close()

    async def _end_when_silent(self) -> None:
        await self._housekeeping.expired()
        self._counters.idle_closes += 1
        self._life.cancel()

    def drain(self) -> None:
        """Read no more requests, answer those in flight, then close."""
        self._is_draining = True
        self._reader.scope.cancel()

    def cut(self) -> None:
        """Close now."""
        self._counters.cut_connections += self._in_flight.requests > 0
        self._life.cancel()

    def push(self, frame: bytes, *, may_wait: bool = False) -> None:
        """Send `frame`; if other bytes wait, send it after them with `may_wait`, else drop it."""
        if self._is_over or not self._account.fits(len(frame)):
            return
        if may_wait or not self._in_flight.has_outgoing:
            self._in_flight.push(frame)
            self._send_or_end()

    # -- reading ---------------------------------------------------------------------------------------

    async def _read(self, tasks: trio.Nursery) -> None:
        scope = self._reader.scope
        try:
            with scope:
                await self._read_requests(tasks)
            if self._is_draining and not self._is_over:
                await self._finish()
        except trio.BrokenResourceError:
            self._end(is_broken=True)
        except RemoteProtocolError as error:
            self._end(is_broken=False)
            self._counters.protocol_errors += 1
            self._closures.closed(str(self.peer), str(error))
        else:
            if scope.cancelled_caught and not self._is_draining:
                self._count_unfinished()

    async def _read_requests(self, tasks: trio.Nursery) -> None:
        reader, in_flight = self._reader, self._in_flight
        handled = 0
        while data := await reader.receive():
            self._not_idle()
            self._decoder.feed(data)
            handled = await self._handle_requests(handled, tasks)
            receives = 1
            while receives < RECEIVES_PER_TURN and in_flight.requests > 1 and (more := reader.receive_more()):
                self._decoder.feed(more)
                handled = await self._handle_requests(handled, tasks)
                receives += 1
            reader.note_unfinished()
            self._send()
        self._end(is_broken=False)

    async def _handle_requests(self, handled: int, tasks: trio.Nursery) -> int:
        """Handle the requests that are whole; returns `handled` and their number."""
        handling, in_flight = self._handling, self._in_flight
        while True:
            requests = handling.handle_next(REQUESTS_PER_TURN - handled % REQUESTS_PER_TURN)
            if self._reader.has_clock:
                self._reader.stop_clock()
            if handling.waits:
                self._begin_waits(tasks)
            if not requests:
                if handling.blocked is None:
                    return handled
                self._send()
                await self._reader.paused(self._room(handling.blocked))
                continue
            handled += requests
            if (
                in_flight.has_slices
                or in_flight.answered >= ANSWERS_PER_SEND
                or in_flight.outbox_bytes > ANSWER_BYTES_PER_SEND
            ):
                self._send()
            if handled % REQUESTS_PER_TURN == 0:
                self._send()
                await trio.lowlevel.checkpoint()

    async def _room(self, request: Blocked) -> None:
        """Wait until there may be room for the request."""
        in_flight = self._in_flight
        if not in_flight.allows(1, request.cost_bytes):
            await self._wait_for_less_in_flight()
        else:
            await self._account.wait_to_handle(request.more_bytes, is_only=lambda: in_flight.requests == 0)

    async def _wait_for_less_in_flight(self) -> None:
        self._less_in_flight = trio.Event()
        await self._less_in_flight.wait()
        self._less_in_flight = None

    def _count_unfinished(self) -> None:
        """Count and log why the reader was stopped in the middle of a frame."""
        size = f"a frame of which {self._decoder.buffered_bytes} bytes have come"
        if self._is_given_up:
            self._counters.memory_closes += 1
            self._closures.closed(str(self.peer), f"the memory for clients is used up, and it holds {size}")
        else:
            self._counters.frame_timeouts += 1
            self._closures.closed(
                str(self.peer), f"{size} is not whole after {self._limits.frame_timeout_s:g} s"
            )

    def _give_up(self) -> None:
        """Close this connection to free memory."""
        self._is_given_up = True
        self._reader.scope.cancel()

    def _end(self, *, is_broken: bool) -> None:
        """Mark the connection as ended. Reader and writer may both find it broken: the first one counts
        it."""
        self._counters.broken_connections += is_broken and not self._is_over
        self._is_over = True

    def _not_idle(self) -> None:
        self._housekeeping.deadline_s = trio.current_time() + self._limits.idle_timeout_s

    # -- answers that come later -----------------------------------------------------------------------

    def _begin_waits(self, tasks: trio.Nursery) -> None:
        """Have the requests that wait answered by a task."""
        for wait in self._handling.waits:
            answer = wait.answer
            if isinstance(answer, PendingAnswer):
                self._answer_in_order(wait, answer, tasks)
            elif isinstance(answer, WaitingAnswer):
                if self._woken is None:
                    self._woken = WokenAnswers()
                    tasks.start_soon(self._answer_waiting, self._woken, tasks)
                self._waiting[answer] = wait
                answer.wait_in(self._woken)
            else:
                tasks.start_soon(self._await_answer, wait, answer)
        self._handling.waits.clear()

    def _answer_in_order(self, wait: Wait, answer: PendingAnswer, tasks: trio.Nursery) -> None:
        """Answer sends once they are settled, after those before them that wait for the same."""
        lane = self._lanes.get(answer.marks)
        if lane is None:
            for idle in self._lanes.values():
                idle.woken.set()
            lane = self._lanes[answer.marks] = _Lane(answer.marks)
            tasks.start_soon(self._answer_sends, lane)
        lane.add(wait, answer)

    async def _answer_sends(self, lane: _Lane) -> None:
        """Wait for the oldest of the sends, and answer all that are settled then.

        With none left it waits for the next one, unless sends wait for something else now.
        """
        try:
            while self._goes_on(lane):
                with lane.alarm:
                    while self._goes_on(lane):
                        await lane.woken.wait()
                        lane.woken = trio.Event()
                        self._answer_settled(lane)
                lane.alarm = trio.CancelScope()
                self._answer_settled(lane)
            del self._lanes[lane.marks]
        finally:
            if lane.sends:
                lane.sends[0][1].unwatch()

    def _goes_on(self, lane: _Lane) -> bool:
        return bool(lane.sends) or lane is next(reversed(self._lanes.values()))

    def _answer_settled(self, lane: _Lane) -> None:
        sends, now_s = lane.sends, trio.current_time()
        while sends and sends[0][1].is_settled(now_s):
            wait, pending = sends.popleft()
            pending.unwatch()
            try:
                answer: RemotingCommand | bytes | Exception = pending.answer()
            except Exception as error:  # noqa: BLE001 - a handler's bug must not end the connection
                answer = error
            self._done(wait, answer)
        if sends:
            lane.watch(now_s)
        self._send_or_end()

    async def _answer_waiting(self, woken: WokenAnswers, tasks: trio.Nursery) -> None:
        """Answer the requests that wait for something, when they are woken."""
        while True:
            for waiting in await woken.take():
                try:
                    answer: RemotingCommand | PendingAnswer | Exception | None = waiting.answer()
                except Exception as error:  # noqa: BLE001 - as above
                    answer = error
                if isinstance(answer, PendingAnswer):
                    self._answer_in_order(self._waiting.pop(waiting), answer, tasks)
                elif answer is not None:
                    self._done(self._waiting.pop(waiting), answer)
            self._send_or_end()

    async def _await_answer(self, wait: Wait, awaitable: Awaitable[RemotingCommand | None]) -> None:
        try:
            answer: RemotingCommand | Exception | None = await awaitable
        except Exception as error:  # noqa: BLE001 - as above
            answer = error
        self._done(wait, answer)
        # The writer sends it, with those of other tasks.
        self._to_send.set()

    def _done(self, wait: Wait, answer: RemotingCommand | bytes | Exception | None) -> None:
        self._handling.done(wait, answer)
        self._note_less_in_flight()

    # -- writing ---------------------------------------------------------------------------------------

    def _send(self) -> None:
        """Send the outbox as far as the socket accepts it at once; the writer sends the rest."""
        in_flight = self._in_flight
        if not in_flight.sending:
            if not in_flight.take_outbox():
                return
            send_parts_now(self._stream, in_flight.sending)
            if not in_flight.sending:
                in_flight.sent()
                self._note_less_in_flight()
                return
        self._to_send.set()

    def _send_or_end(self) -> None:
        """As `_send`, for tasks that do not end the connection."""
        try:
            self._send()
        except trio.BrokenResourceError:
            self._end(is_broken=True)
            # The reader finds the end of the stream, unless it waits until less is in flight; then the writer
            # does.
            self._to_send.set()

    def _note_less_in_flight(self) -> None:
        if self._less_in_flight is not None:
            self._less_in_flight.set()

    async def _write(self) -> None:
        in_flight = self._in_flight
        # One scope for all sends: a new one would cost as much as the rest of a small send.
        sending = trio.CancelScope()
        try:
            with sending:
                while True:
                    await self._to_send.wait()
                    self._to_send = trio.Event()
                    while in_flight.has_outgoing:
                        if not in_flight.sending:
                            in_flight.take_outbox()
                            send_parts_now(self._stream, in_flight.sending)
                        if in_flight.sending:
                            sending.deadline = trio.current_time() + self._limits.send_timeout_s
                            await send_all_parts(self._stream, in_flight.sending)
                            sending.deadline = math.inf
                        self._not_idle()
                        in_flight.sent()
                        self._note_less_in_flight()
        except trio.BrokenResourceError:
            self._end(is_broken=True)
        if sending.cancelled_caught:
            self._counters.send_timeouts += 1
            self._closures.closed(str(self.peer), f"it took nothing for {self._limits.send_timeout_s:g} s")
        self._life.cancel()

    async def _finish(self) -> None:
        """Wait until all requests in flight are answered, then close the sending side and wait for the
        peer."""
        while not self._in_flight.is_idle:
            await self._wait_for_less_in_flight()
        self._is_over = True
        if isinstance(self._stream, trio.abc.HalfCloseableStream):
            with trio.move_on_after(LINGER_S):
                await self._stream.send_eof()
                while await self._stream.receive_some(self._limits.receive_bytes_max):
                    pass
