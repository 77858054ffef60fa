r"""Java's properties format, as a document that keeps every byte that it read.

Rules for each line (`java.util.Properties.load`):

| piece | rule |
|---|---|
| line end | `\n`, `\r` or `\r\n` |
| blank line | has only blanks (space, tab, form feed); ignored |
| comment | first character that is not blank is `#` or `!`; a comment cannot be continued |
| continuation | a line that ends in an odd number of `\` continues in the next, without its leading blanks |
| key | up to the first unescaped `=`, `:` or blank |
| separator | blanks, at most one `=` or `:`, blanks |
| value | the rest, trailing blanks included |
| escapes | `\t \n \r \f`, `\uXXXX` (UTF-16 code units); before any other character the `\` is dropped |

A file is read as UTF-8 if it is valid UTF-8 (a byte order mark is kept and ignored), else as ISO-8859-1,
which Java always uses. The two agree on ASCII, and `set` writes only ASCII, so Java reads what was set.

An edited broker.conf must keep its comments, its order and the keys of other programs. A document is
therefore its lines: `to_bytes` of an unchanged document gives the bytes that it was parsed from, and `set`
changes the lines of one entry only.

The library javaproperties reads the same keys and values, but gives no lines, stops at a bad `\u` instead of
going on, and where it sets a key drops the entry's indentation and separator and its earlier entries.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from typing import Final

from attrs import define, field, frozen

_BLANKS: Final = " \t\f"
_NATURAL_LINE: Final = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
_LINE_END: Final = re.compile(r"(?:\r\n|\r|\n)\Z")
_KEY: Final = re.compile(rf"(?:[^\\=:{_BLANKS}]|\\.)*\\?", re.DOTALL)
_SEPARATOR: Final = re.compile(rf"[{_BLANKS}]*[=:]?[{_BLANKS}]*")
_ESCAPE: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.)|\Z)", re.DOTALL)
_BAD_UNICODE_ESCAPE: Final = re.compile(
    r"(?:[^\\]|\\[^u]|\\u[0-9a-fA-F]{4})*\\u(?![0-9a-fA-F]{4})", re.DOTALL
)
_CONTROL_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_CONTROL_NAMES: Final = {value: "\\" + name for name, value in _CONTROL_ESCAPES.items()}


@frozen
class Entry:
    """One key with its value."""

    key: str
    """The key, unescaped."""
    value: str
    """The value, unescaped, with its trailing blanks."""
    line: int
    """Number of the line that the entry starts on, from 1."""
    problem: str | None = None
    """Why Java would refuse the whole file because of this entry, or None."""


@frozen
class _Chunk:
    """The natural lines of one entry, or one comment or blank line: `text` is exact, line ends included."""

    text: str
    entry: Entry | None = None


@define
class PropertiesDocument:
    """A properties file: its entries in order, and every byte around them."""

    _chunks: list[_Chunk] = field(factory=list, alias="chunks")
    _encoding: str = field(default="utf-8", alias="encoding")
    _byte_order_mark: bytes = field(default=b"", alias="byte_order_mark")

    @classmethod
    def parse(cls, data: bytes) -> PropertiesDocument:
        r"""Read a whole file. Never fails: a bad `\u`, which Java refuses, is the `problem` of its entry."""
        mark = codecs.BOM_UTF8 if data.startswith(codecs.BOM_UTF8) else b""
        encoding = "utf-8"
        try:
            text = data[len(mark) :].decode(encoding)
        except UnicodeDecodeError:
            encoding, mark = "iso-8859-1", b""
            text = data.decode(encoding)
        return cls(chunks=list(_chunks_of(text)), encoding=encoding, byte_order_mark=mark)

    def to_bytes(self) -> bytes:
        """The content of the file."""
        text = "".join(chunk.text for chunk in self._chunks)
        return self._byte_order_mark + text.encode(self._encoding)

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All entries in the order of the file, also those that a later entry of their key overrides."""
        return tuple(chunk.entry for chunk in self._chunks if chunk.entry is not None)

    def entry(self, key: str) -> Entry | None:
        """The last entry of `key`, which overrides the others."""
        index = self._index(key)
        return None if index is None else self._chunks[index].entry

    def get(self, key: str, default: str | None = None) -> str | None:
        """The value of `key` as Java reads it, or `default` if the file does not have it."""
        entry = self.entry(key)
        return default if entry is None else entry.value

    def set(self, key: str, value: str) -> None:
        """Set the value of `key` in its last entry, or in a new line at the end.

        All other entries keep their bytes. Line numbers change where an entry of several lines becomes one.
        """
        index = self._index(key)
        if index is None:
            self._append(key, value)
        else:
            self._replace(index, key, value)
        self._renumber()

    def _index(self, key: str) -> int | None:
        for index in range(len(self._chunks) - 1, -1, -1):
            entry = self._chunks[index].entry
            if entry is not None and entry.key == key:
                return index
        return None

    def _line_end(self) -> str:
        """The line end that this file uses, by its first line."""
        found = _LINE_END.search(self._chunks[0].text) if self._chunks else None
        return found.group() if found else "\n"

    def _append(self, key: str, value: str) -> None:
        end = self._line_end()
        if self._chunks:
            last = self._chunks[-1]
            text = last.text
            if not _LINE_END.search(text):
                text += end
            if not _is_comment(text) and _is_continued(_lines(text)[-1]):
                # A blank line ends the continuation, which would include the new entry. After a carriage
                # return a line feed would only complete the line end.
                text += "\r" if text.endswith("\r") else end
            self._chunks[-1] = _Chunk(text, last.entry)
        self._chunks.append(_Chunk(f"{_escape_key(key)}={_escape_value(value)}{end}", Entry(key, value, 0)))

    def _replace(self, index: int, key: str, value: str) -> None:
        old = self._chunks[index].text
        found = _LINE_END.search(old)
        end = found.group() if found else ""
        lines = _lines(old)
        start = f"{_escape_key(key)}="
        if len(lines) == 1 and not _is_continued(old):
            key_end, value_start = _split(lines[0])
            # A line that ends with the key has no separator.
            start = lines[0][:value_start] if value_start > key_end else lines[0][:key_end] + "="
        self._chunks[index] = _Chunk(start + _escape_value(value) + end, Entry(key, value, 0))

    def _renumber(self) -> None:
        line = 1
        for index, chunk in enumerate(self._chunks):
            if (old := chunk.entry) is not None:
                entry = Entry(old.key, old.value, line, old.problem)
                self._chunks[index] = _Chunk(chunk.text, entry)
            line += len(_NATURAL_LINE.findall(chunk.text))


