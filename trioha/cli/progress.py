"""Progress of long work as bars on stderr, where that is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable

from rich.progress import BarColumn, Progress, ProgressColumn, TaskID, TextColumn, TimeRemainingColumn

from trioha.cli.console import err


def bars(*figures: ProgressColumn, shown: bool = True) -> Progress:
    """Bars of tasks with their descriptions, `figures` and the time that is left; nothing without a terminal,
    or if not `shown`."""
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        *figures,
        TimeRemainingColumn(),
        console=err(),
        transient=True,
        disable=not shown or not sys.stderr.isatty(),
    )


def shown_by(progress: Progress) -> Callable[[str, int, int], None]:
    """Shows each kind of work, its steps done and their number, as a task of its own."""
    tasks: dict[str, TaskID] = {}

    def on_progress(what: str, done: int, total: int) -> None:
        if what not in tasks:
            tasks[what] = progress.add_task(what, total=total)
        progress.update(tasks[what], completed=done, total=total)

    return on_progress
