"""The commit log's record codec (spec store 2).

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

Where a record does not fit a file any more, 8 bytes end it: i32 bytes left, i32 BLANK magic; whatever stands
behind them up to the file's end is filler.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address
from struct import Struct

from attrs import Factory, field, frozen
from isal.isal_zlib import crc32

from trioha.errors import TriohaError

MAGIC_V1 = 0xDAA320A7
MAGIC_V2 = 0xDAA320AB
MAGIC_BLANK = 0xCBD43194

BORN_HOST_V6 = 0x10
STORE_HOST_V6 = 0x20
TRANSACTION_MASK = 0xC
TRANSACTION_PREPARED = 0x4
TRANSACTION_ROLLBACK = 0xC

BLANK = Struct(">iI")
BLANK_BYTES = 8
"""At least this much always ends a full file."""

HEAD = Struct(">iIiiiqqiq")
"""totalSize, magic, bodyCRC, queueId, flag, queueOffset, physicalOffset, sysFlag, bornTimestamp."""
HEAD_BYTES = 48
MIDDLE_V4 = Struct(">4siq4siiqi")
"""bornHost, port, storeTimestamp, storeHost, port, reconsumeTimes, preparedTransactionOffset, bodyLength."""
BODY_AT_V4 = HEAD_BYTES + MIDDLE_V4.size
_PORT_AND_TIME = Struct(">iq")
_PORT = Struct(">i")
_TAIL = Struct(">iqi")
_I64 = Struct(">q")
_I16 = Struct(">h")
_TOPIC_LENGTH_V1 = Struct(">b")

RECORD_BYTES_MIN = 91
"""Everything empty, IPv4 hosts, V1."""
TOPIC_BYTES_MAX_V1 = 127
TOPIC_BYTES_MAX_V2 = 32767
_IPV6_EXTRA_BYTES = 12

Address = IPv4Address | IPv6Address


class RecordError(TriohaError):
    """Bytes that are no whole, valid record."""


@frozen
class Host:
    """An IP address and port as a record holds them."""

    address: Address
    port: int
    is_ipv6: bool = field(
        init=False,
        eq=False,
        repr=False,
        default=Factory(lambda self: self.address.version == 6, takes_self=True),
    )
    """Whether the record needs 16 bytes for it."""
    packed: bytes = field(
        init=False,
        eq=False,
        repr=False,
        default=Factory(lambda self: self.address.packed + _PORT.pack(self.port), takes_self=True),
    )
    """4 or 16 address bytes, then the port as i32; kept, since every append needs it."""

    @classmethod
    def parse(cls, address: str, port: int) -> Host:
        """From text; raises ValueError for anything but an IP address. A zone (`%eth0`) is dropped."""
        return cls(ip_address(address.split("%", 1)[0]), port)

    def __str__(self) -> str:
        return f"[{self.address}]:{self.port}" if self.is_ipv6 else f"{self.address}:{self.port}"


@frozen
class Record:
    """One stored message: every field of the record, nothing derived but `total_size`."""

    magic: int
    body_crc: int
    queue_id: int
    flag: int
    queue_offset: int
    physical_offset: int
    sys_flag: int
    born_timestamp_ms: int
    born_host: Host
    store_timestamp_ms: int
    store_host: Host
    reconsume_times: int
    prepared_transaction_offset: int
    body: bytes
    topic: str
    properties_raw: bytes
    """As stored; `parse_properties` reads it."""

    @property
    def total_size(self) -> int:
        """Bytes of the whole record."""
        return record_bytes(
            body_bytes=len(self.body),
            topic_bytes=len(self.topic.encode()),
            properties_bytes=len(self.properties_raw),
            version_2=self.magic == MAGIC_V2,
            sys_flag=self.sys_flag,
        )

    @property
    def message_id(self) -> str:
        """The offset msgId: store host and physical offset in upper-case hex (spec store 2.8)."""
        return offset_message_id(self.store_host.packed, self.physical_offset)


@frozen
class Blank:
    """The end of a file that a record did not fit: `total_size` bytes up to the file's end."""

    physical_offset: int
    total_size: int


def offset_message_id(store_host_packed: bytes, physical_offset: int) -> str:
    """The offset msgId of a record: 32 characters for an IPv4 store host, 56 for IPv6."""
    return (store_host_packed + _I64.pack(physical_offset)).hex().upper()


def body_crc(body: bytes | bytearray | memoryview) -> int:
    """CRC-32 of the stored body without its highest bit; 0 for an empty body."""
    return crc32(body) & 0x7FFFFFFF


