"""What happens in a run with a controller, drawn from its seed alone."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from attrs import asdict, frozen

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
from tests.faults.producer import TOPICS, LoadSettings
from tests.faults.proxy import BOTH

FIRST_FAULT_S = 0.3
LAST_FAULT_S = 6.0
EVERY = 3
"""One plan in so many has a controller."""


def is_controlled(seed: int) -> bool:
    """Whether the plan of a seed is a group under a controller."""
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
        """Names of all nodes."""
        return tuple(f"node-{number + 1}" for number in range(self.members))


@frozen
class PlannedFault:
    """A fault and when it begins, in seconds since the load began."""

    at_s: float
    fault: GroupFault


@frozen
class GroupPlan:
    """A whole run."""

    seed: int
    setup: GroupSetup
    faults: tuple[PlannedFault, ...]
    """In the order of their begin."""
    archive: ArchivePlan | None
    """Of which node there is an archive, in half of all plans."""

    def describe(self) -> dict[str, Any]:
        """The plan for machines."""
        return {
            "seed": self.seed,
            "setup": asdict(self.setup),
            "faults": [
                {"at_s": round(one.at_s, 3), "fault": type(one.fault).__name__, **asdict(one.fault)}
                for one in self.faults
            ],
            "archive": None if self.archive is None else asdict(self.archive),
        }


def make_group_plan(seed: int) -> GroupPlan:
    """The plan of this seed."""
    chance = random.Random(f"group {seed}")
    setup = _draw_setup(chance)
    kinds, weights = zip(*KINDS, strict=True)
    faults = [
        PlannedFault(chance.uniform(FIRST_FAULT_S, LAST_FAULT_S), draw(chance))
        for draw in chance.choices(kinds, weights, k=chance.randint(4, 9))
    ]
    return GroupPlan(
        seed=seed,
        setup=setup,
        faults=tuple(sorted(faults, key=lambda one: one.at_s)),
        archive=draw_archive(seed, setup.nodes, last_kill_s=LAST_FAULT_S),
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


def _kill(chance: random.Random) -> GroupFault:
    return KillNode(who=_who(chance), which=chance.randrange(2), duration_s=chance.uniform(0.05, 2.0))


def _kill_group(chance: random.Random) -> GroupFault:
    return KillGroup(duration_s=chance.uniform(0.05, 1.0))


def _stop(chance: random.Random) -> GroupFault:
    return StopNode(who=_who(chance), which=chance.randrange(2), duration_s=chance.uniform(0.1, 1.5))


def _hang(chance: random.Random) -> GroupFault:
    return HangNode(
        who=_who(chance), which=chance.randrange(2), duration_s=chance.choice((0.2, 1.0, 2.5, 4.0))
    )


def _kill_elected(chance: random.Random) -> GroupFault:
    return KillElected(
        who=Who.MASTER, which=0, after_s=chance.uniform(0.0, 0.4), duration_s=chance.uniform(0.1, 1.0)
    )


def _die_in_role_change(chance: random.Random) -> GroupFault:
    return DieInRoleChange(
        who=Who.SLAVE,
        which=chance.randrange(2),
        at_call=chance.randint(1, 6),
        duration_s=chance.uniform(1.0, 2.5),
    )


def _die_in_cut(chance: random.Random) -> GroupFault:
    return DieInCut(
        who=Who.MASTER, which=0, at_call=chance.randint(1, 16), duration_s=chance.uniform(2.5, 4.0)
    )


def _full_disk(chance: random.Random) -> GroupFault:
    return FullDisk(who=_who(chance), which=chance.randrange(2), duration_s=chance.uniform(0.5, 3.0))


def _partition(chance: random.Random) -> GroupFault:
    return Partition(
        who=_who(chance),
        which=chance.randrange(2),
        side=chance.choice((Side.CONTROLLER, Side.MEMBERS, Side.BOTH, Side.BOTH)),
        is_silent=chance.random() < 0.6,
        duration_s=chance.choice((0.3, 1.0, 2.5, 4.0)),
    )


def _slow(chance: random.Random) -> GroupFault:
    return SlowReplication(
        which=chance.randrange(2),
        latency_s=chance.choice((0.0, 0.02, 0.2)),
        bytes_per_s=chance.choice((20e3, 100e3, 1e6)),
        duration_s=chance.uniform(0.5, 3.0),
    )


def _cut(chance: random.Random) -> GroupFault:
    return CutReplication(
        which=chance.randrange(2),
        way=chance.choice(BOTH),
        number_bytes=chance.choice((chance.randint(1, 60), chance.randint(1, 50_000))),
        duration_s=0.0,
    )


def _controller_down(chance: random.Random) -> GroupFault:
    return ControllerDown(duration_s=chance.uniform(0.1, 2.5))


def _designated(chance: random.Random) -> GroupFault:
    return Designated(which=chance.randrange(2), duration_s=0.0)


KINDS: tuple[tuple[Draw, int], ...] = (
    (_kill, 5),
    (_kill_group, 1),
    (_stop, 3),
    (_hang, 4),
    (_kill_elected, 2),
    (_die_in_role_change, 2),
    (_die_in_cut, 3),
    (_full_disk, 2),
    (_partition, 7),
    (_slow, 2),
    (_cut, 2),
    (_controller_down, 2),
    (_designated, 3),
)
"""Every kind of fault, and how often it is drawn."""
