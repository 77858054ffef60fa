"""Parts of a remoting server: the type of its handler, its limits, and its counters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Protocol, TypeAlias

import trio
from attrs import define, field, frozen
from attrs.validators import ge

from trioha.remoting.address import Address
from trioha.remoting.codec import FRAME_BYTES_MAX
from trioha.remoting.command import RemotingCommand
from trioha.remoting.compiled_pulls import PullNumbers
from trioha.remoting.memory import bytes_max_for
from trioha.remoting.pull_forms import PullForm
from trioha.store.messages import EncodedSends


@frozen
class ServerLimits:
    """Limits of a server for its peers."""

    connections_max: int = field(default=1024, validator=ge(1))
    """Open at a time; one more is closed as soon as it is accepted."""
    connections_per_peer_max: int = field(default=1024, validator=ge(1))
    """Open at a time from one address."""
    total_bytes_max: int = field(default=128 * 1024 * 1024, validator=ge(1))
    """Held for all connections together: unfinished frames, requests in flight, answers that wait to be
    written. At least `memory.bytes_max_for(frame_bytes_max)`."""
    in_flight_max: int = field(default=4096, validator=ge(1))
    """Requests of one connection that were read and not answered, pulls that wait for messages included."""
    in_flight_bytes_max: int = field(default=64 * 1024 * 1024, validator=ge(1))
    """Bytes of these requests and their answers; a single request may be larger."""
    frame_bytes_max: int = field(default=FRAME_BYTES_MAX, validator=ge(8))
    """One frame, its length field included."""
    idle_timeout_s: float = field(default=120.0, validator=ge(0))
    """Longest time without a read or a write."""
    frame_timeout_s: float = field(default=30.0, validator=ge(0))
    """From the first byte of a frame to its last, without the time in which the server did not read."""
    send_timeout_s: float = field(default=10.0, validator=ge(0))
    """For one send."""
    room_timeout_s: float = field(default=2.0, validator=ge(0))
    """How long a connection waits for room in `total_bytes_max` before unfinished frames are dropped."""
    receive_bytes_max: int = field(default=64 * 1024, validator=ge(1))
    """Bytes of one read, which are handled before other connections are served."""

    def __attrs_post_init__(self) -> None:
        if self.total_bytes_max < bytes_max_for(self.frame_bytes_max):
            raise ValueError(
                f"total_bytes_max of {self.total_bytes_max} is not enough for frames of "
                f"{self.frame_bytes_max} bytes: at least {bytes_max_for(self.frame_bytes_max)}"
            )


@frozen
class Peer:
    """The other end of a connection."""

    address: Address
    connection: int
    """The connection's number on this server, from 1."""

    def __str__(self) -> str:
        return str(self.address)


class PendingAnswer(ABC):
    """The answer to sends that are stored and wait, for slaves or the disk."""

    @property
    @abstractmethod
    def marks(self) -> Hashable:
        """What it waits for. Of the answers of one connection with the same marks, that to the first sends is
        settled first."""

    @abstractmethod
    def watch(self, event: trio.Event, now_s: float) -> float:
        """Have `event` set when it may be given, or `watch` has to be called again. Call `unwatch` then.

        Returns when that will be the case at the latest, on trio's clock.
        """

    @abstractmethod
    def unwatch(self) -> None:
        """Leave the event alone from now on."""

    @abstractmethod
    def is_settled(self, now_s: float) -> bool:
        """Whether it may be given at that time, of trio's clock."""

    @abstractmethod
    def answer(self) -> RemotingCommand | bytes:
        """The response, of a run of sends the frames of all. Call it once, when it is settled."""


class WaitingAnswer(ABC):
    """The answer to a request that waits for what may come at any time, as a pull waits for messages.

    It has no task: `wake` says that there may be an answer now, and the connection's task for all of its
    waiting answers calls `answer` then. So ten thousand of them cost little while they wait.
    """

    __slots__ = ("_is_woken", "_woken")

    def __init__(self) -> None:
        self._is_woken = False
        self._woken: WokenAnswers | None = None

    @abstractmethod
    def answer(self) -> RemotingCommand | PendingAnswer | None:
        """The response, a pending one if it has stored something that it waits for; None if it has to wait
        on, until it is woken again."""

    def abandon(self) -> None:
        """The connection is over: wait no more."""
        self._woken = None

    def wake(self) -> None:
        """There may be an answer now. Does nothing but that `answer` is called later."""
        if not self._is_woken:
            self._is_woken = True
            if self._woken is not None:
                self._woken.put(self)

    def wait_in(self, woken: WokenAnswers) -> None:
        """Go to `woken` when it is woken; at once, if it was woken already."""
        self._woken = woken
        if self._is_woken:
            woken.put(self)

    def sleep(self) -> None:
        """Its connection looks at it now: it can be woken again."""
        self._is_woken = False