def record_bytes(
    *, body_bytes: int, topic_bytes: int, properties_bytes: int, version_2: bool, sys_flag: int
) -> int:
    """Length of the record that holds these."""
    size = RECORD_BYTES_MIN + body_bytes + topic_bytes + properties_bytes + version_2
    if sys_flag & BORN_HOST_V6:
        size += _IPV6_EXTRA_BYTES
    if sys_flag & STORE_HOST_V6:
        size += _IPV6_EXTRA_BYTES
    return size


def encode_record(record: Record) -> bytes:
    """The record's bytes. Raises RecordError for fields that the format cannot hold."""
    topic = record.topic.encode()
    version_2 = record.magic == MAGIC_V2
    if record.magic not in {MAGIC_V1, MAGIC_V2}:
        raise RecordError(f"magic 0x{record.magic:08X} is no message record's")
    if len(topic) > (TOPIC_BYTES_MAX_V2 if version_2 else TOPIC_BYTES_MAX_V1):
        raise RecordError(f"topic of {len(topic)} bytes does not fit a {'V2' if version_2 else 'V1'} record")
    if len(record.properties_raw) > 32767:
        raise RecordError(f"properties of {len(record.properties_raw)} bytes; 32767 is the most")
    if record.born_host.is_ipv6 != bool(record.sys_flag & BORN_HOST_V6):
        raise RecordError(
            f"sysFlag 0x{record.sys_flag:X} does not say what the born host {record.born_host} is"
        )
    if record.store_host.is_ipv6 != bool(record.sys_flag & STORE_HOST_V6):
        raise RecordError(
            f"sysFlag 0x{record.sys_flag:X} does not say what the store host {record.store_host} is"
        )
    head = HEAD.pack(
        record.total_size,
        record.magic,
        record.body_crc,
        record.queue_id,
        record.flag,
        record.queue_offset,
        record.physical_offset,
        record.sys_flag,
        record.born_timestamp_ms,
    )
    return b"".join(
        (
            head,
            record.born_host.packed,
            _I64.pack(record.store_timestamp_ms),
            record.store_host.packed,
            _TAIL.pack(record.reconsume_times, record.prepared_transaction_offset, len(record.body)),
            record.body,
            (_I16 if version_2 else _TOPIC_LENGTH_V1).pack(len(topic)),
            topic,
            _I16.pack(len(record.properties_raw)),
            record.properties_raw,
        )
    )


def decode_record(
    buffer: bytes | bytearray | memoryview, at: int = 0, *, check_crc: bool = True
) -> Record | Blank:
    """The record or blank that starts at index `at` of `buffer`.

    Raises RecordError with the reason if there is no whole valid one: cut short, unknown magic, lengths that
    do not add up, or (with `check_crc`) a body that is not what was stored.
    """
    view = memoryview(buffer)
    left = len(view) - at
    if left < BLANK_BYTES:
        raise RecordError(f"{left} bytes are left, a record has at least {RECORD_BYTES_MIN}")
    total_size, magic = BLANK.unpack_from(view, at)
    if magic == MAGIC_BLANK:
        if total_size < BLANK_BYTES:
            raise RecordError(f"blank of {total_size} bytes")
        return Blank(physical_offset=-1, total_size=total_size)
    size = check_record(view, at, len(view), -1, check_crc=check_crc)
    if size < 0:
        raise RecordError(describe_fault(view, at, len(view), -1, check_crc=check_crc))
    (_, _, crc, queue_id, flag, queue_offset, physical_offset, sys_flag, born_timestamp) = HEAD.unpack_from(
        view, at
    )
    position = at + HEAD_BYTES
    born_bytes = 16 if sys_flag & BORN_HOST_V6 else 4
    born_address = ip_address(bytes(view[position : position + born_bytes]))
    born_port, store_timestamp = _PORT_AND_TIME.unpack_from(view, position + born_bytes)
    position += born_bytes + _PORT_AND_TIME.size
    store_bytes = 16 if sys_flag & STORE_HOST_V6 else 4
    store_address = ip_address(bytes(view[position : position + store_bytes]))
    (store_port,) = _PORT.unpack_from(view, position + store_bytes)
    position += store_bytes + 4
    reconsume_times, prepared_offset, body_length = _TAIL.unpack_from(view, position)
    position += _TAIL.size
    body = bytes(view[position : position + body_length])
    position += body_length
    length = _I16 if magic == MAGIC_V2 else _TOPIC_LENGTH_V1
    (topic_length,) = length.unpack_from(view, position)
    position += length.size
    topic = bytes(view[position : position + topic_length])
    position += topic_length + 2
    try:
        topic_text = topic.decode()
    except UnicodeDecodeError as error:
        raise RecordError(f"topic {topic!r} is not UTF-8") from error
    return Record(
        magic=magic,
        body_crc=crc,
        queue_id=queue_id,
        flag=flag,
        queue_offset=queue_offset,
        physical_offset=physical_offset,
        sys_flag=sys_flag,
        born_timestamp_ms=born_timestamp,
        born_host=Host(born_address, born_port),
        store_timestamp_ms=store_timestamp,
        store_host=Host(store_address, store_port),
        reconsume_times=reconsume_times,
        prepared_transaction_offset=prepared_offset,
        body=body,
        topic=topic_text,
        properties_raw=bytes(view[position : at + size]),
    )


