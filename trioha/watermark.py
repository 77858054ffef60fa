"""Watermark: an offset that moves, with waits for offsets. All waiting in a node is built on it.

Theory of operation. A log is bytes `[min, max)`, and every wait is for "offset X has reached stage S":
appended, flushed, sent, replicated, dispatched. A `Watermark` is one such stage. `advance(offset)` moves it
forward and wakes exactly the waits at or below it. There is no polling. Waits are sorted by offset: most are
for bytes just appended and so come last, at no more cost than the end of a list; and those that a mark has
reached are the first ones, found by one search however many they are.

A mark moves back for one of two reasons, which waits handle differently:

- `rewind`: the counted bytes were cut (a log that begins anew). Offsets of the old bytes mean nothing for the
  new ones, so every wait ends with REWOUND, and its task starts again from the mark.
- `lower`: the bytes are the same, but fewer copies of them are known (a replica disconnected). Another
  replica may still bring the mark to the offset, so waits continue.

`await reached(offset)` is a wait with the deadline of its caller's cancel scope. `wait_for(offset)` returns a
`Wait` to await later, which another task may end: for the thousands of waiting puts, where a cancel scope
each would be a sixth of their cost (see `ha.timeouts`).

Like a trio `Event`, a watermark belongs to one trio thread.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from enum import Enum, auto
from typing import Final, Protocol

import trio

_ENDED_MAX = 32
"""Ended waits are removed when there are more waits than this, and than twice those left the last time."""


HALVED_WAITS_MIN: Final = 32
"""If at least this many waits ended together, `is_refilled` is also true at half of their number."""


class WaitResult(Enum):
    """How a wait ended."""

    REACHED = auto()
    """The mark was at or beyond the offset."""
    REWOUND = auto()
    """The bytes before the offset were cut."""
    GIVEN_UP = auto()
    """It was cancelled, or its deadline has passed."""


# Looking up a member of an enum costs more than the rest of ending a wait.
REACHED: Final = WaitResult.REACHED
REWOUND: Final = WaitResult.REWOUND
GIVEN_UP: Final = WaitResult.GIVEN_UP


class Listener(Protocol):
    """What a wait tells of its end, as it sets an event."""

    def set(self) -> object:
        """The wait has ended. Called amid the work of another task: must not raise."""
        ...


class Wait:
    """One task's wait for an offset. It ends once: by the mark, by a rewind, or given up."""

    __slots__ = ("deadline_s", "event", "result", "start_offset")

    def __init__(self, start_offset: int = 0) -> None:
        self.start_offset = start_offset
        """For the caller: start of the bytes whose end it waits for."""
        self.deadline_s = math.inf
        """For the task that gives it up (`ha.timeouts`): when, in s of trio's clock."""
        self.result: WaitResult | None = None
        """How the wait ended; None before."""
        self.event: trio.Event | Listener | None = None
        """What the end of the wait sets: the waiting task's event, or a listener; None before there is one.

        To be set while the wait has not ended; a task that is cancelled then calls `end`."""

    def end(self, result: WaitResult = GIVEN_UP) -> None:
        """End the wait and wake its task; nothing happens if it has ended."""
        if self.result is None:
            self.result = result
            if self.event is not None:
                self.event.set()

    async def wait(self) -> WaitResult:
        """Wait for the result, without a checkpoint if there is one. Cancelling gives the wait up."""
        if self.result is None:
            self.event = event = trio.Event()
            try:
                await event.wait()
            finally:
                self.end(GIVEN_UP)
        assert self.result is not None, "the event of a wait is set by its end"
        return self.result


