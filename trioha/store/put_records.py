"""The records of a put in plain Python: of a message, or of a batch's (docs/protocol/store.md#batches).

The records of a put follow each other in one log file. They share topic, queue, sysFlag, times, hosts and
reconsumeTimes; each has its own flag, body and properties, and the next queue offset. Compiled code encodes
runs and batches of common records to the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final

from isal.isal_zlib import crc32

from trioha.store.messages import BatchItem, Message, MessageBatch
from trioha.store.put_limits import encoded_topic
from trioha.store.record import Host, pack_record
from trioha.store.record_layout import (
    BORN_HOST_V6,
    CRC_MASK,
    HOSTS_V6,
    MAGIC_V1,
    MAGIC_V2,
    STORE_HOST_V6,
    record_bytes,
)

_I64: Final = Struct(">q")


def record_sizes(put: Message | MessageBatch, items: Sequence[BatchItem], *, store_host: Host) -> list[int]:
    """Bytes of the record of each of the put's items."""
    topic, version_2, _ = encoded_topic(put.topic)
    shared_bytes = record_bytes(
        body_bytes=0,
        topic_bytes=len(topic) - 1 - version_2,
        properties_bytes=0,
        version_2=version_2,
        sys_flag=_sys_flag(put, store_host),
    )
    return [shared_bytes + len(item.body) + len(item.properties) for item in items]


def encode_records(
    put: Message | MessageBatch,
    items: Sequence[BatchItem],
    sizes: list[int],
    *,
    physical_offset: int,
    queue_offset: int,
    store_timestamp_ms: int,
    store_host: Host,
) -> bytes:
    """All records of a put, of the sizes that `record_sizes` gives.

    The first one is at `physical_offset` and has `queue_offset`.
    """
    topic, version_2, _ = encoded_topic(put.topic)
    hosts = put.born_host.packed + _I64.pack(store_timestamp_ms) + store_host.packed
    sys_flag = _sys_flag(put, store_host)
    prepared_transaction_offset = put.prepared_transaction_offset if isinstance(put, Message) else 0
    records: list[bytes] = []
    for number, (item, size) in enumerate(zip(items, sizes, strict=True)):
        records.append(
            pack_record(
                size,
                magic=MAGIC_V2 if version_2 else MAGIC_V1,
                body_crc=crc32(item.body) & CRC_MASK,
                queue_id=put.queue_id,
                flag=item.flag,
                queue_offset=queue_offset + number,
                physical_offset=physical_offset,
                sys_flag=sys_flag,
                born_timestamp_ms=put.born_timestamp_ms,
                hosts=hosts,
                reconsume_times=put.reconsume_times,
                prepared_transaction_offset=prepared_transaction_offset,
                body=item.body,
                topic=topic,
                properties=item.properties,
            )
        )
        physical_offset += size
    return records[0] if len(records) == 1 else b"".join(records)


def _sys_flag(put: Message | MessageBatch, store_host: Host) -> int:
    """The put's sysFlag with the bits of its hosts."""
    sys_flag = put.sys_flag & ~HOSTS_V6
    sys_flag |= BORN_HOST_V6 if put.born_host.is_ipv6 else 0
    return sys_flag | (STORE_HOST_V6 if store_host.is_ipv6 else 0)
