"""Messages as producers send them and consumers receive them.

See docs/protocol/remoting.md#sends, docs/protocol/store.md#records.

Compressed bodies are decompressed (zlib, lz4, zstd). One that cannot be is received as it is, with the name
of its compression.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from attrs import field, frozen
from attrs.validators import instance_of, optional

from trioha.errors import LocalProtocolError, RemoteProtocolError
from trioha.remoting.route import MessageQueue
from trioha.store.message_bodies import COMPRESSED, ZLIB, compression_of, decode_body
from trioha.store.message_properties import PROPERTIES_BYTES_MAX, encode_properties, parse_properties
from trioha.store.record import Blank, Record, RecordError, decode_record
from trioha.store.topics import RETRY_TOPIC_PREFIX

DECOMPRESSED_BYTES_MAX: Final = 64 * 1024 * 1024
"""A larger body stays compressed: a small one must not fill the memory."""
ZLIB_LEVEL: Final = 5
BODY_BYTES_MAX: Final = 16 * 1024 * 1024 - 64 * 1024
"""Largest body that fits a frame with its header."""

_OWN_PROPERTIES: Final = frozenset(("KEYS", "TAGS", "WAIT", "DELAY", "UNIQ_KEY"))


def _bytes_shown(body: bytes) -> str:
    return f"<{len(body)} bytes>"


def _is_topic(_message: Message, _field: object, value: str) -> None:
    if type(value) is not str or not value:
        raise TypeError(f"the topic of a message is {value!r}; write its name")


def _check_body(value: object) -> None:
    if not isinstance(value, bytes):
        hint = "write text.encode()" if isinstance(value, str) else "write bytes(...)"
        raise TypeError(f"the body of a message is a {type(value).__name__}, not bytes; {hint}")


def _are_keys(_message: Message, _field: object, value: object) -> None:
    if not isinstance(value, tuple | list) or not all(isinstance(key, str) for key in value):
        hint = f"write keys=({value!r},)" if isinstance(value, str) else "write keys=('order-42',)"
        raise TypeError(f"the keys of a message are a {type(value).__name__}, not texts; {hint}")


def _are_properties(_message: Message, _field: object, value: object) -> None:
    if not isinstance(value, Mapping):
        raise TypeError("the properties of a message are not a dict of texts")
    for name, content in value.items():
        if not isinstance(name, str) or not isinstance(content, str):
            raise TypeError(f"property {name!r} of a message is a {type(content).__name__}; write str(...)")


@frozen
class Message:
    """A message to send. Raises TypeError for a field that is of another type."""

    topic: str = field(validator=_is_topic)
    body: bytes = field(repr=_bytes_shown)
    tag: str | None = field(default=None, validator=optional(instance_of(str)))
    keys: Sequence[str] = field(default=(), validator=_are_keys)
    """For queries; without blanks."""
    properties: Mapping[str, str] = field(factory=dict, validator=_are_properties)
    """The user's own."""
    delay_level: int = 0
    """Index, from 1, of the broker's delay levels; 0 for no delay."""
    wait_store_ok: bool = True
    """Wait for the disk and the slaves where the broker is configured to."""
    flag: int = 0
    """The user's own number."""

    def __attrs_post_init__(self) -> None:
        _check_body(self.body)

    def encoded_properties(self, *, unique_key: str) -> str:
        """The properties string of a send. Raises LocalProtocolError for what it cannot hold."""
        properties: dict[str, str] = {}
        if self.keys:
            if any(not key or any(map(str.isspace, key)) for key in self.keys):
                raise LocalProtocolError("a key of a message is empty or has a blank in it")
            properties["KEYS"] = " ".join(self.keys)
        if self.tag is not None:
            properties["TAGS"] = self.tag
        properties["UNIQ_KEY"] = unique_key
        properties["WAIT"] = "true" if self.wait_store_ok else "false"
        if self.delay_level:
            properties["DELAY"] = str(self.delay_level)
        if reserved := _OWN_PROPERTIES & self.properties.keys():
            raise LocalProtocolError(f"property {min(reserved)} is RocketMQ's own: it has a field of its own")
        properties |= self.properties
        try:
            encoded = encode_properties(properties)
        except (ValueError, UnicodeEncodeError) as error:
            raise LocalProtocolError(f"a property of a message cannot be sent: {error}") from None
        if len(encoded) > PROPERTIES_BYTES_MAX:
            raise LocalProtocolError(
                f"the properties of a message have {len(encoded)} bytes; at most {PROPERTIES_BYTES_MAX} are "
                "allowed"
            )
        return encoded.decode()

    def encoded_body(self, *, compress_bytes_min: int | None) -> tuple[bytes, int]:
        """The body to send and its sysFlag; compressed from `compress_bytes_min` bytes on.

        Raises LocalProtocolError for a body that no frame can hold.
        """
        if len(self.body) > BODY_BYTES_MAX:
            raise LocalProtocolError(
                f"a message of {len(self.body)} bytes does not fit a frame; at most {BODY_BYTES_MAX} do"
            )
        if not self.body:
            raise LocalProtocolError("a message without a body cannot be sent")
        if compress_bytes_min is None or len(self.body) < compress_bytes_min:
            return self.body, 0
        return zlib.compress(self.body, ZLIB_LEVEL), COMPRESSED | ZLIB


