"""The controller of a run: a real one for all runs together, or a scripted one for each.

The real one is a JVM that the fault runner starts once; each run has a group of its own name there. A run
that wants it killed leaves a file in the service's folder, and the runner, which owns the process, does it:
the controller is down while there is such a file of any run.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from attrs import define, field, frozen

from tests.interop.controller import Consensus, Controllers, ask, controllers, eventually
from tests.interop.rocketmq import missing_tools, name_server_class_path
from tests.ports import free_port
from tests.processes import DIE_WITH_PARENT
from trioha.cli.rocketmq_jars import cache_folder
from trioha.controller.protocol import ControllerMetadata
from trioha.remoting.codes import RequestCode
from trioha.remoting.command import request

VERSION = "5.5.0"
SCRIPTED = "scripted"
SCAN_MS = 300
"""How often a real controller looks for brokers that are silent."""


class Controller(Protocol):
    """What a run needs of its controller."""

    name: str
    """Which it is: a version of RocketMQ, or scripted."""
    address: str

    def kill(self) -> None:
        """`kill -9`."""

    def start(self) -> None:
        """Start it again on its store; returns at once."""

    def close(self) -> None:
        """The run is over."""


def leads(address: str) -> bool | None:
    """True if the controller at `address` answers that it leads, else None. Raises TriohaError."""
    answer = ask(address, request(RequestCode.CONTROLLER_GET_METADATA_INFO))
    return ControllerMetadata.of(answer.ext_fields).is_leader or None


@define
class ScriptedController:
    """`tests.faults.controlled.scripted` as a process."""

    folder: Path
    name: str = SCRIPTED
    port: int = field(factory=free_port)
    _process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def log_file(self) -> Path:
        return self.folder / "controller.log"

    def start(self) -> None:
        """Start it on its state; returns at once."""
        assert self._process is None
        state = self.folder / "controller.json"
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *DIE_WITH_PARENT,
                    *(sys.executable, "-m", "tests.faults.controlled.scripted", str(self.port), str(state)),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def kill(self) -> None:
        if self._process is not None:
            has_ended = self._process.poll() is not None
            self._process.kill()
            self._process.wait()
            self._process = None
            assert not has_ended, f"the controller had ended by itself\n{self.log_file.read_text()}"

    def close(self) -> None:
        self.kill()


@frozen
class SharedController:
    """A run's part in the real controller of the fault runner."""

    name: str
    address: str
    folder: Path
    """Of the service."""
    run: str
    """Name of the run."""

    @property
    def _wish(self) -> Path:
        return self.folder / f"down-{self.run}"

    def kill(self) -> None:
        self._wish.touch()
        eventually("the controller is down", lambda: None if (self.folder / "up").exists() else True)

    def start(self) -> None:
        """Have it started again, if no other run wants it down."""
        self._wish.unlink(missing_ok=True)

    def close(self) -> None:
        self.start()


@define
class ControllerService:
    """The real controller, for the fault runner. Call `look` again and again."""

    folder: Path
    controllers: Controllers

    @property
    def address(self) -> str:
        return self.controllers.addresses[0]

    def look(self) -> None:
        """Kill it or start it, as the runs want it."""
        (process,) = self.controllers.processes
        is_wanted = not any(self.folder.glob("down-*"))
        if is_wanted and process.process is None:
            process.start()
            (self.folder / "up").touch()
        elif not is_wanted and process.process is not None:
            assert process.is_running, f"the controller has ended by itself\n{process.log()}"
            process.kill()
            (self.folder / "up").unlink()

    def forget(self, run: str) -> None:
        """A run is over, whatever it wished."""
        (self.folder / f"down-{run}").unlink(missing_ok=True)

    def arguments(self) -> list[str]:
        """For `tests.faults.runner`."""
        return ["--controller", f"{VERSION},{self.address},{self.folder}"]


def real_controller_is_there() -> bool:
    """Whether this machine has Java and Maven, and the jars of RocketMQ's controller: nothing is fetched."""
    return missing_tools() is None and (cache_folder() / f"{VERSION}-namesrv" / "lib.stamp").is_file()


@contextmanager
def controller_service(folder: Path) -> Iterator[ControllerService]:
    """Runs a real controller until the block ends; its files are in `folder`."""
    folder.mkdir(parents=True)
    name_server_class_path(VERSION)
    with controllers(
        VERSION,
        folder=folder,
        consensus=Consensus.JRAFT,
        scanNotActiveBrokerInterval=SCAN_MS,
    ) as running:
        service = ControllerService(folder, running)
        (folder / "up").touch()
        yield service


def open_controller(argument: str | None, *, folder: Path, run: str) -> Controller:
    """The controller of a run: the shared one that `argument` names, or a scripted one in `folder`."""
    if argument is not None:
        version, address, service = argument.split(",", 2)
        return SharedController(version, address, Path(service), run)
    controller = ScriptedController(folder)
    controller.start()
    eventually("the controller leads", lambda: leads(controller.address))
    return controller
