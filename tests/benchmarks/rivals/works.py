"""The works that both rivals do in turn, round by round, and what came out."""

from __future__ import annotations

import os
import shutil
import signal
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path

from attrs import Factory, define, field, frozen

from tests.benchmarks.bench_dispatch import FILE_BYTES as LOG_FILE_BYTES
from tests.benchmarks.bench_dispatch import make_log
from tests.benchmarks.rivals.machine import Load, LoadMeter, await_calm, await_requests, memory_watched
from tests.benchmarks.rivals.sides import FrameCheckingSide, Master, Side, remove

BODY_BYTES = 1024
FILE_BYTES = 1 << 30
"""mappedFileSizeCommitLog, RocketMQ's default: the logs here have one file, which an empty slave asks for."""
FAN_OUT_FILE_BYTES = 256 << 20
CATCH_UP_WITHIN_MS = 120_000
ALONE_WITHIN_MS = 60_000
WRITERS = (1, 16, 256)
SLAVES = 8
QUEUED_RECORD_BYTES = 1300
"""About what a record of `bench_dispatch` takes."""


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


@define
class Series:
    """One figure, measured several times."""

    values: list[float] = Factory(list)
    loads: list[Load] = Factory(list)

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

    def note(self, key: str, value: float, load: Load | None = None) -> None:
        """One more value of a figure."""
        series = self.results[key]
        series.values.append(value)
        if load is not None:
            series.loads.append(load)


@contextmanager
def running(pids: Iterable[int]) -> Iterator[None]:
    """These processes run during the block; before and after it they are stopped."""
    own = list(pids)
    for pid in own:
        os.kill(pid, signal.SIGCONT)
    try:
        yield
    finally:
        for pid in own:
            os.kill(pid, signal.SIGSTOP)


def rounds_with_warm_up(sizes: Sizes) -> Iterator[bool]:
    """For every round whether it counts: the first one warms the JVMs up and does not."""
    yield False
    for _ in range(sizes.rounds):
        yield True


