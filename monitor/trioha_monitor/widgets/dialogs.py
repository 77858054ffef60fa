"""What opens over a pane: a dialog with one question, the filter line, and help."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Input, Label, Static

from trioha.errors import TriohaError
from trioha_monitor.panes.pane import HelpTopic
from trioha_monitor.rendering import Palette, palette_of


class AskLine(Input):
    """Input of a dialog."""

    BINDINGS: ClassVar[list[BindingType]] = [
        # Not Input.Submitted: the next key belongs to the screen below already.
        Binding("enter", "screen.answer", "Answer", id="ask.answer"),
    ]


class AskScreen(ModalScreen[None]):
    """Asks until `answer` accepts the input without a TriohaError, or the user cancels."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss", "Cancel", id="ask.cancel")]

    def __init__(self, title: str, hint: str, answer: Callable[[str], None]) -> None:
        super().__init__()
        self._title, self._hint, self._answer = title, hint, answer

    def compose(self) -> ComposeResult:
        """An input line, and examples of input."""
        with Vertical(id="ask") as panel:
            panel.border_title = self._title
            panel.border_subtitle = "enter · esc cancels"
            yield AskLine(id="ask-input", compact=True)
            yield Label(self._hint, id="ask-hint", markup=False)

    def action_answer(self) -> None:
        """Submit the input."""
        try:
            self._answer(self.query_one("#ask-input", Input).value.strip())
        except TriohaError as error:
            label = self.query_one("#ask-hint", Label)
            label.update(str(error))
            label.add_class("-wrong")
        else:
            self.dismiss()


class FilterLine(Input):
    """Input of a filter. Return keeps it, escape drops it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        # Not Input.Submitted: the next key belongs to the pane already.
        Binding("enter", "screen.keep_filter", "Keep filter", id="filter.keep"),
        Binding("escape", "screen.drop_filter", "Drop filter", id="filter.drop"),
    ]


class HelpScreen(ModalScreen[None]):
    """Help, over the monitor, which goes on."""

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
