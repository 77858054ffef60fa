"""How long the monitor's replay takes to open a large session, to seek in it, and to pass all of it.

    .venv/bin/python tests/benchmarks/bench_session_replay.py [--events 10000000] [--seeks 200] [--json]

The session is made by NumPy: an hour of puts with four slaves, one of which is lost now and then. CPU time is
given beside the clock's, since other processes do not disturb it. `cold` seeks each open the session anew;
`warm` ones come after the overview has passed everything, as it does in the first seconds of a replay.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.benchmarks.big_session import write_big_session
from trioha.recording.aggregate import aggregate
from trioha.recording.session_reader import SessionReader
from trioha.recording.time_series import TimeGrid
from trioha_monitor.replay import open_replay


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Seconds by the clock and of CPU."""
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall_s, time.process_time() - cpu_s


def percentiles_ms(times: list[tuple[float, float]]) -> dict[str, float]:
    wall, cpu = (np.array(part) * 1000 for part in zip(*times, strict=True))
    return {
        "p50_ms": float(np.percentile(wall, 50)),
        "p99_ms": float(np.percentile(wall, 99)),
        "cpu_p50_ms": float(np.percentile(cpu, 50)),
        "cpu_p99_ms": float(np.percentile(cpu, 99)),
    }


def measure(path: Path, *, seeks: int) -> dict[str, object]:
    lot = random.Random(7)
    figures: dict[str, object] = {}
    opening = [timed(lambda: open_replay([path])) for _ in range(5)]
    figures["open"] = percentiles_ms(opening)
    position = open_replay([path]).position

    def moment() -> int:
        return lot.randrange(position.start_ns, position.end_ns)

    cold = []
    for _ in range(max(10, seeks // 10)):
        source = open_replay([path])
        at_ns = moment()
        cold.append(timed(lambda source=source, at_ns=at_ns: source.view_at(at_ns)))
    figures["seek_cold"] = percentiles_ms(cold)

    source = open_replay([path])
    slices = []

    def overview() -> None:
        more = True
        while more:
            began_s = time.process_time()
            more = source.work(for_s=0.0)
            slices.append(time.process_time() - began_s)

    wall_s, cpu_s = timed(overview)
    events = sum(run.reader.records for run in source._timeline.runs)
    figures["overview"] = {
        "wall_s": wall_s,
        "cpu_s": cpu_s,
        "events_per_cpu_s": events / cpu_s,
        "slice_cpu_p99_ms": float(np.percentile(np.array(slices) * 1000, 99)),
    }
    warm = []
    for _ in range(seeks):
        at_ns = moment()
        warm.append(timed(lambda at_ns=at_ns: source.view_at(at_ns)))
    figures["seek_warm"] = percentiles_ms(warm)
    frames = []
    begin_ns = moment()
    for frame in range(100):
        # As playing at normal speed does, twenty times a second.
        at_ns = begin_ns + frame * 50_000_000
        frames.append(timed(lambda at_ns=at_ns: source.view_at(at_ns)))
    figures["frame"] = percentiles_ms(frames)

    reader = SessionReader.open(path)
    array = next(iter(reader.scan())).records
    grid = TimeGrid.over(int(array["ts_ns"][0]), int(array["ts_ns"][-1]), steps=1500)
    best = min(timed(lambda: aggregate(array, is_slave=False, grid=grid, is_first=True))[1] for _ in range(5))
    figures["aggregate_per_cpu_s"] = len(array) / best
    figures["events"] = events
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--events", type=int, default=10_000_000)
    parser.add_argument("--seeks", type=int, default=200)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = write_big_session(Path(folder) / "session", events=arguments.events)
        figures = measure(path, seeks=arguments.seeks)
    if arguments.json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        if isinstance(value, dict):
            print(f"{name:16}", "  ".join(f"{key} {figure:,.1f}" for key, figure in value.items()))
        else:
            print(f"{name:16} {value:,.0f}")


if __name__ == "__main__":
    main()
