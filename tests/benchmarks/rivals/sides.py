"""The two rivals, trioha and the real RocketMQ store, with one interface.

Both run with their defaults but for what has to be equal: ports, folders, the size of log files, heartbeats.
RocketMQ's store goes without timer wheel and compaction, which nothing here needs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Final

from attrs import frozen

from tests.benchmarks.rivals.driver import Driver, DriverError
from tests.benchmarks.rivals.machine import cpu_s
from tests.interop.java import LOGBACK, OPENED
from tests.interop.rocketmq import class_path, home_flags, java_tool
from tests.node_process import TriohaNode

REPOSITORY: Final = Path(__file__).parents[3]
JAVA_SOURCES: Final = Path(__file__).parents[1] / "java"
RAW_SENDER: Final = "raw sender"
READY_WITHIN_S: Final = 60.0
OPEN_WITHIN_S: Final = 300.0
CLOSE_WITHIN_S: Final = 300.0

# As a server runs: both compilers, the collector that the JVM chooses for this machine, a fixed heap.
JVM_FLAGS: Final = [
    "-Xms512m", "-Xmx512m", "-XX:MaxDirectMemorySize=512m", "-Xshare:auto", *OPENED,
]  # fmt: skip
NODE_SETTINGS: Final[dict[str, object]] = {
    "mappedFileSizeConsumeQueue": 6_000_000,
    "maxHashSlotNum": 5_000_000,
    "maxIndexNum": 20_000_000,
    "maxMessageSize": 4 << 20,
    "haSendHeartbeatInterval": 5000,
    # A master stands still while others work.
    "haHousekeepingInterval": 60_000,
}
"""The defaults of a node where `TriohaNode` has small files for tests."""
ROCKETMQ_SETTINGS: Final[dict[str, object]] = {
    # How full the disk is must not matter.
    "diskMaxUsedSpaceRatio": 99,
    "cleanFileForciblyEnable": "false",
    "fileReservedTime": 720,
    "timerWheelEnable": "false",
    "enableCompaction": "false",
}

# Bytecode is kept, as it is where trioha is installed.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


@frozen
class Master:
    """A master whose driver takes commands for it."""

    driver: Driver
    store: str
    ha_port: int
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

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ids = count(1)
        self._drivers: list[Driver] = []

    @abstractmethod
    def open_master(self, root: Path, *, file_bytes: int) -> Master:
        """A SYNC_MASTER on `root`, in a process of its own that ends with this side."""

    @abstractmethod
    def slaves(self, folder: Path, *, ha_port: int, number: int, file_bytes: int) -> Any:
        """While the context runs: so many slaves of the master at `ha_port`; gives their process ids."""

    @abstractmethod
    def start(self, root: Path, *, file_bytes: int) -> Started:
        """Start a whole broker on `root`, and stop it cleanly when it serves."""

    def close(self) -> None:
        """End every process of this side."""
        for driver in self._drivers:
            driver.close()


class TriohaSide(Side):
    """trioha as it is installed for this interpreter."""

    def __init__(self, folder: Path, *, name: str = "trioha", **slave_settings: object) -> None:
        super().__init__(folder)
        self.name = name
        self._slave_settings = slave_settings
        """What its slaves are given beyond what all nodes are."""

    def open_master(self, root: Path, *, file_bytes: int) -> Master:
        driver = _python_driver("trioha_master", name=f"master-{next(self._ids)}", folder=self._folder)
        self._drivers.append(driver)
        opening = {"root": str(root), "fileBytes": file_bytes}
        opened = driver.call("open", within_s=OPEN_WITHIN_S, store=root.name, **opening)
        return Master(driver, root.name, opened["haPort"], opening)

    @contextmanager
    def slaves(self, folder: Path, *, ha_port: int, number: int, file_bytes: int) -> Iterator[list[int]]:
        """Each is a `trioha node` process."""
        with ExitStack() as running:
            nodes = []
            for index in range(number):
                node = TriohaNode(
                    folder / f"slave-{index}", role="SLAVE", ha_master_address=f"127.0.0.1:{ha_port}",
                    **{**NODE_SETTINGS, "brokerId": 1 + index, "mappedFileSizeCommitLog": file_bytes},
                    **self._slave_settings,
                )  # fmt: skip
                running.callback(node.stop)
                nodes.append(node)
            yield [node.pid for node in nodes]

    def start(self, root: Path, *, file_bytes: int) -> Started:
        settings = {**NODE_SETTINGS, "mappedFileSizeCommitLog": file_bytes}
        began = time.perf_counter()
        node = TriohaNode(root, role="ASYNC_MASTER", **settings)
        started = Started(time.perf_counter() - began, cpu_s(node.pid))
        node.stop()
        return started


class JavaSide(Side):
    """RocketMQ 5.x as published, in JVMs with the flags of a server."""

    def __init__(self, folder: Path, *, version: str) -> None:
        """Fetches RocketMQ if it is not there yet and compiles the driver; takes minutes the first time."""
        super().__init__(folder)
        self.name = f"RocketMQ {version}"
        self._slave_driver: Driver | None = None
        self._class_path = compiled(folder / "classes", version, "BenchDriver")

    def _driver(self, name: str) -> Driver:
        driver = java_driver(
            "BenchDriver", self._class_path, name=f"rocketmq-{name}-{next(self._ids)}", folder=self._folder
        )
        self._drivers.append(driver)
        return driver

    @staticmethod
    def _config(root: Path, *, role: str, broker_id: int, file_bytes: int) -> dict[str, object]:
        return {
            **ROCKETMQ_SETTINGS,
            "brokerClusterName": "bench",
            "brokerName": "bench",
            "brokerIP1": "127.0.0.1",
            "brokerIP2": "127.0.0.1",
            "haListenPort": 0,
            "haHousekeepingInterval": 60000,
            "brokerRole": role,
            "brokerId": broker_id,
            "storePathRootDir": str(root),
            "storePathCommitLog": str(root / "commitlog"),
            "mappedFileSizeCommitLog": file_bytes,
            "inSyncReplicas": 1 if role == "ASYNC_MASTER" else 2,
        }

    def open_master(self, root: Path, *, file_bytes: int) -> Master:
        driver = self._driver("master")
        config = self._config(root, role="SYNC_MASTER", broker_id=0, file_bytes=file_bytes)
        opening = {"config": config, "haMasterAddress": None}
        opened = driver.call("open", within_s=OPEN_WITHIN_S, store=root.name, **opening)
        return Master(driver, root.name, opened["haPort"], opening)

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


def open_raw_sender(folder: Path, log: Path, *, log_bytes: int) -> Master:
    """A process that sends the first bytes of a log's file to slaves and does nothing else."""
    driver = _python_driver("raw_sender", name="raw-sender", folder=folder)
    opened = driver.call("open", path=str(log), bytes=log_bytes)
    return Master(driver, RAW_SENDER, opened["haPort"], {})


