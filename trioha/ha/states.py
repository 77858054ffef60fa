"""The state of an HA connection, and those who wait for it to change.

Theory of operation. A `StateCell` holds one `HaState`. `change_to` moves it and wakes, at once, exactly those
who wait for the new state. A state that lasts only until the next scheduler turn is not missed: waiters are
matched when the change is made, not when they run. RocketMQ's notification of state changes (spec ha 3.3) has
one slot, where a new request cancels the one before; here anybody may wait.

Like a trio `Event`, a cell belongs to one trio thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Generic, TypeVar

import trio
from attrs import define, field

from trioha.recording.events import HaState

T = TypeVar("T")

CHANGES_KEPT_MAX = 64
"""So many changes wait for a reader who is slow; older ones are dropped for it, and counted."""


@define(eq=False)
class _Waiter:
    states: Collection[HaState]
    event: trio.Event = field(factory=trio.Event)
    met: HaState = HaState.READY
    """The state that ended the wait."""


class Changes(Generic[T]):
    """The changes since its reader subscribed, in order: an asynchronous iterator."""

    def __init__(self) -> None:
        self._kept: deque[T] = deque()
        self._more = trio.Event()
        self.dropped = 0
        """Changes that were never read, because `CHANGES_KEPT_MAX` newer ones waited."""

    def __aiter__(self) -> Changes[T]:
        return self

    async def __anext__(self) -> T:
        """The next change. A cancelled wait loses none."""
        while not self._kept:
            self._more = trio.Event()
            await self._more.wait()
        return self._kept.popleft()

    def note(self, change: T) -> None:
        """The teller's part: it happened."""
        if len(self._kept) == CHANGES_KEPT_MAX:
            self._kept.popleft()
            self.dropped += 1
        self._kept.append(change)
        self._more.set()


class Notices(Generic[T]):
    """Tells every reader what changes."""

    def __init__(self) -> None:
        self._readers: set[Changes[T]] = set()

    def tell(self, change: T) -> None:
        """Let all that read now know."""
        for reader in self._readers:
            reader.note(change)

    @contextmanager
    def listen(self) -> Iterator[Changes[T]]:
        """All changes from now on, none lost between the `with` and the first wait."""
        reader: Changes[T] = Changes()
        self._readers.add(reader)
        try:
            yield reader
        finally:
            self._readers.discard(reader)


class StateCell:
    """One connection's state."""

    def __init__(self, state: HaState) -> None:
        self._state = state
        self._waiters: set[_Waiter] = set()
        self._notices: Notices[HaState] = Notices()

    def __repr__(self) -> str:
        return f"<StateCell {self._state.name}, {len(self._waiters)} waiting>"

    @property
    def state(self) -> HaState:
        """The state now."""
        return self._state

    def change_to(self, state: HaState) -> bool:
        """Enter `state` and wake who waits for it; False, and nobody is woken, if it is the state already."""
        if state is self._state:
            return False
        self._state = state
        for waiter in [waiter for waiter in self._waiters if state in waiter.states]:
            waiter.met = state
            waiter.event.set()
            self._waiters.discard(waiter)
        self._notices.tell(state)
        return True

    async def wait_for(self, *states: HaState) -> HaState:
        """Return as soon as the state has been one of `states`, and say which.

        Returns without a checkpoint if it is one of them now. Name SHUTDOWN, too, where the state may end
        there: nothing else follows it. A cancelled wait leaves nothing behind.
        """
        if self._state in states:
            return self._state
        waiter = _Waiter(states)
        self._waiters.add(waiter)
        try:
            await waiter.event.wait()
        finally:
            self._waiters.discard(waiter)
        return waiter.met

    def changes(self) -> AbstractContextManager[Changes[HaState]]:
        """`with cell.changes() as changes: async for state in changes: ...`: each state entered from now on.

        Changes are kept from the `with` on, so none is lost between a look at `state` and the first wait.
        """
        return self._notices.listen()
