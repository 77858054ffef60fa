"""Results of sessions on Spark: each in a task that has the joined parts of the session."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import DataFrame

from trioha_analysis.arrow_tables import write_session_tables
from trioha_analysis.arrow_values import from_arrow
from trioha_analysis.link_work import compare
from trioha_analysis.replay_result import ReplayPlan, SessionReplay, empty_node_part, session_replay
from trioha_sessions.invariants.group import check_group, groups_of
from trioha_sessions.segments import Segments
from trioha_spark.parts import session_of
from trioha_spark.rows import (
    ComparedRow,
    GroupRow,
    LifeRow,
    LinkRow,
    PartRow,
    ReplayRow,
    SessionRow,
    batch_of,
    rows_of,
    schema_of,
)


def finish(sessions: DataFrame, joined: DataFrame) -> DataFrame:
    """The results (`ReplayRow`) of sessions (`SessionRow`) from their joined parts (`PartRow`)."""
    return (
        sessions.groupBy("session")
        .cogroup(joined.groupBy("session"))
        .applyInArrow(finish_session, schema_of(ReplayRow))
    )


def finish_session(sessions: pa.Table, joined: pa.Table) -> pa.Table:
    """The result of one session; its long tables are written, if they are wanted."""
    session = session_of(sessions)
    (work,) = rows_of(sessions, SessionRow)
    parts = rows_of(joined, PartRow, session)
    replay = session_replay(
        session,
        Segments((), work.damage),
        work.grid,
        next((one.node for one in parts if one.node is not None), empty_node_part(session)),
        {one.conn: one.connection for one in sorted(parts, key=_conn) if one.connection is not None},
        seen=work.seen,
    )
    if parts and work.tables is not None:
        write_session_tables(replay, work.tables, work.session)
    row = ReplayRow(work.session, replay.with_detail(work.detail))
    return pa.Table.from_batches([batch_of([row], ReplayRow, session)])


def _conn(row: PartRow) -> int:
    return row.conn


def session_results(found: pa.Table, plan: ReplayPlan) -> dict[int, SessionReplay]:
    """The results (`ReplayRow`) by the index of their sessions."""
    return {
        index: from_arrow(replay, SessionReplay, plan.sessions[index])
        for index, replay in zip(found["session"].to_pylist(), found["replay"], strict=True)
    }


def check_groups(lives: DataFrame) -> DataFrame:
    """The results (`GroupRow`) of groups of brokers by the lives of their sessions (`LifeRow`)."""
    return lives.groupBy("group").applyInArrow(check_lives, schema_of(GroupRow))


def check_lives(lives: pa.Table) -> pa.Table:
    """The result of one group."""
    rows = rows_of(lives, LifeRow)
    result = check_group(*groups_of(row.life for row in rows))
    return pa.Table.from_batches([batch_of([GroupRow(rows[0].group, result)], GroupRow)])


def compare_links(work: DataFrame) -> DataFrame:
    """The links (`ComparedRow`) that connections (`LinkRow`) may be; works of one task together."""
    return work.groupBy("task").applyInArrow(compare_work, schema_of(ComparedRow))


def compare_work(work: pa.Table) -> pa.Table:
    """The links of the works of one task."""
    found = [
        ComparedRow(row.task, compared) for row in rows_of(work, LinkRow) for compared in compare(row.work)
    ]
    return pa.Table.from_batches([batch_of(found, ComparedRow)])
