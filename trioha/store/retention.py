"""Retention: deletion of old log files, and refusal of puts when the disk is full.

See docs/protocol/store.md#deletion-of-files.

Retention checks the disk every ten seconds. Above `disk_max_used_ratio`, or in an hour of `delete_when`, it
deletes files from the oldest on whose last write is older than `file_reserved_s`; above `force_ratio` it
deletes them at any age. A run deletes ten files at most, never the last one, and below `force_ratio` none
that a connected replica still needs or, with `archive_before_delete`, that is not archived. Above
`full_ratio` the log refuses puts (SERVICE_NOT_AVAILABLE) until there is space again; reads and replication go
on.

A wrong clock makes no file old. The clock's word for an age needs a witness: the times of the last writes
that the log's files had when the node started, and the time that has passed since. Where the clock is more
than `UNWITNESSED_S_MAX` beyond that, ages end with the witness, `doubt` says so, and an operator looks at the
clock. If it is right, and the node was down, files become old while it runs.

An error of the disk is counted, logged once a minute, and tried again at the next check.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path

import structlog
import trio
from attrs import frozen

from trioha.errors import StoreError
from trioha.log_limit import LogLimit
from trioha.net.threads import run_in_thread
from trioha.store.commit_log import CommitLog
from trioha.store.disk_use import DiskUse
from trioha.store.mapped_file import MappedFile

log = structlog.get_logger(__name__)

FILES_PER_RUN_MAX = 10
SLICE_S = 0.001
"""Queues are cleaned for so long before other tasks run."""
EVERYTHING = 2**63 - 1
"""Offset of a log that needs no archive."""
REPORT_INTERVAL_S = 60.0
"""Between two log lines for errors of the disk, or of the clock."""
UNWITNESSED_S_MAX = 3600.0
"""So far the clock may be beyond what is known of the time otherwise."""
GAP_S_MAX = 7 * 86400.0
"""Between the last writes of one file and of the next; after a longer gap the clock may have been wrong."""


@frozen
class RetentionSettings:
    """Age of files and use of the disk that retention allows."""

    file_reserved_s: float = 72 * 3600.0
    """fileReservedTime."""
    delete_when: frozenset[int] = frozenset((4,))
    """deleteWhen: hours of the local day."""
    disk_max_used_ratio: float = 0.75
    """diskMaxUsedSpaceRatio: above it, files that are old enough are deleted at any hour."""
    force_ratio: float = 0.85
    """Above it the oldest files are deleted at any age."""
    full_ratio: float = 0.90
    """Above it puts are refused."""
    clean_forcibly: bool = True
    """cleanFileForciblyEnable: whether `force_ratio` applies."""
    interval_s: float = 10.0
    """cleanResourceInterval."""
    archive_before_delete: bool = False
    """trioha.archiveBeforeDelete: whether files wait until they are archived, up to `force_ratio`."""


class RetentionClock:
    """The wall clock without jumps forward: they would make files too old.

    It advances no faster than the monotonic clock since it was made. If the wall clock was wrong at the start
    and is set forward later, files are kept too long until the next start.
    """

    def __init__(
        self,
        *,
        wall_s: Callable[[], float] | None = None,
        elapsed_s: Callable[[], float] | None = None,
    ) -> None:
        """Both are ports to the system's clocks, in seconds."""
        self._wall_s = wall_s = wall_s or time.time
        self._elapsed_s = elapsed_s = elapsed_s or _since_boot_s
        self._start_s = elapsed_s()
        self._ahead_s = wall_s() - self._start_s
        """Difference of wall clock and monotonic clock at the start."""

    def now(self) -> datetime:
        """The local time of day."""
        return datetime.fromtimestamp(min(self._wall_s(), self._elapsed_s() + self._ahead_s)).astimezone()

    def passed_s(self) -> float:
        """Since it was made, whatever the wall clock says."""
        return self._elapsed_s() - self._start_s


