"""Ranges of seqs of a recorded session, across its segments, packed or not."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from trioha.recording.packed import BLOCK_RECORDS
from trioha.recording.reader import Damage, Segments, Session
from trioha.recording.records import read_segment


def end_seq(segments: Segments) -> int:
    """Seq after the last record; 0 without records."""
    last = segments.segments[-1:]
    return last[0].base_seq + last[0].records if last else 0


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
