"""Texts of peers, made safe to show.

A name that a node tells is drawn in a cell of a table, on a title, and stored by a recording. Whatever it
holds, it must stay in its cell: no control characters (a terminal obeys them), no characters that change the
direction of their neighbours, none that are drawn over them, none whose width terminals do not agree on, and
never more than a bounded number of characters.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final
from unicodedata import bidirectional, category, east_asian_width

TEXT_MAX: Final = 64
"""Longest name, address or version of a peer that is shown, in characters."""
REASON_MAX: Final = 160
"""Longest reason or complaint of a peer that is shown, in characters."""
OTHER: Final = "other"
"""What is counted under it has a name beyond those that are kept."""
_RIGHT_TO_LEFT: Final = frozenset(("R", "AL", "AN"))


def clean(text: str, *, length_max: int = TEXT_MAX) -> str:
    """A peer's text made safe for a terminal: see the module's text. What is cut off becomes an ellipsis."""
    # Cut before it is kept: a text may have megabytes.
    return _cleaned(text[: length_max + 1], length_max)


@lru_cache(maxsize=4096)
def _cleaned(text: str, length_max: int) -> str:
    shown = text[:length_max]
    if not (shown.isascii() and shown.isprintable()):
        shown = "".join(
            character if _stays_in_its_cell(character) else "\N{REPLACEMENT CHARACTER}" for character in shown
        )
    return shown if len(text) <= length_max else shown[: length_max - 1] + "\N{HORIZONTAL ELLIPSIS}"


def _stays_in_its_cell(character: str) -> bool:
    if character.isascii() or not character.isprintable():
        return character.isprintable()
    kind = category(character)
    # Marks combine with what stands before them; wide symbols are emoji, which terminals measure differently.
    is_emoji = kind[0] == "S" and east_asian_width(character) == "W"
    return kind[0] != "M" and not is_emoji and bidirectional(character) not in _RIGHT_TO_LEFT


class Names:
    """The names that one node uses for one kind of count; what comes beyond `names_max` is `OTHER`.

    `known` are names that are always kept: those of the protocol.
    """

    def __init__(self, *, known: frozenset[str] = frozenset(), names_max: int = 32) -> None:
        self._known = known
        self._names_max = names_max
        self._seen: set[str] = set()

    def of(self, name: str) -> str:
        """The name under which `name` is counted, safe to show."""
        shown = clean(name)
        if shown in self._known or shown in self._seen:
            return shown
        if len(self._seen) >= self._names_max:
            return OTHER
        self._seen.add(shown)
        return shown


def host_of(address: str) -> str:
    """The host of `host:port`."""
    return address.rpartition(":")[0]
