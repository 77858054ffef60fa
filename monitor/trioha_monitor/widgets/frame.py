"""A widget's frame: its title, and a subtitle that moves up where the frame has no lower border."""

from __future__ import annotations

from rich.cells import cell_len
from textual.content import Content
from textual.reactive import var
from textual.widget import Widget


class Framed(Widget):
    """A widget with a title and a subtitle, both plain text: the name of a peer is not read as markup.

    Another base comes before it: Textual takes the default CSS of the first one.
    """

    heading: var[str] = var("", init=False)
    """Text of the upper border."""
    notes: var[tuple[str, ...]] = var((), init=False)
    """Texts of the lower border, the longest first: the first one is shown. Without a lower border the first
    one that fits stands after the heading."""

    def watch_heading(self) -> None:
        """Write the upper border."""
        self._write_borders()

    def watch_notes(self) -> None:
        """Write both borders."""
        self._write_borders()

    def on_resize(self) -> None:
        """Choose the note again: another size may have another border."""
        self._write_borders()

    def _write_borders(self) -> None:
        title, subtitle = self.heading, self.notes[0] if self.notes else ""
        if subtitle and self.styles.border_bottom[0] in {"", "none", "hidden"}:
            lines = [f"{title} · {note}" for note in self.notes]
            title = next((line for line in lines if cell_len(line) <= self.size.width), lines[-1])
            subtitle = ""
        self.border_title, self.border_subtitle = Content(title), Content(subtitle)
