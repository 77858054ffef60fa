"""Replays in this process, as Spark's tasks run them, and events of a master to replay."""

from __future__ import annotations

from pathlib import Path

from tests.sessions.sessions import Event, slave_events, write_session
from trioha.recording.events import CloseReason, HaState, Kind, PutStatus
from trioha_analysis.parts import RANGE_RECORDS, NodePart, aggregate_run, join_connection, join_node
from trioha_analysis.replay_result import ReplayResult, plan_replay
from trioha_sessions.aggregate import ConnectionPart


def replay_here(*sessions: Path | str, range_records: int = RANGE_RECORDS) -> ReplayResult:
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
    return plan.result(nodes, connections)


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
