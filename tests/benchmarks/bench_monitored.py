"""What 20 monitors cost the node that they watch: its throughput at its limit, with and without them.

    python tests/benchmarks/bench_monitored.py [--seconds 0.5] [--rounds 200] [--monitors 20] [--json FILE]

A SYNC_MASTER with a core of its own, as busy as it can be: another process keeps 256 sends of 100 bytes in
flight, each stored and replicated before it is answered, written and counted as bare bytes, so that the
master and not its load is the limit. Load, slave and monitors share the other cores.

20 clients look ten times a second each, over connections of their own, exactly as the monitor does: in turn
at the master, or at a decoy, an idle node beside the load. So the monitors' own work is there all the time,
and what differs is what they cost the master. Its loss is that of puts for each second of its CPU; puts for
each second of the clock are shown beside it.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import selectors
import shlex
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from types import MappingProxyType

import trio
from attrs import asdict, frozen
from rich.console import Console
from rich.progress import track

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.benchmarks.rivals.machine import cpu_s
from trioha.remoting.client import open_client
from trioha.remoting.codec import encode
from trioha.remoting.send_message import SendMessageRequestHeader, send_request
from trioha.remoting.status_reader import StatusReader

CONFIG = """\
brokerName = broker-a
listenPort = 0
trioha.bindAddress = 127.0.0.1
brokerIP1 = 127.0.0.1
brokerIP2 = 127.0.0.1
mappedFileSizeCommitLog = 67108864
"""
INTERVAL_S = 0.1
BODY = bytes(100)
CONNECTIONS = 4
IN_FLIGHT = 64
"""On each of them."""
SETTLE_S = 0.3
"""From when monitors begin until it is measured."""


@frozen
class Round:
    """One stretch of load."""

    puts: int
    seconds: float
    cpu_s: float
    """User and system time of the master."""
    answers: int
    """What monitors were answered."""

    @property
    def puts_per_cpu_s(self) -> float:
        """Puts for each second that the master worked."""
        return self.puts / self.cpu_s

    @property
    def puts_per_s(self) -> float:
        """Puts for each second that passed."""
        return self.puts / self.seconds


def start_node(
    processes: ExitStack,
    folder: Path,
    name: str,
    *,
    role: str,
    master: str | None = None,
    settings: Mapping[str, object] = MappingProxyType({}),
) -> tuple[subprocess.Popen[str], str, str]:
    """A running node, its listen address and its HA address."""
    config = folder / "broker.conf"
    config.write_text(CONFIG)
    settings = {
        "brokerRole": role,
        "brokerId": int(role == "SLAVE"),
        "storePathRootDir": folder / name,
        # Busy polling uses idle time of a core: it would hide the CPU time of the work.
        "trioha.haBusyPoll": 0,
        **({} if master is None else {"haMasterAddress": master}),
        **settings,
    }
    options = [word for key, value in settings.items() for word in ("-p", f"{key}={value}")]
    log = processes.enter_context((folder / f"{name}.log").open("w"))
    node = subprocess.Popen(
        (sys.executable, "-m", "trioha", "node", "-c", str(config), *options),
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
    )
    processes.callback(end, node)
    assert node.stdout is not None
    line = node.stdout.readline()
    if not line.startswith("ready "):
        raise SystemExit(f"{name} did not start: {Path(log.name).read_text()}")
    said = dict(word.partition("=")[::2] for word in shlex.split(line)[1:])
    return node, said["listen"], said["ha"]


def end(process: subprocess.Popen[str]) -> None:
    """Stop a node."""
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def run_monitors(count: int, pipe: Connection) -> None:
    """Watch the addresses that arrive until None does, then send the number of answers."""
    answers = 0

    async def watch(address: str, number: int) -> None:
        nonlocal answers
        async with open_client(address) as client:
            reader = StatusReader(client, with_table=True, every_s=INTERVAL_S)
            await trio.sleep(INTERVAL_S * number / count)
            while True:
                next_s = trio.current_time() + INTERVAL_S
                await reader.fetch()
                answers += 1
                await trio.sleep_until(next_s)

    async def main() -> None:
        nonlocal answers
        while address := await trio.to_thread.run_sync(pipe.recv):
            answers = 0
            async with trio.open_nursery() as nursery:
                for number in range(count):
                    nursery.start_soon(watch, address, number)
                await trio.to_thread.run_sync(pipe.recv)
                nursery.cancel_scope.cancel()
            pipe.send(answers)

    trio.run(main)


def run_load(address: str, pipe: Connection) -> None:
    """Keep puts in flight for as many seconds as the pipe says, and answer how many were stored."""
    header = SendMessageRequestHeader(
        producer_group="p", topic="T", default_topic="TBW102", default_topic_queue_nums=4, queue_id=0,
        sys_flag=0, born_timestamp_ms=1_700_000_000_000, flag=0,
    )  # fmt: skip
    ask = encode(send_request(header, BODY))
    host, _, port = address.rpartition(":")
    with ExitStack() as stack:
        sockets = [
            stack.enter_context(socket.create_connection((host, int(port)))) for _ in range(CONNECTIONS)
        ]
        selector = stack.enter_context(selectors.DefaultSelector())
        unread = [b""] * CONNECTIONS
        for number, sock in enumerate(sockets):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
            selector.register(sock, selectors.EVENT_READ, number)
        while seconds := pipe.recv():
            began_s = time.perf_counter()
            for sock in sockets:
                sock.sendall(ask * IN_FLIGHT)
            puts, in_flight = 0, IN_FLIGHT * CONNECTIONS
            while in_flight:
                is_over = time.perf_counter() - began_s >= seconds
                for key, _ in selector.select():
                    data = unread[key.data] + sockets[key.data].recv(1 << 20)
                    answered, unread[key.data] = count_frames(data)
                    puts += answered
                    in_flight -= answered
                    if not is_over and answered:
                        sockets[key.data].sendall(ask * answered)
                        in_flight += answered
            pipe.send((puts, time.perf_counter() - began_s))


def count_frames(data: bytes) -> tuple[int, bytes]:
    """How many whole frames `data` begins with, each a put's success, and what is left."""
    count = at = 0
    while len(data) >= at + 4 and len(data) >= (end := at + 4 + int.from_bytes(data[at : at + 4])):
        assert b'"code":0,' in data[at:end], data[at:end]
        count += 1
        at = end
    return count, data[at:]


