"""Real slaves behind a trioha master in controller mode, under a real controller."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.replica_group import (
    GROUP_FILE_BYTES,
    Cluster,
    ReplicaGroup,
    cluster,
    first_offset,
    ids_in_set,
    replica_group,
)
from tests.interop.rocketmq import missing_tools
from tests.interop.test_autoswitch_slave import NEVER, VERSIONS_5, assert_cut

pytestmark = [pytest.mark.interop, pytest.mark.process, pytest.mark.timeout(400)]


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


def test_late_real_slaves_get_every_epoch_of_a_trioha_master(group: ReplicaGroup) -> None:
    node = group.join("trioha", "node")
    node.stored(30)
    real = group.join("rocketmq", "real")
    group.wait_set(node, real)
    group.wait_equal(node, real)
    group.elect(real)
    real.stored(30)
    group.wait_set(node, real)
    group.elect(node)
    node.stored(30)
    assert [epoch.epoch for epoch in node.epochs().epochs] == [1, 2, 3]
    assert node.epochs().max_offset > 4 * GROUP_FILE_BYTES

    learner = group.join("rocketmq", "learner", asyncLearner=True)
    from_last_file = group.join("rocketmq", "from-last-file", syncFromLastFile=True)
    # What a trioha slave takes from the last file on is what RocketMQ's does.
    also = group.join("trioha", "also-from-last-file", syncFromLastFile=True)
    slaves = (real, learner, from_last_file, also)
    group.wait_set(node, real, from_last_file, also)
    node.stored(10)
    group.wait_equal(node, *slaves)
    assert first_offset(learner) == 0
    assert first_offset(from_last_file) == first_offset(also) > 0
    assert from_last_file.epoch_file() == also.epoch_file()

    # One is killed, one is stopped; each comes back at its own byte.
    real.kill()
    learner.stop()
    group.wait_set(node, from_last_file, also)
    node.stored(10)
    real.start()
    learner.start()
    in_set = group.wait_set(node, real, from_last_file, also)
    node.stored(10)
    group.wait_equal(node, *slaves)
    assert learner.broker_id not in ids_in_set(in_set)


def test_diverged_log_of_a_real_broker_is_cut_behind_a_trioha_master(group: ReplicaGroup) -> None:
    old = group.join("rocketmq", "old", slaveTimeout=500)
    new = group.join("trioha", "new")
    assert_cut(group, old=old, new=new)
