"""The segments of a session: which there are, how many records they have, and what of them is damaged.

The session may still be written, or end within a record. Damage never stops a reader: what cannot be read is
left out and reported as `Damage`. A torn last record is not damage: that is how a killed recorder ends.
`trioha_sessions.records` reads the records themselves. Only packed segments need PyArrow.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from attrs import frozen

from trioha.numbers import I64, NATURAL64, parse_int
from trioha.recording.layout import (
    ACCEPTED_RECORDS_MAX,
    EVENTS_FOLDER,
    HEADER,
    HEADER_BYTES,
    MAGIC,
    PACKED_SUFFIX,
    VERSION,
    segment_name,
)
from trioha.recording.reader import CLOCK_NS, ListsSegments, Segment, Session
from trioha_sessions.packed import PackedError, describe, is_packed


@frozen
class Damage:
    """Something in a session that cannot be read."""

    path: str
    """The file."""
    position: int
    """Its first byte in the file."""
    reason: str
    """The kind of damage, in a few words."""
    records: int
    """How many records are lost; 0 if unknown."""


@frozen
class Segments:
    """The segments of a session in their order, and their damage."""

    segments: tuple[Segment, ...]
    damage: tuple[Damage, ...]

    @property
    def records(self) -> int:
        """Whole records in all of them."""
        return sum(segment.records for segment in self.segments)


def read_segments(session: Session, *, seq_from: int = 0) -> Segments:
    """The segments that exist now, packed or not; the last one may still grow.

    With `seq_from` those before the one that holds this seq, by their names, are left out unread. A segment
    has precedence over its packed file. Raises StoreError if one is packed and PyArrow is not installed.
    """
    found: dict[int, Segment] = {}
    damage: list[Damage] = []
    if isinstance(session.path, ListsSegments):
        listed = session.path.list_segments()
        first = max((at for at, one in enumerate(listed) if one.base_seq <= seq_from), default=0)
        return _in_order(listed[first:], damage)
    folder = session.path / EVENTS_FOLDER
    paths = (*sorted(folder.glob("*.seg")), *sorted(folder.glob(f"*{PACKED_SUFFIX}")))
    for path in _from(paths, seq_from) if seq_from > 0 else paths:
        segment = describe_segment(session, path)
        if isinstance(segment, Damage):
            damage.append(segment)
        else:
            found.setdefault(segment.base_seq, segment)
    return _in_order([found[base_seq] for base_seq in sorted(found)], damage)


def _in_order(segments: Sequence[Segment], damage: list[Damage]) -> Segments:
    """The segments, and the damage with what is missing between them."""
    for before, segment in pairwise(segments):
        expected_seq = before.base_seq + before.records
        missing = segment.base_seq - expected_seq
        if missing:
            reason = f"records {expected_seq} to {segment.base_seq - 1} are missing before this segment"
            if missing < 0:
                reason = f"begins at record {segment.base_seq}, which the segment before it has too"
            damage.append(Damage(str(segment.path), 0, reason, max(0, missing)))
    return Segments(tuple(segments), tuple(damage))


def _from(paths: Sequence[Path], seq_from: int) -> Iterator[Path]:
    """The paths of segments that may hold `seq_from` or later seqs, and those without a seq as a name."""
    bases = {path: int(path.stem) for path in paths if path.stem.isdecimal()}
    # Where segments overlap, the earlier one has the records: so the one before, too.
    begins = sorted(base for base in set(bases.values()) if base <= seq_from)[-2:]
    return (path for path in paths if bases.get(path, seq_from) >= min(begins, default=0))


def describe_segment(session: Session, path: Path) -> Segment | Damage:
    """A segment by its file, packed or not."""
    return _packed(path) if is_packed(path) else _segment(path, session.record_bytes)


def find_segment(session: Session, base_seq: int) -> Segment | Damage | None:
    """The segment of a name in the session's folder, packed or not; None if there is none any more."""
    folder = session.path / EVENTS_FOLDER
    for path in (folder / segment_name(base_seq), folder / f"{base_seq:020d}{PACKED_SUFFIX}"):
        if path.exists():
            return describe_segment(session, path)
    return None


def _packed(path: Path) -> Segment | Damage:
    try:
        base_ts_ns, records = describe(path)
        base_seq = parse_int(path.stem, NATURAL64)
        if not _may_hold(base_seq, records):
            raise ValueError(f"has {records} records from {base_seq} on, more than there can be")
        return Segment(path, base_seq, parse_int(base_ts_ns, CLOCK_NS), 0, records)
    except (PackedError, ValueError) as error:
        return Damage(str(path), 0, str(error), 0)


def _segment(path: Path, record_bytes: int) -> Segment | Damage:
    try:
        size_bytes = path.stat().st_size
        with path.open("rb") as file:
            header = file.read(HEADER_BYTES)
    except OSError as error:
        return Damage(str(path), 0, f"cannot be read: {error.strerror or error}", 0)
    if len(header) < HEADER_BYTES:
        # The recorder was killed between creating the segment and writing its header.
        return Damage(str(path), 0, f"a header of {len(header)} bytes", 0)
    magic, version, its_record_bytes, header_bytes, base_seq, base_ts_ns = HEADER.unpack(header)
    whole = max(0, size_bytes - HEADER_BYTES) // record_bytes
    if magic != MAGIC or version != VERSION:
        return Damage(str(path), 0, f"not a segment of version {VERSION}", whole)
    if its_record_bytes != record_bytes or header_bytes < HEADER_BYTES:
        return Damage(str(path), 10, f"records of {its_record_bytes} bytes, header of {header_bytes}", whole)
    if path.stem != f"{base_seq:020d}" or base_seq < 0:
        return Damage(str(path), 16, f"begins at record {base_seq}, which its name does not say", whole)
    if not CLOCK_NS.low <= base_ts_ns <= CLOCK_NS.high:
        return Damage(str(path), 24, f"begins at {base_ts_ns} ns, which no clock shows", whole)
    records = max(0, size_bytes - header_bytes) // record_bytes
    if not _may_hold(base_seq, records):
        return Damage(str(path), 0, f"has {records} records from {base_seq} on, more than there can be", 0)
    return Segment(path, base_seq, base_ts_ns, header_bytes, records)


def _may_hold(base_seq: int, records: int) -> bool:
    """Whether a segment can have so many records: loops over them depend on it."""
    return records <= ACCEPTED_RECORDS_MAX and base_seq <= I64.high - records
