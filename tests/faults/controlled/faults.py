"""The faults of a group in controller mode.

Roles change while a run goes on, so a fault names a role, and the group says which node has it at that
moment. `begin` breaks something and returns what mends it, to be called `duration_s` later; None if there is
nothing to mend, or was nothing to break. A new kind is one more class here, and a line in
`tests.faults.controlled.plan.KINDS`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from attrs import frozen

from tests.faults.proxy import Direction

if TYPE_CHECKING:
    from tests.faults.controlled.group import Group

Mend = Callable[[], None]
ELECTED_WITHIN_S = 6.0
"""How long a fault waits for another master before it goes on without one."""
DIES_WITHIN_S = 6.0
"""How long a node that is to die in a cut may take to begin it."""


class Who(StrEnum):
    """Whom a fault is for."""

    MASTER = "master"
    SLAVE = "slave"

    @property
    def other(self) -> Who:
        return Who.SLAVE if self is Who.MASTER else Who.MASTER


class Side(StrEnum):
    """From whom a node is cut off."""

    CONTROLLER = "controller"
    MEMBERS = "members"
    BOTH = "both"


@frozen(kw_only=True)
class GroupFault(ABC):
    """Something that goes wrong, and how long for."""

    duration_s: float

    @abstractmethod
    def begin(self, group: Group) -> Mend | None:
        """Break it; returns what mends it."""


@frozen(kw_only=True)
class NodeFault(GroupFault):
    """A fault of one node, which no other such fault is for meanwhile."""

    who: Who
    which: int
    """Of several slaves."""
    is_for_any: ClassVar = True
    """Whether it is for another node where none in that role is whole."""

    def begin(self, group: Group) -> Mend | None:
        name = group.take(self.who, self.which)
        if name is None and self.is_for_any:
            name = group.take(self.who.other, self.which)
        if name is None:
            group.passed_over += 1
            return None
        mend = self._break(group, name)

        def mend_and_release() -> None:
            mend()
            group.release(name)

        return mend_and_release

    @abstractmethod
    def _break(self, group: Group, name: str) -> Mend:
        """Break it; returns what mends it."""


# -- processes ---------------------------------------------------------------------------------------------


@frozen(kw_only=True)
class KillNode(NodeFault):
    """`kill -9`, started again at the end."""

    def _break(self, group: Group, name: str) -> Mend:
        group.kill(name)
        return partial(group.start, name)


@frozen(kw_only=True)
class KillGroup(GroupFault):
    """`kill -9` of all nodes that run, one right after the other."""

    def begin(self, group: Group) -> Mend | None:
        names = list(iter(partial(group.take, Who.SLAVE, 0), None))
        names += list(iter(partial(group.take, Who.MASTER, 0), None))
        for name in names:
            group.kill(name)

        def mend() -> None:
            for name in names:
                group.start(name)
                group.release(name)

        return mend if names else None


@frozen(kw_only=True)
class StopNode(NodeFault):
    """SIGTERM, which must end the process cleanly also during other faults and role changes."""

    def _break(self, group: Group, name: str) -> Mend:
        group.stop(name)
        return partial(group.start, name)


@frozen(kw_only=True)
class HangNode(NodeFault):
    """SIGSTOP, SIGCONT: a master that hangs for long is replaced, and goes on as if it were not."""

    def _break(self, group: Group, name: str) -> Mend:
        group.hang(name)
        return partial(group.resume, name)


@frozen(kw_only=True)
class KillElected(NodeFault):
    """The master is killed, and its successor a moment after its election."""

    after_s: float
    is_for_any: ClassVar = False

    def _break(self, group: Group, name: str) -> Mend:
        group.kill(name)
        elected = group.take_elected(not_name=name, within_s=ELECTED_WITHIN_S)
        if elected is not None:
            group.pause(self.after_s)
            group.kill(elected)

        def mend() -> None:
            group.start(name)
            if elected is not None:
                group.start(elected)
                group.release(elected)

        return mend


@frozen(kw_only=True)
class DieInRoleChange(NodeFault):
    """A slave dies at a call to its disk while it prepares for another role: the master is killed."""

    at_call: int
    is_for_any: ClassVar = False

    def _break(self, group: Group, name: str) -> Mend:
        group.arm(name, "role", self.at_call)
        master = group.take(Who.MASTER, 0)
        if master is not None:
            group.kill(master)

        def mend() -> None:
            if group.disarm(name, within_s=0.0):
                group.start(name)
            if master is not None:
                group.start(master)
                group.release(master)

        return mend


@frozen(kw_only=True)
class DieInCut(NodeFault):
    """A master is cut off from all and stores what nobody has. It dies at a call to its disk while its log is
    cut to follow its successor."""

    at_call: int
    is_for_any: ClassVar = False

    def _break(self, group: Group, name: str) -> Mend:
        group.arm(name, "cut", self.at_call)
        group.cut_off(name, Side.BOTH, is_silent=True)

        def mend() -> None:
            group.heal(name)
            if group.disarm(name, within_s=DIES_WITHIN_S):
                group.start(name)

        return mend


# -- disks -------------------------------------------------------------------------------------------------


@frozen(kw_only=True)
class FullDisk(NodeFault):
    """A node's disk has no more space. It must neither end nor hang, and go on by itself later."""

    def _break(self, group: Group, name: str) -> Mend:
        group.set_disk(name, is_full=True)
        return partial(group.set_disk, name, is_full=False)


# -- links -------------------------------------------------------------------------------------------------


@frozen(kw_only=True)
class Partition(NodeFault):
    """A node is cut off from its controller, from the other nodes, or from both, while clients reach it."""

    side: Side
    is_silent: bool
    """Whether packets are lost, or connections end and are refused."""

    def _break(self, group: Group, name: str) -> Mend:
        group.cut_off(name, self.side, is_silent=self.is_silent)
        return partial(group.heal, name)


@frozen(kw_only=True)
class SlowReplication(GroupFault):
    """Latency and little bandwidth between a slave and its master."""

    which: int
    latency_s: float
    bytes_per_s: float

    def begin(self, group: Group) -> Mend | None:
        links = group.replication_links(self.which)
        for link in links:
            group.link(link, "slow", latency_s=self.latency_s, bytes_per_s=self.bytes_per_s)

        def mend() -> None:
            for link in links:
                group.link(link, "full_speed")

        return mend if links else None


@frozen(kw_only=True)
class CutReplication(GroupFault):
    """A slave's connection ends after exactly so many bytes."""

    which: int
    way: Direction
    number_bytes: int

    def begin(self, group: Group) -> Mend | None:
        for link in group.replication_links(self.which):
            group.link(link, "cut_after", self.way, self.number_bytes)
        return None


# -- controllers -------------------------------------------------------------------------------------------


@frozen(kw_only=True)
class ControllerDown(GroupFault):
    """`kill -9` of the controller, started again on its store."""

    def begin(self, group: Group) -> Mend | None:
        return group.stop_controller()


@frozen(kw_only=True)
class Designated(GroupFault):
    """An operator has a slave of the set elected: the master changes although nobody is broken."""

    which: int

    def begin(self, group: Group) -> Mend | None:
        group.designate(self.which)
        return None
