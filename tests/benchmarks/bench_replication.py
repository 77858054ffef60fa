"""Replication over loopback: a master in this process, a slave in another.

Prints, for each work, the median of several rounds:
- catch-up: MB/s at which an empty slave takes a log, at several frame sizes; every record is checked
- put-to-ack: time from a put to the slave's acknowledgement, one writer
- waiting writers: puts per second of 16 writers that each wait for the slave

Run it with `make bench` or `python tests/benchmarks/bench_replication.py [--json]`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import trio

from trioha.broker.puts import PutService
from trioha.ha.group_commit import GroupCommit, GroupCommitSettings
from trioha.ha.master import HaMaster
from trioha.ha.replicas import Replicas
from trioha.ha.settings import HaSettings
from trioha.recording.events import NoSink
from trioha.store.commit_log import CommitLog
from trioha.store.messages import Message
from trioha.store.put_status import PutStatus
from trioha.store.record import Host

FILE_BYTES = 64 << 20
BODY = bytes(1024)
SLAVE = """
brokerRole=SLAVE
brokerId=1
brokerName=bench
brokerIP1=127.0.0.1
trioha.bindAddress=127.0.0.1
listenPort=0
mappedFileSizeCommitLog={file_bytes}
storePathRootDir={root}
haMasterAddress=127.0.0.1:{port}
"""


def message() -> Message:
    return Message(topic="Bench", queue_id=0, body=BODY)


def make_log(folder: Path, *, log_bytes: int) -> CommitLog:
    folder.mkdir(parents=True)
    log = CommitLog(
        folder, file_bytes=FILE_BYTES, message_bytes_max=4 << 20, store_host=Host.parse("127.0.0.1", 1)
    )
    while log.max_offset < log_bytes:
        log.append(message())
    return log


@asynccontextmanager
async def serving(log: CommitLog, *, frame_bytes: int):
    """A master on `log`; yields (replicas, port)."""
    replicas = Replicas(gap_bytes_max=1 << 40)
    master = HaMaster(
        commit_log=log,
        replicas=replicas,
        settings=HaSettings(
            heartbeat_interval_s=5.0, housekeeping_interval_s=20.0, transfer_batch_bytes=frame_bytes
        ),
        sink=NoSink(),
    )
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with trio.open_nursery() as nursery:
        await nursery.start(master.serve, listeners)
        yield replicas, listeners[0].socket.getsockname()[1]
        nursery.cancel_scope.cancel()


def write_config(folder: Path, port: int) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "slave.conf"
    config.write_text(SLAVE.format(file_bytes=FILE_BYTES, root=folder / "store", port=port))
    return config


@asynccontextmanager
async def slave_process(folder: Path, port: int):
    """A slave of the master at `port`."""
    command = [sys.executable, "-m", "trioha", "node", "-c", str(write_config(folder, port))]
    async with trio.open_nursery() as nursery:
        process = await nursery.start(
            partial(
                trio.run_process,
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                check=False,
            )
        )
        try:
            yield
        finally:
            process.terminate()


async def acknowledged(replicas: Replicas, offset: int) -> None:
    """Wait until the slave has acknowledged `offset`.

    By polling: a slave that connects later does not count for a wait that has begun.
    """
    while replicas.copies(1).offset < offset:  # noqa: ASYNC110
        await trio.sleep(0.001)


async def catch_up(folder: Path, *, log_bytes: int, frame_bytes: int) -> float:
    """MB/s from the first byte's request to the last byte's ack."""
    log = make_log(folder / "master", log_bytes=log_bytes)
    try:
        async with serving(log, frame_bytes=frame_bytes) as (replicas, port):
            slave = folder / "slave"
            seed_first_record(log, slave / "store" / "commitlog")
            async with slave_process(slave, port):
                await acknowledged(replicas, 1)
                began = time.perf_counter()
                begin_offset = replicas.copies(1).offset
                await replicas.copies(1).reached(log.max_offset)
                took = time.perf_counter() - began
        return (log.max_offset - begin_offset) / took / 1e6
    finally:
        log.close()


def seed_first_record(log: CommitLog, folder: Path) -> None:
    """Give the slave the first record: it then requests the rest. An empty one requests the last file."""
    folder.mkdir(parents=True)
    size = int.from_bytes(log.read(0, 4), "big")
    with (folder / f"{0:020d}").open("wb") as file:
        file.write(log.read(0, size))
        file.truncate(FILE_BYTES)


async def puts(folder: Path, *, writers: int, number: int) -> tuple[float, list[float]]:
    """Puts per second, and each put's time to its ack in s."""
    log = make_log(folder / "master", log_bytes=0)
    latencies: list[float] = []
    try:
        async with serving(log, frame_bytes=32768) as (replicas, port), slave_process(folder / "slave", port):
            log.append(message())
            await acknowledged(replicas, log.max_offset)
            commit = GroupCommit(
                GroupCommitSettings(
                    copies_needed=1, slave_timeout_s=3.0, sync_flush=False, sync_flush_timeout_s=5.0
                ),
                replicas=replicas,
                flushed=log.flushed,
                sink=NoSink(),
            )
            service = PutService(commit_log=log, group_commit=commit, sink=NoSink(), is_slave=False)
            left = number

            async def write() -> None:
                nonlocal left
                while left > 0:
                    left -= 1
                    began = time.perf_counter()
                    result = await service.put(message(), wait_store_ok=True)
                    latencies.append(time.perf_counter() - began)
                    assert result.status is PutStatus.PUT_OK, result

            began = time.perf_counter()
            async with trio.open_nursery() as service_of_puts:
                service_of_puts.start_soon(commit.run)
                async with trio.open_nursery() as nursery:
                    for _ in range(writers):
                        nursery.start_soon(write)
                service_of_puts.cancel_scope.cancel()
            took = time.perf_counter() - began
        return number / took, latencies
    finally:
        log.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--megabytes", type=int, default=400)
    options = parser.parse_args()
    results: dict[str, float] = {}
    for frame_bytes in (32768, 1 << 20):
        speeds = []
        for _ in range(options.rounds):
            with tempfile.TemporaryDirectory() as folder:
                run = partial(
                    catch_up, Path(folder), log_bytes=options.megabytes * 10**6, frame_bytes=frame_bytes
                )
                speeds.append(trio.run(run))
        results[f"catch-up at {frame_bytes} B frames, MB/s"] = statistics.median(speeds)
    for writers, number in ((1, 3000), (16, 30000)):
        rates, medians, tails = [], [], []
        for _ in range(options.rounds):
            with tempfile.TemporaryDirectory() as folder:
                rate, latencies = trio.run(partial(puts, Path(folder), writers=writers, number=number))
            latencies.sort()
            rates.append(rate)
            medians.append(latencies[len(latencies) // 2] * 1e6)
            tails.append(latencies[int(len(latencies) * 0.99)] * 1e6)
        results[f"{writers} waiting writers, puts/s"] = statistics.median(rates)
        results[f"{writers} waiting writers, p50 us"] = statistics.median(medians)
        results[f"{writers} waiting writers, p99 us"] = statistics.median(tails)
    if options.json:
        print(json.dumps(results))
    else:
        for name, value in results.items():
            print(f"{name:45} {value:12,.0f}")


if __name__ == "__main__":
    main()
