"""END_TRANSACTION: a producer's decision on a half message (docs/protocol/remoting.md#transactions).

The request names the half message by its queue offset, its place in the log and its producer's group, and
all must be right. Producers send it one-way, so most answers are not sent. A decision on a transaction that
is not open is refused: RocketMQ's brokers commit a second time then.
"""

from __future__ import annotations

from collections.abc import Awaitable
from functools import partial

from trioha.broker.late_decisions import LateDecision
from trioha.broker.transaction_service import TransactionService
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

    def answer(self, request: RemotingCommand, _peer: Peer) -> RemotingCommand | Awaitable[RemotingCommand]:
        """The response to END_TRANSACTION, perhaps a later one. Raises BadRequestError."""
        header = EndTransaction.of(request)
        service = self._service
        if service is None:
            raise BadRequestError("this broker is a slave", code=ResponseCode.SLAVE_NOT_AVAILABLE)
        if header.decision is Decision.UNKNOWN:
            # The transaction stays open, and is checked.
            return response_to(request, ResponseCode.SUCCESS)
        half = service.log.half_message_at(header.physical_offset)
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
        return _answer_late(service.decide_later(queue_offset, decide), success)


async def _answer_late(late: LateDecision, success: RemotingCommand) -> RemotingCommand:
    """The response to a decision once it is carried out. Raises BadRequestError if it is refused."""
    await late.ended()
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
