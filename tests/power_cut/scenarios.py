"""What nodes promise, and where it is looked for after a power cut.

Each scenario is one class. Its nodes keep what they promise on a disk (`Disk`), and go on after each cut.
What a cut left is recovered by a node that starts on it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar, Final, Self

from attrs import frozen

from tests.faults.archives import log_differences
from tests.faults.controlled.controllers import ScriptedController
from tests.faults.controlled.invariants import read_epochs
from tests.faults.invariants import check_promises, held_messages
from tests.faults.metadata import Offsets, check_offsets, read_file, read_offsets
from tests.faults.nodes import INDEX, QUEUES
from tests.faults.producer import KEY_PROPERTY, LoadSettings, Promise
from tests.faults.rebuilt import Shape, check_rebuilt
from tests.interop.controller import ask, broker_settings, eventually
from tests.node_process import TriohaNode
from tests.ports import free_port
from tests.power_cut.loads import Load, Requests, delayed_message, topic_or_group
from tests.processes import DIE_WITH_PARENT
from tests.waiting import wait_until
from trioha.controller.bodies import EpochCache
from trioha.errors import StoreError
from trioha.metadata.history import segments_of
from trioha.remoting.codes import RequestCode
from trioha.remoting.command import request
from trioha.store.dispatch_settings import DispatchSettings
from trioha.store.message_properties import parse_properties
from trioha.store.read_only_commit_log import ReadOnlyCommitLog
from trioha.store.record import Record
from trioha.store.tags import DelayLevels

TRIOHA: Final = (sys.executable, "-m", "trioha")
PER_CUT: Final = 30
"""So much is acknowledged before each cut at least."""
STOPPED_WITHIN_S: Final = 60.0
"""A thread that waits for its disk stops when it has waited."""
DELAY_LEVELS: Final = "1s 2s"
DELAYED_TOPIC: Final = "TopicDelayed"


@frozen
class Found:
    """What was looked for on a disk after a power cut."""

    what: str
    looked_for: int
    missing: list[str]
    """A sentence for each thing, or for all of a kind."""


class Scenario(ABC):
    """Nodes with what they do on one disk. A context manager that leaves no process behind."""

    name: ClassVar[str]
    file_bytes: ClassVar[int] = 1 << 20
    """mappedFileSizeCommitLog."""

    def __init__(self, disk: Path, scratch: Path, *, program: Sequence[str] = TRIOHA) -> None:
        """`scratch` is a folder beside the disk; `program` is what runs in place of `trioha`."""
        self.disk = disk
        self.scratch = scratch
        self.program = program
        self.stack = ExitStack()

    def __enter__(self) -> Self:
        try:
            self.begin()
        except BaseException:
            self.stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()

    @abstractmethod
    def begin(self) -> None:
        """Start nodes and their load."""

    @abstractmethod
    def pids(self) -> list[int]:
        """The processes that write to the disk."""

    @abstractmethod
    def work(self) -> None:
        """Return when more has been acknowledged since the last call."""

    @abstractmethod
    def acknowledged(self) -> Any:
        """What was acknowledged so far, and must be on the disk. Its processes are stopped."""

    @abstractmethod
    def look(self, disk: Path, acknowledged: Any) -> list[Found]:
        """Look for it on a disk after the power cut."""

    # -- what scenarios share ------------------------------------------------------------------------------

    def options(self) -> dict[str, Any]:
        """Settings of every node."""
        return {
            "mappedFileSizeCommitLog": self.file_bytes,
            "mappedFileSizeConsumeQueue": QUEUES.file_bytes,
            "maxHashSlotNum": INDEX.hash_slots,
            "maxIndexNum": INDEX.index_num,
            "maxMessageSize": 60_000,
            "messageDelayLevel": DELAY_LEVELS,
            "flushDiskType": "SYNC_FLUSH",
            "flushConsumerOffsetInterval": 200,
            "flushDelayOffsetInterval": 200,
            "trioha.metadataHistoryInterval": 0,
        }

    def start(self, root: Path, **settings: Any) -> TriohaNode:
        """Start a node that ends with the scenario."""
        node = TriohaNode(root, **{"program": self.program, **self.options(), **settings})
        self.stack.callback(_end, node)
        return node

    def load(self, *, store: Path | None = None, **settings: Any) -> Load:
        """Start a producer that ends with the scenario."""
        defaults: dict[str, Any] = {"concurrency": 8, "rate": 300.0, "body_bytes_max": 4000}
        load = Load(LoadSettings(**{**defaults, **settings}), seed=1, store=store)
        self.stack.callback(load.close)
        return load

    def recover(self, root: Path, then: Callable[[TriohaNode], None] = lambda _: None) -> None:
        """Start a healthy node on what a power cut left, as master, and stop it cleanly."""
        log_path = self.scratch / "recovered.log"
        node = TriohaNode(root, role="ASYNC_MASTER", log_path=log_path, **self.options())
        try:
            then(node)
        except BaseException:
            node.kill()
            raise
        node.stop()

    def look_for_messages(self, root: Path, promises: Sequence[Promise]) -> list[Found]:
        """Each message is in the log at its offset; queues and index are what the log gives."""
        shape = Shape(
            log_file_bytes=self.file_bytes,
            queues=QUEUES,
            index=INDEX,
            dispatch=DispatchSettings(delay_levels=DelayLevels(DELAY_LEVELS)),
        )
        return [
            Found("SEND_OK", len(promises), check_promises(promises, [root], copies=1, when="after the cut")),
            Found("queues and index", 1, check_rebuilt(root, shape)),
        ]


def _end(node: TriohaNode) -> None:
    if node.is_running:
        node.kill()


class Stopped:
    """Processes do not go on inside: each of their threads is stopped (SIGSTOP)."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._pids = pids

    def __enter__(self) -> None:
        for pid in self._pids:
            os.kill(pid, signal.SIGSTOP)
        wait_until(self._is_stopped, f"{self._pids} are stopped", within_s=STOPPED_WITHIN_S)

    def _is_stopped(self) -> bool:
        stats = (path.read_text() for pid in self._pids for path in Path(f"/proc/{pid}/task").glob("*/stat"))
        # The state follows the command's name, which stands in parentheses.
        return all(stat.rpartition(")")[2].split()[0] in "TZ" for stat in stats)

    def __exit__(self, *_: object) -> None:
        for pid in self._pids:
            os.kill(pid, signal.SIGCONT)


