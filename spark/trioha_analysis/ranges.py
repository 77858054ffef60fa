"""Ranges of seqs of a recorded session, across its segments, packed or not."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from trioha.numbers import NATURAL64
from trioha.recording.reader import ListsSegments, Segment, Session, open_session
from trioha_sessions.packed import BLOCK_RECORDS
from trioha_sessions.records import read_segment
from trioha_sessions.segments import Damage, Segments, find_segment, read_segments


@frozen
class SeqRange:
    """Seqs `[seq_from, seq_to)` of a session, and the segments that hold them."""

    seq_from: int
    seq_to: int | None
    """None: the session's end when it is read."""
    segments: tuple[Segment, ...]
    records: int
    """Records of the range that exist, damaged ones included."""


def cut_seqs(segments: Segments, seq_from: int, seq_to: int | None, *, range_records: int) -> list[SeqRange]:
    """Ranges that cover the seqs `[seq_from, seq_to)`, each but the last within one segment.

    The time is linear in segments and ranges. None if `seq_to` is not above `seq_from`.
    """
    if seq_to is not None and seq_to <= seq_from:
        return []
    cuts = {seq_from}
    for segment in segments.segments:
        cuts.update(
            seq
            for seq in range(segment.base_seq, segment.base_seq + segment.records, range_records)
            if seq_from < seq and (seq_to is None or seq < seq_to)
        )
    borders: list[int | None] = [*sorted(cuts), seq_to]
    ranges: list[SeqRange] = []
    begin = 0
    for first, last in zip(sorted(cuts), borders[1:], strict=True):
        while begin < len(segments.segments) and _end(segments.segments[begin]) <= first:
            begin += 1
        held: list[Segment] = []
        for segment in islice(segments.segments, begin, None):
            if last is not None and segment.base_seq >= last:
                break
            if _end(segment) > first:
                held.append(segment)
        records = count_seqs(Segments(tuple(held), ()), first, last)
        ranges.append(SeqRange(first, last, tuple(held), records))
    return ranges


def _end(segment: Segment) -> int:
    return segment.base_seq + segment.records


def end_seq(segments: Segments) -> int:
    """Seq after the last record; 0 without records."""
    last = segments.segments[-1:]
    return last[0].base_seq + last[0].records if last else 0


def session_end(path: Path) -> int:
    """Seq after the last record of the session folder `path`; 0 without records. Opens its last segments."""
    session = open_session(path)
    return end_seq(read_segments(session, seq_from=NATURAL64.high)) or end_seq(read_segments(session))


def same_segments(session: Session, segments: Segments) -> Segments:
    """Segments as they are now: packed or unpacked since, or gone. Only their files are opened.

    Segments of an archive do not change.
    """
    if isinstance(session.path, ListsSegments):
        return segments
    found: list[Segment] = []
    damage: list[Damage] = []
    for segment in segments.segments:
        now = find_segment(session, segment.base_seq)
        if isinstance(now, Damage):
            damage.append(now)
        elif now is not None:
            found.append(now)
    return Segments(tuple(found), tuple(damage))


def count_seqs(segments: Segments, seq_from: int, seq_to: int | None) -> int:
    """Number of existing records with `seq_from <= seq < seq_to` (None: to the end), damaged ones
    included."""
    records = 0
    for segment in segments.segments:
        end = segment.base_seq + segment.records
        records += max(0, (end if seq_to is None else min(end, seq_to)) - max(seq_from, segment.base_seq))
        seq_from = max(seq_from, end)
    return records


def read_seqs(
    session: Session, segments: Segments, *, seq_from: int, seq_to: int | None
) -> Iterator[NDArray[np.void] | Damage]:
    """Blocks of the records with `seq_from <= seq < seq_to` (None: to the end), and the damage.

    Raises StoreError if a listed segment no longer exists.
    """
    expected = seq_from
    for segment in segments.segments:
        # Where two segments overlap, the earlier one counts.
        first = max(expected, segment.base_seq) - segment.base_seq
        last = segment.records if seq_to is None else min(segment.records, seq_to - segment.base_seq)
        while first < last:
            # Each row group of a packed segment is read once, as a whole.
            end = min(last, (first // BLOCK_RECORDS + 1) * BLOCK_RECORDS)
            records = read_segment(session, segment, first=first, count=end - first)
            yield from records.damage
            yield records.array
            first = end
        expected = max(expected, segment.base_seq + last)
