"""What sends and pulls cost a live SYNC pair in CPU time; with --against beside another source tree, in turn.

    python tests/benchmarks/bench_sends.py [--works one,many,...] [--rounds 5] [--seconds 1]
        [--against TREE] [--pure]

| work | load |
|---|---|
| one | one send of 1 KiB at a time, over one connection |
| many | 16 sends of 1 KiB in flight over one connection, as 16 threads of a Java producer share it |
| batch | 4 batches of 32 messages of 1 KiB in flight |
| pull | 4 pulls of 32 messages in flight, over what the sends have stored |
| oneway | a one-way send of 1 KiB, then a pause of 1 ms |
| oneways | 16 one-way sends of 1 KiB at once, then a pause of 4 ms |

Requests have the bytes that a Java client of 5.x sends (JSON headers; `--binary`: ROCKETMQ headers), made
beforehand, so that the pair and not its load is the limit. Each tree, compiled and (with `--pure`) in plain
Python, has a pair of its own, and the pairs work in turn. The figures are user and system time of master and
slave for each request; those of the clock depend on other load. `--poll`
leaves on busy polling (`trioha.haBusyPoll`, `trioha.clientBusyPoll`), which hides CPU time.
"""

from __future__ import annotations

import argparse
import math
import os
import selectors
import shlex
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

from attrs import evolve, frozen

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.node.wire import Wire
from trioha.remoting.codec import encode
from trioha.remoting.codes import LanguageCode, RequestCode
from trioha.remoting.command import ONEWAY_FLAG, RemotingCommand, SerializeType, request
from trioha.remoting.message_batch import encode_batch_body
from trioha.remoting.send_message import SendMessageRequestHeader
from trioha.store.messages import BatchItem

HERE = Path(__file__).resolve().parents[2]
QUEUES = 4
BATCH = 32
BODY = bytes(range(256)) * 4
PROPERTIES = "UNIQ_KEY\x017F00000100002A139A5553B5F2F80000\x02WAIT\x01true\x02"
CONFIG = """\
brokerName = broker-a
listenPort = 0
trioha.bindAddress = 127.0.0.1
brokerIP1 = 127.0.0.1
brokerIP2 = 127.0.0.1
defaultTopicQueueNums = 4
fileReservedTime = 720
diskMaxUsedSpaceRatio = 99
"""


@frozen
class Pair:
    """A master and its slave, of one tree."""

    name: str
    master: subprocess.Popen[str]
    slave: subprocess.Popen[str]
    address: str


@frozen
class Round:
    """One stretch of load on one pair."""

    requests: int
    seconds: float
    master_s: float
    slave_s: float
    p50_us: float


def start(
    running: ExitStack, folder: Path, tree: Path, *, pure: bool, poll: bool, settings: dict[str, object]
) -> tuple[subprocess.Popen[str], str, str]:
    """A running node of a tree, its listen address and its HA address."""
    folder.mkdir(parents=True)
    config = folder / "broker.conf"
    config.write_text(CONFIG)
    settings = {"storePathRootDir": folder / "store", **settings}
    if not poll:
        settings["trioha.haBusyPoll"] = 0
        if "trioha.clientBusyPoll" in (tree / "trioha/config/model.py").read_text():
            settings["trioha.clientBusyPoll"] = 0
    options = [word for key, value in settings.items() for word in ("-p", f"{key}={value}")]
    log = running.enter_context((folder / "log").open("w"))
    python = tree / ".venv/bin/python"
    node = subprocess.Popen(
        (
            str(python if python.exists() else sys.executable),
            "-m",
            "trioha",
            "node",
            "-c",
            str(config),
            *options,
        ),
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        cwd=tree,
        env={**os.environ, "TRIOHA_PURE": "1" if pure else "0"},
    )
    running.callback(node.wait)
    running.callback(node.kill)
    assert node.stdout is not None
    line = node.stdout.readline()
    if not line.startswith("ready "):
        raise SystemExit(f"a node of {tree} did not start: {(folder / 'log').read_text()}")
    said = dict(word.partition("=")[::2] for word in shlex.split(line)[1:])
    return node, said["listen"], said["ha"]


def start_pair(running: ExitStack, folder: Path, name: str, tree: Path, *, pure: bool, poll: bool) -> Pair:
    """A SYNC pair whose slave has connected."""
    master, listen, ha = start(
        running, folder / "master", tree, pure=pure, poll=poll, settings={"brokerRole": "SYNC_MASTER"}
    )
    slave, _, _ = start(
        running, folder / "slave", tree, pure=pure, poll=poll,
        settings={"brokerRole": "SLAVE", "brokerId": 1, "haMasterAddress": ha},
    )  # fmt: skip
    deadline_s = time.monotonic() + 60
    with Wire(listen) as wire:
        while wire.ask(send(0)).code:
            if time.monotonic() > deadline_s:
                raise SystemExit(f"the slave of {tree} did not connect")
            time.sleep(0.1)
    return Pair(name, master, slave, listen)


