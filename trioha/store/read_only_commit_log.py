"""Read-only access to a commit log on disk, also of a store in use."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import cast

from attrs import evolve, frozen

from trioha.errors import StoreError
from trioha.store.mapped_file import FILE_NAME_DIGITS
from trioha.store.mapping import map_file
from trioha.store.record import Blank, Record, decode_record
from trioha.store.record_layout import (
    BLANK_BYTES,
    MAGIC_BLANK,
    MAGICS,
    find_fault,
    is_blank,
    scan_records,
    starts_blank,
)

COMPARE_BYTES = 1 << 20
_MAGIC_BYTES = 4
_MAGICS = tuple(magic.to_bytes(_MAGIC_BYTES) for magic in (*MAGICS, MAGIC_BLANK))
_RECORD_BYTES_MAX = 32 << 20
"""No broker takes a larger one."""
_BAD_BLANK = "a blank that does not reach the end of its file"


@frozen
class LogCheck:
    """Result of a check of log files."""

    min_offset: int
    end_offset: int
    """End of the last whole valid record or blank."""
    records: int
    fault: str
    """What is wrong at `end_offset`; empty if the log ends there."""


class ReadOnlyCommitLog:
    """The files of a store's commit log, mapped read only. Needs no lock and changes nothing."""

    def __init__(self, directory: Path, *, files: dict[int, memoryview], file_bytes: int) -> None:
        self.directory = directory
        self.file_bytes = file_bytes
        self._files = files

    @classmethod
    def open(cls, path: Path) -> ReadOnlyCommitLog:
        """Open the log of the store at `path`, or the log directory itself.

        Raises StoreError if there is none, or files of different lengths or with a gap.
        """
        directory = path / "commitlog" if (path / "commitlog").is_dir() else path
        try:
            paths = sorted(
                file
                for file in directory.iterdir()
                if len(file.name) == FILE_NAME_DIGITS and file.name.isdecimal() and file.stat().st_size
            )
            if not paths:
                raise StoreError(
                    "holds no commit log", path=path, hint="give a storePathRootDir or its commitlog folder"
                )
            file_bytes = paths[0].stat().st_size
            files: dict[int, memoryview] = {}
            for file in paths:
                start_offset = int(file.name)
                if file.stat().st_size != file_bytes:
                    raise StoreError(f"has {file.stat().st_size} bytes, others have {file_bytes}", path=file)
                if files and start_offset - file_bytes not in files:
                    raise StoreError("the file before it is missing", path=file, offset=start_offset)
                files[start_offset] = _map(file)
        except OSError as error:
            raise StoreError(f"cannot be read: {error.strerror}", path=error.filename or path) from error
        return cls(directory, files=files, file_bytes=file_bytes)

    @property
    def min_offset(self) -> int:
        """Offset of the first byte."""
        return next(iter(self._files))

    def file_starts(self) -> tuple[int, ...]:
        """Start offset of each file, oldest first."""
        return tuple(self._files)

    def records(self, start_offset: int) -> Iterator[Record | Blank]:
        """Every record and blank from `start_offset` on, to the log's end.

        Raises StoreError with the offset at which a record should start and none does.
        """
        offset = start_offset
        while (found := self._file_of(offset)) is not None:
            view, at = found
            if starts_blank(view, at, len(view)):
                if not is_blank(view, at, len(view)):
                    raise self._bad(offset, _BAD_BLANK)
                yield Blank(offset, len(view) - at)
                offset += len(view) - at
            elif (fault := find_fault(view, at, len(view), offset)) is None:
                record = decode_record(view, at, check_crc=False)
                yield record
                offset += record.total_size
            elif self._ends_at(offset):
                return
            else:
                raise self._bad(offset, fault.reason)

    def record_start(self, offset: int) -> int | None:
        """Start of the record or blank that has the byte at `offset`; None if no valid one has it.

        Looks back for a record of the right place: the bytes of a body are not one.
        """
        found = self._file_of(offset)
        if found is None:
            return None
        view, at = found
        file_start = offset - at
        data = cast("mmap.mmap", view.obj)
        search_end = at + 2 * _MAGIC_BYTES
        while search_end > 0:
            magic_at = max(data.rfind(magic, max(at - _RECORD_BYTES_MAX, 0), search_end) for magic in _MAGICS)
            start = magic_at - _MAGIC_BYTES
            if start < 0:
                return None
            if start <= at:
                if starts_blank(view, start, len(view)):
                    if is_blank(view, start, len(view)):
                        return file_start + start
                elif find_fault(view, start, len(view), file_start + start) is None:
                    size = decode_record(view, start, check_crc=False).total_size
                    return file_start + start if start + size > at else None
            search_end = magic_at + _MAGIC_BYTES - 1
        return None

    def _bad(self, offset: int, reason: str) -> StoreError:
        return StoreError(f"no valid record: {reason}", path=self.directory, offset=offset)

    def read(self, start_offset: int, end_offset: int) -> bytes:
        """Bytes of the log's files; fewer where they end before `end_offset`."""
        parts = []
        offset = start_offset
        while offset < end_offset and (found := self._file_of(offset)) is not None:
            view, at = found
            parts.append(bytes(view[at : at + end_offset - offset]))
            offset += len(parts[-1])
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def written_end(self) -> int:
        """Offset after the last byte that is not zero; that of the first file if all are."""
        for start, view in reversed(self._files.items()):
            for chunk_start in range((len(view) - 1) // COMPARE_BYTES * COMPARE_BYTES, -1, -COMPARE_BYTES):
                chunk = bytes(view[chunk_start : chunk_start + COMPARE_BYTES])
                if chunk.count(0) < len(chunk):
                    return start + chunk_start + len(chunk.rstrip(b"\0"))
        return self.min_offset

    def check_file(self, start_offset: int, *, from_offset: int | None = None) -> LogCheck:
        """Check every record of one file, bodies included; from one in the middle on with `from_offset`."""
        view = self._files[start_offset]
        at = 0 if from_offset is None else from_offset - start_offset
        end = scan_records(view, at, len(view), start_offset + at)
        check = LogCheck(
            min_offset=start_offset + at,
            end_offset=start_offset + end.at,
            records=end.records,
            fault="",
        )
        if end.at == len(view) or (end.blank and is_blank(view, end.at, len(view))):
            return evolve(check, end_offset=start_offset + len(view))
        if end.blank:
            return evolve(check, fault=_BAD_BLANK)
        if self._ends_at(check.end_offset):
            return check
        assert end.fault is not None
        return evolve(check, fault=end.fault.reason)

    def _file_of(self, offset: int) -> tuple[memoryview, int] | None:
        view = self._files.get(offset - offset % self.file_bytes)
        return None if view is None else (view, offset % self.file_bytes)

    def _ends_at(self, offset: int) -> bool:
        """Whether the log ends at `offset`: zeros instead of a record, here and in all later files."""
        found = self._file_of(offset)
        if found is not None:
            view, at = found
            if any(view[at : at + BLANK_BYTES]):
                return False
        return not any(any(view[:BLANK_BYTES]) for start, view in self._files.items() if start > offset)

    def first_difference(self, other: ReadOnlyCommitLog, start_offset: int, end_offset: int) -> int | None:
        """First offset in `[start_offset, end_offset)` at which the logs differ, None if they do not."""
        offset = start_offset
        while offset < end_offset:
            mine, theirs = self._chunk(offset, end_offset), other._chunk(offset, end_offset)
            size = min(len(mine), len(theirs))
            assert size, f"both logs reach from {start_offset} to {end_offset}"
            if mine[:size] != theirs[:size]:
                return offset + next(index for index in range(size) if mine[index] != theirs[index])
            offset += size
        return None

    def _chunk(self, offset: int, end_offset: int) -> bytes:
        found = self._file_of(offset)
        assert found is not None, f"no file holds {offset}"
        view, at = found
        return bytes(view[at : at + min(COMPARE_BYTES, end_offset - offset)])


def _map(path: Path) -> memoryview:
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        return map_file(file.fileno(), size, path, first_offset=int(path.name), read_only=True)
