"""Codec of stored messages: from a `Record` to its bytes and back (docs/protocol/store.md#records)."""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address
from struct import Struct
from typing import Final

from attrs import Factory, field, frozen

from trioha.errors import TriohaError
from trioha.store.record_layout import (
    BLANK,
    BLANK_BYTES,
    BORN_HOST_V6,
    HEAD,
    HEAD_BYTES,
    MAGIC_V2,
    MAGICS,
    STORE_HOST_V6,
    TOPIC_BYTES_MAX_V1,
    TOPIC_BYTES_MAX_V2,
    Buffer,
    body_span,
    find_fault,
    record_bytes,
    starts_blank,
    topic_span,
)

_PORT_AND_TIME = Struct(">iq")
_PORT = Struct(">i")
_TAIL = Struct(">iqi")
"""reconsumeTimes, preparedTransactionOffset, bodyLength."""
_I64 = Struct(">q")
_I16 = Struct(">h")
_TOPIC_LENGTH_V1 = Struct(">b")

HOSTS_KEPT: Final = 256
"""Hosts of records that are kept as they were read: most records name few."""

Address = IPv4Address | IPv6Address


class RecordError(TriohaError):
    """Bytes that are not a whole, valid record, or fields that no record can hold."""


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
    """Whether the address has 16 bytes in a record."""
    packed: bytes = field(
        init=False,
        eq=False,
        repr=False,
        default=Factory(lambda self: self.address.packed + _PORT.pack(self.port), takes_self=True),
    )
    """4 or 16 address bytes, then the port as i32; cached, since every append needs it."""

    @classmethod
    def parse(cls, address: str, port: int) -> Host:
        """From text; raises ValueError for anything but an IP address. A zone (`%eth0`) is dropped."""
        return cls(ip_address(address.split("%", 1)[0]), port)

    def __str__(self) -> str:
        return f"[{self.address}]:{self.port}" if self.is_ipv6 else f"{self.address}:{self.port}"


@lru_cache(maxsize=HOSTS_KEPT)
def _host(packed: bytes) -> Host:
    """The host of these bytes of a record."""
    (port,) = _PORT.unpack_from(packed, len(packed) - _PORT.size)
    return Host(ip_address(packed[: -_PORT.size]), port)


@frozen
class Record:
    """One stored message: all fields of the record. `total_size` is derived."""

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
        """The offset msgId: store host and physical offset in upper-case hex.

        See docs/protocol/store.md#ids-and-hashes.
        """
        return offset_message_id(self.store_host.packed, self.physical_offset)


@frozen
class Blank:
    """The last `total_size` bytes of a file that had no room for the next record."""

    physical_offset: int
    total_size: int


def offset_message_id(store_host_packed: bytes, physical_offset: int) -> str:
    """The offset msgId of a record: 32 characters for an IPv4 store host, 56 for IPv6."""
    return (store_host_packed + _I64.pack(physical_offset)).hex().upper()


def parse_offset_message_id(text: str) -> tuple[Host, int]:
    """The store host and the physical offset in an offset msgId. Raises ValueError for any other text."""
    try:
        packed = bytes.fromhex(text) if text.isascii() and text.isalnum() else b""
    except ValueError:
        packed = b""
    address_bytes = len(packed) - _PORT.size - _I64.size
    if address_bytes not in {4, 16}:
        raise ValueError(f"{text[:100]!r} is not an offset message id: 32 hex digits, for IPv6 56")
    (port,), (offset,) = _PORT.unpack_from(packed, address_bytes), _I64.unpack_from(packed, len(packed) - 8)
    if not (0 < port <= 65535 and offset >= 0):
        raise ValueError(f"{text!r} is not an offset message id: there is no address and offset in it")
    return Host(ip_address(packed[:address_bytes]), port), offset


