"""Brokers in controller mode, their controllers and the network between them, under faults from one seed.

What must hold, with allAckInSyncStateSet if nothing else is said; the reference is what was confirmed by any
master so far:

| when | invariant |
|---|---|
| a put is PUT_OK | it is below the master's confirm offset; each broker that may be elected holds it, and minInSyncReplicas brokers do |
| the same without allAckInSyncStateSet | inSyncReplicas brokers hold it, learners not counted |
| a controller accepts a set, or elects | each member holds the whole reference |
| a broker takes a role | the controllers gave it: one master for each epoch; its epochs only grow |
| a log is cut, or set aside by a member | none of the bytes are of the reference |
| a broker starts after a crash | its log is what was written, or as cut: never between |
| each half second | a log is the reference up to its broker's confirm offset, and its queues end within it |
| each half second | up to their consistent point by epochs any two logs are the same |
| after all faults | one master, all follow, puts are PUT_OK, logs, epochs and queues are equal |

Where the controllers lost their state, all that is left is that a broker's epochs only grow, that its process
goes on, and that its store is sound.
"""  # noqa: E501 - lines of a table

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import ClassVar

import trio

from tests.controller.group import Group
from tests.simulation.determinism import stream_of
from tests.simulation.failover.broker import Broker, Life, Request
from tests.simulation.failover.controllers import Controllers
from tests.simulation.failover.network import Network
from tests.simulation.failover.plan import FailoverPlan, Fault, plan_of
from tests.simulation.failover.surroundings import simulated_surroundings
from tests.simulation.network import Link
from tests.simulation.node import check_queues
from tests.simulation.runner import GOOD_LINK, Outcome, SimulatedWorld, run_world
from tests.simulation.trace import Trace
from trioha.controller import protocol
from trioha.controller.bodies import MemberSet
from trioha.controller.role import Role
from trioha.errors import PeerError
from trioha.recording.events import CloseReason
from trioha.remoting.client import ConnectionLostError, RemotingClient, running
from trioha.remoting.codes import RequestCode, ResponseCode
from trioha.remoting.command import request
from trioha.store.put_status import PutStatus
from trioha.store.record_layout import MAGIC_BLANK

CONNECT_TIMEOUT_S = 3.0
BOUND_S = 120.0
"""Without faults all is well again after so long at most."""
FINAL_PUTS = 3
OF_MASTERS = frozenset(
    (Fault.KILL_MASTER, Fault.POWER_MASTER, Fault.HANG_MASTER, Fault.NO_SLAVES, Fault.ALONE_MASTER)
)
IMPOSSIBLE_ENDS = frozenset(
    (CloseReason.ACK_BEYOND_SENT, CloseReason.ACK_WENT_BACK, CloseReason.INTERNAL_ERROR)
)
"""A slave never makes a master end a connection so."""


def simulate(
    seed: int, *, show: Callable[[str], None] | None = None, plan: FailoverPlan | None = None
) -> Outcome:
    """Run one seed; raises SimulationError where an invariant does not hold. `show` gets every trace line.

    `plan` takes the place of the seed's own.
    """
    plan = plan or plan_of(seed)
    return run_world(partial(World, plan), seed, show=show, options=plan.option)


