"""The sync-state set of a master: the replicas that the controller may make the next master.

See docs/protocol/ha.md#sync-state-set.

Theory of operation. The controller keeps the set, under a set epoch that grows with each change; only it
changes the set, when the master asks for that. So the master never knows exactly what the controller has: a
proposal may have been accepted although its answer is under way, or lost. Whatever the controller may have is
`required`: the known set, the open proposal, and proposals whose answers were lost. A put that waits for all
in sync waits for all of `required`, and the confirm offset is the end of what all of them hold.

| event | state before | state after |
|---|---|---|
| a replica is close to the end | no open proposal | it joins |
| a replica holds all before the confirm offset | no open proposal | a proposal with it is open |
| a joining replica is lost, or not there in time | joining | it joins no more |
| a member is lost, is overdue, or never connected | no open proposal | one without it is open |
| any of these | a proposal is open | looked at again when that has ended |
| the controller has a later set epoch | any | that set is known; nothing is open or uncertain |
| the controller refuses, or no controller could be asked | a proposal is open | none is; asked again in 1 s |
| no answer, or an undecided one | a proposal is open | uncertain: stays required, asked again in 1 s |
| the controller, asked 10 s after that, has the known set epoch | one is uncertain | it is not required |

A controller refuses a proposal that names another set epoch than its own. So an uncertain proposal can no
longer be accepted once a later set epoch is known; 10 s is far longer than a request survives in a
controller. Time alone ends no uncertainty: while no controller answers, an uncertain proposal may be the
controllers' set, and stays required.

Invariants:

1. The controller's set is a part of `required`.
2. `confirm` never moves back. An ack moves it to what each of `required`, and of those that join, has
   acknowledged; it moves to the log's end when the master becomes, or stops being, the only one. A member
   that is not connected, or has not reported yet on its connection, holds it where it is. (RocketMQ's passes
   over a member that is connected and has not reported.)
3. A replica is proposed only if it holds all before the confirm offset, before the master's epoch, and before
   this term. (A master that was restarted within its epoch has confirmed more than its checkpoint says.)

The confirm offset that is published is `confirm_offset`. With SYNC_FLUSH it also is never beyond what is on
the master's own disk: a master that lost power and comes back with a shorter log then has all bytes that
slaves and consumers took for confirmed. (RocketMQ's ends at the flushed offset without controllers, and not
with them.) Puts wait for their flush apart from `confirm`; what may come into the set has to hold all before
`held_offset`, which waits for no disk.

With allAckInSyncStateSet a put is PUT_OK when `confirm` has reached its end, or while the master is the only
one of `required`. So at each moment all that may be elected hold all that was PUT_OK: by 1 they are in
`required`; a put that was PUT_OK before one came in is held by it by 3, later ones by 2.

Joining. By 3 alone a replica hardly ever comes in while the master is alone and takes puts all the time: its
confirm offset is then the log's end, which moves on before an ack of it is there. (RocketMQ's replicas wait
for a pause of the puts.) So a replica that is close to the end (`Link.is_close`)
joins: from then on `confirm` waits for it, too, as if it were required. `confirm` stays at the log's end of
that moment until the replica is there; then the replica is proposed, by 3. Meanwhile puts wait for
one more ack, and for no more than `JOIN_S`, or a third of slaveTimeout where that is less: a replica that is
not there by then joins no more, and tries again `JOIN_AGAIN_S` later. A joining replica is no member: it does
not count for inSyncReplicas or minInSyncReplicas.

With allAckInSyncStateSet joining loosens no rule of RocketMQ's: what is proposed still holds all before the
confirm offset, which only waits for more than RocketMQ's does. So the invariants hold as they are. Without it
RocketMQ's confirm offset is the log's end at any time; here a joining replica has to hold all up to the end
of the moment when it began to join. Puts do not wait for it: what is PUT_OK meanwhile it may miss, as it may
miss what is PUT_OK a moment after it is a member.

A replica has caught up to the moment when its oldest unacknowledged byte was appended, and to now if there is
none. RocketMQ takes the time of its last transfer for that, also while bytes that it has sent are not
acknowledged: a slave that hangs stays in the set of a master for as long as its connection does.

The set does no I/O; times are seconds of the caller's clock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import structlog
from attrs import frozen

from trioha.ha.meter import LagClock
from trioha.ha.replicas import UNACKED_S_MAX
from trioha.ha.set_link import Link
from trioha.watermark import ReplicatedWatermarks, Watermark

log = structlog.get_logger(__name__)

RETRY_S: Final = 1.0
"""From a refusal or a lost answer to the next proposal, at least."""
UNCERTAIN_S: Final = 10.0
"""From a lost answer until a controller will not accept the proposal any more, if it has the known set epoch
then."""
JOIN_S: Final = 1.0
"""How long puts wait for a joining replica, at most."""
JOIN_PART: Final = 1 / 3
"""Puts wait for a joining replica for no larger part of slaveTimeout, so that none times out."""
JOIN_AGAIN_S: Final = 5.0
"""Before a replica joins again that was not there in time."""


@frozen
class Proposal:
    """A set that the controller is asked for."""

    members: frozenset[int]
    """Broker ids, the master's own included."""
    known_epoch: int
    """Set epoch of the known set: the controller refuses the proposal if it has another one."""


