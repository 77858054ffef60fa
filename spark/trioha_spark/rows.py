"""Rows of a replay's DataFrames: attrs classes, whose fields are typed columns in Spark and in Arrow.

`trioha_analysis.arrow_values` has the types. The functions that Spark runs on them take and give Arrow
tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import pyarrow as pa
from attrs import frozen
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from trioha.recording.reader import Session
from trioha_analysis.arrow_tables import SCHEMAS
from trioha_analysis.arrow_values import arrow_type, from_arrow, to_arrow
from trioha_analysis.link_work import ConnectionFrames, LinkWork
from trioha_analysis.parts import NodePart
from trioha_analysis.session_replay import SessionReplay
from trioha_analysis.state_at import LastSeen
from trioha_sessions.aggregate import ConnectionPart
from trioha_sessions.role_lives import RoleLife
from trioha_sessions.segments import Damage
from trioha_sessions.time_series import TimeGrid

Row = TypeVar("Row")


@frozen(eq=False)
class PartRow:
    """A part of a session: of its node, or of one of its connections."""

    session_index: int
    """Of the session among those of the replay."""
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

    session_index: int
    path: Path
    grid: TimeGrid
    damage: tuple[Damage, ...]
    """Of its segments."""
    seen: tuple[LastSeen, ...]
    """The replicas that its master had when its recording before ended."""


@frozen(eq=False)
class ResultRow:
    """Rows of each table of a session, in columns beside these; the first of its rows has the rest."""

    session_index: int
    part: int
    """Place among the rows of the session."""
    life: RoleLife | None
    """Its role under controllers."""
    frames: tuple[ConnectionFrames, ...]
    """Its connections that have frames."""
    report: SessionReplay | None
    """What a report shows."""


@frozen
class GroupRow:
    """A group of brokers under controllers; its tables are columns beside these."""

    cluster_name: str
    broker_name: str


@frozen
class LinkWorkRow:
    """A connection of a master, to be compared with those of slaves."""

    broker_name: str
    task: int
    """Works with the same number are done in one task."""
    work: LinkWork


@frozen
class AckMostly:
    """What acks of a connection took most of their time for."""

    session_index: int
    """Of the master's session."""
    conn: int
    ack_mostly: str | None
    """`network` or `slave`; None if the clocks are not known."""


@frozen
class LinksRow:
    """The links of a broker and its slaves; the table `links` is a column beside these."""

    broker_name: str
    mostly: tuple[AckMostly, ...]
    """By link."""


_SPARK_TYPES: Final = {
    pa.int64(): LongType(),
    pa.float64(): DoubleType(),
    pa.bool_(): BooleanType(),
    pa.string(): StringType(),
    pa.binary(): BinaryType(),
}


def schema_of(row: type[Any], tables: Iterable[str] = ()) -> StructType:
    """The columns of a class of rows, and those of `tables`, in Spark."""
    return _struct_of([*arrow_type(row), *(pa.field(name, _rows_type(name)) for name in tables)])


def _rows_type(table: str) -> pa.DataType:
    return pa.list_(pa.struct(list(SCHEMAS[table])))


def _struct_of(columns: Iterable[pa.Field]) -> StructType:
    return StructType([StructField(one.name, _spark_type(one.type)) for one in columns])


def _spark_type(of: pa.DataType) -> DataType:
    if pa.types.is_list(of):
        return ArrayType(_spark_type(of.value_type))
    return _struct_of(of) if pa.types.is_struct(of) else _SPARK_TYPES[of]


def batch_of(rows: Iterable[Any], row: type[Any], session: Session | None = None) -> pa.RecordBatch:
    """Rows of one class, whose values belong to `session`, as an Arrow batch."""
    return pa.RecordBatch.from_struct_array(to_arrow(list(rows), row, session))


def with_tables(row: pa.RecordBatch, tables: Mapping[str, pa.Table]) -> pa.RecordBatch:
    """One row with tables: each is a column, an array of its rows."""
    for name, table in tables.items():
        rows = pa.concat_arrays(
            [pa.array([], pa.struct(list(SCHEMAS[name]))), *table.to_struct_array().chunks]
        )
        row = row.append_column(
            pa.field(name, _rows_type(name)),
            pa.ListArray.from_arrays(pa.array([0, len(rows)], pa.int32()), rows),
        )
    return row


def table_in(column: pa.ChunkedArray, name: str) -> pa.Table:
    """The rows of a table, of all rows of its column."""
    rows = [chunk.flatten() for chunk in column.chunks]
    return pa.Table.from_batches(
        [pa.RecordBatch.from_struct_array(one.cast(_rows_type(name).value_type)) for one in rows],
        SCHEMAS[name],
    )


def frame_of(spark: SparkSession, rows: Iterable[Any], row: type[Any]) -> DataFrame:
    """Rows of one class as a DataFrame."""
    return spark.createDataFrame(pa.Table.from_batches([batch_of(rows, row)]))


def rows_of(found: pa.Table | pa.RecordBatch, row: type[Row], session: Session | None = None) -> list[Row]:
    """The rows of a table with the columns of a class, whose values belong to `session`."""
    columns = found.select([one.name for one in arrow_type(row)]).to_struct_array()
    return [from_arrow(one, row, session) for one in columns]
