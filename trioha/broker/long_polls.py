"""Pulls that wait for messages of their queue.

Theory of operation. Each waiting pull is a `LongPoll`, kept under its queue. When the dispatcher has put
entries in queues, it names them to `arrived`, which wakes the pulls of those queues and looks at no other:
ten thousand idle pulls cost nothing while other queues are written. One task wakes pulls whose time is over:
it sleeps until the earliest deadline. Waking does no work: the task that answers the pulls of a connection
reads the queues then, and closes each poll whose pull has an answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Protocol

import trio

from trioha.broker.deadlines import Deadlines
from trioha.store.waiting_readers import WaitingReaders

QueueKey = tuple[str, int]
"""Topic and queue id."""


class Waiter(Protocol):
    """Who opened a poll."""

    def wake(self) -> None:
        """Entries have come to the queue, or the poll's time is over, or the node stops: look at it."""


class LongPoll:
    """One pull that waits. Made by `LongPolls.open`, ended with `close`."""

    __slots__ = ("_polls", "connection", "is_over", "key", "waiter")

    def __init__(self, polls: LongPolls, key: QueueKey, connection: int, waiter: Waiter) -> None:
        self._polls = polls
        self.key = key
        self.connection = connection
        self.waiter = waiter
        self.is_over = False
        """Whether the pull was closed, or its time is over."""

    def end(self) -> None:
        """Its time is over."""
        if not self.is_over:
            self.is_over = True
            self.waiter.wake()

    def close(self) -> None:
        """The pull waits no more."""
        self.is_over = True
        self._polls._remove(self)


class LongPolls:
    """All pulls of a broker that wait. Run it."""

    def __init__(
        self, *, polls_max: int, per_connection_max: int, readers: WaitingReaders | None = None
    ) -> None:
        """`readers` count the polls for dispatch."""
        self._polls_max = polls_max
        self._per_connection_max = per_connection_max
        self._by_queue: dict[QueueKey, set[LongPoll]] = {}
        self._by_connection: Counter[int] = Counter()
        self._deadlines = Deadlines()
        self._readers = WaitingReaders() if readers is None else readers
        self.refused = 0
        """Polls that were refused because there were too many."""
        self._is_stopping = False

    @property
    def open_polls(self) -> int:
        """Polls that wait."""
        return self._readers.count

    def open(self, key: QueueKey, connection: int, waiter: Waiter, *, timeout_s: float) -> LongPoll | None:
        """A poll that is over after `timeout_s`; at once, and not woken, if the node stops. None if there are
        too many."""
        if self.open_polls >= self._polls_max or self._by_connection[connection] >= self._per_connection_max:
            self.refused += 1
            return None
        poll = LongPoll(self, key, connection, waiter)
        if self._is_stopping:
            poll.is_over = True
        self._by_connection[connection] += 1
        self._by_queue.setdefault(key, set()).add(poll)
        self._deadlines.add(trio.current_time() + timeout_s, poll)
        self._readers.begin()
        return poll

    def arrived(self, queues: Iterable[QueueKey]) -> None:
        """Entries have come to these queues."""
        for key in queues:
            for poll in self._by_queue.get(key, ()):
                if not poll.is_over:
                    poll.waiter.wake()

    def end_all(self) -> None:
        """The node stops: end all polls, and each that is opened later, at once."""
        self._is_stopping = True
        for polls in self._by_queue.values():
            for poll in polls:
                poll.end()

    def _remove(self, poll: LongPoll) -> None:
        polls = self._by_queue.get(poll.key)
        if polls is None or poll not in polls:
            return
        polls.remove(poll)
        if not polls:
            del self._by_queue[poll.key]
        self._readers.end()
        self._by_connection[poll.connection] -= 1
        if not self._by_connection[poll.connection]:
            del self._by_connection[poll.connection]

    async def run(self) -> None:
        """End polls at their deadlines, until cancelled."""
        await self._deadlines.run()
