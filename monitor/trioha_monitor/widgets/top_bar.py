"""The first line: what is watched, how it does, and when that was."""

from __future__ import annotations

from rich.text import Text
from textual.widget import Widget

from trioha_monitor.model import Snapshot
from trioha_monitor.themes import palette_of
from trioha_monitor.widgets.rows import verdict


class TopBar(Widget):
    """One line over the whole width."""

    def __init__(self, *, id: str) -> None:  # noqa: A002 - Textual's name
        super().__init__(id=id)
        self._snapshot: Snapshot | None = None
        self._line = Text()

    def show(self, snapshot: Snapshot) -> None:
        """Show what `snapshot` says as a whole."""
        self._snapshot = snapshot
        self._draw()

    def on_resize(self) -> None:
        """Lay the line out anew."""
        self._draw()

    def render(self) -> Text:
        """Name and clusters on the left, the verdict in the middle, the time on the right."""
        return self._line

    def _draw(self) -> None:
        line = self._lay_out()
        if line != self._line:
            self._line = line
            self.refresh()

    def _lay_out(self) -> Text:
        palette = palette_of(self.app)
        snapshot = self._snapshot
        left = Text.assemble(("trioha ", palette.strong + palette.accent), ("monitor  ", palette.muted))
        if snapshot is None:
            return left
        clusters = sorted({node.cluster for node in snapshot.nodes if node.cluster})
        if clusters:
            left.append(", ".join(clusters), palette.text)
        middle = verdict(snapshot, palette)
        clock = "" if snapshot.wall_time is None else f"{snapshot.wall_time:%H:%M:%S}"
        right = Text.assemble((clock, palette.muted))
        room = self.size.width - right.cell_len - middle.cell_len
        left.truncate(max(0, room - 4), overflow="ellipsis")
        before = max((self.size.width - middle.cell_len) // 2, left.cell_len + 2)
        line = Text(no_wrap=True, end="")
        line.append_text(left)
        line.append(" " * (before - left.cell_len))
        line.append_text(middle)
        line.append(" " * max(2, self.size.width - line.cell_len - right.cell_len))
        line.append_text(right)
        return line