# -- messages ----------------------------------------------------------------------------------------------


@frozen
class _Acknowledged:
    """What a master acknowledged to a producer and a consumer."""

    promises: list[Promise]
    offsets: Offsets
    history: dict[str, list[bytes]]
    """Lines of the metadata's history by segment, those that were surely written."""


class Put(Scenario):
    """SEND_OK with SYNC_FLUSH; offsets and the history of metadata up to the write before the last one."""

    name = "put"
    sent: ClassVar[dict[str, Any]] = {}

    def begin(self) -> None:
        self.root = self.disk / "store"
        self.node = self.start(self.root, role="ASYNC_MASTER")
        self.sender = self.load(store=self.root, **self.sent)
        self.sender.use(self.node.listen_address)

    def pids(self) -> list[int]:
        return [self.node.pid]

    def work(self) -> None:
        enough = len(self.sender.producer.promises) + PER_CUT
        before = self.sender.written_offsets()
        wait_until(
            lambda: len(self.sender.producer.promises) >= enough and self.sender.written_offsets() != before,
            f"{PER_CUT} more messages are SEND_OK and offsets are written: {self.sender.producer.statuses}",
        )

    def acknowledged(self) -> _Acknowledged:
        return _Acknowledged(
            promises=list(self.sender.producer.promises),
            offsets=self.sender.written_offsets(),
            history=_written_history(self.root),
        )

    def look(self, disk: Path, acknowledged: _Acknowledged) -> list[Found]:
        root = disk / "store"
        held = read_offsets(root)
        history = _history(root)
        lost = [
            f"history: {number - kept} of {number} lines of {name}"
            for name, lines in acknowledged.history.items()
            if (kept := _common(history.get(name, []), lines)) < (number := len(lines))
        ]
        self.recover(root)
        return [
            *self.look_for_messages(root, acknowledged.promises),
            Found(
                "consumerOffset.json",
                len(acknowledged.offsets),
                check_offsets(held, acknowledged.offsets, where="consumerOffset.json"),
            ),
            Found("metadata history", sum(map(len, acknowledged.history.values())), lost),
        ]


