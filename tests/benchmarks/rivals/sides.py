"""The two rivals, trioha and the real RocketMQ store, with one interface.

Both run with their defaults but for what has to be equal: ports, folders, the size of log files, heartbeats.
RocketMQ's store goes without timer wheel and compaction, which nothing here needs.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from attrs import frozen

from tests.benchmarks.rivals.driver import END_WITHIN_S, Driver, DriverError
from tests.benchmarks.rivals.machine import cpu_s
from tests.interop.java import LOGBACK, OPENED
from tests.interop.rocketmq import class_path, home_flags, java_tool
from tests.processes import DIE_WITH_PARENT

REPOSITORY = Path(__file__).parents[3]
JAVA_SOURCE = Path(__file__).parents[1] / "java" / "BenchDriver.java"
RAW_SENDER = "raw sender"
READY_WITHIN_S = 60.0
OPEN_WITHIN_S = 300.0
"""With the queues built: RocketMQ makes a file for each of 10,000 queues, and syncs all when it closes."""
CLOSE_WITHIN_S = 300.0

# As a server runs: both compilers, the collector that the JVM chooses for this machine, a fixed heap.
JVM_FLAGS = [
    "-Xms512m", "-Xmx512m", "-XX:MaxDirectMemorySize=512m", "-Xshare:auto", *OPENED,
]  # fmt: skip

_NODE_SETTINGS: dict[str, object] = {
    "brokerClusterName": "bench",
    "brokerName": "bench",
    "brokerIP1": "127.0.0.1",
    "brokerIP2": "127.0.0.1",
    "haListenPort": 0,
    "haHousekeepingInterval": 60000,
}


@frozen
class Master:
    """A master whose driver takes commands for it."""

    driver: Driver
    store: str
    ha_port: int
    max_offset: int
    opening: Mapping[str, Any]
    """What it was opened with."""

    def reopen(self) -> dict[str, Any]:
        """Open the closed store again, in the same process; what that says."""
        return self.driver.call("open", within_s=OPEN_WITHIN_S, store=self.store, **self.opening)

    def call(self, command: str, **fields: Any) -> dict[str, Any]:
        """Carry out a command on this store."""
        return self.driver.call(command, store=self.store, **fields)

    def close(self, *, remove: bool = False) -> None:
        """A clean stop, after which the store may be removed; the driver stays."""
        self.driver.call("close", store=self.store, within_s=CLOSE_WITHIN_S, remove=remove)


@frozen
class Started:
    """A start of a broker."""

    ready_s: float
    """From starting its process until it serves."""
    cpu_s: float
    """User and system time of the process until then."""


class Side(ABC):
    """One of the rivals."""

    name: str

    @abstractmethod
    def open_master(self, root: Path, *, file_bytes: int) -> Master:
        """A SYNC_MASTER on `root`, in a process of its own that ends with this side."""

    @abstractmethod
    def slaves(self, folder: Path, *, ha_port: int, number: int, file_bytes: int) -> Any:
        """While the context runs: so many slaves of the master at `ha_port`; gives their process ids."""

    @abstractmethod
    def start(self, root: Path, *, file_bytes: int) -> Started:
        """Start a whole broker on `root`, and stop it cleanly when it serves."""

    @abstractmethod
    def close(self) -> None:
        """End every process of this side."""


class TriohaSide(Side):
    """trioha as it is installed for this interpreter."""

    name = "trioha"
    slave_settings: Mapping[str, object] = {}
    """What its slaves are given beyond what all nodes are."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ids = count(1)
        self._drivers: list[Driver] = []

    def open_master(self, root: Path, *, file_bytes: int) -> Master:
        driver = Driver(
            [sys.executable, "-m", "tests.benchmarks.rivals.trioha_master"],
            name=f"trioha-master-{next(self._ids)}",
            folder=self._folder,
            environment={"PYTHONPATH": str(REPOSITORY)},
        )
        self._drivers.append(driver)
        config = {"storePathRootDir": str(root), "mappedFileSizeCommitLog": file_bytes}
        opening = {"config": config}
        opened = driver.call("open", within_s=OPEN_WITHIN_S, store=root.name, **opening)
        return Master(driver, root.name, opened["haPort"], opened["maxOffset"], opening)

    @contextmanager
    def slaves(self, folder: Path, *, ha_port: int, number: int, file_bytes: int) -> Iterator[list[int]]:
        """Each is a `trioha node` process."""
        with ExitStack() as running:
            nodes = []
            for index in range(number):
                root = folder / f"slave-{index}"
                settings = {
                    "brokerRole": "SLAVE",
                    "brokerId": 1 + index,
                    "haMasterAddress": f"127.0.0.1:{ha_port}",
                    "mappedFileSizeCommitLog": file_bytes,
                    **self.slave_settings,
                }
                nodes.append(running.enter_context(_node(root, settings)))
            for node in nodes:
                _await_ready(node)
            yield [node.pid for node in nodes]

    def start(self, root: Path, *, file_bytes: int) -> Started:
        settings = {"brokerRole": "ASYNC_MASTER", "brokerId": 0, "mappedFileSizeCommitLog": file_bytes}
        began = time.perf_counter()
        with _node(root, settings) as node:
            _await_ready(node)
            return Started(time.perf_counter() - began, cpu_s(node.pid))

    def close(self) -> None:
        for driver in self._drivers:
            driver.close()


