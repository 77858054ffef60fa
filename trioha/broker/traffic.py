"""Messages and bytes by topic and by consumer group over the last minute, hour and day.

See docs/protocol/remoting.md#administration.

Theory of operation. A key has running totals, which a put or a pull adds to: one lookup and three additions.
Every 10 s `sample` notes the totals of all keys, every 10 minutes and every hour again for the longer
windows; what came within a window is the total now less the oldest sample of the window. So the minute is the
last 60 to 70 s, the hour 60 to 70 minutes, the day 24 to 25 hours, or the time since the key's first message.
A real broker subtracts the newest sample instead of the total now, and shows messages up to 10 s, 10 minutes
or an hour later.

A table has a maximum of keys. What a key without a place counts is not kept; keys without messages for a day
give up their places.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

import structlog
import trio
from attrs import define, field, frozen

log = structlog.get_logger(__name__)

SAMPLE_INTERVAL_S: Final = 10.0
HOUR_SAMPLES: Final = 60
"""Samples between two that the hour keeps: 10 minutes."""
DAY_SAMPLES: Final = 360
"""Samples between two that the day keeps: an hour."""
IDLE_SAMPLES_MAX: Final = 8640
"""Samples without a message after which a key gives up its place: a day."""
KEYS_PER_SLICE: Final = 1000
"""Sampled before other tasks run."""

_Sample = tuple[float, int, int, int]
"""Time on trio's clock, and the totals of messages, times and bytes."""


@frozen
class Window:
    """Messages or bytes of one key within one window."""

    total: int = 0
    per_s: float = 0.0
    per_time: float = 0.0
    """Mean for each put or pull."""

    def to_json(self) -> dict[str, object]:
        """As BrokerStatsItem."""
        return {"avgpt": self.per_time, "sum": self.total, "tps": self.per_s}


@define(eq=False)
class Traffic:
    """Totals of one key, and samples of them."""

    messages: int = 0
    times: int = 0
    """Puts or pulls: one may have several messages."""
    total_bytes: int = 0
    idle_samples: int = 0
    """Samples since the last message."""
    sampled_times: int = 0
    """`times` at the last sample."""
    minute: deque[_Sample] = field(factory=lambda: deque(maxlen=7))
    hour: deque[_Sample] = field(factory=lambda: deque(maxlen=7))
    day: deque[_Sample] = field(factory=lambda: deque(maxlen=25))

    def windows(self, now_s: float, *, in_bytes: bool) -> tuple[Window, Window, Window]:
        """Of the last minute, hour and day."""
        minute, hour, day = (
            self._since(samples[0], now_s, in_bytes=in_bytes)
            for samples in (self.minute, self.hour, self.day)
        )
        return minute, hour, day

    def _since(self, sample: _Sample, now_s: float, *, in_bytes: bool) -> Window:
        start_s, messages, times, total_bytes = sample
        total = self.total_bytes - total_bytes if in_bytes else self.messages - messages
        times = self.times - times
        # A rate over part of a second would be of a single burst.
        return Window(total, total / max(1.0, now_s - start_s), total / times if times else 0.0)


class TrafficTable:
    """Traffic by key: a topic, or `topic@group`."""

    def __init__(self, name: str, *, keys_max: int) -> None:
        self.name = name
        self.keys: dict[str, Traffic] = {}
        self._keys_max = keys_max
        self._is_full = False

    def count(self, key: str, messages: int, total_bytes: int, times: int = 1) -> None:
        """Add puts or pulls, by default one."""
        traffic = self.keys.get(key)
        if traffic is None:
            traffic = self._add(key)
            if traffic is None:
                return
        traffic.messages += messages
        traffic.times += times
        traffic.total_bytes += total_bytes

    def _add(self, key: str) -> Traffic | None:
        if len(self.keys) >= self._keys_max:
            if not self._is_full:
                self._is_full = True
                log.warning(
                    "statistics of further topics or groups are not kept",
                    table=self.name,
                    keys_max=self._keys_max,
                    hint="raise trioha.statisticsMax",
                )
            return None
        traffic = self.keys[key] = Traffic()
        start: _Sample = (trio.current_time(), 0, 0, 0)
        for samples in (traffic.minute, traffic.hour, traffic.day):
            samples.append(start)
        return traffic

    def per_s(self, key: str) -> float:
        """Messages per second in the last minute."""
        traffic = self.keys.get(key)
        if traffic is None:
            return 0.0
        return traffic.windows(trio.current_time(), in_bytes=False)[0].per_s

    def remove(self, is_gone: Callable[[str], bool]) -> None:
        """Drop the keys that `is_gone` names: their topic or group was deleted."""
        for key in [key for key in self.keys if is_gone(key)]:
            del self.keys[key]

    def sample(self, number: int) -> Iterator[None]:
        """Sample all keys; `number` counts the samples. Yields between slices."""
        now_s = trio.current_time()
        is_hour, is_day = number % HOUR_SAMPLES == 0, number % DAY_SAMPLES == 0
        for done, (key, traffic) in enumerate(list(self.keys.items()), 1):
            if traffic.times == traffic.sampled_times:
                traffic.idle_samples += 1
                if traffic.idle_samples > IDLE_SAMPLES_MAX:
                    self.keys.pop(key, None)
                    self._is_full = False
            else:
                traffic.sampled_times, traffic.idle_samples = traffic.times, 0
            sample = (now_s, traffic.messages, traffic.times, traffic.total_bytes)
            traffic.minute.append(sample)
            if is_hour:
                traffic.hour.append(sample)
            if is_day:
                traffic.day.append(sample)
            if done % KEYS_PER_SLICE == 0:
                yield


