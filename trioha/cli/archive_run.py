"""The archivers of `trioha archive`: a thread for each store, so that signals and scrapes are received while
their requests wait."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import trio
from attrs import define, evolve, field

from trioha.archive.archiver import Archiver, ArchiveStep
from trioha.archive.errors import ArchiveError, DamagedSourceError, FencedError
from trioha.cli.archive_screen import ArchiveScreen
from trioha.metrics.archivers import ArchiverFigures, ArchiverState, archiver_server
from trioha.node.ports import open_port
from trioha.remoting.address import Address

BACKLOG: Final = 16
"""Connections of Prometheus that wait until they are accepted."""
PAUSE_FIRST_S: Final = 1.0
PAUSE_MAX_S: Final = 60.0
ATTEMPTS_MAX: Final = 5
"""Without --follow: attempts without any success after which a transient error is the last word."""
EXIT_DAMAGED: Final = 1
EXIT_ERROR: Final = 2
EXIT_INTERRUPTED: Final = 130


@define
class ArchiveRun:
    """The work of one archiver. Its figures may be read by any thread."""

    archiver: Archiver
    screen: ArchiveScreen
    is_following: bool
    interval_s: float
    figures: ArchiverFigures
    error: ArchiveError | None = None
    """What has ended it, if that is not a damaged record."""
    code: int = 0
    """The exit code, when it has ended."""
    _stopping: threading.Event = field(factory=threading.Event)

    def stop(self) -> None:
        """End after the present object."""
        self._stopping.set()
        self.archiver.stop()

    def run(self) -> None:
        """Archive until stopped, or until nothing more can be archived. Blocks."""
        try:
            self.code = self._run()
        except ArchiveError as error:
            self._failed("fenced" if isinstance(error, FencedError) else "failed")
            self.error, self.code = error, EXIT_ERROR

    def _run(self) -> int:
        pause_s, attempts, is_begun = PAUSE_FIRST_S, 0, False
        while not self._stopping.is_set():
            begun_ms = time.time_ns() // 1_000_000
            try:
                if not is_begun:
                    self.archiver.begin()
                    is_begun = True
                step = self.archiver.step()
            except DamagedSourceError as error:
                self._failed("damaged")
                self.screen.problem(str(error))
                return EXIT_DAMAGED
            except FencedError:
                raise
            except ArchiveError as error:
                attempts += 1
                if self._stopping.is_set():
                    break
                if not error.is_transient or (not self.is_following and attempts == ATTEMPTS_MAX):
                    raise
                self._failed("waiting")
                self.screen.problem(f"{error}; the next attempt follows in {pause_s:.0f} s")
                self._stopping.wait(pause_s)
                pause_s = min(2 * pause_s, PAUSE_MAX_S)
                continue
            pause_s, attempts = PAUSE_FIRST_S, 0
            self._done(step, begun_ms)
            self.screen.show(step)
            if not step.is_more_waiting:
                if not self.is_following:
                    return 0
                self._stopping.wait(self.interval_s)
        return 0 if self.is_following else EXIT_INTERRUPTED

    def _failed(self, state: ArchiverState) -> None:
        self.figures = evolve(self.figures, state=state, failures=self.figures.failures + 1)

    def _done(self, step: ArchiveStep, begun_ms: int) -> None:
        before, archived_offset, end_offset = self.figures, step.archived_offset, step.source_end_offset
        lag_bytes = None if archived_offset is None or end_offset is None else end_offset - archived_offset
        self.figures = evolve(
            before,
            state="running",
            archived_offset=archived_offset,
            lag_bytes=None if lag_bytes is None else max(0, lag_bytes),
            complete_ms=before.complete_ms if step.is_more_waiting else begun_ms,
            objects=before.objects + step.objects,
            object_bytes=before.object_bytes + step.stored_bytes,
        )


def run_all(runs: Sequence[ArchiveRun], *, metrics: Address | None) -> int:
    """Run all of them to their ends, with a port for metrics; the greatest exit code.

    The first SIGINT or SIGTERM stops all, a second one ends the process at once. The error that ended the
    only one is raised; that of one of several is shown, and the others go on.
    """
    stopping = threading.Event()

    def stop() -> None:
        if stopping.is_set():
            os._exit(EXIT_INTERRUPTED)
        stopping.set()
        for run in runs:
            run.stop()

    with _signals(stop):
        trio.run(_run_all, runs, metrics)
    if len(runs) == 1 and runs[0].error is not None:
        raise runs[0].error
    return max(run.code for run in runs)


async def _run_all(runs: Sequence[ArchiveRun], metrics: Address | None) -> None:
    threads = trio.CapacityLimiter(len(runs))

    async def run_one(run: ArchiveRun) -> None:
        try:
            await trio.to_thread.run_sync(run.run, limiter=threads)
        except BaseException:
            # A defect of one ends the command, for which all others must end.
            for each in runs:
                each.stop()
            raise
        if run.error is not None and len(runs) > 1:
            run.screen.problem(f"{run.error}; nothing more of it is archived")

    listeners = (
        []
        if metrics is None
        else await open_port(metrics.host, metrics.port, BACKLOG, peers="Prometheus", key="--metrics")
    )
    async with trio.open_nursery() as nursery:
        if listeners:
            await nursery.start(archiver_server(lambda: [run.figures for run in runs]).serve, listeners)
        async with trio.open_nursery() as archivers:
            for run in runs:
                archivers.start_soon(run_one, run)
        nursery.cancel_scope.cancel()


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
