"""mqadmin on brokers of controller mode: it prints the same for a trioha pair as for a real one."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from attrs import define, frozen

from tests.interop.controller import CLUSTER, eventually
from tests.interop.java import JavaDriver
from tests.interop.members import Member
from tests.interop.replica_group import Cluster, ReplicaGroup, cluster
from tests.interop.rocketmq import VERSIONS_5, version_params

pytestmark = [
    pytest.mark.interop,
    pytest.mark.process,
    pytest.mark.nightly,
    pytest.mark.parametrize("java_of_module", version_params(versions=VERSIONS_5), indirect=True),
]
KINDS = ("rocketmq", "trioha")


@define
class Pair:
    """A group of two brokers of one kind, the first of which is master."""

    group: ReplicaGroup
    first: Member
    second: Member

    def normal(self, printed: str) -> list[str]:
        """Lines in which names, addresses, and numbers that may differ are replaced, in order."""
        for text, name in (
            (self.first.address, "FIRST"),
            (self.second.address, "SECOND"),
            (self.group.broker_name, "NAME"),
        ):
            printed = printed.replace(text, name)
        # How often a set changes while a pair comes together is not the same each time.
        printed = re.sub(r"(#SyncStateSetEpoch\s+)\d+", r"\1N", printed)
        lines = [re.sub(r"\b\d{3,18}\b", "OFFSET", line).rstrip() for line in printed.splitlines()]
        return sorted(line for line in lines if line)


@frozen
class Admin:
    """mqadmin and the two pairs."""

    java: JavaDriver
    cluster: Cluster
    pairs: dict[str, Pair]

    def __call__(self, command: str, *arguments: str) -> str:
        return self.java.mqadmin(command, self.cluster.names, *arguments)

    def sync_state_set(self, pair: Pair) -> str:
        return self("getSyncStateSet", "-a", self.leader, "-b", pair.group.broker_name)

    def epochs(self, pair: Pair) -> str:
        """Of both brokers: name servers have each change of a role a moment after it."""

        def ask() -> str | None:
            said = self("getBrokerEpoch", "-b", pair.group.broker_name)
            return said if pair.first.address in said and pair.second.address in said else None

        return eventually("mqadmin finds both brokers", ask, logs=pair.group.log)

    def elect(self, pair: Pair, member: Member) -> str:
        """mqadmin of 5.5.0 prints nothing: it cannot read the answer of the controller, which has elected."""
        asked = {"-a": self.leader, "-b": member.broker_id, "-bn": pair.group.broker_name, "-c": CLUSTER}
        return self("electMaster", *(str(part) for option in asked.items() for part in option))

    @property
    def leader(self) -> str:
        return self.cluster.controllers.leader()


@pytest.fixture(scope="module")
def admin(java_of_module: JavaDriver, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Admin]:
    folder = tmp_path_factory.mktemp("mqadmin-controller")
    with cluster(java_of_module.version, folder=folder / "cluster") as running:
        groups = {kind: ReplicaGroup(running, folder / kind, f"pair-of-{kind}", {}) for kind in KINDS}
        try:
            pairs = {
                kind: Pair(group, group.join(kind, "first"), group.join(kind, "second"))
                for kind, group in groups.items()
            }
            for pair in pairs.values():
                pair.group.wait_set(pair.first, pair.second)
                pair.first.stored(10)
                pair.group.wait_equal(pair.first, pair.second)
            yield Admin(java_of_module, running, pairs)
        finally:
            for group in groups.values():
                group.end()


def test_set_epochs_and_election_are_printed_as_for_real_brokers(admin: Admin) -> None:
    printed = {}
    for kind, pair in admin.pairs.items():
        before = [admin.sync_state_set(pair), admin.epochs(pair)]
        elected = admin.elect(pair, pair.second)
        assert pair.group.wait_master(pair.second) is pair.second
        pair.second.stored(5)
        pair.group.wait_set(pair.first, pair.second)
        pair.group.wait_equal(pair.second, pair.first)
        printed[kind] = [*before, elected, admin.sync_state_set(pair), admin.epochs(pair)]

    pair, said = admin.pairs["trioha"], printed["trioha"]
    first, second = pair.first.address, pair.second.address
    assert re.search(rf"^#MasterAddr\s+{first}$", said[0], re.MULTILINE), said[0]
    assert re.search(r"^#SyncStateSetNums\s+2$", said[0], re.MULTILINE), said[0]
    assert re.search(rf"^#MasterAddr\s+{second}$", said[3], re.MULTILINE), said[3]
    assert re.search(r"^#MasterEpoch\s+2$", said[3], re.MULTILINE), said[3]
    assert said[4].count("Epoch") > said[1].count("Epoch"), said
    for own, real in zip(said, printed["rocketmq"], strict=True):
        assert pair.normal(own) == admin.pairs["rocketmq"].normal(real)


def test_the_controllers_are_printed(admin: Admin) -> None:
    said = admin("getControllerMetaData", "-a", admin.leader)
    assert re.search(rf"^#ControllerLeaderAddress\s+{admin.leader}$", said, re.MULTILINE), said
