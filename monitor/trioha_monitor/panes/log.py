"""Log: every node's log and disk, and one of them in depth."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal

from trioha_monitor.panes.pane import (
    FactWriter,
    Pane,
    PaneModel,
    help_of,
    identity_columns,
    is_old,
    node_key,
    node_text,
    rate_cell,
    terms_of,
    title_of,
)
from trioha_monitor.rendering import Line, RenderContext, StyledText
from trioha_monitor.texts import NOTHING, format_count, format_duration, format_offset
from trioha_monitor.view import ArchiveView, ClusterView, LogView, NodeView
from trioha_monitor.widgets.columns import Column
from trioha_monitor.widgets.graph import Curve, Graph, Mark, Quantity, bar
from trioha_monitor.widgets.line_view import LineView
from trioha_monitor.widgets.row_table import RowTable

LABEL_WIDTH = 11
DISK_BAR = 20
FAULTS_SHOWN = 5
"""Reasons of failed requests that are listed: the most frequent ones."""


def log_columns() -> tuple[Column[NodeView], ...]:
    """Columns of a node's log."""
    return (
        *identity_columns(),
        Column(
            "min",
            "Min offset",
            "first byte that it still has",
            lambda node, context: context.offset(node.log.min_offset, is_old=is_old(node)),
            align="right",
            rank=4,
            order=lambda node: _known_or_first(node.log.min_offset),
        ),
        Column(
            "max",
            "Max offset",
            "end of the log, in bytes",
            lambda node, context: context.offset(node.log.max_offset, is_old=is_old(node)),
            align="right",
            order=lambda node: _known_or_first(node.log.max_offset),
        ),
        Column(
            "files",
            "Files",
            "number of files",
            _files,
            align="right",
            rank=6,
            order=lambda node: _known_or_first(node.log.files),
        ),
        Column(
            "unflushed",
            "To flush",
            "bytes that are not on disk yet",
            lambda node, context: _waiting(node, node.log.unflushed_bytes, context),
            align="right",
            rank=1,
            order=lambda node: _known_or_first(node.log.unflushed_bytes),
        ),
        Column(
            "undispatched",
            "To dispatch",
            "bytes that are not in consume queues and index yet",
            lambda node, context: _waiting(node, node.log.undispatched_bytes, context),
            align="right",
            rank=3,
            order=lambda node: _known_or_first(node.log.undispatched_bytes),
        ),
        Column(
            "rate",
            "Rate",
            "append rate, mean of the last seconds",
            rate_cell,
            align="right",
            order=lambda node: _known_or_first(node.log.append_bytes_per_s),
        ),
        Column(
            "puts",
            "Puts/s",
            "puts per second, by the node's own count",
            lambda node, context: context.figure(
                format_count(node.log.put_messages_per_s), is_old=is_old(node)
            ),
            align="right",
            rank=1,
            order=lambda node: _known_or_first(node.log.put_messages_per_s),
        ),
        Column(
            "disk",
            "Disk",
            "used part of its disk",
            _disk,
            align="right",
            rank=1,
            order=lambda node: _known_or_first(node.log.disk_ratio),
        ),
    )


