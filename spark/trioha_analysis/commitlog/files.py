"""The files of a commit log, and the ranges of offsets that tasks read (docs/protocol/store.md#files)."""

from __future__ import annotations

import errno
import mmap
import os
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from trioha.errors import StoreError
from trioha.numbers import NATURAL64, parse_int
from trioha.store.mapped_file import FILE_NAME_DIGITS

RANGE_BYTES: Final = 64 << 20
"""Bytes of a range."""
_LOOK_BYTES: Final = 1 << 20


@frozen
class LogFile:
    """A file of a commit log, as listed."""

    path: Path
    start_offset: int
    """Physical offset of its first byte, which its name gives."""
    size_bytes: int

    @property
    def end_offset(self) -> int:
        """Physical offset after its last byte, written or not."""
        return self.start_offset + self.size_bytes


@frozen
class OffsetRange:
    """Physical offsets `[start, end)`: the records that start there."""

    start: int
    end: int | None
    """None: the end of the log when it is read."""
    was_held: bool = False
    """Whether the log had bytes at `start` when the range was planned: their deletion is then an error."""


def list_files(store: Path) -> list[LogFile]:
    """The files of the log of `store` (a storePathRootDir, or its commitlog folder), oldest first.

    Empty if there are none yet. Raises StoreError if the folder cannot be read, or two files overlap.
    """
    directory = store / "commitlog" if (store / "commitlog").is_dir() else store
    try:
        files = [
            LogFile(path, start_offset, path.stat().st_size)
            for path in sorted(directory.iterdir())
            if (start_offset := _start_offset(path.name)) is not None
        ]
    except FileNotFoundError as error:
        raise StoreError(
            "no such folder",
            path=error.filename or directory,
            hint="give a storePathRootDir or its commitlog folder",
        ) from None
    except OSError as error:
        raise StoreError(f"cannot be read: {error.strerror or error}", path=directory) from error
    files = [file for file in files if file.size_bytes]
    for before, file in pairwise(files):
        if file.start_offset < before.end_offset:
            raise StoreError(
                f"begins inside the file before it, which ends at {before.end_offset}", path=file.path
            )
    return files


def _start_offset(name: str) -> int | None:
    """The offset that a file's name gives; None if it is not a file of the log."""
    try:
        return parse_int(name, NATURAL64) if len(name) == FILE_NAME_DIGITS else None
    except ValueError:
        return None


def map_file(file: LogFile) -> NDArray[np.uint8]:
    """The bytes of a file, mapped read-only. Raises StoreError if it does not exist or cannot be read."""
    try:
        with file.path.open("rb") as opened:
            return np.frombuffer(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
    except FileNotFoundError:
        raise StoreError(
            "is gone since the log was listed",
            path=file.path,
            hint="the broker deletes old files; load again to read what is left",
        ) from None
    except (OSError, ValueError) as error:
        raise StoreError(f"cannot be read: {error}", path=file.path) from error


def written_bytes(file: LogFile, data: NDArray[np.uint8]) -> int:
    """Index in `data` (the file's bytes) after which all bytes are zero, rounded up to a block.

    Brokers create files at full length. Holes are skipped without reading; files filled with zeros are read
    from their end.
    """
    end = len(data)
    if hasattr(os, "SEEK_HOLE"):
        with file.path.open("rb") as opened:
            end = min(end, _data_end(opened.fileno()))
    while end > 0 and not data[max(0, end - _LOOK_BYTES) : end].any():
        end -= _LOOK_BYTES
    return max(0, end)


def _data_end(descriptor: int) -> int:
    """End of the last extent of a file that was written."""
    end = 0
    try:
        while True:
            end = os.lseek(descriptor, os.lseek(descriptor, end, os.SEEK_DATA), os.SEEK_HOLE)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
    return end


def is_last_written(files: list[LogFile], index: int) -> bool:
    """Whether all files after `files[index]` are zeros."""
    return not any(written_bytes(file, map_file(file)) for file in files[index + 1 :])


def cut_ranges(
    files: list[LogFile], *, start: int = 0, end: int | None = None, range_bytes: int = RANGE_BYTES
) -> list[OffsetRange]:
    """Ranges that cover the physical offsets `[start, end)` of a log, each inside one file.

    Without an `end` the last range is open: a later read includes bytes written since.
    """
    if end is not None and end <= start:
        return []
    cuts = {start}
    for index in range(len(files) - 1, -1, -1):
        file = files[index]
        # All files before a written one are written.
        written = written_bytes(file, map_file(file)) if len(cuts) == 1 else file.size_bytes
        cuts.update(
            offset
            for offset in range(file.start_offset, file.start_offset + written, range_bytes)
            if start < offset and (end is None or offset < end)
        )
    borders = sorted(cuts)
    return [
        OffsetRange(first, last, any(file.start_offset <= first < file.end_offset for file in files))
        for first, last in zip(borders, [*borders[1:], end], strict=True)
    ]
