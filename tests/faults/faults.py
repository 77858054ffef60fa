"""The faults that a run can meet.

Each kind is one class: `begin` breaks something, `end` mends it `duration_s` later. `occupies` names what it
breaks; while it lasts no other fault that occupies the same thing begins. A new kind is one more class here
and one line in `tests.faults.plan.KINDS`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from attrs import frozen

from tests.faults.peers import Guest, Impostor
from tests.faults.proxy import BOTH, PIECE_BYTES_MAX, Direction

if TYPE_CHECKING:
    from tests.faults.cluster import Cluster

MASTER = "master"


def slave_name(index: int) -> str:
    """Name of slave `index`, which counts from 0."""
    return f"slave-{index + 1}"


def link_name(index: int) -> str:
    """Name of that slave's link to the master."""
    return f"link-{index + 1}"


@frozen(kw_only=True)
class Fault(ABC):
    """Something that goes wrong, and how long for."""

    duration_s: float

    @property
    @abstractmethod
    def occupies(self) -> tuple[str, ...]:
        """What is broken meanwhile."""

    @abstractmethod
    def begin(self, cluster: Cluster) -> None:
        """Break it."""

    @abstractmethod
    def end(self, cluster: Cluster) -> None:
        """Mend it."""


# -- processes ---------------------------------------------------------------------------------------------


@frozen(kw_only=True)
class Kill(Fault):
    """`kill -9` of one or several nodes at a moment, started again at the end."""

    nodes: tuple[str, ...]

    @property
    def occupies(self) -> tuple[str, ...]:
        return self.nodes

    def begin(self, cluster: Cluster) -> None:
        cluster.kill(self.nodes)

    def end(self, cluster: Cluster) -> None:
        for node in self.nodes:
            cluster.start(node)


@frozen(kw_only=True)
class KillWhileStarting(Fault):
    """`kill -9`, and once more on the way up: recovery itself is interrupted."""

    node: str
    into_start_s: float
    """How long the first start may take before it is killed."""

    @property
    def occupies(self) -> tuple[str, ...]:
        return (self.node,)

    def begin(self, cluster: Cluster) -> None:
        cluster.kill((self.node,))
        cluster.start(self.node)
        cluster.pause(self.into_start_s)
        cluster.kill((self.node,))

    def end(self, cluster: Cluster) -> None:
        cluster.start(self.node)


@frozen(kw_only=True)
class Stop(Fault):
    """SIGTERM, which must end the process cleanly also during other faults."""

    node: str

    @property
    def occupies(self) -> tuple[str, ...]:
        return (self.node,)

    def begin(self, cluster: Cluster) -> None:
        cluster.stop(self.node)

    def end(self, cluster: Cluster) -> None:
        cluster.start(self.node)


@frozen(kw_only=True)
class Hang(Fault):
    """SIGSTOP, SIGCONT: the process keeps its connections and does nothing."""

    node: str

    @property
    def occupies(self) -> tuple[str, ...]:
        return (self.node,)

    def begin(self, cluster: Cluster) -> None:
        cluster.hang(self.node)

    def end(self, cluster: Cluster) -> None:
        cluster.resume(self.node)


@frozen(kw_only=True)
class LostLog(Fault):
    """The master is killed and comes back with an empty store: its slaves' logs are ahead of its own.

    Only where slaves may set their logs aside. What was promised before is void.
    """

    @property
    def occupies(self) -> tuple[str, ...]:
        return (MASTER, "the log")

    def begin(self, cluster: Cluster) -> None:
        cluster.kill((MASTER,))
        cluster.lose_log(MASTER)

    def end(self, cluster: Cluster) -> None:
        cluster.start(MASTER)


# -- disks -------------------------------------------------------------------------------------------------


@frozen(kw_only=True)
class DiskFull(Fault):
    """A node's disk has no more space. It must neither end nor hang, and go on by itself later."""

    node: str

    @property
    def occupies(self) -> tuple[str, ...]:
        return (self.node,)

    def begin(self, cluster: Cluster) -> None:
        cluster.fill_disk(self.node)

    def end(self, cluster: Cluster) -> None:
        cluster.free_disk(self.node)


