"""Base of the panes: the model that a pane shows, its help, and the columns of nodes that two panes share."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap
from typing import Any
from zlib import crc32

from attrs import frozen
from rich.style import Style
from textual.containers import Vertical
from textual.message import Message
from textual.reactive import var

from trioha.broker_status import ControlStatus
from trioha_monitor.rendering import Line, Palette, RenderContext, StyledText
from trioha_monitor.roles import set_text
from trioha_monitor.texts import NOTHING, format_age, format_offset, format_seconds
from trioha_monitor.view import ClusterView, Health, NodeView
from trioha_monitor.widgets.columns import Column
from trioha_monitor.widgets.row_table import RowTable


@frozen
class PaneModel:
    """What a pane shows."""

    view: ClusterView
    """The newest view: graphs show it."""
    held: ClusterView
    """The view of tables and figures: an older one while they are paused, else the newest."""
    context: RenderContext
    replica: int | None = None
    """Key of the chosen replica."""

    @property
    def is_paused(self) -> bool:
        """Whether tables are held."""
        return self.held is not self.view


@frozen
class FactWriter:
    """Writes facts, one a line: a label, then figures with small words between them."""

    palette: Palette
    label_width: int

    def row(self, label: str, *parts: StyledText) -> Line:
        """A whole line."""
        return ((label.ljust(self.label_width), self.palette.muted), *parts)

    def text(self, figure: str) -> StyledText:
        """A figure; muted if it is not known."""
        return (figure, self.palette.muted if figure == NOTHING else self.palette.text)

    def small(self, words: str) -> StyledText:
        """Words beside figures."""
        return (words, self.palette.muted)

    def wrapped(self, words: str, style: Style, *, width: int) -> list[Line]:
        """Words on lines of their own below the figures of a line of `width`."""
        room = max(16, width - self.label_width)
        return [self.row("", (line, style)) for line in wrap(words, room)]


class Pane(Vertical):
    """One pane. Shows its model; keeps only what the user chose."""

    model: var[PaneModel | None] = var(None, init=False, always_update=True)
    """What it shows; None before the first view."""

    class ReplicaChosen(Message):
        """The user chose another replica."""

        def __init__(self, key: int, *, open_it: bool = False) -> None:
            super().__init__()
            self.key = key
            self.open_it = open_it
            """Whether to open its details."""

    class MomentChosen(Message):
        """The user chose a moment: a replay goes there."""

        def __init__(self, time_ms: int) -> None:
            super().__init__()
            self.time_ms = time_ms

    def watch_model(self, model: PaneModel | None) -> None:
        """Show the model in place of the one before."""
        if model is not None:
            self.show(model)

    def on_resize(self) -> None:
        """Fit texts to the new size, once the widgets have it."""
        self.show_again()

    def show_again(self) -> None:
        """Show the same model after the next layout: a widget has no size before it is visible."""
        self.call_after_refresh(self.mutate_reactive, Pane.model)

    def show(self, model: PaneModel) -> None:
        """Show `model`."""
        raise NotImplementedError

    @property
    def main_table(self) -> RowTable[Any] | None:
        """The table that is filtered; None without one."""
        return None


def help_of(*topics: tuple[str, Sequence[tuple[str, str]]]) -> str:
    """A pane's `HELP`, in Markdown: the title of each topic, and its terms with their meanings."""
    return "\n\n".join(
        f"#### {title}\n\n" + "\n".join(f"- **{term}** {meaning}" for term, meaning in terms)
        for title, terms in topics
    )


def terms_of(columns: Sequence[Column[Any]]) -> list[tuple[str, str]]:
    """The columns of a table with their meanings."""
    return [(column.label, column.help) for column in columns]


def title_of(name: str, table: RowTable[Any], *, of: int) -> str:
    """A table's title, with its filter of `of` rows and its order."""
    parts = [name]
    if table.filter_text:
        parts.append(f"{len(table.rows)} of {of} with “{table.filter_text}”")
    if table.sort_label:
        parts.append(table.sort_label)
    return " · ".join(parts)


def node_key(node: NodeView) -> int:
    """A stable key of a node."""
    return crc32(node.address.encode())


def node_text(node: NodeView) -> str:
    """The text that filters search."""
    return f"{node.health.value} {node.role} {node.label} {node.address} {node.version} {node.reason}"


def is_old(node: NodeView) -> bool:
    """Whether its figures are out of date."""
    return node.health in {Health.DOWN, Health.CONNECTING}


def node_columns() -> tuple[Column[NodeView], ...]:
    """Columns of identity, health and replication of a node."""
    return (
        *identity_columns(),
        Column(
            "max",
            "Max offset",
            "end of its log, in bytes",
            lambda node, context: context.offset(node.log.max_offset, is_old=is_old(node)),
            align="right",
            rank=1,
        ),
        Column(
            "flushed",
            "Flushed",
            "end of the bytes on disk",
            lambda node, context: context.offset(node.log.flushed_offset, is_old=is_old(node)),
            align="right",
            rank=3,
        ),
        Column(
            "rate",
            "Rate",
            "append rate, mean of the last seconds",
            rate_cell,
            align="right",
            rank=1,
        ),
        Column(
            "note",
            "Replication",
            "a master's slaves; a slave's master and reported offset; the reason of DOWN",
            None,
            picture=_note,
            flexible_min=28,
        ),
    )


