"""One connection of a remoting server: its reader, its writer, and the requests in flight between them.

Theory of operation. A connection is one nursery with a reader and a single writer; each of them ends the
connection with it. The reader cuts frames and calls the handler for each request, in the order of their
arrival. A handler that knows its answer returns it; one that must wait returns an awaitable, which gets a
task of its own, or, for sends, a `PendingAnswer`. Sends of one connection are stored in their order, and what
they wait for moves forward: the first one is settled first. So one task waits for the oldest, and answers all
that are settled then, in one send (`_answer_sends`); those that wait for something else (other copies, the
disk) have another one. Answers are written in any order, all that are ready in one send: by the reader at the
end of its turn, as far as the socket accepts them at once, else by the writer.

What comes together and needs no command is handled without one: runs of sends by a `RunHandler`, and pulls of
known forms, if there are messages for them, by a `PullHandler`.

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
from functools import partial
from typing import Final

import trio
from attrs import define, field

from trioha.deferred import Deferred
from trioha.errors import RemoteProtocolError, StoreError
from trioha.net.border import ConnectionBorder
from trioha.net.busy_poll import polled
from trioha.net.housekeeping import Housekeeping
from trioha.net.transport import DirectStream, release, send_all_parts, send_now, send_parts_now
from trioha.remoting.closures import ClosureLog
from trioha.remoting.codec import FrameDecoder, SendRun, encode_head, opaques_of
from trioha.remoting.codes import RequestCode, ResponseCode
from trioha.remoting.command import BadRequestError, RemotingCommand, response_to
from trioha.remoting.memory import ClientMemory
from trioha.remoting.pull_forms import PullForms
from trioha.remoting.serving import (
    Handler,
    Peer,
    PendingAnswer,
    PullHandler,
    RunHandler,
    SendsTogether,
    ServerLimits,
    ServerStatistics,
)
from trioha.store.messages import EncodedSends

REQUESTS_PER_TURN: Final = 16
"""After so many requests the reader yields to other connections. Sends of one turn go to slaves in one frame:
with four a turn, a send of 16 in flight cost a third more CPU time, on the slave twice as much."""
RECEIVES_PER_TURN: Final = 4
"""Receives of one turn while other requests are in flight: what came while it handled the first ones
goes to slaves, and is answered, together with them."""
RECEIVE_MORE_BYTES_MAX: Final = 64 * 1024
"""With more bytes of an unfinished frame it does not: first, the system is asked for memory for the rest."""
ANSWERS_PER_SEND: Final = 4
"""So many answers to the requests of a turn are sent before it ends. A client with 16 requests in flight then
handles answers while the server handles the rest: no lockstep."""
ANSWER_BYTES_PER_SEND: Final = 64 * 1024
"""Answers of more bytes than this are also sent before the turn ends: a consumer decodes the messages of two
pulls while the server reads those of the next two."""
REQUEST_BYTES: Final = 4096
"""Memory of a request in flight beside its frame: its objects, and a task if it waits."""
HEADER_FACTOR: Final = 4
"""Largest ratio of a header's memory to its bytes: a text with one wide character needs four bytes for each
of its characters."""
STREAM_RECEIVE_BYTES_MAX: Final = 16 * 1024
"""Of one read from a stream with TLS, which gives one record at most. Their memory is held before the read,
so each connection that waits for a request holds so much."""
LINGER_S: Final = 0.5
"""How long a drained connection waits until its peer closes it."""
SLICES_COPIED_BYTES_MAX: Final = 8 * 1024
"""Slices of an answer up to so many bytes are copied: that costs less than a call that sends each of them."""
REMARK_CHARS_MAX: Final = 1000
"""Length of an exception's text in a remark."""


@define(eq=False)
class _PendingSend:
    """A send, or a run of sends, that is stored and not answered."""

    request: RemotingCommand | EncodedSends
    cost_bytes: int
    """Memory that it holds until then."""
    answer: PendingAnswer


