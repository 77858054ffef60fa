"""A table that always fits its width, and redraws only the cells that changed.

A narrow terminal loses the least important columns, not the rightmost. Only visible rows are formatted.

Textual's DataTable renders every visible row again when a cell changes, which costs ten times as much
(docs/where-time-goes.md#a-node-that-is-watched).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar

from attrs import evolve, frozen
from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.reactive import var
from textual.scroll_view import ScrollView
from textual.strip import Strip

from trioha_monitor.rendering import Line, RenderContext, StyledText
from trioha_monitor.widgets.columns import GAP, Column, fit, length_of, shorten
from trioha_monitor.widgets.frame import Framed

T = TypeVar("T")
MEASURED_MAX = 200
"""Rows that column widths are fitted to, beside the visible ones."""
SORT_PAUSE_MS = 1000
"""Sorted rows change their places at most this often."""


@frozen
class Order:
    """How rows are sorted."""

    key: str | None = None
    """Key of the column; None for the order in which rows come."""
    is_descending: bool = False


class RowTable(ScrollView, Framed, Generic[T], can_focus=True):
    """Rows under a fixed header, with a cursor, sorting and a filter."""

    BINDING_GROUP_TITLE = "Table"
    COMPONENT_CLASSES: ClassVar[set[str]] = {"row-table--header", "row-table--cursor"}
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "move(-1)", "Row up", show=False, id="table.up"),
        Binding("down", "move(1)", "Row down", show=False, id="table.down"),
        Binding("pageup", "move_page(-1)", "Page up", show=False, id="table.page-up"),
        Binding("pagedown", "move_page(1)", "Page down", show=False, id="table.page-down"),
        Binding("home", "move(-1000000)", "First row", show=False, id="table.first"),
        Binding("end", "move(1000000)", "Last row", show=False, id="table.last"),
        Binding("enter", "choose", "Open row", show=False, id="table.open"),
        Binding("o", "sort", "Sort", tooltip="Sort by the next column", id="table.sort"),
        Binding("O", "turn_sort", "Turn sort", show=False, tooltip="Reverse the order", id="table.turn-sort"),
    ]

    cursor: var[int | None] = var(None, init=False)
    """Key of the row under the cursor; None without rows."""
    order: var[Order] = var(Order(), init=False)
    """How rows are sorted."""
    filter_text: var[str] = var("", init=False)
    """Only rows are shown that have all its words, ignoring case."""

    class Selected(Message):
        """The cursor moved to another row, or the last row went away."""

        def __init__(self, table: RowTable[Any], key: int | None) -> None:
            super().__init__()
            self.table = table
            self.key = key

        @property
        def control(self) -> RowTable[Any]:
            """The table, for handlers that select by it."""
            return self.table

    class Opened(Selected):
        """The user opened the row: return, or a double click."""

    def __init__(
        self,
        columns: Sequence[Column[T]],
        *,
        key_of: Callable[[T], int],
        text_of: Callable[[T], str] | None = None,
        id: str,  # noqa: A002 - Textual's name
    ) -> None:
        super().__init__(id=id)
        self.columns = tuple(columns)
        self._key_of, self._text_of = key_of, text_of
        self._items: Sequence[T] = ()
        self._render_context: RenderContext | None = None
        self._rows: tuple[T, ...] = ()
        self._keys: tuple[int, ...] = ()
        self._places: dict[int, int] = {}
        self._sorted_ms = 0
        self._labels: Mapping[str, str] = {}
        self._content: dict[str, int] = {}
        self._widths: dict[str, int] = {}
        self._cells: dict[int, dict[str, Line]] = {}
        self._strips: dict[int, Strip] = {}
        self._styles: tuple[Style, Style, Style] | None = None
        self._top = 0
        self._follows_top = True

    def show_rows(
        self,
        items: Sequence[T],
        context: RenderContext,
        *,
        labels: Mapping[str, str] | None = None,
        arrange: bool = True,
    ) -> None:
        """Show `items`; `labels` replaces the labels of some columns.

        Without `arrange` the rows are those of the last call, in their places, with new figures.
        """
        if self._render_context is not None and context.palette is not self._render_context.palette:
            self._forget()
        self._items, self._render_context = items, context
        if labels is not None and labels != self._labels:
            self._labels = labels
            self._widths = {}
        if arrange:
            self._arrange()
        self._draw()

    @property
    def shown_columns(self) -> tuple[str, ...]:
        """Keys of the columns that fit."""
        return tuple(self._widths)

    @property
    def rows(self) -> tuple[T, ...]:
        """The filtered rows, sorted."""
        return self._rows

    @property
    def chosen(self) -> T | None:
        """The row under the cursor; None without one."""
        place = None if self.cursor is None else self._places.get(self.cursor)
        return None if place is None else self._rows[place]

    @property
    def lines(self) -> list[str]:
        """All rows as plain text, also those that are scrolled out."""
        context = self._render_context
        if context is None:
            return []
        return ["".join(text for text, _ in self._pad(self._row_cells(row, context))) for row in self._rows]

    @property
    def sort_label(self) -> str:
        """The order as text; empty without sorting."""
        column = self._sorted_column
        return "" if column is None else f"by {self._label(column)} {self._sort_sign}"

    def watch_order(self) -> None:
        """Sort the rows."""
        self._rearrange()

    def watch_filter_text(self) -> None:
        """Filter the rows."""
        self._rearrange()

    def render_line(self, y: int) -> Strip:
        """The header, or the row at this line."""
        strip = self._strips.get(y)
        if strip is None:
            strip = self._strips[y] = self._make_strip(y)
        return strip

    def on_resize(self) -> None:
        """Fit the columns to the new width."""
        # Widths only grow, so that columns do not jitter; a resize resets them.
        self._content.clear()
        self._refit()
        if self.cursor in self._places:
            self.call_after_refresh(self._reveal, self.cursor)

    def notify_style_update(self) -> None:
        """Drop caches: colours changed."""
        super().notify_style_update()
        self._forget()

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Draw the rows that became visible."""
        super().watch_scroll_y(old_value, new_value)
        self._draw()

    def watch_show_vertical_scrollbar(self) -> None:
        """Fit the columns to the width beside the scrollbar: showing or hiding it posts no Resize."""
        self.call_after_refresh(self._refit)

    def on_click(self, event: events.Click) -> None:
        """Put the cursor where the mouse is; sort by the column whose label is clicked."""
        at = event.get_content_offset(self)
        if at is None:
            return
        if at.y == 0:
            self._sort_at(at.x)
            return
        row = at.y - 1 + self._top
        if row < len(self._keys):
            self._put_cursor(row)
            if event.chain == 2:
                self.action_choose()

    def watch_cursor(self, before: int | None, now: int | None) -> None:
        """Post `Selected`."""
        for key in (before, now):
            if key in self._places:
                self._touch(self._places[key] - self._top)
        self.post_message(self.Selected(self, now))

    def action_choose(self) -> None:
        """Open the row under the cursor."""
        if self.cursor is not None:
            self.post_message(self.Opened(self, self.cursor))

    def action_move(self, rows: int) -> None:
        """Move the cursor."""
        if self.cursor in self._places:
            self._put_cursor(min(max(self._places[self.cursor] + rows, 0), len(self._keys) - 1))

    def action_move_page(self, pages: int) -> None:
        """Move by a page."""
        self.action_move(pages * max(1, self._height))

    def action_sort(self) -> None:
        """Sort by the next shown column that has an order; after the last one, do not sort."""
        keys = [column.key for column in self.columns if column.order and column.key in self._widths]
        index = keys.index(self.order.key) + 1 if self.order.key in keys else 0
        self.order = evolve(self.order, key=keys[index] if index < len(keys) else None)

    def action_turn_sort(self) -> None:
        """Reverse the order."""
        self.order = evolve(self.order, is_descending=not self.order.is_descending)

    class Arranged(Message):
        """The user changed sorting or filter."""

        def __init__(self, table: RowTable[Any]) -> None:
            super().__init__()
            self.table = table

        @property
        def control(self) -> RowTable[Any]:
            """The table, for handlers that select by it."""
            return self.table

    @property
    def _height(self) -> int:
        """Visible rows."""
        return max(0, self.scrollable_content_region.height - 1)

    @property
    def _sorted_column(self) -> Column[T] | None:
        return next((column for column in self.columns if column.key == self.order.key), None)

    @property
    def _sort_sign(self) -> str:
        return "↓" if self.order.is_descending else "↑"

    def _rearrange(self) -> None:
        self._sorted_ms = -SORT_PAUSE_MS
        self._keys = ()
        self._arrange()
        self._draw()
        self.post_message(self.Arranged(self))

    def _sort_at(self, x: int) -> None:
        """Sort by the column whose label is at `x`."""
        left = 0
        for key, width in self._widths.items():
            if left <= x < left + width + GAP:
                column = next(column for column in self.columns if column.key == key)
                if column.order is not None:
                    self.order = Order(key, key == self.order.key and not self.order.is_descending)
                return
            left += width + GAP

    def _put_cursor(self, row: int) -> None:
        self._follows_top = row == 0
        self.cursor = self._keys[row]
        self._reveal(self.cursor)

    def _reveal(self, key: int) -> None:
        """Scroll until the row is visible."""
        row = self._places.get(key, 0)
        if row < self._top:
            self.scroll_to(y=row, animate=False)
        elif row >= self._top + self._height:
            self.scroll_to(y=row - self._height + 1, animate=False)

    def _arrange(self) -> None:
        """Filter and sort the rows, and keep the cursor on its row."""
        items: Sequence[T] = self._items
        if self.filter_text and self._text_of is not None:
            words, text_of = self.filter_text.casefold().split(), self._text_of
            items = [
                item
                for item in items
                if all(word in text for text in (text_of(item).casefold(),) for word in words)
            ]
        key_of = self._key_of
        column = self._sorted_column
        if column is not None and column.order is not None:
            now_ms = self._render_context.end_ms if self._render_context is not None else 0
            places = self._places
            if (
                not 0 <= now_ms - self._sorted_ms < SORT_PAUSE_MS
                or {key_of(item) for item in items} != places.keys()
            ):
                items = sorted(items, key=column.order, reverse=self.order.is_descending)
                self._sorted_ms = now_ms
            else:
                items = sorted(items, key=lambda item: places[key_of(item)])
        elif self.order == Order(None, True):
            items = items[::-1]
        self._rows = tuple(items)
        keys = tuple(key_of(item) for item in items)
        if keys != self._keys:
            before = self._places.get(self.cursor) if self.cursor is not None else None
            self._keys = keys
            self._places = {key: place for place, key in enumerate(keys)}
            self._cells = {}
            self._strips = {}
            self.refresh()
            if keys and (self.cursor not in self._places or (self._follows_top and before == 0)):
                # The cursor of a removed row keeps its place; on the first row it stays on the first row.
                self.cursor = keys[min(before or 0, len(keys) - 1)]
            elif not keys:
                self.cursor = None

    def _draw(self) -> None:
        """Format the visible rows, and redraw the cells that changed."""
        context, width = self._render_context, self.scrollable_content_region.width
        if context is None or width <= 0:
            return
        size = Size(width, len(self._rows) + 1)
        if size != self.virtual_size:
            self.virtual_size = size
        top = self.scroll_offset.y
        if top != self._top:
            self._top = top
            self._strips = {}
            self.refresh()
        seen = self._rows[top : top + self._height]
        rows = [self._row_cells(row, context, everything=not self._widths) for row in seen]
        if not self._widths or self._has_outgrown(rows):
            everything = [
                self._row_cells(row, context, everything=True) for row in (*self._rows[:MEASURED_MAX], *seen)
            ]
            self._lay_out(everything, width)
            rows = [self._row_cells(row, context) for row in seen]
        for y, (row, cells) in enumerate(zip(seen, rows, strict=True), start=1):
            key = self._key_of(row)
            before = self._cells.get(key)
            if before == cells:
                continue
            self._cells[key] = cells
            self._touch(y - 1, before, cells)

    def _refit(self) -> None:
        """Choose columns and their widths anew."""
        self._widths = {}
        self._draw()

    def _touch(
        self, index: int, before: Mapping[str, Line] | None = None, now: Mapping[str, Line] | None = None
    ) -> None:
        """Redraw a line, or its changed cells."""
        y = index + 1
        if not 0 < y <= self._height:
            return
        self._strips.pop(y, None)
        left = first = 0
        last = self.scrollable_content_region.width
        if before is not None and now is not None and before.keys() == now.keys():
            first = -1
            for key, width in self._widths.items():
                if before[key] != now[key]:
                    first = left if first < 0 else first
                    last = left + width
                left += width + GAP
        self.refresh(Region(first, y, last - first, 1))

    def _row_cells(self, row: T, context: RenderContext, *, everything: bool = False) -> dict[str, Line]:
        widths = self._widths
        return {
            column.key: column.write(row, context, widths.get(column.key, column.flexible_min or 0))
            for column in self.columns
            if everything or column.key in widths
        }

    def _has_outgrown(self, rows: Sequence[Mapping[str, Line]]) -> bool:
        content = self._content
        fixed = [
            column.key
            for column in self.columns
            if column.flexible_min is None and column.key in self._widths
        ]
        return any(length_of(cells[key]) > content[key] for cells in rows for key in fixed)

    def _lay_out(self, rows: Sequence[Mapping[str, Line]], width: int) -> None:
        """Choose the columns that fit, and their widths."""
        for column in self.columns:
            widest = cell_len(self._label(column))
            if column.flexible_min is None:
                widest = max([widest, *(length_of(cells[column.key]) for cells in rows)])
            self._content[column.key] = max(widest, self._content.get(column.key, 0))
        widths = fit(self.columns, self._content, width=width)
        self._widths = widths
        self._cells, self._strips = {}, {}
        self.refresh()

    def _label(self, column: Column[T]) -> str:
        return self._labels.get(column.key, column.label)

    def _forget(self) -> None:
        self._cells, self._strips, self._styles = {}, {}, None

    def _pad(self, cells: Mapping[str, Line]) -> list[StyledText]:
        """One row, padded to the column widths. Blanks join the adjacent text: drawing costs by the part."""
        parts: list[StyledText] = []
        left = ""
        for column in self.columns:
            width = self._widths.get(column.key)
            if width is None:
                continue
            line = cells[column.key]
            spare = width - length_of(line)
            if spare < 0:
                line, spare = shorten(line, width), 0
            if column.align == "right":
                left += " " * spare
                spare = 0
            if line:
                (text, style), *rest = line
                parts.append((left + text, style))
                parts += rest
                left = ""
            left += " " * (spare + GAP)
        return parts

    def _make_strip(self, y: int) -> Strip:
        if self._styles is None:
            base = self.rich_style
            self._styles = (
                base,
                self.get_component_rich_style("row-table--header"),
                base + self.get_component_rich_style("row-table--cursor", partial=True),
            )
        base, header, cursor = self._styles
        width = self.scrollable_content_region.width
        context = self._render_context
        if y == 0 and context is not None:
            labels: dict[str, Line] = {}
            for column in self.columns:
                sign = self._sort_sign if column.key == self.order.key else ""
                labels[column.key] = ((f"{self._label(column)}{sign}", header),)
            return Strip([Segment(text, style) for text, style in self._pad(labels)]).adjust_cell_length(
                width, header
            )
        index = y - 1 + self._top
        if context is None or not 0 <= index < len(self._rows):
            return Strip.blank(width, base)
        row = self._rows[index]
        key = self._key_of(row)
        cells = self._cells.get(key)
        if cells is None or cells.keys() != self._widths.keys():
            cells = self._cells[key] = self._row_cells(row, context)
        style = cursor if key == self.cursor else base
        # The cursor sets the background; parts keep their colours.
        segments = [Segment(text, style + own) for text, own in self._pad(cells)]
        return Strip(segments).adjust_cell_length(width, style)
