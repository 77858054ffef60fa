"""One question to the user, on one line."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Label

from trioha.errors import TriohaError


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
            yield Input(id="ask-input", compact=True)
            yield Label(self._hint, id="ask-hint", markup=False)

    @on(Input.Submitted)
    def _submit(self, message: Input.Submitted) -> None:
        try:
            self._answer(message.value.strip())
        except TriohaError as error:
            label = self.query_one("#ask-hint", Label)
            label.update(str(error))
            label.add_class("-wrong")
        else:
            self.dismiss()
