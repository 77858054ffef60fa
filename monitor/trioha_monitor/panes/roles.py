"""Roles: brokers in controller mode, their roles over time, one group in depth, and the changes."""

from __future__ import annotations

from textwrap import wrap
from typing import Any

from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal

from trioha.broker_status import ControlStatus
from trioha_monitor.panes.events import EventList, event_columns
from trioha_monitor.panes.pane import (
    FactWriter,
    Pane,
    PaneModel,
    health_column,
    help_of,
    is_old,
    node_key,
    node_text,
    role_cell,
    terms_of,
    title_of,
)
from trioha_monitor.rendering import Line, RenderContext, StyledText
from trioha_monitor.roles import set_text
from trioha_monitor.texts import (
    NOTHING,
    format_age,
    format_duration,
    format_offset,
    format_seconds,
    format_span,
)
from trioha_monitor.view import ClusterView, EventKind, NodeView
from trioha_monitor.widgets.columns import Column
from trioha_monitor.widgets.line_view import LineView
from trioha_monitor.widgets.role_chart import role_chart
from trioha_monitor.widgets.row_table import RowTable

KINDS = frozenset({EventKind.ROLE, EventKind.SET, EventKind.CUT, EventKind.CONTROLLER})
"""Events that the list has."""
LABEL_WIDTH = 12


def why_empty(view: ClusterView) -> str:
    """Why no broker in controller mode is shown."""
    if any(node.control is not None for node in view.nodes):
        return "None matches the filter."
    answered = sum(bool(node.role) for node in view.nodes)
    if not answered:
        return "No node has answered: whether one is in controller mode is not known."
    return (
        f"{answered} {'node reports' if answered == 1 else 'nodes report'} no controllers: roles are as "
        "brokerRole says, and no controller changes them. With enableControllerMode=true in broker.conf "
        "controllers give the roles."
    )


def role_columns() -> tuple[Column[NodeView], ...]:
    """Columns of a broker in controller mode."""
    return (
        health_column(),
        Column(
            "role",
            "Role",
            "master or slave, with the epoch; NO ROLE until the controllers give one",
            role_cell,
            order=lambda node: "" if node.control is None else node.control.role,
        ),
        Column(
            "name",
            "Node",
            "broker name, and the id that the controllers gave it",
            lambda node, context: ((node.label, context.palette.strong),),
            order=lambda node: node.label,
        ),
        Column(
            "address",
            "Address",
            "address of its remoting port",
            lambda node, context: ((node.address, context.palette.muted),),
            rank=6,
            order=lambda node: node.address,
        ),
        Column("master", "Master", "id and address of its group's master, as it knows it", _master, rank=3),
        Column("set", "Set", "sync-state set and its epoch, as it knows it", _set, rank=1),
        Column(
            "confirmed",
            "Confirmed",
            "the whole set has everything before it",
            lambda node, context: context.offset(_control_of(node).confirm_offset, is_old=is_old(node)),
            align="right",
            rank=4,
        ),
        Column("leader", "Controller", "the leading controller", _leader),
        Column(
            "heard",
            "Heard",
            "since a leading controller last answered: it is asked each 5 s",
            _heard,
            align="right",
            rank=2,
        ),
        Column(
            "changes",
            "Roles",
            "roles since its start, each new epoch included",
            _changes,
            align="right",
            rank=5,
            order=lambda node: _control_of(node).role_changes,
        ),
        Column(
            "since",
            "Since",
            "how long it has had its role, as this monitor saw it",
            _since,
            align="right",
            rank=4,
        ),
    )


def _control_of(node: NodeView) -> ControlStatus:
    assert node.control is not None, "the table has brokers in controller mode"
    return node.control


def _master(node: NodeView, context: RenderContext) -> Line:
    control, palette = _control_of(node), context.palette
    if control.master_id is None:
        return (("none", palette.warn),)
    style = palette.muted if is_old(node) else palette.text
    return ((f"{control.master_id} ", style), (control.master_address or NOTHING, palette.muted))


def _set(node: NodeView, context: RenderContext) -> Line:
    control, palette = _control_of(node), context.palette
    if control.sync_state_set_epoch is None:
        return ((NOTHING, palette.muted),)
    style = palette.muted if is_old(node) else palette.bad if control.is_set_short else palette.text
    return ((set_text(control.sync_state_set), style), (f" e{control.sync_state_set_epoch}", palette.muted))


