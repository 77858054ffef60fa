"""How speed changes with the work: trioha and the store of real RocketMQ, in turn, in one run.

| work | x | what is measured |
|---|---|---|
| catch-up | log of 0.1, 1, 4 GiB | bytes per second at which a slave with the first record takes the rest |
| writers | 1 to 1,024 writers | puts per second that wait for the slave |
| queues | 1, 100, 10,000 queues | records per second, from a log without queues and index to one with them |
| load | puts offered per second | time of a put to its ack, p99, up to the first rate that is not reached |

Under `load` puts come at a rate, whether those before were answered or not, up to 10,000 of them; those of a
millisecond come together. Needs Maven and a JDK, at most `--disk-gib` of disk (20), and takes no longer than
`--minutes` (60) and the measurement that runs then; what does not fit is skipped, and the JSON says so.

    python tests/benchmarks/bench_growth.py --json > growth.json
    python tests/benchmarks/plot_growth.py growth.json               # draws the plots of docs/benchmarks.md
    python tests/benchmarks/bench_growth.py --quick                  # small works; these are not drawn
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from attrs import Factory, define, frozen
from rich.console import Console
from rich.table import Table

# The rivals are modules of the tests, which are not installed.
sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks.rivals.conditions import ORDER, conditions, java_version
from tests.benchmarks.rivals.driver import DriverError
from tests.benchmarks.rivals.options import add_options, parse_options
from tests.benchmarks.rivals.sides import JavaSide, Master, Side, TriohaSide, remove
from tests.benchmarks.rivals.works import (
    BODY_BYTES,
    FILE_BYTES,
    QUEUED_RECORD_BYTES,
    Bench,
    Put,
    Series,
    Turns,
    build_queues,
    catch_up_once,
    pairs_in_step,
    put_on,
    rounds_with_warm_up,
)
from tests.benchmarks.rivals.works import Sizes as WorkSizes
from tests.interop.rocketmq import missing_tools

GIB: Final = 1 << 30
FILL_WITHIN_S: Final = 900.0
REACHED: Final = 0.9
"""A rate is reached if so much of it was answered."""
FILES_PER_QUEUE: Final = 1
"""Open files of RocketMQ."""
FILES_BESIDE: Final = 2000
SPARE_GIB: Final = 3
"""Of disk, for files that are allocated ahead."""


@frozen
class Sizes:
    """The points of each plot, and the rounds that each has."""

    log_gib: tuple[float, ...] = (0.1, 1, 4)
    writers: tuple[int, ...] = (1, 4, 16, 64, 256, 1024)
    queues: tuple[int, ...] = (1, 100, 10_000)
    queue_records: int = 400_000
    rates: tuple[int, ...] = (1000, 2000, 5000, 10_000, 15_000, 20_000, 30_000, 40_000, 60_000, 80_000)
    puts_s: float = 2.0
    rounds: int = 3


QUICK: Final = Sizes(
    log_gib=(0.01, 0.03),
    writers=(1, 16),
    queues=(1, 100),
    queue_records=5_000,
    rates=(500, 2000),
    puts_s=0.4,
    rounds=1,
)


@define
class Growth:
    """What the works share: the bench, the points, and the bounds."""

    bench: Bench
    sizes: Sizes
    deadline_s: float
    """By `time.monotonic`: no measurement begins later."""
    disk_bytes: int
    points: dict[tuple[str, str, float], Point] = Factory(dict)
    """By work, rival and x."""
    skipped: list[str] = Factory(list)

    def may_begin(self, what: str, *, disk_gib: float = 0) -> bool:
        """Whether there is time and disk for a measurement; one that is skipped is kept in mind."""
        free_bytes = min(self.disk_bytes, shutil.disk_usage(self.bench.folder).free)
        if time.monotonic() > self.deadline_s:
            self.skipped.append(f"{what}: out of time")
        elif disk_gib * GIB > free_bytes:
            self.skipped.append(f"{what}: needs {disk_gib:.1f} GiB of disk")
        else:
            return True
        return False

    def note(self, work: str, side: Side, x: float, value: float, **more: Any) -> None:
        """One more value of a point."""
        key = work, "trioha" if isinstance(side, TriohaSide) else "RocketMQ", x
        self.points.setdefault(key, Point()).note(value, **more)


@define
class Point:
    """One point of a curve, measured several times."""

    values: list[float] = Factory(list)
    cpu_s: dict[str, list[float]] = Factory(dict)
    """For a unit of work (GB, million puts or records), by process."""
    achieved: list[float] = Factory(list)
    """Puts per second that were answered, under `load`."""

    def note(
        self, value: float, *, cpu_s: Mapping[str, float] | None = None, achieved: float | None = None
    ) -> None:
        """One more round."""
        self.values.append(value)
        for process, used_s in (cpu_s or {}).items():
            self.cpu_s.setdefault(process, []).append(used_s)
        if achieved is not None:
            self.achieved.append(achieved)


def catch_up(growth: Growth) -> None:
    """Each size has masters of its own, which are removed before the next."""
    bench = growth.bench
    for gib in growth.sizes.log_gib:
        # Two masters and a slave.
        if not growth.may_begin(f"catch-up of {gib:g} GiB", disk_gib=3 * gib + SPARE_GIB):
            continue
        masters: list[tuple[Side, Master, Path]] = []
        for side in bench.sides():
            bench.on_step(f"catch-up: {side.name} writes {gib:g} GiB")
            root = bench.new_folder("growth-master")
            master = side.open_master(root, file_bytes=FILE_BYTES)
            master.call("fill", within_s=FILL_WITHIN_S, bodyBytes=BODY_BYTES, bytes=round(gib * GIB))
            master.driver.pause()
            masters.append((side, master, root))
        turns = Turns()
        for counts in rounds_with_warm_up(bench.sizes):
            for side, master, root in turns.order(masters):
                bench.on_step(f"catch-up: {side.name}, {gib:g} GiB")
                found = catch_up_once(
                    bench,
                    master,
                    side,
                    number=1,
                    file_bytes=FILE_BYTES,
                    log_bytes=round(gib * GIB),
                    prepare=first_record_of(root),
                )
                if counts:
                    growth.note("catch-up", side, gib, found.bytes_per_s / 1e6, cpu_s=found.cpu_s_per_gb)
        for _, master, root in masters:
            master.driver.close()
            remove(root)


def first_record_of(master_root: Path) -> Callable[[Path], None]:
    """Gives a slave its master's first record: it requests the rest. An empty one requests the last file."""
    name = f"{0:020d}"
    with (master_root / "commitlog" / name).open("rb") as file:
        head = file.read(4)
        record = head + file.read(int.from_bytes(head, "big") - len(head))

    def prepare(slave_root: Path) -> None:
        folder = slave_root / "commitlog"
        folder.mkdir(parents=True)
        with (folder / name).open("wb") as first:
            first.write(record)
            first.truncate(FILE_BYTES)

    return prepare


