"""Replay of recorded sessions on Spark."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from attrs import evolve
from pyspark.sql import SparkSession

from trioha_analysis.arrow_tables import begin_tables
from trioha_analysis.link_work import Compared, LinkWork, compare, link_work, links_of
from trioha_analysis.parts import RANGE_RECORDS
from trioha_analysis.replay_result import Detail, ReplayPlan, ReplayResult, plan_replay
from trioha_sessions.invariants.group import GroupResult, check_group, groups_of
from trioha_sessions.role_lives import RoleLife
from trioha_spark.job_progress import Watch, watched
from trioha_spark.scan import aggregate_runs, finish, finished_sessions, join_parts
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
        return plan.finished({})
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
    with this_python(), watched(spark.sparkContext, watch):
        joined = join_parts(*aggregate_runs(spark, plan))
        result = plan.finished(finished_sessions(finish(joined, plan, detail, tables)))
        result = evolve(result, groups=_checked(spark, result))
        if not links:
            return result
        return evolve(result, links=links_of(result.opened, _compared(spark, result)))


def _checked(spark: SparkSession, result: ReplayResult) -> tuple[GroupResult, ...]:
    """The results of groups of brokers under controllers, each in a task with the lives of its sessions."""
    tasks = [pickle.dumps(lives) for lives in groups_of(result.lives)]
    if not tasks:
        return ()
    found = spark.sparkContext.parallelize(tasks, len(tasks)).map(_check).collect()
    # Pickled by a worker of the same job.
    return tuple(pickle.loads(one) for one in found)  # noqa: S301


def _check(pickled: bytes) -> bytes:
    # Pickled by the driver of the same job.
    lives: tuple[RoleLife, ...] = pickle.loads(pickled)  # noqa: S301
    return pickle.dumps(check_group(lives))


def _compared(spark: SparkSession, result: ReplayResult) -> Iterable[Compared]:
    """Connections of masters and slaves, compared in tasks, or here where that is faster."""
    work = list(link_work(result))
    if sum(1 + len(one.slaves) for one in work) <= COMPARED_HERE_MAX:
        return [found for one in work for found in compare(one)]
    # Pickled together, neighbours share what they have in common.
    tasks = [
        pickle.dumps(work[first : first + LINKS_PER_TASK]) for first in range(0, len(work), LINKS_PER_TASK)
    ]
    found = spark.sparkContext.parallelize(tasks, len(tasks)).flatMap(_compare).collect()
    # Pickled by a worker of the same job.
    return [pickle.loads(one) for one in found]  # noqa: S301


def _compare(pickled: bytes) -> Iterator[bytes]:
    # Pickled by the driver of the same job.
    work: list[LinkWork] = pickle.loads(pickled)  # noqa: S301
    for one in work:
        yield from map(pickle.dumps, compare(one))
