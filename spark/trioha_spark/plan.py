"""The plan of a replay as DataFrames: a row for each task, and one for each session."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
from attrs import frozen
from pyspark.sql import DataFrame, SparkSession

from trioha_analysis.parts import Run
from trioha_analysis.replay_plan import ReplayPlan
from trioha_spark.rows import SessionRow, batch_of, frame_of

RUN_RANGES_MAX: Final = 16
"""Ranges of one task: about a second of work."""
RUNS_MIN: Final = 8
"""Tasks of a replay, if there are enough ranges: so that cores finish at about the same time."""


@frozen(eq=False)
class PlanFrames:
    """The DataFrames of a plan."""

    runs: DataFrame
    """A row for each task (`trioha_analysis.parts.Run`), each in a partition of its own."""
    tasks: int
    parts_max: int
    """The most runs that a session has."""
    sessions: DataFrame
    """A row for each session (`SessionRow`)."""


def plan_frames(spark: SparkSession, plan: ReplayPlan) -> PlanFrames:
    """The DataFrames of a plan."""
    runs = list(plan.runs(run_ranges=min(RUN_RANGES_MAX, max(1, plan.ranges // RUNS_MIN))))
    return PlanFrames(
        runs=_each_in_a_partition(spark, batch_of(runs, Run)),
        tasks=max(1, len(runs)),
        parts_max=1 + max((run.ordinal for run in runs), default=0),
        sessions=frame_of(spark, session_rows(plan), SessionRow),
    )


def _each_in_a_partition(spark: SparkSession, rows: pa.RecordBatch) -> DataFrame:
    """Rows with a further column, their partitions."""
    tasks = pa.array(range(rows.num_rows), pa.int32())
    numbered = pa.Table.from_batches([rows.append_column("task", tasks)])
    return spark.createDataFrame(numbered).repartitionById(max(1, rows.num_rows), "task")


def session_rows(plan: ReplayPlan) -> list[SessionRow]:
    """The sessions of a plan, in their order."""
    return [
        SessionRow(index, session.path, grid, segments.damage, tuple(seen))
        for index, (session, grid, segments, seen) in enumerate(
            zip(plan.sessions, plan.grids, plan.segments, plan.seen, strict=True)
        )
    ]
