"""trioha and the store of real RocketMQ 5.x on the same work, in turn, in one run.

| work | what is measured |
|---|---|
| catch-up | an empty slave takes a log: every pair of master and slave; private memory of both |
| fan-out | eight empty slaves take the log of one master at once |
| start | a broker's start, on an empty store and on one that was cleanly stopped |
| queues | consume queues and index built from a log without them |

Only the ratios count: both run on the same machine, minutes apart at most, round by round. What each line
measures is in `docs/benchmarks.md`. Needs Maven and a JDK, fetches RocketMQ the first time, and takes some
five minutes (`--quick`: two).

    python tests/benchmarks/bench_against_rocketmq.py [--quick] [--json] [--works WORK,...]
"""

from __future__ import annotations

import compileall
import shutil
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack, closing
from itertools import count
from pathlib import Path
from typing import Final

from attrs import Factory, define, field, frozen

# The rivals are modules of the tests, which are not installed.
sys.path.insert(0, str(Path(__file__).parents[2]))

import trioha
from tests.benchmarks.rivals.logs import FILE_BYTES as QUEUED_FILE_BYTES
from tests.benchmarks.rivals.logs import RECORD_BYTES, make_log
from tests.benchmarks.rivals.machine import Meter, await_calm, await_requests, use_memory
from tests.benchmarks.rivals.report import Line, show_run
from tests.benchmarks.rivals.rounds import Series, parse_options, parser_of, turns
from tests.benchmarks.rivals.sides import (
    RAW_SENDER,
    JavaSide,
    Master,
    Side,
    TriohaSide,
    open_raw_sender,
    remove,
)
from tests.interop.rocketmq import missing_tools

BODY_BYTES: Final = 1024
FILE_BYTES: Final = 1 << 30
"""mappedFileSizeCommitLog, RocketMQ's default: the logs here have one file, which an empty slave asks for."""
FAN_OUT_FILE_BYTES: Final = 256 << 20
CATCH_UP_WITHIN_MS: Final = 120_000
ALONE_WITHIN_MS: Final = 60_000
MEMORY_FOR_LOG: Final = 1.25
"""Memory for each byte of a slave's log: for the log itself, queues and index."""
SLAVES: Final = 8


@frozen
class Sizes:
    """How much work there is."""

    rounds: int
    catch_up_bytes: int
    fan_out_bytes: int
    """Log that each of several slaves takes."""
    start_bytes: int
    """Log that a broker starts on, and that queues are built from."""


@frozen
class Filled:
    """A master that stands still."""

    side: Side
    master: Master
    root: Path
    log_bytes: int


@define
class Bench:
    """Both sides, and what came out."""

    trioha: TriohaSide
    java: JavaSide
    folder: Path
    sizes: Sizes
    idle_timeout_s: float
    results: dict[str, Series] = field(factory=lambda: defaultdict(Series))
    """By `work/side`."""
    _ids: count[int] = Factory(count)

    @property
    def sides(self) -> tuple[Side, Side]:
        """Both, in the order of their turns."""
        return self.trioha, self.java

    def new_folder(self, name: str) -> Path:
        """A folder that was not used before."""
        folder = self.folder / f"{name}-{next(self._ids)}"
        folder.mkdir()
        return folder

    def step(self, what: str) -> None:
        """Say what comes next."""
        print(what, file=sys.stderr, flush=True)

    def fill(self, side: Side, *, file_bytes: int, log_bytes: int) -> Filled:
        """A master with a log of this length, or some bytes more."""
        self.step(f"{side.name} writes a log of {log_bytes // 10**6} MB")
        root = self.new_folder("master") / "store"
        master = side.open_master(root, file_bytes=file_bytes)
        said = master.call("fill", bodyBytes=BODY_BYTES, bytes=log_bytes)
        master.driver.pause()
        return Filled(side, master, root, said["maxOffset"])


def catch_up_once(
    bench: Bench, master: Master, slave_side: Side, *, number: int, file_bytes: int, log_bytes: int
) -> tuple[float, float, Meter]:
    """`number` slaves take a master's log: gigabytes, seconds, and what it cost, the master's process first.

    The master stands still until every slave has connected and asked for its log, so that no start of a
    process is measured. All slaves get memory in the same condition for its `log_bytes` (`use_memory`).
    """
    driver = master.driver
    driver.resume()
    master.call("alone", millis=ALONE_WITHIN_MS)
    caught_up = driver.submit("catchUp", store=master.store, slaves=number, millis=CATCH_UP_WITHIN_MS)
    driver.pause()
    folder = bench.new_folder("slaves")
    try:
        with slave_side.slaves(folder, ha_port=master.ha_port, number=number, file_bytes=file_bytes) as pids:
            await_requests(master.ha_port, number)
            await_calm(bench.idle_timeout_s)
            use_memory(bench.folder, round(MEMORY_FOR_LOG * number * log_bytes))
            with Meter([driver.pid, *pids]) as meter:
                driver.resume()
                said = caught_up.result(CATCH_UP_WITHIN_MS / 1000 + 5)
    finally:
        driver.resume()
        remove(folder)
    driver.pause()
    return said["bytes"] / 1e9, said["seconds"], meter


