"""Replay of recorded sessions on Spark."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pyspark.sql import SparkSession

from trioha.recording.aggregate import ConnectionPart
from trioha_analysis.parts import RANGE_RECORDS, NodePart
from trioha_analysis.replay_result import ReplayPlan, ReplayResult, plan_replay
from trioha_spark.job_progress import Watch, watched
from trioha_spark.scan import aggregate_runs, join_parts, joined_rows
from trioha_spark.session import LOCAL, spark_session, this_python


def replay(
    sessions: Iterable[str | Path],
    *,
    master: str = LOCAL,
    spark: SparkSession | None = None,
    range_records: int = RANGE_RECORDS,
    watch: Watch | None = None,
) -> ReplayResult:
    """Replay `sessions` (session folders, or folders of them) on Spark.

    Uses `spark` if given, else the active session of this process, else a new one on `master`. `watch`
    receives the progress. Raises StoreError if a path is not a session, JavaError or SparkError if Spark does
    not start.
    """
    plan = plan_replay(sessions, range_records=range_records)
    if not plan.ranges:
        return plan.result({}, {})
    if spark is not None:
        return _run(spark, plan, watch)
    with spark_session(master) as own:
        return _run(own, plan, watch)


def _run(spark: SparkSession, plan: ReplayPlan, watch: Watch | None) -> ReplayResult:
    nodes: dict[int, NodePart] = {}
    connections: dict[tuple[int, int], ConnectionPart] = {}
    with this_python(), watched(spark.sparkContext, watch):
        for session_index, conn, part in joined_rows(join_parts(*aggregate_runs(spark, plan))):
            if isinstance(part, NodePart):
                nodes[session_index] = part
            else:
                connections[session_index, conn] = part
    return plan.result(nodes, connections)
