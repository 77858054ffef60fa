"""Making a store from an archive: the log up to a point, and the config files as of that moment.

A restore decides first where the restored log ends, and writes that into a marker file in the new store's
commit log. Each log file is written without a name, record by record checked, synced, and then gets its name:
a file with a name is whole. So a restore that was interrupted keeps those files and writes the others again.
The marker is deleted after everything else is on disk. As long as it is there, neither trioha nor RocketMQ
opens the store: RocketMQ refuses a commit log folder with a file of another length.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final, NoReturn, Protocol, TypeVar

from attrs import asdict, field, frozen

from trioha.archive.bounds import FILE_BYTES
from trioha.archive.checked_log import Extent, checked_extents, whole_records
from trioha.archive.errors import ArchiveError, MissingObjectError
from trioha.archive.fetching import Fetcher
from trioha.archive.heads import read_head
from trioha.archive.layout import Generation, LogObject, MetadataObject
from trioha.archive.queue_ends import find_queue_ends
from trioha.archive.reader import ArchiveReader, Selection
from trioha.errors import StoreError
from trioha.numbers import NATURAL64, parse_int
from trioha.store.checkpoint import Checkpoint
from trioha.store.lock import RESTORE_MARKER, StoreLock
from trioha.store.mapped_file import DISK_FULL, create_atomically, file_name, reserve
from trioha.store.message_offsets import QueueKey
from trioha.store.opening import open_store
from trioha.store.record import Host
from trioha.store.record_layout import scan_records, store_timestamp_ms
from trioha.store.store_settings import StoreSettings
from trioha.store.syncing import sync_data, sync_directory, sync_whole
from trioha.store.time_steps import LEAD_MS_MAX

T = TypeVar("T")

COMMIT_LOG: Final = "commitlog"
CONFIG: Final = "config"
_MARKER_FORMAT: Final = "trioha-restore"
_HEADS_TRIED: Final = 5
_READ_BYTES: Final = 1 << 20
_DERIVED: Final = ("consumequeue", "batchconsumequeue", "index", "abort", "checkpoint", "trioha-queues.json")
"""What a restore that was interrupted may have begun, beside log and config."""
_CONFIG_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}")
_NOT_RESTORED: Final = frozenset(("timercheck",))
"""Positions in RocketMQ's timer log, which no archive has: the broker builds it again from its topic."""

Progress = Callable[[str, int, int], None]
"""`on_progress(what, done, total)`: bytes of the log."""


@frozen(kw_only=True)
class Target:
    """Which range of a generation's log is restored; everything by default."""

    to_offset: int | None = None
    """Records that end at or before this offset."""
    to_ms: int | None = None
    """Records before the first one that was stored after this time, ms since 1970."""


