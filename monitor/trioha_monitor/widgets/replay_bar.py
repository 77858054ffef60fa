"""Where a replay stands: its speed, the lag of the whole session, and a tick for every event."""

from __future__ import annotations

from datetime import datetime
from itertools import pairwise

from textual import events
from textual.message import Message

from trioha_monitor.series import Severity
from trioha_monitor.source import PlaybackState
from trioha_monitor.units import format_duration
from trioha_monitor.widgets.bars import Columns, runs, sparkline
from trioha_monitor.widgets.line_view import LineView
from trioha_monitor.widgets.render_context import Line, Part, RenderContext

KEYS = "space play  [ ] speed  b back  , . step  n N event  g go to  f until"


class ReplayBar(LineView):
    """Three lines: what it does, the lag over the whole session, and the time axis. A click goes there."""

    class Clicked(Message):
        """The user wants to go to a moment."""

        def __init__(self, time_ms: int) -> None:
            super().__init__()
            self.time_ms = time_ms

    def __init__(self, *, id: str) -> None:  # noqa: A002 - Textual's name
        super().__init__(id=id)
        self._state: PlaybackState | None = None
        self._drawn: object = None
        self._columns: Columns = ()

    def show(self, state: PlaybackState, context: RenderContext) -> None:
        """Show where it stands."""
        width = self.size.width
        self._state = state
        if width <= 0:
            return
        at = _column(state, state.time_ms, width)
        drawn = (state.lag, state.end_ms, width)
        if drawn != self._drawn:
            self._drawn = drawn
            length_ms = max(1, state.end_ms - state.start_ms)
            edges = [state.start_ms + length_ms * x // width for x in range(width + 1)]
            self._columns = tuple(
                state.lag.worst_between(begin, max(begin + 1, end)) for begin, end in pairwise(edges)
            )
        lag, axis = self._pictures(state, context, at, width)
        self.show_lines([_first_line(state, context, width), lag, axis])

    def _pictures(
        self, state: PlaybackState, context: RenderContext, at: int, width: int
    ) -> tuple[Line, Line]:
        palette = context.palette
        cells: list[Part] = [
            (char, style) for text, style in sparkline(self._columns, palette) for char in text
        ]
        char, _ = cells[at]
        cells[at] = (char if char != " " else "│", palette.strong + palette.reverse)
        ticks: dict[int, Severity] = {}
        for tick in state.ticks:
            x = _column(state, tick.time_ms, width)
            ticks[x] = max(tick.severity, ticks.get(x, Severity.GOOD))
        axis: list[Part] = [("━", palette.accent) if x <= at else ("─", palette.muted) for x in range(width)]
        for x, severity in ticks.items():
            axis[x] = ("┷" if x <= at else "┴", palette.of(severity))
        axis[at] = ("●", palette.accent)
        return runs(cells), runs(axis)

    def on_resize(self) -> None:
        """Another width: every column is another stretch of time."""
        super().on_resize()
        self._drawn = None

    def on_click(self, event: events.Click) -> None:
        """Go where the mouse is."""
        at, state = event.get_content_offset(self), self._state
        if at is not None and state is not None and at.y > 0:
            length_ms = state.end_ms - state.start_ms
            self.post_message(self.Clicked(state.start_ms + length_ms * at.x // max(1, self.size.width - 1)))


def _column(state: PlaybackState, time_ms: int, width: int) -> int:
    length_ms = max(1, state.end_ms - state.start_ms)
    return min(width - 1, max(0, (time_ms - state.start_ms) * width // length_ms))


def _first_line(state: PlaybackState, context: RenderContext, width: int) -> Line:
    palette = context.palette
    if state.goal:
        sign, style = f"» until {state.goal}", palette.accent
    elif state.is_playing:
        sign, style = ("◀" if state.is_backward else "▶", palette.accent)
    else:
        sign, style = "▌▌" + (" ◀" if state.is_backward else ""), palette.warn
    moment = datetime.fromtimestamp(state.time_ms / 1000).astimezone()
    passed, length = state.time_ms - state.start_ms, state.end_ms - state.start_ms
    left: list[Part] = [
        (f"{sign} ", style),
        (f"{state.speed:g}x  ", palette.strong),
        (f"{moment:%H:%M:%S}.{state.time_ms % 1000:03d}  ", palette.text),
        (f"{format_duration(passed / 1000)} of {format_duration(length / 1000)}", palette.muted),
    ]
    if state.note:
        left.append((f"  {state.note}", palette.warn))
    room = width - sum(len(text) for text, _ in left)
    keys = KEYS if room > len(KEYS) + 2 else "? keys" if room > 8 else ""
    return (*left, (keys.rjust(max(0, room)), palette.muted))
