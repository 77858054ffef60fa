"""A small archive for the notebook: three hours of a log, and a minute that master and slave recorded.

The store and the recordings are made here, the same each time; `trioha archive` archives them.

The log has three topics: Orders grows, Payments stays as it is, Audit shrinks. The master of the recording
has one slave and two writers. From 20 s to 26 s the link to the slave is slow, from 40 s to 43 s the master
sends late, from 50 s to 53 s the slave takes long.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from attrs import frozen

from trioha.recording.events import NO_CONNECTION, RECORD, HaState, Kind, PutStatus
from trioha.recording.layout import CLOSED_NOTE, SessionIdentity, encode_session
from trioha.recording.writer import Block, SessionWriter
from trioha.store.record import Host, Record, encode_record
from trioha.store.record_layout import MAGIC_V1, body_crc

WALL_MS: Final = 1_790_000_000_000
"""Start of the recording; the log ends a minute later."""
MINUTES: Final = 180
BROKER: Final = Host.parse("10.0.0.1", 10911)
LOG_FILE_BYTES: Final = 16 << 20
MS: Final = 1_000_000
ROUNDS: Final = 1000
WRITERS: Final = 2
PUT_BYTES: Final = 1000
CONN: Final = 1
SLAVE_AHEAD_NS: Final = 4 * MS
"""The slave's clock is ahead."""


def make_sample(folder: Path) -> str:
    """Make the archive in `folder`, which is new or empty; returns its URL."""
    store, recordings = folder / "store", folder / "recordings"
    (store / "commitlog").mkdir(parents=True)
    log = b"".join(_messages())
    (store / "commitlog" / f"{0:020d}").write_bytes(log + bytes(LOG_FILE_BYTES - len(log)))
    master, slave = _recorded()
    _write_session(recordings, 0, "SYNC_MASTER", master, "10.0.0.2:41000")
    _write_session(recordings, 1, "SLAVE", slave, "10.0.0.1:10912")
    url = (folder / "archive").absolute().as_uri()
    command = [sys.executable, "-m", "trioha", "archive", str(store), "--to", url, "--broker", "broker-a"]
    command += ["--recordings", str(recordings), "--json"]
    # This Python, and paths that are given here.
    subprocess.run(command, check=True, stdout=subprocess.PIPE)  # noqa: S603
    return url


