"""What happens in a run: drawn from its seed alone, so that the same seed is the same plan."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from attrs import evolve, frozen

from tests.faults.archives import ArchivePlan, draw_archive
from tests.faults.faults import (
    MASTER,
    ClockJump,
    Cut,
    CutAfter,
    CutLogFile,
    DiskFull,
    FailingSync,
    Fault,
    Freeze,
    HalfOpen,
    Hang,
    HostileFrames,
    IndexFull,
    Kill,
    KillWhileStarting,
    LostLog,
    LyingMetadata,
    Misled,
    NodeFault,
    ReplacedLock,
    Shortage,
    Shred,
    Slow,
    Stop,
    Visit,
    slave_name,
)
from tests.faults.peers import Guest, Impostor
from tests.faults.producer import TOPICS, LoadSettings
from tests.faults.proxy import BOTH, Direction

FIRST_FAULT_S = 0.2
LAST_FAULT_S = 5.0
TRIES_PER_FAULT = 20
HOUR_S = 3600
YEAR_S = 365 * 24 * HOUR_S
STRANGERS_MAX = 320
"""Connections that want to be had at once: more than a node with 300 descriptors has."""


@frozen
class Setup:
    """The cluster of a run."""

    role: str
    """brokerRole of the master."""
    slaves: int
    in_sync_replicas: int
    flush_disk_type: str
    slave_flush_disk_type: str
    file_bytes: int
    """mappedFileSizeCommitLog."""
    transfer_batch_bytes: int
    heartbeat_ms: int
    housekeeping_ms: int
    slave_timeout_ms: int
    load: LoadSettings
    ack_mode: str = "written"
    """trioha.haAckMode of the slaves."""
    start_from: str = "lastFile"
    """trioha.haStartFrom of the slaves."""
    gap_policy: str = "fail"
    """trioha.haGapPolicy of the slaves: a log that is set aside without need is a broken promise."""
    tail_check_bytes: int = 64 * 1024
    """trioha.haTailCheck of the slaves."""
    is_chain: bool = False
    """Whether slave 2 follows slave 1, and not the master."""
    descriptors_max: int | None = None
    """RLIMIT_NOFILE of all nodes, soft and hard; None for the machine's own."""

    @property
    def copies_needed(self) -> int:
        """Slaves that must hold a message before its put is PUT_OK (`trioha.ha.group_commit`)."""
        return max(1, self.in_sync_replicas - 1) if self.role == "SYNC_MASTER" else 0

    def upstream(self, index: int) -> str:
        """Whom slave `index` follows."""
        return slave_name(index - 1) if self.is_chain and index else MASTER

    def followers(self, name: str) -> list[int]:
        return [index for index in range(self.slaves) if self.upstream(index) == name]

    @property
    def nodes(self) -> tuple[str, ...]:
        return (MASTER, *(slave_name(index) for index in range(self.slaves)))


@frozen
class Planned:
    """A fault and when it begins, in seconds since the load began."""

    at_s: float
    fault: Any
    """A `Fault`, or a `GroupFault`."""

    @property
    def until_s(self) -> float:
        return self.at_s + self.fault.duration_s


@frozen
class Plan:
    """A whole run."""

    seed: int
    setup: Setup
    faults: tuple[Planned, ...]
    """In the order of their begin."""
    master_stops_first: bool
    """Which side is stopped first at the end."""
    pops: bool = False
    """Whether messages are popped, and timers sent, too: in half of the plans in which the master keeps its
    log and the time."""
    archive: ArchivePlan | None = None
    """Of which node there is an archive, in half of all plans."""

    def nodes_with(self, kind: type[NodeFault]) -> set[str]:
        """Nodes that meet this kind of fault."""
        return {planned.fault.node for planned in self.faults if isinstance(planned.fault, kind)}

    @property
    def has_impostors(self) -> bool:
        return any(isinstance(planned.fault, Misled) for planned in self.faults)

    @property
    def loses_log(self) -> bool:
        """Whether the master comes back with another log."""
        return any(isinstance(planned.fault, LostLog) for planned in self.faults)


def make_plan(seed: int) -> Plan:
    chance = random.Random(f"plan {seed}")
    setup = _draw_setup(chance)
    planned: list[Planned] = []
    weights, draws = zip(*KINDS, strict=True)
    for _ in range(chance.randint(4, 12)):
        for _ in range(TRIES_PER_FAULT):
            draw = chance.choices(draws, weights)[0]
            candidate = Planned(chance.uniform(FIRST_FAULT_S, LAST_FAULT_S), draw(chance, setup))
            if not any(_collide(candidate, other) for other in planned):
                planned.append(candidate)
                break
    master_stops_first = chance.random() < 0.5
    _add_later_kinds(seed, setup, planned)
    plan = Plan(
        seed=seed,
        setup=setup,
        faults=tuple(sorted(planned, key=lambda one: one.at_s)),
        master_stops_first=master_stops_first,
        archive=draw_archive(seed, setup.nodes, last_kill_s=LAST_FAULT_S),
    )
    keeps_time = MASTER not in plan.nodes_with(ClockJump)
    if keeps_time and not plan.loses_log and random.Random(f"pops {seed}").random() < 1 / 2:
        plan = evolve(plan, pops=True)
    if plan.has_impostors:
        # A master that is none may well show a slave a log that its own does not follow.
        plan = evolve(plan, setup=evolve(setup, gap_policy="fail"))
    return plan


