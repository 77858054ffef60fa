"""The one primitive that everything waits on: an offset that moves, and those who wait for it.

Theory of operation. A log is bytes `[min, max)`, and everything anyone waits for is "offset X has reached
stage S": appended, flushed, sent, replicated, dispatched. A `Watermark` is one such stage. `advance(offset)`
moves it forward and wakes exactly the waiters at or below it; `await reached(offset)` waits on a trio
`Event` of its own. There is no polling, no list that is swapped, and no waiter behind another: a heap keeps
waiters by their offset, so each costs O(log n) however many there are, and each has its own deadline (its
caller's cancel scope).

Like a trio `Event`, a watermark belongs to one trio thread.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from itertools import count

import trio
from attrs import define, field


@define(eq=False)
class _Waiter:
    event: trio.Event = field(factory=trio.Event)
    cancelled: bool = False


class Watermark:
    """An offset in bytes that moves forward, and the waiters for it."""

    __slots__ = ("_cancelled_count", "_offset", "_order", "_waiters")

    def __init__(self, offset: int = 0) -> None:
        self._offset = offset
        self._waiters: list[tuple[int, int, _Waiter]] = []
        self._order = count()
        self._cancelled_count = 0

    def __repr__(self) -> str:
        return f"<Watermark {self._offset}, {self.waiting} waiting>"

    @property
    def offset(self) -> int:
        """Where the mark is now, in bytes."""
        return self._offset

    @property
    def waiting(self) -> int:
        """How many tasks wait for an offset beyond the mark."""
        return len(self._waiters) - self._cancelled_count

    def advance(self, offset: int) -> None:
        """Move the mark forward to `offset` and wake every waiter at or below it.

        An offset at or below the mark changes nothing: whoever reports progress twice is not wrong.
        """
        if offset <= self._offset:
            return
        self._offset = offset
        waiters = self._waiters
        while waiters and waiters[0][0] <= offset:
            waiter = heappop(waiters)[2]
            if waiter.cancelled:
                self._cancelled_count -= 1
            else:
                waiter.event.set()

    def rewind(self, offset: int) -> None:
        """Move the mark back to `offset`: a cut log tail, or a copy that was lost. Wakes nobody."""
        assert offset <= self._offset, f"rewind goes back only: {self._offset} -> {offset}"
        self._offset = offset

    def move_to(self, offset: int) -> None:
        """`advance` or `rewind`, whichever leads to `offset`."""
        if offset >= self._offset:
            self.advance(offset)
        else:
            self.rewind(offset)

    async def reached(self, offset: int) -> None:
        """Return as soon as the mark has been at or beyond `offset`.

        Returns without a checkpoint if it is there already. A cancelled wait leaves nothing behind.
        """
        if offset <= self._offset:
            return
        waiter = _Waiter()
        heappush(self._waiters, (offset, next(self._order), waiter))
        try:
            await waiter.event.wait()
        finally:
            if not waiter.event.is_set():
                waiter.cancelled = True
                self._cancelled_count += 1
                self._drop_cancelled()

    def _drop_cancelled(self) -> None:
        """Forget cancelled waiters once they are the greater part: amortised O(1) for each of them."""
        if self._cancelled_count * 2 > len(self._waiters):
            self._waiters = [entry for entry in self._waiters if not entry[2].cancelled]
            heapify(self._waiters)
            self._cancelled_count = 0


class ReplicatedWatermarks:
    """For each number of copies `k`: the k-th largest acknowledged offset over distinct replicas.

    One computation serves the classic one-slave rule (k = 1), `inSyncReplicas` (any k) and "all in sync".
    A replica that is forgotten takes its acknowledgements with it, so a mark can move back; waiters that
    were released stay released, and new ones wait for what is really there.
    """

    def __init__(self) -> None:
        self._acks: dict[str, int] = {}
        self._marks: dict[int, Watermark] = {}

    def copies(self, k: int) -> Watermark:
        """The mark that `k` replicas (the master itself not counted) have reached; `k` is at least 1."""
        assert k >= 1, f"copies beyond the master's own are counted from 1, not {k}"
        mark = self._marks.get(k)
        if mark is None:
            mark = self._marks[k] = Watermark(self._kth_largest(k))
        return mark

    def acknowledge(self, replica: str, offset: int) -> None:
        """`replica` holds the log up to `offset`."""
        self._acks[replica] = offset
        self._update()

    def forget(self, replica: str) -> None:
        """`replica` is gone, and so is what it acknowledged."""
        if self._acks.pop(replica, None) is not None:
            self._update()

    def _kth_largest(self, k: int) -> int:
        return sorted(self._acks.values(), reverse=True)[k - 1] if len(self._acks) >= k else 0

    def _update(self) -> None:
        if not self._marks:
            return
        acks = sorted(self._acks.values(), reverse=True)
        for k, mark in self._marks.items():
            mark.move_to(acks[k - 1] if len(acks) >= k else 0)
