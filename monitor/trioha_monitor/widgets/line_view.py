"""Lines of styled text in a frame, of which only those that changed are drawn again.

A Static renders its whole content anew, which costs several times as much
(docs/where-time-goes.md#a-node-that-is-watched).
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.segment import Segment
from textual.geometry import Region, Size
from textual.reactive import var
from textual.strip import Strip

from trioha_monitor.rendering import Line
from trioha_monitor.widgets.columns import length_of, shorten
from trioha_monitor.widgets.frame import Framed


class LineView(Framed):
    """Lines from top to bottom; a line that does not fit ends with `…`."""

    shown: var[Sequence[Line]] = var((), init=False)
    """The lines."""

    def __init__(self, *, id: str) -> None:  # noqa: A002 - Textual's name
        super().__init__(id=id)
        self._strips: dict[int, Strip] = {}

    @property
    def lines(self) -> list[str]:
        """The lines as plain text."""
        return ["".join(text for text, _ in line) for line in self.shown]

    def validate_shown(self, lines: Sequence[Line]) -> tuple[Line, ...]:
        """Lines can be compared."""
        return tuple(lines)

    def watch_shown(self, before: Sequence[Line], now: Sequence[Line]) -> None:
        """Draw the lines that changed; another number of lines may be another height."""
        if len(before) != len(now):
            self._strips.clear()
            self.refresh(layout=self.styles.is_auto_height)
            return
        changed = [y for y, (old, new) in enumerate(zip(before, now, strict=True)) if old != new]
        for y in changed:
            self._strips.pop(y, None)
        self.refresh(*(Region(0, y, self.size.width, 1) for y in changed))

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:  # noqa: ARG002 - Textual's
        """As many lines as there are."""
        return len(self.shown)

    def notify_style_update(self) -> None:
        """Drop cached strips: colours changed."""
        super().notify_style_update()
        self._strips.clear()

    def on_resize(self) -> None:
        """Drop cached strips: the width changed."""
        self._strips.clear()

    def render_line(self, y: int) -> Strip:
        """One line."""
        strip = self._strips.get(y)
        if strip is None:
            width, base = self.size.width, self.rich_style
            line = self.shown[y] if y < len(self.shown) else ()
            if length_of(line) > width:
                line = shorten(line, width)
            strip = Strip([Segment(text, base + style) for text, style in line])
            strip = self._strips[y] = strip.adjust_cell_length(width, base)
        return strip
