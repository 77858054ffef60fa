"""Layout of the commit log's records, and the one walk that checks them.

See docs/protocol/store.md#records, docs/protocol/store.md#check-of-a-record.

A record, all integers big-endian and signed; B and S are 4 or 16 (IPv4 or IPv6 host), T is 1 (V1) or 2 (V2):

| field | type | at (IPv4/IPv4, V1) |
|---|---|---|
| totalSize | i32 | 0 |
| magic | i32 | 4 |
| bodyCRC | i32 | 8 |
| queueId | i32 | 12 |
| flag | i32 | 16 |
| queueOffset | i64 | 20 |
| physicalOffset | i64 | 28 |
| sysFlag | i32 | 36 |
| bornTimestamp | i64 | 40 |
| bornHost | B bytes + i32 port | 48 |
| storeTimestamp | i64 | 56 |
| storeHost | S bytes + i32 port | 64 |
| reconsumeTimes | i32 | 72 |
| preparedTransactionOffset | i64 | 76 |
| body | i32 length + bytes | 84 |
| topic | T length + bytes | 88 + body |
| properties | i16 length + bytes | |

A file that has no room for the next record ends with a blank: i32 bytes left, i32 BLANK magic, then filler up
to the file's end.

The functions are pure: from a buffer and indexes they compute numbers. Recovery, verification, replicas,
reads and dispatch all check records with `check_record`, but for common ones (V1, IPv4 hosts), which the
loops of `compiled_records.py` pass.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from mmap import mmap
from struct import Struct
from typing import Final

from attrs import frozen
from isal.isal_zlib import crc32

from trioha.numbers import I64
from trioha.store import compiled_records

Buffer = bytes | bytearray | memoryview | mmap

MAGIC_V1: Final = 0xDAA320A7
MAGIC_V2: Final = 0xDAA320AB
MAGIC_BLANK: Final = 0xCBD43194
MAGICS: Final = frozenset((MAGIC_V1, MAGIC_V2))
"""Of message records."""
_ALL_MAGICS: Final = MAGICS | {MAGIC_BLANK}

BORN_HOST_V6: Final = 0x10
STORE_HOST_V6: Final = 0x20
HOSTS_V6: Final = BORN_HOST_V6 | STORE_HOST_V6
TRANSACTION_MASK: Final = 0xC
TRANSACTION_PREPARED: Final = 0x4
TRANSACTION_ROLLBACK: Final = 0xC
CRC_MASK: Final = 0x7FFFFFFF
"""bodyCRC has no highest bit."""

BLANK: Final = Struct(">iI")
"""totalSize and magic: all of a blank's header, and the first fields of a record."""
BLANK_BYTES: Final = 8
"""At least this much always ends a full file."""
HEAD: Final = Struct(">iIiiiqqiq")
"""totalSize, magic, bodyCRC, queueId, flag, queueOffset, physicalOffset, sysFlag, bornTimestamp."""
HEAD_BYTES: Final = 48
BODY_AT_V4: Final = 88
"""Where the body starts if both hosts are IPv4."""
IPV6_EXTRA_BYTES: Final = 12
"""An IPv6 host is this much longer than an IPv4 one."""
RECORD_BYTES_MIN: Final = 91
"""Everything empty, IPv4 hosts, V1."""
TOPIC_BYTES_MAX_V1: Final = 127
TOPIC_BYTES_MAX_V2: Final = 32767

_STORE_TIMESTAMP_AT: Final = 56
_I16 = Struct(">h").unpack_from
_I32 = Struct(">i").unpack_from
_I64 = Struct(">q").unpack_from
_COMMON = Struct(">iIi16xqi44xi").unpack_from
"""totalSize, magic, bodyCRC, physicalOffset, sysFlag and (IPv4 hosts) bodyLength: what every check needs."""


_COPY_BYTES: Final = 128 * 1024
"""Compiled code reads `bytes`, so stretches of a log are copied for it: as much as stays in a core's
cache."""
_UNCOMMON_RECORDS_MAX: Final = 64
"""The most records that are checked one by one before a stretch is copied again."""


