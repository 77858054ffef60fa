"""RocketMQ's own clients on a SYNC pair of trioha and on one of real RocketMQ 5.x, in turn, in one run.

| work | what is measured |
|---|---|
| send-1, send-16 | Java producer, sync sends of 1 KiB from 1 and 16 threads; private memory of both brokers |
| batch-16 | batches of 32, from 16 threads |
| drain | Java push consumer, a backlog of 1 KiB messages; from the first message to the last |
| latency | producer at 1,000 msg/s to a waiting push consumer, from before the send to the listener |
| idle | 10,000 pulls that wait: private memory of the master, and its CPU time |

Only the ratios count. CPU seconds of master and slave stand beside each figure: they depend less on other
load than the clock does. Both pairs stay up, and while one works the other stands still (SIGSTOP): the
threads of an idle RocketMQ pair wake up a thousand times a second, each time amid what is measured. The
machine should be idle. Needs Maven and a JDK; takes some fifteen minutes (`--quick`: three).

    python tests/benchmarks/bench_clients.py [--quick] [--json] [--works WORK,...] [--rocketmq 5.3.3]
"""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final

from attrs import Factory, define, evolve, frozen

# The rivals are modules of the tests, which are not installed.
sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks.rivals.driver import Driver, DriverError
from tests.benchmarks.rivals.machine import Meter, anonymous_bytes, await_calm, standing_still
from tests.benchmarks.rivals.report import Line, show_run
from tests.benchmarks.rivals.rounds import Series, parse_options, parser_of, turns
from tests.benchmarks.rivals.sides import ROCKETMQ_SETTINGS, compiled, java_command, java_driver
from tests.interop.java import PATIENT
from tests.interop.name_server import name_server
from tests.interop.rocketmq import class_path, missing_tools
from tests.node.wire import Wire
from tests.ports import free_port
from tests.processes import DIE_WITH_PARENT, environment_of_ours
from trioha.remoting.codec import FrameDecoder, encode
from trioha.remoting.codes import RequestCode, ResponseCode
from trioha.remoting.command import request

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
class Server:
    """A process that accepts connections."""

    process: subprocess.Popen[bytes]
    address: str
    log_path: Path

    @property
    def pid(self) -> int:
        """Of the process."""
        return self.process.pid

    def state(self) -> str:
        """Whether it runs, and the end of what it said."""
        code = self.process.poll()
        state = "runs" if code is None else f"ended with {code}"
        return f"{self.log_path.stem} {state}\n{self.log_path.read_text(errors='replace')[-LOG_SHOWN:]}"


@frozen
class Pair:
    """A master, its slave and their name server."""

    name: str
    name_server: str
    master: Server
    slave: Server

    @property
    def pids(self) -> tuple[int, int]:
        """Of the brokers."""
        return self.master.pid, self.slave.pid


A_THOUSAND: Final = "1,000 msg"
FIGURES: Final[dict[str, Callable[[Series, Series], Line]]] = {
    "send-1": partial(Line, "clients: sync sends, 1 thread", "msg/s", cpu_for=A_THOUSAND, goal=1),
    "send-16": partial(Line, "clients: sync sends, 16 threads", "msg/s", cpu_for=A_THOUSAND, goal=1),
    "batch-16": partial(
        Line, f"clients: batches of {BATCH}, 16 threads", "msg/s", cpu_for=A_THOUSAND, goal=1
    ),
    "drain": partial(Line, "clients: push consumer drains a backlog", "MB/s", cpu_for="GB", goal=1),
    **{
        f"latency-{part}": partial(
            Line, f"clients: end to end at {LATENCY_RATE:,} msg/s, {part}", "us",
            cpu_for=A_THOUSAND, goal=1, lower_is_better=True,
        )
        for part in ("p50", "p99")
    },
    **{
        f"memory-{role}": partial(
            Line, f"private memory, {role} under 16 threads", "MB", goal=10, lower_is_better=True
        )
        for role in ("master", "slave")
    },
    "idle": partial(
        Line, f"clients: {IDLE_PULLS:,} idle long polls, memory", "MiB",
        cpu_for="10 s", limit=64, lower_is_better=True,
    ),
}  # fmt: skip
"""What becomes a line of the table, of the values of trioha and of RocketMQ."""


