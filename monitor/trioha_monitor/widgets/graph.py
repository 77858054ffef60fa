"""Graphs: a series as bars of block characters, in one line (`Sparkline`) or in many (`Graph`).

A large graph has the broker's own limits drawn in, and ticks for events.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from math import ceil

from attrs import define, field, frozen
from rich.cells import cell_len
from rich.style import Style

from trioha.severity import Severity
from trioha.unit_texts import format_bytes
from trioha_monitor.rendering import ByteUnits, Line, Palette, RenderContext, StyledText
from trioha_monitor.series import Bucket, Series
from trioha_monitor.texts import format_duration, format_scale, format_seconds, format_span
from trioha_monitor.view import ClusterView, EventKind, ReplicaView, TimelineEvent
from trioha_monitor.widgets.line_view import LineView

SPARK_MIN_BYTES = 262_144
"""Smallest full scale of a sparkline, in bytes of lag."""
EIGHTHS = " ▁▂▃▄▅▆▇█"
JUMP_MS = 10_000
"""After a jump of the time by more than this, no column is reused."""

EVENT_GLYPH = "▾"
ROLE_GLYPH = "◆"
"""Ticks of the time axis: of events, and of changes of roles."""

Columns = tuple[Bucket | None, ...]
Ticks = tuple[tuple[int, Severity, str], ...]
"""Columns of ticks, with their severity and glyph."""


def column_of(time_ms: int, context: RenderContext, width: int) -> int:
    """The column of a moment among `width`; outside of 0 to `width` - 1 if it is not drawn."""
    last = context.end_ms * width // context.span_ms
    return time_ms * width // context.span_ms - last + width - 1


@define(eq=False)
class ColumnCache:
    """The columns of one series from moment to moment: only columns that may differ are computed."""

    _shape: tuple[int, ...] = ()
    _end_ms: int = 0
    _last: int = 0
    _columns: Columns = ()

    def columns(self, series: Series, width: int, *, end_ms: int, span_ms: int) -> Columns:
        """`series.columns(...)`; the same object as before if nothing changed."""
        shape, last = (width, span_ms, series.bucket_ms, series.revision), end_ms * width // span_ms
        shift = last - self._last
        # Columns that the current bucket touches, now or at the last call, and one for rounding.
        fresh = shift + series.bucket_ms * width // span_ms + 2
        if shape != self._shape or not 0 <= end_ms - self._end_ms <= JUMP_MS or fresh >= width:
            columns = series.columns(width, end_ms=end_ms, span_ms=span_ms)
        else:
            newest = tuple(
                series.worst_between(n * span_ms // width, -(-(n + 1) * span_ms // width))
                for n in range(last - fresh + 1, last + 1)
            )
            columns = self._columns[shift : shift + width - fresh] + newest
        if columns == self._columns:
            columns = self._columns
        self._shape, self._end_ms, self._last, self._columns = shape, end_ms, last, columns
        return columns


@define(eq=False)
class Sparkline:
    """One series as one line; drawn again only if a column has changed."""

    _cache: ColumnCache = field(factory=ColumnCache)
    _columns: Columns | None = None
    _palette: Palette | None = None
    _line: Line = ()

    def draw(self, series: Series, width: int, *, end_ms: int, span_ms: int, palette: Palette) -> Line:
        """`width` characters for the `span_ms` that end at `end_ms`."""
        columns = self._cache.columns(series, width, end_ms=end_ms, span_ms=span_ms)
        if columns is not self._columns or palette is not self._palette:
            self._columns, self._palette = columns, palette
            self._line = sparkline(columns, palette)
        return self._line


def sparkline(columns: Sequence[Bucket | None], palette: Palette, *, least: float = SPARK_MIN_BYTES) -> Line:
    """One character a column, scaled to the worst of them, but at least to `least`.

    No data is blank; zero is the lowest bar.
    """
    worst = max([least, *(bucket.value for bucket in columns if bucket is not None)])
    cells: list[StyledText] = []
    for bucket in columns:
        if bucket is None:
            cells.append((" ", palette.faint))
        elif bucket.value <= 0:
            cells.append((EIGHTHS[1], palette.of(bucket.severity) if bucket.severity else palette.muted))
        else:
            # Any value is higher than zero.
            level = 1 + ceil(bucket.value * 7 / worst)
            cells.append((EIGHTHS[level], palette.of(bucket.severity)))
    return runs(cells)


def area(
    columns: Sequence[Bucket | None], palette: Palette, *, height: int, top: float, grid: Sequence[int] = ()
) -> list[list[StyledText]]:
    """`height` lines, the highest first: each column is filled up to its share of `top`.

    One part a character; `grid` are the lines that are dotted where no bar is.
    """
    levels = [_level(bucket, height=height, top=top) for bucket in columns]
    lines: list[list[StyledText]] = []
    for row in range(height):
        below = (height - 1 - row) * 8
        empty = ("┈" if row in grid else " ", palette.faint)
        line: list[StyledText] = []
        for level, bucket in zip(levels, columns, strict=True):
            if bucket is None or level <= below:
                line.append(empty)
            elif level <= below + 8:
                line.append((EIGHTHS[level - below], palette.of(bucket.severity)))
            else:
                # A bright edge on a paler body.
                line.append((EIGHTHS[8], palette.body(bucket.severity)))
        lines.append(line)
    return lines


def runs(cells: Sequence[StyledText]) -> Line:
    """The same text with parts of one style merged: drawing costs by the part."""
    merged: list[StyledText] = []
    text, style = "", None
    for more, other in cells:
        if other is style:
            text += more
        else:
            if style is not None:
                merged.append((text, style))
            text, style = more, other
    if style is not None:
        merged.append((text, style))
    return tuple(merged)


def bar(share: float, width: int) -> str:
    """A bar of `width` cells, filled to `share` (0 to 1); anything above 0 is visible."""
    eighths = min(width * 8, ceil(max(0.0, share) * width * 8))
    partial = "▏▎▍▌▋▊▉"
    whole, rest = divmod(eighths, 8)
    return ("█" * whole + (partial[rest - 1] if rest else "")).ljust(width)


def full_scale(worst: float, *, units: ByteUnits = ByteUnits.BINARY, least: float = 1024) -> float:
    """End of an axis that reaches `worst`, at least `least`: a round number whose half is round, too."""
    if units is ByteUnits.BINARY:
        power = 1 << max(0, ceil(worst) - 1).bit_length()
        return max(least, power * 3 // 4 if worst <= power * 3 // 4 else power)
    return max(least, round_above(worst))


def round_above(worst: float) -> float:
    """The least of 1, 2, 4, 6 or 10 times a power of ten that is not below `worst`."""
    if worst <= 0:
        return 0.0
    power = 10.0 ** (len(f"{ceil(worst)}") - 1) if worst > 1 else 0.001
    while power * 10 < worst:
        power *= 10
    return next(factor * power for factor in (1, 2, 4, 6, 10) if factor * power >= worst)


def grid_rows(height: int) -> tuple[int, ...]:
    """Which lines of a graph carry a label and a grid line: the top, and the middle if there is room."""
    return (0, height // 2) if height >= 4 and height % 2 == 0 else (0,)


def _level(bucket: Bucket | None, *, height: int, top: float) -> int:
    """Height of a column in eighths of a line: at least one if there is data."""
    return 0 if bucket is None else max(1, min(height * 8, ceil(bucket.value * height * 8 / top)))


GUTTER = 11
"""Cells to the left of the graph: a label, a blank and the axis."""
LIMIT_IN_SIGHT = 4
"""A limit is drawn to scale once the worst value is a quarter of it. Until then it is named."""


class Quantity(Enum):
    """Quantity of a graph's values."""

    BYTES = "bytes"
    BYTES_PER_S = "bytes/s"
    SECONDS = "seconds"

    def write(self, value: float, context: RenderContext) -> str:
        """A value with its unit."""
        if self is Quantity.SECONDS:
            return format_seconds(value)
        return context.size(value) if self is Quantity.BYTES else context.rate(value)


