"""From what a source knows of a replica to its row on the screen: one mapping for live view and replay."""

from __future__ import annotations

from typing import Final

from attrs import field, frozen

from trioha.distribution import Distribution
from trioha.replica_verdict import Facts, Judgement, Limits
from trioha_monitor.series import Series
from trioha_monitor.view import MetadataView, ReplicaView

CAUGHT_UP_S: Final = 1.0
"""A replica whose oldest missing byte is younger has caught up: what it lacks is in flight."""


@frozen(kw_only=True)
class ReplicaNames:
    """What a replica's row is called: see the fields of `ReplicaView`."""

    key: int
    master: str
    master_label: str
    address: str
    node: str | None
    label: str


@frozen(kw_only=True)
class SlaveOffsets:
    """Offsets by the slave's own status or session; None where it is not watched."""

    max_offset: int | None = None
    flushed_offset: int | None = None
    dispatched_offset: int | None = None
    age_s: float | None = None


@frozen(kw_only=True)
class Measurements:
    """What the source measured, beside `Facts`: see the fields of `ReplicaView`."""

    diff_bytes: int | None = None
    sent_bytes_per_s: float | None = None
    ack_bytes_per_s: float | None = None
    transferred_bytes_per_s: int | None = None
    shrinks_per_s: float | None = None
    """By how much `diff_bytes` shrinks in a second; negative while it grows."""
    reconnects: int | None = None
    ack_latency_ms: Distribution[float] | None = None
    frame_bytes: Distribution[float] | None = None
    lag_history: Series = field(factory=Series)
    lag_s_history: Series = field(factory=Series)


def view_replica(
    names: ReplicaNames,
    facts: Facts,
    judgement: Judgement,
    limits: Limits,
    *,
    slave: SlaveOffsets,
    measured: Measurements,
    metadata: MetadataView | None = None,
    age_s: float = 0.0,
    is_current: bool = True,
) -> ReplicaView:
    """The row of a replica; rates and estimates only while it is connected and its figures `is_current`."""
    moves = facts.is_connected and is_current
    eta_s, is_closing = catch_up(measured.diff_bytes, lag_s=facts.lag_s, shrinks_per_s=measured.shrinks_per_s)
    return ReplicaView(
        key=names.key,
        master=names.master,
        master_label=names.master_label,
        address=names.address,
        node=names.node,
        label=names.label,
        verdict=judgement.verdict,
        why=judgement.why,
        state=facts.state,
        is_connected=facts.is_connected,
        for_s=facts.connected_s if facts.is_connected else facts.unconnected_s or 0.0,
        age_s=age_s,
        master_offset=facts.master_offset,
        sent_offset=facts.sent_offset,
        ack_offset=facts.ack_offset,
        slave_max_offset=slave.max_offset,
        flushed_offset=slave.flushed_offset,
        dispatched_offset=slave.dispatched_offset,
        slave_age_s=slave.age_s,
        diff_bytes=measured.diff_bytes,
        lag_s=facts.lag_s,
        in_sync=facts.in_sync,
        sent_bytes_per_s=measured.sent_bytes_per_s if moves else None,
        ack_bytes_per_s=measured.ack_bytes_per_s if moves else None,
        transferred_bytes_per_s=measured.transferred_bytes_per_s,
        eta_s=eta_s if moves else None,
        is_closing=is_closing if moves else None,
        reconnects=measured.reconnects,
        is_rejoining=facts.is_rejoining and moves,
        ack_latency_ms=measured.ack_latency_ms,
        frame_bytes=measured.frame_bytes,
        metadata=metadata,
        lag_history=measured.lag_history,
        lag_s_history=measured.lag_s_history,
        limits=limits,
    )


def has_caught_up(diff_bytes: int, *, lag_s: float | None) -> bool:
    """Whether a replica is in step: then the trend of its distance does not matter."""
    return diff_bytes <= 0 or (lag_s is not None and lag_s < CAUGHT_UP_S)


def catch_up(
    diff_bytes: int | None, *, lag_s: float | None, shrinks_per_s: float | None
) -> tuple[float | None, bool | None]:
    """Seconds until a replica has caught up, and whether its distance shrinks; None for what is not known."""
    if diff_bytes is None:
        return None, None
    if has_caught_up(diff_bytes, lag_s=lag_s):
        return 0.0, True
    if shrinks_per_s is None:
        return None, None
    if shrinks_per_s <= 0:
        return None, False
    return diff_bytes / shrinks_per_s, True


def in_unit(measured: Distribution[int] | None, *, per: float = 1.0) -> Distribution[float] | None:
    """A distribution in a unit that is `per` times as large; None without values."""
    return measured.divided_by(per) if measured is not None and measured.count > 0 else None
