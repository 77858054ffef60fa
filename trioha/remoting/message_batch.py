"""The body of a batch of messages (docs/protocol/store.md#batches, docs/protocol/remoting.md#sends).

| field | type |
|---|---|
| totalSize | i32, of all fields of the message |
| magic | i32, not read |
| bodyCRC | i32, not read |
| flag | i32 |
| body | i32 length + bytes |
| properties | i16 length + bytes |

once for each message, one after the other, big-endian.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from struct import Struct
from typing import Final

from trioha.errors import RemoteProtocolError
from trioha.store import compiled
from trioha.store.messages import BatchItem, EncodedItems

_HEAD: Final = Struct(">iiiii")
"""totalSize, magic, bodyCRC, flag, bodyLength."""
_I16: Final = Struct(">h")
ITEM_BYTES_MIN: Final = _HEAD.size + _I16.size


def parse_batch(body: bytes | memoryview) -> list[BatchItem]:
    """The messages of a batch, at least one. Raises RemoteProtocolError for bytes that are not a batch."""
    view = memoryview(body)
    items: list[BatchItem] = []
    at, end = 0, len(view)
    while at < end:
        if end - at < ITEM_BYTES_MIN:
            raise RemoteProtocolError(f"{end - at} bytes are left after message {len(items)} of the batch")
        size, _, _, flag, body_bytes = _HEAD.unpack_from(view, at)
        body_at = at + _HEAD.size
        properties_at = body_at + body_bytes + _I16.size
        if body_bytes < 0 or properties_at > end:
            raise RemoteProtocolError(f"message {len(items)} of the batch has a body of {body_bytes} bytes")
        (properties_bytes,) = _I16.unpack_from(view, properties_at - _I16.size)
        item_end = properties_at + properties_bytes
        if properties_bytes < 0 or item_end > end or item_end - at != size:
            raise RemoteProtocolError(f"the lengths in message {len(items)} of the batch do not add up")
        items.append(
            BatchItem(bytes(view[body_at : body_at + body_bytes]), bytes(view[properties_at:item_end]), flag)
        )
        at = item_end
    if not items:
        raise RemoteProtocolError("the batch has no message")
    return items


def batch_items(body: bytes) -> Sequence[BatchItem]:
    """The messages of a batch; left encoded for the kernel. Raises RemoteProtocolError as `parse_batch`."""
    if compiled.IS_COMPILED and (count := compiled.kernel.read_batch(body, 0, 0, 0, 0).count):
        return EncodedItems(body, count=count, decode=partial(parse_batch, body))
    return parse_batch(body)
