"""Prints the rows of `trioha status`: each in one line, whatever the width of the terminal.

What does not fit is cut, and follows in full after the rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.cells import cell_len
from rich.text import Text

from trioha.cli.console import SEVERITY_STYLES, out
from trioha.cli.status_rows import StatusRow, Summary
from trioha.outside_text import escaped
from trioha.unit_texts import format_bytes, format_elapsed

_HEADS: Final = ("broker", "state", "lag")
_REMARK_COLUMNS_MIN: Final = 20
"""A remark has so many columns also beside a long address."""


def print_rows(summary: Summary, rows: Sequence[StatusRow]) -> None:
    """Print the state of all in the first line, then the rows."""
    out().print(Text(escaped(summary.text), style=SEVERITY_STYLES[summary.severity]), soft_wrap=True)
    if not rows:
        return
    cells = [(_label(row), row.state, lag_text(row)) for row in rows]
    widths = [max(map(cell_len, column)) for column in zip(_HEADS, *cells, strict=True)]
    room = max(_REMARK_COLUMNS_MIN, out().width - sum(widths) - 2 * len(widths))
    out().print(Text(_line(_HEADS, widths), style="dim"), soft_wrap=True)
    cut: list[Text] = []
    for row, texts in zip(rows, cells, strict=True):
        remark = Text(escaped("; ".join(row.problems) or row.name))
        if remark.cell_len > room:
            if row.problems:
                cut.append(Text(f"{texts[0].strip()}: {remark}", style=SEVERITY_STYLES[row.severity]))
            remark.truncate(room, overflow="ellipsis")
        line = Text(_line(texts, widths))
        start = widths[0] + 2
        line.stylize(SEVERITY_STYLES[row.severity], start, start + len(row.state))
        out().print(line.append("  ").append(remark), soft_wrap=True)
    for text in cut:
        out().print(text, soft_wrap=True)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(cell + " " * (width - cell_len(cell)) for cell, width in zip(cells, widths, strict=True))


def _label(row: StatusRow) -> str:
    return f"{'  ' if row.master else ''}{escaped(row.address)}"


def lag_text(row: StatusRow) -> str:
    """Bytes that a replica has not acknowledged, and the age of the oldest: `1.2 KiB, 12 ms`."""
    if row.lag_bytes is None:
        return ""
    size = format_bytes(row.lag_bytes)
    if not row.lag_bytes or row.lag_ms is None:
        return size
    return f"{size}, {row.lag_ms} ms" if row.lag_ms < 1000 else f"{size}, {format_elapsed(row.lag_ms / 1000)}"
