"""The nodes of one run, with their stores, logs, recordings and archive.

Theory of operation. The main thread does one thing after the other and may block. Each node has a thread of
its own (`Keeper`) in which its process is made and awaited: a slow start delays no other node; the thread
lives as long as the run, because the kernel ends a node with the thread that made it. Links, producers and
peers are trio tasks in one more thread (`TrioThread`), so that they go on while the others block.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

from tests.faults.archives import NodeArchive
from tests.faults.invariants import check_clean_store, check_logs_equal, check_promises
from tests.faults.keeper import Keeper, Node
from tests.faults.producer import Promise
from tests.faults.rebuilt import Shape, check_rebuilt
from trioha.store.consume_queues import ConsumeQueueSettings
from trioha.store.dispatch_settings import DispatchSettings
from trioha.store.index_file import IndexShape
from trioha.store.tags import DelayLevels

QUEUES = ConsumeQueueSettings(file_bytes=1000)
"""Files of 50 entries, of which a run fills several."""
INDEX = IndexShape(hash_slots=100, index_num=400)
DELAY_LEVELS = "1h 2h"
"""No message that strangers had stored for later comes during a run, or while it stops."""
POLL_S = 0.05


class Nodes(ABC):
    """A context manager that leaves no process and no thread behind.

    Methods belong to the main thread. They raise AssertionError where a node does not do what it must.
    """

    MENDS_AS_PLANNED: ClassVar[bool]
    """Whether a fault that began late is mended when it was planned, or `duration_s` after its begin."""

    def __init__(
        self, plan: Any, folder: Path, *, programs: Mapping[str, Sequence[str]] | None = None
    ) -> None:
        """`programs` are what nodes, and the archiver (`archiver`), run instead of `trioha`: those of planted
        defects."""
        self.plan = plan
        self.folder = folder
        self.violations: list[str] = []
        """What was found out while the run went on."""
        self._programs = programs or {}
        self._archive: NodeArchive | None = None
        self._stack = ExitStack()
        """Closed when all nodes have ended."""
        self.keepers = {
            name: Keeper(name, make=partial(self._make, name), on_ready=partial(self._on_ready, name))
            for name in plan.setup.nodes
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with self._stack:
            for keeper in self.keepers.values():
                keeper.close()
            if self._archive is not None:
                self._archive.close()

    # -- what there is -------------------------------------------------------------------------------------

    def store(self, name: str) -> Path:
        return self.folder / name

    def recordings(self, name: str) -> Path:
        return self.folder / "recordings" / name

    def log_file(self, name: str) -> Path:
        """What a node wrote to stderr, over all its starts."""
        return self.folder / f"{name}.log"

    @property
    def log_files(self) -> list[Path]:
        """Of all nodes, and of the archiver."""
        archiver = [] if self._archive is None else [self._archive.log_file]
        return [*map(self.log_file, self.keepers), *archiver]

    def _disk_file(self, name: str) -> Path:
        return self.folder / f"{name}.disk"

    @property
    @abstractmethod
    def promises(self) -> list[Promise]:
        """What was answered PUT_OK so far."""

    @property
    @abstractmethod
    def statuses(self) -> dict[str, int]:
        """Puts by their answers."""

    @abstractmethod
    def figures(self) -> dict[str, Any]:
        """For the report."""

    # -- nodes ---------------------------------------------------------------------------------------------

    @abstractmethod
    def _make(self, name: str, *, on_spawned: Callable[[subprocess.Popen[str]], None]) -> Node:
        """Start a node."""

    @abstractmethod
    def _on_ready(self, name: str, node: Node) -> None:
        """In a keeper's thread: a node is up."""

    def _options(self, name: str) -> dict[str, Any]:
        """What all nodes are set to."""
        setup = self.plan.setup
        return {
            "program": self._programs.get(name, [sys.executable, "-m", "trioha"]),
            "mappedFileSizeCommitLog": setup.file_bytes,
            "mappedFileSizeConsumeQueue": QUEUES.file_bytes,
            "maxHashSlotNum": INDEX.hash_slots,
            "maxIndexNum": INDEX.index_num,
            "maxMessageSize": 60_000,
            "messageDelayLevel": DELAY_LEVELS,
            "haSendHeartbeatInterval": 200,
            "haHousekeepingInterval": setup.housekeeping_ms,
            "haTransferBatchSize": setup.transfer_batch_bytes,
            "slaveTimeout": setup.slave_timeout_ms,
            "trioha.recordDir": self.recordings(name),
        }

    def start(self, name: str) -> None:
        self.keepers[name].start()

    def stop(self, name: str) -> None:
        """SIGTERM, and a clean end."""
        self.keepers[name].stop()
        self._ended(name, is_clean=True)
        assert not (self.store(name) / "abort").exists(), f"{name}: abort is there after a clean stop"

    @abstractmethod
    def _ended(self, name: str, *, is_clean: bool) -> None:
        """A node has ended: is what it left right?"""

    def hang(self, name: str) -> None:
        self.keepers[name].node().hang()

    def resume(self, name: str) -> None:
        self.keepers[name].node().resume()

    def pause(self, seconds: float) -> None:
        """Let the others go on for a while."""
        time.sleep(seconds)

    def wait(self, holds: Callable[[], object], what: Callable[[], object], within_s: float) -> None:
        """Wait for something. Raises AssertionError after `within_s`, with what there is in its place."""
        deadline_s = time.monotonic() + within_s
        while not holds():
            assert time.monotonic() < deadline_s, f"not within {within_s:.0f} s: {what()}"
            self.pause(POLL_S)

    # -- archive -------------------------------------------------------------------------------------------

    def _begin_archive(self) -> None:
        plan = self.plan.archive
        if plan is not None:
            program = tuple(self._programs.get("archiver", ()))
            store = self.store(plan.node)
            self._archive = NodeArchive(plan, store=store, folder=self.folder, program=program)
            self._archive.start()

    def restart_archiver(self) -> None:
        self._archive.restart()

    def finish_archive(self, end_offset: int) -> list[str]:
        """Archive the rest of a store whose node has stopped, and restore it; what differs."""
        if self._archive is None:
            return []
        return self._archive.finish(end_offset=end_offset, file_bytes=self.plan.setup.file_bytes)

    # -- the course of a run -------------------------------------------------------------------------------

    @abstractmethod
    def begin(self) -> None:
        """Start all nodes and the load, and wait until all of them take part."""

    @abstractmethod
    def settle(self) -> int:
        """Mend everything, end the load, and wait until all are equal; returns the end of the log."""

    @abstractmethod
    def end(self) -> None:
        """Stop all nodes, each cleanly."""

    def check_end(self, end_offset: int) -> list[str]:
        """All that must hold once every node was stopped cleanly with equal logs."""
        file_bytes = self.plan.setup.file_bytes
        stores = list(map(self.store, self.keepers))
        shape = Shape(
            log_file_bytes=file_bytes,
            queues=QUEUES,
            index=INDEX,
            dispatch=DispatchSettings(delay_levels=DelayLevels(DELAY_LEVELS)),
        )
        violations = check_logs_equal(stores, end_offset=end_offset)
        violations += check_promises(self.promises, stores, copies=len(stores), when="at the end")
        for store in stores:
            violations += check_rebuilt(store, shape)
            violations += check_clean_store(store, file_bytes=file_bytes, end_offset=end_offset)
        return violations + self._check_end(stores, end_offset)

    @abstractmethod
    def _check_end(self, stores: list[Path], end_offset: int) -> list[str]:
        """What must hold besides."""


def processes_naming(folder: Path) -> list[int]:
    """Ids of processes whose command line names a file in `folder`: none may be left after a run."""
    needle = os.fsencode(f"{folder}{os.sep}")
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if needle in path.read_bytes() and int(path.parent.name) != os.getpid():
                found.append(int(path.parent.name))
        except OSError:
            continue  # it has just ended
    return found


def exit_on_sigterm() -> None:
    """Let SIGTERM unwind the stack, so that everything is cleaned up."""

    def leave(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, leave)
