"""Runs trioha as its users do: node processes and the command line."""

from __future__ import annotations

import io
import json
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import trio
from attrs import frozen

from tests.processes import DIE_WITH_PARENT
from tests.waiting import wait_until
from trioha.broker_status import BrokerStatus
from trioha.cli import main
from trioha.errors import PeerError, TriohaError
from trioha.remoting.client import open_client
from trioha.remoting.status_reader import fetch_status

FILE_BYTES = 65536
"""mappedFileSizeCommitLog of tests: small, so that a few hundred messages fill several files."""
_TRIOHA = [sys.executable, "-m", "trioha"]
ANSWER_WITHIN_S = 20.0
"""For a connection to a broker or name server that lives, and for each of its answers."""
WITHIN_S = 120.0
"""For each condition that a test waits for; most come true in a second or two."""
SLAVE_TIMEOUT_MS = 10_000
"""slaveTimeout where no put may time out, however busy the machine; 3000 by default."""
_READY_WITHIN_S = 90.0
_STOP_WITHIN_S = 2.0
"""What trioha promises for SIGTERM."""
_STOP_GRACE_S = 28.0
"""What a busy machine may add."""


@frozen
class Loaded:
    """What `trioha load --json` said."""

    statuses: Mapping[str, int]
    exit_code: int


@frozen
class Answer:
    """What a trioha command said."""

    exit_code: int
    stdout: str
    stderr: str


def run_trioha(*arguments: str | Path, timeout_s: float = WITHIN_S) -> Answer:
    """Run `trioha ARGUMENTS` to its end."""
    answer = _run([*_TRIOHA, *map(str, arguments)], timeout_s=timeout_s)
    assert "Traceback" not in answer.stderr, answer.stderr
    return answer


