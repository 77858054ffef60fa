"""`trioha replay --explain` of long sessions: whole sessions are read in tasks.

A task answers a question (`trioha_analysis.put_search`) for a run of ranges, and sends back a few records,
or a few numbers for each connection that it has seen. The driver joins these answers in order; it reads no
session from its start to its end.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from functools import reduce
from typing import Any, Final

from pyspark.sql import SparkSession

from trioha.recording.records import read_segment
from trioha.recording.session_reader import SessionReader
from trioha.recording.time_series import TimeGrid
from trioha_analysis.explain import explain
from trioha_analysis.parts import RANGE_RECORDS, Run, runs_of
from trioha_analysis.put_search import Question, Scan
from trioha_spark.job_progress import Watch, watched
from trioha_spark.scan import RUN_RANGES_MAX
from trioha_spark.session import LOCAL, spark_session, this_python

_NO_GRID: Final = TimeGrid(0, 1, 1)


def explain_on_spark(
    readers: Sequence[SessionReader],
    request: str,
    *,
    at_wall_ns: int | None = None,
    master: str = LOCAL,
    spark: SparkSession | None = None,
    range_records: int = RANGE_RECORDS,
    watch: Watch | None = None,
) -> dict[str, Any]:
    """As `trioha_analysis.explain.explain`, with whole sessions read in tasks.

    Uses `spark` if given, else the active session of this process, else a new one on `master`. `watch`
    receives the progress of each of its jobs. Raises TriohaError if no session has such a put, JavaError or
    SparkError if Spark does not start.
    """
    if spark is None:
        with spark_session(master) as own:
            return explain_on_spark(
                readers,
                request,
                at_wall_ns=at_wall_ns,
                spark=own,
                range_records=range_records,
                watch=watch,
            )
    scan = spark_scan(spark, range_records=range_records, watch=watch)
    return explain(readers, request, at_wall_ns=at_wall_ns, scan=scan)


def spark_scan(
    spark: SparkSession, *, range_records: int = RANGE_RECORDS, watch: Watch | None = None
) -> Scan:
    """A `Scan` in one job, with a task for each run of ranges."""

    def scan(asked: Sequence[tuple[SessionReader, Question]]) -> Sequence[Question]:
        tasks = [
            pickle.dumps((run, question))
            for index, (reader, question) in enumerate(asked)
            for run in runs_of(
                index,
                reader.session.path,
                reader.segments,
                _NO_GRID,
                range_records=range_records,
                run_ranges=RUN_RANGES_MAX,
            )
        ]
        if not tasks:
            return [question for _, question in asked]
        with this_python(), watched(spark.sparkContext, watch):
            found = spark.sparkContext.parallelize(tasks, len(tasks)).flatMap(_answered).collect()
        answers: dict[int, list[Question]] = {}
        for pickled in found:
            # Pickled by a worker of the same job.
            index, answer = pickle.loads(pickled)  # noqa: S301
            answers.setdefault(index, []).append(answer)
        return [
            reduce(_joined, answers.get(index, ()), question) for index, (_, question) in enumerate(asked)
        ]

    return scan


def _joined(earlier: Question, later: Question) -> Question:
    return earlier.followed_by(later)


def _answered(pickled: bytes) -> Iterator[bytes]:
    # Pickled by the driver of the same job.
    run, question = pickle.loads(pickled)  # noqa: S301
    yield pickle.dumps((run.session_index, answered(run, question)))


def answered(run: Run, question: Question) -> Question:
    """The question with the answer of a run's ranges."""
    for work in run.ranges():
        question.add(read_segment(work.session, work.segment, first=work.first, count=work.count).array)
        if question.is_done:
            break
    return question
