"""JSON as Java's fastjson writes it (docs/protocol/remoting.md#json-of-fastjson).

Bodies from Java are JSON with two exceptions: integer map keys have no quotes
(`{"offsetTable":{"T@G":{0:5,1:6}}}`), and maps keyed by objects have objects as keys
(`{{"brokerName":"b","queueId":0,"topic":"T"}:{...}}`). fastjson also reads single quotes and bare names as
keys. `parse_json` uses the standard parser for standard JSON and a parser of its own for the dialect.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from json import JSONDecoder, JSONEncoder
from typing import Final

from attrs import frozen

from trioha.errors import RemoteProtocolError

DEPTH_MAX = 64
"""Objects and arrays within each other. RocketMQ's own bodies stay below 10."""

_strict = JSONDecoder(strict=False)
YIELDING_CHARS: Final = 256 * 1024
"""A longer text is parsed so that other threads run meanwhile; that takes up to twice the time."""


def _members(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """The hook of `_yielding`: Python code, at whose start other threads get their turn."""
    return dict(pairs)


_yielding = JSONDecoder(strict=False, object_pairs_hook=_members)
_encode_nested = JSONEncoder(separators=(",", ":")).encode
_encode_text = JSONEncoder(ensure_ascii=False).encode
_SHOWN_CHARS_MAX = 40
_SPACE = re.compile(r"[ \t\r\n]*")
_BARE_KEY = re.compile(r"[A-Za-z0-9_$.+-]+")
_SINGLE_QUOTED = re.compile(r"'((?:[^'\\]|\\.)*)'", re.DOTALL)
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}


@frozen
class JsonLimits:
    """Limits of the cost of parsing a text, beside its length."""

    containers_max: int
    """Objects and arrays: each costs a hundred times as much as its two characters."""
    dialect_chars_max: int
    """A longer text must be standard JSON: the dialect is parsed thirty times as slowly."""
    values_max: int = 1_200_000
    """Members and elements, counted by the commas between them: each takes up to a hundred bytes."""


FRAME_CHARS_MAX: Final = 16 * 1024 * 1024
"""Of a body: RocketMQ's own limit for a frame."""
ANSWER_LIMITS: Final = JsonLimits(containers_max=600_000, dialect_chars_max=FRAME_CHARS_MAX)
"""Of an answer, from whomever: enough for the largest tables that a broker of ours keeps, 100,000 topics of
twelve members or 500,000 offsets, and some 250 MB when it is parsed. Without limits a frame of RocketMQ's
own size becomes more than a GB."""


class JsonBudget:
    """What is left of the limits for an answer that is put together from several bodies."""

    def __init__(self, *, bytes_max: int, limits: JsonLimits = ANSWER_LIMITS) -> None:
        """`bytes_max`: of all bodies together."""
        self._bytes_max = bytes_max
        self._limits = limits
        self._bytes = self._containers = self._values = 0

    def spend(self, body: bytes) -> None:
        """Count one more body or piece of one, before it is kept or parsed.

        Raises RemoteProtocolError beyond a limit.
        """
        self._bytes += len(body)
        if self._bytes > self._bytes_max:
            raise RemoteProtocolError(f"an answer of more than {self._bytes_max} bytes")
        self._containers += body.count(b"{") + body.count(b"[")
        self._values += body.count(b",")
        _check(self._containers, self._values, self._limits)


def _check(containers: int, values: int, limits: JsonLimits) -> None:
    """Raises RemoteProtocolError for more than the limits. What stands within strings was counted, too."""
    if containers > limits.containers_max:
        raise RemoteProtocolError(f"JSON of more than {limits.containers_max} objects and arrays")
    if values > limits.values_max:
        raise RemoteProtocolError(f"JSON of more than {limits.values_max} values")


def parse_json(text: str | bytes | memoryview, *, limits: JsonLimits | None = ANSWER_LIMITS) -> object:
    """The value of a JSON text in fastjson's dialect.

    Bare keys become strings; an object used as a key becomes the tuple of its `(name, value)` pairs, in their
    order. Bytes are decoded as UTF-8, with replacements. A reader that a peer must not delay sets lower
    `limits`; None is for files of our own.

    Raises RemoteProtocolError with the position of the error.
    """
    string = text if isinstance(text, str) else str(text, "utf-8", "replace")
    string = string.strip()
    if limits is not None:
        _check(string.count("{") + string.count("["), string.count(","), limits)
    try:
        decoder = _strict if len(string) <= YIELDING_CHARS else _yielding
        value, end = decoder.raw_decode(string)
    except (ValueError, RecursionError) as error:
        if limits is not None and len(string) > limits.dialect_chars_max:
            raise RemoteProtocolError(f"bad JSON of {len(string)} characters: {str(error)[:80]}") from error
        return _Parser(string).parse()
    if end != len(string):
        raise _error("more text after the value", string, end)
    return value


def parse_member(text: str, at: int) -> tuple[object, int]:
    """The value that begins at character `at` of a longer text, and where it ends; for readers by pieces.

    Raises RemoteProtocolError as `parse_json`.
    """
    try:
        return _strict.raw_decode(text, at)
    except (ValueError, RecursionError):
        return _Parser(text, at).parse_member()


