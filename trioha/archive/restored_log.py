"""The commit log of a store that is being restored.

Each log file is written without a name, record by record checked, synced, and then gets its name: a file with
a name is whole. So a restore that was interrupted keeps those files and writes the others.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final, NoReturn

from trioha.archive.checked_log import Extent, checked_extents, whole_records
from trioha.archive.errors import ArchiveError
from trioha.archive.fetching import Fetcher
from trioha.archive.layout import LogObject
from trioha.archive.reader import ArchiveReader, Selection
from trioha.archive.restore_plan import Plan
from trioha.errors import StoreError
from trioha.store.mapped_file import DISK_FULL, create_atomically, file_name, reserve
from trioha.store.record_layout import scan_records
from trioha.store.syncing import sync_data, sync_directory, sync_whole

_READ_BYTES: Final = 1 << 20

Progress = Callable[[str, int, int], None]
"""`on_progress(what, done, total)`: bytes of the log."""


class RestoredLog:
    """The log of `plan`, whose files are in `folder`. Everything here blocks.

    No record was stored after `latest_ms`. Methods are given the reader of the newest head that is known.
    """

    def __init__(self, folder: Path, plan: Plan, *, latest_ms: int) -> None:
        self._folder = folder
        self._plan = plan
        self._latest_ms = latest_ms

    def _path(self, start: int) -> Path:
        return self._folder / file_name(start)

    def has_file(self, start: int) -> bool:
        """Whether the log file of offset `start` is whole."""
        return self._path(start).exists()

    def write_file(
        self,
        reader: ArchiveReader,
        start: int,
        *,
        fetcher: Fetcher,
        syncer: ThreadPoolExecutor,
        on_progress: Progress,
    ) -> int:
        """Write the log file of offset `start` and put it on disk; returns its number of records.

        Raises ArchiveError, and StoreError for a disk that refuses it.
        """
        plan = self._plan
        records = 0

        def fill(fd: int) -> None:
            nonlocal records
            reserve(fd, plan.file_bytes)
            synced: Future[None] | None = None
            try:
                for extent in self._archived_extents(reader, start, fetcher):
                    write_all(fd, extent.data, at=extent.offset - start)
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

        path = self._path(start)
        try:
            os.close(create_atomically(path, fill))
        except OSError as error:
            raise StoreError(
                f"cannot be written: {error.strerror or error}", path=path, offset=start, hint=hint_of(error)
            ) from error
        sync_directory(self._folder)
        return records

    def _archived_extents(self, reader: ArchiveReader, start: int, fetcher: Fetcher) -> Iterator[Extent]:
        """The archived bytes of the file at `start`, up to the plan's end."""
        plan = self._plan
        generation = reader.generation(plan.generation)
        end_offset = min(start + plan.file_bytes, plan.end_offset)
        offset = start
        objects = reader.objects(generation, Selection(first_offset=start, end_offset=end_offset))
        for one, pieces in fetcher.fetch(objects):
            for extent in checked_extents(reader.folder, one, file_bytes=plan.file_bytes, pieces=pieces):
                shown = self._cut(extent, one, reader)
                if shown is None:
                    # The rest of the object is read for its CRC.
                    continue
                if shown.offset != offset:
                    _refuse(reader, one, f"begins at {shown.offset}, the log is restored up to {offset}")
                offset = shown.end_offset
                yield shown
        if offset != end_offset:
            raise ArchiveError(
                f"generation {plan.generation} has nothing at offset {offset}", url=reader.folder.url
            )

    def _cut(self, extent: Extent, one: LogObject, reader: ArchiveReader) -> Extent | None:
        """What of an extent is before the plan's end; None if nothing is."""
        plan = self._plan
        if extent.offset >= plan.end_offset:
            return None
        if extent.end_offset > plan.end_offset:
            size = plan.end_offset - extent.offset
            found = scan_records(extent.data, 0, size, extent.offset, check_crc=False)
            if extent.is_blank or found.at != size:
                _refuse(reader, one, f"has no border of records at offset {plan.end_offset}")
            extent = Extent(
                offset=extent.offset,
                data=extent.data[:size],
                records=found.records,
                last_store_ms=found.last_store_timestamp_ms,
            )
        to_ms = plan.target.to_ms
        if to_ms is not None and to_ms < extent.last_store_ms <= self._latest_ms:
            _refuse(
                reader,
                one,
                f"has a record stored at {extent.last_store_ms} ms before offset {extent.end_offset}:"
                f" its statistics say that it has none after {to_ms} ms",
            )
        return extent

    def stretches(self, reader: ArchiveReader) -> Iterator[tuple[tuple[str, ...] | None, Iterator[Extent]]]:
        """The restored log, object by object from its end, each with the topics of its records.

        Raises ArchiveError, and StoreError for a log file that is not whole any more.
        """
        plan = self._plan
        selection = Selection(first_offset=plan.first_offset, end_offset=plan.end_offset)
        known: dict[tuple[str, ...] | None, tuple[str, ...] | None] = {}
        # Objects mostly have the same topics: each list is kept once.
        listed = [
            (one.first_offset, min(one.end_offset, plan.end_offset), known.setdefault(one.topics, one.topics))
            for one in reader.objects(reader.generation(plan.generation), selection)
        ]
        for first_offset, end_offset, topics in reversed(listed):
            if end_offset > plan.first_offset:
                yield topics, self._local_extents(first_offset, end_offset)

    def _local_extents(self, first_offset: int, end_offset: int) -> Iterator[Extent]:
        """Records of a restored log file."""
        file_bytes = self._plan.file_bytes
        start = first_offset - first_offset % file_bytes
        path = self._path(start)

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
                file_bytes=file_bytes,
                refuse=refuse,
            )
        finally:
            os.close(fd)

    def last_store_ms(self, reader: ArchiveReader) -> int:
        """Store time of the last record; 0 if there is none. Raises as `stretches` does."""
        for _, extents in self.stretches(reader):
            if found := [extent.last_store_ms for extent in extents if extent.records]:
                return found[-1]
        return 0


def _refuse(reader: ArchiveReader, one: LogObject, reason: str) -> NoReturn:
    raise ArchiveError(
        reason, url=reader.folder.url, key=one.key, hint="trioha verify checks the whole archive"
    )


def hint_of(error: OSError) -> str:
    """What to do where the disk refuses a write."""
    what = "free disk space" if error.errno in DISK_FULL else "check the disk and the permissions"
    return f"{what}, then run the same command again: it keeps what is whole"


def write_all(fd: int, data: memoryview, *, at: int) -> None:
    """Write all of `data` at position `at` of a file. Raises OSError."""
    while data:
        written = os.pwrite(fd, data, at)
        data = data[written:]
        at += written
