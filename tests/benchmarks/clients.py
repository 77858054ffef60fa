"""Works of clients of a SYNC pair of each system: RocketMQ's own in a JVM, and raw ones.

What each line measures is in `docs/benchmarks.md`. CPU seconds are those of master and slave together. Both
pairs stay up, and while one works the brokers of the other stand still (SIGSTOP): the threads of an idle
RocketMQ pair wake up a thousand times a second, each time amid what is measured.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Final

from attrs import evolve

from tests.benchmarks.bench import Bench
from tests.benchmarks.machine import Meter, anonymous_bytes, standing_still
from tests.benchmarks.raw import BATCH, BODY, batches, drive, max_offset, pull, pulls, send, sends
from tests.benchmarks.systems import QUEUES, BenchmarkError, Pair, await_success
from tests.benchmarks.table import Line
from tests.node.client import endpoint
from tests.node.wire import Wire
from trioha.remoting.codec import encode

LATENCY_RATE: Final = 1000
IDLE_PULLS: Final = 10_000
IDLE_CONNECTIONS: Final = 10
SETTLE_S: Final = 1.0
"""What a pair that stood still has put off, and what the last round has left behind, is done in this time."""
A_THOUSAND: Final = "1,000 msg"
BATCHES_IN_FLIGHT: Final = 4
BATCH_THREADS: Final = 16
WITHIN_S: Final = 600.0


@contextmanager
def measured(bench: Bench, pair: Pair, *pids: int) -> Iterator[Meter]:
    """Measure these brokers of a pair, or both; those of the other pair stand still meanwhile."""
    time.sleep(SETTLE_S)
    others = (pid for other in bench.pairs if other is not pair for pid in other.pids)
    with standing_still(others), Meter(pids or pair.pids) as meter:
        yield meter
    used = ", ".join(f"{used_s:.2f} s" for used_s in meter.cpu_s_of.values())
    bench.step(f"    {meter.seconds:.1f} s; CPU of master and slave: {used}")


def rounds(bench: Bench, what: str) -> Iterator[tuple[Pair, Callable[..., None]]]:
    """The pairs in turn, each with what notes a figure of the round."""
    return bench.turns(what, bench.pairs, name_of=lambda pair: pair.system.name)


def call(bench: Bench, pair: Pair, command: str, **fields: object) -> dict[str, Any]:
    """Have RocketMQ's clients work on a pair."""
    try:
        return bench.java.call(command, namesrv=pair.name_server, size=len(BODY), **fields)
    except BenchmarkError as error:
        states = f"{pair.master.state()}\n{pair.slave.state()}"
        raise BenchmarkError(f"{pair.system.name}: {error}\n{states}") from error


def send_by_java(bench: Bench, *, threads: int, is_async: bool = False, batch: int = 1) -> None:
    """Sends for a time: each thread one after the other, or one thread asynchronously, as many in flight."""
    how = f"batches of {batch}, {threads} in flight" if batch > 1 else f"{threads} in flight"
    line = Line(f"Java client: sends, {how}{', async' if is_async else ''}", "msg/s", A_THOUSAND)
    memory = [
        Line(f"private memory, {role} under 16 threads", "MB", lower_is_better=True)
        for role in ("master", "slave")
    ]
    topics = {pair.system.name: bench.new_name("send") for pair in bench.pairs}
    for pair, note in rounds(bench, line.work):
        name = pair.system.name
        with measured(bench, pair) as meter:
            said = call(
                bench, pair, "send", topic=topics[name], threads=threads, isAsync=is_async, batch=batch,
                millis=round(bench.sizes.send_s * 1000),
            )  # fmt: skip
        note(line, name, said["messages"] / said["seconds"], meter, units=said["messages"] / 1000)
        if threads == 16 and batch == 1:
            for of_role, pid in zip(memory, pair.pids, strict=True):
                note(of_role, name, meter.peak_bytes[pid] / 1e6, meter)


def drain(bench: Bench) -> None:
    """A new group consumes a backlog from its start, the same one in each round."""
    line = Line("Java client: a push consumer drains a backlog", "MB/s", "GB")
    number = bench.sizes.backlog_bytes // len(BODY)
    topics = {}
    for pair in bench.pairs:
        bench.step(f"backlog of {number:,} messages, {pair.system.name}")
        topics[pair.system.name] = topic = bench.new_name("backlog")
        said = call(
            bench, pair, "send", topic=topic, threads=BATCH_THREADS, batch=BATCH, isAsync=False,
            millis=round(WITHIN_S * 1000), count=number,
        )  # fmt: skip
        if said["messages"] < number:
            raise BenchmarkError(f"{pair.system.name}: {said['messages']} of {number} messages in time")
    for pair, note in rounds(bench, line.work):
        name = pair.system.name
        with measured(bench, pair) as meter:
            said = call(bench, pair, "drain", topic=topics[name], group=bench.new_name("drain"), count=number)
        note(line, name, said["bytes"] / 1e6 / said["seconds"], meter, units=said["bytes"] / 1e9)


