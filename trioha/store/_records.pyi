# What `records.c` offers.

from pathlib import Path

from trioha.store.messages import Message
from trioha.store.record_layout import Buffer

SOURCE_SHA256: str

def walk_records(data: Buffer, at: int, end: int, shift: int, check_crc: bool, /) -> tuple[int, int, int]: ...
def find_records(
    entries: bytes, bytes_max: int, data: Buffer, end: int, shift: int, /
) -> tuple[int, list[tuple[int, int]]] | None: ...
def read_records(
    fd: int, entries: bytes, bytes_max: int, first_offset: int, end_offset: int, /
) -> tuple[int, bytes, int] | None: ...
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
def batch_sizes(batch: bytes, record_bytes: int, body_bytes_max: int, takes_inner: bool, /) -> list[int]: ...
def encode_batch(
    batch: bytes,
    size: int,
    magic: int,
    queue_id: int,
    queue_offset: int,
    physical_offset: int,
    sys_flag: int,
    born_timestamp_ms: int,
    hosts: bytes,
    reconsume_times: int,
    topic: bytes,
    /,
) -> bytes: ...
def write_back(fd: int, start: int, end: int, rests: int, /) -> int: ...
def find_crc32(path: str | Path, /) -> bool: ...
def name_map(data: memoryview, path: bytes, first_offset: int, /) -> None: ...
def forget_map(data: memoryview, /) -> None: ...
