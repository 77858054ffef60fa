"""A trioha slave behind a real master in controller mode, under a real controller."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.replica_group import (
    GROUP_FILE_BYTES,
    Cluster,
    Member,
    ReplicaGroup,
    RocketMQMember,
    cluster,
    first_offset,
    ids_in_set,
    replica_group,
)
from tests.interop.rocketmq import VERSIONS, is_5, missing_tools

pytestmark = [pytest.mark.interop, pytest.mark.process, pytest.mark.timeout(400)]
VERSIONS_5 = tuple(filter(is_5, VERSIONS))
NEVER = {"haMaxTimeSlaveNotCatchup": 600_000}
"""No member leaves the set because it is slow."""


@pytest.fixture(scope="module", params=VERSIONS_5, ids=[f"rocketmq-{version}" for version in VERSIONS_5])
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
    real = group.join("rocketmq", "real")
    real.stored(30)
    first = group.join("trioha", "first")
    group.wait_set(real, first)
    group.wait_equal(real, first)
    group.elect(first)
    first.stored(30)
    group.wait_set(real, first)
    group.elect(real)
    real.stored(30)
    assert [epoch.epoch for epoch in real.epochs().epochs] == [1, 2, 3]
    assert real.epochs().max_offset > 4 * GROUP_FILE_BYTES

    late = group.join("trioha", "late")
    learner = group.join("trioha", "learner", asyncLearner=True)
    from_last_file = group.join("trioha", "from-last-file", syncFromLastFile=True)
    slaves = (first, late, learner, from_last_file)
    in_set = group.wait_set(real, first, late, from_last_file)
    real.stored(10)
    group.wait_equal(real, *slaves)
    assert [first_offset(slave) for slave in slaves[:3]] == [0, 0, 0]
    assert first_offset(from_last_file) > 0
    assert real.broker_id == in_set.master_id

    # One is killed, one is stopped; each comes back at its own byte.
    late.kill()
    learner.stop()
    group.wait_set(real, first, from_last_file)
    real.stored(10)
    late.start()
    learner.start()
    in_set = group.wait_set(real, first, late, from_last_file)
    real.stored(10)
    group.wait_equal(real, *slaves)
    assert learner.broker_id not in ids_in_set(in_set)


def test_diverged_log_is_cut_behind_a_real_master(group: ReplicaGroup) -> None:
    old = group.join("trioha", "old", slaveTimeout=500)
    new = group.join("rocketmq", "new")
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
    assert statuses == {"FLUSH_SLAVE_TIMEOUT": 20} or isinstance(old, RocketMQMember), old.log()
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
