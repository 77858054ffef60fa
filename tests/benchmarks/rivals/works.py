"""The works that both rivals do in turn, round by round, and what came out."""

from __future__ import annotations

import compileall
import os
import shutil
import signal
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import TypeVar

from attrs import Factory, define, evolve, field, frozen

import trioha
from tests.benchmarks.bench_dispatch import FILE_BYTES as LOG_FILE_BYTES
from tests.benchmarks.bench_dispatch import QUEUES, make_log
from tests.benchmarks.rivals.machine import (
    CpuMeter,
    Load,
    LoadMeter,
    await_calm,
    await_requests,
    memory_watched,
    running,
    signal_all,
    use_memory,
)
from tests.benchmarks.rivals.sides import (
    RAW_SENDER,
    FrameCheckingSide,
    Master,
    Side,
    open_raw_sender,
    remove,
)

BODY_BYTES = 1024
FILE_BYTES = 1 << 30
"""mappedFileSizeCommitLog, RocketMQ's default: the logs here have one file, which an empty slave asks for."""
FAN_OUT_FILE_BYTES = 256 << 20
CATCH_UP_WITHIN_MS = 120_000
ALONE_WITHIN_MS = 60_000
MEMORY_FOR_LOG = 1.25
"""Memory for each byte of a slave's log: for the log itself, queues and index."""
WRITERS = (1, 16, 256)
SLAVES = 8
QUEUED_RECORD_BYTES = 1300
"""About what a record of `bench_dispatch` takes."""

T = TypeVar("T")


@frozen
class Sizes:
    """How much work there is."""

    rounds: int
    catch_up_bytes: int
    fan_out_bytes: int
    """Log that each of several slaves takes."""
    start_bytes: int
    puts_s: float
    """How long writers write, per round and number of writers."""
    warm_up_rounds: int = 1
    """Rounds of each work that do not count, so that the JVM compiles; a start has none."""


@define
class Series:
    """One figure, measured several times."""

    values: list[float] = Factory(list)
    loads: list[Load] = Factory(list)
    cpu_s: dict[str, list[float]] = Factory(lambda: defaultdict(list))
    """CPU time of master and slave processes for a unit of work, by process and round."""

    @property
    def median(self) -> float:
        """Of all rounds."""
        return statistics.median(self.values)

    @property
    def others_cores(self) -> float | None:
        """Median of the cores that were busy with other processes meanwhile, None where it is not known."""
        known = [load.others_cores for load in self.loads if load.others_cores is not None]
        return statistics.median(known) if known else None

    @property
    def load_average(self) -> float:
        """The highest 1-minute load average at the end of a round."""
        return max((load.average for load in self.loads), default=0.0)


@define
class Bench:
    """What the works share."""

    trioha: Side
    java: Side
    folder: Path
    sizes: Sizes
    on_step: Callable[[str], None]
    """Told before every measurement what it is."""
    idle_timeout_s: float = 0.0
    """How long a measurement waits at most for a calm machine."""
    results: dict[str, Series] = field(factory=lambda: defaultdict(Series))
    """By `work/side` or `work/metric/side`."""
    _ids: Iterator[int] = Factory(lambda: count(1))

    def sides(self) -> tuple[Side, Side]:
        """Both, in the order of their turns."""
        return self.trioha, self.java

    def new_folder(self, name: str) -> Path:
        """A folder that was not used before."""
        folder = self.folder / f"{name}-{next(self._ids)}"
        folder.mkdir()
        return folder

    def note(
        self, key: str, value: float, load: Load | None = None, *, cpu_s: Mapping[str, float] | None = None
    ) -> None:
        """One more value of a figure, and the CPU time of each process for a unit of its work."""
        series = self.results[key]
        series.values.append(value)
        if load is not None:
            series.loads.append(load)
        for process, used_s in (cpu_s or {}).items():
            series.cpu_s[process].append(used_s)


def rounds_with_warm_up(sizes: Sizes) -> Iterator[bool]:
    """For every round whether it counts: the first ones warm the JVMs up and do not."""
    for number in range(sizes.warm_up_rounds + sizes.rounds):
        yield number >= sizes.warm_up_rounds


class Turns:
    """The order of what takes turns: reversed in every other round, so that neither rival always follows."""

    def __init__(self) -> None:
        self._rounds = 0

    def order(self, taking_turns: Sequence[T]) -> Sequence[T]:
        """That of the next round."""
        self._rounds += 1
        return taking_turns if self._rounds % 2 else taking_turns[::-1]


