"""The tables of a report: which invariants do not hold, connections, gaps, and masters with their slaves."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import tzinfo
from html import escape
from typing import Any, Final

from trioha.recording.clocks import Link
from trioha.recording.times import clock_text
from trioha_analysis.document import connection_row, link_row
from trioha_analysis.reconnects import gap_rows
from trioha_analysis.replay_result import ReplayResult

VIOLATIONS_MAX: Final = 20
"""Violations of one invariant that are named."""
TABLE_ROWS_MAX: Final = 500
_COLUMNS: Final = (
    # Title, key of the row, whether it is text.
    ("node", "node", True),
    ("conn", "conn", False),
    ("address", "address", True),
    ("state", "state", True),
    ("ended by", "closeReason", True),
    ("bytes", "bytes", False),
    ("frames", "frames", False),
    ("lag p50", "lagBytes.p50", False),
    ("p99", "lagBytes.p99", False),
    ("max", "lagBytes.max", False),
    ("ack ms p50", "ackLatencyMs.p50", False),
    ("p99", "ackLatencyMs.p99", False),
    ("max", "ackLatencyMs.max", False),
    ("sent", "sentOffset", False),
    ("ack", "ackOffset", False),
    ("received", "receivedOffset", False),
    ("reported", "reportedOffset", False),
)
_GAP_COLUMNS: Final = (
    *(("node", "node", True), ("time", "time", True), ("conn", "conn", False), ("address", "address", True)),
    *(("reason", "reason", True), ("what did not fit", "sentence", True)),
)
_LINK_COLUMNS: Final = (
    *(("broker", "brokerName", True), ("conn", "conn", False)),
    *(("slave", "slaveBrokerId", False), ("its conn", "slaveConn", False)),
    *(("frames in both", "frames", False), ("its clock is ahead, ms", "aheadMs", False)),
    *(("give or take", "uncertainMs", False), ("way there, ms p50", "thereMs.p50", False)),
    *(("p99", "thereMs.p99", False), ("slave, ms p50", "slaveMs.p50", False)),
    *(("p99", "slaveMs.p99", False), ("way back, ms p50", "backMs.p50", False)),
    ("p99", "backMs.p99", False),
)


def verdict_html(result: ReplayResult, zone: tzinfo | None = None) -> str:
    """Which invariants do not hold, and where first; times of `zone`, None for the system's."""
    judged = [verdict for replay in result.sessions for verdict in replay.verdicts if verdict.is_judged]
    broken = [verdict for verdict in judged if verdict.count]
    if not broken:
        return f'<p class="note">All invariants hold ({len(judged)} were judged in all).</p>'
    lines = []
    for replay in result.sessions:
        identity = replay.session.identity
        for verdict in replay.verdicts:
            for violation in verdict.violations[:VIOLATIONS_MAX]:
                conn = "" if violation.conn is None else str(violation.conn)
                cells = (
                    f"{identity.broker_name} {identity.broker_id}",
                    violation.severity.value,
                    violation.invariant,
                    _time(replay.session.wall_of(violation.ts_ns), zone),
                    conn,
                    violation.sentence,
                )
                lines.append("".join(f'<td class="text">{escape(cell)}</td>' for cell in cells))
    head = "".join(
        f'<th class="text">{title}</th>'
        for title in ("node", "severity", "invariant", "time", "conn", "what")
    )
    count = sum(verdict.count for verdict in broken)
    return (
        f'<p class="bad">{len(broken)} of {len(judged)} invariants do not hold: {count:,} violations.</p>'
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>'
        + "".join(f"<tr>{line}</tr>" for line in lines)
        + "</tbody></table></div>"
    )


def connections_html(result: ReplayResult) -> str:
    """All connections, a line for each."""
    rows = [connection_row(replay, one) for replay in result.sessions for one in replay.connections]
    return _table(rows, _COLUMNS)


def gaps_html(result: ReplayResult, zone: tzinfo | None = None) -> str:
    """Where the logs did not fit, and what else was refused; times of `zone`, None for the system's."""
    rows = [
        {**row, "time": _time(round(row["atMs"] * 1000) * 1000, zone)}
        for replay in result.sessions
        for row in gap_rows(replay)
    ]
    return "<h2>Offsets that did not fit</h2>" + _table(rows, _GAP_COLUMNS) if rows else ""


def links_html(links: Sequence[Link]) -> str:
    """What of an ack's time was whose, where both sides were recorded."""
    rows = [link_row(link) for link in links]
    return "<h2>Master and slave together</h2>" + _table(rows, _LINK_COLUMNS) if rows else ""


def _table(rows: Sequence[dict[str, Any]], columns: Sequence[tuple[str, str, bool]]) -> str:
    head = "".join(f"<th{_class(text)}>{title}</th>" for title, _, text in columns)
    lines = (
        "".join(f"<td{_class(text)}>{escape(_cell(row, key))}</td>" for _, key, text in columns)
        for row in rows[:TABLE_ROWS_MAX]
    )
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    rest = len(rows) - TABLE_ROWS_MAX
    more = f'<p class="note">{rest:,} more.</p>' if rest > 0 else ""
    return (
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{more}'
    )


def _time(wall_ns: int, zone: tzinfo | None) -> str:
    return clock_text(wall_ns, zone)


def _class(text: bool) -> str:
    return ' class="text"' if text else ""


def _cell(row: dict[str, Any], key: str) -> str:
    if key == "node":
        return f"{row['brokerName']} {row['brokerId']}"
    value: Any = row
    for name in key.split("."):
        value = None if value is None else value[name]
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.3f}"
    return f"{value:,}" if isinstance(value, int) and key != "conn" else str(value)