def log_facts(node: NodeView, view: ClusterView, context: RenderContext, *, width: int) -> list[Line]:
    """Facts on a node's log, one a line."""
    log, palette = node.log, context.palette
    write = FactWriter(palette, LABEL_WIDTH)
    row, text, small = write.row, write.text, write.small

    def stage(label: str, offset: int | None, waiting: int | None) -> Line:
        left = (
            () if waiting is None else (small("  level" if waiting == 0 else f"  {context.size(-waiting)}"),)
        )
        return row(label, text(format_offset(offset)), *left)

    lines = [
        row(
            "Holds",
            text(format_offset(log.min_offset)),
            small(" to "),
            text(format_offset(log.max_offset)),
            small("  "),
            text(context.size(log.size_bytes)),
        ),
        row("Files", text(format_count(log.files)), small(" of "), text(context.size(log.file_bytes))),
        stage("Flushed", log.flushed_offset, log.unflushed_bytes),
        stage("Dispatched", log.dispatched_offset, log.undispatched_bytes),
        row("Disk", *_disk_facts(log, context)),
        row("Keeps", *_retention(log, view, context)),
    ]
    if log.archive is not None:
        lines[4:4] = _archive_facts(log.archive, context, row=row, stage=stage)
    if log.dispatch_fault:
        lines.append(row("", (f"✗ {log.dispatch_fault}", palette.bad)))
    if not log.puts:
        lines.append(row("Puts", text(NOTHING)))
    for index, put in enumerate(log.puts):
        glyph = "●" if put.status == "PUT_OK" else "✗"
        rate = small("") if put.per_s is None else small(f"  {put.per_s:,.0f}/s")
        lines.append(
            row(
                "" if index else "Puts",
                (f"{glyph} {put.status} ", palette.put_status(put.status)),
                text(format_count(put.count)),
                rate,
            )
        )
    for index, (reason, ended) in enumerate(
        sorted(node.ended_connections.items(), key=lambda item: -item[1])
    ):
        lines.append(row("" if index else "Ended", text(f"{ended:,} "), small(reason)))
    if node.probes or node.waiting_probes:
        lines.append(row("Probes", *probe_parts(node, context, width=width - LABEL_WIDTH)))
    faults = sorted(node.faults.items(), key=lambda item: -item[1])
    for index, (reason, times) in enumerate(faults[:FAULTS_SHOWN]):
        lines.append(row("" if index else "No answer", text(f"{times:,} "), small(reason)))
    lines.extend(((f"▲ {warning}", palette.warn),) for warning in node.warnings)
    if node.reason:
        lines.append(((f"✗ {node.reason}", palette.bad),))
    return lines


def _archive_facts(
    archive: ArchiveView,
    context: RenderContext,
    *,
    row: Callable[..., Line],
    stage: Callable[[str, int | None, int | None], Line],
) -> list[Line]:
    """How far the log is archived, where, and what is wrong with it."""
    palette = context.palette
    age = (
        ((f"  {format_duration(archive.lag_s)} old", palette.muted),)
        if archive.lag_bytes and archive.lag_s is not None
        else ()
    )
    lines: list[Line] = [
        (*stage("Archived", archive.archived_offset, archive.lag_bytes), *age),
        row("Archive", (archive.url, palette.text), (f"  {archive.generation}", palette.muted)),
    ]
    if archive.state != "running":
        is_final = archive.state in {"fenced", "damaged"}
        style = palette.bad if is_final else palette.warn if archive.error else palette.muted
        mark = "✗ " if is_final else "▲ " if archive.error else ""
        lines.append(row("", (f"{mark}{archive.state} {archive.error}".rstrip(), style)))
    if archive.files_deleted_unarchived:
        text = f"✗ {archive.files_deleted_unarchived:,} files deleted before they were archived"
        lines.append(row("", (text, palette.bad)))
    return lines


def probe_parts(node: NodeView, context: RenderContext, *, width: int) -> tuple[StyledText, ...]:
    """All probes of a node in one line of `width`: their number, and the hosts with the most."""
    total = f"{sum(probe.count for probe in node.probes):,}"
    waiting = f"  {node.waiting_probes:,} open" if node.waiting_probes else ""
    named = ""
    for place, probe in enumerate(node.probes, start=1):
        one = f"{' · ' if place > 1 else '  '}{probe.host} {probe.reason} {probe.count:,}"
        left = len(node.probes) - place
        more = f" · {left} more" if left else ""
        if len(total) + len(named) + len(one) + len(more) + len(waiting) > width:
            named += f" · {left + 1} more" if place > 1 else ""
            break
        named += one
    palette = context.palette
    return (total, palette.text), (named, palette.muted), (waiting, palette.muted)


def _disk_facts(log: LogView, context: RenderContext) -> tuple[StyledText, ...]:
    palette, ratio = context.palette, log.disk_ratio
    if ratio is None:
        return ((NOTHING, palette.muted),)
    limit = log.disk_ratio_max
    style = (
        palette.good
        if limit is None or ratio < limit * 0.9
        else palette.warn
        if ratio < limit
        else palette.bad
    )
    cells = list(bar(ratio, DISK_BAR).replace(" ", "░"))
    if limit is not None:
        cells[min(DISK_BAR - 1, int(limit * DISK_BAR))] = "┃"
    limit_text = "" if limit is None else f" of {limit:.0%}"
    free = "" if log.disk_free_bytes is None else f"  {context.size(log.disk_free_bytes)} free"
    return (("".join(cells), style), (f" {ratio:.0%}", palette.text), (limit_text + free, palette.muted))


