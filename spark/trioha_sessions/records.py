"""Reads the records of a session as NumPy arrays. Not for a node, which has no NumPy.

The array's type is built from the session's own `fields`, so that longer records of a later version read as
well. Records whose check word is wrong, or whose seq is not that of their place, are left out and reported as
`Damage`.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from trioha.errors import StoreError
from trioha.recording.layout import SESSION_FILE
from trioha.recording.reader import Segment, Session
from trioha_sessions.packed import PackedError, is_packed, read_packed
from trioha_sessions.segments import Damage, read_segments

_CHECKED_TOGETHER: Final = 8192


@frozen
class Records:
    """Records of a session in the order of their seq, and the damage of those left out."""

    array: NDArray[np.void]
    """Shape (n,); its fields are the session's."""
    damage: tuple[Damage, ...]


def record_dtype(session: Session) -> np.dtype[np.void]:
    """NumPy type of the session's records. Raises StoreError if its fields are not valid."""
    names, formats, offsets = zip(*session.fields, strict=True)
    try:
        return np.dtype(
            {
                "names": list(names),
                "formats": list(formats),
                "offsets": list(offsets),
                "itemsize": session.record_bytes,
            }
        )
    except (TypeError, ValueError) as error:
        raise StoreError(f"fields that make no record: {error}", path=session.path / SESSION_FILE) from None


def read_segment(
    session: Session, segment: Segment, *, first: int, count: int, scratch: bytearray | None = None
) -> Records:
    """Read up to `count` records of a segment from its `first` on: the unit of parallel work.

    Of a packed segment the check words are 0, and whole row groups are read (`trioha_sessions.packed`). If
    `scratch` is given and large enough, the records are read into it and valid until it is used again:
    reading into used memory takes a fraction of the time. Raises StoreError if the file does not exist.
    """
    dtype = record_dtype(session)
    count = max(0, min(count, segment.records - first))
    if is_packed(segment.path):
        try:
            packed = read_packed(segment.path, dtype, base_seq=segment.base_seq, first=first, count=count)
            return Records(packed, ())
        except PackedError as error:
            return Records(np.zeros(0, dtype), (Damage(str(segment.path), 0, str(error), count),))
    start = segment.header_bytes + first * session.record_bytes
    try:
        with segment.path.open("rb") as file:
            file.seek(start)
            data: bytes | memoryview
            if scratch is not None and len(scratch) >= count * session.record_bytes:
                target = memoryview(scratch)[: count * session.record_bytes]
                data = target[: file.readinto(target)]
            else:
                data = file.read(count * session.record_bytes)
    except OSError as error:
        raise StoreError(f"cannot be read: {error.strerror or error}", path=segment.path) from error
    whole = len(data) // session.record_bytes
    array = np.frombuffer(data, dtype=dtype, count=whole)
    words = np.frombuffer(data, dtype="<u8", count=whole * session.record_bytes // 8)
    faulty = _faulty(array, words.reshape(whole, session.record_bytes // 8), segment.base_seq + first)
    if not faulty.any():
        return Records(array, ())
    # One `Damage` for each run of bad records.
    edges = np.flatnonzero(np.diff(np.concatenate(([False], faulty, [False])).astype(np.int8)))
    damage = tuple(
        Damage(
            str(segment.path),
            start + int(begin) * session.record_bytes,
            "wrong check word or seq",
            int(end - begin),
        )
        for begin, end in edges.reshape(-1, 2)
    )
    return Records(array[~faulty], damage)


def _faulty(array: NDArray[np.void], words: NDArray[np.uint64], base_seq: int) -> NDArray[np.bool_]:
    """Which records have a wrong check word, or a seq that is not that of their place."""
    xor = np.zeros(len(words), np.uint64)
    # Some at a time, which stay in a processor's cache from column to column: half the time of all at once.
    for begin in range(0, len(words), _CHECKED_TOGETHER):
        some = slice(begin, begin + _CHECKED_TOGETHER)
        found, columns = xor[some], words[some].T
        for column in columns:
            np.bitwise_xor(found, column, out=found)
    wrong: NDArray[np.bool_] = (xor ^ (xor >> np.uint64(32))) & np.uint64(0xFFFF_FFFF) != 0
    wrong |= array["seq"] != base_seq + np.arange(len(array), dtype=np.int64)
    return wrong


def read_records(session: Session, *, seq_from: int = 0, seq_to: int | None = None) -> Records:
    """The records with `seq_from <= seq < seq_to` (to the end by default) that can be read.

    `damage` is that of the segments that were read, and of all unreadable ones.
    """
    found = read_segments(session)
    arrays: list[NDArray[np.void]] = []
    damage = list(found.damage)
    for segment in found.segments:
        first = max(0, seq_from - segment.base_seq)
        last = segment.records if seq_to is None else min(segment.records, seq_to - segment.base_seq)
        if first < last:
            records = read_segment(session, segment, first=first, count=last - first)
            arrays.append(records.array)
            damage += records.damage
    if not arrays:
        return Records(np.zeros(0, record_dtype(session)), tuple(damage))
    return Records(np.concatenate(arrays), tuple(damage))
