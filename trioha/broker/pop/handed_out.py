"""How many messages of a queue are handed out to a group: no more are while these are too many.

See docs/pop.md#messages-in-flight.

Theory of operation. Messages are counted by the second in which they are due again. An acknowledgement takes
one away, a change moves it; what nobody has acknowledged by then leaves by itself, since the revival gives it
again in the retry topic. So no count stays wrong for longer than messages are handed out: one that comes
twice, or for nothing, takes away what is not there, or what was due in the same second.

It costs memory for as many seconds of a queue as it has messages in flight, and not without
enablePopMessageThreshold: nothing is counted then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Final

from trioha.broker.pop_records import GroupQueue

SPARE_SECONDS: Final = 1024
"""Seconds that may be left in the heap of those whose messages are all acknowledged, beside as many as have
some."""


class HandedOut:
    """Counts messages of unordered pops."""

    def __init__(
        self,
        most: int | None,
        *,
        now_ms: Callable[[], int],
        on_free: Callable[[GroupQueue], None] = lambda _queue: None,
    ) -> None:
        """`most`: popInflightMessageThreshold; None for no limit. `on_free` is called when acknowledgements
        have made a queue that was full one that is not."""
        self._most = most
        self._now_ms = now_ms
        self._on_free = on_free
        self._due: dict[tuple[int, GroupQueue], int] = {}
        """Messages by the second since 1970 in which they are due again, and queue."""
        self._seconds: list[tuple[int, GroupQueue]] = []
        """The keys of `_due`, a heap; some may be gone."""
        self._totals: Counter[GroupQueue] = Counter()

    def is_full(self, queue: GroupQueue) -> bool:
        """Whether more messages than the limit are in flight."""
        if self._most is None:
            return False
        self._drop_due()
        return self._totals[queue] > self._most

    def add(self, queue: GroupQueue, messages: int, *, due_ms: int) -> None:
        """Messages are handed out until `due_ms`, ms since 1970."""
        if self._most is None:
            return
        self._drop_due()
        key = _second(due_ms), queue
        if key not in self._due:
            heappush(self._seconds, key)
        self._due[key] = self._due.get(key, 0) + messages
        self._totals[queue] += messages

    def remove(self, queue: GroupQueue, messages: int, *, due_ms: int) -> None:
        """Messages that were handed out until `due_ms` are acknowledged."""
        if self._most is None:
            return
        key = _second(due_ms), queue
        before, total = self._due.get(key, 0), self._totals[queue]
        if before > messages:
            self._due[key] = before - messages
            self._lower(queue, messages)
        elif before:
            del self._due[key]
            self._lower(queue, before)
            if len(self._seconds) > 2 * len(self._due) + SPARE_SECONDS:
                self._seconds = list(self._due)
                heapify(self._seconds)
        if total > self._most >= self._totals[queue]:
            self._on_free(queue)

    def _drop_due(self) -> None:
        now = self._now_ms() // 1000
        while self._seconds and self._seconds[0][0] < now:
            key = heappop(self._seconds)
            self._lower(key[1], self._due.pop(key, 0))

    def _lower(self, queue: GroupQueue, messages: int) -> None:
        self._totals[queue] -= messages
        if not self._totals[queue]:
            del self._totals[queue]


def _second(due_ms: int) -> int:
    return due_ms // 1000