class RollOver(Put):
    """The same with log files of 64 KiB: each second new files are made."""

    name = "roll-over"
    file_bytes = 64 << 10
    sent: ClassVar = {"body_bytes_max": 30_000}


class CleanStop(Put):
    """The power is cut right after a clean stop: everything is there."""

    name = "clean stop"

    def pids(self) -> list[int]:
        return []

    def work(self) -> None:
        if not self.node.is_running:
            self.node = self.start(self.root, role="ASYNC_MASTER")
            self.sender = self.load(store=self.root)
            self.sender.use(self.node.listen_address)
        super().work()
        self.sender.finish()
        self.node.stop()

    def acknowledged(self) -> _Acknowledged:
        producer = self.sender.producer
        return _Acknowledged(
            promises=list(producer.promises), offsets=dict(producer.consumed), history=_history(self.root)
        )

    def look(self, disk: Path, acknowledged: _Acknowledged) -> list[Found]:
        left = [f"{name} is there" for name in ("abort",) if (disk / "store" / name).exists()]
        return [*super().look(disk, acknowledged), Found("no abort", 1, left)]


def _history(root: Path) -> dict[str, list[bytes]]:
    segments = segments_of(root / "config" / "history")
    return {path.name: path.read_bytes().splitlines(keepends=True) for path in segments}


def _written_history(root: Path) -> dict[str, list[bytes]]:
    """All lines but the last one, which may not be on the disk yet: the next line is written after that."""
    history = _history(root)
    if history:
        history[max(history)].pop()
    return history


def _common(held: Sequence[bytes], wanted: Sequence[bytes]) -> int:
    """How many of the first lines are equal."""
    return next((at for at, line in enumerate(wanted) if at >= len(held) or held[at] != line), len(wanted))


class Slave(Scenario):
    """What a slave with haAckMode=flushed acknowledged, and each SEND_OK of its synchronous master."""

    name = "slave"
    file_bytes = 64 << 10

    def begin(self) -> None:
        self.master = self.start(self.scratch / "master", role="SYNC_MASTER", flushDiskType="ASYNC_FLUSH")
        self.slave = self.start(
            self.disk / "store",
            slave_of=self.master,
            flushDiskType="ASYNC_FLUSH",
            **{"trioha.haAckMode": "flushed"},
        )
        self.sender = self.load(concurrency=16)
        self.sender.use(self.master.listen_address)

    def pids(self) -> list[int]:
        return [self.slave.pid]

    def work(self) -> None:
        enough = len(self.sender.producer.promises) + PER_CUT
        wait_until(
            lambda: len(self.sender.producer.promises) >= enough,
            f"{PER_CUT} more messages are SEND_OK: {self.sender.producer.statuses}",
        )

    def acknowledged(self) -> tuple[int, list[Promise]]:
        promises = list(self.sender.producer.promises)
        return max(one.ack_offset for one in self.master.status().connections), promises

    def look(self, disk: Path, acknowledged: tuple[int, list[Promise]]) -> list[Found]:
        ack_offset, promises = acknowledged
        root = disk / "store"
        self.recover(root)
        end = held_messages(root).end_offset
        short = [f"flushed was acknowledged up to {ack_offset}, the log ends at {end}"]
        return [
            *self.look_for_messages(root, promises),
            Found("flushed ack", 1, short if end < ack_offset else []),
        ]


