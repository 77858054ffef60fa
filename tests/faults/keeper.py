"""Node processes over all their starts, each in a thread of its own.

The kernel ends a node with the thread that made it: so a keeper's thread lives as long as the keeper. A slow
start delays no other node.
"""

from __future__ import annotations

import signal
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.node_process import TriohaNode

READY_WITHIN_S = 120.0
"""Longer than a node itself waits for its process, which says why that is not ready."""


class Node(TriohaNode):
    """A node process that its keeper knows as soon as it is there."""

    def __init__(self, root: Path, *, on_spawned: Callable[[subprocess.Popen[str]], None], **options: Any):
        self._on_spawned = on_spawned
        super().__init__(root, **options)

    def _wait_ready(self) -> dict[str, str]:
        self._on_spawned(self._process)
        return super()._wait_ready()


class Keeper:
    """One node over all its starts. Used by the main thread only."""

    def __init__(self, name: str, *, make: Callable[..., Node], on_ready: Callable[[Node], None]) -> None:
        self.name = name
        self.kills = 0
        self.starts = 0
        self.failed_syncs = 0
        self._make = make
        self._on_ready = on_ready
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
        self._spawned = threading.Event()
        self._process: subprocess.Popen[str] | None = None
        self._starting: Future[Node] | None = None

    @property
    def is_up(self) -> bool:
        """Whether the node is meant to run."""
        return self._starting is not None

    @property
    def ready_node(self) -> Node | None:
        """The node if it runs and is ready now."""
        starting = self._starting
        if starting is None or not starting.done() or starting.exception() is not None:
            return None
        node = starting.result()
        return node if node.is_running else None

    def start(self) -> None:
        """Begin to start the node without waiting for it."""
        assert not self.is_up, f"{self.name} is up"
        self.starts += 1
        self._spawned.clear()
        self._starting = self._thread.submit(self._start)

    def _start(self) -> Node:
        node = self._make(on_spawned=self._note)
        self._on_ready(node)
        return node

    def _note(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._spawned.set()

    def node(self) -> Node:
        """The running node, once it is ready. Raises AssertionError if it does not come up or is gone."""
        assert self._starting is not None, f"{self.name} is not up"
        node = self._starting.result(READY_WITHIN_S)
        assert node.is_running, f"{self.name} has ended by itself\n{node.log()}"
        return node

    def kill(self) -> None:
        """`kill -9`, wherever it is on its way up; returns when it is gone."""
        assert self._starting is not None, f"{self.name} is not up"
        self.kills += 1
        assert self._spawned.wait(READY_WITHIN_S), f"{self.name}: no process"
        ended_itself = self._process.poll() is not None
        if not ended_itself:
            self._process.kill()
        try:
            node = self._starting.result(READY_WITHIN_S)
        except AssertionError:
            if ended_itself:
                raise
        else:
            node.kill()
            assert not ended_itself, f"{self.name} had ended by itself\n{node.log()}"
        finally:
            self._starting = None

    def reap(self) -> None:
        """The node has killed itself, as it was armed to; returns when it is gone."""
        assert self._starting is not None, f"{self.name} is not up"
        self.kills += 1
        with suppress(AssertionError):  # it may have died on its way up
            self._starting.result(READY_WITHIN_S).wait_ended(within_s=READY_WITHIN_S)
        code = self._process.wait(READY_WITHIN_S)
        self._starting = None
        assert code == -signal.SIGKILL, f"{self.name} ended with {code}, not of the signal"

    def wait_failed(self, *, within_s: float) -> bool:
        """Whether the node ends by itself in time, as one must whose disk fails; if not, it is killed.

        Raises AssertionError if it ends with any other exit code than 2.
        """
        node = self.node()
        code = node.wait_ended(within_s=within_s)
        if code is None:
            self.kill()
            return False
        self._starting = None
        self.failed_syncs += 1
        assert code == 2, f"{self.name} ended with {code} after a sync failed\n{node.log()}"
        return True

    def wait_lock_lost(self, *, within_s: float) -> None:
        """Wait until the node has ended by itself because its lock file is not the one that it locked.

        Counts as a kill. Raises AssertionError if it goes on, or ends with any other exit code than 1.
        """
        node = self.node()
        code = node.wait_ended(within_s=within_s)
        assert code is not None, f"{self.name} goes on without its lock file\n{node.log()}"
        self._starting = None
        self.kills += 1
        assert code == 1, f"{self.name} ended with {code} without its lock file\n{node.log()}"

    def stop(self) -> None:
        """SIGTERM. Raises AssertionError unless it ends with 0 and in time."""
        node = self.node()
        node.stop()  # kills it if that takes too long
        self._starting = None

    def close(self) -> None:
        """End every process, also after a failure."""
        try:
            if self.is_up:
                # Its end, and whether it had come, was judged before.
                with suppress(AssertionError):
                    self.kill()
        finally:
            self._thread.shutdown()
