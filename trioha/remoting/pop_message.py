"""The headers of popping messages, and the body of a batch of acknowledgements.

See docs/protocol/pop.md#requests.

| code | request | class |
|---|---|---|
| 200050 | POP_MESSAGE | `PopRequest`, answered by `PopAnswer` |
| 200051 | ACK_MESSAGE | `AckRequest` |
| 200151 | BATCH_ACK_MESSAGE | `BatchAckRequest`, all in the body |
| 200052 | PEEK_MESSAGE | `PeekRequest`, answered by `PopAnswer` |
| 200053 | CHANGE_MESSAGE_INVISIBLETIME | `ChangeInvisibleRequest`, answered by `ChangeInvisibleAnswer` |
| 200054 | NOTIFICATION | `NotificationRequest` |
| 200055 | POLLING_INFO | `PollingInfoRequest` |

These codes do not fit the 16 bits of a binary header: both requests and answers come as JSON.

The body of a batch is `{"brokerName":s,"acks":[ack...]}`, an ack
`{"c":group,"t":topic,"r":source,"so":start offset,"q":queue id,"rq":revive queue,"pt":pop time,
"it":invisible time,"b":bits}`. The bits are the base64 of a little-endian bit set: bit i is the offset
`so` + i.
"""

from __future__ import annotations

import binascii
from base64 import b64decode
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Final

from attrs import frozen

from trioha.errors import RemoteProtocolError
from trioha.numbers import I32, I64, NATURAL32, NATURAL64, Range, parse_int
from trioha.remoting.command import BadRequestError, RemotingCommand
from trioha.remoting.fastjson import JsonLimits, parse_json
from trioha.remoting.header_fields import HeaderFields
from trioha.remoting.pop_handle import (
    PopHandle,
    PoppedQueue,
    PopSource,
    message_offset_info,
    order_count_info,
    start_offset_info,
)

MESSAGES_MAX: Final = 32
"""Of one pop, and of one check point."""
BATCH_ACKS_MAX: Final = 1024
"""Check points that one batch of acknowledgements may name."""
BITS_BYTES_MAX: Final = 8 * 1024
"""Of one bit set: a pop with a filter looks at fewer messages."""
_LIMITS: Final = JsonLimits(containers_max=BATCH_ACKS_MAX + 2, dialect_chars_max=64 * 1024)
_BASE64_CHARS_MAX: Final = (BITS_BYTES_MAX + 2) // 3 * 4


class InitMode(IntEnum):
    """Where a group begins that has no offset yet."""

    MIN = 0
    MAX = 1


@frozen
class PopFilter:
    """Which messages a pop takes."""

    expression: str = "*"
    expression_type: str = "TAG"
    """`TAG` or `SQL92`; another one is the client's mistake."""

    @classmethod
    def of(cls, fields: HeaderFields) -> PopFilter:
        """Of the fields exp and expType; without an expression all messages."""
        expression = fields.optional("exp")
        if not expression:
            return cls()
        return cls(expression, fields.optional("expType") or "TAG")


@frozen
class PopRequest:
    """Header of a pop. Numbers that are missing are 0."""

    group: str
    topic: str
    """Of the application, never the retry topic."""
    queue_id: int
    """-1 for all queues."""
    messages_max: int
    invisible_ms: int
    poll_ms: int
    """How long after `born_ms` to wait for messages; 0 to answer at once."""
    born_ms: int
    """When the client sent it, ms since 1970; 0 for the time at which the broker reads it."""
    init_mode: InitMode
    filter: PopFilter
    is_ordered: bool
    attempt_id: str | None
    """The same in a request that a client sends again: an ordered pop then gives the same messages."""

    @classmethod
    def of(cls, command: RemotingCommand) -> PopRequest:
        """Of a request 200050. Raises BadRequestError."""
        fields = HeaderFields(command.ext_fields)
        return cls(
            fields.text("consumerGroup"),
            fields.text("topic"),
            fields.number("queueId", I32, default=0),
            fields.number("maxMsgNums", I32, default=0),
            fields.number("invisibleTime", I64, default=0),
            fields.number("pollTime", I64, default=0),
            fields.number("bornTime", I64, default=0),
            InitMode.MAX if fields.number("initMode", I32, default=0) == InitMode.MAX else InitMode.MIN,
            PopFilter.of(fields),
            fields.flag("order"),
            fields.optional("attemptId"),
        )


