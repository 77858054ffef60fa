"""Works of brokers without clients: catch-up, several slaves, starts, queues and index.

What each line measures is in `docs/benchmarks.md`.
"""

from __future__ import annotations

import compileall
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from itertools import count
from pathlib import Path
from typing import Final, Protocol

from attrs import frozen

import trioha
from tests.benchmarks.bench import Bench
from tests.benchmarks.machine import Meter, await_requests, cpu_s, use_memory
from tests.benchmarks.raw import BATCH, RawMaster, batch, drive
from tests.benchmarks.systems import (
    ROCKETMQ_SETTINGS,
    SETTINGS,
    BenchmarkError,
    Broker,
    System,
    ha_status,
    remove,
    trioha_slaves,
)
from tests.benchmarks.table import Line
from tests.node.wire import Wire
from tests.node_process import wait_dispatched
from trioha.store.opening import open_store
from trioha.store.record import Host
from trioha.store.store_settings import StoreSettings

FILE_BYTES: Final = 1 << 30
"""mappedFileSizeCommitLog, both defaults: the logs here have one file, which an empty slave asks for."""
SMALL_FILE_BYTES: Final = 256 << 20
SLAVES: Final = 8
WITHIN_S: Final = 120.0
POLL_S: Final = 0.004
BATCHES_IN_FLIGHT: Final = 4
BATCH_BYTES: Final = BATCH * 1200
"""About what a batch takes in a log."""
MEMORY_FOR_LOG: Final = 1.25
"""Memory for each byte of a slave's log: for the log itself, queues and index."""
RAW: Final = "raw"


class Master(Protocol):
    """What sends its log to slaves: a broker that stands still between transfers, or a `RawMaster`."""

    @property
    def pid(self) -> int:
        """Of its process."""

    @property
    def ha_port(self) -> int:
        """Where slaves dial."""

    @property
    def log_bytes(self) -> int:
        """Length of its log."""

    def expect(self) -> None:
        """Forget the slaves of the last round, and stand still while those of the next one connect."""

    def transfer(self, slaves: int) -> None:
        """Send the log to these slaves, until each has acknowledged all of it."""

    def rest(self) -> None:
        """Stand still."""


@frozen
class BrokerMaster:
    """A broker with a log."""

    broker: Broker
    log_bytes: int
    messages: int

    @property
    def pid(self) -> int:
        """Of the broker."""
        return self.broker.pid

    @property
    def ha_port(self) -> int:
        """Where slaves dial."""
        return self.broker.ha_port

    def expect(self) -> None:
        """Wait until no slave is connected."""
        self.broker.resume()
        with Wire(self.broker.address) as asking:
            self._wait(asking, lambda acks: not acks)
        self.broker.pause()

    def transfer(self, slaves: int) -> None:
        """Let the broker go on until its status says that so many slaves have the whole log."""
        with Wire(self.broker.address) as asking:
            self.broker.resume()
            self._wait(asking, lambda acks: sum(ack >= self.log_bytes for ack in acks) >= slaves)

    def _wait(self, asking: Wire, are_reached: Callable[[list[int]], bool]) -> None:
        """Poll until what slaves have acknowledged is enough; a broker may have no status for a moment."""
        deadline_s = time.monotonic() + WITHIN_S
        while True:
            status = ha_status(asking)
            if status and are_reached([one["slaveAckOffset"] for one in status["haConnectionInfo"]]):
                return
            if time.monotonic() > deadline_s:
                raise BenchmarkError(f"slaves are not there: {status}\n{self.broker.state()}")
            time.sleep(POLL_S)

    def rest(self) -> None:
        """Stop the process where it stands."""
        self.broker.pause()


