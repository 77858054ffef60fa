"""A master, its slaves and the links between them, in virtual time, under faults from one seed."""

from __future__ import annotations

import gc
import os
import resource
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import trio
from attrs import frozen
from trio.testing import MockClock

from tests.descriptors import left_open, open_descriptors
from tests.simulation.acks import copies_needed
from tests.simulation.determinism import pinned, stream_of
from tests.simulation.history import History
from tests.simulation.master_node import MasterNode
from tests.simulation.network import Link, LinkQuality
from tests.simulation.node import Snapshot
from tests.simulation.plan import LINK_FAULTS, Fault, Plan, plan_of
from tests.simulation.slave_node import ReportCheck, SlaveNode
from tests.simulation.trace import Trace
from trioha.net.descriptors import raise_descriptor_limit
from trioha.store.messages import Message
from trioha.store.put_status import PutStatus

CHECK_INTERVAL_S = 0.5
RESTART_MAX_S = 6.0
GOOD_LINK = LinkQuality(latency_s=0.001, bandwidth_bytes_per_s=1e8, capacity_bytes=1 << 20, dribble=0.0)
TRACE_LINES_MAX = 500_000
STEPS_AT_ONCE_MAX = 200_000
FINAL_PUTS = 3
SETTLE_S = 12.0
"""For the longest back-off and a hanging connect, after housekeeping has ended a connection."""


class SimulationError(AssertionError):
    """An invariant did not hold; the message has the seed, and how to see it again."""


@frozen
class Outcome:
    """What one run did."""

    seed: int
    digest: str
    """Of all that happened: equal for equal seeds."""
    events: int
    virtual_s: float
    log_bytes: int
    faults: int
    statuses: dict[str, int]
    """Puts by status."""


def simulate(seed: int, *, show: Callable[[str], None] | None = None, plan: Plan | None = None) -> Outcome:
    """Run one seed; raises SimulationError where an invariant does not hold. `show` gets every trace line.

    `plan` takes the place of the seed's own.
    """
    before = open_descriptors()
    with (
        _limit_raised(),
        _collector_off(),
        tempfile.TemporaryDirectory(prefix="simulation-", dir=_memory_folder()) as folder,
    ):
        trace = Trace(show)
        world = World(plan or plan_of(seed), folder=Path(folder), trace=trace)
        with pinned(seed, on_log_fault=world.fail):
            try:
                trio.run(
                    world.run, clock=MockClock(autojump_threshold=0), instruments=[SpinGuard(world.fail)]
                )
            except Exception:  # noqa: BLE001 - any exception is a finding of this seed
                world.violations.append(f"exception:\n{traceback.format_exc()}")
        if not world.violations and (left := left_open(before)):
            world.violations.append(f"left open: {', '.join(left)}")
    if world.violations:
        raise SimulationError(
            f"seed {seed}: {world.violations[0]}\n"
            f"last of {trace.count} events:\n{trace.last_lines()}\n"
            f"seed {seed}: {world.violations[0]}\n"
            f"see it again: python -m tests.simulation --seed {seed} --trace"
        )
    return Outcome(
        seed=seed,
        digest=trace.digest,
        events=trace.count,
        virtual_s=world.virtual_s,
        log_bytes=world.history.end_offset - world.history.first_offset,
        faults=world.faults,
        statuses=dict(sorted(world.master.statuses.items())),
    )


def _memory_folder() -> str | None:
    """Where files cost no disk time, if there is such a place."""
    folder = Path("/dev/shm")
    return str(folder) if folder.is_dir() and os.access(folder, os.W_OK) else None


@contextmanager
def _limit_raised() -> Iterator[None]:
    """As many descriptors as a node has after its start: here several nodes share them."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    raise_descriptor_limit()
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@contextmanager
def _collector_off() -> Iterator[None]:
    """Nothing is closed by a garbage collection that happens to come in time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class SpinGuard(trio.abc.Instrument):
    """Ends a run in which tasks go round without time passing: virtual time would stand still for ever."""

    def __init__(self, on_violation: Callable[[str], None]) -> None:
        self._fail = on_violation
        self._now_s = -1.0
        self._steps = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        now_s = trio.current_time()
        if now_s != self._now_s:
            self._now_s, self._steps = now_s, 0
        self._steps += 1
        if self._steps == STEPS_AT_ONCE_MAX:
            self._fail(f"{STEPS_AT_ONCE_MAX} steps of tasks at one moment, the last of {task.name}")


