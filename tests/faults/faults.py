"""The faults that a run can meet.

Each kind is one class: `begin` breaks something and returns what mends it `duration_s` later.
`occupies` names what it breaks; while it lasts no other fault that occupies the same thing begins. A new kind
is one more class here and one line in `tests.faults.plan.KINDS`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from attrs import frozen

from tests.faults.peers import Guest, Impostor
from tests.faults.proxy import BOTH, PIECE_BYTES_MAX, Direction

if TYPE_CHECKING:
    from tests.faults.cluster import Cluster

MASTER = "master"
Mend = Callable[[], object]


def slave_name(index: int) -> str:
    return f"slave-{index + 1}"


@frozen(kw_only=True)
class Fault(ABC):
    """Something that goes wrong, and how long for."""

    duration_s: float

    @property
    @abstractmethod
    def occupies(self) -> tuple[str, ...]:
        """What is broken meanwhile."""

    @abstractmethod
    def begin(self, cluster: Cluster) -> Mend | None:
        """Break it; returns what mends it, None if that comes by itself."""


# -- processes and disks -----------------------------------------------------------------------------------


@frozen(kw_only=True)
class Kill(Fault):
    """`kill -9` of one or several nodes at a moment, started again at the end."""

    nodes: tuple[str, ...]

    @property
    def occupies(self) -> tuple[str, ...]:
        return self.nodes

    def begin(self, cluster: Cluster) -> Mend:
        cluster.kill(self.nodes)
        return lambda: [cluster.start(node) for node in self.nodes]


@frozen(kw_only=True)
class NodeFault(Fault):
    """A fault of one node."""

    node: str

    @property
    def occupies(self) -> tuple[str, ...]:
        return (self.node,)


@frozen(kw_only=True)
class KillWhileStarting(NodeFault):
    """`kill -9`, and once more on the way up: recovery itself is interrupted."""

    into_start_s: float
    """How long the first start may take before it is killed."""

    def begin(self, cluster: Cluster) -> Mend:
        cluster.kill((self.node,))
        cluster.start(self.node)
        cluster.pause(self.into_start_s)
        cluster.kill((self.node,))
        return partial(cluster.start, self.node)


@frozen(kw_only=True)
class Stop(NodeFault):
    """SIGTERM, which must end the process cleanly also during other faults."""

    def begin(self, cluster: Cluster) -> Mend:
        cluster.stop(self.node)
        return partial(cluster.start, self.node)


@frozen(kw_only=True)
class Hang(NodeFault):
    """SIGSTOP, SIGCONT: the process keeps its connections and does nothing."""

    def begin(self, cluster: Cluster) -> Mend:
        cluster.hang(self.node)
        return partial(cluster.resume, self.node)


@frozen(kw_only=True)
class LostLog(Fault):
    """The master is killed and comes back with an empty store: its slaves' logs are ahead of its own.

    Only where slaves may set their logs aside. What was promised before is void.
    """

    @property
    def occupies(self) -> tuple[str, ...]:
        return (MASTER, "the log")

    def begin(self, cluster: Cluster) -> Mend:
        cluster.kill((MASTER,))
        cluster.lose_log(MASTER)
        return partial(cluster.start, MASTER)


@frozen(kw_only=True)
class DiskFull(NodeFault):
    """A node's disk has no more space. It must neither end nor hang, and go on by itself later."""

    def begin(self, cluster: Cluster) -> Mend:
        cluster.fill_disk(self.node)
        return partial(cluster.free_disk, self.node)


@frozen(kw_only=True)
class FailingSync(NodeFault):
    """A node's disk fails every sync, which must end the node; started again on a healthy disk."""

    ends_within_s: float
    """A node that has nothing to put on disk goes on; it is killed after this time."""

    @property
    def occupies(self) -> tuple[str, ...]:
        # A visitor could not connect.
        return (self.node, f"guests of {self.node}")

    def begin(self, cluster: Cluster) -> Mend:
        cluster.fail_syncs(self.node, ends_within_s=self.ends_within_s)
        return partial(cluster.start, self.node)


@frozen(kw_only=True)
class ReplacedLock(NodeFault):
    """A node's lock file is removed or replaced, which must end the node; started again at the end."""

    is_removed: bool

    def begin(self, cluster: Cluster) -> Mend:
        cluster.replace_lock(self.node, is_removed=self.is_removed)
        return partial(cluster.start, self.node)


@frozen(kw_only=True)
class ClockJump(NodeFault):
    """A node's wall clock jumps ahead for a moment, or goes wrong and is corrected later."""

    jump_s: int

    def begin(self, cluster: Cluster) -> Mend:
        cluster.jump_clock(self.node, self.jump_s)
        return partial(cluster.jump_clock, self.node, 0)


