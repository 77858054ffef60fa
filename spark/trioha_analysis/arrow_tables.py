"""A replay's result as Arrow tables and Parquet files.

Columns are those of the rows in `trioha_analysis.document`; `seconds` and `events` are too long for that
document and exist only here (docs/session-analysis.md has all of them).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyarrow import parquet

from trioha.errors import StoreError
from trioha.recording.clocks import Link
from trioha.recording.events import NO_CONNECTION, CloseReason, HaState, Kind, LinkEvent, code_name
from trioha_analysis.document import document
from trioha_analysis.replay_result import ReplayResult, SessionReplay
from trioha_analysis.seconds import seconds_table

_TEXT, _LONG, _DOUBLE = pa.string(), pa.int64(), pa.float64()
_PERCENTILES: Final = pa.struct([("p50", _DOUBLE), ("p99", _DOUBLE), ("max", _DOUBLE)])
_WHOSE: Final = (("session", _TEXT), ("brokerName", _TEXT), ("brokerId", _LONG))


def _longs(*names: str) -> list[tuple[str, pa.DataType]]:
    return [(name, _LONG) for name in names]


SESSIONS_SCHEMA: Final = pa.schema(
    [
        *(("session", _TEXT), ("clusterName", _TEXT), ("brokerName", _TEXT), ("brokerId", _LONG)),
        *(("role", _TEXT), ("beganAtMs", _LONG), ("durationMs", _DOUBLE)),
        *_longs("events", "dropped", "lost"),
        ("damage", pa.list_(_TEXT)),
        *_longs("puts", "putBytes", "maxOffset", "flushedOffset", "dispatchedOffset"),
        *_longs("connections", "reconnects", "probes", "waitsOpen"),
        ("ackLatencyMs", _PERCENTILES),
    ]
)
CONNECTIONS_SCHEMA: Final = pa.schema(
    [
        *(*_WHOSE, ("role", _TEXT), ("conn", _LONG), ("address", _TEXT)),
        *_longs("openedAtMs", "closedAtMs"),
        *(("state", _TEXT), ("closeReason", _TEXT)),
        *_longs("bytes", "frames", "acks"),
        *(("lagBytes", _PERCENTILES), ("ackLatencyMs", _PERCENTILES)),
        *_longs("unacknowledgedFrames", "requestOffset", "sentOffset", "ackOffset", "receivedOffset"),
        *_longs("reportedOffset", "maxOffset", "heartbeatsSent", "heartbeatsReceived", "refused"),
    ]
)
RECONNECTS_SCHEMA: Final = pa.schema(
    [
        *(*_WHOSE, ("role", _TEXT), ("conn", _LONG), ("address", _TEXT), ("previousConn", _LONG)),
        *(("closeReason", _TEXT), ("closedAtMs", _DOUBLE), ("awayMs", _DOUBLE)),
        *_longs("previousOffset", "requestOffset", "resentBytes"),
    ]
)
"""`closeReason`, `closedAtMs`: of the connection whose place it took. `previousOffset`: what that one had
acknowledged (reported, of a slave). `resentBytes`: what it was sent that is asked for again."""
PROBES_SCHEMA: Final = pa.schema([*_WHOSE, ("host", _TEXT), ("reason", _TEXT), ("count", _LONG)])
"""Connections that never asked for the log; `reason` of their ends."""
GAPS_SCHEMA: Final = pa.schema(
    [
        *(*_WHOSE, ("role", _TEXT), ("atMs", _DOUBLE), ("seq", _LONG), ("conn", _LONG)),
        *(("address", _TEXT), ("reason", _TEXT), ("offset", _LONG), ("maxOffset", _LONG)),
        ("sentence", _TEXT),
    ]
)
"""`offset`: where the logs do not fit, or what was refused. `maxOffset`: end of the own log then."""
WAITS_SCHEMA: Final = pa.schema([*_WHOSE, ("status", _TEXT), ("count", _LONG), ("waitedMs", _PERCENTILES)])
CAUSES_SCHEMA: Final = pa.schema(
    [
        *(*_WHOSE, ("status", _TEXT), ("cause", _TEXT), ("ackMostly", _TEXT), ("conn", _LONG)),
        *(("address", _TEXT), ("count", _LONG), ("waitedMs", _PERCENTILES)),
    ]
)
"""`ackMostly`: of cause `ack`, where the slave's session is there: `network` or `slave`, whichever takes
longer for the median frame of that connection."""
INVARIANTS_SCHEMA: Final = pa.schema(
    [
        *(*_WHOSE, ("invariant", _TEXT), ("severity", _TEXT), ("sentence", _TEXT)),
        *_longs("checked", "violations"),
    ]
)
VIOLATIONS_SCHEMA: Final = pa.schema(
    [
        *(*_WHOSE, ("invariant", _TEXT), ("severity", _TEXT)),
        *_longs("seq", "atMs", "conn"),
        ("sentence", _TEXT),
    ]
)
EVENTS_SCHEMA: Final = pa.schema(
    [
        *(*_WHOSE, ("atMs", _DOUBLE), ("seq", _LONG), ("conn", _LONG)),
        *(("kind", _TEXT), ("what", _TEXT), ("offset", _LONG), ("maxOffset", _LONG)),
    ]
)
"""`what`: the new state, the reason of an end or a refusal, what the link did. `offset`, `maxOffset`: of the
record; of DROPPED, `offset` is how many events were dropped."""
LINKS_SCHEMA: Final = pa.schema(
    [
        *(("session", _TEXT), ("brokerName", _TEXT), ("conn", _LONG), ("slaveSession", _TEXT)),
        *_longs("slaveBrokerId", "slaveConn", "frames"),
        *(("aheadMs", _DOUBLE), ("uncertainMs", _DOUBLE)),
        *(("thereMs", _PERCENTILES), ("slaveMs", _PERCENTILES), ("backMs", _PERCENTILES)),
    ]
)
"""`frames`: those that both sides have. `aheadMs`: how far the slave's clock is ahead. `thereMs`, `slaveMs`,
`backMs`: what an ack's time is made of, see `trioha.recording.clocks`."""