@define
class Bench:
    """Both pairs, the client, and what came out."""

    pairs: tuple[Pair, ...]
    client: Driver
    sizes: Sizes
    idle_timeout_s: float
    results: dict[tuple[str, str], Series] = Factory(lambda: defaultdict(Series))
    """By figure and pair."""
    _ids: count[int] = Factory(count)

    def call(self, pair: Pair, command: str, **fields: object) -> dict[str, Any]:
        """Have the clients work on a pair."""
        try:
            return self.client.call(command, namesrv=pair.name_server, within_s=CALL_WITHIN_S, **fields)
        except DriverError as error:
            said = f"{pair.master.state()}\n{pair.slave.state()}"
            raise DriverError(f"{pair.name}: {error}\n{said}") from error

    def new_name(self, what: str) -> str:
        """Of a topic or group that was not used before."""
        return f"{what}_{next(self._ids)}"

    @contextmanager
    def measured(self, pair: Pair, *pids: int) -> Iterator[Meter]:
        """Measure these brokers of a pair, or both; those of the other pair stand still meanwhile."""
        time.sleep(SETTLE_S)
        await_calm(self.idle_timeout_s)
        others = (pid for other in self.pairs if other is not pair for pid in other.pids)
        with standing_still(others), Meter(pids or pair.pids) as meter:
            yield meter

    def note(self, key: str, pair: Pair, value: float, meter: Meter, *, units: float | None = None) -> None:
        """One more value of a figure; its CPU time is for so many units of work."""
        cpu_s = None if units is None else meter.cpu_s / units
        self.results[key, pair.name].note(value, meter, cpu_s=cpu_s)

    def rounds(self, what: str) -> Iterator[tuple[Pair, bool]]:
        """The pairs in turn, and whether the round counts."""
        for pair, counts in turns(self.pairs, rounds=self.sizes.rounds):
            self.step(f"{what}, {pair.name}")
            yield pair, counts

    def step(self, what: str) -> None:
        """Say what comes next."""
        print(what, file=sys.stderr, flush=True)


def sends(bench: Bench, *, threads: int, batch: int = 1) -> None:
    """Sync sends for a time."""
    key = f"batch-{threads}" if batch > 1 else f"send-{threads}"
    topics = {pair.name: bench.new_name("send") for pair in bench.pairs}
    for pair, counts in bench.rounds(key):
        with bench.measured(pair) as meter:
            said = bench.call(
                pair, "send", topic=topics[pair.name], threads=threads, batch=batch, size=BODY_BYTES,
                millis=round(bench.sizes.send_s * 1000),
            )  # fmt: skip
        if said["notOk"]:
            raise DriverError(f"{pair.name}: {said['notOk']} messages did not end with SEND_OK")
        if not counts:
            continue
        bench.note(key, pair, said["messages"] / said["seconds"], meter, units=said["messages"] / 1000)
        if key == "send-16":
            for role, pid in zip(("master", "slave"), pair.pids, strict=True):
                bench.note(f"memory-{role}", pair, meter.peak_bytes[pid] / 1e6, meter)


def drain(bench: Bench) -> None:
    """A new group consumes a backlog from its start, the same one in each round."""
    number = bench.sizes.backlog_bytes // BODY_BYTES
    topics = {}
    for pair in bench.pairs:
        bench.step(f"backlog of {number:,} messages, {pair.name}")
        topics[pair.name] = bench.new_name("backlog")
        said = bench.call(
            pair, "send", topic=topics[pair.name], threads=16, batch=BATCH, size=BODY_BYTES, millis=600_000,
            count=number,
        )  # fmt: skip
        if said["messages"] < number:
            raise DriverError(f"{pair.name}: {said['messages']} of {number} messages in ten minutes")
    for pair, counts in bench.rounds("drain"):
        with bench.measured(pair) as meter:
            said = bench.call(
                pair, "drain", topic=topics[pair.name], group=bench.new_name("drain"), count=number
            )
        if counts:
            megabytes = said["bytes"] / 1e6
            bench.note("drain", pair, megabytes / said["seconds"], meter, units=megabytes / 1000)


