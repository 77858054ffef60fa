"""How fast logs and sessions are read: CPU time in one process, and through Spark.

`python tests/benchmarks/bench_spark_reading.py [--mb 256] [--events 1000000] [--session FOLDER] [--spark]`
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from trioha.recording.reader import Damage, Session, open_session, read_segments
from trioha.store.record import Host, Record, encode_record
from trioha.store.record_layout import MAGIC_V1, body_crc
from trioha_analysis.commitlog.columns import TYPES, decode
from trioha_analysis.commitlog.files import OffsetRange, cut_ranges, list_files
from trioha_analysis.commitlog.reading import LogDamage, ReadOptions, read_range
from trioha_analysis.packing import pack_segment, sealed_segments
from trioha_analysis.ranges import end_seq, read_seqs
from trioha_spark.session import spark_session
from trioha_spark.sources import register

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.benchmarks.big_session import write_big_session

BODY_BYTES = 1024
FILE_BYTES = 1 << 30
HOSTS = [Host.parse(f"10.0.0.{number}", 40000) for number in range(8)]
PROPERTIES = (
    b"UNIQ_KEY\x01FD00000000000000000000000000000239A64E0E2F2A67F3\x02TAGS\x01TagA\x02WAIT\x01true\x02"
)


def write_big_log(store: Path, *, log_bytes: int, body_bytes: int = BODY_BYTES) -> int:
    """Write one sparse file with `log_bytes` of records; gives their number. Bodies are random bytes."""
    (store / "commitlog").mkdir(parents=True)
    random = np.random.default_rng(1)
    record = encode_record(
        Record(
            magic=MAGIC_V1,
            body_crc=body_crc(bytes(body_bytes)),
            queue_id=3,
            flag=0,
            queue_offset=0,
            physical_offset=0,
            sys_flag=0,
            born_timestamp_ms=1_790_000_000_000,
            born_host=HOSTS[0],
            store_timestamp_ms=1_790_000_000_001,
            store_host=HOSTS[0],
            reconsume_times=0,
            prepared_transaction_offset=0,
            body=bytes(body_bytes),
            topic="BenchmarkTopic",
            properties_raw=PROPERTIES,
        )
    )
    count = log_bytes // len(record)
    with (store / "commitlog" / f"{0:020d}").open("wb") as file:
        for first in range(0, count, 65536):
            number = np.arange(first, min(count, first + 65536))
            rows = np.tile(np.frombuffer(record, np.uint8), (len(number), 1))
            rows[:, 88 : 88 + body_bytes] = random.integers(0, 256, (len(number), body_bytes), np.uint8)
            rows[:, 28:36] = (number * len(record)).astype(">i8").view(np.uint8).reshape(-1, 8)
            rows[:, 20:28] = number.astype(">i8").view(np.uint8).reshape(-1, 8)
            # Eight producers.
            rows[:, 51] = number % 8
            file.write(rows.tobytes())
        file.truncate(FILE_BYTES)
    return count


def best_cpu_s(work: Callable[[], int], rounds: int, count: int) -> float:
    """Least CPU time of some rounds: others disturb it upwards only."""
    times = []
    for _ in range(rounds):
        begin = time.process_time()
        rows = work()
        times.append(time.process_time() - begin)
        assert rows == count, (rows, count)
    return min(times)


def read(store: Path, ranges: list[OffsetRange], columns: list[str], options: ReadOptions) -> int:
    """Read all ranges one after the other; gives the number of rows."""
    rows = 0
    for wanted in ranges:
        for found in read_range(store, wanted, options):
            assert not isinstance(found, LogDamage)
            rows += len(decode(found, columns)[0])
    return rows


FIXED = [name for name in TYPES if name not in {"topic", "body", "properties", "born_host", "store_host"}]
COLUMNS = {"all": list(TYPES), "fixed": FIXED, "one": ["queue_offset"], "topic": ["topic"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--session", type=Path, help="a recorded session to measure packing with, too")
    parser.add_argument("--spark", action="store_true", help="through Spark on local[2], too")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for body_bytes in (BODY_BYTES, 100, 65536):
            store = Path(folder) / f"log-{body_bytes}"
            count = write_big_log(store, log_bytes=arguments.mb << 20, body_bytes=body_bytes)
            ranges = cut_ranges(list_files(store))
            for name, columns in COLUMNS.items():
                seconds = best_cpu_s(
                    lambda s=store, c=columns, r=ranges: read(s, r, c, ReadOptions()), arguments.rounds, count
                )
                print(
                    f"bodies of {body_bytes:>6} bytes, {name:>6} columns: "
                    f"{(arguments.mb << 20) / seconds / 1e6:8,.0f} MB/s, {count / seconds:12,.0f} records/s"
                )
        sessions = [write_big_session(Path(folder) / "session", events=arguments.events)]
        if arguments.session is not None:
            sessions.append(Path(shutil.copytree(arguments.session, Path(folder) / "recorded")))
        for path in sessions:
            measure_session(path, arguments.rounds)
        if arguments.spark:
            measure_spark(Path(folder) / f"log-{BODY_BYTES}", sessions[0])


def measure_session(path: Path, rounds: int) -> None:
    """Read a session, pack it, and read it packed."""
    session = open_session(path)
    count = end_seq(read_segments(session))
    for state in ("unpacked", "packed"):
        if state == "packed":
            begin = time.process_time()
            packed = [pack_segment(session, each) for each in sealed_segments(session, every=True)]
            seconds = time.process_time() - begin
            before, after = sum(one.source_bytes for one in packed), sum(one.target_bytes for one in packed)
            print(f"{path.name}: packed {before / after:.1f} times smaller, {count / seconds:,.0f} events/s")
        seconds = best_cpu_s(lambda: read_session(session), rounds, count)
        print(f"{path.name}, {state}: {count:,} events, {count / seconds:,.0f} events/s")


def read_session(session: Session) -> int:
    """Read all records; gives their number."""
    blocks = read_seqs(session, read_segments(session), seq_from=0, seq_to=None)
    return sum(len(block) for block in blocks if not isinstance(block, Damage))


def measure_spark(store: Path, session: Path) -> None:
    """Read all columns through Spark, into nothing; the second time, when Spark is up."""
    with spark_session("local[2]") as spark:
        register(spark)
        for name, path in (("rocketmq-commitlog", store), ("trioha-session", session)):
            for _ in range(3):
                begin = time.monotonic()
                spark.read.format(name).load(str(path)).write.format("noop").mode("overwrite").save()
                print(f"{name} on local[2]: {time.monotonic() - begin:.2f} s of wall time")


if __name__ == "__main__":
    main()