@define(eq=False)
class _Lane:
    """Sends that wait for the same marks: the first one is settled first. Each lane has a task."""

    marks: Hashable
    sends: deque[_PendingSend] = field(factory=deque)
    """Oldest first."""
    filled: trio.Event = field(factory=trio.Event)


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
        border: ConnectionBorder,
        closures: ClosureLog,
        runs: RunHandler | None = None,
        pulls: PullHandler | None = None,
        forms: PullForms | None = None,
        together: SendsTogether,
    ) -> None:
        self._stream = stream
        self._direct = stream if isinstance(stream, DirectStream) else None
        self.peer = peer
        self._handler = handler
        self._limits = limits
        self._counters = counters
        self._border = border
        self._closures = closures
        self._runs = runs
        self._pulls = pulls
        self._together = together
        self._decoder = FrameDecoder(frame_bytes_max=limits.frame_bytes_max, forms=forms)
        self._housekeeping = Housekeeping(idle_timeout_s=math.inf)
        self._life = trio.CancelScope()
        self._reading = trio.CancelScope()
        """Cancelled to stop the reader; its deadline is that of the unfinished frame."""
        self._account = memory.open_account(self._give_up)
        self._outbox: list[bytes | memoryview] = []
        """Bytes to send, in order. Views in it belong to the connection, which releases them."""
        self._has_slices = False
        """Whether the outbox has slices, which are sent without a copy."""
        self._outbox_filled = trio.Event()
        self._in_flight = 0
        """Requests that were read and whose answers were not sent yet."""
        self._handled_bytes = 0
        """Memory of the requests in flight that the handler has not answered."""
        self._answered = 0
        """Requests in flight whose answers are in the outbox."""
        self._outbox_bytes = 0
        self._sending_bytes = 0
        """Bytes in the writer's current send."""
        self._less_in_flight: trio.Event | None = None
        """Set when answers were sent; None unless the reader waits for it."""
        self._deferred: dict[Deferred[RemotingCommand], tuple[RemotingCommand, int]] = {}
        """Deferred answers, with their requests and what these cost."""
        self._lanes: dict[Hashable, _Lane] = {}
        """Sends that wait, by what they wait for; the newest lane last."""
        self._ready: list[Deferred[RemotingCommand]] = []
        """Those that are ready, and whose results were not taken yet."""
        self._is_turn = False
        """Whether answers are put into the outbox by a task that sends it at the end of its turn."""
        self._is_sending = False
        """Whether the writer is sending."""
        self._is_draining = False
        self._is_given_up = False
        self._is_over = False

    async def run(self) -> None:
        """Serve until either side ends the connection."""
        self._housekeeping = Housekeeping(idle_timeout_s=self._limits.idle_timeout_s)
        try:
            with self._life, polled(self._stream):
                async with trio.open_nursery() as handlers:
                    await self._housekeeping.run(partial(self._read, handlers), self._write)
                    handlers.cancel_scope.cancel()
            self._counters.idle_closes += self._housekeeping.is_expired
        finally:
            self._is_over = True
            # Free the buffers now, not by the garbage collector.
            self._decoder = FrameDecoder()
            release(self._outbox)
            for deferred in self._deferred:
                deferred.abandon()
            self._deferred.clear()
            self._ready.clear()
            self._counters.in_flight -= self._in_flight
            self._account.close()

    def drain(self) -> None:
        """Read no more requests, answer those in flight, then close."""
        self._is_draining = True
        self._reading.cancel()

    def cut(self) -> None:
        """Close now."""
        self._counters.cut_connections += self._in_flight > 0
        self._life.cancel()

    def push(self, frame: bytes, *, may_wait: bool = False) -> None:
        """Send `frame`; if other bytes wait, send it after them with `may_wait`, else drop it."""
        if self._is_over or not self._account.fits(len(frame)):
            return
        if self._outbox or self._is_sending:
            if may_wait:
                self._put_in_outbox(memoryview(frame))
                self._outbox_filled.set()
            return
        try:
            left = send_now(self._stream, frame)
        except trio.BrokenResourceError:
            # The reader gets the error, too, and ends the connection.
            return
        if left:
            self._put_in_outbox(left)
            self._outbox_filled.set()

    # -- reading ---------------------------------------------------------------------------------------

    async def _read(self, handlers: trio.Nursery) -> None:
        try:
            with self._reading:
                await self._read_requests(handlers)
            if self._is_draining and not self._is_over:
                await self._finish()
        except trio.BrokenResourceError:
            self._end(is_broken=True)
        except RemoteProtocolError as error:
            self._end(is_broken=False)
            self._counters.protocol_errors += 1
            self._closures.closed(str(self.peer), str(error))
        else:
            if self._reading.cancelled_caught and not self._is_draining:
                self._count_unfinished()

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

    async def _read_requests(self, handlers: trio.Nursery) -> None:
        decoder, account = self._decoder, self._account
        handled = 0
        while data := await self._receive():
            self._not_idle()
            decoder.feed(data)
            self._is_turn = True
            done = plain = 0
            receives = RECEIVES_PER_TURN if self._direct is not None else 0
            while True:
                # Of a run that was refused each send is handled by itself.
                if not plain:
                    done, plain = self._handle_together(
                        REQUESTS_PER_TURN - handled % REQUESTS_PER_TURN, handlers
                    )
                    handled += done
                if plain or not done:
                    command = decoder.next_command()
                    if command is None:
                        receives -= 1
                        if receives > 0 and (data := self._receive_more()):
                            decoder.feed(data)
                            continue
                        break
                    plain = max(0, plain - 1)
                    if account.unfinished_bytes:
                        self._end_frame()
                    if command.is_response:
                        self._counters.unexpected_responses += 1
                        account.change(-decoder.frame_bytes)
                        continue
                    more_bytes = REQUEST_BYTES + (HEADER_FACTOR - 1) * decoder.header_bytes
                    cost_bytes = more_bytes + decoder.frame_bytes
                    if not (self._in_flight == 0 or self._has_room(cost_bytes)) or not account.try_to_hold(
                        more_bytes, is_only=self._in_flight == 0
                    ):
                        self._end_turn()
                        await self._wait_for_room(more_bytes, cost_bytes)
                        self._is_turn = True
                    self._handle(command, cost_bytes, handlers)
                    handled += 1
                if self._answered >= ANSWERS_PER_SEND or self._outbox_bytes > ANSWER_BYTES_PER_SEND:
                    self._end_turn()
                    self._is_turn = True
                if handled % REQUESTS_PER_TURN == 0:
                    self._end_turn()
                    await trio.lowlevel.checkpoint()
                    self._is_turn = True
            self._note_unfinished()
            self._end_turn()
        self._end(is_broken=False)

    def _end_frame(self) -> None:
        """The unfinished frame is complete: free its reserve, and stop its clock."""
        self._account.end_frame()
        self._reading.deadline = math.inf

    async def _receive(self) -> bytes:
        """Received bytes, which are already in the account; none at the end of the stream."""
        account, wanted_bytes = self._account, self._limits.receive_bytes_max
        direct = self._direct
        if account.unfinished_bytes:
            await account.keep_headroom()
        if direct is None:
            wanted_bytes = min(wanted_bytes, STREAM_RECEIVE_BYTES_MAX)
            # Bytes may come at any time during the await: hold their memory before it.
            while not (allowed_bytes := account.readable_bytes(wanted_bytes)):
                await self._paused(account.wait_to_read())
            account.receive(allowed_bytes)
            data = b""
            try:
                data = bytes(await self._stream.receive_some(allowed_bytes))
            finally:
                account.change(len(data) - allowed_bytes)
            return data
        await direct.checkpoint_if_due()
        while True:
            allowed_bytes = account.readable_bytes(wanted_bytes)
            if not allowed_bytes:
                await self._paused(account.wait_to_read())
                continue
            try:
                received = direct.receive_now(allowed_bytes)
            except MemoryError:
                # Nothing was received. Unfinished frames of others must not end this connection.
                if not await account.make_room():
                    raise
                continue
            if received is not None:
                account.receive(len(received))
                return received
            await direct.wait_readable()

    def _receive_more(self) -> bytes:
        """What has come while requests were handled; b"" if nothing has, or nothing is to be received now."""
        if (
            self._in_flight < 2
            or self._direct is None
            or self._decoder.buffered_bytes > RECEIVE_MORE_BYTES_MAX
        ):
            return b""
        allowed_bytes = self._account.readable_bytes(self._limits.receive_bytes_max)
        if not allowed_bytes:
            return b""
        try:
            data = self._direct.receive_now(allowed_bytes) or b""
        except MemoryError:
            # The next `_receive` makes room.
            return b""
        self._account.receive(len(data))
        return data

    def _note_unfinished(self) -> None:
        """Account for the unfinished frame after all complete ones, and start its clock."""
        unfinished_bytes = self._decoder.buffered_bytes
        if unfinished_bytes and not self._account.unfinished_bytes:
            now_s = trio.current_time()
            self._account.begin_frame(now_s)
            self._reading.deadline = now_s + self._limits.frame_timeout_s
        self._account.unfinished_bytes = unfinished_bytes
        self._account.frame_bytes = self._decoder.wanted_bytes

    async def _paused(self, wait: Awaitable[None]) -> None:
        """Wait with the clock of the unfinished frame stopped."""
        left_s = self._reading.deadline - trio.current_time()
        self._reading.deadline = math.inf
        try:
            await wait
        finally:
            self._reading.deadline = trio.current_time() + left_s

    def _give_up(self) -> None:
        """Close this connection to free memory."""
        self._is_given_up = True
        self._reading.cancel()

    def _end(self, *, is_broken: bool) -> None:
        """Mark the connection as ended. Reader and writer may both find it broken: the first one counts
        it."""
        self._counters.broken_connections += is_broken and not self._is_over
        self._is_over = True

    def _not_idle(self) -> None:
        self._housekeeping.deadline_s = trio.current_time() + self._limits.idle_timeout_s

    # -- requests in flight ----------------------------------------------------------------------------

    def _has_room(self, cost_bytes: int) -> bool:
        """Whether the connection's own limits allow one more request."""
        if self._in_flight == 0:
            return True
        held_bytes = self._handled_bytes + self._outbox_bytes + self._sending_bytes
        return (
            self._in_flight < self._limits.in_flight_max
            and held_bytes + cost_bytes <= self._limits.in_flight_bytes_max
        )

    async def _wait_for_room(self, more_bytes: int, cost_bytes: int) -> None:
        """Wait until one more request may be handled, and hold its memory."""
        while True:
            if not self._has_room(cost_bytes):
                await self._paused(self._wait_for_less_in_flight())
            elif self._account.try_to_hold(more_bytes, is_only=self._in_flight == 0):
                return
            else:
                await self._paused(
                    self._account.wait_to_handle(more_bytes, is_only=lambda: self._in_flight == 0)
                )

    async def _wait_for_less_in_flight(self) -> None:
        self._less_in_flight = trio.Event()
        await self._less_in_flight.wait()
        self._less_in_flight = None

    def _handle(self, command: RemotingCommand, cost_bytes: int, nursery: trio.Nursery) -> None:
        self._counters.requests += 1
        self._counters.in_flight += 1
        self._in_flight += 1
        self._handled_bytes += cost_bytes
        try:
            answer = self._handler(command, self.peer)
        except Exception as error:  # noqa: BLE001 - a handler's bug must not end the connection
            answer = self._answer_to_error(command, error)
        if answer is None or isinstance(answer, RemotingCommand):
            self._done(command, cost_bytes, answer)
        elif isinstance(answer, PendingAnswer):
            self._answer_later(command, cost_bytes, answer, nursery)
        elif isinstance(answer, Deferred):
            self._deferred[answer] = command, cost_bytes
            answer.attach(self._answer_is_ready)
        else:
            nursery.start_soon(self._await_answer, command, cost_bytes, answer)

    def _handle_together(self, sends_max: int, nursery: trio.Nursery) -> tuple[int, int]:
        """Handle what comes next and needs no command: a pull of a known form, or a run of sends.

        Returns how many requests that were, and how many sends of a run have to be handled each by itself.
        """
        if self._pulls is not None and self._answer_pull(self._pulls):
            return 1, 0
        if self._runs is None:
            return 0, 0
        run = self._decoder.sends(sends_max, shared=self._runs.shared_properties)
        if run is None:
            return 0, 0
        plain = self._handle_run(run, self._runs, nursery)
        return (0, plain) if plain else (run.sends.count, 0)

    def _answer_pull(self, handler: PullHandler) -> bool:
        """Answer the pull that comes next, if its form is known, and there are messages, and room for them.

        Else it is left to be handled as any other request.
        """
        found = self._decoder.pull()
        if found is None or not self._has_room(REQUEST_BYTES + HEADER_FACTOR * found.frame_bytes):
            return False
        slices: tuple[memoryview, ...]
        try:
            answer = handler.answer_at_once(found.form, found.pull, self._account.fits)
            if answer is None:
                return False
            head, slices = answer
        except Exception as error:  # noqa: BLE001 - as in _handle
            head, slices = encode_head(self._answer_to_error(found.command(), error)), ()
        account, counters = self._account, self._counters
        answer_bytes = len(head) + sum(map(len, slices))
        self._decoder.skip_pull(found)
        if account.unfinished_bytes:
            self._end_frame()
        counters.requests += 1
        if (
            answer_bytes > SLICES_COPIED_BYTES_MAX
            and self._direct is not None
            and not self._outbox
            and not self._is_sending
        ):
            self._send_answer([head, *slices], found.frame_bytes)
            return True
        counters.in_flight += 1
        self._in_flight += 1
        self._put_answer(head, b"", slices, answer_bytes, found.frame_bytes)
        return True

    def _send_answer(self, parts: list[bytes | memoryview], cost_bytes: int) -> None:
        """Send an answer with messages at once: a consumer decodes them while the server reads those of its
        next pull. What the socket does not accept goes into the outbox, which is empty.

        By way of the outbox, as other answers are sent, a pull of 32 messages takes 5 us more.
        """
        try:
            send_parts_now(self._stream, parts)
        except trio.BrokenResourceError:
            release(parts)
            raise
        self._counters.responses += 1
        left_bytes = sum(map(len, parts))
        self._account.change(left_bytes - cost_bytes)
        if parts:
            self._counters.in_flight += 1
            self._in_flight += 1
            self._answered += 1
            self._outbox_bytes += left_bytes
            self._outbox += parts
            self._has_slices = True

    def _handle_run(self, run: SendRun, handler: RunHandler, nursery: trio.Nursery) -> int:
        """Handle a run of sends; returns how many of them have to be handled each by itself: none or all."""
        sends, account = run.sends, self._account
        more_bytes = sends.count * REQUEST_BYTES + (HEADER_FACTOR - 1) * run.header_bytes
        cost_bytes = more_bytes + run.frame_bytes
        held_bytes = self._handled_bytes + self._outbox_bytes + self._sending_bytes
        if (
            self._in_flight + sends.count > self._limits.in_flight_max
            or held_bytes + cost_bytes > self._limits.in_flight_bytes_max
            or not account.try_to_hold(more_bytes, is_only=False)
        ):
            return sends.count
        try:
            answers = handler.put(sends, run.data, self.peer)
        except Exception as error:  # noqa: BLE001 - a handler's bug must not end the connection
            answers = self._answers_to_error(sends, error)
        if answers is None:
            account.change(-more_bytes)
            return sends.count
        self._decoder.skip(run)
        if account.unfinished_bytes:
            self._end_frame()
        self._counters.requests += sends.count
        self._counters.in_flight += sends.count
        self._in_flight += sends.count
        self._handled_bytes += cost_bytes
        if isinstance(answers, bytes):
            self._run_done(sends, cost_bytes, answers)
        else:
            self._answer_later(sends, cost_bytes, answers, nursery)
        return 0

    def _answer_later(
        self,
        request: RemotingCommand | EncodedSends,
        cost_bytes: int,
        answer: PendingAnswer,
        nursery: trio.Nursery,
    ) -> None:
        """Answer sends once they are settled, after those before them that wait for the same."""
        lane = self._lanes.get(answer.marks)
        if lane is None:
            for idle in self._lanes.values():
                idle.filled.set()
            lane = self._lanes[answer.marks] = _Lane(answer.marks)
            nursery.start_soon(self._answer_sends, lane)
        lane.sends.append(_PendingSend(request, cost_bytes, answer))
        lane.filled.set()

    async def _answer_sends(self, lane: _Lane) -> None:
        """Wait for the oldest of the sends, and answer all that are settled then.

        With none left it waits for the next one, unless sends wait for something else now.
        """
        sends = lane.sends
        while sends or lane is next(reversed(self._lanes.values())):
            if not sends:
                lane.filled = trio.Event()
                await lane.filled.wait()
                continue
            await sends[0].answer.settled()
            now_s = trio.current_time()
            self._is_turn = True
            while sends and sends[0].answer.is_settled(now_s):
                self._answer_send(sends.popleft())
            try:
                self._end_turn()
            except trio.BrokenResourceError:
                # The reader or the writer finds the end of the stream, too.
                self._end(is_broken=True)
                self._outbox_filled.set()
        del self._lanes[lane.marks]

    def _answer_send(self, send: _PendingSend) -> None:
        request, cost_bytes = send.request, send.cost_bytes
        try:
            answer = send.answer.answer()
        except Exception as error:  # noqa: BLE001 - as in _handle
            if isinstance(request, EncodedSends):
                answer = self._answers_to_error(request, error)
            else:
                answer = self._answer_to_error(request, error)
        if isinstance(request, EncodedSends):
            assert isinstance(answer, bytes), "a run is answered with frames"
            self._run_done(request, cost_bytes, answer)
        else:
            assert not isinstance(answer, bytes), "a request is answered with a response"
            self._done(request, cost_bytes, answer)

    def _answers_to_error(self, sends: EncodedSends, error: Exception) -> bytes:
        """Answers to all sends of a run, b"" if they are one-way."""
        requests = [RemotingCommand(RequestCode.SEND_MESSAGE_V2, opaque) for opaque in opaques_of(sends)]
        answers = [self._answer_to_error(request, error) for request in requests]
        return b"" if sends.is_oneway else b"".join(map(encode_head, answers))

    async def _await_answer(
        self, command: RemotingCommand, cost_bytes: int, awaitable: Awaitable[RemotingCommand | None]
    ) -> None:
        try:
            answer = await awaitable
        except Exception as error:  # noqa: BLE001 - as in _handle
            answer = self._answer_to_error(command, error)
        self._done(command, cost_bytes, answer)

    def _answer_is_ready(self, deferred: Deferred[RemotingCommand]) -> None:
        """A deferred answer is ready. Called amid the work of another task, or of the reader."""
        self._ready.append(deferred)
        if self._is_turn:
            return
        if self._direct is None or self._outbox or self._is_sending:
            self._outbox_filled.set()
            return
        if self._in_flight == 1:
            self._send_ready()
        elif len(self._ready) == 1 and not self._together.add(self._send_ready):
            # The first one: it has the others sent, too.
            self._outbox_filled.set()

    def _send_ready(self) -> None:
        """Send the answers that are ready. Called amid the work of another task."""
        try:
            self._end_turn()
        except trio.BrokenResourceError:
            # The reader finds the end of the stream, unless it waits until less is in flight: then the writer
            # does.
            self._end(is_broken=True)
            self._outbox_filled.set()
        except Exception as error:  # noqa: BLE001 - the border of a connection, called from another task
            self._border.report(error, str(self.peer))
            self.cut()

    def _take_results(self) -> None:
        """Put the deferred answers that are ready into the outbox."""
        was_turn, self._is_turn = self._is_turn, True
        ready, self._ready = self._ready, []
        for deferred in ready:
            request, cost_bytes = self._deferred.pop(deferred)
            try:
                answer = deferred.result()
            except Exception as error:  # noqa: BLE001 - as in _handle
                answer = self._answer_to_error(request, error)
            self._done(request, cost_bytes, answer)
        self._is_turn = was_turn

    def _answer_to_error(self, command: RemotingCommand, error: Exception) -> RemotingCommand:
        if isinstance(error, BadRequestError):
            return response_to(command, error.code, remark=error.reason)
        if isinstance(error, StoreError):
            # The disk's fault: the store counts and reports it.
            return response_to(command, ResponseCode.SYSTEM_ERROR, remark=str(error)[:REMARK_CHARS_MAX])
        self._counters.handler_errors += 1
        self._border.report(error, str(self.peer), what="request failed", code=command.code)
        remark = f"{type(error).__name__}: {error}"[:REMARK_CHARS_MAX]
        return response_to(command, ResponseCode.SYSTEM_ERROR, remark=remark)

    def _done(self, command: RemotingCommand, cost_bytes: int, answer: RemotingCommand | None) -> None:
        """Put the answer to `command` into the outbox, if it has one."""
        self._handled_bytes -= cost_bytes
        if command.is_oneway or answer is None:
            self._counters.oneway_requests += command.is_oneway
            self._leave_flight(1, cost_bytes)
            return
        try:
            head = encode_head(answer)
            body, slices = answer.body, answer.slices
            answer_bytes = len(head) + (answer.body_bytes if slices else len(body))
        except Exception as error:  # noqa: BLE001 - an answer that no frame can hold is the handler's bug, too
            head = encode_head(self._answer_to_error(command, error))
            body, slices, answer_bytes = b"", (), len(head)
        if answer_bytes > cost_bytes and not self._account.fits(answer_bytes - cost_bytes):
            self._counters.busy_answers += 1
            busy = response_to(
                command, ResponseCode.SYSTEM_BUSY, remark="the memory for clients is used up; try again"
            )
            head = encode_head(busy)
            body, slices, answer_bytes = b"", (), len(head)
        self._put_answer(head, body, slices, answer_bytes, cost_bytes)

    def _put_answer(
        self,
        head: bytes,
        body: bytes | memoryview,
        slices: tuple[memoryview, ...],
        answer_bytes: int,
        cost_bytes: int,
    ) -> None:
        """Put an answer into the outbox; its request has held `cost_bytes` until now."""
        if not self._is_turn:
            self._outbox_filled.set()
        self._account.change(answer_bytes - cost_bytes)
        self._outbox_bytes += answer_bytes
        self._outbox.append(head)
        if body:
            # A view of the handler stays its own.
            self._outbox.append(body if isinstance(body, bytes) else memoryview(body))
        if slices:
            self._put_slices(slices)
        self._counters.responses += 1
        self._answered += 1

    def _run_done(self, sends: EncodedSends, cost_bytes: int, answers: bytes) -> None:
        """Put the answers to a run into the outbox, if it has some. They are far shorter than what its
        requests have held."""
        self._handled_bytes -= cost_bytes
        if sends.is_oneway:
            self._counters.oneway_requests += sends.count
            self._leave_flight(sends.count, cost_bytes)
            return
        if not self._is_turn:
            self._outbox_filled.set()
        self._account.change(len(answers) - cost_bytes)
        self._outbox_bytes += len(answers)
        self._outbox.append(answers)
        self._counters.responses += sends.count
        self._answered += sends.count

    def _leave_flight(self, requests: int, held_bytes: int) -> None:
        self._in_flight -= requests
        self._counters.in_flight -= requests
        self._account.change(-held_bytes)
        if self._less_in_flight is not None:
            self._less_in_flight.set()

    # -- writing ---------------------------------------------------------------------------------------

    def _put_in_outbox(self, data: memoryview) -> None:
        self._outbox.append(data)
        self._outbox_bytes += len(data)
        self._account.change(len(data))

    def _put_slices(self, slices: tuple[memoryview, ...]) -> None:
        if sum(map(len, slices)) > SLICES_COPIED_BYTES_MAX:
            self._outbox += slices
            self._has_slices = True
        else:
            self._outbox.append(b"".join(slices))
            release(list(slices))

    def _outgoing(self) -> list[bytes | memoryview]:
        """The bytes of the outbox as they are to be sent, without a copy of slices; empties the outbox."""
        parts: list[bytes | memoryview]
        if self._has_slices:
            parts, self._outbox = self._outbox, []
            self._has_slices = False
        else:
            # One block: many small parts cost more than their copy.
            parts = [b"".join(self._outbox)]
            release(self._outbox)
        return parts

    def _drain_answered(self) -> tuple[int, int]:
        """Number of requests whose answers are in the outbox, and its bytes; resets both."""
        answered = self._answered, self._outbox_bytes
        self._answered = self._outbox_bytes = 0
        return answered

    def _end_turn(self) -> None:
        """Send the outbox as far as the socket accepts it at once; the writer sends the rest."""
        if self._ready:
            self._take_results()
        self._is_turn = False
        if not self._outbox:
            return
        if not self._is_sending:
            if self._has_slices:
                send_parts_now(self._stream, self._outbox)
            else:
                left = send_now(self._stream, b"".join(self._outbox))
                release(self._outbox)
                if left:
                    self._outbox.append(left)
            if not self._outbox:
                self._has_slices = False
                self._leave_flight(*self._drain_answered())
                return
        self._outbox_filled.set()

    async def _write(self) -> None:
        # One scope for all sends: a new one would cost as much as the rest of a small send.
        sending = trio.CancelScope()
        try:
            with sending:
                while True:
                    await self._outbox_filled.wait()
                    self._outbox_filled = trio.Event()
                    if self._ready:
                        self._take_results()
                    if not self._outbox:
                        # The reader has sent all of it.
                        continue
                    parts = self._outgoing()
                    answered, self._sending_bytes = self._drain_answered()
                    self._is_sending = True
                    try:
                        send_parts_now(self._stream, parts)
                        if parts:
                            sending.deadline = trio.current_time() + self._limits.send_timeout_s
                            await send_all_parts(self._stream, parts)
                            sending.deadline = math.inf
                    finally:
                        # Slices would keep the space of deleted files.
                        release(parts)
                    self._is_sending = False
                    self._not_idle()
                    sent_bytes, self._sending_bytes = self._sending_bytes, 0
                    self._leave_flight(answered, sent_bytes)
        except trio.BrokenResourceError:
            self._end(is_broken=True)
        if sending.cancelled_caught:
            self._counters.send_timeouts += 1
            self._closures.closed(str(self.peer), f"it took nothing for {self._limits.send_timeout_s:g} s")

    async def _finish(self) -> None:
        """Wait until all requests in flight are answered, then close the sending side and wait for the
        peer."""
        while self._in_flight or self._outbox or self._is_sending:
            await self._wait_for_less_in_flight()
        self._is_over = True
        if isinstance(self._stream, trio.abc.HalfCloseableStream):
            with trio.move_on_after(LINGER_S):
                await self._stream.send_eof()
                while await self._stream.receive_some(self._limits.receive_bytes_max):
                    pass
