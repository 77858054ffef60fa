"""Replay of recorded sessions on Spark.

The plan is a DataFrame with a row for each task; `mapInArrow` aggregates them with NumPy, `applyInArrow`
joins their parts and finishes sessions. All columns are typed (`trioha_spark.rows`), so it runs on a classic
session of Spark as on Spark Connect.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pyspark.sql import SparkSession

from trioha_analysis.parts import RANGE_RECORDS
from trioha_analysis.replay_plan import plan_replay
from trioha_spark.job_progress import Watch, watched
from trioha_spark.parts import aggregate_runs, join_parts
from trioha_spark.plan import plan_frames
from trioha_spark.results import session_results
from trioha_spark.session import this_python
from trioha_spark.tables import STORED, ReplayTables, tables_of


def replay(
    sessions: Iterable[str | Path],
    *,
    spark: SparkSession | None = None,
    range_records: int = RANGE_RECORDS,
    watch: Watch | None = None,
) -> ReplayTables:
    """Replay `sessions` (session folders, folders of them, or archives) on Spark, and return the tables.

    Uses `spark`, else the active session of Spark. Events are read before it returns, `range_records` at a
    time; the results stay with the executors, on their disks. `watch` receives the progress.

    Raises StoreError if a path is not a session, PySparkRuntimeError without a session of Spark.
    """
    plan = plan_replay(sessions, range_records=range_records)
    spark = SparkSession.active() if spark is None else spark
    with this_python(spark):
        frames = plan_frames(spark, plan)
        joined = join_parts(aggregate_runs(frames.runs), frames.parts_max)
        results = session_results(frames.sessions, joined).persist(STORED)
        try:
            with watched(spark, watch, tasks=frames.tasks):
                results.count()
        except BaseException:
            results.unpersist()
            raise
        return tables_of(results, plan.sessions)
