"""The help screen: keys, and what every column means."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from trioha_monitor.themes import Palette, palette_of
from trioha_monitor.widgets.row_table import Column
from trioha_monitor.widgets.rows import CONNECTION_COLUMNS, NODE_COLUMNS

KEYS = (
    ("↑ ↓", "choose the connection whose lag is drawn large (or click it)"),
    ("+ -", "draw a longer or a shorter time"),
    ("tab", "go to the next table"),
    ("t", "light or dark; ctrl+p has more themes"),
    ("?", "this help"),
    ("q", "quit"),
)
COLOURS = (
    ("● ✓", "good", "answers, transfers, in sync"),
    ("▲ ◐", "warn", "behind, late, or old figures"),
    ("✗", "bad", "down or lost"),
)


class HelpScreen(ModalScreen[None]):
    """Laid over the monitor, which goes on below."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,question_mark,q", "dismiss", "Close", id="help.close"),
    ]

    def compose(self) -> ComposeResult:
        """One scrolling panel."""
        with VerticalScroll(id="help") as panel:
            panel.border_title = "Help"
            panel.border_subtitle = "esc closes"
            yield Static(_help(palette_of(self.app)))


def _help(palette: Palette) -> RenderableType:
    keys = _table(palette, "Keys")
    for key, meaning in KEYS:
        keys.add_row(Text(key, palette.accent), Text(meaning, palette.text))
    colours = _table(palette, "Signs")
    styles = {"good": palette.good, "warn": palette.warn, "bad": palette.bad}
    for glyphs, name, meaning in COLOURS:
        colours.add_row(Text(glyphs, styles[name]), Text(meaning, palette.text))
    return Group(
        keys, "", colours, "", _columns(palette, "Nodes", NODE_COLUMNS), "",
        _columns(palette, "HA connections", CONNECTION_COLUMNS),
    )  # fmt: skip


def _columns(palette: Palette, title: str, columns: Sequence[Column]) -> Table:
    table = _table(palette, title)
    for column in columns:
        label = f"{column.label} (drawn)" if column.key == "history" else column.label
        table.add_row(Text(label, palette.accent), Text(column.help, palette.text))
    return table


def _table(palette: Palette, title: str) -> Table:
    table = Table.grid(padding=(0, 2))
    table.title, table.title_justify, table.title_style = title, "left", palette.strong
    table.add_column(min_width=11, no_wrap=True)
    table.add_column()
    return table
