"""A large recorded session, made by NumPy in seconds: a master with slaves, puts, and nothing wrong."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from trioha.recording.events import RECORD_BYTES, CloseReason, HaState, Kind, PutStatus
from trioha.recording.layout import FIELDS, SessionIdentity, encode_session
from trioha.recording.writer import Block, SessionWriter

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
SETTINGS = {"slaveTimeout": 3000, "syncFlushTimeout": 5000, "haHousekeepingInterval": 20_000}


def write_big_session(
    path: Path, *, events: int, hours: float = 1.0, slaves: int = 4, segment_records: int = 2_000_000
) -> Path:
    """Write a session of about `events` events: puts of 1 KiB, each sent to and acknowledged by `slaves`.

    The first two slaves acknowledge a put at once, which it waits for, the others when the next one comes.
    The last put of every `DROP_EVERY` waits for all, in vain: one slave does not acknowledge it, is lost, and
    connects anew. No invariant is violated. Memory is that of one such stretch for any length.
    """
    per_put = 3 + 2 * slaves
    puts = events // per_put
    step_ns = int(hours * 3600e9 / max(1, puts * per_put))
    identity = SessionIdentity("cluster", "broker-a", 0, "SYNC_MASTER", SETTINGS)
    document = encode_session(identity, monotonic_ns=0, wall_ns=WALL_NS, program_version="0")
    writer = SessionWriter(path, document=document, base_ts_ns=0, segment_records=segment_records)
    began_ns = 0
    for turn, first in enumerate(range(0, puts, DROP_EVERY)):
        count = min(DROP_EVERY, puts - first)
        connecting = _connecting(turn, slaves, at_ns=began_ns, top=first * PUT_BYTES)
        facts = [
            (
                0,
                (
                    f'{{"type": "connection", "conn": {conn}, '
                    f'"address": "10.0.0.{1 + (conn - 1) % slaves}:{40000 + conn}", "role": "master"}}'
                ),
            )
            for conn in connecting["conn"][connecting["kind"] == Kind.REQUESTED].tolist()
        ]
        served = _served(turn, slaves, first=first, count=count, began_ns=began_ns, step_ns=step_ns)
        if first + count < puts:
            _fail_last(served, turn, slaves)
        began_ns = int(served["ts_ns"][-1]) + step_ns
        records = bytearray(np.concatenate((connecting, served)).tobytes())
        writer.write(Block(records, len(records), facts))
    writer.close()
    return path


def _conn_of(slave: int, slaves: int, turn: int) -> int:
    """A slave's connection in a turn: its number grows by `slaves` each time that it comes back."""
    return slave + 1 + slaves * ((turn + slaves - 1 - slave) // slaves)


def _served(turn: int, slaves: int, *, first: int, count: int, began_ns: int, step_ns: int) -> np.ndarray:
    """The records of `count` puts from number `first` on."""
    per_put = 3 + 2 * slaves
    number = first + np.arange(count, dtype=np.int64)
    body = np.zeros((count, per_put), DTYPE)
    body["kind"] = [Kind.PUT, Kind.WAIT_BEGIN, *[Kind.TRANSFER] * slaves, *[Kind.ACK] * slaves, Kind.WAIT_END]
    end_offset = (number + 1)[:, None] * PUT_BYTES
    body["offset"] = end_offset
    body["offset"][:, 2 : 2 + slaves] -= PUT_BYTES
    body["offset"][:, 4 + slaves : 2 + 2 * slaves] -= PUT_BYTES
    body["aux"] = end_offset
    body["aux"][:, [0, 1, -1]] = number[:, None]
    body["size"][:, 0] = PUT_BYTES
    body["size"][:, 1] = 2
    body["size"][:, 2 : 2 + slaves] = PUT_BYTES
    body["size"][:, -1] = (per_put - 2) * step_ns // 1000
    for slave in range(slaves):
        conn = _conn_of(slave, slaves, turn)
        body["conn"][:, 2 + slave] = body["conn"][:, 2 + slaves + slave] = conn
    body["conn"][:, [0, 1, -1]] = -1
    flat = body.reshape(-1)
    flat["ts_ns"] = began_ns + np.arange(len(flat), dtype=np.int64) * step_ns
    return flat


def _fail_last(served: np.ndarray, turn: int, slaves: int) -> None:
    """The last put of a turn waits for all slaves, one of which has not acknowledged it when time is over."""
    put = served[-(3 + 2 * slaves) :]
    put["size"][1] = 1 + slaves
    put["offset"][2 + slaves + turn % slaves] -= PUT_BYTES
    put["flags"][-1] = PutStatus.FLUSH_SLAVE_TIMEOUT
    put["size"][-1] = SETTINGS["slaveTimeout"] * 1000
    put["ts_ns"][-1] = put["ts_ns"][1] + SETTINGS["slaveTimeout"] * 1_000_000


def _connecting(turn: int, slaves: int, *, at_ns: int, top: int) -> np.ndarray:
    """Records at the start of a turn: at first all slaves connect, later one is lost and connects anew."""
    rows: list[tuple[int, int, int, int, int]] = []
    start = max(0, top - PUT_BYTES)
    new = range(1, slaves + 1)
    if turn:
        slave = (turn - 1) % slaves
        old = _conn_of(slave, slaves, turn - 1)
        rows += [
            (Kind.CLOSED, CloseReason.IO_ERROR, old, start, 0),
            (Kind.STATE, HaState.SHUTDOWN, old, start, 0),
        ]
        new = range(old + slaves, old + slaves + 1)
    for conn in new:
        rows += [
            (Kind.STATE, HaState.HANDSHAKE, conn, -1, 0),
            (Kind.REQUESTED, 0, conn, start, 0),
            (Kind.STATE, HaState.TRANSFER, conn, -1, 0),
            (Kind.ACK, 0, conn, start, 0),
        ]
        if turn:
            rows += [(Kind.TRANSFER, 0, conn, start, PUT_BYTES), (Kind.ACK, 0, conn, top, 0)]
    records = np.zeros(len(rows), DTYPE)
    records["ts_ns"] = at_ns
    records["aux"] = top
    for name, values in zip(
        ("kind", "flags", "conn", "offset", "size"), zip(*rows, strict=True), strict=True
    ):
        records[name] = values
    return records
