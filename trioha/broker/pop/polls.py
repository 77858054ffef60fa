"""Pops and notifications that wait for messages (docs/protocol/pop.md#waiting).

Theory of operation. A pop that finds nothing opens a `PopPoll` under its topic, group and queue id, -1 for
all queues. What may give it a message wakes it: an arrival in the topic or in a retry topic of the group, an
ordered queue that is free again, messages that another pop has left. Woken, it looks into the queues once
more, and waits on if there is nothing for it.

A message goes to one pop only, so of each key one poll is woken at a time: that whose time is over first. A
poll that is woken and cannot look, because its connection has ended, wakes the next one in its place. A group
has one offset for all of its pops: where a pop that was woken finds nothing, others would not either, so its
wake ends there. Notifications take nothing, so all of a key are woken.

`WaitingPop` is the answer that waits. Its request is answered when its time is over, and when the node stops.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import count
from typing import Final, NamedTuple

import trio
from attrs import frozen

from trioha.broker.deadlines import Deadlines
from trioha.broker.long_polls import QueueKey
from trioha.remoting.command import RemotingCommand
from trioha.remoting.serving import PendingAnswer, WaitingAnswer
from trioha.store.topics import RETRY_TOPIC_PREFIX
from trioha.store.waiting_readers import WaitingReaders

ALL_QUEUES: Final = -1
EARLY_MS: Final = 50
"""A pop is answered so long before its time is over, since its client waits no longer."""
WAIT_S_MAX: Final = 90.0
"""A connection without traffic is closed after 120 s."""


class PollKey(NamedTuple):
    """What a pop waits for."""

    topic: str
    """Of the application, never a retry topic."""
    group: str
    queue_id: int
    """`ALL_QUEUES`, or the one that is popped."""


@frozen
class PollLimits:
    """How many may wait."""

    per_key_max: int = 1024
    """popPollingSize."""
    polls_max: int = 100_000
    """maxPopPollingSize."""
    keys_max: int = 100_000
    """popPollingMapSize."""
    per_connection_max: int = 3072


def wait_s(*, born_ms: int, poll_ms: int, now_ms: int) -> float:
    """How long a pop may wait, 0 or less for one that is to be answered at once. Times are ms since 1970.

    One that says to be born later waits as one of now.
    """
    if poll_ms <= 0:
        return 0.0
    return min((min(born_ms, now_ms) + poll_ms - EARLY_MS - now_ms) / 1000, WAIT_S_MAX)


class PopPoll:
    """One request that waits. Made by `PopPolls.open`, ended with `close`."""

    __slots__ = ("_polls", "connection", "is_closed", "is_over", "is_woken", "key", "order", "waiter")

    def __init__(
        self, polls: PopPolls, key: PollKey, connection: int, waiter: WaitingAnswer, order: tuple[float, int]
    ) -> None:
        self._polls = polls
        self.key = key
        self.connection = connection
        self.waiter = waiter
        self.order = order
        """Its deadline, and a number that no other has."""
        self.is_over = False
        """Whether its time is over, the node stops, or it was closed."""
        self.is_woken = False
        """Whether it has not looked since it was woken."""
        self.is_closed = False

    def __lt__(self, other: PopPoll) -> bool:
        return self.order < other.order

    def wake(self) -> None:
        """There may be messages."""
        self.is_woken = True
        self.waiter.wake()

    def end(self) -> None:
        """Its time is over."""
        if not self.is_over:
            self.is_over = True
            self.wake()

    def looked(self) -> None:
        """The request looks into the queues now."""
        self.is_woken = False

    def close(self) -> None:
        """The request waits no more. If it was woken and has not looked, the next one is woken."""
        if not self.is_closed:
            self.is_closed = self.is_over = True
            self._polls._remove(self)


class PopPolls:
    """All requests of a kind that wait. Run it."""

    def __init__(
        self, limits: PollLimits, *, wakes_all: bool = False, readers: WaitingReaders | None = None
    ) -> None:
        """`wakes_all`: they take nothing, so that all are woken. `readers` count them for dispatch."""
        self._limits = limits
        self._wakes_all = wakes_all
        self._readers = WaitingReaders() if readers is None else readers
        self._by_key: dict[PollKey, list[PopPoll]] = {}
        """Those that wait; that whose time is over first comes first."""
        self._by_topic: dict[str, set[PollKey]] = {}
        """Keys for which polls wait, by the topics whose messages are for them."""
        self._by_connection: Counter[int] = Counter()
        self._deadlines = Deadlines()
        self._number = count()
        self.open_polls = 0
        """How many wait."""
        self.refused = 0
        """How many were refused because too many waited."""
        self._is_stopping = False

    def waiting(self, key: PollKey) -> int:
        """How many wait for a key."""
        return len(self._by_key.get(key, ()))

    def open(
        self, key: PollKey, connection: int, waiter: WaitingAnswer, *, timeout_s: float
    ) -> PopPoll | None:
        """A poll that is over after `timeout_s`; at once, and woken, if the node stops. None if there are too
        many.

        The caller has looked into the queues in the same turn of the scheduler, and found nothing.
        """
        limits = self._limits
        waiting = self._by_key.get(key)
        is_full = (
            self.open_polls >= limits.polls_max
            or self._by_connection[connection] >= limits.per_connection_max
            or (
                len(self._by_key) >= limits.keys_max
                if waiting is None
                else len(waiting) >= limits.per_key_max
            )
        )
        if is_full:
            self.refused += 1
            return None
        deadline_s = trio.current_time() + timeout_s
        poll = PopPoll(self, key, connection, waiter, (deadline_s, next(self._number)))
        if waiting is None:
            waiting = self._by_key[key] = []
            for topic in _topics(key):
                self._by_topic.setdefault(topic, set()).add(key)
        insort(waiting, poll)
        self._by_connection[connection] += 1
        self.open_polls += 1
        self._readers.begin()
        self._deadlines.add(deadline_s, poll)
        if self._is_stopping:
            poll.end()
        return poll

    # -- what wakes ------------------------------------------------------------------------------------

    def arrived(self, queues: Iterable[QueueKey]) -> None:
        """Entries have come to these queues, of any topics."""
        if not self.open_polls:
            return
        for topic, queue_id in queues:
            is_retry = topic.startswith(RETRY_TOPIC_PREFIX)
            for key in tuple(self._by_topic.get(topic, ())):
                # Queues of a retry topic are not those that a pop names.
                if is_retry or key.queue_id in {ALL_QUEUES, queue_id}:
                    self._wake(key)

    def has_more(self, topic: str, group: str, queue_id: int) -> None:
        """There are messages for a group that no pop has taken: an ordered queue is free again, or a pop has
        left some. `queue_id` may be `ALL_QUEUES`."""
        for key in {PollKey(topic, group, ALL_QUEUES), PollKey(topic, group, queue_id)}:
            self._wake(key)

    def wake_all(self) -> None:
        """What waited for something else than messages may look now."""
        for key in tuple(self._by_key):
            self._wake(key)

    def _wake(self, key: PollKey) -> None:
        for poll in self._by_key.get(key, ()):
            if not poll.is_over:
                poll.wake()
                if not self._wakes_all:
                    return

    def end_all(self) -> None:
        """The node stops: end all polls, and each that is opened later, at once."""
        self._is_stopping = True
        for polls in self._by_key.values():
            for poll in polls:
                poll.end()

    def _remove(self, poll: PopPoll) -> None:
        key = poll.key
        polls = self._by_key[key]
        polls.remove(poll)
        if not polls:
            del self._by_key[key]
            for topic in _topics(key):
                keys = self._by_topic[topic]
                keys.remove(key)
                if not keys:
                    del self._by_topic[topic]
        self._by_connection[poll.connection] -= 1
        if not self._by_connection[poll.connection]:
            del self._by_connection[poll.connection]
        self.open_polls -= 1
        self._readers.end()
        if poll.is_woken and not self._wakes_all:
            self._wake(key)

    async def run(self) -> None:
        """End polls at their deadlines, until cancelled."""
        await self._deadlines.run()


def _topics(key: PollKey) -> tuple[str, str, str]:
    """The topics whose messages are for a key: its own, and the group's retry topics, V1 and V2."""
    topic, group, _ = key
    prefix = RETRY_TOPIC_PREFIX + group
    return topic, f"{prefix}_{topic}", f"{prefix}+{topic}"


