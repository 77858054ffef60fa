"""Groups: topics, the groups that consume them, their lag, and where they read."""

from __future__ import annotations

from textwrap import wrap
from typing import Any

from textual import on
from textual.app import ComposeResult

from trioha_monitor.panes.pane import Pane, PaneModel, help_of, terms_of, title_of
from trioha_monitor.rendering import Line, RenderContext
from trioha_monitor.texts import NOTHING, format_age, format_count, format_duration
from trioha_monitor.view import ConsumptionView, GroupView
from trioha_monitor.widgets.columns import Column
from trioha_monitor.widgets.line_view import LineView
from trioha_monitor.widgets.row_table import RowTable

HAS_SUBTITLES = "-high"
"""Class of a screen with room for frames."""
_EMPTY = ConsumptionView()


def group_columns() -> tuple[Column[GroupView], ...]:
    """Columns of a group in a topic."""
    return (
        Column(
            "topic",
            "Topic",
            "the topic; %RETRY% and %DLQ% topics belong to a group",
            lambda row, context: ((row.topic, context.palette.strong),),
            order=lambda row: row.topic,
        ),
        Column(
            "group",
            "Group",
            "the consumer group; a dash if no group has consumed the topic here",
            lambda row, context: context.figure(row.group or NOTHING),
            order=lambda row: row.group,
        ),
        Column(
            "broker",
            "Broker",
            "broker name",
            lambda row, context: ((row.broker, context.palette.muted),),
            rank=5,
            order=lambda row: row.broker,
        ),
        Column(
            "queues",
            "Queues",
            "queues of the topic at this broker",
            lambda row, context: context.figure(format_count(row.queues)),
            align="right",
            rank=6,
            order=lambda row: row.queues,
        ),
        Column(
            "lag",
            "Lag",
            "messages that are stored and not committed, in all queues",
            _lag,
            align="right",
            order=lambda row: -1 if row.lag is None else row.lag,
        ),
        Column(
            "waits",
            "Behind",
            "age of the last committed message, in the queue with a lag where it is oldest",
            _behind,
            align="right",
            rank=1,
            order=lambda row: -1.0 if row.lag_s is None else row.lag_s,
        ),
        Column(
            "rate",
            "Reads/s",
            "messages per second that the brokers give it",
            _rate,
            align="right",
            rank=2,
            order=lambda row: -1.0 if row.read_per_s is None else row.read_per_s,
        ),
        Column(
            "members",
            "Members",
            "connected consumers, and whether each of them gets all messages (broadcasting)",
            _members,
            rank=3,
            order=lambda row: -1 if row.members is None else row.members,
        ),
        Column(
            "sources",
            "Reads from",
            "brokers that give it messages: the master (#0) or slaves",
            _sources,
            flexible_min=14,
        ),
    )


def details_of(row: GroupView) -> list[str]:
    """Where the group of a row reads, and its members."""
    if not row.group:
        return ["no group has consumed this topic at this broker"]
    lines = []
    if row.sources:
        parts = ", ".join(f"{label} {per_s:,.1f}/s" for label, per_s in row.sources)
        lines.append(f"reads from {parts}")
    else:
        lines.append("reads nothing now")
    if row.members is None:
        lines.append("members: not asked for yet")
    elif not row.members:
        lines.append("no member is connected")
    else:
        more = row.members - len(row.clients)
        lines.append(
            f"{row.members} member{'' if row.members == 1 else 's'}"
            f" ({row.model.lower() or 'model not known'}): "
            + ", ".join(row.clients)
            + (f" and {more} more" if more > 0 else "")
        )
    return lines


def _note(model: PaneModel) -> str:
    """Faults, and what is not shown."""
    view = model.held.consumption
    if not model.held.is_live:
        return "recorded sessions have no groups"
    if view is None:
        return "waiting for the first answer"
    parts = list(view.faults[:1])
    if len(view.faults) > 1:
        parts.append(f"and {len(view.faults) - 1} more nodes do not answer")
    if view.hidden_rows:
        parts.append(f"{view.hidden_rows:,} rows are not shown")
    return " · ".join(parts)


