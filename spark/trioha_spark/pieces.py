"""The pieces of a recorded session: segments as they were recorded, and packed ones (Parquet), alike.

A packed piece `events/<20-digit base seq>.parquet` stands for the segment of that name: the same records in
columns, without the check word, which follows from them. Where both are there, the segment counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from attrs import frozen
from numpy.typing import NDArray

from trioha.errors import StoreError
from trioha.recording.layout import EVENTS_FOLDER, PACKED_SUFFIX
from trioha.recording.reader import Damage, Segment, Session, read_segments
from trioha.recording.records import read_segment, record_dtype

BASE_TS_KEY: Final = b"trioha.base_ts_ns"
"""Key of a packed piece's metadata: what its segment's header said."""
BLOCK_RECORDS: Final = 131_072
"""Records that are read at a time."""
CHECK: Final = "check"


@frozen
class Piece:
    """Some records of a session, in one file."""

    segment: Segment
    """Of a packed piece its header_bytes are 0."""
    is_packed: bool

    @property
    def base_seq(self) -> int:
        """Seq of its first record."""
        return self.segment.base_seq

    @property
    def end_seq(self) -> int:
        """Seq behind its last record."""
        return self.segment.base_seq + self.segment.records


@frozen
class Pieces:
    """The pieces of a session in the order of their seq, and what is wrong with them."""

    pieces: tuple[Piece, ...]
    damage: tuple[Damage, ...]

    @property
    def end_seq(self) -> int:
        """Seq behind the last record that is there, 0 if there is none."""
        return self.pieces[-1].end_seq if self.pieces else 0

    def count(self, seq_from: int, seq_to: int | None) -> int:
        """How many records `[seq_from, seq_to)` (None: to the end) are there, damaged ones included."""
        records = 0
        for piece in self.pieces:
            last = piece.end_seq if seq_to is None else min(piece.end_seq, seq_to)
            records += max(0, last - max(seq_from, piece.base_seq))
            seq_from = max(seq_from, piece.end_seq)
        return records


def list_pieces(session: Session) -> Pieces:
    """The pieces that are there now."""
    found = read_segments(session)
    pieces = {segment.base_seq: Piece(segment, False) for segment in found.segments}
    # What is missing between segments may be there packed: looked at again below.
    whole = {str(segment.path) for segment in found.segments}
    damage = [
        each for each in found.damage if each.path not in whole and not each.path.endswith(PACKED_SUFFIX)
    ]
    for path in sorted((session.path / EVENTS_FOLDER).glob(f"*{PACKED_SUFFIX}")):
        packed = _packed(path)
        if isinstance(packed, Damage):
            damage.append(packed)
        else:
            pieces.setdefault(packed.base_seq, packed)
    in_order = [pieces[base_seq] for base_seq in sorted(pieces)]
    for before, piece in pairwise(in_order):
        missing = piece.base_seq - before.end_seq
        if missing:
            reason = f"records {before.end_seq} to {piece.base_seq - 1} are missing before this segment"
            if missing < 0:
                reason = f"begins at record {piece.base_seq}, which the segment before it has too"
            damage.append(Damage(str(piece.segment.path), 0, reason, max(0, missing)))
    return Pieces(tuple(in_order), tuple(damage))


def _packed(path: Path) -> Piece | Damage:
    try:
        metadata = pq.read_metadata(path)
        base_ts_ns = int(metadata.metadata[BASE_TS_KEY])
        return Piece(Segment(path, int(path.stem), base_ts_ns, 0, metadata.num_rows), True)
    except (OSError, pa.ArrowException, KeyError, TypeError, ValueError) as error:
        return Damage(str(path), 0, f"not a packed segment: {str(error).splitlines()[0]}", 0)


def read_piece(
    session: Session, piece: Piece, *, first: int, count: int
) -> Iterator[NDArray[np.void] | Damage]:
    """Up to `count` records of a piece from its `first` on, some at a time, without their damaged ones.

    Of a packed piece the check words are 0. Raises StoreError if the file is gone.
    """
    count = max(0, min(count, piece.segment.records - first))
    if not piece.is_packed:
        for start in range(first, first + count, BLOCK_RECORDS):
            block = min(BLOCK_RECORDS, first + count - start)
            records = read_segment(session, piece.segment, first=start, count=block)
            yield from records.damage
            yield records.array
        return
    try:
        yield from _read_packed(session, piece, first, count)
    except FileNotFoundError:
        raise StoreError("is gone since it was listed", path=piece.segment.path) from None
    except (OSError, pa.ArrowException, KeyError, ValueError) as error:
        reason = f"cannot be read: {str(error).splitlines()[0]}"
        yield Damage(str(piece.segment.path), 0, reason, count)


def _read_packed(session: Session, piece: Piece, first: int, count: int) -> Iterator[NDArray[np.void]]:
    dtype = record_dtype(session)
    assert dtype.names is not None
    names = [name for name in dtype.names if name != CHECK]
    with pq.ParquetFile(piece.segment.path) as file:
        row = 0
        for group in range(file.num_row_groups):
            rows = file.metadata.row_group(group).num_rows
            begin, end = max(first, row), min(first + count, row + rows)
            if begin < end:
                table = file.read_row_group(group, columns=names, use_threads=False)
                records = np.zeros(end - begin, dtype)
                # A group holds consecutive seqs in any order.
                order = np.argsort(table["seq"].to_numpy())[begin - row : end - row]
                for name in names:
                    records[name] = table[name].to_numpy()[order]
                if not (records["seq"] == np.arange(begin, end) + piece.base_seq).all():
                    raise ValueError("it holds other records than its name says")
                yield records
            row += rows


def read_seqs(
    session: Session, pieces: Pieces, *, seq_from: int, seq_to: int | None
) -> Iterator[NDArray[np.void] | Damage]:
    """The records with `seq_from <= seq < seq_to` (None: to the end), some at a time, of all pieces."""
    expected = seq_from
    for piece in pieces.pieces:
        # Where two pieces overlap, what comes first counts.
        first = max(expected, piece.base_seq)
        last = piece.end_seq if seq_to is None else min(piece.end_seq, seq_to)
        if first < last:
            yield from read_piece(session, piece, first=first - piece.base_seq, count=last - first)
            expected = last


def whole(records: NDArray[np.void]) -> NDArray[np.void]:
    """The records with their check words."""
    records = np.ascontiguousarray(records)
    records[CHECK] = 0
    words = records.view(np.uint32).reshape(len(records), records.dtype.itemsize // 4)
    records[CHECK] = np.bitwise_xor.reduce(words, axis=1)
    return records
