"""Texts of peers, made safe to show."""

from __future__ import annotations

from functools import lru_cache

TEXT_MAX = 64
"""Longest name, address or version of a peer that is shown, in characters."""
REASON_MAX = 160
"""Longest reason or complaint of a peer that is shown, in characters."""


@lru_cache(maxsize=4096)
def clean(text: str, *, length_max: int = TEXT_MAX) -> str:
    """A peer's text made safe for a terminal: no control characters, a bounded length."""
    shown = text[:length_max]
    if not shown.isprintable():
        shown = "".join(
            character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in shown
        )
    return shown if len(text) <= length_max else shown[: length_max - 1] + "\N{HORIZONTAL ELLIPSIS}"


def host_of(address: str) -> str:
    """The host of `host:port`."""
    return address.rpartition(":")[0]
