"""RocketMQ's own clients on a SYNC pair of trioha and on one of real RocketMQ 5.x, in turn, in one run.

| work | what is measured |
|---|---|
| send-1, send-16 | Java producer, sync sends of 1 KiB from 1 and 16 threads |
| batch-16 | batches of 32, from 16 threads |
| drain | Java push consumer, a backlog of 1 KiB messages; from the first message to the last |
| latency | producer at 1,000 msg/s to a waiting push consumer, from before the send to the listener |
| idle | 10,000 pulls that wait: private memory of the master, and its CPU time |

Only the ratios count. CPU seconds of master and slave stand beside each figure: they depend less on other
load than the clock does. Both pairs stay up, and while one works the other stands still (SIGSTOP): the
threads of an idle RocketMQ pair wake up a thousand times a second, each time amid what is measured. The
machine should be idle. Needs Maven and a JDK; takes some fifteen minutes (`--quick`: three).

Run it with `python tests/benchmarks/bench_clients.py [--quick] [--json | --markdown] [--works WORK,...]
[--rocketmq 5.3.3]`.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Final

from attrs import Factory, define, evolve, frozen
from rich.console import Console

# The rivals are modules of the tests, which are not installed.
sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks.rivals.conditions import ORDER, conditions, described, java_version
from tests.benchmarks.rivals.driver import Driver, DriverError
from tests.benchmarks.rivals.machine import (
    LoadMeter,
    anonymous_bytes,
    await_calm,
    cpu_s,
    standing_still,
)
from tests.benchmarks.rivals.options import add_options, parse_options
from tests.benchmarks.rivals.report import Line, Side, as_json, markdown, table
from tests.benchmarks.rivals.sides import JVM_FLAGS, compiled
from tests.interop.java import LOGBACK
from tests.interop.name_server import name_server
from tests.interop.rocketmq import class_path, home_flags, java_tool, missing_tools
from tests.node.wire import Wire
from tests.ports import free_port
from tests.processes import DIE_WITH_PARENT, environment_of_ours
from trioha.remoting.codec import FrameDecoder, encode
from trioha.remoting.codes import RequestCode, ResponseCode
from trioha.remoting.command import request

TITLE: Final = "RocketMQ's clients on a SYNC pair of trioha and of RocketMQ, medians"
JAVA_SOURCE: Final = Path(__file__).parent / "java" / "ClientBench.java"
BODY_BYTES: Final = 1024
QUEUES: Final = 4
BATCH: Final = 32
LATENCY_RATE: Final = 1000
IDLE_PULLS: Final = 10_000
IDLE_CONNECTIONS: Final = 10
IDLE_S: Final = 10.0
SETTLE_S: Final = 1.0
"""What a pair that stood still has put off, and what the last round has left behind, is done in this time."""
READY_WITHIN_S: Final = 90.0
CALL_WITHIN_S: Final = 700.0
LOG_SHOWN: Final = 4000

_COMMON: Final[dict[str, object]] = {
    "brokerClusterName": "bench",
    "brokerName": "bench",
    "brokerIP1": "127.0.0.1",
    "brokerIP2": "127.0.0.1",
    "haHousekeepingInterval": 60000,
    # How full the disk is must not matter.
    "diskMaxUsedSpaceRatio": 99,
    "cleanFileForciblyEnable": "false",
    "fileReservedTime": 720,
    "defaultTopicQueueNums": QUEUES,
}


@frozen
class Sizes:
    """How much work there is."""

    rounds: int
    send_s: float
    backlog_bytes: int
    latency_s: int


@frozen
class Pair:
    """A master, its slave and their name server."""

    name: str
    name_server: str
    master: subprocess.Popen[bytes]
    slave: subprocess.Popen[bytes]
    address: str
    """The master's listen address."""
    logs: tuple[Path, Path]
    """What master and slave print."""

    @property
    def pids(self) -> tuple[int, int]:
        """Of the brokers."""
        return self.master.pid, self.slave.pid

    def state(self) -> str:
        """Whether the brokers run, and the ends of what they said."""
        said = []
        for role, broker, log in (("master", self.master, self.logs[0]), ("slave", self.slave, self.logs[1])):
            state = "runs" if broker.poll() is None else f"ended with {broker.returncode}"
            said.append(f"{role} {state}\n{log.read_text(errors='replace')[-LOG_SHOWN:]}")
        return "\n".join(said)

    def cpu_s(self) -> float:
        """CPU time of both brokers so far."""
        return sum(map(cpu_s, self.pids))


