"""What sends and pulls cost a live SYNC pair in CPU time; beside another tree or another setting, in turn.

    python tests/benchmarks/bench_sends.py [--works one,many,...] [--rounds 5] [--seconds 1]
        [--against TREE] [--pure] [--with KEY=VALUE ...]

| work | load |
|---|---|
| one | one send of 1 KiB at a time, over one connection |
| many | 16 sends of 1 KiB in flight over one connection, as 16 threads of a Java producer share it |
| flood | 256 sends of 1 KiB in flight over one connection |
| batch | 4 batches of 32 messages of 1 KiB in flight |
| pull | 4 pulls of 32 messages in flight, over what the batches have stored |
| oneway | a one-way send of 1 KiB, then a pause of 1 ms |
| oneways | 16 one-way sends of 1 KiB at once, then a pause of 4 ms |

Requests have the bytes that a Java client of 5.x sends (JSON headers; `--binary`: ROCKETMQ headers), made
beforehand, so that the pair and not its load is the limit. Each tree, compiled and (with `--pure`) in plain
Python, and this tree with each setting of `--with`, has a pair of its own, and the pairs work in turn. In the
value of a setting `{}` is a new folder: `--with trioha.recordDir={} --works flood` shows what recording
costs. The figures are user and system time of master and slave for each request; those of the clock depend
on other load. `--poll` leaves on busy polling (`trioha.busyPoll`), which hides CPU
time.
"""

from __future__ import annotations

import argparse
import math
import selectors
import socket
import statistics
import sys
import tempfile
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from itertools import cycle, product
from pathlib import Path
from typing import Final

from attrs import evolve, frozen

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.benchmarks.rivals.rounds import turns
from tests.benchmarks.rivals.sides import NODE_SETTINGS
from tests.node.wire import Wire
from tests.node_process import TriohaNode
from tests.remoting.batches import encode_batch_body
from trioha.remoting.codec import encode
from trioha.remoting.codes import LanguageCode, RequestCode
from trioha.remoting.command import ONEWAY_FLAG, RemotingCommand, SerializeType, request
from trioha.remoting.send_message import SendMessageRequestHeader
from trioha.store.messages import BatchItem

HERE: Final = Path(__file__).resolve().parents[2]
QUEUES: Final = 4
BATCH: Final = 32
BODY: Final = bytes(range(256)) * 4
PROPERTIES: Final = "UNIQ_KEY\x017F00000100002A139A5553B5F2F80000\x02WAIT\x01true\x02"
SETTLE_S: Final = 0.3
"""After a stretch of load: what nodes write out later belongs to it. The recorder does so after 0.1 s."""
SETTINGS: Final = {
    **NODE_SETTINGS,
    "brokerName": "broker-a",
    "mappedFileSizeCommitLog": 1 << 30,
    "defaultTopicQueueNums": QUEUES,
    "fileReservedTime": 720,
}


@frozen
class Variant:
    """What has a pair of its own."""

    name: str
    tree: Path = HERE
    is_pure: bool = False
    settings: Mapping[str, str] = {}


@frozen
class Pair:
    """A master and its slave."""

    name: str
    master: TriohaNode
    slave: TriohaNode


@frozen
class Round:
    """One stretch of load on one pair."""

    requests: int
    seconds: float
    master_s: float
    slave_s: float
    p50_us: float


def _poll_keys(tree: Path) -> list[str]:
    """The keys for busy polling that this tree has: an older one has two."""
    known = "".join(path.read_text() for path in (tree / "trioha/config").rglob("*.py"))
    keys = ["trioha.busyPoll", "trioha.haBusyPoll", "trioha.clientBusyPoll"]
    return [key for key in keys if f'"{key}",' in known]


