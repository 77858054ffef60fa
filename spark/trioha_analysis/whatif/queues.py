"""Components of the simulation: an event clock, workers, links, disks and slaves."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from typing import Any, Final

import numpy as np

from trioha_analysis.whatif.scenario import Scenario
from trioha_analysis.whatif.time_distribution import TimeDistribution

Call = Callable[[Any], None]

PACKET_BYTES: Final = 16_384
"""On a link of limited bandwidth the bytes of a frame arrive in packets of this size."""
SOCKET_BUFFER_BYTES: Final = 2_500_000
"""Bytes that the sockets of a link buffer before its sender has to wait."""
HEADER_BYTES: Final = 12
REPORT_BYTES: Final = 8
SHARED_SAMPLES: Final = 4096
SHARED_SAMPLE_S: Final = 0.002
"""Slaves that start within this time may share one delay sample."""


class Clock:
    """Simulated time and the calls that are due."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._order = 0
        self._due: list[tuple[float, int, Call, Any]] = []

    def at(self, time_s: float, call: Call, argument: Any = None) -> None:
        """Call `call(argument)` at `time_s`, which is not in the past."""
        self._order += 1
        heappush(self._due, (time_s, self._order, call, argument))

    def run(self) -> None:
        """Make all calls in the order of their times, until none is left."""
        due = self._due
        while due:
            self.now_s, _, call, argument = heappop(due)
            call(argument)


class Worker:
    """A thread with a queue of work."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._work: deque[tuple[float, Call, Any]] = deque()
        self._busy = False

    def do(self, cost_s: float, call: Call, argument: Any = None) -> None:
        """Append work that takes `cost_s` and ends with `call(argument)`."""
        self._work.append((cost_s, call, argument))
        if not self._busy:
            self._next(None)

    def do_first(self, cost_s: float, call: Call, argument: Any = None) -> None:
        """The same at the front of the queue."""
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
        # Still busy, so that work added by the call joins the queue.
        work[1](work[2])
        self._next(None)


class Pipe:
    """One direction of a link, with a bandwidth and a delay."""

    def __init__(self, clock: Clock, *, bytes_per_s: float | None, delay_s: float) -> None:
        self._clock = clock
        self._bytes_per_s = bytes_per_s
        self._delay_s = delay_s
        self._free_s = 0.0
        self.sent_bytes = 0

    @property
    def room_s(self) -> float:
        """Time from which the sender's socket accepts more bytes."""
        if self._bytes_per_s is None:
            return self._clock.now_s
        return self._free_s - SOCKET_BUFFER_BYTES / self._bytes_per_s

    def send(self, begin: int, end: int, call: Call, *, overhead_bytes: int = 0) -> None:
        """Send the bytes from offset `begin` to `end`; `call` receives the offset up to which they
        arrived."""
        clock = self._clock
        self.sent_bytes += end - begin + overhead_bytes
        if self._bytes_per_s is None:
            clock.at(clock.now_s + self._delay_s, call, end)
            return
        free_s = max(self._free_s, clock.now_s) + overhead_bytes / self._bytes_per_s
        while begin < end:
            packet_end = min(begin + PACKET_BYTES, end)
            free_s += (packet_end - begin) / self._bytes_per_s
            clock.at(free_s + self._delay_s, call, packet_end)
            begin = packet_end
        self._free_s = free_s


class Disk:
    """A disk that syncs once at a time; a sync covers all bytes written before its start."""

    def __init__(self, clock: Clock, times_s: Iterator[float], synced: Call) -> None:
        self._clock = clock
        self._times_s = times_s
        self._synced = synced
        self._written_offset = 0
        self._busy = False
        self.flushed_offset = 0

    def write(self, offset: int) -> None:
        """Bytes up to `offset` are to be synced."""
        self._written_offset = offset
        if not self._busy:
            self._sync()

    def _sync(self) -> None:
        self._busy = True
        self._clock.at(self._clock.now_s + next(self._times_s), self._done, self._written_offset)

    def _done(self, offset: int) -> None:
        self.flushed_offset = offset
        self._busy = False
        self._synced(offset)
        if self._written_offset > offset:
            self._sync()


class SlaveTimes:
    """Service times of slaves: independent, or shared by all slaves that start at about the same time."""

    def __init__(
        self, times: TimeDistribution, *, slave_correlation: float, random: np.random.Generator
    ) -> None:
        self._own = times.samples(random)
        shared = times.at(random.random(SHARED_SAMPLES))
        is_shared = random.random(SHARED_SAMPLES) < slave_correlation
        self._shared: list[float] = np.where(is_shared, shared, -1.0).tolist()

    def __call__(self, now_s: float) -> float:
        """Service time in s of a batch that one slave starts at `now_s`."""
        shared_s = self._shared[int(now_s / SHARED_SAMPLE_S) % SHARED_SAMPLES]
        return shared_s if shared_s >= 0 else next(self._own)


class Slave:
    """A slave and its link: frames in, reports out; and the master's state of its connection."""

    def __init__(
        self,
        clock: Clock,
        scenario: Scenario,
        *,
        service_s: Callable[[float], float],
        per_byte_s: float,
        link_s: float,
        sync_times_s: Iterator[float] | None,
        reported: Callable[[Slave, int], None],
    ) -> None:
        """`service_s` gives the service time of a batch by its start, without the time for each byte;
        `sync_times_s` is given for a slave with flushed acks."""
        one_way_s = (scenario.rtt_s + link_s) / 2
        speed = scenario.bandwidth_bytes_per_s
        self.out = Pipe(clock, bytes_per_s=speed, delay_s=one_way_s)
        self._back = Pipe(clock, bytes_per_s=speed, delay_s=one_way_s)
        self._clock = clock
        self._service_s = service_s
        self._per_byte_s = per_byte_s
        self._disk = None if sync_times_s is None else Disk(clock, sync_times_s, self._report)
        self._reported = reported
        self._received_offset = self._appended_offset = 0
        self._busy = False
        # State of the master's connection.
        self.sent_offset = self.ack_offset = 0
        self.batch_bytes = scenario.transfer_batch_bytes
        self.is_sending = False
        """Whether the writer task of the connection is queued or waits for the socket."""
        self.reported_offset = 0
        """Last report that arrived at the master."""
        self.has_report = False
        """Whether the master has not handled it yet."""
        self.ack_s: list[float] = []
        self.ack_offsets: list[int] = []

    def receive(self, offset: int) -> None:
        """Bytes up to `offset` have arrived."""
        self._received_offset = offset
        if not self._busy:
            self._append()

    def _append(self) -> None:
        self._busy = True
        size = self._received_offset - self._appended_offset
        took_s = self._service_s(self._clock.now_s) + self._per_byte_s * size
        self._clock.at(self._clock.now_s + took_s, self._appended, self._received_offset)

    def _appended(self, offset: int) -> None:
        self._appended_offset = offset
        if self._disk is None:
            self._report(offset)
        else:
            self._disk.write(offset)
        self._busy = False
        if self._received_offset > offset:
            self._append()

    def _report(self, offset: int) -> None:
        self._back.send(offset - REPORT_BYTES, offset, self._report_arrived)

    def _report_arrived(self, offset: int) -> None:
        self._reported(self, offset)
