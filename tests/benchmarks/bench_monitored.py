"""What 20 monitors cost the node that they watch: CPU of the node at the same load, with and without them.

    python tests/benchmarks/bench_monitored.py [--seconds 3] [--rounds 10] [--monitors 20] [--rate 600]

A SYNC_MASTER and a slave, `trioha node` processes, take sends of 100 bytes from 16 writers of another
process, so many a second. In turn nobody watches, or so many clients poll the master ten times a second each,
over connections of their own, exactly as the monitor does. The master's CPU is that of its process, and what
it takes more of a core is what its throughput loses where it has no core to spare. The rate is below what the
machine can do: at its limit puts and monitors would wait for each other, less of them would be taken in one
turn, and each would cost more, watched or not.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path

import trio
from attrs import frozen

from trioha.remoting.client import RemotingClient, open_client
from trioha.remoting.send import SendMessageRequestHeader, put_status_name, send_request
from trioha.remoting.status import StatusReader

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
WRITERS = 16


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
    def core(self) -> float:
        """What it took of a core, 0 to 1."""
        return self.cpu_s / self.seconds


def start_node(
    processes: ExitStack, folder: Path, *, role: str, broker_id: int, master: str | None = None
) -> tuple[subprocess.Popen[str], str, str]:
    """A running node, its listen address and its HA address."""
    config = folder / "broker.conf"
    config.write_text(CONFIG)
    settings = [f"brokerRole={role}", f"brokerId={broker_id}", f"storePathRootDir={folder / str(broker_id)}"]
    # To look for bytes takes what nobody else wants of a core: that is no work, and would hide the work.
    settings.append("trioha.haBusyPoll=0")
    if master is not None:
        settings.append(f"haMasterAddress={master}")
    options = [word for setting in settings for word in ("-p", setting)]
    log = processes.enter_context((folder / f"{broker_id}.log").open("w"))
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
        raise SystemExit(f"{role} did not start: {Path(log.name).read_text()}")
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


def cpu_s(pid: int) -> float:
    """User and system time of a process so far, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def run_monitors(address: str, count: int, pipe: Connection) -> None:
    """Watch `address` until told to stop, then tell how many answers there were."""
    answers = 0

    async def watch(number: int) -> None:
        nonlocal answers
        async with open_client(address) as client:
            reader = StatusReader(client, with_table=True)
            await trio.sleep(INTERVAL_S * number / count)
            while True:
                next_s = trio.current_time() + INTERVAL_S
                await reader.fetch()
                answers += 1
                await trio.sleep_until(next_s)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for number in range(count):
                nursery.start_soon(watch, number)
            await trio.to_thread.run_sync(pipe.recv)
            nursery.cancel_scope.cancel()

    trio.run(main)
    pipe.send(answers)


async def put_for(address: str, *, seconds: float, per_s: float) -> int:
    """Store so many messages a second on master and slave for `seconds`; returns how many they were."""
    header = SendMessageRequestHeader(
        producer_group="p", topic="T", default_topic="TBW102", default_topic_queue_nums=4, queue_id=0,
        sys_flag=0, born_timestamp_ms=1_700_000_000_000, flag=0,
    )  # fmt: skip
    message = send_request(header, BODY)
    end_s = trio.current_time() + seconds
    puts = 0

    async def write(client: RemotingClient, next_s: float) -> None:
        nonlocal puts
        while next_s < end_s:
            await trio.sleep_until(next_s)
            next_s += WRITERS / per_s
            answer = await client.request(message, timeout_s=10)
            assert put_status_name(answer) == "PUT_OK", answer
            puts += 1

    async with open_client(address) as client, trio.open_nursery() as nursery:
        for number in range(WRITERS):
            nursery.start_soon(write, client, trio.current_time() + number / per_s)
    return puts


async def until_stored(address: str) -> None:
    """Wait until the slave is there."""
    with trio.fail_after(30):
        async with open_client(address) as client:
            while (await StatusReader(client).fetch()).in_sync_slaves != 1:  # noqa: ASYNC110 - asked over the wire
                await trio.sleep(0.1)


def measure(pid: int, address: str, *, monitors: int, seconds: float, per_s: float) -> Round:
    """One stretch of load with so many monitors."""
    ours, theirs = multiprocessing.Pipe()
    watching = multiprocessing.Process(target=run_monitors, args=(address, monitors, theirs))
    watching.start()
    time.sleep(0.5)
    began_s, began_cpu_s = time.perf_counter(), cpu_s(pid)
    puts = trio.run(lambda: put_for(address, seconds=seconds, per_s=per_s))
    took_s, used_s = time.perf_counter() - began_s, cpu_s(pid) - began_cpu_s
    ours.send(None)
    answers = ours.recv()
    watching.join()
    return Round(puts, took_s, used_s, answers)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--monitors", type=int, default=20)
    parser.add_argument("--rate", type=float, default=600.0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="trioha-bench-") as work, ExitStack() as processes:
        folder = Path(work)
        master, listen, ha = start_node(processes, folder, role="SYNC_MASTER", broker_id=0)
        start_node(processes, folder, role="SLAVE", broker_id=1, master=ha)
        trio.run(until_stored, listen)
        measure(master.pid, listen, monitors=0, seconds=2, per_s=args.rate)
        rounds: dict[int, list[Round]] = {0: [], args.monitors: []}
        print("monitors    puts/s  node's core  answers/s")
        for _ in range(args.rounds):
            for monitors, done in rounds.items():
                one = measure(master.pid, listen, monitors=monitors, seconds=args.seconds, per_s=args.rate)
                done.append(one)
                print(
                    f"{monitors:8} {one.puts / one.seconds:9,.0f} {one.core:12.1%} "
                    f"{one.answers / one.seconds:10.0f}",
                    flush=True,
                )
        alone, watched = (statistics.median(one.core for one in done) for done in rounds.values())
        differences = sorted(
            with_them.core - without.core
            for without, with_them in zip(rounds[0], rounds[args.monitors], strict=True)
        )
        print(
            f"{args.monitors} monitors take {watched - alone:.1%} of a core of the node (medians); "
            f"round by round {differences[0]:.1%} to {differences[-1]:.1%}"
        )


if __name__ == "__main__":
    main()
