"""Columns of a table, and which of them fit a width. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, Literal, TypeVar

from attrs import frozen
from rich.cells import cell_len, set_cell_size
from rich.style import Style

from trioha_monitor.rendering import Line, RenderContext

T = TypeVar("T")
GAP = 2
"""Blanks between two columns."""


@frozen
class Column(Generic[T]):
    """One column of a table of T."""

    key: str
    label: str
    help: str
    """Meaning, for the help screen."""
    cell: Callable[[T, RenderContext], Line] | None
    """Makes the cell; None for a `picture`."""
    align: Literal["left", "right"] = "left"
    rank: int = 0
    """0 is always shown; of the others the highest rank is dropped first."""
    flexible_min: int | None = None
    """None: as wide as its content. Else at least this many cells, and the width that others leave."""
    picture: Callable[[T, RenderContext, int], Line] | None = None
    """Draws a flexible column without `cell`, for its width."""
    order: Callable[[T], Any] | None = None
    """Sort key of a row, ascending; None if the column has no order."""

    def write(self, item: T, context: RenderContext, width: int) -> Line:
        """The cell of `item`."""
        if self.cell is not None:
            return self.cell(item, context)
        assert self.picture is not None, "a column has a cell or a picture"
        return self.picture(item, context, width)


def fit(columns: Sequence[Column[Any]], content: Mapping[str, int], *, width: int) -> dict[str, int]:
    """The columns that fit into `width` cells, in their order, and how wide each is.

    `content` is the widest content of each column. Columns of the highest rank are dropped until the others
    fit; if columns of rank 0 do not fit, the widest of them shrinks.
    """
    shown = list(columns)

    def wanted() -> int:
        sizes = (content[c.key] if c.flexible_min is None else c.flexible_min for c in shown)
        return sum(sizes) + GAP * (len(shown) - 1)

    while wanted() > width and max(column.rank for column in shown) > 0:
        shown.remove(max(reversed(shown), key=lambda column: column.rank))
    widths = {c.key: content[c.key] if c.flexible_min is None else c.flexible_min for c in shown}
    spare = width - wanted()
    flexible = [column.key for column in shown if column.flexible_min is not None]
    while spare < 0 and max(widths.values()) > 1:
        widest = max(widths, key=lambda key: widths[key])
        widths[widest] -= 1
        spare += 1
    if flexible and spare > 0:
        for index, key in enumerate(flexible):
            widths[key] += spare // len(flexible) + (1 if index < spare % len(flexible) else 0)
    return widths


def shorten(line: Line, width: int) -> Line:
    """`line` cut to `width` cells, with an ellipsis."""
    if width <= 0:
        return ()
    kept: list[tuple[str, Style]] = []
    room = width - 1
    for text, style in line:
        length = cell_len(text)
        if length > room:
            kept.append((set_cell_size(text, room).rstrip() + "…", style))
            break
        kept.append((text, style))
        room -= length
    missing = width - length_of(tuple(kept))
    return (*kept, (" " * missing, Style.null())) if missing > 0 else tuple(kept)


def length_of(line: Line) -> int:
    """How many cells a line takes."""
    length = 0
    for text, _ in line:
        length += len(text) if text.isascii() else cell_len(text)
    return length
