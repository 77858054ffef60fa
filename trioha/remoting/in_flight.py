"""What of one connection is in flight: requests that were read and not answered yet, and the bytes to send.

Theory of operation. Nothing here does I/O, waits, or knows of tasks: `ServerConnection` does. A request goes
through these states, each with its bytes in the connection's account (see `trioha.remoting.memory`):

    begin -> handled (cost_bytes) -> answer -> outbox -> take_outbox -> sending -> sent
                                  -> end, without an answer

A request costs its frame, `REQUEST_BYTES`, and what its header takes as text; its answer costs its bytes. One
that waits for what may never come is set aside, if there is room for that, and costs `KEPT_BYTES` then. A run
of sends goes through the states as one, and counts as so many requests. A pushed frame is no answer: it
begins in the outbox.

Limits. `allows` says whether `in_flight_max` requests and `in_flight_bytes_max` bytes allow more; one request
is always allowed. `fits` says whether the memory of all connections has room for an answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from trioha.net.transport import release
from trioha.remoting.memory import MemoryAccount
from trioha.remoting.serving import ServerLimits, ServerStatistics

REQUEST_BYTES: Final = 4096
"""Memory of a request in flight beside its frame: its objects, and a task if it waits."""
WAITING_BYTES: Final = 1536
"""The same of a request that waits without a task, as a pull does. With a header of 370 bytes, which counts
fourfold, it takes 1.8 KB."""
KEPT_BYTES: Final = 512
"""What a request that was set aside still holds: enough for the answer that nothing has come."""
HEADER_FACTOR: Final = 4
"""Largest ratio of a header's memory to its bytes: a text with one wide character needs four bytes for each
of its characters."""
COPIED_BYTES_MAX: Final = 8 * 1024
"""The slices of an answer of up to so many bytes are copied: that costs less than a call that sends each."""


class InFlight:
    """The requests and answers of one connection that are in flight."""

    __slots__ = (
        "_account",
        "_answered",
        "_counters",
        "_handled_bytes",
        "_limits",
        "_outbox",
        "_sending_bytes",
        "_sending_requests",
        "has_slices",
        "outbox_bytes",
        "requests",
        "sending",
    )

    def __init__(self, limits: ServerLimits, account: MemoryAccount, counters: ServerStatistics) -> None:
        self._limits = limits
        self._account = account
        self._counters = counters
        self.requests = 0
        """Requests that were read and whose answers were not sent yet."""
        self._handled_bytes = 0
        """Cost of those that the handler has not answered."""
        self._answered = 0
        """Requests whose answers are in the outbox."""
        self._outbox: list[bytes | memoryview] = []
        """Bytes to send, in order. Views in it belong to this object, which releases them."""
        self.outbox_bytes = 0
        """Bytes of the outbox."""
        self.has_slices = False
        """Whether the outbox has slices, which are sent without a copy."""
        self.sending: list[bytes | memoryview] = []
        """The bytes of the current send that were not sent yet: the sender removes what it has sent."""
        self._sending_bytes = 0
        """Bytes of the current send, also those that were sent."""
        self._sending_requests = 0
        """Requests whose answers are in the current send."""

    @property
    def answered(self) -> int:
        """Requests whose answers are in the outbox."""
        return self._answered

    @property
    def is_idle(self) -> bool:
        """Whether no request is in flight, and nothing is to be sent."""
        return not (self.requests or self._outbox or self.sending)

    @property
    def has_outgoing(self) -> bool:
        """Whether there are bytes to send."""
        return bool(self._outbox or self.sending)

    # -- requests --------------------------------------------------------------------------------------

    def allows(self, requests: int, cost_bytes: int) -> bool:
        """Whether the connection's own limits allow so many more requests."""
        held_bytes = self._handled_bytes + self.outbox_bytes + self._sending_bytes
        return (
            self.requests + requests <= self._limits.in_flight_max
            and held_bytes + cost_bytes <= self._limits.in_flight_bytes_max
        ) or (self.requests == 0 and requests == 1)

    def begin(self, requests: int, cost_bytes: int) -> None:
        """Requests go to the handler. The account holds `cost_bytes` for them already."""
        self._counters.requests += requests
        self._counters.in_flight += requests
        self.requests += requests
        self._handled_bytes += cost_bytes

    def set_aside(self, cost_bytes: int) -> int:
        """A request of that cost waits for what may never come, and holds `KEPT_BYTES` from now on.

        Returns the bytes that the account has set aside for it; 0, with nothing changed, if they do not fit.
        """
        aside_bytes = cost_bytes - REQUEST_BYTES + WAITING_BYTES
        if not self._account.set_aside(aside_bytes):
            return 0
        self._handled_bytes += KEPT_BYTES - cost_bytes
        self._account.change(KEPT_BYTES - cost_bytes)
        return aside_bytes

    def fits(self, answer_bytes: int, *, cost_bytes: int) -> bool:
        """Whether there is memory for an answer to requests of that cost."""
        return answer_bytes <= cost_bytes or self._account.fits(answer_bytes - cost_bytes)

    def answer(
        self,
        parts: Sequence[bytes | memoryview],
        answer_bytes: int,
        *,
        requests: int = 1,
        cost_bytes: int,
        slices: tuple[memoryview, ...] = (),
    ) -> None:
        """Put the answer to requests into the outbox: `parts`, then `slices`, of `answer_bytes` in all."""
        self._handled_bytes -= cost_bytes
        self._account.change(answer_bytes - cost_bytes)
        self.outbox_bytes += answer_bytes
        self._outbox += parts
        if slices and answer_bytes > COPIED_BYTES_MAX:
            self._outbox += slices
            self.has_slices = True
        elif slices:
            self._outbox.append(b"".join(slices))
            release(list(slices))
        self._answered += requests
        self._counters.responses += requests

    def end(self, requests: int, cost_bytes: int) -> None:
        """Requests get no answer."""
        self._handled_bytes -= cost_bytes
        self._leave(requests, cost_bytes)

    def push(self, frame: bytes) -> None:
        """Put a frame that is no answer into the outbox."""
        self._outbox.append(frame)
        self.outbox_bytes += len(frame)
        self._account.change(len(frame))

    # -- sends -----------------------------------------------------------------------------------------

    def take_outbox(self) -> bool:
        """The bytes of the outbox become those of the current send; False if there are none.

        The last send must be over.
        """
        if not self._outbox:
            return False
        if self.has_slices:
            self.sending, self._outbox = self._outbox, []
            self.has_slices = False
        else:
            # One block: many small parts cost more than their copy.
            self.sending = [b"".join(self._outbox)]
            release(self._outbox)
        self._sending_requests, self._answered = self._answered, 0
        self._sending_bytes, self.outbox_bytes = self.outbox_bytes, 0
        return True

    def sent(self) -> None:
        """All bytes of the current send were sent."""
        requests, self._sending_requests = self._sending_requests, 0
        sent_bytes, self._sending_bytes = self._sending_bytes, 0
        self._leave(requests, sent_bytes)

    def close(self) -> None:
        """The connection is over: drop what is to be sent. The account is closed by its owner."""
        release(self._outbox)
        release(self.sending)
        self._counters.in_flight -= self.requests

    def _leave(self, requests: int, held_bytes: int) -> None:
        self.requests -= requests
        self._counters.in_flight -= requests
        self._account.change(-held_bytes)
