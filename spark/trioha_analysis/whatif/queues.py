"""What the simulation is made of: a clock, nodes that do one thing after the other, links, and slaves."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from itertools import chain, repeat
from typing import Any, Final

import numpy as np

from trioha_analysis.whatif.scenario import Scenario
from trioha_analysis.whatif.spread import Spread

Call = Callable[[Any], None]

PIECE_BYTES: Final = 16_384
"""On a link of limited bandwidth the bytes of a frame arrive by and by: in such pieces."""
SOCKET_BYTES: Final = 2_500_000
"""What the sockets of a link hold before its sender has to wait."""
HEADER_BYTES: Final = 12
REPORT_BYTES: Final = 8
TIMES: Final = 4096
"""Times that are drawn at once."""
ALIKE_S: Final = 0.002
"""What keeps several slaves waiting does so for so long, at least."""


class Clock:
    """Time, and what is to happen when."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._order = 0
        self._due: list[tuple[float, int, Call, Any]] = []

    def at(self, time_s: float, call: Call, argument: Any = None) -> None:
        """Call `call(argument)` at a time that is not over yet."""
        self._order += 1
        heappush(self._due, (time_s, self._order, call, argument))

    def run(self) -> None:
        """Let everything happen, until nothing more is to."""
        due = self._due
        while due:
            self.now_s, _, call, argument = heappop(due)
            call(argument)


class Worker:
    """A node's one thread: it does what it is given one after the other."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._work: deque[tuple[float, Call, Any]] = deque()
        self._busy = False

    def do(self, cost_s: float, call: Call, argument: Any = None) -> None:
        """Do this when all before it is done: it takes `cost_s`, then `call(argument)` says what it did."""
        self._work.append((cost_s, call, argument))
        if not self._busy:
            self._next(None)

    def do_first(self, cost_s: float, call: Call, argument: Any = None) -> None:
        """Do this next."""
        self._work.appendleft((cost_s, call, argument))
        if not self._busy:
            self._next(None)

    def _next(self, _: None) -> None:
        if not self._work:
            self._busy = False
            return
        self._busy = True
        work = self._work.popleft()
        self._clock.at(self._clock.now_s + work[0], self._done, work)

    def _done(self, work: tuple[float, Call, Any]) -> None:
        # Still busy: what the call gives this worker to do joins the queue.
        work[1](work[2])
        self._next(None)


class Pipe:
    """One direction of a link: bytes take their turn, then travel."""

    def __init__(self, clock: Clock, *, bytes_per_s: float | None, delay_s: float) -> None:
        self._clock = clock
        self._bytes_per_s = bytes_per_s
        self._delay_s = delay_s
        self._free_s = 0.0
        self.sent_bytes = 0

    @property
    def room_s(self) -> float:
        """When the sender's socket takes more."""
        if self._bytes_per_s is None:
            return self._clock.now_s
        return self._free_s - SOCKET_BYTES / self._bytes_per_s

    def send(self, begin: int, end: int, call: Call, *, overhead_bytes: int = 0) -> None:
        """Send the bytes from offset `begin` to `end`; `call` hears the offset up to which they have come."""
        clock = self._clock
        self.sent_bytes += end - begin + overhead_bytes
        if self._bytes_per_s is None:
            clock.at(clock.now_s + self._delay_s, call, end)
            return
        free_s = max(self._free_s, clock.now_s) + overhead_bytes / self._bytes_per_s
        while begin < end:
            piece_end = min(begin + PIECE_BYTES, end)
            free_s += (piece_end - begin) / self._bytes_per_s
            clock.at(free_s + self._delay_s, call, piece_end)
            begin = piece_end
        self._free_s = free_s


class Disk:
    """Syncs: one at a time, each takes along all that is there when it begins."""

    def __init__(self, clock: Clock, times_s: Iterator[float], synced: Call) -> None:
        self._clock = clock
        self._times_s = times_s
        self._synced = synced
        self._wanted = 0
        self._busy = False
        self.flushed_offset = 0

    def want(self, offset: int) -> None:
        """What ends at `offset` is to be put on disk."""
        self._wanted = offset
        if not self._busy:
            self._sync()

    def _sync(self) -> None:
        self._busy = True
        self._clock.at(self._clock.now_s + next(self._times_s), self._done, self._wanted)

    def _done(self, offset: int) -> None:
        self.flushed_offset = offset
        self._busy = False
        self._synced(offset)
        if self._wanted > offset:
            self._sync()


class SlaveTimes:
    """How long slaves take: each as its luck has it, or alike for all that begins at the same time."""

    def __init__(self, spread: Spread, *, slave_correlation: float, random: np.random.Generator) -> None:
        self._own = chain.from_iterable(spread.draw(random, TIMES) for _ in repeat(None))
        shared = spread.at(random.random(TIMES))
        self._shared: list[float] = np.where(random.random(TIMES) < slave_correlation, shared, -1.0).tolist()

    def __call__(self, now_s: float) -> float:
        """The time in s of one slave for what it begins at `now_s`."""
        shared_s = self._shared[int(now_s / ALIKE_S) % TIMES]
        return shared_s if shared_s >= 0 else next(self._own)


class Slave:
    """A slave and its link: frames in, reports out."""

    def __init__(
        self,
        clock: Clock,
        scenario: Scenario,
        *,
        took_s: Callable[[float], float],
        per_byte_s: float,
        link_s: float,
        sync_times_s: Iterator[float] | None,
        reported: Callable[[Slave, int], None],
    ) -> None:
        """`took_s` says how long it takes for what begins at a time, without the time for each byte;
        `sync_times_s` is given for a slave that acknowledges what is on disk."""
        one_way_s = (scenario.rtt_s + link_s) / 2
        speed = scenario.bandwidth_bytes_per_s
        self.out = Pipe(clock, bytes_per_s=speed, delay_s=one_way_s)
        self._back = Pipe(clock, bytes_per_s=speed, delay_s=one_way_s)
        self._clock = clock
        self._took_s = took_s
        self._per_byte_s = per_byte_s
        self._disk = None if sync_times_s is None else Disk(clock, sync_times_s, self._report)
        self._reported = reported
        self._arrived_offset = self._written_offset = 0
        self._busy = False
        # What the master knows and does about it.
        self.sent_offset = self.ack_offset = 0
        self.batch_bytes = scenario.transfer_batch_bytes
        self.is_sending = False
        """Whether the master has a turn for it in its queue."""
        self.news_offset = 0
        """The last report that has reached the master."""
        self.has_news = False
        """Whether the master has not read it yet."""
        self.ack_s: list[float] = []
        self.ack_offsets: list[int] = []

    def receive(self, offset: int) -> None:
        """Bytes up to `offset` have come."""
        self._arrived_offset = offset
        if not self._busy:
            self._take()

    def _take(self) -> None:
        self._busy = True
        size = self._arrived_offset - self._written_offset
        took_s = self._took_s(self._clock.now_s) + self._per_byte_s * size
        self._clock.at(self._clock.now_s + took_s, self._taken, self._arrived_offset)

    def _taken(self, offset: int) -> None:
        self._written_offset = offset
        if self._disk is None:
            self._report(offset)
        else:
            self._disk.want(offset)
        self._busy = False
        if self._arrived_offset > offset:
            self._take()

    def _report(self, offset: int) -> None:
        self._back.send(offset - REPORT_BYTES, offset, self._come_back)

    def _come_back(self, offset: int) -> None:
        self._reported(self, offset)
