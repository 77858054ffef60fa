"""END_TRANSACTION: a producer's decision on a half message (spec remoting 4.5).

The request names the half message by its queue offset, its place in the log and its producer's group, and
all must be right. Producers send it one-way, so most answers are not sent. A decision on a transaction that
is not open is refused: RocketMQ's brokers commit a second time then.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final

import trio

from trioha.broker.half_messages import HalfMessage
from trioha.broker.transaction_service import TransactionService
from trioha.remoting.codes import ResponseCode
from trioha.remoting.command import BadRequestError, RemotingCommand, response_to
from trioha.remoting.end_transaction import Decision, EndTransaction
from trioha.remoting.send_message import PUT_STATUS_CODES, PUT_STATUS_REMARKS
from trioha.remoting.serving import Peer
from trioha.store.put_status import PutStatus

WAIT_S: Final = 10.0
"""How long a decision waits for its half message, which dispatch has not reached yet."""


class TransactionProcessor:
    """Handles decisions."""

    def __init__(self, service: TransactionService | None) -> None:
        """`service` is None on a slave."""
        self._service = service

    def answer(self, request: RemotingCommand, _peer: Peer) -> RemotingCommand | Awaitable[RemotingCommand]:
        """The response to END_TRANSACTION, or an awaitable of it. Raises BadRequestError."""
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
        if service.followed.offset > header.queue_offset:
            return self._decide(service, request, header.decision, half)
        service.catch_up()
        return self._decide_later(service, request, header.decision, half)

    async def _decide_later(
        self, service: TransactionService, request: RemotingCommand, decision: Decision, half: HalfMessage
    ) -> RemotingCommand:
        with trio.move_on_after(WAIT_S):
            await service.followed.reached(half.queue_offset + 1)
            return self._decide(service, request, decision, half)
        raise BadRequestError(
            "the half message is not dispatched yet; a check will follow", code=ResponseCode.SYSTEM_BUSY
        )

    def _decide(
        self, service: TransactionService, request: RemotingCommand, decision: Decision, half: HalfMessage
    ) -> RemotingCommand:
        transaction = service.find(half)
        if transaction is None:
            raise BadRequestError("the transaction is not open any more")
        if decision is Decision.ROLLBACK:
            service.roll_back(transaction)
        else:
            appended = service.commit(transaction)
            if (status := appended.status) is not PutStatus.PUT_OK:
                raise BadRequestError(
                    appended.reason or PUT_STATUS_REMARKS[status], code=PUT_STATUS_CODES[status]
                )
        return response_to(request, ResponseCode.SUCCESS)