def _add_later_kinds(seed: int, setup: Setup, planned: list[Planned]) -> None:
    """Up to two faults of `LATER_KINDS`, drawn apart from the rest of the plan, which they do not change."""
    chance = random.Random(f"later kinds {seed}")
    for _ in range(chance.choice((0, 1, 2))):
        draw = chance.choice(LATER_KINDS)
        for _ in range(TRIES_PER_FAULT):
            candidate = Planned(chance.uniform(FIRST_FAULT_S, LAST_FAULT_S), draw(chance, setup))
            if not any(_collide(candidate, other) for other in planned):
                planned.append(candidate)
                break


def _collide(one: Planned, other: Planned) -> bool:
    shared = set(one.fault.occupies) & set(other.fault.occupies)
    return bool(shared) and one.at_s <= other.until_s and other.at_s <= one.until_s


def _draw_setup(chance: random.Random) -> Setup:
    role, slaves, in_sync_replicas, is_chain = chance.choices(
        [
            ("SYNC_MASTER", 1, 1, False),
            ("SYNC_MASTER", 2, 3, False),
            ("SYNC_MASTER", 2, 2, False),
            ("ASYNC_MASTER", 1, 1, False),
            ("SYNC_MASTER", 2, 1, True),
            ("ASYNC_MASTER", 2, 1, True),
        ],
        [6, 3, 1, 1, 1, 2],
    )[0]
    file_bytes = chance.choice((64, 64, 128, 256, 1024)) * 1024
    setup = Setup(
        role=role,
        slaves=slaves,
        in_sync_replicas=in_sync_replicas,
        flush_disk_type=chance.choice(("ASYNC_FLUSH", "SYNC_FLUSH")),
        slave_flush_disk_type=chance.choice(("ASYNC_FLUSH", "SYNC_FLUSH")),
        file_bytes=file_bytes,
        transfer_batch_bytes=chance.choice((500, 4096, 32768, 32768, 1024 * 1024)),
        heartbeat_ms=200,
        housekeeping_ms=chance.choice((1000, 1500, 2000)),
        slave_timeout_ms=chance.choice((300, 500, 3000)),
        load=LoadSettings(
            concurrency=chance.choice((1, 4, 16, 32)),
            rate=chance.choice((100.0, 300.0, 600.0)),
            body_bytes_max=chance.choice((300, 4000, 30_000)),
        ),
        ack_mode=chance.choice(("written", "flushed")),
        start_from=chance.choice(("lastFile", "earliest")),
        gap_policy=chance.choice(("fail", "resync")),
        tail_check_bytes=chance.choice((0, 1000, 64 * 1024)),
        is_chain=is_chain,
        descriptors_max=chance.choice((None, None, 128, 300)),
    )
    if _may_lose_log(setup):
        # A new log may have grown beyond the old one's end by the time that a slave comes back: only its tail
        # shows that it is another. And what was put before that must reach the slave all the same.
        setup = evolve(setup, gap_policy="resync", start_from="earliest", tail_check_bytes=64 * 1024)
        if setup.load.concurrency > 1:
            # Records of one length, which no check of a single record can tell from those of another log.
            return evolve(setup, load=evolve(setup.load, body_bytes_max=1, topics=TOPICS[:1]))
    return setup


def _may_lose_log(setup: Setup) -> bool:
    """A slave's request counts as its ack, even if its log is another: only where no put waits for an ack."""
    return setup.is_chain and setup.role == "ASYNC_MASTER"


# -- kinds -------------------------------------------------------------------------------------------------

Draw = Callable[[random.Random, Setup], Fault]


def _slave(chance: random.Random, setup: Setup) -> str:
    return slave_name(chance.randrange(setup.slaves))


def _visited(chance: random.Random, setup: Setup) -> str:
    """A node that strangers come to: mostly the master."""
    return chance.choices(setup.nodes, [3, *[1] * setup.slaves])[0]


def _shuffled(chance: random.Random, names: Sequence[str]) -> tuple[str, ...]:
    shuffled = list(names)
    chance.shuffle(shuffled)
    return tuple(shuffled)


def _cut_after(chance: random.Random, setup: Setup) -> Fault:
    way = chance.choice(BOTH)
    if way is Direction.TO_TARGET:
        # Reports of 8 bytes: mostly in the middle of one.
        number_bytes = chance.randint(1, 200)
    else:
        number_bytes = chance.choice((chance.randint(1, 40), chance.randint(1, 200_000)))
    return CutAfter(
        link=chance.randrange(setup.slaves),
        way=way,
        number_bytes=number_bytes,
        duration_s=chance.uniform(0.3, 1.0),
    )


def _freeze(chance: random.Random, setup: Setup) -> Fault:
    ways = chance.choice(((Direction.TO_TARGET,), (Direction.TO_CLIENT,), BOTH))
    return Freeze(
        link=chance.randrange(setup.slaves), ways=ways, duration_s=chance.choice((0.1, 0.4, 1.0, 3.0))
    )