def _catch_up_once(
    bench: Bench, master: Master, slave_side: Side, *, number: int, file_bytes: int
) -> tuple[float, Load, int, int]:
    """Bytes per second, the load, and the private memory of master and slave processes.

    The master stands still until every slave has connected and asked for its log, so that no start of a
    process is measured.
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
            with memory_watched([driver.pid, *pids]) as memory, LoadMeter() as meter:
                meter.count([driver.pid, *pids])
                driver.resume()
                said = caught_up.result(CATCH_UP_WITHIN_MS / 1000 + 5)
            peak = memory.peak_bytes
    finally:
        driver.resume()
        remove(folder)
    driver.pause()
    slaves_bytes = sum(peak.get(pid, 0) for pid in pids)
    return said["bytes"] / said["seconds"], meter.load, peak.get(driver.pid, 0), slaves_bytes


def catch_up(bench: Bench) -> None:
    """An empty slave takes a log: every pair of master and slave."""
    sizes = bench.sizes
    masters: dict[str, Master] = {}
    for side in bench.sides():
        bench.on_step(f"catch-up: {side.name} writes its log")
        master = side.open_master(bench.new_folder("catch-up-master"), file_bytes=FILE_BYTES)
        master.call("fill", bodyBytes=BODY_BYTES, bytes=sizes.catch_up_bytes)
        master.driver.pause()
        masters[side.name] = master
    pairs = [
        (bench.trioha, bench.trioha),
        (bench.trioha, FrameCheckingSide(bench.folder)),
        (bench.java, bench.java),
        (bench.trioha, bench.java),
        (bench.java, bench.trioha),
    ]
    for counts in rounds_with_warm_up(sizes):
        for master_side, slave_side in pairs:
            bench.on_step(f"catch-up: {master_side.name} to {slave_side.name}")
            speed, load, master_bytes, slave_bytes = _catch_up_once(
                bench, masters[master_side.name], slave_side, number=1, file_bytes=FILE_BYTES
            )
            if not counts:
                continue
            bench.note(f"catch-up/{master_side.name} to {slave_side.name}", speed / 1e6, load)
            if master_side is slave_side:
                bench.note(f"memory/catch-up master/{master_side.name}", master_bytes / 1e6, load)
                bench.note(f"memory/catch-up slave/{slave_side.name}", slave_bytes / 1e6, load)
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
    for counts in rounds_with_warm_up(bench.sizes):
        for side in bench.sides():
            bench.on_step(f"{SLAVES} slaves: {side.name}")
            speed, load, _, _ = _catch_up_once(
                bench, masters[side.name], side, number=SLAVES, file_bytes=FAN_OUT_FILE_BYTES
            )
            if counts:
                bench.note(f"fan-out/{side.name}", speed / 1e6, load)
    for master in masters.values():
        master.driver.close()


def puts(bench: Bench) -> None:
    """Puts that wait for one slave: time to the ack, puts per second, memory."""
    sizes = bench.sizes
    with ExitStack() as opened:
        players: list[tuple[Side, Master, list[int]]] = []
        for side in bench.sides():
            bench.on_step(f"puts: {side.name} starts")
            master = side.open_master(bench.new_folder("puts-master"), file_bytes=FILE_BYTES)
            slaves = side.slaves(
                bench.new_folder("puts-slave"), ha_port=master.ha_port, number=1, file_bytes=FILE_BYTES
            )
            slave_pids = opened.enter_context(slaves)
            opened.callback(_continue, [master.driver.pid, *slave_pids])
            # Until the slave is in step, which the first put waits for.
            master.call("puts", bodyBytes=BODY_BYTES, writers=1, seconds=0.2)
            for pid in (master.driver.pid, *slave_pids):
                os.kill(pid, signal.SIGSTOP)
            players.append((side, master, slave_pids))
        for counts in rounds_with_warm_up(sizes):
            for writers in WRITERS:
                for side, master, slave_pids in players:
                    bench.on_step(f"puts: {side.name}, writers: {writers}")
                    pids = [master.driver.pid, *slave_pids]
                    await_calm(bench.idle_timeout_s)
                    with running(pids), memory_watched(pids) as memory, LoadMeter() as meter:
                        meter.count(pids)
                        said = master.call(
                            "puts", bodyBytes=BODY_BYTES, writers=writers, seconds=sizes.puts_s
                        )
                    if not counts:
                        continue
                    load = meter.load
                    bench.note(f"puts/{writers}/rate/{side.name}", said["puts"] / said["seconds"], load)
                    bench.note(f"puts/{writers}/p50/{side.name}", said["p50Us"], load)
                    bench.note(f"puts/{writers}/p99/{side.name}", said["p99Us"], load)
                    if writers == 16:
                        slave_bytes = sum(memory.peak_bytes[pid] for pid in slave_pids)
                        bench.note(f"memory/puts master/{side.name}", memory.peak_bytes[pids[0]] / 1e6, load)
                        bench.note(f"memory/puts slave/{side.name}", slave_bytes / 1e6, load)
        for _, master, slave_pids in players:
            _continue([master.driver.pid, *slave_pids])
            master.driver.close()


def _continue(pids: Iterable[int]) -> None:
    for pid in pids:
        if Path(f"/proc/{pid}").exists():
            os.kill(pid, signal.SIGCONT)


def start(bench: Bench) -> None:
    """From starting a broker's process to its being ready, on an empty store and on one cleanly stopped."""
    roots: dict[str, Path] = {}
    for side in bench.sides():
        bench.on_step(f"start: {side.name} writes its log")
        roots[side.name] = bench.new_folder("start") / "store"
        master = side.open_master(roots[side.name], file_bytes=FILE_BYTES)
        master.call("fill", bodyBytes=BODY_BYTES, bytes=bench.sizes.start_bytes)
        master.close()
        master.driver.close()
    # Every start has processes of its own: there is nothing to warm up.
    for _ in range(bench.sizes.rounds):
        for side in bench.sides():
            bench.on_step(f"start: {side.name}, empty store")
            await_calm(bench.idle_timeout_s)
            empty_s = side.start(bench.new_folder("start-empty") / "store", file_bytes=FILE_BYTES)
            bench.note(f"start/empty/{side.name}", empty_s, Load(os.getloadavg()[0], None))
            bench.on_step(f"start: {side.name}, with a log")
            await_calm(bench.idle_timeout_s)
            log_s = side.start(roots[side.name], file_bytes=FILE_BYTES)
            bench.note(f"start/log/{side.name}", log_s, Load(os.getloadavg()[0], None))


def queues(bench: Bench) -> None:
    """Records per second, from a log without consume queues and index to a store that has them.

    The log is one that trioha wrote; its messages have a tag and two keys each.
    """
    bench.on_step("queues: the log is written")
    records = bench.sizes.start_bytes // QUEUED_RECORD_BYTES
    origin = bench.new_folder("queues") / "commitlog"
    make_log(origin, records=records).close()
    masters: dict[str, Master] = {}
    roots: dict[str, Path] = {}
    for side in bench.sides():
        bench.on_step(f"queues: {side.name} warms up")
        root = roots[side.name] = bench.new_folder("queues") / "store"
        shutil.copytree(origin, root / "commitlog")
        masters[side.name] = side.open_master(root, file_bytes=LOG_FILE_BYTES)
        masters[side.name].close()
    for _ in range(bench.sizes.rounds):
        for side in bench.sides():
            bench.on_step(f"queues: {side.name}")
            for folder in ("consumequeue", "index"):
                shutil.rmtree(roots[side.name] / folder)
            await_calm(bench.idle_timeout_s)
            opened = masters[side.name].reopen()
            masters[side.name].close()
            if opened["queued"] != records:
                raise RuntimeError(f"{side.name} has {opened['queued']} of {records} messages in its queues")
            rate = records / opened["loadSeconds"]
            bench.note(f"queues/{side.name}", rate, Load(os.getloadavg()[0], None))
    for master in masters.values():
        master.driver.close()


WORKS: dict[str, Callable[[Bench], None]] = {
    "catch-up": catch_up,
    "puts": puts,
    "fan-out": fan_out,
    "start": start,
    "queues": queues,
}
