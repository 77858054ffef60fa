"""The role of a broker in its group, as the controllers decided it, and the rules by which it changes.

Theory. The controllers elect one master for each epoch, and epochs only grow. A broker receives decisions
over several ways: answers to its requests, and notices. They may be late, doubled or out of order. What
orders them is in them: a larger epoch is later, and within an epoch a larger epoch of the sync-state set is.
So a decision is applied if it is later than the role, and is dropped if it is not.

| decision, beside role (epoch e, set epoch s) | result |
|---|---|
| epoch > e, with a master | a new role |
| epoch = e, the same master, set epoch > s | the role with the new set |
| epoch = e, the same master, set epoch = s | the role, with the master's address if that is new |
| epoch = e, another master | dropped and logged: one epoch has one master |
| epoch < e, or set epoch < s | dropped |
| no master, epoch >= e, or no role yet | no change: the broker asks for an election |
| this broker is the master, and the epoch is not after the doubtful one | dropped: the broker resigns |

Before the first role, e is the last epoch of the broker's log. The doubtful epoch is the last one whose end
the log may have lost in a power loss (`trioha.store.doubtful_epoch`): a master whose machine is back before
the controllers have noticed anything would go on in its epoch with a shorter log.

Invariants: `role.epoch` never decreases; for one epoch there is one master; the set epoch never decreases
within an epoch; within an epoch the log of its master does not become shorter.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from attrs import define, evolve, frozen

NO_EPOCH: Final = -1
"""The last epoch of a log without epochs."""


@frozen(kw_only=True)
class Role:
    """What a broker is in its group."""

    is_master: bool
    epoch: int
    """Of the master: each election makes a larger one."""
    broker_id: int
    """Its own id."""
    master_id: int
    master_address: str | None
    """`host:port` of the master for clients; its own on a master."""
    sync_state_set: frozenset[int]
    """Ids of the brokers of which one may become master without losing a message, the master's included."""
    sync_state_set_epoch: int
    """Grows with each change of the set."""


@frozen(kw_only=True)
class MasterDecision:
    """A master and a set, as a controller gave them."""

    epoch: int
    master_id: int | None
    """None while there is no master."""
    master_address: str | None
    members: frozenset[int]
    set_epoch: int


class Outcome(Enum):
    """What became of a decision."""

    NEW_ROLE = "new role"
    NEW_SET = "new set"
    NEW_ADDRESS = "new address"
    UNCHANGED = "unchanged"
    STALE = "stale"
    CONTRADICTORY = "contradictory"
    NO_MASTER = "no master"
    DOUBTFUL = "doubtful"

    @property
    def is_change(self) -> bool:
        """Whether the role is another one now."""
        return self in {Outcome.NEW_ROLE, Outcome.NEW_SET, Outcome.NEW_ADDRESS}

    @property
    def is_role(self) -> bool:
        """Whether the decision is the role now."""
        return self.is_change or self is Outcome.UNCHANGED


@define
class RoleTracker:
    """The role of one broker. Sans I/O."""

    broker_id: int
    epoch_min: int = NO_EPOCH
    """Last epoch of the broker's log when it started: older decisions are of controllers that lost theirs."""
    doubtful_epoch: int = NO_EPOCH
    """This broker does not go on as the master of an epoch up to this one."""
    role: Role | None = None

    @property
    def epoch(self) -> int:
        """The epoch below which decisions are stale."""
        return self.epoch_min if self.role is None else self.role.epoch

    def apply(self, decision: MasterDecision) -> Outcome:
        """Change the role if the decision is later; see the table of this module."""
        outcome = self._outcome_of(decision)
        if outcome is Outcome.NEW_ROLE:
            assert decision.master_id is not None, "a role has a master"
            self.role = Role(
                is_master=decision.master_id == self.broker_id,
                epoch=decision.epoch,
                broker_id=self.broker_id,
                master_id=decision.master_id,
                master_address=decision.master_address,
                sync_state_set=decision.members,
                sync_state_set_epoch=decision.set_epoch,
            )
        elif outcome.is_change:
            assert self.role is not None, "only a role has a set and an address to change"
            self.role = evolve(
                self.role,
                master_address=decision.master_address or self.role.master_address,
                sync_state_set=decision.members,
                sync_state_set_epoch=decision.set_epoch,
            )
        return outcome

    def _outcome_of(self, decision: MasterDecision) -> Outcome:
        role = self.role
        if decision.master_id is None and (role is None or decision.epoch >= role.epoch):
            return Outcome.NO_MASTER
        if decision.master_id is None or decision.epoch < self.epoch:
            return Outcome.STALE
        if decision.master_id == self.broker_id and decision.epoch <= self.doubtful_epoch:
            return Outcome.DOUBTFUL
        if role is None or decision.epoch > role.epoch:
            return Outcome.NEW_ROLE
        if decision.master_id != role.master_id:
            return Outcome.CONTRADICTORY
        if decision.set_epoch < role.sync_state_set_epoch:
            return Outcome.STALE
        if decision.set_epoch > role.sync_state_set_epoch:
            return Outcome.NEW_SET
        if decision.master_address not in {None, role.master_address}:
            return Outcome.NEW_ADDRESS
        return Outcome.UNCHANGED
