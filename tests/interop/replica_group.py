"""A group of brokers in controller mode, trioha's and RocketMQ's, under real controllers."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from attrs import define, field, frozen

from tests.interop.controller import CLUSTER, Consensus, Controllers, ask, controllers, eventually
from tests.interop.java import PATIENT
from tests.interop.logs import assert_same_log, log_files
from tests.interop.members import Member, RealMember, TriohaMember
from tests.interop.name_server import name_server
from tests.node_process import SLAVE_TIMEOUT_MS
from tests.ports import free_port
from trioha.controller import protocol
from trioha.controller.bodies import CachedEpoch, ReplicaSetInfo
from trioha.controller.header import to_request

GROUP_FILE_BYTES = 128 * 1024
"""mappedFileSizeCommitLog of members: a few dozen messages fill several files."""
SETTINGS: dict[str, object] = {
    **PATIENT,
    "mappedFileSizeCommitLog": GROUP_FILE_BYTES,
    "slaveTimeout": SLAVE_TIMEOUT_MS,
    # 5.4 and newer recover the newest ten files only, however short.
    "commitLogRecoverMaxNum": 1000,
}
"""Of all members."""


@frozen
class Cluster:
    """Controllers and a name server, for any number of groups."""

    version: str
    """Of RocketMQ."""
    controllers: Controllers
    names: str
    """Address of the name server."""


@contextmanager
def cluster(
    version: str,
    *,
    folder: Path,
    number: int = 1,
    consensus: Consensus = Consensus.DLEDGER,
    **settings: object,
) -> Iterator[Cluster]:
    """A real name server and `number` real controllers, with these settings, until the block ends."""
    group = {"number": number, "consensus": consensus, **settings}
    with (
        name_server(version, folder=folder / "names") as names,
        controllers(version, folder=folder / "controllers", **group) as running,  # type: ignore[arg-type]
    ):
        yield Cluster(version, running, names)


@define
class ReplicaGroup:
    """The brokers of one name; all are ended with `end`."""

    cluster: Cluster
    folder: Path
    broker_name: str
    settings: dict[str, object] = field(factory=dict)
    """Of every member."""
    members: list[Member] = field(factory=list)

    def join(self, kind: str, name: str, **settings: object) -> Member:
        """Start another broker, `trioha` or `rocketmq`, with an empty store. Waits for its id."""
        given: dict[str, Any] = {
            "port": free_port(),
            "broker_name": self.broker_name,
            "controller_address": self.cluster.controllers.setting,
            "name_server": self.cluster.names,
            **SETTINGS,
            **self.settings,
            **settings,
        }
        member: Member
        if kind == "trioha":
            member = TriohaMember(self.folder, name, **given)
        else:
            member = RealMember(self.folder, name, version=self.cluster.version, **given)
        self.members.append(member)
        member.start()
        # Members that follow get later ids.
        assert member.broker_id > 0
        return member

    def end(self) -> None:
        """Kill every member."""
        for member in self.members:
            member.kill()

    def state(self) -> ReplicaSetInfo | None:
        """The group as the leading controller has it."""
        return self.cluster.controllers.group(self.broker_name)

    def wait_master(self, *members: Member) -> Member:
        """The one of `members` that is master, as soon as one is."""

        def find() -> Member | None:
            group = self.state()
            if group is None or group.master_address is None:
                return None
            return next((member for member in members if member.address == group.master_address), None)

        return eventually(f"one of {[member.name for member in members]} is master", find, logs=self.log)

    def wait_set(self, *members: Member) -> ReplicaSetInfo:
        """The group as soon as its sync-state set is `members`."""
        wanted = {member.broker_id for member in members}

        return self.cluster.controllers.wait_group(
            self.broker_name, lambda group: ids_in_set(group) == wanted, logs=self.log
        )

    def elect(self, member: Member) -> None:
        """Have the controllers make a member master, as `mqadmin electMaster` does. Waits until it serves."""
        asked = protocol.ElectRequest(
            cluster_name=CLUSTER,
            broker_name=self.broker_name,
            broker_id=member.broker_id,
            is_designated=True,
            invoke_time_ms=time.time_ns() // 1_000_000,
        )
        answer = ask(self.cluster.controllers.leader(), to_request(asked))
        assert answer.code == 0, (answer.code, answer.remark)
        assert self.wait_master(member) is member

    def wait_equal(self, master: Member, *slaves: Member) -> None:
        """Wait until the slaves have all of the master's log, then compare them byte for byte.

        A slave whose log begins later has the same bytes from there on, and the same entries of epochs.
        """
        said = master.epochs()
        end = said.max_offset
        for slave in slaves:

            def has_all(slave: Member = slave) -> bool | None:
                own = slave.epochs()
                return (
                    True if own.max_offset == end and own.epochs[-1].epoch == said.epochs[-1].epoch else None
                )

            eventually(f"{slave.name} has the log up to {end}", has_all, logs=self.log)
            start = first_offset(slave)
            assert_same_log(master.root, slave.root, start=start, end=end, file_bytes=GROUP_FILE_BYTES)
            if start == first_offset(master):
                assert slave.epoch_file() == master.epoch_file()
            held = [epoch for epoch in said.epochs if min(epoch.end_offset, end) > start]
            assert starts_of(slave.epochs().epochs) == starts_of(held)

    def log(self) -> str:
        """The ends of all logs."""
        return "\n".join([self.cluster.controllers.log(), *(member.log() for member in self.members)])


@contextmanager
def replica_group(
    cluster: Cluster, *, folder: Path, broker_name: str, **settings: object
) -> Iterator[ReplicaGroup]:
    """A group without members yet; `settings` are those of all its members."""
    group = ReplicaGroup(cluster, folder, broker_name, settings)
    try:
        yield group
    finally:
        group.end()


def ids_in_set(group: ReplicaSetInfo) -> set[int]:
    """Broker ids of a group's sync-state set."""
    return {replica.broker_id for replica in group.in_sync}


def starts_of(epochs: Iterable[CachedEpoch]) -> list[tuple[int, int]]:
    """Epochs with their start offsets. The end of the last one is not always 2^63 - 1 on real slaves."""
    return [(epoch.epoch, epoch.start_offset) for epoch in epochs]


def first_offset(member: Member) -> int:
    """First offset of a member's log."""
    return min(log_files(member.root))
