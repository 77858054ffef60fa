"""What `trioha archive` prints: progress bars on a terminal, lines elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from attrs import define
from rich.progress import (
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TransferSpeedColumn,
)

from trioha.archive.archiver import ArchiveStep
from trioha.cli.console import err, out, print_json
from trioha.cli.progress import bars
from trioha.outside_text import escaped
from trioha.palette import BAD
from trioha.times import time_text
from trioha.unit_texts import counted


@define
class ArchiveScreen:
    """What is printed of one store, from any thread."""

    _progress: Progress
    _task: TaskID
    _name: str
    """The store, before each line, if there are several; else empty."""
    _url: str
    _json: bool
    _objects: int = 0
    _log_bytes: int = 0
    _stored_bytes: int = 0
    _last: ArchiveStep | None = None

    def show(self, step: ArchiveStep) -> None:
        """Show a step."""
        self._last = step
        self._objects += step.objects
        self._log_bytes += step.log_bytes
        self._stored_bytes += step.stored_bytes
        if self._json:
            print_json({**({"url": self._url} if self._name else {}), **step_json(step)})
            return
        if step.began is not None:
            self.note(f"generation {step.generation}: {step.began}")
        if step.archived_offset is not None and step.source_end_offset is not None:
            waiting = max(0, step.source_end_offset - step.archived_offset)
            self._progress.update(
                self._task,
                completed=self._log_bytes,
                total=self._log_bytes + waiting,
                remark="" if step.is_more_waiting else f"up to {time_text(step.last_store_ms)}",
            )

    def note(self, text: str) -> None:
        """Show a remark."""
        err().print(self._named(text), soft_wrap=True)

    def problem(self, text: str) -> None:
        """Show an error that does not end the command, or the one that does."""
        err().print(self._named(text), style=BAD.terminal, soft_wrap=True)

    def summary(self) -> None:
        """What was done, in one line."""
        step = self._last
        if self._json or step is None:
            return
        if step.archived_offset is None:
            out().print(self._named("the store has no commit log yet"))
            return
        text = (
            f"archived up to offset {step.archived_offset}: {counted(self._objects, 'new object')}, "
            f"{self._log_bytes:,} bytes of the log became {self._stored_bytes:,}"
        )
        out().print(self._named(text), soft_wrap=True)

    def _named(self, text: str) -> str:
        return f"{self._name}: {text}" if self._name else text


@contextmanager
def screens(stores: Sequence[tuple[str, str]], *, json: bool) -> Iterator[list[ArchiveScreen]]:
    """A screen for each store and its URL; bars until the command ends, then summaries."""
    figures = (DownloadColumn(binary_units=True), TransferSpeedColumn(), TextColumn("{task.fields[remark]}"))
    with bars(*figures, shown=not json) as progress:
        are_several = len(stores) > 1
        shown = [
            ArchiveScreen(
                progress,
                progress.add_task(escaped(store) if are_several else "archiving", total=None, remark=""),
                store if are_several else "",
                url,
                json,
            )
            for store, url in stores
        ]
        yield shown
    for screen in shown:
        screen.summary()


def step_json(step: ArchiveStep) -> dict[str, object]:
    """The object that `--json` prints for a step."""
    return {
        "archivedOffset": step.archived_offset,
        "sourceEndOffset": step.source_end_offset,
        "lastStoreTimestamp": step.last_store_ms,
        "generation": step.generation,
        "began": step.began,
        "objects": step.objects,
        "logBytes": step.log_bytes,
        "storedBytes": step.stored_bytes,
        "merged": step.merged,
        "deleted": step.deleted,
        "recorded": step.recorded,
        "head": step.head,
        "isMoreWaiting": step.is_more_waiting,
    }