def _since_boot_s() -> float:
    """Seconds of a clock that cannot be set, which includes the time that the machine sleeps."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Retention:
    """Deletes one log's old files and checks its disk."""

    def __init__(
        self,
        commit_log: CommitLog,
        settings: RetentionSettings,
        *,
        retention_floor: Callable[[], int] = lambda: 2**63 - 1,
        archived_offset: Callable[[], int | None] = lambda: EVERYTHING,
        on_deleted: Callable[[], Iterable[None]] = lambda: (),
        on_cleaned: Callable[[], None] | None = None,
        used_ratio: Callable[[Path], float] | None = None,
        clock: RetentionClock | None = None,
    ) -> None:
        """`retention_floor` returns the lowest offset that a connected replica still needs; `archived_offset`
        the end of what is archived, None in the first moments, when that is not known yet; `on_deleted`
        deletes queue and index files of deleted log files, in one short step for each item that it yields,
        and raises StoreError at its end if the disk refused some; `on_cleaned` then runs in a worker thread,
        for what blocks, and raises StoreError, too; `used_ratio` returns how full the disk of a directory is,
        0 to 1; `clock` is the time of `run`."""
        self._log = commit_log
        self._settings = settings
        self._retention_floor = retention_floor
        self._archived_offset = archived_offset
        self._on_deleted = on_deleted
        self._on_cleaned = on_cleaned
        self._used_ratio = used_ratio or (lambda folder: DiskUse.of(folder).ratio)
        self._clock = clock or RetentionClock()
        self.files_deleted_unarchived = 0
        """Counts files that were deleted before all of their bytes were archived."""
        self.errors = 0
        """Counts failed checks of the disk and failed deletions."""
        self._error_line = LogLimit(REPORT_INTERVAL_S, clock_s=trio.current_time)
        self._doubt_line = LogLimit(REPORT_INTERVAL_S, clock_s=self._clock.passed_s)
        self.doubt = ""
        """Why files that are old by the clock are not deleted; empty while they are."""
        self._witness_s = _last_write_s(commit_log.files, now_s=self._clock.now().timestamp())
        """When the log was last written to before the start, as far as its files agree."""
        self._cleaned_offset = -1
        """Start of the log when `on_deleted` last completed; -1 at first: an earlier life of the node may
        have ended after it had deleted files of the log."""

    def configure(self, settings: RetentionSettings) -> None:
        """Use other settings from the next check on."""
        self._settings = settings

    async def run(self) -> None:
        """Check the disk until cancelled. Failed deletions are tried again at the next check."""
        while True:
            try:
                ratio = await run_in_thread(partial(self._used_ratio, self._log.directory))
                self.apply(ratio, now=self._clock.now())
            except OSError as error:
                self._report(error)
            await self.clean()
            await trio.sleep(self._settings.interval_s)

    def apply(self, ratio: float, *, now: datetime) -> None:
        """Delete files, and let the log refuse or accept puts, for a disk that is `ratio` full.

        A file that cannot be deleted stays, with those after it. Call `clean` afterwards.
        """
        settings = self._settings
        is_full = ratio > settings.full_ratio
        if is_full != self._log.disk_is_full:
            self._log.disk_is_full = is_full
            if is_full:
                log.error(
                    "disk full: puts are refused", used=f"{ratio:.0%}", limit=f"{settings.full_ratio:.0%}"
                )
            else:
                log.info("the disk has space again: puts are accepted", used=f"{ratio:.0%}")
        force = ratio > settings.force_ratio and settings.clean_forcibly
        if force or ratio > settings.disk_max_used_ratio or now.hour in settings.delete_when:
            try:
                self._delete(force=force, now_s=now.timestamp())
            except (OSError, StoreError) as error:
                self._report(error)

    def _delete(self, *, force: bool, now_s: float) -> None:
        witnessed_s = self._witness_s + self._clock.passed_s()
        by_clock_s, is_doubtful = now_s, False
        if now_s > witnessed_s + UNWITNESSED_S_MAX:
            now_s = witnessed_s
        retention_floor, archived_offset = self._retention_floor(), self._archived_offset()
        for file in self._log.files[:-1][:FILES_PER_RUN_MAX]:
            is_archived = archived_offset is not None and file.end_offset <= archived_offset
            waits = not is_archived and (archived_offset is None or self._settings.archive_before_delete)
            if not force:
                if file.end_offset > retention_floor or waits:
                    break
                written_s = _written_s(file)
                if now_s - written_s < self._settings.file_reserved_s:
                    is_doubtful = by_clock_s - written_s >= self._settings.file_reserved_s
                    break
            self._log.delete_first_file()
            log.info("log file deleted", path=str(file.path), forced=force, min_offset=self._log.min_offset)
            if not is_archived:
                self.files_deleted_unarchived += 1
                log.error(
                    "log file deleted before it was archived",
                    path=str(file.path),
                    forced=force,
                    archived_offset=archived_offset,
                    files=self.files_deleted_unarchived,
                )

        self._note_doubt(by_clock_s - witnessed_s if is_doubtful else None)

    def _note_doubt(self, ahead_s: float | None) -> None:
        """Say, or not any more, that files stay because the clock is `ahead_s` beyond its witness."""
        if ahead_s is None:
            self.doubt = ""
            return
        self.doubt = (
            f"the clock is {ahead_s / 3600:,.1f} h beyond the log's last write and the time since the start: "
            "files that are old by the clock alone stay; check the clock"
        )
        if self._doubt_line.count():
            log.error("log files are not deleted", reason=self.doubt)

    async def clean(self) -> None:
        """Delete queue and index files of deleted log files, in slices between which other tasks run; then
        call `on_cleaned`.

        If it is cancelled or the disk refuses, the next call does the rest.
        """
        min_offset = self._log.min_offset
        if min_offset == self._cleaned_offset:
            return
        slice_end_s = time.perf_counter() + SLICE_S
        try:
            for _ in self._on_deleted():
                if time.perf_counter() >= slice_end_s:
                    await trio.lowlevel.checkpoint()
                    slice_end_s = time.perf_counter() + SLICE_S
            if self._on_cleaned is not None:
                await run_in_thread(self._on_cleaned)
        except StoreError as error:
            self._report(error)
        else:
            self._cleaned_offset = min_offset

    def _report(self, error: Exception) -> None:
        self.errors += 1
        if self._error_line.count():
            log.error("old files cannot be looked at or deleted yet", reason=str(error), errors=self.errors)


def _written_s(file: MappedFile) -> float:
    """Time of the last write, seconds since 1970; 0 if an operator has deleted the file. Raises OSError."""
    try:
        return file.path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _last_write_s(files: Sequence[MappedFile], *, now_s: float) -> float:
    """The last write to files of a log, oldest first, as far as they agree; `now_s` without any.

    A file that was written to long after the one before it may have been by a clock that was wrong: it and
    those after it do not count.
    """
    latest_s: float | None = None
    for file in files:
        try:
            written_s = _written_s(file)
        except OSError:
            # The check that follows reports it.
            continue
        if latest_s is not None and written_s > latest_s + GAP_S_MAX:
            break
        latest_s = written_s if latest_s is None else max(latest_s, written_s)
    return now_s if latest_s is None else latest_s