@frozen
class Limit:
    """A line across the graph: a broker's limit of the value."""

    value: float
    label: str


@frozen
class Mark:
    """A tick on the time axis: an event."""

    time_ms: int
    severity: Severity
    is_role_change: bool = False

    @classmethod
    def of(cls, event: TimelineEvent) -> Mark:
        """The tick of an event."""
        return cls(event.time_ms, event.severity, event.kind is EventKind.ROLE)


@frozen
class Curve:
    """A series with what is drawn along with it."""

    title: str
    key: object
    """Identity of the curve: caches are dropped when it changes."""
    series: Series
    quantity: Quantity
    limits: tuple[Limit, ...] = ()
    """From the lowest to the highest."""
    marks: tuple[Mark, ...] = ()
    now: str = ""
    """Text of the present value; empty without one."""


class Graph(LineView):
    """Bars, each the worst of its span of time."""

    def __init__(self, *, id: str, empty: str) -> None:  # noqa: A002 - Textual's name
        super().__init__(id=id)
        self._empty = empty
        self._curve: Curve | None = None
        self._render_context: RenderContext | None = None
        self._cache = ColumnCache()
        self._drawn: object = None

    def show(self, curve: Curve | None, context: RenderContext) -> None:
        """Show `curve`; None if there is nothing to draw."""
        if curve is not None and (self._curve is None or curve.key != self._curve.key):
            self._cache, self._drawn = ColumnCache(), None
        self._curve, self._render_context = curve, context
        self._draw()

    def on_resize(self) -> None:
        """Draw for the new size."""
        self._draw()

    def _draw(self) -> None:
        context, curve, size = self._render_context, self._curve, self.size
        if context is None or size.width <= 0:
            return
        width, height = size.width - GUTTER, size.height - 2
        if curve is None:
            self.heading, self.notes = "", ()
            self.shown = [((self._empty, context.palette.muted),)]
            self._drawn = None
            return
        worst = curve.series.worst(end_ms=context.end_ms, span_ms=context.span_ms)
        worst_text = "no data" if worst is None else curve.quantity.write(worst.value, context)
        worst_of_span = f"worst of {format_span(context.span_ms / 1000)}: {worst_text}"
        now = f"now {curve.now} · " if curve.now else ""
        self.heading = curve.title
        self.notes = (f"{now}{worst_of_span}", worst_of_span, f"worst {worst_text}")
        if width < 10 or height < 1:
            self.shown = []
            return
        columns = self._cache.columns(curve.series, width, end_ms=context.end_ms, span_ms=context.span_ms)
        marks = self._marks(curve, context, width)
        drawn = (columns, marks, curve.limits, height, context.palette, context.units, context.span_ms)
        if drawn != self._drawn:
            self._drawn = drawn
            self.shown = _picture(curve, context, columns, marks, height=height)

    def _marks(self, curve: Curve, context: RenderContext, width: int) -> Ticks:
        """Columns of the events in the time that is drawn, with the worst severity and the glyph of each."""
        columns: dict[int, tuple[Severity, str]] = {}
        for mark in curve.marks:
            column = column_of(mark.time_ms, context, width)
            if 0 <= column < width:
                severity, glyph = columns.get(column, (Severity.GOOD, EVENT_GLYPH))
                glyph = ROLE_GLYPH if mark.is_role_change else glyph
                columns[column] = max(mark.severity, severity), glyph
        return tuple((column, *columns[column]) for column in sorted(columns))


