"""Parts that the commands on Spark share."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType

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


def spark_module(name: str, *, command: str, needs: str = "Spark") -> ModuleType:
    """Import a module that needs the extra `spark`. Raises TriohaError if that is not installed."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise TriohaError(
            f"trioha {command} needs {needs}, and {error.name} is not installed; {how_to_install('spark')}"
        ) from error


@contextmanager
def progress(title: str, *, shown: bool) -> Iterator[Callable[[int, int], None] | None]:
    """A progress bar on the terminal, updated with `(tasks done, tasks)`; None if it is not `shown`."""
    if not shown:
        yield None
        return
    # Spark redirects stderr while it starts: the bar needs a descriptor of its own.
    with os.fdopen(os.dup(sys.stderr.fileno()), "w", errors="replace") as terminal:
        columns = (
            *(SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn()),
            *(MofNCompleteColumn(), TimeElapsedColumn()),
        )
        with Progress(*columns, console=PlainConsole(file=terminal), transient=True) as bars:
            bar = bars.add_task("starting Spark", total=None)

            def watch(done: int, tasks: int) -> None:
                bars.update(bar, description=title, completed=done, total=tasks)

            yield watch
