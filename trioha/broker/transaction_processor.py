"""END_TRANSACTION: a producer's decision on a half message (docs/protocol/remoting.md#transactions).

The request names the half message by its queue offset, its place in the log and its producer's group, and
all must be right. Producers send it one-way, so most answers are not sent. A decision on a transaction that
is not open is refused: RocketMQ's brokers commit a second time then.

A decision that comes before its half message is in the table waits for it, also when its connection ends:
many a producer ends right after its last decision. It is carried out or refused, whole.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from trioha.broker.transaction_service import LateDecision, TransactionService
from trioha.remoting.codes import ResponseCode
from trioha.remoting.command import BadRequestError, RemotingCommand, response_to
from trioha.remoting.end_transaction import Decision, EndTransaction
from trioha.remoting.send_message import PUT_STATUS_CODES, PUT_STATUS_REMARKS
from trioha.remoting.serving import Peer
from trioha.store.put_status import PutStatus


class TransactionProcessor:
    """Handles decisions."""

    def __init__(self, service: TransactionService | None) -> None:
        """`service` is None on a slave."""
        self._service = service
        self._waiting: set[int] = set()
        """Queue offsets of half messages whose decision waits: as many as may be open, and no more."""

    def answer(self, request: RemotingCommand, _peer: Peer) -> RemotingCommand | Awaitable[RemotingCommand]:
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
        late = LateDecision(queue_offset + 1, partial(self._end, queue_offset, decide))
        service.decide_later(late)
        return _answer_late(late, success)

    def _end(self, queue_offset: int, decide: Callable[[], None], is_in_table: bool) -> None:
        """Carry out a decision that has waited. Raises BadRequestError."""
        self._waiting.remove(queue_offset)
        if not is_in_table:
            raise BadRequestError(
                "the half message is not dispatched yet; a check will follow", code=ResponseCode.SYSTEM_BUSY
            )
        decide()


async def _answer_late(late: LateDecision, success: RemotingCommand) -> RemotingCommand:
    """The response to a decision once it is carried out. Raises BadRequestError if it is refused."""
    await late.ended.wait()
    if late.error is not None:
        raise late.error
    return success


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
