"""A replay's result as Arrow tables and Parquet files.

Columns are those of the rows in `trioha_analysis.document`; `seconds` and `events` are too long for that
document and exist only here. docs/session-analysis.md describes all columns.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyarrow import parquet

from trioha.errors import StoreError
from trioha.recording.events import NO_CONNECTION, CloseReason, HaState, Kind, LinkEvent, code_name
from trioha_analysis.document import Row, document, session_columns
from trioha_analysis.replay_result import ReplayResult, SessionReplay
from trioha_analysis.seconds import SECONDS_SCHEMA, seconds_table
from trioha_sessions.clocks import Link

_TEXT, _LONG, _DOUBLE = pa.string(), pa.int64(), pa.float64()
_PERCENTILES: Final = pa.struct([("p50", _DOUBLE), ("p99", _DOUBLE), ("max", _DOUBLE)])


def _schema(*columns: tuple[str, pa.DataType]) -> pa.Schema:
    """Columns, after those that name the session."""
    return pa.schema([("session", _TEXT), ("brokerName", _TEXT), ("brokerId", _LONG), *columns])


def _longs(*names: str) -> list[tuple[str, pa.DataType]]:
    return [(name, _LONG) for name in names]


SCHEMAS: Final = {
    "sessions": pa.schema(
        [
            *(("session", _TEXT), ("clusterName", _TEXT), ("brokerName", _TEXT), ("brokerId", _LONG)),
            *(("role", _TEXT), ("brokerControllerId", _LONG), ("epoch", _LONG)),
            *(("beganAtMs", _LONG), ("durationMs", _DOUBLE)),
            *_longs("events", "dropped", "lost"),
            ("damage", pa.list_(_TEXT)),
            *_longs("puts", "putBytes", "maxOffset", "flushedOffset", "dispatchedOffset"),
            *_longs("connections", "reconnects", "probes", "waitsOpen"),
            ("ackLatencyMs", _PERCENTILES),
        ]
    ),
    "connections": _schema(
        *(("role", _TEXT), ("conn", _LONG), ("address", _TEXT)),
        *_longs("openedAtMs", "closedAtMs"),
        *(("state", _TEXT), ("closeReason", _TEXT)),
        *_longs("bytes", "frames", "acks"),
        *(("lagBytes", _PERCENTILES), ("ackLatencyMs", _PERCENTILES)),
        *_longs("unacknowledgedFrames", "requestOffset", "sentOffset", "ackOffset", "receivedOffset"),
        *_longs("reportedOffset", "maxOffset", "heartbeatsSent", "heartbeatsReceived", "refused"),
    ),
    # closeReason, closedAtMs, previousOffset (last ack, or last report of a slave): of the previous
    # connection. resentBytes: sent on the previous connection and requested again.
    "reconnects": _schema(
        *(("role", _TEXT), ("conn", _LONG), ("address", _TEXT), ("previousConn", _LONG)),
        *(("closeReason", _TEXT), ("closedAtMs", _DOUBLE), ("awayMs", _DOUBLE)),
        *_longs("previousOffset", "requestOffset", "resentBytes"),
    ),
    # lagBytes, lagSeconds: the worst of the outage.
    "outages": _schema(
        *(("replica", _TEXT), ("conn", _LONG), ("nextConn", _LONG), ("closeReason", _TEXT)),
        *(("beganAtMs", _DOUBLE), ("awayMs", _DOUBLE), ("ackOffset", _LONG)),
        *(("lagBytes", _LONG), ("lagSeconds", _DOUBLE)),
    ),
    # Connections that never requested the log, by host and close reason.
    "probes": _schema(("host", _TEXT), ("reason", _TEXT), ("count", _LONG)),
    # offset: where the logs differ, or the refused offset. maxOffset: end of the node's own log at that time.
    "gaps": _schema(
        *(("role", _TEXT), ("atMs", _DOUBLE), ("seq", _LONG), ("conn", _LONG)),
        *(("address", _TEXT), ("reason", _TEXT), ("offset", _LONG), ("maxOffset", _LONG)),
        ("sentence", _TEXT),
    ),
    "waits": _schema(("status", _TEXT), ("count", _LONG), ("waitedMs", _PERCENTILES)),
    # ackMostly, of cause `ack` if the slave's session is known: `network` or `slave`, the larger part of the
    # connection's median ack time.
    "causes": _schema(
        *(("status", _TEXT), ("cause", _TEXT), ("ackMostly", _TEXT), ("conn", _LONG)),
        *(("address", _TEXT), ("count", _LONG), ("waitedMs", _PERCENTILES)),
    ),
    # frames: those in both sessions. aheadMs: offset of the slave's clock. thereMs, slaveMs, backMs: parts
    # of an ack's time, see `trioha_sessions.clocks`.
    "links": pa.schema(
        [
            *(("session", _TEXT), ("brokerName", _TEXT), ("conn", _LONG), ("slaveSession", _TEXT)),
            *_longs("slaveBrokerId", "slaveConn", "frames"),
            *(("aheadMs", _DOUBLE), ("uncertainMs", _DOUBLE)),
            *(("thereMs", _PERCENTILES), ("slaveMs", _PERCENTILES), ("backMs", _PERCENTILES)),
        ]
    ),
    # role, epoch: of the life; of EPOCH and LOG_CUT epoch is their own. address: the master's, or the leading
    # controller's.
    "roles": _schema(
        *(("brokerControllerId", _LONG), ("role", _TEXT), ("atMs", _DOUBLE), ("seq", _LONG)),
        *(("kind", _TEXT), ("epoch", _LONG), ("offset", _LONG), ("endOffset", _LONG), ("setEpoch", _LONG)),
        *(("members", pa.list_(_LONG)), ("address", _TEXT), ("sentence", _TEXT)),
    ),
    "invariants": _schema(
        *(("invariant", _TEXT), ("severity", _TEXT), ("sentence", _TEXT)), *_longs("checked", "violations")
    ),
    "violations": _schema(
        *(("invariant", _TEXT), ("severity", _TEXT)), *_longs("seq", "atMs", "conn"), ("sentence", _TEXT)
    ),
    # what: the new state, the close or refusal reason, the link event. offset, maxOffset: of the record; of
    # DROPPED, offset is the number of dropped events.
    "events": _schema(
        *(("atMs", _DOUBLE), ("seq", _LONG), ("conn", _LONG), ("kind", _TEXT), ("what", _TEXT)),
        *(("offset", _LONG), ("maxOffset", _LONG)),
    ),
    "seconds": SECONDS_SCHEMA,
}
"""Columns by table."""


def arrow_tables(result: ReplayResult, links: Sequence[Link] = ()) -> dict[str, pa.Table]:
    """All tables of a replay, by their names; `links` as `trioha_sessions.clocks.links` finds them."""
    return {
        **row_tables(document(result, links)),
        "events": _table("events", [row for replay in result.sessions for row in _event_rows(replay)]),
        "seconds": seconds_table(result),
    }


def row_tables(rows: Mapping[str, Sequence[Row]]) -> dict[str, pa.Table]:
    """The tables of `trioha_analysis.document.document`."""
    return {name: _table(name, rows[name]) for name in rows}


def _table(name: str, rows: Sequence[Row]) -> pa.Table:
    return pa.Table.from_pylist(rows, SCHEMAS[name])


PARTED: Final = ("events", "seconds")
"""Tables that are long: folders `NAME.parquet` with a file for each session, which executors write."""


def begin_tables(directory: Path) -> None:
    """Make the folders of the long tables, and remove what an earlier replay has left. Raises StoreError."""
    with _writing(directory):
        for name in PARTED:
            folder = directory / f"{name}.parquet"
            if folder.is_file():
                folder.unlink()
            folder.mkdir(parents=True, exist_ok=True)
            for old in folder.glob("part-*.parquet"):
                old.unlink()


def write_session_tables(replay: SessionReplay, directory: Path, index: int) -> None:
    """Write a session's part of the long tables; a part that is there is replaced. Raises StoreError."""
    found = {
        "events": _table("events", _event_rows(replay)),
        "seconds": seconds_table(ReplayResult((replay,))),
    }
    with _writing(directory):
        for name in PARTED:
            folder = directory / f"{name}.parquet"
            folder.mkdir(parents=True, exist_ok=True)
            target = folder / part_name(index)
            new = target.with_name(f".{target.name}.{os.getpid()}.tmp")
            parquet.write_table(found[name], new, compression="zstd")
            new.replace(target)


