"""Replicas: all replicas of all masters in one table, and the lag of the chosen one.

`ha_status_text` copies the table in the format of `mqadmin haStatus`, for tools that read its output: one
block a master (`#MasterAddr`, its max offset, number of slaves, number in sync), then one line a connected
slave. A figure that is not known is `-`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from attrs import evolve
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.reactive import var

from trioha.replica_verdict import Verdict
from trioha_monitor.panes.pane import Pane, PaneModel, help_of, node_columns, node_key, terms_of, title_of
from trioha_monitor.rendering import VERDICT_GLYPHS, Line, RenderContext
from trioha_monitor.texts import NOTHING, format_age, format_duration, format_seconds, format_span
from trioha_monitor.view import ClusterView, NodeView, ReplicaView
from trioha_monitor.widgets.columns import Column
from trioha_monitor.widgets.graph import Graph, Sparkline, lag_curve
from trioha_monitor.widgets.row_table import RowTable

VERDICT_HELP = {
    Verdict.OK: "it replicates",
    Verdict.OBSERVER: "receives everything, acknowledges nothing, as configured",
    Verdict.FALL_BEHIND: "its oldest missing byte is older than puts wait for replicas (slaveTimeout)",
    Verdict.NOT_IN_SYNC: "the master does not count it: it lacks haMaxGapNotInSync or more",
    Verdict.STALE: "not known: its master does not answer; for how long",
    Verdict.STALLED: "connected, bytes wait for it, and its ack does not move",
    Verdict.SILENT: "not connected, or nothing received for two heartbeats",
    Verdict.GAP: "it needs bytes that its master has deleted: it cannot continue by itself",
    Verdict.REFUSED: "its master does not admit it, or is not the broker that it wants",
    Verdict.DIVERGED: "its log differs from the master's",
}


def verdict_cell(replica: ReplicaView, context: RenderContext) -> Line:
    """Glyph, word and colour; with the age of STALE figures or of a lost connection."""
    part = context.verdict(replica.verdict)
    if replica.verdict is Verdict.STALE:
        return (part, (f" {format_age(replica.age_s)}", context.palette.muted))
    if replica.verdict is Verdict.SILENT and not replica.is_connected:
        return (part, (f" {format_age(replica.for_s)}", context.palette.muted))
    return (part,)


def eta_cell(replica: ReplicaView, context: RenderContext) -> Line:
    """Time until it has caught up; not known for an observer."""
    if replica.verdict is Verdict.OBSERVER:
        return ((NOTHING, context.palette.muted),)
    if replica.is_closing is False:
        return (("not closing", context.palette.warn),)
    if replica.eta_s is None:
        return ((NOTHING, context.palette.muted),)
    if replica.eta_s == 0:
        return (("in step", context.palette.muted),)
    eta = format_seconds(replica.eta_s) if replica.eta_s < 10 else format_duration(replica.eta_s)
    return ((f"in {eta}", context.palette.text),)


def metadata_cell(replica: ReplicaView, context: RenderContext) -> Line:
    """Age of the slave's copy of its master's metadata; red if a table cannot be copied."""
    palette, metadata = context.palette, replica.metadata
    if metadata is None:
        return ((NOTHING, palette.muted),)
    is_late = metadata.age_s is not None and metadata.age_s > context.thresholds.metadata_age_s
    style = palette.bad if metadata.faults else palette.warn if is_late or metadata.offsets_kept else None
    age = "never" if metadata.age_s is None else f"{format_duration(metadata.age_s)} old"
    return ((age, style or palette.text),)


def _metadata_order(replica: ReplicaView) -> float:
    if replica.metadata is None:
        return -1.0
    return float("inf") if replica.metadata.age_s is None else replica.metadata.age_s


def _eta_order(replica: ReplicaView) -> float:
    if replica.verdict is Verdict.OBSERVER:
        return -1.0
    if replica.is_closing is False:
        return float("inf")
    return -1.0 if replica.eta_s is None else replica.eta_s


def _worst_first(replica: ReplicaView) -> tuple[int, str]:
    return (-replica.verdict.severity, replica.verdict.value)


def _is_old(replica: ReplicaView) -> bool:
    return replica.verdict is Verdict.STALE or not replica.is_connected


def _state(replica: ReplicaView, context: RenderContext) -> Line:
    if not replica.is_connected:
        return ((f"gone {format_age(replica.for_s)}", context.palette.bad),)
    return ((replica.state, context.palette.text), (f" {format_age(replica.for_s)}", context.palette.muted))


def _diff(replica: ReplicaView, context: RenderContext) -> Line:
    diff, palette = replica.diff_bytes, context.palette
    if diff is None:
        return ((NOTHING, palette.muted),)
    if diff < 0:
        style = palette.bad
    elif diff == 0 or _is_old(replica) or replica.is_rejoining:
        style = palette.muted
    else:
        style = palette.text if not replica.verdict.severity else palette.of(replica.verdict.severity)
    return ((context.size(diff), style),)


def _lag(replica: ReplicaView, context: RenderContext) -> Line:
    if replica.is_rejoining:
        return (("rejoining", context.palette.muted),)
    if replica.lag_s is None:
        return ((NOTHING, context.palette.muted),)
    late = replica.lag_s > replica.limits.slave_timeout_s
    style = (
        context.palette.warn
        if late
        else context.palette.muted
        if _is_old(replica) or not replica.lag_s
        else context.palette.text
    )
    return ((format_seconds(replica.lag_s), style),)


def _text_of(replica: ReplicaView) -> str:
    """The text that filters search."""
    names = f"{replica.label} {replica.address} {replica.master_label}"
    return f"{names} {replica.state} {replica.verdict.value} {replica.why}"


def _with_histories(held: ClusterView, view: ClusterView) -> tuple[ReplicaView, ...]:
    """Held figures with the newest histories: graphs go on while tables are paused."""
    newest = {replica.key: replica for replica in view.replicas}
    return tuple(
        evolve(replica, lag_history=newest[replica.key].lag_history) if replica.key in newest else replica
        for replica in held.replicas
    )


UNKNOWN = "-"
HA_STATUS_HEADER = (
    f"{'#SlaveAddr':<32}  {'#SlaveAckOffset':<16} {'#Diff':>16} {'#TransferSpeed(KB/s)':>16} "
    f"{'#Status':>16} {'#TransferFromWhere':>16}"
)


def ha_status_text(view: ClusterView, replicas: Sequence[ReplicaView]) -> str:
    """`replicas` of `view`, master by master, in their order."""
    masters = list(dict.fromkeys(replica.master for replica in replicas))
    return "".join(
        _master_block(view, master, [r for r in replicas if r.master == master]) for master in masters
    )


def _master_block(view: ClusterView, master: str, replicas: Sequence[ReplicaView]) -> str:
    node = view.node(master)
    listed = [replica for replica in replicas if replica.is_connected]
    max_offset = node.log.max_offset if node is not None else None
    in_sync = node.in_sync_replicas if node is not None else None
    lines = [
        "",
        f"#MasterAddr\t{master}",
        f"#MasterCommitLogMaxOffset\t{_or_dash(max_offset)}",
        f"#SlaveNum\t{len(listed)}",
        f"#InSyncSlaveNum\t{_or_dash(in_sync)}",
        HA_STATUS_HEADER,
    ]
    lines += [_slave_line(replica) for replica in listed]
    return "\n".join(lines) + "\n"


def _slave_line(replica: ReplicaView) -> str:
    speed = replica.transferred_bytes_per_s
    status = {True: "OK", False: "Fall Behind", None: UNKNOWN}[replica.in_sync]
    return (
        f"{replica.address:<32}  {_or_dash(replica.ack_offset):<16} {_or_dash(replica.diff_bytes):>16} "
        f"{UNKNOWN if speed is None else format(speed / 1024, '.2f'):>16} {status:>16} "
        f"{_or_dash(replica.sent_offset):>16}"
    )


def _or_dash(number: int | None) -> str:
    return UNKNOWN if number is None else str(number)


def replica_columns(
    history: Callable[[ReplicaView, RenderContext, int], Line],
) -> tuple[Column[ReplicaView], ...]:
    """Columns of a replica; `history` draws its lag over time."""
    return (
        Column("verdict", "Verdict", "its state in a word: see above", verdict_cell, order=_worst_first),
        Column(
            "slave",
            "Replica",
            "broker name and id of the slave, else its socket's address",
            lambda replica, context: ((replica.label, context.palette.strong),),
            order=lambda r: r.label,
        ),
        Column(
            "address",
            "Address",
            "the slave's socket at its master",
            lambda replica, context: ((replica.address, context.palette.muted),),
            rank=7,
            order=lambda r: r.address,
        ),
        Column(
            "master",
            "Master",
            "the master that it replicates",
            lambda replica, context: ((replica.master_label, context.palette.muted),),
            rank=9,
            order=lambda r: r.master_label,
        ),
        Column(
            "state",
            "State",
            "RocketMQ's connection state, and the time since it connected or disconnected",
            _state,
            rank=6,
            order=lambda r: r.state,
        ),
        Column(
            "sent",
            "Sent",
            "first byte that was not sent to it yet",
            lambda r, context: context.offset(r.sent_offset, is_old=_is_old(r)),
            align="right",
            rank=8,
            order=lambda r: -1 if r.sent_offset is None else r.sent_offset,
        ),
        Column(
            "ack",
            "Ack",
            "offset that it acknowledged",
            lambda r, context: context.offset(r.ack_offset, is_old=_is_old(r)),
            align="right",
            rank=4,
            order=lambda r: -1 if r.ack_offset is None else r.ack_offset,
        ),
        Column(
            "flushed",
            "Flushed",
            "end of the bytes on its own disk, where it reports it",
            lambda r, context: context.offset(r.flushed_offset, is_old=_is_old(r)),
            align="right",
            rank=10,
            order=lambda r: -1 if r.flushed_offset is None else r.flushed_offset,
        ),
        Column(
            "diff",
            "Diff",
            "the master's max offset minus the ack, as mqadmin haStatus has it",
            _diff,
            align="right",
            rank=1,
            order=lambda r: -1 if r.diff_bytes is None else r.diff_bytes,
        ),
        Column(
            "lag",
            "Lag",
            "age of the oldest byte that it has not acknowledged; rejoining: it compares its tail",
            _lag,
            align="right",
            order=lambda r: -1.0 if r.lag_s is None else r.lag_s,
        ),
        Column(
            "speed",
            "Speed",
            "rate of its acks, mean of the last seconds",
            lambda r, context: context.figure(context.rate(r.ack_bytes_per_s), is_old=not r.ack_bytes_per_s),
            align="right",
            rank=3,
            order=lambda r: -1.0 if r.ack_bytes_per_s is None else r.ack_bytes_per_s,
        ),
        Column(
            "metadata",
            "Metadata",
            "age of its copy of topics, groups and offsets, of the oldest one, by the slave itself",
            metadata_cell,
            align="right",
            rank=5,
            order=_metadata_order,
        ),
        Column(
            "eta",
            "Caught up",
            "time until it has caught up at the present rates, or that it is not closing",
            eta_cell,
            align="right",
            rank=2,
            order=_eta_order,
        ),
        Column(
            "history",
            "Lag",
            "graph of the worst lag of each span of time, newest on the right",
            None,
            picture=history,
            flexible_min=10,
            rank=1,
        ),
    )


class ReplicasPane(Pane):
    """Nodes, replicas, and a graph."""

    HELP = help_of(
        (
            "Verdicts",
            [(f"{VERDICT_GLYPHS[verdict]} {verdict.value}", text) for verdict, text in VERDICT_HELP.items()],
        ),
        ("Replicas", terms_of(replica_columns(lambda *_: ()))),
        ("Nodes", terms_of(node_columns())),
        (
            "Graph",
            [
                ("bars", "the worst lag of each span of time, in the colour of the worst verdict"),
                ("╌╌╌", "the broker's own limits; a limit far above is named at the top"),
                ("▾ ◆", "an event, a change of a role: see Events"),
            ],
        ),
    )

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "l",
            "toggle('in_seconds')",
            "Lag in s",
            tooltip="Draw lag in bytes or in seconds",
            id="replicas.lag",
        ),
    ]

    in_seconds: var[bool] = var(False, init=False)
    """Whether the graph has lag in seconds; else in bytes."""

    def __init__(self) -> None:
        super().__init__(id="replicas")
        self._sparklines: dict[int, Sparkline] = {}
        """By the keys of the replicas that are shown."""
        self.nodes = RowTable[NodeView](node_columns(), key_of=node_key, id="replicas-nodes")
        self.table = RowTable[ReplicaView](
            replica_columns(self._history),
            key_of=lambda replica: replica.key,
            text_of=_text_of,
            id="replicas-table",
        )
        self.graph = Graph(id="replicas-graph", empty="No replica to draw.")

    def compose(self) -> ComposeResult:
        """Top to bottom."""
        yield self.nodes
        yield self.table
        yield self.graph

    def on_mount(self) -> None:
        """Set the fixed titles."""
        self.nodes.heading = "Nodes"

    @property
    def main_table(self) -> RowTable[Any]:
        """The replicas."""
        return self.table

    def show(self, model: PaneModel) -> None:
        """Show `model`."""
        context, held = model.context, model.held
        self.nodes.show_rows(held.nodes, context)
        replicas = _with_histories(held, model.view) if model.is_paused else held.replicas
        self._sparklines = {
            one.key: self._sparklines[one.key] for one in replicas if one.key in self._sparklines
        }
        labels = {"history": f"Lag {format_span(context.span_ms / 1000)}"}
        self.table.show_rows(replicas, context, labels=labels)
        self.table.heading = title_of("Replicas", self.table, of=len(replicas))
        self.table.notes = () if replicas else ("no replica is known",)
        self._draw_graph()

    def watch_in_seconds(self) -> None:
        """Draw the graph of the other quantity."""
        self._draw_graph()

    def _draw_graph(self) -> None:
        model = self.model
        if model is None:
            return
        replica = None if self.table.cursor is None else model.view.replica(self.table.cursor)
        curve = (
            None
            if replica is None
            else lag_curve(replica, model.view, model.context, in_seconds=self.in_seconds)
        )
        self.graph.show(curve, model.context)

    @on(RowTable.Selected, "#replicas-table")
    def _select(self, message: RowTable.Selected) -> None:
        message.stop()
        if message.key is not None:
            self.post_message(self.ReplicaChosen(message.key))
        self._draw_graph()

    @on(RowTable.Opened, "#replicas-table")
    def _open(self, message: RowTable.Opened) -> None:
        message.stop()
        if message.key is not None:
            self.post_message(self.ReplicaChosen(message.key, open_it=True))

    def _history(self, replica: ReplicaView, context: RenderContext, width: int) -> Line:
        return self._sparklines.setdefault(replica.key, Sparkline()).draw(
            replica.lag_history,
            width,
            end_ms=context.end_ms,
            span_ms=context.span_ms,
            palette=context.palette,
        )