def _leader(node: NodeView, context: RenderContext) -> Line:
    control, palette = _control_of(node), context.palette
    if control.leader is None:
        return (("▲ none leads", palette.muted if is_old(node) else palette.warn),)
    return ((control.leader, palette.muted if is_old(node) else palette.text),)


def _heard(node: NodeView, context: RenderContext) -> Line:
    heard_ms, palette = _control_of(node).leader_heard_ms, context.palette
    if heard_ms is None:
        return ((NOTHING, palette.muted),)
    heard_s = heard_ms / 1000 + (node.age_s or 0.0)
    is_late = heard_s >= context.thresholds.controller_silence_s
    style = palette.muted if is_old(node) else palette.warn if is_late else palette.text
    return ((f"{heard_s:.0f} s" if heard_s < 100 else format_duration(heard_s), style),)


def _changes(node: NodeView, context: RenderContext) -> Line:
    changes = _control_of(node).role_changes
    # A RocketMQ broker does not report them.
    return context.figure(f"{changes:,}" if changes else NOTHING, is_old=is_old(node))


def _since(node: NodeView, context: RenderContext) -> Line:
    if not node.roles:
        return ((NOTHING, context.palette.muted),)
    since_s = max(0, context.end_ms - node.roles[-1].time_ms) / 1000
    return ((format_age(since_s), context.palette.muted),)


def group_facts(node: NodeView, view: ClusterView, context: RenderContext) -> list[Line]:
    """Facts on the group of a broker, one a line: its replicas as their master reports them, if that is
    watched, all else as the broker does."""
    control, master = _control_of(node), master_of(node, view)
    write = FactWriter(context.palette, LABEL_WIDTH)
    return [
        *_identity_facts(control, write),
        *([] if master is None else _member_facts(master, _control_of(master), context, write)),
        *_controller_facts(node, control, write),
    ]


def master_of(node: NodeView, view: ClusterView) -> NodeView | None:
    """The master of a broker's group, of the latest epoch; None if it is not watched."""
    masters = [
        each
        for each in view.nodes
        if (each.cluster, each.broker_name) == (node.cluster, node.broker_name)
        and each.control is not None
        and each.control.role == "master"
    ]
    return max(masters, key=lambda each: _control_of(each).master_epoch or 0, default=None)


def _identity_facts(control: ControlStatus, write: FactWriter) -> list[Line]:
    palette, row, text, small = write.palette, write.row, write.text, write.small
    epoch = NOTHING if control.master_epoch is None else str(control.master_epoch)
    log_epoch = NOTHING if control.log_epoch is None else str(control.log_epoch)
    own_id = NOTHING if control.broker_id is None else str(control.broker_id)
    if control.master_id is None:
        master: tuple[StyledText, ...] = (("none", palette.warn),)
    else:
        master = (text(str(control.master_id)), small(f" at {control.master_address or NOTHING}"))
    lines = [
        row("Own id", text(own_id), small("  log's epoch "), text(log_epoch)),
        row("Master", *master, small("  epoch "), text(epoch)),
    ]
    if control.sync_state_set_epoch is not None:
        style = palette.bad if control.is_set_short else palette.text
        least = "" if control.in_sync_min is None else f"  min {control.in_sync_min}"
        lines.append(
            row(
                "Set",
                (set_text(control.sync_state_set), style),
                small(f"  epoch {control.sync_state_set_epoch}"),
                (least, palette.bad if control.is_set_short else palette.muted),
            )
        )
    lines.append(row("Confirmed", text(format_offset(control.confirm_offset))))
    return lines


def _member_facts(
    node: NodeView, control: ControlStatus, context: RenderContext, write: FactWriter
) -> list[Line]:
    palette, lines = context.palette, []
    for index, member in enumerate(control.members):
        if member.in_set and member.is_connected:
            state, style = "● in set", palette.good
        elif member.in_set:
            state, style = "✗ in set, not connected", palette.bad
        elif member.is_required:
            state, style = "△ proposed", palette.warn
        else:
            state, style = "○ not in set", palette.warn
        end, ack = node.log.max_offset, member.ack_offset
        parts: list[StyledText] = [(f"{member.broker_id} ", palette.text), (state, style)]
        if ack is not None:
            parts.append((f"  {format_offset(ack)}", palette.text))
        if member.broker_id == control.master_id:
            parts.append(("  master", palette.muted))
        elif ack is not None and end is not None and ack != end:
            parts.append((f"  {context.size(ack - end)}", palette.muted))
        lines.append(write.row("" if index else "Replicas", *parts))
    return lines


