"""The tables of a replay as Arrow: their columns, and the rows of a session, of a group, of links.

docs/session-analysis.md describes all columns. Offsets and sizes are bytes, times ms (since 1970 if a name
ends in `AtMs`); unknown values are null.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import pyarrow as pa

from trioha_analysis.seconds import SECONDS_SCHEMA, seconds_table
from trioha_analysis.session_replay import SessionReplay
from trioha_analysis.table_rows import Row, group_rows, link_row, session_rows
from trioha_sessions.clocks import Link
from trioha_sessions.invariants.group import GroupResult

_TEXT, _LONG, _DOUBLE = pa.string(), pa.int64(), pa.float64()
_PERCENTILES: Final = pa.struct([("p50", _DOUBLE), ("p99", _DOUBLE), ("max", _DOUBLE)])
_WHOLE_PERCENTILES: Final = pa.struct([("p50", _LONG), ("p99", _LONG), ("max", _LONG)])


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
        *(("lagBytes", _WHOLE_PERCENTILES), ("ackLatencyMs", _PERCENTILES)),
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


SESSION_TABLES: Final = tuple(name for name in SCHEMAS if name != "links")
"""Tables with rows of each session."""
GROUP_TABLES: Final = ("invariants", "violations")
"""Tables that have rows of groups of brokers under controllers, too."""
LONG_TABLES: Final = ("events", "seconds")
"""Tables that grow with the length of a session."""


def session_tables(replay: SessionReplay) -> dict[str, pa.Table]:
    """The rows of a session by table."""
    return {**_tables(session_rows(replay)), "seconds": seconds_table(replay)}


def group_tables(group: GroupResult) -> dict[str, pa.Table]:
    """The rows of a group of brokers by table."""
    return _tables(group_rows(group))


def link_table(links: Iterable[Link]) -> pa.Table:
    """Connections that both a master's and a slave's session have."""
    return pa.Table.from_pylist(list(map(link_row, links)), SCHEMAS["links"])


def _tables(rows: Mapping[str, Sequence[Row]]) -> dict[str, pa.Table]:
    return {name: pa.Table.from_pylist(found, SCHEMAS[name]) for name, found in rows.items()}
