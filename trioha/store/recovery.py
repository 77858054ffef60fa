"""Find a log's end at a start (docs/protocol/store.md#start).

After a clean stop, recovery checks the records in the last 64 MiB of the last file; after an unclean one,
those from the newest file on whose first record was surely on disk: length, magic, position, and the body's
CRC. The log ends after the last whole valid record. All bytes after it are zeroed, so that no later start can
mistake stale bytes for records, and empty files after it are removed.

A power loss may keep some sectors of an append and lose others: `store.lost_sectors` finds records that are
torn so.

The checkpoint's times say what was on disk where store times rise. They may go back (`store.time_steps`), so
its logicsPhysicalOffset counts, too: everything before it was on disk. Times that lead the clock count for
nothing.

Only a torn tail may be cut: bytes that were never promised to be on disk. If records that a flush had covered
are damaged and valid ones follow them, a cut would destroy good messages, so the start is refused with the
damaged offset (RocketMQ 4.9 cuts there, 5.3 does not check).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import structlog
from attrs import evolve, frozen

from trioha.errors import StoreError
from trioha.store.checkpoint import Checkpoint
from trioha.store.commit_log import CommitLog
from trioha.store.consume_queues import QUEUES_MAX
from trioha.store.log_files import delete_files_from, list_files
from trioha.store.lost_sectors import cut_at_lost_sector
from trioha.store.mapped_file import MappedFile
from trioha.store.message_offsets import MultiDispatch
from trioha.store.record import Host
from trioha.store.record_layout import (
    BLANK,
    BLANK_BYTES,
    MAGICS,
    RECORD_BYTES_MIN,
    FaultKind,
    ScanEnd,
    claimed_bytes,
    scan_records,
    store_timestamp_ms,
)
from trioha.store.record_search import valid_record_after, valid_record_at
from trioha.store.time_steps import leads

log = structlog.get_logger(__name__)

SLACK_MS = 3000
"""A checkpoint may be this far ahead of the disk (docs/protocol/store.md#checkpoint)."""
_CHUNK_BYTES = 1 << 20
_FOR_EVER_MS = (1 << 63) - 1
_ALWAYS_MS = -(1 << 63)
CHECKED_BYTES = 64 << 20
"""So much of the log's end is checked after a clean stop, at most what is in the last file."""
_LOST_SECTOR = "a sector with its topic or properties was not written"


@frozen
class Recovered:
    """Result of a recovery."""

    records: int
    end_offset: int
    cut_bytes: int
    """Bytes after the end that were not zero before."""
    cut_reason: str
    """Why the first record after the end was not accepted; empty if there was none."""


@frozen
class Flushed:
    """What of a log was on disk when its store was used last, as far as that is known."""

    until_ms: int
    """A record was if the one before it was stored earlier than this; 0 for none, in a log whose store times
    rise."""
    end_offset: int
    """Each record before it was; 0 if no offset is known."""
    is_time_wrong: bool
    """Whether the checkpoint's time leads the clock, so that `until_ms` is 0."""

    @classmethod
    def of(cls, checkpoint: Checkpoint, *, now_ms: int, clean_exit: bool) -> Flushed:
        """What a checkpoint says was flushed; all of the log after a clean stop."""
        end_offset = checkpoint.logics_physical_offset
        if clean_exit:
            return cls(until_ms=_FOR_EVER_MS, end_offset=end_offset, is_time_wrong=False)
        until_ms = checkpoint.physic_msg_timestamp_ms
        if leads(until_ms, now_ms):
            return cls(until_ms=0, end_offset=end_offset, is_time_wrong=True)
        return cls(until_ms=until_ms, end_offset=end_offset, is_time_wrong=False)

    def has(self, offset: int, *, before_ms: int) -> bool:
        """Whether the record at `offset` was; `before_ms` is the store time of the one before it."""
        return offset < self.end_offset or before_ms < self.until_ms


def open_commit_log(
    directory: Path,
    *,
    file_bytes: int,
    message_bytes_max: int,
    store_host: Host,
    clean_exit: bool,
    checkpoint: Checkpoint,
    record_near_end: int | None = None,
    cut_at: int | None = None,
    queues_max: int = QUEUES_MAX,
    multi_dispatch: MultiDispatch | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> tuple[CommitLog, Recovered]:
    """Open the log in `directory` (made if missing) and find its end. Blocks while it reads the files.

    After a clean stop the check starts at `record_near_end`, the offset of a record in the consume queues,
    instead of the last file's start: the whole file was on disk, and only the end has to be found.
    A cut at `cut_at` was begun and may have come to any point: it is completed before anything is checked.
    `on_progress(done, total)` receives the number of files checked so far, several times a second; an
    exception of it ends the opening, and a log that was closed cleanly is then as it was. The caller sets the
    log's `queue_offsets` from the consume queues. Raises StoreError for a log that cannot be opened, or must
    not be cut.
    """
    directory.mkdir(parents=True, exist_ok=True)
    if cut_at is not None:
        delete_files_from(directory, cut_at)
    files = list_files(directory, size=file_bytes)
    commit_log = CommitLog(
        directory,
        file_bytes=file_bytes,
        message_bytes_max=message_bytes_max,
        store_host=store_host,
        files=files,
        queues_max=queues_max,
        multi_dispatch=multi_dispatch,
    )
    try:
        if cut_at is not None and files and cut_at < files[-1].end_offset:
            files[-1].clear_from(max(cut_at - files[-1].start_offset, 0))
            files[-1].sync()
        recovered = _recover(
            commit_log,
            files,
            clean_exit=clean_exit,
            checkpoint=checkpoint,
            record_near_end=record_near_end,
            on_progress=on_progress or (lambda _done, _total: None),
        )
    except BaseException:
        commit_log.close()
        raise
    return commit_log, recovered


def _recover(
    commit_log: CommitLog,
    files: list[MappedFile],
    *,
    clean_exit: bool,
    checkpoint: Checkpoint,
    record_near_end: int | None,
    on_progress: Callable[[int, int], None],
) -> Recovered:
    """Find the end of a log that has just been opened, and cut it there; `files` is the log's own list."""
    if not files:
        return Recovered(records=0, end_offset=0, cut_bytes=0, cut_reason="")
    records = 0
    last_store_timestamp_ms = 0
    # Once a store time is later than the checkpoint's, no record counts as flushed by its time.
    latest_ms = 0
    flushed = Flushed.of(checkpoint, now_ms=commit_log.now_ms(), clean_exit=clean_exit)
    first = _first_to_scan(files, flushed)
    for index, file in enumerate(files[first:], first):

        def on_chunk(done: int = index) -> None:
            on_progress(done, len(files))

        end, reason = _scan_file(
            commit_log,
            file,
            at=_record_in(file, record_near_end) if clean_exit else 0,
            last_store_timestamp_ms=latest_ms,
            flushed=flushed,
            on_chunk=on_chunk,
        )
        records += end.records
        if end.records:
            last_store_timestamp_ms = end.last_store_timestamp_ms
            latest_ms = max(latest_ms, last_store_timestamp_ms)
        on_progress(index + 1, len(files))
        if end.at < file.size and not (end.blank and _blank_bytes(file, end.at) == file.size - end.at):
            end_offset = file.start_offset + end.at
            if not reason:
                reason = end.fault.reason if end.fault else "a blank that does not reach the end of its file"
            if flushed.has(end_offset, before_ms=latest_ms):
                # An older one is from before an earlier cut, since RocketMQ zeroes nothing.
                leads_clock = leads(latest_ms, commit_log.now_ms())
                _refuse_to_cut_flushed_records(
                    files[index:],
                    end_offset=end_offset,
                    reason=reason,
                    stored_from_ms=_ALWAYS_MS if leads_clock else latest_ms,
                    flushed=flushed,
                    on_chunk=on_chunk,
                )
            cut_bytes = _cut(commit_log, files, index=index, at=end.at)
            break
    else:
        end_offset = files[-1].end_offset
        cut_bytes, reason = 0, ""
    commit_log.last_store_timestamp_ms = last_store_timestamp_ms
    if not clean_exit:
        # Writes of a killed process are in the page cache; after this sync they count as flushed.
        for file in commit_log.files:
            file.sync()
            on_progress(len(files), len(files))
    commit_log.appended.move_to(end_offset)
    commit_log.flushed.move_to(end_offset)
    commit_log.hold_last_file()
    if cut_bytes:
        log.warning(
            "commit log cut to its last whole record", end_offset=end_offset, reason=reason, bytes=cut_bytes
        )
    return Recovered(
        records=records, end_offset=end_offset, cut_bytes=cut_bytes, cut_reason=reason if cut_bytes else ""
    )


def _first_to_scan(files: list[MappedFile], flushed: Flushed) -> int:
    """Index of the file to start with: all records before it were on disk when the store was used last.

    After a clean stop that is the last file with records: its end is the log's. After an unclean one it is
    the newest file whose first record was stored 3 s or more before the checkpoint's time, and that starts at
    or before its offset. Of times that lead the clock, and without an offset, nothing counts.
    """
    is_all = flushed.until_ms == _FOR_EVER_MS
    file = newest_file_stored_by(files, flushed.until_ms if is_all else flushed.until_ms - SLACK_MS)
    first = 0 if file is None else files.index(file)
    if is_all or not flushed.end_offset or flushed.end_offset < files[0].start_offset:
        return first
    by_offset = max(
        (index for index, file in enumerate(files) if file.start_offset <= flushed.end_offset), default=0
    )
    return by_offset if flushed.is_time_wrong else min(first, by_offset)


def newest_file_stored_by(files: Sequence[MappedFile], safe_ms: int) -> MappedFile | None:
    """The newest file whose first record was stored by `safe_ms`, None if none was.

    See docs/protocol/store.md#end-of-the-log.
    """
    return next((file for file in reversed(files) if 0 < _first_stored_ms(file) <= safe_ms), None)


def stored_before_files_after(files: Sequence[MappedFile], offset: int) -> int:
    """The latest time, ms, with which `newest_file_stored_by` gives no file that begins after `offset`."""
    times_ms = (_first_stored_ms(file) for file in files if file.start_offset > offset)
    return min((time_ms for time_ms in times_ms if time_ms > 0), default=_FOR_EVER_MS) - 1


def _first_stored_ms(file: MappedFile) -> int:
    """When the file's first record was stored, 0 if no record is there or it cannot be read."""
    try:
        view = file.read(0, min(RECORD_BYTES_MIN, file.size))
    except StoreError as error:
        log.warning("a log file cannot be read, its time is not known", reason=str(error))
        return 0
    if len(view) < RECORD_BYTES_MIN or BLANK.unpack_from(view)[1] not in MAGICS:
        return 0
    return store_timestamp_ms(view, 0)


def _record_in(file: MappedFile, offset: int | None) -> int:
    """Index in the file of the valid record at `offset`; 0 if there is none."""
    if offset is None or not file.start_offset < offset < file.end_offset:
        return 0
    at = offset - file.start_offset
    return 0 if valid_record_at(file, at) is None else at


def _blank_bytes(file: MappedFile, at: int) -> int:
    """Length that the blank at index `at` claims."""
    return claimed_bytes(file.read(at, at + BLANK_BYTES), 0, BLANK_BYTES)


def _scan_file(
    commit_log: CommitLog,
    file: MappedFile,
    *,
    at: int,
    last_store_timestamp_ms: int,
    flushed: Flushed,
    on_chunk: Callable[[], None],
) -> tuple[ScanEnd, str]:
    """Check a file's records from index `at` on, and note in the log where some of them start.

    `last_store_timestamp_ms` is that of the record before the file. Also returns why the record at the end
    was not accepted, if it is none of the faults of `ScanEnd`. `on_chunk` is called for each MiB or so.
    """
    records = 0
    last_ms = last_store_timestamp_ms
    chunk_bytes = _CHUNK_BYTES
    while True:
        on_chunk()
        view = file.read(at, min(at + chunk_bytes, file.size))
        end = scan_records(view, 0, len(view), file.start_offset + at)
        reason = ""
        if end.records and flushed.until_ms < _FOR_EVER_MS:
            torn = cut_at_lost_sector(file, at, end, last_store_timestamp_ms=last_ms, is_flushed=flushed.has)
            if torn is not None:
                end, reason = torn, _LOST_SECTOR
        is_at_end = not end.records
        if end.records:
            commit_log.starts.note(file.start_offset + at)
            at += end.at
            records += end.records
            last_ms = end.last_store_timestamp_ms
            chunk_bytes = _CHUNK_BYTES
        elif (
            end.fault is not None
            and end.fault.kind is FaultKind.TRUNCATED
            and len(view) < end.fault.found <= file.size - at
        ):
            # It reaches beyond what was read.
            chunk_bytes = end.fault.found
            is_at_end = False
        if reason or at == file.size or is_at_end:
            fault = end.fault and evolve(end.fault, bytes_left=file.size - at)
            last_ms = last_ms if records else 0
            return evolve(end, at=at, records=records, fault=fault, last_store_timestamp_ms=last_ms), reason


def _refuse_to_cut_flushed_records(
    files: list[MappedFile],
    *,
    end_offset: int,
    reason: str,
    stored_from_ms: int,
    flushed: Flushed,
    on_chunk: Callable[[], None],
) -> None:
    """Raise StoreError if valid records follow the damaged one, which was on disk already.

    Stored from a time on, or before the checkpoint's offset.
    """
    following = valid_record_after(
        files,
        end_offset,
        stored_from_ms=stored_from_ms,
        flushed_offset=flushed.end_offset,
        on_chunk=on_chunk,
    )
    if following is not None:
        raise StoreError(
            f"damaged record ({reason}), but valid ones follow at {following}",
            path=files[0].path,
            offset=end_offset,
            hint="nothing was cut; restore the store from a replica, or move the files from here on aside",
        )


def _cut(commit_log: CommitLog, files: list[MappedFile], *, index: int, at: int) -> int:
    """Zero the file with that index from `at` on, and remove later files; returns the bytes that were cut."""
    cut_bytes = 0
    for file in files[index + 1 :]:
        cut_bytes += file.used_bytes()
        file.remove()
    del files[index + 1 :]
    file = files[index]
    used = file.clear_from(at)
    if used:
        file.sync()
    if at == 0 and index > 0:
        # An empty file after full ones was preallocated; the log ends with the file before it.
        files.pop().remove()
    assert commit_log.files == tuple(files)
    return cut_bytes + used
