"""The titles in a widget's frame."""

from __future__ import annotations

from rich.cells import cell_len
from rich.text import Text
from textual.widget import Widget


def entitle(widget: Widget, title: str, *subtitles: str) -> None:
    """Set title and subtitle as plain text: a peer's name is not read as markup.

    Of `subtitles`, the longest first, the first one is shown. A widget without a lower border has it after
    its title: the first one that fits the line.
    """
    subtitle = subtitles[0] if subtitles else ""
    if subtitle and widget.styles.border_bottom[0] in {"", "none", "hidden"}:
        lines = [f"{title} · {each}" for each in subtitles]
        title = next((each for each in lines if cell_len(each) <= widget.size.width), lines[-1])
        subtitle = ""
    # Setting the same title would draw the widget again.
    if title != str(widget.border_title or ""):
        widget.border_title = Text(title)
    if subtitle != str(widget.border_subtitle or ""):
        widget.border_subtitle = Text(subtitle)