def latency(bench: Bench) -> None:
    """End to end at a rate."""
    for pair, counts in bench.rounds("latency"):
        with bench.measured(pair) as meter:
            said = bench.call(
                pair, "latency", topic=bench.new_name("latency"), group=bench.new_name("latency"),
                rate=LATENCY_RATE, seconds=bench.sizes.latency_s, size=BODY_BYTES,
            )  # fmt: skip
        if counts:
            for part in ("p50", "p99"):
                units = said["messages"] / 1000
                bench.note(f"latency-{part}", pair, said[f"{part}Micros"], meter, units=units)


def idle(bench: Bench) -> None:
    """Pulls that wait at the end of a queue: what they add to the master's memory, and what it computes."""
    # Before the first round: what it leaves in the process is used again by the next ones.
    before = {pair.name: anonymous_bytes(pair.master.pid) for pair in bench.pairs}
    for pair, counts in bench.rounds(f"{IDLE_PULLS:,} idle pulls"):
        topic = bench.new_name("idle")
        bench.call(pair, "send", topic=topic, threads=1, batch=1, size=BODY_BYTES, millis=1)
        # Until the queue is dispatched.
        time.sleep(1)
        with idle_pulls(pair.master.address, topic):
            time.sleep(1)
            added_bytes = anonymous_bytes(pair.master.pid) - before[pair.name]
            with bench.measured(pair, pair.master.pid) as meter:
                time.sleep(IDLE_S)
        if counts:
            bench.note("idle", pair, max(added_bytes, 0) / 2**20, meter, units=1)


