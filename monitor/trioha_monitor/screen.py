"""The one screen: nodes, their HA connections, and the lag of the chosen connection."""

from __future__ import annotations

from textual import on
from textual.app import ComposeResult
from textual.reactive import reactive
from textual.screen import Screen
from textual.widgets import Footer

from trioha_monitor.model import Snapshot
from trioha_monitor.themes import palette_of
from trioha_monitor.units import format_span
from trioha_monitor.widgets.lag_graph import LagGraph
from trioha_monitor.widgets.row_table import RowTable
from trioha_monitor.widgets.rows import CONNECTION_COLUMNS, NODE_COLUMNS, connection_rows, node_rows
from trioha_monitor.widgets.top_bar import TopBar

SPANS_S = (30.0, 60.0, 120.0, 300.0, 900.0)
"""The stretches of time to choose from, in seconds."""


class MonitorScreen(Screen[None]):
    """Shows one snapshot at a time and keeps only what the user chose: a connection and a stretch of time."""

    VERTICAL_BREAKPOINTS = [(0, "-low"), (30, "-high")]  # noqa: RUF012 - Textual declares it so

    span_s: reactive[float] = reactive(120.0)
    """How much time the graphs cover, in seconds."""

    def __init__(self) -> None:
        super().__init__(id="monitor")
        self._snapshot: Snapshot | None = None
        self._is_composed = False

    def compose(self) -> ComposeResult:
        """Top to bottom."""
        yield TopBar(id="top")
        yield RowTable(NODE_COLUMNS, id="nodes", has_cursor=False)
        yield RowTable(CONNECTION_COLUMNS, id="connections", has_cursor=True)
        yield LagGraph(id="lag")
        yield Footer()

    def on_mount(self) -> None:
        """Titles, and the focus where the keys do something."""
        self.query_one("#nodes", RowTable).border_title = "Nodes"
        connections = self.query_one("#connections", RowTable)
        connections.border_title = "HA connections"
        connections.focus()
        self.app.theme_changed_signal.subscribe(self, lambda _theme: self.redraw())
        self._is_composed = True
        # The first snapshot may have come before there was anything to show it on.
        self.redraw()

    def show(self, snapshot: Snapshot) -> None:
        """Show `snapshot` in place of the one before."""
        self._snapshot = snapshot
        self.redraw()

    def redraw(self) -> None:
        """Show the snapshot again: with other colours, or for another stretch of time."""
        snapshot = self._snapshot
        if snapshot is None or not self._is_composed:
            return
        palette = palette_of(self.app)
        self.query_one(TopBar).show(snapshot)
        self.query_one("#nodes", RowTable).show_rows(node_rows(snapshot, palette))
        connections = self.query_one("#connections", RowTable)
        connections.show_rows(
            connection_rows(snapshot.connections, palette, end_s=snapshot.at_s, span_s=self.span_s),
            labels={"history": f"Lag {format_span(self.span_s)}"},
        )
        connections.border_subtitle = "" if snapshot.connections else "no slave is connected"
        self._draw_graph()

    def change_span(self, steps: int) -> None:
        """Draw the next longer (1) or shorter (-1) stretch of time."""
        index = SPANS_S.index(self.span_s) + steps
        self.span_s = SPANS_S[min(max(index, 0), len(SPANS_S) - 1)]

    def watch_span_s(self) -> None:
        """All graphs show the same time."""
        self.redraw()

    @on(RowTable.Selected, "#connections")
    def _draw_graph(self) -> None:
        snapshot = self._snapshot
        if snapshot is None:
            return
        chosen = self.query_one("#connections", RowTable).cursor
        connection = next((view for view in snapshot.connections if view.serial == chosen), None)
        self.query_one(LagGraph).show(connection, end_s=snapshot.at_s, span_s=self.span_s)