async def until_stored(address: str) -> None:
    """Wait until the slave is there."""
    with trio.fail_after(30):
        async with open_client(address) as client:
            while (await StatusReader(client).fetch()).in_sync_slaves != 1:  # noqa: ASYNC110 - asked over the wire
                await trio.sleep(0.1)


def measure(pid: int, load: Connection, monitors: Connection, *, watched: str, seconds: float) -> Round:
    """One stretch of load, while the monitors watch the address `watched`."""
    monitors.send(watched)
    time.sleep(SETTLE_S)
    began_cpu_s = cpu_s(pid)
    load.send(seconds)
    puts, took_s = load.recv()
    used_s = cpu_s(pid) - began_cpu_s
    monitors.send(None)
    return Round(puts, took_s, used_s, monitors.recv())


def start_helper(processes: ExitStack, target: Callable[..., None], *args: object) -> Connection:
    """A child process, with the pipe that carries its commands."""
    ours, theirs = multiprocessing.Pipe()
    helper = multiprocessing.Process(target=target, args=(*args, theirs), daemon=True)
    helper.start()
    processes.callback(helper.join)
    processes.callback(ours.send, None)
    return ours


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--monitors", type=int, default=20)
    parser.add_argument("--json", type=Path, help="write every round to this file")
    args = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise SystemExit("two cores are needed: one is the master's alone")
    with tempfile.TemporaryDirectory(prefix="trioha-bench-") as work, ExitStack() as processes:
        folder = Path(work)
        master, listen, ha = start_node(processes, folder, "master", role="SYNC_MASTER")
        # All that is started from now on has the other cores.
        os.sched_setaffinity(0, cores[1:])
        for task in Path(f"/proc/{master.pid}/task").iterdir():
            os.sched_setaffinity(int(task.name), cores[:1])
        start_node(processes, folder, "slave", role="SLAVE", master=ha)
        _, decoy, _ = start_node(processes, folder, "decoy", role="ASYNC_MASTER")
        trio.run(until_stored, listen)
        load = start_helper(processes, run_load, listen)
        monitors = start_helper(processes, run_monitors, args.monitors)
        measure(master.pid, load, monitors, watched=listen, seconds=3)
        rounds: dict[str, list[Round]] = {decoy: [], listen: []}
        for number in track(range(args.rounds), "measuring", console=Console(stderr=True)):
            for watched in (decoy, listen) if number % 2 else (listen, decoy):
                one = measure(master.pid, load, monitors, watched=watched, seconds=args.seconds)
                rounds[watched].append(one)
    # Logarithms, since a ratio that is off by as much either way must come out as none.
    gains = [
        math.log(with_them.puts_per_cpu_s / without.puts_per_cpu_s)
        for without, with_them in zip(rounds[decoy], rounds[listen], strict=True)
    ]
    error = statistics.stdev(gains) / math.sqrt(len(gains)) if len(gains) > 1 else math.nan
    print("watched  puts/s  puts/s of CPU  master's core  answers/s (medians)")
    for name, done in zip(("decoy", "master"), rounds.values(), strict=True):
        columns = (
            statistics.median(getter(one) for one in done)
            for getter in (
                lambda one: one.puts_per_s,
                lambda one: one.puts_per_cpu_s,
                lambda one: one.cpu_s / one.seconds,
                lambda one: one.answers / (one.seconds + SETTLE_S),
            )
        )
        print("{:7} {:7,.0f} {:14,.0f} {:14.0%} {:10.0f}".format(name, *columns))
    print(
        f"{args.monitors} monitors take {-statistics.mean(gains):.1%} +- {error:.1%} of the throughput "
        f"(mean and standard error of {len(gains)} pairs; median {-statistics.median(gains):.1%})"
    )
    if args.json:
        args.json.write_text(json.dumps([[asdict(one) for one in done] for done in rounds.values()]))


if __name__ == "__main__":
    main()
