r"""Text from outside (peers, files, messages) made safe for a terminal.

A terminal obeys control characters: `ESC ] 52` writes the clipboard, `ESC [ 2 J` clears the screen, and the
C1 characters, U+0080 to U+009F, start the same commands in one character. A line feed forges a line of ours,
and format characters hide text or change the direction of their neighbours (U+202E). They are not sent to the
terminal as they are. There are three forms:

| form | function | a character that is not shown as it is |
|---|---|---|
| a line | `escaped` | its escape, as in Python: `\x1b`, `\n`, `\u202e` |
| JSON | `escaped_json` | `\u001b`: the value stays the same |
| a cell of a full-screen program | `clean` | U+FFFD, one for one, and the length is bounded |

Letters of all scripts, spaces of all widths, combining marks and emoji stay as they are in a line and in
JSON. In a cell only those characters stay that every terminal draws in the same width and direction.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final
from unicodedata import bidirectional, category, east_asian_width

TEXT_MAX: Final = 64
"""Longest name, address or version of a peer in a cell, in characters."""
REASON_MAX: Final = 160
"""Longest reason or complaint of a peer in a cell, in characters."""
REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"
ELLIPSIS: Final = "\N{HORIZONTAL ELLIPSIS}"

_NOT_PRINTABLE_ASCII: Final = re.compile(r"[^ -~]")
_RIGHT_TO_LEFT: Final = frozenset(("R", "AL", "AN"))


def escaped(text: str) -> str:
    """`text` in one line, as a terminal may show it."""
    return text if text.isprintable() else _NOT_PRINTABLE_ASCII.sub(_escape, text)


def escaped_lines(text: str) -> str:
    """`text` as a terminal may show it, with its line feeds."""
    return "\n".join(map(escaped, text.split("\n")))


def escaped_json(document: str) -> str:
    """A JSON document of one line, as a terminal may show it: the same value, also with half surrogate pairs.

    Line feeds and tabs between its tokens would be damaged: there may be none.
    """
    return document if document.isprintable() else _NOT_PRINTABLE_ASCII.sub(_escape_in_json, document)


def is_safe(text: str) -> bool:
    """Whether a terminal may show `text` as it is."""
    return text.isprintable() or all(map(_has_glyph, text))


def one_for_one(text: str) -> str:
    """`text` with U+FFFD for each character that a terminal may not show; line feeds stay."""
    return "".join(
        character if character == "\n" or _has_glyph(character) else REPLACEMENT for character in text
    )


def clean(text: str, *, length_max: int = TEXT_MAX) -> str:
    """`text` for a cell: see the module's text. A cut text ends with an ellipsis."""
    # Cut before it is cached: a text may have megabytes.
    return _cleaned(text[: length_max + 1], length_max)


def _has_glyph(character: str) -> bool:
    """False for control and format characters, line separators, surrogates and unassigned characters."""
    return character.isprintable() or category(character) == "Zs"


def _escape(found: re.Match[str]) -> str:
    character = found[0]
    return character if _has_glyph(character) else character.encode("unicode_escape").decode()


def _escape_in_json(found: re.Match[str]) -> str:
    character = found[0]
    if _has_glyph(character):
        return character
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


@lru_cache(maxsize=4096)
def _cleaned(text: str, length_max: int) -> str:
    shown = text[:length_max]
    if not (shown.isascii() and shown.isprintable()):
        shown = "".join(character if _stays_in_its_cell(character) else REPLACEMENT for character in shown)
    return shown if len(text) <= length_max else shown[: length_max - 1] + ELLIPSIS


def _stays_in_its_cell(character: str) -> bool:
    if character.isascii() or not character.isprintable():
        return character.isprintable()
    kind = category(character)
    # Marks combine with the character before them; terminals disagree on the width of emoji (wide symbols).
    is_emoji = kind[0] == "S" and east_asian_width(character) == "W"
    return kind[0] != "M" and not is_emoji and bidirectional(character) not in _RIGHT_TO_LEFT