def _picture(
    curve: Curve,
    context: RenderContext,
    columns: Columns,
    marks: Ticks,
    *,
    height: int,
) -> list[Line]:
    palette, width = context.palette, len(columns)
    worst = max((bucket.value for bucket in columns if bucket is not None), default=0.0)
    top = _top(curve, context, worst)
    near = [limit for limit in curve.limits if limit.value <= top]
    far = [limit for limit in curve.limits if limit.value > top]
    # An even number of lines has a middle with a round label; an odd line names the limit above.
    above = height % 2 if height > 4 else 0
    bars = height - above
    grid = grid_rows(bars)
    rows = [[(" ", palette.text)] * width for _ in range(above)]
    rows += area(columns, palette, height=bars, top=top, grid=grid)
    used_rows = set()
    for limit in near:
        row = above + bars - max(1, ceil(limit.value * bars / top))
        used_rows.add(row)
        _write_limit(rows[row], f" {limit.label} ", palette.warn, everywhere=True)
    if far and 0 not in used_rows:
        _write_limit(rows[0], f" ↑ {far[0].label} ", palette.muted, everywhere=False)
    lines: list[Line] = []
    for row, cells in enumerate(rows, start=-above):
        label = "│".rjust(GUTTER)
        if row in grid:
            label = f"{_scale(curve.quantity, context, top * (bars - row) / bars):>{GUTTER - 2}} ┤"
        lines.append(((label, palette.muted), *runs(cells)))
    zero = "0 s" if curve.quantity is Quantity.SECONDS else "0 B"
    axis: list[StyledText] = [("─", palette.muted)] * width
    for column, severity, glyph in marks:
        axis[column] = (glyph, palette.of(severity))
    lines.append(((f"{zero:>{GUTTER - 2}} └", palette.muted), *runs(axis)))
    lines.append(((_time_axis(context, width), palette.muted),))
    return lines


