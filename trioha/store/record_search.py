"""Search for valid records after damage, where no record's length leads to the next one."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator
from heapq import merge
from typing import Final, cast

from trioha.store.mapped_file import MappedFile
from trioha.store.record_layout import MAGIC_V1, MAGIC_V2, check_record, store_timestamp_ms

_SEARCH_BYTES: Final = 4 << 20
_MAGIC_AT: Final = 4
_MAGIC_BYTES: Final = (MAGIC_V1.to_bytes(4), MAGIC_V2.to_bytes(4))


def valid_record_after(
    files: list[MappedFile],
    offset: int,
    *,
    stored_from_ms: int,
    flushed_offset: int,
    on_chunk: Callable[[], None],
) -> int | None:
    """Offset of the first whole record after the damage at `offset` of the first file, if there is one.

    It has its magic and its own physical offset, which a message's body would not have in that place. It is
    before `flushed_offset`, or was stored at `stored_from_ms` at least.

    Holes at a file's end are not read; the rest costs about 1 s a GiB, plus the check of each record.
    `on_chunk` is called for each 4 MiB.
    """
    for file in files:
        start = max(offset + 1 - file.start_offset, 0) + _MAGIC_AT
        used = file.used_bytes(start)
        for chunk in range(start, used, _SEARCH_BYTES):
            on_chunk()
            chunk_end = min(chunk + _SEARCH_BYTES, used)
            for magic_at in merge(*(_occurrences(file, magic, chunk, chunk_end) for magic in _MAGIC_BYTES)):
                at = magic_at - _MAGIC_AT
                if check_record(file.view, at, file.size, file.start_offset + at) > 0 and (
                    file.start_offset + at < flushed_offset
                    or store_timestamp_ms(file.view, at) >= stored_from_ms
                ):
                    return file.start_offset + at
    return None


def _occurrences(file: MappedFile, text: bytes, start: int, stop: int) -> Iterator[int]:
    """Indexes in `[start, stop)` of the file at which `text` begins, in order; it may end after `stop`."""
    data = cast("mmap.mmap", file.view.obj)
    at = data.find(text, start, stop + len(text) - 1)
    while at >= 0:
        yield at
        at = data.find(text, at + 1, stop + len(text) - 1)
