"""Discrete-event simulation of a master, its slaves and their producers.

The master is one thread: it appends puts, begins waits, sends frames, handles acks and ends the waits that an
ack releases, each with its own cost. Work queues while the thread is busy, so frames and acks batch as in a
real node. All requests that have arrived are handled in one turn, up to `PUTS_PER_TURN`; if no put waited
before, one frame with all of them is sent at its end. A slave appends all received bytes as one batch and
reports; with trioha.haAckMode=flushed it syncs its disk before the report. Frame sizes, the needed copies and
timeouts follow the rules of `trioha.ha`.

A closed-loop writer sends its next put after the answer to the last one: a slower node gets fewer puts.
Writers with one connection are joined: answers are sent together, their host handles all that have arrived,
and sends the writers' next puts together. So they stay in step. Puts of an open loop arrive at the recorded
times.

With `Scenario.cores` all of these are processes of one machine: each needs one of its cores to work, and so
does what carries frames and reports between them. A slave dispatches after its report.

Not modelled: slaves that connect, disconnect or catch up; log files and the dispatcher of a master; polls of
a node that waits for acks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

import numpy as np
from attrs import field, frozen
from numpy.typing import NDArray

from trioha.config.model import AckMode
from trioha.recording.events import PutStatus
from trioha.recording.state import first_beyond
from trioha_analysis.whatif.costs import Costs
from trioha_analysis.whatif.queues import (
    HEADER_BYTES,
    Clock,
    Cores,
    Disk,
    Scheduler,
    Slave,
    SlaveTimes,
    Worker,
)
from trioha_analysis.whatif.scenario import Scenario
from trioha_analysis.whatif.time_distribution import ZERO_TIME, TimeDistribution

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

PUTS_PER_TURN: Final = 16
"""Requests of a connection that a node handles before other tasks run."""


@frozen(eq=False)
class Puts:
    """Puts to simulate."""

    bytes: Ints
    """Of each record, in log order."""
    at_s: Floats
    """Arrival times from the first put on; open loop only."""
    writers: int = 0
    """Of a closed loop; 0 for an open loop."""
    client_s: float = 0.0
    """Closed loop: serial time of the producers' host for each put."""
    think: TimeDistribution = ZERO_TIME
    """Closed loop: from the end of a put to the arrival of the writer's next one, without `client_s`."""
    is_joined: bool = False
    """Closed loop: whether the producers' host handles answers, and sends puts, together."""


@frozen(eq=False)
class Outcome:
    """Results of the puts. Times in s from the start; all arrays but those of acks have one length."""

    put_s: Floats
    """Time of the append, or of the refusal."""
    end_offset: Ints
    """End of its record; 0 if it was refused."""
    waited_s: Floats
    """From `put_s` to the end of the wait; 0 without a wait, nan if the end is unknown."""
    status: Ints
    """`PutStatus`; -1 if the end is unknown."""
    ack_s: Sequence[Floats] = field(factory=tuple)
    """Acks of each slave."""
    ack_offset: Sequence[Ints] = field(factory=tuple)
    outstanding_max: int = 0
    """Maximum number of unanswered puts."""
    sent_bytes: tuple[int, ...] = ()
    """To each slave, headers included."""


def simulate(scenario: Scenario, costs: Costs, puts: Puts, *, seed: int) -> Outcome:
    """Simulate `puts` with the settings of `scenario` and the times of `costs`; deterministic."""
    return _Simulation(scenario, costs, puts, np.random.default_rng(seed)).run()


class _Wait:
    __slots__ = ("copies", "deadline_s", "disk", "disk_deadline_s", "end_offset", "number", "status")

    def __init__(self, number: int, end_offset: int) -> None:
        self.number = number
        self.end_offset = end_offset
        self.copies = self.disk = False
        """Whether the put still waits for copies, or for the disk."""
        self.deadline_s = self.disk_deadline_s = 0.0
        self.status = int(PutStatus.PUT_OK)


