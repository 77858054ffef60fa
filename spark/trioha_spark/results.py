"""Results of sessions on Spark: their tables, those of groups of brokers, and links between sessions.

A table of results is a column, an array of rows, so that one DataFrame has all tables of a session.
`trioha_analysis.arrow_tables` has their columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.functions import inline

from trioha_analysis.arrow_tables import (
    GROUP_TABLES,
    SESSION_TABLES,
    group_tables,
    link_table,
    session_tables,
)
from trioha_analysis.link_work import (
    Compared,
    ConnectionFrames,
    ConnectionStarts,
    compare,
    frames_of,
    link_work,
    links_of,
)
from trioha_analysis.session_replay import SessionReplay, empty_node_part, session_replay
from trioha_sessions.invariants.group import check_group, groups_of
from trioha_sessions.role_lives import RoleLife
from trioha_spark.parts import session_of
from trioha_spark.rows import (
    AckMostly,
    GroupRow,
    LinksRow,
    LinkWorkRow,
    PartRow,
    ResultRow,
    SessionRow,
    batch_of,
    rows_of,
    schema_of,
    with_tables,
)

TABLE_ROWS_MAX: Final = 4096
"""Rows of a table in one row of results: about a megabyte."""
WORKS_PER_TASK: Final = 16
"""Connections of masters that a task compares."""


def session_results(sessions: DataFrame, joined: DataFrame) -> DataFrame:
    """The results (`ResultRow` with `SESSION_TABLES`) of sessions (`SessionRow`) from their joined parts
    (`PartRow`)."""
    return (
        sessions.groupBy("session_index")
        .cogroup(joined.groupBy("session_index"))
        .applyInArrow(finish_session, schema_of(ResultRow, SESSION_TABLES))
    )


def finish_session(sessions: pa.Table, joined: pa.Table) -> pa.Table:
    """The results of one session."""
    session = session_of(sessions)
    (work,) = rows_of(sessions, SessionRow)
    parts = rows_of(joined, PartRow, session)
    replay = session_replay(
        session,
        work.damage,
        work.grid,
        next((one.node for one in parts if one.node is not None), empty_node_part(session)),
        {one.conn: one.connection for one in sorted(parts, key=_conn) if one.connection is not None},
        seen=work.seen,
    )
    return pa.Table.from_batches(_result_batches(work.session_index, replay))


def _result_batches(index: int, replay: SessionReplay) -> Iterator[pa.RecordBatch]:
    tables = session_tables(replay)
    first = ResultRow(index, 0, replay.life, tuple(frames_of(index, replay)), replay.for_report())
    longest = max(table.num_rows for table in tables.values())
    for part in range(max(1, -(-longest // TABLE_ROWS_MAX))):
        row = first if part == 0 else ResultRow(index, part, None, (), None)
        own = {name: one.slice(part * TABLE_ROWS_MAX, TABLE_ROWS_MAX) for name, one in tables.items()}
        yield with_tables(batch_of([row], ResultRow, replay.session), own)


def _conn(row: PartRow) -> int:
    return row.conn


def group_results(results: DataFrame) -> DataFrame:
    """The results (`GroupRow` with `GROUP_TABLES`) of groups of brokers by those of their sessions."""
    lives = results.where("life is not null").select("life.*")
    return lives.groupBy("cluster_name", "broker_name").applyInArrow(
        check_lives, schema_of(GroupRow, GROUP_TABLES)
    )


def check_lives(lives: pa.Table) -> pa.Table:
    """The results of one group."""
    result = check_group(*groups_of(rows_of(lives, RoleLife)))
    row = batch_of([GroupRow(result.cluster_name, result.broker_name)], GroupRow)
    return pa.Table.from_batches([with_tables(row, group_tables(result))])


def link_results(results: DataFrame) -> DataFrame:
    """The links (`LinksRow` with the table `links`) between the sessions of each broker and its slaves."""
    frames = results.select(inline("frames"))
    work = frames.groupBy("broker_name").applyInArrow(plan_links, schema_of(LinkWorkRow))
    compared = work.groupBy("broker_name", "task").applyInArrow(compare_links, schema_of(Compared))
    return compared.groupBy("broker_name").applyInArrow(choose_links, schema_of(LinksRow, ["links"]))


def plan_links(frames: pa.Table) -> pa.Table:
    """What is to be compared (`LinkWorkRow`) of the connections (`ConnectionFrames`) of one broker."""
    work = enumerate(link_work(rows_of(frames, ConnectionFrames)))
    rows = [LinkWorkRow(one.master.broker_name, number // WORKS_PER_TASK, one) for number, one in work]
    return pa.Table.from_batches([batch_of(rows, LinkWorkRow)])


def compare_links(work: pa.Table) -> pa.Table:
    """The connections (`Compared`) that may be those of the works (`LinkWorkRow`) of one task."""
    starts = ConnectionStarts()
    found = [one for row in rows_of(work, LinkWorkRow) for one in compare(row.work, starts)]
    return pa.Table.from_batches([batch_of(found, Compared)])


def choose_links(compared: pa.Table) -> pa.Table:
    """The links of one broker of those (`Compared`) that may be."""
    found = rows_of(compared, Compared)
    links = links_of(found)
    indices = {one.master_path: one.master_index for one in found}
    mostly = tuple(AckMostly(indices[one.master.path], one.master_conn, one.ack_mostly) for one in links)
    row = batch_of([LinksRow(found[0].broker_name, mostly)], LinksRow)
    return pa.Table.from_batches([with_tables(row, {"links": link_table(links)})])
