"""Making a store from an archive: the log up to a point, and the config files as of that moment.

A restore decides first where the restored log ends, and writes that into a marker file in the new store's
commit log. A log file that has its name is whole (`restored_log`): a restore that was interrupted keeps it.
The marker is deleted after everything else is on disk. As long as it is there, neither trioha nor RocketMQ
opens the store: RocketMQ refuses a commit log folder with a file of another length.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from attrs import field, frozen

from trioha.archive.errors import ArchiveError, MissingObjectError
from trioha.archive.fetching import Fetcher
from trioha.archive.heads import read_head
from trioha.archive.layout import MetadataObject
from trioha.archive.queue_ends import find_queue_ends
from trioha.archive.reader import ArchiveReader
from trioha.archive.restore_plan import (
    Plan,
    Target,
    decode_marker,
    described,
    encode_marker,
    plan_of,
    trimmed,
)
from trioha.archive.restored_log import Progress, RestoredLog, hint_of, write_all
from trioha.errors import StoreError
from trioha.store.checkpoint import Checkpoint
from trioha.store.lock import RESTORE_MARKER, StoreLock
from trioha.store.message_offsets import QueueKey
from trioha.store.opening import open_store
from trioha.store.record import Host
from trioha.store.store_settings import StoreSettings
from trioha.store.syncing import sync_directory, sync_whole
from trioha.store.time_steps import LEAD_MS_MAX

T = TypeVar("T")

COMMIT_LOG: Final = "commitlog"
CONFIG: Final = "config"
_HEADS_TRIED: Final = 5
_DERIVED: Final = ("consumequeue", "batchconsumequeue", "index", "abort", "checkpoint", "trioha-queues.json")
"""What a restore that was interrupted may have begun, beside log and config."""
_CONFIG_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}")
_NOT_RESTORED: Final = frozenset(("timercheck",))
"""Positions in RocketMQ's timer log, which no archive has: the broker builds it again from its topic."""


class Clamped(Protocol):
    """Config files with offsets that the restored queues have; see `metadata.clamped_offsets`."""

    @property
    def files(self) -> Mapping[str, str]: ...
    @property
    def clamped(self) -> tuple[Any, ...]: ...
    @property
    def unreadable(self) -> Mapping[str, str]: ...


QueueEnds = Callable[[Collection[QueueKey]], Mapping[QueueKey, int]]
Clamp = Callable[[Mapping[str, str], QueueEnds], Clamped]


@frozen(kw_only=True)
class Restored:
    """What a restore has made."""

    plan: Plan
    records: int
    """Records that this run wrote, each checked."""
    files_kept: int
    """Log files that were whole already: from a run that was interrupted."""
    last_store_ms: int
    """Store time of the last record; 0 if there is none."""
    metadata: MetadataObject | None
    """The config files' moment; None if the archive has none."""
    is_metadata_later: bool
    """The archive has no metadata as old as the target: the oldest that it has was used."""
    config_files: tuple[str, ...]
    clamped: int
    """Offsets that were beyond the restored queues, and are at their ends now."""
    unreadable: Mapping[str, str] = field(factory=dict)
    """Why files of offsets could not be read, by name: they are as they were."""
    is_built: bool = False


@frozen(kw_only=True)
class _Metadata:
    """Config files of a moment, and where they come from; none if the archive has none."""

    listed: MetadataObject | None = None
    is_later: bool = False
    files: Mapping[str, str] = field(factory=dict)


def has_store(folder: Path) -> bool:
    """Whether a folder has a commit log that no restore has left unfinished. Blocks. Raises OSError."""
    log_folder = folder / COMMIT_LOG
    return (
        not (log_folder / RESTORE_MARKER).exists()
        and log_folder.is_dir()
        and any(path.name != _temporary(log_folder / RESTORE_MARKER).name for path in log_folder.iterdir())
    )