class World(SimulatedWorld):
    """One seed's brokers, controllers, links and faults."""

    COMMAND: ClassVar = "tests.simulation.failover"
    plan: FailoverPlan

    def __init__(self, plan: FailoverPlan, folder: Path, trace: Trace) -> None:
        super().__init__(plan, trace=trace)
        self.cuts = 0
        self.produces = True
        """Whether producers put messages."""
        self.reference = bytearray()
        """What must never be lost, from offset 0: see `_confirm`."""
        self.network = Network(plan.quality, plan.direct_streams, stream_of(plan.seed, "links"))
        self.controllers = Controllers(
            plan,
            trace=trace,
            rng=stream_of(plan.seed, "controllers"),
            send_notice=self._send_notice,
            on_elected=self._elected,
            on_set=self._set_accepted,
        )
        self.brokers = [Broker(number, self, folder) for number in range(1, plan.brokers + 1)]
        self._masters: dict[int, int] = {}
        """Broker id by epoch, as the controllers elected them."""
        self._lives: dict[int, str] = {}
        """Name of the broker that lived as master, by epoch."""
        self.has_lost_state = False
        """Whether the controllers forgot what they had decided."""
        self.interrupts_cuts = plan.interrupts_cuts
        """Whether brokers may crash while they cut their logs, or soon afterwards."""

    def surroundings(self) -> AbstractContextManager[object]:
        return simulated_surroundings()

    def counts(self) -> dict[str, int]:
        return {
            "faults": self.faults,
            "epochs": self.controllers.state.epoch,
            "cuts": self.cuts,
            "bytes": len(self.reference),
            **dict(sorted(sum((one.statuses for one in self.brokers), Counter()).items())),
        }

    def logged(self, what: str) -> None:
        """A fault was logged; some are expected here."""
        expected = EXPECTED_LOGS + (LOST_STATE_LOGS if self.has_lost_state else ())
        if not any(part in what for part in expected):
            self.fail(what)

    def restart_s(self) -> float:
        return self._rng.choice((0.01, 0.5, 3.0, 12.0))

    def _start(self) -> None:
        self.controllers.nursery = self.nursery
        self.nursery.start_soon(self.controllers.run)
        for broker in self.brokers:
            self.nursery.start_soon(broker.run)

    def _broker(self, broker_id: int) -> Broker | None:
        address = self.controllers.state.addresses.get(broker_id)
        return next((one for one in self.brokers if one.address == address), None)

    # -- network -------------------------------------------------------------------------------------------

    async def connect_slave(self, broker: Broker, host: str) -> trio.abc.Stream:
        other = next(one for one in self.brokers if one.host == host)
        return (await self.network.connect(broker.name, other.name, other.ha_port)).near

    @asynccontextmanager
    async def controller_client(self, broker: Broker, address: str) -> AsyncIterator[RemotingClient]:
        """A client of a controller. Raises ConnectionLostError."""
        name = address.partition(":")[0]
        try:
            with trio.fail_after(CONNECT_TIMEOUT_S):
                link = await self.network.connect(broker.name, name, self.controllers.ports[name])
        except (OSError, trio.TooSlowError) as error:
            raise ConnectionLostError(f"cannot connect: {error}", address=address) from error
        client = RemotingClient(link.near, address)
        async with running(client):
            yield client

    async def ask_ha_address(self, broker: Broker, address: str, *, timeout_s: float) -> str:
        """The answer of another broker to the question for its HA address (906). Raises PeerError."""
        other = next(one for one in self.brokers if one.address == address)
        asked = Request(request(RequestCode.EXCHANGE_BROKER_HA_INFO), done=trio.Event())
        with trio.move_on_after(timeout_s):
            await self.network.reached(broker.name, other.name)
            other.receive(asked)
            await asked.done.wait()
            await trio.sleep(self.network.quality.latency_s)
            found = "" if asked.answer is None else asked.answer.ext_fields.get("masterHaAddress", "")
            if found:
                return found
        raise PeerError("is not serving as master yet", address=address, code=ResponseCode.SUCCESS)

    def _send_notice(
        self, broker_id: int, notice: protocol.RoleNotice, members: MemberSet, after_s: float
    ) -> None:
        broker = self._broker(broker_id)
        if broker is None:
            return
        command = request(
            RequestCode.NOTIFY_BROKER_ROLE_CHANGED,
            ext_fields=notice.to_fields(),
            body=members.to_body(),
            oneway=True,
        )

        async def send() -> None:
            await trio.sleep(after_s)
            broker.note(f"gets a notice of epoch {notice.master_epoch}, master {notice.master_id}")
            broker.receive(Request(command))

        self.nursery.start_soon(send)

    def connection_ended(self, broker: Broker, link: Link, reason: CloseReason) -> None:
        """A slave's connection ended at its master."""
        if reason is CloseReason.ACK_BEYOND_SENT and self.has_lost_state:
            # An epoch was given twice: the slave has a log of it that this master never had.
            return
        if reason in IMPOSSIBLE_ENDS:
            broker.fail(f"link {link.number} ended with {reason.name}")

    # -- faults --------------------------------------------------------------------------------------------

    def _master(self) -> Broker | None:
        master_id = self.controllers.state.master_id
        return None if master_id is None else self._broker(master_id)

    def _break(self, fault: Fault) -> None:
        rng, plan, controllers, network = self._rng, self.plan, self.controllers, self.network
        broker = rng.choice(self.brokers)
        if fault in OF_MASTERS:
            broker = self._master() or broker
        others = [one for one in self.brokers if one is not broker]
        duration_s = rng.choice((0.5, 3.0, 8.0, 25.0)) * rng.random()
        if fault is Fault.ALONE_MASTER:
            # Long enough that another one is elected, and this one has a tail of its own.
            duration_s += plan.dead_after_s * rng.random() * 2
        self.trace.note("fault", f"{fault.value}: {broker.name} {duration_s:.3f} s")
        match fault:
            case Fault.KILL | Fault.KILL_MASTER:
                broker.crash(power=False, restart_after_s=self.restart_s())
            case Fault.POWER | Fault.POWER_MASTER:
                broker.crash(power=True, restart_after_s=self.restart_s())
            case Fault.CRASH_IN_CUT:
                self.interrupts_cuts = not self.interrupts_cuts
            case Fault.HANG | Fault.HANG_MASTER:
                if broker.is_up and not broker.process.is_hung:
                    broker.process.hang()
                    self.nursery.start_soon(self._resume, broker, duration_s)
            case Fault.PARTITION:
                network.block(broker.name, rng.choice(others).name, duration_s)
            case Fault.NO_SLAVES:
                for other in others:
                    network.block(broker.name, other.name, duration_s)
            case Fault.ALONE | Fault.ALONE_MASTER:
                for name in (*(one.name for one in others), *controllers.ports):
                    network.block(broker.name, name, duration_s)
            case Fault.NO_CONTROLLERS:
                for name in controllers.ports:
                    network.block(broker.name, name, duration_s)
            case Fault.RESET:
                for link in network.links(frozenset((broker.name,))):
                    if rng.random() < 0.5:
                        link.reset()
            case Fault.SILENCE:
                for link in network.links(frozenset((broker.name, rng.choice(others).name))):
                    link.silence()
            case Fault.LEADER_MOVES | Fault.LEADER_KILLED:
                leader = controllers.leader
                controllers.depose(stays=fault is Fault.LEADER_MOVES)
                if leader is not None and fault is Fault.LEADER_KILLED:
                    for link in network.links(frozenset((leader,))):
                        link.reset()
                self.nursery.start_soon(self._lead_again, rng.choice((0.0, 0.3, 2.0)))
            case Fault.CONTROLLERS_DOWN:
                controllers.depose(stays=rng.random() < 0.5)
                self.nursery.start_soon(self._lead_again, duration_s)
            case Fault.SLOW_CONTROLLERS:
                controllers.slow_until_s = trio.current_time() + duration_s
            case Fault.FLAKY_CONTROLLERS:
                controllers.flaky_until_s = trio.current_time() + duration_s
            case Fault.TWO_LEADERS:
                self.nursery.start_soon(self._have_two_leaders)
            case Fault.DESIGNATED:
                self._designate()
            case Fault.LOST_STATE:
                self.has_lost_state = True
                controllers.lose_state()
            case Fault.FORGED_NOTICE:
                self._forge_notice(broker)

    def _designate(self) -> None:
        controllers = self.controllers
        if controllers.leader is not None and controllers.state.master_id is not None:
            controllers.elect(but=controllers.state.master_id)

    async def _have_two_leaders(self) -> None:
        """Brokers find the new leader, then lose it while the deposed one takes itself for the leader."""
        rng, controllers = self._rng, self.controllers
        controllers.depose(stays=True)
        controllers.lead()
        for link in self._controller_links():
            link.reset()
        await trio.sleep(rng.uniform(1.1, 2.0))
        self._designate()
        await trio.sleep(rng.uniform(0.2, 1.0))
        for link in self._controller_links():
            link.reset()

    def _controller_links(self) -> list[Link]:
        return [link for name in self.controllers.ports for link in self.network.links(frozenset((name,)))]

    async def _resume(self, broker: Broker, after_s: float) -> None:
        try:
            await trio.sleep(after_s)
            if broker.process.is_hung:
                broker.note("goes on")
        finally:
            # Tasks of a process that hangs cannot be cancelled, and a run that has failed would not end.
            broker.process.resume()

    async def _lead_again(self, after_s: float) -> None:
        await trio.sleep(after_s)
        self.controllers.lead()

    def _forge_notice(self, broker: Broker) -> None:
        rng, state = self._rng, self.controllers.state
        if broker.id is None:
            return
        master_id = rng.randint(1, self.plan.brokers)
        notice = protocol.RoleNotice(
            master_id=master_id,
            master_address=f"10.0.0.{master_id}:10911",
            master_epoch=state.epoch + rng.randint(-1, 3),
            set_epoch=state.set_epoch + rng.randint(0, 3),
        )
        members = MemberSet(frozenset((master_id,)), state.set_epoch + 1)
        self._send_notice(broker.id, notice, members, 0.0)

    # -- invariants ----------------------------------------------------------------------------------------

    @property
    def is_safe(self) -> bool:
        """Whether what is confirmed must survive."""
        return self.plan.all_ack and not self.has_lost_state

    def _confirm(self, broker: Broker, offset: int) -> None:
        """A log must not change before `offset` any more: compare it with the reference, which may grow."""
        data = broker.data()[:offset]
        known = min(len(self.reference), offset)
        if data[:known] != self.reference[:known]:
            at = next(at for at in range(known) if data[at] != self.reference[at])
            broker.fail(f"has other bytes at {at} than were confirmed, its confirm offset is {offset}")
        elif offset > len(self.reference):
            self.reference += data[len(self.reference) :]

    def put_ok(self, broker: Broker, life: Life, start: int, data: bytes) -> None:
        end = start + len(data)
        if not self.plan.all_ack:
            self._check_copies(broker, start, data, copies_min=self.plan.in_sync_replicas)
        if not self.is_safe:
            return
        confirm_offset = broker.confirm_offset
        if end > confirm_offset:
            broker.fail(f"put [{start}, {end}) is PUT_OK, the confirm offset is {confirm_offset}")
        self._confirm(broker, confirm_offset)
        state = self.controllers.state
        if state.epoch == life.role.epoch:
            electable = state.members
        else:
            electable = frozenset(() if state.master_id is None else (state.master_id,))
            electable |= state.members
        for broker_id in sorted(electable):
            holder = self._broker(broker_id)
            if holder is None or not holder.holds(start, data):
                broker.fail(
                    f"put [{start}, {end}) of epoch {life.role.epoch} is PUT_OK, broker {broker_id} of the "
                    f"set {sorted(state.members)} of epoch {state.epoch} does not hold it"
                )
        if self.plan.min_in_sync_replicas > 1:
            self._check_copies(broker, start, data, copies_min=self.plan.min_in_sync_replicas)

    def _check_copies(self, broker: Broker, start: int, data: bytes, *, copies_min: int) -> None:
        """So many brokers hold a put; a learner's copy is none, unless it has become the master."""
        copies = sum(
            one.holds(start, data) for one in self.brokers if one is broker or one.number != self.plan.learner
        )
        if copies < copies_min:
            broker.fail(f"put [{start}, {start + len(data)}) is PUT_OK, {copies} brokers hold it")

    def _set_accepted(self, state: Group) -> None:
        for broker_id in sorted(state.members):
            broker = self._broker(broker_id)
            assert broker is not None, "only registered brokers are in a set"
            if broker.number == self.plan.learner and broker_id != state.master_id:
                broker.fail("is an asyncLearner and in the sync-state set")
            if self.is_safe and not broker.holds(0, bytes(self.reference)):
                broker.fail(
                    f"comes into the set {sorted(state.members)} of epoch {state.epoch} and lacks what was "
                    f"confirmed up to {len(self.reference)}"
                )

    def _elected(self, state: Group) -> None:
        self._masters[state.epoch] = state.master_id
        self._set_accepted(state)

    def role_given(self, broker: Broker, role: Role, last: Role | None) -> None:
        """A broker's agent has another role."""
        broker.note(f"role {'master' if role.is_master else 'slave'} of epoch {role.epoch}")
        if last is not None and role.epoch < last.epoch:
            broker.fail(f"goes back from epoch {last.epoch} to {role.epoch}")
        if self._masters.get(role.epoch) != role.master_id and not self.has_lost_state:
            broker.fail(
                f"takes broker {role.master_id} for the master of epoch {role.epoch}, elected was "
                f"{self._masters.get(role.epoch)}"
            )

    def life_began(self, broker: Broker, life: Life) -> None:
        """A broker serves in a role."""
        broker.note(f"serves as {life.config.broker_role.value}")
        if not life.is_master:
            return
        role, store = life.role, broker.store
        if self._lives.setdefault(role.epoch, broker.name) != broker.name and not self.has_lost_state:
            broker.fail(f"is master of epoch {role.epoch}, which {self._lives[role.epoch]} was")
        if store.epochs.last_epoch != role.epoch:
            broker.fail(f"is master of epoch {role.epoch}, its log is at {store.epochs.last_epoch}")
        if self.is_safe and not broker.holds(0, bytes(self.reference)) and self._is_current(role):
            broker.fail(f"is master of epoch {role.epoch} and lacks what was confirmed")

    def life_ended(self, broker: Broker) -> None:
        """A broker goes on in another role; what a master has confirmed since the last check stays so."""
        if self.is_safe and broker.next_role is not None and broker.next_role.is_master:
            self._confirm(broker, broker.store.checkpoints.confirm_offset())

    def _is_current(self, role: Role) -> bool:
        return self.controllers.state.epoch == role.epoch

    def log_cut(self, broker: Broker, offset: int, data: bytes) -> None:
        """A broker is about to cut its log of `data` at `offset`."""
        self.cuts += offset < len(data)
        always = self.plan.interrupts_cuts
        if self.interrupts_cuts and self._rng.random() < (1.0 if always else 0.7):
            power = self.plan.is_durable and self._rng.random() < (0.9 if always else 0.6)
            broker.interrupts_cut = (self._rng.randint(0, 16), power)
        gone = data[offset : len(self.reference)]
        if self.is_safe and gone and self._is_of_reference(offset, data):
            broker.fail(f"cuts its log at {offset}, what was confirmed goes on to {len(self.reference)}")

    def _is_of_reference(self, offset: int, data: bytes) -> bool:
        """Whether the record at `offset` is one that was confirmed."""
        size = int.from_bytes(data[offset : offset + 4], "big")
        if int.from_bytes(data[offset + 4 : offset + 8], "big") == MAGIC_BLANK:
            # The end of a file, which two masters may leave free alike.
            offset += size
            size = int.from_bytes(data[offset : offset + 4], "big")
        return data[offset : offset + size] == self.reference[offset : offset + size] and size > 0

    def log_set_aside(self, broker: Broker, data: bytes) -> None:
        """A broker is about to begin its log anew."""
        if self.is_safe and broker.id in self.controllers.state.members and self._is_of_reference(0, data):
            broker.fail("sets its log aside, and is in the sync-state set")

    def _check_now(self) -> None:
        up = [broker for broker in self.brokers if broker.is_up]
        logs = {broker.name: broker.data() for broker in up}
        if self.is_safe:
            for broker in up:
                if (life := broker.life) is not None and life.is_master:
                    self._confirm(broker, broker.confirm_offset)
            for broker in up:
                self._check_log(broker, logs[broker.name])
        if not self.has_lost_state:
            for one, other in combinations(up, 2):
                self._check_pair(one, other, logs)

    def _check_log(self, broker: Broker, data: bytes) -> None:
        store, reference = broker.store, self.reference
        if broker.life is None:
            # A new master dispatches its whole log before it serves.
            return
        confirmed = min(broker.confirm_offset, len(data))
        dispatched = store.dispatcher.position
        for what, offset in (("confirm offset", confirmed), ("queues", dispatched)):
            if data[:offset] != reference[:offset]:
                broker.fail(f"{what} {offset}: the log is not what was confirmed, {len(reference)} bytes")

    def _check_pair(self, one: Broker, other: Broker, logs: dict[str, bytes]) -> None:
        """Log matching: as far as the epochs say that two logs are the same, they are."""
        if one.store.epochs is None or other.store.epochs is None:
            return
        mine, theirs = logs[one.name], logs[other.name]
        entries = other.store.epochs.entries
        offset = one.store.epochs.table.consistent_offset(len(mine), entries, len(theirs))
        if offset is not None and mine[:offset] != theirs[:offset]:
            at = next(at for at in range(offset) if mine[at] != theirs[at])
            self.fail(f"{one.name} and {other.name} differ at {at}, their epochs agree up to {offset}")

    # -- the end -------------------------------------------------------------------------------------------

    async def _end_well(self) -> None:
        self.trace.note("world", "no more faults")
        self.produces = False
        self.controllers.is_calm = True
        self.interrupts_cuts = False
        self.network.heal(GOOD_LINK)
        self.controllers.slow_until_s = self.controllers.flaky_until_s = 0.0
        for broker in self.brokers:
            broker.interrupts_cut = None
            broker.process.resume()
        # Until half-open links are found out.
        await trio.sleep(2.5 + self.plan.housekeeping_interval_s)
        self.controllers.lead()
        if self.has_lost_state:
            # Brokers whose log is of later epochs wait for an operator.
            return
        await self._until(self._all_follow, BOUND_S)
        master = self._master()
        for _ in range(FINAL_PUTS):
            life = master.life
            status = await master.put(life)
            if status is not PutStatus.PUT_OK:
                self.fail(f"after all faults a put is {status.name}")
        await self._until(self._all_follow, BOUND_S)
        self._check_now()

    def _all_follow(self) -> str:
        """What is not well yet; empty if all is."""
        state, plan = self.controllers.state, self.plan
        master = self._master()
        if master is None or master.life is None or not master.life.is_master:
            return "there is no master"
        if master.life.role is None or master.life.role.epoch != state.epoch:
            return "the master is not of the last epoch"
        wanted = {one.id for one in self.brokers if one.number != plan.learner or one is master}
        if state.members != wanted:
            return f"the set is {sorted(state.members)}, not all brokers"
        end = master.log.max_offset
        epochs = master.store.epochs.entries if master.store and master.store.epochs else ()
        for broker in self.brokers:
            if not broker.is_up or broker.life is None:
                return f"{broker.name} is down"
            if broker.life.role is None or broker.life.role.epoch != state.epoch:
                return f"{broker.name} has no role in epoch {state.epoch}"
            slave = broker.life.ha.slave
            text = "" if slave is None else f", {slave.status().state} {slave.status().verdict}"
            if broker.log.max_offset != end:
                return f"{broker.name} is at {broker.log.max_offset}, the master at {end}{text}"
            if end and broker.store.epochs.entries != epochs:
                return f"{broker.name} has epochs {broker.store.epochs.entries}, the master {epochs}"
            if broker.data() != master.data():
                return f"the logs of {broker.name} and the master differ"
            if self.is_safe and (broker.confirm_offset != end or broker.store.dispatcher.position != end):
                return (
                    f"{broker.name} has confirmed {broker.confirm_offset} and dispatched "
                    f"{broker.store.dispatcher.position} of {end}"
                )
        return ""

    def _check_end(self) -> None:
        for broker in self.brokers:
            assert broker.settings is not None, "it was up at the end"
            self.violations += [f"{broker.name}: {what}" for what in check_queues(broker.settings)]
        for link in self.network.links():
            self.violations.append(f"link {link.number} is open after the end")


EXPECTED_LOGS = ("the role is past, waiting for the next one", "this broker hangs")
"""Parts of log lines of level error that faults of this simulation cause."""
LOST_STATE_LOGS = ("two masters of one epoch",)
"""More of them, where the controllers lost their state."""
