"""Reads ranges of a commit log: the work of a task."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from attrs import field, frozen

from trioha.errors import StoreError
from trioha.store.record_layout import body_crc
from trioha_analysis.commitlog.columns import only_times, only_topics
from trioha_analysis.commitlog.files import (
    LogFile,
    OffsetRange,
    is_last_written,
    list_files,
    map_file,
    written_bytes,
)
from trioha_analysis.commitlog.walk import BLOCK_BYTES, Columns, Gap, LogBytes, walk


@frozen
class LogDamage:
    """Damaged bytes of a log file."""

    path: str
    """The file, or the URL of the object."""
    gap: Gap


@frozen
class ReadOptions:
    """Which messages of a log to read."""

    topics: frozenset[str] = field(factory=frozenset)
    """Empty: all topics."""
    from_ms: int | None = None
    """Only messages stored at or after it, in ms since 1970."""
    to_ms: int | None = None
    """Only messages stored before it."""
    verify_bodies: bool = False
    """Whether to check the CRC of bodies: a wrong one is damage instead of a record."""
    block_bytes: int = BLOCK_BYTES


def read_range(
    store: Path, wanted: OffsetRange, options: ReadOptions | None = None
) -> Iterator[Columns | LogDamage]:
    """Blocks of the records that start in `wanted`, and the damage after them.

    Raises StoreError if the folder does not exist, or the offsets have been deleted since they were planned.
    """
    options = options or ReadOptions()
    files = list_files(store)
    if wanted.was_held and not any(file.start_offset <= wanted.start < file.end_offset for file in files):
        raise StoreError(
            "these bytes were deleted since the log was listed",
            path=store,
            offset=wanted.start,
            hint="the broker deletes old files; load again to read what is left",
        )
    for index, file in enumerate(files):
        if file.end_offset > wanted.start and (wanted.end is None or file.start_offset < wanted.end):
            is_last = is_last_written(files, index)
            before = files[index - 1].end_offset if index else file.start_offset
            if before < file.start_offset and wanted.start <= file.start_offset:
                yield LogDamage(
                    str(file.path), Gap(before, file.start_offset - before, "no file has these bytes")
                )
            yield from _read_file(file, wanted, options, is_last=is_last)
            if is_last:
                return


def _read_file(
    file: LogFile, wanted: OffsetRange, options: ReadOptions, *, is_last: bool
) -> Iterator[Columns | LogDamage]:
    data = map_file(file)
    # Only the last file has large unwritten parts.
    written = written_bytes(file, data) if is_last else len(data)
    log = LogBytes(data, file.start_offset, is_last, written)
    begin = max(0, wanted.start - file.start_offset)
    end = len(log.data) if wanted.end is None else wanted.end - file.start_offset
    for found in walk(log, begin, end, block_bytes=options.block_bytes):
        if isinstance(found, Gap):
            yield LogDamage(str(file.path), found)
            continue
        yield from chosen_rows(found, options, path=str(file.path), start_offset=file.start_offset)


def chosen_rows(
    found: Columns, options: ReadOptions, *, path: str, start_offset: int
) -> Iterator[Columns | LogDamage]:
    """The rows that the options want; those with a damaged body as damage, if bodies are verified."""
    rows = only_topics(found, options.topics) if options.topics else found
    if options.from_ms is not None or options.to_ms is not None:
        rows = only_times(rows, from_ms=options.from_ms, to_ms=options.to_ms)
    if options.verify_bodies:
        bad = [at for at, is_good in enumerate(_bodies_are_good(rows)) if not is_good]
        for at in bad:
            gap = Gap(
                start_offset + int(rows.start[at]),
                int(rows.end[at] - rows.start[at]),
                f"the body's CRC is not the stored 0x{int(rows.heads['body_crc'][at]):08X}",
            )
            yield LogDamage(path, gap)
        if bad:
            rows = rows.take(np.delete(np.arange(len(rows)), bad))
    if len(rows):
        yield rows


def _bodies_are_good(rows: Columns) -> Iterator[bool]:
    view = rows.data.data
    ends = (rows.body_at + rows.body_bytes).tolist()
    for begin, end, crc in zip(rows.body_at.tolist(), ends, rows.heads["body_crc"].tolist(), strict=True):
        yield body_crc(view[begin:end]) == crc
