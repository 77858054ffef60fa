"""Packs segments of recorded sessions into Parquet for archiving, and unpacks them, byte for byte.

A packed segment has the fields of a segment as columns, without the check word, which is derived from them.
Row groups hold consecutive seqs, sorted by kind and connection: neighbouring values are then similar and
compress better. `seq` restores the order.

A segment is deleted only after its packed file has been read back and has given the same bytes.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from attrs import evolve, frozen

from trioha.errors import StoreError
from trioha.recording.layout import CLOSED_NOTE, EVENTS_FOLDER, PACKED_SUFFIX, encode_header, segment_name
from trioha.recording.reader import Segment, Session
from trioha.store.syncing import sync_directory, sync_whole
from trioha_sessions.facts import read_facts
from trioha_sessions.packed import BASE_TS_KEY, BLOCK_RECORDS, CHECK, PackedError, is_packed, read_packed
from trioha_sessions.records import read_segment, record_dtype
from trioha_sessions.segments import read_segments

COMPRESSION_LEVEL: Final = 3
"""Of zstd: level 9 takes twice as long and saves one per cent."""
_LONG_DICTIONARIES: Final = ("kind", "flags", "node")


@frozen
class Packed:
    """A segment that was packed or unpacked."""

    source: Path
    target: Path
    records: int
    source_bytes: int
    target_bytes: int


def sealed_segments(session: Session, *, every: bool = False) -> list[Segment]:
    """Unpacked segments without a writer: all but the last, and the last if the session was closed.

    `every` includes the last one: for sessions whose recorder was killed.
    """
    segments = list(read_segments(session).segments)
    facts, _ = read_facts(session)
    is_closed = any(fact.type_ == "note" and fact.fields.get("text") == CLOSED_NOTE for fact in facts[-1:])
    sealed = segments if every or is_closed else segments[:-1]
    return [segment for segment in sealed if segment.records and not is_packed(segment.path)]


def packed_segments(session: Session) -> list[Segment]:
    """Packed segments whose unpacked file does not exist."""
    return [segment for segment in read_segments(session).segments if is_packed(segment.path)]


def pack_segment(session: Session, segment: Segment, *, keep: bool = False) -> Packed:
    """Write a segment's packed file, and delete the segment unless `keep`.

    Raises StoreError, and changes nothing, if a record of it is damaged or the disk fails.
    """
    records = read_segment(session, segment, first=0, count=segment.records)
    if records.damage:
        first = records.damage[0]
        raise StoreError(
            f"not packed: {first.reason}", path=segment.path, offset=first.position, hint="it stays as it is"
        )

    def write(path: Path) -> None:
        _write_parquet(path, records.array, segment.base_ts_ns)
        if _unpacked_bytes(session, evolve(segment, path=path)) != records.array.tobytes():
            raise StoreError("not packed: its records have bytes that no field names", path=segment.path)

    return _convert(segment, segment.path.with_suffix(PACKED_SUFFIX), write, verb="packed", keep=keep)


def pack_copy(session: Session, segment: Segment, target: Path) -> np.ndarray[Any, Any]:
    """Write a segment's packed file to `target`, wherever that is; the segment stays. Returns its records.

    A packed segment is copied. Raises StoreError if a record of it is damaged or the disk fails.
    """
    records = read_segment(session, segment, first=0, count=segment.records)
    if records.damage:
        raise StoreError(f"not packed: {records.damage[0].reason}", path=segment.path)
    try:
        if is_packed(segment.path):
            shutil.copyfile(segment.path, target)
        else:
            _write_parquet(target, records.array, segment.base_ts_ns)
            copy = evolve(segment, path=target)
            if _unpacked_bytes(session, copy) != records.array.tobytes():
                raise StoreError("not packed: its records have bytes that no field names", path=segment.path)
    except OSError as error:
        raise StoreError(f"cannot be packed: {error.strerror or error}", path=segment.path) from error
    return records.array


def unpack_segment(session: Session, segment: Segment) -> Packed:
    """Write the segment that was packed, and delete the packed file. Raises StoreError, and changes
    nothing."""

    def write(path: Path) -> None:
        header = encode_header(base_seq=segment.base_seq, base_ts_ns=segment.base_ts_ns)
        path.write_bytes(header + _unpacked_bytes(session, segment))

    target = session.path / EVENTS_FOLDER / segment_name(segment.base_seq)
    return _convert(segment, target, write, verb="unpacked")


def _convert(
    segment: Segment, target: Path, write: Callable[[Path], None], *, verb: str, keep: bool = False
) -> Packed:
    """Write `target` through a temporary file, and delete the segment's file unless `keep`."""
    source = segment.path
    part = target.with_name(f".{target.name}.tmp")
    try:
        write(part)
        with part.open("rb") as file:
            sync_whole(file.fileno())
        source_bytes, target_bytes = source.stat().st_size, part.stat().st_size
        part.replace(target)
        sync_directory(target.parent)
        if not keep:
            source.unlink()
    except PackedError as error:
        raise StoreError(f"not {verb}: it {error}", path=source, hint="it stays as it is") from error
    except OSError as error:
        raise StoreError(f"cannot be {verb}: {error.strerror or error}", path=source) from error
    finally:
        part.unlink(missing_ok=True)
    return Packed(source, target, segment.records, source_bytes, target_bytes)


def _write_parquet(path: Path, records: np.ndarray[Any, Any], base_ts_ns: int) -> None:
    names = [name for name in records.dtype.names or () if name != CHECK]
    delta = {name: "DELTA_BINARY_PACKED" for name in names if name not in _LONG_DICTIONARIES}
    schema = pa.schema([(name, pa.from_numpy_dtype(records.dtype[name])) for name in names])
    with pq.ParquetWriter(
        path,
        schema,
        compression="zstd",
        compression_level=COMPRESSION_LEVEL,
        use_dictionary=[name for name in names if name in _LONG_DICTIONARIES],
        column_encoding={name: encoding for name, encoding in delta.items() if _is_int(records.dtype[name])},
        write_statistics=["seq", "ts_ns", "kind"],
        # Arrow's own schema would add a tenth to a small session.
        store_schema=False,
    ) as writer:
        writer.add_key_value_metadata({BASE_TS_KEY: str(base_ts_ns)})
        for first in range(0, len(records), BLOCK_RECORDS):
            block = records[first : first + BLOCK_RECORDS]
            block = block[np.lexsort((block["seq"], block["conn"], block["kind"]))]
            columns = [pa.array(np.ascontiguousarray(block[name])) for name in names]
            writer.write_table(pa.Table.from_arrays(columns, schema=schema), row_group_size=BLOCK_RECORDS)


def _is_int(dtype: np.dtype[Any]) -> bool:
    """Whether Parquet can delta-encode it."""
    return dtype.kind in "iu" and dtype.itemsize in {4, 8}


def _unpacked_bytes(session: Session, packed: Segment) -> bytes:
    """Bytes of the unpacked segment, without the header."""
    records = read_packed(
        packed.path, record_dtype(session), base_seq=packed.base_seq, first=0, count=packed.records
    )
    words = records.view(np.uint32).reshape(len(records), -1)
    records[CHECK] = np.bitwise_xor.reduce(words, axis=1)
    return records.tobytes()
