"""A widget that shows lines and redraws only lines that changed."""

from __future__ import annotations

from collections.abc import Sequence

from rich.segment import Segment
from rich.style import Style
from textual.geometry import Region, Size
from textual.strip import Strip
from textual.widget import Widget

from trioha_monitor.rendering import Line
from trioha_monitor.widgets.columns import length_of, shorten


class LineView(Widget):
    """Lines from top to bottom; lines that do not fit are cut off, and end with `…` then."""

    def __init__(self, *, id: str) -> None:  # noqa: A002 - Textual's name
        super().__init__(id=id)
        self._lines: tuple[Line, ...] = ()
        self._strips: dict[int, Strip] = {}
        self._base: Style | None = None

    @property
    def lines(self) -> list[str]:
        """The lines as plain text."""
        return ["".join(text for text, _ in line) for line in self._lines]

    def show_lines(self, lines: Sequence[Line]) -> None:
        """Show `lines`."""
        old, new = self._lines, tuple(lines)
        if new == old:
            return
        self._lines = new
        if len(new) != len(old):
            self._strips.clear()
            self.refresh(layout=self.styles.is_auto_height)
            return
        width, regions = self.size.width, []
        for y, (line, before) in enumerate(zip(new, old, strict=True)):
            if line != before:
                self._strips.pop(y, None)
                regions.append(Region(0, y, width, 1))
        self.refresh(*regions)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:  # noqa: ARG002 - Textual's
        """As many lines as there are."""
        return len(self._lines)

    def notify_style_update(self) -> None:
        """Drop cached strips: colours changed."""
        super().notify_style_update()
        self._strips, self._base = {}, None

    def on_resize(self) -> None:
        """Drop cached strips: the width changed."""
        self._strips = {}

    def render_line(self, y: int) -> Strip:
        """One line."""
        strip = self._strips.get(y)
        if strip is None:
            if self._base is None:
                self._base = self.rich_style
            base = self._base
            line = self._lines[y] if y < len(self._lines) else ()
            if length_of(line) > self.size.width:
                line = shorten(line, self.size.width)
            strip = Strip([Segment(text, base + style) for text, style in line])
            strip = strip.adjust_cell_length(self.size.width, base)
            self._strips[y] = strip
        return strip
