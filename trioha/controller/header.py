"""Headers of requests and answers of controllers: a class with a field for each text of `extFields`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final, Self

import attrs
from attrs import frozen

from trioha.errors import RemoteProtocolError
from trioha.numbers import I32, I64, NATURAL64, Range, parse_int
from trioha.remoting.codes import RequestCode
from trioha.remoting.command import RemotingCommand, request

TEXT_CHARS_MAX: Final = 4096
"""Of one field."""
_KEY: Final = "key"
_READ: Final = "read"


def text(value: str) -> str:
    """Any text of up to `TEXT_CHARS_MAX` characters."""
    if len(value) > TEXT_CHARS_MAX:
        raise ValueError(f"has more than {TEXT_CHARS_MAX} characters")
    return value


def _whole(within: Range) -> Callable[[str], int]:
    return lambda value: parse_int(value, within)


def flag(value: str) -> bool:
    """True for `true` in any case."""
    return value.lower() == "true"


def field(key: str, read: Callable[[str], object] = text, *, default: object = attrs.NOTHING) -> Any:
    """A field of the header with its Java spelling; without a default it must be there."""
    return attrs.field(default=default, metadata={_KEY: key, _READ: read})


epoch_number: Final = _whole(I32)
natural: Final = _whole(NATURAL64)
number: Final = _whole(I64)


@frozen(kw_only=True)
class Header:
    """The fields of one request's or answer's header."""

    CODE: ClassVar[RequestCode]
    """The request that they belong to."""

    def to_fields(self) -> dict[str, str]:
        """As they are sent; what is None is left out."""
        sent = {}
        for own in attrs.fields(type(self)):
            value = getattr(self, own.name)
            if value is not None:
                sent[own.metadata[_KEY]] = str(value).lower() if isinstance(value, bool) else str(value)
        return sent

    @classmethod
    def of(cls, fields: Mapping[str, str]) -> Self:
        """From the fields of a header; others beside them are ignored.

        Raises RemoteProtocolError for a field that is missing or does not read.
        """
        found: dict[str, Any] = {}
        for own in attrs.fields(cls):
            key, value = own.metadata[_KEY], fields.get(own.metadata[_KEY])
            if value is None:
                if own.default is attrs.NOTHING:
                    raise RemoteProtocolError(f"{cls.CODE.name}: {key} is missing")
                continue
            try:
                found[own.name] = own.metadata[_READ](value)
            except ValueError as error:
                raise RemoteProtocolError(f"{cls.CODE.name}: {key}: {error}") from None
        return cls(**found)


def to_request(fields: Header, *, body: bytes = b"", oneway: bool = False) -> RemotingCommand:
    """The request with these fields."""
    return request(fields.CODE, ext_fields=fields.to_fields(), body=body, oneway=oneway)
