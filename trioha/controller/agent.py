"""The broker's agent at the controllers: takes an id, registers, is elected or follows.

See docs/protocol/ha.md#controller-periods, docs/protocol/ha.md#controller-requests.

Theory of operation. A broker of controller mode does not choose its role. The agent does, step by step, what
gives it one, and then asks again and again whether it is still the same. Each step is one request to the
leading controller (`ControllerLinks`), and each can be repeated: a step whose answer was lost is taken again,
from the same state.

| state | request | answer | next state |
|---|---|---|---|
| NO_ID | 1012 | an id; its application is put on disk | APPLYING |
| APPLYING | 1013 | granted; the id is put on disk | REGISTERING |
| | | 2014, another broker has it; the application is removed | NO_ID |
| REGISTERING | 1003 | a master | FOLLOWING, with a role |
| | | no master | ELECTING |
| | | this broker is the master of a doubtful epoch | ELECTING, resigning |
| ELECTING | 904, then 1002 | a master: this broker or another | FOLLOWING, with a role |
| | | refused, as nobody may be elected now | FOLLOWING, asked again after 1 s |
| FOLLOWING | 1004 each `metadata_period_s`, and at once after a notice (1008) | a master | FOLLOWING |
| | | no master | ELECTING |
| | | 2008 or 2010, the controllers do not know this broker | REGISTERING |
| any | any | not answered, or 2007 | the same state, with the next leader |
| any | any | refused otherwise | the same state, after 1 s |

Beside these steps a master proposes sync-state sets (1001), in any state. Some codes say that the set was not
and will not be accepted (`_DECISIVE`). With all others, as without an answer, it may have been: a controller
that gives up waiting for the consensus of its group (2015, SYSTEM_ERROR) may still get it.

Notices are no decisions: anybody can send a request to a broker's port. A notice that is later than the role
makes the agent ask the leader at once, but not more often than each `NOTICE_PERIOD_S`, and the role comes
from its answer alone.

A broker that hangs sends no heartbeats (`trioha.controller.heartbeats`) and asks for no election until that
is over.

A broker resigns that the controllers take for the master of an epoch whose end its log may have lost in a
power loss (`trioha.controller.role`): its heartbeats have expired when they arrive, so that to the
controllers it is not alive, and it asks for an election. They elect another member of the set at once. If
there is none, they notice with their next look at all brokers that the master is gone; then this broker's
heartbeats are as always, and it is elected for a new epoch.

While no controller leads, the broker keeps its role: RocketMQ's brokers do, too. A master goes on to take
writes. It cannot change its sync-state set then: if a member leaves it, puts that wait for the whole set time
out, and that is what keeps a master that was replaced from confirming a message that its successor lacks.

Invariants: an id on disk never changes; the role changes by the rules of `trioha.controller.role` only; a
request that names this broker's id is sent only after the id is on disk.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Final

import structlog
import trio

from trioha.controller.agent_status import AgentSettings, AgentState, AgentStatus, Offsets, SetDecision
from trioha.controller.bodies import MemberSet
from trioha.controller.heartbeats import Heartbeats
from trioha.controller.identity import IdentityFiles
from trioha.controller.leader_requests import LeaderRequests, RefusedError
from trioha.controller.links import SEARCH_PERIOD_S, Connect, ControllerLinks, Link, connect_to_controller
from trioha.controller.protocol import MasterHeader, RoleNotice
from trioha.controller.role import NO_EPOCH, MasterDecision, Outcome, Role, RoleTracker
from trioha.errors import PeerError, RemoteProtocolError
from trioha.ha.state_changes import StateChanges, Subscription
from trioha.remoting.codes import ResponseCode

log = structlog.get_logger(__name__)

RETRY_PERIOD_S: Final = 1.0
"""Before a step that was refused is taken again. RocketMQ: 5 s."""
NOTICE_PERIOD_S: Final = 0.1
"""Between two steps, at least, however many notices come."""
_UNKNOWN_BROKER: Final = frozenset(
    (
        ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST,
        ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED,
    )
)
_DECISIVE: Final = frozenset(
    (
        ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH,
        ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH,
        ResponseCode.CONTROLLER_INVALID_MASTER,
        ResponseCode.CONTROLLER_INVALID_REPLICAS,
        ResponseCode.CONTROLLER_INVALID_REQUEST,
        ResponseCode.CONTROLLER_BROKER_NOT_ALIVE,
        ResponseCode.CONTROLLER_NOT_LEADER,
        ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST,
        ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED,
        ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED,
    )
)
"""Codes by which controllers refuse a sync-state set for good."""

RunBlocking = Callable[[Callable[[], Any]], Awaitable[Any]]


class ControllerAgent:
    """Gives one broker its role."""

    def __init__(
        self,
        settings: AgentSettings,
        files: IdentityFiles,
        *,
        offsets: Callable[[], Offsets],
        connect: Connect = connect_to_controller,
        run_blocking: RunBlocking = trio.to_thread.run_sync,
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        hanging: Callable[[], str | None] = lambda: None,
        doubtful_epoch: int = NO_EPOCH,
    ) -> None:
        """`offsets` says what heartbeats say; `clock_ms` is the wall clock. `hanging` says what of this
        broker hangs, None if nothing does: then there are no heartbeats. `doubtful_epoch` is the last one
        whose end the log may have lost."""
        self._settings = settings
        self._files = files
        self._offsets = offsets
        self._run_blocking = run_blocking
        self._clock_ms = clock_ms
        self._doubtful_epoch = doubtful_epoch
        self._tracker: RoleTracker | None = None
        self._changes: StateChanges[Role] = StateChanges()
        self._hurry = trio.Event()
        self._roles = 0
        self._role_since_ms: int | None = None
        self._refusal: str | None = None
        self._reported: object = None
        """The refusal that was logged last: each is logged once."""
        self._contradiction: MasterDecision | None = None
        """Likewise."""
        self._heartbeats = Heartbeats(
            settings,
            broker_id=lambda: self.broker_id,
            role=lambda: self.role,
            offsets=offsets,
            hanging=hanging,
        )
        self._links = ControllerLinks(
            settings.controllers,
            leader_period_s=settings.leader_period_s,
            heartbeat_period_s=settings.heartbeat_period_s,
            timeout_s=settings.request_timeout_s,
            heartbeat=self._heartbeats.next,
            describe=self._describe,
            connect=connect,
        )
        self._leader = LeaderRequests(settings, self._links, clock_ms=clock_ms)
        if files.broker_id is not None:
            self._have_id(files.broker_id)
            self._state = AgentState.REGISTERING
        else:
            self._state = AgentState.NO_ID if files.application is None else AgentState.APPLYING

    @property
    def role(self) -> Role | None:
        """None until the controllers gave one to this start of the broker."""
        return None if self._tracker is None else self._tracker.role

    @property
    def broker_id(self) -> int | None:
        """The id on disk."""
        return self._files.broker_id

    @property
    def leader(self) -> str | None:
        """`host:port` of the leading controller; None while this broker works alone."""
        return None if (link := self._links.leader) is None else link.address

    def changes(self) -> AbstractContextManager[Subscription[Role]]:
        """Every role from now on, also those with another set or address only: `with ... as roles`."""
        return self._changes.subscribe()

    def leaders(self) -> AbstractContextManager[Subscription[str | None]]:
        """The address of each later leader, None where it is lost: `with ... as leaders`."""
        return self._links.leaders.subscribe()

    def status(self) -> AgentStatus:
        """The agent now."""
        return AgentStatus(
            state=self._state,
            broker_id=self.broker_id,
            role=self.role,
            leader=self.leader,
            leader_heard_s=self._links.leader_heard_s,
            controllers=self._links.status(),
            roles=self._roles,
            role_since_ms=self._role_since_ms,
            refusal=self._refusal,
            hang=self._heartbeats.hang,
        )

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Take part in the group until cancelled. Raises StoreError if the identity cannot be written."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._links.run)
            task_status.started()
            await self._take_steps()

    def role_changed(self, ext_fields: Mapping[str, str], body: bytes | memoryview) -> None:
        """Take a notice of a controller (1008): one that is later than the role is checked with the leader.

        Raises RemoteProtocolError for one that does not read.
        """
        notice = RoleNotice.of(ext_fields)
        members = MemberSet.of_body(body)
        role = self.role
        later = (notice.master_epoch or 0, max(members.epoch, notice.set_epoch or 0))
        if role is None or later > (role.epoch, role.sync_state_set_epoch):
            self._hurry.set()

    async def alter_sync_state_set(
        self, members: frozenset[int], known_epoch: int, *, master_epoch: int
    ) -> SetDecision | None:
        """Propose a set in place of the one of `known_epoch`; the set that the controllers have afterwards.

        If they accept, it is the proposed one, and part of the role. If they refuse, it is what the leader
        answers when asked for it after the refusal. If nothing was sent since no controller leads, or the
        leader does not answer that question, it is the set of the role, and not confirmed.

        None if the proposal may have been accepted: it was sent, and no answer came, or none that decides.
        Also None if this broker is not the master of `master_epoch`, or is not any more: its role has the set
        of another master then.
        """
        role, link = self.role, self._links.leader
        if role is None or not self._is_master_of(master_epoch):
            return None
        if link is None or not link.is_connected:
            return self._known_set(master_epoch, is_confirmed=False)
        try:
            accepted = await self._leader.alter_set(link, role, MemberSet(members, known_epoch))
        except (PeerError, RemoteProtocolError) as error:
            self._links.lose(link, str(error))
            return None
        except RefusedError as refused:
            log.info("sync-state set refused", members=sorted(members), reason=str(refused))
            self._lose_if_it_follows(link, refused)
            if refused.code not in _DECISIVE:
                return None
            return await self._set_after_refusal(link, master_epoch)
        self._apply(
            MasterDecision(
                epoch=role.epoch,
                master_id=role.master_id,
                master_address=role.master_address,
                members=accepted.members,
                set_epoch=accepted.epoch,
            )
        )
        return self._known_set(master_epoch, is_confirmed=True)

    async def _set_after_refusal(self, link: Link, master_epoch: int) -> SetDecision | None:
        """The set that the leader has; the known one, not confirmed, if it cannot be asked."""
        is_confirmed = False
        if link is self._links.leader:
            try:
                is_confirmed = (await self._follow(link)).is_role
            except (PeerError, RemoteProtocolError) as error:
                self._links.lose(link, str(error))
            except RefusedError as refused:
                self._refuse(link, refused)
            if self._state is not AgentState.FOLLOWING:
                self._hurry.set()
        return self._known_set(master_epoch, is_confirmed=is_confirmed)

    def _known_set(self, master_epoch: int, *, is_confirmed: bool) -> SetDecision | None:
        """The set of the role; None if that is not the master's role of `master_epoch`."""
        role = self.role
        if role is None or not self._is_master_of(master_epoch):
            return None
        return SetDecision(
            members=role.sync_state_set, set_epoch=role.sync_state_set_epoch, is_confirmed=is_confirmed
        )

    def _is_master_of(self, epoch: int) -> bool:
        role = self.role
        return role is not None and role.is_master and role.epoch == epoch

    async def _take_steps(self) -> None:
        while True:
            link = await self._links.wait_leader()
            self._hurry = trio.Event()
            pause_s = 0.0
            asked_s = trio.current_time()
            try:
                pause_s = await self._step(link)
                self._refusal = self._reported = None
            except PeerError as error:
                self._links.lose(link, error.reason)
            except RemoteProtocolError as error:
                self._links.lose(link, str(error))
                pause_s = SEARCH_PERIOD_S
            except RefusedError as refused:
                self._refuse(link, refused)
                pause_s = RETRY_PERIOD_S
            with trio.move_on_after(pause_s):
                await self._hurry.wait()
                await trio.sleep_until(asked_s + NOTICE_PERIOD_S)

    async def _step(self, link: Link) -> float:
        """Take the step of the current state; seconds until the next one.

        Raises PeerError for no answer, RefusedError for an error code, RemoteProtocolError for nonsense.
        """
        match self._state:
            case AgentState.NO_ID:
                await self._choose_id(link)
            case AgentState.APPLYING:
                await self._apply_for_id(link)
            case AgentState.REGISTERING:
                await self._register(link)
            case AgentState.ELECTING:
                await self._elect(link)
            case AgentState.FOLLOWING:
                await self._follow(link)
        return self._settings.metadata_period_s if self._state is AgentState.FOLLOWING else 0.0

    async def _choose_id(self, link: Link) -> None:
        application = await self._leader.free_id(link)
        await self._run_blocking(partial(self._files.apply_for, application))
        self._state = AgentState.APPLYING

    async def _apply_for_id(self, link: Link) -> None:
        application = self._files.application
        assert application is not None, "the state has an application"
        if not await self._leader.apply(link, application):
            log.info("another broker has the id", broker_id=application.broker_id)
            await self._run_blocking(self._files.drop_application)
            self._state = AgentState.NO_ID
            return
        broker_id: int = await self._run_blocking(self._files.grant)
        log.info("id from the controllers", broker_id=broker_id, broker_name=self._settings.broker_name)
        self._have_id(broker_id)
        self._state = AgentState.REGISTERING

    def _have_id(self, broker_id: int) -> None:
        self._tracker = RoleTracker(
            broker_id, epoch_min=self._offsets().epoch, doubtful_epoch=self._doubtful_epoch
        )

    async def _register(self, link: Link) -> None:
        answer = await self._leader.register(link, self._own_id())
        self._links.send_heartbeats()
        self._decide(*answer)

    async def _elect(self, link: Link) -> None:
        # An election is among living brokers.
        self._links.send_heartbeats()
        self._state = AgentState.FOLLOWING
        if self._heartbeats.hang is None:
            self._decide(*await self._leader.elect(link, self._own_id()))

    async def _follow(self, link: Link) -> Outcome:
        try:
            return self._decide(*await self._leader.replica_info(link))
        except RefusedError as refused:
            if refused.code in _UNKNOWN_BROKER:
                self._state = AgentState.REGISTERING
            raise

    def _decide(self, master: MasterHeader, members: MemberSet) -> Outcome:
        """Apply what the leader answered, and go to the next state. Raises RefusedError for the past, and
        for a role of which this broker resigns."""
        tracker = self._tracker
        assert tracker is not None, "a broker without an id has no role"
        master_id, address, epoch = master.master_id, master.master_address, master.master_epoch
        if epoch is None:
            epoch = tracker.epoch if master_id is None else 0
        outcome = self._apply(
            MasterDecision(
                epoch=epoch,
                # RocketMQ's controllers may also write -1, or a master without an address.
                master_id=master_id if master_id is not None and master_id > 0 and address else None,
                master_address=address,
                members=members.members,
                set_epoch=members.epoch,
            )
        )
        self._heartbeats.resigns = outcome is Outcome.DOUBTFUL
        is_without_master = self._heartbeats.resigns or outcome is Outcome.NO_MASTER
        self._state = AgentState.ELECTING if is_without_master else AgentState.FOLLOWING
        if self._heartbeats.resigns:
            raise RefusedError(
                ResponseCode.CONTROLLER_MASTER_STILL_EXIST,
                f"this broker is the master of epoch {epoch} to the controllers, but its log may have lost "
                "the end of that epoch in a power loss: another election is asked for",
            )
        if outcome is Outcome.STALE and epoch < tracker.epoch:
            raise RefusedError(
                ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH,
                f"the controllers are at epoch {epoch}, this broker is at {tracker.epoch}: "
                "their state is older than its log",
            )
        return outcome

    def _apply(self, decision: MasterDecision) -> Outcome:
        tracker = self._tracker
        assert tracker is not None, "a broker without an id has no role"
        outcome = tracker.apply(decision)
        if outcome.is_change and (role := tracker.role) is not None:
            if outcome is Outcome.NEW_ROLE:
                self._roles += 1
                self._role_since_ms = self._clock_ms()
                log.info(
                    "role from the controllers",
                    role="master" if role.is_master else "slave",
                    epoch=role.epoch,
                    master=role.master_address,
                    broker_id=role.broker_id,
                    sync_state_set=sorted(role.sync_state_set),
                )
            self._changes.publish(role)
        elif outcome is Outcome.CONTRADICTORY and self._contradiction != decision:
            self._contradiction = decision
            log.error(
                "two masters of one epoch",
                epoch=decision.epoch,
                master=None if tracker.role is None else tracker.role.master_id,
                other=decision.master_id,
            )
        return outcome

    def _refuse(self, link: Link, refused: RefusedError) -> None:
        self._lose_if_it_follows(link, refused)
        if self._heartbeats.resigns and refused.code == ResponseCode.CONTROLLER_ELECT_MASTER_FAILED:
            # Nobody can be elected yet: what is to be known is why this broker resigns.
            return
        self._refusal = str(refused)
        reported = (self._state, refused.code)
        if self._reported != reported:
            self._reported = reported
            log.warning(
                "refused by the controllers",
                state=self._state.value,
                reason=str(refused),
                controller=link.address,
                **({"hint": hint} if (hint := self._hint_at(refused)) else {}),
            )

    def _hint_at(self, refused: RefusedError) -> str:
        """What an operator does about a refusal that no later answer mends; empty for others."""
        is_past = refused.code == ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH
        is_unknown = refused.code == ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED
        if self._heartbeats.resigns:
            return "if no master is elected within a minute, start this broker again"
        if is_past or (is_unknown and self._state is AgentState.REGISTERING):
            return "restore the state of the controllers; if it is lost, see docs/controller-mode.md"
        return ""

    def _lose_if_it_follows(self, link: Link, refused: RefusedError) -> None:
        if refused.code == ResponseCode.CONTROLLER_NOT_LEADER:
            self._links.lose(link, str(refused))

    def _describe(self) -> str:
        role = self.role
        if role is None:
            return "waits for a role"
        if role.is_master:
            return f"goes on alone as master of epoch {role.epoch}"
        return f"goes on alone as slave of {role.master_address} in epoch {role.epoch}"

    def _own_id(self) -> int:
        broker_id = self.broker_id
        assert broker_id is not None, "the state has an id"
        return broker_id