def start_pair(running: ExitStack, folder: Path, variant: Variant, *, poll: bool = False) -> Pair:
    """A SYNC pair whose slave has connected."""
    python = variant.tree / ".venv/bin/python"
    # Run in its tree: a tree without a .venv is not installed.
    program = [
        "env", "-C", str(variant.tree), f"TRIOHA_PURE={variant.is_pure:d}",
        str(python) if python.exists() else sys.executable, "-m", "trioha",
    ]  # fmt: skip
    settings: dict[str, object] = dict(SETTINGS)
    if not poll:
        settings |= dict.fromkeys(_poll_keys(variant.tree), 0)

    def start(role: str, **more: object) -> TriohaNode:
        own = {
            key: value.replace("{}", str(folder / f"{role}-files")) for key, value in variant.settings.items()
        }
        node = TriohaNode(folder / role, role=role, program=program, **{**settings, **more, **own})
        running.callback(node.kill)
        return node

    master = start("SYNC_MASTER")
    slave = start("SLAVE", haMasterAddress=master.ha_address)
    master.wait(connections=1)
    deadline_s = time.monotonic() + 60
    with Wire(master.listen_address) as wire:
        while wire.ask(send(0)).code:
            if time.monotonic() > deadline_s:
                raise SystemExit(f"the slave of {variant.name} did not connect")
            time.sleep(0.1)
    return Pair(variant.name, master, slave)


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
    address: str, frames: Iterator[bytes], *, in_flight: int, seconds: float
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
        sent_ns: deque[int] = deque()
        for _ in range(in_flight):
            sent_ns.append(now_ns())
            sock.sendall(next(frames))
        buffer = bytearray()
        while sent_ns:
            selector.select()
            buffer += sock.recv(1 << 20)
            at, answers = 0, 0
            while len(buffer) >= at + 4 and len(buffer) >= (
                end := at + 4 + int.from_bytes(buffer[at : at + 4])
            ):
                if SERIALIZE_TYPE is SerializeType.JSON:
                    assert buffer.find(b'"code":0,', at, at + 40) > 0, bytes(buffer[at : at + 300])
                answers += 1
                at = end
            del buffer[:at]
            for _ in range(answers):
                now = now_ns()
                latencies_ns.append(now - sent_ns.popleft())
                if now < until_ns:
                    sent_ns.append(now)
                    sock.sendall(next(frames))
        took_s = (now_ns() - began_ns) / 1e9
    return len(latencies_ns), took_s, statistics.median(latencies_ns) / 1000


def drive_oneway(
    address: str, frames: Iterator[bytes], *, together: int, pause_s: float, seconds: float
) -> tuple[int, float, float]:
    """As `drive`, with one-way requests: some in one call, then a pause. There are no latencies."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port))) as sock:
        began_s = time.perf_counter()
        done = 0
        while time.perf_counter() < began_s + seconds:
            sock.sendall(b"".join(next(frames) for _ in range(together)))
            done += together
            time.sleep(pause_s)
        # Answered after all of them.
        sock.sendall(encode(send(0)))
        assert sock.recv(4096)
    return done, time.perf_counter() - began_s, math.nan


def sends(*, batch: bool = False, oneway: bool = False) -> Iterator[bytes]:
    """The frames of sends, to all queues in turn."""
    flag = ONEWAY_FLAG if oneway else 0
    return cycle(
        [
            encode(evolve(send(queue_id, batch=batch), flag=flag), opaque=1000 + queue_id)
            for queue_id in range(QUEUES)
        ]
    )


def pulls(address: str) -> Iterator[bytes]:
    """The frames of pulls, each queue from its start on and again."""
    with Wire(address) as wire:
        end = min(int(wire.ask(asked).ext_fields["offset"]) for asked in map(max_offset, range(QUEUES)))
    steps = end // BATCH
    assert steps > 0, "pulls need batches before them"
    places = product(range(min(steps, 500)), range(QUEUES))
    return cycle([encode(pull(queue_id, step * BATCH)) for step, queue_id in places])


WORKS: Final[dict[str, tuple[int, Callable[[str], Iterator[bytes]]]]] = {
    "one": (1, lambda _address: sends()),
    "many": (16, lambda _address: sends()),
    "flood": (256, lambda _address: sends()),
    "batch": (4, lambda _address: sends(batch=True)),
    "pull": (4, pulls),
    "oneway": (1, lambda _address: sends(oneway=True)),
    "oneways": (16, lambda _address: sends(oneway=True)),
}
"""Requests in flight, or those that are sent together, and what gives their frames."""


def cpu_s(pid: int) -> float:
    """CPU time of a process's threads so far, in seconds; /proc/PID/stat counts in 10 ms."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def measure(pair: Pair, work: str, *, seconds: float) -> Round:
    """One stretch of load."""
    in_flight, frames_of = WORKS[work]
    address, pids = pair.master.listen_address, (pair.master.pid, pair.slave.pid)
    frames = frames_of(address)
    before_s = list(map(cpu_s, pids))
    if work.startswith("oneway"):
        pause_s = 0.001 if in_flight == 1 else 0.004
        done = drive_oneway(address, frames, together=in_flight, pause_s=pause_s, seconds=seconds)
    else:
        done = drive(address, frames, in_flight=in_flight, seconds=seconds)
    time.sleep(SETTLE_S)
    master_s, slave_s = (cpu_s(pid) - used_s for pid, used_s in zip(pids, before_s, strict=True))
    requests, took_s, p50_us = done
    return Round(requests, took_s, master_s, slave_s, p50_us)


