"""The keys at the bottom, as many as fit."""

from __future__ import annotations

from typing import Final

from textual.app import ComposeResult
from textual.widgets import Footer
from textual.widgets._footer import FooterKey

KEPT: Final = 2
"""The last keys, help and quit, are shown at any width."""


class KeysFooter(Footer):
    """Textual's footer without the keys that would be cut off."""

    def compose(self) -> ComposeResult:
        """The first keys that fit, and the last ones."""
        keys = [key for key in super().compose() if isinstance(key, FooterKey)]
        while len(keys) > KEPT and sum(map(_width_of, keys)) > self.app.size.width:
            del keys[-KEPT - 1]
        yield from keys

    def on_resize(self) -> None:
        """Choose the keys for the new width."""
        self.refresh(recompose=True)


def _width_of(key: FooterKey) -> int:
    """Cells of a key, with the blanks around its name."""
    return len(key.key_display) + len(key.description) + 2
