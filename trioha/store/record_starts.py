"""Where records start: some known places, and walks from the nearest of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from trioha.store.landmarks import Landmarks
from trioha.store.log_files import LogFiles
from trioha.store.record_layout import (
    RECORD_BYTES_MIN,
    claimed_bytes,
    record_around,
    starts_blank,
    store_timestamp_ms,
)

_WALK_BYTES: Final = 256 * 1024
"""Read at a time where records are looked for one after the other."""


class RecordStarts:
    """Finds records of a log by their offsets or times. Searches raise StoreError."""

    def __init__(self, files: LogFiles) -> None:
        self._files = files
        self._landmarks = Landmarks()

    def note(self, offset: int) -> None:
        """A record starts at `offset`, after all noted before: helps to find records near the log's end."""
        self._landmarks.add(offset)

    def note_all(self, offsets: Iterable[int]) -> None:
        """`note` each of them."""
        self._landmarks.add_all(offsets)

    def cut(self, offset: int) -> None:
        """Forget the records from `offset` on: the log ends there."""
        self._landmarks.cut(offset)

    def clear(self) -> None:
        """Forget all records: the log begins anew."""
        self._landmarks.clear()

    def known_before(self, offset: int) -> int:
        """Where a record starts, at or before the byte at `offset`, which is there.

        The newest start that is known without reading the log.
        """
        return max(self._landmarks.nearest(offset), self._files.file_of(offset).start_offset)

    def first_from(self, offset: int) -> int:
        """Where the first record at or after `offset` starts; the log's end if there is none.

        Walks from the nearest noted record of the same file, else from the file's start: cheap near the end
        of the log, up to a second for a gigabyte elsewhere.
        """
        max_offset = self._files.appended.offset
        if offset >= max_offset:
            return max_offset
        start, end = self._record_around(max(offset, self._files.start_offset))
        return start if start >= offset else end

    def last(self, *, before: int | None = None) -> int:
        """Where the last record or blank starts that begins before `before`, or before the log's end.

        Of a log that has one; as slow as `first_from`.
        """
        return self._record_around((self._files.appended.offset if before is None else before) - 1)[0]

    def _record_around(self, offset: int) -> tuple[int, int]:
        """Start and end of the record or blank that the byte at `offset`, which is there, belongs to."""
        file = self._files.file_of(offset)
        start = self.known_before(offset)
        while True:
            view = self._read(start, _WALK_BYTES)
            at, is_found = record_around(view, offset - start)
            start += at
            if is_found:
                is_blank = starts_blank(view, at, len(view))
                end_offset = file.end_offset if is_blank else start + claimed_bytes(view, at, len(view))
                return start, min(end_offset, self._files.appended.offset)
            assert at, f"no record at {start}"

    def _read(self, offset: int, limit_bytes: int) -> memoryview:
        return self._files.part(offset, limit_bytes)

    def stored_before(self, timestamp_ms: int) -> int:
        """Where a record starts that was stored before `timestamp_ms`: the newest known; 0 if none is."""
        starts: list[int] = [*(file.start_offset for file in self._files.files), *self._landmarks]
        for offset in sorted(starts, reverse=True):
            view = self._read(offset, RECORD_BYTES_MIN)
            if (
                len(view)
                and not starts_blank(view, 0, len(view))
                and store_timestamp_ms(view, 0) < timestamp_ms
            ):
                return offset
        return 0

    def store_timestamp_before(self, offset: int) -> int:
        """Store time of the last record before `offset`, the start of a record; 0 if there is none."""
        while offset > self._files.start_offset:
            offset = self._record_around(offset - 1)[0]
            view = self._read(offset, RECORD_BYTES_MIN)
            if not starts_blank(view, 0, len(view)):
                return store_timestamp_ms(view, 0)
        return 0