# Results of `check_record` that are no size.
BAD_LENGTH = -1
"""Cut short, or lengths that do not add up."""
BAD_MAGIC = -2
"""No record starts here; also what zeros behind the log's end give."""
BAD_POSITION = -3
"""The record says that it stands elsewhere."""
BAD_CRC = -4
"""The body is not what was stored."""


def check_record(view: memoryview, at: int, end: int, physical_offset: int, *, check_crc: bool = True) -> int:
    """Length of the whole valid message record at `view[at:end]`, or one of the negative results above.

    `physical_offset` is where the record must say that it stands; -1 accepts any. Blanks are the caller's to
    handle: they give BAD_MAGIC here. This is the check of spec store 5.2, plus the position, which RocketMQ
    does not look at.
    """
    if end - at < RECORD_BYTES_MIN:
        return (
            BAD_LENGTH if end - at < BLANK_BYTES or BLANK.unpack_from(view, at)[1] in _MAGICS else BAD_MAGIC
        )
    total_size, magic, crc, _, _, _, position, sys_flag, _ = HEAD.unpack_from(view, at)
    if magic not in _MAGICS:
        return BAD_MAGIC
    if total_size < RECORD_BYTES_MIN or total_size > end - at:
        return BAD_LENGTH
    if physical_offset not in {position, -1}:
        return BAD_POSITION
    if sys_flag & (BORN_HOST_V6 | STORE_HOST_V6):
        body_at = at + BODY_AT_V4
        body_at += _IPV6_EXTRA_BYTES * (bool(sys_flag & BORN_HOST_V6) + bool(sys_flag & STORE_HOST_V6))
    else:
        body_at = at + BODY_AT_V4
    record_end = at + total_size
    # The smallest body leaves room for the two empty length fields behind it.
    if body_at + 3 > record_end:
        return BAD_LENGTH
    (body_length,) = _PORT.unpack_from(view, body_at - 4)
    topic_at = body_at + body_length
    if body_length < 0 or topic_at + 3 + (magic == MAGIC_V2) > record_end:
        return BAD_LENGTH
    if magic == MAGIC_V1:
        properties_at = topic_at + 1 + view[topic_at]
        if view[topic_at] > TOPIC_BYTES_MAX_V1:
            return BAD_LENGTH
    else:
        (topic_length,) = _I16.unpack_from(view, topic_at)
        properties_at = topic_at + 2 + topic_length
        if topic_length < 0:
            return BAD_LENGTH
    if properties_at + 2 > record_end:
        return BAD_LENGTH
    (properties_length,) = _I16.unpack_from(view, properties_at)
    if properties_length < 0 or properties_at + 2 + properties_length != record_end:
        return BAD_LENGTH
    if check_crc and crc32(view[body_at:topic_at]) & 0x7FFFFFFF != crc:
        return BAD_CRC
    return int(total_size)


_MAGICS = frozenset((MAGIC_V1, MAGIC_V2))


def describe_fault(
    view: memoryview, at: int, end: int, physical_offset: int, *, check_crc: bool = True
) -> str:
    """Why `check_record` refused what stands at `at`: one clause for people."""
    fault = check_record(view, at, end, physical_offset, check_crc=check_crc)
    left = end - at
    if left < BLANK_BYTES:
        return f"{left} bytes are left, a record has at least {RECORD_BYTES_MIN}"
    total_size, magic = BLANK.unpack_from(view, at)
    match fault:
        case _ if fault == BAD_MAGIC:
            return f"magic 0x{magic:08X} is no record's"
        case _ if fault == BAD_POSITION:
            return f"the record says that it stands at {HEAD.unpack_from(view, at)[6]}"
        case _ if fault == BAD_CRC:
            return f"the body's CRC is not the stored 0x{HEAD.unpack_from(view, at)[2]:08X}"
        case _ if fault == BAD_LENGTH and total_size > left:
            return f"the record has {total_size} bytes, {left} are left"
        case _ if fault == BAD_LENGTH:
            return f"the lengths inside the record do not add up to its {total_size} bytes"
    return "a whole valid record"


def next_record_bytes(view: memoryview, at: int, end: int) -> int:
    """Length that the record or blank at `view[at:end]` claims; 0 if its first 4 bytes are not all there."""
    return int(_PORT.unpack_from(view, at)[0]) if end - at >= 4 else 0