class Delayed(Scenario):
    """Delayed messages with SEND_OK: each is delivered, before the cut or after it."""

    name = "delay"

    def begin(self) -> None:
        self.root = self.disk / "store"
        self.node = self.start(self.root, role="ASYNC_MASTER")
        self.requests = Requests(self.node.listen_address, delayed_message(DELAYED_TOPIC))
        self.stack.callback(self.requests.close)
        self._written = b""

    def pids(self) -> list[int]:
        return [self.node.pid]

    def work(self) -> None:
        enough = len(self.requests.acknowledged) + PER_CUT
        wait_until(lambda: len(self.requests.acknowledged) >= enough, f"{PER_CUT} more delayed messages")
        # Where delivery stands has been written since the last cut.
        path = self.root / "config" / "delayOffset.json"
        wait_until(lambda: path.exists() and path.read_bytes() != self._written, "delayOffset.json")
        self._written = path.read_bytes()

    def acknowledged(self) -> list[str]:
        return list(self.requests.acknowledged)

    def look(self, disk: Path, acknowledged: list[str]) -> list[Found]:
        root = disk / "store"
        written = read_file(root, "delayOffset.json")

        def wait_delivered(node: TriohaNode) -> None:
            wanted = set(acknowledged)
            try:
                wait_until(lambda: wanted <= _delivered(root), "each delayed message is delivered")
            except AssertionError:
                return  # which are missing is said below

        self.recover(root, wait_delivered)
        missing = sorted(set(acknowledged) - _delivered(root))
        return [
            Found("delivered", len(acknowledged), missing),
            Found("delayOffset.json", 1, [] if written else ["delayOffset.json is empty or missing"]),
        ]


def _delivered(root: Path) -> set[str]:
    """Keys of the messages that were delivered. Nothing, while a log cannot be read that is being written."""
    try:
        log = ReadOnlyCommitLog.open(root)
        return {
            parse_properties(record.properties_raw)[KEY_PROPERTY]
            for record in log.records(log.min_offset)
            if isinstance(record, Record) and record.topic == DELAYED_TOPIC
        }
    except StoreError:
        return set()


# -- metadata ----------------------------------------------------------------------------------------------


class Topics(Scenario):
    """Topics and groups that an operator has made."""

    name = "topics"

    def begin(self) -> None:
        node = self.start(self.disk / "store", role="ASYNC_MASTER")
        self._pid = node.pid
        self.requests = Requests(node.listen_address, topic_or_group)
        self.stack.callback(self.requests.close)

    def pids(self) -> list[int]:
        return [self._pid]

    def work(self) -> None:
        enough = len(self.requests.acknowledged) + PER_CUT
        wait_until(lambda: len(self.requests.acknowledged) >= enough, f"{PER_CUT} more topics and groups")

    def acknowledged(self) -> list[str]:
        return list(self.requests.acknowledged)

    def look(self, disk: Path, acknowledged: list[str]) -> list[Found]:
        root = disk / "store"
        # A node reads them as it does at its start, and writes them at its end.
        self.recover(root)
        held = {
            *(read_file(root, "topics.json") or {}).get("topicConfigTable", {}),
            *(read_file(root, "subscriptionGroup.json") or {}).get("subscriptionGroupTable", {}),
        }
        missing = [name for name in acknowledged if name not in held]
        return [Found("topics and groups", len(acknowledged), missing)]