def writers(growth: Growth) -> None:
    """Each number of writers in each round."""
    bench, sizes = growth.bench, growth.sizes
    turns = Turns()
    with pairs_in_step(bench) as pairs:
        for counts in rounds_with_warm_up(bench.sizes):
            in_order = turns.order(pairs)
            for number in sizes.writers:
                if not growth.may_begin(f"{number} writers", disk_gib=SPARE_GIB):
                    continue
                for pair in in_order:
                    bench.on_step(f"puts: {pair.side.name}, writers: {number}")
                    found = put_on(bench, pair, "puts", writers=number, seconds=sizes.puts_s)
                    if counts:
                        growth.note("writers", pair.side, number, found.per_s, cpu_s=found.cpu_s_per_million)
    _remove_stores(bench)


def queues(growth: Growth) -> None:
    """Each number of queues has a log of its own."""
    bench, sizes = growth.bench, growth.sizes
    log_gib = sizes.queue_records * QUEUED_RECORD_BYTES / GIB
    for number in sizes.queues:
        # The log, and the stores of both, whose queue files have a page each at least.
        needed_gib = 3 * log_gib + SPARE_GIB
        if not growth.may_begin(f"{number} queues", disk_gib=needed_gib):
            continue
        if not _may_open(FILES_PER_QUEUE * number + FILES_BESIDE):
            growth.skipped.append(f"{number} queues: needs a higher limit of open files")
            continue
        key = f"growth-queues-{number}"
        try:
            build_queues(bench, key, records=sizes.queue_records, queues=number)
        except DriverError as error:
            growth.skipped.append(f"{number} queues: {str(error).splitlines()[0]}")
            continue
        for side in bench.sides():
            series: Series = bench.results[f"{key}/{side.name}"]
            for index, rate in enumerate(series.values):
                cpu_s = {process: used_s[index] for process, used_s in series.cpu_s.items()}
                growth.note("queues", side, number, rate, cpu_s=cpu_s)


