"""Search for valid records after damage, where no record's length leads to the next one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import merge
from typing import Final

from trioha.store.mapped_file import MappedFile
from trioha.store.record_layout import (
    HEAD,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_BYTES_MIN,
    check_record,
    claimed_bytes,
    store_timestamp_ms,
)

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

    Holes at a file's end are not read. `on_chunk` is called for each 4 MiB. Raises StoreError for bytes that
    cannot be read.
    """
    for file in files:
        start = max(offset + 1 - file.start_offset, 0) + _MAGIC_AT
        used = file.used_bytes(start)
        for chunk in range(start, used, _SEARCH_BYTES):
            on_chunk()
            # A magic may begin at the chunk's last byte.
            data = bytes(file.read(chunk, min(chunk + _SEARCH_BYTES + _MAGIC_AT - 1, used)))
            for magic_at in merge(*(_occurrences(data, magic) for magic in _MAGIC_BYTES)):
                at = chunk + magic_at - _MAGIC_AT
                record = valid_record_at(file, at)
                if record is not None and (
                    file.start_offset + at < flushed_offset or store_timestamp_ms(record, 0) >= stored_from_ms
                ):
                    return file.start_offset + at
    return None


def valid_record_at(file: MappedFile, at: int) -> memoryview | None:
    """The whole record at index `at` of a file; None if none starts there. Raises StoreError."""
    left = file.size - at
    if left < RECORD_BYTES_MIN:
        return None
    head = file.read(at, at + RECORD_BYTES_MIN)
    size = claimed_bytes(head, 0, len(head))
    if not RECORD_BYTES_MIN <= size <= left or HEAD.unpack_from(head)[6] != file.start_offset + at:
        return None
    record = file.read(at, at + size)
    return record if check_record(record, 0, size, file.start_offset + at) > 0 else None


def _occurrences(data: bytes, text: bytes) -> Iterator[int]:
    """Indexes at which `text` begins, in order."""
    at = data.find(text)
    while at >= 0:
        yield at
        at = data.find(text, at + 1)