class FaultKind(IntEnum):
    """Results of `check_record` that are not a length."""

    TRUNCATED = -1
    """Fewer bytes are left than the record has."""
    BAD_MAGIC = -2
    """No record starts here: the zeros after the log's end, for instance, or a blank."""
    BAD_POSITION = -3
    """The record names another physical offset."""
    BAD_LENGTH = -4
    """The lengths in the record do not add up."""
    BAD_CRC = -5
    """The body is not what was stored."""


@frozen
class RecordFault:
    """Why the bytes at some place are not a whole valid record."""

    kind: FaultKind
    found: int
    """The field that shows it: totalSize, magic, physicalOffset or bodyCRC, by `kind`."""
    bytes_left: int
    """From the record's start to the end of what was looked at."""

    @property
    def reason(self) -> str:
        """One clause for people."""
        match self.kind:
            case FaultKind.TRUNCATED if self.bytes_left < BLANK_BYTES:
                return f"{self.bytes_left} bytes are left, a record has at least {RECORD_BYTES_MIN}"
            case FaultKind.TRUNCATED:
                return f"the record has {self.found} bytes, {self.bytes_left} are left"
            case FaultKind.BAD_MAGIC:
                return f"magic 0x{self.found:08X} is not a record's"
            case FaultKind.BAD_POSITION:
                return f"the record says that it stands at {self.found}"
            case FaultKind.BAD_LENGTH:
                return f"the lengths inside the record do not add up to its {self.found} bytes"
            case FaultKind.BAD_CRC:
                return f"the body's CRC is not the stored 0x{self.found:08X}"


# -- one record --------------------------------------------------------------------------------------------


def check_record(view: Buffer, at: int, end: int, physical_offset: int, *, check_crc: bool = True) -> int:
    """Length of the whole valid message record at `view[at:end]`, or one of the negative `FaultKind`s.

    `physical_offset` is what the record must name; -1 accepts any. A blank gives BAD_MAGIC. This is the check
    of docs/protocol/store.md#check-of-a-record, plus the position, which RocketMQ does not look at.
    """
    left = end - at
    if left < BLANK_BYTES:
        return FaultKind.TRUNCATED
    total_size, magic = BLANK.unpack_from(view, at)
    if magic not in MAGICS:
        return FaultKind.BAD_MAGIC
    if total_size > left:
        return FaultKind.TRUNCATED
    if total_size < RECORD_BYTES_MIN:
        return FaultKind.BAD_LENGTH
    _, _, crc, position, sys_flag, _ = _COMMON(view, at)
    if physical_offset not in {position, -1}:
        return FaultKind.BAD_POSITION
    body_at = body_start(at, sys_flag)
    record_end = at + total_size
    # The smallest body leaves room for the length fields of an empty topic and empty properties.
    if body_at + 3 > record_end:
        return FaultKind.BAD_LENGTH
    (body_length,) = _I32(view, body_at - 4)
    topic_at = body_at + body_length
    if body_length < 0 or topic_at + 3 + (magic == MAGIC_V2) > record_end:
        return FaultKind.BAD_LENGTH
    if magic == MAGIC_V1:
        topic_length = view[topic_at]
        properties_at = topic_at + 1 + topic_length
        if topic_length > TOPIC_BYTES_MAX_V1:
            return FaultKind.BAD_LENGTH
    else:
        (topic_length,) = _I16(view, topic_at)
        properties_at = topic_at + 2 + topic_length
        if topic_length < 0:
            return FaultKind.BAD_LENGTH
    if properties_at + 2 > record_end:
        return FaultKind.BAD_LENGTH
    (properties_length,) = _I16(view, properties_at)
    if properties_length < 0 or properties_at + 2 + properties_length != record_end:
        return FaultKind.BAD_LENGTH
    if check_crc and body_crc(view[body_at:topic_at]) != crc:
        return FaultKind.BAD_CRC
    return int(total_size)


def find_fault(
    view: Buffer, at: int, end: int, physical_offset: int, *, check_crc: bool = True
) -> RecordFault | None:
    """What is wrong with the record at `view[at:end]`, None for a valid one; as `check_record`."""
    result = check_record(view, at, end, physical_offset, check_crc=check_crc)
    return None if result > 0 else _fault(result, view, at, end)


