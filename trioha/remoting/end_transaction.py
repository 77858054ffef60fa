"""The headers of transactions: END_TRANSACTION (37) and CHECK_TRANSACTION_STATE (39).

See docs/protocol/remoting.md#transactions.

A producer sends the first, one-way, when it has decided on a half message; the broker sends the second,
one-way too, when a producer has not decided in time. Brokers of 5.x add `topic` and `bname` to the second,
which older producers ignore; their producers send both back in the first.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from attrs import frozen

from trioha.numbers import I32, I64
from trioha.remoting.command import BadRequestError, RemotingCommand
from trioha.remoting.header_fields import HeaderFields


class Decision(IntEnum):
    """What a producer decided: commitOrRollback, which has the transaction bits of sysFlag."""

    UNKNOWN = 0
    COMMIT = 8
    ROLLBACK = 12


_DECISIONS: Final = {int(decision): decision for decision in Decision}


@frozen
class EndTransaction:
    """Header of END_TRANSACTION."""

    producer_group: str
    queue_offset: int
    """tranStateTableOffset: queue offset of the half message."""
    physical_offset: int
    """commitLogOffset: where the half message is in the log."""
    decision: Decision
    is_answer_to_check: bool = False
    """fromTransactionCheck: whether it answers CHECK_TRANSACTION_STATE."""

    @classmethod
    def of(cls, command: RemotingCommand) -> EndTransaction:
        """Of a request 37. Raises BadRequestError."""
        fields = HeaderFields(command.ext_fields)
        code = fields.number("commitOrRollback", I32)
        decision = _DECISIONS.get(code)
        if decision is None:
            raise BadRequestError(
                f"request header field commitOrRollback is {code}: neither 8 (commit), 12 (rollback) nor 0 "
                "(unknown)"
            )
        return cls(
            fields.text("producerGroup"),
            fields.number("tranStateTableOffset", I64),
            fields.number("commitLogOffset", I64),
            decision,
            fields.flag("fromTransactionCheck"),
        )


@frozen
class CheckTransactionState:
    """Header of CHECK_TRANSACTION_STATE; the half message, with its real topic, is the body."""

    topic: str
    """The real one."""
    broker_name: str
    queue_offset: int
    """tranStateTableOffset."""
    physical_offset: int
    """commitLogOffset."""
    message_id: str
    """offsetMsgId: store host and physical offset in hex."""
    unique_key: str | None
    """The id that the producer gave the message, which is the transaction's id, too."""

    def to_ext_fields(self) -> dict[str, str]:
        """The fields of the request."""
        fields = {
            "topic": self.topic,
            "bname": self.broker_name,
            "tranStateTableOffset": str(self.queue_offset),
            "commitLogOffset": str(self.physical_offset),
            "offsetMsgId": self.message_id,
        }
        if self.unique_key:
            fields |= {"msgId": self.unique_key, "transactionId": self.unique_key}
        return fields
