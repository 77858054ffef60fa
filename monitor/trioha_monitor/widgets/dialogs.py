"""One question to the user, on one line."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Label

from trioha.errors import TriohaError


class AskLine(Input):
    """Where the answer is typed."""

    BINDINGS: ClassVar[list[BindingType]] = [
        # Not Input's own message: a key that is typed right behind belongs to the screen below already.
        Binding("enter", "screen.answer", "Answer", id="ask.answer"),
    ]


class AskScreen(ModalScreen[None]):
    """Asks until `answer` takes what was typed without a TriohaError, or the user gives up."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss", "Cancel", id="ask.cancel")]

    def __init__(self, title: str, hint: str, answer: Callable[[str], None]) -> None:
        super().__init__()
        self._title, self._hint, self._answer = title, hint, answer

    def compose(self) -> ComposeResult:
        """A line to type in, and what may be typed."""
        with Vertical(id="ask") as panel:
            panel.border_title = self._title
            panel.border_subtitle = "enter · esc cancels"
            yield AskLine(id="ask-input", compact=True)
            yield Label(self._hint, id="ask-hint", markup=False)

    def action_answer(self) -> None:
        """Take what was typed."""
        try:
            self._answer(self.query_one("#ask-input", Input).value.strip())
        except TriohaError as error:
            label = self.query_one("#ask-hint", Label)
            label.update(str(error))
            label.add_class("-wrong")
        else:
            self.dismiss()
