"""Walk over the records of a log: recovery, verification and replicas check them with this one loop."""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct

from attrs import frozen
from isal.isal_zlib import crc32

from trioha.store.record import (
    BAD_LENGTH,
    BLANK,
    BLANK_BYTES,
    BODY_AT_V4,
    BORN_HOST_V6,
    HEAD,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_BYTES_MIN,
    STORE_HOST_V6,
    check_record,
)

_COMMON = Struct(">iIi16xqi44xi").unpack_from
"""totalSize, magic, bodyCRC, physicalOffset, sysFlag and (IPv4 hosts) bodyLength: what every check needs."""
_BOUNDARY = Struct(">iI20xq").unpack_from
"""totalSize, magic, physicalOffset."""
_I32 = Struct(">i").unpack_from
_I64 = Struct(">q").unpack_from
_I16 = Struct(">h").unpack_from
_STORE_TIMESTAMP_AT = 56
_IPV6_EXTRA_BYTES = 12


@frozen
class ScanEnd:
    """Where a scan stopped, and why."""

    at: int
    """Index in the view behind the last whole valid record (or blank header's start)."""
    records: int
    """Whole valid records passed."""
    fault: int
    """0 if the view ended between two records, else a fault of `check_record` (an incomplete record too)."""
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

    Stops at the end, at a blank, or at the first bytes that are no whole valid record. `on_record(at, size)`
    is called for each good one. About 0.45 us a record plus its CRC: this loop is what recovery and a
    checking replica cost, so the common record (V1, IPv4) is checked without a call.
    """
    shift = physical_offset - at
    records = 0
    last_at = -1
    fault = 0
    blank = False
    common = _COMMON
    i16 = _I16
    while at < end:
        if end - at < RECORD_BYTES_MIN:
            if end - at >= BLANK_BYTES and BLANK.unpack_from(view, at)[1] == MAGIC_BLANK:
                blank = True
            else:
                fault = check_record(view, at, end, at + shift)
            break
        size, magic, crc, position, sys_flag, body_bytes = common(view, at)
        if magic == MAGIC_V1 and not sys_flag & 0x30:
            record_end = at + size
            if size < RECORD_BYTES_MIN or record_end > end or position - shift != at:
                fault = check_record(view, at, end, at + shift)
                break
            body_at = at + BODY_AT_V4
            topic_at = body_at + body_bytes
            if body_bytes < 0 or topic_at + 3 > record_end:
                fault = BAD_LENGTH
                break
            topic_bytes = view[topic_at]
            properties_at = topic_at + 3 + topic_bytes
            if (
                properties_at > record_end
                or topic_bytes > 127
                or properties_at + i16(view, properties_at - 2)[0] != record_end
            ):
                fault = BAD_LENGTH
                break
            if check_crc and crc32(view[body_at:topic_at]) & 0x7FFFFFFF != crc:
                fault = check_record(view, at, end, at + shift)
                break
        elif magic == MAGIC_BLANK:
            blank = True
            break
        else:
            size = check_record(view, at, end, at + shift, check_crc=check_crc)
            if size < 0:
                fault = size
                break
        if on_record is not None:
            on_record(at, size)
        last_at = at
        records += 1
        at += size
    return ScanEnd(
        at=at,
        records=records,
        fault=fault,
        blank=blank,
        last_store_timestamp_ms=store_timestamp_ms(view, last_at) if last_at >= 0 else 0,
    )


def scan_boundaries(view: memoryview, at: int, end: int, physical_offset: int) -> ScanEnd:
    """As `scan_records`, but of each record only length, magic and physical offset are looked at.

    What it passes are whole records as far as their lengths say; what is in them is left to be checked by
    whoever reads them next. A wrong length shows at the record behind it; of the last one, which has none
    yet, the lengths inside are checked, too. About 0.15 us a record.
    """
    shift = physical_offset - at
    records = 0
    last_at = -1
    fault = 0
    blank = False
    boundary = _BOUNDARY
    fields_end = end - RECORD_BYTES_MIN
    while at <= fields_end:
        size, magic, position = boundary(view, at)
        record_end = at + size
        if (
            (magic != MAGIC_V1 and magic != MAGIC_V2)  # noqa: PLR1714 - a set takes half as long again
            or position - shift != at
            or record_end > end
            or size < RECORD_BYTES_MIN
        ):
            break
        records += 1
        last_at = at
        at = record_end
    if last_at >= 0:
        fault = min(check_record(view, last_at, at, last_at + shift, check_crc=False), 0)
    if fault:
        # The time of the record before it is not known here: that of the faulty one may be wrong.
        return ScanEnd(at=last_at, records=records - 1, fault=fault, blank=False, last_store_timestamp_ms=0)
    if at < end:
        if end - at >= BLANK_BYTES and BLANK.unpack_from(view, at)[1] == MAGIC_BLANK:
            blank = True
        else:
            # No record, or a part of one: the usual check says what is wrong.
            fault = check_record(view, at, end, at + shift, check_crc=False)
            assert fault < 0, f"the record at {at + shift} is whole"
    return ScanEnd(
        at=at,
        records=records,
        fault=fault,
        blank=blank,
        last_store_timestamp_ms=store_timestamp_ms(view, last_at) if last_at >= 0 else 0,
    )


def store_timestamp_ms(view: memoryview, at: int) -> int:
    """storeTimestamp of the record at `at`."""
    sys_flag = HEAD.unpack_from(view, at)[7]
    return int(
        _I64(view, at + _STORE_TIMESTAMP_AT + (_IPV6_EXTRA_BYTES if sys_flag & BORN_HOST_V6 else 0))[0]
    )


def topic_of(view: memoryview, at: int) -> bytes:
    """Topic bytes of the checked record at `at`."""
    _, magic, _, _, _, _, _, sys_flag, _ = HEAD.unpack_from(view, at)
    body_at = at + BODY_AT_V4
    if sys_flag & BORN_HOST_V6:
        body_at += _IPV6_EXTRA_BYTES
    if sys_flag & STORE_HOST_V6:
        body_at += _IPV6_EXTRA_BYTES
    topic_at = body_at + _I32(view, body_at - 4)[0]
    if magic == MAGIC_V2:
        return bytes(view[topic_at + 2 : topic_at + 2 + _I16(view, topic_at)[0]])
    return bytes(view[topic_at + 1 : topic_at + 1 + view[topic_at]])


def is_blank(view: memoryview, at: int, end: int) -> bool:
    """Whether a blank that fills the view to `end` starts at `at`."""
    if end - at < BLANK_BYTES:
        return False
    size, magic = BLANK.unpack_from(view, at)
    return bool(magic == MAGIC_BLANK and size == end - at)
