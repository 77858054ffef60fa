"""Bodies of batches, as producers send them."""

from collections.abc import Iterable
from struct import pack

from trioha.store.messages import BatchItem


def encode_batch_body(items: Iterable[BatchItem]) -> bytes:
    """The body of a batch: the fields of each message as docs/protocol/store.md#batches lists them."""
    parts = []
    for item in items:
        rest = item.body + pack(">h", len(item.properties)) + item.properties
        parts.append(pack(">iiiii", 20 + len(rest), 0, 0, item.flag, len(item.body)) + rest)
    return b"".join(parts)
