"""Simulated controllers: they answer as RocketMQ's do, with one replicated state, and fail in their ways.

What real ones of 5.3.3 and 5.5.0 answer is in `tests/controller/group.py` and docs/controller-mode.md.
When the master is dead (its connection ended, or it was silent), the best of epoch and offset among the
living of the sync-state set is elected. Leaders change, and a deposed one answers reads for a while from what
it knew (DLedger; with JRaft reads go through the log).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

import trio
from attrs import define

from tests.controller.group import Group, answer_of_any, serve_frames
from tests.simulation.failover.network import Port
from tests.simulation.failover.plan import FailoverPlan
from tests.simulation.network import Link
from tests.simulation.trace import Trace
from trioha.controller import protocol
from trioha.controller.bodies import MemberSet
from trioha.remoting.codec import encode
from trioha.remoting.codes import RequestCode, ResponseCode
from trioha.remoting.command import RemotingCommand, response_to

PORT = 9878
STALE_READS_S_MAX = 4.0
"""How long a deposed leader takes itself for the leader."""
LATE_S_MAX = 5.0
"""A request that was not answered in time may be carried out so much later: less than UNCERTAIN_S."""
READS = frozenset((RequestCode.CONTROLLER_GET_REPLICA_INFO, RequestCode.CONTROLLER_GET_NEXT_BROKER_ID))
Send = Callable[[int, protocol.RoleNotice, MemberSet, float], None]


@define(eq=False)
class _Live:
    """What one controller knows of a living broker."""

    link: Link
    seen_s: float
    heartbeat: protocol.Heartbeat


class Controllers:
    """A group of controllers."""

    def __init__(
        self,
        plan: FailoverPlan,
        *,
        trace: Trace,
        rng: random.Random,
        send_notice: Send,
        on_elected: Callable[[Group], None],
        on_set: Callable[[Group], None],
    ) -> None:
        self.plan = plan
        self.state = Group()
        self._past: list[Group] = []
        self.ports = {f"c{number}": Port() for number in range(1, plan.controllers + 1)}
        self.leader: str | None = next(iter(self.ports))
        self.is_calm = False
        """No more faults."""
        self.slow_until_s = self.flaky_until_s = 0.0
        self._deposed: dict[str, tuple[float, Group]] = {}
        """Former leaders: until when they answer, and what they knew."""
        self._alive: dict[str, dict[int, _Live]] = {name: {} for name in self.ports}
        self._trace = trace
        self._rng = rng
        self._send_notice = send_notice
        self._on_elected = on_elected
        self._on_set = on_set

    # -- leaders -------------------------------------------------------------------------------------------

    def depose(self, *, stays: bool) -> None:
        """The leader loses its followers; `stays`: its process goes on."""
        leader, self.leader = self.leader, None
        self._trace.note("group", f"{leader} does not lead any more")
        if leader is not None and stays and self.plan.reads_are_local and not self.is_calm:
            until_s = trio.current_time() + STALE_READS_S_MAX * self._rng.random() ** 0.5
            self._deposed[leader] = (until_s, self.state.copy())

    def lead(self) -> None:
        if self.leader is None:
            names = [name for name in self.ports if name not in self._deposed] or list(self.ports)
            self.leader = self._rng.choice(names)
            self._deposed.pop(self.leader, None)
            self._trace.note("group", f"{self.leader} leads")

    def lose_state(self) -> None:
        """The state is again what it was at some time."""
        if self._past:
            self.state = self._rng.choice(self._past).copy()
            self._trace.note("group", f"lost state: master {self.state.master_id} epoch {self.state.epoch}")

    def believes_to_lead(self, name: str) -> bool:
        if name == self.leader:
            return True
        until_s, _ = self._deposed.get(name, (0.0, None))
        return trio.current_time() < until_s

    # -- connections ---------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve brokers and watch the master, until cancelled."""
        async with trio.open_nursery() as nursery:
            for name, port in self.ports.items():
                nursery.start_soon(self._accept, name, port)
            nursery.start_soon(self._watch)

    async def _accept(self, name: str, port: Port) -> None:
        try:
            async with trio.open_nursery() as nursery:
                while True:
                    nursery.start_soon(self._serve, name, await port.next())
        finally:
            port.close()

    async def _serve(self, name: str, link: Link) -> None:
        try:
            await serve_frames(link.far, partial(self._answer, name, link, trio.Lock()))
        finally:
            alive = self._alive[name]
            for broker_id in [one for one, live in alive.items() if live.link is link]:
                del alive[broker_id]

    async def _answer(self, name: str, link: Link, turns: trio.Lock, command: RemotingCommand) -> None:
        code, rng = RequestCode(command.code), self._rng
        if code is RequestCode.BROKER_HEARTBEAT:
            heartbeat = protocol.Heartbeat.of(command.ext_fields)
            self._alive[name][heartbeat.broker_id] = _Live(link, trio.current_time(), heartbeat)
            return
        now_s = trio.current_time()
        if now_s < self.slow_until_s:
            await trio.sleep(rng.choice((0.2, 2.0, LATE_S_MAX)) * rng.random())
        if now_s < self.flaky_until_s and code is not RequestCode.CONTROLLER_GET_METADATA_INFO:
            answer = await self._answer_badly(name, code, command)
        else:
            answer = self._carry_out(name, code, command)
        if answer is None:
            return
        async with turns:
            await stream_send(link, encode(answer))

    async def _answer_badly(
        self, name: str, code: RequestCode, command: RemotingCommand
    ) -> RemotingCommand | None:
        rng = self._rng
        match rng.choice(("well", "lost", "unanswered", "undecided", "error", "late")):
            case "lost":
                return None
            case "unanswered":
                self._carry_out(name, code, command)
                return None
            case "undecided":
                # Its consensus comes, or does not, when the asker has its answer already.
                async def later() -> None:
                    await trio.sleep(rng.uniform(0, LATE_S_MAX))
                    self._carry_out(name, code, command)

                if rng.random() < 0.5:
                    self._spawn(later)
                return response_to(command, ResponseCode.CONTROLLER_JRAFT_INTERNAL_ERROR, remark="undecided")
            case "error":
                return response_to(command, ResponseCode.SYSTEM_ERROR, remark="an error")
            case "late":
                await trio.sleep(rng.uniform(0, LATE_S_MAX))
        return self._carry_out(name, code, command)

    def _spawn(self, task: Callable[[], object]) -> None:
        self.nursery.start_soon(task)

    nursery: trio.Nursery
    """Of the world: for what outlives a connection."""

    # -- requests ------------------------------------------------------------------------------------------

    def _carry_out(self, name: str, code: RequestCode, command: RemotingCommand) -> RemotingCommand | None:
        """The answer of one controller; None if it gives none."""
        leader = name if self.believes_to_lead(name) else self.leader
        address = None if leader is None else f"{leader}:{PORT}"
        answer = answer_of_any(command, asked=f"{name}:{PORT}", leader=address)
        if answer is not None:
            return answer
        if name != self.leader:
            # It cannot reach the others.
            return self._deposed[name][1].answer(command) if code in READS else None
        state, before = self.state, self.state.copy()
        answer = state.answer(command, elect=self._elect_for, is_alive=self._is_alive)
        if code is RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET and state.set_epoch != before.set_epoch:
            self._past.append(before)
            self._trace.note("group", f"set {sorted(state.members)} set epoch {state.set_epoch}")
            self._on_set(state)
        return answer

    def _elect_for(self, asked: protocol.ElectRequest) -> int:
        state = self.state
        if state.master_id is not None and self._is_alive(state.master_id):
            return ResponseCode.CONTROLLER_MASTER_STILL_EXIST
        self.elect(asker=asked.broker_id)
        if state.master_id is None:
            return ResponseCode.CONTROLLER_ELECT_MASTER_FAILED
        return ResponseCode.SUCCESS

    # -- elections -----------------------------------------------------------------------------------------

    def _live(self, broker_id: int) -> _Live | None:
        """What the leader knows of a living broker."""
        live = self._alive[self.leader].get(broker_id) if self.leader is not None else None
        if live is None or trio.current_time() > live.seen_s + live.heartbeat.timeout_ms / 1000:
            return None
        return live

    def _is_alive(self, broker_id: int) -> bool:
        return self._live(broker_id) is not None

    def elect(self, *, asker: int | None = None, but: int | None = None) -> None:
        """Elect a master among the living of the set; the first one ever is `asker`. Not `but`."""
        state, rng = self.state, self._rng
        candidates = [
            (live.heartbeat.epoch, live.heartbeat.max_offset, -one)
            for one in sorted(state.members)
            if one != but and (live := self._live(one)) is not None
        ]
        if not state.set_epoch and asker is not None:
            elected = asker
        elif candidates:
            elected = -max(candidates)[2]
        else:
            # A broker that asks in vain changes nothing.
            if state.master_id is not None and but is None and asker is None:
                state.master_id = None
                state.epoch += self.plan.none_is_an_epoch
                self._trace.note("group", f"no master, epoch {state.epoch}")
            return
        self._past.append(state.copy())
        state.elect(elected)
        self._trace.note("group", f"master {elected} epoch {state.epoch} set epoch {state.set_epoch}")
        self._on_elected(state)
        notice, members = state.notice(), state.set_of()
        for broker_id in sorted(state.addresses):
            if not self._is_alive(broker_id):
                continue
            if self.is_calm or rng.random() < 0.8:
                self._send_notice(broker_id, notice, members, rng.choice((0.001, 0.001, 0.1, 2.0)))
            if not self.is_calm and rng.random() < 0.2:
                self._send_notice(broker_id, notice, members, rng.uniform(0, 20.0))

    async def _watch(self) -> None:
        """Elect another master when the leader sees that there is none."""
        while True:
            await trio.sleep(0.5)
            state = self.state
            if self.leader is None or not state.set_epoch:
                continue
            if state.master_id is not None and not self._is_alive(state.master_id):
                self.elect()


async def stream_send(link: Link, data: bytes) -> None:
    """Send over a controller's end; nothing happens if the link is gone."""
    try:
        await link.far.send_all(data)
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        return
