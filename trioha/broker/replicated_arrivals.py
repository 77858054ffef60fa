"""Wakes pulls when messages of their queues are replicated (see `trioha.ha.replicated_offset`).

Theory of operation. Dispatch names the queues that it has written, with the log offset that it has reached.
Where that is replicated already, their pulls are woken at once: usual, since dispatch gathers records for a
millisecond and a slave's ack takes less. Else the queues wait as one stretch `[start, end)` of the log until
the replicated offset is beyond the start; they stay until it has reached the end. There are at most
`STRETCHES_MAX`; beyond that the newest two become one, so that a master without slaves keeps each queue once
in the last one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final, Protocol

from attrs import define

from trioha.broker.long_polls import QueueKey

STRETCHES_MAX: Final = 1024


class Waiting(Protocol):
    """What waits for messages: pulls, pops."""

    def arrived(self, queues: Iterable[QueueKey]) -> None:
        """Entries have come to these queues."""


class Arrivals(Waiting):
    """All that waits for messages."""

    def __init__(self, *waiting: Waiting) -> None:
        self._waiting = list(waiting)

    def add(self, waiting: Waiting) -> None:
        """Wake these, too."""
        self._waiting.append(waiting)

    def arrived(self, queues: Iterable[QueueKey]) -> None:
        """As `Waiting`."""
        for each in self._waiting:
            each.arrived(queues)


@define
class _Stretch:
    """Queues of records that are dispatched and not replicated."""

    start_offset: int
    end_offset: int
    queues: set[QueueKey]


class ReplicatedArrivals:
    """Gives queues to the pulls that wait, once their messages are replicated."""

    def __init__(self, polls: Waiting, *, dispatched_offset: int, replicated_offset: int) -> None:
        self._polls = polls
        self._dispatched_offset = dispatched_offset
        self._replicated_offset = replicated_offset
        self._stretches: deque[_Stretch] = deque()

    def __len__(self) -> int:
        return len(self._stretches)

    def written(self, queues: Iterable[QueueKey], *, dispatched_offset: int) -> None:
        """Dispatch has written entries to these queues and reached `dispatched_offset`."""
        # A rewound dispatch starts a stretch before the last one's end.
        start_offset = min(self._dispatched_offset, dispatched_offset)
        self._dispatched_offset = dispatched_offset
        if dispatched_offset <= self._replicated_offset:
            self._polls.arrived(queues)
            return
        stretches = self._stretches
        stretch = _Stretch(start_offset, dispatched_offset, set(queues))
        if self._replicated_offset > start_offset:
            self._polls.arrived(stretch.queues)
        if len(stretches) >= STRETCHES_MAX:
            last = stretches[-1]
            last.end_offset = max(last.end_offset, stretch.end_offset)
            last.queues |= stretch.queues
        else:
            stretches.append(stretch)

    def replicated(self, replicated_offset: int) -> None:
        """The replicated offset has moved forward to `replicated_offset`."""
        self._replicated_offset = replicated_offset
        stretches = self._stretches
        while stretches and stretches[0].start_offset < replicated_offset:
            self._polls.arrived(stretches[0].queues)
            if stretches[0].end_offset > replicated_offset:
                return
            stretches.popleft()
