"""How far consumer groups are behind: what they have not committed, by group and topic.

Theory of operation. A node may keep half a million offsets, so nothing is counted at a scrape: a task goes
through the table again and again, lets other tasks run after each thousand queues, and rests for fifty times
as long as that took, but 10 s at least. It keeps the pairs of group and topic that are furthest behind, at
most `pairs_max`, and the sum of all others: a bounded number of time series, whatever names clients commit.
A group that stopped to pull is among the first, which statistics of pulls would not show.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from heapq import heappush, heappushpop
from typing import Final

import trio
from attrs import frozen

INTERVAL_S: Final = 10.0
REST_FACTOR: Final = 50.0
QUEUES_PER_SLICE: Final = 1000


@frozen(order=True)
class GroupLag:
    """Messages that a group has not committed in a topic."""

    lag: int = 0
    """All of them, as mqadmin's Diff."""
    in_flight: int = 0
    """Those that it was given."""
    group: str = ""
    topic: str = ""

    @property
    def ready(self) -> int:
        """Those that it was not given yet."""
        return max(0, self.lag - self.in_flight)


@frozen
class GroupLags:
    """All groups at one moment."""

    named: tuple[GroupLag, ...] = ()
    """Those that are furthest behind."""
    rest: GroupLag = GroupLag()
    """The sum of all others."""


@frozen
class LagSources:
    """What lags are counted from; all of it answers at once, from memory."""

    offsets: Callable[[], list[tuple[str, Mapping[int, int]]]]
    """Committed offsets by queue id, by `topic@group`."""
    max_offset: Callable[[str, int], int]
    """End of a topic's queue."""
    pull_offset: Callable[[str, str, int], int]
    """Next offset that a group (first) is given in a topic's queue; 0 if it was given none."""


class LagCounter:
    """Counts the lags of all groups."""

    def __init__(self, sources: LagSources, *, pairs_max: int) -> None:
        """`pairs_max`: trioha.metricsTopics."""
        self._sources = sources
        self._pairs_max = pairs_max
        self.lags = GroupLags()
        """As of the last count."""

    def count(self) -> Iterator[None]:
        """Count anew. Yields between slices."""
        furthest: list[GroupLag] = []
        rest_lag = rest_in_flight = queues_done = 0
        for key, queues in self._sources.offsets():
            found = self._lag(key, queues)
            left = heappushpop(furthest, found) if len(furthest) >= self._pairs_max else None
            if left is None:
                heappush(furthest, found)
            else:
                rest_lag += left.lag
                rest_in_flight += left.in_flight
            queues_done += len(queues)
            if queues_done >= QUEUES_PER_SLICE:
                queues_done = 0
                yield
        self.lags = GroupLags(tuple(sorted(furthest, reverse=True)), GroupLag(rest_lag, rest_in_flight))

    async def run(self) -> None:
        """Count again and again, until cancelled."""
        while True:
            began_s = trio.current_time()
            for _ in self.count():
                await trio.lowlevel.checkpoint()
            await trio.sleep(max(INTERVAL_S, REST_FACTOR * (trio.current_time() - began_s)))

    def _lag(self, key: str, queues: Mapping[int, int]) -> GroupLag:
        topic, _, group = key.partition("@")
        lag = in_flight = 0
        for queue_id, committed in list(queues.items()):
            behind = max(0, self._sources.max_offset(topic, queue_id) - max(0, committed))
            lag += behind
            in_flight += min(behind, max(0, self._sources.pull_offset(group, topic, queue_id) - committed))
        return GroupLag(lag, in_flight, group, topic)
