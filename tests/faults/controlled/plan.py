"""What happens in a run with a controller, drawn from its seed alone."""

from __future__ import annotations

import random
from collections.abc import Callable

from attrs import frozen

from tests.faults.archives import ArchivePlan, draw_archive
from tests.faults.controlled.faults import (
    ControllerDown,
    CutReplication,
    Designated,
    DieInCut,
    DieInRoleChange,
    FullDisk,
    GroupFault,
    HangNode,
    KillElected,
    KillGroup,
    KillNode,
    Partition,
    Side,
    SlowReplication,
    StopNode,
    Who,
)
from tests.faults.plan import Planned
from tests.faults.producer import TOPICS, LoadSettings
from tests.faults.proxy import BOTH

FIRST_FAULT_S = 0.3
LAST_FAULT_S = 6.0
EVERY = 3
"""One plan in so many has a controller."""


def is_controlled(seed: int) -> bool:
    return seed % EVERY == EVERY - 1


@frozen
class GroupSetup:
    """The nodes of a run; all of them are set alike, since each may become master."""

    members: int
    flush_disk_types: tuple[str, ...]
    """By node."""
    file_bytes: int
    """mappedFileSizeCommitLog."""
    transfer_batch_bytes: int
    housekeeping_ms: int
    slave_timeout_ms: int
    ack_mode: str
    """trioha.haAckMode."""
    tail_check_bytes: int
    """trioha.haTailCheck."""
    min_in_sync_replicas: int
    not_caught_up_ms: int
    """haMaxTimeSlaveNotCatchup."""
    silent_ms: int
    """controllerHeartBeatTimeoutMills: after so long a master that hangs is replaced."""
    finds_master_by: str
    """How the producer finds it: `controller` or `name server`."""
    load: LoadSettings

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(f"node-{number + 1}" for number in range(self.members))


@frozen
class GroupPlan:
    """A whole run."""

    seed: int
    setup: GroupSetup
    faults: tuple[Planned, ...]
    """In the order of their begin."""
    archive: ArchivePlan | None
    """Of which node there is an archive, in half of all plans."""
    pops: bool = False
    """Whether messages are popped, and timers sent, too: in a third of all plans."""


def make_group_plan(seed: int) -> GroupPlan:
    chance = random.Random(f"group {seed}")
    setup = _draw_setup(chance)
    weights, kinds = zip(*KINDS, strict=True)
    faults = [
        Planned(chance.uniform(FIRST_FAULT_S, LAST_FAULT_S), draw(chance))
        for draw in chance.choices(kinds, weights, k=chance.randint(4, 9))
    ]
    return GroupPlan(
        seed=seed,
        setup=setup,
        faults=tuple(sorted(faults, key=lambda one: one.at_s)),
        archive=draw_archive(seed, setup.nodes, last_kill_s=LAST_FAULT_S),
        pops=random.Random(f"pops {seed}").random() < 1 / 3,
    )


def _draw_setup(chance: random.Random) -> GroupSetup:
    members = chance.choice((2, 2, 3))
    body_bytes_max = chance.choice((1, 300, 4000))
    return GroupSetup(
        members=members,
        flush_disk_types=tuple(chance.choice(("ASYNC_FLUSH", "SYNC_FLUSH")) for _ in range(members)),
        file_bytes=chance.choice((64, 128, 256, 1024)) * 1024,
        transfer_batch_bytes=chance.choice((500, 4096, 32768, 1024 * 1024)),
        housekeeping_ms=chance.choice((1000, 1500, 2000)),
        slave_timeout_ms=chance.choice((300, 500, 3000)),
        ack_mode=chance.choice(("written", "flushed")),
        tail_check_bytes=chance.choice((0, 1000, 64 * 1024)),
        min_in_sync_replicas=chance.choice((1, 1, 2)),
        not_caught_up_ms=chance.choice((1000, 3000, 15_000)),
        silent_ms=chance.choice((1000, 1500, 2500)),
        finds_master_by=chance.choice(("controller", "name server")),
        load=LoadSettings(
            concurrency=chance.choice((1, 4, 16)),
            rate=chance.choice((100.0, 300.0)),
            body_bytes_max=body_bytes_max,
            # Records of one length: those of another log begin where the own ones do.
            topics=TOPICS[:1] if body_bytes_max == 1 else TOPICS,
        ),
    )


# -- kinds -------------------------------------------------------------------------------------------------

Draw = Callable[[random.Random], GroupFault]


def _who(chance: random.Random) -> Who:
    return chance.choice((Who.MASTER, Who.MASTER, Who.SLAVE))


KINDS: tuple[tuple[int, Draw], ...] = (
    (5, lambda chance: KillNode(
        who=_who(chance), which=chance.randrange(2), duration_s=chance.uniform(0.05, 2.0))),
    (1, lambda chance: KillGroup(duration_s=chance.uniform(0.05, 1.0))),
    (3, lambda chance: StopNode(
        who=_who(chance), which=chance.randrange(2), duration_s=chance.uniform(0.1, 1.5))),
    (4, lambda chance: HangNode(
        who=_who(chance), which=chance.randrange(2), duration_s=chance.choice((0.2, 1.0, 2.5, 4.0)))),
    (2, lambda chance: KillElected(
        who=Who.MASTER, which=0, after_s=chance.uniform(0.0, 0.4), duration_s=chance.uniform(0.1, 1.0))),
    (2, lambda chance: DieInRoleChange(
        who=Who.SLAVE, which=chance.randrange(2),
        at_call=chance.randint(1, 6), duration_s=chance.uniform(1.0, 2.5))),
    (3, lambda chance: DieInCut(
        who=Who.MASTER, which=0, at_call=chance.randint(1, 16), duration_s=chance.uniform(2.5, 4.0))),
    (2, lambda chance: FullDisk(
        who=_who(chance), which=chance.randrange(2), duration_s=chance.uniform(0.5, 3.0))),
    (7, lambda chance: Partition(
        who=_who(chance), which=chance.randrange(2),
        side=chance.choice((Side.CONTROLLER, Side.MEMBERS, Side.BOTH, Side.BOTH)),
        is_silent=chance.random() < 0.6, duration_s=chance.choice((0.3, 1.0, 2.5, 4.0)))),
    (2, lambda chance: SlowReplication(
        which=chance.randrange(2), latency_s=chance.choice((0.0, 0.02, 0.2)),
        bytes_per_s=chance.choice((20e3, 100e3, 1e6)), duration_s=chance.uniform(0.5, 3.0))),
    (2, lambda chance: CutReplication(
        which=chance.randrange(2), way=chance.choice(BOTH),
        number_bytes=chance.choice((chance.randint(1, 60), chance.randint(1, 50_000))), duration_s=0.0)),
    (2, lambda chance: ControllerDown(duration_s=chance.uniform(0.1, 2.5))),
    (3, lambda chance: Designated(which=chance.randrange(2), duration_s=0.0)),
)  # fmt: skip
"""How often each kind of fault is drawn, and how."""
