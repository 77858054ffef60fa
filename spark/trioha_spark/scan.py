"""Sessions on Spark: ranges of records are aggregated in parallel, and their parts joined by connection.

A task aggregates consecutive ranges one after the other and joins their parts: its memory is that of one
range and its result. Only results move between processes: for each connection counts, histograms, the frames
in flight at its start, and time series with 16 bytes for each step that has an event (at most 170 KB for a
session of less than 25 minutes, 0.4 MB for each hour of a longer one), independent of the number of events. A
probe takes a few bytes. Workers read the segments themselves, so on a cluster sessions have the same path on
every worker.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from trioha.recording.aggregate import ConnectionPart
from trioha.recording.events import NO_CONNECTION
from trioha.recording.time_series import TimeGrid
from trioha_analysis.parts import NodePart, Range, aggregate_range, join_connection, join_node

RUN_RANGES_MAX: Final = 8
"""Ranges of one task: about half a second of work."""
RUNS_PER_CORE: Final = 4
"""Tasks for each core, if there are enough ranges: so that cores finish at about the same time."""

PARTS_SCHEMA: Final = "session int, conn int, ordinal int, part binary"
"""A part: index of its session, connection (-1: the node), index of its first range there, and the pickled
part."""
JOINED_SCHEMA: Final = "session int, conn int, part binary"

_PARTS: Final = pa.schema(
    [("session", pa.int32()), ("conn", pa.int32()), ("ordinal", pa.int32()), ("part", pa.binary())]
)
_JOINED: Final = pa.schema([("session", pa.int32()), ("conn", pa.int32()), ("part", pa.binary())])


def aggregate_ranges(spark: SparkSession, ranges: Sequence[Range]) -> DataFrame:
    """A DataFrame of parts (`PARTS_SCHEMA`), a partition for each run of the ranges, of which there is at
    least one."""
    runs = runs_of(ranges, wanted=spark.sparkContext.defaultParallelism * RUNS_PER_CORE)
    numbers = spark.range(0, len(runs), 1, len(runs))
    return numbers.mapInArrow(partial(_aggregate_batches, runs), PARTS_SCHEMA)


def runs_of(ranges: Sequence[Range], *, wanted: int) -> list[list[Range]]:
    """Consecutive ranges of one session as runs, about `wanted` or more in all."""
    length = min(RUN_RANGES_MAX, max(1, len(ranges) // wanted))
    runs: list[list[Range]] = []
    for work in ranges:
        if not runs or len(runs[-1]) == length or runs[-1][0].session_index != work.session_index:
            runs.append([])
        runs[-1].append(work)
    return runs


def _aggregate_batches(
    runs: Sequence[Sequence[Range]], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for number in batch.column(0).to_pylist():
            yield _aggregate_run(runs[number])


def _aggregate_run(run: Sequence[Range]) -> pa.RecordBatch:
    node, connections = aggregate_range(run[0])
    for work in run[1:]:
        its_node, its_connections = aggregate_range(work)
        node = join_node([node, its_node])
        for conn, part in its_connections.items():
            known = connections.get(conn)
            connections[conn] = part if known is None else known.followed_by(part, work.grid)
    rows: dict[int, object] = {NO_CONNECTION: node, **connections}
    return pa.RecordBatch.from_pydict(
        {
            "session": [run[0].session_index] * len(rows),
            "conn": list(rows),
            "ordinal": [run[0].ordinal] * len(rows),
            "part": [pickle.dumps(value) for value in rows.values()],
        },
        schema=_PARTS,
    )


def join_parts(parts: DataFrame, grids: Mapping[int, TimeGrid]) -> DataFrame:
    """The parts joined to one row for each connection and node (`JOINED_SCHEMA`); `grids` by session
    index."""
    grids = dict(grids)

    # Spark needs the type hints, which a `partial` does not have.
    def join(rows: pa.Table) -> pa.Table:
        return _join(grids, rows)

    return parts.groupBy("session", "conn").applyInArrow(join, JOINED_SCHEMA)


def _join(grids: Mapping[int, TimeGrid], rows: pa.Table) -> pa.Table:
    rows = rows.sort_by("ordinal")
    session, conn = rows["session"][0].as_py(), rows["conn"][0].as_py()
    # Pickled by a worker of the same job.
    parts = [pickle.loads(part) for part in rows["part"].to_pylist()]  # noqa: S301
    joined = join_node(parts) if conn == NO_CONNECTION else join_connection(parts, grids[session])
    return pa.Table.from_pydict(
        {"session": [session], "conn": [conn], "part": [pickle.dumps(joined)]}, schema=_JOINED
    )


def joined_rows(joined: DataFrame) -> Iterator[tuple[int, int, NodePart | ConnectionPart]]:
    """Collect session index, connection and part of each row of `join_parts`."""
    table = joined.toArrow()
    for row in table.to_pylist():
        yield row["session"], row["conn"], pickle.loads(row["part"])  # noqa: S301
