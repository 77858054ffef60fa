"""A group of brokers in controller mode, trioha's and RocketMQ's, under real controllers."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from attrs import define, field, frozen

from tests.interop.controller import (
    CLUSTER,
    Consensus,
    Controllers,
    JavaProcess,
    ask,
    broker_settings,
    controllers,
    eventually,
)
from tests.interop.logs import assert_same_log, log_files
from tests.interop.name_server import name_server
from tests.interop.node import Loaded, TriohaNode, load
from tests.interop.rocketmq import class_path
from tests.ports import free_port
from trioha.controller import protocol
from trioha.controller.protocol import CachedEpoch, EpochCache, ReplicaSetInfo, to_request

GROUP_FILE_BYTES = 128 * 1024
"""mappedFileSizeCommitLog of members: a few dozen messages fill several files."""
BODY_BYTES = (1000, 20_000)
_JAVA_ONLY = frozenset(("timerWheelEnable", "enableCompaction"))
_OF_NODES: dict[str, object] = {"trioha.bindAddress": "127.0.0.1"}
_OF_BROKERS: dict[str, object] = {
    # 5.4 and newer recover the newest ten files only, however short.
    "commitLogRecoverMaxNum": 1000,
}


@define(eq=False)
class Member(ABC):
    """A broker of a group, which may be ended and started again on its files."""

    name: str
    root: Path
    address: str
    """`host:port` for clients."""

    @abstractmethod
    def start(self) -> None:
        """Start it, or start it again."""

    @abstractmethod
    def kill(self) -> None:
        """`kill -9`, if it runs."""

    @abstractmethod
    def stop(self) -> None:
        """A clean stop."""

    @abstractmethod
    def log(self) -> str:
        """The end of what it wrote."""

    @property
    @abstractmethod
    def is_running(self) -> bool:
        """Whether the process is there."""

    @property
    def broker_id(self) -> int:
        """The id that the controllers gave it; waits until it has one."""

        def read() -> int | None:
            path = self.root / "brokerIdentity"
            return int(path.read_text().split("#")[2]) if path.exists() else None

        return eventually(f"{self.name} has an id", read, logs=self.log)

    def epochs(self) -> EpochCache:
        """The epochs of its log, as it says them; its connections end with each role."""

        def fetch() -> EpochCache | None:
            answer = ask(self.address, to_request(protocol.EpochCacheRequest()))
            return EpochCache.of_body(answer.body) if answer.code == 0 else None

        return eventually(f"{self.name} says its epochs", fetch, logs=self.log)

    def epoch_file(self) -> bytes:
        """Its epochFileCheckpoint."""
        return (self.root / "epochFileCheckpoint").read_bytes()

    def load(self, number: int, *, seed: int = 1) -> Loaded:
        """Store messages, whatever becomes of them."""
        return load(self.address, number, size=BODY_BYTES, seed=seed)

    def stored(self, number: int) -> None:
        """Store messages, each of which is PUT_OK. Waits until the broker takes writes."""

        def one() -> bool | None:
            try:
                return True if self.load(1).statuses == {"PUT_OK": 1} else None
            except AssertionError:
                # Its connection ended while the broker changed its role.
                return None

        eventually(f"a put at {self.name} is PUT_OK", one, logs=self.log)
        assert self.load(number, seed=2).statuses == {"PUT_OK": number}, self.log()


@define(eq=False)
class TriohaMember(Member):
    """A trioha node."""

    settings: dict[str, object]
    node: TriohaNode | None = None

    def start(self) -> None:
        assert not self.is_running
        self.node = TriohaNode(self.root, role="SLAVE", **self.settings)

    def kill(self) -> None:
        if self.node is not None and self.node.is_running:
            self.node.kill()

    def stop(self) -> None:
        assert self.node is not None
        self.node.stop()

    def log(self) -> str:
        return "never started" if self.node is None else f"--- {self.name}\n{self.node.log()}"

    @property
    def is_running(self) -> bool:
        return self.node is not None and self.node.is_running


@define(eq=False)
class RocketMQMember(Member):
    """A real broker."""

    process: JavaProcess

    def start(self) -> None:
        self.process.start()

    def kill(self) -> None:
        self.process.kill()

    def stop(self) -> None:
        self.process.stop()

    def log(self) -> str:
        return self.process.log()

    @property
    def is_running(self) -> bool:
        return self.process.is_running


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
    version: str, *, folder: Path, number: int = 1, consensus: Consensus = Consensus.DLEDGER
) -> Iterator[Cluster]:
    """A real name server and `number` real controllers until the block ends."""
    with (
        name_server(version, folder=folder / "names") as names,
        controllers(version, folder=folder / "controllers", number=number, consensus=consensus) as running,
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
        port, root = free_port(), self.folder / name / "store"
        given = {
            **broker_settings(
                self.broker_name, self.cluster.controllers.setting, self.cluster.names, root, port
            ),
            "mappedFileSizeCommitLog": GROUP_FILE_BYTES,
            **self.settings,
            **settings,
        }
        address = f"127.0.0.1:{port}"
        root.mkdir(parents=True)
        member: Member
        if kind == "trioha":
            texts = {
                key: str(value).lower() if isinstance(value, bool) else value for key, value in given.items()
            }
            own = {key: value for key, value in texts.items() if key not in _JAVA_ONLY}
            member = TriohaMember(name, root, address, {**_OF_NODES, **own})
        else:
            process = JavaProcess(
                name=name,
                folder=self.folder / name,
                class_path=class_path(self.cluster.version),
                main_class="org.apache.rocketmq.broker.BrokerStartup",
                settings={**_OF_BROKERS, **given},
            )
            member = RocketMQMember(name, root, address, process)
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

        def find() -> ReplicaSetInfo | None:
            group = self.state()
            return group if group is not None and wanted == ids_in_set(group) else None

        return eventually(f"the set is {sorted(wanted)}", find, logs=self.log)

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