def _fault(result: int, view: Buffer, at: int, end: int) -> RecordFault:
    kind = FaultKind(result)
    left = end - at
    if left < BLANK_BYTES:
        return RecordFault(kind, claimed_bytes(view, at, end), left)
    total_size, magic = BLANK.unpack_from(view, at)
    match kind:
        case FaultKind.BAD_MAGIC:
            return RecordFault(kind, magic, left)
        case FaultKind.BAD_POSITION:
            return RecordFault(kind, HEAD.unpack_from(view, at)[6], left)
        case FaultKind.BAD_CRC:
            return RecordFault(kind, HEAD.unpack_from(view, at)[2] & 0xFFFFFFFF, left)
    return RecordFault(kind, total_size, left)


def faulty_record_bytes(view: Buffer, fault: RecordFault) -> int | None:
    """Size of the record at the start of `view` that is whole but wrong inside; None where it may not be."""
    left = len(view)
    size = claimed_bytes(view, 0, left)
    if not RECORD_BYTES_MIN <= size <= left:
        return None
    followed = size == left or starts_record(view, size, left)
    return size if followed or fault.kind in {FaultKind.BAD_POSITION, FaultKind.BAD_CRC} else None


def claimed_bytes(view: Buffer, at: int, end: int) -> int:
    """Length that the record or blank at `view[at:end]` claims; 0 if its first 4 bytes are not all there."""
    return int(_I32(view, at)[0]) if end - at >= 4 else 0


def starts_blank(view: Buffer, at: int, end: int) -> bool:
    """Whether the header of a blank stands at `view[at:end]`."""
    return end - at >= BLANK_BYTES and bool(BLANK.unpack_from(view, at)[1] == MAGIC_BLANK)


def starts_record(view: Buffer, at: int, end: int) -> bool:
    """Whether the magic of a record or of a blank stands at `view[at:end]`."""
    return end - at >= BLANK_BYTES and BLANK.unpack_from(view, at)[1] in _ALL_MAGICS


def is_blank(view: Buffer, at: int, end: int) -> bool:
    """Whether a blank that fills the view to `end` starts at `at`."""
    return starts_blank(view, at, end) and bool(BLANK.unpack_from(view, at)[0] == end - at)


def record_bytes(
    *, body_bytes: int, topic_bytes: int, properties_bytes: int, version_2: bool, sys_flag: int
) -> int:
    """Length of the record that holds these."""
    # The two length fields have 3 bytes in V1, 4 in V2.
    return body_start(0, sys_flag) + body_bytes + 3 + version_2 + topic_bytes + properties_bytes


def body_crc(body: Buffer) -> int:
    """CRC-32 of the stored body without its highest bit; 0 for an empty body."""
    return crc32(body) & CRC_MASK


# -- fields of a record that was checked -------------------------------------------------------------------


def body_start(at: int, sys_flag: int) -> int:
    """Index of the body of the record at `at`."""
    if not sys_flag & HOSTS_V6:
        return at + BODY_AT_V4
    hosts_v6 = bool(sys_flag & BORN_HOST_V6) + bool(sys_flag & STORE_HOST_V6)
    return at + BODY_AT_V4 + IPV6_EXTRA_BYTES * hosts_v6


def body_span(view: Buffer, at: int) -> tuple[int, int]:
    """Where the record's body starts and ends."""
    start = body_start(at, HEAD.unpack_from(view, at)[7])
    return start, start + _I32(view, start - 4)[0]


def topic_span(view: Buffer, at: int) -> tuple[int, int]:
    """Where the record's topic starts and ends; its properties follow after their length of 2 bytes."""
    _, length_at = body_span(view, at)
    if BLANK.unpack_from(view, at)[1] == MAGIC_V2:
        return length_at + 2, length_at + 2 + _I16(view, length_at)[0]
    return length_at + 1, length_at + 1 + view[length_at]


def topic_of(view: Buffer, at: int) -> bytes:
    """The record's topic."""
    start, end = topic_span(view, at)
    return bytes(view[start:end])


def store_timestamp_ms(view: Buffer, at: int) -> int:
    """The record's storeTimestamp."""
    sys_flag = HEAD.unpack_from(view, at)[7]
    return int(_I64(view, at + _STORE_TIMESTAMP_AT + (IPV6_EXTRA_BYTES if sys_flag & BORN_HOST_V6 else 0))[0])


# -- records in a row --------------------------------------------------------------------------------------


