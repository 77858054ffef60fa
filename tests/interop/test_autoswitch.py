"""Trioha slaves of a real master, and real slaves of a trioha master, under a real controller."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.members import Member, RealMember
from tests.interop.replica_group import (
    GROUP_FILE_BYTES,
    Cluster,
    ReplicaGroup,
    cluster,
    first_offset,
    ids_in_set,
    replica_group,
)
from tests.interop.rocketmq import VERSIONS_5, missing_tools, version_params
from tests.interop.test_java_master import TIMES_OUT_MS

pytestmark = [pytest.mark.interop, pytest.mark.process, pytest.mark.full]
NEVER = {"haMaxTimeSlaveNotCatchup": 600_000}
"""No member leaves the set because it is slow."""


@pytest.fixture(scope="module", params=version_params(versions=VERSIONS_5))
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if lacking := missing_tools():
        pytest.skip(lacking)
    with cluster(request.param, folder=tmp_path_factory.mktemp("cluster")) as found:
        yield found


@pytest.fixture
def group(running: Cluster, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[ReplicaGroup]:
    name = request.node.originalname
    with replica_group(running, folder=tmp_path, broker_name=name, **NEVER) as found:
        yield found


def test_late_slaves_get_every_epoch_of_a_real_master(group: ReplicaGroup) -> None:
    assert_late_slaves_get_every_epoch(group, "rocketmq", "trioha")


@pytest.mark.nightly
def test_late_real_slaves_get_every_epoch_of_a_trioha_master(group: ReplicaGroup) -> None:
    assert_late_slaves_get_every_epoch(group, "trioha", "rocketmq")


def assert_late_slaves_get_every_epoch(group: ReplicaGroup, kind: str, other: str) -> None:
    """A master of a kind and its first slave have exchanged their roles twice when further slaves join."""
    master = group.join(kind, "master")
    master.stored(30)
    first = group.join(other, "first")
    group.wait_set(master, first)
    group.wait_equal(master, first)
    for elected in (first, master):
        group.elect(elected)
        elected.stored(30)
        group.wait_set(master, first)
    assert [epoch.epoch for epoch in master.epochs().epochs] == [1, 2, 3]
    assert master.epochs().max_offset > 4 * GROUP_FILE_BYTES

    late = group.join("trioha", "late")
    learner = group.join(other, "learner", asyncLearner=True)
    from_last_file = group.join(other, "from-last-file", syncFromLastFile=True)
    # What a trioha slave takes from the last file on is what RocketMQ's does.
    also = group.join("trioha", "also-from-last-file", syncFromLastFile=True)
    slaves = (first, late, learner, from_last_file, also)
    group.wait_set(master, first, late, from_last_file, also)
    master.stored(10)
    group.wait_equal(master, *slaves)
    assert [first_offset(slave) for slave in slaves[:3]] == [0, 0, 0]
    assert first_offset(from_last_file) == first_offset(also) > 0
    assert from_last_file.epoch_file() == also.epoch_file()

    # One is killed, one is stopped; each comes back at its own byte.
    first.kill()
    learner.stop()
    group.wait_set(master, late, from_last_file, also)
    master.stored(10)
    first.start()
    learner.start()
    in_set = group.wait_set(master, first, late, from_last_file, also)
    master.stored(10)
    group.wait_equal(master, *slaves)
    assert learner.broker_id not in ids_in_set(in_set)
    assert master.broker_id == in_set.master_id


@pytest.mark.nightly
def test_diverged_log_is_cut_behind_a_real_master(group: ReplicaGroup) -> None:
    old = group.join("trioha", "old", slaveTimeout=TIMES_OUT_MS)
    new = group.join("rocketmq", "new")
    assert_cut(group, old=old, new=new)


@pytest.mark.nightly
def test_diverged_log_of_a_real_broker_is_cut_behind_a_trioha_master(group: ReplicaGroup) -> None:
    old = group.join("rocketmq", "old", slaveTimeout=TIMES_OUT_MS)
    new = group.join("trioha", "new")
    assert_cut(group, old=old, new=new)


def assert_cut(group: ReplicaGroup, *, old: Member, new: Member) -> None:
    """`old` dies as master with bytes that nobody else has, `new` takes over, `old` comes back.

    No controller runs while the slave is gone, so it stays in the set, and a trioha master confirms none of
    these bytes. One of RocketMQ 5.5.0 answers SEND_OK for them.
    """
    group.wait_set(old, new)
    old.stored(30)
    group.wait_equal(old, new)
    shared = old.epochs().max_offset
    (controller,) = group.cluster.controllers.processes
    controller.kill()
    new.kill()
    statuses = old.load(20, seed=3).statuses
    assert statuses == {"FLUSH_SLAVE_TIMEOUT": 20} or isinstance(old, RealMember), old.log()
    orphaned = old.epochs().max_offset
    old.kill()
    controller.start()
    new.start()
    assert group.wait_master(new) is new
    new.stored(20)
    old.start()
    group.wait_set(old, new)
    new.stored(10)
    group.wait_equal(new, old)
    epochs = new.epochs().epochs
    assert [epoch.epoch for epoch in epochs] == [1, 2]
    assert epochs[1].start_offset == shared < orphaned
