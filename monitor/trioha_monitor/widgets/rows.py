"""How nodes and connections are written as table rows. Pure: a snapshot and a palette in, texts out."""

from __future__ import annotations

from collections.abc import Sequence

from rich.style import Style
from rich.text import Text

from trioha_monitor.history import Grade
from trioha_monitor.model import ConnectionView, Health, LinkState, NodeView, Snapshot
from trioha_monitor.themes import Palette
from trioha_monitor.units import (
    NOTHING,
    format_age,
    format_bytes,
    format_milliseconds,
    format_offset,
    format_rate,
)
from trioha_monitor.widgets.bars import sparkline
from trioha_monitor.widgets.row_table import Column, Row

NODE_COLUMNS = (
    Column("state", "State", "UP answers, LATE takes long, DOWN does not answer; and for how long"),
    Column("role", "Role", "SYNC_MASTER, ASYNC_MASTER or SLAVE; MASTER where the node does not tell which"),
    Column("name", "Node", "broker name and broker id; its address while they are unknown"),
    Column("address", "Address", "where it was asked", rank=4),
    Column("version", "Version", "version that the node tells", rank=6),
    Column("min", "Min offset", "first byte that its log still holds", align="right", rank=5),
    Column("max", "Max offset", "end of its log, in bytes", align="right"),
    Column("flushed", "Flushed", "how far its log is on disk, in bytes", align="right", rank=3),
    Column("rate", "Rate", "how fast its log grows, mean of 2 s", align="right", rank=1),
    Column(
        "note",
        "Replication",
        "a master's slaves; a slave's master and what it last reported to it; why a node is DOWN",
        flexible_min=28,
    ),
)
CONNECTION_COLUMNS = (
    Column(
        "state",
        "State",
        "RocketMQ's connection state; LOST: the master lists it no longer; STALE: its master is DOWN",
    ),
    Column("slave", "Slave", "the slave's socket address"),
    Column("master", "Master", "the node that it copies", rank=6),
    Column("sync", "Sync", "whether the master counts it as in sync", rank=2),
    Column("max", "Max offset", "end of the master's log, in bytes", align="right", rank=4),
    Column("sent", "Sent", "first byte that was not sent to it yet", align="right", rank=5),
    Column("ack", "Ack", "what it acknowledged, in bytes", align="right", rank=1),
    Column("lag", "Lag", "max offset minus ack", align="right"),
    Column(
        "age",
        "Lag time",
        "age of the oldest byte it did not acknowledge, where the master tells it",
        align="right",
        rank=7,
    ),
    Column("rate", "Rate", "how fast it is sent bytes, mean of 2 s", align="right", rank=1),
    Column("history", "Lag", "the worst lag of each stretch of time, newest on the right", flexible_min=12),
)


def node_rows(snapshot: Snapshot, palette: Palette) -> list[Row]:
    """One row a node."""
    return [_node_row(index, node, palette) for index, node in enumerate(snapshot.nodes)]


def _node_row(index: int, node: NodeView, palette: Palette) -> Row:
    old = node.health is Health.DOWN
    figure = palette.muted if old else palette.text
    return Row(
        index,
        {
            "state": _health(node, palette),
            "role": Text.assemble((node.role or NOTHING, palette.muted if old else palette.accent)),
            "name": Text.assemble((node.label, palette.strong)),
            "address": Text.assemble((node.address, palette.muted)),
            "version": Text.assemble((node.version or NOTHING, palette.muted)),
            "min": Text.assemble((format_offset(node.min_offset), palette.muted)),
            "max": Text.assemble((format_offset(node.max_offset), figure)),
            "flushed": Text.assemble((format_offset(node.flushed_offset), figure)),
            "rate": _rate(node.rate_bytes_per_s, palette),
            "note": _note(node, palette),
        },
    )


def _health(node: NodeView, palette: Palette) -> Text:
    glyph, style = {
        Health.UP: ("●", palette.good),
        Health.LATE: ("◐", palette.warn),
        Health.DOWN: ("✗", palette.bad),
        Health.CONNECTING: ("◌", palette.muted),
    }[node.health]
    if node.health is Health.CONNECTING:
        return Text.assemble((f"{glyph} CONNECTING", style))
    return Text.assemble(
        (f"{glyph} {node.health.value:<4}", style), " ", (format_age(node.for_s), palette.muted)
    )


