"""Events: the timeline, newest first."""

from __future__ import annotations

from datetime import datetime
from textwrap import wrap
from typing import Any

from textual import on
from textual.app import ComposeResult

from trioha_monitor.panes.pane import Pane, PaneModel, help_of, terms_of, title_of
from trioha_monitor.rendering import SEVERITY_GLYPHS, Line, RenderContext
from trioha_monitor.texts import format_age
from trioha_monitor.view import EventKind, TimelineEvent
from trioha_monitor.widgets.columns import Column
from trioha_monitor.widgets.line_view import LineView
from trioha_monitor.widgets.row_table import RowTable


class EventList(RowTable[TimelineEvent]):
    """Events, newest first."""

    def __init__(self, *, id: str) -> None:  # noqa: A002 - Textual's name
        super().__init__(event_columns(), key_of=lambda event: event.number, text_of=_text_of, id=id)
        self._events: tuple[TimelineEvent, ...] | None = None
        self._newest_first: tuple[TimelineEvent, ...] = ()

    def show_events(
        self,
        events: tuple[TimelineEvent, ...],
        context: RenderContext,
        *,
        kinds: frozenset[EventKind] | None = None,
    ) -> None:
        """Show those of `events`, oldest first, that are of `kinds`; None for all."""
        is_new = events is not self._events
        if is_new:
            self._events = events
            self._newest_first = tuple(
                event for event in reversed(events) if kinds is None or event.kind in kinds
            )
        self.show_rows(self._newest_first, context, arrange=is_new)

    def event(self, number: int | None) -> TimelineEvent | None:
        """The listed event of that number."""
        return next((event for event in self.rows if event.number == number), None)


def event_columns() -> tuple[Column[TimelineEvent], ...]:
    """Columns of an event."""
    return (
        Column("time", "Time", "when it was seen, and how long ago", _time),
        Column("age", "Ago", "how long ago", _age, align="right", rank=3),
        Column(
            "kind",
            "Kind",
            "kind of the event: see below",
            lambda event, context: (
                (f"{SEVERITY_GLYPHS[event.severity]} {event.kind.value}", context.palette.of(event.severity)),
            ),
            order=lambda event: event.kind.value,
        ),
        Column(
            "about",
            "About",
            "the replica or the node that it is about",
            lambda event, context: ((event.replica or event.node, context.palette.strong),),
            order=lambda event: event.replica or event.node,
        ),
        Column(
            "seen-by",
            "Seen by",
            "the master whose answer shows it",
            lambda event, context: ((event.node if event.replica else "", context.palette.text),),
            rank=2,
            order=lambda event: event.node,
        ),
        Column(
            "text",
            "What",
            "what happened",
            lambda event, context: (
                (words_of(event), context.palette.bad if event.severity == 3 else context.palette.text),
            ),
            flexible_min=40,
        ),
    )


def words_of(event: TimelineEvent) -> str:
    """Text of an event, and how many are merged into it."""
    return event.text if not event.more else f"{event.text} (and {event.more:,} more like it)"


def _time(event: TimelineEvent, context: RenderContext) -> Line:
    moment = datetime.fromtimestamp(event.time_ms / 1000).astimezone()
    return (
        (f"{moment:%H:%M:%S}", context.palette.text),
        (f".{event.time_ms % 1000:03d}", context.palette.muted),
    )


def _age(event: TimelineEvent, context: RenderContext) -> Line:
    return ((format_age(max(0, context.end_ms - event.time_ms) / 1000), context.palette.muted),)


def _text_of(event: TimelineEvent) -> str:
    return f"{event.kind.value} {event.node} {event.replica} {event.text} {event.severity.name}"


class EventsPane(Pane):
    """A list of events that can be filtered by any text."""

    HELP = help_of(
        ("Events", terms_of(event_columns())),
        (
            "Kinds to filter by",
            [
                (
                    "connect lost",
                    "a replica's connection began, or ended; the text has the reason if known",
                ),
                ("refused", "a master refused a peer, for example for a forged ack"),
                (
                    "in-sync gap verdict",
                    "in-sync state changed; its log does not continue; another verdict",
                ),
                ("role node", "another role or name; a node is gone, back, new or restarted"),
                (
                    "set cut controller",
                    "the sync-state set changed; a log was cut; another controller leads, or none",
                ),
                ("puts disk config clock", "failing puts, disk faults, settings, a clock that was set"),
            ],
        ),
    )

    def __init__(self) -> None:
        super().__init__(id="events")
        self.chosen = LineView(id="events-chosen")
        self.table = EventList(id="events-table")

    def compose(self) -> ComposeResult:
        """A table, and the whole text of its chosen event."""
        yield self.table
        yield self.chosen

    @property
    def main_table(self) -> RowTable[Any]:
        """The events."""
        return self.table

    def show(self, model: PaneModel) -> None:
        """Show `model`."""
        events = model.held.events
        self.table.show_events(events, model.context)
        title = title_of("Events", self.table, of=len(events))
        dropped = events[-1].number - len(events) if events else 0
        note = f"{dropped:,} older ones were dropped" if dropped else "" if events else "no events yet"
        self.table.heading, self.table.notes = title, (note,)
        self._show_chosen()

    @on(RowTable.Selected, "#events-table")
    def _show_chosen(self) -> None:
        """Show the event under the cursor: its cell in the table may be too narrow."""
        event = self.table.event(self.table.cursor)
        if event is None or self.model is None:
            self.chosen.heading, self.chosen.shown = "", ()
            return
        moment = datetime.fromtimestamp(event.time_ms / 1000).astimezone()
        self.chosen.heading = f"{moment:%Y-%m-%d %H:%M:%S}.{event.time_ms % 1000:03d} · {event.kind.value}"
        seen_by = f" (seen by {event.node})" if event.node and event.replica else ""
        words = f"{event.replica or event.node}{seen_by}: {words_of(event)}".removeprefix(": ")
        lines = wrap(words, max(16, self.chosen.size.width))
        self.chosen.shown = [((line, self.model.context.palette.text),) for line in lines]

    @on(RowTable.Opened, "#events-table")
    def _open(self, message: RowTable.Opened) -> None:
        message.stop()
        event = self.table.event(message.key)
        if event is not None:
            self.post_message(self.MomentChosen(event.time_ms))
