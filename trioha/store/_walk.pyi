# What `walk.c` offers.

from pathlib import Path

from trioha.store.record_layout import Buffer

SOURCE_SHA256: str

def walk_records(data: Buffer, at: int, end: int, shift: int, check_crc: bool, /) -> tuple[int, int, int]: ...
def walk_boundaries(data: Buffer, at: int, end: int, shift: int, /) -> tuple[int, int, int]: ...
def find_crc32(path: str | Path, /) -> bool: ...
