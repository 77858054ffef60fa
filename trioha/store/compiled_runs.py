"""Runs of sends and batches: a batch as a run, and the records of a run.

Compiled by mypyc where that is possible (`trioha.compiled`). `remoting.compiled_sends` has the layout of a
run's columns, `remoting.message_batch` that of a batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

from librt.strings import BytesWriter, read_i64_be, write_i16_be, write_i32_be, write_i64_be
from mypy_extensions import i16, i32, i64

from trioha.compiled import use_compiled

SOURCE_SHA256: Final = ""
"""Of this file; the build sets it in the copy that it compiles."""

MAGIC_V1: Final = 0xDAA320A7
CRC_MASK: Final = 0x7FFFFFFF
_MASK_32: Final = 0xFFFFFFFF
SEND_BYTES: Final = 72
"""Of one send in the columns of a run."""
ITEM_BYTES_MIN: Final = 22
ITEM_BODY_AT: Final = 20
"""In a message of a batch, see `remoting.message_batch`."""


@final
class Batch:
    """The messages of a batch as a run of sends, as `read_batch` found them."""

    def __init__(self) -> None:
        self.count: i64 = 0
        self.next_at: i64 = 0
        """Index after the last of them."""
        self.columns: bytes = b""
        self.properties: bytes = b""
        """Those of all messages, one after the other."""
        self.body_bytes: i64 = 0
        """Of all bodies."""
        self.body_bytes_max: i64 = 0
        """Of the longest body."""
        self.properties_bytes_max: i64 = 0
        """Of the longest properties."""


def read_batch(data: bytes, queue_id: i64, sys_flag: i64, born_ms: i64, reconsume_times: i64) -> Batch:
    """The messages of a batch, with the fields that they share, up to the first that is not whole."""
    found = Batch()
    columns = BytesWriter()
    properties = BytesWriter()
    properties_bytes: i64 = 0
    at: i64 = 0
    end: i64 = len(data)
    count: i64 = 0
    while end - at >= ITEM_BYTES_MIN:
        word = read_i64_be(data, at + 12)
        # A negative length is a large number here.
        body_bytes: i64 = word & _MASK_32
        if body_bytes > end - at - ITEM_BYTES_MIN:
            break
        body_at: i64 = at + ITEM_BODY_AT
        body_end: i64 = body_at + body_bytes
        high: i64 = data[body_end]
        low: i64 = data[body_end + 1]
        own_bytes: i64 = high << 8 | low
        item_end: i64 = body_end + 2 + own_bytes
        if high > 0x7F or item_end > end or item_end - at != read_i64_be(data, at) >> 32:
            break
        properties.write(data[body_end + 2 : item_end])
        properties_bytes += own_bytes
        write_i64_be(columns, 0)
        write_i64_be(columns, queue_id)
        write_i64_be(columns, sys_flag)
        write_i64_be(columns, word >> 32)
        write_i64_be(columns, born_ms)
        write_i64_be(columns, reconsume_times)
        write_i64_be(columns, body_at)
        write_i64_be(columns, body_end)
        write_i64_be(columns, properties_bytes)
        found.body_bytes += body_bytes
        found.body_bytes_max = max(found.body_bytes_max, body_bytes)
        found.properties_bytes_max = max(found.properties_bytes_max, own_bytes)
        count += 1
        at = item_end
    found.count = count
    found.next_at = at
    found.columns = columns.getvalue()
    found.properties = properties.getvalue()
    return found


def encode_run(  # noqa: PLR0917 - keywords would cost a call more
    data: bytes,
    columns: bytes,
    properties: bytes,
    topic: bytes,
    record_bytes: i64,
    physical_offset: i64,
    next_offsets: dict[int, int],
    born_host: bytes,
    stored: bytes,
    crc32: Callable[[bytes], int],
) -> tuple[bytes, bytes]:
    """The records of a run of sends, and for each its physical offset and its queue offset, as i64.

    Bodies are in `data`. `topic` has its length before it, `record_bytes` are those of a record without body
    and properties, `stored` is store timestamp and store host. `next_offsets` has the next offset of each
    queue id of the run, and is changed.
    """
    records = BytesWriter()
    put_offsets = BytesWriter()
    at: i64 = 0
    end: i64 = len(columns)
    properties_at: i64 = 0
    while at < end:
        queue_id: i64 = read_i64_be(columns, at + 8)
        body = data[read_i64_be(columns, at + 48) : read_i64_be(columns, at + 56)]
        properties_end: i64 = read_i64_be(columns, at + 64)
        body_bytes: i64 = len(body)
        size: i64 = record_bytes + body_bytes + properties_end - properties_at
        boxed = int(queue_id)
        queue_offset: i64 = next_offsets[boxed]
        next_offsets[boxed] = int(queue_offset + 1)
        crc: i64 = crc32(body)
        write_i64_be(records, size << 32 | MAGIC_V1)
        write_i64_be(records, (crc & CRC_MASK) << 32 | queue_id & _MASK_32)
        write_i32_be(records, i32(read_i64_be(columns, at + 24)))
        write_i64_be(records, queue_offset)
        write_i64_be(records, physical_offset)
        write_i32_be(records, i32(read_i64_be(columns, at + 16)))
        write_i64_be(records, read_i64_be(columns, at + 32))
        records.write(born_host)
        records.write(stored)
        write_i32_be(records, i32(read_i64_be(columns, at + 40)))
        write_i64_be(records, 0)
        write_i32_be(records, i32(body_bytes))
        records.write(body)
        records.write(topic)
        write_i16_be(records, i16(properties_end - properties_at))
        records.write(properties[properties_at:properties_end])
        write_i64_be(put_offsets, physical_offset)
        write_i64_be(put_offsets, queue_offset)
        physical_offset += size
        properties_at = properties_end
        at += SEND_BYTES
    return records.getvalue(), put_offsets.getvalue()


use_compiled(__name__)
