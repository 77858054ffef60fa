"""What has happened to replicas, as the timeline tells it."""

from __future__ import annotations

from trioha_monitor.node import Node
from trioha_monitor.replicas import Replica
from trioha_monitor.series import Severity
from trioha_monitor.timeline import Timeline
from trioha_monitor.units import format_bytes
from trioha_monitor.verdict import Judgement
from trioha_monitor.view import EventKind, Verdict

SYNC_AFTER_MS = 1000
"""In-sync changes count when they have lasted for so long."""


class ReplicaEvents:
    """Notes on the timeline what has become of a row that `node` told of; `replica` is its label."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline

    def connected(self, row: Replica, what: str, *, node: Node, replica: str, at_ms: int) -> None:
        """Its master lists it, for the first time or again: `what` says which."""
        text = what if row.address == replica else f"{what} from {row.address}"
        self._add(EventKind.CONNECT, text, Severity.GOOD, node=node, replica=replica, at_ms=at_ms)

    def lost(self, row: Replica, reason: str, *, node: Node, replica: str, at_ms: int) -> None:
        """Its master lists it no longer; `reason` is what the master says of it, with its brackets."""
        lacks = row.diff_bytes
        text = (
            f"connection ended{reason}"
            + ("" if row.ack_offset is None else f"; ack {row.ack_offset}")
            + (f", {format_bytes(lacks)} behind" if lacks else "")
        )
        self._add(EventKind.LOST, text, Severity.BAD, node=node, replica=replica, at_ms=at_ms)

    def sync(self, row: Replica, *, node: Node, replica: str, at_ms: int) -> None:
        """Whether its master counts it, if that is otherwise than before and has lasted.

        An observer does not count, as it is meant to: that is no event.
        """
        if row.shown.verdict is Verdict.OBSERVER:
            row.sync_shown = row.in_sync
        if row.in_sync == row.sync_shown:
            row.sync_differs_ms = None
            return
        if row.sync_shown is None:
            row.sync_shown = row.in_sync
            return
        if row.sync_differs_ms is None:
            row.sync_differs_ms = at_ms
        if at_ms - row.sync_differs_ms < SYNC_AFTER_MS:
            return
        row.sync_shown, row.sync_differs_ms = row.in_sync, None
        text = "in sync again"
        if not row.in_sync:
            text = "not in sync"
            if row.diff_bytes:
                text += f": {format_bytes(row.diff_bytes)} behind"
        severity = Severity.GOOD if row.in_sync else Severity.WARNING
        self._add(EventKind.SYNC, text, severity, node=node, replica=replica, at_ms=at_ms)

    def verdict(
        self, row: Replica, before: Judgement | None, *, node: Node, replica: str, at_ms: int
    ) -> None:
        """Another verdict than `before`, unless another kind of event says it (lost, in-sync)."""
        now = row.shown
        was = Verdict.OK if before is None else before.verdict
        if now.verdict is was:
            return
        broken = {Verdict.GAP, Verdict.DIVERGED}
        kind = EventKind.VERDICT
        if now.verdict in broken or was in broken:
            kind = EventKind.GAP
        elif (
            now.verdict is Verdict.NOT_IN_SYNC
            or (now.verdict is Verdict.SILENT and not row.is_connected)
            or (now.verdict is Verdict.OK and was not in {Verdict.FALL_BEHIND, Verdict.STALLED})
        ):
            return
        text = f"{now.verdict.value}: {now.why}" if now.why else now.verdict.value
        if now.verdict is Verdict.OK:
            text = f"{was.value} is over"
        self._add(kind, text, now.verdict.severity, node=node, replica=replica, at_ms=at_ms)

    def _add(
        self, kind: EventKind, text: str, severity: Severity, *, node: Node, replica: str, at_ms: int
    ) -> None:
        self._timeline.add(
            kind,
            text,
            at_ms=at_ms,
            node=node.label,
            replica=replica,
            severity=severity,
            source=node.address,
        )