def encode_record(record: Record) -> bytes:
    """The record's bytes. Raises RecordError for fields that the format cannot hold."""
    topic = record.topic.encode()
    version_2 = record.magic == MAGIC_V2
    if record.magic not in MAGICS:
        raise RecordError(f"magic 0x{record.magic:08X} is not a message record's")
    if len(topic) > (TOPIC_BYTES_MAX_V2 if version_2 else TOPIC_BYTES_MAX_V1):
        raise RecordError(f"topic of {len(topic)} bytes does not fit a {'V2' if version_2 else 'V1'} record")
    if len(record.properties_raw) > 32767:
        raise RecordError(f"properties of {len(record.properties_raw)} bytes; 32767 is the most")
    if record.born_host.is_ipv6 != bool(record.sys_flag & BORN_HOST_V6):
        raise RecordError(f"sysFlag 0x{record.sys_flag:X} does not fit the born host {record.born_host}")
    if record.store_host.is_ipv6 != bool(record.sys_flag & STORE_HOST_V6):
        raise RecordError(f"sysFlag 0x{record.sys_flag:X} does not fit the store host {record.store_host}")
    return pack_record(
        record.total_size,
        magic=record.magic,
        body_crc=record.body_crc,
        queue_id=record.queue_id,
        flag=record.flag,
        queue_offset=record.queue_offset,
        physical_offset=record.physical_offset,
        sys_flag=record.sys_flag,
        born_timestamp_ms=record.born_timestamp_ms,
        hosts=record.born_host.packed + _I64.pack(record.store_timestamp_ms) + record.store_host.packed,
        reconsume_times=record.reconsume_times,
        prepared_transaction_offset=record.prepared_transaction_offset,
        body=record.body,
        topic=(_I16 if version_2 else _TOPIC_LENGTH_V1).pack(len(topic)) + topic,
        properties=record.properties_raw,
    )


def pack_record(
    size: int,
    *,
    magic: int,
    body_crc: int,
    queue_id: int,
    flag: int,
    queue_offset: int,
    physical_offset: int,
    sys_flag: int,
    born_timestamp_ms: int,
    hosts: bytes,
    reconsume_times: int,
    prepared_transaction_offset: int,
    body: bytes,
    topic: bytes,
    properties: bytes,
) -> bytes:
    """A record of `size` bytes in all. `hosts` are born host, store timestamp and store host; `topic` has its
    length before it."""
    head = HEAD.pack(
        size, magic, body_crc, queue_id, flag, queue_offset, physical_offset, sys_flag, born_timestamp_ms
    )
    tail = _TAIL.pack(reconsume_times, prepared_transaction_offset, len(body))
    return b"".join((head, hosts, tail, body, topic, _I16.pack(len(properties)), properties))


def decode_record(buffer: Buffer, at: int = 0, *, check_crc: bool = True) -> Record | Blank:
    """The record or blank that starts at index `at` of `buffer`.

    Raises RecordError with the reason of its fault, see `record_layout.FaultKind`; CRC only with `check_crc`.
    """
    view = memoryview(buffer)
    if starts_blank(view, at, len(view)):
        blank_bytes, _ = BLANK.unpack_from(view, at)
        if blank_bytes < BLANK_BYTES:
            raise RecordError(f"blank of {blank_bytes} bytes")
        return Blank(physical_offset=-1, total_size=blank_bytes)
    if fault := find_fault(view, at, len(view), -1, check_crc=check_crc):
        raise RecordError(fault.reason)
    return decode_checked(view, at)


def decode_checked(view: memoryview, at: int = 0) -> Record:
    """As `decode_record`, of a record that was checked."""
    size, magic, crc, queue_id, flag, queue_offset, physical_offset, sys_flag, born_timestamp = (
        HEAD.unpack_from(view, at)
    )
    born_at = at + HEAD_BYTES
    stored_at = born_at + (16 if sys_flag & BORN_HOST_V6 else 4)
    store_host_at = stored_at + _PORT_AND_TIME.size
    _, store_timestamp = _PORT_AND_TIME.unpack_from(view, stored_at)
    body_at, body_end = body_span(view, at)
    reconsume_times, prepared_offset, _ = _TAIL.unpack_from(view, body_at - _TAIL.size)
    topic_at, topic_end = topic_span(view, at)
    topic = bytes(view[topic_at:topic_end])
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
        born_host=_host(bytes(view[born_at : stored_at + _PORT.size])),
        store_timestamp_ms=store_timestamp,
        store_host=_host(bytes(view[store_host_at : body_at - _TAIL.size])),
        reconsume_times=reconsume_times,
        prepared_transaction_offset=prepared_offset,
        body=bytes(view[body_at:body_end]),
        topic=topic_text,
        properties_raw=bytes(view[topic_end + 2 : at + size]),
    )
