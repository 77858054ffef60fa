"""Records the monitor's views as sessions, which the replay, `trioha replay` and Spark read.

One session for each role of each node (`trioha_monitor.sampler`), in a folder of the recording. Sessions have
samples: the changes of each view, as events of the kinds that fit (docs/session-format.md, "Recorded by a
monitor"). A monitor does not see frames, single acks and single puts, so none are recorded: sent offsets are
HEARTBEATs, from which no ack latency can be computed. Times are those of the views: a replay shows at a
view's `time_ms` the figures of that view.

Mapping and writing run in a thread of their own with its own trio run (the recorder is that of nodes): `note`
passes a view on and returns.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import trio

from trioha.errors import StoreError, TriohaError
from trioha.recording.recorder import Recorder
from trioha_monitor.sampler import Sampler
from trioha_monitor.view import ClusterView

START_TIMEOUT_S: Final = 5.0
"""Timeout of the start of a recording."""
STOP_TIMEOUT_S: Final = 5.0
"""Timeout of its end."""
VIEWS_MAX: Final = 600
"""Views that may wait for a slow disk: a minute."""


class MonitorRecording:
    """Starts and stops recordings, each in a new folder in `directory`; used by one thread."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._thread: _Thread | None = None

    @property
    def is_on(self) -> bool:
        """Whether a recording is running."""
        return self._thread is not None

    def start(self) -> Path:
        """Start a recording; returns its folder. Raises StoreError if it cannot be made."""
        assert self._thread is None, "one recording at a time"
        while True:
            now = datetime.now(tz=UTC)
            path = self._directory / f"{now:%Y%m%dT%H%M%S}.{now.microsecond // 1000:03d}Z-monitor"
            try:
                path.mkdir(parents=True)
                break
            except OSError as error:
                if path.is_dir():
                    # Another recording of this millisecond has this name.
                    time.sleep(0.001)
                    continue
                raise StoreError(f"cannot record here: {error.strerror or error}", path=path) from error
        self._thread = _Thread(path)
        self._thread.begin()
        return path

    def note(self, view: ClusterView) -> None:
        """Record the changes in `view`; returns at once."""
        if self._thread is not None:
            self._thread.note(view)

    def stop(self) -> Path:
        """End the recording; returns its folder. Raises TriohaError if a part of it was not recorded."""
        assert self._thread is not None, "it was started"
        thread, self._thread = self._thread, None
        return thread.end()


class _Thread:
    """One recording: a thread with a trio run that receives views."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._failure: BaseException | None = None
        self._ready = threading.Event()
        self._token: trio.lowlevel.TrioToken | None = None
        self._send: trio.MemorySendChannel[ClusterView] | None = None
        self._lost = 0
        self._dropped = 0
        """Events that the recorders have not written."""
        self._refusal = "the disk is too slow"
        """Why not."""
        self._thread = threading.Thread(target=self._run, name="monitor recording", daemon=True)

    def begin(self) -> None:
        self._thread.start()
        if not self._ready.wait(START_TIMEOUT_S):
            raise StoreError("the recording did not start in time", path=self._path)

    def note(self, view: ClusterView) -> None:
        if self._token is not None:
            try:
                self._token.run_sync_soon(self._receive, view)
            except trio.RunFinishedError:
                # `end` reports it.
                self._lost += 1

    def end(self) -> Path:
        if self._token is not None:
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self._close)
        self._thread.join(STOP_TIMEOUT_S)
        if self._thread.is_alive():
            raise StoreError("the recording did not end in time: the disk is too slow", path=self._path)
        if self._failure is not None:
            raise StoreError(f"the recording failed: {self._failure}", path=self._path)
        if self._dropped:
            raise StoreError(
                f"the recording failed: {self._dropped} events were not recorded: {self._refusal}",
                path=self._path,
            )
        if self._lost:
            raise StoreError(f"{self._lost} views were not recorded: the disk is too slow", path=self._path)
        return self._path

    # -- in the thread -------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            trio.run(self._record)
        except* (TriohaError, OSError) as group:
            error: BaseException = group
            while isinstance(error, BaseExceptionGroup):
                error = error.exceptions[0]
            self._failure = error
        finally:
            self._ready.set()

    async def _record(self) -> None:
        send, receive = trio.open_memory_channel[ClusterView](VIEWS_MAX)
        self._send = send
        self._token = trio.lowlevel.current_trio_token()
        self._ready.set()
        sampler = Sampler(self._path, on_error=self._refused)
        scopes: dict[Recorder, trio.CancelScope] = {}
        async with trio.open_nursery() as recorders:
            async for view in receive:
                ended, begun = sampler.turn(view)
                for recorder in ended:
                    scopes.pop(recorder).cancel()
                for recorder in begun:
                    scopes[recorder] = await recorders.start(self._run_until_cancelled, recorder)
                sampler.note(view)
            sampler.finish()
            recorders.cancel_scope.cancel()

    async def _run_until_cancelled(
        self, recorder: Recorder, *, task_status: trio.TaskStatus[trio.CancelScope]
    ) -> None:
        """Run `recorder` in a cancel scope of its own, which is given to the caller once it has started."""
        try:
            async with trio.open_nursery() as nursery:
                await nursery.start(recorder.run)
                task_status.started(nursery.cancel_scope)
        finally:
            self._dropped += recorder.dropped

    def _refused(self, reason: str) -> None:
        """The disk does not take what a recorder writes, which tries again."""
        self._refusal = reason

    def _receive(self, view: ClusterView) -> None:
        assert self._send is not None
        try:
            self._send.send_nowait(view)
        except (trio.WouldBlock, trio.ClosedResourceError, trio.BrokenResourceError):
            self._lost += 1

    def _close(self) -> None:
        if self._send is not None:
            self._send.close()