class Watermark:
    """An offset in bytes, with waits for it. The module's docstring says how it moves."""

    __slots__ = ("_ended", "_ends", "_offset", "_waits", "_waits_max")

    def __init__(self, offset: int = 0) -> None:
        self._offset = offset
        self._ends: list[int] = []
        """Offsets of the waits, ascending."""
        self._waits: list[Wait] = []
        """The waits, in the order of `_ends`; of one offset, the first one that came is first."""
        self._waits_max = _ENDED_MAX
        self._ended = 0
        """Waits that the last `advance` ended, of those that ended any."""

    def __repr__(self) -> str:
        return f"<Watermark {self._offset}, {self.waiting} waiting>"

    @property
    def offset(self) -> int:
        """Where the mark is now, in bytes."""
        return self._offset

    @property
    def waits(self) -> list[Wait]:
        """Unended waits, in no order."""
        return [wait for wait in self._waits if wait.result is None]

    @property
    def waiting(self) -> int:
        """Number of unended waits."""
        return len(self.waits)

    @property
    def is_refilled(self) -> bool:
        """Whether there are exactly as many waits now as `advance` ended the last time, or half of many.

        Tasks that do the same again after each wait, as producers do, have all come back then; and at half of
        them, what they wait for can begin while the other half comes.
        """
        waits, ended = len(self._ends), self._ended
        return waits == ended or (ended >= HALVED_WAITS_MIN and waits == ended // 2)

    def advance(self, offset: int) -> None:
        """Move the mark forward to `offset` and end every wait at or below it.

        An offset at or below the mark changes nothing.
        """
        if offset <= self._offset:
            return
        self._offset = offset
        ends = self._ends
        if not ends or ends[0] > offset:
            return
        count = bisect_right(ends, offset)
        reached = self._waits[:count]
        del self._waits[:count], ends[:count]
        self._ended = count
        # `Wait.end`, without a call for each waiting put.
        for wait in reached:
            if wait.result is None:
                wait.result = REACHED
                event = wait.event
                if event is not None:
                    event.set()

    def rewind(self, offset: int) -> None:
        """Move the mark back to `offset`, since the bytes beyond were cut. Every wait ends with REWOUND.

        Waits end also if the mark is at `offset` already: the bytes before it may be others now.
        """
        assert offset <= self._offset, f"rewind goes back only: {self._offset} -> {offset}"
        self._offset = offset
        waits = self._waits
        self._waits, self._ends = [], []
        for wait in waits:
            wait.end(REWOUND)

    def lower(self, offset: int) -> None:
        """Move the mark back to `offset`, since fewer copies of the same bytes are known. Waits continue."""
        assert offset <= self._offset, f"lower goes back only: {self._offset} -> {offset}"
        self._offset = offset

    def move_to(self, offset: int) -> None:
        """`advance` or `rewind`, whichever leads to `offset`."""
        if offset >= self._offset:
            self.advance(offset)
        else:
            self.rewind(offset)

    async def reached(self, offset: int) -> bool:
        """Return True as soon as the mark has been at or beyond `offset`, False as soon as it is rewound.

        Returns without a checkpoint if it is there already. A cancelled wait is removed.
        """
        return offset <= self._offset or await self.wait_for(offset).wait() is REACHED

    def wait_for(self, offset: int, *, start_offset: int = 0) -> Wait:
        """A wait that ends with REACHED as soon as the mark has been at or beyond `offset`.

        A caller that does not await it must `end` it.
        """
        wait = Wait(start_offset)
        if offset <= self._offset:
            wait.result = REACHED
            return wait
        ends = self._ends
        if not ends or offset >= ends[-1]:
            ends.append(offset)
            self._waits.append(wait)
        else:
            at = bisect_right(ends, offset)
            ends.insert(at, offset)
            self._waits.insert(at, wait)
        if len(ends) > self._waits_max:
            self._drop_ended()
        return wait

    def _drop_ended(self) -> None:
        """Remove waits that ended before their offset was reached: amortised O(1) for each of them."""
        kept = [(end, wait) for end, wait in zip(self._ends, self._waits, strict=True) if wait.result is None]
        self._ends = [end for end, _ in kept]
        self._waits = [wait for _, wait in kept]
        self._waits_max = max(_ENDED_MAX, 2 * len(kept))


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

    def waits(self) -> list[Wait]:
        """Unended waits, for any number of copies."""
        return [wait for mark in self._marks.values() for wait in mark.waits]

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
        if not self._marks:
            return
        acks = sorted(self._acks.values(), reverse=True)
        for k, mark in self._marks.items():
            offset = acks[k - 1] if len(acks) >= k else 0
            if offset >= mark.offset:
                mark.advance(offset)
            else:
                mark.lower(offset)