@contextmanager
def idle_pulls(address: str, topic: str) -> Iterator[None]:
    """Pulls at the ends of a topic's queues, all of which wait; over several connections."""
    asked = [{"topic": topic, "queueId": str(queue_id)} for queue_id in range(QUEUES)]
    with Wire(address) as asking:
        ends = [
            asking.ask(request(RequestCode.GET_MAX_OFFSET, ext_fields=fields)).ext_fields["offset"]
            for fields in asked
        ]
    pulls = [
        request(
            RequestCode.PULL_MESSAGE,
            ext_fields={
                **fields, "queueOffset": end, "consumerGroup": "bench-idle", "maxMsgNums": "32",
                "sysFlag": "6", "commitOffset": "0", "suspendTimeoutMillis": "60000", "subscription": "*",
                "subVersion": "0", "expressionType": "TAG",
            },
        )
        for fields, end in zip(asked, ends, strict=True)
    ]  # fmt: skip
    frames = b"".join(
        encode(evolve(pulls[number % QUEUES], opaque=number))
        for number in range(IDLE_PULLS // IDLE_CONNECTIONS)
    )
    host, _, port = address.rpartition(":")
    with ExitStack() as connections:
        opened = [
            connections.enter_context(socket.create_connection((host, int(port)), timeout=30))
            for _ in range(IDLE_CONNECTIONS)
        ]
        for connection in opened:
            connection.sendall(frames)
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
def server(command: list[str], address: str, log_path: Path) -> Iterator[Server]:
    """A process that listens until the end of the block; killed, since its store is not needed any more."""
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            [*DIE_WITH_PARENT, *command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=log_path.parent,
            env=environment_of_ours(),
        )
    started = Server(process, address, log_path)
    try:
        host, _, port = address.rpartition(":")
        deadline_s = time.monotonic() + READY_WITHIN_S
        while True:
            try:
                socket.create_connection((host, int(port)), timeout=1).close()
            except OSError:
                if process.poll() is not None or time.monotonic() > deadline_s:
                    raise DriverError(f"nothing listens on {address}\n{started.state()}") from None
                time.sleep(0.1)
            else:
                break
        yield started
    finally:
        process.kill()
        process.wait()


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
    with ExitStack() as running:
        brokers = []
        for role, broker_id in (("SYNC_MASTER", 0), ("SLAVE", 1)):
            root, port = folder / role.lower(), free_port()
            settings = {
                **_COMMON,
                "brokerRole": role,
                "brokerId": broker_id,
                "listenPort": port,
                "haListenPort": free_port(),
                "storePathRootDir": root,
                "storePathCommitLog": root / "commitlog",
                "namesrvAddr": name_server_address,
                **more,
            }
            config = folder / f"{role.lower()}.conf"
            config.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
            log_path = folder / f"{role.lower()}.log"
            broker = server(command(config), f"127.0.0.1:{port}", log_path)
            brokers.append(running.enter_context(broker))
            # A client that finds a topic at a slave only may not look for its master again.
            await_registered(name_server_address)
        yield Pair(name, name_server_address, *brokers)


@contextmanager
def trioha_pair(folder: Path) -> Iterator[Pair]:
    """A pair of trioha nodes and a trioha name server."""
    folder.mkdir(parents=True)
    port = free_port()
    trioha = [sys.executable, "-m", "trioha"]
    store = f"kvConfigPath={folder / 'kvConfig.json'}"
    namesrv = [*trioha, "namesrv", "--port", str(port), "--set", store]
    with (
        server(namesrv, f"127.0.0.1:{port}", folder / "namesrv.log") as names,
        pair_of(
            "trioha", folder, names.address, lambda config: [*trioha, "node", "-c", str(config)],
            **{"trioha.bindAddress": "127.0.0.1"},
        ) as pair,
    ):  # fmt: skip
        yield pair


@contextmanager
def rocketmq_pair(folder: Path, version: str, *, is_patient: bool) -> Iterator[Pair]:
    """A pair of real brokers and a real name server, with the flags of a server.

    By default a broker refuses what has waited for 0.2 s, and so loses one-way sends where the machine is
    busy; a patient one does not.
    """
    folder.mkdir(parents=True)
    jars = class_path(version)

    def command(config: Path) -> list[str]:
        return java_command(folder, jars, "org.apache.rocketmq.broker.BrokerStartup", "-c", str(config))

    with name_server(version, folder=folder / "namesrv") as address:
        # With its default of one replica, SYNC_MASTER of 5.x waits for no slave.
        more = {**ROCKETMQ_SETTINGS, "inSyncReplicas": 2, **(PATIENT if is_patient else {})}
        with pair_of(f"RocketMQ {version}", folder, address, command, **more) as pair:
            yield pair


def lines_of(bench: Bench) -> list[Line]:
    """The figures that were measured."""
    names = [pair.name for pair in bench.pairs]
    return [
        line_of(*(bench.results[key, name] for name in names))
        for key, line_of in FIGURES.items()
        if all((key, name) in bench.results for name in names)
    ]


def main() -> None:
    """Run the works and print what came out."""
    parser = parser_of(__doc__, WORKS)
    parser.add_argument("--megabytes", type=int, help="backlog that a consumer drains")
    parser.add_argument("--seconds", type=float, help="how long producers send, each time")
    options = parse_options(parser, WORKS)
    if (missing := missing_tools()) is not None:
        print(f"not measured against RocketMQ: {missing}", file=sys.stderr)
        return
    quick, version = options.quick, options.rocketmq
    sizes = Sizes(
        rounds=options.rounds,
        send_s=options.seconds or (2.0 if quick else 10.0),
        backlog_bytes=(options.megabytes or (50 if quick else 1000)) * 10**6,
        latency_s=3 if quick else 15,
    )
    began = time.monotonic()
    with ExitStack() as running:
        name = running.enter_context(tempfile.TemporaryDirectory(prefix="trioha-bench-", dir=options.folder))
        base = Path(name)
        clients = compiled(base / "classes", version, "ClientBench")
        client = java_driver("ClientBench", clients, name="clients", folder=base / "clients")
        running.enter_context(closing(client))
        pairs = (
            running.enter_context(trioha_pair(base / "trioha")),
            running.enter_context(rocketmq_pair(base / "rocketmq", version, is_patient=quick)),
        )
        bench = Bench(pairs, client, sizes, options.wait_idle)
        for work in options.works:
            WORKS[work](bench)
        found = lines_of(bench)
    show_run("clients", found, options=options, rounds=sizes.rounds, seconds=time.monotonic() - began)


if __name__ == "__main__":
    main()
