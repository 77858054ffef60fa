"""Puts with other settings: the recorded stages, drawn run by run, and the rules that decide when a run ends.

For each run, in the order of their appends, and each slave:

    sent    = append + send
    arrived = the later of sent, and arrived of the run before; + bytes / bandwidth
    started = the later of arrived, and when the slave has done its serial share of the run before
    acked   = the later of started + ack + rtt, and acked of the run before; then synced, with flushed acks
    end     = the nth of the acks, for n copies, or synced by the master, with SYNC_FLUSH; + answer

`send`, `ack` and `answer` are those of a recorded run. A run ends at its timeout at the latest, and at once
if too few slaves are in sync. The writers of a closed loop append their next run a recorded time after its
end.
"""

from __future__ import annotations

import math
from collections import deque
from heapq import heapify, heappop, heappush
from typing import Any, Final

import numpy as np
from attrs import define, field, frozen
from numpy.typing import NDArray

from trioha.recording.events import PutStatus
from trioha_analysis.whatif.recorded import Floats, Runs, Stages
from trioha_analysis.whatif.scenario import Scenario

HEADER_BYTES: Final = 12
"""Of a frame."""


@frozen(eq=False)
class Outcome:
    """What became of each put; times in s, shape (puts,)."""

    append_s: Floats
    end_s: Floats
    """nan if it is not known."""
    status: Floats
    lag_bytes: Floats
    """Of the worst slave, right after the append; nan without slaves, and for what was not stored."""
    lag_s: Floats
    """From the append to the worst slave's ack."""


@define(eq=False)
class Disk:
    """A disk that syncs all that has come when a sync begins, one sync at a time."""

    _begins_s: float = -1.0
    _ends_s: float = -1.0

    def synced_s(self, at_s: float, takes_s: float) -> float:
        """When bytes that come at `at_s`, which never goes back, are on disk; a new sync takes `takes_s`."""
        if at_s > self._begins_s:
            self._begins_s = max(at_s, self._ends_s)
            self._ends_s = self._begins_s + takes_s
        return self._ends_s


@define(eq=False)
class Slave:
    """A slave and its link."""

    scenario: Scenario
    serial: float
    """Share of an ack's time for which a run holds up the next one."""
    frame_serial: float
    """And a frame of a run the next one of it."""
    ack_offset: int = 0
    ack_s: float = 0.0
    """Time of that ack."""
    _unacked: deque[tuple[float, int, float]] = field(factory=deque)
    """Ack, end offset and append of the runs without an ack so far."""
    _arrived_s: float = 0.0
    _free_s: float = 0.0
    _written_s: float = 0.0
    _disk: Disk = field(factory=Disk)

    def is_in_sync(self, now_s: float, log_end: int) -> bool:
        """Whether it is, at a time that never goes back."""
        while self._unacked and self._unacked[0][0] <= now_s:
            self.ack_s, self.ack_offset, _ = self._unacked.popleft()
        return self.scenario.sync_rule.is_in_sync(
            lag_bytes=log_end - self.ack_offset,
            now_ns=round(now_s * 1e9),
            acked_ns=round(self.ack_s * 1e9),
            oldest_ns=round(self._unacked[0][2] * 1e9) if self._unacked else None,
        )

    def receive(
        self, append_s: float, size: int, log_end: int, *, send_s: float, ack_s: float, sync_s: float
    ) -> float:
        """Send a run of `size` bytes; when it is acknowledged."""
        frames = frame_count(size, self.scenario)
        sent_s = append_s + send_s * frames
        self._arrived_s = max(sent_s, self._arrived_s)
        if self.scenario.bandwidth_bytes_per_s is not None:
            self._arrived_s += (size + frames * HEADER_BYTES) / self.scenario.bandwidth_bytes_per_s
        started_s = max(self._arrived_s, self._free_s)
        ack_s += (frames - 1) * self.frame_serial * ack_s
        self._free_s = started_s + self.serial * ack_s
        self._written_s = max(started_s + ack_s + self.scenario.rtt_s, self._written_s)
        acked_s = self._disk.synced_s(self._written_s, sync_s) if sync_s else self._written_s
        self._unacked.append((acked_s, log_end, append_s))
        return acked_s


def frame_count(size: int, scenario: Scenario) -> int:
    """Frames of a run: the first of haTransferBatchSize, the next ones doubled while much is left."""
    batch, count = scenario.transfer_batch_bytes, 1
    size -= batch
    while size > 0:
        if size > 2 * batch:
            batch = max(batch, min(2 * batch, scenario.transfer_batch_bytes_max))
        size -= batch
        count += 1
    return count