def as_text(value: object) -> str:
    """The value of a string field as Java reads it: numbers and booleans as they were written.

    Raises RemoteProtocolError for a value that cannot be written, as one nested too deeply.
    """
    if isinstance(value, str):
        return value
    try:
        return _encode_nested(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise RemoteProtocolError(f"a {type(value).__name__} cannot be a string: {error}") from None


def camel_case(name: str) -> str:
    """`a_long_name` as Java spells it: `aLongName`."""
    first, *words = name.split("_")
    return first + "".join(word.capitalize() for word in words)


def shown(value: object) -> str:
    """A short form of a JSON value of any size and depth, for an error's text."""
    if isinstance(value, str):
        return repr(value[:_SHOWN_CHARS_MAX])
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list | tuple):
        return "an array"
    # A number, true, false or null; the parser takes no number of more than 4,300 digits.
    return repr(str(value)[:_SHOWN_CHARS_MAX])


def _error(what: str, text: str, at: int) -> RemoteProtocolError:
    return RemoteProtocolError(f"bad JSON at character {at}: {what}, at {text[at : at + 20]!r}")


class _Parser:
    """Recursive descent over one text, no deeper than `DEPTH_MAX`."""

    def __init__(self, text: str, at: int = 0) -> None:
        self._text = text
        self._at = at
        self._depth = 0

    def parse_member(self) -> tuple[object, int]:
        """The value at the place that the parser begins at, and where it ends."""
        return self._value(), self._at

    def parse(self) -> object:
        value = self._value()
        self._skip_space()
        if self._at != len(self._text):
            raise _error("more text after the value", self._text, self._at)
        return value

    def _skip_space(self) -> None:
        found = _SPACE.match(self._text, self._at)
        assert found is not None, "the pattern matches the empty string"
        self._at = found.end()

    def _peek(self) -> str:
        self._skip_space()
        return self._text[self._at : self._at + 1]

    def _expect(self, wanted: str) -> None:
        if self._peek() != wanted:
            raise _error(f"expected {wanted!r}", self._text, self._at)
        self._at += 1

    def _value(self) -> object:
        first = self._peek()
        if first == "{":
            return self._nested(self._object)
        if first == "[":
            return self._nested(self._array)
        if first == "'":
            return self._single_quoted()
        return self._scalar()

    def _nested(self, parse: Callable[[], object]) -> object:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise _error(f"more than {DEPTH_MAX} levels", self._text, self._at)
        value = parse()
        self._depth -= 1
        return value

    def _scalar(self) -> object:
        try:
            value, self._at = _strict.raw_decode(self._text, self._at)
        except ValueError as error:
            raise _error("expected a value", self._text, self._at) from error
        return value

    def _single_quoted(self) -> str:
        found = _SINGLE_QUOTED.match(self._text, self._at)
        if found is None:
            raise _error("string without an end", self._text, self._at)
        self._at = found.end()
        return _ESCAPE.sub(_unescape, found[1])

    def _object(self) -> dict[object, object]:
        self._expect("{")
        members: dict[object, object] = {}
        while self._peek() != "}":
            key = self._key()
            self._expect(":")
            members[key] = self._value()
            if self._peek() == ",":
                self._at += 1
            elif self._peek() != "}":
                raise _error("expected ',' or '}'", self._text, self._at)
        self._at += 1
        return members

    def _key(self) -> object:
        first = self._peek()
        if first == '"':
            return self._scalar()
        if first == "'":
            return self._single_quoted()
        if first == "{":
            return _as_key(self._nested(self._object))
        found = _BARE_KEY.match(self._text, self._at)
        if found is None:
            raise _error("expected a key", self._text, self._at)
        self._at = found.end()
        return found[0]

    def _array(self) -> list[object]:
        self._expect("[")
        items: list[object] = []
        while self._peek() != "]":
            items.append(self._value())
            if self._peek() == ",":
                self._at += 1
            elif self._peek() != "]":
                raise _error("expected ',' or ']'", self._text, self._at)
        self._at += 1
        return items


def _unescape(found: re.Match[str]) -> str:
    escape = found[1]
    if len(escape) == 5:
        return chr(int(escape[1:], 16))
    return _ESCAPES.get(escape, escape)


def _as_key(value: object) -> object:
    """`value` in a hashable form: objects and arrays as tuples."""
    if isinstance(value, dict):
        return tuple((name, _as_key(member)) for name, member in value.items())
    if isinstance(value, list):
        return tuple(_as_key(item) for item in value)
    return value


def format_json(value: object, *, bare_keys: bool) -> str:
    """`value` as fastjson writes it: compact; integer keys without quotes if `bare_keys`.

    See docs/protocol/remoting.md#json-of-fastjson.

    `value` is made of dicts with keys of text or integers, lists, texts, numbers, booleans and None.
    """
    if isinstance(value, dict):
        members = (
            f"{_format_key(key, bare=bare_keys)}:{format_json(member, bare_keys=bare_keys)}"
            for key, member in value.items()
        )
        return "{" + ",".join(members) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(format_json(item, bare_keys=bare_keys) for item in value) + "]"
    return _encode_text(value)


def _format_key(key: object, *, bare: bool) -> str:
    if isinstance(key, int):
        return str(key) if bare else f'"{key}"'
    return _encode_text(key)
