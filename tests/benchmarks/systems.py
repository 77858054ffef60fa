"""The systems that are compared, as users run them: brokers, SYNC pairs and name servers as processes."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from attrs import frozen

from tests.interop.java import LOGBACK, OPENED, PATIENT
from tests.interop.java_process import java_command
from tests.interop.name_server import name_server, trioha_name_server
from tests.interop.rocketmq import class_path
from tests.node.wire import Wire
from tests.ports import free_port
from tests.processes import DIE_WITH_PARENT, environment_of_ours
from trioha.remoting.codes import RequestCode, ResponseCode
from trioha.remoting.command import RemotingCommand, request

ROOT: Final = Path(__file__).parents[2]
QUEUES: Final = 4
READY_WITHIN_S: Final = 180.0
STOP_WITHIN_S: Final = 120.0
LOG_SHOWN: Final = 4000

# As a server runs: both compilers, the collector that the JVM chooses for this machine, a fixed heap.
JVM_FLAGS: Final = ("-Xms512m", "-Xmx512m", "-XX:MaxDirectMemorySize=512m", "-Xshare:auto", *OPENED)

SETTINGS: Final[dict[str, object]] = {
    "brokerClusterName": "bench",
    "brokerName": "bench",
    "brokerIP1": "127.0.0.1",
    "brokerIP2": "127.0.0.1",
    # Brokers stand still while others work.
    "haHousekeepingInterval": 60_000,
    # How full the disk is must not matter.
    "diskMaxUsedSpaceRatio": 99,
    "diskSpaceCleanForciblyRatio": 100,
    "diskSpaceWarningLevelRatio": 100,
    "fileReservedTime": 720,
    "defaultTopicQueueNums": QUEUES,
}
"""Of all brokers; the rest are defaults."""
ROCKETMQ_SETTINGS: Final[dict[str, object]] = {
    "cleanFileForciblyEnable": False,
    # Nothing here needs timer wheel and compaction.
    "timerWheelEnable": False,
    "enableCompaction": False,
    **PATIENT,
}


class BenchmarkError(Exception):
    """A system, or a client of it, failed; the text has its own words."""


@frozen
class System:
    """RocketMQ, or trioha: of this tree or another one, with its defaults or other settings."""

    name: str
    command: Callable[[Path, Path], list[str]]
    """Starts a broker in a folder with a configuration file."""
    settings: Mapping[str, object]
    """Of its brokers, beside `SETTINGS`; `{}` in one is replaced by a folder of the broker."""
    name_server: Callable[[Path], AbstractContextManager[str]]
    """A name server with its files in a folder: its address."""


def trioha(name: str = "trioha", *, tree: Path = ROOT, **settings: object) -> System:
    """trioha of a source tree, with the Python of its .venv if it has one, else with this one."""
    python = tree / ".venv/bin/python"
    # Run in its tree: a tree without a .venv is not installed.
    program = [*DIE_WITH_PARENT, "env", "-C", str(tree), str(python if python.exists() else sys.executable)]
    return System(
        name,
        lambda _folder, config: [*program, "-m", "trioha", "node", "-c", str(config)],
        {"trioha.bindAddress": "127.0.0.1", **settings},
        trioha_name_server,
    )


def rocketmq(version: str) -> System:
    """RocketMQ as published, in JVMs with the flags of a server; it is fetched the first time.

    Its brokers are patient: by default one refuses what has waited for 0.2 s, which a busy machine may cause.
    """

    def command(folder: Path, config: Path) -> list[str]:
        home, logback = prepared_java(folder)
        main_class = "org.apache.rocketmq.broker.BrokerStartup"
        started = java_command(main_class, class_path(version), home=home, logback=logback, flags=JVM_FLAGS)
        return [*started, "-c", str(config)]

    return System(
        f"RocketMQ {version}", command, ROCKETMQ_SETTINGS, lambda folder: name_server(version, folder=folder)
    )


def prepared_java(folder: Path) -> tuple[Path, Path]:
    """The home of a JVM, and its configuration of logs."""
    home, logback = folder / "home", folder / "logback.xml"
    home.mkdir(parents=True, exist_ok=True)
    logback.write_text(LOGBACK)
    return home, logback


class Broker:
    """A broker's process."""

    def __init__(self, system: System, root: Path, *, role: str = "ASYNC_MASTER", **settings: object) -> None:
        """Start a broker on the store `root`; `settings` are keys of broker.conf."""
        port, self.ha_port = free_port(), free_port()
        self.system, self.root, self.address = system, root, f"127.0.0.1:{port}"
        folder = root.parent
        folder.mkdir(parents=True, exist_ok=True)
        own = {key: str(value).replace("{}", f"{root}-files") for key, value in system.settings.items()}
        config = root.with_name(f"{root.name}.conf")
        lines = {
            **SETTINGS,
            "brokerRole": role,
            "listenPort": port,
            "haListenPort": self.ha_port,
            "storePathRootDir": root,
            "storePathCommitLog": root / "commitlog",
            **own,
            **settings,
        }
        config.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
        self._log_path = root.with_name(f"{root.name}.log")
        command = system.command(folder, config)
        self._began_s = time.perf_counter()
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=folder,
                env=environment_of_ours(),
            )

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def wait_ready(self) -> float:
        """Wait until it answers a request: seconds since its process was started. Raises BenchmarkError."""
        while True:
            try:
                self.ha_status()
            except OSError:
                if self._process.poll() is not None or self._age_s() > READY_WITHIN_S:
                    raise BenchmarkError(f"no broker at {self.address}\n{self.state()}") from None
                time.sleep(0.002)
            else:
                return self._age_s()

    def _age_s(self) -> float:
        return time.perf_counter() - self._began_s

    def ha_status(self) -> dict[str, Any]:
        """Its HARuntimeInfo; empty while it has none. Raises OSError."""
        with Wire(self.address) as asking:
            return ha_status(asking)

    def pause(self) -> None:
        """Stop the process where it stands, so that its threads cost the other system nothing."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a paused process go on."""
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """A clean stop."""
        self.resume()
        self._process.terminate()
        self._process.wait(STOP_WITHIN_S)

    def kill(self) -> None:
        """`kill -9`; nothing for one that has ended."""
        self._process.kill()
        self._process.wait()

    def state(self) -> str:
        """Whether it runs, and the end of its log."""
        code = self._process.poll()
        state = "runs" if code is None else f"ended with {code}"
        return f"{self._log_path.stem} {state}\n{self._log_path.read_text(errors='replace')[-LOG_SHOWN:]}"