def play(
    runs: Runs,
    stages: Stages,
    scenario: Scenario,
    *,
    writers: int,
    syncs_are_added: bool,
    serial: float,
    frame_serial: float,
    seed: int,
) -> Outcome:
    """Play the runs of a part with other settings.

    `writers`: of the recorded closed loop, 0 for an open one. `syncs_are_added`: whether acks wait for the
    slaves' disks, other than when they were recorded. `serial`: as `serial_share` found it, of runs;
    `frame_serial`: of frames of one run.
    """
    random = np.random.default_rng(seed)
    due, writers_return = _producers(runs, writers, scenario)
    count, put_bytes = len(due) if not writers_return else len(runs.puts), runs.bytes.sum() / runs.puts.sum()
    send_s, ack_s, answer_s = _rows(stages, scenario.slaves, count, random)
    syncs_s = _drawn(stages.sync_s, (count, scenario.slaves + 1), random)
    think_s = _drawn(stages.think_s, (count,), random)
    slaves, disk, log_end = [Slave(scenario, serial, frame_serial) for _ in range(scenario.slaves)], Disk(), 0
    found: list[tuple[float, ...]] = []
    for number in range(count):
        now_s, _, puts = heappop(due)
        in_sync = sum(slave.is_in_sync(now_s, log_end) for slave in slaves)
        need = scenario.copies_needed(in_sync)
        if need and in_sync + 1 < scenario.min_in_sync_replicas:
            found.append((now_s, puts, now_s, PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH, np.nan, np.nan))
        else:
            size = round(puts * put_bytes)
            log_end += size
            lag_bytes = max((log_end - slave.ack_offset for slave in slaves), default=np.nan)
            acked_s = [
                slave.receive(
                    now_s,
                    size,
                    log_end,
                    send_s=send_s[number][place],
                    ack_s=ack_s[number][place],
                    sync_s=syncs_s[number][place] if syncs_are_added else 0.0,
                )
                for place, slave in enumerate(slaves)
            ]
            synced_s = disk.synced_s(now_s, syncs_s[number][-1]) if scenario.is_sync_flush else now_s
            status, end_s = _end(scenario, now_s, acked_s, synced_s, need=need, in_sync=in_sync)
            if end_s > now_s:
                end_s += answer_s[number]
            found.append((now_s, puts, end_s, status, lag_bytes, max(acked_s, default=np.nan) - now_s))
        if writers_return:
            heappush(due, (found[-1][2] + think_s[number], count + number, puts))
    return _outcome(np.array(found, np.float64), stages)


def _outcome(found: Floats, stages: Stages) -> Outcome:
    """Of the puts of runs, whose times are those of their last puts."""
    puts = found[:, 1].astype(np.int64)
    append_s, _, end_s, status, lag_bytes, lag_s = np.repeat(found, puts, axis=0).T
    # Of a run of 3: 2, 1, 0.
    before = np.repeat(np.cumsum(puts), puts) - 1 - np.arange(puts.sum())
    sooner_s = before * stages.append_gap_s
    is_waited = end_s > append_s
    return Outcome(
        append_s=append_s - sooner_s,
        end_s=end_s - np.where(is_waited, before * stages.end_gap_s, sooner_s),
        status=status,
        lag_bytes=lag_bytes,
        lag_s=lag_s + sooner_s,
    )


def _end(
    scenario: Scenario, now_s: float, acked_s: list[float], synced_s: float, *, need: int, in_sync: int
) -> tuple[PutStatus, float]:
    """Status of a run and when its wait is over; if both waits fail, the copies' status counts."""
    status, end_s = PutStatus.PUT_OK, synced_s
    if synced_s > now_s + scenario.sync_flush_timeout_ms / 1e3:
        status, end_s = PutStatus.FLUSH_DISK_TIMEOUT, now_s + scenario.sync_flush_timeout_ms / 1e3
    if need > in_sync:
        return PutStatus.SLAVE_NOT_AVAILABLE, end_s
    if need:
        copied_s = sorted(acked_s)[need - 1]
        if copied_s > now_s + scenario.slave_timeout_ms / 1e3:
            status, copied_s = PutStatus.FLUSH_SLAVE_TIMEOUT, now_s + scenario.slave_timeout_ms / 1e3
        end_s = max(end_s, copied_s)
    return status, end_s


def _producers(runs: Runs, writers: int, scenario: Scenario) -> tuple[list[tuple[float, int, int]], bool]:
    """A heap of the runs to come (time, order, puts), and whether writers come back after a run's end."""
    if scenario.rate_per_s is None and writers:
        # As many return together as did when recorded.
        usual = int(np.median(runs.puts))
        writers = scenario.writers or writers
        groups = [usual] * (writers // usual) + [writers % usual] * (writers % usual > 0)
        return [(0.0, place, puts) for place, puts in enumerate(groups)], True
    puts, append_s = runs.puts, runs.append_s
    if scenario.rate_per_s is not None:
        if writers or not append_s[-1]:
            puts = np.ones(int(puts.sum()), np.int64)
            append_s = np.arange(len(puts)) / scenario.rate_per_s
        else:
            append_s = append_s * (puts.sum() / scenario.rate_per_s / append_s[-1])
    due = [
        (at_s, place, n) for place, (at_s, n) in enumerate(zip(append_s.tolist(), puts.tolist(), strict=True))
    ]
    heapify(due)
    return due, False


def _rows(
    stages: Stages, slaves: int, count: int, random: np.random.Generator
) -> tuple[list[list[float]], list[list[float]], list[float]]:
    """Send and ack of `slaves` and answer, of `count` runs drawn from the recorded ones.

    Slaves beyond the recorded ones are like these, but have rows of their own.
    """
    rows = len(stages.answer_s)
    if not rows:
        return [[]] * count, [[]] * count, [0.0] * count
    known = max(stages.slaves, 1)
    groups = max(1, -(-slaves // known))
    row = np.stack([_shuffled(np.arange(rows), (count,), random) for _ in range(groups)], axis=1)
    place = np.arange(slaves)
    picked = row[:, place // known], place % known
    return stages.send_s[picked].tolist(), stages.ack_s[picked].tolist(), stages.answer_s[row[:, 0]].tolist()


def _drawn(times_s: Floats, shape: tuple[int, ...], random: np.random.Generator) -> list[Any]:
    times: list[Any] = (_shuffled(times_s, shape, random) if len(times_s) else np.zeros(shape)).tolist()
    return times


def _shuffled(values: NDArray[Any], shape: tuple[int, ...], random: np.random.Generator) -> NDArray[Any]:
    """Values in random order, each as often as the others: a percentile of few draws varies less so."""
    count = math.prod(shape)
    decks = [random.permutation(values) for _ in range(-(-count // len(values)))]
    return np.concatenate([np.zeros(0, values.dtype), *decks])[:count].reshape(shape)
