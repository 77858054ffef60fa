"""The lines at the top: panes, state of the cluster and time; in a replay its position, lag and events."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from enum import Enum
from itertools import pairwise, product
from typing import Final

from textual import events
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.message import Message
from textual.reactive import var
from textual.widgets import Label, Tab, Tabs

from trioha.replica_verdict import Verdict
from trioha.severity import Severity
from trioha_monitor.playback import PlaybackState
from trioha_monitor.rendering import HEALTH_GLYPHS, VERDICT_GLYPHS, Line, RenderContext, StyledText
from trioha_monitor.texts import format_duration
from trioha_monitor.view import ClusterView, Health
from trioha_monitor.widgets.columns import length_of
from trioha_monitor.widgets.graph import Columns, runs, sparkline
from trioha_monitor.widgets.line_view import LineView

PANES: Final = {
    "replicas": "Replicas",
    "slave": "Slave",
    "log": "Log",
    "events": "Events",
    "groups": "Groups",
    "roles": "Roles",
}
"""Labels of the panes by their ids, in the order of their keys."""
CONTROLLED_PANE: Final = "roles"
"""The pane that is named only where a broker is in controller mode."""
NAME: Final = "trioha "
WIDE: Final = 95
"""Columns from which on there is room for the program's name and blanks around the names of the panes."""


class Form(Enum):
    """How the visible pane is named among the others: a class of the bar, see monitor.tcss."""

    NAMES = "-names"
    """All by their names."""
    NUMBERS = "-numbers"
    """The others by their numbers."""
    ALONE = "-alone"
    """The others not at all."""


class TopBar(Horizontal):
    """One line over the whole width: tabs of the panes, the state of the cluster, and the clock."""

    class Resized(Message):
        """There is another width for the line."""

    form: var[Form] = var(Form.NAMES)
    """The form that leaves room for the summary."""
    names_roles: var[bool] = var(False, init=False)
    """Whether the Roles pane is named."""
    is_wide: var[bool] = var(True, toggle_class="-wide-bar")
    """Whether there is room for the program's name."""

    def __init__(self, *, id: str, active: str) -> None:  # noqa: A002 - Textual's name
        super().__init__(id=id)
        labels = enumerate(PANES.items(), start=1)
        tabs = {pane: Tab(f"{number} {label}", id=tab_id(pane)) for number, (pane, label) in labels}
        self.set_reactive(TopBar.names_roles, active == CONTROLLED_PANE)
        tabs[CONTROLLED_PANE].set_class(not self.names_roles, "-hidden")
        self.tabs = Tabs(*tabs.values(), active=tab_id(active))
        self.tabs.can_focus = False
        self.summary = LineView(id="top-summary")

    def compose(self) -> ComposeResult:
        """Left to right."""
        yield Label(NAME, id="top-name")
        yield self.tabs
        yield self.summary

    def watch_form(self, before: Form, now: Form) -> None:
        """Name the panes in the other form."""
        self.remove_class(before.value)
        self.add_class(now.value)

    def watch_names_roles(self, is_named: bool) -> None:
        """Show or hide the tab."""
        if is_named:
            self.tabs.show(tab_id(CONTROLLED_PANE))
        else:
            self.tabs.hide(tab_id(CONTROLLED_PANE))

    def on_resize(self) -> None:
        """See whether the bar is wide."""
        self.is_wide = self.size.width >= WIDE
        self.post_message(self.Resized())

    def show(
        self, view: ClusterView, context: RenderContext, *, pane: str, states: tuple[StyledText, ...]
    ) -> None:
        """Show the state of the cluster in `view`, and `states` to point out: paused, recording.

        `pane` is the id of the visible pane.
        """
        palette = context.palette
        self.names_roles = pane == CONTROLLED_PANE or any(node.control is not None for node in view.nodes)
        gap: StyledText = ("  ", palette.text)
        # A narrow bar has a blank after the last tab.
        first: StyledText = gap if self.is_wide else (" ", palette.text)
        shown = [part for state in states for part in (gap, state)]
        clock: StyledText = (
            f" {datetime.fromtimestamp(view.time_ms / 1000).astimezone():%H:%M:%S}",
            palette.muted,
        )
        middles = summary(view, context), short_summary(view, context)
        # The summary stays: where it is narrow, names of other panes go first, then their numbers, then the
        # clock.
        for right, form, middle in product(([*shown, clock], shown), Form, middles):
            line, self.form = [first, *middle], form
            spare = self.size.width - self._tabs_width(form, pane) - length_of((*line, *right))
            if spare >= 0:
                break
        clusters = ", ".join(sorted({node.cluster for node in view.nodes if node.cluster}))
        if clusters and spare > len(clusters) + 6:
            line.append((f"   {clusters}", palette.muted))
            spare -= len(clusters) + 3
        self.summary.shown = [(*line, (" " * max(0, spare), palette.text), *right)]

    def _tabs_width(self, form: Form, pane: str) -> int:
        """Cells of the tabs in a form, and of the program's name."""
        width = len(NAME) if self.is_wide else 0
        for name, label in PANES.items():
            if name == CONTROLLED_PANE and not self.names_roles:
                continue
            if name == pane or form is Form.NAMES:
                width += len(label) + 2
            elif form is Form.NUMBERS:
                width += 1
            else:
                continue
            width += 2 if self.is_wide else 1
        return width