def fill(
    bench: Bench, system: System, *, log_bytes: int, file_bytes: int = FILE_BYTES, with_tag: bool = False
) -> BrokerMaster:
    """A broker with a log of this length, or some bytes more, that is in its queues."""
    bench.step(f"{system.name} stores {log_bytes // 10**6} MB")
    broker = Broker(system, bench.new_folder("master") / "store", mappedFileSizeCommitLog=file_bytes)
    bench.running.callback(broker.kill)
    broker.wait_ready()
    frames = (batch("TopicFilled", number, with_tag=with_tag) for number in count())
    sent = end = 0
    while end < log_bytes:
        number = -(-(log_bytes - end) // BATCH_BYTES)
        sent += drive(broker.address, frames, in_flight=BATCHES_IN_FLIGHT, count=number)[0]
        end = wait_dispatched(broker.address).max_offset
    return BrokerMaster(broker, end, sent * BATCH)


Slaves = Callable[..., AbstractContextManager[list[int]]]


def slaves_of(bench: Bench, system: System) -> Slaves:
    """What starts slaves of a system: processes of trioha, stores in one JVM of RocketMQ."""

    @contextmanager
    def of_rocketmq(folder: Path, *, ha_port: int, number: int, file_bytes: int) -> Iterator[list[int]]:
        names = [str(folder / f"slave-{index}") for index in range(number)]
        try:
            for index, root in enumerate(names):
                config = {
                    **rocketmq_store(Path(root), file_bytes=file_bytes),
                    "brokerRole": "SLAVE",
                    "brokerId": 1 + index,
                    # It reports for the first time after a heartbeat interval; the master waits until then.
                    "haSendHeartbeatInterval": 500,
                }
                bench.java.call("open", store=root, config=config, haMasterAddress=f"127.0.0.1:{ha_port}")
            yield [bench.java.pid]
        finally:
            bench.java.call("close", stores=names)

    @contextmanager
    def of_trioha(folder: Path, **options: int) -> Iterator[list[int]]:
        with trioha_slaves(system, folder, **options) as pids:
            yield pids

    return of_trioha if system is bench.ours else of_rocketmq


def rocketmq_store(root: Path, *, file_bytes: int) -> dict[str, object]:
    """Settings of a RocketMQ store in the JVM of the driver."""
    return {
        **SETTINGS,
        **ROCKETMQ_SETTINGS,
        "haListenPort": 0,
        "storePathRootDir": str(root),
        "storePathCommitLog": str(root / "commitlog"),
        "mappedFileSizeCommitLog": file_bytes,
    }


def transfer_once(
    bench: Bench, master: Master, slaves: Slaves, *, number: int, file_bytes: int
) -> tuple[float, float, Meter]:
    """`number` empty slaves take a master's log: gigabytes, seconds, and what it cost, the master first.

    The master stands still until every slave has connected and asked for its log, so that no start of a
    process is measured. All slaves get memory in the same condition (`use_memory`).
    """
    master.expect()
    folder = bench.new_folder("slaves")
    try:
        with slaves(folder, ha_port=master.ha_port, number=number, file_bytes=file_bytes) as pids:
            await_requests(master.ha_port, number)
            use_memory(bench.folder, round(MEMORY_FOR_LOG * number * master.log_bytes))
            with Meter([master.pid, *pids]) as meter:
                began_s = time.perf_counter()
                master.transfer(number)
                seconds = time.perf_counter() - began_s
    finally:
        remove(folder)
        master.rest()
    return number * master.log_bytes / 1e9, seconds, meter


def catch_up(bench: Bench) -> None:
    """An empty slave takes a log: every pair of master and slave."""
    ours, theirs = bench.ours.name, bench.theirs.name
    log_bytes = bench.sizes.log_bytes
    of_trioha, of_rocketmq = (fill(bench, side, log_bytes=log_bytes) for side in (bench.ours, bench.theirs))
    log = of_rocketmq.broker.root / "commitlog" / f"{0:020}"
    trioha_slave, rocketmq_slave = (slaves_of(bench, side) for side in (bench.ours, bench.theirs))
    lines = {
        (ours, ours): Line(f"catch-up of {log_bytes // 10**6} MB, every record checked", "MB/s", "GB"),
        (ours, theirs): Line("catch-up, trioha master, RocketMQ slave", "MB/s", "GB"),
        (RAW, theirs): Line("catch-up, raw sender, RocketMQ slave", "MB/s", "GB", has_goal=False),
        (theirs, ours): Line("catch-up, RocketMQ master, trioha slave", "MB/s", "GB"),
    }
    memory = [
        Line(f"private memory, catch-up {role}", "MB", lower_is_better=True) for role in ("master", "slave")
    ]
    with closing(RawMaster(log, log_bytes=of_rocketmq.log_bytes)) as raw:
        pairs: list[tuple[tuple[str, str], Master, Slaves]] = [
            ((ours, ours), of_trioha, trioha_slave),
            ((theirs, theirs), of_rocketmq, rocketmq_slave),
            ((ours, theirs), of_trioha, rocketmq_slave),
            ((RAW, theirs), raw, rocketmq_slave),
            ((theirs, ours), of_rocketmq, trioha_slave),
        ]
        of_trioha.rest()
        of_rocketmq.rest()
        rounds = bench.turns("catch-up", pairs, name_of=lambda pair: " to ".join(pair[0]))
        for (names, master, slaves), note in rounds:
            gigabytes, seconds, meter = transfer_once(bench, master, slaves, number=1, file_bytes=FILE_BYTES)
            speed = gigabytes * 1000 / seconds
            if names == (theirs, theirs):
                for line in lines.values():
                    note(line, theirs, speed, meter, units=gigabytes)
            else:
                note(lines[names], ours, speed, meter, units=gigabytes)
            if names[0] == names[1]:
                for line, peak_bytes in zip(memory, meter.peak_bytes.values(), strict=True):
                    note(line, names[0], peak_bytes / 1e6, meter)
    for filled in (of_trioha, of_rocketmq):
        filled.broker.kill()


def fan_out(bench: Bench) -> None:
    """Several empty slaves take the log of one master at once."""
    line = Line(f"{SLAVES} slaves on one master, all bytes", "MB/s", "GB")
    masters = []
    for system in (bench.ours, bench.theirs):
        filled = fill(bench, system, log_bytes=bench.sizes.fan_out_bytes, file_bytes=SMALL_FILE_BYTES)
        filled.rest()
        masters.append((system, filled, slaves_of(bench, system)))
    for (system, master, slaves), note in bench.turns(line.work, masters, name_of=lambda side: side[0].name):
        gigabytes, seconds, meter = transfer_once(
            bench, master, slaves, number=SLAVES, file_bytes=SMALL_FILE_BYTES
        )
        note(line, system.name, gigabytes * 1000 / seconds, meter, units=gigabytes)
    for _, master, _ in masters:
        master.broker.kill()


def start(bench: Bench) -> None:
    """From starting a broker's process to its first answer, on an empty store and on one cleanly stopped."""
    # pip compiles bytecode when it installs; a tree that was not installed by it may have none.
    compileall.compile_dir(Path(trioha.__file__).parent, quiet=1)
    stopped = []
    for system in (bench.ours, bench.theirs):
        filled = fill(bench, system, log_bytes=bench.sizes.log_bytes)
        filled.broker.stop()
        stopped.append((system, filled.broker.root))
    empty, log = (
        Line(f"start to first answer, {store}", "s", "start", lower_is_better=True)
        for store in ("empty store", f"{bench.sizes.log_bytes // 10**6} MB log")
    )
    for (system, root), note in bench.turns("start", stopped, name_of=lambda side: side[0].name):
        for line, started_on in ((empty, bench.new_folder("start") / "store"), (log, root)):
            with Meter() as meter:
                broker = Broker(system, started_on)
                bench.running.callback(broker.kill)
                ready_s = broker.wait_ready()
            meter.cpu_s_of = {broker.pid: cpu_s(broker.pid)}
            broker.stop()
            note(line, system.name, ready_s, meter, units=1)


def queues(bench: Bench) -> None:
    """Records per second, from a log without consume queues and index to a store that has them.

    The log is one that trioha wrote; messages have a tag and two keys each. trioha opens its store in this
    process, RocketMQ in the JVM of the driver.
    """
    line = Line("queues and index built", "rec/s", "million records")
    filled = fill(
        bench, bench.ours, log_bytes=bench.sizes.log_bytes, file_bytes=SMALL_FILE_BYTES, with_tag=True
    )
    filled.broker.stop()

    def open_trioha(root: Path) -> tuple[float, int]:
        settings = StoreSettings(
            root=root,
            commit_log_directory=root / "commitlog",
            file_bytes=SMALL_FILE_BYTES,
            message_bytes_max=4 << 20,
            store_host=Host.parse("127.0.0.1", 10911),
        )
        began_s = time.perf_counter()
        with closing(open_store(settings)) as store:
            return time.perf_counter() - began_s, sum(queue.max_offset for queue in store.queues)

    def open_rocketmq(root: Path) -> tuple[float, int]:
        config = {
            **rocketmq_store(root, file_bytes=SMALL_FILE_BYTES),
            "brokerRole": "ASYNC_MASTER",
            "brokerId": 0,
        }
        opened = bench.java.call("open", store=str(root), config=config, haMasterAddress=None)
        return opened["loadSeconds"], opened["queued"]

    sides = [(bench.ours, os.getpid(), open_trioha), (bench.theirs, bench.java.pid, open_rocketmq)]
    for (system, pid, opening), note in bench.turns(line.work, sides, name_of=lambda side: side[0].name):
        root = bench.new_folder("queues") / "store"
        shutil.copytree(filled.broker.root / "commitlog", root / "commitlog")
        with Meter([pid]) as meter:
            seconds, queued = opening(root)
        if system is bench.theirs:
            bench.java.call("close", stores=[str(root)])
        remove(root)
        if queued != filled.messages:
            raise BenchmarkError(f"{system.name} has {queued} of {filled.messages} messages in its queues")
        note(line, system.name, filled.messages / seconds, meter, units=filled.messages / 1e6)
