"""Open transactions: half messages without a decision, times of their checks, pending op records, position.

Theory of operation. The log is the truth: a transaction is open if its half message has no op record. A half
message is known by its queue offset in the half topic, and an op record names the queue offsets of half
messages that are decided. This table is that state in memory, without I/O and clock; times are seconds on any
clock that does not go back.

```
          add                     end                    op_written
 (none) -------> open, with a --------> ended, its op ------------> (none)
                 time of check          record is pending
                    |    ^
                    +----+ renew: the half message is put anew, with a new offset
```

A check puts the half message into the half topic anew, as RocketMQ does, so that the oldest open one is
never far from the topic's end. Its producer may still name an older copy, in a decision that crossed a check
or took longer than some: the table finds the transaction by any copy, or by its first copy and its last two
if its producer gave it no UNIQ_KEY. A transaction that is not open any more is not found, so nothing is
delivered twice.

`position` is where reading has to begin to build this table again: every half message before it is decided or
was put anew, and every op record before it names such half messages only. RocketMQ keeps the same pair as
offsets of the consumer group CID_RMQ_SYS_TRANS.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush
from math import ceil, floor
from typing import Final

from attrs import define, frozen

OP_RECORDS_PER_MARK: Final = 64
"""Op records that share a mark in memory. A restart may read so many more than it needs."""
_STALE_MAX: Final = 1024
_ROUNDING: Final = 1e-6


@define
class OpenTransaction:
    """A half message without a decision."""

    queue_offset: int
    """Of its newest copy in the half topic."""
    physical_offset: int
    """Where the log has the newest copy."""
    check_at_s: float
    """When it may be checked."""
    first_offset: int
    """Queue offset of its first copy; `queue_offset` if there is only one."""
    previous_offset: int
    """Queue offset of the copy before the newest; `queue_offset` if there is only one."""
    identity: int | None = None
    """Equal for all its copies, see `HalfMessage.identity`."""

    @classmethod
    def of(
        cls, queue_offset: int, physical_offset: int, *, check_at_s: float, identity: int | None = None
    ) -> OpenTransaction:
        """Of a half message that is its transaction's only copy."""
        return cls(queue_offset, physical_offset, check_at_s, queue_offset, queue_offset, identity)

    @property
    def aliases(self) -> Iterator[int]:
        """Queue offsets of the older copies by which it is found, if it has no identity."""
        if self.identity is None:
            for offset in (self.first_offset, self.previous_offset):
                if offset != self.queue_offset:
                    yield offset


@frozen
class Position:
    """Where reading the half topic and the op topic begins, as queue offsets."""

    half_offset: int
    op_offset: int


@define
class _OpMark:
    """Some op records in a row."""

    end_offset: int
    """Queue offset after the last of them."""
    half_offset_max: int
    """Largest half offset that they name."""
    records: int


class CheckSchedule:
    """Rounds of checks at a fixed interval, the first one interval after the start."""

    def __init__(self, *, start_s: float, interval_s: float) -> None:
        self._start_s = start_s
        self._interval_s = interval_s
        self.tolerance_s = interval_s * _ROUNDING
        """Times that are so near are one: sums of floating-point numbers are not exact."""

    def round_at(self, time_s: float) -> float:
        """Time of the first round at or after `time_s`."""
        rounds = ceil((time_s - self._start_s) / self._interval_s - _ROUNDING)
        return self._start_s + max(1, rounds) * self._interval_s

    def round_after(self, time_s: float) -> float:
        """Time of the first round after `time_s`."""
        rounds = floor((time_s - self._start_s) / self._interval_s + _ROUNDING) + 1
        return self._start_s + max(1, rounds) * self._interval_s


