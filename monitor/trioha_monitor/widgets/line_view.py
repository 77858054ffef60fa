"""Lines of styled text in a frame."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text
from textual.reactive import var
from textual.widgets import Static

from trioha_monitor.rendering import Line
from trioha_monitor.widgets.frame import Framed


class LineView(Static, Framed):
    """Lines from top to bottom; `monitor.tcss` ends a line that does not fit with `…`."""

    shown: var[Sequence[Line]] = var((), init=False)
    """The lines."""

    def validate_shown(self, lines: Sequence[Line]) -> tuple[Line, ...]:
        """Lines can be compared."""
        return tuple(lines)

    def watch_shown(self, before: Sequence[Line], now: Sequence[Line]) -> None:
        """Draw the lines; their number may change the height."""
        text = Text("\n", end="").join(Text.assemble(*line, end="") for line in now)
        self.update(text, layout=len(before) != len(now))

    @property
    def lines(self) -> list[str]:
        """The lines as plain text."""
        return ["".join(text for text, _ in line) for line in self.shown]
