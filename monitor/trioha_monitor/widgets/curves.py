"""What graphs show of a replica, with its master's limits. Pure."""

from __future__ import annotations

from trioha_monitor.units import format_bytes, format_duration
from trioha_monitor.view import ClusterView, ReplicaView
from trioha_monitor.widgets.graph import Curve, Limit, Mark, Quantity
from trioha_monitor.widgets.render_context import RenderContext, seconds


def lag_curve(replica: ReplicaView, view: ClusterView, context: RenderContext, *, in_seconds: bool) -> Curve:
    """Its lag over time, in bytes or in seconds, with ticks for what happened to it."""
    limits = replica.limits
    marks = replica_marks(replica, view, context)
    why = f" · {replica.why}" if replica.why else ""
    told = "" if limits.are_told else " (default)"
    if in_seconds:
        return Curve(
            title=f"Lag of {replica.label} in seconds{why}",
            key=(replica.key, in_seconds),
            series=replica.lag_s_history,
            quantity=Quantity.SECONDS,
            limits=(
                Limit(limits.slave_timeout_s, f"slaveTimeout {seconds(limits.slave_timeout_s)}{told}"),
                Limit(
                    limits.housekeeping_s,
                    f"housekeeping closes after {format_duration(limits.housekeeping_s)}{told}",
                ),
            ),
            marks=marks,
            now="" if replica.lag_s is None or replica.is_rejoining else seconds(replica.lag_s),
        )
    return Curve(
        title=f"Lag of {replica.label}{why}",
        key=(replica.key, in_seconds),
        series=replica.lag_history,
        quantity=Quantity.BYTES,
        limits=(
            Limit(limits.gap_bytes_max, f"haMaxGapNotInSync {format_bytes(limits.gap_bytes_max)}{told}"),
        ),
        marks=marks,
        now="" if replica.diff_bytes is None or replica.is_rejoining else context.size(replica.diff_bytes),
    )


def replica_marks(replica: ReplicaView, view: ClusterView, context: RenderContext) -> tuple[Mark, ...]:
    """What happened to a replica in the time that is drawn."""
    marks: list[Mark] = []
    for event in reversed(view.events):
        if event.time_ms < context.end_ms - context.span_ms:
            break
        if event.replica and event.replica in {replica.address, replica.label}:
            marks.append(Mark(event.time_ms, event.severity))
    return tuple(marks)
