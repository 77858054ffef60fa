"""A large recorded session, made by NumPy in a second: a master with slaves, an hour of puts."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from trioha.recording.events import RECORD_BYTES, CloseReason, HaState, Kind, PutStatus
from trioha.recording.keyframes import Mirror
from trioha.recording.layout import (
    EVENTS_FOLDER,
    FACTS_FILE,
    FIELDS,
    SESSION_FILE,
    SessionIdentity,
    encode_header,
    encode_session,
    segment_name,
)
from trioha.recording.writer import check_records

DTYPE = np.dtype(
    {
        "names": [name for name, _, _ in FIELDS],
        "formats": [dtype for _, dtype, _ in FIELDS],
        "offsets": [offset for _, _, offset in FIELDS],
        "itemsize": RECORD_BYTES,
    }
)
WALL_NS = 1_790_000_000_000_000_000
PUT_BYTES = 1024
DROP_EVERY = 100_000
"""A slave is lost and comes back every so many puts."""


def write_big_session(
    path: Path, *, events: int, hours: float = 1.0, slaves: int = 4, segment_records: int = 2_000_000
) -> Path:
    """Write a session of about `events` events: puts of 1 KiB, each sent to and acknowledged by `slaves`.

    Slaves acknowledge one put late; every `DROP_EVERY` puts one of them is lost and connects anew, and a
    put times out.
    """
    per_put = 3 + 2 * slaves
    puts = events // per_put
    kinds = np.array(
        [Kind.PUT, Kind.WAIT_BEGIN, *[Kind.TRANSFER] * slaves, *[Kind.ACK] * slaves, Kind.WAIT_END]
    )
    number = np.arange(puts, dtype=np.int64)
    body = np.zeros((puts, per_put), DTYPE)
    body["kind"] = kinds
    end_offset = (number + 1)[:, None] * PUT_BYTES
    body["offset"] = end_offset
    body["offset"][:, 2 : 2 + slaves] -= PUT_BYTES
    # One put behind.
    body["offset"][:, 2 + slaves : 2 + 2 * slaves] -= PUT_BYTES
    body["aux"] = end_offset
    body["aux"][:, [0, 1, -1]] = number[:, None]
    body["size"][:, 0] = PUT_BYTES
    body["size"][:, 1] = 2
    body["size"][:, 2 : 2 + slaves] = PUT_BYTES
    body["size"][:, -1] = 150
    turn = number // DROP_EVERY
    for slave in range(slaves):
        # A slave's connection number grows by `slaves` with each time that it came back.
        times = (turn + slaves - 1 - slave) // slaves
        conn = slave + 1 + slaves * times
        body["conn"][:, 2 + slave] = body["conn"][:, 2 + slaves + slave] = conn
    body["conn"][:, [0, 1, -1]] = -1
    flat = body.reshape(-1)
    step_ns = int(hours * 3600e9 / max(1, len(flat)))
    flat["ts_ns"] = np.arange(len(flat), dtype=np.int64) * step_ns
    pieces: list[np.ndarray] = []
    facts: list[str] = []
    done = written = 0
    for drop in range(-(-puts // DROP_EVERY)):
        before = _turns(
            drop, slaves, at=flat["ts_ns"][drop * DROP_EVERY * per_put], top=drop * DROP_EVERY * PUT_BYTES
        )
        connected = sorted({int(one["conn"]) for one in before if one["kind"] == Kind.REQUESTED})
        facts += [
            f'{{"seq": {written}, "type": "connection", "conn": {conn}, '
            f'"address": "10.0.0.{1 + (conn - 1) % slaves}:{40000 + conn}", "role": "master"}}\n'
            for conn in connected
        ]
        part = flat[done : (drop + 1) * DROP_EVERY * per_put]
        pieces += [before, part]
        written += len(before) + len(part)
        done += len(part)
    every = np.concatenate(pieces)
    (path / EVENTS_FOLDER).mkdir(parents=True)
    identity = SessionIdentity("cluster", "broker-a", 0, "SYNC_MASTER")
    (path / SESSION_FILE).write_bytes(
        encode_session(identity, monotonic_ns=0, wall_ns=WALL_NS, program_version="0")
    )
    (path / FACTS_FILE).write_text("".join(facts))
    mirror = Mirror()
    seq = 0
    for begin in range(0, len(every), segment_records):
        part = every[begin : begin + segment_records]
        keyframes = (
            np.frombuffer(bytes(mirror.keyframes(int(part["ts_ns"][0]))), DTYPE) if begin else part[:0]
        )
        records = np.concatenate((keyframes, part))
        records["seq"] = np.arange(seq, seq + len(records))
        data = bytearray(records.tobytes())
        view = memoryview(data)
        for start in range(0, len(data), 65_536 * RECORD_BYTES):
            check_records(view[start : start + 65_536 * RECORD_BYTES])
        mirror.follow(memoryview(bytearray(part.tobytes())))
        with (path / EVENTS_FOLDER / segment_name(seq)).open("wb") as file:
            file.write(encode_header(base_seq=seq, base_ts_ns=int(part["ts_ns"][0])))
            file.write(data)
        seq += len(records)
    return path


def _turns(drop: int, slaves: int, *, at: int, top: int) -> np.ndarray:
    """Records between two stretches: at first all slaves connect, later one is lost and connects anew."""
    rows: list[tuple[int, int, int, int]] = []
    if drop:
        slave = (drop - 1) % slaves
        old = slave + 1 + slaves * ((drop - 1) // slaves)
        rows += [
            (Kind.WAIT_END, PutStatus.FLUSH_SLAVE_TIMEOUT, -1, top),
            (Kind.CLOSED, CloseReason.HOUSEKEEPING, old, top - PUT_BYTES),
            (Kind.STATE, HaState.SHUTDOWN, old, top - PUT_BYTES),
        ]
        new = [old + slaves]
    else:
        new = list(range(1, slaves + 1))
    for conn in new:
        start = max(0, top - PUT_BYTES)
        rows += [
            (Kind.STATE, HaState.HANDSHAKE, conn, -1),
            (Kind.REQUESTED, 0, conn, start),
            (Kind.STATE, HaState.TRANSFER, conn, -1),
            (Kind.ACK, 0, conn, start),
        ]
    records = np.zeros(len(rows), DTYPE)
    records["ts_ns"] = at
    records["aux"] = top
    for index, (kind, flags, conn, offset) in enumerate(rows):
        record = records[index]
        record["kind"], record["flags"], record["conn"], record["offset"] = kind, flags, conn, offset
        if kind == Kind.WAIT_END:
            record["size"], record["aux"] = 3_000_000, 0
    return records