class Epochs(Scenario):
    """A group in controller mode: the epochs that a master answers, and each SEND_OK in them."""

    name = "epochs"

    def begin(self) -> None:
        controller = ScriptedController(self.scratch)
        self.stack.callback(controller.close)
        controller.start()
        self.root = self.disk / "store"
        settings = broker_settings("power-cut", controller.address, "127.0.0.1:9", self.root, free_port())
        self.settings = {
            key: str(value).lower() if isinstance(value, bool) else value
            for key, value in settings.items()
            if key not in {"timerWheelEnable", "enableCompaction", *self.options()}
        } | {"brokerHeartbeatInterval": 200, "controllerHeartBeatTimeoutMills": 1000}
        self.address = f"127.0.0.1:{self.settings['listenPort']}"
        self.sender = self.load()
        self.node = self._start()

    def _start(self) -> TriohaNode:
        node = self.start(self.root, **{"role": "SLAVE", **self.settings})
        self.sender.use(self.address)
        return node

    def pids(self) -> list[int]:
        return [self.node.pid]

    def work(self) -> None:
        """The master is killed, and goes on in another epoch."""
        before = self._entries()
        self.sender.use(None)
        self.node.kill()
        self.node = self._start()
        enough = len(self.sender.producer.promises) + PER_CUT
        wait_until(
            lambda: len(self.sender.producer.promises) >= enough and len(self._entries()) > len(before),
            f"{PER_CUT} more messages are SEND_OK in another epoch: {self.sender.producer.statuses}",
        )
        self._answered = self._entries()

    def _entries(self) -> set[tuple[int, int]]:
        def fetch() -> EpochCache:
            return EpochCache.of_body(ask(self.address, request(RequestCode.GET_BROKER_EPOCH_CACHE)).body)

        cache = eventually("an answer with epochs", fetch, logs=self.node.log)
        return {(entry.epoch, entry.start_offset) for entry in cache.epochs}

    def acknowledged(self) -> tuple[set[tuple[int, int]], list[Promise]]:
        return self._answered, list(self.sender.producer.promises)

    def look(self, disk: Path, acknowledged: tuple[set[tuple[int, int]], list[Promise]]) -> list[Found]:
        entries, promises = acknowledged
        root = disk / "store"
        held = {(entry.epoch, entry.start_offset) for entry in read_epochs(root).entries}
        self.recover(root)
        missing = [f"epoch {epoch} from {start}" for epoch, start in sorted(entries - held)]
        return [*self.look_for_messages(root, promises), Found("epochs", len(entries), missing)]


# -- archive -----------------------------------------------------------------------------------------------


class Archived(Scenario):
    """What `trioha archive` said is archived can be restored."""

    name = "archive"
    file_bytes = 64 << 10

    def begin(self) -> None:
        self.store = self.scratch / "store"
        self.node = self.start(self.store, role="ASYNC_MASTER")
        self.sender = self.load()
        self.sender.use(self.node.listen_address)
        self.said = self.scratch / "archive.json"
        url = f"file://{self.disk}/archive"
        with self.said.open("wb") as out, (self.scratch / "archive.log").open("wb") as log:
            self.archiver = subprocess.Popen(
                [
                    *DIE_WITH_PARENT, *self.program, "archive", str(self.store), "--to", url,
                    "--follow", "--interval", "0.2s", "--json",
                ],
                stdin=subprocess.DEVNULL, stdout=out, stderr=log,
            )  # fmt: skip
        self.stack.callback(self.archiver.wait)
        self.stack.callback(self.archiver.kill)

    def pids(self) -> list[int]:
        return [self.archiver.pid]

    def acknowledged(self) -> int:
        lines = self.said.read_bytes().splitlines(keepends=True)
        whole = [line for line in lines if line.endswith(b"\n")]
        return max((json.loads(line)["archivedOffset"] for line in whole), default=0)

    def work(self) -> None:
        before = self.acknowledged()
        wait_until(
            lambda: self.acknowledged() > before + 2 * self.file_bytes or self.archiver.poll() is not None,
            "two more files are archived",
        )
        assert self.archiver.poll() is None, (self.scratch / "archive.log").read_text()

    def look(self, disk: Path, acknowledged: int) -> list[Found]:
        restored = disk / "restored"
        done = subprocess.run(
            [*TRIOHA, "restore", f"file://{disk}/archive", "--into", str(restored), "--json"],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        if done.returncode:
            return [Found("archived", 1, [f"restore ended with {done.returncode}: {done.stderr.strip()}"])]
        document = json.loads(done.stdout)
        end = document["endOffset"]
        differences = log_differences(
            restored,
            self.store,
            start=document["firstOffset"],
            end=end,
            expected_end=end,
            file_bytes=self.file_bytes,
        )
        short = [f"archived was said up to {acknowledged}, restored up to {end}"]
        return [
            Found("archived", 1, short if end < acknowledged else []),
            Found("restored log", 1, differences),
        ]


SCENARIOS: Final[dict[str, type[Scenario]]] = {
    one.name.replace(" ", "-"): one
    for one in (Put, RollOver, CleanStop, Topics, Delayed, Slave, Archived, Epochs)
}