@frozen(kw_only=True)
class FailingSync(Fault):
    """A node's disk fails every sync, which must end the node; started again on a healthy disk."""

    node: str
    ends_within_s: float
    """A node that has nothing to put on disk goes on; it is killed after this time."""

    @property
    def occupies(self) -> tuple[str, ...]:
        # A visitor could not connect.
        return (self.node, f"guests of {self.node}")

    def begin(self, cluster: Cluster) -> None:
        cluster.fail_syncs(self.node, ends_within_s=self.ends_within_s)

    def end(self, cluster: Cluster) -> None:
        cluster.start(self.node)


# -- links -------------------------------------------------------------------------------------------------


@frozen(kw_only=True)
class LinkFault(Fault):
    """A fault of one slave's link."""

    link: int

    @property
    def occupies(self) -> tuple[str, ...]:
        return (link_name(self.link),)

    def end(self, cluster: Cluster) -> None:
        cluster.link(self.link, "heal")


@frozen(kw_only=True)
class Cut(LinkFault):
    """The connection ends, by a reset or in order."""

    reset: bool

    def begin(self, cluster: Cluster) -> None:
        cluster.link(self.link, "cut", reset=self.reset)


@frozen(kw_only=True)
class CutAfter(LinkFault):
    """The connection ends after an exact number of bytes."""

    way: Direction
    number_bytes: int

    def begin(self, cluster: Cluster) -> None:
        cluster.link(self.link, "cut_after", self.way, self.number_bytes)


@frozen(kw_only=True)
class Freeze(LinkFault):
    """Bytes are kept, and go on later."""

    ways: tuple[Direction, ...] = BOTH

    def begin(self, cluster: Cluster) -> None:
        cluster.link(self.link, "freeze", *self.ways)


@frozen(kw_only=True)
class HalfOpen(LinkFault):
    """Either end is gone for the other, without a word."""

    def begin(self, cluster: Cluster) -> None:
        cluster.link(self.link, "vanish")


@frozen(kw_only=True)
class Slow(LinkFault):
    """Latency and little bandwidth."""

    latency_s: float
    bytes_per_s: float

    def begin(self, cluster: Cluster) -> None:
        cluster.link(self.link, "slow", latency_s=self.latency_s, bytes_per_s=self.bytes_per_s)


@frozen(kw_only=True)
class Shred(LinkFault):
    """Frames and reports arrive in small pieces."""

    piece_bytes_max: int

    def begin(self, cluster: Cluster) -> None:
        assert self.piece_bytes_max < PIECE_BYTES_MAX
        cluster.link(self.link, "shred", self.piece_bytes_max)


@frozen(kw_only=True)
class Misled(LinkFault):
    """The slave is led to a master that is none."""

    impostor: Impostor
    seed: int

    def begin(self, cluster: Cluster) -> None:
        cluster.mislead(self.link, self.impostor, seed=self.seed)

    def end(self, cluster: Cluster) -> None:
        cluster.lead_back(self.link)


# -- peers -------------------------------------------------------------------------------------------------


@frozen(kw_only=True)
class Visit(Fault):
    """A peer at a node's HA port that is not a slave."""

    node: str
    guest: Guest
    seed: int

    @property
    def occupies(self) -> tuple[str, ...]:
        return (f"guests of {self.node}",)

    def begin(self, cluster: Cluster) -> None:
        cluster.visit(self.node, self.guest, seed=self.seed, stay_s=self.duration_s)

    def end(self, cluster: Cluster) -> None:
        """The guest leaves by itself."""


@frozen(kw_only=True)
class HostileFrames(Fault):
    """Hostile frames at both ports of a node, as many as it answers in that time: see `tests.hostile`."""

    node: str
    seed: int

    @property
    def occupies(self) -> tuple[str, ...]:
        return (f"guests of {self.node}",)

    def begin(self, cluster: Cluster) -> None:
        cluster.harass(self.node, seed=self.seed, stay_s=self.duration_s)

    def end(self, cluster: Cluster) -> None:
        """The peers leave by themselves."""


@frozen(kw_only=True)
class Shortage(Fault):
    """Strangers take every connection, and so every descriptor, that a node gives them."""

    node: str
    is_at_ha_port: bool
    connections: int

    @property
    def occupies(self) -> tuple[str, ...]:
        return (f"guests of {self.node}",)

    def begin(self, cluster: Cluster) -> None:
        cluster.occupy(
            self.node,
            is_at_ha_port=self.is_at_ha_port,
            connections=self.connections,
            stay_s=self.duration_s,
        )

    def end(self, cluster: Cluster) -> None:
        """They leave by themselves."""
