"""Deferred: a value that comes later, for callers that need no task to wait for it.

Theory of operation. A task for each of thousands of waiting puts costs more than the puts themselves. A
`Deferred` is the part of an awaitable that such a put needs: its owner says when it is ready, which calls
one function, and whoever attached that function takes the result when it likes, together with those of
others. It can be awaited as well.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Generic, TypeVar

import trio

T = TypeVar("T")


class Deferred(Generic[T]):
    """A value of type `T` that comes later. Exactly one caller attaches a function to it, or awaits it."""

    __slots__ = ("_on_ready", "is_ready")

    def __init__(self) -> None:
        self.is_ready = False
        """Whether `result` may be called."""
        self._on_ready: Callable[[Deferred[T]], None] | None = None

    def attach(self, on_ready: Callable[[Deferred[T]], None]) -> None:
        """Call `on_ready` with this object as soon as it is ready, perhaps now.

        `on_ready` is called amid the work of another task: it must not raise.
        """
        if self.is_ready:
            on_ready(self)
        else:
            self._on_ready = on_ready

    def result(self) -> T:
        """The value. Call it once, when it is ready; it may raise."""
        raise NotImplementedError

    def expected(self) -> T | None:
        """What `result` will most likely return: the same object then; None if that is not known.

        For callers that have time before the value is there. It may raise what `result` would raise.
        """
        return None

    def abandon(self) -> None:
        """Nobody needs the value any more; `on_ready` is not called."""
        self._on_ready = None

    def _ready(self) -> None:
        """For subclasses: the value is there."""
        self.is_ready = True
        if self._on_ready is not None:
            on_ready, self._on_ready = self._on_ready, None
            on_ready(self)

    def __await__(self) -> Generator[Any, None, T]:
        """Wait for the value. Cancelling abandons it."""
        if not self.is_ready:
            event = trio.Event()
            self.attach(lambda _: event.set())
            try:
                yield from event.wait().__await__()
            except BaseException:
                self.abandon()
                raise
        return self.result()