class Restore:
    """One restore: `run` makes the store in `into`, or completes one that was interrupted. Blocks."""

    def __init__(self, reader: ArchiveReader, into: Path, *, clamp: Clamp) -> None:
        self.into = into
        self._reader = reader
        self._clamp = clamp
        self._log_folder = into / COMMIT_LOG
        self._marker = self._log_folder / RESTORE_MARKER
        self._latest_ms = max(time.time_ns() // 1_000_000, reader.head.writer.renewed_ms) + LEAD_MS_MAX
        """No record was stored after it."""

    def run(
        self,
        target: Target,
        *,
        generation: str | None = None,
        build: bool = False,
        on_progress: Progress = lambda _what, _done, _total: None,
    ) -> Restored:
        """Restore the log up to `target`, of the newest generation by default; `build` queues and index.

        Raises ArchiveError for an archive that cannot be read or is damaged, StoreError for a folder that is
        neither empty nor has this restore's marker, and for a disk that refuses writes. What is whole stays,
        and the same call goes on with it.
        """
        with ExitStack() as stack:
            try:
                plan = self._begin(target, generation=generation, stack=stack)
                return self._run(plan, build=build, on_progress=on_progress, stack=stack)
            except OSError as error:
                raise StoreError(
                    f"cannot be written: {error.strerror or error}",
                    path=error.filename or self.into,
                    hint=hint_of(error),
                ) from error

    # -- decisions ------------------------------------------------------------------------------------------

    def _begin(self, target: Target, *, generation: str | None, stack: ExitStack) -> Plan:
        """Lock the folder and make, or read, its marker. Nothing is written before the archive was read."""
        self._check_folder()
        known = self._read_marker()
        if known is None:
            plan = self._with_newest_head(
                lambda reader: plan_of(reader, target, generation_id=generation, latest_ms=self._latest_ms)
            )
        else:
            plan = known
            self._check_same(known, target, generation)
        self._log_folder.mkdir(parents=True, exist_ok=True)
        lock = StoreLock(self.into)
        lock.acquire()
        stack.callback(lock.release)
        # Another process may have begun before the lock.
        self._check_folder()
        if (found := self._read_marker()) is not None and found != plan:
            raise StoreError("another restore into this folder has begun", path=self.into)
        _write_file(self._marker, encode_marker(plan))
        sync_directory(self._log_folder)
        sync_directory(self.into)
        sync_directory(self.into.parent)
        return plan

    def _check_folder(self) -> None:
        """Raises StoreError for a folder with anything that no restore has left there."""
        if not self.into.exists() or self._marker.exists():
            return
        if not self.into.is_dir():
            raise StoreError("is not a folder", path=self.into)
        for path in self.into.rglob("*"):
            if path not in {self.into / "lock", self._log_folder, _temporary(self._marker)}:
                raise StoreError(
                    "is not empty, and no restore into it was interrupted",
                    path=self.into,
                    hint=f"it has {path.relative_to(self.into)}; give an empty or a new folder",
                )

    def _read_marker(self) -> Plan | None:
        try:
            return decode_marker(self._marker.read_bytes())
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise StoreError(
                f"is not the marker of a restore: {error}", path=self._marker, hint="give another folder"
            ) from error

    def _check_same(self, known: Plan, target: Target, generation: str | None) -> None:
        head = self._reader.head
        mine = (trimmed(self._reader.folder.url), head.cluster_name, head.broker_name)
        theirs = (known.url, known.cluster_name, known.broker_name)
        of_generation = known.generation if generation is None else self._reader.generation(generation).id
        if mine != theirs or known.target != target or known.generation != of_generation:
            raise StoreError(
                f"another restore into this folder was interrupted: {known.url}, generation"
                f" {known.generation}, {described(known.target)}",
                path=self.into,
                hint="complete that one, or give another folder",
            )

    def _with_newest_head(self, action: Callable[[ArchiveReader], T]) -> T:
        """What `action` returns; again with a newer head if an object was deleted meanwhile."""
        for _ in range(_HEADS_TRIED):
            try:
                return action(self._reader)
            except MissingObjectError:
                head = read_head(self._reader.folder)
                if head is None or head.number == self._reader.head.number:
                    raise
                self._reader = ArchiveReader(self._reader.folder, head)
        return action(self._reader)

    # -- writing --------------------------------------------------------------------------------------------

    def _run(self, plan: Plan, *, build: bool, on_progress: Progress, stack: ExitStack) -> Restored:
        self._clear_begun()
        self._check_space(plan)
        log = RestoredLog(self._log_folder, plan, latest_ms=self._latest_ms)
        fetcher = stack.enter_context(Fetcher(self._reader.folder))
        syncer = stack.enter_context(ThreadPoolExecutor(1, thread_name_prefix="sync"))
        records = 0
        kept = 0
        for start in plan.files:
            done = start - plan.first_offset
            on_progress("restoring the log", done, plan.log_bytes)
            if log.has_file(start):
                kept += 1
                continue
            write = partial(
                log.write_file, start=start, fetcher=fetcher, syncer=syncer, on_progress=on_progress
            )
            records += self._with_newest_head(write)
        on_progress("restoring the log", plan.log_bytes, plan.log_bytes)
        last_store_ms = self._with_newest_head(log.last_store_ms)
        metadata = self._with_newest_head(partial(_metadata_of, plan=plan))
        clamped = self._clamp(
            metadata.files,
            lambda wanted: self._with_newest_head(
                lambda reader: find_queue_ends(log.stretches(reader), wanted)
            ),
        )
        self._write_config(clamped.files)
        _write_file(self.into / "checkpoint", Checkpoint(physic_msg_timestamp_ms=last_store_ms).encode())
        sync_directory(self.into)
        if build:
            self._build(plan, on_progress)
        self._marker.unlink()
        sync_directory(self._log_folder)
        return Restored(
            plan=plan,
            records=records,
            files_kept=kept,
            last_store_ms=last_store_ms,
            metadata=metadata.listed,
            is_metadata_later=metadata.is_later,
            config_files=tuple(sorted(clamped.files)),
            clamped=len(clamped.clamped),
            unreadable=clamped.unreadable,
            is_built=build,
        )

    def _clear_begun(self) -> None:
        """Delete what an interrupted run has left beside whole log files."""
        for name in (CONFIG, *_DERIVED):
            path = self.into / name
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        # Without nameless files, a log file that was not whole has a name here.
        for path in self.into.glob(".[0-9]*-*"):
            path.unlink()

    def _check_space(self, plan: Plan) -> None:
        """Raises StoreError if the log files that are still to be written do not fit on the disk."""
        # Nothing is done for each file of the plan before all fit: their number is what an archive says.
        names = [path.name for path in self._log_folder.iterdir()]
        missing = len(plan.files) - sum(name.isdecimal() and int(name) in plan.files for name in names)
        free = shutil.disk_usage(self.into).free
        if missing * plan.file_bytes > free:
            raise StoreError(
                f"the log needs {missing * plan.file_bytes:,} bytes, the disk has {free:,} free",
                path=self.into,
                hint="free disk space, then run the same command again: it keeps what is whole",
            )

    def _write_config(self, files: Mapping[str, str]) -> None:
        folder = self.into / CONFIG
        folder.mkdir()
        for name, text in files.items():
            _write_file(folder / name, text.encode("utf-8", "surrogatepass"))
        sync_directory(folder)

    def _build(self, plan: Plan, on_progress: Progress) -> None:
        """Build queues and index as a start does. Raises StoreError."""
        settings = StoreSettings(
            root=self.into,
            commit_log_directory=self._log_folder,
            file_bytes=plan.file_bytes,
            message_bytes_max=4 << 20,
            store_host=Host.parse("127.0.0.1", 10911),
        )
        store = open_store(settings, on_progress=on_progress, is_restoring=True)
        try:
            log = store.commit_log
            if log.max_offset != plan.end_offset or store.dispatcher.position != log.max_offset:
                raise StoreError(
                    f"queues and index could not be built beyond offset {store.dispatcher.position}",
                    path=self.into,
                    hint="run the same command again without --build: the first start builds them",
                )
        except BaseException:
            store.release()
            raise
        store.close()


def _metadata_of(reader: ArchiveReader, *, plan: Plan) -> _Metadata:
    """The newest metadata of the target's moment; the oldest one if none is so old."""
    found = None
    is_later = False
    for one in reader.metadata(reader.generation(plan.generation)):
        found = one
        to_ms = plan.target.to_ms
        is_later = one.offset > plan.end_offset or (to_ms is not None and one.taken_ms > to_ms)
        if not is_later:
            break
    if found is None:
        return _Metadata()
    files = reader.metadata_files(found).files
    for name in files:
        if not _CONFIG_NAME.fullmatch(name):
            raise ArchiveError(
                f"{name[:100]!r} cannot be a config file", url=reader.folder.url, key=found.key
            )
    files = {name: text for name, text in files.items() if name not in _NOT_RESTORED}
    return _Metadata(listed=found, is_later=is_later, files=files)


def _temporary(path: Path) -> Path:
    return path.with_name(f"{path.name}.tmp")


def _write_file(path: Path, data: bytes) -> None:
    """Write a small file and put it on disk; it has its name when it is whole. Raises OSError."""
    temporary = _temporary(path)
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        write_all(fd, memoryview(data), at=0)
        sync_whole(fd)
    finally:
        os.close(fd)
    temporary.replace(path)
