"""Messages on their way into the log, and the result of storing one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct, pack
from typing import Final, overload

from attrs import define

from trioha.store.put_status import PutStatus
from trioha.store.record import Host, Record, offset_message_id

NO_HOST = Host.parse("127.0.0.1", 0)
"""Born host of a message that came from no socket."""


@define
class Message:
    """What a producer wants stored: a record without the fields that only the log can assign.

    Not frozen, since attrs makes frozen classes slower; the code treats it as frozen.
    """

    topic: str
    queue_id: int
    body: bytes
    properties: bytes = b""
    """As stored, see `store.message_properties`."""
    flag: int = 0
    sys_flag: int = 0
    """Without the two host bits: the log sets them from the hosts."""
    born_timestamp_ms: int = 0
    born_host: Host = NO_HOST
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0

    @classmethod
    def again(cls, record: Record, *, topic: str, queue_id: int, properties: bytes) -> Message:
        """The message of a record, to be stored once more: elsewhere, with these properties."""
        return cls(
            topic=topic,
            queue_id=queue_id,
            body=record.body,
            properties=properties,
            flag=record.flag,
            sys_flag=record.sys_flag,
            born_timestamp_ms=record.born_timestamp_ms,
            born_host=record.born_host,
            reconsume_times=record.reconsume_times,
        )


@define
class BatchItem:
    """One message of a batch: what it does not share with the others. Never changed."""

    body: bytes
    properties: bytes = b""
    """As stored."""
    flag: int = 0


class EncodedItems(Sequence[BatchItem]):
    """The messages of a batch as the producer sent them, for `store.compiled_runs`; decoded where needed."""

    __slots__ = ("_count", "_decode", "_items", "body")

    def __init__(self, body: bytes, *, count: int, decode: Callable[[], list[BatchItem]]) -> None:
        """`body` has `count` messages; `decode` gives them."""
        self.body = body
        self._count = count
        self._decode = decode
        self._items: list[BatchItem] | None = None

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> BatchItem: ...

    @overload
    def __getitem__(self, index: slice) -> list[BatchItem]: ...

    def __getitem__(self, index: int | slice) -> BatchItem | list[BatchItem]:
        if self._items is None:
            self._items = self._decode()
        return self._items[index]


@define
class MessageBatch:
    """Messages of one queue that are stored one after the other in one log file: all of them or none.

    Each becomes a record of its own. Never changed.
    """

    topic: str
    queue_id: int
    items: Sequence[BatchItem]
    """At least one."""
    sys_flag: int = 0
    born_timestamp_ms: int = 0
    born_host: Host = NO_HOST
    reconsume_times: int = 0


COLUMNS: Final = Struct(">9q")
"""Of one send of a run, see `remoting.compiled_sends`."""


@define
class EncodedSends:
    """Sends of one topic that came together, each a put of its own, as `remoting.compiled_sends` reads them,
    which has the layout of `columns`. Never changed.
    """

    topic: str
    columns: bytes
    """Where bodies are in the block that was received, and the other fields."""
    properties: bytes
    """As stored, one after the other."""
    count: int
    body_bytes: int
    """Of all bodies."""
    body_bytes_max: int
    """Of the longest body."""
    properties_bytes_max: int
    """Of the longest properties."""
    queue_ids: list[int]
    """Each one once."""
    is_oneway: bool
    """Whether none of them is to be answered."""


@define
class AppendResult:
    """Result of an append. The offsets mean something only if `status` is PUT_OK.

    Not frozen, as `Message`.
    """

    status: PutStatus
    physical_offset: int = -1
    size: int = 0
    """Bytes of the record, or of all records of a batch."""
    queue_offset: int = -1
    store_timestamp_ms: int = 0
    store_host_packed: bytes = b""
    """The host that the record names."""
    reason: str = ""
    """Why it was refused, one clause."""
    batch_offsets: Sequence[int] = ()
    """Physical offsets of a batch's records; empty for a single message."""

    put_offsets: bytes = b""
    """Of a run of sends: physical offset and queue offset of each record, as i64."""

    @property
    def put_ends(self) -> list[int]:
        """End of each put of a run of sends."""
        return [*self.batch_offsets[1:], self.end_offset]

    @property
    def message_id(self) -> str:
        """The offset msgId, of a batch all of them with commas; empty if nothing was stored."""
        if self.batch_offsets:
            host, messages = self.store_host_packed, len(self.batch_offsets)
            parts: list[object] = [host] * (2 * messages)
            parts[1::2] = self.batch_offsets
            # One hexadecimal text for all: a step of Python for each takes three times as long.
            return pack(">" + f"{len(host)}sq" * messages, *parts).hex(",", len(host) + 8).upper()
        return offset_message_id(self.store_host_packed, self.physical_offset) if self.size else ""

    @property
    def messages(self) -> int:
        """Number of records that were stored."""
        return len(self.batch_offsets) or (1 if self.size else 0)

    @property
    def end_offset(self) -> int:
        """Offset of the first byte after the record: what flush and replicas must reach."""
        return self.physical_offset + self.size