SERIALIZE_TYPE = SerializeType.JSON


def send(queue_id: int, *, batch: bool = False) -> RemotingCommand:
    """A send as a Java producer makes it."""
    header = SendMessageRequestHeader(
        producer_group="PG_BENCH", topic="TopicBatch" if batch else "TopicBench", default_topic="TBW102",
        default_topic_queue_nums=4, queue_id=queue_id, sys_flag=0, born_timestamp_ms=1_795_234_734_922,
        flag=0, properties=PROPERTIES, batch=batch, broker_name="broker-a",
    )  # fmt: skip
    body = encode_batch_body([BatchItem(BODY, PROPERTIES.encode())] * BATCH) if batch else BODY
    code = RequestCode.SEND_BATCH_MESSAGE if batch else RequestCode.SEND_MESSAGE_V2
    asked = request(code, ext_fields=header.to_ext_fields(), body=body, serialize_type=SERIALIZE_TYPE)
    return evolve(asked, language=LanguageCode.JAVA, version=475)


def pull(queue_id: int, offset: int) -> RemotingCommand:
    """A pull as a push consumer sends it."""
    fields = {
        "consumerGroup": "bench", "topic": "TopicBatch", "queueId": str(queue_id), "queueOffset": str(offset),
        "maxMsgNums": "32", "sysFlag": "6", "commitOffset": "0", "suspendTimeoutMillis": "15000",
        "subscription": "*", "subVersion": "1795234734922", "expressionType": "TAG",
        "maxMsgBytes": "2147483647", "bname": "broker-a",
    }  # fmt: skip
    asked = request(RequestCode.PULL_MESSAGE, ext_fields=fields, serialize_type=SERIALIZE_TYPE)
    return evolve(asked, language=LanguageCode.JAVA, version=475)


def max_offset(queue_id: int) -> RemotingCommand:
    """The question where a queue ends."""
    fields = {"topic": "TopicBatch", "queueId": str(queue_id)}
    return request(RequestCode.GET_MAX_OFFSET, ext_fields=fields)


def drive(
    address: str, ask: Callable[[], bytes], *, in_flight: int, seconds: float
) -> tuple[int, float, float]:
    """Keep requests in flight; their number, the seconds they took, and the median latency in us.

    One request goes out for each answer, in a call of its own, as Netty writes.
    """
    host, _, port = address.rpartition(":")
    latencies_ns: list[int] = []
    with socket.create_connection((host, int(port))) as sock, selectors.DefaultSelector() as selector:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
        selector.register(sock, selectors.EVENT_READ)
        now_ns = time.perf_counter_ns
        began_ns = now_ns()
        until_ns = began_ns + round(seconds * 1e9)
        sent_ns = []
        for _ in range(in_flight):
            sent_ns.append(now_ns())
            sock.sendall(ask())
        sent_ns.reverse()
        buffer, done, open_requests = bytearray(), 0, in_flight
        while open_requests:
            selector.select()
            buffer += sock.recv(1 << 20)
            at, count = 0, 0
            while len(buffer) >= at + 4:
                frame_end = at + 4 + int.from_bytes(buffer[at : at + 4])
                if len(buffer) < frame_end:
                    break
                if SERIALIZE_TYPE is SerializeType.JSON:
                    assert buffer.find(b'"code":0,', at, at + 40) > 0, bytes(buffer[at : at + 300])
                count += 1
                at = frame_end
            del buffer[:at]
            for _ in range(count):
                now = now_ns()
                latencies_ns.append(now - sent_ns.pop())
                done += 1
                if now < until_ns:
                    sent_ns.insert(0, now)
                    sock.sendall(ask())
                else:
                    open_requests -= 1
        took_s = (now_ns() - began_ns) / 1e9
    return done, took_s, statistics.median(latencies_ns) / 1000


def drive_oneway(
    address: str, ask: Callable[[], bytes], *, together: int, pause_s: float, seconds: float
) -> tuple[int, float, float]:
    """As `drive`, with one-way requests: some in one call, then a pause. There are no latencies."""
    with Wire(address) as wire:
        began_s = time.perf_counter()
        done = 0
        while time.perf_counter() < began_s + seconds:
            wire._socket.sendall(b"".join(ask() for _ in range(together)))
            done += together
            time.sleep(pause_s)
        # Handled after all of them.
        assert not wire.ask(send(0)).code
    return done, time.perf_counter() - began_s, math.nan