def _python_driver(module: str, *, name: str, folder: Path) -> Driver:
    return Driver(
        [sys.executable, "-m", f"tests.benchmarks.rivals.{module}"],
        name=name,
        folder=folder,
        environment={"PYTHONPATH": str(REPOSITORY)},
    )


def java_command(folder: Path, path: str, *arguments: str) -> list[str]:
    """A JVM with the flags of a server, whose logs and home are in `folder`."""
    home = folder / "home"
    home.mkdir(parents=True, exist_ok=True)
    logback = folder / "logback.xml"
    logback.write_text(LOGBACK)
    return [
        java_tool("java"), *JVM_FLAGS, *home_flags(home),
        f"-Drmq.logback.configurationFile={logback}", f"-Dlogback.configurationFile={logback}",
        "-Drocketmq.client.logUseSlf4j=true", "-cp", path, *arguments,
    ]  # fmt: skip


def java_driver(driver: str, path: str, *, name: str, folder: Path) -> Driver:
    """A JVM that runs one of the drivers of `java/`."""
    return Driver(java_command(folder, path, f"interop.{driver}"), name=name, folder=folder)


def compiled(classes: Path, version: str, driver: str) -> str:
    """The class path of a driver of `java/`, compiled beside RocketMQ's jars and the classes of the tests.

    Raises DriverError.
    """
    base = class_path(version)
    classes.mkdir(parents=True)
    done = subprocess.run(
        [
            java_tool("javac"), "-proc:none", "-encoding", "UTF-8", "-cp", base, "-d", str(classes),
            str(JAVA_SOURCES / f"{driver}.java"),
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