@define
class Series:
    """One figure of one side: a value, CPU seconds and cores of others for each round."""

    values: list[float] = Factory(list)
    cpu_s: list[float] = Factory(list)
    others_cores: list[float] = Factory(list)


@frozen
class Figure:
    """What a line of the table is about."""

    key: str
    name: str
    unit: str
    cpu_unit: str
    """What the CPU seconds are for."""
    lower_is_better: bool = False
    limit: float | None = None
    """A value that trioha must not exceed; None: the ratio to reach is 1."""


FIGURES: Final = (
    Figure("send-1", "sync sends, 1 thread", "msg/s", "1,000 msg"),
    Figure("send-16", "sync sends, 16 threads", "msg/s", "1,000 msg"),
    Figure("batch-16", f"batches of {BATCH}, 16 threads", "msg/s", "1,000 msg"),
    Figure("drain", "push consumer drains a backlog", "MB/s", "GB"),
    Figure("latency-p50", "end to end at 1,000 msg/s, p50", "us", "1,000 msg", lower_is_better=True),
    Figure("latency-p99", "end to end at 1,000 msg/s, p99", "us", "1,000 msg", lower_is_better=True),
    Figure("idle", f"{IDLE_PULLS:,} idle long polls, memory", "MiB", "10 s", lower_is_better=True, limit=64),
)


@define
class Bench:
    """Both pairs, the client, and what came out."""

    pairs: tuple[Pair, ...]
    client: Driver
    sizes: Sizes
    idle_timeout_s: float
    on_step: Callable[[str], None]
    results: dict[tuple[str, str], Series] = Factory(lambda: defaultdict(Series))
    """By figure and pair."""
    _ids: Iterator[int] = Factory(lambda: count(1))

    def call(self, pair: Pair, command: str, **fields: object) -> dict[str, Any]:
        """Have the clients work on a pair."""
        try:
            return self.client.call(command, namesrv=pair.name_server, within_s=CALL_WITHIN_S, **fields)
        except DriverError as error:
            raise DriverError(f"{pair.name}: {error}\n{pair.state()}") from error

    def new_name(self, what: str) -> str:
        """Of a topic or group that was not used before."""
        return f"{what}_{next(self._ids)}"

    @contextmanager
    def measured(self, pair: Pair) -> Iterator[Callable[[], tuple[float, float]]]:
        """Gives a function for after the work: CPU seconds of the brokers, and cores of others.

        The brokers of the other pair stand still until the work is done.
        """
        time.sleep(SETTLE_S)
        await_calm(self.idle_timeout_s)
        meter = LoadMeter()
        meter.count([*pair.pids, self.client.pid])
        before_s = pair.cpu_s()
        with standing_still(pid for other in self.pairs if other is not pair for pid in other.pids), meter:
            yield lambda: (pair.cpu_s() - before_s, meter.load.others_cores or 0.0)

    def note(self, key: str, pair: Pair, value: float, cpu_s: float, others_cores: float) -> None:
        """One more value of a figure."""
        series = self.results[key, pair.name]
        series.values.append(value)
        series.cpu_s.append(cpu_s)
        series.others_cores.append(others_cores)

    def rounds(self) -> Iterator[tuple[Pair, bool]]:
        """The pairs in turn, and whether the round counts: the first one warms up. The order alternates."""
        for number in range(self.sizes.rounds + 1):
            for pair in self.pairs if number % 2 else self.pairs[::-1]:
                yield pair, number > 0


def sends(bench: Bench, *, threads: int, batch: int = 1) -> None:
    """Sync sends for a time."""
    key = f"batch-{threads}" if batch > 1 else f"send-{threads}"
    topics = {pair.name: bench.new_name("send") for pair in bench.pairs}
    for pair, counts in bench.rounds():
        bench.on_step(f"{key}, {pair.name}")
        with bench.measured(pair) as after:
            said = bench.call(
                pair, "send", topic=topics[pair.name], threads=threads, batch=batch, size=BODY_BYTES,
                millis=round(bench.sizes.send_s * 1000),
            )  # fmt: skip
        if said["notOk"]:
            raise DriverError(f"{pair.name}: {said['notOk']} messages did not end with SEND_OK")
        if counts:
            cpu, others = after()
            messages = said["messages"]
            bench.note(key, pair, messages / said["seconds"], cpu / messages * 1000, others)


