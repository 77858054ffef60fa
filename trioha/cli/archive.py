"""`trioha archive`: archive a store to an object storage, once or continuously."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from attrs import define, field
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from trioha.archive.archiver import Archiver, ArchiveStep
from trioha.archive.errors import ArchiveError, DamagedSourceError, FencedError
from trioha.archive.objects import ObjectFolder
from trioha.archive.settings import ArchiveSettings
from trioha.cli.console import err, out, print_json
from trioha.errors import ConfigError, StoreError
from trioha.palette import BAD
from trioha.times import time_text
from trioha.unit_texts import counted

PAUSE_FIRST_S: Final = 1.0
PAUSE_MAX_S: Final = 60.0
ATTEMPTS_MAX: Final = 5
"""Without --follow: attempts without any success after which a transient error is the last word."""
EXIT_DAMAGED: Final = 1
EXIT_INTERRUPTED: Final = 130
_UNITS_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}


def archive(
    store: Path,
    *,
    to: str,
    follow: bool = False,
    interval: str = "10s",
    keep: str | None = None,
    take_over: bool = False,
    trust_clock: bool = False,
    commit_log: Path | None = None,
    recordings: Path | None = None,
    cluster: str | None = None,
    broker: str | None = None,
    json: bool = False,
) -> int:
    """Archive the log and the metadata of a store to an object storage.

    Works beside a running broker or node, RocketMQ's too, and only reads the store. It goes on where the
    archive ends; interrupted at any moment it leaves no hole. Ctrl-C and SIGTERM end it after the present
    object, a second one at once. Exit code 1 if a damaged record ends what can be archived, 2 if another
    writer has the archive.

    Parameters
    ----------
    store
        A storePathRootDir.
    to
        URL of the archive: s3://bucket/folder, gs://, az:// or file:///folder. Each broker has its own.
    follow
        Go on as the log grows.
    interval
        With --follow: time between two steps, as 10s or 1m.
    keep
        Delete what a restore to a time within the last 30d (12h, 4w) does not need. By default all is kept.
    take_over
        Replace another writer without waiting whether it is alive.
    trust_clock
        With --keep, once: the clock is right, though the archive's last head is more than a week from it.
    commit_log
        Folder of the log, if storePathCommitLog is not the folder commitlog of the store.
    recordings
        Also archive the recorded sessions in this folder (what trioha.recordDir names).
    cluster
        Cluster name of a new archive; DefaultCluster by default.
    broker
        Broker name of a new archive; this host's name by default, as RocketMQ's is.
    json
        Print one JSON object for each step.
    """
    settings = ArchiveSettings(
        interval_s=parse_duration_s(interval, key="--interval"),
        keep_s=None if keep is None else parse_duration_s(keep, key="--keep"),
    )
    if not store.is_dir():
        raise StoreError("there is no such folder", path=store)
    if commit_log is not None and not commit_log.is_dir():
        raise StoreError("there is no such folder", path=commit_log)
    folder = ObjectFolder.open(to, create=True)
    archiver = Archiver(
        folder,
        store,
        cluster_name=cluster,
        broker_name=broker,
        commit_log=commit_log,
        settings=settings,
        take_over=take_over,
        trust_clock=trust_clock,
        recordings=recordings,
        notify=lambda text: err().print(text, soft_wrap=True),
    )
    with _Screen.open(json=json) as screen:
        return _Run(archiver, screen, follow, settings.interval_s).in_thread()


def parse_duration_s(text: str, *, key: str) -> float:
    """Seconds of a duration as 10s, 5m, 12h, 30d or 4w. Raises ConfigError about the option `key`."""
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,3})?)([smhdw])", text.strip())
    value = float(match[1]) * _UNITS_S[match[2]] if match else 0.0
    if value <= 0:
        raise ConfigError(f"{text[:80]!r} is not a duration", key=key, hint="write 10s, 5m, 12h, 30d or 4w")
    return value


@define
class _Run:
    """The archiver in a thread of its own, so that signals are received while a request waits."""

    _archiver: Archiver
    _screen: _Screen
    _follow: bool
    _interval_s: float
    _stopping: threading.Event = field(factory=threading.Event)

    def in_thread(self) -> int:
        """Run to the end and return the exit code. Raises what the thread has raised."""
        with _signals(self._stop), ThreadPoolExecutor(1, "archiver") as threads:
            return threads.submit(self._run).result()

    def _stop(self) -> None:
        if self._stopping.is_set():
            os._exit(EXIT_INTERRUPTED)
        self._stopping.set()
        self._archiver.stop()

    def _run(self) -> int:
        pause_s, attempts, is_begun = PAUSE_FIRST_S, 0, False
        while not self._stopping.is_set():
            try:
                if not is_begun:
                    self._archiver.begin()
                    is_begun = True
                step = self._archiver.step()
            except DamagedSourceError as error:
                self._screen.problem(str(error))
                return EXIT_DAMAGED
            except FencedError:
                raise
            except ArchiveError as error:
                attempts += 1
                if self._stopping.is_set():
                    break
                if not error.is_transient or (not self._follow and attempts == ATTEMPTS_MAX):
                    raise
                self._screen.problem(f"{error}; the next attempt follows in {pause_s:.0f} s")
                self._stopping.wait(pause_s)
                pause_s = min(2 * pause_s, PAUSE_MAX_S)
                continue
            pause_s, attempts = PAUSE_FIRST_S, 0
            self._screen.show(step)
            if not step.is_more_waiting:
                if not self._follow:
                    return 0
                self._stopping.wait(self._interval_s)
        return 0 if self._follow else EXIT_INTERRUPTED


@define
class _Screen:
    """What the command prints: a progress bar on a terminal, lines elsewhere."""

    _json: bool
    _progress: Progress
    _objects: int = 0
    _log_bytes: int = 0
    _stored_bytes: int = 0
    _last: ArchiveStep | None = None

    @classmethod
    @contextmanager
    def open(cls, *, json: bool) -> Iterator[_Screen]:
        """Show the bar until the command ends, then a summary."""
        with Progress(
            TextColumn("archiving"),
            BarColumn(),
            DownloadColumn(binary_units=True),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[remark]}"),
            console=err(),
            transient=True,
            disable=json or not sys.stderr.isatty(),
        ) as progress:
            screen = cls(json, progress)
            task = progress.add_task("", total=None, remark="")
            assert task == 0, "the only one"
            yield screen
        screen.summary()

    def show(self, step: ArchiveStep) -> None:
        """Show a step."""
        self._last = step
        self._objects += step.objects
        self._log_bytes += step.log_bytes
        self._stored_bytes += step.stored_bytes
        if self._json:
            print_json(step_json(step))
            return
        if step.began is not None:
            err().print(f"generation {step.generation}: {step.began}", soft_wrap=True)
        if step.archived_offset is not None and step.source_end_offset is not None:
            waiting = max(0, step.source_end_offset - step.archived_offset)
            self._progress.update(
                TaskID(0),
                completed=self._log_bytes,
                total=self._log_bytes + waiting,
                remark="" if step.is_more_waiting else f"up to {time_text(step.last_store_ms)}",
            )

    def problem(self, text: str) -> None:
        """Show an error that does not end the command, or the one that does."""
        err().print(text, style=BAD.terminal, soft_wrap=True)

    def summary(self) -> None:
        """What was done, in one line."""
        step = self._last
        if self._json or step is None:
            return
        if step.archived_offset is None:
            out().print("the store has no commit log yet")
            return
        out().print(
            f"archived up to offset {step.archived_offset}: {counted(self._objects, 'new object')}, "
            f"{self._log_bytes:,} bytes of the log became {self._stored_bytes:,}",
            soft_wrap=True,
        )


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


@contextmanager
def _signals(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` for each SIGINT and SIGTERM."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda *_: stop()) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
