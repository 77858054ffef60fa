"""END_TRANSACTION: a producer's decision on a half message (docs/protocol/remoting.md#transactions).

The request names the half message by its queue offset, its place in the log and its producer's group, and
all must be right. Producers send it one-way, so most answers are not sent. A decision on a transaction that
is not open is refused: RocketMQ's brokers commit a second time then.

A decision that comes before its half message is in the table waits for it, also when its connection ends:
many a producer ends right after its last decision. It is carried out or refused, whole.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import structlog

from trioha.broker.transaction_service import TransactionService
from trioha.deferred import Deferred
from trioha.remoting.codes import ResponseCode
from trioha.remoting.command import BadRequestError, RemotingCommand, response_to
from trioha.remoting.end_transaction import Decision, EndTransaction
from trioha.remoting.send_message import PUT_STATUS_CODES, PUT_STATUS_REMARKS
from trioha.remoting.serving import Peer
from trioha.store.put_status import PutStatus
from trioha.watermark import REACHED, Wait, WaitResult

log = structlog.get_logger(__name__)


class TransactionProcessor:
    """Handles decisions."""

    def __init__(self, service: TransactionService | None) -> None:
        """`service` is None on a slave."""
        self._service = service
        self._waiting: set[int] = set()
        """Queue offsets of half messages whose decision waits: as many as may be open, and no more."""

    def answer(self, request: RemotingCommand, _peer: Peer) -> RemotingCommand | Deferred[RemotingCommand]:
        """The response to END_TRANSACTION, perhaps a later one. Raises BadRequestError."""
        header = EndTransaction.of(request)
        service = self._service
        if service is None:
            raise BadRequestError("this broker is a slave", code=ResponseCode.SLAVE_NOT_AVAILABLE)
        if header.decision is Decision.UNKNOWN:
            # The transaction stays open, and is checked.
            return response_to(request, ResponseCode.SUCCESS)
        half = service.half_message_at(header.physical_offset)
        if half is None:
            raise BadRequestError("Find prepared transaction message failed")
        if half.producer_group != header.producer_group:
            raise BadRequestError("The producer group wrong")
        if half.queue_offset != header.queue_offset:
            raise BadRequestError("The transaction state table offset wrong")
        queue_offset, success = header.queue_offset, response_to(request, ResponseCode.SUCCESS)
        # A decision that waits keeps neither the request nor the half message, which may be large.
        decide = partial(_decide, service, header.decision, queue_offset, half.identity)
        if service.followed.offset > queue_offset:
            decide()
            return success
        if queue_offset in self._waiting:
            raise BadRequestError(
                "another decision waits for the same half message", code=ResponseCode.SYSTEM_BUSY
            )
        service.catch_up()
        self._waiting.add(queue_offset)
        return _LateDecision(service.passing(queue_offset), partial(self._end, queue_offset, decide), success)

    def _end(self, queue_offset: int, decide: Callable[[], None], waited: WaitResult) -> None:
        """Carry out a decision that has waited. Raises BadRequestError."""
        self._waiting.remove(queue_offset)
        if waited is not REACHED:
            raise BadRequestError(
                "the half message is not dispatched yet; a check will follow", code=ResponseCode.SYSTEM_BUSY
            )
        decide()


def _decide(service: TransactionService, decision: Decision, queue_offset: int, identity: int | None) -> None:
    """Carry out a decision on a half message that is in the table. Raises BadRequestError."""
    transaction = service.find(queue_offset, identity)
    if transaction is None:
        raise BadRequestError("the transaction is not open any more")
    if decision is Decision.ROLLBACK:
        service.roll_back(transaction)
        return
    appended = service.commit(transaction)
    if (status := appended.status) is not PutStatus.PUT_OK:
        raise BadRequestError(appended.reason or PUT_STATUS_REMARKS[status], code=PUT_STATUS_CODES[status])


class _LateDecision(Deferred[RemotingCommand]):
    """The answer to a decision that waits for its half message, whether its connection does or not."""

    __slots__ = ("_decide", "_error", "_success", "_wait")

    def __init__(self, wait: Wait, decide: Callable[[WaitResult], None], success: RemotingCommand) -> None:
        """`decide` gets the end of `wait`, which has not ended yet; if it does not raise, `success` is the
        answer."""
        super().__init__()
        self._wait = wait
        self._decide = decide
        self._success = success
        self._error: Exception | None = None
        wait.event = self

    def set(self) -> None:
        """The wait has ended."""
        assert self._wait.result is not None, "it is called by the end of the wait"
        try:
            self._decide(self._wait.result)
        except Exception as error:
            # The connection reports it, from `result`.
            self._error = error
            if self._on_ready is None and not isinstance(error, BadRequestError):
                log.error("a decision failed whose connection has ended", exc_info=error)
        self._ready()

    def result(self) -> RemotingCommand:
        """The answer. Raises as `TransactionProcessor.answer`."""
        if self._error is not None:
            raise self._error
        return self._success