def drain(bench: Bench) -> None:
    """A new group consumes a backlog from its start, the same one in each round."""
    number = bench.sizes.backlog_bytes // BODY_BYTES
    topics = {}
    for pair in bench.pairs:
        bench.on_step(f"backlog of {number:,} messages, {pair.name}")
        topics[pair.name] = bench.new_name("backlog")
        said = bench.call(
            pair, "send", topic=topics[pair.name], threads=16, batch=BATCH, size=BODY_BYTES, millis=600_000,
            count=number,
        )  # fmt: skip
        if said["messages"] < number:
            raise DriverError(f"{pair.name}: {said['messages']} of {number} messages in ten minutes")
    for pair, counts in bench.rounds():
        bench.on_step(f"drain, {pair.name}")
        with bench.measured(pair) as after:
            said = bench.call(
                pair, "drain", topic=topics[pair.name], group=bench.new_name("drain"), count=number
            )
        if counts:
            cpu, others = after()
            bench.note(
                "drain", pair, said["bytes"] / said["seconds"] / 1e6, cpu / said["bytes"] * 1e9, others
            )


def latency(bench: Bench) -> None:
    """End to end at a rate."""
    for pair, counts in bench.rounds():
        bench.on_step(f"latency, {pair.name}")
        with bench.measured(pair) as after:
            said = bench.call(
                pair, "latency", topic=bench.new_name("latency"), group=bench.new_name("latency"),
                rate=LATENCY_RATE, seconds=bench.sizes.latency_s, size=BODY_BYTES,
            )  # fmt: skip
        if counts:
            cpu, others = after()
            for metric in ("p50", "p99"):
                cpu_per_1000 = cpu / said["messages"] * 1000
                bench.note(f"latency-{metric}", pair, said[f"{metric}Micros"], cpu_per_1000, others)


def idle(bench: Bench) -> None:
    """Pulls that wait at the end of a queue: what they add to the master's memory, and what it computes."""
    # Before the first round: what it leaves in the process is used again by the next ones.
    before = {pair.name: anonymous_bytes(pair.master.pid) for pair in bench.pairs}
    for pair, counts in bench.rounds():
        bench.on_step(f"{IDLE_PULLS:,} idle pulls, {pair.name}")
        topic = bench.new_name("idle")
        bench.call(pair, "send", topic=topic, threads=1, batch=1, size=BODY_BYTES, millis=1)
        # Until the queue is dispatched.
        time.sleep(1)
        with idle_pulls(pair.address, topic):
            time.sleep(1)
            added = anonymous_bytes(pair.master.pid) - before[pair.name]
            with bench.measured(pair) as after:
                cpu_before_s = cpu_s(pair.master.pid)
                time.sleep(IDLE_S)
                used_s = cpu_s(pair.master.pid) - cpu_before_s
        if counts:
            bench.note("idle", pair, max(added, 0) / 2**20, used_s, after()[1])


