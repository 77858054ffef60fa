"""A series over the last minutes, as large as there is room, with the broker's own limits drawn in."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from math import ceil

from attrs import frozen
from rich.cells import cell_len
from rich.style import Style
from rich.text import Text

from trioha_monitor.series import Series, Severity
from trioha_monitor.units import format_scale, format_span
from trioha_monitor.widgets.bars import ColumnCache, Columns, area, full_scale, grid_rows, round_above, runs
from trioha_monitor.widgets.line_view import LineView
from trioha_monitor.widgets.render_context import ByteUnits, Line, Part, RenderContext, seconds

GUTTER = 11
"""Cells to the left of the graph: a label, a blank and the axis."""
LIMIT_IN_SIGHT = 4
"""A limit is drawn to scale once the worst value is a quarter of it. Until then it is named."""


class Quantity(Enum):
    """What a graph's values are."""

    BYTES = "bytes"
    BYTES_PER_S = "bytes/s"
    SECONDS = "seconds"

    def write(self, value: float, context: RenderContext) -> str:
        """A value with its unit."""
        if self is Quantity.SECONDS:
            return seconds(value)
        return context.size(value) if self is Quantity.BYTES else context.rate(value)


@frozen
class Limit:
    """A line across the graph: what a broker compares the value with."""

    value: float
    label: str


@frozen
class Mark:
    """A tick on the time axis: something happened."""

    time_ms: int
    severity: Severity


@frozen
class Curve:
    """What a graph shows."""

    title: str
    key: object
    """Whose curve it is: what was drawn of another one is not kept."""
    series: Series
    quantity: Quantity
    limits: tuple[Limit, ...] = ()
    """From the lowest to the highest."""
    marks: tuple[Mark, ...] = ()
    now: str = ""
    """The present value in words, if there is one."""


class Graph(LineView):
    """Bars, each the worst of its stretch of time."""

    def __init__(self, *, id: str, empty: str) -> None:  # noqa: A002 - Textual's name
        super().__init__(id=id)
        self._empty = empty
        self._curve: Curve | None = None
        self._look: RenderContext | None = None
        self._cache = ColumnCache()
        self._drawn: object = None
        self._titles = ("", "")

    def show(self, curve: Curve | None, context: RenderContext) -> None:
        """Show `curve`; None says that there is nothing to draw."""
        if curve is not None and (self._curve is None or curve.key != self._curve.key):
            self._cache, self._drawn = ColumnCache(), None
        self._curve, self._look = curve, context
        self._draw()

    def on_resize(self) -> None:
        """Draw for the new size."""
        super().on_resize()
        self._draw()

    def _draw(self) -> None:
        context, curve, size = self._look, self._curve, self.size
        if context is None or size.width <= 0:
            return
        width, height = size.width - GUTTER, size.height - 2
        if curve is None:
            self._entitle("", "")
            self.show_lines([((self._empty, context.palette.muted),)])
            self._drawn = None
            return
        worst = curve.series.worst(end_ms=context.end_ms, span_ms=context.span_ms)
        said = "no data" if worst is None else curve.quantity.write(worst.value, context)
        now = f"now {curve.now} · " if curve.now else ""
        self._entitle(curve.title, f"{now}worst of {format_span(context.span_ms / 1000)}: {said}")
        if width < 10 or height < 1:
            self.show_lines([])
            return
        columns = self._cache.columns(curve.series, width, end_ms=context.end_ms, span_ms=context.span_ms)
        marks = self._marks(curve, context, width)
        drawn = (columns, marks, curve.limits, height, context.palette, context.units, context.span_ms)
        if drawn != self._drawn:
            self._drawn = drawn
            self.show_lines(_picture(curve, context, columns, marks, height=height))

    def _entitle(self, title: str, subtitle: str) -> None:
        if subtitle and self.styles.border_bottom[0] in {"", "none", "hidden"}:
            # Without a frame there is only the line above.
            title, subtitle = f"{title} · {subtitle}", ""
        if (title, subtitle) != self._titles:
            self._titles = (title, subtitle)
            # Text of a peer is text, never markup.
            self.border_title, self.border_subtitle = Text(title), Text(subtitle)

    def _marks(self, curve: Curve, context: RenderContext, width: int) -> tuple[tuple[int, Severity], ...]:
        """Column and severity of what happened in the time that is drawn; the worst of each column."""
        last = context.end_ms * width // context.span_ms
        columns: dict[int, Severity] = {}
        for mark in curve.marks:
            column = mark.time_ms * width // context.span_ms - last + width - 1
            if 0 <= column < width:
                columns[column] = max(mark.severity, columns.get(column, Severity.GOOD))
        return tuple(sorted(columns.items()))