def per(units: float, used_s: Mapping[str, float]) -> dict[str, float]:
    """CPU time for one unit of work."""
    return {process: process_s / units for process, process_s in used_s.items()}


@frozen
class CaughtUp:
    """One catch-up."""

    bytes_per_s: float
    load: Load
    cpu_s_per_gb: Mapping[str, float]
    """Of master and slaves."""
    master_bytes: int
    """Private memory, as that of the slaves."""
    slaves_bytes: int


def catch_up_once(
    bench: Bench,
    master: Master,
    slave_side: Side,
    *,
    number: int,
    file_bytes: int,
    log_bytes: int,
    prepare: Callable[[Path], None] = lambda slave_root: None,
) -> CaughtUp:
    """`number` slaves take a master's log; `prepare` may put something into each slave's folder before.

    The master stands still until every slave has connected and asked for its log, so that no start of a
    process is measured. All slaves get memory in the same condition for its `log_bytes` (`use_memory`).
    """
    driver = master.driver
    driver.resume()
    master.call("alone", millis=ALONE_WITHIN_MS)
    caught_up = driver.submit("catchUp", store=master.store, slaves=number, millis=CATCH_UP_WITHIN_MS)
    driver.pause()
    folder = bench.new_folder("slaves")
    for index in range(number):
        prepare(folder / f"slave-{index}")
    try:
        with slave_side.slaves(folder, ha_port=master.ha_port, number=number, file_bytes=file_bytes) as pids:
            await_requests(master.ha_port, number)
            await_calm(bench.idle_timeout_s)
            use_memory(bench.folder, round(MEMORY_FOR_LOG * number * log_bytes))
            cpu = CpuMeter(master=[driver.pid], slave=pids)
            with memory_watched([driver.pid, *pids]) as memory, LoadMeter() as meter, cpu:
                meter.count([driver.pid, *pids])
                driver.resume()
                said = caught_up.result(CATCH_UP_WITHIN_MS / 1000 + 5)
            peak = memory.peak_bytes
    finally:
        driver.resume()
        remove(folder)
    driver.pause()
    return CaughtUp(
        bytes_per_s=said["bytes"] / said["seconds"],
        load=meter.load,
        cpu_s_per_gb=per(said["bytes"] / 1e9, cpu.used_s),
        master_bytes=peak.get(driver.pid, 0),
        slaves_bytes=sum(peak.get(pid, 0) for pid in pids),
    )


def catch_up(bench: Bench) -> None:
    """An empty slave takes a log: every pair of master and slave."""
    sizes = bench.sizes
    masters: dict[str, Master] = {}
    logs: dict[str, Path] = {}
    for side in bench.sides():
        bench.on_step(f"catch-up: {side.name} writes its log")
        root = bench.new_folder("catch-up-master")
        master = side.open_master(root, file_bytes=FILE_BYTES)
        filled = master.call("fill", bodyBytes=BODY_BYTES, bytes=sizes.catch_up_bytes)
        master.driver.pause()
        masters[side.name] = master
        logs[side.name] = root / "commitlog" / f"{0:020}"
    masters[RAW_SENDER] = open_raw_sender(
        bench.new_folder("catch-up-raw"), logs[bench.java.name], log_bytes=filled["maxOffset"]
    )
    pairs = [
        (bench.trioha.name, bench.trioha),
        (bench.trioha.name, FrameCheckingSide(bench.folder)),
        (bench.java.name, bench.java),
        (bench.trioha.name, bench.java),
        (RAW_SENDER, bench.java),
        (bench.java.name, bench.trioha),
    ]
    turns = Turns()
    for counts in rounds_with_warm_up(sizes):
        for name, slave_side in turns.order(pairs):
            bench.on_step(f"catch-up: {name} to {slave_side.name}")
            found = catch_up_once(
                bench,
                masters[name],
                slave_side,
                number=1,
                file_bytes=FILE_BYTES,
                log_bytes=sizes.catch_up_bytes,
            )
            if not counts:
                continue
            bench.note(
                f"catch-up/{name} to {slave_side.name}",
                found.bytes_per_s / 1e6,
                found.load,
                cpu_s=found.cpu_s_per_gb,
            )
            if name == slave_side.name:
                load = found.load
                bench.note(f"memory/catch-up master/{name}", found.master_bytes / 1e6, load)
                bench.note(f"memory/catch-up slave/{name}", found.slaves_bytes / 1e6, load)
    for master in masters.values():
        master.driver.close()