def health_column() -> Column[NodeView]:
    """The column of a node's health."""
    return Column(
        "health",
        "State",
        "UP answers, LATE answers slowly, DOWN does not answer; and for how long",
        _health,
        order=lambda node: -node.health.severity,
    )


def identity_columns() -> tuple[Column[NodeView], ...]:
    """Columns of identity and health of a node."""
    return (
        health_column(),
        Column(
            "role",
            "Role",
            "SYNC_MASTER, ASYNC_MASTER or SLAVE; MASTER if it does not report which; with the epoch in "
            "controller mode",
            role_cell,
            order=lambda node: node.role,
            rank=2,
        ),
        Column(
            "name",
            "Node",
            "broker name and broker id; its address while they are unknown",
            lambda node, context: ((node.label, context.palette.strong),),
            order=lambda node: node.label,
        ),
        Column(
            "address",
            "Address",
            "address of its remoting port",
            lambda node, context: ((node.address, context.palette.muted),),
            rank=5,
            order=lambda node: node.address,
        ),
        Column(
            "version",
            "Version",
            "version that it reports",
            lambda node, context: ((node.version or NOTHING, context.palette.muted),),
            rank=7,
            order=lambda node: node.version,
        ),
    )


def rate_cell(node: NodeView, context: RenderContext) -> Line:
    """The append rate of a node."""
    rate = node.log.append_bytes_per_s
    return context.figure(context.rate(rate), is_old=is_old(node) or not rate)


def role_cell(node: NodeView, context: RenderContext) -> Line:
    """The role of a node, in controller mode with its epoch."""
    palette, control = context.palette, node.control
    text = node.role or NOTHING
    if control is not None:
        epoch = "" if control.master_epoch is None else f" e{control.master_epoch}"
        text = "NO ROLE" if control.role == "none" else f"{control.role.upper()}{epoch}"
        if control.role == "none" and not is_old(node):
            return ((text, palette.warn),)
    return ((text, palette.muted if is_old(node) else palette.accent),)


def _control_note(control: ControlStatus, context: RenderContext) -> list[StyledText]:
    """A master's set, and whether no controller leads."""
    palette = context.palette
    parts: list[StyledText] = []
    if control.role == "master" and control.sync_state_set_epoch is not None:
        style = palette.bad if control.is_set_short else palette.text
        parts += [(" set ", palette.muted), (set_text(control.sync_state_set), style)]
    if control.leader is None:
        parts.append((" ▲ no controller", palette.warn))
    return parts


def _health(node: NodeView, context: RenderContext) -> Line:
    if node.health is Health.CONNECTING:
        return (context.health(node.health),)
    text, style = context.health(node.health)
    return ((f"{text:<6}", style), (f" {format_age(node.for_s)}", context.palette.muted))


def _note(node: NodeView, context: RenderContext, width: int) -> Line:
    palette = context.palette
    if node.health is Health.DOWN:
        return ((node.reason, palette.bad),)
    if node.health is Health.CONNECTING:
        return (("waiting for its first answer", palette.muted),)
    control = [] if node.control is None else _control_note(node.control, context)
    if node.control is not None and node.control.role == "none":
        return (("waits for a role", palette.warn), *control)
    if node.slave is not None:
        slave = node.slave
        if slave.complaint:
            return ((f"✗ {slave.complaint}", palette.bad),)
        transfers = slave.state in {"", "TRANSFER"} and slave.master_address is not None
        start = ("← ", palette.good) if transfers else (f"▲ {slave.state or 'READY'} ", palette.warn)
        line = [start, (f"{slave.master_address or 'no master'} ", palette.text)]
        reported = format_offset(slave.reported_offset)
        room = width - sum(len(text) for text, _ in (*line, *control)) - len(reported)
        if slave.reported_offset is not None and room >= 0:
            # A cut number is useless: the table of replicas has all of it.
            label = "reported " if room >= len("reported ") else ""
            line += [(label, palette.muted), (reported, palette.text)]
        if slave.read_age_s is not None and slave.read_age_s > node.limits.heartbeat_s:
            line.append((f" silent for {format_seconds(slave.read_age_s)}", palette.warn))
        return (*line, *control)
    if not node.lists_replicas:
        return (("this version does not list its replicas", palette.muted),)
    count = node.connected_replicas
    line = [(f"{count} slave{'' if count == 1 else 's'}", palette.text if count else palette.warn)]
    if node.observers:
        line.append((f" ({node.observers} observe{'s' if node.observers == 1 else ''})", palette.muted))
    if count and node.in_sync_replicas is not None:
        style = palette.good if node.in_sync_replicas >= count - node.observers else palette.warn
        line += [(", ", palette.muted), (f"{node.in_sync_replicas} in sync", style)]
    line += control
    if probes := sum(probe.count for probe in node.probes):
        words = f", {probes:,} probe{'' if probes == 1 else 's'}"
        if sum(len(text) for text, _ in line) + len(words) <= width:
            line.append((words, palette.muted))
    if node.hidden_replicas:
        line.append((f", {node.hidden_replicas} not shown", palette.warn))
    if node.warnings:
        number = len(node.warnings)
        in_short = f" ▲ {number} warning{'' if number == 1 else 's'}"
        room = width - sum(len(text) for text, _ in line)
        words = f" ▲ {node.warnings[0]}"
        # The Log pane has all of them.
        line.append((words if number == 1 and len(words) <= room else in_short, palette.warn))
    return tuple(line)
