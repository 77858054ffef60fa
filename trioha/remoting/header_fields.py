"""Reading the fields of a request's own header: one reader for each type."""

from __future__ import annotations

from collections.abc import Mapping

from trioha.numbers import I64, Range, parse_int
from trioha.remoting.command import BadRequestError


class HeaderFields:
    """The fields of one request. Readers raise BadRequestError for a field that is not as it must be."""

    __slots__ = ("_fields",)

    def __init__(self, fields: Mapping[str, str]) -> None:
        self._fields = fields

    def text(self, name: str) -> str:
        """A field that must be there."""
        try:
            return self._fields[name]
        except KeyError:
            raise BadRequestError(f"request header field {name} is missing") from None

    def optional(self, name: str) -> str | None:
        """A field that may be missing."""
        return self._fields.get(name)

    def number(self, name: str, within: Range = I64, *, default: int | None = None) -> int:
        """A whole number; `default` for a missing one, which else must be there."""
        text = self._fields.get(name)
        if text is None:
            if default is None:
                raise BadRequestError(f"request header field {name} is missing")
            return default
        try:
            return parse_int(text, within)
        except ValueError as error:
            raise BadRequestError(f"request header field {name}: {error}") from None

    def flag(self, name: str, *, default: bool = False) -> bool:
        """True for `true` in any case."""
        text = self._fields.get(name)
        return default if text is None else text.lower() == "true"