class FrameCheckingSide(TriohaSide):
    """trioha with slaves that check frames and where records begin, as `trioha.haVerify=frame` has it."""

    name = "trioha, haVerify=frame"
    slave_settings: Mapping[str, object] = {"trioha.haVerify": "frame"}


@contextmanager
def _node(root: Path, settings: dict[str, object]) -> Iterator[subprocess.Popen[str]]:
    """A `trioha node` process, ended by SIGTERM."""
    root.parent.mkdir(parents=True, exist_ok=True)
    config = root.with_name(f"{root.name}.conf")
    settings = {
        **_NODE_SETTINGS,
        "listenPort": 0,
        "storePathRootDir": root,
        "trioha.bindAddress": "127.0.0.1",
        **settings,
    }
    config.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    with root.with_name(f"{root.name}.log").open("wb") as log:
        process = subprocess.Popen(
            [*DIE_WITH_PARENT, sys.executable, "-m", "trioha", "node", "-c", str(config)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=root.parent,
            # Bytecode may be kept, as it is where trioha is installed.
            env={name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"},
        )
    assert process.stdout is not None
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(END_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def _await_ready(node: subprocess.Popen[str]) -> None:
    """Wait for the line with which a node says that it serves."""
    assert node.stdout is not None
    readable, _, _ = select.select([node.stdout], [], [], READY_WITHIN_S)
    line = node.stdout.readline() if readable else ""
    if not line.startswith("ready "):
        raise DriverError(f"trioha node {node.pid} said {line!r} instead of ready")


class JavaSide(Side):
    """RocketMQ 5.x as published, in JVMs with the flags of a server."""

    def __init__(self, folder: Path, *, version: str) -> None:
        """Fetches RocketMQ if it is not there yet and compiles the driver; takes minutes the first time."""
        self.name = f"RocketMQ {version}"
        self._folder = folder
        self._ids = count(1)
        self._drivers: list[Driver] = []
        self._slave_driver: Driver | None = None
        self._class_path = compiled(folder / "classes", version, JAVA_SOURCE)

    def _driver(self, name: str) -> Driver:
        home = self._folder / "home"
        home.mkdir(parents=True, exist_ok=True)
        logback = self._folder / "logback.xml"
        logback.write_text(LOGBACK)
        driver = Driver(
            [
                java_tool("java"), *JVM_FLAGS,
                *home_flags(home),
                f"-Drmq.logback.configurationFile={logback}", f"-Dlogback.configurationFile={logback}",
                "-Drocketmq.client.logUseSlf4j=true",
                "-cp", self._class_path, "interop.BenchDriver",
            ],
            name=f"rocketmq-{name}-{next(self._ids)}",
            folder=self._folder,
        )  # fmt: skip
        self._drivers.append(driver)
        return driver

    @staticmethod
    def _config(root: Path, *, role: str, broker_id: int, file_bytes: int) -> dict[str, object]:
        return {
            **_NODE_SETTINGS,
            "brokerRole": role,
            "brokerId": broker_id,
            "storePathRootDir": str(root),
            "storePathCommitLog": str(root / "commitlog"),
            "mappedFileSizeCommitLog": file_bytes,
            "inSyncReplicas": 1 if role == "ASYNC_MASTER" else 2,
            # A full disk is none of the benchmark's business.
            "diskMaxUsedSpaceRatio": 99,
            "cleanFileForciblyEnable": False,
            "fileReservedTime": 720,
            "timerWheelEnable": False,
            "enableCompaction": False,
        }

    def open_master(self, root: Path, *, file_bytes: int) -> Master:
        driver = self._driver("master")
        config = self._config(root, role="SYNC_MASTER", broker_id=0, file_bytes=file_bytes)
        opening = {"config": config, "haMasterAddress": None}
        opened = driver.call("open", within_s=OPEN_WITHIN_S, store=root.name, **opening)
        return Master(driver, root.name, opened["haPort"], opened["maxOffset"], opening)

    @contextmanager
    def slaves(self, folder: Path, *, ha_port: int, number: int, file_bytes: int) -> Iterator[list[int]]:
        """Stores in one JVM, the same every time, so that its code is compiled when it counts.

        Their files are removed when they close, with the memory of their maps.
        """
        if self._slave_driver is None:
            self._slave_driver = self._driver("slaves")
        driver = self._slave_driver
        driver.resume()
        names = [f"{next(self._ids)}" for _ in range(number)]
        try:
            for index, name in enumerate(names):
                config = self._config(
                    folder / f"slave-{index}", role="SLAVE", broker_id=1 + index, file_bytes=file_bytes
                )
                # It reports for the first time after a heartbeat interval; the master is paused until then.
                config["haSendHeartbeatInterval"] = 500
                driver.call("open", store=name, config=config, haMasterAddress=f"127.0.0.1:{ha_port}")
            yield [driver.pid]
        finally:
            for closing in [driver.submit("close", store=name, remove=True) for name in names]:
                closing.result(CLOSE_WITHIN_S)
            driver.pause()

    def start(self, root: Path, *, file_bytes: int) -> Started:
        config = self._config(root, role="ASYNC_MASTER", broker_id=0, file_bytes=file_bytes)
        began = time.perf_counter()
        driver = self._driver("broker")
        driver.call("broker", store=root.name, config=config, within_s=READY_WITHIN_S)
        started = Started(time.perf_counter() - began, cpu_s(driver.pid))
        driver.call("close", store=root.name, within_s=CLOSE_WITHIN_S)
        driver.close()
        self._drivers.remove(driver)
        return started

    def close(self) -> None:
        for driver in self._drivers:
            driver.close()


def open_raw_sender(folder: Path, log: Path, *, log_bytes: int) -> Master:
    """A process that sends the first bytes of a log's file to slaves and does nothing else."""
    driver = Driver(
        [sys.executable, "-m", "tests.benchmarks.rivals.raw_sender"],
        name="raw-sender",
        folder=folder,
        environment={"PYTHONPATH": str(REPOSITORY)},
    )
    opened = driver.call("open", path=str(log), bytes=log_bytes)
    return Master(driver, RAW_SENDER, opened["haPort"], opened["maxOffset"], {})


def compiled(classes: Path, version: str, source: Path) -> str:
    """The class path of a driver, which is compiled beside RocketMQ's jars and the classes of the tests.

    Raises DriverError.
    """
    base = class_path(version)
    classes.mkdir(parents=True)
    done = subprocess.run(
        [
            java_tool("javac"), "-proc:none", "-encoding", "UTF-8", "-cp", base, "-d", str(classes),
            str(source),
        ],
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise DriverError(f"javac: {done.stdout}{done.stderr}")
    return f"{classes}{os.pathsep}{base}"


def remove(folder: Path) -> None:
    """Give the space of one round back before the next."""
    shutil.rmtree(folder, ignore_errors=True)