@frozen(kw_only=True)
class CutLogFile(NodeFault):
    """The oldest log file of a node, synced long ago, loses its end: who reads it fails, nothing else does.

    Where a log has few files yet nothing happens.
    """

    def begin(self, cluster: Cluster) -> Mend | None:
        return cluster.cut_log_file(self.node)


@frozen(kw_only=True)
class IndexFull(NodeFault):
    """A node has no room for files of the index: its queues go on, and the index is completed later."""

    def begin(self, cluster: Cluster) -> Mend:
        cluster.fill_index(self.node)
        return partial(cluster.free_index, self.node)


# -- links -------------------------------------------------------------------------------------------------


@frozen(kw_only=True)
class LinkFault(Fault):
    """A fault of one slave's link."""

    link: int

    @property
    def occupies(self) -> tuple[str, ...]:
        return (f"link-{self.link + 1}",)

    def begin(self, cluster: Cluster) -> Mend:
        self._break(partial(cluster.link, self.link))
        return partial(cluster.link, self.link, "heal")

    @abstractmethod
    def _break(self, call: Callable[..., None]) -> None:
        """Call what breaks the link."""


@frozen(kw_only=True)
class Cut(LinkFault):
    """The connection ends, by a reset or in order."""

    reset: bool

    def _break(self, call: Callable[..., None]) -> None:
        call("cut", reset=self.reset)


@frozen(kw_only=True)
class CutAfter(LinkFault):
    """The connection ends after an exact number of bytes."""

    way: Direction
    number_bytes: int

    def _break(self, call: Callable[..., None]) -> None:
        call("cut_after", self.way, self.number_bytes)


@frozen(kw_only=True)
class Freeze(LinkFault):
    """Bytes are kept, and go on later."""

    ways: tuple[Direction, ...] = BOTH

    def _break(self, call: Callable[..., None]) -> None:
        call("freeze", *self.ways)


@frozen(kw_only=True)
class HalfOpen(LinkFault):
    """Either end is gone for the other, without a word."""

    def _break(self, call: Callable[..., None]) -> None:
        call("vanish")


@frozen(kw_only=True)
class Slow(LinkFault):
    """Latency and little bandwidth."""

    latency_s: float
    bytes_per_s: float

    def _break(self, call: Callable[..., None]) -> None:
        call("slow", latency_s=self.latency_s, bytes_per_s=self.bytes_per_s)


@frozen(kw_only=True)
class Shred(LinkFault):
    """Frames and reports arrive in small pieces."""

    piece_bytes_max: int

    def _break(self, call: Callable[..., None]) -> None:
        assert self.piece_bytes_max < PIECE_BYTES_MAX
        call("shred", self.piece_bytes_max)


@frozen(kw_only=True)
class Misled(Fault):
    """The slave is led to a master that is none."""

    link: int
    impostor: Impostor
    seed: int

    @property
    def occupies(self) -> tuple[str, ...]:
        return (f"link-{self.link + 1}",)

    def begin(self, cluster: Cluster) -> Mend:
        cluster.mislead(self.link, self.impostor, seed=self.seed)
        return partial(cluster.lead_back, self.link)


@frozen(kw_only=True)
class LyingMetadata(Fault):
    """The slave copies its metadata from a master that has more of it than any memory holds."""

    link: int

    @property
    def occupies(self) -> tuple[str, ...]:
        # The slave's memory is looked at before and after.
        return (slave_name(self.link), f"metadata-link-{self.link + 1}")

    def begin(self, cluster: Cluster) -> Mend:
        cluster.lie(self.link)
        return partial(cluster.end_lie, self.link)


# -- peers: they leave by themselves -----------------------------------------------------------------------


@frozen(kw_only=True)
class PeerFault(Fault):
    """A peer at a node that should not be there."""

    node: str

    @property
    def occupies(self) -> tuple[str, ...]:
        return (f"guests of {self.node}",)


@frozen(kw_only=True)
class Visit(PeerFault):
    """A peer at a node's HA port that is not a slave."""

    guest: Guest
    seed: int

    def begin(self, cluster: Cluster) -> None:
        cluster.visit(self.node, self.guest, seed=self.seed, stay_s=self.duration_s)


@frozen(kw_only=True)
class HostileFrames(PeerFault):
    """Hostile frames at both ports of a node, as many as it answers in that time: see `tests.hostile`."""

    seed: int

    def begin(self, cluster: Cluster) -> None:
        cluster.harass(self.node, seed=self.seed, stay_s=self.duration_s)


@frozen(kw_only=True)
class Shortage(PeerFault):
    """Strangers take every connection, and so every descriptor, that a node gives them."""

    is_at_ha_port: bool
    connections: int

    def begin(self, cluster: Cluster) -> None:
        cluster.occupy(
            self.node,
            is_at_ha_port=self.is_at_ha_port,
            connections=self.connections,
            stay_s=self.duration_s,
        )