def _controller_facts(node: NodeView, control: ControlStatus, write: FactWriter) -> list[Line]:
    palette, lines = write.palette, []
    for index, link in enumerate(control.controllers):
        if link.is_leader:
            parts: tuple[StyledText, ...] = (("● ", palette.good), (f"{link.address} leads", palette.text))
            if control.leader_heard_ms is not None:
                heard = format_seconds(control.leader_heard_ms / 1000 + (node.age_s or 0.0))
                parts = (*parts, (f"  heard {heard} ago", palette.muted))
        else:
            glyph, style = ("○ ", palette.muted) if link.is_connected else ("✗ ", palette.bad)
            parts = ((glyph, style), (link.address, palette.text), (f"  {link.reason}", palette.muted))
        lines.append(write.row("" if index else "Controllers", *parts))
    if control.step and control.step != "following":
        lines.append(write.row("Asks", (control.step, palette.warn)))
    if control.refusal:
        lines.append(((f"✗ refused: {control.refusal}", palette.bad),))
    return lines


class RolesPane(Pane):
    """A table of brokers, a chart of their roles, facts on one group, and a list of changes."""

    HELP = help_of(
        ("Brokers in controller mode", terms_of(role_columns())),
        (
            "Roles over time",
            [
                ("█ 5", "master, of epoch 5"),
                ("─", "slave"),
                ("◆", "a change of the role, or of the master"),
                ("·", "no role from the controllers"),
                ("✗", "no answer"),
            ],
        ),
        (
            "Group",
            [
                ("Master", "broker id, address and epoch of the master that the controllers named last"),
                (
                    "Set",
                    "sync-state set: brokers of which one may become master without a loss; its epoch",
                ),
                ("Confirmed", "the whole set has everything before this offset"),
                (
                    "Replicas",
                    "id, whether in the set, acknowledged offset, and its distance from the end",
                ),
                ("Controllers", "which one leads; why others do not, or are not connected"),
            ],
        ),
        ("Changes", terms_of(event_columns())),
    )

    def __init__(self) -> None:
        super().__init__(id="roles")
        self.table = RowTable[NodeView](role_columns(), key_of=node_key, text_of=node_text, id="roles-table")
        self.chart = LineView(id="roles-chart")
        self.facts = LineView(id="roles-facts")
        self.changes = EventList(id="roles-changes")

    def compose(self) -> ComposeResult:
        """Top to bottom."""
        yield self.table
        yield self.chart
        with Horizontal(id="roles-below"):
            yield self.facts
            yield self.changes

    @property
    def main_table(self) -> RowTable[Any]:
        """The brokers."""
        return self.table

    def show(self, model: PaneModel) -> None:
        """Show `model`."""
        nodes = [node for node in model.held.nodes if node.control is not None]
        self.table.show_rows(nodes, model.context)
        self.table.heading = title_of("Controller mode", self.table, of=len(nodes))
        self.chart.display = bool(nodes)
        self.chart.heading = f"Roles of the last {format_span(model.context.span_ms / 1000)}"
        newest = [node for node in model.view.nodes if node.control is not None]
        self.chart.shown = role_chart(newest, model.context, width=self.chart.size.width)
        self.changes.show_events(model.held.events, model.context, kinds=KINDS)
        shown = len(self.changes.rows)
        self.changes.heading = f"Changes · {shown:,}" if shown else "Changes"
        self._show_chosen()

    @on(RowTable.Selected, "#roles-table")
    def _show_chosen(self) -> None:
        model = self.model
        if model is None:
            return
        chosen = self.table.chosen
        self.facts.heading = "No broker in controller mode" if chosen is None else chosen.label
        if chosen is not None:
            self.facts.shown = group_facts(chosen, model.held, model.context)
        else:
            words = wrap(why_empty(model.held), max(16, self.facts.size.width))
            self.facts.shown = [((line, model.context.palette.text),) for line in words]

    @on(RowTable.Opened, "#roles-changes")
    def _open(self, message: RowTable.Opened) -> None:
        message.stop()
        event = self.changes.event(message.key)
        if event is not None:
            self.post_message(self.MomentChosen(event.time_ms))