def _may_open(files: int) -> bool:
    """Whether processes may have so many open files; raises the limit if it is allowed to."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= files:
        return True
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, max(hard, files)))
    except (OSError, ValueError):
        return False
    return True


def load(growth: Growth) -> None:
    """Each rate in each round, until a pair does not reach it; that one is shown, too."""
    bench, sizes = growth.bench, growth.sizes
    turns = Turns()
    with pairs_in_step(bench) as pairs:
        for counts in rounds_with_warm_up(bench.sizes):
            left = list(turns.order(pairs))
            for rate in sizes.rates:
                if not left or not growth.may_begin(f"{rate} puts/s", disk_gib=SPARE_GIB):
                    break
                for pair in list(left):
                    bench.on_step(f"load: {pair.side.name}, {rate:,} puts/s")
                    found: Put = put_on(bench, pair, "offered", rate=rate, seconds=sizes.puts_s)
                    if found.per_s < REACHED * rate:
                        left.remove(pair)
                    if counts:
                        growth.note(
                            "load", pair.side, rate, found.said["p99Us"],
                            cpu_s=found.cpu_s_per_million, achieved=found.per_s,
                        )  # fmt: skip
    _remove_stores(bench)


def _remove_stores(bench: Bench) -> None:
    """Of puts, for the next work."""
    for folder in bench.folder.glob("puts-*"):
        remove(folder)


WORKS: Final[dict[str, Callable[[Growth], None]]] = {
    "catch-up": catch_up,
    "writers": writers,
    "queues": queues,
    "load": load,
}
UNITS: Final = {"catch-up": "MB/s", "writers": "puts/s", "queues": "records/s", "load": "us"}


def as_json(growth: Growth) -> list[dict[str, object]]:
    """The points, as they were measured."""
    return [
        {
            "work": work,
            "system": system,
            "x": x,
            "unit": UNITS[work],
            "values": point.values,
            "achieved": point.achieved,
            "cpuS": point.cpu_s,
        }
        for (work, system, x), point in sorted(growth.points.items())
    ]


def table(points: list[dict[str, Any]]) -> Table:
    """For a terminal."""
    shown = Table(title="growth, all rounds")
    for heading in ("work", "x", "system", "unit"):
        shown.add_column(heading)
    shown.add_column("values", justify="right")
    for point in points:
        values = ", ".join(f"{value:,.0f}" for value in point["values"])
        shown.add_row(point["work"], f"{point['x']:,g}", point["system"], point["unit"], values)
    return shown


def options_of(arguments: list[str] | None = None) -> argparse.Namespace:
    """What the command line asks for; an unknown work is an error."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print the points as JSON")
    parser.add_argument("--quick", action="store_true", help="one round of small works")
    parser.add_argument("--rounds", type=int, help="rounds that count, after one that warms up (3)")
    parser.add_argument("--minutes", type=float, default=60.0, help="no measurement begins later (60)")
    parser.add_argument("--disk-gib", type=float, default=20.0, help="disk to use at most (20)")
    add_options(parser, WORKS)
    return parse_options(parser, arguments, WORKS)


def main() -> None:
    """Run the works and print their points."""
    options = options_of()
    if (missing := missing_tools()) is not None:
        print(f"not measured against RocketMQ: {missing}", file=sys.stderr)
        return
    sizes = QUICK if options.quick else Sizes()
    rounds = options.rounds or sizes.rounds
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="trioha-bench-", dir=options.folder) as name:
        folder = Path(name)
        with (
            closing(TriohaSide(folder / "trioha")) as trioha,
            closing(JavaSide(folder / "rocketmq", version=options.rocketmq)) as java,
        ):
            # Only rounds are used of these.
            work_sizes = WorkSizes(
                rounds=rounds, catch_up_bytes=0, fan_out_bytes=0, start_bytes=0, puts_s=sizes.puts_s
            )
            growth = Growth(
                bench=Bench(
                    trioha=trioha,
                    java=java,
                    folder=folder,
                    sizes=work_sizes,
                    on_step=lambda step: print(step, file=sys.stderr),
                    idle_timeout_s=options.wait_idle,
                ),
                sizes=sizes,
                deadline_s=began_s + options.minutes * 60,
                disk_bytes=round(options.disk_gib * GIB),
            )
            for work in options.works:
                WORKS[work](growth)
    run = {
        "benchmark": "growth",
        **conditions(),
        "rocketmq": options.rocketmq,
        "java": java_version(),
        "quick": options.quick,
        "rounds": rounds,
        "warmUpRounds": 1,
        "order": ORDER,
        "seconds": round(time.monotonic() - began_s, 1),
        "skipped": growth.skipped,
        "points": as_json(growth),
    }
    if options.json:
        print(json.dumps(run))
        return
    Console(width=120 if not sys.stdout.isatty() else None).print(table(as_json(growth)))
    for skipped in growth.skipped:
        print(f"skipped: {skipped}")


if __name__ == "__main__":
    main()
