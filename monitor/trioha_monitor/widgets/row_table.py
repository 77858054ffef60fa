"""A table that always fits its width, and redraws only the lines that changed.

Textual's DataTable draws everything anew with every changed cell and scrolls sideways when it does not fit.
A monitor needs the opposite: five times a second a few figures change, and a narrow terminal should lose the
least important column, not the rightmost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Literal

from attrs import frozen
from rich.style import Style
from rich.text import Text
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message
from textual.reactive import reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip

Cell = Text | Callable[[int], Text]
"""What a cell shows; a flexible column's cell may be drawn for the width that it got."""
GAP = 2
"""Blanks between two columns."""


@frozen
class Column:
    """One column of a table."""

    key: str
    label: str
    help: str
    """What it means, for the help screen."""
    align: Literal["left", "right"] = "left"
    rank: int = 0
    """0 is always shown; of the others the highest rank gives way first."""
    flexible_min: int | None = None
    """None: as wide as its content. Else it takes what the others leave, and at least this many cells."""


@frozen
class Row:
    """One row: `key` stays the same while its figures change."""

    key: int
    cells: Mapping[str, Cell]


def fit(columns: Sequence[Column], content: Mapping[str, int], *, width: int) -> dict[str, int]:
    """The columns that fit into `width` cells, in their order, and how wide each is.

    `content` is the widest content of each column. Columns of the highest rank are left out until the rest
    fits; if even those of rank 0 do not fit, the widest of them shrinks.
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


class RowTable(ScrollView, can_focus=True):
    """Rows under a fixed header, with a cursor if `has_cursor`."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"row-table--header", "row-table--cursor"}
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "move(-1)", "Row up", show=False, id="table.up"),
        Binding("down", "move(1)", "Row down", show=False, id="table.down"),
        Binding("pageup", "move_page(-1)", "Page up", show=False, id="table.page-up"),
        Binding("pagedown", "move_page(1)", "Page down", show=False, id="table.page-down"),
        Binding("home", "move(-1000000)", "First row", show=False, id="table.first"),
        Binding("end", "move(1000000)", "Last row", show=False, id="table.last"),
    ]

    cursor: reactive[int | None] = reactive(None)
    """Key of the row under the cursor; None while there is no row."""

    class Selected(Message):
        """The cursor is on another row, or there is none."""

        def __init__(self, table: RowTable, key: int | None) -> None:
            super().__init__()
            self.table = table
            self.key = key

        @property
        def control(self) -> RowTable:
            """The table, so that handlers can tell tables apart."""
            return self.table

    def __init__(self, columns: Sequence[Column], *, id: str, has_cursor: bool) -> None:  # noqa: A002 - Textual's name
        super().__init__(id=id)
        self._columns = tuple(columns)
        self._has_cursor = has_cursor
        self._rows: tuple[Row, ...] = ()
        self._labels: dict[str, str] = {}
        self._content: dict[str, int] = {}
        self._widths: dict[str, int] = {}
        self._header = Text()
        self._lines: list[Text] = []

    def show_rows(self, rows: Sequence[Row], *, labels: Mapping[str, str] | None = None) -> None:
        """Show `rows` in place of what was shown; `labels` replaces the labels of some columns."""
        self._rows = tuple(rows)
        self._labels = dict(labels or {})
        keys = [row.key for row in self._rows]
        if self._has_cursor and self.cursor not in keys:
            self.cursor = keys[0] if keys else None
        self._draw()

    @property
    def shown_columns(self) -> tuple[str, ...]:
        """Keys of the columns that fit at present."""
        return tuple(self._widths)

    @property
    def lines(self) -> list[str]:
        """What the rows say at present, as plain text."""
        return [line.plain for line in self._lines]

    def render_line(self, y: int) -> Strip:
        width = self.scrollable_content_region.width
        if y == 0:
            style = self.get_component_rich_style("row-table--header")
            return self._strip(self._header, width=width, style=style)
        index = y - 1 + self.scroll_offset.y
        if index >= len(self._lines):
            return Strip.blank(width, self.rich_style)
        style = self.rich_style
        if self._has_cursor and self._rows[index].key == self.cursor:
            style += self.get_component_rich_style("row-table--cursor", partial=True)
        return self._strip(self._lines[index], width=width, style=style)

    def on_resize(self) -> None:
        """Fit the columns to the new width."""
        # Widths only grow while figures grow, so that columns stand still; a new width begins anew.
        self._content.clear()
        self._draw()

    def on_click(self, event: events.Click) -> None:
        """Put the cursor where the mouse is."""
        index = event.get_content_offset(self)
        if index is None or index.y == 0:
            return
        row = index.y - 1 + self.scroll_offset.y
        if self._has_cursor and row < len(self._rows):
            self.cursor = self._rows[row].key

    def watch_cursor(self) -> None:
        """Tell whoever listens."""
        self.refresh()
        self.post_message(self.Selected(self, self.cursor))

    def action_move(self, rows: int) -> None:
        """Move the cursor, or the view if there is no cursor."""
        if not self._has_cursor or self.cursor is None:
            self.scroll_relative(y=rows, animate=False)
            return
        keys = [row.key for row in self._rows]
        index = min(max(keys.index(self.cursor) + rows, 0), len(keys) - 1)
        self.cursor = keys[index]
        height = self.scrollable_content_region.height - 1
        if index < self.scroll_offset.y:
            self.scroll_to(y=index, animate=False)
        elif index >= self.scroll_offset.y + height:
            self.scroll_to(y=index - height + 1, animate=False)

    def action_move_page(self, pages: int) -> None:
        """Move by what is visible at once."""
        self.action_move(pages * max(1, self.scrollable_content_region.height - 1))

    def _draw(self) -> None:
        """Lay out the columns and redraw the lines that differ from what is on the screen."""
        width = self.scrollable_content_region.width
        if width <= 0:
            return
        for column in self._columns:
            fixed = (row.cells[column.key] for row in self._rows)
            widest = max((cell.cell_len for cell in fixed if isinstance(cell, Text)), default=0)
            widest = max(widest, len(self._label(column)))
            self._content[column.key] = max(widest, self._content.get(column.key, 0))
        widths = fit(self._columns, self._content, width=width)
        header = self._line({column.key: Text(self._label(column)) for column in self._columns}, widths)
        lines = [self._line(row.cells, widths) for row in self._rows]
        size = Size(width, len(lines) + 1)
        if size != self.virtual_size:
            self.virtual_size = size
        if header != self._header or len(lines) != len(self._lines):
            self.refresh()
        else:
            for index, (new, old) in enumerate(zip(lines, self._lines, strict=True)):
                if new != old:
                    self.refresh_line(index + 1)
        self._widths, self._header, self._lines = widths, header, lines

    def _label(self, column: Column) -> str:
        return self._labels.get(column.key, column.label)

    def _line(self, cells: Mapping[str, Cell], widths: Mapping[str, int]) -> Text:
        line = Text(no_wrap=True, end="")
        for column in self._columns:
            width = widths.get(column.key)
            if width is None:
                continue
            cell = cells[column.key]
            text = cell.copy() if isinstance(cell, Text) else cell(width)
            text.truncate(width, overflow="ellipsis")
            text.align(column.align, width)
            if line:
                line.append(" " * GAP)
            line.append_text(text)
        return line

    def _strip(self, line: Text, *, width: int, style: Style) -> Strip:
        segments = line.render(self.app.console)
        return Strip(segments).adjust_cell_length(width).apply_style(style)
