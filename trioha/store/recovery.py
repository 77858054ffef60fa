"""Find a log's end after a start (spec store 5).

Every record from the log's first to its last is checked: length, magic, position, and its body's CRC (after
a clean stop the CRC only in the last file). The log ends behind the last whole valid record; what follows is
zeroed, so that no later start can take stale bytes for records, and empty files behind it are removed.

What is cut must be a torn tail: bytes that were never promised to be on disk. If records that a flush had
covered are damaged and valid ones follow them, cutting would destroy good messages, so the start is refused
with the damaged offset (RocketMQ 4.9 cuts there, 5.3 does not look).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import structlog
from attrs import frozen

from trioha.errors import StoreError
from trioha.store.checkpoint import Checkpoint
from trioha.store.commit_log import CommitLog, list_files
from trioha.store.mapped_file import MappedFile
from trioha.store.properties import parse_properties
from trioha.store.record import (
    HEAD,
    TRANSACTION_MASK,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
    Host,
    Record,
    decode_record,
    describe_fault,
)
from trioha.store.scan import is_blank, scan_records, topic_of

log = structlog.get_logger(__name__)

INNER_BATCH = 0x80
_ZERO_CHUNK = bytes(1 << 20)


@frozen
class Recovered:
    """What recovery found and did."""

    records: int
    end_offset: int
    cut_bytes: int
    """Bytes behind the end that were not zero and are now."""
    cut_reason: str
    """Why the first record behind the end was not accepted; empty if nothing was there."""


def open_commit_log(
    directory: Path,
    *,
    file_bytes: int,
    message_bytes_max: int,
    store_host: Host,
    clean_exit: bool,
    checkpoint: Checkpoint,
    on_progress: Callable[[int, int], None] | None = None,
) -> tuple[CommitLog, Recovered]:
    """Open the log in `directory` (made if missing) and find its end; blocks for as long as reading it takes.

    `on_progress(done, total)` is told the bytes of the files checked so far. Raises StoreError for a log that
    cannot be opened or must not be cut.
    """
    directory.mkdir(parents=True, exist_ok=True)
    files = list_files(directory, size=file_bytes)
    commit_log = CommitLog(
        directory,
        file_bytes=file_bytes,
        message_bytes_max=message_bytes_max,
        store_host=store_host,
        files=files,
    )
    if not files:
        return commit_log, Recovered(records=0, end_offset=0, cut_bytes=0, cut_reason="")
    queue_offsets: dict[tuple[bytes, int], int] = {}
    records = 0
    last_store_timestamp_ms = 0
    for index, file in enumerate(files):
        view = file.view
        end = scan_records(
            view,
            0,
            file.size,
            file.start_offset,
            check_crc=not clean_exit or index == len(files) - 1,
            on_record=_queue_counter(commit_log, file, queue_offsets),
        )
        records += end.records
        last_store_timestamp_ms = max(last_store_timestamp_ms, end.last_store_timestamp_ms)
        if on_progress is not None:
            on_progress(index + 1, len(files))
        if end.at < file.size and not (end.blank and is_blank(view, end.at, file.size)):
            end_offset = file.start_offset + end.at
            reason = describe_fault(view, end.at, file.size, end_offset)
            _refuse_to_cut_flushed_records(
                files[index:],
                end_offset=end_offset,
                reason=reason,
                last_store_timestamp_ms=last_store_timestamp_ms,
                clean_exit=clean_exit,
                checkpoint=checkpoint,
            )
            cut_bytes = _cut(commit_log, files, index=index, at=end.at)
            break
    else:
        end_offset = files[-1].end_offset
        cut_bytes, reason = 0, ""
    commit_log.queue_offsets = {
        (topic.decode(), queue): next_ for (topic, queue), next_ in queue_offsets.items()
    }
    commit_log.last_store_timestamp_ms = last_store_timestamp_ms
    if not clean_exit:
        # What a killed process left is in the page cache; from here on it counts as flushed.
        for file in commit_log.files:
            file.sync()
    commit_log.appended.move_to(end_offset)
    commit_log.flushed.move_to(end_offset)
    if cut_bytes:
        log.warning(
            "commit log cut to its last whole record", end_offset=end_offset, reason=reason, bytes=cut_bytes
        )
    return commit_log, Recovered(
        records=records, end_offset=end_offset, cut_bytes=cut_bytes, cut_reason=reason if cut_bytes else ""
    )


def _queue_counter(
    commit_log: CommitLog, file: MappedFile, queue_offsets: dict[tuple[bytes, int], int]
) -> Callable[[int, int], None]:
    """A function that notes each record of a file and the next queue offset behind it."""
    view = file.view

    def count(at: int, size: int) -> None:
        commit_log.note_record(file.start_offset + at)
        _, _, _, queue_id, _, queue_offset, _, sys_flag, _ = HEAD.unpack_from(view, at)
        if sys_flag & TRANSACTION_MASK in {TRANSACTION_PREPARED, TRANSACTION_ROLLBACK}:
            return
        messages = 1
        if sys_flag & INNER_BATCH:
            record = decode_record(view[at : at + size], check_crc=False)
            assert isinstance(record, Record)
            messages = int(parse_properties(record.properties_raw).get("INNER_NUM", "1"))
        key = (topic_of(view, at), queue_id)
        next_offset = queue_offset + messages
        if next_offset > queue_offsets.get(key, 0):
            queue_offsets[key] = next_offset

    return count


def _refuse_to_cut_flushed_records(
    files: list[MappedFile],
    *,
    end_offset: int,
    reason: str,
    last_store_timestamp_ms: int,
    clean_exit: bool,
    checkpoint: Checkpoint,
) -> None:
    """Raise StoreError if valid files follow the damage and the damage was on disk already."""
    following = next(
        (file for file in files[1:] if scan_records(file.view, 0, file.size, file.start_offset).records), None
    )
    if following is None:
        return
    was_flushed = clean_exit or last_store_timestamp_ms < checkpoint.physic_msg_timestamp_ms
    if was_flushed:
        raise StoreError(
            f"damaged record ({reason}), but valid ones follow in {following.path.name}",
            path=files[0].path,
            offset=end_offset,
            hint="nothing was cut; restore the store from a replica, or move the files from here on aside",
        )


def _cut(commit_log: CommitLog, files: list[MappedFile], *, index: int, at: int) -> int:
    """Zero everything behind `at` in the file of that index and remove later files; returns what was lost."""
    lost = 0
    for file in files[index + 1 :]:
        lost += _used_bytes(file.view)
        file.remove()
    del files[index + 1 :]
    file = files[index]
    tail = file.view[at:]
    used = _used_bytes(tail)
    if used:
        for start in range(0, used, len(_ZERO_CHUNK)):
            stop = min(start + len(_ZERO_CHUNK), used)
            tail[start:stop] = _ZERO_CHUNK[: stop - start]
        file.sync()
    if at == 0 and index > 0:
        # An empty file behind full ones was made ahead; the log ends with the file before it.
        files.pop().remove()
    assert commit_log.files == tuple(files)
    return lost + used


def _used_bytes(view: memoryview) -> int:
    """Length of `view` without the zeros at its end; reads it from the end, a MiB at a time."""
    end = len(view)
    while end > 0:
        start = max(0, end - len(_ZERO_CHUNK))
        # Bytes compare at memory speed, views one item at a time.
        chunk = bytes(view[start:end])
        if chunk != _ZERO_CHUNK[: end - start]:
            return start + len(chunk.rstrip(b"\0"))
        end = start
    return 0
