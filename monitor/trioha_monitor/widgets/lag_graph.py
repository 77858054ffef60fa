"""The lag of one connection over the last minutes, as large as there is room."""

from __future__ import annotations

from rich.text import Text
from textual.widget import Widget

from trioha_monitor.model import ConnectionView, LinkState
from trioha_monitor.themes import palette_of
from trioha_monitor.units import format_bytes, format_milliseconds, format_scale, format_span
from trioha_monitor.widgets.bars import area, full_scale, grid_rows

GUTTER = 11
"""Cells to the left of the graph: a label, a blank and the axis."""


class LagGraph(Widget):
    """Bars of lag in bytes, each the worst of its stretch of time."""

    def __init__(self, *, id: str) -> None:  # noqa: A002 - Textual's name
        super().__init__(id=id)
        self._connection: ConnectionView | None = None
        self._end_s = 0.0
        self._span_s = 1.0

    def show(self, connection: ConnectionView | None, *, end_s: float, span_s: float) -> None:
        """Show the `span_s` seconds that end at `end_s`."""
        self._connection, self._end_s, self._span_s = connection, end_s, span_s
        title, subtitle = "Lag", ""
        if connection is not None:
            title = f"Lag of {connection.address}"
            worst = connection.history.worst(end_s=end_s, span_s=span_s)
            now = format_bytes(connection.lag_bytes)
            if connection.lag_ms is not None and connection.link is LinkState.LIVE:
                now += f" ({format_milliseconds(connection.lag_ms)})"
            peak = format_bytes(worst.lag_bytes) if worst is not None else "no data"
            subtitle = f"now {now} · worst of {format_span(span_s)}: {peak}"
        # Text of a peer is text, never markup.
        self.border_title = Text(title)
        self.border_subtitle = Text(subtitle)
        self.refresh()

    def render(self) -> Text:
        """The graph at the size that there is."""
        width, height = self.size
        palette = palette_of(self.app)
        connection = self._connection
        columns_count, rows = width - GUTTER, height - 2
        if connection is None or columns_count < 10 or rows < 1:
            return Text("No HA connection to draw." if connection is None else "", palette.muted)
        columns = connection.history.columns(columns_count, end_s=self._end_s, span_s=self._span_s)
        worst = max((bucket.lag_bytes for bucket in columns if bucket is not None), default=0)
        top_bytes = full_scale(worst)
        graph = Text(no_wrap=True, end="")
        for row, cells in enumerate(area(columns, palette, height=rows, top_bytes=top_bytes)):
            if row in grid_rows(rows):
                share = top_bytes * (rows - row) // rows
                graph.append(f"{format_scale(share):>{GUTTER - 2}} ", palette.muted)
                graph.append("┤", palette.muted)
            else:
                graph.append(" " * (GUTTER - 1))
                graph.append("│", palette.muted)
            for glyph, style in cells:
                graph.append(glyph, style)
            graph.append("\n")
        graph.append(f"{'0 B':>{GUTTER - 2}} ", palette.muted)
        graph.append("└" + "─" * columns_count + "\n", palette.muted)
        graph.append_text(Text(self._time_axis(columns_count), palette.muted))
        return graph

    def _time_axis(self, width: int) -> str:
        """Labels under the axis: its two ends, and the middle if there is room."""
        left, right = f"-{format_span(self._span_s)}", "now"
        middle = f"-{format_span(self._span_s / 2)}" if width >= 40 else ""
        side = width // 2 - len(middle) // 2
        line = left.ljust(side) + middle
        return " " * GUTTER + line + right.rjust(width - len(line))
