"""Lag as bars of block characters: one line for a table, many lines for the graph. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from rich.style import Style
from rich.text import Text

from trioha_monitor.history import Bucket
from trioha_monitor.themes import Palette

Cell = tuple[str, Style]
"""A piece of text and how it is drawn."""
EIGHTHS = " ▁▂▃▄▅▆▇█"
TOP_MIN_BYTES = 1024
"""Smallest full scale of a graph, bytes: below it noise would look like mountains."""


def full_scale(worst_bytes: int) -> int:
    """Where a graph of lags up to `worst_bytes` ends: 2 ** n or 3 * 2 ** n, so that halves are round."""
    power = 1 << max(0, worst_bytes - 1).bit_length()
    return max(TOP_MIN_BYTES, power * 3 // 4 if worst_bytes <= power * 3 // 4 else power)


def sparkline(columns: Sequence[Bucket | None], palette: Palette) -> Text:
    """One character a column, scaled to the worst of them. No data is blank, no lag the lowest bar."""
    worst = max((bucket.lag_bytes for bucket in columns if bucket is not None), default=0)
    cells: list[Cell] = []
    for bucket in columns:
        if bucket is None:
            cells.append((" ", palette.faint))
        elif bucket.lag_bytes <= 0:
            cells.append((EIGHTHS[1], palette.of(bucket.grade) if bucket.grade else palette.muted))
        else:
            # Some lag is always higher than none.
            level = 1 + ceil(bucket.lag_bytes * 7 / worst)
            cells.append((EIGHTHS[level], palette.of(bucket.grade)))
    return Text.assemble(*runs(cells))


def area(
    columns: Sequence[Bucket | None], palette: Palette, *, height: int, top_bytes: int
) -> list[list[Cell]]:
    """`height` lines, the highest first: each column is filled up to its share of `top_bytes`."""
    levels = [_level(bucket, height=height, top_bytes=top_bytes) for bucket in columns]
    lines: list[list[Cell]] = []
    for row in range(height):
        below = (height - 1 - row) * 8
        empty = ("┈" if row in grid_rows(height) else " ", palette.faint)
        line: list[Cell] = []
        for level, bucket in zip(levels, columns, strict=True):
            if bucket is None or level <= below:
                line.append(empty)
            elif level <= below + 8:
                line.append((EIGHTHS[level - below], palette.of(bucket.grade)))
            else:
                # A bright edge on a paler body: the eye follows the edge.
                line.append((EIGHTHS[8], palette.body(bucket.grade)))
        lines.append(runs(line))
    return lines


def runs(cells: Sequence[Cell]) -> list[Cell]:
    """The same text in as few pieces as there are changes of style: drawing costs by the piece."""
    merged: list[Cell] = []
    for text, style in cells:
        if merged and merged[-1][1] is style:
            merged[-1] = (merged[-1][0] + text, style)
        else:
            merged.append((text, style))
    return merged


def grid_rows(height: int) -> tuple[int, ...]:
    """Which lines of a graph carry a label and a grid line: the top, and the middle if there is room."""
    return (0, height // 2) if height >= 4 and height % 2 == 0 else (0,)


def _level(bucket: Bucket | None, *, height: int, top_bytes: int) -> int:
    """How many eighths of a line the column has: at least one, so that time with data shows."""
    return 0 if bucket is None else max(1, min(height * 8, ceil(bucket.lag_bytes * height * 8 / top_bytes)))
