"""Real RocketMQ controllers, each a process of its own, and what brokers of controller mode are given.

RocketMQ's controller comes with its name server: `rocketmq-controller` is one of its dependencies. It keeps
its state by DLedger or, from 5.2 on, by JRaft.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import TypeVar

import trio
from attrs import frozen

from tests.interop.java_process import JavaProcess
from tests.interop.rocketmq import name_server_class_path
from tests.ports import free_port
from trioha.controller import bodies
from trioha.controller.bodies import ReplicaSetInfo
from trioha.controller.protocol import ControllerMetadata
from trioha.errors import TriohaError
from trioha.remoting.client import open_client
from trioha.remoting.codes import RequestCode
from trioha.remoting.command import RemotingCommand, request

WITHIN_S = 150.0
"""For each condition that a test waits for; most come true in a second or two."""
ASKED_AGAIN_S = 10.0
"""After so long, one that waits asks anew: brokers drop requests while they change their roles."""
POLL_S = 0.05
CLUSTER = "interop"
FILE_BYTES = 1024 * 1024
T = TypeVar("T")


class Consensus(Enum):
    """How several controllers keep one state."""

    DLEDGER = "DLedger"
    JRAFT = "jRaft"


def eventually(what: str, attempt: Callable[[], T | None], *, logs: Callable[[], str] = str) -> T:
    """The first result of `attempt` that is not None; a failure of a peer counts as None."""
    deadline = time.monotonic() + WITHIN_S
    last: object = None
    while True:
        try:
            found = attempt()
        except (TriohaError, OSError) as problem:
            found, last = None, problem
        if found is not None:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {WITHIN_S:g} s: {what}; last: {last}\n{logs()}")
        time.sleep(POLL_S)


def ask(address: str, command: RemotingCommand) -> RemotingCommand:
    """The answer of one controller or broker. Raises TriohaError."""

    async def fetch() -> RemotingCommand:
        async with open_client(address, connect_timeout_s=ASKED_AGAIN_S) as client:
            return await client.request(command, timeout_s=ASKED_AGAIN_S)

    return trio.run(fetch)


@frozen
class Controllers:
    """The controllers of one cluster."""

    addresses: tuple[str, ...]
    processes: tuple[JavaProcess, ...]

    @property
    def setting(self) -> str:
        """For controllerAddr."""
        return ";".join(self.addresses)

    def metadata(self, address: str) -> ControllerMetadata:
        """What the controller at `address` says of its group. Raises TriohaError."""
        return ControllerMetadata.of(
            ask(address, request(RequestCode.CONTROLLER_GET_METADATA_INFO)).ext_fields
        )

    def leader(self) -> str:
        """The one that leads, as soon as there is one."""

        def find() -> str | None:
            for address, process in zip(self.addresses, self.processes, strict=True):
                if process.is_running and self.metadata_or_none(address):
                    return address
            return None

        return eventually("a controller leads", find, logs=self.log)

    def metadata_or_none(self, address: str) -> ControllerMetadata | None:
        """Its metadata if it leads."""
        try:
            metadata = self.metadata(address)
        except TriohaError:
            return None
        return metadata if metadata.is_leader else None

    def process_at(self, address: str) -> JavaProcess:
        """The process of one of `addresses`."""
        return self.processes[self.addresses.index(address)]

    def group(self, broker_name: str) -> ReplicaSetInfo | None:
        """A group, as the leader has it; None if it has none. Raises TriohaError."""
        body = bodies.broker_names_body([broker_name])
        answer = ask(self.leader(), request(RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, body=body))
        return bodies.parse_set_data(answer.body).get(broker_name) if answer.body else None

    def wait_group(
        self,
        broker_name: str,
        holds: Callable[[ReplicaSetInfo], bool],
        *,
        logs: Callable[[], str] | None = None,
    ) -> ReplicaSetInfo:
        """The group as soon as `holds` does; a failure shows `logs`, by default those of the controllers."""
        last: ReplicaSetInfo | None = None

        def find() -> ReplicaSetInfo | None:
            nonlocal last
            last = self.group(broker_name)
            return last if last is not None and holds(last) else None

        return eventually(
            f"state of group {broker_name}", find, logs=lambda: f"it is {last}\n{(logs or self.log)()}"
        )

    def log(self) -> str:
        """The ends of all their logs."""
        return "\n".join(process.log() for process in self.processes)


@contextmanager
def controllers(
    version: str,
    *,
    folder: Path,
    number: int = 1,
    consensus: Consensus = Consensus.DLEDGER,
    log_level: str = "WARN",
    **settings: object,
) -> Iterator[Controllers]:
    """Runs `number` real controllers of one group until the block ends; one of them leads."""
    ports = [free_port() for _ in range(number)]
    peers = [free_port() for _ in range(number)]
    addresses = tuple(f"127.0.0.1:{port}" for port in ports)
    jars = name_server_class_path(version)
    processes = []
    for index in range(number):
        home = folder / f"controller-{index}"
        home.mkdir(parents=True)
        common: dict[str, object] = {
            "controllerStorePath": home / "store",
            "enableElectUncleanMaster": False,
            "notifyBrokerRoleChanged": True,
        }
        if consensus is Consensus.DLEDGER:
            own: dict[str, object] = {
                "controllerDLegerGroup": "interop",
                "controllerDLegerPeers": ";".join(f"n{n}-{address}" for n, address in enumerate(addresses)),
                "controllerDLegerSelfId": f"n{index}",
            }
        else:
            own = {
                "controllerType": "jRaft",
                "jRaftGroupId": "interop",
                "jRaftServerId": f"127.0.0.1:{peers[index]}",
                "jRaftInitConf": ",".join(f"127.0.0.1:{port}" for port in peers),
                "jRaftControllerRPCAddr": ",".join(addresses),
                "listenPort": ports[index],
            }
        processes.append(
            JavaProcess(
                name=f"controller-{index}",
                folder=home,
                class_path=jars,
                main_class="org.apache.rocketmq.controller.ControllerStartup",
                settings={**common, **own, **settings},
                log_level=log_level,
            )
        )
    group = Controllers(addresses, tuple(processes))
    try:
        for process in processes:
            process.start()
        group.leader()
        yield group
    finally:
        for process in processes:
            process.kill()


def broker_settings(
    broker_name: str, controller_address: str, name_server: str, root: Path, port: int
) -> dict[str, object]:
    """Settings of a broker in controller mode, in which all members have each SEND_OK message."""
    return {
        "brokerClusterName": CLUSTER,
        "brokerName": broker_name,
        "brokerId": -1,
        "brokerRole": "SLAVE",
        "brokerIP1": "127.0.0.1",
        "brokerIP2": "127.0.0.1",
        "listenPort": port,
        "haListenPort": port + 1,
        "namesrvAddr": name_server,
        "enableControllerMode": True,
        "controllerAddr": controller_address,
        "allAckInSyncStateSet": True,
        "inSyncReplicas": 1,
        "storePathRootDir": root,
        "storePathCommitLog": root / "commitlog",
        "mappedFileSizeCommitLog": FILE_BYTES,
        "mappedFileSizeConsumeQueue": 20000,
        "maxHashSlotNum": 1000,
        "maxIndexNum": 4000,
        "haSendHeartbeatInterval": 1000,
        "diskMaxUsedSpaceRatio": 99,
        "cleanFileForciblyEnable": False,
        "timerWheelEnable": False,
        "enableCompaction": False,
    }
