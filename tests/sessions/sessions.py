"""Sessions made by hand, and a model of a master whose events are all possible."""

from __future__ import annotations

import json
import random
from collections.abc import Container, Iterable, Mapping
from pathlib import Path

import numpy as np
from attrs import field, frozen

from trioha.recording.events import (
    NO_CONNECTION,
    RECORD,
    CloseReason,
    Direction,
    HaState,
    Kind,
    LinkEvent,
    PutStatus,
)
from trioha.recording.layout import SessionIdentity, encode_session
from trioha.recording.reader import open_session
from trioha.recording.writer import Block, SessionWriter
from trioha_sessions.records import record_dtype

WALL_NS = 1_790_000_000_000_000_000


@frozen
class Event:
    ts_ns: int
    kind: int
    conn: int = NO_CONNECTION
    offset: int = 0
    aux: int = 0
    size: int = 0
    flags: int = 0


def pack(events: Iterable[Event], *, node: int = 0) -> bytearray:
    return bytearray().join(
        RECORD.pack(e.ts_ns, 0, e.kind, e.flags, node, e.conn, e.offset, e.aux, e.size, 0) for e in events
    )


def write_session(
    path: Path,
    events: Iterable[Event],
    *,
    role: str = "SYNC_MASTER",
    broker_id: int = 0,
    segment_records: int = 2_000_000,
    addresses: dict[int, str] | None = None,
    served: Container[int] = (),
    certificates: dict[int, str] | None = None,
    settings: Mapping[str, object] | None = None,
    other_facts: Iterable[tuple[int, Mapping[str, object]]] = (),
    base_ts_ns: int = 0,
    wall_ns: int = WALL_NS,
) -> Path:
    """Write a whole session as a node does; in the connections `served` it was the master.

    `other_facts`: each with the index of the event after it. The session starts at `base_ts_ns`, and its wall
    clock shows `wall_ns` at 0.
    """
    identity = SessionIdentity("cluster", "broker-a", broker_id, role, settings=dict(settings or {}))
    document = encode_session(identity, monotonic_ns=0, wall_ns=wall_ns, program_version="0")
    writer = SessionWriter(path, document=document, base_ts_ns=base_ts_ns, segment_records=segment_records)
    records = pack(events, node=broker_id)
    facts = []
    for conn, address in (addresses or {}).items():
        fact: dict[str, object] = {"type": "connection", "conn": conn, "address": address}
        if conn in served:
            fact["role"] = "master"
        if certificates and conn in certificates:
            fact["certificate"] = certificates[conn]
        facts.append((0, json.dumps(fact)))
    facts += [(index, json.dumps(fact)) for index, fact in other_facts]
    writer.write(Block(records, len(records), facts))
    writer.close()
    return path


def as_array(path: Path, events: Iterable[Event]) -> np.ndarray:
    """Events as a reader of the session at `path` gives them, seq and check apart."""
    return np.frombuffer(bytes(pack(events)), record_dtype(open_session(path)))


@frozen
class Frame:
    ts_ns: int
    end_offset: int


