"""Parts that the commands on Spark share."""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Final

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

from trioha.cli.console import PlainConsole
from trioha.errors import TriohaError
from trioha.extras import how_to_install

OF_SPARK_SUBMIT: Final = "PYSPARK_GATEWAY_PORT"
"""In the environment of a program that spark-submit runs, whose stderr it prints as stdout."""
LINE_EVERY_S: Final = 5.0
"""Without a terminal, progress is a line so often."""


def spark_module(name: str, *, command: str, needs: str = "Spark") -> ModuleType:
    """Import a module that needs the extra `spark`. Raises TriohaError if that is not installed."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise TriohaError(
            f"trioha {command} needs {needs}, and {error.name} is not installed; {how_to_install('spark')}"
        ) from error


@contextmanager
def progress(
    title: str, *, shown: bool, first: str = "starting Spark"
) -> Iterator[Callable[[int, int], None]]:
    """Progress on stderr, updated with `(tasks done, tasks)`: a bar if `shown`, else a line now and then.

    `first` is what the bar says before the first update. Under spark-submit there is none: lines would come
    into the output.
    """
    if OF_SPARK_SUBMIT in os.environ:
        yield lambda _done, _tasks: None
        return
    if not shown:
        yield ProgressLines(title, PlainConsole(stderr=True)).watch
        return
    # Spark redirects stderr while it starts: the bar needs a descriptor of its own.
    with os.fdopen(os.dup(sys.stderr.fileno()), "w", errors="replace") as terminal:
        columns = (
            *(SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn()),
            *(MofNCompleteColumn(), TimeElapsedColumn()),
        )
        with Progress(*columns, console=PlainConsole(file=terminal), transient=True) as bars:
            bar = bars.add_task(first, total=None)

            def watch(done: int, tasks: int) -> None:
                bars.update(bar, description=title, completed=done, total=tasks)

            yield watch


class ProgressLines:
    """Progress in lines, at least `LINE_EVERY_S` apart: for logs, and for people who wait beside a pipe."""

    def __init__(
        self, title: str, console: PlainConsole, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._title, self._console, self._clock = title, console, clock
        self._started_s = self._said_s = clock()

    def watch(self, done: int, tasks: int) -> None:
        """Print a line, if the last one is old enough."""
        now_s = self._clock()
        if now_s - self._said_s >= LINE_EVERY_S:
            self._said_s = now_s
            text = f"{self._title}: {done} of {tasks} tasks after {now_s - self._started_s:.0f} s"
            self._console.print(text, soft_wrap=True)
