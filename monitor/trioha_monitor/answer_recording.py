"""Records what the monitor observes: the answers of nodes and name servers, with their times.

Each recording is a file (`trioha_monitor.answer_file`) of lines (`trioha_monitor.answer_lines`), made by a
thread of its own: `note` passes an observation on and returns. A recording begins with the last answer of
everything that is shown. Observations that the disk does not take are counted; the file says where, and
`stop` how many.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from queue import Empty, Queue
from typing import Final

from trioha.errors import StoreError
from trioha_monitor.answer_file import SUFFIX, BlockWriter
from trioha_monitor.answer_lines import LINE_BYTES_MAX, encode, encode_start
from trioha_monitor.faults import BOUNDARY, fault_of_this_program
from trioha_monitor.observations import Gap, Observation
from trioha_monitor.watched import Start, Watched

IDLE_S: Final = 1.0
"""After so long without an observation what there is is written."""
FIRST_ANSWER_TIMEOUT_S: Final = 2.0
"""`stop` waits at most so long for the first observation."""
STOP_TIMEOUT_S: Final = 5.0
"""Timeout of the end of a recording."""
OBSERVATIONS_MAX: Final = 10_000
"""Observations that may wait for a slow disk."""
_TOO_SLOW: Final = "the disk is too slow"


class MonitorRecording:
    """Starts and stops recordings, each a new file in `directory`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._writing: _Writing | None = None

    @property
    def is_on(self) -> bool:
        """Whether a recording is running."""
        return self._writing is not None

    def start(self) -> Path:
        """Start a recording; returns its file. Waits for the disk. Raises StoreError if it cannot be made."""
        assert self._writing is None, "one recording at a time"
        while True:
            now = datetime.now(tz=UTC)
            path = self._directory / f"{now:%Y%m%dT%H%M%S}.{now.microsecond // 1000:03d}Z{SUFFIX}"
            try:
                self._directory.mkdir(parents=True, exist_ok=True)
                descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
                break
            except FileExistsError as error:
                if not path.exists():
                    # The directory is a file.
                    raise StoreError(f"cannot record here: {error.strerror}", path=path) from error
                # Another recording of this millisecond has this name.
                time.sleep(0.001)
            except OSError as error:
                raise StoreError(f"cannot record here: {error.strerror or error}", path=path) from error
        self._writing = _Writing(path, descriptor)
        return path

    def note(self, seen: Observation, watched: Watched) -> None:
        """Record `seen`, which `watched` has handled, while a recording is on; returns at once."""
        # `start` and `stop` run in another thread.
        writing = self._writing
        if writing is not None:
            writing.note(seen, watched)

    def stop(self) -> Path:
        """End the recording; returns its file. Raises StoreError if a part of it was not recorded.

        One that is stopped at once has what was shown: `stop` waits for one observation. Without any there is
        no file, and StoreError.
        """
        assert self._writing is not None, "it was started"
        self._writing.has_begun.wait(FIRST_ANSWER_TIMEOUT_S)
        writing, self._writing = self._writing, None
        return writing.end()


class _Writing:
    """One recording: a thread that receives observations and writes them."""

    def __init__(self, path: Path, descriptor: int) -> None:
        """`descriptor` is closed with the end of the thread."""
        self._path = path
        self._descriptor = descriptor
        self._writer = BlockWriter(descriptor)
        self._queue: Queue[Start | Observation | None] = Queue()
        self.has_begun = threading.Event()
        """Set with the first observation."""
        self._start_ms = 0
        self._refused = 0
        """Observations that were not put into the queue since the last one that was."""
        self._unwritten = 0
        """Observations that are not in the file."""
        self._gap = 0
        """How many of them no written block counts."""
        self._counted = 0
        """How many of those the present block counts."""
        self._in_block = 0
        """Observations in the present block."""
        self._reason = _TOO_SLOW
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="monitor recording", daemon=True)
        self._thread.start()

    # -- in the feed's thread ------------------------------------------------------------------------------

    def note(self, seen: Observation, watched: Watched) -> None:
        if self._queue.qsize() >= OBSERVATIONS_MAX:
            self._refused += 1
        elif self.has_begun.is_set():
            if self._refused:
                self._queue.put(Gap(seen.at_ms, self._refused, _TOO_SLOW))
                self._refused = 0
            self._queue.put(seen)
        else:
            # `watched` has `seen`, too.
            start, observations = watched.opening(at_ms=seen.at_ms)
            for each in (start, *observations):
                self._queue.put(each)
            self.has_begun.set()

    def end(self) -> Path:
        self._queue.put(None)
        self._thread.join(STOP_TIMEOUT_S)
        if self._thread.is_alive():
            raise StoreError("the recording did not end in time: the disk is too slow", path=self._path)
        if self._failure is not None:
            raise StoreError(f"the recording failed: {fault_of_this_program(self._failure)}", path=self._path)
        if not self.has_begun.is_set():
            self._path.unlink(missing_ok=True)
            raise StoreError("nothing is recorded: no node answered meanwhile", path=self._path)
        unwritten = self._unwritten + self._refused
        if unwritten:
            reason = f"{unwritten} answers were not recorded: {self._reason}"
            raise StoreError(f"the recording failed: {reason}", path=self._path)
        return self._path

    # -- in the thread -------------------------------------------------------------------------------------

    def _run(self) -> None:
        with BOUNDARY.around(str(self._path)) as guarded:
            for seen in self._received():
                match seen:
                    case Start():
                        self._writer.begin(encode_start(seen))
                        self._start_ms = seen.at_ms
                    case Gap():
                        self._lose(seen.count, seen.reason)
                    case _:
                        self._write(seen)
            self._flush()
        self._failure = guarded.error
        os.close(self._descriptor)

    def _received(self) -> Iterable[Start | Observation]:
        """What `note` was given, until the end."""
        while True:
            try:
                seen = self._queue.get(timeout=IDLE_S)
            except Empty:
                self._flush()
                continue
            if seen is None:
                return
            yield seen

    def _write(self, seen: Observation) -> None:
        line = encode(seen)
        if len(line) > LINE_BYTES_MAX:
            self._lose(1, f"an answer of {len(line)} bytes is too long")
            return
        at_ms = max(seen.at_ms, self._start_ms)
        if self._gap > self._counted:
            gap = Gap(at_ms, self._gap - self._counted, self._reason)
            self._writer.add(encode(gap), at_ms=at_ms)
            self._counted = self._gap
        self._in_block += 1
        if self._writer.add(line, at_ms=at_ms):
            self._flush()

    def _flush(self) -> None:
        if not self._in_block:
            return
        try:
            self._writer.flush()
            self._gap -= self._counted
        except StoreError as error:
            self._lose(self._in_block, error.reason)
        self._in_block = self._counted = 0

    def _lose(self, count: int, reason: str) -> None:
        """Count observations that are not written: the next block says so, and `end`."""
        self._unwritten += count
        self._gap += count
        self._reason = reason
