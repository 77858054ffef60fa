"""`trioha replay`: replay recorded sessions on Spark."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

from cyclopts import Parameter
from rich import box
from rich.table import Table

from trioha.archive.session_paths import find_recordings
from trioha.cli.console import out, print_json
from trioha.cli.spark import progress, spark_module
from trioha.errors import TriohaError
from trioha.palette import BAD
from trioha.recording.probes import ProbeCount, probes_line
from trioha.recording.reader import open_session
from trioha.times import clock_text, zone_text


def replay(
    sessions: Annotated[list[str], Parameter(negative=())],
    /,
    *,
    master: str = "local[*]",
    report: Path | None = None,
    tables: Annotated[Path | None, Parameter(name="--out")] = None,
    at: str | None = None,
    explain: str | None = None,
    json: bool = False,
) -> int:
    """Replay recorded sessions on Spark.

    Shows lag, ack latency, group commit and final offsets of each connection. With --at or --explain only
    that is answered, without Spark.

    Parameters
    ----------
    sessions
        Session folders, folders of them (what trioha.recordDir names), or archives: folders or URLs (s3://...).
    master
        Where Spark runs: local[*], local[N] or spark://HOST:PORT.
    report
        HTML file to write: what happened in words, and charts of offsets, lag, put statuses and latency; it
        needs no other file.
    tables
        Folder to write the results to as Parquet tables; created if missing. Executors write them: on a
        cluster it is a folder that all machines share.
    at
        Show offsets and connections at a time: 03:12:00 or "2026-11-21 03:12:00.5" (local time, unless Z or
        an offset as +02:00 follows), +90s (after the start), 50%, begin or end.
    explain
        Explain one put: a request id, @OFFSET (a physical offset in it), slowest, or failed (the first, or
        the first after --at).
    json
        Print one JSON object with `sessions`, `connections`, `reconnects`, `probes`, `gaps`, `waits`,
        `causes`, `links`, `roles`, `invariants`, `violations`.

    Exits with 1 if an invariant of severity error does not hold.
    """
    # Errors of the input are reported before Spark is started.
    for path in find_recordings(sessions):
        open_session(path)
    if report is not None and not report.absolute().parent.is_dir():
        raise TriohaError(f"{report}: its folder does not exist; make it first")
    if explain is not None or at is not None:
        return _ask(sessions, at=at, explain=explain, json=json)
    _module("trioha_spark.java").require_java()
    replays, spark_sessions = _module("trioha_spark.replay"), _module("trioha_spark.session")
    with (
        progress("replaying on Spark", shown=sys.stderr.isatty() and not json) as watch,
        spark_sessions.spark_session(master) as spark,
        spark_sessions.without_codegen(spark),
    ):
        found = replays.replay(sessions, spark=spark, watch=watch)
        try:
            short = found.collect()
            if report is not None:
                reports = _module("trioha_analysis.reports.session_report")
                reports.session_report(found.reports(), short).write(report)
            if tables is not None:
                found.write(tables)
        finally:
            found.unpersist()
    document = {name: table.to_pylist() for name, table in short.items()}
    if json:
        print_json(document)
    else:
        _print(document)
        ends_ms = [
            row["beganAtMs"] + after for row in document["sessions"] for after in (0, row["durationMs"])
        ]
        out().print(f"times are {_zone(ends_ms)}", style="dim")
        if report is not None:
            out().print(f"report: {report}", soft_wrap=True)
        if tables is not None:
            out().print(f"tables: {tables}", soft_wrap=True)
    is_broken = any(row["violations"] and row["severity"] == "error" for row in document["invariants"])
    return 1 if is_broken else 0


def _ask(sessions: list[str], *, at: str | None, explain: str | None, json: bool) -> int:
    """Answer --at and --explain, which read parts of the sessions instead of replaying them."""
    moments = _module("trioha_analysis.state_at")
    readers = moments.open_readers(sessions)
    wall_ns = None if at is None else moments.wall_time(at, readers)
    if explain is not None:
        explanation = _module("trioha_analysis.explain").explain(readers, explain, at_wall_ns=wall_ns)
        if json:
            print_json(explanation)
        else:
            _print_explanation(explanation)
        return 0
    moment = moments.moment(readers, wall_ns)
    if json:
        print_json(moment)
    else:
        _print_moment(moment)
    return 0


def _print_explanation(put: dict[str, Any]) -> None:
    out().print(
        f"put {put['request']} of {put['brokerName']} {put['brokerId']}, {_time(put['atMs'])} "
        f"{_zone([put['atMs']])}",
        style="bold",
    )
    out().print(put["summary"])
    table = _table("", "ms", "what")
    for step in put["steps"]:
        table.add_row(f"{step['afterMs']:,.3f}", step["sentence"])
    out().print(table)
    for clock in put["clocks"]:
        if clock["aheadMs"] is not None:
            out().print(_clock_sentence(clock, broker_id=clock["brokerId"]), style="dim")


def _print_moment(moment: dict[str, Any]) -> None:
    out().print(f"{_time(moment['atMs'])} {_zone([moment['atMs']])}", style="bold")
    if not moment["nodes"]:
        out().print("none of these sessions covers that time")
        return
    nodes = _table("Nodes", "node", "role", "max offset", "flushed", "dispatched")
    for row in moment["nodes"]:
        offsets = (row["maxOffset"], row["flushedOffset"], row["dispatchedOffset"])
        nodes.add_row(_node(row), row["role"], *map(_number, offsets))
    out().print(nodes)
    if moment["connections"]:
        table = _table("Connections", "node", "conn", "state", "lag", "lag s", "last received s ago")
        for title in ("sent", "ack", "received", "reported"):
            table.add_column(title, justify="right")
        for row in moment["connections"]:
            received_ms = row["heardMsAgo"]
            table.add_row(
                _node(row),
                f"{row['conn']} {row['address'] or ''}".rstrip(),
                (row["state"] or "-") if row["isConnected"] else "not connected",
                _number(row["lagBytes"]),
                "-" if row["lagSeconds"] is None else f"{row['lagSeconds']:,.3f}",
                "-" if received_ms is None else f"{received_ms / 1000:,.3f}",
                *(_number(row[f"{name}Offset"]) for name in ("sent", "ack", "received", "reported")),
            )
        out().print(table)


def _time(at_ms: float) -> str:
    return clock_text(_ns(at_ms))


def _zone(moments_ms: Iterable[float]) -> str:
    return zone_text(map(_ns, moments_ms))


def _ns(at_ms: float) -> int:
    return round(at_ms * 1000) * 1000


def _module(name: str) -> ModuleType:
    return spark_module(name, command="replay")


def _print(document: dict[str, list[dict[str, Any]]]) -> None:
    _print_sessions(document["sessions"], document["probes"])
    if document["connections"]:
        _print_connections(document["connections"])
        out().print("lag: bytes, weighted by time; ack: ms from a frame's transfer to its ack", style="dim")
    if document["waits"]:
        _print_waits(document["waits"])
        _print_causes(document["causes"])
    _print_gaps(document["gaps"])
    _print_roles(document["roles"])
    _print_links(document["links"])
    _print_violations(document)
    for row in document["sessions"]:
        for line in row["damage"]:
            out().print(f"damage: {line}", soft_wrap=True)


def _print_sessions(rows: list[dict[str, Any]], probes: list[dict[str, Any]]) -> None:
    table = _table(
        "Sessions", "node", "role", "began", "seconds", "events", "puts", "put bytes", "max offset"
    )
    table.add_column("reconnects", justify="right")
    for row in rows:
        table.add_row(
            _node(row),
            _role(row),
            _time(row["beganAtMs"]),
            f"{row['durationMs'] / 1000:,.1f}",
            *map(_number, (row["events"], row["puts"], row["putBytes"], row["maxOffset"], row["reconnects"])),
        )
    out().print(table)
    for row in rows:
        if row["probes"]:
            own = [probe for probe in probes if probe["session"] == row["session"]]
            line = probes_line([ProbeCount(one["host"], one["reason"], one["count"]) for one in own])
            out().print(f"{row['brokerName']} {row['brokerId']}: {line}", style="dim", soft_wrap=True)


def _print_connections(rows: list[dict[str, Any]]) -> None:
    table = _table("Connections", "node", "conn", "state", "bytes", "frames", "lag p50/p99/max")
    for title in ("ack p50/p99/max", "sent", "ack", "received", "reported"):
        table.add_column(title, justify="right")
    for row in rows:
        table.add_row(
            _node(row),
            f"{row['conn']} {row['address'] or ''}".rstrip(),
            " ".join(filter(None, (row["state"], row["closeReason"]))),
            _number(row["bytes"]),
            _number(row["frames"]),
            _percentiles(row["lagBytes"]),
            _percentiles(row["ackLatencyMs"]),
            *(_number(row[f"{name}Offset"]) for name in ("sent", "ack", "received", "reported")),
        )
    out().print(table)


def _print_waits(rows: list[dict[str, Any]]) -> None:
    table = _table("Group commit", "node", "status", "puts", "waited ms p50/p99/max")
    for row in rows:
        table.add_row(_node(row), row["status"], _number(row["count"]), _percentiles(row["waitedMs"]))
    out().print(table)


def _print_causes(rows: list[dict[str, Any]]) -> None:
    table = _table("What puts waited for", "node", "status", "what", "conn", "puts", "waited ms p50/p99/max")
    for row in sorted(rows, key=_count, reverse=True)[:CAUSES_SHOWN]:
        conn = "" if row["conn"] is None else f"{row['conn']} {row['address'] or ''}".rstrip()
        table.add_row(
            _node(row),
            row["status"],
            row["cause"] + (f" ({row['ackMostly']})" if row["ackMostly"] else ""),
            conn,
            _number(row["count"]),
            _percentiles(row["waitedMs"]),
        )
    out().print(table)


def _count(row: dict[str, Any]) -> int:
    count: int = row["count"]
    return count


def _print_gaps(rows: list[dict[str, Any]]) -> None:
    if not rows:
        return
    table = _table("Refused offsets", "node", "time", "conn", "reason", "what")
    for row in rows[:GAPS_SHOWN]:
        conn = f"{row['conn']} {row['address'] or ''}".rstrip()
        table.add_row(_node(row), _time(row["atMs"]), conn, row["reason"], row["sentence"])
    out().print(table)
    if len(rows) > GAPS_SHOWN:
        out().print(f"and {len(rows) - GAPS_SHOWN:,} more: see --json", style="dim")


def _print_roles(rows: list[dict[str, Any]]) -> None:
    """Roles, epochs and cuts; what the sync-state set and the controllers did is in --json and the report."""
    shown = [row for row in rows if row["kind"] in {"ROLE", "LOG_CUT"} and row["brokerControllerId"]]
    if not shown:
        return
    table = _table("Roles", "node", "time", "role", "what")
    for row in sorted(shown, key=_at)[:ROLES_SHOWN]:
        node = f"{row['brokerName']} {row['brokerControllerId']}"
        table.add_row(node, _time(row["atMs"]), row["role"], row["sentence"])
    out().print(table)
    if len(shown) > ROLES_SHOWN:
        out().print(f"and {len(shown) - ROLES_SHOWN:,} more: see --json", style="dim")


def _at(row: dict[str, Any]) -> float:
    at_ms: float = row["atMs"]
    return at_ms


def _print_links(rows: list[dict[str, Any]]) -> None:
    for row in rows[:LINKS_SHOWN]:
        if row["aheadMs"] is not None:
            out().print(_clock_sentence(row, broker_id=row["slaveBrokerId"]), style="dim")


def _clock_sentence(row: dict[str, Any], *, broker_id: int) -> str:
    return (
        f"clock offset of slave {broker_id}: {row['aheadMs']:+,.3f} ms ± "
        f"{row['uncertainMs']:,.3f} ms (connection {row['conn']}, {row['frames']:,} frames)"
    )


CAUSES_SHOWN = 12
GAPS_SHOWN = 12
LINKS_SHOWN = 8
ROLES_SHOWN = 30
VIOLATIONS_SHOWN = 20


def _print_violations(document: dict[str, list[dict[str, Any]]]) -> None:
    rows = document["violations"]
    if rows:
        table = Table(title="Violations", title_justify="left", box=box.SIMPLE_HEAD)
        for column in ("node", "severity", "time", "seq", "conn", "what"):
            table.add_column(
                column, justify="right" if column in {"seq", "conn"} else "left", overflow="fold"
            )
        for row in rows[:VIOLATIONS_SHOWN]:
            table.add_row(
                _node(row),
                row["severity"],
                _time(row["atMs"]),
                _number(row["seq"]),
                _number(row["conn"]),
                f"{row['invariant']}: {row['sentence']}",
            )
        out().print(table)
    judged = [row for row in document["invariants"] if row["checked"] is not None]
    count = sum(row["violations"] for row in judged)
    if count > min(len(rows), VIOLATIONS_SHOWN):
        out().print(f"{count:,} violations in all", style="dim")
    held = sum(1 for row in judged if not row["violations"])
    out().print(
        f"invariants: {held} hold, {len(judged) - held} do not",
        style=BAD.terminal if held < len(judged) else "dim",
    )


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for column in columns:
        text = column in {"node", "role", "began", "conn", "state", "status", "what", "time", "reason"}
        table.add_column(column, justify="left" if text else "right", overflow="fold")
    return table


def _node(row: dict[str, Any]) -> str:
    return f"{row['brokerName']} {row['brokerId']}"


def _role(row: dict[str, Any]) -> str:
    if row["epoch"] is None:
        role: str = row["role"]
        return role
    return f"{row['role']}, broker {row['brokerControllerId']} in epoch {row['epoch']}"


def _number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _percentiles(value: dict[str, float] | None) -> str:
    if value is None:
        return "-"
    figures = (value["p50"], value["p99"], value["max"])
    return " / ".join(f"{figure:,}" if isinstance(figure, int) else f"{figure:,.2f}" for figure in figures)