@frozen
class PopAnswer:
    """Header of the answer to a pop; all 0 if the request was refused before."""

    pop_ms: int = 0
    invisible_ms: int = 0
    revive_queue_id: int = 0
    rest: int = 0
    """Messages that are left in the queues that were looked at."""
    queues: Sequence[PoppedQueue] | None = None
    """What was taken, in the order of the body's records; None of a refusal or a peek."""
    is_ordered: bool = False

    def to_ext_fields(self) -> dict[str, str]:
        """The fields of the answer."""
        fields = {
            "popTime": str(self.pop_ms),
            "invisibleTime": str(self.invisible_ms),
            "reviveQid": str(self.revive_queue_id),
            "restNum": str(self.rest),
        }
        if self.queues is not None:
            fields["startOffsetInfo"] = start_offset_info(self.queues)
            fields["msgOffsetInfo"] = message_offset_info(self.queues)
            if self.is_ordered:
                fields["orderCountInfo"] = order_count_info(self.queues)
        return fields


def _handle(fields: HeaderFields) -> PopHandle:
    try:
        return PopHandle.decode(fields.text("extraInfo"))
    except ValueError as error:
        raise BadRequestError(f"request header field extraInfo: {error}") from None


@frozen
class AckRequest:
    """Header of the acknowledgement of one message."""

    group: str
    topic: str
    """The retry topic for a message that came from it."""
    queue_id: int
    offset: int
    """The message's queue offset."""
    handle: PopHandle

    @classmethod
    def of(cls, command: RemotingCommand) -> AckRequest:
        """Of a request 200051. Raises BadRequestError."""
        fields = HeaderFields(command.ext_fields)
        return cls(
            fields.text("consumerGroup"),
            fields.text("topic"),
            fields.number("queueId", I32),
            fields.number("offset", I64),
            _handle(fields),
        )


@frozen
class ChangeInvisibleRequest:
    """Header of a request by which a message is given again at another time."""

    group: str
    topic: str
    queue_id: int
    offset: int
    handle: PopHandle
    invisible_ms: int
    """From now on."""
    is_suspended: bool
    """Given again without another count of its deliveries."""

    @classmethod
    def of(cls, command: RemotingCommand) -> ChangeInvisibleRequest:
        """Of a request 200053. Raises BadRequestError."""
        fields = HeaderFields(command.ext_fields)
        return cls(
            fields.text("consumerGroup"),
            fields.text("topic"),
            fields.number("queueId", I32),
            fields.number("offset", I64),
            _handle(fields),
            fields.number("invisibleTime", I64),
            fields.flag("suspend"),
        )


@frozen
class ChangeInvisibleAnswer:
    """What the client makes the message's new handle of; all 0 if the request was refused."""

    pop_ms: int = 0
    invisible_ms: int = 0
    revive_queue_id: int = 0

    def to_ext_fields(self) -> dict[str, str]:
        """The fields of the answer."""
        return {
            "popTime": str(self.pop_ms),
            "invisibleTime": str(self.invisible_ms),
            "reviveQid": str(self.revive_queue_id),
        }


@frozen
class NotificationRequest:
    """Header of a request that waits until something could be popped, and takes nothing."""

    group: str
    topic: str
    queue_id: int
    """-1 for all queues."""
    poll_ms: int
    born_ms: int
    filter: PopFilter
    is_ordered: bool
    attempt_id: str | None

    @classmethod
    def of(cls, command: RemotingCommand) -> NotificationRequest:
        """Of a request 200054. Raises BadRequestError."""
        fields = HeaderFields(command.ext_fields)
        return cls(
            fields.text("consumerGroup"),
            fields.text("topic"),
            fields.number("queueId", I32, default=0),
            fields.number("pollTime", I64, default=0),
            fields.number("bornTime", I64, default=0),
            PopFilter.of(fields),
            fields.flag("order"),
            fields.optional("attemptId"),
        )


def notification_fields(*, has_messages: bool, is_full: bool) -> dict[str, str]:
    """The fields of the answer to NOTIFICATION. `is_full`: too many wait already."""
    return {"hasMsg": str(has_messages).lower(), "pollingFull": str(is_full).lower()}


@frozen
class PollingInfoRequest:
    """Header of a request for the number of pops that wait."""

    group: str
    topic: str
    queue_id: int
    """-1 for those that wait for all queues."""

    @classmethod
    def of(cls, command: RemotingCommand) -> PollingInfoRequest:
        """Of a request 200055. Raises BadRequestError."""
        fields = HeaderFields(command.ext_fields)
        return cls(
            fields.text("consumerGroup"), fields.text("topic"), fields.number("queueId", I32, default=0)
        )


