"""Packed segments: sealed segments that `trioha session pack` wrote as Parquet.

`events/<20-digit base seq>.parquet` stands for the segment of that name: the same records, their fields as
columns, without the check word, which follows from them. Row groups hold `BLOCK_RECORDS` consecutive records
each, in any order. PyArrow, which the monitor's extra does not install, is imported when there is a packed
segment to read.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from trioha.errors import StoreError
from trioha.numbers import I64, parse_int
from trioha.recording.layout import PACKED_SUFFIX

if TYPE_CHECKING:
    from types import ModuleType

BASE_TS_KEY: Final = b"trioha.base_ts_ns"
"""Key of the file's metadata that holds the `base_ts_ns` of the segment's header."""
BLOCK_RECORDS: Final = 131_072
"""Records of a row group."""
CHECK: Final = "check"


class PackedError(Exception):
    """A packed segment that cannot be read; its text is the reason."""


def is_packed(path: Path) -> bool:
    """Whether a file of segments is a packed one, by its name."""
    return path.suffix == PACKED_SUFFIX


def describe(path: Path) -> tuple[int, int]:
    """Monotonic clock at the first record, and how many records there are.

    Raises PackedError if it is damaged, StoreError if PyArrow is not installed.
    """
    pq = _parquet(path)
    from pyarrow import ArrowException  # noqa: PLC0415 (the monitor's extra has none)

    try:
        with _opened(path) as file:
            metadata = pq.read_metadata(file)
        return parse_int(metadata.metadata[BASE_TS_KEY].decode(), I64), int(metadata.num_rows)
    except (OSError, ArrowException, KeyError, TypeError, ValueError) as error:
        raise PackedError(f"not a packed segment: {_line(error)}") from error


def read_packed(
    path: Path, dtype: np.dtype[np.void], *, base_seq: int, first: int, count: int
) -> NDArray[np.void]:
    """`count` records from the file's record `first` on, as `dtype`; check words are 0.

    `base_seq`: seq of the file's first record.

    Raises PackedError if it is damaged, StoreError if it was removed or PyArrow is not installed.
    """
    pq = _parquet(path)
    from pyarrow import ArrowException  # noqa: PLC0415

    assert dtype.names is not None
    names = [name for name in dtype.names if name != CHECK]
    records = np.zeros(count, dtype)
    try:
        with _opened(path) as opened, pq.ParquetFile(opened, pre_buffer=True) as file:
            row = 0
            for group in range(file.num_row_groups):
                rows = file.metadata.row_group(group).num_rows
                if rows > BLOCK_RECORDS:
                    # 1 KB of Parquet may stand for any number of equal rows.
                    raise PackedError(f"cannot be read: a row group has {rows} rows, at most {BLOCK_RECORDS}")
                begin, end = max(first, row), min(first + count, row + rows)
                if begin < end:
                    table = file.read_row_group(group, columns=names, use_threads=False)
                    seq = table["seq"].to_numpy()
                    # The group's seqs are consecutive, in any order.
                    place = np.zeros(rows, np.int64)
                    place[np.clip(seq - int(seq.min()), 0, rows - 1)] = np.arange(rows)
                    chosen = place[begin - row : end - row]
                    own = records[begin - first : end - first]
                    for name in names:
                        own[name] = table[name].to_numpy()[chosen]
                row += rows
    except FileNotFoundError:
        raise StoreError("is gone since it was listed", path=path) from None
    except (OSError, ArrowException, KeyError, ValueError) as error:
        raise PackedError(f"cannot be read: {_line(error)}") from error
    if not (records["seq"] == np.arange(count) + (base_seq + first)).all():
        raise PackedError("cannot be read: it holds other records than its name says")
    return records


@contextmanager
def _opened(path: Path) -> Iterator[Path | IO[bytes]]:
    """What PyArrow reads: a file of this machine by its path, which is fastest, others through Python."""
    # Of an archive, it only stands for a path.
    is_object: bool = not isinstance(path, Path)
    if is_object:
        with path.open("rb") as file:
            yield file
    else:
        yield path


def _parquet(path: Path) -> ModuleType:
    try:
        from pyarrow import parquet  # noqa: PLC0415
    except ModuleNotFoundError:
        raise StoreError(
            "is packed, and pyarrow, which reads it, is not installed",
            path=path,
            hint="pip install pyarrow, or `trioha session unpack` where it is",
        ) from None
    module: ModuleType = parquet
    return module


def _line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