class BrokerTraffic:
    """All traffic of a broker. `run` samples it."""

    def __init__(self, *, cluster_name: str, keys_max: int) -> None:
        """`keys_max`: trioha.statisticsMax, for puts and for pulls each."""
        self._cluster_name = cluster_name
        self.puts = TrafficTable("puts", keys_max=keys_max)
        """By topic."""
        self.pulls = TrafficTable("pulls", keys_max=keys_max)
        """By `topic@group`."""
        self.send_backs = TrafficTable("send backs", keys_max=keys_max)
        """Messages that consumers sent back, by `topic@group`."""
        self.broker_puts = TrafficTable("puts of the broker", keys_max=1)
        """By cluster name."""
        self.broker_pulls = TrafficTable("pulls of the broker", keys_max=1)
        """By cluster name."""
        self.pull_offsets: dict[tuple[str, str, int], int] = {}
        """Next queue offset that a group was given, by group, topic and queue id.

        At most `trioha.statisticsMax`: the one that was added first gives up its place to a new one.
        """
        self._keys_max = keys_max

    def note_put(self, topic: str, messages: int, total_bytes: int, puts: int = 1) -> None:
        """Puts were stored, by default one."""
        self.puts.count(topic, messages, total_bytes, puts)
        self.broker_puts.count(self._cluster_name, messages, total_bytes, puts)

    def note_pull(
        self, group: str, topic: str, queue_id: int, *, next_offset: int, messages: int, total_bytes: int
    ) -> None:
        """One pull was answered; `messages` may be 0."""
        key = (group, topic, queue_id)
        if key not in self.pull_offsets and len(self.pull_offsets) >= self._keys_max:
            del self.pull_offsets[next(iter(self.pull_offsets))]
        self.pull_offsets[key] = next_offset
        if messages:
            self.pulls.count(f"{topic}@{group}", messages, total_bytes)
            self.broker_pulls.count(self._cluster_name, messages, total_bytes)

    def note_send_back(self, group: str, topic: str) -> None:
        """A consumer sent one message back."""
        self.send_backs.count(f"{topic}@{group}", 1, 0)

    def topic_deleted(self, topic: str) -> None:
        """Drop the statistics of a topic."""
        self.puts.remove(lambda key: key == topic)
        for table in (self.pulls, self.send_backs):
            table.remove(lambda key: key.partition("@")[0] == topic)
        self.pull_offsets = {key: offset for key, offset in self.pull_offsets.items() if key[1] != topic}

    def group_deleted(self, group: str) -> None:
        """Drop the statistics of a group."""
        for table in (self.pulls, self.send_backs):
            table.remove(lambda key: key.partition("@")[2] == group)
        self.pull_offsets = {key: offset for key, offset in self.pull_offsets.items() if key[0] != group}

    async def run(self) -> None:
        """Sample all tables every 10 s, until cancelled."""
        tables = (self.puts, self.pulls, self.send_backs, self.broker_puts, self.broker_pulls)
        number = 0
        next_s = trio.current_time()
        while True:
            next_s += SAMPLE_INTERVAL_S
            await trio.sleep_until(next_s)
            number += 1
            for table in tables:
                for _ in table.sample(number):
                    await trio.lowlevel.checkpoint()
