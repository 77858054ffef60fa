"""The report of a replay: invariants, connections, refused offsets, clocks, and figures of each session."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import tzinfo
from typing import Final

import pandas as pd

from trioha.recording.clocks import Link
from trioha.recording.invariants import Verdict
from trioha.recording.invariants.group import GroupVerdict, groups_of
from trioha.recording.probes import probes_line
from trioha.times import clock_text, zone_text
from trioha_analysis.arrow_tables import row_tables
from trioha_analysis.document import document
from trioha_analysis.replay_result import ReplayResult, SessionReplay, busiest_connections
from trioha_analysis.reports.page import ROWS_MAX, Page, Section, table_html, to_frame
from trioha_analysis.reports.role_timeline import role_timeline
from trioha_analysis.reports.session_figures import session_figures

NOTE: Final = (
    "Lag is the master's max offset minus the slave's ack offset, weighted by time: the lag after an "
    "event counts until the next one. Ack latency is the time from a frame's transfer to the first ack at "
    "or beyond its end."
)
VIOLATIONS_MAX: Final = 20
"""Violations of one invariant of a session that are listed."""
DAMAGE_MAX: Final = 20
"""Damaged places of a session that are listed."""

_VIOLATIONS: Final = {
    ("", "node"): "node",
    ("", "severity"): "severity",
    ("", "invariant"): "invariant",
    ("", "time"): "time",
    ("", "connection"): "conn",
    ("", "violation"): "sentence",
}
_CONNECTIONS: Final = {
    ("", "node"): "node",
    ("", "connection"): "conn",
    ("", "address"): "address",
    ("", "state"): "state",
    ("", "close reason"): "closeReason",
    ("", "bytes"): "bytes",
    ("", "frames"): "frames",
    **{("lag (bytes)", name): f"lagBytes.{name}" for name in ("p50", "p99", "max")},
    **{("ack latency (ms)", name): f"ackLatencyMs.{name}" for name in ("p50", "p99", "max")},
    **{("offset", name): f"{name}Offset" for name in ("sent", "ack", "received", "reported")},
}
_GAPS: Final = {
    ("", "node"): "node",
    ("", "time"): "time",
    ("", "connection"): "conn",
    ("", "address"): "address",
    ("", "reason"): "reason",
    ("", "description"): "sentence",
}
_ROLES: Final = {
    ("", "broker"): "member",
    ("", "time"): "time",
    ("", "role"): "role",
    ("", "epoch"): "epoch",
    ("", "description"): "sentence",
}
_LINKS: Final = {
    ("master", "broker"): "brokerName",
    ("master", "connection"): "conn",
    ("slave", "broker id"): "slaveBrokerId",
    ("slave", "connection"): "slaveConn",
    ("", "frames in both"): "frames",
    ("clock offset (ms)", "slave ahead"): "aheadMs",
    ("clock offset (ms)", "± error"): "uncertainMs",
    **{("one-way delay master to slave (ms)", name): f"thereMs.{name}" for name in ("p50", "p99")},
    **{("slave processing (ms)", name): f"slaveMs.{name}" for name in ("p50", "p99")},
    **{("one-way delay slave to master (ms)", name): f"backMs.{name}" for name in ("p50", "p99")},
}


def session_report(result: ReplayResult, links: Sequence[Link] = (), *, zone: tzinfo | None = None) -> Page:
    """The report of `result`, with times of `zone` (None: the system's).

    `links` as `trioha.recording.clocks.links` finds them.
    """
    frames = {name: to_frame(table) for name, table in row_tables(document(result, links)).items()}
    for name in ("violations", "connections", "gaps", "roles"):
        frame = frames[name]
        frame["node"] = frame["brokerName"] + " " + frame["brokerId"].astype("string")
        if "atMs" in frame:
            frame["time"] = [clock_text(round(at_ms * 1000) * 1000, zone) for at_ms in frame["atMs"]]
    return Page(
        title=f"trioha replay: {', '.join(replay.name for replay in result.sessions)}",
        heading="Replay of recorded sessions",
        sections=[
            Section(notes=[NOTE, f"Times are {_zone_text(result, zone)}."]),
            _invariants(result, frames["violations"]),
            *_roles(result, frames["roles"], zone),
            *_tables("Connections", frames["connections"], _CONNECTIONS, text_columns=5),
            *_tables("Refused offsets", frames["gaps"], _GAPS, text_columns=6),
            *_tables("Clock offsets and one-way delays", frames["links"], _LINKS, text_columns=1),
            *(_session(replay, links, zone) for replay in result.sessions),
        ],
    )


def _zone_text(result: ReplayResult, zone: tzinfo | None) -> str:
    return zone_text(
        (
            replay.session.wall_of(ts_ns)
            for replay in result.sessions
            for ts_ns in (replay.node.first_ts_ns, replay.node.last_ts_ns)
            if ts_ns is not None
        ),
        zone,
    )


def _roles(result: ReplayResult, rows: pd.DataFrame, zone: tzinfo | None) -> Iterator[Section]:
    """Roles of each group of brokers over time, and what happened to them as a table."""
    groups = groups_of(result.lives)
    if not groups:
        return
    ids = rows["brokerControllerId"].astype("string").fillna("without id")
    rows = rows.assign(member=rows["brokerName"] + " " + ids).sort_values("atMs", kind="stable")
    yield Section(
        "Roles",
        figures=[
            role_timeline(lives, zone) for lives in groups if any(life.broker_id >= 0 for life in lives)
        ],
    )
    yield from _tables("Role events", rows, _ROLES, text_columns=5)


def _invariants(result: ReplayResult, violations: pd.DataFrame) -> Section:
    judged: list[Verdict | GroupVerdict] = [
        verdict for replay in result.sessions for verdict in replay.verdicts if verdict.is_judged
    ]
    judged += [verdict for group in result.groups for verdict in group.verdicts if verdict.checked]
    broken = [verdict for verdict in judged if verdict.count]
    if not broken:
        return Section(notes=[f"All invariants hold ({len(judged)} were judged in all)."])
    count = sum(verdict.count for verdict in broken)
    shown = violations.groupby(["session", "brokerName", "brokerId", "invariant"]).head(VIOLATIONS_MAX)
    return Section(
        "Invariants",
        warnings=[f"{len(broken)} of {len(judged)} invariants do not hold: {count:,} violations."],
        table=table_html(shown, _VIOLATIONS, text_columns=6),
    )


def _tables(
    heading: str, frame: pd.DataFrame, columns: dict[tuple[str, str], str], *, text_columns: int
) -> Iterator[Section]:
    """A section with the table, if it has rows."""
    if len(frame):
        hidden = len(frame) - ROWS_MAX
        notes = [f"The first {ROWS_MAX} of {len(frame):,} rows."] if hidden > 0 else []
        yield Section(heading, notes=notes, table=table_html(frame, columns, text_columns=text_columns))


def _session(replay: SessionReplay, links: Sequence[Link], zone: tzinfo | None) -> Section:
    identity, node = replay.session.identity, replay.node
    connections = busiest_connections(replay)
    counts = f"{len(replay.connections)} connections, {len(replay.reconnects)} reconnects"
    notes = [f"Session {replay.name}: {node.events:,} events, {node.puts:,} puts, {counts}."]
    if replay.probes:
        notes.append(f"{probes_line(replay.probes)}.")
    if len(connections) < len(replay.connections):
        notes.append(f"Curves of the {len(connections)} busiest connections.")
    warnings = [f"{node.dropped:,} events were dropped while recording."] if node.dropped else []
    warnings += [
        f"Damage: {damage.path} at byte {damage.position}: {damage.reason}"
        for damage in replay.damage[:DAMAGE_MAX]
    ]
    heading = f"{identity.broker_name} {identity.broker_id}, {identity.role}"
    if replay.life is not None and replay.life.epoch >= 0:
        heading += f": broker {replay.life.broker_id} in epoch {replay.life.epoch}"
    return Section(
        heading,
        notes=notes,
        warnings=warnings,
        figures=session_figures(replay, connections, links, zone),
    )
