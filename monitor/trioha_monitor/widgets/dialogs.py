"""What opens over a pane: a dialog with one question, and the filter line."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.validation import ValidationResult, Validator
from textual.widgets import Input, Label

from trioha.errors import TriohaError


class Understood(Validator):
    """Accepts a text that `parse` accepts without a TriohaError, whose text is shown else."""

    def __init__(self, parse: Callable[[str], object]) -> None:
        super().__init__()
        self._parse = parse

    def validate(self, value: str) -> ValidationResult:
        """Whether the text is understood."""
        try:
            self._parse(value)
        except TriohaError as error:
            return self.failure(str(error))
        return self.success()


class AskScreen(ModalScreen[str]):
    """Asks for a text that the validator accepts; its result is the text, None if the user cancels."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss", "Cancel", id="ask.cancel")]

    def __init__(self, title: str, hint: str, validator: Validator) -> None:
        super().__init__()
        self._title, self._hint, self._validator = title, hint, validator

    def compose(self) -> ComposeResult:
        """An input line, and examples of input."""
        with Vertical(id="ask") as panel:
            panel.border_title = self._title
            panel.border_subtitle = "enter · esc cancels"
            yield Input(id="ask-input", compact=True, validators=self._validator, validate_on=["submitted"])
            yield Label(self._hint, id="ask-hint", markup=False)

    @on(Input.Submitted)
    def _answer(self, message: Input.Submitted) -> None:
        if message.validation_result is None or message.validation_result.is_valid:
            self.dismiss(message.value)
            return
        label = self.query_one("#ask-hint", Label)
        label.update("; ".join(message.validation_result.failure_descriptions))
        label.add_class("-wrong")


class FilterLine(Input):
    """Input of a filter. Return keeps it, escape drops it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        # With priority: the next key belongs to the pane already; text that is under way still arrives.
        Binding("enter", "screen.close_filter", "Keep filter", priority=True, id="filter.keep"),
        Binding("escape", "screen.drop_filter", "Drop filter", id="filter.drop"),
    ]
