"""The invariants of groups in controller mode find nodes with planted defects, and no others."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.faults.controlled.faults import Side, Who
from tests.faults.controlled.group import HA, Group
from tests.faults.controlled.plan import GroupPlan, GroupSetup
from tests.faults.invariants import check_promises
from tests.faults.planted import cut_comes_back
from tests.faults.producer import TOPICS, LoadSettings
from tests.faults.proxy import BOTH
from tests.simulation.failover.planted import left_alone, ok_too_early, set_grown_too_early
from tests.simulation.planting import Defect

pytestmark = [pytest.mark.process, pytest.mark.timeout(300), pytest.mark.full]
WITHIN_S = 60.0
DEFECT_WITHIN_S = 15.0
"""Until a group whose nodes have a defect is given up: it may never be whole again."""
LOST = "that were answered PUT_OK are on fewer than 2 of 2 stores"


def plan_of(*, rate: float = 100.0, **settings: object) -> GroupPlan:
    """Two nodes whose set changes late, so that a test's own steps come first, and no random faults."""
    setup = {
        "members": 2,
        "flush_disk_types": ("ASYNC_FLUSH", "ASYNC_FLUSH"),
        "file_bytes": 1 << 20,
        "transfer_batch_bytes": 32768,
        "housekeeping_ms": 3000,
        "slave_timeout_ms": 1000,
        "ack_mode": "written",
        "tail_check_bytes": 64 * 1024,
        "min_in_sync_replicas": 1,
        "not_caught_up_ms": 15_000,
        "silent_ms": 1500,
        "finds_master_by": "controller",
        # Records of one length: those of another log begin where the own ones do.
        "load": LoadSettings(concurrency=4, rate=rate, body_bytes_max=1, topics=TOPICS[:1]),
        **settings,
    }
    return GroupPlan(seed=0, setup=GroupSetup(**setup), faults=(), archive=None)


def group_of(folder: Path, defect: Defect | None, plan: GroupPlan) -> Group:
    """A group in which each node has the defect."""
    programs = {} if defect is None else dict.fromkeys(plan.setup.nodes, defect.program)
    return Group(plan, folder, programs=programs)


def begin(group: Group) -> tuple[str, str]:
    """Begin; the names of master and slave."""
    group.begin()
    master, slave = group.take(Who.MASTER, 0), group.take(Who.SLAVE, 0)
    assert master is not None
    assert slave is not None
    wait_promises(group, 20)
    return master, slave


def wait_promises(group: Group, more: int) -> None:
    """Wait until so many more messages were answered PUT_OK."""
    kept = len(group.promises)
    group.expect(lambda: len(group.promises) >= kept + more, f"{more} more puts", WITHIN_S)


def wait_master(group: Group, name: str) -> None:
    """Wait until the controller names this master."""
    group.expect(lambda: group.world.seen.master == name, f"{name} is master", WITHIN_S)


def found(group: Group) -> str:
    """What the invariants say at the end."""
    try:
        end_offset = group.settle()
    except AssertionError as problem:
        # A slave with bytes that were confirmed follows no master that lacks them.
        stores = [group.store(name) for name in group.keepers]
        return "\n".join([str(problem), *check_promises(group.promises, stores, copies=2, when="then")])
    group.end()
    return "\n".join(group.check_end(end_offset))


def lose_the_slave_then_the_master(group: Group) -> None:
    """The slave receives nothing any more, and is elected all the same."""
    master, slave = begin(group)
    for link in ((HA, slave, master), (HA, master, slave)):
        group.link(link, "freeze", *BOTH)
    group.pause(1.0)
    group.kill(master)
    wait_master(group, slave)
    group.start(master)


def cut_off_the_master(group: Group) -> None:
    """Only its clients reach the master, while another one is elected."""
    master, slave = begin(group)
    group.cut_off(master, Side.BOTH, is_silent=False)
    wait_master(group, slave)
    group.pause(2.0)


def lose_the_master_while_a_slave_catches_up(group: Group) -> None:
    """A slave comes back that lacks what was promised meanwhile, and the master is killed."""
    master, slave = begin(group)
    group.kill(slave)
    wait_promises(group, 100)
    group.link((HA, slave, master), "slow", latency_s=0.0, bytes_per_s=2000.0)
    group.start(slave)
    group.keepers[slave].node()
    # Time to connect, but not to receive what is missing.
    deadline_s = time.monotonic() + 3.0
    while len(group.world.seen.members) < 2 and time.monotonic() < deadline_s:
        group.pause(0.02)
    group.kill(master)
    group.pause(1.0)
    group.start(master)


def kill_a_slave_after_its_cut(group: Group) -> None:
    """A master that was cut off comes back, is cut, receives little, and is killed."""
    master, slave = begin(group)
    group.cut_off(master, Side.BOTH, is_silent=True)
    wait_master(group, slave)
    group.pause(1.0)
    group.heal(master)
    group.link((HA, master, slave), "slow", latency_s=0.0, bytes_per_s=3000.0)
    group.expect(lambda: "commit log cut" in group.log_file(master).read_text(), f"{master} is cut", WITHIN_S)
    group.pause(0.5)
    group.kill(master)
    group.start(master)


PLAYED = [
    (ok_too_early, lose_the_slave_then_the_master, LOST),
    (left_alone, cut_off_the_master, LOST),
    (set_grown_too_early, lose_the_master_while_a_slave_catches_up, LOST),
    (cut_comes_back, kill_a_slave_after_its_cut, "differ"),
]


@pytest.mark.nightly
@pytest.mark.parametrize(("defect", "play", "said"), PLAYED, ids=[defect.what for defect, _, _ in PLAYED])
def test_a_node_with_a_defect_is_found(tmp_path, defect, play, said):
    with group_of(tmp_path, defect, plan_of(tail_check_bytes=0)) as group:
        play(group)
        group.settled_within_s = DEFECT_WITHIN_S
        assert said in found(group)


# Random runs play the others, too.
@pytest.mark.parametrize("play", [lose_the_master_while_a_slave_catches_up, kill_a_slave_after_its_cut])
def test_a_node_without_a_defect_keeps_all_promises(tmp_path, play):
    with group_of(tmp_path, None, plan_of(tail_check_bytes=0)) as group:
        play(group)
        assert found(group) == ""