def _is_old(row: GroupView, context: RenderContext) -> bool:
    return row.age_s > context.thresholds.group_age_s


def _lag(row: GroupView, context: RenderContext) -> Line:
    palette = context.palette
    if row.lag is None:
        return ((NOTHING, palette.muted),)
    if _is_old(row, context) or not row.lag:
        style = palette.muted
    else:
        # A lag that nobody works on is worse than a long one.
        style = palette.bad if row.members == 0 else palette.warn if _is_late(row, context) else palette.text
    return ((format_count(row.lag), style),)


def _is_late(row: GroupView, context: RenderContext) -> bool:
    return row.lag_s is not None and row.lag_s > context.thresholds.group_lag_s


def _behind(row: GroupView, context: RenderContext) -> Line:
    palette = context.palette
    if row.lag_s is None:
        return ((NOTHING, palette.muted),)
    style = (
        palette.muted if _is_old(row, context) else palette.warn if _is_late(row, context) else palette.text
    )
    return ((format_duration(row.lag_s), style),)


def _rate(row: GroupView, context: RenderContext) -> Line:
    if row.read_per_s is None:
        return ((NOTHING, context.palette.muted),)
    return context.figure(f"{row.read_per_s:,.1f}", is_old=_is_old(row, context) or not row.read_per_s)


def _members(row: GroupView, context: RenderContext) -> Line:
    palette = context.palette
    if row.members is None:
        return ((NOTHING, palette.muted),)
    if not row.members:
        return (("none", palette.bad if row.lag else palette.muted),)
    word = " broadcast" if row.model == "BROADCASTING" else ""
    return ((f"{row.members:,}{word}", palette.text),)


def _sources(row: GroupView, context: RenderContext) -> Line:
    palette = context.palette
    if _is_old(row, context):
        return ((f"figures are {format_age(row.age_s)} old", palette.warn),)
    if not row.sources:
        return ((NOTHING, palette.muted),)
    labels = ", ".join(label for label, _ in row.sources)
    return (
        (labels, palette.text if all(label.endswith("#0") for label, _ in row.sources) else palette.accent),
    )


def _text_of(row: GroupView) -> str:
    sources = " ".join(label for label, _ in row.sources)
    return f"{row.topic} {row.group} {row.broker} {sources} {' '.join(row.clients)}"


class GroupsPane(Pane):
    """A table of groups by topic, and the members of the chosen one."""

    HELP = help_of(("Topics and groups", terms_of(group_columns())))

    def __init__(self) -> None:
        super().__init__(id="groups")
        self.chosen = LineView(id="groups-chosen")
        self.table = RowTable[GroupView](
            group_columns(), key_of=lambda row: row.key, text_of=_text_of, id="groups-table"
        )

    def compose(self) -> ComposeResult:
        """A table, and who consumes in its chosen row."""
        yield self.table
        yield self.chosen

    @property
    def main_table(self) -> RowTable[Any]:
        """The groups."""
        return self.table

    def show(self, model: PaneModel) -> None:
        """Show `model`."""
        view = model.held.consumption
        shown = view or _EMPTY
        self.table.show_rows(shown.rows, model.context)
        self.table.heading = title_of("Topics and groups", self.table, of=len(shown.rows))
        self.table.notes = (_note(model),) if self._has_subtitles else ()
        self._show_chosen()

    @on(RowTable.Selected, "#groups-table")
    def _show_chosen(self) -> None:
        """Show the row under the cursor in full."""
        row, model = self.table.chosen, self.model
        if model is None:
            return
        self.chosen.heading = "" if row is None else f"{row.group or 'no group'} · {row.topic} · {row.broker}"
        palette = model.context.palette
        details = [] if row is None else [(text, palette.text) for text in details_of(row)]
        if row is None or not self._has_subtitles:
            details.append((_note(model), palette.muted))
        width = max(16, self.chosen.size.width)
        self.chosen.shown = [((line, style),) for text, style in details for line in wrap(text, width)]

    @property
    def _has_subtitles(self) -> bool:
        """A low terminal has no room for them."""
        return self.screen.has_class(HAS_SUBTITLES)