class TransactionTable:
    """All open transactions of a broker."""

    def __init__(self, position: Position) -> None:
        """`position`: where the half topic and the op topic are read from."""
        self._open: dict[int, OpenTransaction] = {}
        """By the queue offset of the newest copy."""
        self._offsets: list[int] = []
        """A heap of their queue offsets; those of transactions that ended stay until they are drawn."""
        self._aliases: dict[int, int] = {}
        """Older copies' queue offsets: the newest copy's. Of transactions without an identity."""
        self._identities: dict[int, int] = {}
        """Identities: the queue offset of the newest copy."""
        self._checks: list[tuple[float, int]] = []
        """A heap of times and queue offsets, with stale ones as in `_offsets`."""
        self._pending: dict[int, None] = {}
        """Half offsets for which an op record has yet to be written, in order."""
        self.half_end = position.half_offset
        """Half messages before it were read; the open ones among them were added."""
        self._op_end = position.op_offset
        self._op_start = position.op_offset
        self._marks: deque[_OpMark] = deque()

    def __len__(self) -> int:
        """Transactions that are open, or whose op record is pending."""
        return len(self._open) + len(self._pending)

    def __iter__(self) -> Iterator[OpenTransaction]:
        """Open transactions, in no order."""
        return iter(self._open.values())

    # -- transactions ------------------------------------------------------------------------------------

    def add(self, transaction: OpenTransaction) -> None:
        """A half message was stored."""
        self._open[transaction.queue_offset] = transaction
        heappush(self._offsets, transaction.queue_offset)
        if len(self._offsets) > 2 * len(self._open) + _STALE_MAX:
            self._offsets = list(self._open)
            heapify(self._offsets)
        for offset in transaction.aliases:
            self._aliases[offset] = transaction.queue_offset
        if transaction.identity is not None:
            self._identities[transaction.identity] = transaction.queue_offset
        self._schedule(transaction)

    def note_read(self, queue_offset: int) -> None:
        """All half messages before `queue_offset` were read."""
        self.half_end = max(self.half_end, queue_offset)

    def find(self, queue_offset: int, identity: int | None = None) -> OpenTransaction | None:
        """The open transaction with a copy at that offset of the half topic; None if there is none.

        `identity`: of the copy there.
        """
        transaction = self._open.get(self._aliases.get(queue_offset, queue_offset))
        if transaction is None and identity is not None:
            # The newest copy is after all others: an open one before `queue_offset` is not this one's.
            newest = self._identities.get(identity, -1)
            transaction = self._open.get(newest) if newest > queue_offset else None
        return transaction

    def end(self, transaction: OpenTransaction) -> None:
        """A transaction was decided, or given up; its op record is pending now."""
        self._remove(transaction)
        self._pending[transaction.queue_offset] = None

    def forget(self, transaction: OpenTransaction) -> None:
        """Its half message cannot be read: it can neither be committed nor checked."""
        self._remove(transaction)

    def renew(
        self, transaction: OpenTransaction, queue_offset: int, physical_offset: int, *, check_at_s: float
    ) -> OpenTransaction:
        """Its half message was put anew, at these offsets."""
        self._remove(transaction)
        renewed = OpenTransaction(
            queue_offset,
            physical_offset,
            check_at_s,
            transaction.first_offset,
            transaction.queue_offset,
            transaction.identity,
        )
        self.add(renewed)
        return renewed

    def postpone(self, transaction: OpenTransaction, *, check_at_s: float) -> None:
        """A transaction is checked later."""
        transaction.check_at_s = check_at_s
        self._schedule(transaction)

    def _remove(self, transaction: OpenTransaction) -> None:
        del self._open[transaction.queue_offset]
        for offset in transaction.aliases:
            self._aliases.pop(offset, None)
        identity = transaction.identity
        if identity is not None and self._identities.get(identity) == transaction.queue_offset:
            del self._identities[identity]

    # -- checks ------------------------------------------------------------------------------------------

    def _schedule(self, transaction: OpenTransaction) -> None:
        heappush(self._checks, (transaction.check_at_s, transaction.queue_offset))
        if len(self._checks) > 2 * len(self._open) + _STALE_MAX:
            self._checks = [(each.check_at_s, each.queue_offset) for each in self]
            heapify(self._checks)

    def _drop_stale(self) -> None:
        checks = self._checks
        while checks:
            time_s, queue_offset = checks[0]
            transaction = self._open.get(queue_offset)
            if transaction is not None and transaction.check_at_s == time_s:
                return
            heappop(checks)

    @property
    def next_check_s(self) -> float | None:
        """When the first transaction may be checked; None if none is open."""
        self._drop_stale()
        return self._checks[0][0] if self._checks else None

    def next_due(self, now_s: float) -> OpenTransaction | None:
        """A transaction that may be checked now, None if there is none.

        It is given once: then `renew`, `postpone`, `end` or `forget` it.
        """
        self._drop_stale()
        if not self._checks or self._checks[0][0] > now_s:
            return None
        return self._open[heappop(self._checks)[1]]

    @property
    def oldest(self) -> OpenTransaction | None:
        """The open transaction with the smallest queue offset."""
        offsets = self._offsets
        while offsets:
            transaction = self._open.get(offsets[0])
            if transaction is not None:
                return transaction
            heappop(offsets)
        return None

    # -- op records --------------------------------------------------------------------------------------

    @property
    def pending_ops(self) -> tuple[int, ...]:
        """Half offsets whose op record has yet to be written, in the order of the decisions."""
        return tuple(self._pending)

    @property
    def pending_count(self) -> int:
        """Number of `pending_ops`."""
        return len(self._pending)

    def op_written(self, op_offset: int, half_offsets: Iterable[int]) -> None:
        """The op record at queue offset `op_offset` of the op topic names these half offsets."""
        half_offset_max = -1
        for offset in half_offsets:
            self._pending.pop(offset, None)
            half_offset_max = max(half_offset_max, offset)
        self._op_end = op_offset + 1
        if self._marks and self._marks[-1].records < OP_RECORDS_PER_MARK:
            mark = self._marks[-1]
            mark.end_offset = op_offset + 1
            mark.half_offset_max = max(mark.half_offset_max, half_offset_max)
            mark.records += 1
        else:
            self._marks.append(_OpMark(op_offset + 1, half_offset_max, 1))
        self._drop_marks()

    @property
    def position(self) -> Position:
        """Where to begin to read when the table has to be built again."""
        half_offset = self._half_start()
        self._drop_marks()
        return Position(half_offset, self._op_start if self._marks else self._op_end)

    def _half_start(self) -> int:
        oldest = self.oldest
        start = self.half_end if oldest is None else min(oldest.queue_offset, self.half_end)
        return min(start, *self._pending) if self._pending else start

    def _drop_marks(self) -> None:
        """Drop marks of op records that name no half message from `position` on."""
        start = self._half_start()
        marks = self._marks
        while marks and marks[0].half_offset_max < start:
            self._op_start = marks.popleft().end_offset