class WokenAnswers:
    """Waiting answers of one connection that were woken."""

    __slots__ = ("_answers", "_event")

    def __init__(self) -> None:
        self._answers: list[WaitingAnswer] = []
        self._event = trio.Event()

    def put(self, answer: WaitingAnswer) -> None:
        """`answer` was woken."""
        self._answers.append(answer)
        self._event.set()

    async def take(self) -> list[WaitingAnswer]:
        """Those that were woken since the last call, in this order; waits for one if there is none."""
        await self._event.wait()
        self._event = trio.Event()
        answers, self._answers = self._answers, []
        for answer in answers:
            answer.sleep()
        return answers


Answer: TypeAlias = (
    "RemotingCommand | PendingAnswer | WaitingAnswer | Awaitable[RemotingCommand | None] | None"
)
Handler: TypeAlias = Callable[[RemotingCommand, Peer], Answer]
"""Handles a request. Returns the answer if it is known at once (cheapest), a `PendingAnswer` or a
`WaitingAnswer` of it, which need no task of their own, any other awaitable of it, or None for no answer,
which is right for one-way requests only."""


class RunHandler(Protocol):
    """Handles runs of sends."""

    shared_properties: bytes
    """Encoded properties that follow those of each send."""

    def put(self, sends: EncodedSends, data: bytes, peer: Peer) -> bytes | PendingAnswer | None:
        """The frames of all answers, or a `PendingAnswer` of them; None, with nothing done, if the handler of
        requests is to handle each send. The frames of a one-way run are b"". Bodies are in `data`, which a
        `PendingAnswer` must not keep."""
        ...


class AckHandler(Protocol):
    """Handles runs of acknowledgements of popped messages."""

    def answer_run(self, requests: Sequence[RemotingCommand], peer: Peer) -> bytes | PendingAnswer:
        """The frames of the answers to requests that came together, none of them one-way, or a
        `PendingAnswer` of them."""
        ...


class PullHandler(Protocol):
    """Answers pulls of known forms for which there are messages."""

    def answer_at_once(
        self, form: PullForm, pull: PullNumbers, fits: Callable[[int], bool]
    ) -> tuple[bytes, tuple[memoryview, ...]] | None:
        """The answer's frame up to its body, and the messages, which the caller releases.

        None, with nothing counted, if the handler of requests is to handle the pull: it waits, or is refused,
        has no messages, or there is no room for an answer of so many bytes, which `fits` says.
        """
        ...


@define
class ServerStatistics:
    """Counters since the server was created; `connections_open`, `in_flight` and `held_bytes` are current.

    `RemotingServer.statistics` is a copy of the server's counters.
    """

    connections_open: int = 0
    connections_accepted: int = 0
    connections_refused: int = 0
    """Closed at once because of `connections_max` or `connections_per_peer_max`, or during draining."""
    requests: int = 0
    """One-way requests included."""
    in_flight: int = 0
    """Requests of all connections whose answers were not sent yet, pulls that wait for messages included."""
    oneway_requests: int = 0
    responses: int = 0
    """Answers that were written or wait for it."""
    unexpected_responses: int = 0
    """Responses from peers; ignored, since the server sends no requests."""
    handler_errors: int = 0
    """Exceptions of the handler; answered with SYSTEM_ERROR."""
    busy_answers: int = 0
    """Answers replaced by SYSTEM_BUSY for lack of memory."""
    tls_connections: int = 0
    """TLS handshakes that were completed."""
    tls_failures: int = 0
    """Connections closed because their handshake failed or took too long, or because they were plain."""
    protocol_errors: int = 0
    """Connections closed because the peer broke the protocol."""
    broken_connections: int = 0
    """Connections reset by the peer or the network."""
    idle_closes: int = 0
    frame_timeouts: int = 0
    """Connections closed because a frame was not complete in time."""
    memory_closes: int = 0
    """Connections with an unfinished frame that were closed for lack of memory."""
    send_timeouts: int = 0
    """Connections closed because the peer did not read."""
    cut_connections: int = 0
    """Connections closed at the end of draining with unanswered requests."""
    bugs: int = 0
    """Connections and requests that a bug of ours ended."""
    shortages: int = 0
    """Connections and requests that ended because descriptors or memory of the system ran out."""
    held_bytes: int = 0
    """Memory that all connections hold."""
    largest_held_bytes: int = 0
    """Largest value of `held_bytes` so far."""
    memory_waits: int = 0
    """How often a connection had to wait for room."""
