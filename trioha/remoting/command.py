"""One remoting command: a request, or the response to one (docs/protocol/remoting.md#header-fields)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

from attrs import Factory, define, field

from trioha.errors import TriohaError
from trioha.remoting.codes import OUR_VERSION, LanguageCode, ResponseCode

RESPONSE_FLAG = 1
ONEWAY_FLAG = 2
# Looking up a member of an enum costs more than setting a field.
_OTHER = LanguageCode.OTHER
_VERSION = int(OUR_VERSION)


class SerializeType(IntEnum):
    """Format of a header: the byte in the frame's second word."""

    JSON = 0
    ROCKETMQ = 1


def _size(body: bytes | memoryview) -> str:
    return f"<{len(body)} bytes>"


def _number(slices: tuple[memoryview, ...]) -> str:
    return f"<{len(slices)} slices>"


@define
class RemotingCommand:
    """A request or a response. Never changed.

    Not frozen: attrs would set each field by a call, and there are two of these for each request.
    """

    code: int
    """Request code, or response code in a response."""
    opaque: int = 0
    """Correlates a response with its request; chosen by the requester."""
    flag: int = 0
    """Bit 0: response; bit 1: one-way request."""
    remark: str | None = None
    """Text for people: why a request failed."""
    ext_fields: Mapping[str, str] = Factory(dict)
    """The fields of the request's or response's own header."""
    body: bytes | memoryview = field(default=b"", repr=_size)
    language: LanguageCode = LanguageCode.OTHER
    version: int = int(OUR_VERSION)
    """The sender's place in RocketMQ's table of versions."""
    serialize_type: SerializeType = SerializeType.JSON
    """Format of the header."""
    slices: tuple[memoryview, ...] = field(default=(), repr=_number)
    """The rest of the body: views that a server sends without a copy, and releases when they are sent."""

    @property
    def body_bytes(self) -> int:
        """Length of the whole body."""
        return len(self.body) + sum(map(len, self.slices))

    @property
    def whole_body(self) -> bytes | memoryview:
        """The body with its slices, which are copied."""
        return b"".join((self.body, *self.slices)) if self.slices else self.body

    @property
    def is_response(self) -> bool:
        """Whether it answers a request of the receiver."""
        return self.flag & RESPONSE_FLAG != 0

    @property
    def is_oneway(self) -> bool:
        """Whether it is a request that must not be answered."""
        return self.flag & ONEWAY_FLAG != 0


class BadRequestError(TriohaError):
    """A well-formed request that cannot be executed; the server answers with `code`."""

    def __init__(self, reason: str, *, code: int = ResponseCode.SYSTEM_ERROR) -> None:
        self.reason = reason
        self.code = code
        super().__init__(reason)


def request(
    code: int,
    *,
    ext_fields: Mapping[str, str] | None = None,
    body: bytes | memoryview = b"",
    oneway: bool = False,
    serialize_type: SerializeType = SerializeType.JSON,
) -> RemotingCommand:
    """A request; the client that sends it chooses its opaque."""
    return RemotingCommand(
        code,
        flag=ONEWAY_FLAG if oneway else 0,
        ext_fields={} if ext_fields is None else ext_fields,
        body=body,
        serialize_type=serialize_type,
    )


def response_to(
    asked: RemotingCommand,
    code: int,
    *,
    remark: str | None = None,
    ext_fields: Mapping[str, str] | None = None,
    body: bytes | memoryview = b"",
    slices: tuple[memoryview, ...] = (),
) -> RemotingCommand:
    """The response to the request `asked`: same opaque, same serialization.

    See docs/protocol/remoting.md#requests-and-responses.
    """
    return RemotingCommand(
        code,
        asked.opaque,
        RESPONSE_FLAG,
        remark,
        {} if ext_fields is None else ext_fields,
        body,
        _OTHER,
        _VERSION,
        asked.serialize_type,
        slices,
    )