def latency(bench: Bench) -> None:
    """End to end at a rate."""
    for pair, note in rounds(bench, "latency"):
        with measured(bench, pair) as meter:
            said = call(
                bench, pair, "latency", topic=bench.new_name("latency"), group=bench.new_name("latency"),
                rate=LATENCY_RATE, seconds=bench.sizes.latency_s,
            )  # fmt: skip
        for part in ("p50", "p99"):
            line = Line(
                f"Java client: end to end at {LATENCY_RATE:,} msg/s, {part}", "us", A_THOUSAND,
                lower_is_better=True,
            )  # fmt: skip
            note(line, pair.system.name, said[f"{part}Micros"], meter, units=said["messages"] / 1000)


def send_raw(bench: Bench, *, in_flight: int, batch: int = 1) -> None:
    """Sends for a time over one connection."""
    how = f"batches of {batch}, {in_flight} in flight" if batch > 1 else f"{in_flight} in flight"
    line = Line(f"raw sender: {how}", "msg/s", A_THOUSAND)
    topic = bench.new_name("raw")
    frames = batches(topic) if batch > 1 else sends(topic)
    for pair, note in rounds(bench, line.work):
        await_success(send(topic), pair.master.address, what=pair.system.name)
        with measured(bench, pair) as meter:
            requests, seconds = drive(
                pair.master.address, frames, in_flight=in_flight, seconds=bench.sizes.raw_s
            )
        messages = requests * batch
        note(line, pair.system.name, messages / seconds, meter, units=messages / 1000)


def pull_raw(bench: Bench) -> None:
    """Pulls of neighbouring messages for a time over one connection, over what batches have stored."""
    line = Line(f"raw reader: pulls of {BATCH}, {BATCHES_IN_FLIGHT} in flight", "pulls/s", "1,000 pulls")
    topic = bench.new_name("pull")
    frames = {}
    for pair in bench.pairs:
        drive(pair.master.address, batches(topic), in_flight=1, count=256)
        # Until the queues are dispatched.
        time.sleep(SETTLE_S)
        frames[pair.system.name] = pulls(pair.master.address, topic)
    for pair, note in rounds(bench, line.work):
        name = pair.system.name
        with measured(bench, pair) as meter:
            requests, seconds = drive(
                pair.master.address, frames[name], in_flight=BATCHES_IN_FLIGHT, seconds=bench.sizes.raw_s
            )
        note(line, name, requests / seconds, meter, units=requests / 1000)


def idle(bench: Bench) -> None:
    """Pulls that wait at the ends of queues: what they add to the master's memory, and what it computes."""
    seconds = bench.sizes.idle_s
    line = Line(f"{IDLE_PULLS:,} idle long polls, memory", "MiB", f"{seconds:g} s", lower_is_better=True)
    # Before the first round: what it leaves in the process is used again by the next ones.
    before = {pair.system.name: anonymous_bytes(pair.master.pid) for pair in bench.pairs}
    for pair, note in rounds(bench, line.work):
        topic = bench.new_name("idle")
        await_success(send(topic), pair.master.address, what=pair.system.name)
        # Until the queue is dispatched.
        time.sleep(SETTLE_S)
        with idle_pulls(pair.master.address, topic):
            time.sleep(SETTLE_S)
            added_bytes = anonymous_bytes(pair.master.pid) - before[pair.system.name]
            with measured(bench, pair, pair.master.pid) as meter:
                time.sleep(seconds)
        note(line, pair.system.name, max(added_bytes, 0) / 2**20, meter, units=1)


@contextmanager
def idle_pulls(address: str, topic: str) -> Iterator[None]:
    """Pulls at the ends of a topic's queues, all of which wait; over several connections."""
    with Wire(address) as asking:
        waiting = [
            pull(topic, queue_id, int(asking.ask(max_offset(topic, queue_id)).ext_fields["offset"]))
            for queue_id in range(QUEUES)
        ]
    frames = b"".join(
        encode(evolve(waiting[number % QUEUES], opaque=number))
        for number in range(IDLE_PULLS // IDLE_CONNECTIONS)
    )
    with ExitStack() as connections:
        opened = [
            connections.enter_context(socket.create_connection(endpoint(address), timeout=30))
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
            raise BenchmarkError(f"an idle pull was answered, or its connection closed: {data[:500]!r}")


RAW_WORKS: Final[dict[str, Callable[[Bench], None]]] = {
    **{f"raw-{number}": partial(send_raw, in_flight=number) for number in (1, 16, 256)},
    "raw-batch": partial(send_raw, in_flight=BATCHES_IN_FLIGHT, batch=BATCH),
    "raw-pull": pull_raw,
}
JAVA_WORKS: Final[dict[str, Callable[[Bench], None]]] = {
    "java-1": partial(send_by_java, threads=1),
    "java-16": partial(send_by_java, threads=16),
    "java-256": partial(send_by_java, threads=256, is_async=True),
    "java-batch": partial(send_by_java, threads=BATCH_THREADS, batch=BATCH),
    "drain": drain,
    "latency": latency,
}