def variants(options: argparse.Namespace) -> Iterator[Variant]:
    """What is measured in turn."""
    for name, tree in (("this", HERE), ("other", options.against)):
        if tree is not None:
            yield Variant(name, tree.resolve())
            if options.pure:
                yield Variant(f"{name}, pure", tree.resolve(), is_pure=True)
    for setting in options.settings:
        key, _, value = setting.partition("=")
        yield Variant(key, settings={key: value})


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--works", default=",".join(WORKS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--against", type=Path, help="another source tree, with or without a .venv")
    parser.add_argument("--pure", action="store_true", help="each tree in plain Python, too")
    parser.add_argument(
        "--with",
        dest="settings",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="this tree with it, too",
    )
    parser.add_argument("--poll", action="store_true", help="with busy polling")
    parser.add_argument("--binary", action="store_true", help="headers in ROCKETMQ's binary form")
    options = parser.parse_args()
    if options.binary:
        global SERIALIZE_TYPE  # noqa: PLW0603 - set once, before all else
        SERIALIZE_TYPE = SerializeType.ROCKETMQ
    with ExitStack() as running:
        folder = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="trioha-bench-")))
        pairs = [
            start_pair(running, folder / str(number), variant, poll=options.poll)
            for number, variant in enumerate(variants(options))
        ]
        print("CPU: lower quartiles; the rest: medians")
        print(f"{'work':8}{'pair':20}{'us master':>10}{'us slave':>10}{'requests/s':>12}{'p50 us':>9}")
        for work in options.works.split(","):
            rounds: dict[str, list[Round]] = defaultdict(list)
            for pair, counts in turns(pairs, rounds=options.rounds):
                one = measure(pair, work, seconds=options.seconds)
                if counts:
                    rounds[pair.name].append(one)
            for name, done in rounds.items():
                master_us = low(one.master_s / one.requests * 1e6 for one in done)
                slave_us = low(one.slave_s / one.requests * 1e6 for one in done)
                per_s = statistics.median(one.requests / one.seconds for one in done)
                p50_us = statistics.median(one.p50_us for one in done)
                print(
                    f"{work:8}{name:20}{master_us:10.1f}{slave_us:10.1f}{per_s:12,.0f}{p50_us:9.0f}",
                    flush=True,
                )


def low(values: Iterable[float]) -> float:
    """The lower quartile: other load only adds to CPU time."""
    found = list(values)
    return statistics.quantiles(found, n=4)[0] if len(found) > 1 else found[0]


if __name__ == "__main__":
    main()
