"""When old log files go, and when a full disk stops writes (spec store 5.8).

Every ten seconds the disk is looked at. Above `disk_max_used_ratio`, or in an hour of `delete_when`, files
are deleted from the oldest on whose last write is older than `file_reserved_s`; above `force_ratio` at once,
however young. At most ten go in a run, never the last, and, unless the disk is that full, none that a
connected replica has not got yet. Above `full_ratio` the log takes no puts (SERVICE_NOT_AVAILABLE); reads and
replication go on, and puts are taken again by themselves when there is space.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import structlog
import trio
from attrs import frozen

from trioha.store.commit_log import CommitLog

log = structlog.get_logger(__name__)

FILES_PER_RUN_MAX = 10


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


class Retention:
    """Watches one log's disk."""

    def __init__(
        self,
        commit_log: CommitLog,
        settings: RetentionSettings,
        *,
        needed_from: Callable[[], int] = lambda: 2**63 - 1,
        on_deleted: Callable[[int], None] = lambda _: None,
        used_ratio: Callable[[Path], float] | None = None,
    ) -> None:
        """`needed_from` gives the lowest offset that a connected replica still needs; `on_deleted` is told
        the log's new first offset; `used_ratio` says how full the disk of a folder is, 0 to 1."""
        self._log = commit_log
        self._settings = settings
        self._needed_from = needed_from
        self._on_deleted = on_deleted
        self._used_ratio = used_ratio or _used_ratio

    async def run(self) -> None:
        """Look at the disk for ever."""
        while True:
            ratio = await trio.to_thread.run_sync(self._used_ratio, self._log.directory)
            self.apply(ratio, now=datetime.now().astimezone())
            await trio.sleep(self._settings.interval_s)

    def apply(self, ratio: float, *, now: datetime) -> None:
        """Delete what may go and say whether puts are taken, for a disk that is `ratio` full."""
        settings = self._settings
        force = ratio > settings.force_ratio and settings.clean_forcibly
        if force or ratio > settings.disk_max_used_ratio or now.hour in settings.delete_when:
            self._delete(force=force, now_s=now.timestamp())
        is_full = ratio > settings.full_ratio
        if is_full != self._log.disk_is_full:
            self._log.disk_is_full = is_full
            if is_full:
                log.error(
                    "disk full: puts are refused", used=f"{ratio:.0%}", limit=f"{settings.full_ratio:.0%}"
                )
            else:
                log.info("the disk has space again: puts are taken", used=f"{ratio:.0%}")

    def _delete(self, *, force: bool, now_s: float) -> None:
        needed_from = self._needed_from()
        for file in self._log.files[:-1][:FILES_PER_RUN_MAX]:
            if not force:
                age_s = now_s - file.path.stat().st_mtime
                if age_s < self._settings.file_reserved_s or file.end_offset > needed_from:
                    break
            self._log.delete_first_file()
            log.info("log file deleted", path=str(file.path), forced=force, min_offset=self._log.min_offset)
            self._on_deleted(self._log.min_offset)


def _used_ratio(directory: Path) -> float:
    usage = shutil.disk_usage(directory)
    # What a plain user can still write counts, as `df` shows it.
    return usage.used / (usage.used + usage.free) if usage.used + usage.free else 1.0
