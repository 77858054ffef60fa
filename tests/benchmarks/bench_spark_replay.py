"""How long `trioha replay` takes on Spark, with sessions of 1, 10 and (with --large) 100 million events.

    .venv/bin/python tests/benchmarks/bench_spark_replay.py [--events 1 10] [--large] [--rounds 3] [--json]

For each size one session is made (48 bytes an event: 100 million take 4.8 GB of disk) and removed again, and
replayed on local[1] and local[2], each in a process of its own: the first time with Spark just up (its Python
workers start then), and some more times. CPU seconds of all processes stand beside the clock's, since others
on the machine disturb them less. Memory: the most that the driver's Python ever had (VmHWM), and the most
that Java's heap pools ever held, garbage included.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.benchmarks.big_session import write_big_session
from trioha.recording.events import RECORD_BYTES

MASTERS = ("local[1]", "local[2]")
MILLION = 1_000_000


def cpu_s_of_all() -> float:
    """CPU time of this process and of all below it that still run."""
    ticks = 0
    below = [os.getpid()]
    while below:
        process = Path(f"/proc/{below.pop()}")
        # A process or thread that has just ended: what it took is its parent's then.
        with suppress(FileNotFoundError, ProcessLookupError):
            ticks += sum(map(int, (process / "stat").read_text().rpartition(")")[2].split()[11:15]))
            for task in list((process / "task").iterdir()):
                with suppress(FileNotFoundError, ProcessLookupError):
                    below += map(int, (task / "children").read_text().split())
    return ticks / os.sysconf("SC_CLK_TCK")


def replay_rounds(path: Path, master: str, rounds: int) -> dict[str, Any]:
    """Replay a session some times on a Spark of this process."""
    from trioha_spark.replay import replay
    from trioha_spark.session import spark_session

    runs = []
    with spark_session(master) as spark:
        spark.range(1).count()
        for _ in range(rounds):
            began_s, began_cpu_s = time.perf_counter(), cpu_s_of_all()
            result = replay([path], spark=spark)
            runs.append((time.perf_counter() - began_s, cpu_s_of_all() - began_cpu_s))
        (session,) = result.sessions
        violations = sum(verdict.count for verdict in session.verdicts)
        assert violations == 0, "the session that was made is clean"
        java = spark.sparkContext._jvm.java.lang.management
        pools = [
            int(pool.getPeakUsage().getUsed())
            for pool in java.ManagementFactory.getMemoryPoolMXBeans()
            if str(pool.getType().name()) == "HEAP"
        ]
    status = Path("/proc/self/status").read_text()
    peak_kb = int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1])
    again = runs[1:] or runs
    return {
        "events": session.node.events,
        "master": master,
        "first_s": runs[0][0],
        "first_cpu_s": runs[0][1],
        "again_s": min(wall_s for wall_s, _ in again),
        "again_cpu_s": min(cpu_s for _, cpu_s in again),
        "driver_python_peak_mb": peak_kb / 1024,
        "java_heap_peak_mb": sum(pools) / 2**20,
        "load": os.getloadavg()[0],
    }


def measure(folder: Path, events: int, rounds: int) -> list[dict[str, Any]]:
    """Make a session and replay it on each master."""
    needed_bytes = 2 * events * RECORD_BYTES
    if shutil.disk_usage(folder).free < needed_bytes:
        raise SystemExit(f"{folder}: {needed_bytes / 1e9:.0f} GB must be free for {events:,} events")
    path = write_big_session(folder / "session", events=events)
    figures = []
    try:
        for master in MASTERS:
            command = [sys.executable, __file__, "--replay", path, "--master", master, "--rounds", rounds]
            done = subprocess.run([*map(str, command)], check=True, stdout=subprocess.PIPE)
            figures.append(json.loads(done.stdout))
    finally:
        shutil.rmtree(path)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--events", type=float, nargs="+", default=[1, 10], help="millions")
    parser.add_argument("--large", action="store_true", help="100 million, too")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--replay", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--master", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.replay is not None:
        print(json.dumps(replay_rounds(arguments.replay, arguments.master, arguments.rounds)))
        return
    figures = []
    if not arguments.json:
        print("millions  master    first s  again s  first CPU s  again CPU s  Python MB  heap MB  load")
    for millions in [*arguments.events, *([100.0] if arguments.large else [])]:
        with tempfile.TemporaryDirectory() as folder:
            for row in measure(Path(folder), round(millions * MILLION), arguments.rounds):
                figures.append(row)
                if not arguments.json:
                    print(
                        f"{row['events'] / MILLION:8.1f}  {row['master']}  {row['first_s']:7.2f}  "
                        f"{row['again_s']:7.2f}  {row['first_cpu_s']:11.2f}  {row['again_cpu_s']:11.2f}  "
                        f"{row['driver_python_peak_mb']:9.0f}  {row['java_heap_peak_mb']:7.0f}  "
                        f"{row['load']:4.1f}",
                        flush=True,
                    )
    if arguments.json:
        print(json.dumps(figures))


if __name__ == "__main__":
    main()
