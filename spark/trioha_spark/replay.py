"""Replay of recorded sessions on Spark.

The plan is a DataFrame with a row for each task; `mapInArrow` aggregates them with NumPy, `applyInArrow`
joins their parts and finishes sessions. All columns are typed (`trioha_spark.rows`), so it runs on a classic
session of Spark as on Spark Connect.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from attrs import evolve
from pyspark.sql import SparkSession

from trioha_analysis.arrow_tables import begin_tables
from trioha_analysis.link_work import compare, link_work, links_of
from trioha_analysis.parts import RANGE_RECORDS
from trioha_analysis.replay_result import Detail, ReplayPlan, ReplayResult, plan_replay
from trioha_sessions.clocks import Link
from trioha_sessions.invariants.group import GroupResult, groups_of
from trioha_spark.job_progress import Watch, watched
from trioha_spark.parts import aggregate_runs, join_parts
from trioha_spark.plan import plan_frames
from trioha_spark.results import check_groups, compare_links, finish, session_results
from trioha_spark.rows import ComparedRow, GroupRow, LifeRow, LinkRow, frame_of, rows_of
from trioha_spark.session import LOCAL, spark_session, this_python

COMPARED_HERE_MAX: Final = 16
"""Starts of connections that the driver reads itself: a task takes as long as reading some of them."""
LINKS_PER_TASK: Final = 16


def replay(
    sessions: Iterable[str | Path],
    *,
    master: str = LOCAL,
    spark: SparkSession | None = None,
    range_records: int = RANGE_RECORDS,
    watch: Watch | None = None,
    detail: Detail = Detail.WHOLE,
    tables: Path | None = None,
    links: bool = False,
) -> ReplayResult:
    """Replay `sessions` (session folders, folders of them, or archives) on Spark.

    Uses `spark` if given, else the active session of this process, else a new one on `master`. `watch`
    receives the progress. The result is as detailed as `detail` says: the driver's memory holds it. Executors
    write the long tables to the folder `tables` (`trioha_analysis.arrow_tables.PARTED`). With `links` the
    connections of masters are compared with those of their slaves.

    Raises StoreError if a path is not a session, JavaError or SparkError if Spark does not start.
    """
    plan = plan_replay(sessions, range_records=range_records)
    tables = None if tables is None else tables.absolute()
    if tables is not None:
        begin_tables(tables)
    if not plan.ranges:
        return plan.result({}, {})
    if spark is not None:
        return _run(spark, plan, detail, tables, watch, links=links)
    with spark_session(master) as own:
        return _run(own, plan, detail, tables, watch, links=links)


def _run(
    spark: SparkSession,
    plan: ReplayPlan,
    detail: Detail,
    tables: Path | None,
    watch: Watch | None,
    *,
    links: bool,
) -> ReplayResult:
    with this_python():
        frames = plan_frames(spark, plan, detail=detail, tables=tables)
        with watched(spark, watch, tasks=frames.tasks):
            joined = join_parts(aggregate_runs(frames.runs), frames.parts_max)
            result = plan.finished(session_results(finish(frames.sessions, joined).toArrow(), plan))
        result = evolve(result, groups=_checked(spark, result))
        return evolve(result, links=_linked(spark, result)) if links else result


def _checked(spark: SparkSession, result: ReplayResult) -> tuple[GroupResult, ...]:
    """The results of groups of brokers under controllers, each in a task with the lives of its sessions."""
    lives = [LifeRow(number, life) for number, group in enumerate(groups_of(result.lives)) for life in group]
    if not lives:
        return ()
    found = rows_of(check_groups(frame_of(spark, lives, LifeRow)).toArrow(), GroupRow)
    return tuple(one.result for one in sorted(found, key=_group))


def _group(row: GroupRow) -> int:
    return row.group


def _linked(spark: SparkSession, result: ReplayResult) -> tuple[Link, ...]:
    """Connections of masters and slaves, compared in tasks, or here where that is faster."""
    work = list(link_work(result))
    if sum(1 + len(one.slaves) for one in work) <= COMPARED_HERE_MAX:
        return links_of(result.opened, [found for one in work for found in compare(one)])
    rows = [LinkRow(number // LINKS_PER_TASK, one) for number, one in enumerate(work)]
    found = rows_of(compare_links(frame_of(spark, rows, LinkRow)).toArrow(), ComparedRow)
    return links_of(result.opened, [one.compared for one in sorted(found, key=_task)])


def _task(row: ComparedRow) -> int:
    return row.task
