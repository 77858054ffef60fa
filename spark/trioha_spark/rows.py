"""Rows of a replay's DataFrames: attrs classes, whose fields are typed columns in Spark and in Arrow.

`trioha_analysis.arrow_values` has the types. The functions that Spark runs on them take and give Arrow
tables.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, TypeVar

import pyarrow as pa
from attrs import frozen
from pyspark.sql import DataFrame, SparkSession

from trioha.recording.reader import Session
from trioha_analysis.arrow_values import arrow_type, from_arrow, to_arrow
from trioha_analysis.link_work import Compared, LinkWork
from trioha_analysis.parts import NodePart
from trioha_analysis.replay_result import Detail, SessionReplay
from trioha_analysis.state_at import LastSeen
from trioha_sessions.aggregate import ConnectionPart
from trioha_sessions.invariants.group import GroupResult
from trioha_sessions.role_lives import RoleLife
from trioha_sessions.segments import Damage
from trioha_sessions.time_series import TimeGrid

Row = TypeVar("Row")


@frozen(eq=False)
class PartRow:
    """A part of a session: of its node, or of one of its connections."""

    session: int
    """Index of the session among those of the replay."""
    conn: int
    """The connection; -1 for the node."""
    ordinal: int
    """Place among the parts of the session."""
    path: Path
    """Of the session."""
    grid: TimeGrid
    """Of its time series."""
    node: NodePart | None
    connection: ConnectionPart | None


@frozen
class SessionRow:
    """A session that is replayed."""

    session: int
    path: Path
    grid: TimeGrid
    damage: tuple[Damage, ...]
    """Of its segments."""
    seen: tuple[LastSeen, ...]
    """The replicas that its master had when its recording before ended."""
    detail: Detail
    """Of the result."""
    tables: Path | None
    """Folder of the long tables, if they are written."""


@frozen(eq=False)
class ReplayRow:
    """The result of a session."""

    session: int
    replay: SessionReplay


@frozen
class LifeRow:
    """A role of a broker, to be checked with those of its group."""

    group: int
    life: RoleLife


@frozen
class GroupRow:
    """The invariants of a group of brokers."""

    group: int
    result: GroupResult


@frozen
class LinkRow:
    """A connection of a master, to be compared with those of slaves."""

    task: int
    """Works with the same number are done in one task."""
    work: LinkWork


@frozen(eq=False)
class ComparedRow:
    """A connection of a master and one of a slave, compared."""

    task: int
    compared: Compared


_SQL_TYPES: Final = {
    pa.int64(): "bigint",
    pa.float64(): "double",
    pa.bool_(): "boolean",
    pa.string(): "string",
    pa.binary(): "binary",
}


def schema_of(row: type[Any]) -> str:
    """The columns of a class of rows as Spark's SQL writes them."""
    return ", ".join(f"`{one.name}` {_sql_type(one.type)}" for one in arrow_type(row))


def _sql_type(of: pa.DataType) -> str:
    if pa.types.is_list(of):
        return f"array<{_sql_type(of.value_type)}>"
    if pa.types.is_struct(of):
        return f"struct<{', '.join(f'`{one.name}`: {_sql_type(one.type)}' for one in of)}>"
    return _SQL_TYPES[of]


def batch_of(rows: Iterable[Any], row: type[Any], session: Session | None = None) -> pa.RecordBatch:
    """Rows of one class, whose values belong to `session`, as an Arrow batch."""
    return pa.RecordBatch.from_struct_array(to_arrow(list(rows), row, session))


def frame_of(spark: SparkSession, rows: Iterable[Any], row: type[Any]) -> DataFrame:
    """Rows of one class as a DataFrame."""
    return spark.createDataFrame(pa.Table.from_batches([batch_of(rows, row)]))


def rows_of(found: pa.Table | pa.RecordBatch, row: type[Row], session: Session | None = None) -> list[Row]:
    """The rows of a table with the columns of a class, whose values belong to `session`."""
    columns = found.select([one.name for one in arrow_type(row)]).to_struct_array()
    return [from_arrow(one, row, session) for one in columns]