def arrow_tables(result: ReplayResult, links: Sequence[Link] = ()) -> dict[str, pa.Table]:
    """The tables of a replay, by their names; `links` as `trioha.recording.clocks.links` finds them."""
    rows = document(result, links)
    return {
        "sessions": pa.Table.from_pylist(rows["sessions"], SESSIONS_SCHEMA),
        "connections": pa.Table.from_pylist(rows["connections"], CONNECTIONS_SCHEMA),
        "seconds": seconds_table(result),
        "events": pa.Table.from_pylist(
            [row for replay in result.sessions for row in _event_rows(replay)], EVENTS_SCHEMA
        ),
        "reconnects": pa.Table.from_pylist(rows["reconnects"], RECONNECTS_SCHEMA),
        "probes": pa.Table.from_pylist(rows["probes"], PROBES_SCHEMA),
        "gaps": pa.Table.from_pylist(rows["gaps"], GAPS_SCHEMA),
        "waits": pa.Table.from_pylist(rows["waits"], WAITS_SCHEMA),
        "causes": pa.Table.from_pylist(rows["causes"], CAUSES_SCHEMA),
        "links": pa.Table.from_pylist(rows["links"], LINKS_SCHEMA),
        "invariants": pa.Table.from_pylist(rows["invariants"], INVARIANTS_SCHEMA),
        "violations": pa.Table.from_pylist(rows["violations"], VIOLATIONS_SCHEMA),
    }


def write_tables(result: ReplayResult, directory: Path, links: Sequence[Link] = ()) -> list[Path]:
    """Write each table as `directory/NAME.parquet` (zstd). Raises StoreError."""
    written = []
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, table in arrow_tables(result, links).items():
            path = directory / f"{name}.parquet"
            parquet.write_table(table, path, compression="zstd")
            written.append(path)
    except OSError as error:
        raise StoreError(
            f"the tables cannot be written: {error.strerror or error}", path=directory
        ) from error
    return written


def _event_rows(replay: SessionReplay) -> list[dict[str, Any]]:
    session = replay.session
    columns = [
        replay.events[name].tolist() for name in ("ts_ns", "seq", "conn", "kind", "flags", "offset", "aux")
    ]
    return [
        {
            "session": replay.name,
            "brokerName": session.identity.broker_name,
            "brokerId": session.identity.broker_id,
            "atMs": session.wall_of(ts_ns) / 1e6,
            "seq": seq,
            "conn": None if conn == NO_CONNECTION else conn,
            "kind": Kind(kind).name,
            "what": _what(kind, flags),
            "offset": aux if kind == Kind.DROPPED else offset,
            "maxOffset": None if kind in {Kind.DROPPED, Kind.LINK} else aux,
        }
        for ts_ns, seq, conn, kind, flags, offset, aux in zip(*columns, strict=True)
    ]


_NAMES: Final = {
    Kind.STATE: HaState,
    Kind.CLOSED: CloseReason,
    Kind.REFUSED: CloseReason,
    Kind.LINK: LinkEvent,
}


def _what(kind: int, flags: int) -> str | None:
    names = _NAMES.get(Kind(kind))
    if names is None:
        return None
    return code_name(names, flags)
