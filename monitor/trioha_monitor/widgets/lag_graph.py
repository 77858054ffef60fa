"""The lag of one connection over the last minutes, as large as there is room."""

from __future__ import annotations

from collections.abc import Sequence

from rich.segment import Segment
from rich.text import Text
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from trioha_monitor.model import ConnectionView, LinkState
from trioha_monitor.themes import Palette, palette_of
from trioha_monitor.units import format_bytes, format_milliseconds, format_scale, format_span
from trioha_monitor.widgets.bars import Cell, area, full_scale, grid_rows

GUTTER = 11
"""Cells to the left of the graph: a label, a blank and the axis."""


class LagGraph(Widget):
    """Bars of lag in bytes, each the worst of its stretch of time. Only lines that change are redrawn."""

    def __init__(self, *, id: str) -> None:  # noqa: A002 - Textual's name
        super().__init__(id=id)
        self._connection: ConnectionView | None = None
        self._end_s = 0.0
        self._span_s = 1.0
        self._titles = ("", "")
        self._strips: list[Strip] = []

    @property
    def lines(self) -> list[str]:
        """What is drawn at present, as plain text."""
        return [strip.text for strip in self._strips]

    def show(self, connection: ConnectionView | None, *, end_s: float, span_s: float) -> None:
        """Show the `span_s` seconds that end at `end_s`."""
        self._connection, self._end_s, self._span_s = connection, end_s, span_s
        titles = self._describe()
        if titles != self._titles:
            self._titles = titles
            # Text of a peer is text, never markup.
            self.border_title, self.border_subtitle = Text(titles[0]), Text(titles[1])
        self._draw()

    def on_resize(self) -> None:
        """Draw for the new size."""
        self._draw()

    def render_line(self, y: int) -> Strip:
        """One line of what `show` has drawn."""
        if y < len(self._strips):
            return self._strips[y].adjust_cell_length(self.size.width, self.rich_style)
        return Strip.blank(self.size.width, self.rich_style)

    def _describe(self) -> tuple[str, str]:
        """Title and subtitle."""
        connection = self._connection
        if connection is None:
            return "Lag", ""
        worst = connection.history.worst(end_s=self._end_s, span_s=self._span_s)
        now = format_bytes(connection.lag_bytes)
        if connection.lag_ms is not None and connection.link is LinkState.LIVE:
            now += f" ({format_milliseconds(connection.lag_ms)})"
        peak = format_bytes(worst.lag_bytes) if worst is not None else "no data"
        return f"Lag of {connection.address}", f"now {now} · worst of {format_span(self._span_s)}: {peak}"

    def _draw(self) -> None:
        base = self.rich_style
        strips = [
            Strip([Segment(text, base + style) for text, style in line])
            for line in self._lines(palette_of(self.app))
        ]
        if len(strips) != len(self._strips):
            self.refresh()
        else:
            changed = [y for y, (new, old) in enumerate(zip(strips, self._strips, strict=True)) if new != old]
            if changed:
                self.refresh(*[Region(0, y, self.size.width, 1) for y in changed])
        self._strips = strips

    def _lines(self, palette: Palette) -> Sequence[Sequence[Cell]]:
        width, height = self.size
        connection = self._connection
        columns_count, rows = width - GUTTER, height - 2
        if connection is None:
            return [[("No HA connection to draw.", palette.muted)]]
        if columns_count < 10 or rows < 1:
            return []
        columns = connection.history.columns(columns_count, end_s=self._end_s, span_s=self._span_s)
        worst = max((bucket.lag_bytes for bucket in columns if bucket is not None), default=0)
        top_bytes = full_scale(worst)
        lines: list[list[Cell]] = []
        for row, cells in enumerate(area(columns, palette, height=rows, top_bytes=top_bytes)):
            if row in grid_rows(rows):
                label = f"{format_scale(top_bytes * (rows - row) // rows):>{GUTTER - 2}} ┤"
            else:
                label = "│".rjust(GUTTER)
            lines.append([(label, palette.muted), *cells])
        lines.append([(f"{'0 B':>{GUTTER - 2}} └" + "─" * columns_count, palette.muted)])
        lines.append([(self._time_axis(columns_count), palette.muted)])
        return lines

    def _time_axis(self, width: int) -> str:
        """Labels under the axis: its two ends, and the middle if there is room."""
        left, right = f"-{format_span(self._span_s)}", "now"
        middle = f"-{format_span(self._span_s / 2)}" if width >= 40 else ""
        side = width // 2 - len(middle) // 2
        line = left.ljust(side) + middle
        return " " * GUTTER + line + right.rjust(width - len(line))
