"""A master, its slaves and the links between them, in virtual time, under faults from one seed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import ClassVar

import trio

from tests.simulation.acks import copies_needed
from tests.simulation.determinism import stream_of
from tests.simulation.history import History
from tests.simulation.master_node import MasterNode
from tests.simulation.network import Link, LinkQuality
from tests.simulation.node import check_queues
from tests.simulation.plan import LINK_FAULTS, Fault, Plan, plan_of
from tests.simulation.runner import CHECK_INTERVAL_S, GOOD_LINK, Outcome, SimulatedWorld, run_world
from tests.simulation.slave_node import ReportCheck, SlaveNode
from tests.simulation.trace import Trace
from trioha.store.messages import Message
from trioha.store.put_status import PutStatus

RESTART_MAX_S = 6.0
FINAL_PUTS = 3
SETTLE_S = 12.0
"""For the longest back-off and a hanging connect, after housekeeping has ended a connection."""


def simulate(seed: int, *, show: Callable[[str], None] | None = None, plan: Plan | None = None) -> Outcome:
    """Run one seed; raises SimulationError where an invariant does not hold. `show` gets every trace line.

    `plan` takes the place of the seed's own.
    """
    return run_world(partial(World, plan or plan_of(seed)), seed, show=show)


class World(SimulatedWorld):
    """One seed's nodes, links and faults."""

    COMMAND: ClassVar = "tests.simulation"
    plan: Plan

    def __init__(self, plan: Plan, folder: Path, trace: Trace) -> None:
        super().__init__(plan, trace=trace)
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
        self._link_rng = stream_of(plan.seed, "links")
        self._quality = plan.quality
        self._links: dict[int, tuple[Link, SlaveNode]] = {}
        self._link_count = 0

    def _start(self) -> None:
        self.nursery.start_soon(self.master.run)
        for slave in self.slaves:
            self.nursery.start_soon(partial(slave.run, starts_after_s=slave.slave_plan.starts_after_s))

    def counts(self) -> dict[str, int]:
        return {
            "faults": self.faults,
            "bytes": self.history.end_offset - self.history.first_offset,
            **dict(sorted(self.master.statuses.items())),
        }

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

    def _break(self, fault: Fault) -> None:
        if fault in LINK_FAULTS:
            self._break_link(fault)
        elif fault in {Fault.KILL_MASTER, Fault.POWER_MASTER}:
            self._crash_master(power=fault is Fault.POWER_MASTER)
        else:
            self._crash_slave(self._rng.choice(self.slaves), power=fault is Fault.POWER_SLAVE)

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

    def _check_now(self) -> None:
        for slave in self.slaves:
            slave.check()
            slave.check_verdict()
        self.master.check_deadlines()

    async def _end_well(self) -> None:
        """Everything that can follow catches up in bounded time, and puts are safe again."""
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
        for slave in self.slaves:
            slave.check_asides()
            snapshot = slave.snapshot
            if not self.history.held(snapshot.start_offset, snapshot.data):
                self.violations.append(f"{slave.name} holds bytes that no master ever had")
        for link, owner in self._links.values():
            if link.is_open:
                self.violations.append(f"link {link.number} of {owner.name} is open after the end")
        for node in (self.master, *self.slaves):
            self.violations += check_queues(node.settings)
            self.trace.note(node.name, f"end {node.snapshot.start_offset} {node.snapshot.end_offset}")