def tab_id(pane: str) -> str:
    """The id of a pane's tab."""
    return f"tab-{pane}"


def short_summary(view: ClusterView, context: RenderContext) -> Line:
    """The shortest text: how many nodes and replicas are bad, and how many in warning; else what is up."""
    severities = Counter(node.health.severity for node in view.nodes)
    severities.update(replica.verdict.severity for replica in view.replicas)
    severities.update(server.health.severity for server in view.name_servers)
    severities[Severity.WARNING] += without_leader(view)
    palette = context.palette
    words = ((Severity.CRITICAL, "✗", "bad"), (Severity.WARNING, "▲", "warn"))
    bad = tuple(
        (f"{glyph} {severities[severity]} {word} ", palette.of(severity))
        for severity, glyph, word in words
        if severities[severity]
    )
    up = sum(node.health is Health.UP for node in view.nodes)
    return bad or ((f"● {up} up", palette.good) if up else ("◌ connecting", palette.muted),)


def without_leader(view: ClusterView) -> int:
    """How many nodes that answer know no leading controller: their group gets no new master."""
    return sum(
        node.health is Health.UP and node.control is not None and node.control.leader is None
        for node in view.nodes
    )


def summary(view: ClusterView, context: RenderContext) -> Line:
    """State of the cluster in a few words, the worst first."""
    palette = context.palette
    parts: list[StyledText] = []
    verdicts = Counter(replica.verdict for replica in view.replicas)
    health = Counter(node.health for node in view.nodes)
    for state in (Health.DOWN, Health.LATE):
        if health[state]:
            text = f"{HEALTH_GLYPHS[state]} {health[state]} {state.value.lower()}"
            parts.append((text, palette.of(state.severity)))
    for verdict in sorted(verdicts, key=lambda verdict: -verdict.severity):
        if verdict not in {Verdict.OK, Verdict.OBSERVER}:
            word = verdict.value.partition(":")[0].lower()
            parts.append(
                (f"{VERDICT_GLYPHS[verdict]} {verdicts[verdict]} {word}", palette.of(verdict.severity))
            )
    if lost := without_leader(view):
        parts.append((f"▲ {lost} without controller", palette.warn))
    if not parts and health[Health.UP]:
        ok = verdicts[Verdict.OK]
        text = f"● {health[Health.UP]} up, {ok} in step" if view.replicas else f"● {health[Health.UP]} up"
        parts.append((text, palette.good))
    if not parts:
        parts.append(("◌ connecting", palette.muted))
    parts.extend(
        (f"✗ name server {server.address}: {server.reason}", palette.bad)
        for server in view.name_servers
        if server.health is Health.DOWN
    )
    spaced: list[StyledText] = []
    for part in parts:
        spaced += [("  ", palette.text), part] if spaced else [part]
    return tuple(spaced)


KEYS = "space play  [ ] speed  b back  , . step  n N event  g go to  f until"


class ReplayBar(LineView):
    """Three lines: state, lag over the whole session, and time axis. A click goes to its time."""

    class Clicked(Message):
        """The user clicked at a moment."""

        def __init__(self, time_ms: int) -> None:
            super().__init__()
            self.time_ms = time_ms

    def __init__(self, *, id: str) -> None:  # noqa: A002 - Textual's name
        super().__init__(id=id)
        self._state: PlaybackState | None = None
        self._drawn: object = None
        self._columns: Columns = ()

    def show(self, state: PlaybackState, context: RenderContext) -> None:
        """Show the state."""
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
        self.shown = [_first_line(state, context, width), lag, axis]

    def _pictures(
        self, state: PlaybackState, context: RenderContext, at: int, width: int
    ) -> tuple[Line, Line]:
        palette = context.palette
        cells: list[StyledText] = [
            (char, style) for text, style in sparkline(self._columns, palette) for char in text
        ]
        char, _ = cells[at]
        cells[at] = (char if char != " " else "│", palette.strong + palette.reverse)
        ticks: dict[int, Severity] = {}
        for tick in state.ticks:
            x = _column(state, tick.time_ms, width)
            ticks[x] = max(tick.severity, ticks.get(x, Severity.GOOD))
        axis: list[StyledText] = [
            ("━", palette.accent) if x <= at else ("─", palette.muted) for x in range(width)
        ]
        for x, severity in ticks.items():
            axis[x] = ("┷" if x <= at else "┴", palette.of(severity))
        axis[at] = ("●", palette.accent)
        return runs(cells), runs(axis)

    def on_resize(self) -> None:
        """Compute the columns for the new width."""
        self._drawn = None

    def on_click(self, event: events.Click) -> None:
        """Go to the time under the mouse."""
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
    left: list[StyledText] = [
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
