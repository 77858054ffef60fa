"""The index of a store: its files in order; new keys go to the newest (docs/protocol/store.md#index).

Files are named by their time of creation, local time, `yyyyMMddHHmmssSSS`. A record's keys are UNIQ_KEY, then
each part of KEYS, in this order; each is hashed as `topic#key`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from itertools import takewhile
from pathlib import Path

import structlog
from attrs import frozen

from trioha.errors import StoreError
from trioha.store.compiled_index import KEY_BYTES
from trioha.store.index_file import IndexFile, IndexShape, key_hash, unpack_key, unpack_keys
from trioha.store.syncing import SyncWork
from trioha.store.tags import java_hashes

log = structlog.get_logger(__name__)

FOLDER = "index"
NAME_DIGITS = 17
MESSAGES_MAX = 64
"""maxMsgsNumBatch: most messages that one query by key gives."""
_NAME_FORMAT = "%Y%m%d%H%M%S%f"
_MICROSECOND_DIGITS_CUT = 3
_FOR_EVER_MS = (1 << 63) - 1
_ALWAYS_MS = -(1 << 63)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


@frozen
class IndexCut:
    """Which files of an index have to be deleted, see `IndexService.plan_cut`."""

    first_file: int
    """Index of the first one; all later ones are deleted, too."""
    redispatch_from: int | None
    """Physical offset to dispatch the log again from; None if no file is deleted."""
    full_until_ms: int
    """The latest indexMsgTimestamp that is true without these files."""


class IndexService:
    """The index files of one store. Make it with `open`."""

    def __init__(
        self,
        directory: Path,
        shape: IndexShape,
        *,
        files: list[IndexFile],
        now_ms: Callable[[], int] = _now_ms,
    ) -> None:
        self.directory = directory
        self.shape = shape
        self._files = files
        self._now_ms = now_ms
        self._unsynced = SyncWork()
        self._last_record_keys: int | None = None if files else 0
        """Keys that the record at `end_physical_offset` has in the index; None if that is not known."""

    @classmethod
    def open(
        cls,
        root: Path,
        shape: IndexShape | None = None,
        *,
        now_ms: Callable[[], int] = _now_ms,
    ) -> IndexService:
        """Open the index below the store root. Raises StoreError for a file that cannot be used."""
        directory = root / FOLDER
        shape = shape or IndexShape()
        files: list[IndexFile] = []
        try:
            paths = sorted(
                path
                for path in directory.iterdir()
                if len(path.name) == NAME_DIGITS and path.name.isdecimal() and path.is_file()
            )
        except FileNotFoundError:
            paths = []
        except OSError as error:
            raise StoreError(f"cannot be read: {error.strerror}", path=directory) from error
        try:
            for path in paths:
                if path.stat().st_size == 0:
                    # The process ended while it was being made.
                    path.unlink()
                    continue
                files.append(IndexFile.open(path, shape))
        except StoreError:
            for file in files:
                file.close()
            raise
        return cls(directory, shape, files=files, now_ms=now_ms)

    def plan_cut(self, end_offset: int, *, safe_until_ms: int | None = None) -> IndexCut:
        """What has to be deleted when the log ends at `end_offset`: files with keys of records from there on.

        (RocketMQ keeps such entries, and never indexes the records that are stored there next.)
        After an unclean stop `safe_until_ms` is the checkpoint's indexMsgTimestamp: files that are not full,
        or end later, may be partly on disk, so they have to be deleted, too
        (docs/protocol/store.md#order-of-a-start).
        """
        files = self._files
        first = 0
        while first < len(files) and _is_kept(files[first], end_offset, safe_until_ms):
            first += 1
        full_until_ms = _FOR_EVER_MS
        if any(file.is_full for file in files[first:]):
            full_until_ms = _full_until_ms(files[:first])
        return IndexCut(
            first_file=first,
            redispatch_from=files[first].begin_physical_offset if first < len(files) else None,
            full_until_ms=full_until_ms,
        )

    def cut(self, plan: IndexCut) -> None:
        """Delete the files of a plan, which has just been made. Raises StoreError.

        The files that are built in their place may be lost in a power cut. So first the checkpoint on disk
        has to let the next start dispatch from `redispatch_from`: without files nothing else tells it to.
        """
        # The last file first, so that an error leaves no hole.
        for file in reversed(self._files[plan.first_file :]):
            log.info("index file is built again", file=file.path.name)
            self._unsynced.forget(file.path)
            file.remove()
            self._files.pop()
            self._last_record_keys = None if self._files else 0
            # A power cut must not bring it back.
            self._unsynced.add(self.directory)

    def destroy(self) -> None:
        """Delete all files. Raises StoreError."""
        self.cut(self.plan_cut(0))

    @property
    def files(self) -> tuple[IndexFile, ...]:
        """The files, oldest first."""
        return tuple(self._files)

    @property
    def end_physical_offset(self) -> int:
        """Start of the last record that was indexed, 0 for none: all before it are.

        See docs/protocol/store.md#index.
        """
        return self._files[-1].end_physical_offset if self._files else 0

    # -- writing ---------------------------------------------------------------------------------------

    @property
    def end_timestamp_ms(self) -> int:
        """storeTimestamp of the last record that was indexed, 0 if none was."""
        return self._files[-1].end_timestamp_ms if self._files else 0

    def put(self, keys: bytes, *, last_record_offset: int) -> None:
        """Add keys of records in log order, at or after `end_physical_offset`.

        A column of `KEY_BYTES` for each, with the hash of `topic#key` as `tags.java_hashes` computes it.
        `last_record_offset` is that of the last record that was walked, with keys or without. Raises
        StoreError if the disk refuses; `end_physical_offset` shows then how far it came, and the same records
        can be put again.
        """
        end_before = self.end_physical_offset
        if keys and self._files and unpack_key(keys, 0)[1] == end_before:
            keys = self._not_yet_in(keys, end_before)
        # Records that come again are looked for in the last file: they need no new one.
        file = self._files[-1] if self._files else self._current()
        done = 0
        while done < len(keys):
            file = self._current()
            stop = min(len(keys), done + file.room * KEY_BYTES)
            file.put(keys, done, stop)
            self._unsynced.add(file.path)
            last = file.end_physical_offset
            first_at = stop - KEY_BYTES
            while first_at > done and unpack_key(keys, first_at - KEY_BYTES)[1] == last:
                first_at -= KEY_BYTES
            self._count_last_keys(
                (stop - first_at) // KEY_BYTES, is_new=first_at > done or last != end_before
            )
            end_before = last
            done = stop
        self._start_next_if_full(file, last_record_offset)

    def _start_next_if_full(self, file: IndexFile, last_record_offset: int) -> None:
        """Make the file after `file`, the last one written, if the broker has it for the last record.

        The broker makes the next file for any record after a full one, whether it has keys or not.
        """
        if file.is_full and file.end_physical_offset < last_record_offset:
            self._current()

    def _count_last_keys(self, keys: int, *, is_new: bool) -> None:
        """Update `_last_record_keys` for added keys, of which the last record has that many.

        `is_new` unless all of them are of the record that was the last one before.
        """
        if is_new:
            self._last_record_keys = keys
        elif self._last_record_keys is not None:
            self._last_record_keys += keys

    def _not_yet_in(self, keys: bytes, again: int) -> bytes:
        """The keys that the index lacks, when the record at `again`, the last one indexed, comes again.

        An earlier call wrote the first keys of the record before the disk refused the others, or a stop has
        left only some of them (the broker puts all of them again). These may be in several files: the last
        full ones, and an unused one after them.
        """
        if self._last_record_keys is not None:
            return keys[self._last_record_keys * KEY_BYTES :]
        ends_here = list(
            takewhile(lambda file: file.is_empty or file.end_physical_offset == again, reversed(self._files))
        )
        return b"".join(
            keys[number * KEY_BYTES : (number + 1) * KEY_BYTES]
            for number, (hashed, offset, _) in enumerate(unpack_keys(keys))
            if offset != again
            or all(
                next(file.find(key_hash(hashed), begin_ms=0, end_ms=_FOR_EVER_MS), -1) != again
                for file in ends_here
            )
        )

    def _current(self) -> IndexFile:
        """The file for the next key, made if there is none or the last one is full. Raises StoreError."""
        last = self._files[-1] if self._files else None
        if last is not None and not last.is_full:
            return last
        if last is not None:
            last.release()
        file = IndexFile.create(
            self.directory / self._next_name(),
            self.shape,
            end_timestamp_ms=0 if last is None else last.end_timestamp_ms,
            end_physical_offset=0 if last is None else last.end_physical_offset,
        )
        if last is not None:
            last.close()
        self._files.append(file)
        # A file survives a power cut only if its directory's entry is on disk.
        for path in (file.path, self.directory, self.directory.parent):
            self._unsynced.add(path)
        return file

    def _next_name(self) -> str:
        """Local time now; 1 ms after the last file's name if the clock is not later than that."""
        moment = datetime.fromtimestamp(self._now_ms() / 1000)  # noqa: DTZ006 names are local time
        name = moment.strftime(_NAME_FORMAT)[:-_MICROSECOND_DIGITS_CUT]
        last = self._files[-1].path.name if self._files else ""
        return name if name > last else _name_after(last)

    # -- reading ---------------------------------------------------------------------------------------

    def candidates(
        self, topic: str, key: str, *, begin_ms: int = _ALWAYS_MS, end_ms: int = _FOR_EVER_MS
    ) -> Iterator[int]:
        """Physical offsets of records that may have this key, newest first, each once.

        See docs/protocol/store.md#index.

        Raises StoreError for a page of the index that the disk does not give.

        Other keys can have the same hash: compare the records. Where store times go back, `begin_ms` and
        `end_ms` would leave out records that were stored between them.
        """
        hashed = key_hash(java_hashes([f"{topic}#{key}".encode("utf-8", "surrogatepass")])[0])
        given: set[int] = set()
        for file in reversed(self._files):
            if file.overlaps(begin_ms, end_ms):
                for physical_offset in file.find(hashed, begin_ms=begin_ms, end_ms=end_ms):
                    if physical_offset not in given:
                        given.add(physical_offset)
                        yield physical_offset
            if file.begin_timestamp_ms < begin_ms:
                break

    # -- deletion of old log files, end ------------------------------------------------------------------

    def delete_before(self, log_min_offset: int) -> int:
        """Delete files with only keys of deleted records, never the newest; returns how many."""
        deleted = 0
        while len(self._files) > 1 and self._files[0].end_physical_offset < log_min_offset:
            file = self._files[0]
            file.remove()
            self._unsynced.forget(file.path)
            del self._files[0]
            deleted += 1
        return deleted

    @property
    def full_until_ms(self) -> int:
        """End time of the last full file, 0 without one: the checkpoint's indexMsgTimestamp after a sync."""
        return _full_until_ms(self._files)

    def sync_work(self) -> SyncWork:
        """All changes since the last call, for a worker thread to put on disk."""
        work, self._unsynced = self._unsynced, SyncWork()
        work.share({file.path: file.descriptor for file in self._files if file.descriptor is not None})
        return work

    def give_back(self, work: SyncWork) -> None:
        """Sync what `work` has left with the next one."""
        self._unsynced.prepend(work)

    def close(self) -> None:
        """Close all files. Sync first."""
        for file in self._files:
            file.close()
        self._files.clear()


def _is_kept(file: IndexFile, end_offset: int, safe_until_ms: int | None) -> bool:
    """Whether a file stays, see `IndexService.plan_cut`."""
    if file.end_physical_offset >= end_offset:
        return False
    return safe_until_ms is None or (file.is_full and file.end_timestamp_ms <= safe_until_ms)


def _full_until_ms(files: Sequence[IndexFile]) -> int:
    """End time of the last full file, 0 without one."""
    return max((file.end_timestamp_ms for file in files if file.is_full), default=0)


def _name_after(last: str) -> str:
    """The name 1 ms after `last`, or the next number if `last` is not a time: only the order counts."""
    try:
        moment = datetime.strptime(last + "000", _NAME_FORMAT) + timedelta(milliseconds=1)  # noqa: DTZ007
    except (ValueError, OverflowError):
        return f"{int(last) + 1:0{NAME_DIGITS}d}"
    return moment.strftime(_NAME_FORMAT)[:-_MICROSECOND_DIGITS_CUT]