def _note(node: NodeView, palette: Palette) -> Text:
    if node.health is Health.DOWN:
        return Text.assemble((node.reason, palette.bad))
    if node.health is Health.CONNECTING:
        return Text.assemble(("waiting for its first answer", palette.muted))
    if not node.tells_replication:
        return Text.assemble(("this version does not tell", palette.muted))
    note = Text()
    if node.role != "SLAVE":
        count = node.live_connections
        note.append(f"{count} slave{'' if count == 1 else 's'}", palette.text if count else palette.warn)
        if count and node.in_sync_slaves is not None:
            style = palette.good if node.in_sync_slaves >= count else palette.warn
            note.append(", ", palette.muted)
            note.append(f"{node.in_sync_slaves} in sync", style)
        if node.hidden_connections:
            note.append(f", {node.hidden_connections} not shown", palette.warn)
    elif node.slave is not None:
        slave = node.slave
        transfers = slave.state in {None, "TRANSFER"} and slave.master_address is not None
        note.append(
            "← " if transfers else f"▲ {slave.state or 'READY'} ", palette.good if transfers else palette.warn
        )
        note.append(f"{slave.master_address or 'no master'} ", palette.text)
        if slave.reported_offset is not None:
            note.append("ack ", palette.muted)
            note.append(format_offset(slave.reported_offset), palette.text)
        if slave.reconnects:
            note.append(f", {slave.reconnects} reconnects", palette.muted)
    return note


def connection_rows(
    connections: Sequence[ConnectionView], palette: Palette, *, end_s: float, span_s: float
) -> list[Row]:
    """One row an HA connection; lag is drawn for the `span_s` seconds that end at `end_s`."""
    return [_connection_row(connection, palette, end_s=end_s, span_s=span_s) for connection in connections]


def _connection_row(connection: ConnectionView, palette: Palette, *, end_s: float, span_s: float) -> Row:
    figure = palette.text if connection.link is LinkState.LIVE else palette.muted

    def history(width: int) -> Text:
        return sparkline(connection.history.columns(width, end_s=end_s, span_s=span_s), palette)

    age = NOTHING if connection.lag_ms is None else format_milliseconds(connection.lag_ms)
    return Row(
        connection.serial,
        {
            "state": _link(connection, palette),
            "slave": Text.assemble((connection.address, palette.strong)),
            "master": Text.assemble((connection.node_name, palette.muted)),
            "sync": _sync(connection, palette),
            "max": Text.assemble((format_offset(connection.master_offset), figure)),
            "sent": Text.assemble((format_offset(connection.sent_offset), figure)),
            "ack": Text.assemble((format_offset(connection.ack_offset), figure)),
            "lag": Text.assemble((format_bytes(connection.lag_bytes), _lag_style(connection, palette))),
            "age": Text.assemble((age, figure)),
            "rate": _rate(connection.rate_bytes_per_s, palette),
            "history": history,
        },
    )


def _link(connection: ConnectionView, palette: Palette) -> Text:
    if connection.link is LinkState.LIVE:
        style = palette.good if connection.grade is Grade.GOOD else palette.warn
        return Text.assemble((f"{'●' if connection.grade is Grade.GOOD else '▲'} {connection.state}", style))
    glyph, style = ("✗", palette.bad) if connection.link is LinkState.LOST else ("◐", palette.warn)
    return Text.assemble(
        (f"{glyph} {connection.link.value}", style), " ", (format_age(connection.for_s), palette.muted)
    )


def _sync(connection: ConnectionView, palette: Palette) -> Text:
    if connection.link is not LinkState.LIVE:
        return Text.assemble((NOTHING, palette.muted))
    if connection.in_sync:
        return Text.assemble(("✓ yes", palette.good))
    return Text.assemble(("▲ no", palette.warn))


def _lag_style(connection: ConnectionView, palette: Palette) -> Style:
    if connection.lag_bytes < 0 or connection.link is LinkState.LOST:
        return palette.bad
    if connection.link is LinkState.STALE or connection.lag_bytes == 0:
        return palette.muted
    return palette.of(connection.grade)


def _rate(bytes_per_s: float | None, palette: Palette) -> Text:
    return Text.assemble((format_rate(bytes_per_s), palette.text if bytes_per_s else palette.muted))


def verdict(snapshot: Snapshot, palette: Palette) -> Text:
    """The whole cluster in a few words."""
    down = sum(node.health is Health.DOWN for node in snapshot.nodes)
    late = sum(node.health is Health.LATE for node in snapshot.nodes)
    up = sum(node.health is Health.UP for node in snapshot.nodes)
    lost = sum(connection.link is LinkState.LOST for connection in snapshot.connections)
    live = [connection for connection in snapshot.connections if connection.link is LinkState.LIVE]
    behind = sum(connection.grade is not Grade.GOOD for connection in live)
    parts: list[tuple[str, Style]] = []
    if up:
        parts.append((f"● {up} up", palette.good))
    if late:
        parts.append((f"◐ {late} late", palette.warn))
    if down:
        parts.append((f"✗ {down} down", palette.bad))
    if lost:
        parts.append((f"✗ {lost} lost", palette.bad))
    if behind:
        parts.append((f"▲ {behind} behind", palette.warn))
    if live and not (down or late or lost or behind):
        parts.append(("✓ all in sync", palette.good))
    if not parts:
        parts.append(("◌ connecting", palette.muted))
    return Text("   ").join(Text.assemble(part) for part in parts)
