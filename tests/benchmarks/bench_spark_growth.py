"""How replay grows with a recording: `trioha replay` of 1 to 300 million events on three kinds of Spark.

    .venv/bin/python tests/benchmarks/bench_spark_growth.py [--events 1 10 100 300] [--rounds 3] [--json]
        [--minutes 180] [--systems local[1] local[2] "standalone, 2 workers"] [--folder FOLDER]
    .venv/bin/python tests/benchmarks/plot_spark_growth.py RUN.json

For each size one session of a master with four slaves is made (48 bytes an event: 300 million take 14.4 GB of
disk) and removed again. The command replays it on local[1], on local[2], and on a standalone master with two
workers of one core each, each time from the start of its processes to their end; systems take turns within a
round. A size is skipped, and named, if the disk has no room for it or the time is over.

CPU seconds are those of all processes, Python workers too, as of the last sample (every 0.2 s). Memory is
the most that was resident at one sample: of the driver, Python and Java together, and of the executors, all
of them together: their Java and their Python workers. On local Spark the driver's Java is the executor's,
too, and counts as the driver's.

`planning` is what the driver does before the first task: 10,000 segments with 21 billion events (sparse files
with the headers of real ones) planned for a replay, and for the source `trioha-session`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from attrs import define, field

# The benchmarks are modules of the tests, which are not installed.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.benchmarks.big_session import write_big_session
from tests.benchmarks.rivals.conditions import conditions
from tests.spark.cluster import spark_cluster
from trioha.recording.events import RECORD_BYTES
from trioha.recording.layout import EVENTS_FOLDER, encode_header, segment_name
from trioha.recording.reader import HEADER_BYTES

ROOT: Final = Path(__file__).resolve().parents[2]
CLUSTER: Final = "standalone, 2 workers"
SYSTEMS: Final = ("local[1]", "local[2]", CLUSTER)
SIZES: Final = (1.0, 10.0, 100.0, 300.0)
SEGMENTS: Final = 10_000
SEGMENT_RECORDS: Final = 2_100_000
SAMPLE_S: Final = 0.2
MILLION: Final = 1_000_000
PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


@define
class Usage:
    """The most that processes had resident at a time, in MB, and their CPU time."""

    driver_mb: float = 0.0
    executors_mb: float = 0.0
    _ticks: dict[tuple[int, int], int] = field(factory=dict)
    """CPU time of each process at its last sample, by its id and when it started."""

    @property
    def cpu_s(self) -> float:
        """CPU time of all processes, this one excepted; the last moment of each may be missing.

        Not that which parents get from the system: Spark's Python workers outlive their parents.
        """
        return sum(self._ticks.values()) / os.sysconf("SC_CLK_TCK")

    def sample(self) -> None:
        """Add what they have now."""
        found = {"driver": 0, "executors": 0, "": 0}
        # A process, and whether it belongs to an executor.
        below = [(os.getpid(), "")]
        while below:
            process_id, owner = below.pop()
            folder = Path(f"/proc/{process_id}")
            with suppress(OSError, ValueError, IndexError):
                command = (folder / "cmdline").read_bytes()
                own = _owner(command, owner) if process_id != os.getpid() else ""
                stat = (folder / "stat").read_text().rpartition(")")[2].split()
                if process_id != os.getpid():
                    self._ticks[process_id, int(stat[19])] = int(stat[11]) + int(stat[12])
                found[own] += int((folder / "statm").read_text().split()[1]) * PAGE_BYTES
                for task in list((folder / "task").iterdir()):
                    below += [(int(child), own) for child in (task / "children").read_text().split()]
        self.driver_mb = max(self.driver_mb, found["driver"] / 1e6)
        self.executors_mb = max(self.executors_mb, found["executors"] / 1e6)


def _owner(command: bytes, parent: str) -> str:
    """Whether a process is the driver's or an executor's; neither are Spark's own daemons."""
    if b"deploy.master.Master" in command or b"deploy.worker.Worker" in command:
        return ""
    # The driver's Java names the daemon, too, in a setting.
    if b"CoarseGrainedExecutorBackend" in command or b"-m\0trioha_spark.daemon" in command:
        return "executors"
    if b"trioha\0replay" in command:
        return "driver"
    return parent


@contextmanager
def sampled() -> Iterator[Usage]:
    """Sample memory and CPU time while the block runs."""
    usage, ended = Usage(), threading.Event()

    def sample() -> None:
        while not ended.wait(SAMPLE_S):
            usage.sample()

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield usage
    finally:
        ended.set()
        thread.join()


