"""Progress of a replay in completed tasks, of a classic session of Spark and of Spark Connect."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import Any, Final, cast
from uuid import uuid4

from pyspark import SparkContext
from pyspark.sql import SparkSession

from trioha_spark.session import context_of

Watch = Callable[[int, int], None]
"""Receives the number of completed tasks and of all tasks; called in a separate thread."""
PAUSE_S: Final = 0.2
_GROUP_KEYS: Final = ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel")


@contextmanager
def watched(spark: SparkSession, watch: Watch | None, *, tasks: int) -> Iterator[None]:
    """Report the progress of the stage with so many `tasks` to `watch`, several times a second.

    That stage aggregates; later ones only join its results. A failed job is not reported.
    """
    if watch is None:
        yield
        return
    context = context_of(spark)
    with _of_connect(spark, watch, tasks) if context is None else _of_classic(context, watch, tasks):
        yield
    watch(tasks, tasks)


@contextmanager
def _of_connect(spark: SparkSession, watch: Watch, tasks: int) -> Iterator[None]:
    def report(stages: Any, inflight_tasks: int, operation_id: str | None, done: bool) -> None:
        del inflight_tasks, operation_id, done
        for stage in stages or ():
            if stage.num_tasks == tasks:
                watch(stage.num_completed_tasks, tasks)
                break

    # Spark calls it; its type is an abstract class that needs the packages of Spark Connect.
    handler = cast("Any", report)
    spark.registerProgressHandler(handler)
    try:
        yield
    finally:
        spark.removeProgressHandler(handler)


@contextmanager
def _of_classic(context: SparkContext, watch: Watch, tasks: int) -> Iterator[None]:
    group = f"trioha {uuid4()}"
    before = {key: context.getLocalProperty(key) for key in _GROUP_KEYS}
    context.setJobGroup(group, "trioha")
    finished = Event()
    thread = Thread(target=_poll, args=(context, group, watch, tasks, finished), daemon=True)
    thread.start()
    try:
        yield
    finally:
        finished.set()
        thread.join()
        for key, value in before.items():
            # None unsets a property, though PySpark's types do not say so.
            context.setLocalProperty(key, value)  # type: ignore[arg-type]


def _poll(context: SparkContext, group: str, watch: Watch, tasks: int, finished: Event) -> None:
    while not finished.wait(PAUSE_S):
        completed = _completed(context, group, tasks)
        if completed is not None:
            watch(completed, tasks)


def _completed(context: SparkContext, group: str, tasks: int) -> int | None:
    """Completed tasks of the first stage that has so many; None if it has not started."""
    tracker = context.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in sorted(tracker.getJobIdsForGroup(group))]
    stages = sorted({stage for job in jobs if job is not None for stage in job.stageIds})
    for stage in stages:
        info = tracker.getStageInfo(stage)
        if info is not None and info.numTasks == tasks:
            return info.numCompletedTasks
    return None
