"""Simulated controllers: they answer as RocketMQ's do, with one replicated state, and fail in their ways.

What real ones of 5.3.3 and 5.5.0 answer is in `tests/controller/scripted.py` and docs/controller-mode.md.
When the master is dead (its connection ended, or it was silent), the best of epoch and offset among the
living of the sync-state set is elected. Leaders change, and a deposed one answers reads for a while from what
it knew (DLedger; with JRaft reads go through the log).
"""

from __future__ import annotations

import random
from collections.abc import Callable

import trio
from attrs import define, evolve, field

from tests.simulation.failover.network import Port
from tests.simulation.failover.plan import FailoverPlan
from tests.simulation.network import Link
from tests.simulation.trace import Trace
from trioha.controller import protocol
from trioha.controller.protocol import ElectedGroup, MemberSet
from trioha.remoting.codec import FrameDecoder, encode
from trioha.remoting.codes import RequestCode, ResponseCode
from trioha.remoting.command import RemotingCommand, response_to

CLUSTER = "check"
NAME = "broker-x"
PORT = 9878
STALE_READS_S_MAX = 4.0
"""How long a deposed leader takes itself for the leader."""
LATE_S_MAX = 5.0
"""A request that was not answered in time may be carried out so much later: less than UNCERTAIN_S."""
READS = frozenset((RequestCode.CONTROLLER_GET_REPLICA_INFO, RequestCode.CONTROLLER_GET_NEXT_BROKER_ID))
Send = Callable[[int, protocol.RoleNotice, MemberSet, float], None]


