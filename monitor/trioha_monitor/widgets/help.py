"""Help: the keys, and what is to be seen in the screen that it was asked in."""

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

from trioha_monitor.panes.pane import HelpTopic
from trioha_monitor.themes import Palette, palette_of


class HelpScreen(ModalScreen[None]):
    """Laid over the monitor, which goes on below."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,question_mark,q", "dismiss", "Close", id="help.close"),
    ]

    def __init__(self, title: str, topics: Sequence[HelpTopic]) -> None:
        super().__init__()
        self._title, self.topics = title, tuple(topics)

    def compose(self) -> ComposeResult:
        """One scrolling panel."""
        with VerticalScroll(id="help") as panel:
            panel.border_title = self._title
            panel.border_subtitle = "↑ ↓ scrolls · esc closes"
            yield Static(_help(self.topics, palette_of(self.app)))


def _help(topics: Sequence[HelpTopic], palette: Palette) -> RenderableType:
    parts: list[RenderableType] = []
    for topic in topics:
        table = Table.grid(padding=(0, 2))
        table.title, table.title_justify, table.title_style = topic.title, "left", palette.strong
        table.add_column(min_width=14, no_wrap=True)
        table.add_column()
        for term, meaning in topic.terms:
            table.add_row(Text(term, palette.accent), Text(meaning, palette.text))
        parts += [table, ""] if topic is not topics[-1] else [table]
    return Group(*parts)