def ha_status(asking: Wire) -> dict[str, Any]:
    """HARuntimeInfo of the broker that `asking` is connected to; empty while it has none. Raises OSError."""
    opaques = asking.start(request(RequestCode.GET_BROKER_HA_STATUS))
    if (answer := asking.answers(opaques).get(opaques[0])) is None:
        raise ConnectionError("the broker has ended the connection")
    return json.loads(answer.body) if answer.code == ResponseCode.SUCCESS else {}


@contextmanager
def trioha_slaves(
    system: System, folder: Path, *, ha_port: int, number: int, file_bytes: int
) -> Iterator[list[int]]:
    """Slaves of the master at `ha_port`, a process each: their process ids."""
    with ExitStack() as running:
        slaves = []
        for index in range(number):
            slave = Broker(
                system, folder / f"slave-{index}", role="SLAVE", brokerId=1 + index,
                haMasterAddress=f"127.0.0.1:{ha_port}", mappedFileSizeCommitLog=file_bytes,
            )  # fmt: skip
            running.callback(slave.kill)
            slaves.append(slave)
        yield [slave.pid for slave in slaves]


@frozen
class Pair:
    """A SYNC pair and its name server."""

    system: System
    name_server: str
    master: Broker
    slave: Broker

    @property
    def pids(self) -> tuple[int, int]:
        """Of the brokers."""
        return self.master.pid, self.slave.pid


@contextmanager
def pair_of(system: System, folder: Path) -> Iterator[Pair]:
    """A SYNC pair whose sends wait for the slave, until the end of the block; its processes are killed then.

    The slave finds its master by the name server: 5.x ignores haMasterAddress.
    """
    with ExitStack() as running:
        address = running.enter_context(system.name_server(folder / "name-server"))
        brokers = []
        for role, broker_id in (("SYNC_MASTER", 0), ("SLAVE", 1)):
            # With its default of one replica, SYNC_MASTER of 5.x waits for no slave.
            broker = Broker(
                system, folder / role.lower() / "store", role=role, brokerId=broker_id,
                namesrvAddr=address, inSyncReplicas=2,
            )  # fmt: skip
            running.callback(broker.kill)
            broker.wait_ready()
            # A client that finds a topic at a slave only may not look for its master again.
            _await_registered(address, broker)
            brokers.append(broker)
        yield Pair(system, address, *brokers)


def _await_registered(name_server_address: str, broker: Broker) -> None:
    """Wait until a master has registered the topic after whose model others are made."""
    asked = request(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext_fields={"topic": "TBW102"})
    await_success(asked, name_server_address, what=f"no broker registered\n{broker.state()}")


def await_success(asked: RemotingCommand, address: str, *, what: str) -> None:
    """Ask until the answer is SUCCESS. Raises BenchmarkError."""
    deadline_s = time.monotonic() + READY_WITHIN_S
    with Wire(address) as asking:
        while (answer := asking.ask(asked)).code != ResponseCode.SUCCESS:
            if time.monotonic() > deadline_s:
                raise BenchmarkError(f"{what}: {answer}")
            time.sleep(0.1)


remove = partial(shutil.rmtree, ignore_errors=True)
"""Give the space of one round back before the next."""
