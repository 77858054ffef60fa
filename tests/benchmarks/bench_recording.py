"""Recording and replaying: what an event costs a node, and how fast a session is read back.

Prints, for `--events` (1,000,000) events of a synchronous pair under load:
- emit: ns an event in the node's own thread, with the writer at work beside it, and without
- written: records per second that reach the disk when a node emits as fast as it can, and what was dropped
- scan: records per second read, every check word verified; aggregate: the same, into state, in one process
- replay: seconds on local[2] Spark, the first time (Spark is up, its workers are not) and again

    python tests/benchmarks/bench_recording.py [--events N] [--json]
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import sys
import tempfile
import time
from pathlib import Path

import structlog
import trio

from trioha.recording.aggregate import aggregate
from trioha.recording.events import HaState, Kind
from trioha.recording.layout import SessionIdentity
from trioha.recording.reader import open_session
from trioha.recording.recorder import Recorder
from trioha.recording.records import read_records
from trioha.recording.time_series import TimeGrid

IDENTITY = SessionIdentity("bench", "broker-a", 0, "SYNC_MASTER")
EVENTS_A_PUT = 5
BATCH_PUTS = 200


def emit_puts(recorder: Recorder, first: int, count: int) -> None:
    """What a synchronous master reports of `count` puts of 1 KiB with one slave."""
    emit = recorder.emit
    for number in range(first, first + count):
        end_offset = (number + 1) * 1024
        emit(Kind.PUT, offset=end_offset, aux=number, size=1024)
        emit(Kind.WAIT_BEGIN, offset=end_offset, aux=number, size=2)
        emit(Kind.TRANSFER, conn=1, offset=end_offset - 1024, aux=end_offset, size=1024)
        emit(Kind.ACK, conn=1, offset=end_offset, aux=end_offset)
        emit(Kind.WAIT_END, offset=end_offset, aux=number, size=100)


def emit_alone_ns(directory: Path) -> float:
    """Time of an event with nothing beside it: into free blocks of memory."""
    rounds = []
    for _ in range(20):
        recorder = Recorder(directory, identity=IDENTITY, node_id=0)
        started_ns = time.perf_counter_ns()
        emit_puts(recorder, 0, 10_000)
        rounds.append((time.perf_counter_ns() - started_ns) / (10_000 * EVENTS_A_PUT))
    return statistics.median(rounds)


async def record(directory: Path, events: int) -> dict[str, object]:
    """Record a session as fast as it goes, with a checkpoint after every batch of puts."""
    recorder = Recorder(directory, identity=IDENTITY, node_id=0)
    batches_ns = []
    async with trio.open_nursery() as nursery:
        await nursery.start(recorder.run)
        recorder.fact("connection", conn=1, address="127.0.0.1:41000", role="master")
        recorder.emit(Kind.STATE, conn=1, offset=-1, flags=HaState.HANDSHAKE)
        recorder.emit(Kind.STATE, conn=1, offset=-1, flags=HaState.TRANSFER)
        recorder.emit(Kind.ACK, conn=1, offset=0)
        started_s = time.perf_counter()
        for first in range(0, events // EVENTS_A_PUT, BATCH_PUTS):
            batch_ns = time.perf_counter_ns()
            emit_puts(recorder, first, BATCH_PUTS)
            batches_ns.append((time.perf_counter_ns() - batch_ns) / (BATCH_PUTS * EVENTS_A_PUT))
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    took_s = time.perf_counter() - started_s
    return {
        "path": recorder.path,
        "emit_busy_ns": statistics.median(batches_ns),
        "written_per_s": recorder.recorded / took_s,
        "dropped": recorder.dropped,
    }


def best_s(rounds: int, work) -> float:
    times = []
    for _ in range(rounds):
        started_s = time.perf_counter()
        work()
        times.append(time.perf_counter() - started_s)
    return statistics.median(times)


def measure(events: int) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        figures: dict[str, object] = {"events": events, "emit_alone_ns": emit_alone_ns(directory)}
        recorded = trio.run(record, directory, events)
        path = recorded.pop("path")
        figures |= recorded
        session = open_session(path)
        array = read_records(session).array
        records = len(array)
        grid = TimeGrid.over(int(array["ts_ns"][0]), int(array["ts_ns"][-1]), steps=1500)
        figures["scan_per_s"] = records / best_s(3, lambda: read_records(session))
        figures["aggregate_per_s"] = records / best_s(3, lambda: aggregate(array, is_slave=False, grid=grid))
        figures |= replay_s(path)
        return figures


def replay_s(path: Path) -> dict[str, object]:
    from trioha_spark.replay import replay
    from trioha_spark.session import spark_session

    started_s = time.perf_counter()
    with spark_session("local[2]") as spark:
        up_s = time.perf_counter() - started_s
        first_s = best_s(1, lambda: replay([path], spark=spark))
        again_s = best_s(3, lambda: replay([path], spark=spark))
    return {"spark_up_s": up_s, "replay_first_s": first_s, "replay_s": again_s}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    figures = measure(arguments.events)
    if arguments.json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        print(f"{name:16} {value:>14,.1f}" if isinstance(value, float) else f"{name:16} {value:>14,}")


if __name__ == "__main__":
    main()