def finish_tables(result: ReplayResult, directory: Path, links: Sequence[Link] = ()) -> None:
    """Write the other tables as `directory/NAME.parquet` (zstd).

    Raises StoreError, also if a session with records has no part of a long table: then executors have other
    disks.
    """
    parts = [index for index, one in enumerate(result.sessions) if any(part.records for part in one.segments)]
    with _writing(directory):
        for name in PARTED:
            folder = directory / f"{name}.parquet"
            missing = [index for index in parts if not (folder / part_name(index)).is_file()]
            if missing:
                raise StoreError(
                    f"{len(missing)} parts of the table were written to other machines' disks",
                    path=folder,
                    hint="with a cluster, --out names a folder that all machines share",
                )
            if not parts:
                parquet.write_table(SCHEMAS[name].empty_table(), folder / part_name(0))
        for name, table in row_tables(document(result, links)).items():
            parquet.write_table(table, directory / f"{name}.parquet", compression="zstd")


def part_name(index: int) -> str:
    """File of a session's part of a long table."""
    return f"part-{index:05d}.parquet"


@contextmanager
def _writing(directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(
            f"the tables cannot be written: {error.strerror or error}", path=directory
        ) from error


def _event_rows(replay: SessionReplay) -> list[Row]:
    columns = [
        replay.events[name].tolist() for name in ("ts_ns", "seq", "conn", "kind", "flags", "offset", "aux")
    ]
    return [
        {
            **session_columns(replay),
            "atMs": replay.session.wall_of(ts_ns) / 1e6,
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
