"""The archive of a node's log: when the archiver works, what is known of its work, and what stops it.

An archiver does one step after the other: each archives what the log has, up to some objects. While nothing
more waits, the next step begins `interval_s` after the one before it. What fails is tried again by a new
archiver, later each time: network, credentials and storage come back, and an archiver that begins looks at
what is there. Two ends are final, and the node goes on without an archive: another writer has it (fenced), or
a record of the log is damaged.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Final, Literal, Protocol

import structlog
import trio

from trioha.broker_status import ArchiveState, ArchiveStatus
from trioha.errors import StoreError
from trioha.log_limit import LogLimit
from trioha.node.archive_task import ArchiveProgress
from trioha.store.commit_log import CommitLog
from trioha.store.record_layout import (
    BLANK,
    BLANK_BYTES,
    MAGIC_BLANK,
    MAGICS,
    RECORD_BYTES_MIN,
    store_timestamp_ms,
)

log = structlog.get_logger(__name__)

BACK_OFF_MIN_S: Final = 1.0
BACK_OFF_MAX_S: Final = 60.0
REPORT_INTERVAL_S: Final = 60.0
"""Between two log lines about one fault that lasts."""


class ArchiveFault(Exception):  # noqa: N818 - what an archiver ends with
    """An archiver's end: the state that it leaves, why, and what it has reached all the same."""

    def __init__(
        self,
        reason: str,
        *,
        state: Literal["waiting", "fenced", "damaged"] = "waiting",
        archived_offset: int | None = None,
        generation: str = "",
    ) -> None:
        """`archived_offset` and `generation` are None and empty if the last step's are still right."""
        self.reason = reason
        self.archived_offset = archived_offset
        self.generation = generation
        self.state: Final = state
        super().__init__(reason)

    @property
    def is_final(self) -> bool:
        """Whether another archiver would end with the same."""
        return self.state != "waiting"


class Archiver(Protocol):
    """An archiver at work."""

    async def step(self) -> ArchiveProgress:
        """Archive what is there, or a part of it. Raises ArchiveFault, after which it does no more steps."""
        ...

    def kill(self) -> None:
        """End at once, also within a step: it reads nothing of the log any more."""
        ...


class ArchiveService:
    """Lets one archiver after the other work, and knows how far they are."""

    def __init__(
        self,
        start: Callable[[], AbstractAsyncContextManager[Archiver]],
        commit_log: CommitLog,
        *,
        url: str,
        interval_s: float,
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        jitter: Callable[[], float] = lambda: random.uniform(0.5, 1.5),
    ) -> None:
        """`start` starts an archiver, and ends it with the context; it raises ArchiveFault, too.

        `wall_ms` and `jitter`, a factor of times between two attempts, are ports.
        """
        self._start = start
        self._log = commit_log
        self._url = url
        self._interval_s = interval_s
        self._wall_ms = wall_ms
        self._jitter = jitter
        self._state: ArchiveState = "starting"
        self._error = ""
        self._generation = ""
        self._archived_offset: int | None = None
        self._objects = 0
        self._object_bytes = 0
        self._failures = 0
        self._line = LogLimit(REPORT_INTERVAL_S, clock_s=trio.current_time)
        self._archiver: Archiver | None = None
        """The one that works, until it is killed."""
        self._changes = 0
        """Counts cuts and restarts of the log: answers of an archiver from before one count for nothing."""
        commit_log.on_restart(self._forget)
        commit_log.on_cut(self._note_cut)

    async def run(self) -> None:
        """Archive until cancelled, or until a final fault. If cancelled, the archiver ends first."""
        back_off_s = BACK_OFF_MIN_S
        while True:
            changes = self._changes
            try:
                async with self._start() as archiver:
                    self._archiver = archiver
                    while changes == self._changes:
                        next_s = trio.current_time() + self._interval_s
                        progress = await archiver.step()
                        if changes != self._changes:
                            break
                        self._note(progress)
                        back_off_s = BACK_OFF_MIN_S
                        if not progress.is_more_waiting:
                            await trio.sleep_until(next_s)
            except ArchiveFault as fault:
                if changes == self._changes:
                    self._note_fault(fault)
                    if fault.is_final:
                        return
            finally:
                self._archiver = None
            await trio.sleep(back_off_s * self._jitter())
            back_off_s = min(back_off_s * 2, BACK_OFF_MAX_S)

    def archived_offset(self) -> int | None:
        """End of what is archived; 0 if that could not be learned, None while it may still be."""
        if self._archived_offset is not None or self._state == "starting":
            return self._archived_offset
        return 0

    def status(self) -> ArchiveStatus:
        """The archive as of now."""
        archived_offset, end = self._archived_offset, self._log.max_offset
        return ArchiveStatus(
            url=self._url,
            state=self._state,
            error=self._error,
            generation=self._generation,
            archived_offset=archived_offset,
            lag_bytes=None if archived_offset is None else max(0, end - archived_offset),
            lag_ms=None if archived_offset is None else self._lag_ms(archived_offset),
            objects=self._objects,
            object_bytes=self._object_bytes,
            failures=self._failures,
        )

    def _lag_ms(self, archived_offset: int) -> int | None:
        if archived_offset >= self._log.max_offset:
            return 0
        try:
            stored_ms = _first_stored_ms(self._log, max(archived_offset, self._log.min_offset))
        except StoreError:
            # Counted and reported by the log.
            return None
        return None if stored_ms is None else max(0, self._wall_ms() - stored_ms)

    def _note(self, progress: ArchiveProgress) -> None:
        if self._state != "running":
            log.info(
                "archiving",
                url=self._url,
                generation=progress.generation,
                archived_offset=progress.archived_offset,
            )
        self._state, self._error = "running", ""
        self._line.reset()
        self._generation = progress.generation
        self._archived_offset = progress.archived_offset
        self._objects += progress.objects
        self._object_bytes += progress.object_bytes

    def _note_fault(self, fault: ArchiveFault) -> None:
        self._state, self._error = fault.state, fault.reason
        self._failures += 1
        if fault.archived_offset is not None:
            self._archived_offset, self._generation = fault.archived_offset, fault.generation
        if fault.is_final:
            log.error("archive stopped until the next start", state=fault.state, reason=fault.reason)
            return
        if self._line.count():
            log.warning("nothing can be archived yet", reason=fault.reason, failures=self._failures)

    def _forget(self) -> None:
        """The log begins anew: what is archived is of another one."""
        self._end_archiver()
        self._archived_offset = None
        if self._state == "running":
            self._state = "starting"

    def _note_cut(self, end_offset: int) -> None:
        """The log is cut: what is archived beyond its new end is not of this log."""
        self._end_archiver()
        if self._archived_offset is not None and self._archived_offset > end_offset:
            self._forget()

    def _end_archiver(self) -> None:
        """End the archiver before any byte of the log changes; another one compares log and archive."""
        self._changes += 1
        if self._archiver is not None:
            self._archiver.kill()
            self._archiver = None


def _first_stored_ms(commit_log: CommitLog, offset: int) -> int | None:
    """Store timestamp of the record at `offset`, or of the one after a blank there; None without one. Raises
    StoreError."""
    view = commit_log.read(offset, RECORD_BYTES_MIN)
    if len(view) >= BLANK_BYTES and BLANK.unpack_from(view)[1] == MAGIC_BLANK:
        view = commit_log.read(
            offset - offset % commit_log.file_bytes + commit_log.file_bytes, RECORD_BYTES_MIN
        )
    if len(view) < RECORD_BYTES_MIN or BLANK.unpack_from(view)[1] not in MAGICS:
        return None
    return store_timestamp_ms(view, 0)