def fan_out(bench: Bench) -> None:
    """Several empty slaves take the log of one master at once."""
    masters: dict[str, Master] = {}
    for side in bench.sides():
        bench.on_step(f"{SLAVES} slaves: {side.name} writes its log")
        master = side.open_master(bench.new_folder("fan-out-master"), file_bytes=FAN_OUT_FILE_BYTES)
        master.call("fill", bodyBytes=BODY_BYTES, bytes=bench.sizes.fan_out_bytes)
        master.driver.pause()
        masters[side.name] = master
    turns = Turns()
    for counts in rounds_with_warm_up(bench.sizes):
        for side in turns.order(bench.sides()):
            bench.on_step(f"{SLAVES} slaves: {side.name}")
            found = catch_up_once(
                bench,
                masters[side.name],
                side,
                number=SLAVES,
                file_bytes=FAN_OUT_FILE_BYTES,
                log_bytes=bench.sizes.fan_out_bytes,
            )
            if counts:
                bench.note(
                    f"fan-out/{side.name}", found.bytes_per_s / 1e6, found.load, cpu_s=found.cpu_s_per_gb
                )
    for master in masters.values():
        master.driver.close()


@frozen
class Pair:
    """A master and its slave, both stopped unless they work."""

    side: Side
    master: Master
    slave_pids: Sequence[int]

    @property
    def pids(self) -> list[int]:
        """Of both."""
        return [self.master.driver.pid, *self.slave_pids]


@contextmanager
def pairs_in_step(bench: Bench) -> Iterator[Sequence[Pair]]:
    """A pair of each rival, whose slave has the log of its master; stopped."""
    with ExitStack() as opened:
        pairs = []
        for side in bench.sides():
            bench.on_step(f"puts: {side.name} starts")
            master = side.open_master(bench.new_folder("puts-master"), file_bytes=FILE_BYTES)
            slaves = side.slaves(
                bench.new_folder("puts-slave"), ha_port=master.ha_port, number=1, file_bytes=FILE_BYTES
            )
            pair = Pair(side, master, opened.enter_context(slaves))
            opened.callback(_continue, pair.pids)
            # Until the slave is in step, which the first put waits for.
            master.call("puts", bodyBytes=BODY_BYTES, writers=1, seconds=0.2)
            signal_all(pair.pids, signal.SIGSTOP)
            pairs.append(pair)
        yield pairs
        for pair in pairs:
            _continue(pair.pids)
            pair.master.driver.close()


@frozen
class Put:
    """What a pair's writers did."""

    said: Mapping[str, float]
    """The master's answer."""
    load: Load
    cpu_s_per_million: Mapping[str, float]
    peak_bytes: Mapping[int, int]
    """Private memory, by process."""

    @property
    def per_s(self) -> float:
        """Puts per second."""
        return self.said["puts"] / self.said["seconds"]


def put_on(bench: Bench, pair: Pair, command: str, **fields: object) -> Put:
    """Have a pair's master put; the pair runs meanwhile, and nothing else of the benchmark."""
    await_calm(bench.idle_timeout_s)
    cpu = CpuMeter(master=[pair.master.driver.pid], slave=pair.slave_pids)
    with running(pair.pids), memory_watched(pair.pids) as memory, LoadMeter() as meter, cpu:
        meter.count(pair.pids)
        said = pair.master.call(command, bodyBytes=BODY_BYTES, **fields)
    return Put(said, meter.load, per(max(said["puts"], 1) / 1e6, cpu.used_s), memory.peak_bytes)


def puts(bench: Bench) -> None:
    """Puts that wait for one slave: time to the ack, puts per second, memory."""
    turns = Turns()
    with pairs_in_step(bench) as pairs:
        for counts in rounds_with_warm_up(bench.sizes):
            in_order = turns.order(pairs)
            for writers in WRITERS:
                for pair in in_order:
                    name = pair.side.name
                    bench.on_step(f"puts: {name}, writers: {writers}")
                    found = put_on(bench, pair, "puts", writers=writers, seconds=bench.sizes.puts_s)
                    if not counts:
                        continue
                    for metric, value in (
                        ("rate", found.per_s),
                        ("p50", found.said["p50Us"]),
                        ("p99", found.said["p99Us"]),
                    ):
                        key = f"puts/{writers}/{metric}/{name}"
                        bench.note(key, value, found.load, cpu_s=found.cpu_s_per_million)
                    if writers == 16:
                        master_bytes, *slaves_bytes = (found.peak_bytes[pid] for pid in pair.pids)
                        bench.note(f"memory/puts master/{name}", master_bytes / 1e6, found.load)
                        bench.note(f"memory/puts slave/{name}", sum(slaves_bytes) / 1e6, found.load)