class SetObserver:
    """Is called by a set while it changes, so nothing here may block or raise. By itself it does nothing."""

    def proposed(self, sync_state_set: SyncStateSet, proposal: Proposal, /) -> None:
        """`proposal` is open. Where the controller is asked for it, that ends with one call of `decided`,
        `refused` or `lost` of the set."""

    def changed(self, sync_state_set: SyncStateSet, /) -> None:
        """`members`, `required` or who joins has changed."""

    def joined(self, sync_state_set: SyncStateSet, /) -> None:
        """A replica joins: `end_joins` is to be called at `joins_until_s`."""


class SyncStateSet:
    """The sync-state set as its master knows it, for one term of that master."""

    def __init__(
        self,
        own_id: int,
        *,
        members: frozenset[int],
        set_epoch: int,
        epoch_start_offset: int,
        confirm_offset: int,
        log_end: Callable[[], int],
        observers: Sequence[SetObserver] = (),
        all_ack: bool = False,
        not_caught_up_s_max: float = UNACKED_S_MAX,
        size_min: int = 1,
        flushed: Watermark | None = None,
        slave_timeout_s: float = 3.0,
    ) -> None:
        """`members` with `set_epoch` is what the controller gave with the role.

        `confirm_offset` is the one of the checkpoint, or what this node knew as a slave; 0 for unknown.
        `observers` are called in their order. `all_ack`: allAckInSyncStateSet. `not_caught_up_s_max`:
        haMaxTimeSlaveNotCatchup. `size_min`: minInSyncReplicas. `flushed` is the log's with SYNC_FLUSH, None
        without. `slave_timeout_s`: slaveTimeout.
        """
        self.own_id = own_id
        self.members = members
        """The known set: broker ids."""
        self.set_epoch = set_epoch
        """Its epoch. Only `decided` moves it, only forward."""
        self.open_proposal: Proposal | None = None
        """What the controller is asked for now."""
        self.epoch_start_offset = epoch_start_offset
        """Where the master's epoch begins. Set it anew when the same master gets a higher epoch."""
        self.all_ack = all_ack
        self._size_min = size_min
        self._observers = observers
        self._acks = ReplicatedWatermarks()
        """Acks of the replicas in `required`."""
        self._uncertain: dict[Proposal, float] = {}
        """Proposals whose answer was lost, and when."""
        self._links: dict[int, Link] = {}
        """Of connected replicas, by broker id."""
        self._lost: set[int] = set()
        """Broker ids whose connection was lost in this term."""
        self._log_end = log_end
        self._flushed = flushed
        self._join_s = min(JOIN_S, slave_timeout_s * JOIN_PART)
        self._not_caught_up_s_max = not_caught_up_s_max
        self._retry_s = 0.0
        """No proposal before this time."""
        self.required = frozenset((own_id,)) | members
        """All that the controller may have in its set: see the module's docstring."""
        self._joining: frozenset[int] = frozenset()
        """Connected replicas for which `confirm` waits before they are proposed."""
        self._joins_again_s: dict[int, float] = {}
        """When those may join again that joined and were not proposed, by broker id."""
        self._refused: frozenset[int] = frozenset()
        """Replicas that the controller refused, since it last agreed to a set."""
        self._others = tuple(self.required - {own_id})
        """Broker ids of the replicas for which `confirm` waits."""
        self._begun_offset = end = log_end()
        """The log's end when this term began: an earlier term of the epoch may have confirmed up to it."""
        self.confirm = Watermark(end if not self._others else min(confirm_offset, end))
        """End of what each of `required` holds; moves forward only. Not up to date while the master is the
        only one: use `confirm_offset`."""

    @property
    def is_alone(self) -> bool:
        """Whether `confirm` waits for no other replica."""
        return not self._others

    @property
    def size(self) -> int:
        """Number of replicas in sync, the master included, for minInSyncReplicas.

        See docs/protocol/ha.md#number-of-copies.

        While a proposal is open, that of the larger set.
        """
        proposed = 0 if self.open_proposal is None else len(self.open_proposal.members)
        return max(len(self.members), proposed)

    @property
    def held_offset(self) -> int:
        """What a replica has to hold to be proposed: the log's end if there is no `limit`."""
        limit = self.limit
        return self._log_end() if limit is None else limit.offset

    @property
    def confirm_offset(self) -> int:
        """The confirm offset that is published: `held_offset`, with SYNC_FLUSH as far as it is flushed."""
        held_offset = self.held_offset
        return held_offset if self._flushed is None else min(held_offset, self._flushed.offset)

    @property
    def limit(self) -> Watermark | None:
        """The confirm offset, up to which consume queues may be built; None for the log's end, if the master
        is the only one or without allAckInSyncStateSet. It may be another one after `SetObserver.changed`."""
        return self.confirm if self.all_ack and self._others else None

    def copies(self, k: int) -> Watermark:
        """What `k` of `required` have acknowledged, the master not counted; lowered if one of them goes."""
        return self._acks.copies(k)

    def marks(self) -> list[Watermark]:
        """All marks that puts may wait for."""
        return [self.confirm, *self._acks.marks()]

    def is_ack_overdue(self, broker_id: int, now_s: float) -> bool:
        """Whether an ack of a connected replica has been due for haMaxTimeSlaveNotCatchup."""
        link = self._links.get(broker_id)
        return link is not None and link.unacked_for_s(now_s) >= self._not_caught_up_s_max

    @property
    def acks(self) -> dict[int, int | None]:
        """The last ack of each connected replica, by broker id; None before its first."""
        return {one: link.ack_offset if link.ack_offset >= 0 else None for one, link in self._links.items()}

    # -- connections ---------------------------------------------------------------------------------------

    def connected(self, broker_id: int, *, connection_id: int, is_learner: bool, now_s: float) -> None:
        """A replica's handshake has come; the connection takes the place of an older one of the same id."""
        self._end_join(broker_id, now_s=now_s)
        self._acks.forget(str(broker_id))
        self._links[broker_id] = Link(connection_id, is_learner, now_s)
        self._lost.discard(broker_id)

    def acknowledged(
        self, broker_id: int, ack_offset: int, *, connection_id: int, lag_clock: LagClock, now_s: float
    ) -> None:
        """A replica has reported that it holds everything before `ack_offset`.

        `lag_clock` is its connection's. The caller bounds the report by what was sent.
        """
        link = self._links.get(broker_id)
        if link is None or link.connection_id != connection_id:
            return
        link.ack_offset = ack_offset
        link.acked_s = now_s
        link.lag_clock = lag_clock
        if broker_id in self.required:
            self._acks.acknowledge(str(broker_id), ack_offset)
        if broker_id in self._others:
            self._update_confirm()
        if broker_id not in self.members and self.open_proposal is None and now_s >= self._retry_s:
            self._join(broker_id, link, now_s)
            self._propose((self.members - self._lost) | self._caught_up(broker_id))

    def disconnected(self, broker_id: int, *, connection_id: int, now_s: float) -> None:
        """A replica's connection has ended: a member leaves the set at once."""
        link = self._links.get(broker_id)
        if link is None or link.connection_id != connection_id:
            # A newer connection has taken its place.
            return
        self._end_join(broker_id, now_s=now_s)
        self._acks.forget(str(broker_id))
        del self._links[broker_id]
        self._lost.add(broker_id)
        if len(self._lost) > len(self.required):
            self._lost &= self.required
        if now_s >= self._retry_s:
            self._propose(self.members - self._lost)

    def tick(self, now_s: float) -> None:
        """Look at all replicas. Call it 3 s after the start, then each 5 s."""
        self.end_joins(now_s)
        if now_s >= self._retry_s:
            # The answer to any proposal tells what became of an uncertain one.
            self._propose(self._wish(now_s), even_if_known=bool(self._uncertain))

    def _wish(self, now_s: float) -> frozenset[int]:
        """The set as it should be now."""
        overdue = {
            broker_id
            for broker_id in self.members
            if broker_id != self.own_id
            and (
                (link := self._links.get(broker_id)) is None
                or link.is_learner
                or now_s - link.caught_up_s(now_s) > self._not_caught_up_s_max
            )
        }
        return (self.members - overdue) | self._caught_up(*(self._links.keys() - self.members))

    def _least_offset(self, broker_id: int) -> int:
        """What a replica must hold to be proposed: invariant 3."""
        if self.all_ack or broker_id not in self._joining:
            confirmed = self.held_offset
        else:
            confirmed = self._links[broker_id].join_offset
        return max(confirmed, self.epoch_start_offset, self._begun_offset)

    def _caught_up(self, *candidates: int) -> set[int]:
        """The `candidates`, connected replicas outside of the set, that may come in: invariant 3."""
        links = self._links
        return {
            candidate
            for candidate in candidates
            if links[candidate].ack_offset >= self._least_offset(candidate)
            and not links[candidate].is_learner
        }

    # -- joining -------------------------------------------------------------------------------------------

    def _join(self, broker_id: int, link: Link, now_s: float) -> None:
        """Let a connected replica outside of the set join, if it is close to the log's end."""
        if (
            broker_id in self._joining
            or broker_id in self.required
            or link.is_learner
            or now_s < self._joins_again_s.get(broker_id, 0.0)
            or not link.is_close(self._log_end(), now_s)
            or link.ack_offset >= self._least_offset(broker_id)
        ):
            return
        link.join_offset = self._log_end()
        link.join_until_s = now_s + self._join_s
        self._joining |= {broker_id}
        log.debug("a replica joins", broker_id=broker_id, missing_bytes=link.join_offset - link.ack_offset)
        self._changed()
        for observer in self._observers:
            observer.joined(self)

    @property
    def joins_until_s(self) -> float | None:
        """When the first of the joining replicas has to be there; None if none joins."""
        return min((self._links[one].join_until_s for one in self._joining), default=None)

    def end_joins(self, now_s: float) -> None:
        """Let those join no more that are not there in time."""
        for broker_id in self._joining:
            if now_s >= self._links[broker_id].join_until_s:
                log.info("a replica that joined is late", broker_id=broker_id, again_s=JOIN_AGAIN_S)
                self._end_join(broker_id, now_s=now_s)

    def _end_join(self, broker_id: int, *, now_s: float) -> None:
        """A replica joins no more, if it did, without being proposed."""
        if broker_id not in self._joining:
            return
        self._joining -= {broker_id}
        self._joins_again_s = {one: at_s for one, at_s in self._joins_again_s.items() if at_s > now_s}
        self._joins_again_s[broker_id] = now_s + JOIN_AGAIN_S
        self._changed()

    # -- proposals -----------------------------------------------------------------------------------------

    def _propose(self, wish: frozenset[int], *, even_if_known: bool = False) -> None:
        if self.open_proposal is not None:
            return
        wish |= {self.own_id}
        if not self.members <= wish:
            # The controller refuses a whole set for one replica in it that is not alive to it, and a lost
            # member could not leave.
            wish -= self._refused
        if wish == self.members and not even_if_known:
            return
        self.open_proposal = proposal = Proposal(wish, self.set_epoch)
        log.info("sync-state set proposed", members=sorted(wish), set_epoch=self.set_epoch)
        # Required from now on.
        self._joining -= wish
        self._changed()
        for observer in self._observers:
            observer.proposed(self, proposal)

    def decided(self, members: frozenset[int], set_epoch: int) -> None:
        """The controller has this set: its answer to a proposal, or to any later question.

        An older or the known set epoch changes nothing, nor does a set without this master: it is of another
        master's epoch.
        """
        if set_epoch <= self.set_epoch or self.own_id not in members:
            return
        log.info("sync-state set changed", members=sorted(members), set_epoch=set_epoch)
        self.members = members
        self.set_epoch = set_epoch
        self.open_proposal = None
        self._uncertain.clear()
        self._refused = frozenset()
        self._retry_s = 0.0
        self._changed()
        # Connections may have been lost while the proposal was open.
        self._propose(members - self._lost)

    def refused(self, proposal: Proposal, *, confirmed_s: float | None, now_s: float) -> None:
        """`proposal` changed no set and will not: the controller has refused it, or it was not sent.

        `confirmed_s` is when the controller was asked that has the known set epoch by its answer; None if no
        controller said so. Only such an answer tells that an uncertain proposal was not accepted.
        """
        if proposal != self.open_proposal:
            return
        self.open_proposal = None
        self._retry_s = now_s + RETRY_S
        if confirmed_s is not None:
            self._refused = proposal.members - self.members
            self._uncertain = {
                one: lost_s for one, lost_s in self._uncertain.items() if confirmed_s < lost_s + UNCERTAIN_S
            }
        self._changed()

    def lost(self, proposal: Proposal, *, now_s: float) -> None:
        """No answer came to `proposal`, or none that decides: the controller may have accepted it, or may do
        so yet."""
        if proposal != self.open_proposal:
            return
        self.open_proposal = None
        self._retry_s = now_s + RETRY_S
        self._uncertain[proposal] = now_s
        self._changed()

    def _changed(self) -> None:
        """Compute `required` anew."""
        required = self.members | {self.own_id}
        if self.open_proposal is not None:
            required |= self.open_proposal.members
        for proposal in self._uncertain:
            required |= proposal.members
        if required != self.required:
            if self.all_ack and self.size < self._size_min and not self.required <= required:
                # Else puts that wait would be PUT_OK with too few copies, without those that left.
                self.confirm.rewind(self.confirm.offset)
            self.required = required
            for broker_id, link in self._links.items():
                if broker_id not in required:
                    self._acks.forget(str(broker_id))
                elif link.ack_offset >= 0:
                    self._acks.acknowledge(str(broker_id), link.ack_offset)
        others = tuple((required | self._joining) - {self.own_id})
        if set(others) != set(self._others):
            was_alone = self.is_alone
            self._others = others
            if was_alone or self.is_alone:
                # The log's end was, or is now, the confirm offset.
                self.confirm.advance(self._log_end())
            self._update_confirm()
        for observer in self._observers:
            observer.changed(self)

    def _update_confirm(self) -> None:
        """Move `confirm` to the least ack of `required`. Called with each ack, hence the plain loop."""
        links = self._links
        least = -1
        for broker_id in self._others:
            link = links.get(broker_id)
            if link is None or link.ack_offset < 0:
                return
            if least < 0 or link.ack_offset < least:
                least = link.ack_offset
        if least > self.confirm.offset:
            self.confirm.advance(least)
