"""The requests of one connection: from bytes to calls of the handlers, and from their answers to bytes.

Theory of operation. Nothing here does I/O, waits, or knows of tasks: `ServerConnection` feeds the decoder,
calls `handle_next` until it gives 0, waits for what is in `waits` by then, and gives their answers to `done`.

What comes together and needs no command is handled without one: runs of sends by a `RunHandler`, and pulls
of known forms, if there are messages for them, by a `PullHandler`. Acknowledgements that come together go to
an `AckHandler` as one run. A request for which the connection has no room is `blocked`, and nothing after it
is handled; the next `handle_next` tries it again.

An exception of a handler is a bug of ours, unless it is a `BadRequestError` or the disk's fault: it is
counted and reported, and answered with SYSTEM_ERROR. It does not end the connection.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from typing import TypeAlias

from attrs import define

from trioha.errors import RemoteProtocolError, StoreError
from trioha.net.error_boundary import ErrorBoundary
from trioha.remoting.codec import FrameDecoder, SendRun, encode_head, opaques_of
from trioha.remoting.codes import RequestCode, ResponseCode
from trioha.remoting.command import BadRequestError, RemotingCommand, response_to
from trioha.remoting.in_flight import HEADER_FACTOR, KEPT_BYTES, REQUEST_BYTES, InFlight
from trioha.remoting.memory import MemoryAccount
from trioha.remoting.serving import (
    AckHandler,
    Handler,
    Peer,
    PendingAnswer,
    PullHandler,
    RunHandler,
    ServerStatistics,
    WaitingAnswer,
)
from trioha.store.messages import EncodedSends

REMARK_CHARS_MAX = 1000
"""Length of an exception's text in a remark."""

Request: TypeAlias = "RemotingCommand | EncodedSends | list[RemotingCommand]"
"""A request, a run of sends, or one of acknowledgements."""


@define(eq=False)
class Wait:
    """A request, or a run, that is handled and not answered."""

    request: Request
    cost_bytes: int
    """Memory that it holds until then."""
    answer: PendingAnswer | WaitingAnswer | Awaitable[RemotingCommand | None]
    aside_bytes: int = 0
    """Memory that is set aside for it."""


@define(eq=False)
class Blocked:
    """A request that was read and not handled: for want of room, or as a run ended before it."""

    command: RemotingCommand
    more_bytes: int
    """What it needs beside its frame."""
    cost_bytes: int