def _kill_master(chance: random.Random, _: Setup) -> Fault:
    return Kill(nodes=(MASTER,), duration_s=chance.uniform(0.05, 1.0))


def _lost_log(chance: random.Random, setup: Setup) -> Fault:
    if not _may_lose_log(setup):
        return _kill_master(chance, setup)
    return LostLog(duration_s=chance.uniform(0.05, 1.0))


def _visit(chance: random.Random, setup: Setup) -> Fault:
    return Visit(
        node=_visited(chance, setup),
        guest=chance.choice(list(Guest)),
        seed=chance.randrange(1 << 32),
        duration_s=chance.uniform(0.3, 2.0),
    )


def _misled(chance: random.Random, setup: Setup) -> Fault:
    if _may_lose_log(setup):
        # A slave that is shown another log would set its own aside without need.
        return _visit(chance, setup)
    return Misled(
        link=chance.randrange(setup.slaves),
        impostor=chance.choice(list(Impostor)),
        seed=chance.randrange(1 << 32),
        duration_s=chance.uniform(0.2, 1.0),
    )


KINDS: tuple[tuple[int, Draw], ...] = (
    (4, lambda chance, setup: Kill(nodes=(_slave(chance, setup),), duration_s=chance.uniform(0.05, 1.0))),
    (4, _kill_master),
    (1, lambda chance, setup: Kill(
        nodes=_shuffled(chance, setup.nodes), duration_s=chance.uniform(0.05, 0.5))),
    (1, lambda chance, setup: KillWhileStarting(
        node=chance.choice(setup.nodes),
        into_start_s=chance.uniform(0.1, 0.6), duration_s=chance.uniform(0.7, 1.2))),
    (2, lambda chance, setup: Stop(node=chance.choice(setup.nodes), duration_s=chance.uniform(0.1, 0.8))),
    (3, lambda chance, setup: Hang(
        node=chance.choice(setup.nodes), duration_s=chance.choice((0.1, 0.5, 1.2, 2.5)))),
    (3, lambda chance, setup: DiskFull(
        node=chance.choice(setup.nodes), duration_s=chance.uniform(0.5, 3.0))),
    (2, lambda chance, setup: FailingSync(
        node=chance.choice(setup.nodes), ends_within_s=1.5, duration_s=chance.uniform(1.6, 2.0))),
    (4, lambda chance, setup: Cut(
        link=chance.randrange(setup.slaves), reset=chance.random() < 0.5, duration_s=0.0)),
    (4, _cut_after),
    (4, _freeze),
    (3, lambda chance, setup: HalfOpen(
        link=chance.randrange(setup.slaves), duration_s=chance.uniform(0.1, 3.0))),
    (3, lambda chance, setup: Slow(
        link=chance.randrange(setup.slaves),
        latency_s=chance.choice((0.0, 0.02, 0.2)), bytes_per_s=chance.choice((20e3, 100e3, 1e6)),
        duration_s=chance.uniform(0.3, 2.0))),
    (2, lambda chance, setup: Shred(
        link=chance.randrange(setup.slaves),
        piece_bytes_max=chance.choice((7, 100, 1000)), duration_s=chance.uniform(0.3, 1.0))),
    (2, _misled),
    (4, _visit),
    (3, lambda chance, setup: HostileFrames(
        node=_visited(chance, setup), seed=chance.randrange(1 << 23), duration_s=chance.uniform(0.3, 2.0))),
    (3, lambda chance, setup: Shortage(
        node=_visited(chance, setup), is_at_ha_port=chance.random() < 0.3,
        connections=STRANGERS_MAX, duration_s=chance.uniform(0.5, 2.0))),
    (2, _lost_log),
)  # fmt: skip
"""How often each kind of fault is drawn, and how."""


def _clock_jump(chance: random.Random, setup: Setup) -> Fault:
    # For as long as a few messages are stored, or until somebody notices.
    jump_s, duration_s = chance.choice(((10 * YEAR_S, 0.2), (HOUR_S, 2.0), (-HOUR_S, 1.0)))
    return ClockJump(
        node=chance.choices(setup.nodes, [3, *[1] * setup.slaves])[0], jump_s=jump_s, duration_s=duration_s
    )


LATER_KINDS: tuple[Draw, ...] = (
    _clock_jump,
    lambda chance, setup: IndexFull(node=chance.choice(setup.nodes), duration_s=chance.uniform(0.5, 3.0)),
    lambda chance, setup: CutLogFile(node=chance.choice(setup.nodes), duration_s=chance.uniform(0.3, 1.0)),
    lambda chance, setup: ReplacedLock(
        node=chance.choice(setup.nodes),
        is_removed=chance.random() < 0.5, duration_s=chance.uniform(1.0, 1.5)),
    lambda chance, setup: LyingMetadata(
        link=chance.randrange(setup.slaves), duration_s=chance.uniform(0.5, 2.0)),
)  # fmt: skip
"""Kinds that came when seeds were known already: a plan has two of them at most, beside its other faults."""
