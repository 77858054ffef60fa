"""The line that a table is filtered by."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.widgets import Input


class FilterLine(Input):
    """Where the text to filter by is typed. Return keeps it, escape drops it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        # Not Input's own message: a key that is typed right behind belongs to the screen already.
        Binding("enter", "screen.keep_filter", "Keep filter", id="filter.keep"),
        Binding("escape", "screen.drop_filter", "Drop filter", id="filter.drop"),
    ]
