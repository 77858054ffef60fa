"""Watermark: an offset that moves, with waits for offsets. All waiting in a node is built on it.

Theory of operation. A log is bytes `[min, max)`, and every wait is for "offset X has reached stage S":
appended, flushed, sent, replicated, dispatched. A `Watermark` is one such stage. `advance(offset)` moves it
forward and sets the event of each wait at or below it, and of no other. There is no polling. A task that
waits for many offsets waits for the lowest one, and looks at the mark when that is reached: so there are as
many waits as tasks, and not as puts.

A mark moves back for one of two reasons, which waits handle differently:

- `rewind`: the counted bytes were cut (a log that begins anew). Offsets of the old bytes mean nothing for the
  new ones, so every wait ends, and its task starts again from the mark.
- `lower`: the bytes are the same, but fewer copies of them are known (a replica disconnected). Another
  replica may still bring the mark to the offset, so waits continue.

A wait has the deadline of its caller's cancel scope. Like a trio `Event`, a watermark belongs to one trio
thread.
"""

from __future__ import annotations

from bisect import insort
from operator import attrgetter

import trio
from attrs import define


@define(eq=False)
class Wait:
    """One task's wait for an offset."""

    offset: int
    event: trio.Event
    """Set when it is over."""
    is_reached: bool = False
    is_over: bool = False
    """Whether it was reached, or the mark was rewound."""


_OFFSET = attrgetter("offset")


class Watermark:
    """An offset in bytes, with waits for it. The module's docstring says how it moves."""

    __slots__ = ("_waits", "offset", "rewinds")

    def __init__(self, offset: int = 0) -> None:
        self.offset = offset
        """Where the mark is now, in bytes. Changed by the methods only."""
        self.rewinds = 0
        """How often bytes were cut: with another number, an offset is one of other bytes."""
        self._waits: list[Wait] = []
        """By offset, ascending."""

    def __repr__(self) -> str:
        return f"<Watermark {self.offset}, {self.waiting} waiting>"

    @property
    def waiting(self) -> int:
        """Number of tasks that wait."""
        return len(self._waits)

    def advance(self, offset: int) -> None:
        """Move the mark forward to `offset` and end every wait at or below it.

        An offset at or below the mark changes nothing.
        """
        if offset <= self.offset:
            return
        self.offset = offset
        waits = self._waits
        while waits and waits[0].offset <= offset:
            wait = waits.pop(0)
            wait.is_reached = wait.is_over = True
            wait.event.set()

    def rewind(self, offset: int) -> None:
        """Move the mark back to `offset`, since the bytes beyond were cut. Every wait ends unreached.

        Waits end also if the mark is at `offset` already: the bytes before it may be others now.
        """
        assert offset <= self.offset, f"rewind goes back only: {self.offset} -> {offset}"
        self.offset = offset
        self.rewinds += 1
        waits, self._waits = self._waits, []
        for wait in waits:
            wait.is_over = True
            wait.event.set()

    def lower(self, offset: int) -> None:
        """Move the mark back to `offset`, since fewer copies of the same bytes are known. Waits continue."""
        assert offset <= self.offset, f"lower goes back only: {self.offset} -> {offset}"
        self.offset = offset

    def move_to(self, offset: int) -> None:
        """`advance` or `rewind`, whichever leads to `offset`."""
        if offset >= self.offset:
            self.advance(offset)
        else:
            self.rewind(offset)

    async def reached(self, offset: int) -> bool:
        """Return True as soon as the mark has been at or beyond `offset`, False as soon as it is rewound.

        Returns without a checkpoint if it is there already. Cancelling leaves nothing behind.
        """
        if offset <= self.offset:
            return True
        wait = self.watch(offset, trio.Event())
        try:
            await wait.event.wait()
        finally:
            self.unwatch(wait)
        return wait.is_reached

    def watch(self, offset: int, event: trio.Event) -> Wait:
        """Have `event` set as soon as the mark is at or beyond `offset`, or is rewound.

        For a task that waits for `event` already. End it with `unwatch`.
        """
        wait = Wait(offset, event)
        if offset <= self.offset:
            wait.is_reached = wait.is_over = True
            event.set()
        else:
            insort(self._waits, wait, key=_OFFSET)
        return wait

    def unwatch(self, wait: Wait) -> None:
        """Leave the event of `wait` alone from now on."""
        if not wait.is_over:
            wait.is_over = True
            self._waits.remove(wait)


class ReplicatedWatermarks:
    """For each number of copies `k`: the k-th largest acknowledged offset over distinct replicas.

    One computation serves the classic one-slave rule (k = 1), `inSyncReplicas` (any k) and "all in sync". The
    acks of a forgotten replica are removed, so a mark can be lowered; waits that ended stay ended, and the
    others continue for another replica.
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

    def marks(self) -> list[Watermark]:
        """Those that were asked for."""
        return list(self._marks.values())

    def acknowledge(self, replica: str, offset: int) -> None:
        """`replica` holds the log up to `offset`."""
        self._acks[replica] = offset
        self._update()

    def forget(self, replica: str) -> None:
        """Remove the ack of `replica`."""
        if self._acks.pop(replica, None) is not None:
            self._update()

    def _kth_largest(self, k: int) -> int:
        return sorted(self._acks.values(), reverse=True)[k - 1] if len(self._acks) >= k else 0

    def _update(self) -> None:
        for k, mark in self._marks.items():
            offset = self._kth_largest(k)
            if offset >= mark.offset:
                mark.advance(offset)
            else:
                mark.lower(offset)
