"""Brokers of a group in controller mode, each a process of its own: trioha nodes and real ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import trio

from tests.interop.controller import ask, broker_settings, eventually
from tests.interop.java_process import JVM_FLAGS, JavaProcess
from tests.interop.rocketmq import class_path
from tests.node_process import ANSWER_WITHIN_S, Loaded, TriohaNode, load
from trioha.controller.bodies import EpochCache
from trioha.remoting.client import open_client
from trioha.remoting.codes import RequestCode
from trioha.remoting.command import request
from trioha.remoting.name_server import fetch_broker_groups

BODY_BYTES = (1000, 20_000)
_JAVA_ONLY = frozenset(
    (
        "timerWheelEnable",
        "enableCompaction",
        "commitLogRecoverMaxNum",
        "brokerFastFailureEnable",
        "osPageCacheBusyTimeOutMills",
    )
)
"""Settings that trioha does not have."""


class Member:
    """A broker of a group: its addresses, and what it says of itself.

    Its process is a `JavaProcess` or `TriohaProcess`, which may end, hang, and start again on its store.
    """

    name: str

    def _place(self, folder: Path, name: str, port: int) -> Path:
        """Set where it is; the root of its store."""
        self.root = folder / name / "store"
        self.root.parent.mkdir(parents=True, exist_ok=True)
        self.address = f"127.0.0.1:{port}"
        """For clients."""
        self.ha_address = f"127.0.0.1:{port + 1}"
        return self.root

    @property
    def broker_id(self) -> int:
        """The id that the controllers gave it; waits until it has one."""

        def read() -> int | None:
            # RocketMQ makes the file first and writes it then.
            parts = (self.root / "brokerIdentity").read_text().split("#")
            return int(parts[2]) if len(parts) > 2 else None

        return eventually(f"{self.name} has an id", read, logs=self.log)

    def epochs(self) -> EpochCache:
        """The epochs of its log, as it says them. Waits until it does: its connections end with each role."""

        def fetch() -> EpochCache | None:
            answer = ask(self.address, request(RequestCode.GET_BROKER_EPOCH_CACHE))
            return EpochCache.of_body(answer.body) if answer.code == 0 else None

        return eventually(f"{self.name} says its epochs", fetch, logs=self.log)

    @property
    def max_offset(self) -> int:
        """End of its log."""
        return self.epochs().max_offset

    def epoch_file(self) -> bytes:
        """Its epochFileCheckpoint. Waits while there is none: RocketMQ replaces it by renaming."""
        return eventually(
            f"{self.name} has an epoch file",
            (self.root / "epochFileCheckpoint").read_bytes,
            logs=self.log,
        )

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


class RealMember(JavaProcess, Member):
    """A broker of RocketMQ."""

    def __init__(
        self,
        folder: Path,
        name: str,
        *,
        version: str,
        port: int,
        broker_name: str,
        controller_address: str,
        name_server: str,
        flags: Sequence[str] = JVM_FLAGS,
        **settings: object,
    ) -> None:
        root = self._place(folder, name, port)
        common = broker_settings(broker_name, controller_address, name_server, root, port)
        super().__init__(
            name=name,
            folder=root.parent,
            class_path=class_path(version),
            main_class="org.apache.rocketmq.broker.BrokerStartup",
            settings={**common, **settings},
            flags=flags,
        )


class TriohaProcess:
    """A trioha node that starts more than once."""

    def __init__(self, name: str, root: Path, settings: dict[str, Any]) -> None:
        self.name, self._root, self._settings = name, root, settings
        self._node: TriohaNode | None = None

    @property
    def node(self) -> TriohaNode:
        """The process that runs, or the last one."""
        assert self._node is not None, f"{self.name} was never started"
        return self._node

    @property
    def is_running(self) -> bool:
        return self._node is not None and self._node.is_running

    @property
    def pid(self) -> int:
        return self.node.pid

    def start(self) -> None:
        assert not self.is_running
        self._node = TriohaNode(self._root, role="SLAVE", **self._settings)

    def kill(self) -> None:
        if self.is_running:
            self.node.kill()

    def stop(self) -> None:
        self.node.stop()

    def hang(self) -> None:
        self.node.hang()

    def resume(self) -> None:
        self.node.resume()

    def log(self) -> str:
        return f"--- {self.name}\n" + ("never started" if self._node is None else self._node.log())


class TriohaMember(TriohaProcess, Member):
    """A trioha node as a broker of a group."""

    def __init__(
        self,
        folder: Path,
        name: str,
        *,
        port: int,
        broker_name: str,
        controller_address: str,
        name_server: str,
        **settings: object,
    ) -> None:
        root = self._place(folder, name, port)
        common = broker_settings(broker_name, controller_address, name_server, root, port)
        given = {
            key: str(value).lower() if isinstance(value, bool) else value
            for key, value in {**common, **settings}.items()
            if key not in _JAVA_ONLY
        }
        super().__init__(name, root, given)


def wait_until_registered(name_server: str, broker_name: str, master: Member) -> None:
    """Wait until a name server has the master of a group: a real slave asks it for the HA address."""

    async def is_registered() -> bool | None:
        async with open_client(name_server, connect_timeout_s=ANSWER_WITHIN_S) as client:
            for group in await fetch_broker_groups(client, timeout_s=ANSWER_WITHIN_S):
                if group.broker_name == broker_name and group.addresses.get(0) == master.address:
                    return True
        return None

    eventually("the master is registered", lambda: trio.run(is_registered), logs=master.log)