def _picture(
    curve: Curve,
    context: RenderContext,
    columns: Columns,
    marks: Sequence[tuple[int, Severity]],
    *,
    height: int,
) -> list[Line]:
    palette, width = context.palette, len(columns)
    worst = max((bucket.value for bucket in columns if bucket is not None), default=0.0)
    top = _top(curve, context, worst)
    near = [limit for limit in curve.limits if limit.value <= top]
    far = [limit for limit in curve.limits if limit.value > top]
    # An even number of lines has a middle with a round label; a line too many names the limit above.
    above = height % 2 if height > 4 else 0
    bars = height - above
    grid = grid_rows(bars)
    rows = [[(" ", palette.text)] * width for _ in range(above)]
    rows += area(columns, palette, height=bars, top=top, grid=grid)
    taken = set()
    for limit in near:
        row = above + bars - max(1, ceil(limit.value * bars / top))
        taken.add(row)
        _write_limit(rows[row], f" {limit.label} ", palette.warn, everywhere=True)
    if far and 0 not in taken:
        _write_limit(rows[0], f" ↑ {far[0].label} ", palette.muted, everywhere=False)
    lines: list[Line] = []
    for row, cells in enumerate(rows, start=-above):
        label = "│".rjust(GUTTER)
        if row in grid:
            label = f"{_scale(curve.quantity, context, top * (bars - row) / bars):>{GUTTER - 2}} ┤"
        lines.append(((label, palette.muted), *runs(cells)))
    zero = "0 s" if curve.quantity is Quantity.SECONDS else "0 B"
    axis: list[Part] = [("─", palette.muted)] * width
    for column, severity in marks:
        axis[column] = ("▾", palette.of(severity))
    lines.append(((f"{zero:>{GUTTER - 2}} └", palette.muted), *runs(axis)))
    lines.append(((_time_axis(context, width), palette.muted),))
    return lines


def _top(curve: Curve, context: RenderContext, worst: float) -> float:
    """Where the axis ends: above the worst value, and above the limits that it comes close to."""
    highest = max([worst, *(limit.value for limit in curve.limits if worst * LIMIT_IN_SIGHT >= limit.value)])
    if curve.quantity is Quantity.SECONDS:
        return max(0.1, round_above(highest))
    return full_scale(highest, units=context.units)


def _write_limit(row: list[Part], label: str, style: Style, *, everywhere: bool) -> None:
    """A line where nothing is drawn, and its name at the right end."""
    if everywhere:
        for x, (glyph, _) in enumerate(row):
            if glyph in " ┈":
                row[x] = ("╌", style)
    start = len(row) - cell_len(label) - 1
    if start > 0:
        for x, glyph in enumerate(label, start=start):
            row[x] = (glyph, style)


def _scale(quantity: Quantity, context: RenderContext, value: float) -> str:
    """A label of the axis."""
    if quantity is Quantity.SECONDS:
        return f"{value:g} s" if value < 100 else seconds(value)
    suffix = "/s" if quantity is Quantity.BYTES_PER_S else ""
    text = format_scale(round(value)) if context.units is ByteUnits.BINARY else context.size(value)
    return text + suffix


def _time_axis(context: RenderContext, width: int) -> str:
    """Labels under the axis: its two ends, and the middle if there is room."""
    span_s = context.span_ms / 1000
    left, right = f"-{format_span(span_s)}", "now"
    middle = f"-{format_span(span_s / 2)}" if width >= 40 else ""
    side = width // 2 - len(middle) // 2
    line = left.ljust(side) + middle
    return " " * GUTTER + line + right.rjust(width - len(line))