class RequestHandling:
    """Handles the requests of one connection."""

    def __init__(
        self,
        peer: Peer,
        decoder: FrameDecoder,
        in_flight: InFlight,
        account: MemoryAccount,
        *,
        handler: Handler,
        runs: RunHandler | None,
        pulls: PullHandler | None,
        acks: AckHandler | None = None,
        counters: ServerStatistics,
        boundary: ErrorBoundary,
    ) -> None:
        self._peer = peer
        self._decoder = decoder
        self._in_flight = in_flight
        self._account = account
        self._handler = handler
        self._runs = runs
        self._pulls = pulls
        self._acks = acks
        self._counters = counters
        self._boundary = boundary
        self.waits: list[Wait] = []
        """Requests that were handled and wait for their answers; whoever takes them clears the list."""
        self.blocked: Blocked | None = None
        """The request that is handled next."""
        self._plain = 0
        """Sends of a refused run that come next: each is handled by itself."""

    def handle_next(self, requests_max: int) -> int:
        """Handle what comes next, at most so many requests; returns how many.

        0 if no frame is whole, or the next request is `blocked`. Raises RemoteProtocolError for anything that
        is not a frame within the limits.
        """
        if self.blocked is None and not self._plain:
            if self._decoder.is_empty:
                return 0
            if self._pulls is not None and self._answer_pull(self._pulls):
                return 1
            if self._runs is not None and (sends := self._handle_run(self._runs, requests_max)):
                return sends
        request, self.blocked = self.blocked or self._next_request(), None
        if request is None:
            return 0
        if self._acks is not None and _is_of_run(request):
            return self._handle_acks(self._acks, request, requests_max)
        return self._handle_if_room(request)

    def _next_request(self) -> Blocked | None:
        """The request that comes next, if it is whole. Raises RemoteProtocolError."""
        decoder = self._decoder
        while (command := decoder.next_command()) is not None:
            self._plain = max(0, self._plain - 1)
            self._account.end_frame()
            if not command.is_response:
                more_bytes = REQUEST_BYTES + (HEADER_FACTOR - 1) * decoder.header_bytes
                return Blocked(command, more_bytes, more_bytes + decoder.frame_bytes)
            self._counters.unexpected_responses += 1
            self._account.change(-decoder.frame_bytes)
        return None

    def _handle_if_room(self, request: Blocked) -> int:
        if not self._has_room(request, 1, request.cost_bytes):
            self.blocked = request
            return 0
        command, cost_bytes = request.command, request.cost_bytes
        self._in_flight.begin(1, cost_bytes)
        self._handle(command, cost_bytes)
        return 1

    def _has_room(self, request: Blocked, requests: int, cost_bytes: int) -> bool:
        """Whether there is room for the last of so many requests that begin together, which is held then."""
        in_flight = self._in_flight
        return in_flight.allows(requests, cost_bytes) and self._account.try_to_hold(
            request.more_bytes, is_only=requests == 1 and in_flight.requests == 0
        )

    def _handle(self, command: RemotingCommand, cost_bytes: int) -> None:
        try:
            answer = self._handler(command, self._peer)
        except Exception as error:  # noqa: BLE001 - a handler's bug must not end the connection
            answer = self._answer_to_error(command, error)
        if answer is None or isinstance(answer, RemotingCommand):
            self._answer(command, cost_bytes, answer)
        else:
            aside_bytes = self._in_flight.set_aside(cost_bytes) if isinstance(answer, WaitingAnswer) else 0
            self.waits.append(Wait(command, KEPT_BYTES if aside_bytes else cost_bytes, answer, aside_bytes))

    def _answer_pull(self, handler: PullHandler) -> bool:
        """Answer the pull that comes next, if its form is known, and there are messages, and room for them.

        Else it is left to be handled as any other request.
        """
        in_flight, account = self._in_flight, self._account
        found = self._decoder.pull()
        if found is None or not in_flight.allows(1, REQUEST_BYTES + HEADER_FACTOR * found.frame_bytes):
            return False
        slices: tuple[memoryview, ...]
        try:
            answer = handler.answer_at_once(found.form, found.pull, account.fits)
            if answer is None:
                return False
            head, slices = answer
        except Exception as error:  # noqa: BLE001 - as in _handle
            head, slices = encode_head(self._answer_to_error(found.command(), error)), ()
        self._decoder.skip_pull(found)
        account.end_frame()
        cost_bytes = found.frame_bytes
        in_flight.begin(1, cost_bytes)
        answer_bytes = len(head) + sum(map(len, slices))
        in_flight.answer((head,), answer_bytes, cost_bytes=cost_bytes, slices=slices)
        return True

    def _handle_run(self, handler: RunHandler, sends_max: int) -> int:
        """Handle the run of sends that comes next; returns how many they are, 0 without one.

        The sends of a run that is refused are `_plain`.
        """
        run = self._decoder.sends(sends_max, shared=handler.shared_properties)
        if run is None:
            return 0
        sends, in_flight, account = run.sends, self._in_flight, self._account
        more_bytes = sends.count * REQUEST_BYTES + (HEADER_FACTOR - 1) * run.header_bytes
        cost_bytes = more_bytes + run.frame_bytes
        if not in_flight.allows(sends.count, cost_bytes) or not account.try_to_hold(
            more_bytes, is_only=False
        ):
            self._plain = sends.count
            return 0
        answers = self._put(handler, run)
        if answers is None:
            account.change(-more_bytes)
            self._plain = sends.count
            return 0
        self._decoder.skip(run)
        account.end_frame()
        in_flight.begin(sends.count, cost_bytes)
        if isinstance(answers, bytes):
            self._answer_sends(sends, cost_bytes, answers)
        else:
            self.waits.append(Wait(sends, cost_bytes, answers))
        return sends.count

    def _handle_acks(self, handler: AckHandler, first: Blocked, requests_max: int) -> int:
        """Handle an acknowledgement and those that come after it; returns how many they are, 0 without room.

        What ends the run is handled next.
        """
        requests: list[RemotingCommand] = []
        cost_bytes = 0
        request: Blocked | None = first
        while request is not None:
            if not _is_of_run(request) or not self._has_room(
                request, len(requests) + 1, cost_bytes + request.cost_bytes
            ):
                self.blocked = request
                break
            requests.append(request.command)
            cost_bytes += request.cost_bytes
            try:
                request = self._next_request() if len(requests) < requests_max else None
            except RemoteProtocolError:
                # The decoder raises it again, when these are handled.
                break
        if not requests:
            return 0
        self._in_flight.begin(len(requests), cost_bytes)
        try:
            answers: bytes | PendingAnswer = handler.answer_run(requests, self._peer)
        except Exception as error:  # noqa: BLE001 - as in _handle
            answers = self._answers_to_error(requests, error)
        if isinstance(answers, bytes):
            self._answer_run(len(requests), cost_bytes, answers)
        else:
            self.waits.append(Wait(requests, cost_bytes, answers))
        return len(requests)

    def _put(self, handler: RunHandler, run: SendRun) -> bytes | PendingAnswer | None:
        try:
            return handler.put(run.sends, run.data, self._peer)
        except Exception as error:  # noqa: BLE001 - as in _handle
            return self._answers_to_sends(run.sends, error)

    # -- answers ---------------------------------------------------------------------------------------

    def done(self, wait: Wait, answer: RemotingCommand | bytes | Exception | None) -> None:
        """What came of a request that waited; an exception is answered as one of its handler."""
        request = wait.request
        if wait.aside_bytes:
            self._account.end_aside(wait.aside_bytes)
        if isinstance(request, EncodedSends):
            if isinstance(answer, Exception):
                answer = self._answers_to_sends(request, answer)
            assert isinstance(answer, bytes), "a run is answered with frames"
            self._answer_sends(request, wait.cost_bytes, answer)
            return
        if isinstance(request, list):
            if isinstance(answer, Exception):
                answer = self._answers_to_error(request, answer)
            assert isinstance(answer, bytes), "a run is answered with frames"
            self._answer_run(len(request), wait.cost_bytes, answer)
            return
        if isinstance(answer, Exception):
            answer = self._answer_to_error(request, answer)
        assert not isinstance(answer, bytes), "a request is answered with a response"
        self._answer(request, wait.cost_bytes, answer)

    def _answer(self, command: RemotingCommand, cost_bytes: int, answer: RemotingCommand | None) -> None:
        """Put the answer to `command` into the outbox, if it has one."""
        in_flight, counters = self._in_flight, self._counters
        if command.is_oneway or answer is None:
            counters.oneway_requests += command.is_oneway
            in_flight.end(1, cost_bytes)
            return
        try:
            head = encode_head(answer)
            body, slices = answer.body, answer.slices
            answer_bytes = len(head) + (answer.body_bytes if slices else len(body))
        except Exception as error:  # noqa: BLE001 - an answer that no frame can hold is the handler's bug, too
            head = encode_head(self._answer_to_error(command, error))
            body, slices, answer_bytes = b"", (), len(head)
        if not in_flight.fits(answer_bytes, cost_bytes=cost_bytes):
            counters.busy_answers += 1
            busy = response_to(
                command, ResponseCode.SYSTEM_BUSY, remark="the memory for clients is used up; try again"
            )
            head = encode_head(busy)
            body, slices, answer_bytes = b"", (), len(head)
        # A view of the handler stays its own.
        parts = (head, body if isinstance(body, bytes) else memoryview(body)) if body else (head,)
        in_flight.answer(parts, answer_bytes, cost_bytes=cost_bytes, slices=slices)

    def _answer_sends(self, sends: EncodedSends, cost_bytes: int, answers: bytes) -> None:
        """Put the answers to a run of sends into the outbox, if it has some."""
        if sends.is_oneway:
            self._counters.oneway_requests += sends.count
            self._in_flight.end(sends.count, cost_bytes)
        else:
            self._answer_run(sends.count, cost_bytes, answers)

    def _answer_run(self, requests: int, cost_bytes: int, answers: bytes) -> None:
        """Put the answers to a run into the outbox. They are far shorter than what its requests have held."""
        self._in_flight.answer((answers,), len(answers), requests=requests, cost_bytes=cost_bytes)

    def _answer_to_error(self, command: RemotingCommand, error: Exception) -> RemotingCommand:
        if isinstance(error, BadRequestError):
            return response_to(command, error.code, remark=error.reason)
        if isinstance(error, StoreError):
            # The disk's fault: the store counts and reports it.
            return response_to(command, ResponseCode.SYSTEM_ERROR, remark=str(error)[:REMARK_CHARS_MAX])
        self._counters.handler_errors += 1
        self._boundary.report(error, str(self._peer), what="request failed", code=command.code)
        remark = f"{type(error).__name__}: {error}"[:REMARK_CHARS_MAX]
        return response_to(command, ResponseCode.SYSTEM_ERROR, remark=remark)

    def _answers_to_sends(self, sends: EncodedSends, error: Exception) -> bytes:
        """Answers to all sends of a run, b"" if they are one-way."""
        opaques = opaques_of(sends)
        answers = self._answers_to_error(
            [RemotingCommand(RequestCode.SEND_MESSAGE_V2, opaque) for opaque in opaques], error
        )
        return b"" if sends.is_oneway else answers

    def _answers_to_error(self, requests: Iterable[RemotingCommand], error: Exception) -> bytes:
        """Answers to all requests of a run."""
        return b"".join([encode_head(self._answer_to_error(request, error)) for request in requests])


def _is_of_run(request: Blocked) -> bool:
    """Whether a request is handled with those of its kind that come with it."""
    command = request.command
    return command.code == RequestCode.ACK_MESSAGE and not command.is_oneway
