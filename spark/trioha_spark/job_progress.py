"""Progress of a Spark job in completed tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import Final
from uuid import uuid4

from pyspark import SparkContext

Watch = Callable[[int, int], None]
"""Receives the number of completed tasks and of all tasks; called in a separate thread."""
PAUSE_S: Final = 0.2
_GROUP_KEYS: Final = ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel")


@contextmanager
def watched(context: SparkContext, watch: Watch | None) -> Iterator[None]:
    """Report the progress of the first stage of jobs inside to `watch`, several times a second.

    Later stages only join the results of the first. A failed job is not reported.
    """
    if watch is None:
        yield
        return
    group = f"trioha {uuid4()}"
    before = {key: context.getLocalProperty(key) for key in _GROUP_KEYS}
    context.setJobGroup(group, "trioha")
    finished = Event()
    thread = Thread(target=_poll, args=(context, group, watch, finished), daemon=True)
    thread.start()
    try:
        yield
    except BaseException:
        finished.set()
        thread.join()
        raise
    else:
        finished.set()
        thread.join()
        tasks = _first_stage(context, group)
        if tasks is not None:
            watch(tasks[1], tasks[1])
    finally:
        for key, value in before.items():
            # None unsets a property, though PySpark's types do not say so.
            context.setLocalProperty(key, value)  # type: ignore[arg-type]


def _poll(context: SparkContext, group: str, watch: Watch, finished: Event) -> None:
    while not finished.wait(PAUSE_S):
        tasks = _first_stage(context, group)
        if tasks is not None:
            watch(*tasks)


def _first_stage(context: SparkContext, group: str) -> tuple[int, int] | None:
    """Completed and all tasks of the first stage; None if it has not started."""
    tracker = context.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in sorted(tracker.getJobIdsForGroup(group))]
    stages = [stage for job in jobs[:1] if job is not None for stage in job.stageIds]
    info = tracker.getStageInfo(min(stages)) if stages else None
    return None if info is None else (info.numCompletedTasks, info.numTasks)