Look = Callable[[bool], "RemotingCommand | PendingAnswer | None"]
"""Looks into the queues for a request that waits. Receives whether its time is over; then it answers, with
nothing if there is nothing. Else None lets the request wait on. Raises BadRequestError."""


class WaitingPop(WaitingAnswer):
    """The answer to a request that waits until `look` gives one."""

    __slots__ = ("_look", "_poll")

    def __init__(self, look: Look) -> None:
        super().__init__()
        self._look = look
        self._poll: PopPoll | None = None

    def begin(self, poll: PopPoll) -> None:
        """Wait until `poll` wakes it."""
        self._poll = poll

    def answer(self) -> RemotingCommand | PendingAnswer | None:
        """As `WaitingAnswer`."""
        poll = self._poll
        assert poll is not None, "it was begun"
        poll.looked()
        try:
            answer = self._look(poll.is_over)
        except BaseException:
            poll.close()
            raise
        if answer is not None:
            poll.close()
        return answer

    def abandon(self) -> None:
        """Wait no more."""
        super().abandon()
        if self._poll is not None:
            self._poll.close()


def waiting(
    polls: PopPolls, key: PollKey, connection: int, look: Look, *, timeout_s: float
) -> WaitingPop | None:
    """The answer that waits for `key`; None if too many wait, so that the request is answered at once."""
    answer = WaitingPop(look)
    poll = polls.open(key, connection, answer, timeout_s=timeout_s)
    if poll is None:
        return None
    answer.begin(poll)
    return answer
