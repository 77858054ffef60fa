"""Streams over growing logs and sessions: interrupted queries lose and repeat nothing."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.analysis.logs import write_log
from tests.spark.recorder import BLOCK_PUTS
from trioha.recording.layout import EVENTS_FOLDER

pytestmark = pytest.mark.spark

WITHIN_S = 60
EVENTS_MAX = 1200
"""Of a batch."""
SEGMENT_RECORDS = 1000
FILE_BYTES = 1 << 16
BYTES_MAX = 40_000


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + WITHIN_S
    while not is_so():
        assert time.monotonic() < deadline_s
        time.sleep(0.1)


class Following:
    """A query that is stopped and restarted, and its output."""

    def __init__(
        self, spark: SparkSession, folder: Path, source: Path, format_: str, **options: object
    ) -> None:
        self.spark = spark
        self.out, self.state = str(folder / "out"), str(folder / "state")
        self.frame = spark.readStream.format(format_).options(**options).load(str(source))
        self.batches: list[int] = []
        """Rows of each batch."""

    def start(self, **trigger: Any) -> StreamingQuery:
        writer = self.frame.writeStream.format("parquet").option("checkpointLocation", self.state)
        return writer.trigger(**trigger).start(self.out)

    @contextmanager
    def running(self) -> Iterator[StreamingQuery]:
        """A query that runs until the end of the block."""
        query = self.start(processingTime="0 seconds")
        try:
            yield query
        finally:
            query.stop()
            self.note(query)

    def for_batches(self, number: int) -> None:
        """Run until `number` batches had rows, and stop within the next one."""
        with self.running() as query:

            def has_them() -> bool:
                assert query.exception() is None
                return sum(progress.numInputRows > 0 for progress in query.recentProgress) >= number

            wait_until(has_them)

    def to_the_end(self) -> None:
        """Read all available rows."""
        query = self.start(availableNow=True)
        assert query.awaitTermination(WITHIN_S)
        assert query.exception() is None
        self.note(query)

    def note(self, query: StreamingQuery) -> None:
        self.batches += [progress.numInputRows for progress in query.recentProgress]

    def rows(self, *columns: str) -> list[tuple[Any, ...]]:
        return sorted(map(tuple, self.spark.read.parquet(self.out).select(*columns).collect()))


class Recorder:
    """A process that records to `path` on command until it is killed; its last record is torn."""

    def __init__(self, path: Path) -> None:
        self.path = path
        command = [sys.executable, "-m", "tests.spark.recorder", str(path), str(SEGMENT_RECORDS)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, text=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self.process:
            self.process.kill()
        with max((self.path / EVENTS_FOLDER).glob("*.seg")).open("ab") as file:
            file.write(bytes(20))

    def write(self, puts: int) -> None:
        """Start to write."""
        self.process.stdin.write(f"{puts // BLOCK_PUTS}\n")
        self.process.stdin.flush()

    def wait_segments(self, number: int) -> None:
        wait_until(lambda: len(list((self.path / EVENTS_FOLDER).glob("*.seg"))) >= number)


def test_a_session_is_followed_through_kills_of_its_recorder_and_stops_of_the_query(spark, tmp_path):
    sessions = tmp_path / "sessions"
    following = Following(spark, tmp_path, sessions, "trioha-session", maxEventsPerTrigger=EVENTS_MAX)

    with Recorder(sessions / "a") as recorder:
        recorder.write(1500)
        recorder.wait_segments(2)
        following.for_batches(1)
        recorder.write(3000)
        following.for_batches(1)
        recorder.wait_segments(4)
    with Recorder(sessions / "b") as recorder:
        recorder.write(500_000)
        recorder.wait_segments(2)
    following.to_the_end()

    columns = ("session", "seq", "kind_name", "offset")
    seen = following.rows(*columns)
    there = spark.read.format("trioha-session").load(str(sessions)).select(*columns)
    assert seen == sorted(map(tuple, there.collect()))
    for name in ("a", "b"):
        seqs = [seq for session, seq, _, _ in seen if session == name]
        assert len(seqs) > SEGMENT_RECORDS
        assert seqs == list(range(len(seqs)))
    assert max(following.batches) <= EVENTS_MAX


class Growing:
    """A log that is written byte after byte, as a broker copies records into its files."""

    def __init__(self, store: Path, seed: int) -> None:
        self.store = store / "commitlog"
        self.store.mkdir(parents=True)
        self.chance = random.Random(seed)
        self.at = 0
        self.thread = threading.Thread(target=lambda: None)
        self.has_to_stop = threading.Event()

    def write(self, log: bytes, end: int) -> None:
        """Write `log` up to `end`, in chunks of random length."""
        while self.at < end and not self.has_to_stop.is_set():
            file = self.store / f"{self.at - self.at % FILE_BYTES:020d}"
            if not file.exists():
                file.write_bytes(bytes(FILE_BYTES))
            piece = min(self.chance.randint(1, 900), end - self.at, FILE_BYTES - self.at % FILE_BYTES)
            with file.open("r+b") as opened:
                opened.seek(self.at % FILE_BYTES)
                opened.write(log[self.at : self.at + piece])
            self.at += piece
            time.sleep(0.001)

    def cut_back(self, end: int) -> None:
        """As a recovery truncates a torn record."""
        with (self.store / f"{end - end % FILE_BYTES:020d}").open("r+b") as file:
            file.seek(end % FILE_BYTES)
            file.write(bytes(self.at - end))
        self.at = end

    @contextmanager
    def growing(self, log: bytes, end: int) -> Iterator[None]:
        """Write in the background; the block's end waits for it."""
        self.thread = threading.Thread(target=self.write, args=(log, end))
        self.thread.start()
        try:
            yield
        except BaseException:
            self.has_to_stop.set()
            raise
        finally:
            self.thread.join()


def test_a_log_is_followed_through_a_kill_of_its_broker_and_stops_of_the_query(spark, tmp_path):
    chance = random.Random(4)
    first = [chance.randbytes(chance.randint(0, 2000)) for _ in range(400)]
    torn_at = 250
    # The broker that starts after the kill stores other messages where the torn one was.
    second = [*first[:torn_at], *(chance.randbytes(chance.randint(0, 2000)) for _ in range(200))]
    logs, offsets = [], []
    for name, bodies in (("first", first), ("second", second)):
        offsets.append(write_log(tmp_path / name, bodies, file_bytes=FILE_BYTES))
        files = sorted((tmp_path / name / "commitlog").iterdir())
        logs.append(b"".join(file.read_bytes() for file in files))
    store = tmp_path / "store"
    log = Growing(store, 5)
    following = Following(spark, tmp_path, store, "rocketmq-commitlog", maxBytesPerTrigger=BYTES_MAX)

    torn = offsets[0][torn_at]
    with log.growing(logs[0], torn + (offsets[0][torn_at + 1] - torn) // 2):
        following.for_batches(2)
        following.for_batches(1)
    following.to_the_end()
    log.cut_back(torn)
    with log.growing(logs[1], len(logs[1])):
        following.for_batches(2)
    following.to_the_end()

    seen = following.rows("physical_offset", "body")
    assert [(offset, bytes(body)) for offset, body in seen] == list(zip(offsets[1], second, strict=True))
    assert max(following.batches) < len(second) / 3
