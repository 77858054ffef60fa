"""Components of the simulation: an event clock, workers, links, disks and slaves."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush
from typing import Any, Final

import numpy as np

from trioha_analysis.whatif.scenario import Scenario
from trioha_analysis.whatif.time_distribution import TimeDistribution

Call = Callable[[Any], None]

PACKET_BYTES: Final = 1448
"""On a link of limited bandwidth the bytes of a frame arrive in packets of this size: that of a TCP segment
on Ethernet. Larger than `PACKETS_MAX` of them, a frame arrives in that many larger ones."""
PACKETS_MAX: Final = 64
SOCKET_BUFFER_BYTES: Final = 2_500_000
"""Bytes that the sockets of a link buffer before its sender has to wait."""
HEADER_BYTES: Final = 12
REPORT_BYTES: Final = 8
JOINT_SAMPLES: Final = 4096
SLICE_S: Final = 0.004
"""How long a process may work while another one waits for its core: a tick of Linux at 250 Hz."""
TOGETHER_S: Final = 0.002
"""Slaves that start within this time are served together."""


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


class Cores:
    """The cores of a machine that all processes of a simulation share.

    A process that becomes ready gets an idle core. Without one it waits for one of the busy ones, and for no
    other, as a scheduler of the kernel has it that keeps a queue for each core. A process keeps its core
    until it has nothing left to do, or for `SLICE_S` while another one waits for it.
    """

    def __init__(self, clock: Clock, count: int | None, random: np.random.Generator) -> None:
        """`count` None: each process has a core of its own."""
        self._clock = clock
        self._random = random
        self.are_shared = count is not None
        self._waiting: list[deque[tuple[object, Call]]] = [deque() for _ in range(count or 0)]
        self._owners: list[object | None] = [None] * (count or 0)
        self._core_of: dict[int, int] = {}

    def begin(self, process: object, call: Call) -> None:
        """Call `call(None)` when the process has a core, which may be now."""
        if not self.are_shared:
            call(None)
            return
        for core, owner in enumerate(self._owners):
            if owner is None:
                self._give(core, process)
                call(None)
                return
        self._waiting[int(self._random.integers(len(self._owners)))].append((process, call))

    def end(self, process: object) -> None:
        """The process leaves its core to the one that waits for it."""
        if not self.are_shared:
            return
        core = self._core_of.pop(id(process))
        self._owners[core] = None
        if self._waiting[core]:
            following, call = self._waiting[core].popleft()
            self._give(core, following)
            self._clock.at(self._clock.now_s, call)

    def has(self, process: object) -> bool:
        """Whether the process keeps a shared core."""
        return id(process) in self._core_of

    def is_wanted(self, process: object) -> bool:
        """Whether another process waits for the core of this one."""
        return self.are_shared and bool(self._waiting[self._core_of[id(process)]])

    def _give(self, core: int, process: object) -> None:
        self._owners[core] = process
        self._core_of[id(process)] = core


class Thread:
    """A thread with work, which it does on a core; subclasses choose what comes next."""

    def __init__(self, clock: Clock, cores: Cores) -> None:
        self._clock = clock
        self._cores = cores
        self._busy = False
        """Whether it has work, and so has a core or waits for one."""
        self._since_s = 0.0
        """When it got its core."""

    def _wake(self) -> None:
        if not self._busy:
            self._busy = True
            self._cores.begin(self, self._resume)

    def _take(self) -> tuple[float, Call, Any] | None:
        """The next work; None if there is none."""
        raise NotImplementedError

    def _resume(self, _: None) -> None:
        self._since_s = self._clock.now_s
        self._next()

    def _next(self) -> None:
        if self._clock.now_s - self._since_s >= SLICE_S and self._cores.is_wanted(self):
            self._cores.end(self)
            self._cores.begin(self, self._resume)
            return
        work = self._take()
        if work is None:
            self._busy = False
            self._cores.end(self)
            return
        self._clock.at(self._clock.now_s + work[0], self._done, work)

    def _done(self, work: tuple[float, Call, Any]) -> None:
        # Still busy, so that work added by the call waits for its turn.
        work[1](work[2])
        self._next()


class Worker(Thread):
    """A thread that does its work in the order in which it comes."""

    def __init__(self, clock: Clock, cores: Cores) -> None:
        super().__init__(clock, cores)
        self._work: deque[tuple[float, Call, Any]] = deque()

    def do(self, cost_s: float, call: Call, argument: Any = None) -> None:
        """Append work that takes `cost_s` and ends with `call(argument)`."""
        self._work.append((cost_s, call, argument))
        self._wake()

    def _take(self) -> tuple[float, Call, Any] | None:
        return self._work.popleft() if self._work else None


class Scheduler(Thread):
    """A thread with tasks, as trio runs them: in passes.

    A pass has all tasks that were ready when it began, in their order or, as often, in the reverse one. What
    becomes ready meanwhile waits for the next pass. So a task may have to wait for one that became ready
    long after it, and for that of the pass before, too.
    """

    def __init__(self, clock: Clock, cores: Cores, random: np.random.Generator) -> None:
        super().__init__(clock, cores)
        self._random = random
        self._ready: list[tuple[float, Call, Any]] = []
        self._pass: deque[tuple[float, Call, Any]] = deque()

    def do(self, cost_s: float, call: Call, argument: Any = None) -> None:
        """Have a task of the next pass work for `cost_s` and end with `call(argument)`."""
        self._ready.append((cost_s, call, argument))
        self._wake()

    def do_next(self, cost_s: float, call: Call, argument: Any = None) -> None:
        """Have the present task go on with work that takes `cost_s` and ends with `call(argument)`."""
        self._pass.appendleft((cost_s, call, argument))
        self._wake()

    def _take(self) -> tuple[float, Call, Any] | None:
        if not self._pass:
            ready, self._ready = self._ready, []
            if len(ready) > 1 and self._random.random() < 0.5:
                ready.reverse()
            self._pass.extend(ready)
        return self._pass.popleft() if self._pass else None


class Pipe:
    """One direction of a link, with a bandwidth and a delay."""

    def __init__(self, clock: Clock, cores: Cores, *, bytes_per_s: float | None, delay_s: float) -> None:
        self._clock = clock
        self._bytes_per_s = bytes_per_s
        self._delay_s = delay_s
        self._hop = Worker(clock, cores) if cores.are_shared else None
        """On a machine of shared cores what passes bytes on needs one, if only for a moment."""
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
        clock, hop = self._clock, self._hop
        if hop is not None:
            arrived = call

            def call(offset: int) -> None:
                hop.do(0.0, leave, offset)

            def leave(offset: int) -> None:
                # Once the core is free again.
                clock.at(clock.now_s, arrived, offset)

        self.sent_bytes += end - begin + overhead_bytes
        if self._bytes_per_s is None:
            clock.at(clock.now_s + self._delay_s, call, end)
            return
        free_s = max(self._free_s, clock.now_s) + overhead_bytes / self._bytes_per_s
        packet_bytes = max(PACKET_BYTES, -(-(end - begin) // PACKETS_MAX))
        while begin < end:
            packet_end = min(begin + packet_bytes, end)
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
    """Service times of slaves: independent, or drawn together for slaves that start together."""

    def __init__(
        self,
        times: TimeDistribution,
        *,
        rows: Sequence[Sequence[float]],
        slaves: int,
        random: np.random.Generator,
    ) -> None:
        """`rows` are times of slaves that started together; more slaves than a row has get independent
        ones."""
        self._own = times.samples(random)
        self._rows: list[list[float]] = []
        if rows:
            table = np.array(rows)
            drawn = random.permuted(table[random.integers(len(table), size=JOINT_SAMPLES)], axis=1)
            self._rows = drawn[:, :slaves].tolist()
        self._place = 0
        self._row: list[float] = []
        self._started_s = -1.0
        self._served: set[int] = set()

    def __call__(self, slave: int, now_s: float) -> float:
        """Service time in s of a batch that this slave, a number from 0, starts at `now_s`."""
        if not self._rows:
            return next(self._own)
        if slave in self._served or now_s - self._started_s > TOGETHER_S:
            self._place = (self._place + 1) % JOINT_SAMPLES
            self._row = self._rows[self._place]
            self._started_s = now_s
            self._served.clear()
        self._served.add(slave)
        return self._row[slave] if slave < len(self._row) else next(self._own)


class Slave:
    """A slave and its link: frames in, reports out; and the master's state of its connection."""

    def __init__(
        self,
        clock: Clock,
        cores: Cores,
        scenario: Scenario,
        *,
        service_s: Callable[[float], float],
        per_byte_s: float,
        link_s: float,
        usual_bytes: int,
        sync_times_s: Iterator[float] | None,
        record_ends: Sequence[int],
        reported: Callable[[Slave, int], None],
    ) -> None:
        """`service_s` gives the service time of a batch by its start, without the time for each byte;
        `usual_bytes` is the size of a recorded frame, 0 if it is not known;
        `sync_times_s` is given for a slave with flushed acks. Records end at `record_ends`, which grows."""
        one_way_s = (scenario.rtt_s + link_s) / 2
        speed = scenario.bandwidth_bytes_per_s
        self.out = Pipe(clock, cores, bytes_per_s=speed, delay_s=one_way_s)
        self._back = Pipe(clock, cores, bytes_per_s=speed, delay_s=one_way_s)
        self._clock = clock
        self._cores = cores
        self._service_s = service_s
        self._per_byte_s = per_byte_s
        self._disk = None if sync_times_s is None else Disk(clock, sync_times_s, self._report)
        self._record_ends = record_ends
        self._own_report_offset = 0
        self._reported = reported
        self._received_offset = self._appended_offset = 0
        self._busy = False
        """Whether it appends, or waits for a core to do so."""
        self._dispatches = 0
        """How often it has begun to dispatch."""
        self._usual_bytes = usual_bytes
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
        if self._busy:
            return
        self._busy = True
        if self._cores.has(self):
            # It dispatches.
            self._append(None)
        else:
            self._cores.begin(self, self._append)

    def _append(self, _: None) -> None:
        size = self._received_offset - self._appended_offset
        took_s = self._service_s(self._clock.now_s) + self._per_byte_s * size
        usual_bytes = self._usual_bytes or size
        busy_s = took_s * size / usual_bytes
        self._clock.at(self._clock.now_s + took_s, self._appended, (self._received_offset, busy_s))

    def _appended(self, batch: tuple[int, float]) -> None:
        offset, busy_s = batch
        self._appended_offset = offset
        if self._disk is None:
            self._report(offset)
        else:
            self._disk.write(offset)
        if self._received_offset > offset:
            self._append(None)
        elif self._cores.are_shared:
            # It dispatches what it has appended, for as long again if that is a usual frame. Bytes that come
            # meanwhile are appended first.
            self._busy, self._dispatches = False, self._dispatches + 1
            self._clock.at(self._clock.now_s + busy_s, self._dispatched, self._dispatches)
        else:
            self._busy = False

    def _dispatched(self, number: int) -> None:
        if number == self._dispatches and not self._busy:
            self._cores.end(self)

    def _report(self, offset: int) -> None:
        """Report the records that end up to `offset`, if there are new ones."""
        whole = bisect_right(self._record_ends, offset)
        if not whole or self._record_ends[whole - 1] <= self._own_report_offset:
            return
        offset = self._own_report_offset = self._record_ends[whole - 1]
        self._back.send(offset - REPORT_BYTES, offset, self._report_arrived)

    def _report_arrived(self, offset: int) -> None:
        self._reported(self, offset)
