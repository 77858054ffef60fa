"""A slave's own side of its connection, from its session."""

from __future__ import annotations

from typing import Final

from trioha.recording.events import CloseReason, HaState
from trioha.recording.snapshot import connection_state
from trioha_monitor.replay.moments import RATE_NS, Moment, Moments, age_s, known
from trioha_monitor.replay.replay_timeline import NS_PER_S
from trioha_monitor.replay.timeline_events import GAP_REASONS, name_of
from trioha_monitor.texts import REASON_MAX, clean
from trioha_monitor.view import SlaveView

COMPLAINTS: Final = {
    CloseReason.DIVERGED: "DIVERGED",
    CloseReason.OFFSET_MISMATCH: "",
    CloseReason.AHEAD: "AHEAD",
    CloseReason.REQUEST_ABOVE_MAX: "AHEAD",
    CloseReason.GAP: "GAP",
    CloseReason.REQUEST_BELOW_MIN: "GAP",
}
"""What a slave complains of after its connection ended so."""


def side_of(moments: Moments, moment: Moment) -> SlaveView:
    """What the slave says of itself."""
    run, at_ns = moment.run, moment.at_ns
    said = next(iter(moment.connections.values()), None)
    begun = [conn for conn, seq in run.begin_seqs.items() if seq < moment.position]
    rate = None
    before = moments.earlier(moment, RATE_NS)
    if before is not None and moment.own_max is not None and before.own_max is not None:
        rate = max(0, moment.own_max - before.own_max) / (RATE_NS / NS_PER_S)
    return SlaveView(
        master_address=run.addresses.get(begun[-1]) if begun else None,
        state=name_of(HaState, HaState.READY if said is None or said.state < 0 else said.state),
        reported_offset=None if said is None else known(said.reported_offset),
        received_bytes_per_s=rate,
        read_age_s=None if said is None or run.is_sampled else age_s(run, said.last_received_ts_ns, at_ns),
        reconnects=max(0, len(begun) - 1),
        is_observer=None,
        complaint=complaint_of(moments, moment),
    )


def complaint_of(moments: Moments, moment: Moment) -> str:
    """What keeps a slave that is not connected from following: how its last connection ended."""
    noted = moment.run.sample_at(moment.at_ns).get("complaint")
    if noted:
        return clean(str(noted), length_max=REASON_MAX)
    if moment.connections:
        return ""
    ended = moments.ended(moment)
    if not ended:
        return ""
    said = connection_state(ended[-1].records, is_slave=True)
    if said.close_reason not in GAP_REASONS:
        return ""
    name = COMPLAINTS[CloseReason(said.close_reason)]
    return f"{name}: its last connection ended with {name_of(CloseReason, said.close_reason)}"