def _top(curve: Curve, context: RenderContext, worst: float) -> float:
    """End of the axis: above the worst value, and above limits that are close to it."""
    highest = max([worst, *(limit.value for limit in curve.limits if worst * LIMIT_IN_SIGHT >= limit.value)])
    if curve.quantity is Quantity.SECONDS:
        return max(0.1, round_above(highest))
    return full_scale(highest, units=context.units)


def _write_limit(row: list[StyledText], label: str, style: Style, *, everywhere: bool) -> None:
    """Draw a limit where no bar is, with its name at the right end."""
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
        return f"{value:g} s" if value < 100 else format_seconds(value)
    suffix = "/s" if quantity is Quantity.BYTES_PER_S else ""
    text = format_scale(round(value)) if context.units is ByteUnits.BINARY else context.size(value)
    return text + suffix


def _time_axis(context: RenderContext, width: int) -> str:
    """Labels of the time axis: its ends, and the middle if there is room."""
    span_s = context.span_ms / 1000
    left, right = f"-{format_span(span_s)}", "now"
    middle = f"-{format_span(span_s / 2)}" if width >= 40 else ""
    side = width // 2 - len(middle) // 2
    line = left.ljust(side) + middle
    return " " * GUTTER + line + right.rjust(width - len(line))


def lag_curve(replica: ReplicaView, view: ClusterView, context: RenderContext, *, in_seconds: bool) -> Curve:
    """Lag of a replica over time, in bytes or in seconds, with its events and its master's limits."""
    limits = replica.limits
    marks = replica_marks(replica, view, context)
    why = f" · {replica.why}" if replica.why else ""
    default = "" if limits.are_reported else " (default)"
    if in_seconds:
        return Curve(
            title=f"Lag of {replica.label} in seconds{why}",
            key=(replica.key, in_seconds),
            series=replica.lag_s_history,
            quantity=Quantity.SECONDS,
            limits=(
                Limit(
                    limits.slave_timeout_s, f"slaveTimeout {format_seconds(limits.slave_timeout_s)}{default}"
                ),
                Limit(
                    limits.housekeeping_s,
                    f"housekeeping closes after {format_duration(limits.housekeeping_s)}{default}",
                ),
            ),
            marks=marks,
            now="" if replica.lag_s is None or replica.is_rejoining else format_seconds(replica.lag_s),
        )
    return Curve(
        title=f"Lag of {replica.label}{why}",
        key=(replica.key, in_seconds),
        series=replica.lag_history,
        quantity=Quantity.BYTES,
        limits=(
            Limit(limits.gap_bytes_max, f"haMaxGapNotInSync {format_bytes(limits.gap_bytes_max)}{default}"),
        ),
        marks=marks,
        now="" if replica.diff_bytes is None or replica.is_rejoining else context.size(replica.diff_bytes),
    )


def replica_marks(replica: ReplicaView, view: ClusterView, context: RenderContext) -> tuple[Mark, ...]:
    """Events of a replica, changes of its master's role and its own, and cuts of its log, in the time that is
    drawn."""
    marks: list[Mark] = []
    for event in reversed(view.events):
        if event.time_ms < context.end_ms - context.span_ms:
            break
        is_own = event.replica and event.replica in {replica.address, replica.label}
        is_role = event.kind is EventKind.ROLE and event.node in {replica.label, replica.master_label}
        is_cut = event.kind is EventKind.CUT and event.node == replica.label
        if is_own or is_role or is_cut:
            marks.append(Mark.of(event))
    return tuple(marks)