def catch_up(bench: Bench) -> None:
    """An empty slave takes a log: every pair of master and slave."""
    log_bytes = bench.sizes.catch_up_bytes
    of_trioha, of_java = (
        bench.fill(side, file_bytes=FILE_BYTES, log_bytes=log_bytes) for side in bench.sides
    )
    ours, theirs = of_trioha.master, of_java.master
    log = of_java.root / "commitlog" / f"{0:020}"
    raw = open_raw_sender(bench.new_folder("raw"), log, log_bytes=of_java.log_bytes)
    raw.driver.pause()
    pairs = [
        ("trioha to trioha", ours, bench.trioha),
        ("RocketMQ to RocketMQ", theirs, bench.java),
        ("trioha to RocketMQ", ours, bench.java),
        ("raw to RocketMQ", raw, bench.java),
        ("RocketMQ to trioha", theirs, bench.trioha),
    ]
    for (name, master, slave_side), counts in turns(pairs, rounds=bench.sizes.rounds):
        bench.step(f"catch-up: {name}")
        gigabytes, seconds, meter = catch_up_once(
            bench, master, slave_side, number=1, file_bytes=FILE_BYTES, log_bytes=log_bytes
        )
        if counts:
            bench.results[f"catch-up/{name}"].note(
                gigabytes * 1000 / seconds, meter, cpu_s=meter.cpu_s / gigabytes
            )
            for role, peak_bytes in zip(("master", "slave"), meter.peak_bytes.values(), strict=True):
                bench.results[f"memory/{role}/{name}"].note(peak_bytes / 1e6, meter)
    for master in (ours, theirs, raw):
        master.driver.close()


def fan_out(bench: Bench) -> None:
    """Several empty slaves take the log of one master at once."""
    log_bytes = bench.sizes.fan_out_bytes
    masters = [bench.fill(side, file_bytes=FAN_OUT_FILE_BYTES, log_bytes=log_bytes) for side in bench.sides]
    for filled, counts in turns(masters, rounds=bench.sizes.rounds):
        name = filled.side.name
        bench.step(f"{SLAVES} slaves: {name}")
        gigabytes, seconds, meter = catch_up_once(
            bench,
            filled.master,
            filled.side,
            number=SLAVES,
            file_bytes=FAN_OUT_FILE_BYTES,
            log_bytes=log_bytes,
        )
        if counts:
            bench.results[f"fan-out/{name}"].note(
                gigabytes * 1000 / seconds, meter, cpu_s=meter.cpu_s / gigabytes
            )
    for filled in masters:
        filled.master.driver.close()


def start(bench: Bench) -> None:
    """From starting a broker's process to its being ready, on an empty store and on one cleanly stopped.

    The first round does not count: it reads files from the disk, and trioha's keeps more bytecode.
    """
    # pip compiles bytecode when it installs; a tree that was not installed by it may have none.
    compileall.compile_dir(Path(trioha.__file__).parent, quiet=1)
    stopped = []
    for side in bench.sides:
        filled = bench.fill(side, file_bytes=FILE_BYTES, log_bytes=bench.sizes.start_bytes)
        filled.master.driver.resume()
        filled.master.close()
        filled.master.driver.close()
        stopped.append(filled)
    for filled, counts in turns(stopped, rounds=bench.sizes.rounds):
        name = filled.side.name
        for store, root in (("empty", bench.new_folder("start") / "store"), ("log", filled.root)):
            bench.step(f"start: {name}, {store}")
            await_calm(bench.idle_timeout_s)
            with Meter() as meter:
                started = filled.side.start(root, file_bytes=FILE_BYTES)
            if counts:
                bench.results[f"start/{store}/{name}"].note(started.ready_s, meter, cpu_s=started.cpu_s)


def queues(bench: Bench) -> None:
    """Records per second, from a log without consume queues and index to a store that has them.

    The log is one that trioha wrote; its messages have a tag and two keys each.
    """
    records = bench.sizes.start_bytes // RECORD_BYTES
    bench.step(f"a log of {records:,} records is written")
    origin = bench.new_folder("queues") / "commitlog"
    make_log(origin, records=records).close()
    pairs = []
    for side in bench.sides:
        root = bench.new_folder("queues") / "store"
        master = side.open_master(root, file_bytes=QUEUED_FILE_BYTES)
        master.close(remove=True)
        pairs.append((side, root, master))
    for (side, root, master), counts in turns(pairs, rounds=bench.sizes.rounds):
        bench.step(f"queues and index: {side.name}")
        # A closed store of RocketMQ keeps its files open, one for each queue, unless it removes them.
        remove(root)
        shutil.copytree(origin, root / "commitlog")
        await_calm(bench.idle_timeout_s)
        with Meter([master.driver.pid]) as meter:
            opened = master.reopen()
        master.close(remove=True)
        if opened["queued"] != records:
            raise RuntimeError(f"{side.name} has {opened['queued']} of {records} messages in its queues")
        if counts:
            rate, cpu_s = records / opened["loadSeconds"], meter.cpu_s / records * 1e6
            bench.results[f"queues/{side.name}"].note(rate, meter, cpu_s=cpu_s)
    for _, _, master in pairs:
        master.driver.close()


