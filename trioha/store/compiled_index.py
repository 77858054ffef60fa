"""Entries of an index file for the keys of many records; compiled where that is possible (`trioha.compiled`).

Keys come in columns, see `KEY_BYTES`; the file's layout is in `store.index_file`.
"""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter, read_i64_be, write_i32_be, write_i64_be
from mypy_extensions import i32, i64

from trioha.compiled import use_compiled

SOURCE_SHA256: Final = ""
"""Of this file; the build sets it in the copy that it compiles."""

KEY_BYTES: Final = 24
"""Of a key in a column: i64 unsigned hash, physical offset, store timestamp in ms, big-endian."""
TIME_DIFF_MAX_S: Final = 0x7FFFFFFF
_SIGN_32: Final = 0x80000000


def index_entries(  # noqa: PLR0917 - keywords would cost a call more
    keys: bytes,
    start: i64,
    end: i64,
    slot_words: memoryview,
    slots: i64,
    number: i64,
    begin_ms: i64,
    first_diff_s: i64,
    little_endian: bool,
) -> tuple[bytes, int]:
    """Entries for `keys[start:end]`, the first of which gets that number; also puts them into the slots.

    `slot_words` are the file's slots as numbers in this machine's byte order, the file's is big-endian.
    Returns the entries as they are in the file, and how many slots were empty before.
    """
    entries = BytesWriter()
    used: i64 = 0
    diff: i64 = first_diff_s
    at: i64 = start
    while at < end:
        value: i64 = read_i64_be(keys, at)
        if value >= _SIGN_32:
            value = ((1 << 32) - value) & 0x7FFFFFFF
        if at > start:
            diff = _time_diff_s(read_i64_be(keys, at + 16), begin_ms)
        slot = value % slots
        before: i64 = slot_words[slot]
        after: i64 = number
        if little_endian:
            before = _swapped(before)
            after = _swapped(after)
        slot_words[slot] = after
        if before >= number:
            # Damage: a chain leads to earlier entries only.
            before = 0
        if before == 0:
            used += 1
        write_i32_be(entries, i32(value))
        write_i64_be(entries, read_i64_be(keys, at + 8))
        write_i64_be(entries, diff << 32 | before)
        number += 1
        at += KEY_BYTES
    return entries.getvalue(), used


def _time_diff_s(store_timestamp_ms: i64, begin_ms: i64) -> i64:
    if begin_ms <= 0 or store_timestamp_ms <= begin_ms:
        return 0
    return min((store_timestamp_ms - begin_ms) // 1000, TIME_DIFF_MAX_S)


def _swapped(word: i64) -> i64:
    """The 32-bit number with its bytes in the other order."""
    return (word & 0xFF) << 24 | (word & 0xFF00) << 8 | (word >> 8) & 0xFF00 | (word >> 24) & 0xFF


use_compiled(__name__)