def sends(*, batch: bool = False, oneway: bool = False) -> Callable[[], bytes]:
    """Gives the frames of sends, to all queues in turn."""
    flag = ONEWAY_FLAG if oneway else 0
    frames = [
        encode(evolve(send(queue_id, batch=batch), flag=flag), opaque=1000 + queue_id)
        for queue_id in range(QUEUES)
    ]
    number = -1

    def ask() -> bytes:
        nonlocal number
        number += 1
        return frames[number % QUEUES]

    return ask


def pulls(pair: Pair) -> Callable[[], bytes]:
    """Gives the frames of pulls, each queue from its start on and again."""
    with Wire(pair.address) as wire:
        end = min(int(wire.ask(asked).ext_fields["offset"]) for asked in map(max_offset, range(QUEUES)))
    steps = end // BATCH - 1
    assert steps > 0, "pulls need batches before them"
    frames = [
        encode(pull(queue_id, step * BATCH)) for step in range(min(steps, 500)) for queue_id in range(QUEUES)
    ]
    number = -1

    def ask() -> bytes:
        nonlocal number
        number += 1
        return frames[number % len(frames)]

    return ask


WORKS: dict[str, tuple[int, Callable[[Pair], Callable[[], bytes]]]] = {
    "one": (1, lambda _pair: sends()),
    "many": (16, lambda _pair: sends()),
    "batch": (4, lambda _pair: sends(batch=True)),
    "pull": (4, pulls),
    "oneway": (1, lambda _pair: sends(oneway=True)),
    "oneways": (16, lambda _pair: sends(oneway=True)),
}


def cpu_s(pid: int) -> float:
    """CPU time of a process's threads so far, in seconds; /proc/PID/stat counts in 10 ms."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def measure(pair: Pair, work: str, *, seconds: float) -> Round:
    """One stretch of load."""
    in_flight, make = WORKS[work]
    ask = make(pair)
    before = cpu_s(pair.master.pid), cpu_s(pair.slave.pid)
    if work.startswith("oneway"):
        pause_s = 0.001 if in_flight == 1 else 0.004
        count, took_s, p50_us = drive_oneway(
            pair.address, ask, together=in_flight, pause_s=pause_s, seconds=seconds
        )
    else:
        count, took_s, p50_us = drive(pair.address, ask, in_flight=in_flight, seconds=seconds)
    after = cpu_s(pair.master.pid), cpu_s(pair.slave.pid)
    return Round(count, took_s, after[0] - before[0], after[1] - before[1], p50_us)


def variants(options: argparse.Namespace) -> Iterator[tuple[str, Path, bool]]:
    """Name, tree and whether plain Python is used."""
    for name, tree in (("this", HERE), ("other", options.against)):
        if tree is not None:
            yield name, tree, False
            if options.pure:
                yield f"{name}, pure", tree, True


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--works", default=",".join(WORKS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--against", type=Path, help="another source tree, with or without a .venv")
    parser.add_argument("--pure", action="store_true", help="each tree in plain Python, too")
    parser.add_argument("--poll", action="store_true", help="with busy polling")
    parser.add_argument("--binary", action="store_true", help="headers in ROCKETMQ's binary form")
    options = parser.parse_args()
    if options.binary:
        global SERIALIZE_TYPE  # noqa: PLW0603 - set once, before all else
        SERIALIZE_TYPE = SerializeType.ROCKETMQ
    with ExitStack() as running:
        folder = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="trioha-bench-")))
        pairs = [
            start_pair(running, folder / str(number), name, tree, pure=pure, poll=options.poll)
            for number, (name, tree, pure) in enumerate(variants(options))
        ]
        print("CPU: lower quartiles; the rest: medians")
        print("work    tree         us master  us slave requests/s   p50 us")
        for work in options.works.split(","):
            rounds: dict[str, list[Round]] = defaultdict(list)
            for number in range(options.rounds + 1):
                for pair in pairs if number % 2 else pairs[::-1]:
                    one = measure(pair, work, seconds=options.seconds)
                    if number:
                        rounds[pair.name].append(one)
            for pair in pairs:
                done = rounds[pair.name]
                master_us = low(one.master_s / one.requests * 1e6 for one in done)
                slave_us = low(one.slave_s / one.requests * 1e6 for one in done)
                per_s = statistics.median(one.requests / one.seconds for one in done)
                p50_us = statistics.median(one.p50_us for one in done)
                print(
                    f"{work:7} {pair.name:12} {master_us:9.1f} {slave_us:9.1f} {per_s:10,.0f} {p50_us:8.0f}",
                    flush=True,
                )


def low(values: Iterable[float]) -> float:
    """The lower quartile: other load only adds to CPU time."""
    found = list(values)
    return statistics.quantiles(found, n=4)[0] if len(found) > 1 else found[0]


if __name__ == "__main__":
    main()