class World:
    """One seed's nodes, links and faults."""

    def __init__(self, plan: Plan, *, folder: Path, trace: Trace) -> None:
        self.plan = plan
        self.trace = trace
        self.violations: list[str] = []
        self.virtual_s = 0.0
        self.faults = 0
        self.history = History(plan.first_offset)
        self.slaves = [
            SlaveNode(
                number,
                slave_plan,
                plan=plan,
                folder=folder,
                history=self.history,
                trace=trace,
                on_violation=self.fail,
                connect=self._connect,
                on_loss=self._note_loss,
            )
            for number, slave_plan in enumerate(plan.slaves, start=1)
        ]
        self.master = MasterNode(
            plan=plan,
            folder=folder,
            history=self.history,
            trace=trace,
            on_violation=self.fail,
            slaves=self.slaves,
        )
        self._rng = stream_of(plan.seed, "faults")
        self._link_rng = stream_of(plan.seed, "links")
        self._quality = plan.quality
        self._links: dict[int, tuple[Link, SlaveNode]] = {}
        self._link_count = 0
        self._scope = trio.CancelScope()

    def fail(self, what: str) -> None:
        """An invariant does not hold: the run ends as soon as this returns to trio."""
        self.violations.append(f"at {trio.current_time():.6f} s {what}")
        self._scope.cancel()

    async def run(self) -> None:
        """The whole life of the world."""
        with self._scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.master.run)
                for slave in self.slaves:
                    nursery.start_soon(self._run_slave, slave)
                nursery.start_soon(self._check_for_ever)
                with trio.move_on_after(self.plan.chaos_s):
                    await self._break_things()
                await self._end_well()
                nursery.cancel_scope.cancel()
        self.virtual_s = trio.current_time()
        self._check_end()

    @staticmethod
    async def _run_slave(slave: SlaveNode) -> None:
        await slave.run(starts_after_s=slave.slave_plan.starts_after_s)

    # -- network -----------------------------------------------------------------------------------------

    async def _connect(self, slave: SlaveNode) -> trio.abc.Stream:
        await trio.sleep(self._quality.latency_s)
        master = self.master
        if trio.current_time() < slave.unreachable_until_s or (master.lost_power and not master.can_serve):
            await trio.sleep_forever()
        if not master.can_serve:
            raise ConnectionRefusedError("the port is closed")
        self._link_count += 1
        number = self._link_count
        link = Link(self._quality, self._link_rng, direct=self.plan.direct_streams, number=number)
        check = ReportCheck(slave, link)
        link.frames.on_received = check.received
        link.reports.on_sent = check.sent
        self._links = {n: known for n, known in self._links.items() if known[0].is_open}
        self._links[number] = (link, slave)
        master.accept(link, slave)
        return link.near

    # -- faults ------------------------------------------------------------------------------------------

    async def _break_things(self) -> None:
        rng, plan = self._rng, self.plan
        while True:
            await trio.sleep(rng.expovariate(1 / plan.fault_interval_s))
            fault = rng.choice(plan.faults)
            self.faults += 1
            self._check_now()
            if fault in LINK_FAULTS:
                self._break_link(fault)
            elif fault in {Fault.KILL_MASTER, Fault.POWER_MASTER}:
                self._crash_master(power=fault is Fault.POWER_MASTER)
            else:
                self._crash_slave(rng.choice(self.slaves), power=fault is Fault.POWER_SLAVE)

    def _break_link(self, fault: Fault) -> None:
        rng = self._rng
        slave = rng.choice(self.slaves)
        duration_s = rng.choice((0.1, 1.0, 5.0, 25.0)) * rng.random()
        if fault is Fault.UNREACHABLE:
            self.trace.note(slave.name, f"{fault.value} {duration_s:.3f} s")
            slave.unreachable_until_s = trio.current_time() + duration_s
            return
        for link in self._links_of(slave):
            self.trace.note(slave.name, f"{fault.value}: link {link.number}")
            match fault:
                case Fault.END:
                    link.end()
                case Fault.RESET:
                    link.reset()
                case Fault.FREEZE:
                    reports, frames = rng.choice(((True, True), (True, False), (False, True)))
                    link.freeze(duration_s, reports=reports, frames=frames)
                case Fault.SILENCE:
                    link.silence()
                case _:
                    link.set_quality(
                        LinkQuality(
                            latency_s=rng.uniform(0.0, 1.0),
                            bandwidth_bytes_per_s=rng.choice((300, 3000)),
                            capacity_bytes=1500,
                            dribble=0.3,
                        )
                    )

    def _links_of(self, slave: SlaveNode | None) -> list[Link]:
        return [link for link, owner in self._links.values() if link.is_open and slave in {owner, None}]

    def _crash_master(self, *, power: bool) -> None:
        if power and self.master.is_up:
            for link in self._links_of(None):
                link.silence()
        self.master.crash(power=power, restart_after_s=self._rng.choice((0.01, 1.0, RESTART_MAX_S)))

    def _crash_slave(self, slave: SlaveNode, *, power: bool) -> None:
        if power and slave.is_up:
            for link in self._links_of(slave):
                link.silence()
        slave.crash(power=power, restart_after_s=self._rng.choice((0.01, 1.0, RESTART_MAX_S)))

    def _note_loss(self, slave: SlaveNode) -> None:
        self.master.note_loss(slave)

    # -- checks ------------------------------------------------------------------------------------------

    async def _check_for_ever(self) -> None:
        while True:
            await trio.sleep(CHECK_INTERVAL_S)
            self._check_now()
            if self.trace.count > TRACE_LINES_MAX:
                self.fail(f"more than {TRACE_LINES_MAX} events: something runs in circles")

    def _check_now(self) -> None:
        for slave in self.slaves:
            slave.check()
            slave.check_verdict()
        self.master.check_deadlines()

    async def _end_well(self) -> None:
        """No more faults: everything that can follow catches up in bounded time, and puts are safe again."""
        master = self.master
        settings = self.plan.settings
        self.trace.note("world", "no more faults")
        self._quality = GOOD_LINK
        for node in (master, *self.slaves):
            node.disk_s = (0.001,)
        for slave in self.slaves:
            slave.unreachable_until_s = 0.0
        for link in self._links_of(None):
            link.heal(GOOD_LINK)
        bound_s = 60.0 + 2 * settings.housekeeping_interval_s + 4 * settings.heartbeat_interval_s
        await self._caught_up(bound_s)
        master.produces = False
        # Half-open links are found out, and syncs of slow disks that began before end.
        await trio.sleep(max(settings.housekeeping_interval_s + SETTLE_S, *self.plan.disk_s))
        await self._caught_up(bound_s)
        for number in range(FINAL_PUTS):
            await self._put_finally(number)
            await self._caught_up(bound_s)

    async def _caught_up(self, bound_s: float) -> None:
        deadline_s = trio.current_time() + bound_s
        while not self._all_follow():
            if trio.current_time() > deadline_s:
                behind = [f"{slave.name} {self._state_of(slave)}" for slave in self.slaves]
                end_offset = self.history.end_offset
                self.fail(f"master at {end_offset}, after {bound_s} s without faults: {'; '.join(behind)}")
            await trio.sleep(CHECK_INTERVAL_S / 2)
        self._check_now()

    def _state_of(self, slave: SlaveNode) -> str:
        if slave.slave is None:
            return "is down"
        status = slave.slave.status()
        return (
            f"[{slave.log.min_offset}, {slave.log.max_offset}) flushed {slave.log.flushed.offset} "
            f"{status.state} reported {status.reported_offset} {slave.slave.last_close_reason.name} "
            f"{status.verdict}"
        )

    def _all_follow(self) -> bool:
        if not self.master.can_serve:
            return False
        end_offset = self.history.end_offset
        acks = self.master.acks.by_replica()
        for slave in self.slaves:
            if not slave.is_up:
                return False
            if slave.waits_for_start or (slave.verdict and not slave.log.is_empty):
                continue
            # Behind while producers go on: what counts is that it holds nearly all.
            allowed_bytes = self.plan.file_bytes if self.master.produces else 0
            behind_bytes = end_offset - slave.log.max_offset
            if behind_bytes > allowed_bytes and end_offset != self.history.first_offset:
                return False
            if self.master.produces or self.plan.distinct_by_connection or slave.slave_plan.is_observer:
                continue
            if acks.get(slave.host, -1) < slave.log.max_offset:
                return False
        return True

    async def _put_finally(self, number: int) -> None:
        """A put after all has healed is answered as what is connected allows, and at once."""
        master = self.master
        message = Message(topic="Final", queue_id=0, body=b"%d" % number)
        end_offset = self.history.end_offset
        followers = [
            slave
            for slave in self.slaves
            if not (slave.verdict or slave.waits_for_start or slave.slave_plan.is_observer)
        ]
        settings = self.plan.group_commit
        in_sync = master.acks.in_sync(end_offset)
        if in_sync < settings.copies_min:
            expected = {PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH}
        else:
            need = copies_needed(settings, in_sync=in_sync)
            expected = {PutStatus.PUT_OK}
            if len(followers) < need:
                expected = {PutStatus.SLAVE_NOT_AVAILABLE, PutStatus.FLUSH_SLAVE_TIMEOUT}
        status = await master.put(message, wait_store_ok=True)
        if status not in expected:
            names = sorted(status.name for status in expected)
            self.fail(f"with {len(followers)} slaves that follow a put got {status.name}, not {names}")

    def _check_end(self) -> None:
        if self.violations:
            return
        for slave in self.slaves:
            slave.check_asides()
            snapshot: Snapshot = slave.snapshot
            if not self.history.held(snapshot.start_offset, snapshot.data):
                self.violations.append(f"{slave.name} holds bytes that no master ever had")
        for link, owner in self._links.values():
            if link.is_open:
                self.violations.append(f"link {link.number} of {owner.name} is open after the end")
        for node in (self.master, *self.slaves):
            self.violations += node.check_queues()
            self.trace.note(node.name, f"end {node.snapshot.start_offset} {node.snapshot.end_offset}")
