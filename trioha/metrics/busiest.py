"""The busiest keys of a traffic table by name, and all others as one: a bounded number of time series.

Theory of operation. Prometheus stores a time series for each label value, so a broker with ten thousand
topics must not have a series for each. Up to `keys_max` keys of a `TrafficTable` are named; what came for the
others is the rest. As long as the table has no more keys than that, all are named as soon as they are there.
With more keys, `choose` names those with most messages in the last hour.

All counts only grow, as Prometheus expects of counters. A key's count is its own total, which begins with the
key. The rest is the total of the whole table less what came for keys while they were named: when a key gets
or loses its name, the rest neither jumps nor falls. So what came for a key before it was named stays in the
rest, and rates are right, while the sum of all series can be larger than the whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappush, heappushpop
from typing import Final

import trio
from attrs import define, frozen

from trioha.broker.traffic import KEYS_PER_SLICE, Traffic, TrafficTable

CHOOSE_INTERVAL_S: Final = 60.0
"""Between two choices of the busiest keys."""


@frozen
class Count:
    """Messages and bytes, since the start."""

    messages: int = 0
    total_bytes: int = 0

    def __add__(self, other: Count) -> Count:
        return Count(self.messages + other.messages, self.total_bytes + other.total_bytes)

    def __sub__(self, other: Count) -> Count:
        return Count(self.messages - other.messages, self.total_bytes - other.total_bytes)


@frozen
class BusiestCounts:
    """The counts of a table at one moment."""

    named: dict[str, Count]
    """By key, at most `keys_max`."""
    rest: Count
    """Of all keys without a name."""
    whole: Count
    """Of all keys."""


@define(eq=False)
class _Named:
    """A key that has a name."""

    traffic: Traffic
    """Of the key when it was named: a key that gives up its place and comes back has another."""
    before: Count
    """What had come before."""

    @property
    def while_named(self) -> Count:
        return _count(self.traffic) - self.before


class BusiestKeys:
    """Names the busiest keys of a table."""

    def __init__(self, table: TrafficTable, whole: TrafficTable, *, keys_max: int) -> None:
        """`whole` counts all traffic of `table` under a single key; `keys_max`: trioha.metricsTopics."""
        self._table = table
        self._whole = whole
        self._keys_max = keys_max
        self._named: dict[str, _Named] = {}
        self._once_named = Count()
        """What came for keys that have no name any more, while they had one."""
        self._had_rest = False
        """Whether the last counts left keys without a name."""
        self._whole_traffic: Traffic | None = None
        self._whole_before = Count()
        """Of the whole before `_whole_traffic`: that key gives up its place after a day, too."""

    def counts(self) -> BusiestCounts:
        """The counts as of now."""
        keys = self._table.keys
        for key, named in list(self._named.items()):
            if keys.get(key) is not named.traffic:
                self._forget(key)
        is_full = len(keys) > self._keys_max
        if not is_full:
            for key, traffic in keys.items():
                if key not in self._named:
                    # The rest never had anything of a key that is new since the last counts.
                    before = _count(traffic) if self._had_rest else Count()
                    self._named[key] = _Named(traffic, before)
        self._had_rest = is_full
        rest = whole = self._count_whole()
        rest -= self._once_named
        for named in self._named.values():
            rest -= named.while_named
        return BusiestCounts({key: _count(named.traffic) for key, named in self._named.items()}, rest, whole)

    def choose(self) -> Iterator[None]:
        """Name the keys with most messages in the last hour. Yields between slices."""
        # Also where nobody asks for counts for a day: the key of the whole may go then.
        self._count_whole()
        keys = self._table.keys
        if len(keys) <= self._keys_max:
            return
        busiest: list[tuple[int, str]] = []
        for done, (key, traffic) in enumerate(list(keys.items()), 1):
            entry = (traffic.messages - traffic.hour[0][1], key)
            if len(busiest) < self._keys_max:
                heappush(busiest, entry)
            else:
                heappushpop(busiest, entry)
            if done % KEYS_PER_SLICE == 0:
                yield
        chosen = {key for _, key in busiest}
        for key in self._named.keys() - chosen:
            self._forget(key)
        for key in chosen - self._named.keys():
            traffic_now = keys.get(key)
            if traffic_now is not None:
                self._named[key] = _Named(traffic_now, _count(traffic_now))

    async def run(self) -> None:
        """Choose every minute, until cancelled."""
        while True:
            for _ in self.choose():
                await trio.lowlevel.checkpoint()
            await trio.sleep(CHOOSE_INTERVAL_S)

    def _forget(self, key: str) -> None:
        self._once_named += self._named.pop(key).while_named

    def _count_whole(self) -> Count:
        traffic = next(iter(self._whole.keys.values()), None)
        if traffic is not self._whole_traffic:
            if self._whole_traffic is not None:
                self._whole_before += _count(self._whole_traffic)
            self._whole_traffic = traffic
        return self._whole_before if traffic is None else self._whole_before + _count(traffic)


def _count(traffic: Traffic) -> Count:
    return Count(traffic.messages, traffic.total_bytes)