@define
class Growth:
    """What is measured, and how much room there is for it."""

    folder: Path
    deadline_s: float
    rounds: int
    systems: Sequence[str] = SYSTEMS
    points: list[dict[str, Any]] = field(factory=list)
    skipped: list[str] = field(factory=list)

    def measure(self, millions: float) -> None:
        """Replay a session of so many million events on each system."""
        events = round(millions * MILLION)
        needed_bytes = events * RECORD_BYTES * 5 // 4
        if shutil.disk_usage(self.folder).free < needed_bytes:
            self.skipped.append(f"{millions:g} million events: need {needed_bytes / 1e9:.1f} GB of disk")
            return
        path = write_big_session(self.folder / "session", events=events)
        try:
            for _ in range(self.rounds):
                for system in self.systems:
                    try:
                        self._add(system, millions, self._replay(path, system))
                    except subprocess.TimeoutExpired:
                        self.skipped.append(f"{millions:g} million events on {system}: out of time")
        finally:
            shutil.rmtree(path)

    def _add(self, system: str, millions: float, figures: dict[str, float]) -> None:
        for point in self.points:
            if (point["system"], point["millions"]) == (system, millions):
                break
        else:
            point = {"system": system, "millions": millions, **{name: [] for name in figures}}
            self.points.append(point)
        for name, figure in figures.items():
            point[name].append(round(figure, 3))

    def _replay(self, path: Path, system: str) -> dict[str, float]:
        left_s = self.deadline_s - time.monotonic()
        if left_s <= 0:
            raise subprocess.TimeoutExpired("replay", 0)
        with ExitStack() as running:
            master = system
            if system == CLUSTER:
                os.environ["PYTHONPATH"] = os.pathsep.join((str(ROOT), str(ROOT / "spark")))
                master = running.enter_context(spark_cluster(self.folder / "cluster"))
            command = [sys.executable, "-m", "trioha", "replay", str(path), "--json", "--master", master]
            usage = running.enter_context(sampled())
            began_s = time.perf_counter()
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=ROOT, timeout=left_s)
            took_s = time.perf_counter() - began_s
        document = json.loads(done.stdout)
        assert document["sessions"][0]["events"] > 0
        assert not document["violations"], "the session that was made is clean"
        return {
            "seconds": took_s,
            "cpuS": usage.cpu_s,
            "driverMB": usage.driver_mb,
            "executorsMB": usage.executors_mb,
        }


def write_many_segments(folder: Path, *, segments: int) -> Path:
    """A session with so many segments of `SEGMENT_RECORDS`, which are holes but for their headers, and whose
    last one has records."""
    path = write_big_session(folder / "many", events=10_000)
    events = path / EVENTS_FOLDER
    (last,) = events.iterdir()
    data = last.read_bytes()
    last.unlink()
    for number in range(segments):
        with (events / segment_name(number * SEGMENT_RECORDS)).open("wb") as file:
            file.write(encode_header(base_seq=number * SEGMENT_RECORDS, base_ts_ns=number * 10**9))
            if number == 0:
                file.write(data[HEADER_BYTES:])
            file.truncate(HEADER_BYTES + SEGMENT_RECORDS * RECORD_BYTES)
    # Only the last record's time is read for a plan: the last segment has none.
    with (events / segment_name(segments * SEGMENT_RECORDS)).open("wb") as file:
        file.write(encode_header(base_seq=segments * SEGMENT_RECORDS, base_ts_ns=segments * 10**9))
    return path


def plan(folder: Path, *, segments: int) -> dict[str, Any]:
    """What planning a session of many segments takes, and what tasks are sent."""
    import pickle

    from pyspark.sql.types import LongType, StructField, StructType

    from trioha.recording.reader import open_session, read_segments
    from trioha_analysis.parts import runs_of
    from trioha_analysis.replay_result import series_grid
    from trioha_spark.sources.session import SessionDataSourceReader

    path = write_many_segments(folder, segments=segments)
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    found = read_segments(open_session(path))
    grid = series_grid(0, segments * 10**9, wall_ns=0)
    runs = [pickle.dumps(run) for run in runs_of(0, path, found.segments, grid, run_ranges=8)]
    replay_s, replay_cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    schema = StructType([StructField("seq", LongType())])
    partitions = SessionDataSourceReader({"path": str(path)}, schema).partitions()
    figures = {
        "segments": len(found.segments),
        "events": found.records,
        "replayS": round(replay_s, 3),
        "replayCpuS": round(replay_cpu_s, 3),
        "replayTasks": len(runs),
        "replayTaskBytes": max(map(len, runs)),
        "sourceS": round(time.perf_counter() - began_s, 3),
        "sourceCpuS": round(time.process_time() - began_cpu_s, 3),
        "sourceTasks": len(partitions),
        "sourceTaskBytes": max(len(pickle.dumps(partition.value)) for partition in partitions),
    }
    shutil.rmtree(path)
    return figures


def options_of(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--events", type=float, nargs="+", default=SIZES, help="millions")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--segments", type=int, default=SEGMENTS, help="segments of the planned session")
    parser.add_argument("--minutes", type=float, default=180, help="a run that lasts until then is ended")
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=SYSTEMS)
    parser.add_argument("--folder", type=Path, help="where sessions are made")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args(arguments)


def main() -> None:
    """Measure, and print."""
    options = options_of()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        planning = plan(Path(folder), segments=options.segments)
        growth = Growth(
            Path(folder), time.monotonic() + options.minutes * 60, options.rounds, options.systems
        )
        for millions in options.events:
            growth.measure(millions)
    run = {
        "benchmark": "spark-growth",
        **conditions(),
        "rounds": options.rounds,
        "planning": planning,
        "skipped": growth.skipped,
        "points": growth.points,
    }
    if options.json:
        print(json.dumps(run))
        return
    print(f"planning: {json.dumps(planning)}")
    print(f"{'millions':>8}  {'system':<22} {'s':>8} {'CPU s':>8} {'driver MB':>10} {'executors MB':>13}")
    for point in growth.points:
        figures = [sorted(point[name])[len(point[name]) // 2] for name in FIGURES]
        seconds, cpu_s, driver_mb, executors_mb = figures
        print(
            f"{point['millions']:8g}  {point['system']:<22} {seconds:8.1f} {cpu_s:8.1f} "
            f"{driver_mb:10.0f} {executors_mb:13.0f}"
        )
    for skipped in growth.skipped:
        print(f"skipped: {skipped}")


FIGURES: Final = ("seconds", "cpuS", "driverMB", "executorsMB")

if __name__ == "__main__":
    main()
