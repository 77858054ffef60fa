"""When old log files go, and when a full disk stops writes (spec store 5.8).

Every ten seconds the disk is looked at. Above `disk_max_used_ratio`, or in an hour of `delete_when`, files
are deleted from the oldest on whose last write is older than `file_reserved_s`; above `force_ratio` at once,
however young. At most ten go in a run, never the last, and, unless the disk is that full, none that a
connected replica has not got yet. Above `full_ratio` the log takes no puts (SERVICE_NOT_AVAILABLE); reads and
replication go on, and puts are taken again by themselves when there is space.

What the disk refuses ends nothing: it is counted, logged once a minute, and tried again at the next look.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Iterable
from datetime import datetime
from functools import partial
from pathlib import Path

import structlog
import trio
from attrs import frozen

from trioha.errors import StoreError
from trioha.net.threads import run_in_thread
from trioha.store.commit_log import CommitLog
from trioha.store.mapped_file import MappedFile

log = structlog.get_logger(__name__)

FILES_PER_RUN_MAX = 10
SLICE_S = 0.001
"""So long queues are cleaned before other tasks get a turn."""
REPORT_INTERVAL_S = 60.0
"""Errors of the disk are logged once in so long."""


@frozen
class RetentionSettings:
    """How long files are kept, and how full the disk may be."""

    file_reserved_s: float = 72 * 3600.0
    """fileReservedTime."""
    delete_when: frozenset[int] = frozenset((4,))
    """deleteWhen: hours of the local day."""
    disk_max_used_ratio: float = 0.75
    """diskMaxUsedSpaceRatio: above it, files that are old enough go at any hour."""
    force_ratio: float = 0.85
    """Above it the oldest files go, old enough or not."""
    full_ratio: float = 0.90
    """Above it puts are refused."""
    clean_forcibly: bool = True
    """cleanFileForciblyEnable: whether `force_ratio` counts."""
    interval_s: float = 10.0
    """cleanResourceInterval."""


class RetentionClock:
    """The wall clock, as far as it may be believed: files must not grow old by a jump of it.

    It is never ahead of the time that has passed since it was made. A clock that was wrong at the start and
    was set forward since keeps files for longer than they need to be kept, until the next start.
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
        self._ahead_s = wall_s() - elapsed_s()
        """What the wall clock was ahead of the monotonic one at first."""

    def now(self) -> datetime:
        """The time of day here."""
        return datetime.fromtimestamp(min(self._wall_s(), self._elapsed_s() + self._ahead_s)).astimezone()


def _since_boot_s() -> float:
    """Seconds that no one sets, those in which the machine sleeps included."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Retention:
    """Watches one log's disk."""

    def __init__(
        self,
        commit_log: CommitLog,
        settings: RetentionSettings,
        *,
        retention_floor: Callable[[], int] = lambda: 2**63 - 1,
        on_deleted: Callable[[], Iterable[None]] = lambda: (),
        used_ratio: Callable[[Path], float] | None = None,
        clock: RetentionClock | None = None,
    ) -> None:
        """`retention_floor` gives the lowest offset that a connected replica still needs; `on_deleted`
        deletes what was built from files that the log has lost, one short step for each item that it gives,
        and raises StoreError at its end if the disk refused some; `used_ratio` says how full the disk of a
        directory is, 0 to 1; `clock` what time `run` takes it to be."""
        self._log = commit_log
        self._settings = settings
        self._retention_floor = retention_floor
        self._on_deleted = on_deleted
        self._used_ratio = used_ratio or _used_ratio
        self._clock = clock or RetentionClock()
        self.errors = 0
        """How often the disk did not answer, or refused to delete."""
        self._reported_s = -math.inf
        self._cleaned_offset = commit_log.min_offset
        """Start of the log when `on_deleted` last did all of its work."""

    async def run(self) -> None:
        """Look at the disk for ever. What it refuses is tried again at the next look."""
        while True:
            try:
                ratio = await run_in_thread(partial(self._used_ratio, self._log.directory))
                self.apply(ratio, now=self._clock.now())
            except OSError as error:
                self._report(error)
            await self.clean()
            await trio.sleep(self._settings.interval_s)

    def apply(self, ratio: float, *, now: datetime) -> None:
        """Delete what may go and say whether puts are taken, for a disk that is `ratio` full.

        A file that the disk refuses to delete stays, and so do those after it; `clean` has to follow.
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
                log.info("the disk has space again: puts are taken", used=f"{ratio:.0%}")
        force = ratio > settings.force_ratio and settings.clean_forcibly
        if force or ratio > settings.disk_max_used_ratio or now.hour in settings.delete_when:
            try:
                self._delete(force=force, now_s=now.timestamp())
            except (OSError, StoreError) as error:
                self._report(error)

    def _delete(self, *, force: bool, now_s: float) -> None:
        retention_floor = self._retention_floor()
        for file in self._log.files[:-1][:FILES_PER_RUN_MAX]:
            if not force and (
                file.end_offset > retention_floor or now_s - _written_s(file) < self._settings.file_reserved_s
            ):
                break
            self._log.delete_first_file()
            log.info("log file deleted", path=str(file.path), forced=force, min_offset=self._log.min_offset)

    async def clean(self) -> None:
        """Delete what was built from files that are gone, in slices that leave the thread to others.

        Cancelled, or where the disk refuses, it leaves the rest to the next call.
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
        except StoreError as error:
            self._report(error)
        else:
            self._cleaned_offset = min_offset

    def _report(self, error: Exception) -> None:
        self.errors += 1
        now_s = trio.current_time()
        if now_s - self._reported_s >= REPORT_INTERVAL_S:
            self._reported_s = now_s
            log.error("old files cannot be looked at or deleted yet", reason=str(error), errors=self.errors)


def _written_s(file: MappedFile) -> float:
    """When the file was last written, seconds since 1970; 0 if an operator has deleted it. Raises OSError."""
    try:
        return file.path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _used_ratio(directory: Path) -> float:
    usage = shutil.disk_usage(directory)
    # What a plain user can still write counts, as `df` shows it.
    return usage.used / (usage.used + usage.free) if usage.used + usage.free else 1.0