@contextmanager
def idle_pulls(address: str, topic: str) -> Iterator[None]:
    """Pulls at the ends of a topic's queues, all of which wait; over several connections."""
    with ExitStack() as connections:
        with Wire(address) as asking:
            ends = [
                asking.ask(
                    request(RequestCode.GET_MAX_OFFSET, ext_fields={"topic": topic, "queueId": str(queue_id)})
                ).ext_fields["offset"]
                for queue_id in range(QUEUES)
            ]
        opened = []
        for _ in range(IDLE_CONNECTIONS):
            host, _, port = address.rpartition(":")
            connection = connections.enter_context(socket.create_connection((host, int(port)), timeout=30))
            opened.append(connection)
            pulls = bytearray()
            for number in range(IDLE_PULLS // IDLE_CONNECTIONS):
                queue_id = number % QUEUES
                fields = {
                    "consumerGroup": "bench-idle", "topic": topic, "queueId": str(queue_id),
                    "queueOffset": ends[queue_id], "maxMsgNums": "32", "sysFlag": "6", "commitOffset": "0",
                    "suspendTimeoutMillis": "60000", "subscription": "*", "subVersion": "0",
                    "expressionType": "TAG",
                }  # fmt: skip
                command = request(RequestCode.PULL_MESSAGE, ext_fields=fields)
                pulls += encode(evolve(command, opaque=number))
            connection.sendall(pulls)
        yield
        for connection in opened:
            # None of them was answered, as a refusal would be.
            connection.setblocking(False)
            try:
                data = connection.recv(1 << 16)
            except BlockingIOError:
                continue
            decoder = FrameDecoder()
            decoder.feed(data)
            raise DriverError(
                f"an idle pull was answered, or its connection closed: {decoder.next_command()}"
            )


WORKS: Final[dict[str, Callable[[Bench], None]]] = {
    "send-1": lambda bench: sends(bench, threads=1),
    "send-16": lambda bench: sends(bench, threads=16),
    "batch-16": lambda bench: sends(bench, threads=16, batch=BATCH),
    "drain": drain,
    "latency": latency,
    "idle": idle,
}


# -- the pairs -----------------------------------------------------------------------------------------------


@contextmanager
def process(command: list[str], log_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process until the end of the block; killed, since its store is not needed any more."""
    with log_path.open("wb") as log:
        started = subprocess.Popen(
            [*DIE_WITH_PARENT, *command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=log_path.parent,
            env=environment_of_ours(),
        )
    try:
        yield started
    finally:
        started.kill()
        started.wait()


def await_listening(address: str, started: subprocess.Popen[bytes], log_path: Path) -> None:
    """Wait until a process accepts connections."""
    host, _, port = address.rpartition(":")
    deadline_s = time.monotonic() + READY_WITHIN_S
    while True:
        try:
            socket.create_connection((host, int(port)), timeout=1).close()
        except OSError:
            if started.poll() is not None or time.monotonic() > deadline_s:
                raise DriverError(
                    f"nothing listens on {address}\n{log_path.read_text(errors='replace')[-LOG_SHOWN:]}"
                ) from None
            time.sleep(0.1)
        else:
            return


def await_registered(name_server_address: str) -> None:
    """Wait until a master has registered the topic after whose model others are made."""
    deadline_s = time.monotonic() + READY_WITHIN_S
    asked = request(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext_fields={"topic": "TBW102"})
    with Wire(name_server_address) as asking:
        while asking.ask(asked).code != ResponseCode.SUCCESS:
            if time.monotonic() > deadline_s:
                raise DriverError(f"no broker registered at {name_server_address}")
            time.sleep(0.1)


@contextmanager
def pair_of(
    name: str, folder: Path, name_server_address: str, command: Callable[[Path], list[str]], **more: object
) -> Iterator[Pair]:
    """A SYNC pair; `command` starts a broker with a configuration file.

    The slave finds its master by the name server: 5.x ignores haMasterAddress.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as running:
        brokers, logs = [], []
        listen, ha, slave_listen, slave_ha = (free_port() for _ in range(4))
        for role, broker_id, port, ha_port in (
            ("SYNC_MASTER", 0, listen, ha),
            ("SLAVE", 1, slave_listen, slave_ha),
        ):
            root = folder / role.lower()
            settings = {
                **_COMMON,
                "brokerRole": role,
                "brokerId": broker_id,
                "listenPort": port,
                "haListenPort": ha_port,
                "storePathRootDir": root,
                "storePathCommitLog": root / "commitlog",
                "namesrvAddr": name_server_address,
                **more,
            }
            config = folder / f"{role.lower()}.conf"
            config.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
            log_path = folder / f"{role.lower()}.log"
            started = running.enter_context(process(command(config), log_path))
            await_listening(f"127.0.0.1:{port}", started, log_path)
            # A client that finds a topic at a slave only may not look for its master again.
            await_registered(name_server_address)
            brokers.append(started)
            logs.append(log_path)
        yield Pair(
            name, name_server_address, brokers[0], brokers[1], f"127.0.0.1:{listen}", (logs[0], logs[1])
        )


@contextmanager
def trioha_pair(folder: Path) -> Iterator[Pair]:
    """A pair of trioha nodes and a trioha name server."""
    folder.mkdir(parents=True)
    address = f"127.0.0.1:{free_port()}"
    log_path = folder / "namesrv.log"
    trioha = [sys.executable, "-m", "trioha"]
    store = f"kvConfigPath={folder / 'kvConfig.json'}"
    command = [*trioha, "namesrv", "--port", address.rpartition(":")[2], "--set", store]
    with process(command, log_path) as started:
        await_listening(address, started, log_path)
        with pair_of(
            "trioha", folder, address, lambda config: [*trioha, "node", "-c", str(config)],
            **{"trioha.bindAddress": "127.0.0.1"},
        ) as pair:  # fmt: skip
            yield pair


@contextmanager
def rocketmq_pair(folder: Path, version: str) -> Iterator[Pair]:
    """A pair of real brokers and a real name server, with the flags of a server."""
    home = folder / "home"
    home.mkdir(parents=True)
    logback = folder / "logback.xml"
    logback.write_text(LOGBACK)
    jars = class_path(version)

    def command(config: Path) -> list[str]:
        return [
            java_tool("java"), *JVM_FLAGS,
            *home_flags(home),
            f"-Drmq.logback.configurationFile={logback}", f"-Dlogback.configurationFile={logback}",
            "-Drocketmq.client.logUseSlf4j=true",
            "-cp", jars, "org.apache.rocketmq.broker.BrokerStartup", "-c", str(config),
        ]  # fmt: skip

    with name_server(version, folder=folder / "namesrv") as address:
        # With its default of one replica, SYNC_MASTER of 5.x waits for no slave.
        more = {"inSyncReplicas": 2, "timerWheelEnable": "false", "enableCompaction": "false"}
        with pair_of(f"RocketMQ {version}", folder, address, command, **more) as pair:
            yield pair


@contextmanager
def java_clients(folder: Path, version: str) -> Iterator[Driver]:
    """A JVM with the clients of a version, the same for both pairs."""
    path = compiled(folder / "classes", version, JAVA_SOURCE)
    logback = folder / "logback.xml"
    logback.write_text(LOGBACK)
    driver = Driver(
        [
            java_tool("java"), *JVM_FLAGS, f"-Duser.home={folder}",
            f"-Drmq.logback.configurationFile={logback}", f"-Dlogback.configurationFile={logback}",
            "-Drocketmq.client.logUseSlf4j=true",
            "-cp", path, "interop.ClientBench",
        ],
        name="clients",
        folder=folder,
    )  # fmt: skip
    try:
        yield driver
    finally:
        driver.close()


# -- what came out -------------------------------------------------------------------------------------------


def lines(bench: Bench) -> list[Line]:
    """The figures that were measured."""
    found = []
    for figure in FIGURES:
        series = [bench.results.get((figure.key, pair.name)) for pair in bench.pairs]
        ours, theirs = series
        if ours is None or theirs is None:
            continue
        found.append(
            Line(
                f"clients: {figure.name}",
                figure.unit,
                *(Side(one.values, {"brokers": one.cpu_s}) for one in (ours, theirs)),
                lower_is_better=figure.lower_is_better,
                goal=1 if figure.limit is None else None,
                limit=figure.limit,
                cpu_for=figure.cpu_unit,
                load_average=os.getloadavg()[0],
                others_cores=max(statistics.median(one.others_cores) for one in (ours, theirs)),
            )
        )
    return found


def options_of(arguments: list[str] | None = None) -> argparse.Namespace:
    """What the command line asks for; an unknown work is an error."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="print the figures as JSON")
    output.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    parser.add_argument("--quick", action="store_true", help="one round of small works")
    parser.add_argument("--rounds", type=int, help="rounds that count, after one that warms up")
    parser.add_argument("--megabytes", type=int, help="backlog that a consumer drains")
    parser.add_argument("--seconds", type=float, help="how long producers send, each time")
    add_options(parser, WORKS)
    return parse_options(parser, arguments, WORKS)


def sizes_of(options: argparse.Namespace) -> Sizes:
    """What was asked for, and for the rest the defaults of a whole or a quick run."""
    quick = options.quick
    return Sizes(
        rounds=options.rounds or (1 if quick else 3),
        send_s=options.seconds or (2.0 if quick else 10.0),
        backlog_bytes=(options.megabytes or (50 if quick else 1000)) * 10**6,
        latency_s=3 if quick else 15,
    )


def main() -> None:
    """Run the works and print what came out."""
    options = options_of()
    if (missing := missing_tools()) is not None:
        print(f"not measured against RocketMQ: {missing}", file=sys.stderr)
        return
    began = time.monotonic()
    with ExitStack() as running:
        base = Path(
            running.enter_context(tempfile.TemporaryDirectory(prefix="trioha-bench-", dir=options.folder))
        )
        client = running.enter_context(java_clients(base / "clients", options.rocketmq))
        pairs = (
            running.enter_context(trioha_pair(base / "trioha")),
            running.enter_context(rocketmq_pair(base / "rocketmq", options.rocketmq)),
        )
        bench = Bench(
            pairs=pairs,
            client=client,
            sizes=sizes_of(options),
            idle_timeout_s=options.wait_idle,
            on_step=lambda step: print(step, file=sys.stderr),
        )
        for work in options.works:
            WORKS[work](bench)
        found = lines(bench)
    run: dict[str, Any] = {
        "benchmark": "clients",
        **conditions(),
        "rocketmq": options.rocketmq,
        "java": java_version(),
        "quick": options.quick,
        "rounds": bench.sizes.rounds,
        "warmUpRounds": 1,
        "order": ORDER,
        "seconds": round(time.monotonic() - began, 1),
        "works": as_json(found),
    }
    if options.json:
        print(json.dumps(run))
    elif options.markdown:
        print(f"{markdown(found)}\n\n{described(run)}")
    else:
        Console(width=160 if not sys.stdout.isatty() else None).print(table(found, title=TITLE))
        print(f"{described(run)} {run['seconds']:.0f} s.")


if __name__ == "__main__":
    main()