def polling_info_fields(waiting: int) -> dict[str, str]:
    """The fields of the answer to POLLING_INFO."""
    return {"pollingNum": str(waiting)}


@frozen
class PeekRequest:
    """Header of a request for the next messages of a group, which moves nothing."""

    group: str
    topic: str
    queue_id: int
    """-1 for all queues."""
    messages_max: int

    @classmethod
    def of(cls, command: RemotingCommand) -> PeekRequest:
        """Of a request 200052. Raises BadRequestError."""
        fields = HeaderFields(command.ext_fields)
        return cls(
            fields.text("consumerGroup"),
            fields.text("topic"),
            fields.number("queueId", I32, default=0),
            fields.number("maxMsgNums", I32, default=0),
        )


@frozen
class BatchAck:
    """Messages of one check point in a batch of acknowledgements."""

    group: str
    topic: str
    """Of the application, also for messages that came from the retry topic."""
    source: PopSource
    queue_id: int
    start_offset: int
    pop_ms: int
    invisible_ms: int
    revive_queue_id: int
    offsets: tuple[int, ...]
    """Queue offsets, ascending; at most `MESSAGES_MAX`."""


@frozen
class BatchAckRequest:
    """The body of a batch of acknowledgements."""

    broker_name: str
    acks: tuple[BatchAck, ...]

    @classmethod
    def of(cls, command: RemotingCommand) -> BatchAckRequest:
        """Of a request 200151; no acknowledgements without a body. Raises BadRequestError."""
        if not command.body:
            return cls("", ())
        try:
            body = _Members(parse_json(command.body, limits=_LIMITS))
            return cls(
                body.text("brokerName", default=""),
                tuple(map(_batch_ack, body.items("acks", BATCH_ACKS_MAX))),
            )
        except (RemoteProtocolError, ValueError) as error:
            raise BadRequestError(f"batch of acknowledgements: {error}") from None


def _batch_ack(item: object) -> BatchAck:
    members = _Members(item)
    start_offset = members.number("so")
    try:
        source = PopSource(members.text("r"))
    except ValueError:
        raise ValueError("r is not 0, 1 or 2") from None
    return BatchAck(
        members.text("c"),
        members.text("t"),
        source,
        members.number("q", NATURAL32),
        start_offset,
        members.number("pt"),
        members.number("it"),
        members.number("rq", NATURAL32),
        tuple(start_offset + bit for bit in set_bits(members.text("b"))),
    )


class _Members:
    """The members of a JSON object. Its methods raise ValueError for one of another shape."""

    def __init__(self, value: object) -> None:
        if not isinstance(value, Mapping):
            raise ValueError("not an object")  # noqa: TRY004 - one error for whatever is wrong
        self._members = value

    def text(self, name: str, *, default: str | None = None) -> str:
        value = self._members.get(name, default)
        if not isinstance(value, str):
            raise ValueError(f"{name} is not a text")  # noqa: TRY004 - one error for whatever is wrong
        return value

    def number(self, name: str, within: Range = NATURAL64) -> int:
        try:
            return parse_int(self._members.get(name), within)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None

    def items(self, name: str, number_max: int) -> list[object]:
        value = self._members.get(name)
        if value is None:
            return []
        if not isinstance(value, list) or len(value) > number_max:
            raise ValueError(f"{name} is not a list of at most {number_max}")
        return value


def set_bits(text: str) -> tuple[int, ...]:
    """The bits that are set in the base64 of a little-endian bit set, ascending.

    Raises ValueError for another text, for one of more than `BITS_BYTES_MAX`, and for more than
    `MESSAGES_MAX` bits, which no check point has.
    """
    if len(text) > _BASE64_CHARS_MAX:
        raise ValueError(f"b has {len(text)} characters, more than {_BASE64_CHARS_MAX}")
    try:
        bits = int.from_bytes(b64decode(text, validate=True), "little")
    except (binascii.Error, ValueError):
        raise ValueError("b is not base64") from None
    if bits.bit_count() > MESSAGES_MAX:
        raise ValueError(f"b names {bits.bit_count()} messages, more than {MESSAGES_MAX}")
    found: list[int] = []
    while bits:
        lowest = bits & -bits
        found.append(lowest.bit_length() - 1)
        bits ^= lowest
    return tuple(found)