@frozen(kw_only=True)
class Plan:
    """What a restore writes: decided once, also for the runs that resume it."""

    url: str
    cluster_name: str
    broker_name: str
    generation: str
    file_bytes: int
    target: Target
    first_offset: int
    """Start of the first log file."""
    end_offset: int
    """End of the restored log: that of a record, or of a blank."""

    @property
    def log_bytes(self) -> int:
        """Size of the log to be restored."""
        return self.end_offset - self.first_offset

    @property
    def files(self) -> range:
        """Start offsets of the log files."""
        return range(self.first_offset, self.end_offset, self.file_bytes)


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
                    hint=_hint(error),
                ) from error

    # -- decisions ------------------------------------------------------------------------------------------

    def _begin(self, target: Target, *, generation: str | None, stack: ExitStack) -> Plan:
        """Lock the folder and make, or read, its marker. Nothing is written before the archive was read."""
        self._check_folder()
        known = self._read_marker()
        if known is None:
            plan = self._with_newest_head(lambda: self._decide(target, generation))
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
        _write_file(self._marker, _encode(plan))
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
            return _decode(self._marker.read_bytes())
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise StoreError(
                f"is not the marker of a restore: {error}", path=self._marker, hint="give another folder"
            ) from error

    def _check_same(self, known: Plan, target: Target, generation: str | None) -> None:
        head = self._reader.head
        mine = (_trimmed(self._reader.folder.url), head.cluster_name, head.broker_name)
        theirs = (known.url, known.cluster_name, known.broker_name)
        of_generation = known.generation if generation is None else self._reader.generation(generation).id
        if mine != theirs or known.target != target or known.generation != of_generation:
            raise StoreError(
                f"another restore into this folder was interrupted: {known.url}, generation"
                f" {known.generation}, {_described(known.target)}",
                path=self.into,
                hint="complete that one, or give another folder",
            )

    def _decide(self, target: Target, generation_id: str | None) -> Plan:
        generation = self._reader.generation(generation_id)
        file_bytes = generation.file_bytes
        url = self._reader.folder.url
        # A store's log begins with a file: one whose first records are not archived any more is left out.
        first_offset = -(-generation.first_offset // file_bytes) * file_bytes
        end_offset = self._end_offset(generation, target)
        if end_offset <= first_offset:
            what = {
                (False, False): "nothing is archived yet",
                (True, False): f"no record ends at or before offset {target.to_offset}",
                (False, True): f"no record was stored by {target.to_ms} ms",
            }[target.to_offset is not None, target.to_ms is not None]
            raise ArchiveError(
                f"{what}: generation {generation.id} has whole log files from offset {first_offset} on",
                url=url,
                hint="trioha restore URL --list shows what there is",
            )
        return Plan(
            url=_trimmed(url),
            cluster_name=self._reader.head.cluster_name,
            broker_name=self._reader.head.broker_name,
            generation=generation.id,
            file_bytes=file_bytes,
            target=target,
            first_offset=first_offset,
            end_offset=end_offset,
        )

    def _end_offset(self, generation: Generation, target: Target) -> int:
        """Where the log of `target` ends. Reads the one object that the end is in."""
        assert target.to_offset is None or target.to_ms is None, "a target is an offset or a time"
        if target.to_ms is not None:
            return self._first_stored_after(generation, target.to_ms)
        end_offset = generation.end_offset
        if target.to_offset is None:
            return end_offset
        if target.to_offset > end_offset:
            raise ArchiveError(
                f"generation {generation.id} ends at offset {end_offset}, before {target.to_offset}",
                url=self._reader.folder.url,
                hint="--latest restores all of it",
            )
        at = target.to_offset
        for one in self._reader.objects(generation, Selection(first_offset=at - 1, end_offset=at)):
            if one.end_offset == at:
                return at
            for extent in self._extents(one, generation.file_bytes):
                if extent.is_blank:
                    return extent.offset
                if extent.end_offset > at:
                    found = scan_records(extent.data, 0, max(at - extent.offset, 0), extent.offset)
                    return extent.offset + found.at
        return generation.first_offset

    def _first_stored_after(self, generation: Generation, time_ms: int) -> int:
        """Offset of the first record stored after `time_ms`; the end if there is none.

        One that was stored after the present, as it says, is not looked at: a clock was wrong.
        """
        for one in self._reader.objects(generation, Selection(from_ms=time_ms + 1)):
            for extent in self._extents(one, generation.file_bytes):
                if extent.is_blank:
                    continue
                found: list[int] = []

                def look(
                    at: int, _size: int, view: memoryview = extent.data, found: list[int] = found
                ) -> None:
                    if not found and time_ms < store_timestamp_ms(view, at) <= self._latest_ms:
                        found.append(at)

                scan_records(extent.data, 0, len(extent.data), extent.offset, check_crc=False, on_record=look)
                if found:
                    return extent.offset + found[0]
        return generation.end_offset

    def _extents(self, one: LogObject, file_bytes: int) -> Iterator[Extent]:
        return checked_extents(self._reader.folder, one, file_bytes=file_bytes)

    def _with_newest_head(self, action: Callable[[], T]) -> T:
        """What `action` returns; again with a newer head if an object was deleted meanwhile."""
        for _ in range(_HEADS_TRIED):
            try:
                return action()
            except MissingObjectError:
                head = read_head(self._reader.folder)
                if head is None or head.number == self._reader.head.number:
                    raise
                self._reader = ArchiveReader(self._reader.folder, head)
        return action()

    # -- writing --------------------------------------------------------------------------------------------

    def _run(self, plan: Plan, *, build: bool, on_progress: Progress, stack: ExitStack) -> Restored:
        self._clear_begun()
        self._check_space(plan)
        fetcher = stack.enter_context(Fetcher(self._reader.folder))
        syncer = stack.enter_context(ThreadPoolExecutor(1, thread_name_prefix="sync"))
        records = 0
        kept = 0
        for start in plan.files:
            done = start - plan.first_offset
            on_progress("restoring the log", done, plan.log_bytes)
            if (self._log_folder / file_name(start)).exists():
                kept += 1
                continue
            write = partial(
                self._write_log_file, plan, start, fetcher=fetcher, syncer=syncer, on_progress=on_progress
            )
            records += self._with_newest_head(write)
        on_progress("restoring the log", plan.log_bytes, plan.log_bytes)
        last_store_ms = self._with_newest_head(lambda: self._last_store_ms(plan))
        metadata = self._with_newest_head(lambda: self._metadata_of(plan))
        clamped = self._clamp(
            metadata.files,
            lambda wanted: self._with_newest_head(lambda: find_queue_ends(self._stretches(plan), wanted)),
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

    def _write_log_file(
        self,
        plan: Plan,
        start: int,
        *,
        fetcher: Fetcher,
        syncer: ThreadPoolExecutor,
        on_progress: Progress,
    ) -> int:
        """Write one log file and put it on disk; returns its number of records."""
        records = 0

        def fill(fd: int) -> None:
            nonlocal records
            reserve(fd, plan.file_bytes)
            synced: Future[None] | None = None
            try:
                for extent in self._log_extents(plan, start, fetcher):
                    _write_all(fd, extent.data, at=extent.offset - start)
                    records += extent.records
                    on_progress("restoring the log", extent.end_offset - plan.first_offset, plan.log_bytes)
                    if synced is None or synced.done():
                        if synced is not None:
                            synced.result()
                        # The disk writes while more is fetched.
                        synced = syncer.submit(sync_data, fd)
            finally:
                if synced is not None:
                    synced.result()
            sync_whole(fd)

        path = self._log_folder / file_name(start)
        try:
            os.close(create_atomically(path, fill))
        except OSError as error:
            raise StoreError(
                f"cannot be written: {error.strerror or error}", path=path, offset=start, hint=_hint(error)
            ) from error
        sync_directory(self._log_folder)
        return records

    def _log_extents(self, plan: Plan, start: int, fetcher: Fetcher) -> Iterator[Extent]:
        """The log's bytes of the file at `start`, up to the plan's end."""
        generation = self._reader.generation(plan.generation)
        end_offset = min(start + plan.file_bytes, plan.end_offset)
        offset = start
        objects = self._reader.objects(generation, Selection(first_offset=start, end_offset=end_offset))
        for one, pieces in fetcher.fetch(objects):
            for extent in checked_extents(
                self._reader.folder, one, file_bytes=plan.file_bytes, pieces=pieces
            ):
                shown = self._cut(extent, plan, one)
                if shown is None:
                    # The rest of the object is read for its CRC.
                    continue
                if shown.offset != offset:
                    self._refuse(one, f"begins at {shown.offset}, the log is restored up to {offset}")
                offset = shown.end_offset
                yield shown
        if offset != end_offset:
            raise ArchiveError(
                f"generation {plan.generation} has nothing at offset {offset}", url=self._reader.folder.url
            )

    def _cut(self, extent: Extent, plan: Plan, one: LogObject) -> Extent | None:
        """What of an extent is before the plan's end; None if nothing is."""
        if extent.offset >= plan.end_offset:
            return None
        if extent.end_offset > plan.end_offset:
            size = plan.end_offset - extent.offset
            found = scan_records(extent.data, 0, size, extent.offset, check_crc=False)
            if extent.is_blank or found.at != size:
                self._refuse(one, f"has no border of records at offset {plan.end_offset}")
            extent = Extent(
                offset=extent.offset,
                data=extent.data[:size],
                records=found.records,
                last_store_ms=found.last_store_timestamp_ms,
            )
        to_ms = plan.target.to_ms
        if to_ms is not None and to_ms < extent.last_store_ms <= self._latest_ms:
            self._refuse(
                one,
                f"has a record stored at {extent.last_store_ms} ms before offset {extent.end_offset}:"
                f" its statistics say that it has none after {to_ms} ms",
            )
        return extent

    def _refuse(self, one: LogObject, reason: str) -> NoReturn:
        raise ArchiveError(
            reason, url=self._reader.folder.url, key=one.key, hint="trioha verify checks the whole archive"
        )

    # -- what the restored log has --------------------------------------------------------------------------

    def _stretches(self, plan: Plan) -> Iterator[tuple[tuple[str, ...] | None, Iterator[Extent]]]:
        """The restored log, object by object from its end, each with the topics of its records."""
        selection = Selection(first_offset=plan.first_offset, end_offset=plan.end_offset)
        known: dict[tuple[str, ...] | None, tuple[str, ...] | None] = {}
        # Objects mostly have the same topics: each list is kept once.
        listed = [
            (one.first_offset, min(one.end_offset, plan.end_offset), known.setdefault(one.topics, one.topics))
            for one in self._reader.objects(self._reader.generation(plan.generation), selection)
        ]
        for first_offset, end_offset, topics in reversed(listed):
            if end_offset > plan.first_offset:
                yield topics, self._local_extents(plan, first_offset, end_offset)

    def _local_extents(self, plan: Plan, first_offset: int, end_offset: int) -> Iterator[Extent]:
        """Records of a restored log file."""
        start = first_offset - first_offset % plan.file_bytes
        path = self._log_folder / file_name(start)

        def pieces(fd: int) -> Iterator[bytes]:
            for offset in range(first_offset, end_offset, _READ_BYTES):
                yield os.pread(fd, min(_READ_BYTES, end_offset - offset), offset - start)

        def refuse(offset: int, reason: str) -> NoReturn:
            raise StoreError(f"was restored, and is damaged now: {reason}", path=path, offset=offset)

        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            yield from whole_records(
                pieces(fd),
                first_offset=first_offset,
                end_offset=end_offset,
                file_bytes=plan.file_bytes,
                refuse=refuse,
            )
        finally:
            os.close(fd)

    def _last_store_ms(self, plan: Plan) -> int:
        for _, extents in self._stretches(plan):
            if found := [extent.last_store_ms for extent in extents if extent.records]:
                return found[-1]
        return 0

    # -- config files ---------------------------------------------------------------------------------------

    def _metadata_of(self, plan: Plan) -> _Metadata:
        """The newest metadata of the target's moment; the oldest one if none is so old."""
        found = None
        is_later = False
        for one in self._reader.metadata(self._reader.generation(plan.generation)):
            found = one
            to_ms = plan.target.to_ms
            is_later = one.offset > plan.end_offset or (to_ms is not None and one.taken_ms > to_ms)
            if not is_later:
                break
        if found is None:
            return _Metadata()
        files = self._reader.metadata_files(found).files
        for name in files:
            if not _CONFIG_NAME.fullmatch(name):
                raise ArchiveError(
                    f"{name[:100]!r} cannot be a config file", url=self._reader.folder.url, key=found.key
                )
        files = {name: text for name, text in files.items() if name not in _NOT_RESTORED}
        return _Metadata(listed=found, is_later=is_later, files=files)

    def _write_config(self, files: Mapping[str, str]) -> None:
        folder = self.into / CONFIG
        folder.mkdir()
        for name, text in files.items():
            _write_file(folder / name, text.encode("utf-8", "surrogatepass"))
        sync_directory(folder)

    # -- queues and index -----------------------------------------------------------------------------------

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


def _trimmed(url: str) -> str:
    return url.rstrip("/")


def _described(target: Target) -> str:
    if target.to_offset is not None:
        return f"to offset {target.to_offset}"
    return "to its end" if target.to_ms is None else f"to {target.to_ms} ms"


def _hint(error: OSError) -> str:
    what = "free disk space" if error.errno in DISK_FULL else "check the disk and the permissions"
    return f"{what}, then run the same command again: it keeps what is whole"


def _write_all(fd: int, data: memoryview, *, at: int) -> None:
    while data:
        written = os.pwrite(fd, data, at)
        data = data[written:]
        at += written


def _temporary(path: Path) -> Path:
    return path.with_name(f"{path.name}.tmp")


def _write_file(path: Path, data: bytes) -> None:
    """Write a small file and put it on disk; it has its name when it is whole. Raises OSError."""
    temporary = _temporary(path)
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        _write_all(fd, memoryview(data), at=0)
        sync_whole(fd)
    finally:
        os.close(fd)
    temporary.replace(path)


def _encode(plan: Plan) -> bytes:
    return json.dumps({"format": _MARKER_FORMAT, "version": 1, **asdict(plan)}, indent=1).encode() + b"\n"


def _decode(data: bytes) -> Plan:
    """Raises ValueError."""
    value = json.loads(data)
    if not isinstance(value, dict) or value.pop("format", None) != _MARKER_FORMAT:
        raise ValueError(f"its format is not {_MARKER_FORMAT}")
    if value.pop("version", None) != 1:
        raise ValueError("it is of another version of trioha")
    target = value.pop("target", None)
    try:
        plan = Plan(target=Target(**target), **value)
    except TypeError as error:
        raise ValueError(str(error)) from error
    parse_int(plan.file_bytes, FILE_BYTES)
    for number in (plan.first_offset, plan.end_offset):
        parse_int(number, NATURAL64)
    return plan