class _Simulation:
    def __init__(self, scenario: Scenario, costs: Costs, puts: Puts, random: np.random.Generator) -> None:
        self._scenario = scenario
        self._puts = puts
        self._clock = clock = Clock()
        cores = Cores(clock, scenario.cores, random)
        self._master = Scheduler(clock, cores, random)
        self._producer = Worker(clock, cores)

        def times(distribution: TimeDistribution) -> Iterator[float]:
            return distribution.samples(random)

        self._put_s, self._begin_s, self._send_s = map(times, (costs.put, costs.wait_begin, costs.send))
        self._ack_s, self._end_s, self._think_s = map(times, (costs.ack, costs.wait_end, puts.think))
        self._send_next_s = self._send_s if costs.send_next is None else times(costs.send_next)
        self._disk = Disk(clock, times(costs.sync), self._flushed) if scenario.is_sync_flush else None
        flushes = scenario.ack_mode is AckMode.FLUSHED
        slave_times = SlaveTimes(costs.slave, rows=costs.slave_rows, slaves=scenario.slaves, random=random)
        self._ends: list[int] = []
        """End offset of each appended put."""
        self._slaves = [
            Slave(
                clock,
                cores,
                scenario,
                service_s=partial(slave_times, number),
                per_byte_s=costs.slave_per_byte_s,
                link_s=costs.link_s,
                usual_bytes=costs.frame_bytes,
                sync_times_s=times(costs.sync) if flushes else None,
                record_ends=self._ends,
                reported=self._receive_report,
            )
            for number in range(scenario.slaves)
        ]
        count = len(puts.bytes)
        self._sizes: list[int] = puts.bytes.tolist()
        self._appended_offset = 0
        self._rule = scenario.sync_rule
        self._appended_s: list[float] = []
        self._next = 0
        """Closed loop: puts that have been assigned to writers."""
        self._put_at_s = [0.0] * count
        self._end_offset = [0] * count
        self._waited_s = [0.0] * count
        self._status = [int(PutStatus.PUT_OK)] * count
        self._number = 0
        """Puts that were appended or refused so far."""
        self._for_copies: dict[int, deque[_Wait]] = {}
        """Waits by the number of needed copies, in log order."""
        self._for_disk: deque[_Wait] = deque()
        self._deadlines: deque[_Wait] = deque()
        self._disk_deadlines: deque[_Wait] = deque()
        self._waiting = self._outstanding = self._outstanding_max = 0
        self._arrived = 0
        """Requests that the master has received and not begun to handle."""
        self._handled = 0
        """Requests that it has handled, or begun to handle in the present turn."""
        self._is_reading = False
        """Whether the reader of requests is queued or handles a turn."""
        self._is_lone = False
        """Whether a put of this turn was the first that waits."""
        self._think_time_s = 0.0
        self._producer_queue = 0
        self._answered = 0
        """Joined writers: those whose answers their host has not handled yet."""
        self._is_thinking = False

    def run(self) -> Outcome:
        puts = self._puts
        if puts.writers:
            first = min(puts.writers, len(self._sizes))
            self._next = first
            if puts.is_joined:
                self._clock.at(next(self._think_s), self._arrive, first)
            else:
                for _ in range(first):
                    # Writers do not start at the same time.
                    self._clock.at(next(self._think_s), self._arrive)
        else:
            for at_s in puts.at_s.tolist():
                self._clock.at(at_s, self._arrive)
        self._clock.run()
        return Outcome(
            put_s=np.array(self._put_at_s),
            end_offset=np.array(self._end_offset, np.int64),
            waited_s=np.array(self._waited_s),
            status=np.array(self._status, np.int64),
            ack_s=[np.array(slave.ack_s) for slave in self._slaves],
            ack_offset=[np.array(slave.ack_offsets, np.int64) for slave in self._slaves],
            outstanding_max=self._outstanding_max,
            sent_bytes=tuple(slave.out.sent_bytes for slave in self._slaves),
        )

    # -- producers -------------------------------------------------------------------------------------------

    def _arrive(self, requests: int | None = None) -> None:
        """The number of requests that arrive together; None for one."""
        requests = requests or 1
        self._outstanding += requests
        self._outstanding_max = max(self._outstanding_max, self._outstanding)
        self._arrived += requests
        if not self._is_reading:
            self._is_reading = True
            self._master.do(0.0, self._read)

    def _finish(self) -> None:
        self._outstanding -= 1
        puts = self._puts
        if not puts.writers or self._next >= len(self._sizes):
            return
        self._next += 1
        if puts.is_joined:
            self._answered += 1
            if not self._is_thinking:
                self._is_thinking = True
                # After the other answers that are sent now.
                self._master.do(0.0, self._think_together)
            return
        if not self._producer_queue or not puts.client_s:
            # Puts that are answered together return together.
            self._think_time_s = next(self._think_s)
        self._producer_queue += 1
        self._producer.do(puts.client_s, self._think, self._think_time_s)

    def _think(self, think_s: float) -> None:
        self._producer_queue -= 1
        self._clock.at(self._clock.now_s + think_s, self._arrive)

    def _think_together(self, _: None) -> None:
        answered, self._answered = self._answered, 0
        think_s = next(self._think_s) + self._puts.client_s * answered
        self._producer.do(think_s, self._send_together, answered)

    def _send_together(self, requests: int) -> None:
        # Once the producers' host has nothing left to do.
        self._clock.at(self._clock.now_s, self._return_together, requests)

    def _return_together(self, requests: int) -> None:
        self._arrive(requests)
        self._is_thinking = bool(self._answered)
        if self._answered:
            self._think_together(None)

    # -- master ----------------------------------------------------------------------------------------------

    def _read(self, _: None) -> None:
        """Handle a turn of the requests that have arrived."""
        # The turns of a connection end after every 16th request of it, whenever the others came.
        requests = min(self._arrived, PUTS_PER_TURN - self._handled % PUTS_PER_TURN)
        self._handled += requests
        self._arrived -= requests
        self._append_next(requests)

    def _append_next(self, left: int) -> None:
        """Append the next of `left` requests of a turn; others wait until it has ended."""
        self._master.do_next(next(self._put_s), self._append, left)

    def _end_turn(self) -> None:
        if self._is_lone:
            self._is_lone = False
            self._push()
        self._is_reading = bool(self._arrived)
        if self._is_reading:
            self._master.do(0.0, self._read)

    def _appended_put(self, left: int) -> None:
        """A request of a turn was handled, which leaves `left` of it, this one included."""
        if left > 1:
            self._append_next(left - 1)
        else:
            self._end_turn()

    def _append(self, left: int) -> None:
        number = self._number
        self._number += 1
        self._put_at_s[number] = self._clock.now_s
        scenario = self._scenario
        if scenario.copies_needed and self._in_sync() < scenario.min_in_sync_replicas - 1:
            self._status[number] = int(PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH)
            self._finish()
            self._appended_put(left)
            return
        self._appended_offset += self._sizes[number]
        self._end_offset[number] = self._appended_offset
        self._ends.append(self._appended_offset)
        self._appended_s.append(self._clock.now_s)
        for slave in self._slaves:
            self._wake(slave)
        if self._disk is not None:
            self._disk.write(self._appended_offset)
        if scenario.copies_needed or self._disk is not None:
            wait = _Wait(number, self._appended_offset)
            self._master.do_next(next(self._begin_s), self._begin, (wait, left))
        else:
            self._finish()
            self._appended_put(left)

    def _in_sync(self) -> int:
        return sum(self._is_in_sync(slave) for slave in self._slaves)

    def _is_in_sync(self, slave: Slave) -> bool:
        lag_bytes = self._appended_offset - slave.ack_offset
        if lag_bytes <= 0:
            return True
        oldest = first_beyond(self._ends, slave.ack_offset)
        return self._rule.is_in_sync(
            lag_bytes=lag_bytes,
            now_ns=_ns(self._clock.now_s),
            acked_ns=_ns(slave.ack_s[-1]) if slave.ack_s else 0,
            oldest_ns=_ns(self._appended_s[oldest]),
        )

    def _need(self, in_sync: int) -> int:
        scenario = self._scenario
        need = scenario.copies_needed
        if scenario.all_ack_in_sync_state_set:
            need = max(need, in_sync)
        if scenario.enable_auto_in_sync_replicas:
            need = max(min(need, in_sync), scenario.min_in_sync_replicas - 1)
        return need

    def _begin(self, put: tuple[_Wait, int]) -> None:
        wait, left = put
        self._begin_waits(wait)
        self._appended_put(left)

    def _begin_waits(self, wait: _Wait) -> None:
        scenario = self._scenario
        if scenario.copies_needed:
            in_sync = self._in_sync()
            need = self._need(in_sync)
            if need > in_sync:
                wait.status = int(PutStatus.SLAVE_NOT_AVAILABLE)
            elif need and self._copied_offset(need) < wait.end_offset:
                wait.copies = True
                self._for_copies.setdefault(need, deque()).append(wait)
                wait.deadline_s = self._clock.now_s + scenario.slave_timeout_ms / 1000
                self._add_deadline(self._deadlines, wait, wait.deadline_s)
        if self._disk is not None and self._disk.flushed_offset < wait.end_offset:
            wait.disk = True
            self._for_disk.append(wait)
            wait.disk_deadline_s = self._clock.now_s + scenario.sync_flush_timeout_ms / 1000
            self._add_deadline(self._disk_deadlines, wait, wait.disk_deadline_s)
        if not (wait.copies or wait.disk):
            self._master.do_next(next(self._end_s), self._end, wait)
            return
        if wait.copies and not self._waiting:
            self._is_lone = True
        self._waiting += 1

    def _push(self) -> None:
        idle = [
            slave for slave in self._slaves if slave.ack_offset == slave.sent_offset < self._appended_offset
        ]
        # The first one is put in front last.
        for place, slave in reversed(list(enumerate(idle))):
            send_s = self._send_next_s if place else self._send_s
            self._master.do_next(next(send_s), self._send_pushed, slave)

    def _send_pushed(self, slave: Slave) -> None:
        # The writer task sends what does not fit one frame.
        self._send(slave, at_most=self._scenario.transfer_batch_bytes)

    def _wake(self, slave: Slave) -> None:
        if not slave.is_sending:
            slave.is_sending = True
            self._master.do(0.0, self._run_writer, slave)

    def _run_writer(self, slave: Slave) -> None:
        """The connection's writer task; without unsent bytes it costs nothing."""
        slave.is_sending = False
        if slave.sent_offset == self._appended_offset:
            return
        room_s = slave.out.room_s
        slave.is_sending = True
        if room_s > self._clock.now_s:
            self._clock.at(room_s, self._wake_writer, slave)
        else:
            self._master.do_next(next(self._send_s), self._send_all, slave)

    def _wake_writer(self, slave: Slave) -> None:
        self._master.do(0.0, self._run_writer, slave)

    def _send_all(self, slave: Slave) -> None:
        self._send(slave)
        slave.is_sending = False
        if slave.sent_offset < self._appended_offset:
            self._wake(slave)

    def _send(self, slave: Slave, *, at_most: int | None = None) -> None:
        unsent_bytes = self._appended_offset - slave.sent_offset
        if unsent_bytes:
            begin = slave.sent_offset
            body_bytes = self._batch_bytes(slave, unsent_bytes) if at_most is None else at_most
            slave.sent_offset += min(unsent_bytes, body_bytes)
            slave.out.send(begin, slave.sent_offset, slave.receive, overhead_bytes=HEADER_BYTES)

    def _batch_bytes(self, slave: Slave, unsent_bytes: int) -> int:
        """As in `HaConnection`: doubles while the slave lags far, minimal once it has caught up."""
        least, most = self._scenario.transfer_batch_bytes, self._scenario.transfer_batch_bytes_max
        if unsent_bytes <= least:
            slave.batch_bytes = least
        elif unsent_bytes > 2 * slave.batch_bytes:
            slave.batch_bytes = max(least, min(2 * slave.batch_bytes, most))
        return slave.batch_bytes

    # -- acks and ends ---------------------------------------------------------------------------------------

    def _receive_report(self, slave: Slave, offset: int) -> None:
        slave.reported_offset = offset
        if not slave.has_report:
            slave.has_report = True
            self._master.do(0.0, self._acknowledge, slave)

    def _acknowledge(self, slave: Slave) -> None:
        slave.has_report = False
        slave.ack_offset = slave.reported_offset
        slave.ack_s.append(self._clock.now_s)
        slave.ack_offsets.append(slave.ack_offset)
        released: list[_Wait] = []
        for need, waits in self._for_copies.items():
            reached = self._copied_offset(need)
            while waits and waits[0].end_offset <= reached:
                wait = waits.popleft()
                if wait.copies:
                    wait.copies = False
                    released.append(wait)
        self._release(released, first_s=next(self._ack_s))

    def _copied_offset(self, need: int) -> int:
        """The offset that `need` slaves have acknowledged; -1 if there are fewer slaves."""
        if need > len(self._slaves):
            return -1
        if len(self._slaves) == 1:
            return self._slaves[0].ack_offset
        return sorted((slave.ack_offset for slave in self._slaves), reverse=True)[need - 1]

    def _flushed(self, offset: int) -> None:
        released: list[_Wait] = []
        while self._for_disk and self._for_disk[0].end_offset <= offset:
            wait = self._for_disk.popleft()
            if wait.disk:
                wait.disk = False
                released.append(wait)
        self._release(released)

    def _release(self, waits: Sequence[_Wait], *, first_s: float = 0.0) -> None:
        """Answer the puts that wait for nothing more: one task does, after `first_s`."""
        released = [wait for wait in waits if not (wait.copies or wait.disk)]
        if released:
            self._waiting -= len(released)
            self._master.do(first_s, self._answer, released)

    def _answer(self, released: Sequence[_Wait]) -> None:
        # The first one is put in front last.
        for wait in reversed(released):
            self._master.do_next(next(self._end_s), self._end, wait)

    def _add_deadline(self, deadlines: deque[_Wait], wait: _Wait, deadline_s: float) -> None:
        if not deadlines:
            self._clock.at(deadline_s, self._check_deadlines, deadlines)
        deadlines.append(wait)

    def _check_deadlines(self, deadlines: deque[_Wait]) -> None:
        """Expire the waits whose deadline has passed."""
        is_disk = deadlines is self._disk_deadlines
        now_s = self._clock.now_s
        while deadlines:
            wait = deadlines[0]
            deadline_s = wait.disk_deadline_s if is_disk else wait.deadline_s
            if wait.disk if is_disk else wait.copies:
                if deadline_s > now_s:
                    self._clock.at(deadline_s, self._check_deadlines, deadlines)
                    return
                self._expire(wait, is_disk=is_disk)
            deadlines.popleft()

    def _expire(self, wait: _Wait, *, is_disk: bool) -> None:
        if is_disk:
            wait.disk = False
            if wait.status == PutStatus.PUT_OK:
                wait.status = int(PutStatus.FLUSH_DISK_TIMEOUT)
        else:
            wait.copies = False
            # If both waits fail, the answer is the replicas' status.
            wait.status = int(PutStatus.FLUSH_SLAVE_TIMEOUT)
        self._release([wait])

    def _end(self, wait: _Wait) -> None:
        self._waited_s[wait.number] = self._clock.now_s - self._put_at_s[wait.number]
        self._status[wait.number] = wait.status
        self._finish()


def _ns(at_s: float) -> int:
    return round(at_s * 1e9)
