"""Commit logs of either program compared byte for byte."""

from __future__ import annotations

import zlib
from pathlib import Path

BLANK_MAGIC = b"\xcb\xd4\x31\x94"


def log_files(store: Path) -> dict[int, Path]:
    """Commit-log files of a store by the physical offset of their first byte."""
    return {int(path.name): path for path in sorted((store / "commitlog").iterdir()) if path.name.isdigit()}


def read_log(store: Path, *, start: int, end: int, file_bytes: int) -> bytes:
    """Bytes `[start, end)` of a store's log, straight from its files."""
    files = log_files(store)
    parts = []
    position = start
    while position < end:
        first = position - position % file_bytes
        if first not in files:
            raise AssertionError(f"{store}: no commit-log file for offset {position}, only {list(files)}")
        data = files[first].read_bytes()
        if len(data) != file_bytes:
            raise AssertionError(f"{files[first]}: {len(data)} bytes, not {file_bytes}")
        stop = min(end, first + file_bytes)
        parts.append(data[position - first : stop - first])
        position = stop
    return b"".join(parts)


def assert_same_log(one: Path, other: Path, *, end: int, file_bytes: int, start: int = 0) -> None:
    """Both stores hold the same bytes `[start, end)`, BLANK tails included; names the first that differ."""
    left = read_log(one, start=start, end=end, file_bytes=file_bytes)
    right = read_log(other, start=start, end=end, file_bytes=file_bytes)
    if left == right:
        return
    at = next(index for index, pair in enumerate(zip(left, right, strict=True)) if pair[0] != pair[1])
    raise AssertionError(
        f"logs differ at offset {start + at}:\n"
        f"  {one}: {left[at : at + 32].hex(' ')}\n  {other}: {right[at : at + 32].hex(' ')}"
    )


def whole_records(store: Path, *, file_bytes: int) -> int:
    """How many records a log of IPv4 hosts holds from its first byte on, each with the CRC of its body.

    Written for these tests alone, so that neither trioha's nor RocketMQ's own reading is trusted.
    """
    found = 0
    for path in log_files(store).values():
        data = path.read_bytes()
        position = 0
        while position + 8 <= file_bytes:
            size, magic = (
                int.from_bytes(data[position : position + 4], "big"),
                data[position + 4 : position + 8],
            )
            if magic == BLANK_MAGIC:
                break
            body_at = position + 88
            body_bytes = int.from_bytes(data[body_at - 4 : body_at], "big")
            body_crc = int.from_bytes(data[position + 8 : position + 12], "big")
            whole = size and zlib.crc32(data[body_at : body_at + body_bytes]) & 0x7FFFFFFF == body_crc
            if not whole:
                return found
            found += 1
            position += size
    return found


def blank_tails(store: Path, *, end: int, file_bytes: int) -> int:
    """How many of the full files below `end` close with a BLANK record.

    See docs/protocol/store.md#ends-of-files.
    """
    found = 0
    for first, path in log_files(store).items():
        if first + file_bytes > end:
            continue
        data = path.read_bytes()
        position = 0
        while position < file_bytes:
            size = int.from_bytes(data[position : position + 4], "big")
            if data[position + 4 : position + 8] == BLANK_MAGIC:
                assert position + size == file_bytes, f"{path}: BLANK of {size} at {position}"
                found += 1
                break
            assert 0 < size <= file_bytes - position, f"{path}: record of {size} bytes at {position}"
            position += size
    return found


def remove_files_just_made(store: Path) -> None:
    """Delete the files, of no length yet, that RocketMQ was making when it was killed.

    4.9.7 refuses to load a store with such a file ("length not matched message store config value, please
    check it manually"), so this is what its operator has to do; 5.3.3 does it by itself.
    """
    for folder in ("commitlog", "consumequeue", "index"):
        for path in (store / folder).rglob("*"):
            if path.is_file() and path.stat().st_size == 0:
                path.unlink()
