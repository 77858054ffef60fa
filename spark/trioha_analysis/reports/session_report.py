"""The report of a replay: what happened in words, charts of each session, and tables of the details."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import tzinfo
from typing import Final

import pandas as pd
import pyarrow as pa

from trioha.recording.probes import probes_line
from trioha.severity import Severity
from trioha.times import clock_text, zone_text
from trioha_analysis.reports.page import ROWS_MAX, Page, Section, table_html, to_frame
from trioha_analysis.reports.role_timeline import role_timeline
from trioha_analysis.reports.session_figures import session_charts
from trioha_analysis.reports.session_summary import (
    BrokerIds,
    Point,
    failovers,
    lives_of,
    replica_names,
    restarts,
    session_points,
    slave_points,
)
from trioha_analysis.session_replay import SessionReplay
from trioha_sessions.invariants.group import groups_of

LAG_NOTE: Final = (
    "Lag is the end of the master's log minus the slave's ack offset, weighted by time: the lag after an "
    "event counts until the next one. Ack latency is the time from a frame's transfer to the first ack at "
    "or beyond its end."
)
VIOLATIONS_MAX: Final = 20
"""Violations of one invariant of a session that the table lists."""
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
    ("", "conn"): "conn",
    ("", "address"): "address",
    ("", "state"): "state",
    ("", "close reason"): "closeReason",
    ("", "bytes"): "bytes",
    ("", "frames"): "frames",
    **{("lag (bytes)", name): f"lagBytes.{name}" for name in ("p50", "p99", "max")},
    **{("ack latency (ms)", name): f"ackLatencyMs.{name}" for name in ("p50", "p99", "max")},
    ("offset", "sent or received"): "movedOffset",
    ("offset", "ack or reported"): "confirmedOffset",
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
_CAUSES: Final = {
    ("", "node"): "node",
    ("", "status"): "status",
    ("", "waited for"): "cause",
    ("", "of connection"): "address",
    ("", "mostly"): "ackMostly",
    ("", "puts"): "count",
    **{("waited (ms)", name): f"waitedMs.{name}" for name in ("p50", "p99", "max")},
}
_LINKS: Final = {
    ("master", "broker"): "brokerName",
    ("master", "conn"): "conn",
    ("slave", "broker id"): "slaveBrokerId",
    ("slave", "conn"): "slaveConn",
    ("", "frames in both"): "frames",
    ("clock offset (ms)", "slave ahead"): "aheadMs",
    ("clock offset (ms)", "± error"): "uncertainMs",
    **{("one-way delay master to slave (ms)", name): f"thereMs.{name}" for name in ("p50", "p99")},
    **{("slave processing (ms)", name): f"slaveMs.{name}" for name in ("p50", "p99")},
    **{("one-way delay slave to master (ms)", name): f"backMs.{name}" for name in ("p50", "p99")},
}

_WITH_NODES: Final = ("violations", "connections", "gaps", "roles", "causes")
"""Tables with a column `node` for readers, and one of the time."""


def session_report(
    replays: Sequence[SessionReplay], tables: Mapping[str, pa.Table], *, zone: tzinfo | None = None
) -> Page:
    """The report of a replay, with times of `zone` (None: the system's).

    `replays` are the sessions (`SessionReplay.for_report` is enough), `tables` those of
    `trioha_analysis.arrow_tables` but the long ones.
    """
    frames = {name: to_frame(tables[name]) for name in (*_WITH_NODES, "links", "invariants")}
    links = tables["links"].select(["session", "conn", "slaveBrokerId"]).to_pylist()
    broker_ids = {(link["session"], link["conn"]): link["slaveBrokerId"] for link in links}
    for name in _WITH_NODES:
        frame = frames[name]
        frame["node"] = frame["brokerName"] + " " + frame["brokerId"].astype("string")
        if "atMs" in frame:
            frame["time"] = [clock_text(round(at_ms * 1000) * 1000, zone) for at_ms in frame["atMs"]]
    return Page(
        title=f"trioha replay: {', '.join(replay.name for replay in replays)}",
        heading="Replay of recorded sessions",
        sections=[
            *_summary(replays, broker_ids, frames, zone),
            *_roles(replays, zone),
            *(_session(replay, broker_ids, zone) for replay in _drawn(replays)),
            *_tables("Violations", _first_violations(frames["violations"]), _VIOLATIONS, text_columns=6),
            *_tables("Role events", _role_rows(frames["roles"]), _ROLES, text_columns=5),
            *_tables("What puts waited for", frames["causes"], _CAUSES, text_columns=5),
            *_tables(
                "Connections",
                _connection_rows(frames["connections"]),
                _CONNECTIONS,
                text_columns=5,
                note=LAG_NOTE,
            ),
            *_tables("Refused offsets", frames["gaps"], _GAPS, text_columns=6),
            *_tables("Clock offsets and one-way delays", frames["links"], _LINKS, text_columns=1),
            _recordings(replays),
        ],
    )


def _summary(
    replays: Sequence[SessionReplay],
    broker_ids: BrokerIds,
    frames: Mapping[str, pd.DataFrame],
    zone: tzinfo | None,
) -> Iterator[Section]:
    """What happened, of each node, and whether the invariants hold."""
    drawn = _drawn(replays)
    invariants = _invariants(frames["invariants"], frames["violations"])
    common = [*failovers(replays, zone), *restarts(replays, zone), *invariants]
    notes = [f"Times are {_zone_text(replays, zone)}."]
    yield Section("What happened", notes=notes, points=common if len(drawn) != 1 else ())
    for replay in drawn:
        if replay.session.is_slave:
            points = slave_points(replay, zone)
        else:
            points = session_points(replay, replica_names(replay, broker_ids), zone)
        yield Section(subheading=_node_name(replay), points=[*points, *(common if len(drawn) == 1 else ())])


def _drawn(replays: Sequence[SessionReplay]) -> list[SessionReplay]:
    """The sessions with charts: those of masters, and of slaves whose master has none."""
    masters = {_group_of(replay) for replay in replays if not replay.session.is_slave}
    return [replay for replay in replays if not replay.session.is_slave or _group_of(replay) not in masters]


def _group_of(replay: SessionReplay) -> tuple[str, str]:
    return replay.session.identity.cluster_name, replay.session.identity.broker_name


def _node_name(replay: SessionReplay) -> str:
    identity, life = replay.session.identity, replay.life
    name = f"{identity.broker_name} {identity.broker_id}, {identity.role}"
    if life is not None and life.epoch >= 0:
        name += f", broker {life.broker_id} in epoch {life.epoch}"
    return name


def _zone_text(replays: Sequence[SessionReplay], zone: tzinfo | None) -> str:
    return zone_text(
        (
            replay.session.wall_of(ts_ns)
            for replay in replays
            for ts_ns in (replay.node.first_ts_ns, replay.node.last_ts_ns)
            if ts_ns is not None
        ),
        zone,
    )


def _roles(replays: Sequence[SessionReplay], zone: tzinfo | None) -> Iterator[Section]:
    """Roles of each group of brokers over time."""
    groups = [lives for lives in groups_of(lives_of(replays)) if any(life.broker_id >= 0 for life in lives)]
    if groups:
        yield Section("Roles", figures=[role_timeline(lives, zone) for lives in groups])


def _connection_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """A master sends and gets acks, a slave receives and reports."""
    return rows.assign(
        movedOffset=rows["sentOffset"].fillna(rows["receivedOffset"]),
        confirmedOffset=rows["ackOffset"].fillna(rows["reportedOffset"]),
    )


def _role_rows(rows: pd.DataFrame) -> pd.DataFrame:
    ids = rows["brokerControllerId"].astype("string").fillna("without id")
    return rows.assign(member=rows["brokerName"] + " " + ids).sort_values("atMs", kind="stable")


def _invariants(invariants: pd.DataFrame, violations: pd.DataFrame) -> Iterator[Point]:
    """Whether all hold; of those that do not the first violation."""
    checked = invariants[invariants["checked"].notna()]
    count = int(checked["violations"].sum())
    if not count:
        yield Point(Severity.GOOD, f"All {len(checked)} invariants that were checked hold.")
        return
    broken = int((checked["violations"] > 0).sum())
    text = f"{broken} of {len(checked)} invariants do not hold: {count:,} violations."
    yield Point(Severity.CRITICAL, text)
    for row in violations.drop_duplicates("invariant").to_dict("records"):
        yield Point(Severity.CRITICAL, f"{row['invariant']}, at {row['time']}: {row['sentence']}.")


def _first_violations(violations: pd.DataFrame) -> pd.DataFrame:
    """Of each invariant of a session, or of a group, which has no session."""
    keys = ["session", "brokerName", "brokerId", "invariant"]
    return violations.groupby(keys, dropna=False).head(VIOLATIONS_MAX)


def _tables(
    heading: str,
    frame: pd.DataFrame,
    columns: dict[tuple[str, str], str],
    *,
    text_columns: int,
    note: str = "",
) -> Iterator[Section]:
    """A section with the table, if it has rows."""
    if len(frame):
        hidden = len(frame) - ROWS_MAX
        notes = [note] if note else []
        if hidden > 0:
            notes.append(f"The first {ROWS_MAX} of {len(frame):,} rows.")
        yield Section(heading, notes=notes, table=table_html(frame, columns, text_columns=text_columns))


def _session(replay: SessionReplay, broker_ids: BrokerIds, zone: tzinfo | None) -> Section:
    charts = session_charts(replay, replica_names(replay, broker_ids), zone)
    return Section(_node_name(replay), figures=[chart.html() for chart in charts])


def _recordings(replays: Sequence[SessionReplay]) -> Section:
    """The sessions that were read, and what is missing of them."""
    notes, points = [], []
    for replay in replays:
        node = replay.node
        counts = f"connections: {len(replay.connections)}, reconnects: {len(replay.reconnects)}"
        notes.append(f"{_node_name(replay)}, {replay.name}: {node.events:,} events, {counts}.")
        if replay.probes:
            notes.append(f"{probes_line(replay.probes)}.")
        if node.dropped:
            points.append(Point(Severity.WARNING, f"{node.dropped:,} events were dropped while recording."))
        points += [
            Point(Severity.CRITICAL, f"Damage: {damage.path} at byte {damage.position}: {damage.reason}")
            for damage in replay.damage[:DAMAGE_MAX]
        ]
    return Section("Recordings", notes=notes, points=points)
