# What `records.c` offers.

from pathlib import Path

from trioha.store.messages import Message
from trioha.store.record_layout import Buffer

SOURCE_SHA256: str

def walk_records(data: Buffer, at: int, end: int, shift: int, check_crc: bool, /) -> tuple[int, int, int]: ...
def walk_boundaries(data: Buffer, at: int, end: int, shift: int, /) -> tuple[int, int, int]: ...
def find_records(
    entries: bytes, bytes_max: int, data: Buffer, end: int, shift: int, /
) -> tuple[int, list[tuple[int, int]]] | None: ...
def write_record(
    data: Buffer,
    at: int,
    topic: bytes,
    message: Message,
    body_bytes_max: int,
    queue_offset: int,
    physical_offset: int,
    store_timestamp_ms: int,
    store_host: bytes,
    /,
) -> int: ...
def find_crc32(path: str | Path, /) -> bool: ...
