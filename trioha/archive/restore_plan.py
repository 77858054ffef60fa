"""What a restore writes: decided once from the archive, and kept in a marker file until all is on disk."""

from __future__ import annotations

import json
from typing import Final

from attrs import asdict, frozen

from trioha.archive.bounds import FILE_BYTES
from trioha.archive.checked_log import checked_extents
from trioha.archive.errors import ArchiveError
from trioha.archive.layout import Generation
from trioha.archive.reader import ArchiveReader, Selection
from trioha.numbers import NATURAL64, parse_int
from trioha.store.record_layout import scan_records, store_timestamp_ms

_MARKER_FORMAT: Final = "trioha-restore"


@frozen(kw_only=True)
class Target:
    """Which range of a generation's log is restored; everything by default."""

    to_offset: int | None = None
    """Records that end at or before this offset."""
    to_ms: int | None = None
    """Records before the first one that was stored after this time, ms since 1970."""


@frozen(kw_only=True)
class Plan:
    """What a restore writes: decided once, also for the runs that resume it."""

    url: str
    cluster_name: str
    broker_name: str
    generation: str
    file_bytes: int
    target: Target
    first_offset: int
    """Start of the first log file."""
    end_offset: int
    """End of the restored log: that of a record, or of a blank."""

    @property
    def log_bytes(self) -> int:
        """Size of the log to be restored."""
        return self.end_offset - self.first_offset

    @property
    def files(self) -> range:
        """Start offsets of the log files."""
        return range(self.first_offset, self.end_offset, self.file_bytes)


def plan_of(reader: ArchiveReader, target: Target, *, generation_id: str | None, latest_ms: int) -> Plan:
    """What to restore of a generation, by default the newest one. Reads the one object that the end is in.

    No record was stored after `latest_ms`, whatever time it claims. Raises ArchiveError, also if no whole
    log file would be restored.
    """
    generation = reader.generation(generation_id)
    file_bytes = generation.file_bytes
    url = reader.folder.url
    # A store's log begins with a file: one whose first records are not archived any more is left out.
    first_offset = -(-generation.first_offset // file_bytes) * file_bytes
    end_offset = _end_offset(reader, generation, target, latest_ms)
    if end_offset <= first_offset:
        what = {
            (False, False): "nothing is archived yet",
            (True, False): f"no record ends at or before offset {target.to_offset}",
            (False, True): f"no record was stored by {target.to_ms} ms",
        }[target.to_offset is not None, target.to_ms is not None]
        raise ArchiveError(
            f"{what}: generation {generation.id} has whole log files from offset {first_offset} on",
            url=url,
            hint="trioha restore URL --list shows what there is",
        )
    return Plan(
        url=trimmed(url),
        cluster_name=reader.head.cluster_name,
        broker_name=reader.head.broker_name,
        generation=generation.id,
        file_bytes=file_bytes,
        target=target,
        first_offset=first_offset,
        end_offset=end_offset,
    )


def _end_offset(reader: ArchiveReader, generation: Generation, target: Target, latest_ms: int) -> int:
    """Where the log of `target` ends."""
    assert target.to_offset is None or target.to_ms is None, "a target is an offset or a time"
    if target.to_ms is not None:
        return _first_stored_after(reader, generation, target.to_ms, latest_ms)
    end_offset = generation.end_offset
    if target.to_offset is None:
        return end_offset
    if target.to_offset > end_offset:
        raise ArchiveError(
            f"generation {generation.id} ends at offset {end_offset}, before {target.to_offset}",
            url=reader.folder.url,
            hint="--latest restores all of it",
        )
    at = target.to_offset
    for one in reader.objects(generation, Selection(first_offset=at - 1, end_offset=at)):
        if one.end_offset == at:
            return at
        for extent in checked_extents(reader.folder, one, file_bytes=generation.file_bytes):
            if extent.is_blank:
                return extent.offset
            if extent.end_offset > at:
                found = scan_records(extent.data, 0, max(at - extent.offset, 0), extent.offset)
                return extent.offset + found.at
    return generation.first_offset


def _first_stored_after(reader: ArchiveReader, generation: Generation, time_ms: int, latest_ms: int) -> int:
    """Offset of the first record stored after `time_ms`; the end if there is none.

    One that was stored after the present, as it says, is not looked at: a clock was wrong.
    """
    for one in reader.objects(generation, Selection(from_ms=time_ms + 1)):
        for extent in checked_extents(reader.folder, one, file_bytes=generation.file_bytes):
            if extent.is_blank:
                continue
            found: list[int] = []

            def look(at: int, _size: int, view: memoryview = extent.data, found: list[int] = found) -> None:
                if not found and time_ms < store_timestamp_ms(view, at) <= latest_ms:
                    found.append(at)

            scan_records(extent.data, 0, len(extent.data), extent.offset, check_crc=False, on_record=look)
            if found:
                return extent.offset + found[0]
    return generation.end_offset


def trimmed(url: str) -> str:
    """The URL as plans have it."""
    return url.rstrip("/")


def described(target: Target) -> str:
    """A target in words."""
    if target.to_offset is not None:
        return f"to offset {target.to_offset}"
    return "to its end" if target.to_ms is None else f"to {target.to_ms} ms"


def encode_marker(plan: Plan) -> bytes:
    """The content of the marker file of a restore that has begun."""
    return json.dumps({"format": _MARKER_FORMAT, "version": 1, **asdict(plan)}, indent=1).encode() + b"\n"


def decode_marker(data: bytes) -> Plan:
    """The plan of a marker file. Raises ValueError."""
    value = json.loads(data)
    if not isinstance(value, dict) or value.pop("format", None) != _MARKER_FORMAT:
        raise ValueError(f"its format is not {_MARKER_FORMAT}")
    if value.pop("version", None) != 1:
        raise ValueError("it is of another version of trioha")
    target = value.pop("target", None)
    try:
        plan = Plan(target=Target(**target), **value)
    except TypeError as error:
        raise ValueError(str(error)) from error
    parse_int(plan.file_bytes, FILE_BYTES)
    for number in (plan.first_offset, plan.end_offset):
        parse_int(number, NATURAL64)
    return plan
