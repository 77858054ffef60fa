"""A stream over a session that grows: a query that is interrupted loses and repeats nothing."""

from __future__ import annotations

import subprocess
import sys
from contextlib import contextmanager

import pytest

from tests.spark.recorder import BLOCK_PUTS
from tests.waiting import wait_until
from trioha.recording.layout import EVENTS_FOLDER

pytestmark = [pytest.mark.spark, pytest.mark.nightly]

EVENTS_MAX = 1200
"""Of a batch."""
SEGMENT_RECORDS = 1000


class Following:
    """A query that is stopped and restarted, and its output."""

    def __init__(self, spark, folder, source, format_, **options):
        self.spark = spark
        self.out, self.state = str(folder / "out"), str(folder / "state")
        self.frame = spark.readStream.format(format_).options(**options).load(str(source))
        self.batches: list[int] = []
        """Rows of each batch."""

    def start(self, **trigger):
        writer = self.frame.writeStream.format("parquet").option("checkpointLocation", self.state)
        return writer.trigger(**trigger).start(self.out)

    @contextmanager
    def running(self):
        """A query that runs until the end of the block."""
        query = self.start(processingTime="0 seconds")
        try:
            yield query
        finally:
            query.stop()
            self.note(query)

    def for_batches(self, number):
        """Run until `number` batches had rows, and stop within the next one."""
        with self.running() as query:

            def has_them():
                assert query.exception() is None
                return sum(progress.numInputRows > 0 for progress in query.recentProgress) >= number

            wait_until(has_them)

    def to_the_end(self):
        """Read all available rows."""
        query = self.start(availableNow=True)
        assert query.awaitTermination(60)
        assert query.exception() is None
        self.note(query)

    def note(self, query):
        self.batches += [progress.numInputRows for progress in query.recentProgress]

    def rows(self, *columns):
        return sorted(map(tuple, self.spark.read.parquet(self.out).select(*columns).collect()))


class Recorder:
    """A process that records to `path` on command until it is killed; its last record is torn."""

    def __init__(self, path):
        self.path = path
        command = [sys.executable, "-m", "tests.spark.recorder", str(path), str(SEGMENT_RECORDS)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, text=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with self.process:
            self.process.kill()
        with max((self.path / EVENTS_FOLDER).glob("*.seg")).open("ab") as file:
            file.write(bytes(20))

    def write(self, puts):
        """Start to write."""
        self.process.stdin.write(f"{puts // BLOCK_PUTS}\n")
        self.process.stdin.flush()

    def wait_segments(self, number):
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