def _chunks_of(text: str) -> Iterator[_Chunk]:
    lines = _NATURAL_LINE.findall(text)
    at = 0
    while at < len(lines):
        first = at
        at += 1
        start = lines[first].lstrip(_BLANKS)
        if _is_comment(start) or not start.strip("\r\n"):
            yield _Chunk(lines[first])
            continue
        while _is_continued(lines[at - 1]) and at < len(lines):
            at += 1
        raw = "".join(lines[first:at])
        logical = _logical(lines[first:at])
        # Lines of only a backslash make an empty entry, which Java ignores as a blank line.
        yield _Chunk(raw, _entry_of(logical, first + 1) if logical else None)


def _lines(text: str) -> list[str]:
    """The natural lines of `text` without their ends."""
    return [_LINE_END.sub("", line) for line in _NATURAL_LINE.findall(text)]


def _is_comment(line: str) -> bool:
    return line.lstrip(_BLANKS).startswith(("#", "!"))


def _is_continued(line: str) -> bool:
    body = _LINE_END.sub("", line)
    return (len(body) - len(body.rstrip("\\"))) % 2 == 1


def _logical(lines: list[str]) -> str:
    """One logical line of its natural lines: no leading blanks, no line ends, no continuation marks."""
    parts = []
    for line in lines:
        body = _LINE_END.sub("", line).lstrip(_BLANKS)
        parts.append(body[:-1] if _is_continued(line) else body)
    return "".join(parts)


def _split(line: str) -> tuple[int, int]:
    """Index of a line's key end and of its value start."""
    blanks = len(line) - len(line.lstrip(_BLANKS))
    key = _KEY.match(line, blanks)
    assert key is not None, "a pattern that matches the empty text always matches"
    separator = _SEPARATOR.match(line, key.end())
    assert separator is not None, "a pattern that matches the empty text always matches"
    return key.end(), separator.end()


def _entry_of(logical: str, line: int) -> Entry:
    key_end, value_start = _split(logical)
    key, value = logical[:key_end], logical[value_start:]
    bad = _BAD_UNICODE_ESCAPE.match(key) or _BAD_UNICODE_ESCAPE.match(value)
    problem = "\\u is not followed by four hexadecimal digits" if bad else None
    return Entry(_unescape(key), _unescape(value), line, problem)


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    plain = _ESCAPE.sub(_unescaped, text)
    # Escapes are UTF-16 code units: join surrogate pairs.
    return plain.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def _unescaped(escape: re.Match[str]) -> str:
    code_unit, character = escape.groups()
    if code_unit is not None:
        return chr(int(code_unit, 16))
    return _CONTROL_ESCAPES.get(character, character) if character is not None else ""


def _escape_key(key: str) -> str:
    escaped = "".join("\\" + c if c in " =:\\" else _ascii(c) for c in key)
    return "\\" + escaped if escaped[:1] in {"#", "!"} else escaped


def _escape_value(value: str) -> str:
    escaped = "".join("\\\\" if c == "\\" else _ascii(c) for c in value)
    # At the start of a value a blank, `=` or `:` would be part of the separator.
    return "\\" + escaped if escaped[:1] in {" ", "=", ":"} else escaped


def _ascii(character: str) -> str:
    if character in _CONTROL_NAMES:
        return _CONTROL_NAMES[character]
    if " " <= character <= "~":
        return character
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at] << 8 | units[at + 1]:04x}" for at in range(0, len(units), 2))