def call_trioha(*arguments: str) -> Answer:
    """As `run_trioha`, in this process: a command costs no start."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    with redirect_stdout(out), redirect_stderr(err):
        code = main(arguments)
    texts = (stream.buffer.getvalue().decode() for stream in (out, err))  # type: ignore[attr-defined]
    return Answer(code, *texts)


def verify(*arguments: str | Path) -> dict[str, Any]:
    """What `trioha verify --json` finds."""
    answer = run_trioha("verify", "--json", *arguments)
    assert answer.stdout, answer
    found: dict[str, Any] = json.loads(answer.stdout.splitlines()[-1])
    assert answer.exit_code == (0 if found["ok"] else 1), answer
    return found


def _run(command: Sequence[str], *, timeout_s: float) -> Answer:
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s, check=False
    )
    return Answer(exit_code=done.returncode, stdout=done.stdout, stderr=done.stderr)


def start_load(
    address: str,
    number: int,
    *,
    size: tuple[int, int] = (10, 4000),
    topic: str = "TopicTest",
    concurrency: int = 16,
    seed: int = 1,
) -> subprocess.Popen[str]:
    """Start `trioha load`, which goes on while the caller does something else; see `finish_load`."""
    return subprocess.Popen(
        [
            *DIE_WITH_PARENT, *_TRIOHA, "load", "--json", "--broker", address, "--topic", topic,
            # The broker's answer counts, not how long a busy machine takes for it.
            "--timeout", str(WITHIN_S / 2),
            "--count", str(number), "--size", f"{size[0]}..{size[1]}", "--concurrency", str(concurrency),
            "--seed", str(seed),
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip


def finish_load(process: subprocess.Popen[str], *, timeout_s: float = WITHIN_S) -> Loaded:
    """Wait for a started load."""
    try:
        stdout, stderr = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    assert process.returncode in {0, 1}, f"trioha load ended with {process.returncode}: {stderr}"
    assert stdout, f"trioha load said nothing and ended with {process.returncode}: {stderr}"
    return Loaded(statuses=json.loads(stdout)["statuses"], exit_code=process.returncode)


def load(
    address: str,
    number: int,
    *,
    size: tuple[int, int] = (10, 4000),
    topic: str = "TopicTest",
    concurrency: int = 16,
    seed: int = 1,
) -> Loaded:
    """Send `number` messages with bodies of `size` bytes (both ends included) to the broker at `address`."""
    return finish_load(
        start_load(address, number, size=size, topic=topic, concurrency=concurrency, seed=seed)
    )


def broker_status(address: str) -> BrokerStatus:
    """The status of the broker at `address`, trioha's or RocketMQ's."""

    async def fetch() -> BrokerStatus:
        async with open_client(address, connect_timeout_s=ANSWER_WITHIN_S) as client:
            return await fetch_status(client, timeout_s=ANSWER_WITHIN_S)

    return trio.run(fetch)


def wait_dispatched(address: str, *, within_s: float = WITHIN_S) -> BrokerStatus:
    """Wait until the queues and the index of a broker, trioha's or RocketMQ's, have what is in its log now.

    A put is answered before that, so its queue may still end before it.
    """
    deadline_s = time.monotonic() + within_s
    end: int | None = None
    last: object = None
    while time.monotonic() < deadline_s:
        try:
            last = status = broker_status(address)
        except PeerError as problem:
            # RocketMQ has no figures until a second after its start.
            last = problem
        else:
            end = status.max_offset if end is None else end
            if status.dispatched_offset is not None and status.dispatched_offset >= end:
                return status
        time.sleep(0.02)
    raise AssertionError(f"not dispatched up to {end} within {within_s:g} s: {last}")


def node_command(
    root: Path,
    *,
    role: str = "",
    config_file: Path | None = None,
    slave_of: TriohaNode | None = None,
    ha_master_address: str | None = None,
    ha_port: int = 0,
    program: Sequence[str] = _TRIOHA,
    arguments: Sequence[str] = (),
    **settings: Any,
) -> list[str]:
    """The command for a node on the store `root`, whose broker.conf is written beside it.

    `slave_of` gives role and master. `settings` are broker.conf keys, `arguments` more words of the command;
    `program` is what stands for the command `trioha`. With `config_file` that file says name and role; store,
    addresses and sizes of files are given by `--set`.
    """
    root.parent.mkdir(parents=True, exist_ok=True)
    if slave_of is not None:
        role, ha_master_address = "SLAVE", slave_of.ha_address
    names: dict[str, object] = {
        "brokerClusterName": "interop",
        "brokerName": "interop",
        "brokerId": 1 if role == "SLAVE" else 0,
        "brokerRole": role,
    }
    config: dict[str, object] = {
        **({} if config_file is not None else names),
        "brokerIP1": "127.0.0.1",
        "brokerIP2": "127.0.0.1",
        "listenPort": 0,
        "haListenPort": ha_port,
        "storePathRootDir": root,
        "mappedFileSizeCommitLog": FILE_BYTES,
        # As the Java stores of the tests, which open these.
        "mappedFileSizeConsumeQueue": 2000,
        "maxHashSlotNum": 1000,
        "maxIndexNum": 4000,
        "maxMessageSize": 65000,
        "haSendHeartbeatInterval": 200,
        # How full the disk of the test machine is must not matter.
        "diskMaxUsedSpaceRatio": 100,
        "diskSpaceCleanForciblyRatio": 100,
        "diskSpaceWarningLevelRatio": 100,
        "trioha.bindAddress": "127.0.0.1",
        **settings,
    }
    if ha_master_address is not None:
        config["haMasterAddress"] = ha_master_address
    lines = [f"{key}={value}" for key, value in config.items()]
    overrides: list[str] = []
    if config_file is None:
        config_file = root.with_name(f"{root.name}.conf")
        config_file.write_text("\n".join([*lines, ""]))
    else:
        overrides = [part for line in lines for part in ("--set", line)]
    return [*program, "node", "-c", str(config_file), *overrides, *arguments]


def run_node(root: Path, **options: Any) -> Answer:
    """Run a node that ends by itself, as one that refuses its settings; `options` as of `node_command`."""
    return _run(node_command(root, **options), timeout_s=WITHIN_S)


class TriohaNode:
    """A `trioha node` process."""

    def __init__(
        self,
        root: Path,
        *,
        environment: Mapping[str, str] | None = None,
        log_path: Path | None = None,
        **options: Any,
    ) -> None:
        """Start a node on the store `root` and wait until it serves; `options` as of `node_command`.

        Its log is written beside the store, or to `log_path`.
        """
        self.root = root
        command = node_command(root, **options)
        self.log_path = root.with_name(f"{root.name}.log") if log_path is None else log_path
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [*DIE_WITH_PARENT, *command],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                bufsize=1,
            )
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read_lines, name=f"trioha-{root.name}", daemon=True)
        self._reader.start()
        self.ready = self._wait_ready()
        """Fields of its ready line."""
        self.listen_address = self.ready["listen"]
        self.ha_address = self.ready["ha"]
        self.metrics_address = self.ready.get("metrics", "")
        self.ha_port = int(self.ha_address.rpartition(":")[2])
        self.max_offset_at_start = int(self.ready["max_offset"])

    def log(self) -> str:
        """The last lines of the node's log."""
        if not self.log_path.is_file():
            return f"{self.log_path} is no file"
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-60:])

    def wait_logged(self, text: str) -> str:
        """The whole log as soon as `text` is in it."""
        wait_until(lambda: text in self.log_path.read_text(errors="replace"), f"{text!r} in {self.log_path}")
        return self.log_path.read_text(errors="replace")

    @property
    def pid(self) -> int:
        """Of the node's process."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the process is still there."""
        return self._process.poll() is None

    def status(self) -> BrokerStatus:
        """What the node says of itself."""
        return broker_status(self.listen_address)

    @property
    def max_offset(self) -> int:
        """End of the node's log, in bytes."""
        return self.status().max_offset

    def wait(
        self,
        *,
        max_offset: int | None = None,
        ack_offset: int | None = None,
        connections: int | None = None,
        within_s: float = WITHIN_S,
    ) -> BrokerStatus:
        """Wait for the log's end and the best slave's ack (at least), and the number of HA connections."""

        async def poll() -> BrokerStatus:
            deadline = trio.current_time() + within_s
            async with open_client(self.listen_address, connect_timeout_s=ANSWER_WITHIN_S) as client:
                while True:
                    status = await fetch_status(client, timeout_s=ANSWER_WITHIN_S)
                    best_ack = max((connection.ack_offset for connection in status.connections), default=-1)
                    if (
                        (max_offset is None or status.max_offset >= max_offset)
                        and (ack_offset is None or best_ack >= ack_offset)
                        and (connections is None or len(status.connections) == connections)
                    ):
                        return status
                    if trio.current_time() > deadline:
                        raise AssertionError(
                            f"not reached within {within_s} s: {max_offset=} {ack_offset=} {connections=}: "
                            f"{status}\n{self.log()}"
                        )
                    await trio.sleep(0.02)

        try:
            return trio.run(poll)
        except TriohaError as problem:
            raise AssertionError(f"{problem}\n{self.log()}") from problem

    def load(self, number: int, **options: Any) -> Loaded:
        """`trioha load` on this node."""
        return load(self.listen_address, number, **options)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """A clean stop by a signal, with exit code 0, nothing said, and in the time that trioha promises."""
        began = time.monotonic()
        self._process.send_signal(number)
        try:
            code = self._process.wait(_STOP_WITHIN_S + _STOP_GRACE_S)
        except subprocess.TimeoutExpired:
            self.kill()
            took = time.monotonic() - began
            raise AssertionError(f"still running {took:.1f} s after {number.name}\n{self.log()}") from None
        self._finish()
        assert code == 0, f"exit code {code} after {number.name}\n{self.log()}"
        assert (said := self._lines.get()) is None, f"said {said!r} after its ready line"

    def wait_ended(self, *, within_s: float) -> int | None:
        """Exit code of a process that ends by itself; None if it is still there after that time."""
        try:
            code = self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            return None
        self._finish()
        return code

    def kill(self) -> None:
        """`kill -9`."""
        self._process.kill()
        self._finish()

    def hang(self) -> None:
        """Stop the process where it stands (SIGSTOP): it keeps its connections and says nothing."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a hung process go on."""
        self._process.send_signal(signal.SIGCONT)

    def _finish(self) -> None:
        self._process.wait(60)
        self._reader.join(60)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _read_lines(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def _wait_ready(self) -> dict[str, str]:
        try:
            line = self._lines.get(timeout=_READY_WITHIN_S)
        except queue.Empty:
            line = None
        if line is None or not line.startswith("ready "):
            self.kill()
            raise AssertionError(f"trioha node said {line!r} instead of ready\n{self.log()}")
        return dict(field.split("=", 1) for field in line.split()[1:])


@contextmanager
def name_server(
    *arguments: str, log_path: Path | None = None
) -> Iterator[tuple[subprocess.Popen[str], dict[str, str]]]:
    """A `trioha namesrv` process, and the fields of its ready line. It logs to its stderr, or to a file."""
    with nullcontext(subprocess.PIPE) if log_path is None else log_path.open("wb") as stderr:
        process = subprocess.Popen(
            [*DIE_WITH_PARENT, *_TRIOHA, "namesrv", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
    assert process.stdout is not None
    with process:
        try:
            word, *pairs = process.stdout.readline().split() or [""]
            assert word == "ready", process.stderr.read() if process.stderr else log_path
            yield process, dict(pair.split("=", 1) for pair in pairs)
        finally:
            if process.poll() is None:
                process.kill()


StartNode = Callable[..., TriohaNode]
"""The fixture `start_node`: `start_node(name="store", **options)`."""
