"""Reads the metadata tables that brokers send each other, entry by entry.

See docs/protocol/ha.md#metadata-requests, docs/protocol/remoting.md#json-of-fastjson.

A body is one object; one of its members is the table, an object with an entry for each topic, group or
`topic@group`. The standard parser would hold the event loop for the whole body.
`TableReader` is an iterator over the table's entries, so that its user lets other tasks run in between.

| member | entry |
|---|---|
| `topicConfigTable`, `subscriptionGroupTable` | an object |
| `offsetTable` of consumers | a map of integers: `{0:5,1:7}`, with or without quotes around the keys |
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator
from json.decoder import scanstring  # type: ignore[attr-defined]  # as JSONDecoder itself uses it
from typing import Final

from trioha.errors import RemoteProtocolError
from trioha.remoting.fastjson import parse_member, shown

_SPACE: Final = re.compile(r"[ \t\r\n]*")
_BARE_KEY: Final = re.compile(r"[A-Za-z0-9_$.+-]+")
_PAIR: Final = r'"?-?[0-9]{1,19}"?[ \t\r\n]*:[ \t\r\n]*-?[0-9]{1,19}'
_INT_MAP: Final = re.compile(rf"\{{[ \t\r\n]*(?:{_PAIR}(?:[ \t\r\n]*,[ \t\r\n]*{_PAIR})*)?[ \t\r\n]*\}}")
_NUMBERS: Final = re.compile(r"-?[0-9]+")
_LONG_END: Final = 1 << 63

ReadValue = Callable[[str, int], tuple[object, int]]
"""Reads the value at a place of a text; returns it and where it ends. Raises RemoteProtocolError."""


def int_map_at(text: str, at: int) -> tuple[object, int]:
    """The map of whole numbers at `at`, as `dict[int, int]`, and where it ends."""
    found = _INT_MAP.match(text, at)
    if found is None:
        raise RemoteProtocolError(f"bad JSON at character {at}: expected a map of whole numbers")
    numbers = [int(number) for number in _NUMBERS.findall(found[0])]
    if numbers and not -_LONG_END <= min(numbers) <= max(numbers) < _LONG_END:
        raise RemoteProtocolError(f"a number in the map at character {at} is not one of 64 bits")
    return dict(zip(numbers[::2], numbers[1::2], strict=True)), found.end()


class TableReader:
    """An iterator over the entries of one table; reads the other members of the body on its way."""

    def __init__(self, text: str, *, table: str, read_value: ReadValue = parse_member) -> None:
        """`table` is the member whose entries are iterated over, `read_value` reads one of them."""
        self._text = text
        self._table = table
        self._read_value = read_value
        self.members: dict[str, object] = {}
        """The members before the place that was reached, without the table."""
        self.has_table = False
        """Whether the table was reached: a body without it says nothing about the table."""

    def __iter__(self) -> Iterator[tuple[str, object]]:
        """Yield the key and value of each entry. Raises RemoteProtocolError for a body that is damaged."""
        at = yield from self._object(self._skip_space(0))
        if self._skip_space(at) != len(self._text):
            raise self._error("more text after the body", at)

    def _object(self, at: int) -> Generator[tuple[str, object], None, int]:
        at = self._first_member(at)
        while at > 0:
            name, at = self._key(at)
            if name == self._table and self._text[at : at + 1] == "{":
                self.has_table = True
                at = yield from self._entries(at)
            else:
                self.members[name], at = parse_member(self._text, at)
            at = self._next_member(at)
        return -at

    def _entries(self, at: int) -> Generator[tuple[str, object], None, int]:
        at = self._first_member(at)
        while at > 0:
            key, at = self._key(at)
            value, at = self._read_value(self._text, at)
            yield key, value
            at = self._next_member(at)
        return -at

    def _first_member(self, at: int) -> int:
        """Where the first member of the object at `at` is; negative: where an empty object ends."""
        if self._text[at : at + 1] != "{":
            raise self._error("expected an object", at)
        at = self._skip_space(at + 1)
        return -(at + 1) if self._text[at : at + 1] == "}" else at

    def _next_member(self, at: int) -> int:
        """Where the next member is, after a value that ends at `at`; negative: where the object ends."""
        at = self._skip_space(at)
        match self._text[at : at + 1]:
            case ",":
                return self._skip_space(at + 1)
            case "}":
                return -(at + 1)
        raise self._error("expected ',' or '}'", at)

    def _key(self, at: int) -> tuple[str, int]:
        """A member's name, and where its value is."""
        if self._text[at : at + 1] == '"':
            try:
                key, at = scanstring(self._text, at + 1, False)
            except ValueError as error:
                raise self._error(str(error)[:80], at) from None
        else:
            found = _BARE_KEY.match(self._text, at)
            if found is None:
                raise self._error("expected a key", at)
            key, at = found[0], found.end()
        at = self._skip_space(at)
        if self._text[at : at + 1] != ":":
            raise self._error("expected ':'", at)
        return key, self._skip_space(at + 1)

    def _skip_space(self, at: int) -> int:
        found = _SPACE.match(self._text, at)
        assert found is not None, "the pattern matches the empty string"
        return found.end()

    def _error(self, what: str, at: int) -> RemoteProtocolError:
        return RemoteProtocolError(
            f"bad JSON at character {at}: {what}, at {shown(self._text[at : at + 20])}"
        )