WORKS: Final[dict[str, Callable[[Bench], None]]] = {
    "catch-up": catch_up,
    "fan-out": fan_out,
    "start": start,
    "queues": queues,
}


def lines_of(bench: Bench) -> list[Line]:
    """Every figure that was measured."""
    results, trioha, java, sizes = bench.results, bench.trioha.name, bench.java.name, bench.sizes
    found: list[Line] = []

    def add(
        work: str,
        unit: str,
        ours: str,
        theirs: str,
        *,
        goal: float | None = None,
        cpu_for: str = "",
        lower: bool = False,
    ) -> None:
        if ours in results and theirs in results:
            both = results[ours], results[theirs]
            found.append(Line(work, unit, *both, lower_is_better=lower, goal=goal, cpu_for=cpu_for))

    real, raw = "catch-up/RocketMQ to RocketMQ", "catch-up/raw to RocketMQ"
    to_rocketmq = 1.0
    if real in results:
        # No master sends faster than a program that does nothing else.
        to_rocketmq = min(1.0, results[raw].middle().values[0] / results[real].middle().values[0])
    for name, pair, goal in (
        (f"catch-up of {sizes.catch_up_bytes // 10**6} MB, every record checked", "trioha to trioha", 1.8),
        ("catch-up, trioha master, RocketMQ slave", "trioha to RocketMQ", to_rocketmq),
        (f"catch-up, {RAW_SENDER}, RocketMQ slave", "raw to RocketMQ", None),
        ("catch-up, RocketMQ master, trioha slave", "RocketMQ to trioha", 1.2),
    ):
        add(name, "MB/s", f"catch-up/{pair}", real, goal=goal, cpu_for="GB")
    name = f"{SLAVES} slaves on one master, all bytes"
    add(name, "MB/s", f"fan-out/{trioha}", f"fan-out/{java}", goal=1.2, cpu_for="GB")
    for key, store in (("empty", "empty store"), ("log", f"{sizes.start_bytes // 10**6} MB log")):
        ours, theirs = f"start/{key}/{trioha}", f"start/{key}/{java}"
        goal = 10 if key == "empty" else None
        add(f"start to ready, {store}", "s", ours, theirs, lower=True, goal=goal, cpu_for="start")
    ours, theirs = f"queues/{trioha}", f"queues/{java}"
    add("queues and index built", "rec/s", ours, theirs, goal=2, cpu_for="million records")
    for role in ("master", "slave"):
        ours, theirs = (f"memory/{role}/{side} to {side}" for side in ("trioha", "RocketMQ"))
        add(f"private memory, catch-up {role}", "MB", ours, theirs, lower=True, goal=10)
    return found


def main() -> None:
    """Run the works and print what came out."""
    parser = parser_of(__doc__, WORKS)
    parser.add_argument("--megabytes", type=int, help="log that a slave catches up with")
    parser.add_argument("--start-megabytes", type=int, help="log that a broker starts on")
    options = parse_options(parser, WORKS)
    if (missing := missing_tools()) is not None:
        print(f"not measured against RocketMQ: {missing}", file=sys.stderr)
        return
    sizes = Sizes(
        rounds=options.rounds,
        catch_up_bytes=(options.megabytes or (100 if options.quick else 400)) * 10**6,
        fan_out_bytes=(20 if options.quick else 60) * 10**6,
        start_bytes=(options.start_megabytes or (100 if options.quick else 400)) * 10**6,
    )
    began = time.monotonic()
    with ExitStack() as opened:
        name = opened.enter_context(tempfile.TemporaryDirectory(prefix="trioha-bench-", dir=options.folder))
        folder = Path(name)
        bench = Bench(
            trioha=opened.enter_context(closing(TriohaSide(folder / "trioha"))),
            java=opened.enter_context(closing(JavaSide(folder / "rocketmq", version=options.rocketmq))),
            folder=folder,
            sizes=sizes,
            idle_timeout_s=options.wait_idle,
        )
        for work in options.works:
            WORKS[work](bench)
        found = lines_of(bench)
    show_run("nodes", found, options=options, rounds=sizes.rounds, seconds=time.monotonic() - began)


if __name__ == "__main__":
    main()