def _retention(log: LogView, view: ClusterView, context: RenderContext) -> tuple[StyledText, ...]:
    palette = context.palette
    parts: list[StyledText] = []
    if log.earliest_ms is not None and log.earliest_ms > 0:
        oldest_s = max(0, view.time_ms - log.earliest_ms) / 1000
        parts += [("oldest ", palette.muted), (f"{format_duration(oldest_s)} old", palette.text)]
    else:
        parts.append((NOTHING, palette.muted))
    if log.retention_s is not None:
        parts.append((f"  files go after {format_duration(log.retention_s)}", palette.muted))
    return tuple(parts)


def _files(node: NodeView, context: RenderContext) -> Line:
    return context.figure(format_count(node.log.files), is_old=is_old(node))


def _disk(node: NodeView, context: RenderContext) -> Line:
    ratio, limit = node.log.disk_ratio, node.log.disk_ratio_max
    if ratio is None:
        return ((NOTHING, context.palette.muted),)
    if limit is not None and ratio >= limit:
        return ((f"▲ {ratio:.0%}", context.palette.bad),)
    return ((f"{ratio:.0%}", context.palette.muted if is_old(node) else context.palette.text),)


def _waiting(node: NodeView, waiting: int | None, context: RenderContext) -> Line:
    return context.figure(context.size(waiting), is_old=is_old(node) or not waiting)


def _known_or_first(number: float | None) -> float:
    """Sort key: figures that are not known come first."""
    return -1.0 if number is None else number


class LogPane(Pane):
    """A table of logs; facts and growth of the chosen one."""

    HELP = help_of(
        ("Logs", terms_of(log_columns())),
        (
            "Chosen log",
            [
                ("Puts", "messages that were sent to it, by result, where it reports them"),
                ("Archived", "how far its log is archived, where it has an archive, and what keeps it"),
                ("Disk", "used part of the disk; above the mark old files are deleted early"),
                ("Keeps", "age of its oldest message, and the age at which files are deleted"),
                ("Ended", "HA connections that ended since its start, by reason"),
                ("Probes", "connections at its HA port without a request: health checks"),
                ("No answer", "failed requests of this monitor, by reason"),
                ("Graph", "the highest append rate of each span of time"),
            ],
        ),
    )

    def __init__(self) -> None:
        super().__init__(id="log")
        self.table = RowTable[NodeView](log_columns(), key_of=node_key, text_of=node_text, id="log-table")
        self.facts = LineView(id="log-facts")
        self.graph = Graph(id="log-graph", empty="No log to draw.")

    def compose(self) -> ComposeResult:
        """Top to bottom."""
        yield self.table
        with Horizontal(id="log-below"):
            yield self.facts
            yield self.graph

    @property
    def main_table(self) -> RowTable[Any]:
        """The nodes."""
        return self.table

    def show(self, model: PaneModel) -> None:
        """Show `model`."""
        nodes = model.held.nodes
        self.table.show_rows(nodes, model.context)
        self.table.heading = title_of("Logs", self.table, of=len(nodes))
        self._draw_chosen()

    @on(RowTable.Selected, "#log-table")
    def _draw_chosen(self) -> None:
        model = self.model
        if model is None:
            return
        chosen = self.table.chosen
        if chosen is None:
            self.facts.shown = ()
            self.graph.show(None, model.context)
            return
        self.facts.heading = chosen.label
        self.facts.shown = log_facts(chosen, model.held, model.context, width=self.facts.size.width)
        newest = model.view.node(chosen.address) or chosen
        rate = newest.log.append_bytes_per_s
        marks = tuple(
            Mark.of(event)
            for event in model.view.events
            if event.node == chosen.label and event.time_ms > model.context.end_ms - model.context.span_ms
        )
        curve = Curve(
            title="Growth of the log",
            key=newest.address,
            series=newest.log.append_history,
            quantity=Quantity.BYTES_PER_S,
            marks=marks,
            now="" if rate is None else model.context.rate(rate),
        )
        self.graph.show(curve, model.context)
