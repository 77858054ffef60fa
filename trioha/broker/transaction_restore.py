"""Which transactions are open after a start: from op records and half messages, without I/O.

Theory of operation. First all op records from the position on are read, then the half messages, each in the
order of the queue. A half message is open if no op record names it. Two rules go beyond RocketMQ's, whose
brokers rely on a position that is exact:

- A copy that was put anew for a check (TRANSACTION_CHECK_TIMES) makes older copies void, which are recognized
  by UNIQ_KEY, producer and time of birth.
- Of a copy that was put anew before its first check, TRAN_PREPARED_QUEUE_OFFSET names the first copy. An op
  record of one decides both.

So the position may lie anywhere before the right one, which only costs reading: that of a promoted slave is
its last copy of the master's.
"""

from __future__ import annotations

from collections.abc import Sequence

from trioha.broker.half_messages import HalfMessage
from trioha.broker.transaction_table import OpenTransaction, Position, TransactionTable


class TransactionRestore:
    """Builds a `TransactionTable`."""

    def __init__(self, position: Position, *, half_end: int) -> None:
        """Half messages from `position.half_offset` up to `half_end` will be given."""
        self._start = position.half_offset
        self._end = half_end
        self._decided = bytearray((max(0, half_end - position.half_offset) + 7) // 8)
        """A bit for each half message."""
        self._table = TransactionTable(position)
        self._open: dict[int, OpenTransaction] = {}
        """By queue offset."""
        self._newest: dict[int, int] = {}
        """The queue offset of an open half message, by its identity."""
        self._identities: dict[int, int] = {}
        """The reverse."""

    def op_record(self, op_offset: int, half_offsets: Sequence[int]) -> None:
        """The next op record."""
        self._table.op_written(op_offset, half_offsets)
        for offset in half_offsets:
            self._decide(offset)

    def half_message(self, half: HalfMessage, *, check_at_s: float) -> None:
        """The next half message; all op records were given."""
        transaction = OpenTransaction.of(
            half.queue_offset, half.record.physical_offset, check_at_s=check_at_s, identity=half.identity
        )
        is_decided = self._is_decided(half.queue_offset)
        identity = half.identity
        if half.is_copy:
            older = self._older_copy(half, identity)
            if older is not None:
                transaction.first_offset = older.first_offset
                transaction.previous_offset = older.queue_offset
            elif half.first_offset is not None:
                transaction.first_offset = half.first_offset
                is_decided |= self._is_decided(half.first_offset)
        if is_decided:
            return
        self._open[half.queue_offset] = transaction
        if identity is not None:
            self._newest[identity] = half.queue_offset
            self._identities[half.queue_offset] = identity

    def finish(self) -> TransactionTable:
        """The table of what is open."""
        for transaction in self._open.values():
            self._table.add(transaction)
        self._table.note_read(self._end)
        return self._table

    def _older_copy(self, half: HalfMessage, identity: int | None) -> OpenTransaction | None:
        """The open copy that `half` makes void, which is open no more."""
        offset = half.first_offset if identity is None else self._newest.get(identity, half.first_offset)
        older = None if offset is None else self._open.pop(offset, None)
        if older is not None:
            known = self._identities.pop(older.queue_offset, None)
            if known is not None and self._newest.get(known) == older.queue_offset:
                del self._newest[known]
        return older

    def _decide(self, offset: int) -> None:
        index = offset - self._start
        if self._start <= offset < self._end:
            self._decided[index >> 3] |= 1 << (index & 7)

    def _is_decided(self, offset: int) -> bool:
        index = offset - self._start
        return self._start <= offset < self._end and self._decided[index >> 3] & 1 << (index & 7) != 0