def _messages() -> Iterator[bytes]:
    chance = random.Random(1)
    offset = 0
    queue_offsets = {"Orders": 0, "Payments": 0, "Audit": 0}
    for minute in range(MINUTES):
        counts = {"Orders": 10 + minute // 4, "Payments": 20, "Audit": 30 - minute // 8}
        for topic, count in counts.items():
            for number in range(count):
                body = chance.randbytes(chance.randint(100, 900))
                stored_ms = WALL_MS - (MINUTES - 1 - minute) * 60_000 + number * 60_000 // count
                record = encode_record(
                    Record(
                        magic=MAGIC_V1,
                        body_crc=body_crc(body),
                        physical_offset=offset,
                        queue_id=0,
                        queue_offset=queue_offsets[topic],
                        flag=0,
                        sys_flag=0,
                        born_timestamp_ms=stored_ms - 1,
                        born_host=Host.parse("10.0.0.9", 50000),
                        store_timestamp_ms=stored_ms,
                        store_host=BROKER,
                        reconsume_times=0,
                        prepared_transaction_offset=0,
                        body=body,
                        topic=topic,
                        properties_raw=b"TAGS\x01t\x02",
                    )
                )
                queue_offsets[topic] += 1
                offset += len(record)
                yield record


@frozen(kw_only=True)
class _Event:
    ts_ns: int
    kind: Kind
    conn: int = NO_CONNECTION
    offset: int = 0
    aux: int = 0
    size: int = 0
    flags: int = 0


def _recorded() -> tuple[list[_Event], list[_Event]]:
    """The events of the master and of its slave."""
    chance = random.Random(2)
    master = [
        _Event(ts_ns=0, kind=Kind.STATE, conn=CONN, offset=-1, flags=HaState.HANDSHAKE),
        _Event(ts_ns=MS, kind=Kind.REQUESTED, conn=CONN),
        _Event(ts_ns=MS, kind=Kind.STATE, conn=CONN, offset=-1, flags=HaState.TRANSFER),
        _Event(ts_ns=MS, kind=Kind.ACK, conn=CONN),
    ]
    slave = [_Event(ts_ns=MS, kind=Kind.REPORTED, conn=CONN)]
    at_ns, end = 10 * MS, 0
    for _ in range(ROUNDS):
        start = end
        put_ns = []
        for _ in range(WRITERS):
            at_ns += 40_000
            end += PUT_BYTES
            put_ns.append(at_ns)
            request = end // PUT_BYTES
            master += [
                _Event(ts_ns=at_ns, kind=Kind.PUT, offset=end, aux=request, size=PUT_BYTES),
                _Event(ts_ns=at_ns + 5_000, kind=Kind.WAIT_BEGIN, offset=end, aux=request, size=2),
            ]
        second = at_ns / 10**9
        link_ns = round((8 * MS if 20 <= second < 26 else MS // 10) * chance.uniform(0.8, 1.3))
        send_ns = round((12 * MS if 40 <= second < 43 else MS // 40) * chance.uniform(0.8, 1.3))
        disk_ns = round((20 * MS if 50 <= second < 53 else MS // 5) * chance.paretovariate(4))
        at_ns += send_ns
        size = end - start
        master += [_Event(ts_ns=at_ns, kind=Kind.TRANSFER, conn=CONN, offset=start, aux=end, size=size)]
        at_ns += link_ns
        slave += [_Event(ts_ns=at_ns, kind=Kind.RECEIVED, conn=CONN, offset=start, aux=end, size=size)]
        at_ns += disk_ns
        slave += [_Event(ts_ns=at_ns, kind=Kind.REPORTED, conn=CONN, offset=end, aux=end)]
        at_ns += link_ns
        master += [_Event(ts_ns=at_ns, kind=Kind.ACK, conn=CONN, offset=end, aux=end)]
        for writer, began_ns in enumerate(put_ns):
            at_ns += 20_000
            put_end = start + (writer + 1) * PUT_BYTES
            master += [
                _Event(
                    ts_ns=at_ns,
                    kind=Kind.WAIT_END,
                    offset=put_end,
                    aux=put_end // PUT_BYTES,
                    size=(at_ns - began_ns) // 1000,
                    flags=PutStatus.PUT_OK,
                )
            ]
        at_ns += round(55 * MS * chance.uniform(0.9, 1.1))
    return master, slave


def _write_session(folder: Path, broker_id: int, role: str, events: list[_Event], peer: str) -> None:
    """A whole session, as a node leaves it that ended in order."""
    identity = SessionIdentity(
        "DefaultCluster", "broker-a", broker_id, role, settings={"inSyncReplicas": 2, "slaveTimeout": 3000}
    )
    wall_ns = WALL_MS * MS + broker_id * SLAVE_AHEAD_NS
    document = encode_session(identity, monotonic_ns=0, wall_ns=wall_ns, program_version="0.1.0")
    writer = SessionWriter(
        folder / f"20260921T141320.000Z-broker-a-{broker_id}",
        document=document,
        base_ts_ns=0,
        segment_records=1_000_000,
    )
    records = bytearray().join(
        RECORD.pack(e.ts_ns, 0, e.kind, e.flags, broker_id, e.conn, e.offset, e.aux, e.size, 0)
        for e in events
    )
    connected = {"type": "connection", "conn": CONN, "address": peer}
    closed = {"type": "note", "text": CLOSED_NOTE}
    writer.write(Block(records, len(records), [(0, json.dumps(connected))]))
    writer.write(Block(bytearray(), 0, [(len(events), json.dumps(closed))]))
    writer.close()
