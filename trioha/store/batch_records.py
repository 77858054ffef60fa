"""The records of a batch, made together (docs/protocol/store.md#batches).

A batch's records follow each other in one log file. They share topic, queue, sysFlag, times, hosts and
reconsumeTimes; each has its own flag, body and properties, and the next queue offset.
"""

from __future__ import annotations

from struct import Struct

from isal.isal_zlib import crc32

from trioha.store import compiled
from trioha.store.messages import EncodedItems, MessageBatch
from trioha.store.record import Host
from trioha.store.record_layout import (
    BORN_HOST_V6,
    CRC_MASK,
    HEAD,
    HOSTS_V6,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_BYTES_MIN,
    STORE_HOST_V6,
)

_I64 = Struct(">q")
_BEFORE_BODY = Struct(">iqi")
"""reconsumeTimes, preparedTransactionOffset, the body's length."""
_I16 = Struct(">h")
_HOSTS_V4_BYTES = 16


def common_sizes(batch: MessageBatch, *, topic: bytes, store_host: Host, body_bytes_max: int) -> list[int]:
    """As `batch_record_sizes`, by compiled code, of messages that the log accepts; else no sizes."""
    items = batch.items
    if not (compiled.IS_COMPILED and isinstance(items, EncodedItems)):
        return []
    record_bytes = _record_bytes(batch, topic=topic, store_host=store_host)
    return compiled.records.batch_sizes(items.body, record_bytes, body_bytes_max, False)


def batch_record_sizes(batch: MessageBatch, *, topic: bytes, store_host: Host) -> list[int]:
    """Bytes of each record. `topic` has its length before it, of which `RECORD_BYTES_MIN` counts one byte."""
    shared = _record_bytes(batch, topic=topic, store_host=store_host)
    return [shared + len(item.body) + len(item.properties) for item in batch.items]


def _record_bytes(batch: MessageBatch, *, topic: bytes, store_host: Host) -> int:
    """Bytes of a record without body and properties."""
    hosts_bytes = len(batch.born_host.packed) + len(store_host.packed)
    return RECORD_BYTES_MIN - _HOSTS_V4_BYTES + hosts_bytes + len(topic) - 1


def encode_batch(
    batch: MessageBatch,
    sizes: list[int],
    *,
    topic: bytes,
    version_2: bool,
    physical_offset: int,
    queue_offset: int,
    store_timestamp_ms: int,
    store_host: Host,
) -> bytes:
    """All records; the first at `physical_offset` with `queue_offset`. `sizes`: of `batch_record_sizes`."""
    sys_flag = batch.sys_flag & ~HOSTS_V6
    sys_flag |= BORN_HOST_V6 if batch.born_host.is_ipv6 else 0
    sys_flag |= STORE_HOST_V6 if store_host.is_ipv6 else 0
    magic = MAGIC_V2 if version_2 else MAGIC_V1
    hosts = batch.born_host.packed + _I64.pack(store_timestamp_ms) + store_host.packed
    if compiled.IS_COMPILED and compiled.CHECKS_CRC and isinstance(batch.items, EncodedItems):
        return compiled.records.encode_batch(
            batch.items.body,
            sum(sizes),
            magic,
            batch.queue_id,
            queue_offset,
            physical_offset,
            sys_flag,
            batch.born_timestamp_ms,
            hosts,
            batch.reconsume_times,
            topic,
        )
    parts: list[bytes] = []
    for number, (item, size) in enumerate(zip(batch.items, sizes, strict=True)):
        body, properties = item.body, item.properties
        parts += (
            HEAD.pack(
                size,
                magic,
                crc32(body) & CRC_MASK,
                batch.queue_id,
                item.flag,
                queue_offset + number,
                physical_offset,
                sys_flag,
                batch.born_timestamp_ms,
            ),
            hosts,
            _BEFORE_BODY.pack(batch.reconsume_times, 0, len(body)),
            body,
            topic,
            _I16.pack(len(properties)),
            properties,
        )
        physical_offset += size
    return b"".join(parts)
