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

from functools import partial

from trioha.errors import RemoteProtocolError
from trioha.store import compiled_runs
from trioha.store.messages import COLUMNS, BatchItem, EncodedItems


def parse_batch(body: bytes) -> list[BatchItem]:
    """The messages of a batch, at least one. Raises RemoteProtocolError for bytes that are not a batch."""
    found = _read(body)
    items: list[BatchItem] = []
    properties_at = 0
    for _, _, _, flag, _, _, body_at, body_end, properties_end in COLUMNS.iter_unpack(found.columns):
        items.append(BatchItem(body[body_at:body_end], found.properties[properties_at:properties_end], flag))
        properties_at = properties_end
    return items


def batch_items(body: bytes) -> EncodedItems:
    """The same, left as they are until they are needed."""
    return EncodedItems(body, count=_read(body).count, decode=partial(parse_batch, body))


def _read(body: bytes) -> compiled_runs.Batch:
    found = compiled_runs.read_batch(body, 0, 0, 0, 0)
    if found.next_at < len(body):
        raise RemoteProtocolError(
            f"message {found.count} of the batch, at byte {found.next_at} of {len(body)}, is cut short, "
            "or its lengths do not add up"
        )
    if not found.count:
        raise RemoteProtocolError("the batch has no message")
    return found
