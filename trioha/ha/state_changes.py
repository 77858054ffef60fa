"""Subscriptions to changes of state: of a slave's link to its master, of a master's connections.

RocketMQ's notification of state changes (docs/protocol/ha.md#state-notification) has one slot, where a new
request cancels the one before. Here each subscriber gets every change from its subscription on, in order,
also states that last only until the next scheduler turn. Like a trio `Event`, these belong to one trio
thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Generic, TypeVar

import trio

T = TypeVar("T")

UNREAD_MAX: Final = 64
"""Changes kept for a subscriber that is slow to read; for more the oldest are dropped and counted."""


class Subscription(Generic[T]):
    """The changes since it began: an asynchronous iterator for one task."""

    def __init__(self) -> None:
        self._unread: deque[T] = deque()
        self._more = trio.Event()
        self.dropped = 0
        """Changes dropped unread because `UNREAD_MAX` newer ones waited."""

    def __aiter__(self) -> Subscription[T]:
        return self

    async def __anext__(self) -> T:
        """The next change. A cancelled wait loses none."""
        while not self._unread:
            self._more = trio.Event()
            await self._more.wait()
        return self._unread.popleft()

    def add(self, change: T) -> None:
        """For the publisher: keep `change` until it is read."""
        if len(self._unread) == UNREAD_MAX:
            self._unread.popleft()
            self.dropped += 1
        self._unread.append(change)
        self._more.set()


class StateChanges(Generic[T]):
    """Publishes changes to every subscription."""

    def __init__(self) -> None:
        self._subscriptions: set[Subscription[T]] = set()

    def publish(self, change: T) -> None:
        """Add `change` to every open subscription."""
        for subscription in self._subscriptions:
            subscription.add(change)

    @contextmanager
    def subscribe(self) -> Iterator[Subscription[T]]:
        """All changes from now on: `with ... as changes: async for change in changes`.

        None is lost between the `with` and the first wait.
        """
        subscription: Subscription[T] = Subscription()
        self._subscriptions.add(subscription)
        try:
            yield subscription
        finally:
            self._subscriptions.discard(subscription)
