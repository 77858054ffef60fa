"""What recording costs a node: its throughput at its limit, with and without `trioha.recordDir`.

    python tests/benchmarks/bench_recorded.py [--seconds 0.5] [--rounds 60] [--json FILE]

Two SYNC_MASTERs, each with a slave, that differ in nothing but recording. In turn, another process keeps 256
sends of 100 bytes in flight at one of them, each stored and replicated before it is answered. Both masters
have the same core, the load and the slaves the others; the one that has no load sleeps.

The loss is that of puts for each second of the master's CPU, of its worker threads too: what the clock shows
depends on the machine's other work.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path

import trio
from attrs import asdict
from rich.console import Console
from rich.progress import track

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.benchmarks.bench_monitored import Round, run_load, start_helper, start_node, until_stored

WRITE_OUT_S = 0.3
"""From the last put until the recorder has written it: more than its FLUSH_INTERVAL_S."""


def process_cpu_s(pid: int) -> float:
    """CPU time of a process and all its threads; /proc has it in steps of 10 ms, which is too coarse here."""
    # The clock of another process, as clock_getcpuclockid(3) makes its number.
    return time.clock_gettime((~pid << 3) | 2)


def measure(pid: int, load: Connection, *, seconds: float) -> Round:
    """One stretch of load, with the writing of what it recorded."""
    began_cpu_s = process_cpu_s(pid)
    load.send(seconds)
    puts, took_s = load.recv()
    time.sleep(WRITE_OUT_S)
    return Round(puts, took_s, process_cpu_s(pid) - began_cpu_s, answers=0)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--json", type=Path, help="write every round to this file")
    args = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise SystemExit("two cores are needed: one is the masters' alone")
    with tempfile.TemporaryDirectory(prefix="trioha-bench-") as work, ExitStack() as processes:
        masters: dict[str, tuple[int, Connection]] = {}
        for name in ("plain", "recorded"):
            folder = Path(work) / name
            folder.mkdir()
            settings = {"trioha.recordDir": folder / "sessions"} if name == "recorded" else {}
            os.sched_setaffinity(0, cores[:1])
            master, listen, ha = start_node(
                processes, folder, "master", role="SYNC_MASTER", settings=settings
            )
            os.sched_setaffinity(0, cores[1:])
            start_node(processes, folder, "slave", role="SLAVE", master=ha)
            trio.run(until_stored, listen)
            masters[name] = master.pid, start_helper(processes, run_load, listen)
        rounds: dict[str, list[Round]] = {name: [] for name in masters}
        for pid, load in masters.values():
            measure(pid, load, seconds=2)
        for number in track(range(args.rounds), "measuring", console=Console(stderr=True)):
            for name in (*masters,)[:: 1 if number % 2 else -1]:
                pid, load = masters[name]
                rounds[name].append(measure(pid, load, seconds=args.seconds))
        files = [*(Path(work) / "recorded" / "sessions").rglob("*.seg")]
        events = sum(file.stat().st_size for file in files) / 48
    gains = [
        math.log(recorded.puts_per_cpu_s / plain.puts_per_cpu_s)
        for plain, recorded in zip(rounds["plain"], rounds["recorded"], strict=True)
    ]
    error = statistics.stdev(gains) / math.sqrt(len(gains)) if len(gains) > 1 else math.nan
    print("master    puts/s  puts/s of CPU  its core (medians)")
    for name, done in rounds.items():
        figures = [(one.puts_per_s, one.puts_per_cpu_s, one.cpu_s / one.seconds) for one in done]
        print(
            "{:8} {:7,.0f} {:14,.0f} {:9.0%}".format(
                name, *map(statistics.median, zip(*figures, strict=True))
            )
        )
    loss, median_loss = -statistics.mean(gains), -statistics.median(gains)
    print(f"recording {events:,.0f} events takes {loss:.1%} +- {error:.1%} of the throughput", end=" ")
    print(f"(mean and standard error of {len(gains)} pairs; median {median_loss:.1%})")
    if args.json:
        args.json.write_text(
            json.dumps({name: [asdict(one) for one in done] for name, done in rounds.items()})
        )


if __name__ == "__main__":
    main()
