"""How far a Spark job is: tasks that are done, of all there are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import Final
from uuid import uuid4

from pyspark import SparkContext

Watch = Callable[[int, int], None]
"""Told how many tasks are done, and how many there are; called in a thread of its own."""
PAUSE_S: Final = 0.2
_GROUP_KEYS: Final = ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel")


@contextmanager
def watched(context: SparkContext, watch: Watch | None) -> Iterator[None]:
    """Tell `watch`, several times a second, about the first stage of what is begun inside.

    The stages that follow only join what that one has found. Nobody is told of a job that fails.
    """
    if watch is None:
        yield
        return
    group = f"trioha {uuid4()}"
    before = {key: context.getLocalProperty(key) for key in _GROUP_KEYS}
    context.setJobGroup(group, "trioha")
    over = Event()
    thread = Thread(target=_look, args=(context, group, watch, over), daemon=True)
    thread.start()
    try:
        yield
    except BaseException:
        over.set()
        thread.join()
        raise
    else:
        over.set()
        thread.join()
        tasks = _first_stage(context, group)
        if tasks is not None:
            watch(tasks[1], tasks[1])
    finally:
        for key, value in before.items():
            # PySpark takes None for "unset", though its types do not say so.
            context.setLocalProperty(key, value)  # type: ignore[arg-type]


def _look(context: SparkContext, group: str, watch: Watch, over: Event) -> None:
    while not over.wait(PAUSE_S):
        tasks = _first_stage(context, group)
        if tasks is not None:
            watch(*tasks)


def _first_stage(context: SparkContext, group: str) -> tuple[int, int] | None:
    """Tasks done and all tasks of the stage that was first, None if there is none yet."""
    tracker = context.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in sorted(tracker.getJobIdsForGroup(group))]
    stages = [stage for job in jobs[:1] if job is not None for stage in job.stageIds]
    info = tracker.getStageInfo(min(stages)) if stages else None
    return None if info is None else (info.numCompletedTasks, info.numTasks)