@frozen
class ReceivedMessage:
    """A message of a queue."""

    queue: MessageQueue
    queue_offset: int
    body: bytes = field(repr=_bytes_shown)
    properties: Mapping[str, str]
    """All of them, RocketMQ's own included."""
    offset_message_id: str
    """Store host and physical offset in hex."""
    born_timestamp_ms: int
    """Of the producer's clock, ms since 1970."""
    store_timestamp_ms: int
    """Of the broker's clock."""
    flag: int = 0
    reconsume_times: int = 0
    """How often it was sent back by consumers of the group."""
    compression: str | None = None
    """How the body is still compressed; None if it is not."""
    physical_offset: int = 0
    """Of its record in the broker's commit log."""

    @property
    def topic(self) -> str:
        """The topic that it was sent to; `queue` may be one of the group's retry topic."""
        if self.queue.topic.startswith(RETRY_TOPIC_PREFIX):
            return self.properties.get("RETRY_TOPIC", self.queue.topic)
        return self.queue.topic

    @property
    def message_id(self) -> str:
        """The producer's id; of a message without one, the offset message id."""
        return self.properties.get("UNIQ_KEY", self.offset_message_id)

    @property
    def tag(self) -> str | None:
        """Its tag."""
        return self.properties.get("TAGS")

    @property
    def keys(self) -> tuple[str, ...]:
        """Its keys."""
        return tuple(self.properties.get("KEYS", "").split())

    @property
    def size_bytes(self) -> int:
        """About its memory."""
        return len(self.body) + 1024


def received_messages(body: bytes | memoryview, queue: MessageQueue) -> Iterator[ReceivedMessage]:
    """The messages in the answer to a pull of `queue`.

    Raises RemoteProtocolError for bytes that are not whole records with valid checksums.
    """
    return (_received(record, queue) for record in _records(body, f"a pull of {queue}"))


def stored_messages(body: bytes | memoryview, broker_name: str) -> Iterator[ReceivedMessage]:
    """The messages in an answer of a broker to a query, each of the queue that its record names.

    Raises RemoteProtocolError as `received_messages`.
    """
    for record in _records(body, f"an answer of {broker_name}"):
        yield _received(record, MessageQueue(record.topic, broker_name, record.queue_id))


def _records(body: bytes | memoryview, what: str) -> Iterator[Record]:
    view = memoryview(body)
    at = 0
    while at < len(view):
        try:
            record = decode_record(view, at)
        except RecordError as error:
            raise RemoteProtocolError(f"a message in {what} is damaged: {error}") from error
        if isinstance(record, Blank):
            raise RemoteProtocolError(f"{what} has something other than messages")
        yield record
        at += int.from_bytes(view[at : at + 4], "big")


def _received(record: Record, queue: MessageQueue) -> ReceivedMessage:
    plain = decode_body(record.body, record.sys_flag, body_bytes_max=DECOMPRESSED_BYTES_MAX)
    return ReceivedMessage(
        queue,
        record.queue_offset,
        record.body if plain is None else plain,
        MappingProxyType(parse_properties(record.properties_raw)),
        record.message_id,
        record.born_timestamp_ms,
        record.store_timestamp_ms,
        record.flag,
        record.reconsume_times,
        compression_of(record.sys_flag) if plain is None else None,
        record.physical_offset,
    )
