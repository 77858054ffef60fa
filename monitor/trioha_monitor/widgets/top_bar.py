"""The first line: which screen, how the whole does, and when that was."""

from __future__ import annotations

from collections import Counter
from datetime import datetime

from rich.cells import cell_len
from textual import events
from textual.message import Message

from trioha_monitor.series import Severity
from trioha_monitor.view import ClusterView, Health, Verdict
from trioha_monitor.widgets.line_view import LineView
from trioha_monitor.widgets.render_context import HEALTH_GLYPHS, VERDICT_GLYPHS, Line, Part, RenderContext


class TopBar(LineView):
    """One line over the whole width. A click on a name opens that screen."""

    class PaneClicked(Message):
        """The user clicked on a screen's name."""

        def __init__(self, pane: str) -> None:
            super().__init__()
            self.pane = pane

    def __init__(self, names: tuple[tuple[str, str], ...], *, id: str) -> None:  # noqa: A002 - Textual's name
        """`names` are ids of panes and how they are called."""
        super().__init__(id=id)
        self._names = names
        self._places: list[tuple[int, int, str]] = []

    def show(self, view: ClusterView, context: RenderContext, *, pane: str, states: tuple[Part, ...]) -> None:
        """Show how `view` does as a whole; `states` are what is out of the ordinary: paused, recording."""
        palette, width = context.palette, self.size.width
        left: list[Part] = [("trioha ", palette.strong + palette.accent)]
        at, places = cell_len("trioha "), []
        for number, (name, label) in enumerate(self._names, start=1):
            style = palette.strong + palette.reverse if name == pane else palette.muted
            text = f" {number} {label} "
            places.append((at, at + len(text), name))
            left.append((text, style))
            at += len(text)
        self._places = places
        clock = f"{datetime.fromtimestamp(view.time_ms / 1000).astimezone():%H:%M:%S}"
        right: list[Part] = [(f" {clock}", palette.muted)]
        for state in reversed(states):
            right[:0] = [("  ", palette.text), state]
        middle = whole(view, context)
        if width - at - sum(cell_len(text) for text, _ in (*middle, *right)) < 2:
            middle = in_short(view, context)
        clusters = ", ".join(sorted({node.cluster for node in view.nodes if node.cluster}))
        spare = width - at - sum(cell_len(text) for text, _ in (*middle, *right)) - 2
        if clusters and spare > len(clusters) + 4:
            middle = (*middle, (f"   {clusters}", palette.muted))
        line: list[Part] = [*left, ("  ", palette.text), *middle]
        used = sum(cell_len(text) for text, _ in (*line, *right))
        while used > width and len(line) > len(left) + 2:
            # Too narrow: the last words of the verdict give way, never the clock.
            used -= cell_len(line.pop()[0])
        line.append((" " * max(0, width - used), palette.text))
        self.show_lines([(*line, *right)])

    def on_click(self, event: events.Click) -> None:
        """Open the screen whose name was clicked."""
        at = event.get_content_offset(self)
        pane = next(
            (name for start, end, name in self._places if at is not None and start <= at.x < end), None
        )
        if pane is not None:
            self.post_message(self.PaneClicked(pane))


def in_short(view: ClusterView, context: RenderContext) -> Line:
    """The same in the fewest words: how much of it is bad, and how much not as it should be."""
    severities = Counter(node.health.severity for node in view.nodes if node.health is not Health.LATE)
    severities[Severity.WARNING] += sum(node.health is Health.LATE for node in view.nodes)
    severities.update(replica.verdict.severity for replica in view.replicas)
    palette = context.palette
    words = ((Severity.BAD, "✗", "bad"), (Severity.WARNING, "▲", "warn"))
    return tuple(
        (f"{glyph} {severities[severity]} {word} ", palette.of(severity))
        for severity, glyph, word in words
        if severities[severity]
    )


def whole(view: ClusterView, context: RenderContext) -> Line:
    """The whole cluster in a few words, the worst first."""
    palette = context.palette
    parts: list[Part] = []
    verdicts = Counter(replica.verdict for replica in view.replicas)
    health = Counter(node.health for node in view.nodes)
    for state in (Health.DOWN, Health.LATE):
        if health[state]:
            style = palette.bad if state is Health.DOWN else palette.warn
            parts.append((f"{HEALTH_GLYPHS[state]} {health[state]} {state.value.lower()}", style))
    for verdict in sorted(verdicts, key=lambda verdict: -verdict.severity):
        if verdict not in {Verdict.OK, Verdict.OBSERVER}:
            word = verdict.value.partition(":")[0].lower()
            parts.append(
                (f"{VERDICT_GLYPHS[verdict]} {verdicts[verdict]} {word}", palette.of(verdict.severity))
            )
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
    spaced: list[Part] = []
    for part in parts:
        spaced += [("  ", palette.text), part] if spaced else [part]
    return tuple(spaced)
