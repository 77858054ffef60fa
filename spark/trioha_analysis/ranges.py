"""Stretches of a recorded session, by seq, across its segments and packed segments."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from trioha.recording.packed import BLOCK_RECORDS
from trioha.recording.reader import Damage, Segments, Session
from trioha.recording.records import read_segment


def end_seq(segments: Segments) -> int:
    """Seq behind the last record that is there, 0 if there is none."""
    last = segments.segments[-1:]
    return last[0].base_seq + last[0].records if last else 0


def count_seqs(segments: Segments, seq_from: int, seq_to: int | None) -> int:
    """How many records `[seq_from, seq_to)` (None: to the end) are there, damaged ones included."""
    records = 0
    for segment in segments.segments:
        end = segment.base_seq + segment.records
        records += max(0, (end if seq_to is None else min(end, seq_to)) - max(seq_from, segment.base_seq))
        seq_from = max(seq_from, end)
    return records


def read_seqs(
    session: Session, segments: Segments, *, seq_from: int, seq_to: int | None
) -> Iterator[NDArray[np.void] | Damage]:
    """The records with `seq_from <= seq < seq_to` (None: to the end), some at a time, without damaged ones.

    Raises StoreError if a segment is gone since it was listed.
    """
    expected = seq_from
    for segment in segments.segments:
        # Where two segments overlap, what comes first counts.
        first = max(expected, segment.base_seq) - segment.base_seq
        last = segment.records if seq_to is None else min(segment.records, seq_to - segment.base_seq)
        while first < last:
            # Row groups of packed ones are read whole, each once.
            end = min(last, (first // BLOCK_RECORDS + 1) * BLOCK_RECORDS)
            records = read_segment(session, segment, first=first, count=end - first)
            yield from records.damage
            yield records.array
            first = end
        expected = max(expected, segment.base_seq + last)
