"""Series as bars of block characters: one line for a table, many lines for a graph. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from attrs import define, field

from trioha_monitor.series import Bucket, Series
from trioha_monitor.themes import Palette
from trioha_monitor.widgets.render_context import ByteUnits, Line, Part

SPARK_MIN_BYTES = 262_144
"""Lag that fills a small graph at least, in bytes."""
EIGHTHS = " ▁▂▃▄▅▆▇█"
JUMP_MS = 10_000
"""A time that moves on by more than this did not just pass: nothing that was computed is kept."""

Columns = tuple[Bucket | None, ...]


@define(eq=False)
class ColumnCache:
    """The columns of one series from moment to moment: only those that may differ are made anew."""

    _shape: tuple[int, ...] = ()
    _end_ms: int = 0
    _last: int = 0
    _columns: Columns = ()

    def columns(self, series: Series, width: int, *, end_ms: int, span_ms: int) -> Columns:
        """`series.columns(...)`; the same object as before where nothing changed."""
        shape, last = (width, span_ms, series.bucket_ms, series.revision), end_ms * width // span_ms
        shift = last - self._last
        # Columns that the bucket being filled may touch, now or when these were made, and one for rounding.
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
    """One series as one line, drawn again only when a column changed."""

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
    """One character a column, scaled to the worst of them. No data is blank, zero the lowest bar.

    What is worst counts as `least` at least: noise is no mountain.
    """
    worst = max([least, *(bucket.value for bucket in columns if bucket is not None)])
    cells: list[Part] = []
    for bucket in columns:
        if bucket is None:
            cells.append((" ", palette.faint))
        elif bucket.value <= 0:
            cells.append((EIGHTHS[1], palette.of(bucket.severity) if bucket.severity else palette.muted))
        else:
            # Something is always higher than nothing.
            level = 1 + ceil(bucket.value * 7 / worst)
            cells.append((EIGHTHS[level], palette.of(bucket.severity)))
    return runs(cells)


def area(
    columns: Sequence[Bucket | None], palette: Palette, *, height: int, top: float, grid: Sequence[int] = ()
) -> list[list[Part]]:
    """`height` lines, the highest first: each column is filled up to its share of `top`.

    One part a character; `grid` are the lines that are dotted where nothing is drawn.
    """
    levels = [_level(bucket, height=height, top=top) for bucket in columns]
    lines: list[list[Part]] = []
    for row in range(height):
        below = (height - 1 - row) * 8
        empty = ("┈" if row in grid else " ", palette.faint)
        line: list[Part] = []
        for level, bucket in zip(levels, columns, strict=True):
            if bucket is None or level <= below:
                line.append(empty)
            elif level <= below + 8:
                line.append((EIGHTHS[level - below], palette.of(bucket.severity)))
            else:
                # A bright edge on a paler body: the eye follows the edge.
                line.append((EIGHTHS[8], palette.body(bucket.severity)))
        lines.append(line)
    return lines


def runs(cells: Sequence[Part]) -> Line:
    """The same text in as few pieces as there are changes of style: drawing costs by the piece."""
    merged: list[Part] = []
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
    """A bar of `width` cells, filled to `share` of it (0 to 1); anything at all shows."""
    eighths = min(width * 8, ceil(max(0.0, share) * width * 8))
    partial = "▏▎▍▌▋▊▉"
    whole, rest = divmod(eighths, 8)
    return ("█" * whole + (partial[rest - 1] if rest else "")).ljust(width)


def full_scale(worst: float, *, units: ByteUnits = ByteUnits.BINARY, least: float = 1024) -> float:
    """Where an axis up to `worst` ends, at least at `least`: a number that reads well, and half of it too."""
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
    """How many eighths of a line the column has: at least one, so that time with data shows."""
    return 0 if bucket is None else max(1, min(height * 8, ceil(bucket.value * height * 8 / top)))