@frozen
class ScanEnd:
    """Where a scan stopped, and why."""

    at: int
    """Index in the view after the last whole valid record (or a blank header's start)."""
    records: int
    """Whole valid records passed."""
    fault: RecordFault | None
    """What is wrong at `at`, an incomplete record included; None at the view's end, or at a blank."""
    blank: bool
    """A blank stands at `at`."""
    last_store_timestamp_ms: int
    """storeTimestamp of the last record passed, 0 if there was none."""


def scan_records(
    view: memoryview,
    at: int,
    end: int,
    physical_offset: int,
    *,
    check_crc: bool = True,
    on_record: Callable[[int, int], None] | None = None,
) -> ScanEnd:
    """Check records one after the other in `view[at:end]`; `view[at]` has `physical_offset`.

    Stops at the end, at a blank, or at the first bytes that are not a whole valid record. `on_record(at,
    size)` is called for each good one.
    """
    shift = physical_offset - at
    records = 0
    last_at = -1
    result = 0
    if on_record is None and end + shift <= I64.high:
        at, records, last_at = _pass_common(view, at, end, shift, check_crc=check_crc)
    while end - at >= RECORD_BYTES_MIN:
        result = check_record(view, at, end, at + shift, check_crc=check_crc)
        if result < 0:
            break
        if on_record is not None:
            on_record(at, result)
        last_at = at
        records += 1
        at += result
    return _scan_end(view, at, end, shift, records=records, last_at=last_at, result=result)


def is_records(view: memoryview, physical_offset: int, *, count: int) -> bool:
    """Whether `view` is `count` whole valid records, the first at `physical_offset`. Bodies are not checked.

    For a pull of 32 records half of what `scan_records` takes, since its end is not described.
    """
    size = len(view)
    if physical_offset + size <= I64.high:
        at, records, _ = _pass_common(view, 0, size, physical_offset, check_crc=False)
        return at == size and records == count
    scan = scan_records(view, 0, size, physical_offset, check_crc=False)
    return scan.at == size and scan.records == count


def _pass_common(view: memoryview, at: int, end: int, shift: int, *, check_crc: bool) -> tuple[int, int, int]:
    """Pass whole valid records, of which most are common, as `scan_records` does.

    Returns the index after them, how many they were, and the index of the last one, -1 without any. It stops
    at the first record that is not whole and valid.
    """
    walk = compiled_records.walk_records
    crc = crc32 if check_crc else None
    records = 0
    last_at = -1
    uncommon_records = 1
    while end - at >= RECORD_BYTES_MIN:
        size, passed, last = walk(bytes(view[at : min(at + _COPY_BYTES, end)]), at + shift, crc)
        if passed:
            records += passed
            last_at = at + last
            at += size
            uncommon_records = 1
            continue
        # Where uncommon or long records are usual, a copy for each would cost more than it saves.
        for _ in range(uncommon_records):
            size = check_record(view, at, end, at + shift, check_crc=check_crc)
            if size < 0:
                return at, records, last_at
            records += 1
            last_at = at
            at += size
        uncommon_records = min(uncommon_records * 2, _UNCOMMON_RECORDS_MAX)
    return at, records, last_at


def _scan_end(
    view: memoryview, at: int, end: int, shift: int, *, records: int, last_at: int, result: int
) -> ScanEnd:
    """`result` is that of the check at `at`, 0 or positive if there was none."""
    fault = None
    blank = at < end and starts_blank(view, at, end)
    if at < end and not blank:
        if result >= 0:
            result = check_record(view, at, end, at + shift, check_crc=False)
        fault = _fault(result, view, at, end)
    return ScanEnd(
        at=at,
        records=records,
        fault=fault,
        blank=blank,
        last_store_timestamp_ms=store_timestamp_ms(view, last_at) if last_at >= 0 else 0,
    )


def record_around(view: memoryview, target: int) -> tuple[int, bool]:
    """Where the record or blank that holds the byte at index `target` starts, and whether it is in the view.

    Walks from the one at the view's begin; if it is not in the view, the walk goes on at that index. Of a log
    whose records were checked: only their lengths are looked at.
    """
    at = 0
    while len(view) - at >= BLANK_BYTES:
        size, magic = BLANK.unpack_from(view, at)
        if at + size > target or magic == MAGIC_BLANK:
            return at, True
        assert size > 0, f"no record at index {at}"
        at += size
    return at, False
