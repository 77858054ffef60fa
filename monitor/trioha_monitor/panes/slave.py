"""Slave: one replica in depth."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import ClassVar

from rich.style import Style
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.reactive import var

from trioha.distribution import Distribution
from trioha.replica_verdict import Verdict
from trioha_monitor.panes.pane import FactWriter, Pane, PaneModel, help_of
from trioha_monitor.panes.replicas import eta_cell, metadata_cell, verdict_cell
from trioha_monitor.rendering import Line, RenderContext, StyledText
from trioha_monitor.texts import (
    NOTHING,
    format_count,
    format_duration,
    format_latency,
    format_offset,
    format_seconds,
)
from trioha_monitor.view import MetadataView, NodeView, ReplicaView
from trioha_monitor.widgets.columns import length_of
from trioha_monitor.widgets.graph import Graph, bar, lag_curve
from trioha_monitor.widgets.line_view import LineView

LABEL_WIDTH = 10
STAGES = (
    ("appended", "end of the master's log, by the master's last answer, with its age"),
    ("sent", "first byte that was not sent to it yet, in the same answer"),
    ("acked", "offset that it acknowledged, in the same answer"),
    ("received", "end of the slave's own log, by the slave's last answer, with its age"),
    ("flushed", "end of the bytes on its disk, in the same answer of the slave"),
    ("dispatched", "end of the bytes in its consume queues and index, in the same answer"),
)


class SlavePane(Pane, can_focus=True):
    """Facts, offsets by stage, and lag in bytes and in seconds."""

    HELP = help_of(
        (
            "Slave",
            [
                ("Ack time", "from sending a frame to its ack, where the master reports it"),
                ("Frames", "bytes of log in a frame, where the master reports it"),
                (
                    "Own side",
                    "by the slave itself: its state, receive rate and last read",
                ),
                ("Metadata", "age of its copy of topics, groups and offsets, by the slave itself"),
                ("Caught up", "time until it has caught up at the present rates"),
            ],
        ),
        ("Offsets", STAGES),
    )

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "right,down", "other(1)", "Next", key_display="→", tooltip="The next replica", id="slave.next"
        ),
        Binding(
            "left,up", "other(-1)", "Previous", key_display="←", tooltip="The one before", id="slave.previous"
        ),
        Binding(
            "l",
            "toggle('in_seconds')",
            "Lag in s",
            tooltip="Lag in bytes or in seconds, where there is room for one graph",
            id="slave.lag",
        ),
    ]

    in_seconds: var[bool] = var(False, init=False, toggle_class="-in-seconds")
    """Whether a low terminal shows lag in seconds; a high one shows both graphs."""

    def __init__(self) -> None:
        super().__init__(id="slave")
        self.facts = LineView(id="slave-facts")
        self.ladder = LineView(id="slave-ladder")
        self.graph = Graph(id="slave-bytes", empty="No replica to draw.")
        self.seconds_graph = Graph(id="slave-seconds", empty="")

    def compose(self) -> ComposeResult:
        """Facts on the left or on top, graphs beside or below."""
        with Vertical(id="slave-figures"):
            yield self.facts
            yield self.ladder
        with Vertical(id="slave-graphs"):
            yield self.graph
            yield self.seconds_graph

    def on_mount(self) -> None:
        """Set the fixed titles."""
        self.ladder.heading = "Offsets"

    def show(self, model: PaneModel) -> None:
        """Show the chosen replica, or the first one."""
        context = model.context
        replica = _chosen(model.held.replicas, model.replica)
        if replica is None:
            self.facts.heading, self.facts.notes = "Slave", ()
            self.facts.shown = [(("No replica is known.", context.palette.muted),)]
            self.ladder.shown = ()
            self.graph.show(None, context)
            self.seconds_graph.show(None, context)
            return
        place = model.held.replicas.index(replica) + 1
        self.facts.heading, self.facts.notes = replica.label, (f"{place} of {len(model.held.replicas)}",)
        node = model.held.node(replica.node) if replica.node is not None else None
        self.facts.shown = facts_of(replica, node, context, width=self.facts.size.width)
        is_live = model.held.is_live
        self.ladder.shown = ladder_of(replica, context, width=self.ladder.size.width, is_live=is_live)
        newest = model.view.replica(replica.key) or replica
        self.graph.show(lag_curve(newest, model.view, context, in_seconds=False), context)
        self.seconds_graph.show(lag_curve(newest, model.view, context, in_seconds=True), context)

    def watch_in_seconds(self) -> None:
        """Draw the graph that became visible."""
        self.show_again()

    def action_other(self, steps: int) -> None:
        """The next or the previous replica."""
        model = self.model
        if model is None or not model.held.replicas:
            return
        replicas = model.held.replicas
        chosen = _chosen(replicas, model.replica)
        assert chosen is not None
        place = min(max(replicas.index(chosen) + steps, 0), len(replicas) - 1)
        self.post_message(self.ReplicaChosen(replicas[place].key))


def _chosen(replicas: Sequence[ReplicaView], key: int | None) -> ReplicaView | None:
    return next((replica for replica in replicas if replica.key == key), replicas[0] if replicas else None)


def facts_of(
    replica: ReplicaView, node: NodeView | None, context: RenderContext, *, width: int
) -> list[Line]:
    """Facts on a replica, one a line; a long reason of its verdict is wrapped at `width`."""
    palette = context.palette
    write = FactWriter(palette, LABEL_WIDTH)
    row, text, small = write.row, write.text, write.small

    since = f"{replica.state or 'connected'} for" if replica.is_connected else "gone for"
    sync = {
        True: ("  ● in sync", palette.good),
        False: ("  △ not in sync", palette.warn),
        None: ("", palette.text),
    }
    in_sync = replica.in_sync if replica.is_connected and replica.verdict is not Verdict.OBSERVER else None
    complaint = "" if node is None or node.slave is None else node.slave.complaint
    lines = [
        *_verdict_lines(
            verdict_cell(replica, context),
            complaint or replica.why,
            palette.bad if complaint else palette.muted,
            write,
            width=width,
        ),
        row(
            "Link",
            text(f"{since} {format_duration(replica.for_s)}"),
            sync[in_sync],
            small("  reconnects "),
            text(format_count(replica.reconnects)),
        ),
        row("Address", text(replica.address), small("  of  "), text(replica.master_label)),
        row(
            "Lag",
            text("rejoining" if replica.is_rejoining else format_seconds(replica.lag_s)),
            small("  diff "),
            text(context.size(replica.diff_bytes)),
            small("  caught up "),
            *eta_cell(replica, context),
        ),
        row(
            "Speed",
            small("sent "),
            text(context.rate(replica.sent_bytes_per_s)),
            small("  acked "),
            text(context.rate(replica.ack_bytes_per_s)),
        ),
        row("Ack time", *_distribution(replica.ack_latency_ms, format_latency, write)),
        row("Frames", *_distribution(replica.frame_bytes, context.size, write)),
    ]
    if node is not None and node.slave is not None:
        slave = node.slave
        side = row(
            "Own side",
            text(slave.state or NOTHING),
            small("  receives "),
            text(context.rate(slave.received_bytes_per_s)),
            small("  read "),
            text(NOTHING if slave.read_age_s is None else f"{format_seconds(slave.read_age_s)} ago"),
        )
        lines.append(side)
    else:
        lines.append(row("Own side", small("the slave itself is not watched")))
    if replica.metadata is not None:
        lines += _metadata_lines(replica.metadata, metadata_cell(replica, context), write, width=width)
    return lines


def _metadata_lines(metadata: MetadataView, age: Line, write: FactWriter, *, width: int) -> list[Line]:
    kept = f"  {metadata.offsets_kept:,} offsets of the master are before its own"
    note = ((kept, write.palette.warn),) if metadata.offsets_kept else ()
    faults = [write.wrapped(fault, write.palette.bad, width=width) for fault in metadata.faults]
    return [write.row("Metadata", *age, *note), *chain(*faults)]


def _verdict_lines(cell: Line, words: str, style: Style, write: FactWriter, *, width: int) -> list[Line]:
    first = write.row("Verdict", *cell)
    if len(words) + 2 + length_of(first) <= width:
        return [(*first, (f"  {words}", style))]
    return [first, *write.wrapped(words, style, width=width)]


def _distribution(
    distribution: Distribution[float] | None, format_value: Callable[[float], str], write: FactWriter
) -> tuple[StyledText, ...]:
    if distribution is None:
        return (write.text(NOTHING),)
    return (
        write.small("p50 "),
        write.text(format_value(distribution.p50)),
        write.small("  p99 "),
        write.text(format_value(distribution.p99)),
        write.small("  max "),
        write.text(format_value(distribution.largest)),
        write.small(f"  of {distribution.count:,}"),
    )


def ladder_of(
    replica: ReplicaView, context: RenderContext, *, width: int, is_live: bool = True
) -> list[Line]:
    """Every stage with its offset and its distance from the end of the log, drawn to one scale.

    The master's figures are of one answer, the slave's own of another: distances are measured from the end of
    the log in the same answer only. Where it `is_live`, both have their age.
    """
    ages = (replica.age_s, replica.slave_age_s) if is_live else (None, None)
    answers = (
        ("the master", ages[0], (replica.master_offset, replica.sent_offset, replica.ack_offset)),
        ("the slave", ages[1], (replica.slave_max_offset, replica.flushed_offset, replica.dispatched_offset)),
    )
    lacks = [
        [None if ends[0] is None or offset is None else ends[0] - offset for offset in ends]
        for _, _, ends in answers
    ]
    worst = max((one for each in lacks for one in each if one is not None), default=0)
    digits = max(len(format_offset(offset)) for _, _, ends in answers for offset in ends)
    lines: list[Line] = []
    names = iter(STAGES)
    for (source, age_s, ends), lacking in zip(answers, lacks, strict=True):
        for place, (offset, lack_bytes) in enumerate(zip(ends, lacking, strict=True)):
            stage, _ = next(names)
            line: list[StyledText] = [
                (stage.ljust(11), context.palette.muted),
                (
                    format_offset(offset).rjust(digits),
                    context.palette.muted if offset is None else context.palette.text,
                ),
            ]
            if place:
                line += _distance(lack_bytes, worst, replica, context, room=width - 11 - digits - 14)
            elif offset is not None:
                age = "" if age_s is None else f", {format_seconds(age_s)} ago"
                line.append((f"   at {source}{age}", context.palette.muted))
            lines.append(tuple(line))
    return lines


def _distance(
    lack_bytes: int | None, worst: int, replica: ReplicaView, context: RenderContext, *, room: int
) -> list[StyledText]:
    """Distance of a stage from the end of the log, in bytes and as a bar."""
    palette = context.palette
    if lack_bytes is None:
        return []
    style = palette.muted if lack_bytes == 0 else palette.bad if lack_bytes < 0 else palette.text
    parts: list[StyledText] = [(f"{context.size(-lack_bytes) if lack_bytes else 'level':>12}  ", style)]
    if lack_bytes > 0 and room > 4:
        parts.append((bar(lack_bytes / worst, room), palette.of(replica.verdict.severity)))
    return parts