class MasterModel:
    """A master and slaves with random events, and their true state after each step."""

    @frozen
    class Slave:
        conn: int
        sent: list[int]
        ack: list[int]
        in_flight: list[Frame]
        latencies_ns: list[int] = field(factory=list)

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.ts_ns = 1000
        self.max_offset = self.random.randrange(0, 5000)
        self.events: list[Event] = []
        self.slaves: list[MasterModel.Slave] = []
        self.closed: list[MasterModel.Slave] = []
        self.conns = 0
        self.request_id = 0

    def emit(self, kind: int, **fields: int) -> None:
        self.ts_ns += self.random.choice((0, 1, 7, 100, 50_000, 3_000_000))
        self.events.append(Event(self.ts_ns, kind, **fields))

    def run(self, steps: int) -> list[Event]:
        for _ in range(steps):
            self.step()
        return self.events

    def step(self) -> None:
        action = self.random.choice(
            ("put", "put", "send", "send", "ack", "ack", "beat", "open", "close", "wait")
        )
        if action == "put":
            size = self.random.randrange(1, 3000)
            self.max_offset += size
            self.emit(Kind.PUT, offset=self.max_offset, size=size)
        elif action == "wait":
            self.request_id += 1
            self.emit(Kind.WAIT_BEGIN, offset=self.max_offset, aux=self.request_id, size=2)
            if self.random.random() < 0.8:
                status = self.random.choice((PutStatus.PUT_OK, PutStatus.FLUSH_SLAVE_TIMEOUT))
                waited_us = self.random.randrange(1_000_000)
                self.emit(
                    Kind.WAIT_END,
                    offset=self.max_offset,
                    aux=self.request_id,
                    size=waited_us,
                    flags=status,
                )
        elif action == "open":
            if len(self.slaves) < 3:
                self.open()
        elif self.slaves:
            slave = self.random.choice(self.slaves)
            {"send": self.send, "ack": self.ack, "beat": self.beat, "close": self.close}[action](slave)

    def open(self) -> None:
        self.conns += 1
        conn, top = self.conns, self.max_offset
        self.emit(Kind.STATE, conn=conn, offset=-1, aux=top, flags=HaState.HANDSHAKE)
        start = self.random.randrange(top + 1)
        self.emit(Kind.REQUESTED, conn=conn, offset=start, aux=top)
        self.emit(Kind.STATE, conn=conn, offset=-1, aux=top, flags=HaState.TRANSFER)
        self.emit(Kind.ACK, conn=conn, offset=start, aux=top)
        self.slaves.append(self.Slave(conn, [start], [start], []))

    def send(self, slave: MasterModel.Slave) -> None:
        size = min(self.random.randrange(1, 2000), self.max_offset - slave.sent[0])
        if size:
            self.emit(Kind.TRANSFER, conn=slave.conn, offset=slave.sent[0], aux=self.max_offset, size=size)
            slave.sent[0] += size
            slave.in_flight.append(Frame(self.ts_ns, slave.sent[0]))

    def ack(self, slave: MasterModel.Slave) -> None:
        if slave.in_flight:
            count = self.random.randrange(1, len(slave.in_flight) + 1)
            slave.ack[0] = slave.in_flight[count - 1].end_offset
            self.emit(Kind.ACK, conn=slave.conn, offset=slave.ack[0], aux=self.max_offset)
            slave.latencies_ns.extend(self.ts_ns - frame.ts_ns for frame in slave.in_flight[:count])
            del slave.in_flight[:count]

    def beat(self, slave: MasterModel.Slave) -> None:
        if self.random.random() < 0.5:
            self.emit(
                Kind.HEARTBEAT,
                conn=slave.conn,
                offset=slave.sent[0],
                aux=self.max_offset,
                flags=Direction.SENT,
            )
        else:
            self.emit(
                Kind.HEARTBEAT,
                conn=slave.conn,
                offset=slave.ack[0],
                aux=self.max_offset,
                flags=Direction.RECEIVED,
            )

    def close(self, slave: MasterModel.Slave) -> None:
        if self.random.random() < 0.2:
            self.emit(
                Kind.CLOSED, conn=slave.conn, offset=slave.ack[0], aux=self.max_offset, flags=CloseReason.EOF
            )
            self.emit(
                Kind.STATE,
                conn=slave.conn,
                offset=slave.ack[0],
                aux=self.max_offset,
                flags=HaState.SHUTDOWN,
            )
            self.slaves.remove(slave)
            self.closed.append(slave)


def slave_events() -> list[Event]:
    """A slave that receives a frame, loses its master, and continues on a second connection."""
    own = 1000
    return [
        Event(10, Kind.LINK, flags=LinkEvent.CONNECTING),
        Event(20, Kind.LINK, conn=1, flags=LinkEvent.CONNECTED),
        Event(30, Kind.STATE, conn=1, offset=own, aux=own, flags=HaState.TRANSFER),
        Event(40, Kind.REPORTED, conn=1, offset=own, aux=own),
        Event(50, Kind.RECEIVED, conn=1, offset=own, aux=own + 300, size=300),
        Event(60, Kind.REPORTED, conn=1, offset=own + 300, aux=own + 300),
        Event(70, Kind.HEARTBEAT, conn=1, offset=own + 300, aux=own + 300, flags=Direction.RECEIVED),
        Event(80, Kind.HEARTBEAT, conn=1, offset=own + 300, aux=own + 300, flags=Direction.SENT),
        Event(90, Kind.CLOSED, conn=1, offset=own + 300, aux=own + 300, flags=CloseReason.EOF),
        Event(91, Kind.STATE, conn=1, offset=own + 300, aux=own + 300, flags=HaState.READY),
        Event(92, Kind.LINK, conn=1, size=100, flags=LinkEvent.BACK_OFF),
        Event(100, Kind.LINK, flags=LinkEvent.CONNECTING),
        Event(110, Kind.LINK, conn=2, flags=LinkEvent.CONNECTED),
        Event(120, Kind.STATE, conn=2, offset=own + 300, aux=own + 300, flags=HaState.TRANSFER),
        Event(130, Kind.REPORTED, conn=2, offset=own + 300, aux=own + 300),
        Event(140, Kind.RECEIVED, conn=2, offset=own + 300, aux=own + 500, size=200),
    ]