def _continue(pids: Iterable[int]) -> None:
    signal_all((pid for pid in pids if Path(f"/proc/{pid}").exists()), signal.SIGCONT)


def start(bench: Bench) -> None:
    """From starting a broker's process to its being ready, on an empty store and on one cleanly stopped."""
    # pip compiles bytecode when it installs; a tree that was not installed by it may have none.
    compileall.compile_dir(Path(trioha.__file__).parent, quiet=1)
    # The first start reads files from the disk, and trioha's keeps more bytecode: it is not counted.
    for side in bench.sides():
        bench.on_step(f"start: {side.name}, for the first time")
        side.start(bench.new_folder("start-first") / "store", file_bytes=FILE_BYTES)
    roots: dict[str, Path] = {}
    for side in bench.sides():
        bench.on_step(f"start: {side.name} writes its log")
        roots[side.name] = bench.new_folder("start") / "store"
        master = side.open_master(roots[side.name], file_bytes=FILE_BYTES)
        master.call("fill", bodyBytes=BODY_BYTES, bytes=bench.sizes.start_bytes)
        master.close()
        master.driver.close()
    # Every start has processes of its own: there is nothing to warm up.
    turns = Turns()
    for _ in range(bench.sizes.rounds):
        for side in turns.order(bench.sides()):
            for key, root in (
                ("empty", bench.new_folder("start-empty") / "store"),
                ("log", roots[side.name]),
            ):
                bench.on_step(f"start: {side.name}, {key}")
                await_calm(bench.idle_timeout_s)
                started = side.start(root, file_bytes=FILE_BYTES)
                load = Load(os.getloadavg()[0], None)
                bench.note(f"start/{key}/{side.name}", started.ready_s, load, cpu_s={"broker": started.cpu_s})


def queues(bench: Bench) -> None:
    """Records per second, from a log without consume queues and index to a store that has them.

    The log is one that trioha wrote; its messages have a tag and two keys each.
    """
    records = bench.sizes.start_bytes // QUEUED_RECORD_BYTES
    build_queues(bench, "queues", records=records, queues=QUEUES)


def build_queues(bench: Bench, key: str, *, records: int, queues: int) -> None:
    """As `queues`, with records that go to the queues of one topic in turn; notes `key/side`."""
    bench.on_step(f"{queues} queues: the log is written")
    origin = bench.new_folder("queues") / "commitlog"
    make_log(origin, records=records, queues=queues).close()
    masters: dict[str, Master] = {}
    roots: dict[str, Path] = {}
    for side in bench.sides():
        bench.on_step(f"{queues} queues: {side.name} warms up")
        root = roots[side.name] = bench.new_folder("queues") / "store"
        shutil.copytree(origin, root / "commitlog")
        masters[side.name] = side.open_master(root, file_bytes=LOG_FILE_BYTES)
        masters[side.name].close(remove=True)
    turns = Turns()
    for counts in rounds_with_warm_up(evolve(bench.sizes, warm_up_rounds=bench.sizes.warm_up_rounds - 1)):
        for side in turns.order(bench.sides()):
            bench.on_step(f"{queues} queues: {side.name}")
            # A closed store of RocketMQ keeps its files open, one for each queue, unless it removes them.
            remove(roots[side.name])
            shutil.copytree(origin, roots[side.name] / "commitlog")
            await_calm(bench.idle_timeout_s)
            with CpuMeter(broker=[masters[side.name].driver.pid]) as cpu:
                opened = masters[side.name].reopen()
            masters[side.name].close(remove=True)
            if opened["queued"] != records:
                raise RuntimeError(f"{side.name} has {opened['queued']} of {records} messages in its queues")
            if counts:
                rate = records / opened["loadSeconds"]
                load = Load(os.getloadavg()[0], None)
                bench.note(f"{key}/{side.name}", rate, load, cpu_s=per(records / 1e6, cpu.used_s))
    for master in masters.values():
        master.driver.close()
    for root in (origin, *roots.values()):
        remove(root)


WORKS: dict[str, Callable[[Bench], None]] = {
    "catch-up": catch_up,
    "puts": puts,
    "fan-out": fan_out,
    "start": start,
    "queues": queues,
}