@define(eq=False)
class State:
    """What the controllers agree on. Replaced, never changed, but for ids and addresses."""

    ids: dict[int, str] = field(factory=dict)
    """Check code by broker id."""
    addresses: dict[int, str] = field(factory=dict)
    master_id: int | None = None
    epoch: int = 0
    members: frozenset[int] = frozenset()
    set_epoch: int = 0
    had_master: bool = False


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
        on_elected: Callable[[State], None],
        on_set: Callable[[State], None],
    ) -> None:
        self.plan = plan
        self.state = State()
        self._past: list[State] = []
        self.ports = {f"c{number}": Port() for number in range(1, plan.controllers + 1)}
        self.leader: str | None = next(iter(self.ports))
        self.is_calm = False
        """No more faults."""
        self.slow_until_s = self.flaky_until_s = 0.0
        self._deposed: dict[str, tuple[float, State]] = {}
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
            # Ids and addresses are never changed in place for others: see `_changed`.
            self._deposed[leader] = (until_s, self.state)

    def lead(self) -> None:
        """One of them becomes the leader."""
        if self.leader is None:
            names = [name for name in self.ports if name not in self._deposed] or list(self.ports)
            self.leader = self._rng.choice(names)
            self._deposed.pop(self.leader, None)
            self._trace.note("group", f"{self.leader} leads")

    def lose_state(self) -> None:
        """The state is again what it was at some time."""
        if self._past:
            self.state = self._rng.choice(self._past)
            self._trace.note("group", f"lost state: master {self.state.master_id} epoch {self.state.epoch}")

    def believes_to_lead(self, name: str) -> bool:
        """Whether a controller answers as the leader."""
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
        decoder = FrameDecoder()
        turns = trio.Lock()
        stream = link.far
        try:
            async with trio.open_nursery() as nursery:
                while data := await stream.receive_some(65536):
                    decoder.feed(data)
                    while (command := decoder.next_command()) is not None:
                        nursery.start_soon(self._answer, name, link, turns, command)
                nursery.cancel_scope.cancel()
        except* (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            alive = self._alive[name]
            for broker_id in [one for one, live in alive.items() if live.link is link]:
                del alive[broker_id]
            await trio.aclose_forcefully(stream)

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
        self.nursery.start_soon(task)  # type: ignore[arg-type]

    nursery: trio.Nursery
    """Of the world: for what outlives a connection."""

    # -- requests ------------------------------------------------------------------------------------------

    def _carry_out(self, name: str, code: RequestCode, command: RemotingCommand) -> RemotingCommand | None:
        """The answer of one controller; None if it gives none."""
        leads = self.believes_to_lead(name)
        if code is RequestCode.CONTROLLER_GET_METADATA_INFO:
            leader = name if leads else self.leader
            metadata = protocol.ControllerMetadata(
                group="g", leader_address=None if leader is None else f"{leader}:{PORT}", is_leader=leads
            )
            return response_to(command, ResponseCode.SUCCESS, ext_fields=metadata.to_fields())
        if not leads:
            return response_to(command, ResponseCode.CONTROLLER_NOT_LEADER, remark="not the leader")
        state = self.state
        if name != self.leader:
            if code not in READS:
                # It cannot reach the others.
                return None
            state = self._deposed[name][1]
        fields = command.ext_fields
        match code:
            case RequestCode.CONTROLLER_GET_NEXT_BROKER_ID:
                free = protocol.NextBrokerId(next_broker_id=max(state.ids, default=0) + 1)
                return response_to(command, ResponseCode.SUCCESS, ext_fields=free.to_fields())
            case RequestCode.CONTROLLER_APPLY_BROKER_ID:
                applied = protocol.ApplyBrokerIdRequest.of(fields)
                ids = {applied.applied_broker_id: applied.register_check_code, **state.ids}
                self.state = evolve(state, ids=ids)
                is_granted = ids[applied.applied_broker_id] == applied.register_check_code
                return response_to(
                    command,
                    ResponseCode.SUCCESS if is_granted else ResponseCode.CONTROLLER_BROKER_ID_INVALID,
                )
            case RequestCode.CONTROLLER_REGISTER_BROKER:
                registered = protocol.RegisterRequest.of(fields)
                if registered.broker_id not in state.ids:
                    return response_to(command, ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED)
                addresses = state.addresses | {registered.broker_id: registered.broker_address}
                self.state = evolve(state, addresses=addresses)
                return self._master(self.state, command, protocol.Registered)
            case RequestCode.CONTROLLER_GET_REPLICA_INFO:
                if not state.addresses:
                    return response_to(command, ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST)
                return self._master(state, command, protocol.ReplicaInfo)
            case RequestCode.CONTROLLER_ELECT_MASTER:
                return self._elect_for(command)
            case _:
                assert code is RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET, code
                return self._alter(command)

    @staticmethod
    def _master(
        state: State, command: RemotingCommand, kind: type[protocol.Registered | protocol.ReplicaInfo]
    ) -> RemotingCommand:
        fields = kind(
            master_id=state.master_id,
            master_address=None if state.master_id is None else state.addresses[state.master_id],
            master_epoch=state.epoch,
        )
        body = MemberSet(state.members, state.set_epoch).to_body()
        return response_to(command, ResponseCode.SUCCESS, ext_fields=fields.to_fields(), body=body)

    def _elect_for(self, command: RemotingCommand) -> RemotingCommand:
        asked = protocol.ElectRequest.of(command.ext_fields)
        code = ResponseCode.SUCCESS
        if asked.broker_id not in self.state.addresses:
            return response_to(command, ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED)
        if self.state.master_id is not None and self._is_alive(self.state.master_id):
            code = ResponseCode.CONTROLLER_MASTER_STILL_EXIST
        else:
            self.elect(asker=asked.broker_id)
        state = self.state
        if state.master_id is None:
            return response_to(command, ResponseCode.CONTROLLER_ELECT_MASTER_FAILED, remark="none to elect")
        elected = protocol.Elected(
            master_id=state.master_id,
            master_address=state.addresses[state.master_id],
            master_epoch=state.epoch,
            set_epoch=state.set_epoch,
        )
        body = ElectedGroup(CLUSTER, NAME, state.addresses, state.members).to_body()
        return response_to(command, code, ext_fields=elected.to_fields(), body=body)

    def _alter(self, command: RemotingCommand) -> RemotingCommand:
        state, asked = self.state, protocol.AlterSetRequest.of(command.ext_fields)
        proposed = MemberSet.of_body(command.body)
        refusal = None
        if asked.master_id != state.master_id:
            refusal = ResponseCode.CONTROLLER_INVALID_MASTER
        elif asked.master_epoch != state.epoch:
            refusal = ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH
        elif proposed.epoch != state.set_epoch:
            refusal = ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH
        elif not proposed.members <= state.addresses.keys():
            refusal = ResponseCode.CONTROLLER_INVALID_REPLICAS
        elif not all(self._is_alive(one) for one in proposed.members):
            refusal = ResponseCode.CONTROLLER_BROKER_NOT_ALIVE
        elif proposed.members == state.members or asked.master_id not in proposed.members:
            refusal = ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED
        if refusal is not None:
            return response_to(command, refusal, ext_fields=protocol.AlteredSet(new_set_epoch=0).to_fields())
        self._past.append(state)
        self.state = state = evolve(state, members=proposed.members, set_epoch=state.set_epoch + 1)
        self._trace.note("group", f"set {sorted(state.members)} set epoch {state.set_epoch}")
        self._on_set(state)
        fields = protocol.AlteredSet(new_set_epoch=state.set_epoch).to_fields()
        body = MemberSet(state.members, state.set_epoch).to_body()
        return response_to(command, ResponseCode.SUCCESS, ext_fields=fields, body=body)

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
        if not state.had_master and asker is not None:
            elected = asker
        elif candidates:
            elected = -max(candidates)[2]
        else:
            # A broker that asks in vain changes nothing.
            if state.master_id is not None and but is None and asker is None:
                epoch = state.epoch + self.plan.none_is_an_epoch
                self.state = evolve(state, master_id=None, epoch=epoch)
                self._trace.note("group", f"no master, epoch {epoch}")
            return
        self._past.append(state)
        self.state = state = evolve(
            state,
            master_id=elected,
            epoch=state.epoch + 1,
            members=frozenset((elected,)),
            set_epoch=state.set_epoch + 1,
            had_master=True,
        )
        self._trace.note("group", f"master {elected} epoch {state.epoch} set epoch {state.set_epoch}")
        self._on_elected(state)
        notice = protocol.RoleNotice(
            master_id=elected,
            master_address=state.addresses[elected],
            master_epoch=state.epoch,
            set_epoch=state.set_epoch,
        )
        members = MemberSet(state.members, state.set_epoch)
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
            if self.leader is None or not state.had_master:
                continue
            if state.master_id is not None and not self._is_alive(state.master_id):
                self.elect()


async def stream_send(link: Link, data: bytes) -> None:
    """Send over a controller's end; nothing happens if the link is gone."""
    try:
        await link.far.send_all(data)
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        return
