"""Replays in this process, as Spark's tasks run them, and events of a master to replay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import tzinfo
from pathlib import Path
from typing import Any

import pyarrow as pa
from attrs import frozen

from tests.sessions.sessions import Event, slave_events, write_session
from trioha.recording.events import CloseReason, HaState, Kind, PutStatus
from trioha_analysis.arrow_tables import (
    LONG_TABLES,
    SCHEMAS,
    SESSION_TABLES,
    group_tables,
    link_table,
    session_tables,
)
from trioha_analysis.causes import ACK, CAUSES
from trioha_analysis.parts import RANGE_RECORDS, NodePart, aggregate_run, join_connection, join_node
from trioha_analysis.replay_plan import ReplayPlan, plan_replay
from trioha_analysis.reports.page import Page
from trioha_analysis.reports.session_report import session_report
from trioha_analysis.session_replay import SessionReplay, empty_node_part, session_replay
from trioha_sessions.aggregate import ConnectionPart
from trioha_sessions.clocks import Link
from trioha_sessions.invariants.group import GroupResult, check_group, groups_of


@frozen(eq=False)
class Replayed:
    """Sessions that were replayed without Spark."""

    sessions: tuple[SessionReplay, ...]
    groups: tuple[GroupResult, ...]


def replay_here(*sessions: Path | str, range_records: int = RANGE_RECORDS) -> Replayed:
    """Replay `sessions` without Spark."""
    plan = plan_replay(sessions, range_records=range_records)
    nodes: dict[int, NodePart] = {}
    connections: dict[tuple[int, int], ConnectionPart] = {}
    for run in plan.runs():
        index = run.session_index
        node, parts = aggregate_run(run)
        nodes[index] = join_node([nodes[index], node]) if index in nodes else node
        for conn, part in parts.items():
            earlier = connections.get((index, conn))
            connections[index, conn] = (
                part if earlier is None else join_connection([earlier, part], plan.grids[index])
            )
    return replayed(plan, nodes, connections)


def replayed(
    plan: ReplayPlan, nodes: Mapping[int, NodePart], connections: Mapping[tuple[int, int], ConnectionPart]
) -> Replayed:
    """The result of a plan from joined parts: of nodes by session, of connections by session and number."""
    replays = tuple(
        session_replay(
            session,
            plan.segments[index].damage,
            plan.grids[index],
            nodes.get(index) or empty_node_part(session),
            {conn: part for (its, conn), part in sorted(connections.items(), key=_key) if its == index},
            seen=plan.seen[index],
        )
        for index, session in enumerate(plan.sessions)
    )
    lives = [one.life for one in replays if one.life is not None]
    return Replayed(replays, tuple(map(check_group, groups_of(lives))))


def _key(item: tuple[tuple[int, int], ConnectionPart]) -> tuple[int, int]:
    return item[0]


def arrow_tables(result: Replayed, links: Sequence[Link] = ()) -> dict[str, pa.Table]:
    """All tables of a replay, as Spark has them."""
    every = [*map(session_tables, result.sessions), *map(group_tables, result.groups)]
    found = {
        name: pa.concat_tables([SCHEMAS[name].empty_table(), *(one[name] for one in every if name in one)])
        for name in SESSION_TABLES
    }
    mostly = {(link.master.path.resolve().name, link.master_conn): link.ack_mostly for link in links}
    causes = found["causes"].to_pylist()
    for row in causes:
        if row["cause"] == CAUSES[ACK]:
            row["ackMostly"] = mostly.get((row["session"], row["conn"]))
    found["causes"] = pa.Table.from_pylist(causes, SCHEMAS["causes"])
    found["links"] = link_table(links)
    return {name: found[name] for name in SCHEMAS}


def short_tables(result: Replayed, links: Sequence[Link] = ()) -> dict[str, pa.Table]:
    """Those that are collected."""
    return {name: one for name, one in arrow_tables(result, links).items() if name not in LONG_TABLES}


def document(result: Replayed, links: Sequence[Link] = ()) -> dict[str, list[dict[str, Any]]]:
    """Their rows, as `trioha replay --json` prints them."""
    return rows(short_tables(result, links))


def rows(tables: Mapping[str, pa.Table]) -> dict[str, list[dict[str, Any]]]:
    """The rows of tables by their names."""
    return {name: table.to_pylist() for name, table in tables.items()}


def report_of(result: Replayed, links: Sequence[Link] = (), *, zone: tzinfo | None = None) -> Page:
    """The report of a replay."""
    return session_report(result.sessions, short_tables(result, links), zone=zone)


MS = 1_000_000


def master_events() -> list[Event]:
    """Two connections of one host, the second in the place of the first, with times that can be checked."""
    first = [
        Event(0, Kind.STATE, conn=1, offset=-1, aux=1000, flags=HaState.HANDSHAKE),
        Event(1 * MS, Kind.REQUESTED, conn=1, offset=1000, aux=1000),
        Event(1 * MS, Kind.STATE, conn=1, offset=-1, aux=1000, flags=HaState.TRANSFER),
        Event(1 * MS, Kind.ACK, conn=1, offset=1000, aux=1000),
        Event(2 * MS, Kind.PUT, offset=1500, size=500),
        Event(2 * MS, Kind.WAIT_BEGIN, offset=1500, aux=1, size=2),
        Event(2 * MS, Kind.TRANSFER, conn=1, offset=1000, aux=1500, size=500),
        Event(4 * MS, Kind.ACK, conn=1, offset=1500, aux=1500),
        Event(4 * MS, Kind.WAIT_END, offset=1500, aux=1, size=2000, flags=PutStatus.PUT_OK),
        Event(10 * MS, Kind.PUT, offset=2000, size=500),
        Event(10 * MS, Kind.WAIT_BEGIN, offset=2000, aux=2, size=2),
        Event(10 * MS, Kind.TRANSFER, conn=1, offset=1500, aux=2000, size=500),
        Event(20 * MS, Kind.CLOSED, conn=1, offset=1500, aux=2000, flags=CloseReason.EOF),
        Event(20 * MS, Kind.STATE, conn=1, offset=1500, aux=2000, flags=HaState.SHUTDOWN),
        Event(30 * MS, Kind.WAIT_END, offset=2000, aux=2, size=20000, flags=PutStatus.FLUSH_SLAVE_TIMEOUT),
    ]
    second = [
        Event(40 * MS, Kind.STATE, conn=2, offset=-1, aux=2000, flags=HaState.HANDSHAKE),
        Event(41 * MS, Kind.REQUESTED, conn=2, offset=1500, aux=2000),
        Event(41 * MS, Kind.STATE, conn=2, offset=-1, aux=2000, flags=HaState.TRANSFER),
        Event(41 * MS, Kind.ACK, conn=2, offset=1500, aux=2000),
        Event(41 * MS, Kind.TRANSFER, conn=2, offset=1500, aux=2000, size=500),
        Event(44 * MS, Kind.ACK, conn=2, offset=2000, aux=2000),
        Event(45 * MS, Kind.DROPPED, aux=3),
    ]
    return first + second


def write_recordings(folder: Path) -> Path:
    """A folder with the sessions of a master and of its slave."""
    write_session(
        folder / "20260101T000000.000Z-broker-a-0",
        master_events(),
        addresses={1: "10.0.0.2:41000", 2: "10.0.0.2:41001"},
    )
    write_session(
        folder / "20260101T000001.000Z-broker-a-1",
        slave_events(),
        role="SLAVE",
        broker_id=1,
        addresses={1: "10.0.0.1:10912", 2: "10.0.0.1:10912"},
    )
    return folder


THERE_NS, BACK_NS, SLAVE_NS = 2 * MS, 1 * MS, 5 * MS
FRAME_BYTES = 100


def write_reconnecting_slaves(folder: Path, *, slaves: int, turns: int, frames: int) -> Path:
    """A master whose slaves connect anew in each turn, and the sessions of the slaves."""
    of_master: list[Event] = []
    of_slave: dict[int, list[Event]] = {slave: [] for slave in range(slaves)}
    for turn in range(turns):
        for slave in range(slaves):
            conn = 1 + turn * slaves + slave
            begin_ns = turn * 1_000 * MS + slave * MS // 10
            start = turn * frames * FRAME_BYTES
            of_master += [
                Event(begin_ns, Kind.STATE, conn=conn, offset=-1, aux=start, flags=HaState.HANDSHAKE),
                Event(begin_ns, Kind.REQUESTED, conn=conn, offset=start, aux=start),
                Event(begin_ns, Kind.ACK, conn=conn, offset=start, aux=start),
            ]
            for frame in range(frames):
                at_ns = begin_ns + (1 + frame) * 20 * MS
                offset, end = start + frame * FRAME_BYTES, start + (frame + 1) * FRAME_BYTES
                sent = Event(at_ns, Kind.TRANSFER, conn=conn, offset=offset, aux=end, size=FRAME_BYTES)
                acked_ns = at_ns + THERE_NS + SLAVE_NS + BACK_NS
                of_master += [sent, Event(acked_ns, Kind.ACK, conn=conn, offset=end, aux=end)]
                received_ns = at_ns + THERE_NS
                of_slave[slave] += [
                    Event(
                        received_ns, Kind.RECEIVED, conn=turn + 1, offset=offset, aux=end, size=FRAME_BYTES
                    ),
                    Event(received_ns + SLAVE_NS, Kind.REPORTED, conn=turn + 1, offset=end, aux=end),
                ]
            closed_ns = begin_ns + 900 * MS
            of_master.append(Event(closed_ns, Kind.CLOSED, conn=conn, offset=0, aux=0, flags=CloseReason.EOF))
    write_session(folder / "0-master", sorted(of_master, key=lambda event: event.ts_ns), segment_records=40)
    for slave, events in of_slave.items():
        write_session(
            folder / f"{slave + 1}-slave", events, role="SLAVE", broker_id=slave + 1, segment_records=30
        )
    return folder
